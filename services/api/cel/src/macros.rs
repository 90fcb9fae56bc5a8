//! Macros: what looks like a call and becomes something else before anything is checked.
//!
//! `has`, the loops of the standard, their forms of two variables, `optMap` and `optFlatMap`, `sortBy`, and
//! `cel.bind` where the dialect has it. All loops become a [`Fold`], shaped exactly as cel-go shapes it,
//! since both cost models count its parts.

use std::sync::Arc;

use crate::ast::{ACCUMULATOR, Expr, Fold, Id, Kind, op};
use crate::parser::{Parser, Stop};
use crate::value::Value;

/// Names that nothing reads; cel-go's own.
const UNUSED: &str = "#unused";
const SORT_INPUT: &str = "@__sortBy_input__";

/// The call, or what it expands to. A wrong use of a macro is reported and leaves a broken node.
pub(crate) fn expand(
    parser: &mut Parser<'_>,
    id: Id,
    function: &Arc<str>,
    target: Option<Expr>,
    args: Vec<Expr>,
) -> Result<Expr, Stop> {
    let mut maker = Maker { at: parser.place(id), parser };
    match (&**function, target, args.len()) {
        ("has", None, 1) => maker.has(args),
        ("all", Some(range), 2) => maker.quantifier(range, args, Quantifier::All),
        ("exists", Some(range), 2) => maker.quantifier(range, args, Quantifier::Exists),
        ("exists_one" | "existsOne", Some(range), 2) => maker.quantifier(range, args, Quantifier::One),
        ("map", Some(range), 2 | 3) => maker.map(range, args),
        ("filter", Some(range), 2) => maker.filter(range, args),
        ("all", Some(range), 3) => maker.quantifier(range, args, Quantifier::All),
        ("exists", Some(range), 3) => maker.quantifier(range, args, Quantifier::Exists),
        ("existsOne" | "exists_one", Some(range), 3) => maker.quantifier(range, args, Quantifier::One),
        ("transformList", Some(range), 3 | 4) => maker.transform(range, args, Transform::List),
        ("transformMap", Some(range), 3 | 4) => maker.transform(range, args, Transform::Map),
        ("transformMapEntry", Some(range), 3 | 4) => maker.transform(range, args, Transform::Entry),
        ("optMap", Some(target), 2) => maker.opt_map(target, args, true),
        ("optFlatMap", Some(target), 2) => maker.opt_map(target, args, false),
        ("sortBy", Some(target), 2) => maker.sort_by(target, args),
        ("bind", Some(target), 3)
            if maker.parser.dialect().bindings
                && matches!(&target.kind, Kind::Ident(name) if &**name == "cel") =>
        {
            maker.bind(args)
        }
        (_, target, _) => {
            let target = target.map(Box::new);
            maker.parser.node(id, Kind::Call { function: function.clone(), target, args })
        }
    }
}

#[derive(Clone, Copy)]
enum Quantifier {
    All,
    Exists,
    One,
}

#[derive(Clone, Copy)]
enum Transform {
    List,
    Map,
    Entry,
}

struct Maker<'p, 's> {
    parser: &'p mut Parser<'s>,
    at: u32,
}

impl Maker<'_, '_> {
    fn make(&mut self, kind: Kind) -> Result<Expr, Stop> {
        let id = self.parser.id_at(self.at);
        self.parser.node(id, kind)
    }
    fn literal(&mut self, value: Value<'static>) -> Result<Expr, Stop> {
        self.make(Kind::Literal(value))
    }
    fn ident(&mut self, name: &str) -> Result<Expr, Stop> {
        self.make(Kind::Ident(name.into()))
    }
    fn accu(&mut self) -> Result<Expr, Stop> {
        self.ident(ACCUMULATOR)
    }
    fn call(&mut self, function: &str, args: Vec<Expr>) -> Result<Expr, Stop> {
        self.make(Kind::Call { function: function.into(), target: None, args })
    }
    fn member(&mut self, function: &str, target: Expr, args: Vec<Expr>) -> Result<Expr, Stop> {
        self.make(Kind::Call { function: function.into(), target: Some(Box::new(target)), args })
    }
    fn list(&mut self, items: Vec<Expr>) -> Result<Expr, Stop> {
        self.make(Kind::List { optional: vec![false; items.len()], items })
    }
    fn wrong(&mut self, id: Id, message: &str) -> Result<Expr, Stop> {
        let at = self.parser.place(id);
        self.parser.report(at, message);
        self.make(Kind::Broken)
    }
    fn fold(&mut self, fold: Fold) -> Result<Expr, Stop> {
        self.make(Kind::Fold(Box::new(fold)))
    }

