//! An object being worked on, as JSON.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::object::{BODY_START, OwnerReference, Stamp};

/// The JSON of one object. Nothing a client sent is dropped here; what a kind allows is checked elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Document(pub Map<String, Value>);

/// Levels of lists and objects that a document may have.
///
/// Recursive walks and parsers meet it everywhere, most of all after it is stored: JSON parsers stop at 128,
/// and lists and watch events add a few levels of their own.
pub const MAX_DEPTH: usize = 100;

/// Whether lists and objects are nested more than `levels` deep in `value`. Looks no deeper than that.
pub fn is_deeper_than(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|inner| is_deeper_than(inner, levels - 1)),
        Value::Object(members) => {
            levels == 0 || members.values().any(|inner| is_deeper_than(inner, levels - 1))
        }
        _ => false,
    }
}

impl Document {
    /// From a value that must be an object.
    pub fn from_value(value: Value) -> Option<Document> {
        match value {
            Value::Object(map) => Some(Document(map)),
            _ => None,
        }
    }
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }
    /// A typed, read-only view; fails where a field has another JSON type than the struct says.
    pub fn view<T: serde::de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(Value::Object(self.0.clone()))
    }

    // ---- anywhere in the document ----

    /// `get("spec.template.metadata")`; keys with dots in them need [`Document::pointer`].
    pub fn get(&self, path: &str) -> Option<&Value> {
        let mut parts = path.split('.');
        let mut at = self.0.get(parts.next()?)?;
        for part in parts {
            at = at.as_object()?.get(part)?;
        }
        Some(at)
    }
    /// RFC 6901.
    pub fn pointer(&self, pointer: &str) -> Option<&Value> {
        let rest = pointer.strip_prefix('/')?;
        let (first, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let value = self.0.get(&first.replace("~1", "/").replace("~0", "~"))?;
        if rest.is_empty() { Some(value) } else { value.pointer(&format!("/{rest}")) }
    }
    pub fn get_str(&self, path: &str) -> Option<&str> {
        self.get(path)?.as_str()
    }
    pub fn get_i64(&self, path: &str) -> Option<i64> {
        self.get(path)?.as_i64()
    }
    pub fn get_array(&self, path: &str) -> &[Value] {
        self.get(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
    /// The object at `path`, made on the way where absent or null. A scalar in the way is replaced.
    pub fn object_mut(&mut self, path: &str) -> &mut Map<String, Value> {
        let mut at = &mut self.0;
        for part in path.split('.') {
            let slot = at.entry(part).or_insert(Value::Null);
            if !slot.is_object() {
                *slot = Value::Object(Map::new());
            }
            at = slot.as_object_mut().expect("made an object above");
        }
        at
    }
    pub fn get_mut(&mut self, path: &str) -> Option<&mut Value> {
        let mut parts = path.split('.');
        let mut at = self.0.get_mut(parts.next()?)?;
        for part in parts {
            at = at.as_object_mut()?.get_mut(part)?;
        }
        Some(at)
    }
    pub fn set(&mut self, path: &str, value: impl Into<Value>) {
        match path.rsplit_once('.') {
            Some((parent, last)) => self.object_mut(parent).insert(last.to_owned(), value.into()),
            None => self.0.insert(path.to_owned(), value.into()),
        };
    }
    /// Sets `path` unless something (not null) is there.
    pub fn set_default(&mut self, path: &str, value: impl Into<Value>) {
        if self.get(path).is_none_or(Value::is_null) {
            self.set(path, value);
        }
    }
    pub fn remove(&mut self, path: &str) -> Option<Value> {
        match path.rsplit_once('.') {
            Some((parent, last)) => self.get_mut(parent)?.as_object_mut()?.remove(last),
            None => self.0.remove(path),
        }
    }

    // ---- what every object has ----

    pub fn api_version(&self) -> &str {
        self.get_str("apiVersion").unwrap_or_default()
    }
    pub fn kind(&self) -> &str {
        self.get_str("kind").unwrap_or_default()
    }
    pub fn metadata(&self) -> Option<&Map<String, Value>> {
        self.0.get("metadata")?.as_object()
    }
    pub fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        self.object_mut("metadata")
    }
    pub fn name(&self) -> &str {
        self.get_str("metadata.name").unwrap_or_default()
    }
    pub fn namespace(&self) -> &str {
        self.get_str("metadata.namespace").unwrap_or_default()
    }
    pub fn generate_name(&self) -> &str {
        self.get_str("metadata.generateName").unwrap_or_default()
    }
    pub fn uid(&self) -> &str {
        self.get_str("metadata.uid").unwrap_or_default()
    }
    pub fn resource_version(&self) -> &str {
        self.get_str("metadata.resourceVersion").unwrap_or_default()
    }
    pub fn generation(&self) -> i64 {
        self.get_i64("metadata.generation").unwrap_or_default()
    }
    pub fn set_generation(&mut self, generation: i64) {
        self.set("metadata.generation", generation);
    }
    pub fn label(&self, key: &str) -> Option<&str> {
        self.get("metadata.labels")?.as_object()?.get(key)?.as_str()
    }
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.get("metadata.annotations")?.as_object()?.get(key)?.as_str()
    }
    pub fn labels(&self) -> BTreeMap<String, String> {
        string_map(self.get("metadata.labels"))
    }
    pub fn owners(&self) -> Vec<OwnerReference> {
        let owners = self.get("metadata.ownerReferences").cloned().unwrap_or_default();
        serde_json::from_value(owners).unwrap_or_default()
    }
    pub fn finalizers(&self) -> Vec<&str> {
        self.get_array("metadata.finalizers").iter().filter_map(Value::as_str).collect()
    }
    pub fn is_deleting(&self) -> bool {
        self.get("metadata.deletionTimestamp").is_some_and(|at| !at.is_null())
    }
    pub fn spec(&self) -> Option<&Value> {
        self.0.get("spec")
    }
    pub fn status(&self) -> Option<&Value> {
        self.0.get("status")
    }
    /// For `prepare_for_update` of a main resource: only the status subresource changes status.
    pub fn keep_status_of(&mut self, old: &Document) {
        match old.0.get("status") {
            Some(status) => self.0.insert("status".to_owned(), status.clone()),
            None => self.0.remove("status"),
        };
    }
    pub fn clear_status(&mut self) {
        self.0.remove("status");
    }

    // ---- storing ----

    /// Body and stamp (see `object.rs`). A document without a uid gets the nil one: stamp it first.
    pub fn to_stored(&self) -> (Bytes, Stamp) {
        let stamp = Stamp {
            uid: Uuid::parse_str(self.uid()).unwrap_or_default(),
            created: self
                .get_str("metadata.creationTimestamp")
                .and_then(|at| at.parse().ok())
                .unwrap_or(Timestamp::UNIX_EPOCH),
            api_version: self.api_version().to_owned(),
        };
        let mut out = BODY_START.to_vec();
        let mut first = true;
        let spliced = ["uid", "creationTimestamp", "resourceVersion"];
        for (key, value) in self.metadata().into_iter().flatten() {
            if !spliced.contains(&key.as_str()) {
                write_member(&mut out, &mut first, key, value);
            }
        }
        out.push(b'}');
        first = false;
        for (key, value) in &self.0 {
            if !["apiVersion", "kind", "metadata"].contains(&key.as_str()) {
                write_member(&mut out, &mut first, key, value);
            }
        }
        out.push(b'}');
        (out.into(), stamp)
    }
}

