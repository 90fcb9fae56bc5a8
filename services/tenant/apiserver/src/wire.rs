//! Between JSON, which everything here is made in, and what else goes over the wire.

use api_machinery::{Gvk, Status};
use api_wire::{protobuf, yaml};
use serde_json::Value;

/// Compact JSON as YAML text.
pub fn yaml_of_json(json: &[u8]) -> Result<Vec<u8>, Status> {
    Ok(yaml::from_json(&value(json)?).into_bytes())
}

/// A YAML body as JSON.
pub fn json_of_yaml(text: &[u8]) -> Result<Vec<u8>, String> {
    yaml::to_json(text).map_err(|cause| cause.to_string())
}

/// What is said of keys that a YAML body has more than once, as Go's reader says it.
pub fn yaml_duplicates(text: &[u8]) -> Option<String> {
    let found = yaml::duplicate_keys(text);
    let lines: Vec<String> =
        found.iter().map(|(line, key)| format!("\n  line {line}: key {key:?} already set in map")).collect();
    let said = || format!("error converting YAML to JSON: yaml: unmarshal errors:{}", lines.concat());
    (!lines.is_empty()).then(said)
}

/// Compact JSON of a kind as a protobuf body with its envelope.
pub fn protobuf_of_json(gvk: &Gvk, json: &[u8]) -> Result<Vec<u8>, Status> {
    protobuf::encode(gvk, &value(json)?).map_err(|cause| unencodable(&cause))
}

/// One item of a list, from its compact JSON.
pub fn protobuf_item(gvk: &Gvk, json: &[u8]) -> Result<Vec<u8>, Status> {
    protobuf::encode_bare(gvk, &value(json)?).map_err(|cause| unencodable(&cause))
}

/// A list of such items. `metadata` is the list's.
pub fn protobuf_list(gvk: &Gvk, metadata: &Value, items: &[Vec<u8>]) -> Result<Vec<u8>, Status> {
    protobuf::encode_list(gvk, metadata, items).map_err(|cause| unencodable(&cause))
}

/// What comes before the first item of a list that is sent item by item.
pub fn protobuf_list_head(
    gvk: &Gvk,
    metadata: &Value,
    lengths: impl Iterator<Item = usize>,
) -> Result<Vec<u8>, Status> {
    protobuf::list_head(gvk, metadata, lengths).map_err(|cause| unencodable(&cause))
}

/// A protobuf body as JSON. `expected` is what it is if it does not say.
pub fn json_of_protobuf(body: &[u8], expected: &Gvk) -> Result<Vec<u8>, String> {
    let (_, value) = protobuf::decode(body, Some(expected)).map_err(|cause| cause.to_string())?;
    serde_json::to_vec(&value).map_err(|cause| cause.to_string())
}

/// One frame of a protobuf watch, length and all.
pub fn protobuf_frame(kind: &str, gvk: &Gvk, object: &[u8]) -> Result<Vec<u8>, Status> {
    Ok(protobuf::watch_frame(kind, &protobuf_of_json(gvk, object)?))
}

fn value(json: &[u8]) -> Result<Value, Status> {
    serde_json::from_slice(json).map_err(|cause| Status::internal(cause.to_string()))
}

/// A stored object that protobuf cannot say; the client can still have it as JSON.
fn unencodable(cause: &protobuf::ProtobufError) -> Status {
    Status::not_acceptable(format!(
        "only the following media types are accepted: application/json, application/yaml ({cause})"
    ))
}

/// Two-space indentation that keeps the order of members, which parsing and printing again would not.
pub fn indent(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    let newline = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        out.extend(std::iter::repeat_n(b' ', depth * 2));
    };
    for (at, &byte) in json.iter().enumerate() {
        if in_string {
            out.push(byte);
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => {
                in_string = true;
                out.push(byte);
            }
            b'{' | b'[' => {
                out.push(byte);
                let empty = json.get(at + 1).is_some_and(|next| matches!(next, b'}' | b']'));
                depth += 1;
                if !empty {
                    newline(&mut out, depth);
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if !at.checked_sub(1).is_some_and(|before| matches!(json[before], b'{' | b'[')) {
                    newline(&mut out, depth);
                }
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                newline(&mut out, depth);
            }
            b':' => out.extend_from_slice(b": "),
            _ => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indentation_changes_nothing_but_space() {
        for (compact, wanted) in [
            ("{}", "{}"),
            (r#"{"a":1}"#, "{\n  \"a\": 1\n}"),
            (
                r#"{"b":[1,{}],"a":"x{,:\"}"}"#,
                "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": \"x{,:\\\"}\"\n}",
            ),
        ] {
            assert_eq!(String::from_utf8(indent(compact.as_bytes())).unwrap(), wanted);
        }
    }
}
