//! Lists: a piece of JSON, or values, or two lists one after the other.
//!
//! Adding lists costs one unit in cel-go, whatever their size, so it must not copy: larger ones are joined
//! lazily. Such joins grow no deeper than a limit, where they are copied, and that is charged.

use std::sync::Arc;

use serde_json::Value as Json;

use super::Value;
use crate::decl::{Decl, ListKind, Shape};
use crate::eval::{EvalError, Meter};

/// Joins on top of joins, before they are copied.
const MAX_JOINS: u16 = 64;
/// Smaller ones are copied at once: a join costs more than it saves.
const COPY_BELOW: usize = 64;
/// The longest list that a join is copied to.
const MAX_COPY: usize = 1_000_000;

#[derive(Debug, Clone)]
pub struct List<'a>(Repr<'a>);

#[derive(Debug, Clone)]
enum Repr<'a> {
    /// `decl` is the list's, not the items'.
    Json {
        items: &'a [Json],
        decl: Option<&'a Decl>,
    },
    Items(Arc<Items<'a>>),
    Join(Arc<Join<'a>>),
}

/// How a list compares and adds: as declared, for lists that came of declared ones by adding.
type Rule<'a> = Option<&'a ListKind>;

#[derive(Debug)]
struct Items<'a> {
    values: Vec<Value<'a>>,
    rule: Rule<'a>,
    depth: u16,
}

#[derive(Debug)]
struct Join<'a> {
    left: List<'a>,
    right: List<'a>,
    len: usize,
    joins: u16,
    depth: u16,
}

impl<'a> List<'a> {
    pub(crate) fn json(items: &'a [Json], decl: Option<&'a Decl>) -> List<'a> {
        List(Repr::Json { items, decl })
    }
    /// Fails if the values are nested too deep.
    pub(crate) fn new(values: Vec<Value<'a>>) -> Result<List<'a>, EvalError> {
        List::with_rule(values, None)
    }
    pub(crate) fn with_rule(values: Vec<Value<'a>>, rule: Rule<'a>) -> Result<List<'a>, EvalError> {
        let depth = super::map::depth_of(values.iter())?;
        Ok(List(Repr::Items(Arc::new(Items { values, rule, depth }))))
    }
    /// Of texts, which are never too deep.
    pub fn texts(texts: impl IntoIterator<Item = String>) -> List<'a> {
        let values = texts.into_iter().map(Value::text).collect();
        List(Repr::Items(Arc::new(Items { values, rule: None, depth: 1 })))
    }

    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::Json { items, .. } => items.len(),
            Repr::Items(items) => items.values.len(),
            Repr::Join(join) => join.len,
        }
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub(crate) fn depth(&self) -> u16 {
        match &self.0 {
            Repr::Json { .. } => 0,
            Repr::Items(items) => items.depth,
            Repr::Join(join) => join.depth,
        }
    }
    fn joins(&self) -> u16 {
        match &self.0 {
            Repr::Join(join) => join.joins,
            _ => 0,
        }
    }

    pub(crate) fn rule(&self) -> Rule<'a> {
        let kind = match &self.0 {
            Repr::Json { decl: Some(Decl { shape: Shape::List { kind, .. }, .. }), .. } => Some(kind),
            Repr::Items(items) => items.rule,
            _ => None,
        };
        kind.filter(|kind| **kind != ListKind::Atomic)
    }
    /// Read by a declaration.
    pub(crate) fn is_declared(&self) -> bool {
        matches!(self.0, Repr::Json { decl: Some(_), .. })
    }

    /// None past the end; an error if the data is not as declared.
    pub fn get(&self, index: usize) -> Option<Result<Value<'a>, EvalError>> {
        let (mut list, mut index) = (self, index);
        loop {
            match &list.0 {
                Repr::Json { items, decl } => {
                    let item = items.get(index)?;
                    return Some(match decl.map(|decl| &decl.shape) {
                        Some(Shape::List { items, .. }) => Value::typed(item, items).map_err(EvalError::from),
                        _ => Ok(Value::from_json(item)),
                    });
                }
                Repr::Items(items) => return items.values.get(index).cloned().map(Ok),
                Repr::Join(join) => {
                    let left = join.left.len();
                    (list, index) =
                        if index < left { (&join.left, index) } else { (&join.right, index - left) };
                }
            }
        }
    }

    pub fn iter(&self) -> Iter<'_, 'a> {
        Iter { pending: vec![self], at: 0 }
    }

    /// `self + other`: one after the other, or merged if the first is declared a set or map of its elements.
    pub(crate) fn add(&self, other: &List<'a>, meter: &mut Meter) -> Result<List<'a>, EvalError> {
        if let Some(rule) = self.rule() {
            return self.merge(other, rule, meter);
        }
        if other.is_empty() {
            return Ok(self.clone());
        }
        let len = self.len().checked_add(other.len()).ok_or(EvalError::CallCost)?;
        let joins = self.joins().max(other.joins()) + 1;
        if len > COPY_BELOW && joins <= MAX_JOINS {
            let depth = self.depth().max(other.depth());
            let join = Join { left: self.clone(), right: other.clone(), len, joins, depth };
            return Ok(List(Repr::Join(Arc::new(join))));
        }
        if len > COPY_BELOW {
            if len > MAX_COPY {
                return Err(EvalError::CallCost);
            }
            meter.charge(len as u64)?;
        }
        let mut values = Vec::with_capacity(len);
        for value in self.iter().chain(other.iter()) {
            values.push(value?);
        }
        List::new(values)
    }

    fn merge(&self, other: &List<'a>, rule: &'a ListKind, meter: &mut Meter) -> Result<List<'a>, EvalError> {
        let mut values: Vec<Value<'a>> = self.iter().collect::<Result<_, _>>()?;
        for value in other.iter() {
            let value = value?;
            let mut same = None;
            for (at, known) in values.iter().enumerate() {
                meter.work(1)?;
                if super::equal::same_element(known, &value, rule, meter)? {
                    same = Some(at);
                    break;
                }
            }
            match (same, rule) {
                (None, _) => values.push(value),
                (Some(at), ListKind::Map(_)) => values[at] = value,
                (Some(_), _) => {}
            }
        }
        List::with_rule(values, Some(rule))
    }
}

/// The elements in order. Goes through joins once, where `get` would for each element.
pub struct Iter<'l, 'a> {
    /// What is still to come, next last.
    pending: Vec<&'l List<'a>>,
    /// The place in the last of them.
    at: usize,
}

impl<'a> Iterator for Iter<'_, 'a> {
    type Item = Result<Value<'a>, EvalError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let list = *self.pending.last()?;
            if let Repr::Join(join) = &list.0 {
                self.pending.pop();
                self.pending.extend([&join.right, &join.left]);
                continue;
            }
            match list.get(self.at) {
                Some(value) => {
                    self.at += 1;
                    return Some(value);
                }
                None => {
                    self.pending.pop();
                    self.at = 0;
                }
            }
        }
    }
}
