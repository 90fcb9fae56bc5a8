//! OpenAPI 2 as protobuf (`openapi.v2.Document`), for clients that read nothing else.
//!
//! Written piece by piece from the JSON of each part, by hand: the format is frozen, and only what our
//! documents contain has to be said. A part may be appended at any time, since protobuf joins the pieces of a
//! message that come apart.

use serde_json::{Map, Value};

use crate::document::Part;

/// Appends one part of a document.
pub(crate) fn append(out: &mut Vec<u8>, part: &Part<'_>, value: &Value) {
    match part {
        Part::Head => head(out, value),
        Part::Path(url) => message(out, 8, |out| named(out, 2, url, |out| path_item(out, value))),
        Part::Definition(name) => message(out, 9, |out| named(out, 1, name, |out| schema(out, value))),
        Part::Parameter(name) => message(out, 10, |out| named(out, 1, name, |out| parameter(out, value))),
    }
}

fn head(out: &mut Vec<u8>, value: &Value) {
    text(out, 1, &value["swagger"]);
    message(out, 2, |out| {
        text(out, 1, &value["info"]["title"]);
        text(out, 2, &value["info"]["version"]);
    });
    for requirement in list(&value["security"]) {
        for (name, scopes) in members(requirement) {
            message(out, 12, |out| named(out, 1, name, |out| texts(out, 1, scopes)));
        }
    }
    for (name, key) in members(&value["securityDefinitions"]) {
        message(out, 13, |out| {
            named(out, 1, name, |out| {
                message(out, 2, |out| {
                    for (number, member) in [(1, "type"), (2, "name"), (3, "in"), (4, "description")] {
                        text(out, number, &key[member]);
                    }
                });
            });
        });
    }
}

fn path_item(out: &mut Vec<u8>, value: &Value) {
    let methods =
        [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (6, "options"), (7, "head"), (8, "patch")];
    for (number, method) in methods {
        if value[method].is_object() {
            message(out, number, |out| operation(out, &value[method]));
        }
    }
    for one in list(&value["parameters"]) {
        message(out, 9, |out| parameter_or_reference(out, one));
    }
}

fn operation(out: &mut Vec<u8>, value: &Value) {
    texts(out, 1, &value["tags"]);
    text(out, 3, &value["description"]);
    text(out, 5, &value["operationId"]);
    texts(out, 6, &value["produces"]);
    texts(out, 7, &value["consumes"]);
    for one in list(&value["parameters"]) {
        message(out, 8, |out| parameter_or_reference(out, one));
    }
    message(out, 9, |out| {
        for (code, response) in members(&value["responses"]) {
            named(out, 1, code, |out| {
                message(out, 1, |out| {
                    text(out, 1, &response["description"]);
                    if response["schema"].is_object() {
                        message(out, 2, |out| message(out, 1, |out| schema(out, &response["schema"])));
                    }
                });
            });
        }
    });
    texts(out, 10, &value["schemes"]);
    extensions(out, 13, value);
}

fn parameter_or_reference(out: &mut Vec<u8>, value: &Value) {
    match value["$ref"].is_string() {
        true => message(out, 2, |out| text(out, 1, &value["$ref"])),
        false => message(out, 1, |out| parameter(out, value)),
    }
}

fn parameter(out: &mut Vec<u8>, value: &Value) {
    if value["in"] == "body" {
        return message(out, 1, |out| {
            text(out, 1, &value["description"]);
            text(out, 2, &value["name"]);
            text(out, 3, &value["in"]);
            flag(out, 4, &value["required"]);
            message(out, 5, |out| schema(out, &value["schema"]));
        });
    }
    // Query parameters have one field more, so everything behind it is numbered differently.
    let (kind, shift) = if value["in"] == "path" { (4, 0) } else { (3, 1) };
    message(out, 2, |out| {
        message(out, kind, |out| {
            flag(out, 1, &value["required"]);
            text(out, 2, &value["in"]);
            text(out, 3, &value["description"]);
            text(out, 4, &value["name"]);
            text(out, 5 + shift, &value["type"]);
            flag(out, 19 + shift, &value["uniqueItems"]);
        });
    });
}

