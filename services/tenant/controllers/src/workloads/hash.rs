//! Hashes of templates, for names and labels.

use serde_json::Value;

/// 32-bit FNV-1a.
struct Fnv(u32);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0x811c_9dc5)
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }
}

/// Of a pod template: the same for templates that mean the same, whatever the order of their fields. A
/// `collision` count makes another of it.
pub(crate) fn template(template: &Value, collision: Option<i64>) -> String {
    let mut hash = Fnv::new();
    feed(&mut hash, template);
    if let Some(count) = collision {
        hash.write(count.to_string().as_bytes());
    }
    safe(&hash.0.to_string())
}

fn feed(hash: &mut Fnv, value: &Value) {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> = map.iter().filter(|(_, value)| !value.is_null()).collect();
            members.sort_by_key(|(key, _)| key.as_str());
            hash.write(b"{");
            for (key, value) in members {
                hash.write(key.as_bytes());
                hash.write(b":");
                feed(hash, value);
                hash.write(b",");
            }
            hash.write(b"}");
        }
        Value::Array(items) => {
            hash.write(b"[");
            for item in items {
                feed(hash, item);
                hash.write(b",");
            }
            hash.write(b"]");
        }
        scalar => hash.write(scalar.to_string().as_bytes()),
    }
}

/// In letters that spell no words.
pub(crate) fn safe(text: &str) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    text.bytes().map(|byte| char::from(LETTERS[usize::from(byte) % LETTERS.len()])).collect()
}

/// Equal but for absent and null, which mean the same.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let covered = |a: &serde_json::Map<String, Value>, b: &serde_json::Map<String, Value>| {
                a.iter().all(|(key, value)| same(value, b.get(key).unwrap_or(&Value::Null)))
            };
            covered(a, b) && covered(b, a)
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fnv_is_fnv() {
        for (text, wanted) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            let mut hash = Fnv::new();
            hash.write(text.as_bytes());
            assert_eq!(hash.0, wanted, "{text:?}");
        }
    }

    #[test]
    fn a_hash_is_of_the_meaning() {
        let hash = |value: Value| template(&value, None);
        assert_eq!(hash(json!({"a": 1, "b": {"c": null}})), hash(json!({"b": {}, "a": 1})));
        assert_ne!(hash(json!({"a": [1, 2]})), hash(json!({"a": [2, 1]})));
        assert_ne!(template(&json!({}), None), template(&json!({}), Some(1)));
        assert!(hash(json!({})).bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte)));
    }

    #[test]
    fn null_is_absent() {
        for (a, b, wanted) in [
            (json!({"a": null}), json!({}), true),
            (json!({"a": {"b": null}}), json!({"a": {}}), true),
            (json!({"a": [1]}), json!({"a": [1, 2]}), false),
            (json!({"a": 1}), json!({}), false),
        ] {
            assert_eq!(same(&a, &b), wanted, "{a} {b}");
        }
    }
}
