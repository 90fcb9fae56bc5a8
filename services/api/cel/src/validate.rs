//! What is wrong though the types are right: literals that cannot be read, mixed lists, formats that do not
//! fit their arguments. Source: cel-go's `cel/validator.go` and `ext/formatting.go`.

use std::sync::Arc;

use crate::ast::{Expr, Id, Kind};
use crate::checker::Checked;
use crate::go_regex;
use crate::issue::{Issue, MAX_ISSUES, Source};
use crate::library::{Clause, MAX_WEIGHT, Pattern, Piece, pieces, refusal, time};
use crate::types::Type;
use crate::value::Value;

pub(crate) fn validate(checked: &Checked, source: &Arc<Source>) -> Vec<Issue> {
    let mut validator = Validator { checked, source, issues: Vec::new(), weight: 0 };
    validator.mixed(&checked.expr, false);
    checked.expr.walk(&mut |expr| validator.literal(expr));
    checked.expr.walk(&mut |expr| validator.format(expr));
    validator.issues
}

struct Validator<'c> {
    checked: &'c Checked,
    source: &'c Arc<Source>,
    issues: Vec<Issue>,
    /// Of the constant patterns so far.
    weight: u64,
}

impl Validator<'_> {
    fn report(&mut self, id: Id, message: String) {
        if self.issues.len() < MAX_ISSUES {
            let place = self.checked.places.get(id as usize).copied().unwrap_or(0);
            self.issues.push(Issue::at(self.source, place, message));
        }
    }
    fn mismatch(&mut self, id: Id, expected: &Type, found: &Type) {
        self.report(id, format!("expected type '{expected}' but found '{found}'"));
    }

    /// Lists and maps whose elements are of several types; in the arguments of `format` they may be.
    fn mixed(&mut self, expr: &Expr, exempt: bool) {
        crate::stack::deep(|| self.is_mixed(expr, exempt));
    }
    fn is_mixed(&mut self, expr: &Expr, exempt: bool) {
        let checked = self.checked;
        let ty = |expr: &Expr, optional: bool| match checked.type_of(expr.id) {
            Type::Optional(of) if optional => (**of).clone(),
            ty => ty.clone(),
        };
        match &expr.kind {
            Kind::Broken | Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => self.mixed(operand, exempt),
            Kind::Call { function, target, args } => {
                let exempt = exempt || &**function == "format";
                if let Some(target) = target {
                    self.mixed(target, exempt);
                }
                args.iter().for_each(|arg| self.mixed(arg, exempt));
            }
            Kind::List { items, optional } => {
                if !exempt && let Some((first, rest)) = items.split_first() {
                    let is_optional = |at: usize| optional.get(at) == Some(&true);
                    let first = ty(first, is_optional(0));
                    for (at, item) in rest.iter().enumerate() {
                        let found = ty(item, is_optional(at + 1));
                        if !first.same(&found, false) {
                            self.mismatch(item.id, &first, &found);
                            break;
                        }
                    }
                }
                items.iter().for_each(|item| self.mixed(item, exempt));
            }
            Kind::Map(entries) => {
                if !exempt && let Some((first, rest)) = entries.split_first() {
                    let (key, value) = (ty(&first.key, false), ty(&first.value, first.optional));
                    for entry in rest {
                        let found = ty(&entry.key, false);
                        if !key.same(&found, false) {
                            self.mismatch(entry.key.id, &key, &found);
                        }
                        let found = ty(&entry.value, entry.optional);
                        if !value.same(&found, false) {
                            self.mismatch(entry.value.id, &value, &found);
                        }
                    }
                }
                for entry in entries {
                    self.mixed(&entry.key, exempt);
                    self.mixed(&entry.value, exempt);
                }
            }
            Kind::Struct { fields, .. } => fields.iter().for_each(|field| self.mixed(&field.value, exempt)),
            Kind::Fold(fold) => {
                for part in [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result] {
                    self.mixed(part, exempt);
                }
            }
        }
    }

    fn literal(&mut self, expr: &Expr) {
        let Kind::Call { function, args, .. } = &expr.kind else { return };
        let Some(first) = args.first() else { return };
        let Kind::Literal(value) = &first.kind else { return };
        let fine = match (&**function, value) {
            ("duration", Value::String(text)) => time::parse_go_duration(text).is_some(),
            ("timestamp", Value::String(text)) => time::parse_rfc3339(text).is_some(),
            ("timestamp", Value::Int(seconds)) => time::at(*seconds, 0, 0).is_some(),
            ("matches", Value::String(pattern)) => {
                self.weight = self.weight.saturating_add(go_regex::weight(pattern));
                self.weight <= MAX_WEIGHT && Pattern::new(pattern).is_ok()
            }
            _ => true,
        };
        if !fine {
            self.report(first.id, format!("invalid {function} argument"));
        }
    }

    fn format(&mut self, expr: &Expr) {
        let Kind::Call { function, target: Some(target), args } = &expr.kind else { return };
        if &**function != "format" || !self.checked.overloads(expr.id).contains(&"string_format") {
            return;
        }
        let (Kind::Literal(Value::String(text)), [Expr { kind: Kind::List { items, .. }, .. }]) =
            (&target.kind, args.as_slice())
        else {
            return;
        };
        let (pieces, wrong) = pieces(text);
        let clauses: Vec<Clause> = pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Clause(clause) => Some(*clause),
                Piece::Text(_) => None,
            })
            .collect();
        for (at, clause) in clauses.iter().enumerate() {
            let Some(arg) = items.get(at) else {
                return self.report(expr.id, format!("index {at} out of range"));
            };
            if let Some(bad) = self.refused(*clause, arg) {
                let message = refusal(clause.verb, self.checked.type_of(bad).runtime_name());
                return self.report(bad, format!("error during formatting: {message}"));
            }
        }
        if let Some(message) = wrong {
            let message = match items.get(clauses.len()) {
                None => format!("index {} out of range", clauses.len()),
                Some(_) => message,
            };
            return self.report(expr.id, message);
        }
        if items.len() > clauses.len() {
            let (expected, got) = (clauses.len(), items.len());
            let message =
                format!("too many arguments supplied to string.format (expected {expected}, got {got})");
            self.report(expr.id, message);
        }
    }

    /// The part of an argument that the clause cannot take.
    fn refused(&self, clause: Clause, arg: &Expr) -> Option<Id> {
        crate::stack::deep(|| self.is_refused(clause, arg))
    }
    fn is_refused(&self, clause: Clause, arg: &Expr) -> Option<Id> {
        let ty = self.checked.type_of(arg.id);
        let fits = matches!(ty, Type::Dyn)
            || match clause.verb {
                's' => !matches!(ty, Type::Object(_) | Type::Opaque(_) | Type::Optional(_)),
                'd' | 'o' => matches!(ty, Type::Int | Type::Uint),
                'f' | 'e' => matches!(ty, Type::Double | Type::String),
                'b' => matches!(ty, Type::Int | Type::Uint | Type::Bool),
                _ => matches!(ty, Type::Int | Type::Uint | Type::String | Type::Bytes),
            };
        if !fits {
            return Some(arg.id);
        }
        if clause.verb != 's' {
            return None;
        }
        match &arg.kind {
            Kind::List { items, .. } => items.iter().find_map(|item| self.refused(clause, item)),
            Kind::Map(entries) => entries.iter().find_map(|entry| {
                self.refused(clause, &entry.key).or_else(|| self.refused(clause, &entry.value))
            }),
            _ => None,
        }
    }
}
