//! Maps: an object of JSON, or entries.
//!
//! Keys are text, integers or bools. Integers are one key whether signed, unsigned or a whole double, as in
//! cel-go. Iteration is in order of keys, so that it is the same every time.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::{MAX_VALUE_DEPTH, Text, Value};
use crate::decl::{Decl, Shape};
use crate::escape::{escape, unescape};
use crate::eval::EvalError;

type JsonObject = serde_json::Map<String, Json>;

#[derive(Debug, Clone)]
pub struct Map<'a>(Repr<'a>);

#[derive(Debug, Clone)]
enum Repr<'a> {
    Json { object: &'a JsonObject, decl: Option<&'a Decl> },
    Entries(Arc<Entries<'a>>),
}

#[derive(Debug, Default)]
pub(crate) struct Entries<'a> {
    entries: BTreeMap<Key<'a>, (Value<'a>, Value<'a>)>,
    depth: u16,
}

#[derive(Debug, Clone)]
pub enum Key<'a> {
    Bool(bool),
    Int(i64),
    /// One that no `Int` holds.
    Uint(u64),
    Text(Text<'a>),
}

impl<'a> Key<'a> {
    /// None for what can be no key.
    pub fn of(value: &Value<'a>) -> Option<Key<'a>> {
        Some(match value {
            Value::Bool(value) => Key::Bool(*value),
            Value::Int(value) => Key::Int(*value),
            Value::Uint(value) => i64::try_from(*value).map_or(Key::Uint(*value), Key::Int),
            Value::String(text) => Key::Text(text.clone()),
            _ => return None,
        })
    }
    /// As `of`, for looking up: a whole double finds the integer.
    fn sought(value: &Value<'a>) -> Option<Key<'a>> {
        match value {
            Value::Double(double) if double.fract() == 0.0 && double.abs() < 9.2e18 => {
                Some(Key::Int(*double as i64))
            }
            other => Key::of(other),
        }
    }
    fn rank(&self) -> u8 {
        match self {
            Key::Bool(_) => 0,
            Key::Int(_) => 1,
            Key::Uint(_) => 2,
            Key::Text(_) => 3,
        }
    }
}

impl Ord for Key<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Key::Bool(one), Key::Bool(two)) => one.cmp(two),
            (Key::Int(one), Key::Int(two)) => one.cmp(two),
            (Key::Uint(one), Key::Uint(two)) => one.cmp(two),
            (Key::Text(one), Key::Text(two)) => one.as_str().cmp(two.as_str()),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}
impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Key<'_> {}

/// Levels of a container of these values.
pub(super) fn depth_of<'v, 'a: 'v>(values: impl Iterator<Item = &'v Value<'a>>) -> Result<u16, EvalError> {
    let depth = values.map(Value::depth).max().unwrap_or(0) + 1;
    if depth > MAX_VALUE_DEPTH {
        return Err(EvalError::failed("value is nested too deeply"));
    }
    Ok(depth)
}

impl<'a> Entries<'a> {
    /// Replaces what was there. Fails on what can be no key, and on values nested too deep.
    pub fn set(&mut self, key: Value<'a>, value: Value<'a>) -> Result<(), EvalError> {
        let Some(sought) = Key::of(&key) else {
            return Err(EvalError::failed(format!("unsupported key type: {}", key.type_name())));
        };
        self.depth = self.depth.max(depth_of(std::iter::once(&value))?);
        self.entries.insert(sought, (key, value));
        Ok(())
    }
    pub fn remove(&mut self, key: &Value<'a>) {
        if let Some(key) = Key::of(key) {
            self.entries.remove(&key);
        }
    }
    pub fn contains(&self, key: &Value<'a>) -> bool {
        Key::of(key).is_some_and(|key| self.entries.contains_key(&key))
    }
}

