//! A place in an object being checked: the value there and the path that leads to it.

use api_machinery::{Document, Field, FieldError};
use serde_json::{Map, Value};

static NULL: Value = Value::Null;

/// Absent and null look alike, as they do upstream.
#[derive(Clone)]
pub(crate) struct At<'a> {
    pub(crate) value: &'a Value,
    pub(crate) field: Field,
}

pub(crate) type Errors = Vec<FieldError>;

impl<'a> At<'a> {
    /// One top-level field of a document: `spec`.
    pub(crate) fn top(document: &'a Document, name: &str) -> At<'a> {
        At { value: document.0.get(name).unwrap_or(&NULL), field: Field::new(name) }
    }
    pub(crate) fn new(value: Option<&'a Value>, field: Field) -> At<'a> {
        At { value: value.unwrap_or(&NULL), field }
    }
    pub(crate) fn get(&self, name: &str) -> At<'a> {
        At { value: self.value.get(name).unwrap_or(&NULL), field: self.field.child(name) }
    }
    pub(crate) fn items(&self) -> impl Iterator<Item = At<'a>> + use<'a> {
        let field = self.field.clone();
        let items = self.value.as_array().map_or(&[][..], Vec::as_slice);
        items.iter().enumerate().map(move |(at, value)| At { value, field: field.index(at) })
    }
    /// Of a map: key and place.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&'a str, At<'a>)> + use<'a> {
        let field = self.field.clone();
        let members = self.value.as_object().into_iter().flat_map(Map::iter);
        members.map(move |(key, value)| (key.as_str(), At { value, field: field.key(key) }))
    }
    pub(crate) fn is_set(&self) -> bool {
        !self.value.is_null()
    }
    /// Absent, null, or an empty text, list or map.
    pub(crate) fn is_empty(&self) -> bool {
        match self.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(members) => members.is_empty(),
            _ => false,
        }
    }
    /// Empty when absent.
    pub(crate) fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or_default()
    }
    pub(crate) fn int(&self) -> Option<i64> {
        self.value.as_i64()
    }
    pub(crate) fn flag(&self) -> bool {
        self.value.as_bool().unwrap_or(false)
    }
    pub(crate) fn len(&self) -> usize {
        self.value.as_array().map_or(0, Vec::len)
    }

    // ---- what is wrong here ----

    pub(crate) fn invalid(&self, why: impl Into<String>) -> FieldError {
        let shown = if self.value.is_null() { Value::from("") } else { self.value.clone() };
        self.field.invalid(shown, why)
    }
    pub(crate) fn required(&self, why: &str) -> FieldError {
        self.field.required(why)
    }
    pub(crate) fn forbidden(&self, why: impl Into<String>) -> FieldError {
        self.field.forbidden(why)
    }
    pub(crate) fn unsupported(&self, supported: &[&str]) -> FieldError {
        self.field
            .not_supported(if self.value.is_null() { Value::from("") } else { self.value.clone() }, supported)
    }
    pub(crate) fn duplicate(&self) -> FieldError {
        self.field.duplicate(self.value.clone())
    }

    // ---- common checks ----

    pub(crate) fn reasons(&self, errors: &mut Errors, reasons: Vec<String>) {
        errors.extend(reasons.into_iter().map(|why| self.invalid(why)));
    }
    pub(crate) fn require(&self, errors: &mut Errors) -> bool {
        if self.is_empty() {
            errors.push(self.required(""));
        }
        !self.is_empty()
    }
    pub(crate) fn not_negative(&self, errors: &mut Errors) {
        if self.int().is_some_and(|number| number < 0) {
            errors.push(self.invalid("must be greater than or equal to 0"));
        }
    }
    pub(crate) fn positive(&self, errors: &mut Errors) {
        if self.int().is_some_and(|number| number <= 0) {
            errors.push(self.invalid("must be greater than 0"));
        }
    }
    /// One of these, if set.
    pub(crate) fn one_of(&self, errors: &mut Errors, supported: &[&str]) {
        if self.is_set() && !supported.contains(&self.text()) {
            errors.push(self.unsupported(supported));
        }
    }
    /// One of these, and set.
    pub(crate) fn must_be_one_of(&self, errors: &mut Errors, supported: &[&str]) {
        if self.is_empty() {
            errors.push(self.required(""));
        } else {
            self.one_of(errors, supported);
        }
    }
    pub(crate) fn same_as(&self, errors: &mut Errors, old: &At<'_>) {
        if self.value != old.value {
            errors.push(self.invalid(super::meta::IMMUTABLE));
        }
    }
}
