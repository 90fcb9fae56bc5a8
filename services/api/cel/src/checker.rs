//! Does the expression make sense? Gives each node a type and each call its overloads.
//!
//! The rules and the messages are cel-go's (`checker/checker.go`). Names that turn out to be qualified
//! (`ip.isCanonical`) are rewritten in the tree.

use std::sync::Arc;

use crate::ast::{Expr, Fold, Id, Kind, StructField, op};
use crate::env::Env;
use crate::issue::{Issue, MAX_ISSUES, Source};
use crate::overloads::{Overload, functions};
use crate::types::Type;
use crate::unify::{Unifier, instantiate, most_general};
use crate::value::Value;

/// Types of more parts than this are refused: they could double with each name given to a value.
const MAX_TYPE_WEIGHT: usize = 500;

/// What a name or call turned out to mean.
#[derive(Debug, Clone)]
pub(crate) enum Meaning {
    Variable,
    /// A type's name, as a value.
    Type(Type),
    Overloads(Vec<&'static str>),
}

pub(crate) struct Checked {
    pub expr: Expr,
    pub places: Vec<u32>,
    /// By id.
    pub types: Vec<Type>,
    pub meanings: Vec<Option<Meaning>>,
}

impl Checked {
    pub fn type_of(&self, id: Id) -> &Type {
        self.types.get(id as usize).unwrap_or(&Type::Dyn)
    }
    pub fn meaning(&self, id: Id) -> Option<&Meaning> {
        self.meanings.get(id as usize)?.as_ref()
    }
    pub fn overloads(&self, id: Id) -> &[&'static str] {
        match self.meaning(id) {
            Some(Meaning::Overloads(ids)) => ids,
            _ => &[],
        }
    }
}

pub(crate) fn check(
    env: &Env,
    source: &Arc<Source>,
    mut expr: Expr,
    places: Vec<u32>,
) -> Result<Checked, Vec<Issue>> {
    let mut checker = Checker {
        env,
        source,
        types: vec![Type::Error; places.len()],
        meanings: vec![None; places.len()],
        places: &places,
        scopes: Vec::new(),
        unifier: Unifier::default(),
        issues: Vec::new(),
    };
    checker.check(&mut expr);
    let Checker { types, meanings, unifier, issues, .. } = checker;
    if !issues.is_empty() {
        return Err(issues);
    }
    let types = types.iter().map(|ty| unifier.resolve(ty, true)).collect();
    Ok(Checked { expr, places, types, meanings })
}

struct Checker<'e> {
    env: &'e Env,
    source: &'e Arc<Source>,
    places: &'e [u32],
    types: Vec<Type>,
    meanings: Vec<Option<Meaning>>,
    /// Names of macros, innermost last.
    scopes: Vec<(Arc<str>, Type)>,
    unifier: Unifier,
    issues: Vec<Issue>,
}

