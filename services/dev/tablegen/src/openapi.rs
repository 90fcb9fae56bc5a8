//! Facts of OpenAPI v3 documents: everything but the descriptions and the paths.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// Schemas by name. Documents of different group-versions agree on those they share, except for the
/// group-version-kinds of a few (`DeleteOptions`), which are gathered.
pub type Schemas = BTreeMap<String, Schema>;

#[derive(Debug, Clone)]
pub struct Schema {
    pub value: Value,
    /// `group/version/Kind`
    pub kinds: Vec<String>,
}

pub fn read(dir: &Path) -> Result<Schemas> {
    let mut all = Schemas::new();
    let entries = std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let document: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
        for (name, value) in schemas.into_iter().flatten() {
            let schema =
                all.entry(name.clone()).or_insert_with(|| Schema { value: value.clone(), kinds: Vec::new() });
            for gvk in value["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
                let part = |key: &str| gvk[key].as_str().unwrap_or_default();
                let kind = format!("{}/{}/{}", part("group"), part("version"), part("kind"));
                if !schema.kinds.contains(&kind) {
                    schema.kinds.push(kind);
                }
            }
        }
    }
    Ok(all)
}
