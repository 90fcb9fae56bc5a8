//! How much is said about one object, and how much is done to find it out.
//!
//! A cell serves many clusters, and both schemas and objects are strangers': errors repeat paths, values and
//! lists of what would be right, and schemas multiply what there is to check. Upstream has no such bounds; none
//! is reached by anything that people write.

use std::cell::Cell;

use api_machinery::{FieldError, shortened};
use serde_json::Value;

/// Errors about one object. Nobody reads more.
pub(crate) const MAX_ERRORS: usize = 1000;

/// What these errors may take together.
pub(crate) const MAX_ERROR_BYTES: usize = 4 << 20;

/// The largest value or list that an error shows whole.
pub(crate) const MAX_SHOWN_BYTES: usize = 16 << 10;

/// Checks of a value against a schema, or what takes as long: seconds of work.
const MAX_STEPS: u64 = 20_000_000;

/// What is left to do at most.
pub(crate) struct Work(Cell<u64>);

impl Work {
    pub fn new() -> Work {
        Work(Cell::new(MAX_STEPS))
    }
    /// Whether that many steps may still be taken.
    pub fn take(&self, steps: usize) -> bool {
        let left = self.0.get().saturating_sub(steps as u64);
        self.0.set(left);
        left > 0
    }
    pub fn is_over(&self) -> bool {
        self.0.get() == 0
    }
}

/// A value for an error to show: large ones as the beginning of their text.
pub(crate) fn shown(value: &Value) -> Value {
    if fits(value, &mut (MAX_SHOWN_BYTES as i64)) {
        return value.clone();
    }
    match value {
        Value::String(text) => text_shown(text).into(),
        other => text_shown(&other.to_string()).into(),
    }
}

pub(crate) fn text_shown(text: &str) -> String {
    shortened(text, MAX_SHOWN_BYTES).into_owned()
}

/// Looks no further than it has to.
fn fits(value: &Value, left: &mut i64) -> bool {
    *left -= match value {
        Value::String(text) => text.len() as i64,
        _ => 4,
    };
    *left >= 0
        && match value {
            Value::Array(items) => items.iter().all(|item| fits(item, left)),
            Value::Object(members) => members.iter().all(|(key, value)| {
                *left -= key.len() as i64;
                fits(value, left)
            }),
            _ => true,
        }
}

/// What an error takes.
pub(crate) fn bytes(error: &FieldError) -> usize {
    let value = error.value.as_str().map_or(64, str::len);
    error.field.len() + error.detail.len() + value + 128
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_shown_has_an_end() {
        for small in [json!(null), json!("a"), json!({"a": [1, 2]})] {
            assert_eq!(shown(&small), small);
        }
        for large in [json!("a".repeat(1 << 20)), json!(vec!["a"; 1 << 20]), json!({"a".repeat(1 << 20): 1})]
        {
            assert!(shown(&large).as_str().is_some_and(|text| text.len() <= MAX_SHOWN_BYTES + 8));
        }
    }
}
