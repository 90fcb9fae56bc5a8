//! Between JSON, which everything here is made in, and what else goes over the wire.

use api_machinery::{Gvk, Status};
use serde_json::Value;

/// Compact JSON as YAML text.
pub fn yaml_of_json(json: &[u8]) -> Result<Vec<u8>, Status> {
    let value: Value = serde_json::from_slice(json).map_err(|cause| Status::internal(cause.to_string()))?;
    serde_yaml::to_string(&value).map(String::into_bytes).map_err(|cause| Status::internal(cause.to_string()))
}

/// A YAML body as JSON.
pub fn json_of_yaml(yaml: &[u8]) -> Result<Vec<u8>, String> {
    let value: Value = serde_yaml::from_slice(yaml)
        .map_err(|cause| format!("error converting YAML to JSON: yaml: {cause}"))?;
    serde_json::to_vec(&value).map_err(|cause| cause.to_string())
}

/// Compact JSON of a kind as a protobuf body with its envelope; `None` for kinds that have no protobuf form.
pub fn protobuf_of_json(_gvk: &Gvk, _json: &[u8]) -> Option<Vec<u8>> {
    None
}

/// A protobuf body as JSON.
pub fn json_of_protobuf(_body: &[u8]) -> Result<Vec<u8>, String> {
    Err("this kind has no protobuf form".to_owned())
}

/// One frame of a protobuf watch, length and all; `None` for kinds that have no protobuf form.
pub fn protobuf_frame(_kind: &str, _gvk: &Gvk, _object: &[u8]) -> Option<Vec<u8>> {
    None
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
