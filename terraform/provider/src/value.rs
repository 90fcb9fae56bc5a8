//! Terraform's values, and the two encodings they travel in.
//!
//! A value may be *unknown*: it will be there once something else was made. Everything here carries that
//! through; only [`Object::known`] tells whether one may be acted on.
//!
//! Not here: types. A value is read beside a [`Schema`](crate::schema::Schema), which fits it.

use std::collections::BTreeMap;

use rmpv::Value as Pack;

/// How deep values may be nested. Ours are three levels; a decoder without a bound would end on its stack.
const MAX_DEPTH: usize = 16;

/// MessagePack extension types that stand for unknown: plain, and "unknown, but I can say this about it".
const UNKNOWN: i8 = 0;
const UNKNOWN_REFINED: i8 = 12;

/// Integers beyond this are not exact as a double; none of ours comes near.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Unknown,
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    /// A list or a set.
    List(Vec<Value>),
    /// A map, or an object.
    Map(BTreeMap<String, Value>),
}

#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    #[error("Terraform sent a value that is not MessagePack")]
    Pack(#[source] rmpv::decode::Error),
    #[error("Terraform sent a value that is not JSON")]
    Json(#[source] serde_json::Error),
    #[error("Terraform sent {0} where this provider's schema has none")]
    Unexpected(&'static str),
    #[error("a value is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("{0:?} is not a number")]
    Number(String),
}

impl Value {
    pub fn is_null(&self) -> bool {
        *self == Value::Null
    }

    /// Known through and through.
    pub fn is_known(&self) -> bool {
        match self {
            Value::Unknown => false,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => true,
            Value::List(items) => items.iter().all(Value::is_known),
            Value::Map(items) => items.values().all(Value::is_known),
        }
    }

    pub fn from_msgpack(bytes: &[u8]) -> Result<Value, ValueError> {
        let mut rest = bytes;
        // One level of ours is one of MessagePack's; a little more for what surrounds it.
        let pack = rmpv::decode::read_value_with_max_depth(&mut rest, MAX_DEPTH).map_err(ValueError::Pack)?;
        if !rest.is_empty() {
            return Err(ValueError::Unexpected("more than one value"));
        }
        Value::from_pack(pack)
    }

    fn from_pack(pack: Pack) -> Result<Value, ValueError> {
        Ok(match pack {
            Pack::Nil => Value::Null,
            Pack::Boolean(value) => Value::Bool(value),
            Pack::Integer(value) => Value::Number(value.as_f64().unwrap_or(f64::NAN)),
            Pack::F32(value) => Value::Number(f64::from(value)),
            Pack::F64(value) => Value::Number(value),
            Pack::String(text) => {
                Value::Text(text.into_str().ok_or(ValueError::Unexpected("text that is not UTF-8"))?)
            }
            Pack::Binary(_) => return Err(ValueError::Unexpected("bytes")),
            Pack::Array(items) => {
                Value::List(items.into_iter().map(Value::from_pack).collect::<Result<_, _>>()?)
            }
            Pack::Map(items) => {
                let mut map = BTreeMap::new();
                for (key, value) in items {
                    let Pack::String(key) = key else { return Err(ValueError::Unexpected("a key")) };
                    let key = key.into_str().ok_or(ValueError::Unexpected("a key that is not UTF-8"))?;
                    map.insert(key, Value::from_pack(value)?);
                }
                Value::Map(map)
            }
            Pack::Ext(UNKNOWN | UNKNOWN_REFINED, _) => Value::Unknown,
            Pack::Ext(_, _) => return Err(ValueError::Unexpected("an extension")),
        })
    }

    pub fn to_msgpack(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to memory does not fail; were it to, Terraform would refuse what is cut off.
        let _ = rmpv::encode::write_value(&mut bytes, &self.to_pack());
        bytes
    }

    fn to_pack(&self) -> Pack {
        match self {
            Value::Unknown => Pack::Ext(UNKNOWN, vec![0]),
            Value::Null => Pack::Nil,
            Value::Bool(value) => Pack::Boolean(*value),
            Value::Number(value) if value.fract() == 0.0 && value.abs() < MAX_EXACT => {
                Pack::from(*value as i64)
            }
            Value::Number(value) => Pack::F64(*value),
            Value::Text(text) => Pack::from(text.as_str()),
            Value::List(items) => Pack::Array(items.iter().map(Value::to_pack).collect()),
            Value::Map(items) => Pack::Map(
                items.iter().map(|(key, value)| (Pack::from(key.as_str()), value.to_pack())).collect(),
            ),
        }
    }

    /// What a state file holds.
    pub fn from_json(bytes: &[u8]) -> Result<Value, ValueError> {
        // serde_json bounds its own depth.
        let json = serde_json::from_slice(bytes).map_err(ValueError::Json)?;
        Value::from_json_value(json, MAX_DEPTH)
    }

    fn from_json_value(json: serde_json::Value, depth: usize) -> Result<Value, ValueError> {
        let below = depth.checked_sub(1).ok_or(ValueError::TooDeep)?;
        Ok(match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(value) => Value::Bool(value),
            serde_json::Value::Number(value) => Value::Number(value.as_f64().unwrap_or(f64::NAN)),
            serde_json::Value::String(text) => Value::Text(text),
            serde_json::Value::Array(items) => Value::List(
                items
                    .into_iter()
                    .map(|item| Value::from_json_value(item, below))
                    .collect::<Result<_, _>>()?,
            ),
            serde_json::Value::Object(items) => Value::Map(
                items
                    .into_iter()
                    .map(|(key, item)| Ok((key, Value::from_json_value(item, below)?)))
                    .collect::<Result<_, ValueError>>()?,
            ),
        })
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}
impl From<u32> for Value {
    fn from(value: u32) -> Value {
        Value::Number(f64::from(value))
    }
}
impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}
impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}
impl From<&BTreeMap<String, String>> for Value {
    fn from(map: &BTreeMap<String, String>) -> Value {
        Value::Map(map.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect())
    }
}

