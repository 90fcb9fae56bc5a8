//! Which scalars can tell zero from absent: those that are pointers in upstream's Go types.
//!
//! Neither `generated.proto` (where everything is `optional`) nor OpenAPI says so, hence the Go source beside
//! the former. Only its plain form is understood: a struct, a field a line, a `json` and a `protobuf` tag.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::proto::{PARTS, package_of};

const HEADER: &str = "# Written by services/dev/tablegen. Scalar fields that are absent or set, zero included \
(pointers in Go): MESSAGE FIELD...\n# All other scalars are absent when zero.\n";

/// What is a scalar without being declared as one.
const SCALARS: &[&str] =
    &["bool", "string", "int32", "int64", "uint32", "uint64", "float64", "intstr.IntOrString"];

#[derive(Default)]
struct Source {
    /// By message: JSON name and Go type of each pointer.
    pointers: BTreeMap<String, Vec<(String, String)>>,
    /// `type Protocol string`, by bare name: packages use one another's under names of their own.
    scalars: BTreeSet<String>,
}

/// The table, for the messages that `is_served` knows.
pub fn text(root: &Path, is_served: impl Fn(&str) -> bool) -> Result<String> {
    let mut source = Source::default();
    for part in PARTS {
        walk(&root.join(part), &mut source)?;
    }
    let mut out = HEADER.to_owned();
    for (message, pointers) in &source.pointers {
        let scalar = |typ: &str| {
            let bare = typ.rsplit('.').next().unwrap_or(typ);
            SCALARS.contains(&typ) || source.scalars.contains(bare)
        };
        let fields: BTreeSet<&str> =
            pointers.iter().filter(|(_, typ)| scalar(typ)).map(|(json, _)| json.as_str()).collect();
        if !fields.is_empty() && is_served(message) {
            let fields: Vec<&str> = fields.into_iter().collect();
            out += &format!("{message} {}\n", fields.join(" "));
        }
    }
    Ok(out)
}

fn walk(dir: &Path, source: &mut Source) -> Result<()> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry.with_context(|| format!("reading {}", dir.display()))?.path();
        if path.is_dir() {
            walk(&path, source)?;
        } else if path.extension().is_some_and(|ending| ending == "go") {
            files.push(path);
        }
    }
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| path.display().to_string());
    // Types without a protobuf form still have names that others use.
    let proto = dir.join("generated.proto");
    let package = if proto.is_file() { package_of(&read(&proto)?) } else { None };
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if name != "generated.pb.go" && !name.starts_with("zz_") && !name.ends_with("_test.go") {
            parse(&read(&file)?, package.as_deref(), source);
        }
    }
    Ok(())
}

fn parse(text: &str, package: Option<&str>, source: &mut Source) {
    let mut message: Option<String> = None;
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("type ") {
            let words: Vec<&str> = declared.split_whitespace().collect();
            match words[..] {
                [name, "struct", "{"] => message = package.map(|package| format!("{package}.{name}")),
                [name, typ, ..] if SCALARS.contains(&typ) => drop(source.scalars.insert(name.to_owned())),
                _ => {}
            }
        } else if line == "}" {
            message = None;
        } else if let Some(message) = &message
            && let Some(pointer) = pointer(line)
        {
            source.pointers.entry(message.clone()).or_default().push(pointer);
        }
    }
}

/// ``Name *Type `json:"name,omitempty" protobuf:"…"` ``
fn pointer(line: &str) -> Option<(String, String)> {
    let mut words = line.split_whitespace();
    let (_, typ) = (words.next()?, words.next()?.strip_prefix('*')?);
    let tags = line.split_once('`')?.1;
    let json = tags.split_once("json:\"")?.1.split(['"', ',']).next()?;
    (tags.contains("protobuf:\"") && !json.is_empty()).then(|| (json.to_owned(), typ.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_to_scalars_are_found() {
        let go = "type Policy string\n\ntype Spec struct {\n\t// Replicas *int32 `json:\"no\" protobuf:\"x\"`\n\
            \tReplicas *int32 `json:\"replicas,omitempty\" protobuf:\"varint,1,opt,name=replicas\"`\n\
            \tMin int32 `json:\"min\" protobuf:\"varint,2,opt,name=min\"`\n\
            \tPolicy *Policy `json:\"policy\" protobuf:\"bytes,3,opt,name=policy\"`\n\
            \tOther *Other `json:\"other\" protobuf:\"bytes,4,opt,name=other\"`\n\
            \tMost *intstr.IntOrString `json:\"most\" protobuf:\"bytes,5,opt,name=most\"`\n\
            \tLocal *bool `json:\"local\"`\n}\n\nvar x *int32\n";
        let mut source = Source::default();
        parse(go, Some("io.k8s.api.x.v1"), &mut source);
        let found = &source.pointers["io.k8s.api.x.v1.Spec"];
        let shown: Vec<String> = found.iter().map(|(json, typ)| format!("{json} {typ}")).collect();
        assert_eq!(shown, ["replicas int32", "policy Policy", "other Other", "most intstr.IntOrString"]);
        assert!(source.scalars.contains("Policy") && !source.scalars.contains("Spec"));
    }
}
