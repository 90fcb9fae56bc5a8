//! `matchConditions`: CEL expressions that a request must pass before a webhook or policy is asked.

use api_cel::{Budget, Program, limits};
use serde_json::Value;

use crate::expression::{Names, Scope, Seen, Variables, Wants};

/// The conditions of one webhook or policy.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    all: Vec<(String, Result<Program, String>)>,
    /// `failurePolicy: Fail`.
    fails_closed: bool,
}

impl Conditions {
    /// `params` when a policy's parameters may be named; `variables` are the policy's, which upstream lets
    /// conditions of mutating policies name.
    pub(crate) fn parse(
        value: Option<&Value>,
        fails_closed: bool,
        params: bool,
        variables: &Variables,
    ) -> Conditions {
        let names = Names { params, authorizer: true, patches: false };
        let all = value.and_then(Value::as_array).into_iter().flatten();
        let all = all
            .map(|one| {
                let source = one.get("expression").and_then(Value::as_str).unwrap_or_default();
                (source.to_owned(), variables.compile(source, names, Wants::Bool))
            })
            .collect();
        Conditions { all, fails_closed }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether the request is for the webhook at all. An error refuses it.
    ///
    /// One condition that is false decides, whatever is wrong with the others.
    pub(crate) fn hold(
        &self,
        seen: &Seen,
        params: Option<&Value>,
        variables: &Variables,
    ) -> Result<bool, String> {
        let mut budget = Budget::new(limits::MATCH_CONDITIONS_BUDGET);
        let scope = Scope::new(seen, params, variables);
        let mut problems: Vec<String> = Vec::new();
        for (source, program) in &self.all {
            match scope.eval(source, program, &mut budget) {
                Ok(value) if value.as_bool() == Some(false) => return Ok(false),
                Ok(_) => {}
                Err(crate::expression::Failed::Budget) => {
                    problems = vec![crate::expression::OUT_OF_BUDGET.to_owned()];
                    break;
                }
                Err(why) => problems.push(why.to_string()),
            }
        }
        match &problems[..] {
            [] => Ok(true),
            _ if !self.fails_closed => Ok(false),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}
