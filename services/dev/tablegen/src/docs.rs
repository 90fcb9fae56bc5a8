//! Descriptions, from the doc comments of the `k8s-openapi` crate.
//!
//! The output: a line `NAME<tab>TEXT` per message, then ` FIELD<tab>TEXT` per field; `\n` and `\\` are escaped.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::messages::Joined;

#[derive(Default)]
struct Doc {
    text: String,
    /// By name without case and punctuation.
    fields: BTreeMap<String, String>,
}

/// The text and how many fields stay undescribed.
pub fn text(joined: &Joined) -> Result<(String, usize)> {
    let mut docs = BTreeMap::new();
    walk(&source()?, &mut docs)?;
    // Rust structs leave out what every kind has; those that list it lend their words.
    let lent: BTreeMap<&str, String> = ["apiversion", "kind"]
        .into_iter()
        .filter_map(|field| {
            let of = docs.get("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")?;
            Some((field, of.fields.get(field)?.clone()))
        })
        .collect();
    let none = Doc::default();
    let mut out = String::new();
    let mut missing = 0;
    for (name, message) in &joined.messages {
        let doc = docs.get(name.as_str()).unwrap_or(&none);
        out.push_str(&format!("{name}\t{}\n", escape(&doc.text)));
        for json in &message.json {
            let plain: String =
                json.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
            match doc.fields.get(&plain).or_else(|| lent.get(plain.as_str())) {
                Some(text) => out.push_str(&format!(" {json}\t{}\n", escape(text))),
                None => missing += 1,
            }
        }
    }
    // Kinds of values that are no messages of the table.
    for (name, doc) in docs.iter().filter(|(name, _)| !joined.messages.contains_key(name.as_str())) {
        out.push_str(&format!("{name}\t{}\n", escape(&doc.text)));
    }
    Ok((out, missing))
}

pub fn compress(text: &str) -> Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text.as_bytes()).context("compressing descriptions")?;
    encoder.finish().context("compressing descriptions")
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

/// `src/v1_36` of the crate, wherever cargo keeps it.
fn source() -> Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new().exec().context("asking cargo for packages")?;
    let package = metadata.packages.iter().find(|package| package.name.as_str() == "k8s-openapi");
    let package = package.context("k8s-openapi is not in the lock file")?;
    let root = package.manifest_path.parent().context("a manifest without a folder")?;
    Ok(root.join("src/v1_36").into())
}

fn walk(dir: &Path, docs: &mut BTreeMap<String, Doc>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry.with_context(|| format!("reading {}", dir.display()))?.path();
        if path.is_dir() {
            walk(&path, docs)?;
        } else {
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            parse(&text, docs);
        }
    }
    Ok(())
}

/// One file is one definition; its name is in the first line.
fn parse(text: &str, docs: &mut BTreeMap<String, Doc>) {
    let Some(name) = text.lines().next().and_then(|line| line.strip_prefix("// Generated from definition "))
    else {
        return;
    };
    let mut doc = Doc::default();
    let mut comment: Vec<&str> = Vec::new();
    let mut inside = false;
    for line in text.lines().skip(1) {
        let line = line.trim();
        if let Some(words) = line.strip_prefix("///") {
            comment.push(words.strip_prefix(' ').unwrap_or(words));
        } else if line.starts_with("pub struct ") || line.starts_with("pub enum ") {
            doc.text = comment.join("\n");
            comment.clear();
            inside = line.ends_with('{');
            if !inside {
                break;
            }
        } else if line == "}" && inside {
            break;
        } else if let Some((field, _)) =
            line.strip_prefix("pub ").filter(|_| inside).and_then(|line| line.split_once(": "))
        {
            let plain: String =
                field.trim_start_matches("r#").chars().filter(char::is_ascii_alphanumeric).collect();
            doc.fields.insert(plain, comment.join("\n"));
            comment.clear();
        }
    }
    docs.insert(name.to_owned(), doc);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_become_descriptions() {
        let text = "// Generated from definition io.k8s.api.x.v1.A\n\n/// An A.\n///\n/// Really.\n\
            #[derive(Clone)]\npub struct A {\n    /// Its host.\n    pub host_ip: Option<String>,\n\n    \
            /// Its type.\n    pub type_: String,\n    pub bare: u8,\n}\n\nimpl A {\n    /// Not this.\n    \
            pub x: u8,\n}\n";
        let mut docs = BTreeMap::new();
        parse(text, &mut docs);
        let doc = &docs["io.k8s.api.x.v1.A"];
        assert_eq!(doc.text, "An A.\n\nReally.");
        let fields: Vec<(&str, &str)> = doc.fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(fields, [("bare", ""), ("hostip", "Its host."), ("type", "Its type.")]);
        assert_eq!(escape("a\\b\nc"), "a\\\\b\\nc");
    }
}
