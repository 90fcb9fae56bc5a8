//! YAML bodies.
//!
//! [`to_json`] turns YAML into JSON text and keeps it as close to the source as JSON can be: duplicate keys
//! stay duplicate, for the strict decoder to report. [`from_json`] is for answers.
//!
//! Not here: several documents in one body (upstream takes one), tags, YAML 1.1's `yes` and `on`.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    #[error("error converting YAML to JSON: yaml: {0}")]
    Read(String),
}

/// Output may be this many times the input: aliases repeat what they stand for, and the parser's own limit
/// counts events, not bytes.
const MAX_GROWTH: usize = 64;
/// Four times the largest body: without aliases JSON is never that much longer, and what is longer could not be
/// stored.
const MAX_OUTPUT_BYTES: usize = 12 * 1024 * 1024;
const MIN_OUTPUT_BYTES: usize = 64 * 1024;

/// Nested deeper than the JSON parser would take.
const MAX_DEPTH: usize = 120;

/// One YAML document as JSON text.
pub fn to_json(yaml: &[u8]) -> Result<Vec<u8>, YamlError> {
    let mut writer = Writer {
        out: Vec::with_capacity(yaml.len()),
        limit: yaml.len().saturating_mul(MAX_GROWTH).clamp(MIN_OUTPUT_BYTES, MAX_OUTPUT_BYTES),
        depth: 0,
    };
    let text = std::str::from_utf8(yaml).map_err(|_| YamlError::Read("invalid UTF-8".to_owned()))?;
    Node(&mut writer)
        .deserialize(serde_yaml::Deserializer::from_str(text))
        .map_err(|cause| YamlError::Read(cause.to_string()))?;
    Ok(writer.out)
}

/// Keys that a mapping has more than once, each with its line, counted from 1. For block style, which people
/// write; what is written as JSON has no lines to speak of.
pub fn duplicate_keys(yaml: &[u8]) -> Vec<(usize, String)> {
    let text = String::from_utf8_lossy(yaml);
    let mut found = Vec::new();
    // Mappings that are open, by how far they are indented.
    let mut open: Vec<(usize, BTreeSet<String>)> = Vec::new();
    // Indentation of a key whose value is a block of text.
    let mut block: Option<usize> = None;
    for (at, line) in text.lines().enumerate() {
        let body = line.trim_start_matches(' ');
        let mut indent = line.len() - body.len();
        if body.is_empty() || body.starts_with('#') || block.is_some_and(|key| indent > key) {
            continue;
        }
        block = None;
        if body == "---" || body == "..." {
            open.clear();
            continue;
        }
        let mut rest = body;
        while let Some(item) = rest.strip_prefix("- ") {
            open.retain(|(level, _)| *level <= indent);
            let inner = item.trim_start_matches(' ');
            indent += rest.len() - inner.len();
            // A new item is a new mapping, as deep as the one before it.
            open.retain(|(level, _)| *level < indent);
            rest = inner;
        }
        let Some(key) = block_key(rest) else { continue };
        open.retain(|(level, _)| *level <= indent);
        if open.last().is_none_or(|(level, _)| *level < indent) {
            open.push((indent, BTreeSet::new()));
        }
        let value = rest.trim_end();
        if value.ends_with('|') || value.ends_with('>') || value.ends_with("|-") || value.ends_with(">-") {
            block = Some(indent);
        }
        if let Some((_, keys)) = open.last_mut()
            && !keys.insert(key.to_owned())
        {
            found.push((at + 1, key.to_owned()));
        }
    }
    found
}

/// `key` of `key: value`, quoted or not.
fn block_key(line: &str) -> Option<&str> {
    for quote in ['"', '\''] {
        if let Some(rest) = line.strip_prefix(quote) {
            let (key, after) = rest.split_once(quote)?;
            return after.trim_start().starts_with(':').then_some(key);
        }
    }
    let (key, after) = line.split_once(':')?;
    let plain = !key.contains(['{', '[', '"']) && (after.is_empty() || after.starts_with(' '));
    plain.then_some(key.trim_end())
}

/// The YAML of a JSON value, keys in order.
///
/// Written here, since YAML 1.1 readers (Go's among them) take `y`, `on` or `1e3` for something else than
/// text, and libraries that know only YAML 1.2 leave those bare.
pub fn from_json(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(members) if !members.is_empty() => emit_members(&mut out, members, 0),
        Value::Array(items) if !items.is_empty() => emit_items(&mut out, items, 0),
        scalar => {
            emit_scalar(&mut out, scalar);
            out.push('\n');
        }
    }
    out
}

fn indent(out: &mut String, levels: usize) {
    out.extend(std::iter::repeat_n("  ", levels));
}

