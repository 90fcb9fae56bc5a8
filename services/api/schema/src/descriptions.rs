//! What kinds and fields are for: sentences that `kubectl explain` shows.
//!
//! Upstream's words, taken from the doc comments of the k8s-openapi crate (Apache-2.0) by `tablegen`.
//! They are a megabyte of text, so they stay compressed in the program and are unpacked only while a document
//! is being made.

use std::collections::HashMap;
use std::io::Read;

const PACKED: &[u8] = include_bytes!("../data/descriptions.txt.gz");

/// The bytes documents are made from besides the table, for hashing.
pub(crate) fn packed() -> &'static [u8] {
    PACKED
}

pub(crate) struct Descriptions {
    text: String,
    /// Message name to the range of its lines.
    by_message: HashMap<String, std::ops::Range<usize>>,
}

impl Descriptions {
    /// Unpacks them. They are part of the program: text that cannot be read counts as absent.
    pub fn load() -> Descriptions {
        let mut text = String::new();
        if flate2::read::GzDecoder::new(PACKED).read_to_string(&mut text).is_err() {
            text.clear();
        }
        let mut by_message: HashMap<String, std::ops::Range<usize>> = HashMap::new();
        let (mut name, mut start, mut at) = ("", 0, 0);
        for line in text.split_inclusive('\n') {
            if !line.starts_with(' ') {
                if !name.is_empty() {
                    by_message.insert(name.to_owned(), start..at);
                }
                (name, start) = (line.split('\t').next().unwrap_or_default(), at);
            }
            at += line.len();
        }
        if !name.is_empty() {
            by_message.insert(name.to_owned(), start..at);
        }
        Descriptions { text, by_message }
    }

    /// Of the message itself, and of its fields by JSON name.
    pub fn of(&self, message: &str) -> (String, HashMap<&str, String>) {
        let lines = self.by_message.get(message).map_or("", |range| &self.text[range.clone()]);
        let mut lines = lines.lines().filter_map(|line| line.trim_start_matches(' ').split_once('\t'));
        let own = lines.next().map(|(_, text)| unescape(text)).unwrap_or_default();
        (own, lines.map(|(field, text)| (field, unescape(text))).collect())
    }
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.as_str().starts_with('n') => {
                chars.next();
                out.push('\n');
            }
            '\\' => out.extend(chars.next()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_described() {
        let all = Descriptions::load();
        for (message, field, wanted) in [
            ("io.k8s.api.core.v1.PodSpec", "nodeName", "NodeName indicates in which node"),
            ("io.k8s.api.apps.v1.Deployment", "kind", "Kind is a string value"),
            ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "labels", "Map of string keys"),
        ] {
            let (own, fields) = all.of(message);
            assert!(!own.is_empty(), "{message}");
            assert!(fields[field].starts_with(wanted), "{message} {field}: {}", fields[field]);
        }
        assert!(all.of("nobody").1.is_empty());
    }

    #[test]
    fn escapes_come_back() {
        for (packed, wanted) in [("a\\nb", "a\nb"), ("a\\\\nb", "a\\nb"), ("plain", "plain")] {
            assert_eq!(unescape(packed), wanted);
        }
    }
}
