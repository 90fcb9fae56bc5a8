//! `x-kubernetes-validations` of one schema, compiled.
//!
//! After `apiserver/schema/cel/compilation.go` of `k8s.io/apiextensions-apiserver`.

use std::sync::Arc;

use api_cel::{Decl, Env, Program, Type};

use crate::path;
use crate::schema::{Rule, Schema};

/// One rule and what came of compiling it.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub rule: Rule,
    /// `None` for a rule that says nothing.
    pub program: Result<Option<Program>, String>,
    pub uses_old_self: bool,
    pub message: Option<Result<Program, String>>,
    /// `fieldPath` as errors write it.
    pub path: Option<String>,
}

impl Compiled {
    /// What the rule is estimated at, once.
    pub fn max_cost(&self) -> u64 {
        let program = self.program.as_ref().ok().and_then(Option::as_ref);
        program.map_or(0, |program| program.cost().max)
    }
    pub fn message_max_cost(&self) -> Option<u64> {
        let program = self.message.as_ref()?.as_ref().ok()?;
        Some(program.cost().max)
    }
}

/// All rules of this schema, none of those below. `decl` is the schema's.
pub(crate) fn compile(schema: &Schema, decl: &Arc<Decl>) -> Vec<Compiled> {
    if schema.rules.is_empty() {
        return Vec::new();
    }
    let this = Env::kubernetes().declared("self", decl.clone());
    let with_old = this.clone().declared("oldSelf", decl.clone());
    schema
        .rules
        .iter()
        .map(|rule| {
            let env = match rule.optional_old_self {
                Some(true) => {
                    let optional = Type::optional(decl.ty.clone());
                    &this.clone().declared_as("oldSelf", optional, decl.clone())
                }
                _ => &with_old,
            };
            compile_rule(schema, rule, env)
        })
        .collect()
}

fn compile_rule(schema: &Schema, rule: &Rule, env: &Env) -> Compiled {
    let mut compiled =
        Compiled { rule: rule.clone(), program: Ok(None), uses_old_self: false, message: None, path: None };
    if rule.rule.trim().is_empty() {
        return compiled;
    }
    let program = match expression(env, &rule.rule, &Type::Bool) {
        Ok(program) => program,
        Err(Wrong::Issues(issues)) => {
            compiled.program = Err(issues);
            return compiled;
        }
        Err(Wrong::Type) => {
            compiled.program = Err("cel expression must evaluate to a bool".to_owned());
            return compiled;
        }
    };
    compiled.uses_old_self = program.references("oldSelf");
    compiled.program = Ok(Some(program));
    if !rule.message_expression.is_empty() {
        let message = expression(env, &rule.message_expression, &Type::String);
        compiled.message = Some(message.map_err(|wrong| match wrong {
            Wrong::Issues(issues) => {
                format!("messageExpression {}", issues.strip_prefix("program ").unwrap_or(&issues))
            }
            Wrong::Type => "messageExpression must evaluate to a string".to_owned(),
        }));
    }
    if !rule.field_path.is_empty() {
        compiled.path =
            path::find(&rule.field_path, schema, true).ok().map(|found| found.path.as_str().to_owned());
    }
    compiled
}

enum Wrong {
    Issues(String),
    Type,
}

fn expression(env: &Env, source: &str, wanted: &Type) -> Result<Program, Wrong> {
    let program = api_cel::compile(env, source).map_err(|issues| Wrong::Issues(api_cel::explain(&issues)))?;
    if program.output() == wanted { Ok(program) } else { Err(Wrong::Type) }
}