impl Checker<'_> {
    fn report(&mut self, id: Id, message: String) {
        if self.issues.len() < MAX_ISSUES {
            let place = self.places.get(id as usize).copied().unwrap_or(0);
            self.issues.push(Issue::at(self.source, place, message));
        }
    }
    fn undeclared(&mut self, id: Id, name: &str) -> Type {
        self.report(id, format!("undeclared reference to '{name}' (in container '')"));
        Type::Error
    }
    fn mismatch(&mut self, id: Id, expected: &Type, actual: &Type) {
        let (expected, actual) = (self.shown(expected), self.shown(actual));
        self.report(id, format!("expected type '{expected}' but found '{actual}'"));
    }
    fn shown(&self, ty: &Type) -> Type {
        self.unifier.resolve(ty, false)
    }
    fn get(&self, id: Id) -> Type {
        self.types.get(id as usize).cloned().unwrap_or(Type::Error)
    }
    fn mean(&mut self, id: Id, meaning: Meaning) {
        if let Some(slot) = self.meanings.get_mut(id as usize) {
            *slot = Some(meaning);
        }
    }

    fn check(&mut self, expr: &mut Expr) {
        crate::stack::deep(|| self.checked(expr));
    }
    fn checked(&mut self, expr: &mut Expr) {
        let id = expr.id;
        let ty = match &mut expr.kind {
            Kind::Broken => Type::Error,
            Kind::Literal(value) => literal_type(value),
            Kind::Ident(name) => {
                let name = name.clone();
                match self.lookup(id, &name) {
                    Some((found, full)) => {
                        expr.kind = Kind::Ident(full);
                        found
                    }
                    None => self.undeclared(id, name.strip_prefix('.').unwrap_or(&name)),
                }
            }
            Kind::Select { test, .. } => {
                let test = *test;
                self.select(expr, test)
            }
            Kind::Call { .. } => self.call(expr),
            Kind::List { items, optional } => {
                let optional = std::mem::take(optional);
                let ty = self.list(items, &optional);
                if let Kind::List { optional: slot, .. } = &mut expr.kind {
                    *slot = optional;
                }
                ty
            }
            Kind::Map(_) => self.map(expr),
            Kind::Struct { .. } => self.message(expr),
            Kind::Fold(fold) => self.fold(fold),
        };
        let ty = if ty.weight(MAX_TYPE_WEIGHT) >= MAX_TYPE_WEIGHT {
            self.report(id, "type of expression is too complex".to_owned());
            Type::Error
        } else {
            ty
        };
        if let Some(slot) = self.types.get_mut(id as usize) {
            *slot = ty;
        }
    }

    /// The type of a name, and the name without the dot that only says where to look.
    fn lookup(&mut self, id: Id, name: &str) -> Option<(Type, Arc<str>)> {
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some((_, ty)) = self.scopes.iter().rev().find(|(scoped, _)| &**scoped == name) {
            let ty = ty.clone();
            self.mean(id, Meaning::Variable);
            return Some((ty, name.into()));
        }
        if let Some(variable) = self.env.find(name) {
            let ty = variable.ty.clone();
            self.mean(id, Meaning::Variable);
            return Some((ty, name.into()));
        }
        let ty = self.env.type_named(name)?;
        self.mean(id, Meaning::Type(ty.clone()));
        Some((Type::type_of(ty), name.into()))
    }

    fn select(&mut self, expr: &mut Expr, test: bool) -> Type {
        let id = expr.id;
        if !test
            && let Some(name) = expr.qualified_name()
            // The first part may be a local name, which hides what is declared under the whole.
            && let Some((ty, full)) = self.lookup(id, &name)
        {
            expr.kind = Kind::Ident(full);
            return ty;
        }
        let Kind::Select { operand, field, .. } = &mut expr.kind else { return Type::Error };
        let field = field.clone();
        let ty = self.field(id, operand, &field, false);
        if test { Type::Bool } else { self.unifier.resolve(&ty, false) }
    }

    fn field(&mut self, id: Id, operand: &mut Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let operand = self.get(operand.id);
        let operand = self.unifier.resolve(&operand, false);
        let (target, is_optional) = match &operand {
            Type::Optional(of) => ((**of).clone(), true),
            _ => (operand, false),
        };
        let result = match &target {
            Type::Map(_, value) => (**value).clone(),
            Type::Object(object) if object.open => Type::Dyn,
            Type::Object(object) => match object.field(field) {
                Some(field) => field.decl.ty.clone(),
                None => {
                    self.report(id, format!("undefined field '{field}'"));
                    Type::Error
                }
            },
            Type::Param(_) => {
                self.unifier.assignable(&Type::Dyn, &target);
                Type::Dyn
            }
            Type::Dyn | Type::Error => Type::Dyn,
            other => {
                self.report(id, format!("type '{other}' does not support field selection"));
                Type::Dyn
            }
        };
        if is_optional || optional { Type::optional(result) } else { result }
    }

    fn call(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        let Kind::Call { function, target, args } = &mut expr.kind else { return Type::Error };
        let function = function.clone();
        if &*function == op::OPT_SELECT {
            let [operand, field] = args.as_mut_slice() else { return Type::Error };
            let Kind::Literal(Value::String(name)) = &field.kind else { return Type::Error };
            let name = name.as_str().to_owned();
            if let Some(slot) = self.types.get_mut(field.id as usize) {
                *slot = Type::String;
            }
            let ty = self.field(id, operand, &name, true);
            self.mean(id, Meaning::Overloads(vec!["select_optional_field"]));
            return self.unifier.resolve(&ty, false);
        }
        for arg in args.iter_mut() {
            self.check(arg);
        }
        let env = self.env;
        let find = |name: &str| {
            let overloads = functions().get_key_value(name.strip_prefix('.').unwrap_or(name))?;
            env.has_function(overloads.0).then_some(overloads)
        };
        let Some(target) = target else {
            let Some((name, overloads)) = find(&function) else {
                return self.undeclared(id, function.strip_prefix('.').unwrap_or(&function));
            };
            let types: Vec<Type> = args.iter().map(|arg| self.get(arg.id)).collect();
            let ids: Vec<Id> = args.iter().map(|arg| arg.id).collect();
            if function.starts_with('.')
                && let Kind::Call { function, .. } = &mut expr.kind
            {
                *function = (*name).into();
            }
            return self.overload(id, name, overloads, types, &ids, false);
        };
        // Either a function upon a value, or one whose name has dots.
        if let Some(prefix) = target.qualified_name()
            && let Some((name, overloads)) = find(&format!("{prefix}.{function}"))
        {
            let args = std::mem::take(args);
            let types: Vec<Type> = args.iter().map(|arg| self.get(arg.id)).collect();
            let ids: Vec<Id> = args.iter().map(|arg| arg.id).collect();
            expr.kind = Kind::Call { function: (*name).into(), target: None, args };
            return self.overload(id, name, overloads, types, &ids, false);
        }
        self.check(target);
        let Some((name, overloads)) = find(&function) else { return self.undeclared(id, &function) };
        let types: Vec<Type> =
            std::iter::once(&**target).chain(args.iter()).map(|arg| self.get(arg.id)).collect();
        self.overload(id, name, overloads, types, &[], true)
    }

    fn overload(
        &mut self,
        id: Id,
        name: &str,
        overloads: &'static [Overload],
        args: Vec<Type>,
        arg_ids: &[Id],
        member: bool,
    ) -> Type {
        if matches!(name, op::AND | op::OR) {
            let mut fits = true;
            for (arg, arg_id) in args.iter().zip(arg_ids) {
                if !self.unifier.assignable(arg, &Type::Bool) {
                    self.mismatch(*arg_id, &Type::Bool, arg);
                    fits = false;
                }
            }
            self.mean(id, Meaning::Overloads(overloads.iter().map(|overload| overload.id).collect()));
            return if fits { Type::Bool } else { Type::Error };
        }
        let mut result: Option<Type> = None;
        let mut fitting = Vec::new();
        for overload in overloads.iter().filter(|overload| overload.member == member) {
            if overload.args.len() != args.len() {
                continue;
            }
            let fresh: Vec<Type> = (0..overload.params).map(|_| self.unifier.fresh()).collect();
            let wanted: Vec<Type> = overload.args.iter().map(|arg| instantiate(arg, &fresh)).collect();
            if !self.unifier.all_assignable(&args, &wanted) {
                continue;
            }
            fitting.push(overload.id);
            let this = self.unifier.resolve(&instantiate(&overload.result, &fresh), false);
            result = Some(match result {
                None => this,
                Some(before) if before.is_dyn() || before.same(&this, true) => before,
                Some(_) => Type::Dyn,
            });
        }
        let Some(result) = result else {
            let shown: Vec<String> =
                args.iter().map(|arg| self.unifier.resolve(arg, true).to_string()).collect();
            let signature = match (member, shown.split_first()) {
                (true, Some((target, rest))) => format!("{target}.({})", rest.join(", ")),
                _ => format!("({})", shown.join(", ")),
            };
            self.report(id, format!("found no matching overload for '{name}' applied to '{signature}'"));
            return Type::Error;
        };
        self.mean(id, Meaning::Overloads(fitting));
        result
    }

    /// The type of both; dyn if they have nothing in common.
    fn join(&mut self, before: Option<Type>, this: Type) -> Type {
        match before {
            None => this,
            Some(before) if self.unifier.assignable(&before, &this) => most_general(&before, &this),
            Some(_) => Type::Dyn,
        }
    }

    /// What an optional element holds.
    fn unwrapped(&mut self, id: Id, ty: Type) -> Type {
        match &self.unifier.resolve(&ty, false) {
            Type::Optional(of) => (**of).clone(),
            Type::Dyn => Type::Dyn,
            other => {
                let expected = Type::optional(other.clone());
                self.mismatch(id, &expected, other);
                other.clone()
            }
        }
    }

    fn list(&mut self, items: &mut [Expr], optional: &[bool]) -> Type {
        let mut all = None;
        for (at, item) in items.iter_mut().enumerate() {
            self.check(item);
            let mut ty = self.get(item.id);
            if optional.get(at) == Some(&true) {
                ty = self.unwrapped(item.id, ty);
            }
            all = Some(self.join(all, ty));
        }
        Type::list(all.unwrap_or_else(|| self.unifier.fresh()))
    }

    fn map(&mut self, expr: &mut Expr) -> Type {
        let Kind::Map(entries) = &mut expr.kind else { return Type::Error };
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            self.check(&mut entry.key);
            let key = self.get(entry.key.id);
            keys = Some(self.join(keys, key));
            self.check(&mut entry.value);
            let mut value = self.get(entry.value.id);
            if entry.optional {
                value = self.unwrapped(entry.value.id, value);
            }
            values = Some(self.join(values, value));
        }
        match (keys, values) {
            (Some(key), Some(value)) => Type::map(key, value),
            _ => Type::map(self.unifier.fresh(), self.unifier.fresh()),
        }
    }

    fn message(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        let Kind::Struct { name, fields } = &mut expr.kind else { return Type::Error };
        let full = name.strip_prefix('.').unwrap_or(name).to_owned();
        let ty = match self.env.type_named(&full) {
            Some(ty) => ty,
            None if self.scopes.iter().any(|(scoped, _)| **scoped == *full)
                || self.env.find(&full).is_some() =>
            {
                self.report(id, format!("'{full}' is not a type"));
                Type::Error
            }
            None => return self.undeclared(id, &full),
        };
        *name = full.into();
        let ty = match ty {
            Type::Object(_) | Type::Error => ty,
            other => {
                self.report(id, format!("'{}' is not a message type", other.runtime_name()));
                Type::Error
            }
        };
        for field in fields {
            self.message_field(&ty, field);
        }
        ty
    }

    fn message_field(&mut self, ty: &Type, field: &mut StructField) {
        self.check(&mut field.value);
        let mut value = self.get(field.value.id);
        let wanted = match ty {
            Type::Object(object) if object.open => Type::Dyn,
            Type::Object(object) => match object.field(&field.name) {
                Some(known) => known.decl.ty.clone(),
                None => {
                    self.report(field.id, format!("undefined field '{}'", field.name));
                    Type::Error
                }
            },
            _ => Type::Error,
        };
        if field.optional {
            value = self.unwrapped(field.value.id, value);
        }
        if !self.unifier.assignable(&wanted, &value) {
            let shown = self.shown(&value);
            let name = &field.name;
            let message =
                format!("expected type of field '{name}' is '{wanted}' but provided type is '{shown}'");
            self.report(field.id, message);
        }
    }

    fn fold(&mut self, fold: &mut Fold) -> Type {
        self.check(&mut fold.range);
        self.check(&mut fold.init);
        let range = self.get(fold.range.id);
        let range = self.unifier.resolve(&range, false);
        let accu = self.get(fold.init.id);
        let outer = self.scopes.len();
        self.scopes.push((fold.accu.clone(), accu.clone()));
        let (first, second) = match (&range, fold.var2.is_some()) {
            (Type::List(item), false) => ((**item).clone(), None),
            (Type::List(item), true) => (Type::Int, Some((**item).clone())),
            (Type::Map(key, _), false) => ((**key).clone(), None),
            (Type::Map(key, value), true) => ((**key).clone(), Some((**value).clone())),
            (Type::Dyn | Type::Error, _) => (Type::Dyn, Some(Type::Dyn)),
            (Type::Param(_), _) => {
                self.unifier.assignable(&Type::Dyn, &range);
                (Type::Dyn, Some(Type::Dyn))
            }
            (other, _) => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.report(fold.range.id, message);
                (Type::Error, Some(Type::Error))
            }
        };
        let inner = self.scopes.len();
        self.scopes.push((fold.var.clone(), first));
        if let (Some(name), Some(ty)) = (&fold.var2, second) {
            self.scopes.push((name.clone(), ty));
        }
        self.check(&mut fold.condition);
        self.wants(fold.condition.id, &Type::Bool);
        self.check(&mut fold.step);
        self.wants(fold.step.id, &accu);
        self.scopes.truncate(inner);
        self.check(&mut fold.result);
        self.scopes.truncate(outer);
        let result = self.get(fold.result.id);
        self.unifier.resolve(&result, false)
    }

    fn wants(&mut self, id: Id, wanted: &Type) {
        let found = self.get(id);
        if !self.unifier.assignable(wanted, &found) {
            self.mismatch(id, wanted, &found);
        }
    }
}

fn literal_type(value: &Value<'_>) -> Type {
    match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Bool,
        Value::Int(_) => Type::Int,
        Value::Uint(_) => Type::Uint,
        Value::Double(_) => Type::Double,
        Value::String(_) => Type::String,
        Value::Bytes(_) => Type::Bytes,
        _ => Type::Error,
    }
}
