//! Runs a plan over data, and counts what it costs.
//!
//! The cost of each step is cel-go's (`interpreter/runtimecost.go`): people write budgets against it. Beside
//! it the meter counts work that cel-go does not charge for (comparing lists that share parts, copying); that
//! has a limit of its own, far above what any honest expression does.

use std::sync::Arc;

use crate::go_regex;
use crate::library::{self, MAX_TEXT_BYTES, Pattern};
use crate::limits::PER_CALL_LIMIT;
use crate::plan::{Attr, Base, Call, Fold, FoldKind, Node, Qualifier, QualifierKind};
use crate::runtime_cost;
use crate::stack::deep;
use crate::value::{List, Map, Text, Value, equal};

/// What variables stand for. Asked when, and only if, the expression gets there.
pub trait Activation<'a> {
    fn get(&self, name: &str) -> Option<Value<'a>>;

    /// A field of a variable, for variables that have no value as a whole because each of their fields is
    /// computed when it is asked for. None leaves it to `get`.
    fn field(&self, _variable: &str, _field: &str) -> Option<Result<Value<'a>, EvalError>> {
        None
    }
}

impl<'a, const N: usize> Activation<'a> for [(&str, Value<'a>); N] {
    fn get(&self, name: &str) -> Option<Value<'a>> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    }
}

/// What evaluations may still cost. One is made for all rules of an object and handed to each in turn.
#[derive(Debug, Clone)]
pub struct Budget {
    pub left: u64,
    /// What one evaluation may cost at most.
    pub per_call: u64,
}

impl Budget {
    pub fn new(left: u64) -> Budget {
        Budget { left, per_call: PER_CALL_LIMIT }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The one evaluation cost more than one may.
    #[error("operation cancelled: actual cost limit exceeded")]
    CallCost,
    /// The budget is used up: nothing further is to be evaluated.
    #[error("running out of cost budget")]
    Budget,
    /// The expression failed, in cel-go's words.
    #[error("{0}")]
    Failed(Arc<str>),
}

impl EvalError {
    pub(crate) fn failed(message: impl Into<Arc<str>>) -> EvalError {
        EvalError::Failed(message.into())
    }
    pub(crate) fn no_such_overload() -> EvalError {
        EvalError::failed("no such overload")
    }
    pub(crate) fn no_such_key(key: impl std::fmt::Display) -> EvalError {
        EvalError::failed(format!("no such key: {key}"))
    }
    /// Cannot be made up for by the other side of an `||`.
    pub(crate) fn is_final(&self) -> bool {
        !matches!(self, EvalError::Failed(_))
    }
}

/// Steps that may be made for each unit that may be charged, whether they are charged for or not. Comparing
/// lists makes ten; at upstream's limit it is about a second's worth.
pub(crate) const STEPS_PER_UNIT: u64 = 20;

/// Counts cost and work of one evaluation.
#[derive(Debug)]
pub(crate) struct Meter {
    pub cost: u64,
    limit: u64,
    work: u64,
    /// Patterns that were no constants, compiled: a loop asks for the same one again and again.
    patterns: Vec<(String, Pattern)>,
}

/// Patterns kept during one evaluation.
const MAX_PATTERNS: usize = 16;

impl Meter {
    pub fn new(limit: u64) -> Meter {
        Meter { cost: 0, limit, work: 0, patterns: Vec::new() }
    }
    pub fn charge(&mut self, cost: u64) -> Result<(), EvalError> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(EvalError::CallCost) } else { Ok(()) }
    }
    pub fn work(&mut self, steps: u64) -> Result<(), EvalError> {
        self.work = self.work.saturating_add(steps);
        if self.work > self.limit.saturating_mul(STEPS_PER_UNIT) { Err(EvalError::CallCost) } else { Ok(()) }
    }
    pub fn limit(&self) -> u64 {
        self.limit
    }
    /// Makes a text of so many bytes, where that is not charged for by its length.
    pub fn produce(&mut self, bytes: usize) -> Result<(), EvalError> {
        if bytes > MAX_TEXT_BYTES {
            return Err(EvalError::failed("resulting text is too long"));
        }
        self.work(bytes as u64 / 2)
    }
    /// Compiling takes far longer than matching does, and nothing is charged for it.
    pub fn pattern(&mut self, text: &str) -> Result<Pattern, EvalError> {
        if let Some((_, pattern)) = self.patterns.iter().find(|(known, _)| known == text) {
            return Ok(pattern.clone());
        }
        self.work(go_regex::weight(text).saturating_mul(10).saturating_add(1000 + 10 * text.len() as u64))?;
        let pattern = Pattern::new(text)?;
        if self.patterns.len() >= MAX_PATTERNS {
            self.patterns.remove(0);
        }
        self.patterns.push((text.to_owned(), pattern.clone()));
        Ok(pattern)
    }
}