fn write_member(out: &mut Vec<u8>, first: &mut bool, key: &str, value: &Value) {
    if !std::mem::replace(first, false) {
        out.push(b',');
    }
    // Writing JSON values to memory cannot fail: their keys are strings and a Vec takes every byte.
    serde_json::to_writer(&mut *out, key).expect("a string is JSON");
    out.push(b':');
    serde_json::to_writer(out, value).expect("a value is JSON");
}

fn string_map(value: Option<&Value>) -> BTreeMap<String, String> {
    let members = value.and_then(Value::as_object).into_iter().flatten();
    members.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_come_back_as_they_were_sent() {
        for number in ["2.638344616030823e-256", "0.1", "122.416294033786585", "9007199254740993", "1e23"] {
            let value: serde_json::Value = serde_json::from_str(number).unwrap();
            let float: f64 = number.parse().unwrap();
            assert_eq!(value.as_f64(), Some(float), "{number}");
        }
    }

    #[test]
    fn levels_are_those_of_lists_and_objects() {
        for (value, levels) in [
            (json!(1), 0),
            (json!({}), 1),
            (json!([1, 2]), 1),
            (json!({"a": 1, "b": [{}]}), 3),
            (json!([[], [[]]]), 3),
        ] {
            assert!(!is_deeper_than(&value, levels), "{value}");
            assert!(levels == 0 || is_deeper_than(&value, levels - 1), "{value}");
        }
    }
}
