//! `x-kubernetes-validations`: rules in CEL that values have to keep.
//!
//! [`Rules`] is the tree of those that a schema has, compiled; [`Rules::validate`] walks it together with a
//! value and what that was before. Costs are counted against one budget for the whole object. After
//! `apiserver/schema/cel/validation.go` of `k8s.io/apiextensions-apiserver`.
//!
//! Not here: the language (`api-cel`), what rules may cost by estimate (`definition`).

mod compile;
mod declare;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use api_cel::limits::{MAX_MESSAGE_BYTES, RUNTIME_BUDGET};
use api_cel::{Activation, Budget, Decl, EvalError, Program, Value as Cel};
use api_machinery::{Field, FieldError};
use serde_json::Value;

use crate::bounds::{self, MAX_ERROR_BYTES, MAX_ERRORS};
use crate::correlate::{ByKey, Correlated};
use crate::schema::{ListType, Rule, Schema};
pub(crate) use compile::{Compiled, compile};
pub(crate) use declare::declare;

/// What types of schemas are called in messages.
pub(crate) const SELF: &str = "selfType";

/// Rules of a schema and of what is below it. Only what leads to rules is there.
#[derive(Debug)]
pub(crate) struct Rules {
    rules: Vec<Compiled>,
    /// `None` where rules can see nothing of the value, which makes every rule fail.
    decl: Option<Arc<Decl>>,
    kind: String,
    map_is_correlatable: bool,
    /// Set for lists whose items have keys.
    keys: Option<Vec<String>>,
    items: Option<Box<Rules>>,
    additional: Option<Box<Rules>>,
    properties: BTreeMap<String, Rules>,
}

impl Rules {
    /// `None` for a schema without rules. `root`: it is a whole resource.
    pub fn of(schema: &Schema, root: bool) -> Option<Rules> {
        let below = |schema: &Schema| Rules::of(schema, schema.embedded_resource);
        let items = schema.items().and_then(below).map(Box::new);
        let additional = schema.additional().and_then(below).map(Box::new);
        let properties: BTreeMap<String, Rules> = schema
            .properties
            .iter()
            .filter_map(|(key, property)| Some((key.clone(), below(property)?)))
            .collect();
        if schema.rules.is_empty() && items.is_none() && additional.is_none() && properties.is_empty() {
            return None;
        }
        let wanted = !schema.rules.is_empty();
        let decl = wanted.then(|| declare(schema, root, SELF)).flatten().map(Arc::new);
        let rules = decl.as_ref().map(|decl| compile(schema, decl)).unwrap_or_default();
        if wanted && decl.is_none() && rules.is_empty() && items.is_none() && properties.is_empty() {
            // Nothing of it is seen: upstream leaves such fields out.
            return None;
        }
        Some(Rules {
            rules,
            decl,
            kind: schema.kind.clone(),
            map_is_correlatable: schema
                .map_type
                .as_deref()
                .is_none_or(|kind| kind == "granular" || kind == "atomic"),
            keys: match schema.list_type() {
                ListType::Map(keys) => Some(keys.to_vec()),
                ListType::Atomic | ListType::Set => None,
            },
            items,
            additional,
            properties,
        })
    }

    /// Rules that `new` breaks. `past` lets off what did not change, with a warning.
    pub fn validate(
        &self,
        at: &Field,
        new: &Value,
        old: Option<&Value>,
        past: Option<Correlated<'_>>,
        budget: &mut Budget,
    ) -> Broken {
        let mut broken = Broken::default();
        let ratchet = Ratchet { current: past, parent: None };
        // Stopping early is told by an error among the others.
        let _ = self.node(at, new, old, ratchet, budget, &mut broken);
        for error in &mut broken.errors {
            if error.field.is_empty() {
                "<nil>".clone_into(&mut error.field);
            }
        }
        broken
    }