fn schema(out: &mut Vec<u8>, value: &Value) {
    let texts_of = [(1, "$ref"), (2, "format"), (3, "title"), (4, "description"), (13, "pattern")];
    for (number, key) in texts_of {
        text(out, number, &value[key]);
    }
    if !value["default"].is_null() {
        message(out, 5, |out| any(out, &value["default"]));
    }
    for (number, key) in [(6, "multipleOf"), (7, "maximum"), (9, "minimum")] {
        if let Some(bound) = value[key].as_f64() {
            varint(out, number << 3 | 1);
            out.extend_from_slice(&bound.to_le_bytes());
        }
    }
    let flags = [(8, "exclusiveMaximum"), (10, "exclusiveMinimum"), (16, "uniqueItems")];
    for (number, key) in flags {
        flag(out, number, &value[key]);
    }
    let bounds = [
        (11, "maxLength"),
        (12, "minLength"),
        (14, "maxItems"),
        (15, "minItems"),
        (17, "maxProperties"),
        (18, "minProperties"),
    ];
    for (number, key) in bounds {
        if let Some(bound) = value[key].as_u64() {
            varint(out, number << 3);
            varint(out, bound);
        }
    }
    texts(out, 19, &value["required"]);
    for one in list(&value["enum"]) {
        message(out, 20, |out| any(out, one));
    }
    match &value["additionalProperties"] {
        Value::Bool(allowed) => message(out, 21, |out| {
            // A member of a choice: false must be said too.
            varint(out, 2 << 3);
            varint(out, u64::from(*allowed));
        }),
        Value::Object(_) => {
            message(out, 21, |out| message(out, 1, |out| schema(out, &value["additionalProperties"])));
        }
        _ => {}
    }
    match &value["type"] {
        Value::String(_) => message(out, 22, |out| text(out, 1, &value["type"])),
        types @ Value::Array(_) => message(out, 22, |out| texts(out, 1, types)),
        _ => {}
    }
    match &value["items"] {
        items @ Value::Object(_) => message(out, 23, |out| message(out, 1, |out| schema(out, items))),
        Value::Array(items) => message(out, 23, |out| {
            items.iter().for_each(|one| message(out, 1, |out| schema(out, one)));
        }),
        _ => {}
    }
    for one in list(&value["allOf"]) {
        message(out, 24, |out| schema(out, one));
    }
    if value["properties"].is_object() {
        message(out, 25, |out| {
            for (name, property) in members(&value["properties"]) {
                named(out, 1, name, |out| schema(out, property));
            }
        });
    }
    extensions(out, 31, value);
}

/// Everything that begins with `x-`. Their values travel as YAML, and JSON is YAML.
fn extensions(out: &mut Vec<u8>, number: u64, value: &Value) {
    for (name, extension) in members(value).filter(|(name, _)| name.starts_with("x-")) {
        message(out, number, |out| named_fields(out, name, |out| any(out, extension)));
    }
}

fn any(out: &mut Vec<u8>, value: &Value) {
    bytes(out, 2, format!("{value}\n").as_bytes());
}

// ---- the wire ----

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes(out: &mut Vec<u8>, number: u64, value: &[u8]) {
    varint(out, number << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn text(out: &mut Vec<u8>, number: u64, value: &Value) {
    if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
        bytes(out, number, text.as_bytes());
    }
}

fn texts(out: &mut Vec<u8>, number: u64, values: &Value) {
    for text in list(values).iter().filter_map(Value::as_str) {
        bytes(out, number, text.as_bytes());
    }
}

fn flag(out: &mut Vec<u8>, number: u64, value: &Value) {
    if value == true {
        varint(out, number << 3);
        out.push(1);
    }
}

fn message(out: &mut Vec<u8>, number: u64, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    fill(&mut inner);
    bytes(out, number, &inner);
}

/// `NamedX { name = 1; value = 2 }` as field `number`.
fn named(out: &mut Vec<u8>, number: u64, name: &str, fill: impl FnOnce(&mut Vec<u8>)) {
    message(out, number, |out| named_fields(out, name, fill));
}

fn named_fields(out: &mut Vec<u8>, name: &str, fill: impl FnOnce(&mut Vec<u8>)) {
    bytes(out, 1, name.as_bytes());
    message(out, 2, fill);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_those_of_the_format() {
        let schema_of = |value: Value| {
            let mut out = Vec::new();
            schema(&mut out, &value);
            out
        };
        for (value, wanted) in [
            (json!({"$ref": "#/a"}), &b"\x0a\x03#/a"[..]),
            (json!({"type": "string"}), &b"\xb2\x01\x08\x0a\x06string"[..]),
            (json!({"required": ["a", "b"]}), &b"\x9a\x01\x01a\x9a\x01\x01b"[..]),
            (json!({"additionalProperties": false}), &b"\xaa\x01\x02\x10\x00"[..]),
            (json!({"maximum": 1}), &b"\x39\x00\x00\x00\x00\x00\x00\xf0\x3f"[..]),
            (json!({"x-y": "z"}), &b"\xfa\x01\x0d\x0a\x03x-y\x12\x06\x12\x04\"z\"\n"[..]),
        ] {
            assert_eq!(schema_of(value.clone()), wanted, "{value}");
        }
    }
}
