//! How much is said about one object, and how much is done to find it out.
//!
//! A cell serves many clusters, and both schemas and objects are strangers': errors repeat paths, values and
//! lists of what would be right, and schemas multiply what there is to check. Upstream has no such bounds; none
//! is reached by anything that people write.

use std::cell::Cell;

use api_machinery::{FieldError, shortened};
use serde_json::Value;

use crate::schema::Schema;

/// Errors about one object. Nobody reads more.
pub(crate) const MAX_ERRORS: usize = 1000;

/// What these errors may take together.
pub(crate) const MAX_ERROR_BYTES: usize = 4 << 20;

/// The largest value or list that an error shows whole.
pub(crate) const MAX_SHOWN_BYTES: usize = 16 << 10;

/// Checks of a value against a schema, or what takes as long: seconds of work.
const MAX_STEPS: u64 = 20_000_000;

/// Patterns of one schema, and its rules: each is compiled and kept. The largest definitions people write have
/// some hundred.
const MAX_PATTERNS: usize = 5000;
const MAX_RULES: usize = 5000;

/// What all patterns of a schema may come to, in states of an automaton: about 100 MB.
const MAX_PATTERN_STATES: u64 = 1_000_000;

/// Why a schema is too much to compile, if it is.
pub(crate) fn too_much_to_compile(schema: &Schema) -> Option<String> {
    let (mut patterns, mut rules, mut states) = (0, 0, 0_u64);
    schema.any(&mut |schema| {
        rules += schema.rules.len();
        if let Some(pattern) = &schema.pattern {
            patterns += 1;
            states = states.saturating_add(pattern_states(pattern.as_str()));
        }
        patterns > MAX_PATTERNS || rules > MAX_RULES || states > MAX_PATTERN_STATES
    });
    if patterns > MAX_PATTERNS {
        Some(format!("must have at most {MAX_PATTERNS} patterns"))
    } else if rules > MAX_RULES {
        Some(format!("must have at most {MAX_RULES} x-kubernetes-validations"))
    } else if states > MAX_PATTERN_STATES {
        Some("must have smaller patterns: repetitions multiply what they repeat".to_owned())
    } else {
        None
    }
}

/// Roughly: what is repeated counts as often as it may be.
fn pattern_states(pattern: &str) -> u64 {
    /// Sums up to here, and the last thing, which a count may follow.
    #[derive(Default)]
    struct Group {
        before: u64,
        last: u64,
    }
    impl Group {
        fn add(&mut self, states: u64) {
            self.before = self.before.saturating_add(self.last);
            self.last = states;
        }
        fn states(&self) -> u64 {
            self.before.saturating_add(self.last).saturating_add(2)
        }
    }
    let mut groups = vec![Group::default()];
    let mut chars = pattern.chars().peekable();
    let mut in_class = false;
    while let Some(char) = chars.next() {
        let top = groups.len() - 1;
        match char {
            // Classes of Unicode are hundreds of ranges.
            '\\' => {
                let is_unicode = matches!(chars.next(), Some('p' | 'P'));
                if is_unicode && chars.peek() == Some(&'{') {
                    chars.by_ref().find(|&char| char == '}');
                }
                let states = if is_unicode { 300 } else { 1 };
                if in_class {
                    groups[top].last = groups[top].last.saturating_add(states);
                } else {
                    groups[top].add(states);
                }
            }
            ']' => in_class = false,
            _ if in_class => {}
            '[' => {
                in_class = true;
                groups[top].add(if chars.peek() == Some(&'^') { 10 } else { 2 });
            }
            '(' => groups.push(Group::default()),
            ')' if top > 0 => {
                let states = groups.pop().map_or(0, |group| group.states());
                groups[top - 1].add(states);
            }
            '{' => {
                let mut count = 0_u64;
                let mut most = 1;
                while let Some(&next) = chars.peek()
                    && (next.is_ascii_digit() || next == ',')
                {
                    chars.next();
                    match next.to_digit(10) {
                        Some(digit) => count = count.saturating_mul(10).saturating_add(digit.into()),
                        None => count = 0,
                    }
                    most = most.max(count);
                }
                chars.next_if_eq(&'}');
                groups[top].last = groups[top].last.saturating_mul(most);
            }
            '.' => groups[top].add(5),
            _ => groups[top].add(1),
        }
    }
    groups.iter().map(Group::states).fold(0, u64::saturating_add)
}

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
    fn repetitions_multiply() {
        for (pattern, least, most) in [
            ("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", 100, 300),
            ("a{3}", 3, 10),
            ("(a{10}){10}", 100, 200),
            ("((a{1000}){1000}){1000}", 1_000_000_000, u64::MAX),
            ("\\p{L}{253}", 75_000, 80_000),
            ("a\\{1000}", 1, 20),
            ("))((", 1, 20),
        ] {
            let states = pattern_states(pattern);
            assert!((least..=most).contains(&states), "{pattern}: {states}");
        }
    }

    #[test]
    fn schemas_to_compile_have_an_end() {
        let schema = |count: usize, member: serde_json::Value| {
            let properties: serde_json::Map<String, Value> =
                (0..count).map(|key| (key.to_string(), member.clone())).collect();
            Schema::read(&json!({"properties": properties})).unwrap()
        };
        let rules = json!({"x-kubernetes-validations": [{"rule": "true"}]});
        for (count, member, fine) in [
            (
                200,
                json!({"pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\\\\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$"}),
                true,
            ),
            (MAX_PATTERNS + 1, json!({"pattern": "a"}), false),
            (20, json!({"pattern": "(a{1000}){100}"}), false),
            (MAX_RULES, rules.clone(), true),
            (MAX_RULES + 1, rules, false),
        ] {
            assert_eq!(too_much_to_compile(&schema(count, member)).is_none(), fine);
        }
    }

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
