//! What a person is told: what is wrong, where in their configuration, and what to do about it.

use std::fmt;

use crate::proto;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub warning: bool,
    /// One line without a full stop.
    pub summary: String,
    /// Sentences; the last one says what to do.
    pub detail: String,
    /// Where: one of the resource's attributes.
    pub attribute: Option<String>,
}

impl Diagnostic {
    pub fn error(summary: impl Into<String>, detail: impl Into<String>) -> Diagnostic {
        Diagnostic { warning: false, summary: summary.into(), detail: detail.into(), attribute: None }
    }

    pub fn warning(summary: impl Into<String>, detail: impl Into<String>) -> Diagnostic {
        Diagnostic { warning: true, ..Diagnostic::error(summary, detail) }
    }

    /// The same, about one attribute.
    pub fn at(mut self, attribute: &str) -> Diagnostic {
        self.attribute = Some(attribute.to_owned());
        self
    }

    pub(crate) fn to_proto(&self) -> proto::Diagnostic {
        let severity = if self.warning {
            proto::diagnostic::Severity::Warning
        } else {
            proto::diagnostic::Severity::Error
        };
        proto::Diagnostic {
            severity: severity.into(),
            summary: self.summary.clone(),
            detail: self.detail.clone(),
            path: self.attribute.as_deref().map(path_to),
        }
    }
}

pub(crate) fn path_to(attribute: &str) -> proto::Path {
    let selector = proto::path::step::Selector::Attribute(attribute.to_owned());
    proto::Path { steps: vec![proto::path::Step { selector: Some(selector) }] }
}

/// `attribute: summary: detail`, for tests and logs.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(attribute) = &self.attribute {
            write!(f, "{attribute}: ")?;
        }
        write!(f, "{}: {}", self.summary, self.detail)
    }
}