fn emit_members(out: &mut String, members: &serde_json::Map<String, Value>, level: usize) {
    for (index, (key, value)) in members.iter().enumerate() {
        // The first member of a list item stands behind its dash.
        if index > 0 || !out.ends_with("- ") {
            indent(out, level);
        }
        emit_text(out, key);
        out.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push('\n');
                emit_members(out, inner, level + 1);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                emit_items(out, items, level);
            }
            scalar => {
                out.push(' ');
                emit_scalar(out, scalar);
                out.push('\n');
            }
        }
    }
}

fn emit_items(out: &mut String, items: &[Value], level: usize) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 || !out.ends_with("- ") {
            indent(out, level);
        }
        out.push_str("- ");
        match item {
            Value::Object(inner) if !inner.is_empty() => emit_members(out, inner, level + 1),
            Value::Array(inner) if !inner.is_empty() => emit_items(out, inner, level + 1),
            scalar => {
                emit_scalar(out, scalar);
                out.push('\n');
            }
        }
    }
}

/// Also the empty list and object, which have no block form.
fn emit_scalar(out: &mut String, value: &Value) {
    match value {
        Value::String(text) => emit_text(out, text),
        other => out.push_str(&other.to_string()),
    }
}

/// Bare where no reader could mistake it, else quoted as JSON quotes, which YAML understands.
fn emit_text(out: &mut String, text: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let starts_plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '/'));
    let mistaken = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "inf", "nan"];
    if starts_plain && text.chars().all(plain) && !mistaken.iter().any(|word| text.eq_ignore_ascii_case(word))
    {
        out.push_str(text);
    } else {
        for c in Value::from(text).to_string().chars() {
            // Line breaks to YAML and the byte order mark, which JSON leaves as they are.
            match c {
                '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' => {
                    out.push_str(&format!("\\u{:04x}", u32::from(c)));
                }
                other => out.push(other),
            }
        }
    }
}

struct Writer {
    out: Vec<u8>,
    limit: usize,
    depth: usize,
}

impl Writer {
    fn push<E: serde::de::Error>(&mut self, text: &[u8]) -> Result<(), E> {
        if self.out.len() + text.len() > self.limit {
            return Err(E::custom("document contains excessive aliasing"));
        }
        self.out.extend_from_slice(text);
        Ok(())
    }
    fn string<E: serde::de::Error>(&mut self, text: &str) -> Result<(), E> {
        self.push(Value::from(text).to_string().as_bytes())
    }
    fn enter<E: serde::de::Error>(&mut self) -> Result<(), E> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(E::custom("exceeded max depth")) } else { Ok(()) }
    }
}

struct Node<'a>(&'a mut Writer);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML that JSON can express")
    }
    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.0.push(b"null")
    }
    fn visit_none<E: serde::de::Error>(self) -> Result<(), E> {
        self.0.push(b"null")
    }
    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.0.push(if value { b"true" } else { b"false" })
    }
    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.0.push(value.to_string().as_bytes())
    }
    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.0.push(value.to_string().as_bytes())
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        match serde_json::Number::from_f64(value) {
            Some(number) => self.0.push(number.to_string().as_bytes()),
            None => Err(E::custom("number is not finite")),
        }
    }
    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.0.string(value)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.0.enter()?;
        self.0.push(b"[")?;
        let mut first = true;
        loop {
            // The comma goes in before it is known whether an item follows, and out again if none does.
            let before = self.0.out.len();
            if !first {
                self.0.push(b",")?;
            }
            if items.next_element_seed(Node(self.0))?.is_none() {
                self.0.out.truncate(before);
                break;
            }
            first = false;
        }
        self.0.depth -= 1;
        self.0.push(b"]")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        self.0.enter()?;
        self.0.push(b"{")?;
        let mut first = true;
        while let Some(Key(key)) = members.next_key()? {
            if !std::mem::take(&mut first) {
                self.0.push(b",")?;
            }
            self.0.string(&key)?;
            self.0.push(b":")?;
            members.next_value_seed(Node(self.0))?;
        }
        self.0.depth -= 1;
        self.0.push(b"}")
    }
}

/// A key: scalars of other types become the text they were written as, since JSON has no other keys.
struct Key(String);

