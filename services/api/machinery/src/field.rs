//! Paths to fields, and what is wrong there.
//!
//! Wording follows upstream's `k8s.io/apimachinery/pkg/util/validation/field`, since people and tests
//! read it.

use std::fmt;

use serde_json::Value;

use crate::status::Cause;

/// `spec.containers[0].name`
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Field(String);

impl Field {
    pub fn new(root: &str) -> Field {
        Field(root.to_owned())
    }
    pub fn child(&self, name: &str) -> Field {
        if self.0.is_empty() { Field(name.to_owned()) } else { Field(format!("{}.{name}", self.0)) }
    }
    pub fn index(&self, index: usize) -> Field {
        Field(format!("{}[{index}]", self.0))
    }
    pub fn key(&self, key: &str) -> Field {
        Field(format!("{}[{key}]", self.0))
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn required(&self, detail: impl Into<String>) -> FieldError {
        self.error(FieldErrorKind::Required, Value::Null, detail)
    }
    pub fn invalid(&self, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
        self.error(FieldErrorKind::Invalid, value.into(), detail)
    }
    /// [`Field::invalid`] where the value is too large to show, or says nothing.
    pub fn invalid_unshown(&self, detail: impl Into<String>) -> FieldError {
        self.error(FieldErrorKind::InvalidUnshown, Value::Null, detail)
    }
    pub fn forbidden(&self, detail: impl Into<String>) -> FieldError {
        self.error(FieldErrorKind::Forbidden, Value::Null, detail)
    }
    pub fn duplicate(&self, value: impl Into<Value>) -> FieldError {
        self.error(FieldErrorKind::Duplicate, value.into(), "")
    }
    /// [`Field::duplicate`] where the value is too large to show.
    pub fn duplicate_unshown(&self) -> FieldError {
        self.error(FieldErrorKind::DuplicateUnshown, Value::Null, "")
    }
    pub fn not_found(&self, value: impl Into<Value>) -> FieldError {
        self.error(FieldErrorKind::NotFound, value.into(), "")
    }
    pub fn not_supported(&self, value: impl Into<Value>, supported: &[&str]) -> FieldError {
        let quoted: Vec<String> = supported.iter().map(|one| format!("{one:?}")).collect();
        self.error(
            FieldErrorKind::NotSupported,
            value.into(),
            format!("supported values: {}", quoted.join(", ")),
        )
    }
    pub fn too_long(&self, max: usize) -> FieldError {
        self.error(FieldErrorKind::TooLong, Value::Null, format!("may not be more than {max} bytes"))
    }
    pub fn too_many(&self, actual: usize, max: usize) -> FieldError {
        let noun = if max == 1 { "item" } else { "items" };
        self.error(FieldErrorKind::TooMany, Value::from(actual), format!("must have at most {max} {noun}"))
    }
    pub fn wrong_type(&self, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
        self.error(FieldErrorKind::TypeInvalid, value.into(), detail)
    }
    pub fn internal(&self, detail: impl Into<String>) -> FieldError {
        self.error(FieldErrorKind::Internal, Value::Null, detail)
    }

    fn error(&self, kind: FieldErrorKind, value: Value, detail: impl Into<String>) -> FieldError {
        FieldError { kind, field: self.0.clone(), value, detail: detail.into() }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldErrorKind {
    NotFound,
    Required,
    Duplicate,
    DuplicateUnshown,
    Invalid,
    /// As `Invalid`, the value left out (`field.OmitValueType` upstream).
    InvalidUnshown,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    TypeInvalid,
    Internal,
}

impl FieldErrorKind {
    /// The machine-readable reason of a `StatusCause`.
    pub fn cause(self) -> &'static str {
        match self {
            FieldErrorKind::NotFound => "FieldValueNotFound",
            FieldErrorKind::Required => "FieldValueRequired",
            FieldErrorKind::Duplicate | FieldErrorKind::DuplicateUnshown => "FieldValueDuplicate",
            FieldErrorKind::Invalid | FieldErrorKind::InvalidUnshown => "FieldValueInvalid",
            FieldErrorKind::NotSupported => "FieldValueNotSupported",
            FieldErrorKind::Forbidden => "FieldValueForbidden",
            FieldErrorKind::TooLong => "FieldValueTooLong",
            FieldErrorKind::TooMany => "FieldValueTooMany",
            FieldErrorKind::TypeInvalid => "FieldValueTypeInvalid",
            FieldErrorKind::Internal => "InternalError",
        }
    }

    fn words(self) -> &'static str {
        match self {
            FieldErrorKind::NotFound => "Not found",
            FieldErrorKind::Required => "Required value",
            FieldErrorKind::Duplicate | FieldErrorKind::DuplicateUnshown => "Duplicate value",
            FieldErrorKind::Invalid | FieldErrorKind::InvalidUnshown | FieldErrorKind::TypeInvalid => {
                "Invalid value"
            }
            FieldErrorKind::NotSupported => "Unsupported value",
            FieldErrorKind::Forbidden => "Forbidden",
            FieldErrorKind::TooLong => "Too long",
            FieldErrorKind::TooMany => "Too many",
            FieldErrorKind::Internal => "Internal error",
        }
    }
}

/// One thing wrong with one field.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    pub kind: FieldErrorKind,
    pub field: String,
    pub value: Value,
    pub detail: String,
}

impl FieldError {
    /// The message without the field: what a `StatusCause` carries beside it.
    pub fn body(&self) -> String {
        let words = self.kind.words();
        let shown = match self.kind {
            FieldErrorKind::Required
            | FieldErrorKind::DuplicateUnshown
            | FieldErrorKind::InvalidUnshown
            | FieldErrorKind::Forbidden
            | FieldErrorKind::TooLong
            | FieldErrorKind::Internal => words.to_owned(),
            _ => format!("{words}: {}", print_value(&self.value)),
        };
        if self.detail.is_empty() { shown } else { format!("{shown}: {}", self.detail) }
    }

    pub fn to_cause(&self) -> Cause {
        Cause { reason: self.kind.cause().to_owned(), message: self.body(), field: self.field.clone() }
    }
}

/// Strings quoted, everything else as JSON: what Go's `%q` and `json.Marshal` come to.
fn print_value(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        // Go leaves a fraction of nothing out.
        Value::Number(number) if number.is_f64() => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < 1e21 => format!("{float:.0}"),
            _ => number.to_string(),
        },
        Value::Array(_) | Value::Object(_) => go_json(&value.to_string()),
        other => other.to_string(),
    }
}

/// JSON as Go writes it: fit to stand in HTML. These characters are only found in strings.
pub fn go_json(json: &str) -> String {
    if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return json.to_owned();
    }
    let escaped = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    escaped.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}