    fn has(&mut self, mut args: Vec<Expr>) -> Result<Expr, Stop> {
        let Some(arg) = args.pop() else { return Err(Stop) };
        let id = arg.id;
        match arg.kind {
            Kind::Select { operand, field, test: false } => {
                self.make(Kind::Select { operand, field, test: true })
            }
            _ => self.wrong(id, "invalid argument to has() macro"),
        }
    }

    /// The loop variables at the front of `args`: one, or two of which the message differs.
    fn variables(
        &mut self,
        args: &[Expr],
        count: usize,
        wording: &str,
    ) -> Result<Vec<Arc<str>>, (Id, String)> {
        let mut names: Vec<Arc<str>> = Vec::new();
        for arg in args.iter().take(count) {
            let Kind::Ident(name) = &arg.kind else { return Err((arg.id, wording.to_owned())) };
            if names.contains(name) {
                return Err((arg.id, format!("duplicate variable name: {name}")));
            }
            if &**name == "__result__" {
                return Err((arg.id, "iteration variable overwrites accumulator variable".to_owned()));
            }
            names.push(name.clone());
        }
        Ok(names)
    }

    fn quantifier(&mut self, range: Expr, mut args: Vec<Expr>, kind: Quantifier) -> Result<Expr, Stop> {
        let count = args.len() - 1;
        let names = match self.variables(&args, count, "argument must be a simple name") {
            Ok(names) => names,
            Err((id, message)) => return self.wrong(id, &message),
        };
        let Some(predicate) = args.pop() else { return Err(Stop) };
        let (init, condition, step, result) = match kind {
            Quantifier::All => {
                let init = self.literal(Value::Bool(true))?;
                let accu = self.accu()?;
                let condition = self.call(op::NOT_STRICTLY_FALSE, vec![accu])?;
                let accu = self.accu()?;
                (init, condition, self.call(op::AND, vec![accu, predicate])?, self.accu()?)
            }
            Quantifier::Exists => {
                let init = self.literal(Value::Bool(false))?;
                let accu = self.accu()?;
                let not = self.call(op::NOT, vec![accu])?;
                let condition = self.call(op::NOT_STRICTLY_FALSE, vec![not])?;
                let accu = self.accu()?;
                (init, condition, self.call(op::OR, vec![accu, predicate])?, self.accu()?)
            }
            Quantifier::One => {
                let init = self.literal(Value::Int(0))?;
                let condition = self.literal(Value::Bool(true))?;
                let (accu, one) = (self.accu()?, self.literal(Value::Int(1))?);
                let more = self.call(op::ADD, vec![accu, one])?;
                let same = self.accu()?;
                let step = self.call(op::CONDITIONAL, vec![predicate, more, same])?;
                let (accu, one) = (self.accu()?, self.literal(Value::Int(1))?);
                (init, condition, step, self.call(op::EQUALS, vec![accu, one])?)
            }
        };
        self.looped(range, names, init, condition, step, result)
    }

    fn looped(
        &mut self,
        range: Expr,
        names: Vec<Arc<str>>,
        init: Expr,
        condition: Expr,
        step: Expr,
        result: Expr,
    ) -> Result<Expr, Stop> {
        let mut names = names.into_iter();
        let Some(var) = names.next() else { return Err(Stop) };
        let var2 = names.next();
        self.fold(Fold { range, var, var2, accu: ACCUMULATOR.into(), init, condition, step, result })
    }

