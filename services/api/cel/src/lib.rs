//! CEL as Kubernetes 1.36 speaks it.
//!
//! ```
//! use api_cel::{Budget, Env, Type, Value, compile};
//!
//! let env = Env::kubernetes().variable("object", Type::Dyn);
//! let program = compile(&env, "object.spec.replicas <= 10").unwrap();
//! let object = serde_json::json!({"spec": {"replicas": 3}});
//! let outcome = program.eval(&[("object", Value::from_json(&object))], &mut Budget::new(1_000_000));
//! assert_eq!(outcome.unwrap().as_bool(), Some(true));
//! ```
//!
//! [`Env`] says what an expression may speak of, [`compile`] makes a [`Program`] of it once, and
//! [`Program::eval`] runs that over data, which is borrowed. The road of an expression is a file a step:
//! `lexer`, `parser` (with `macros`), `checker`, `validate`, `cost` (the estimate), `plan`, `eval`; the
//! functions are in `library`, listed in `overloads.txt`.
//!
//! Expressions come from strangers. Brackets, trees, values and types are bounded in depth and size, work is
//! counted even where upstream does not charge for it, and nothing here panics on any text or data.
//!
//! Not here: what rules, policies or conditions mean (`api-structural`, `tenant-admission`); any I/O. Compared
//! with cel-go: no protocol buffers, no partial evaluation, and errors of syntax end at the first.

mod ast;
mod authorize;
mod checker;
mod cost;
mod decl;
mod env;
mod escape;
mod eval;
pub mod go_regex;
mod issue;
mod lexer;
mod library;
pub mod limits;
mod macros;
mod overloads;
mod parser;
mod plan;
mod runtime_cost;
mod stack;
mod types;
mod unescape;
mod unify;
mod validate;
mod value;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use authorize::{Authorize, AuthorizerValue, Decision, Question, ResourceQuestion, What};
pub use cost::CostRange;
pub use decl::{Decl, Field, ListKind, ObjectType, Shape};
pub use env::Env;
pub use escape::{escape, is_reserved, unescape};
pub use eval::{Activation, Budget, EvalError};
pub use issue::{Issue, Stage, explain, render};
pub use parser::MAX_SOURCE;
pub use types::Type;
pub use value::{ConvertError, Key, List, ListIter, Map, Opaque, Struct, Text, Time, Value};

/// An expression, checked and ready to run. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Program(Arc<Compiled>);

#[derive(Debug)]
struct Compiled {
    node: plan::Node,
    slots: usize,
    output: Type,
    cost: CostRange,
    names: BTreeSet<String>,
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let node = std::mem::replace(&mut self.node, plan::Node::Const(Value::Null));
        stack::with_room(|| drop(node));
    }
}

/// Parses, checks and plans. The issues are to be shown with [`explain`].
pub fn compile(env: &Env, source: &str) -> Result<Program, Vec<Issue>> {
    stack::with_room(|| compiled(env, source))
}

fn compiled(env: &Env, source: &str) -> Result<Program, Vec<Issue>> {
    let source = Arc::new(issue::Source::new(source));
    let parser::Parsed { expr, places } = parser::parse(&source, env.dialect())?;
    let checked = checker::check(env, &source, expr, places)?;
    let issues = validate::validate(&checked, &source);
    if !issues.is_empty() {
        return Err(issues);
    }
    let cost = cost::estimate(&checked, env);
    let (node, slots) = plan::plan(&checked, env.folds_constants()).map_err(|err| {
        let issue = Issue::whole(&source, err.to_string());
        vec![Issue { stage: Stage::Instantiate, ..issue }]
    })?;
    let mut names = BTreeSet::new();
    checked.expr.walk(&mut |expr| {
        if let ast::Kind::Ident(name) = &expr.kind
            && matches!(checked.meaning(expr.id), Some(checker::Meaning::Variable))
        {
            names.insert(name.to_string());
        }
    });
    let output = checked.type_of(checked.expr.id).clone();
    Ok(Program(Arc::new(Compiled { node, slots, output, cost, names })))
}

impl Program {
    /// The type of what it comes to.
    pub fn output(&self) -> &Type {
        &self.0.output
    }
    /// The least and the most that it is estimated to cost.
    pub fn cost(&self) -> CostRange {
        self.0.cost
    }
    /// Whether the variable is spoken of.
    pub fn references(&self, variable: &str) -> bool {
        self.0.names.contains(variable)
    }
    /// All names spoken of that stand for values, variables of macros included.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.names.iter().map(String::as_str)
    }

    /// Runs it. What it cost is taken from the budget, also where it failed.
    pub fn eval<'a>(
        &'a self,
        activation: &dyn Activation<'a>,
        budget: &mut Budget,
    ) -> Result<Value<'a>, EvalError> {
        self.eval_counted(activation, budget).0
    }

    /// As `eval`, and says what it cost.
    pub fn eval_counted<'a>(
        &'a self,
        activation: &dyn Activation<'a>,
        budget: &mut Budget,
    ) -> (Result<Value<'a>, EvalError>, u64) {
        let limit = budget.per_call.min(budget.left);
        let (outcome, cost) = eval::run(&self.0.node, self.0.slots, activation, limit);
        let outcome = match outcome {
            Err(EvalError::CallCost) if cost > budget.left && budget.left < budget.per_call => {
                Err(EvalError::Budget)
            }
            outcome => outcome,
        };
        budget.left = budget.left.saturating_sub(cost);
        (outcome, cost)
    }
}