impl<'a> Map<'a> {
    pub(crate) fn json(object: &'a JsonObject, decl: Option<&'a Decl>) -> Map<'a> {
        Map(Repr::Json { object, decl })
    }
    pub(crate) fn new(mut entries: Entries<'a>) -> Map<'a> {
        entries.depth = entries.depth.max(1);
        Map(Repr::Entries(Arc::new(entries)))
    }
    /// Of text keys; fails on values nested too deep.
    pub fn of_texts(entries: impl IntoIterator<Item = (String, Value<'a>)>) -> Result<Map<'a>, EvalError> {
        let mut all = Entries::default();
        for (key, value) in entries {
            all.set(Value::text(key), value)?;
        }
        Ok(Map::new(all))
    }

    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::Json { object, .. } => object.len(),
            Repr::Entries(entries) => entries.entries.len(),
        }
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub(crate) fn depth(&self) -> u16 {
        match &self.0 {
            Repr::Json { .. } => 0,
            Repr::Entries(entries) => entries.depth,
        }
    }
    /// The JSON, if it is some, and how it is declared.
    pub(super) fn as_json(&self) -> Option<(&'a JsonObject, Option<&'a Decl>)> {
        match &self.0 {
            Repr::Json { object, decl } => Some((object, *decl)),
            Repr::Entries(_) => None,
        }
    }

    pub fn get(&self, key: &Value<'a>) -> Option<Result<Value<'a>, EvalError>> {
        match &self.0 {
            Repr::Json { .. } => match key {
                Value::String(text) => self.field(text, None),
                _ => None,
            },
            Repr::Entries(entries) => {
                let key = Key::sought(key)?;
                entries.entries.get(&key).map(|(_, value)| Ok(value.clone()))
            }
        }
    }

    /// The value of a text key. `json_name` is the key as JSON has it, where the caller knows it already.
    pub(crate) fn field(&self, key: &str, json_name: Option<&str>) -> Option<Result<Value<'a>, EvalError>> {
        match &self.0 {
            Repr::Json { object, decl: None } => object.get(key).map(|value| Ok(Value::from_json(value))),
            Repr::Json { object, decl: Some(decl) } => match &decl.shape {
                Shape::Object(ty) => {
                    let name = match json_name {
                        Some(name) => Cow::Borrowed(name),
                        None => unescape(key)?,
                    };
                    // A null in an object is as good as nothing.
                    let value = object.get(&*name).filter(|value| !value.is_null())?;
                    let field = ty.fields.get(&*name)?;
                    Some(Value::typed(value, &field.decl).map_err(EvalError::from))
                }
                Shape::Map { values } => {
                    object.get(key).map(|value| Value::typed(value, values).map_err(EvalError::from))
                }
                _ => object.get(key).map(|value| Ok(Value::from_json(value))),
            },
            Repr::Entries(entries) => {
                let key = Key::Text(Text::Shared(key.into()));
                entries.entries.get(&key).map(|(_, value)| Ok(value.clone()))
            }
        }
    }

    /// Keys in order. Of declared objects only fields that expressions see, as they spell them.
    pub fn keys(&self) -> Vec<Value<'a>> {
        match &self.0 {
            Repr::Json { object, decl: Some(Decl { shape: Shape::Object(ty), .. }) } => object
                .keys()
                .filter(|name| ty.fields.contains_key(*name))
                .map(|name| match escape(name) {
                    Some(escaped) if escaped != **name => Value::text(escaped),
                    _ => Value::String(Text::Borrowed(name)),
                })
                .collect(),
            Repr::Json { object, .. } => {
                object.keys().map(|name| Value::String(Text::Borrowed(name))).collect()
            }
            Repr::Entries(entries) => entries.entries.values().map(|(key, _)| key.clone()).collect(),
        }
    }

    /// A copy whose entries may be changed.
    pub(crate) fn to_entries(&self) -> Result<Entries<'a>, EvalError> {
        let mut copy = Entries::default();
        for key in self.keys() {
            if let Some(value) = self.get(&key) {
                copy.set(key, value?)?;
            }
        }
        Ok(copy)
    }
}