    /// `accu + [value]`, if `filter` holds.
    fn append(&mut self, value: Expr, filter: Option<Expr>) -> Result<Expr, Stop> {
        let accu = self.accu()?;
        let one = self.list(vec![value])?;
        let step = self.call(op::ADD, vec![accu, one])?;
        self.filtered(step, filter)
    }
    fn filtered(&mut self, step: Expr, filter: Option<Expr>) -> Result<Expr, Stop> {
        match filter {
            None => Ok(step),
            Some(filter) => {
                let same = self.accu()?;
                self.call(op::CONDITIONAL, vec![filter, step, same])
            }
        }
    }

    fn map(&mut self, range: Expr, mut args: Vec<Expr>) -> Result<Expr, Stop> {
        let names = match self.variables(&args, 1, "argument is not an identifier") {
            Ok(names) => names,
            Err((id, message)) => return self.wrong(id, &message),
        };
        let Some(transform) = args.pop() else { return Err(Stop) };
        let filter = if args.len() == 2 { args.pop() } else { None };
        let init = self.list(Vec::new())?;
        let condition = self.literal(Value::Bool(true))?;
        let step = self.append(transform, filter)?;
        let result = self.accu()?;
        self.looped(range, names, init, condition, step, result)
    }

    fn filter(&mut self, range: Expr, mut args: Vec<Expr>) -> Result<Expr, Stop> {
        let names = match self.variables(&args, 1, "argument is not an identifier") {
            Ok(names) => names,
            Err((id, message)) => return self.wrong(id, &message),
        };
        let (Some(predicate), Some(var)) = (args.pop(), args.pop()) else { return Err(Stop) };
        let init = self.list(Vec::new())?;
        let condition = self.literal(Value::Bool(true))?;
        let step = self.append(var, Some(predicate))?;
        let result = self.accu()?;
        self.looped(range, names, init, condition, step, result)
    }

    fn transform(&mut self, range: Expr, mut args: Vec<Expr>, kind: Transform) -> Result<Expr, Stop> {
        let names = match self.variables(&args, 2, "argument must be a simple name") {
            Ok(names) => names,
            Err((id, message)) => return self.wrong(id, &message),
        };
        let Some(transform) = args.pop() else { return Err(Stop) };
        let filter = if args.len() == 3 { args.pop() } else { None };
        let init = match kind {
            Transform::List => self.list(Vec::new())?,
            Transform::Map | Transform::Entry => self.make(Kind::Map(Vec::new()))?,
        };
        let condition = self.literal(Value::Bool(true))?;
        let step = match kind {
            Transform::List => self.append(transform, filter)?,
            Transform::Map => {
                let (accu, key) = (self.accu()?, self.ident(&names[0])?);
                let step = self.call(op::MAP_INSERT, vec![accu, key, transform])?;
                self.filtered(step, filter)?
            }
            Transform::Entry => {
                let accu = self.accu()?;
                let step = self.call(op::MAP_INSERT, vec![accu, transform])?;
                self.filtered(step, filter)?
            }
        };
        let result = self.accu()?;
        self.looped(range, names, init, condition, step, result)
    }

    /// A name for a value: a fold over nothing, whose accumulator is the value.
    fn named(&mut self, name: Arc<str>, value: Expr, body: Expr) -> Result<Expr, Stop> {
        let range = self.list(Vec::new())?;
        let condition = self.literal(Value::Bool(false))?;
        let step = self.ident(&name)?;
        let fold = Fold {
            range,
            var: UNUSED.into(),
            var2: None,
            accu: name,
            init: value,
            condition,
            step,
            result: body,
        };
        self.fold(fold)
    }

    fn opt_map(&mut self, target: Expr, mut args: Vec<Expr>, wraps: bool) -> Result<Expr, Stop> {
        let (Some(body), Some(var)) = (args.pop(), args.pop()) else { return Err(Stop) };
        let Kind::Ident(name) = var.kind else {
            let which = if wraps { "optMap" } else { "optFlatMap" };
            return self.wrong(var.id, &format!("{which}() variable name must be a simple identifier"));
        };
        let copy = self.copy(&target)?;
        let present = self.member("hasValue", target, Vec::new())?;
        let value = self.member("value", copy, Vec::new())?;
        let mut mapped = self.named(name, value, body)?;
        if wraps {
            mapped = self.call("optional.of", vec![mapped])?;
        }
        let none = self.call("optional.none", Vec::new())?;
        self.call(op::CONDITIONAL, vec![present, mapped, none])
    }