/// One resource's attributes: a configuration, a plan or a state. An attribute that is absent is null.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Object(pub BTreeMap<String, Value>);

impl Object {
    pub fn get(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or(&Value::Null)
    }

    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    /// The same with one attribute more; for building in one expression.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Object {
        self.set(name, value);
        self
    }

    /// The attribute's value unless it is unknown or null.
    pub fn known(&self, name: &str) -> Option<&Value> {
        Some(self.get(name)).filter(|value| value.is_known() && !value.is_null())
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn bool(&self, name: &str) -> Option<bool> {
        match self.get(name) {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// A whole number that is not negative.
    pub fn whole(&self, name: &str) -> Option<u32> {
        match self.get(name) {
            Value::Number(value) => whole(*value),
            _ => None,
        }
    }

    /// A map of text; entries that are null are left out, as Terraform's own functions do.
    pub fn text_map(&self, name: &str) -> BTreeMap<String, String> {
        let Value::Map(items) = self.get(name) else { return BTreeMap::new() };
        let text = |(key, value): (&String, &Value)| match value {
            Value::Text(text) => Some((key.clone(), text.clone())),
            _ => None,
        };
        items.iter().filter_map(text).collect()
    }

    /// The objects of a nested list or set.
    pub fn objects(&self, name: &str) -> Vec<Object> {
        let Value::List(items) = self.get(name) else { return Vec::new() };
        let object = |value: &Value| match value {
            Value::Map(map) => Some(Object(map.clone())),
            _ => None,
        };
        items.iter().filter_map(object).collect()
    }

    /// A nested object.
    pub fn object(&self, name: &str) -> Option<Object> {
        match self.get(name) {
            Value::Map(map) => Some(Object(map.clone())),
            _ => None,
        }
    }
}

/// `value` as a count, if it is one.
pub fn whole(value: f64) -> Option<u32> {
    (value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&value)).then_some(value as u32)
}

impl From<Object> for Value {
    fn from(object: Object) -> Value {
        Value::Map(object.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(items: &[(&str, Value)]) -> Value {
        Value::Map(items.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect())
    }

    #[test]
    fn values_travel_as_terraform_writes_them() {
        // Bytes as go-cty 1.16 writes them.
        for (value, bytes) in [
            (Value::Null, "c0"),
            (Value::Bool(true), "c3"),
            (3u32.into(), "03"),
            (Value::Number(-1.0), "ff"),
            (Value::Number(1000.0), "cd03e8"),
            (Value::Number(2.5), "cb4004000000000000"),
            ("abc".into(), "a3616263"),
            (Value::Unknown, "d40000"),
            (Value::List(vec![1u32.into(), Value::Unknown]), "9201d40000"),
            (map(&[("a", Value::Null), ("b", "".into())]), "82a161c0a162a0"),
        ] {
            assert_eq!(hex::encode(value.to_msgpack()), bytes, "{value:?}");
            assert_eq!(Value::from_msgpack(&hex::decode(bytes).unwrap()).unwrap(), value, "{bytes}");
        }
    }

    #[test]
    fn other_spellings_are_understood() {
        for (bytes, wanted) in [
            // Unknown with a refinement: not null.
            ("c7030c8101c2", Value::Unknown),
            ("ca40200000", Value::Number(2.5)),
            ("cf0000000000000007", Value::Number(7.0)),
            ("d90161", "a".into()),
        ] {
            assert_eq!(Value::from_msgpack(&hex::decode(bytes).unwrap()).unwrap(), wanted, "{bytes}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let deep = "91".repeat(100_000) + "c0";
        for bytes in ["", "a561", "d40700", "c40100", "c0c0", "8101c0", "81a2c328c0", "dfffffffff", &deep] {
            assert!(
                Value::from_msgpack(&hex::decode(bytes).unwrap()).is_err(),
                "{}",
                &bytes[..bytes.len().min(20)]
            );
        }
        let deep = "[".repeat(100) + &"]".repeat(100);
        for json in ["", "{", &deep] {
            assert!(Value::from_json(json.as_bytes()).is_err(), "{json}");
        }
    }

    #[test]
    fn known_is_known_through_and_through() {
        for (value, known) in [
            (Value::Null, true),
            (Value::Unknown, false),
            (Value::List(vec!["a".into(), Value::Unknown]), false),
            (map(&[("a", map(&[("b", Value::Unknown)]))]), false),
            (map(&[("a", map(&[("b", Value::Null)]))]), true),
        ] {
            assert_eq!(value.is_known(), known, "{value:?}");
        }
    }
}
