//! What the REST API says when it says no (RFC 9457), and which fields of a request's body it is about.
//!
//! Not here: which status a refusal has; the manager decides that (`problem.rs` there).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// RFC 9457, with the faults of a body as an extension member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    /// For people; says all that `errors` does.
    pub detail: String,
    /// The fields of the body that were not taken; absent when it is not about the body.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.title, self.detail)
    }
}
impl std::error::Error for Problem {}

/// One field of a request's body, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"field": "/labels/team", "detail": "value \"a/b\": at most 63 letters, digits, '-', '_' and '.'"}))]
pub struct FieldProblem {
    /// JSON pointer (RFC 6901) into the body; empty for the body as a whole.
    pub field: String,
    pub detail: String,
}

impl FieldProblem {
    /// `field` is a JSON pointer already.
    pub fn new(field: impl Into<String>, detail: impl Into<String>) -> FieldProblem {
        FieldProblem { field: field.into(), detail: detail.into() }
    }

    /// The same in a document that has at `pointer` what this is about.
    pub fn below(self, pointer: &str) -> FieldProblem {
        FieldProblem { field: format!("{pointer}{}", self.field), ..self }
    }

    /// The field of the body's outermost object that this is in.
    pub fn member(&self) -> Option<&str> {
        self.field.strip_prefix('/')?.split('/').next()
    }
}

impl std::fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.field.is_empty() {
            return f.write_str(&self.detail);
        }
        write!(f, "{}: {}", self.field, self.detail)
    }
}

/// `key` as one step of a JSON pointer.
pub fn pointer_step(key: &str) -> String {
    format!("/{}", key.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_leads_to_the_field() {
        let document = serde_json::json!({"labels": {"example.com/a~b": 1}});
        let problem = FieldProblem::new(pointer_step("example.com/a~b"), "no").below("/labels");
        assert_eq!(document.pointer(&problem.field), Some(&serde_json::json!(1)));
        assert_eq!(problem.to_string(), "/labels/example.com~1a~0b: no");
        for (field, member) in [("/labels/a", Some("labels")), ("/size", Some("size")), ("", None)] {
            assert_eq!(FieldProblem::new(field, "no").member(), member, "{field:?}");
        }
    }
}
