//! Paths to fields, and what is wrong there.
//!
//! Wording follows upstream's `k8s.io/apimachinery/pkg/util/validation/field`, since people and tests
//! read it.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

use crate::status::Cause;

/// No field that anybody wrote is further away.
const MAX_PATH_BYTES: usize = 4096;

/// `text`, or its beginning and a sign that there was more.
pub fn shortened(text: &str, bytes: usize) -> Cow<'_, str> {
    if text.len() <= bytes {
        return Cow::Borrowed(text);
    }
    let end = (0..=bytes).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
    Cow::Owned(format!("{}…", &text[..end]))
}

/// `spec.containers[0].name`
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Field(String);

impl Field {
    pub fn new(root: &str) -> Field {
        Field(root.to_owned())
    }
    pub fn child(&self, name: &str) -> Field {
        if self.0.is_empty() { self.with(["", name, ""]) } else { self.with([".", name, ""]) }
    }
    pub fn index(&self, index: usize) -> Field {
        self.with(["[", &index.to_string(), "]"])
    }
    pub fn key(&self, key: &str) -> Field {
        self.with(["[", key, "]"])
    }
    /// A path has an end, since keys are as long as requests and every error repeats them.
    fn with(&self, parts: [&str; 3]) -> Field {
        let length = self.0.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        if self.0.len() >= MAX_PATH_BYTES {
            return self.clone();
        }
        let mut path = String::with_capacity(length.min(MAX_PATH_BYTES + 8));
        path.push_str(&self.0);
        for part in parts {
            path.push_str(shortened(part, MAX_PATH_BYTES - path.len().min(MAX_PATH_BYTES)).as_ref());
        }
        Field(path)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_an_end() {
        let at = Field::new("spec").child("a").index(3).key("x/y");
        assert_eq!(at.as_str(), "spec.a[3][x/y]");
        assert_eq!(Field::default().child("a").as_str(), "a");
        let long = at.key(&"é".repeat(1 << 20));
        assert!(long.as_str().len() <= MAX_PATH_BYTES + 8 && long.as_str().starts_with("spec.a[3][x/y][éé"));
        assert_eq!(long.child("b").index(1), long);
    }
}
