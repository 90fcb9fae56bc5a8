//! Sets of fields, as `managedFields` writes them (`FieldsV1`).
//!
//! A path is a list of elements in their serialised form: `f:name` for a field, `k:{"name":"x"}` for a
//! list item by its keys, `v:"x"` for an item of a set. That text is the element's identity, so equal
//! elements must be written alike: see [`key_element`] and [`value_element`].

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Sets nested deeper than this are not ours; the JSON parser's own bound makes them impossible anyway.
const MAX_DEPTH: usize = 128;

/// Fields, by path. A path can be in the set without those below it and the other way round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet(BTreeMap<String, Node>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Node {
    member: bool,
    below: FieldSet,
}

pub(super) fn field_element(name: &str) -> String {
    format!("f:{name}")
}

/// Of a list item: its key fields, sorted by name.
pub(super) fn key_element(keys: &BTreeMap<&str, Value>) -> String {
    let object: Map<String, Value> =
        keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    format!("k:{}", sorted(&Value::Object(object)))
}

/// Of a set's item.
pub(super) fn value_element(value: &Value) -> String {
    format!("v:{}", sorted(value))
}

/// JSON whose members are in order, whatever order the map keeps.
fn sorted(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let members: BTreeMap<&String, &Value> = map.iter().collect();
            let written: Vec<String> = members
                .into_iter()
                .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), sorted(value)))
                .collect();
            format!("{{{}}}", written.join(","))
        }
        other => other.to_string(),
    }
}

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The set of one path and no others, added.
    pub(super) fn insert(&mut self, path: &[String]) {
        let Some((first, rest)) = path.split_first() else { return };
        let node = self.0.entry(first.clone()).or_default();
        if rest.is_empty() { node.member = true } else { node.below.insert(rest) }
    }

    pub(super) fn has(&self, element: &str) -> bool {
        self.0.get(element).is_some_and(|node| node.member)
    }
    /// What is below an element; `None` when nothing is.
    pub(super) fn below(&self, element: &str) -> Option<&FieldSet> {
        self.0.get(element).map(|node| &node.below).filter(|below| !below.is_empty())
    }
    fn has_path(&self, path: &[String]) -> bool {
        match path.split_first() {
            Some((first, [])) => self.has(first),
            Some((first, rest)) => self.below(first).is_some_and(|below| below.has_path(rest)),
            None => false,
        }
    }

    pub fn union(mut self, other: &FieldSet) -> FieldSet {
        self.add(other);
        self
    }
    pub(super) fn add(&mut self, other: &FieldSet) {
        for (element, theirs) in &other.0 {
            let ours = self.0.entry(element.clone()).or_default();
            ours.member |= theirs.member;
            ours.below.add(&theirs.below);
        }
    }
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        self.combined(other, |ours, theirs| ours && theirs)
    }
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        let keeps = |ours: bool, theirs: bool| ours && !theirs;
        let mut kept = BTreeMap::new();
        for (element, ours) in &self.0 {
            let node = match other.0.get(element) {
                Some(theirs) => Node {
                    member: keeps(ours.member, theirs.member),
                    below: ours.below.difference(&theirs.below),
                },
                None => ours.clone(),
            };
            if node.member || !node.below.is_empty() {
                kept.insert(element.clone(), node);
            }
        }
        FieldSet(kept)
    }
    /// Without these elements of the first level and all below them.
    pub(super) fn without(mut self, elements: &[String]) -> FieldSet {
        self.0.retain(|element, _| !elements.contains(element));
        self
    }

    fn combined(&self, other: &FieldSet, keeps: fn(bool, bool) -> bool) -> FieldSet {
        let mut kept = BTreeMap::new();
        for (element, ours) in &self.0 {
            let Some(theirs) = other.0.get(element) else { continue };
            let node = Node {
                member: keeps(ours.member, theirs.member),
                below: ours.below.combined(&theirs.below, keeps),
            };
            if node.member || !node.below.is_empty() {
                kept.insert(element.clone(), node);
            }
        }
        FieldSet(kept)
    }

    /// Makes members of elements that have members below, where `named` says so for the first level and
    /// gives the test for the next.
    pub(super) fn mark_parents<T: Copy>(&self, at: T, named: &impl Fn(T, &str) -> (bool, T)) -> FieldSet {
        let mut marked = BTreeMap::new();
        for (element, node) in &self.0 {
            let (is_named, next) = named(at, element);
            let below = node.below.mark_parents(next, named);
            marked.insert(
                element.clone(),
                Node { member: node.member || (is_named && !below.is_empty()), below },
            );
        }
        FieldSet(marked)
    }

    /// Every path in the set, printed: `.spec.containers[name="web"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.walk("", &mut |path| paths.push(path.to_owned()));
        paths
    }
    fn walk(&self, prefix: &str, visit: &mut impl FnMut(&str)) {
        for (element, node) in &self.0 {
            let path = format!("{prefix}{}", show(element));
            if node.member {
                visit(&path);
            }
            node.below.walk(&path, visit);
        }
    }

    pub(super) fn contains_path(&self, path: &[&str]) -> bool {
        self.has_path(&path.iter().map(|&part| part.to_owned()).collect::<Vec<_>>())
    }

    /// `FieldsV1`: `{"f:metadata":{"f:labels":{".":{},"f:app":{}}}}`
    pub fn to_fields_v1(&self) -> Value {
        let mut object = Map::new();
        for (element, node) in &self.0 {
            let mut below = node.below.to_fields_v1();
            if node.member && !node.below.is_empty() {
                below["."] = Value::Object(Map::new());
            }
            object.insert(element.clone(), below);
        }
        Value::Object(object)
    }

    /// The inverse; `None` for what isn't a set of fields.
    pub fn from_fields_v1(value: &Value) -> Option<FieldSet> {
        FieldSet::parse(value, 0)
    }
    fn parse(value: &Value, depth: usize) -> Option<FieldSet> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut set = BTreeMap::new();
        for (element, below) in value.as_object()? {
            if element == "." {
                continue;
            }
            let element = canonical(element)?;
            let itself = below.as_object()?;
            let below = FieldSet::parse(below, depth + 1)?;
            let member = below.is_empty() || itself.contains_key(".");
            set.insert(element, Node { member, below });
        }
        Some(FieldSet(set))
    }
}

/// The one spelling of an element that a client may have spelled otherwise.
fn canonical(element: &str) -> Option<String> {
    let (kind, rest) = element.split_once(':')?;
    match kind {
        "f" => Some(element.to_owned()),
        "k" | "v" => {
            let value: Value = serde_json::from_str(rest).ok()?;
            (kind == "v" || value.is_object()).then(|| format!("{kind}:{}", sorted(&value)))
        }
        "i" => rest.parse::<usize>().ok().map(|index| format!("i:{index}")),
        _ => None,
    }
}

/// `.name`, `[name="x"]`, `[="x"]`
pub(super) fn show(element: &str) -> String {
    let (kind, rest) = element.split_once(':').unwrap_or(("f", element));
    match kind {
        "f" => format!(".{rest}"),
        "k" => {
            let keys: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            let keys: BTreeMap<String, Value> = keys.into_iter().collect();
            let shown: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", shown.join(","))
        }
        "v" => format!("[={rest}]"),
        _ => format!("[{rest}]"),
    }
}