pub(crate) type Outcome<'a> = Result<Value<'a>, EvalError>;

/// Evaluates, and says what it cost.
pub(crate) fn run<'a>(
    node: &'a Node,
    slots: usize,
    activation: &dyn Activation<'a>,
    limit: u64,
) -> (Outcome<'a>, u64) {
    let mut machine =
        Machine { activation, meter: Meter::new(limit), slots: (0..slots).map(|_| Slot::Empty).collect() };
    let outcome = machine.eval(node);
    (outcome, machine.meter.cost)
}

/// What a name of a macro stands for.
enum Slot<'a> {
    Empty,
    /// Not yet evaluated: a name that is not used costs nothing.
    Lazy(&'a Node),
    Ready(Outcome<'a>),
}

struct Machine<'m, 'a> {
    activation: &'m dyn Activation<'a>,
    meter: Meter,
    slots: Vec<Slot<'a>>,
}

impl<'a> Machine<'_, 'a> {
    fn eval(&mut self, node: &'a Node) -> Outcome<'a> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            other => deep(|| self.eval_deep(other)),
        }
    }

    fn eval_deep(&mut self, node: &'a Node) -> Outcome<'a> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Attr(attr) => {
                self.meter.charge(u64::from(!matches!(attr.base, Base::Conditional(_))))?;
                self.attr(attr)
            }
            Node::Test(attr) => self.attr(attr),
            Node::And(terms) => self.logic(terms, false),
            Node::Or(terms) => self.logic(terms, true),
            Node::Equal { args, negated } => self.equality(args, *negated),
            Node::Call(call) => self.call(call),
            Node::Member { arg, set } => {
                let value = self.eval(arg)?;
                Ok(Value::Bool(set.contains(&value, &mut self.meter)?))
            }
            Node::OrElse { optional, other, unwraps } => self.or_else(optional, other, *unwraps),
            Node::List { items, optional } => self.list(items, optional),
            Node::Map(entries) => self.map(entries),
            Node::Struct { name, fields } => self.message(name, fields),
            Node::Fold(fold) => self.fold(fold),
        }
    }

    fn slot(&mut self, at: usize) -> Outcome<'a> {
        match self.slots.get(at) {
            Some(Slot::Ready(outcome)) => outcome.clone(),
            Some(Slot::Lazy(node)) => {
                let node = *node;
                let outcome = self.eval(node);
                self.set(at, outcome.clone());
                outcome
            }
            _ => Err(EvalError::failed("no such attribute(s): name is not bound")),
        }
    }
    fn name(&mut self, at: usize, meaning: Slot<'a>) {
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = meaning;
        }
    }
    fn set(&mut self, at: usize, outcome: Outcome<'a>) {
        self.name(at, Slot::Ready(outcome));
    }

    /// The value of an attribute, without the cost of the attribute itself.
    fn attr(&mut self, attr: &'a Attr) -> Outcome<'a> {
        match attr.base {
            // Conditionals nest without a node in between.
            Base::Conditional(_) => deep(|| self.attr_deep(attr)),
            _ => self.attr_deep(attr),
        }
    }

    fn attr_deep(&mut self, attr: &'a Attr) -> Outcome<'a> {
        let base = match &attr.base {
            Base::Variable(name) => match self.activation.get(name) {
                None if !attr.qualifiers.is_empty() => return self.computed(name, &attr.qualifiers),
                Some(value) => value,
                None => return Err(EvalError::failed(format!("no such attribute(s): {name}"))),
            },
            Base::Slot(at) => self.slot(*at)?,
            Base::Node(node) => self.eval(node)?,
            Base::Conditional(parts) => match self.eval(&parts.0)? {
                Value::Bool(true) => self.attr(&parts.1)?,
                Value::Bool(false) => self.attr(&parts.2)?,
                _ => return Err(EvalError::no_such_overload()),
            },
        };
        if attr.qualifiers.is_empty() {
            return Ok(base);
        }
        self.qualify(base, &attr.qualifiers)
    }

    /// A field that the activation computes, and what is asked of it.
    fn computed(&mut self, name: &str, qualifiers: &'a [Qualifier]) -> Outcome<'a> {
        let field = match qualifiers.first() {
            Some(Qualifier { kind: QualifierKind::Field { name, .. }, .. }) => Some(name),
            _ => None,
        };
        let found = field.and_then(|field| self.activation.field(name, field));
        match (found, qualifiers.split_first()) {
            (Some(found), Some((first, rest))) => {
                self.meter.charge(1)?;
                if first.test {
                    return Ok(Value::Bool(true));
                }
                let value = found?;
                let value = if first.optional { Value::some(value) } else { value };
                if rest.is_empty() { Ok(value) } else { self.qualify(value, rest) }
            }
            _ => Err(EvalError::failed(format!("no such attribute(s): {name}"))),
        }
    }

    fn qualify(&mut self, base: Value<'a>, qualifiers: &'a [Qualifier]) -> Outcome<'a> {
        // Of nothing, `has()` is false and everything else nothing.
        let tests = qualifiers.last().is_some_and(|last| last.test);
        let nothing = if tests { Value::Bool(false) } else { Value::Optional(None) };
        let (mut value, mut optional) = match base {
            Value::Optional(None) => return Ok(nothing),
            Value::Optional(Some(value)) => ((*value).clone(), true),
            other => (other, false),
        };
        for qualifier in qualifiers {
            optional |= qualifier.optional;
            let lenient = optional || qualifier.test;
            // What is asked for and not there costs nothing, unless its absence is an error or the answer.
            if !lenient || qualifier.test {
                self.meter.charge(1)?;
            }
            let found = self.qualified(&value, qualifier, lenient)?;
            if qualifier.test {
                return Ok(Value::Bool(found.is_some()));
            }
            match found {
                Some(found) => value = found,
                None => return Ok(nothing),
            }
            if lenient {
                self.meter.charge(1)?;
            }
        }
        Ok(if optional { Value::some(value) } else { value })
    }

    /// None if there is no such thing and `lenient`.
    fn qualified(
        &mut self,
        of: &Value<'a>,
        qualifier: &'a Qualifier,
        lenient: bool,
    ) -> Result<Option<Value<'a>>, EvalError> {
        let key = match &qualifier.kind {
            QualifierKind::Field { name, json_name } => {
                let found = match of {
                    Value::Map(map) => map.field(name, Some(json_name)).transpose()?,
                    Value::Struct(value) => value.get(name).cloned(),
                    Value::List(_) => {
                        return Err(EvalError::failed("unsupported index type 'string' in list"));
                    }
                    _ => None,
                };
                return match found {
                    Some(found) => Ok(Some(found)),
                    None if lenient => Ok(None),
                    None => Err(EvalError::no_such_key(name)),
                };
            }
            QualifierKind::Const(key) => key.clone(),
            QualifierKind::Attr(attr) => deep(|| self.attr(attr))?,
            QualifierKind::Node(node) => self.eval(node)?,
        };
        let found = match of {
            Value::Map(map) => map.get(&key).transpose()?,
            Value::Struct(value) => key.as_str().and_then(|name| value.get(name).cloned()),
            Value::List(list) => {
                let index = library::index(&key)?;
                return match usize::try_from(index).ok().and_then(|index| list.get(index)) {
                    Some(found) => found.map(Some),
                    None if lenient => Ok(None),
                    None => Err(EvalError::failed(format!("index out of bounds: {key}"))),
                };
            }
            _ => None,
        };
        match found {
            Some(found) => Ok(Some(found)),
            None if lenient => Ok(None),
            None => Err(EvalError::no_such_key(&key)),
        }
    }

    /// `&&` and `||`: an error counts only if no other term decides.
    fn logic(&mut self, terms: &'a [Node], decides: bool) -> Outcome<'a> {
        let mut failed = None;
        for term in terms {
            match self.eval(term) {
                Ok(Value::Bool(value)) if value == decides => return Ok(Value::Bool(decides)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failed = failed.or(Some(EvalError::no_such_overload())),
                Err(err) if err.is_final() => return Err(err),
                Err(err) => failed = failed.or(Some(err)),
            }
        }
        match failed {
            Some(err) => Err(err),
            None => Ok(Value::Bool(!decides)),
        }
    }

    fn equality(&mut self, args: &'a [Node; 2], negated: bool) -> Outcome<'a> {
        let (one, two) = (self.argument(&args[0])?, self.argument(&args[1])?);
        let shown = |value: &Outcome<'a>| value.clone().unwrap_or(Value::Null);
        if one.is_err() || two.is_err() {
            self.meter.charge(runtime_cost::equality(&shown(&one), &shown(&two), negated))?;
        }
        let (one, two) = (one?, two?);
        self.meter.charge(runtime_cost::equality(&one, &two, negated))?;
        Ok(Value::Bool(equal(&one, &two, &mut self.meter)? != negated))
    }

    /// The argument of a call that is charged for even if it failed. Final errors are outside.
    fn argument(&mut self, node: &'a Node) -> Result<Outcome<'a>, EvalError> {
        match self.eval(node) {
            Err(err) if err.is_final() => Err(err),
            outcome => Ok(outcome),
        }
    }

    #[inline(never)]
    fn call(&mut self, call: &'a Call) -> Outcome<'a> {
        match call.args.as_slice() {
            [one] => match self.argument(one)? {
                Ok(one) => self.invoke(call, &[one]),
                Err(err) => self.failed(call, &[Value::Null], err),
            },
            [one, two] => match (self.argument(one)?, self.argument(two)?) {
                (Ok(one), Ok(two)) => self.invoke(call, &[one, two]),
                (Err(err), two) => self.failed(call, &[Value::Null, two.unwrap_or(Value::Null)], err),
                (Ok(one), Err(err)) => self.failed(call, &[one, Value::Null], err),
            },
            all => {
                let mut args = Vec::with_capacity(all.len());
                for arg in all {
                    args.push(self.eval(arg)?);
                }
                self.invoke(call, &args)
            }
        }
    }

    /// A call of one or two arguments costs something though one of them failed: an error is of size one.
    #[cold]
    fn failed(&mut self, call: &'a Call, args: &[Value<'a>], err: EvalError) -> Outcome<'a> {
        self.meter.charge(runtime_cost::of_call(call, args, self.meter.limit()).unwrap_or(1))?;
        Err(err)
    }

    fn invoke(&mut self, call: &'a Call, args: &[Value<'a>]) -> Outcome<'a> {
        // Before anything is done, since it may be long; only what depends on the result comes after.
        let before = runtime_cost::of_call(call, args, self.meter.limit());
        if let Some(cost) = before {
            self.meter.charge(cost)?;
        }
        let result = (call.body)(&mut self.meter, call, args)?;
        if before.is_none() {
            self.meter.charge(runtime_cost::of_result(call, &result))?;
        }
        Ok(result)
    }

    fn or_else(&mut self, optional: &'a Node, other: &'a Node, unwraps: bool) -> Outcome<'a> {
        match self.eval(optional)? {
            Value::Optional(Some(value)) if unwraps => Ok((*value).clone()),
            Value::Optional(None) => self.eval(other),
            value => Ok(value),
        }
    }

    #[inline(never)]
    fn list(&mut self, items: &'a [Node], optional: &[bool]) -> Outcome<'a> {
        let mut values = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            let value = self.eval(item)?;
            if optional.get(at) != Some(&true) {
                values.push(value);
                continue;
            }
            match value {
                Value::Optional(Some(value)) => values.push((*value).clone()),
                Value::Optional(None) => {}
                other => {
                    let message =
                        format!("cannot initialize optional list element from non-optional value {other}");
                    return Err(EvalError::failed(message));
                }
            }
        }
        self.meter.charge(runtime_cost::LIST)?;
        Ok(Value::List(List::new(values)?))
    }

    #[inline(never)]
    fn map(&mut self, entries: &'a [(Node, Node, bool)]) -> Outcome<'a> {
        let mut all = crate::value::Entries::default();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let value = self.eval(value)?;
            match value {
                value if !optional => all.set(key, value)?,
                Value::Optional(Some(value)) => all.set(key, (*value).clone())?,
                Value::Optional(None) => all.remove(&key),
                other => {
                    let message =
                        format!("cannot initialize optional entry '{key}' from non-optional value {other}");
                    return Err(EvalError::failed(message));
                }
            }
        }
        self.meter.charge(runtime_cost::MAP)?;
        Ok(Value::Map(Map::new(all)))
    }

    #[inline(never)]
    fn message(&mut self, name: &'a Arc<str>, fields: &'a [(Arc<str>, Node, bool)]) -> Outcome<'a> {
        let mut all: Vec<(Arc<str>, Value<'a>)> = Vec::with_capacity(fields.len());
        for (field, value, optional) in fields {
            let value = self.eval(value)?;
            let value = match value {
                value if !optional => Some(value),
                Value::Optional(Some(value)) => Some((*value).clone()),
                Value::Optional(None) => None,
                other => {
                    let message =
                        format!("cannot initialize optional entry '{field}' from non-optional value {other}");
                    return Err(EvalError::failed(message));
                }
            };
            all.retain(|(known, _)| known != field);
            if let Some(value) = value {
                all.push((field.clone(), value));
            }
        }
        self.meter.charge(runtime_cost::STRUCT)?;
        // Only a dynamic value can be of a wrong type here.
        if &**name == "JSONPatch"
            && let Some((field, value)) =
                all.iter().find(|(field, value)| &**field != "value" && value.as_str().is_none())
        {
            let given = value.type_name();
            return Err(EvalError::failed(format!(
                "unexpected type {given} for JSONPatchType '{field}' field"
            )));
        }
        crate::value::Struct::new(name.clone(), all).map(|value| Value::Struct(Arc::new(value)))
    }

    #[inline(never)]
    fn fold(&mut self, fold: &'a Fold) -> Outcome<'a> {
        if let FoldKind::Bind = fold.kind {
            // The range is an empty list, which costs as much as any.
            self.eval(&fold.range)?;
            self.name(fold.accu, Slot::Lazy(&fold.init));
            return self.eval(&fold.result);
        }
        let range = self.eval(&fold.range)?;
        match range {
            Value::List(list) => {
                let two = fold.var2.is_some();
                let each = list.iter().enumerate().map(|(at, value)| {
                    let value = value?;
                    Ok(if two { (Value::Int(at as i64), Some(value)) } else { (value, None) })
                });
                self.fold_over(fold, each)
            }
            Value::Map(map) => {
                let two = fold.var2.is_some();
                let keys = map.keys();
                self.meter.work(keys.len() as u64)?;
                let each = keys.into_iter().map(|key| {
                    let value = match two {
                        true => Some(map.get(&key).ok_or_else(|| EvalError::no_such_key(&key))??),
                        false => None,
                    };
                    Ok((key, value))
                });
                self.fold_over(fold, each)
            }
            other if fold.var2.is_some() => {
                Err(EvalError::failed(format!("unsupported comprehension range type: {}", go_type(&other))))
            }
            other => Err(EvalError::failed(format!("got '{}', expected iterable type", go_type(&other)))),
        }
    }

    fn fold_over(
        &mut self,
        fold: &'a Fold,
        each: impl Iterator<Item = Result<(Value<'a>, Option<Value<'a>>), EvalError>>,
    ) -> Outcome<'a> {
        match &fold.kind {
            FoldKind::Bind => Err(EvalError::no_such_overload()),
            FoldKind::General { condition, step } => {
                self.name(fold.accu, Slot::Lazy(&fold.init));
                for one in each {
                    self.enter(fold, one?);
                    if let Ok(Value::Bool(false)) = self.eval_absorbing(condition)? {
                        break;
                    }
                    let outcome = self.eval_absorbing(step)?;
                    self.set(fold.accu, outcome);
                }
                self.eval(&fold.result)
            }
            FoldKind::Append { filter, value, item_cost } => {
                self.eval(&fold.init)?;
                let mut values = Vec::new();
                for one in each {
                    self.enter(fold, one?);
                    if let Some(filter) = filter
                        && !self.passes(filter)?
                    {
                        continue;
                    }
                    // The accumulator, the list of one, and adding the two.
                    self.meter.charge(2 + item_cost)?;
                    values.push(self.eval(value)?);
                }
                self.meter.charge(1)?;
                Ok(Value::List(List::new(values)?))
            }
            FoldKind::Insert { filter, key, value } => {
                self.eval(&fold.init)?;
                let mut entries = crate::value::Entries::default();
                for one in each {
                    self.enter(fold, one?);
                    if let Some(filter) = filter
                        && !self.passes(filter)?
                    {
                        continue;
                    }
                    self.meter.charge(2)?;
                    match key {
                        Some(key) => {
                            let key = self.eval(key)?;
                            let value = self.eval(value)?;
                            library::insert(&mut entries, key, value)?;
                        }
                        None => match self.eval(value)? {
                            Value::Map(map) => {
                                self.meter.work(map.len() as u64)?;
                                for key in map.keys() {
                                    if let Some(value) = map.get(&key) {
                                        library::insert(&mut entries, key, value?)?;
                                    }
                                }
                            }
                            _ => return Err(EvalError::no_such_overload()),
                        },
                    }
                }
                self.meter.charge(1)?;
                Ok(Value::Map(Map::new(entries)))
            }
        }
    }

    fn enter(&mut self, fold: &Fold, (first, second): (Value<'a>, Option<Value<'a>>)) {
        self.set(fold.var, Ok(first));
        if let (Some(at), Some(second)) = (fold.var2, second) {
            self.set(at, Ok(second));
        }
    }

    fn passes(&mut self, filter: &'a Node) -> Result<bool, EvalError> {
        match self.eval(filter)? {
            Value::Bool(value) => Ok(value),
            _ => Err(EvalError::no_such_overload()),
        }
    }

    /// Errors that a later step may make up for are inside, final ones outside.
    fn eval_absorbing(&mut self, node: &'a Node) -> Result<Outcome<'a>, EvalError> {
        match self.eval(node) {
            Err(err) if err.is_final() => Err(err),
            outcome => Ok(outcome),
        }
    }
}

/// What Go calls the type of such a value, which is all that cel-go says of it here.
fn go_type(value: &Value<'_>) -> &'static str {
    match value {
        Value::Null => "types.Null",
        Value::Bool(_) => "types.Bool",
        Value::Int(_) => "types.Int",
        Value::Uint(_) => "types.Uint",
        Value::Double(_) => "types.Double",
        Value::String(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Timestamp(_) => "types.Timestamp",
        Value::Duration(_) => "types.Duration",
        Value::Optional(_) => "*types.Optional",
        Value::Type(_) => "*types.Type",
        _ => "ref.Val",
    }
}

/// A bool as a value, for bodies of functions.
pub(crate) fn bool_value<'a>(value: bool) -> Outcome<'a> {
    Ok(Value::Bool(value))
}

/// A text as a value, for bodies of functions.
pub(crate) fn text_value<'a>(text: impl Into<Arc<str>>) -> Outcome<'a> {
    Ok(Value::String(Text::Shared(text.into())))
}
