//! Whether expressions are fit to be stored, for whoever validates policies and webhook configurations.
//!
//! Errors are the detail that upstream puts behind the field and the expression.

use crate::expression::{Names, Variables, Wants};

/// What an expression is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A policy's `validations[].expression`.
    Validation,
    /// `validations[].messageExpression`
    Message,
    /// `auditAnnotations[].valueExpression`
    Annotation,
    /// `mutations[].applyConfiguration.expression`
    Configuration,
    /// `mutations[].jsonPatch.expression`
    JsonPatch,
    /// `matchConditions[].expression`, of policies and of webhooks. Names no variables.
    MatchCondition,
}

/// The expressions of one policy or webhook. Variables come first, in their order.
#[derive(Debug, Default)]
pub struct Checker {
    params: bool,
    variables: Variables,
}

impl Checker {
    /// `params` when `params` may be named: the policy has a `paramKind`.
    pub fn new(params: bool) -> Checker {
        Checker { params, variables: Variables::default() }
    }

    /// Adds a variable, to be named by what is checked after it.
    pub fn variable(&mut self, name: &str, source: &str) -> Result<(), String> {
        let names = Names { params: self.params, authorizer: true, patches: false };
        self.variables.add(name, source, names)
    }

    pub fn check(&self, purpose: Purpose, source: &str) -> Result<(), String> {
        let names = Names {
            params: self.params,
            authorizer: purpose != Purpose::Message,
            patches: matches!(purpose, Purpose::Configuration | Purpose::JsonPatch),
        };
        let wants = match purpose {
            Purpose::Validation | Purpose::MatchCondition => Wants::Bool,
            Purpose::Message => Wants::Text,
            Purpose::Annotation => Wants::TextOrNull,
            Purpose::Configuration => Wants::Configuration,
            Purpose::JsonPatch => Wants::Patch,
        };
        let none = Variables::default();
        let variables = if purpose == Purpose::MatchCondition { &none } else { &self.variables };
        variables.compile(source, names, wants).map(drop)
    }
}