    fn node(
        &self,
        at: &Field,
        new: &Value,
        old: Option<&Value>,
        ratchet: Ratchet<'_>,
        budget: &mut Budget,
        broken: &mut Broken,
    ) -> Result<(), Stop> {
        // A rule on something that may be null is only asked about what is there.
        if new.is_null() {
            return Ok(());
        }
        let old = old.filter(|old| !old.is_null());
        if !self.rules.is_empty() {
            self.own(at, new, old, ratchet, budget, broken)?;
        }
        match new {
            Value::Array(items) => {
                let Some(below) = &self.items else { return Ok(()) };
                let was = match (&self.keys, old) {
                    (Some(keys), Some(Value::Array(old))) => Some(ByKey::new(keys, old)),
                    _ => None,
                };
                let pasts = ratchet.items();
                for (index, item) in items.iter().enumerate() {
                    let old = was.as_ref().and_then(|was| was.get(item));
                    let ratchet = ratchet.item(pasts.get(index).copied().flatten());
                    below.node(&at.index(index), item, old, ratchet, budget, broken)?;
                }
            }
            Value::Object(members) => {
                let was = |key: &str| old.filter(|_| self.map_is_correlatable)?.get(key);
                if let Some(below) = &self.additional {
                    for (key, value) in members {
                        below.node(&at.key(key), value, was(key), ratchet.key(key), budget, broken)?;
                    }
                }
                for (key, below) in &self.properties {
                    if let Some(value) = members.get(key) {
                        below.node(&at.child(key), value, was(key), ratchet.key(key), budget, broken)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The rules of this very value.
    fn own(
        &self,
        at: &Field,
        new: &Value,
        old: Option<&Value>,
        ratchet: Ratchet<'_>,
        budget: &mut Budget,
        broken: &mut Broken,
    ) -> Result<(), Stop> {
        let invalid = |why: String| at.invalid(self.kind.as_str(), why);
        if budget.left == 0 {
            broken.errors.push(invalid(OUT_OF_BUDGET.to_owned()));
            return Err(Stop);
        }
        let Some(decl) = self.decl.as_deref() else { return Ok(()) };
        let this = Cel::typed(new, decl);
        let was = old.map(|old| Cel::typed(old, decl));
        let unchanged = OnceCell::new();
        for compiled in &self.rules {
            let rule = &compiled.rule;
            let program = match &compiled.program {
                Ok(Some(program)) => program,
                Ok(None) => continue,
                Err(why) => {
                    broken.errors.push(invalid(format!("rule compile error: {why}")));
                    continue;
                }
            };
            let optional = rule.optional_old_self == Some(true);
            if compiled.uses_old_self && old.is_none() && !optional {
                continue;
            }
            let variables = match Variables::of(&this, was.as_ref(), optional) {
                Ok(variables) => variables,
                Err(why) => {
                    broken.errors.push(invalid(format!("{why} evaluating rule: {}", rule.name())));
                    continue;
                }
            };
            match program.eval(&variables, budget) {
                Ok(Cel::Bool(true)) => continue,
                Ok(_) => {}
                Err(EvalError::Budget) => {
                    broken.errors.push(invalid(OUT_OF_BUDGET.to_owned()));
                    return Err(Stop);
                }
                Err(error @ EvalError::CallCost) => {
                    broken.errors.push(invalid(format!(
                        "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {}",
                        rule.name()
                    )));
                    return Err(Stop);
                }
                Err(EvalError::Failed(why)) if why.starts_with("no such overload") => {
                    broken.errors.push(invalid(format!(
                        "'{why}': call arguments did not match a supported operator, function or macro signature for rule: {}",
                        rule.name()
                    )));
                    continue;
                }
                Err(EvalError::Failed(why)) => {
                    broken.errors.push(invalid(format!("{why} evaluating rule: {}", rule.name())));
                    continue;
                }
            }
            let rule_at = match &compiled.path {
                Some(path) => at.child(path),
                None => at.clone(),
            };
            let mut add = |error: FieldError| {
                let is_unchanged = || *unchanged.get_or_init(|| ratchet.is_unchanged());
                broken.bytes += bounds::bytes(&error);
                if !compiled.uses_old_self && is_unchanged() {
                    broken.warnings.push(error.to_string());
                } else {
                    broken.errors.push(error);
                }
            };
            let detail = match &compiled.message {
                Some(Ok(program)) => match message(program, &variables, budget, rule) {
                    Ok(detail) => detail,
                    Err(why) => {
                        add(rule_at.invalid(self.kind.as_str(), why));
                        return Err(Stop);
                    }
                },
                _ => None,
            };
            let detail = detail.unwrap_or_else(|| match rule.message.is_empty() {
                true => format!("failed rule: {}", rule.name()),
                false => rule.name().to_owned(),
            });
            let shown = self.kind != "object" && self.kind != "array";
            add(match (rule.reason.as_deref(), shown) {
                (Some("FieldValueForbidden"), _) => rule_at.forbidden(detail),
                (Some("FieldValueRequired"), _) => rule_at.required(detail),
                (Some("FieldValueDuplicate"), true) => rule_at.duplicate(bounds::shown(new)),
                (Some("FieldValueDuplicate"), false) => rule_at.duplicate_unshown(),
                (_, true) => rule_at.invalid(bounds::shown(new), detail),
                (_, false) => rule_at.invalid_unshown(detail),
            });
            if broken.bytes > MAX_ERROR_BYTES || broken.errors.len() + broken.warnings.len() > MAX_ERRORS {
                return Err(Stop);
            }
        }
        Ok(())
    }
}

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// What all rules may cost for one object.
pub(crate) fn budget() -> Budget {
    Budget::new(RUNTIME_BUDGET)
}

/// No further rules are to be looked at.
struct Stop;

#[derive(Debug, Default)]
pub(crate) struct Broken {
    pub errors: Vec<FieldError>,
    pub warnings: Vec<String>,
    bytes: usize,
}

/// What the message expression says; nothing when it fails or makes no sense. The error ends everything.
fn message<'a>(
    program: &'a Program,
    variables: &Variables<'a>,
    budget: &mut Budget,
    rule: &Rule,
) -> Result<Option<String>, String> {
    match program.eval(variables, budget) {
        Ok(Cel::String(text)) => {
            let text = text.as_str().trim();
            let fits = !text.is_empty() && text.len() <= MAX_MESSAGE_BYTES && !text.contains('\n');
            Ok(fits.then(|| text.to_owned()))
        }
        Ok(_) | Err(EvalError::Failed(_)) => Ok(None),
        Err(EvalError::Budget) => Err(
            "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run"
                .to_owned(),
        ),
        Err(EvalError::CallCost) => Err(format!(
            "no further validation rules will be run due to call cost exceeds limit for messageExpression: {:?}",
            rule.message_expression
        )),
    }
}

struct Variables<'a> {
    this: Cel<'a>,
    /// As the rule sees it: absent, or perhaps an optional.
    old: Option<Cel<'a>>,
}

impl<'a> Variables<'a> {
    /// Data that isn't what its schema says makes the rule fail.
    fn of(
        this: &Result<Cel<'a>, api_cel::ConvertError>,
        old: Option<&Result<Cel<'a>, api_cel::ConvertError>>,
        optional: bool,
    ) -> Result<Variables<'a>, String> {
        let read =
            |value: &Result<Cel<'a>, api_cel::ConvertError>| value.clone().map_err(|error| error.to_string());
        let old = old.map(read).transpose()?;
        let old = match optional {
            true => Some(old.map_or(Cel::Optional(None), Cel::some)),
            false => old,
        };
        Ok(Variables { this: read(this)?, old })
    }
}

impl<'a> Activation<'a> for Variables<'a> {
    fn get(&self, name: &str) -> Option<Cel<'a>> {
        match name {
            "self" => Some(self.this.clone()),
            "oldSelf" => self.old.clone(),
            _ => None,
        }
    }
}

/// Whether what a rule complains of was so before.
#[derive(Debug, Clone, Copy, Default)]
struct Ratchet<'a> {
    current: Option<Correlated<'a>>,
    /// The nearest above that can be followed, where the value itself can't.
    parent: Option<Correlated<'a>>,
}

impl<'a> Ratchet<'a> {
    fn is_unchanged(self) -> bool {
        self.current.or(self.parent).is_some_and(Correlated::is_unchanged)
    }
    fn key(self, key: &str) -> Ratchet<'a> {
        let Some(current) = self.current else { return self };
        // Both come in one version, so that a change of it can't be seen.
        if self.parent.is_none() && (key == "apiVersion" || key == "kind") {
            return Ratchet::default();
        }
        Ratchet { current: current.key(key), parent: Some(current) }
    }
    fn items(self) -> Vec<Option<Correlated<'a>>> {
        self.current.map(Correlated::items).unwrap_or_default()
    }
    fn item(self, item: Option<Correlated<'a>>) -> Ratchet<'a> {
        match self.current {
            Some(current) => Ratchet { current: item, parent: Some(current) },
            None => self,
        }
    }
}

#[cfg(test)]
mod tests;
