//! One object while its row is made, and words that several kinds share.

use std::collections::BTreeSet;

use api_machinery::Object;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::duration::since;

pub(super) const NONE: &str = "<none>";
pub(super) const UNSET: &str = "<unset>";
pub(super) const UNKNOWN: &str = "<unknown>";

/// The object taken apart. Paths are dotted; what is absent is empty, zero or `None`.
pub(super) struct Row<'a> {
    pub object: &'a Object,
    pub body: Value,
    pub now: Timestamp,
}

impl<'a> Row<'a> {
    pub fn new(object: &'a Object, now: Timestamp) -> Row<'a> {
        Row { object, body: serde_json::from_slice(object.body()).unwrap_or_default(), now }
    }
    pub fn name(&self) -> Value {
        json!(self.object.header.name)
    }
    pub fn age(&self) -> Value {
        since(self.object.header.created, self.now).into()
    }
    pub fn is_deleting(&self) -> bool {
        self.object.header.deleting_since.is_some()
    }
    pub fn at(&self, path: &str) -> &Value {
        at(&self.body, path)
    }
    pub fn str(&self, path: &str) -> &str {
        str_at(&self.body, path)
    }
    pub fn int(&self, path: &str) -> i64 {
        self.at(path).as_i64().unwrap_or_default()
    }
    pub fn flag(&self, path: &str) -> bool {
        self.at(path).as_bool().unwrap_or_default()
    }
    pub fn list(&self, path: &str) -> &[Value] {
        list_at(&self.body, path)
    }
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.at("metadata.annotations").get(key)?.as_str()
    }
    /// The text at `path`, or `otherwise` when it is absent or empty.
    pub fn str_or<'b>(&'b self, path: &str, otherwise: &'b str) -> &'b str {
        or(self.str(path), otherwise)
    }
    /// How long ago a time in the body was.
    pub fn since(&self, time: &Value) -> String {
        time.as_str().and_then(time_of).map_or_else(|| UNKNOWN.to_owned(), |then| since(then, self.now))
    }
    /// `status` of the condition of that type, from `status.conditions`.
    pub fn condition(&self, typ: &str) -> Option<&Value> {
        self.list("status.conditions").iter().find(|condition| condition["type"] == typ)
    }
    /// `containers, images` of the pod template at `path`.
    pub fn containers(&self, path: &str) -> (Value, Value) {
        let containers = self.list(path);
        let joined = |key: &str| join(containers.iter().map(|one| one[key].as_str().unwrap_or_default()));
        (joined("name").into(), joined("image").into())
    }
}

pub(super) fn at<'v>(value: &'v Value, path: &str) -> &'v Value {
    path.split('.').fold(value, |value, part| &value[part])
}
pub(super) fn str_at<'v>(value: &'v Value, path: &str) -> &'v str {
    at(value, path).as_str().unwrap_or_default()
}
pub(super) fn list_at<'v>(value: &'v Value, path: &str) -> &'v [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}
pub(super) fn or<'v>(text: &'v str, otherwise: &'v str) -> &'v str {
    if text.is_empty() { otherwise } else { text }
}
pub(super) fn time_of(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

pub(super) fn join<'v>(parts: impl IntoIterator<Item = &'v str>) -> String {
    parts.into_iter().collect::<Vec<_>>().join(",")
}

/// An int-or-string, a quantity or a number, as text.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "0".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The first `max` of `all`, and how many there are besides.
pub(super) fn first_few(all: &[String], max: usize, empty: &str) -> String {
    match all.len() {
        0 => empty.to_owned(),
        count if count > max => format!("{} + {} more...", all[..max].join(","), count - max),
        _ => all.join(","),
    }
}

/// `a=b,c=d`, or `<none>`.
pub(super) fn labels(map: &Value) -> String {
    let pairs = map.as_object().into_iter().flatten();
    let mut pairs: Vec<String> =
        pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    pairs.sort();
    or(&pairs.join(","), NONE).to_owned()
}

/// A `LabelSelector` on one line; empty when it selects everything or is absent.
pub(super) fn selector(value: &Value) -> String {
    let none = Map::new();
    let mut parts: Vec<(String, String)> = Vec::new();
    for (key, wanted) in value["matchLabels"].as_object().unwrap_or(&none) {
        parts.push((key.clone(), format!("{key}={}", wanted.as_str().unwrap_or_default())));
    }
    for rule in list_at(value, "matchExpressions") {
        let key = str_at(rule, "key");
        let values: BTreeSet<&str> = list_at(rule, "values").iter().filter_map(Value::as_str).collect();
        let values = join(values);
        let shown = match str_at(rule, "operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => continue,
        };
        parts.push((key.to_owned(), shown));
    }
    parts.sort_by(|a, b| a.0.cmp(&b.0));
    join(parts.iter().map(|(_, shown)| shown.as_str()))
}

/// [`selector`], with `<none>` for an empty one.
pub(super) fn selector_or_none(value: &Value) -> String {
    or(&selector(value), NONE).to_owned()
}

/// `True`, `False` or `<unset>`.
pub(super) fn shown_flag(value: &Value) -> &'static str {
    match value.as_bool() {
        Some(true) => "True",
        Some(false) => "False",
        None => UNSET,
    }
}
