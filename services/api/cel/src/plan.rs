//! A checked tree made ready to run, once, so that it can be run often.
//!
//! Names become slots, calls the functions that do them, fields the names that JSON has for them; regular
//! expressions are compiled. Constants are computed here: as upstream has it, they cost nothing afterwards.
//!
//! Chains of selections and indices are kept together as an [`Attr`], since cel-go charges for them as one:
//! a unit for the whole and one for each step.

use std::sync::Arc;

use crate::ast::{ACCUMULATOR, Expr, Kind, op};
use crate::checker::{Checked, Meaning};
use crate::escape::unescape;
use crate::eval::{EvalError, Meter, run};
use crate::go_regex;
use crate::library::{self, Body, MAX_WEIGHT, Pattern};
use crate::runtime_cost::{self, CallCost};
use crate::value::{Key, Text, Value};

#[derive(Debug)]
pub(crate) enum Node {
    Const(Value<'static>),
    Attr(Attr),
    /// `has()`: the last qualifier is only tested.
    Test(Attr),
    And(Vec<Node>),
    Or(Vec<Node>),
    Equal {
        args: Box<[Node; 2]>,
        negated: bool,
    },
    Call(Box<Call>),
    /// `x in [constants]`.
    Member {
        arg: Box<Node>,
        set: Box<Set>,
    },
    /// `or` and `orValue` of optionals.
    OrElse {
        optional: Box<Node>,
        other: Box<Node>,
        unwraps: bool,
    },
    List {
        items: Vec<Node>,
        optional: Vec<bool>,
    },
    Map(Vec<(Node, Node, bool)>),
    Struct {
        name: Arc<str>,
        fields: Vec<(Arc<str>, Node, bool)>,
    },
    Fold(Box<Fold>),
}

#[derive(Debug)]
pub(crate) struct Attr {
    pub base: Base,
    pub qualifiers: Vec<Qualifier>,
}

#[derive(Debug)]
pub(crate) enum Base {
    Variable(Arc<str>),
    Slot(usize),
    Node(Box<Node>),
    /// Condition, and the value either way.
    Conditional(Box<(Node, Attr, Attr)>),
}

#[derive(Debug)]
pub(crate) struct Qualifier {
    pub kind: QualifierKind,
    pub optional: bool,
    pub test: bool,
}

#[derive(Debug)]
pub(crate) enum QualifierKind {
    Field { name: Arc<str>, json_name: Arc<str> },
    Const(Value<'static>),
    Attr(Attr),
    Node(Box<Node>),
}

#[derive(Debug)]
pub(crate) struct Call {
    pub function: &'static str,
    pub body: Body,
    pub args: Vec<Node>,
    pub cost: CallCost,
    /// The type of what `sum` is of an empty list.
    pub zero: &'static str,
    /// Where the pattern is a constant.
    pub pattern: Option<Pattern>,
}

#[derive(Debug)]
pub(crate) struct Fold {
    pub range: Node,
    pub var: usize,
    pub var2: Option<usize>,
    pub accu: usize,
    pub init: Node,
    pub kind: FoldKind,
    pub result: Node,
}

#[derive(Debug)]
pub(crate) enum FoldKind {
    General {
        condition: Node,
        step: Node,
    },
    /// `map`, `filter`, `transformList`: the list grows in place, where adding lists would copy it each time.
    Append {
        filter: Option<Node>,
        value: Node,
        item_cost: u64,
    },
    /// `transformMap`; without a key, `transformMapEntry`.
    Insert {
        filter: Option<Node>,
        key: Option<Node>,
        value: Node,
    },
    /// A name for a value.
    Bind,
}

/// Constants to look a value up in.
#[derive(Debug)]
pub(crate) struct Set {
    keys: std::collections::BTreeSet<Key<'static>>,
    others: Vec<Value<'static>>,
}

impl Set {
    pub fn contains(&self, value: &Value<'_>, meter: &mut Meter) -> Result<bool, EvalError> {
        if let Some(key) = Key::of(value)
            && self.keys.contains(&key)
        {
            return Ok(true);
        }
        // Doubles, and integers that only a double equals.
        for other in &self.others {
            if crate::value::equal(other, value, meter)? {
                return Ok(true);
            }
        }
        if matches!(value, Value::Double(_)) {
            for key in &self.keys {
                let key = match key {
                    Key::Int(whole) => Value::Int(*whole),
                    Key::Uint(whole) => Value::Uint(*whole),
                    _ => continue,
                };
                if crate::value::equal(&key, value, meter)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
pub(crate) fn is_known(function: &str) -> bool {
    matches!(
        function,
        op::CONDITIONAL
            | op::AND
            | op::OR
            | op::EQUALS
            | op::NOT_EQUALS
            | op::INDEX
            | op::OPT_INDEX
            | op::OPT_SELECT
    ) || matches!(function, "or" | "orValue")
        || library::body(function).is_some()
}

/// The plan and how many slots it needs; or why a constant could not be computed.
pub(crate) fn plan(checked: &Checked, folds_constants: bool) -> Result<(Node, usize), EvalError> {
    let mut planner = Planner { checked, folds_constants, scopes: Vec::new(), slots: 0, weight: 0 };
    let node = planner.node(&checked.expr)?;
    Ok((node, planner.slots))
}

struct Planner<'c> {
    checked: &'c Checked,
    folds_constants: bool,
    scopes: Vec<(Arc<str>, usize)>,
    slots: usize,
    /// Of the constant patterns so far.
    weight: u64,
}

impl Planner<'_> {
    fn nodes(&mut self, exprs: &[Expr]) -> Result<Vec<Node>, EvalError> {
        exprs.iter().map(|expr| self.node(expr)).collect()
    }

    fn node(&mut self, expr: &Expr) -> Result<Node, EvalError> {
        crate::stack::deep(|| self.planned(expr))
    }
    fn planned(&mut self, expr: &Expr) -> Result<Node, EvalError> {
        Ok(match &expr.kind {
            Kind::Broken => return Err(EvalError::failed("expression has issues")),
            Kind::Literal(value) => Node::Const(value.clone()),
            Kind::Ident(name) => self.ident(expr, name),
            Kind::Select { operand, field, test } => {
                let operand = self.node(operand)?;
                let mut attr = into_attr(operand);
                attr.qualifiers.push(Qualifier {
                    kind: field_qualifier(field),
                    optional: false,
                    test: *test,
                });
                if *test { Node::Test(attr) } else { Node::Attr(attr) }
            }
            Kind::Call { function, target, args } => {
                let all: Vec<&Expr> = target.iter().map(|target| &**target).chain(args).collect();
                self.call(expr, function, &all)?
            }
            Kind::List { items, optional } => {
                let items = self.nodes(items)?;
                self.fold_constant(Node::List { items, optional: optional.clone() })
            }
            Kind::Map(entries) => {
                let mut planned = Vec::with_capacity(entries.len());
                for entry in entries {
                    planned.push((self.node(&entry.key)?, self.node(&entry.value)?, entry.optional));
                }
                self.fold_constant(Node::Map(planned))
            }
            Kind::Struct { name, fields } => {
                let mut planned = Vec::with_capacity(fields.len());
                for field in fields {
                    planned.push((field.name.clone(), self.node(&field.value)?, field.optional));
                }
                Node::Struct { name: name.clone(), fields: planned }
            }
            Kind::Fold(fold) => self.fold(fold)?,
        })
    }

    fn ident(&self, expr: &Expr, name: &Arc<str>) -> Node {
        let plain = |base| Node::Attr(Attr { base, qualifiers: Vec::new() });
        if let Some(Meaning::Type(ty)) = self.checked.meaning(expr.id) {
            return Node::Const(Value::Type(Text::Shared(ty.runtime_name().into())));
        }
        match self.scopes.iter().rev().find(|(scoped, _)| scoped == name) {
            Some((_, slot)) => plain(Base::Slot(*slot)),
            None => plain(Base::Variable(name.clone())),
        }
    }

    /// A list or map of constants is one.
    fn fold_constant(&self, node: Node) -> Node {
        let is_const = |node: &Node| matches!(node, Node::Const(_));
        let all = match &node {
            Node::List { items, .. } => items.iter().all(is_const),
            Node::Map(entries) => entries.iter().all(|(key, value, _)| is_const(key) && is_const(value)),
            _ => false,
        };
        if !all || !self.folds_constants {
            return node;
        }
        compute(&node).map_or(node, Node::Const)
    }

    fn call(&mut self, expr: &Expr, function: &str, exprs: &[&Expr]) -> Result<Node, EvalError> {
        let mut args = Vec::with_capacity(exprs.len());
        for arg in exprs {
            args.push(self.node(arg)?);
        }
        let overload = match self.checked.overloads(expr.id) {
            [one] => Some(*one),
            _ => None,
        };
        match function {
            op::AND => return Ok(Node::And(args)),
            op::OR => return Ok(Node::Or(args)),
            _ => {}
        }
        let mut args = match (function, <[Node; 3]>::try_from(args)) {
            (op::CONDITIONAL, Ok([condition, truthy, falsy])) => {
                let parts = Box::new((condition, into_attr(truthy), into_attr(falsy)));
                return Ok(Node::Attr(Attr { base: Base::Conditional(parts), qualifiers: Vec::new() }));
            }
            (_, Ok(args)) => Vec::from(args),
            (_, Err(args)) => args,
        };
        let two = args.len() == 2;
        let mut last_two = || Some((args.remove(0), args.pop()?));
        match function {
            op::EQUALS | op::NOT_EQUALS if two => {
                let Some((one, other)) = last_two() else { return Err(EvalError::no_such_overload()) };
                return Ok(Node::Equal { args: Box::new([one, other]), negated: function == op::NOT_EQUALS });
            }
            op::INDEX | op::OPT_INDEX | op::OPT_SELECT if two => {
                let Some((operand, index)) = last_two() else { return Err(EvalError::no_such_overload()) };
                let mut attr = into_attr(operand);
                let kind = match index {
                    Node::Const(Value::String(name)) if function == op::OPT_SELECT => field_qualifier(&name),
                    Node::Const(value) => QualifierKind::Const(value),
                    Node::Attr(attr) => QualifierKind::Attr(attr),
                    other => QualifierKind::Node(Box::new(other)),
                };
                attr.qualifiers.push(Qualifier { kind, optional: function != op::INDEX, test: false });
                return Ok(Node::Attr(attr));
            }
            "or" | "orValue" if two => {
                let Some((optional, other)) = last_two() else { return Err(EvalError::no_such_overload()) };
                let unwraps = function == "orValue";
                return Ok(Node::OrElse { optional: Box::new(optional), other: Box::new(other), unwraps });
            }
            op::IN if two && overload == Some("in_list") && self.folds_constants => {
                if let Node::Const(Value::List(list)) = &args[1] {
                    if list.is_empty() {
                        return Ok(Node::Const(Value::Bool(false)));
                    }
                    if let Some(set) = set_of(list) {
                        return Ok(Node::Member { arg: Box::new(args.remove(0)), set: Box::new(set) });
                    }
                }
            }
            _ => {}
        }
        let Some((name, body)) = library::body(function) else {
            return Err(EvalError::failed(format!("no such overload: {function}")));
        };
        let pattern = match (name, args.get(1)) {
            ("matches" | "find" | "findAll", Some(Node::Const(Value::String(pattern))))
                if self.folds_constants =>
            {
                self.weight = self.weight.saturating_add(go_regex::weight(pattern));
                if self.weight > MAX_WEIGHT {
                    return Err(EvalError::failed(format!(
                        "error parsing regexp: expression too large: `{}`",
                        &**pattern
                    )));
                }
                Some(Pattern::new(pattern)?)
            }
            _ => None,
        };
        let cost = CallCost::of(name, overload);
        let zero = overload.and_then(|id| id.rsplit_once("_sum_")).map_or("int", |(_, ty)| ty);
        let converts = matches!(
            name,
            "bool"
                | "bytes"
                | "double"
                | "duration"
                | "dyn"
                | "int"
                | "string"
                | "timestamp"
                | "type"
                | "uint"
        );
        let constant = converts && self.folds_constants && matches!(args.as_slice(), [Node::Const(_)]);
        let node = Node::Call(Box::new(Call { function: name, body, args, cost, zero, pattern }));
        if constant { compute(&node).map(Node::Const) } else { Ok(node) }
    }

    fn fold(&mut self, fold: &crate::ast::Fold) -> Result<Node, EvalError> {
        let range = self.node(&fold.range)?;
        let init = self.node(&fold.init)?;
        let first = self.slots;
        self.slots += 3;
        let (accu, var) = (first, first + 1);
        let var2 = fold.var2.as_ref().map(|_| first + 2);
        let outer = self.scopes.len();
        self.scopes.push((fold.accu.clone(), accu));
        let inner = self.scopes.len();
        self.scopes.push((fold.var.clone(), var));
        if let (Some(name), Some(slot)) = (&fold.var2, var2) {
            self.scopes.push((name.clone(), slot));
        }
        let kind = if fold.is_bind() { FoldKind::Bind } else { self.fold_kind(fold)? };
        self.scopes.truncate(inner);
        let result = self.node(&fold.result)?;
        self.scopes.truncate(outer);
        Ok(Node::Fold(Box::new(Fold { range, var, var2, accu, init, kind, result })))
    }

    fn fold_kind(&mut self, fold: &crate::ast::Fold) -> Result<FoldKind, EvalError> {
        let is_accu = |expr: &Expr| matches!(&expr.kind, Kind::Ident(name) if &**name == ACCUMULATOR);
        let always = matches!(fold.condition.kind, Kind::Literal(Value::Bool(true))) && is_accu(&fold.result);
        let (filter, step) = match &fold.step.kind {
            Kind::Call { function, args, .. } if &**function == op::CONDITIONAL && args.len() == 3 => {
                (Some(&args[0]), &args[1])
            }
            _ => (None, &fold.step),
        };
        if always && let Kind::Call { function, args, .. } = &step.kind {
            match (&**function, args.as_slice()) {
                (op::ADD, [accu, Expr { kind: Kind::List { items, .. }, .. }]) if is_accu(accu) => {
                    if let [item] = items.as_slice() {
                        let filter = filter.map(|filter| self.node(filter)).transpose()?;
                        let value = self.node(item)?;
                        let constant = self.folds_constants && matches!(value, Node::Const(_));
                        let item_cost = if constant { 0 } else { runtime_cost::LIST };
                        return Ok(FoldKind::Append { filter, value, item_cost });
                    }
                }
                (op::MAP_INSERT, [accu, rest @ ..]) if is_accu(accu) => {
                    let filter = filter.map(|filter| self.node(filter)).transpose()?;
                    if let [key, value] = rest {
                        let (key, value) = (Some(self.node(key)?), self.node(value)?);
                        return Ok(FoldKind::Insert { filter, key, value });
                    }
                    if let [value] = rest {
                        return Ok(FoldKind::Insert { filter, key: None, value: self.node(value)? });
                    }
                }
                _ => {}
            }
        }
        Ok(FoldKind::General { condition: self.node(&fold.condition)?, step: self.node(&fold.step)? })
    }
}

fn into_attr(node: Node) -> Attr {
    match node {
        Node::Attr(attr) | Node::Test(attr) => attr,
        other => Attr { base: Base::Node(Box::new(other)), qualifiers: Vec::new() },
    }
}

fn field_qualifier(name: &str) -> QualifierKind {
    let name: Arc<str> = name.into();
    let json_name = match unescape(&name) {
        Some(plain) if *plain != *name => Arc::from(&*plain),
        _ => name.clone(),
    };
    QualifierKind::Field { name, json_name }
}

/// The value of a node of constants.
fn compute(node: &Node) -> Result<Value<'static>, EvalError> {
    struct Nothing;
    impl<'a> crate::eval::Activation<'a> for Nothing {
        fn get(&self, _: &str) -> Option<Value<'a>> {
            None
        }
    }
    let (outcome, _) = run(node, 0, &Nothing, crate::limits::PER_CALL_LIMIT);
    owned(&outcome?).ok_or_else(EvalError::no_such_overload)
}

/// A value that borrows from nothing; constants never do, but the compiler cannot know.
fn owned(value: &Value<'_>) -> Option<Value<'static>> {
    crate::stack::deep(|| owned_parts(value))
}
fn owned_parts(value: &Value<'_>) -> Option<Value<'static>> {
    Some(match value {
        Value::Null => Value::Null,
        Value::Bool(value) => Value::Bool(*value),
        Value::Int(value) => Value::Int(*value),
        Value::Uint(value) => Value::Uint(*value),
        Value::Double(value) => Value::Double(*value),
        Value::String(text) => Value::text(text.as_str()),
        Value::Bytes(bytes) => Value::Bytes(bytes.clone()),
        Value::Timestamp(time) => Value::Timestamp(*time),
        Value::Duration(nanos) => Value::Duration(*nanos),
        Value::Type(name) => Value::Type(Text::Shared(name.as_str().into())),
        Value::List(list) => {
            let mut items = Vec::with_capacity(list.len());
            for item in list.iter() {
                items.push(owned(&item.ok()?)?);
            }
            Value::List(crate::value::List::new(items).ok()?)
        }
        Value::Map(map) => {
            let mut entries = crate::value::Entries::default();
            for key in map.keys() {
                entries.set(owned(&key)?, owned(&map.get(&key)?.ok()?)?).ok()?;
            }
            Value::Map(crate::value::Map::new(entries))
        }
        Value::Optional(None) => Value::Optional(None),
        Value::Optional(Some(value)) => Value::some(owned(value)?),
        Value::Struct(_) => return None,
        Value::Opaque(value) => Value::Opaque(value.clone()),
    })
}

fn set_of(list: &crate::value::List<'static>) -> Option<Set> {
    let mut set = Set { keys: Default::default(), others: Vec::new() };
    for item in list.iter() {
        let item = item.ok()?;
        match (Key::of(&item), item) {
            (Some(key), _) => {
                set.keys.insert(key);
            }
            (None, item @ (Value::Double(_) | Value::Null)) => set.others.push(item),
            _ => return None,
        }
    }
    Some(set)
}
