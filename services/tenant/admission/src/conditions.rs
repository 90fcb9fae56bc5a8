//! `matchConditions`: CEL expressions that a request must pass before a webhook or policy is asked.

use api_machinery::Document;
use serde_json::Value;

use crate::attributes::Attributes;
use crate::matching::Matched;

/// The conditions of one webhook or policy.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    names: Vec<String>,
    /// `failurePolicy: Fail`.
    fails_closed: bool,
}

impl Conditions {
    /// `params` when a policy's parameters may be named.
    pub(crate) fn parse(value: Option<&Value>, fails_closed: bool, _params: bool) -> Conditions {
        let all = value.and_then(Value::as_array).into_iter().flatten();
        let names = all.filter_map(|one| one.get("name")?.as_str()).map(str::to_owned).collect();
        Conditions { names, fails_closed }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the request is for the webhook at all. An error refuses it.
    pub(crate) fn hold(
        &self,
        _attributes: &Attributes<'_>,
        _matched: &Matched,
        _object: Option<&Document>,
        _old: Option<&Document>,
    ) -> Result<bool, String> {
        match self.names.first() {
            None => Ok(true),
            Some(name) if self.fails_closed => Err(format!("match condition {name:?} cannot be evaluated")),
            Some(_) => Ok(false),
        }
    }
}
