//! The tree an expression is parsed into, and checked as.
//!
//! Every node has an id; places, types and resolved overloads are kept in tables by id. A node also knows
//! how deep it is: everything that walks the tree recurses, and an expression comes from a stranger.

use std::sync::Arc;

use crate::value::Value;

pub(crate) type Id = u32;

#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub id: Id,
    /// Levels below and including this node.
    pub depth: u16,
    /// As `depth`, but counting what cel-go counts towards its own limit.
    pub visits: u16,
    pub kind: Kind,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Stands where an issue was reported.
    Broken,
    Literal(Value<'static>),
    Ident(Arc<str>),
    Select {
        operand: Box<Expr>,
        field: Arc<str>,
        test: bool,
    },
    Call {
        function: Arc<str>,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    List {
        items: Vec<Expr>,
        optional: Vec<bool>,
    },
    Map(Vec<Entry>),
    Struct {
        name: Arc<str>,
        fields: Vec<StructField>,
    },
    Fold(Box<Fold>),
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub key: Expr,
    pub value: Expr,
    pub optional: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct StructField {
    pub id: Id,
    pub name: Arc<str>,
    pub value: Expr,
    pub optional: bool,
}

/// What all macros that loop or bind become.
#[derive(Debug, Clone)]
pub(crate) struct Fold {
    pub range: Expr,
    pub var: Arc<str>,
    pub var2: Option<Arc<str>>,
    pub accu: Arc<str>,
    pub init: Expr,
    pub condition: Expr,
    pub step: Expr,
    pub result: Expr,
}

impl Fold {
    /// `cel.bind`, `optMap` and the like: no loop, only a name for a value.
    pub fn is_bind(&self) -> bool {
        matches!(&self.range.kind, Kind::List { items, .. } if items.is_empty())
            && matches!(self.condition.kind, Kind::Literal(Value::Bool(false)))
            && &*self.accu != ACCUMULATOR
    }
}

/// The accumulator of looping macros. No identifier can be spelt like it, so none can collide with it.
pub(crate) const ACCUMULATOR: &str = "@result";

impl Expr {
    pub fn new(id: Id, kind: Kind) -> Expr {
        let (mut depth, mut visits) = (0u16, 0u16);
        let mut see = |child: &Expr| {
            depth = depth.max(child.depth);
            visits = visits.max(child.visits);
        };
        match &kind {
            Kind::Broken | Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => see(operand),
            Kind::Call { target, args, .. } => {
                target.iter().for_each(|target| see(target));
                args.iter().for_each(see);
            }
            Kind::List { items, .. } => items.iter().for_each(see),
            Kind::Map(entries) => entries.iter().for_each(|entry| {
                see(&entry.key);
                see(&entry.value);
            }),
            Kind::Struct { fields, .. } => fields.iter().for_each(|field| see(&field.value)),
            Kind::Fold(fold) => {
                for part in [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result] {
                    see(part);
                }
            }
        }
        Expr { id, depth: depth.saturating_add(1), visits, kind }
    }

    /// `a.b.c` as one name, if it is nothing but names.
    pub fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.to_string()),
            Kind::Select { operand, field, test: false } => {
                let mut name = crate::stack::deep(|| operand.qualified_name())?;
                name.push('.');
                name.push_str(field);
                Some(name)
            }
            _ => None,
        }
    }

    /// Calls `visit` for this node and all below it.
    pub fn walk<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        crate::stack::deep(|| self.walked(visit));
    }
    fn walked<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        visit(self);
        match &self.kind {
            Kind::Broken | Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => operand.walk(visit),
            Kind::Call { target, args, .. } => {
                if let Some(target) = target {
                    target.walk(visit);
                }
                args.iter().for_each(|arg| arg.walk(visit));
            }
            Kind::List { items, .. } => items.iter().for_each(|item| item.walk(visit)),
            Kind::Map(entries) => entries.iter().for_each(|entry| {
                entry.key.walk(visit);
                entry.value.walk(visit);
            }),
            Kind::Struct { fields, .. } => fields.iter().for_each(|field| field.value.walk(visit)),
            Kind::Fold(fold) => {
                for part in [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result] {
                    part.walk(visit);
                }
            }
        }
    }
}

/// Operators under the names that cel-go gives their functions: messages name them so.
pub(crate) mod op {
    pub const CONDITIONAL: &str = "_?_:_";
    pub const AND: &str = "_&&_";
    pub const OR: &str = "_||_";
    pub const NOT: &str = "!_";
    pub const NEGATE: &str = "-_";
    pub const EQUALS: &str = "_==_";
    pub const NOT_EQUALS: &str = "_!=_";
    pub const LESS: &str = "_<_";
    pub const LESS_EQUALS: &str = "_<=_";
    pub const GREATER: &str = "_>_";
    pub const GREATER_EQUALS: &str = "_>=_";
    pub const ADD: &str = "_+_";
    pub const SUBTRACT: &str = "_-_";
    pub const MULTIPLY: &str = "_*_";
    pub const DIVIDE: &str = "_/_";
    pub const MODULO: &str = "_%_";
    pub const INDEX: &str = "_[_]";
    pub const OPT_INDEX: &str = "_[?_]";
    pub const OPT_SELECT: &str = "_?._";
    pub const IN: &str = "@in";
    pub const NOT_STRICTLY_FALSE: &str = "@not_strictly_false";
    pub const MAP_INSERT: &str = "cel.@mapInsert";
}