    fn sort_by(&mut self, target: Expr, args: Vec<Expr>) -> Result<Expr, Stop> {
        let names = match self.variables(&args, 1, "argument is not an identifier") {
            Ok(names) => names,
            Err((id, message)) => return self.wrong(id, &message),
        };
        drop(names);
        if matches!(target.kind, Kind::Literal(_) | Kind::Map(_) | Kind::Struct { .. }) {
            let message =
                "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return self.wrong(target.id, message);
        }
        let input = self.ident(SORT_INPUT)?;
        let keys = self.map(input, args)?;
        let input = self.ident(SORT_INPUT)?;
        let sorted = self.member("@sortByAssociatedKeys", input, vec![keys])?;
        self.named(SORT_INPUT.into(), target, sorted)
    }

    fn bind(&mut self, mut args: Vec<Expr>) -> Result<Expr, Stop> {
        let (Some(body), Some(value), Some(var)) = (args.pop(), args.pop(), args.pop()) else {
            return Err(Stop);
        };
        match var.kind {
            Kind::Ident(name) => self.named(name, value, body),
            _ => self.wrong(var.id, "cel.bind() variable names must be simple identifiers"),
        }
    }

    /// The same tree with ids of its own.
    fn copy(&mut self, expr: &Expr) -> Result<Expr, Stop> {
        crate::stack::deep(|| self.copied(expr))
    }
    fn copied(&mut self, expr: &Expr) -> Result<Expr, Stop> {
        let at = self.parser.place(expr.id);
        let id = self.parser.id_at(at);
        let kind = match &expr.kind {
            Kind::Broken | Kind::Literal(_) | Kind::Ident(_) => expr.kind.clone(),
            Kind::Select { operand, field, test } => {
                Kind::Select { operand: Box::new(self.copy(operand)?), field: field.clone(), test: *test }
            }
            Kind::Call { function, target, args } => Kind::Call {
                function: function.clone(),
                target: target.as_ref().map(|target| self.copy(target).map(Box::new)).transpose()?,
                args: self.copies(args)?,
            },
            Kind::List { items, optional } => {
                Kind::List { items: self.copies(items)?, optional: optional.clone() }
            }
            Kind::Map(entries) => {
                let mut copies = Vec::with_capacity(entries.len());
                for entry in entries {
                    let (key, value) = (self.copy(&entry.key)?, self.copy(&entry.value)?);
                    copies.push(crate::ast::Entry { key, value, optional: entry.optional });
                }
                Kind::Map(copies)
            }
            Kind::Struct { name, fields } => {
                let mut copies = Vec::with_capacity(fields.len());
                for field in fields {
                    let at = self.parser.place(field.id);
                    copies.push(crate::ast::StructField {
                        id: self.parser.id_at(at),
                        name: field.name.clone(),
                        value: self.copy(&field.value)?,
                        optional: field.optional,
                    });
                }
                Kind::Struct { name: name.clone(), fields: copies }
            }
            Kind::Fold(fold) => Kind::Fold(Box::new(Fold {
                range: self.copy(&fold.range)?,
                var: fold.var.clone(),
                var2: fold.var2.clone(),
                accu: fold.accu.clone(),
                init: self.copy(&fold.init)?,
                condition: self.copy(&fold.condition)?,
                step: self.copy(&fold.step)?,
                result: self.copy(&fold.result)?,
            })),
        };
        let mut copy = self.parser.node(id, kind)?;
        copy.visits = expr.visits;
        Ok(copy)
    }
    fn copies(&mut self, exprs: &[Expr]) -> Result<Vec<Expr>, Stop> {
        exprs.iter().map(|expr| self.copy(expr)).collect()
    }
}