impl<'de> serde::Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Key, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a scalar key")
            }
            fn visit_str<E>(self, key: &str) -> Result<Key, E> {
                Ok(Key(key.to_owned()))
            }
            fn visit_bool<E>(self, key: bool) -> Result<Key, E> {
                Ok(Key(key.to_string()))
            }
            fn visit_i64<E>(self, key: i64) -> Result<Key, E> {
                Ok(Key(key.to_string()))
            }
            fn visit_u64<E>(self, key: u64) -> Result<Key, E> {
                Ok(Key(key.to_string()))
            }
            fn visit_f64<E>(self, key: f64) -> Result<Key, E> {
                Ok(Key(key.to_string()))
            }
            fn visit_unit<E>(self) -> Result<Key, E> {
                Ok(Key("null".to_owned()))
            }
        }
        from.deserialize_any(KeyVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_becomes_the_json_it_means() {
        for (yaml, wanted) in [
            ("a: 1\nb: [x, 2, null, true, 1.5]\n", Some(r#"{"a":1,"b":["x",2,null,true,1.5]}"#)),
            ("1: x\ntrue: y\n", Some(r#"{"1":"x","true":"y"}"#)),
            ("a: |\n  two\n  lines\n", Some(r#"{"a":"two\nlines\n"}"#)),
            ("a: 'n'\nb: \"1\"\n", Some(r#"{"a":"n","b":"1"}"#)),
            ("a: {}\nb: []\nc:\n", Some(r#"{"a":{},"b":[],"c":null}"#)),
            ("base: &x {k: v}\nagain: *x\n", Some(r#"{"base":{"k":"v"},"again":{"k":"v"}}"#)),
            (r#"{"a": {"b": "c"}}"#, Some(r#"{"a":{"b":"c"}}"#)),
            ("a: 1\na: 2\n", Some(r#"{"a":1,"a":2}"#)),
            ("a: [1\n", None),
            ("a: .inf\n", None),
            ("? [x]\n: y\n", None),
            ("a: 1\n---\nb: 2\n", None),
        ] {
            let got = to_json(yaml.as_bytes()).ok().map(|json| String::from_utf8(json).unwrap());
            assert_eq!(got.as_deref(), wanted, "{yaml}");
        }
    }

    #[test]
    fn keys_that_come_twice_are_found_where_they_are() {
        for (yaml, wanted) in [
            ("a: 1\nb: 2\n", vec![]),
            ("\na: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", vec![(6, "c")]),
            ("a:\n- b: 1\n- b: 2\n  c: 1\n", vec![]),
            ("a:\n  - b: 1\n    b: 2\n  - c: 1\nd:\n  b: 1\na: 2\n", vec![(3, "b"), (7, "a")]),
            ("a: |\n  b: 1\n  b: 2\nc: 1\n", vec![]),
            ("\"x y\": 1\n'x y': 2\n", vec![(2, "x y")]),
            ("{\"a\": 1, \"a\": 2}", vec![]),
        ] {
            let found = duplicate_keys(yaml.as_bytes());
            let found: Vec<(usize, &str)> = found.iter().map(|(line, key)| (*line, key.as_str())).collect();
            assert_eq!(found, wanted, "{yaml}");
        }
    }

    #[test]
    fn bombs_and_wells_are_refused() {
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for n in 1..10 {
            let before = format!("*a{}", n - 1);
            bomb += &format!("a{n}: &a{n} [{}]\n", [before.as_str(); 10].join(","));
        }
        let well = "[".repeat(5000);
        for yaml in [bomb, well] {
            assert!(to_json(yaml.as_bytes()).is_err());
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for value in [
            serde_json::json!({"a": "yes", "b": "1", "c": "null", "d": [1, {"e": "x: y"}], "f": "", "g": "two\nlines"}),
            serde_json::json!({"a": {}, "b": [], "c": null, "d": {"e": {"f": [[1, [2, {"g": [{}]}]], []]}}, "h-/.x": true}),
            serde_json::json!([[{"a": 1, "b": [2]}], "# no comment", "\u{1}\u{85}\u{2028}ü", -1.5, "- x", "a: b", "*a", "&a", "!a", "%a", "@a", "`a"]),
            serde_json::json!({"- ": {"- ": ["- ", {"- ": 1}]}}),
            serde_json::json!("- "),
            serde_json::json!({}),
            serde_json::json!(7),
        ] {
            let yaml = from_json(&value);
            let again: Value = serde_json::from_slice(&to_json(yaml.as_bytes()).unwrap()).unwrap();
            assert_eq!(again, value, "{yaml}");
        }
        assert_eq!(
            from_json(
                &serde_json::json!({"kind": "Pod", "spec": {"containers": [{"image": "a:1", "name": "c"}], "x": []}})
            ),
            "kind: Pod\nspec:\n  containers:\n  - image: \"a:1\"\n    name: c\n  x: []\n"
        );
    }

    #[test]
    fn words_that_older_readers_misread_are_quoted() {
        for word in [
            "y", "n", "yes", "no", "on", "off", "Y", "N", "Yes", "ON", "true", "null", "~", "1", "0x1f",
            "1e3", "0o7", ".5",
        ] {
            let yaml = from_json(&Value::from(word));
            assert!(yaml.starts_with(['"', '\'']), "{word}: {yaml}");
        }
    }
}
