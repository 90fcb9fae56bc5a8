//! Field numbers, from upstream's `generated.proto` files. Only what those files contain is understood.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

/// Messages by OpenAPI name (`io.k8s.api.core.v1.Pod`).
pub type Protos = BTreeMap<String, Vec<ProtoField>>;

#[derive(Debug, Clone)]
pub struct ProtoField {
    pub name: String,
    pub number: u32,
    /// A scalar's name, or the OpenAPI name of a message.
    pub typ: String,
    pub repeated: bool,
    pub map: bool,
}

/// Folders below `staging/src/k8s.io`; anything else there (metrics, audit) is not served here.
pub const PARTS: [&str; 4] =
    ["api", "apimachinery/pkg", "apiextensions-apiserver/pkg/apis", "kube-aggregator/pkg/apis"];

/// The package a `generated.proto` declares, as OpenAPI names it.
pub fn package_of(text: &str) -> Option<String> {
    let name = text.lines().find_map(|line| line.strip_prefix("package "))?;
    Some(openapi_name(name.trim_end_matches(';')))
}

pub fn read(root: &Path) -> Result<Protos> {
    let mut all = Protos::new();
    for part in PARTS {
        walk(&root.join(part), &mut all)?;
    }
    Ok(all)
}

fn walk(dir: &Path, all: &mut Protos) -> Result<()> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    for entry in entries {
        let path = entry.with_context(|| format!("reading {}", dir.display()))?.path();
        if path.is_dir() {
            walk(&path, all)?;
        } else if path.file_name().is_some_and(|name| name == "generated.proto") {
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            parse(&text, all);
        }
    }
    Ok(())
}

fn parse(text: &str, all: &mut Protos) {
    let mut package = String::new();
    let mut message: Option<String> = None;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("package ") {
            package = openapi_name(name.trim_end_matches(';'));
        } else if let Some(name) = line.strip_prefix("message ") {
            let name = name.trim_end_matches(" {").trim_end_matches(" {}");
            let name = format!("{package}.{name}");
            all.insert(name.clone(), Vec::new());
            message = Some(name);
        } else if line == "}" {
            message = None;
        } else if let Some(fields) = message.as_ref().and_then(|name| all.get_mut(name)) {
            fields.extend(field(line, &package));
        }
    }
}

/// `optional string name = 1;`, `repeated .k8s.io.X y = 2;`, `map<string, T> z = 3;`
fn field(line: &str, package: &str) -> Option<ProtoField> {
    let (left, number) = line.strip_suffix(';')?.split_once(" = ")?;
    let number = number.parse().ok()?;
    if let Some(map) = left.strip_prefix("map<string, ") {
        let (value, name) = map.split_once("> ")?;
        let typ = typ(value, package);
        return Some(ProtoField { name: name.to_owned(), number, typ, repeated: false, map: true });
    }
    let mut words = left.split(' ');
    let (label, value, name) = (words.next()?, words.next()?, words.next()?);
    let repeated = match label {
        "repeated" => true,
        "optional" => false,
        // A comment.
        _ => return None,
    };
    Some(ProtoField { name: name.to_owned(), number, typ: typ(value, package), repeated, map: false })
}

fn typ(text: &str, package: &str) -> String {
    if text.starts_with(|first: char| first.is_ascii_lowercase()) && !text.contains('.') {
        return text.to_owned();
    }
    match text.trim_start_matches('.') {
        name if name.contains('.') => openapi_name(name),
        name => format!("{package}.{name}"),
    }
}

/// `k8s.io.kube_aggregator.pkg` is `io.k8s.kube-aggregator.pkg` there.
fn openapi_name(proto: &str) -> String {
    match proto.strip_prefix("k8s.io.") {
        Some(rest) => format!("io.k8s.{}", rest.replace('_', "-")),
        None => proto.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_with_their_types() {
        let text = "package k8s.io.kube_aggregator.pkg.v1;\n\nmessage A {\n  // a comment = 9;\n  \
            optional string name = 1;\n  repeated .k8s.io.api.core.v1.Pod pods = 2;\n  \
            map<string, B> more = 3;\n}\n\nmessage B {\n}\n";
        let mut all = Protos::new();
        parse(text, &mut all);
        let shown: Vec<String> = all["io.k8s.kube-aggregator.pkg.v1.A"]
            .iter()
            .map(|field| {
                let label = if field.map {
                    "map "
                } else if field.repeated {
                    "list "
                } else {
                    ""
                };
                format!("{} {} {label}{}", field.name, field.number, field.typ)
            })
            .collect();
        assert_eq!(
            shown,
            [
                "name 1 string",
                "pods 2 list io.k8s.api.core.v1.Pod",
                "more 3 map io.k8s.kube-aggregator.pkg.v1.B",
            ]
        );
        assert!(all["io.k8s.kube-aggregator.pkg.v1.B"].is_empty());
    }
}
