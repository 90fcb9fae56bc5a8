//! What an expression may cost, estimated from what is declared of the sizes of its data.
//!
//! The rules for which of a CustomResourceDefinition is refused go by these numbers, so they are cel-go's
//! (`checker/cost.go`) to the unit; what Kubernetes adds by function is in `call`.

mod call;
mod range;

use std::collections::HashMap;
use std::sync::Arc;

use crate::ast::{ACCUMULATOR, Expr, Fold, Id, Kind, op};
use crate::checker::Checked;
use crate::decl::{Decl, Shape};
use crate::env::Env;
use crate::types::Type;
use crate::value::Value;

pub use range::CostRange;
use range::{Size, fixed};

type Path = Option<Arc<Vec<String>>>;

pub(crate) fn estimate(checked: &Checked, env: &Env) -> CostRange {
    let mut coster = Coster {
        checked,
        env,
        paths: HashMap::new(),
        locals: Vec::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
    };
    coster.cost(&checked.expr)
}

/// Sizes of the keys (or indices) and values of a container.
#[derive(Debug, Clone, Copy)]
struct EntrySize {
    is_list: bool,
    key: Size,
    value: Size,
}

impl EntrySize {
    fn union(one: Option<EntrySize>, two: Option<EntrySize>) -> Option<EntrySize> {
        let (one, two) = (one?, two?);
        Some(EntrySize {
            is_list: one.is_list,
            key: one.key.union(two.key),
            value: one.value.union(two.value),
        })
    }
}

/// A name of a macro.
struct Local {
    name: Arc<str>,
    path: Path,
    size: Option<Size>,
    entry: Option<EntrySize>,
}

struct Coster<'c> {
    checked: &'c Checked,
    env: &'c Env,
    paths: HashMap<Id, Arc<Vec<String>>>,
    locals: Vec<Local>,
    sizes: HashMap<Id, Size>,
    entries: HashMap<Id, EntrySize>,
}

/// An expression, or the elements of one, as functions look at it.
struct Node<'c> {
    expr: Option<&'c Expr>,
    ty: Type,
    path: Path,
    /// Known from the expression itself.
    computed: Option<Size>,
}

fn extended(path: &Path, part: &str) -> Path {
    let mut parts = path.as_ref().map(|path| path.to_vec()).unwrap_or_default();
    parts.push(part.to_owned());
    Some(Arc::new(parts))
}

impl<'c> Coster<'c> {
    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| &*local.name == name)
    }

    fn path(&self, expr: &Expr) -> Path {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned()
    }
    fn set_path(&mut self, expr: &Expr, path: Path) {
        match path {
            Some(path) => {
                self.paths.insert(expr.id, path);
            }
            None => {
                self.paths.remove(&expr.id);
            }
        }
    }

    fn node(&mut self, expr: &'c Expr) -> Node<'c> {
        // Only what leads back to a variable is a path; accumulators do not.
        let path = self.path(expr).filter(|path| path.first().is_none_or(|first| first != ACCUMULATOR));
        let computed = self.size(expr);
        Node { expr: Some(expr), ty: self.checked.type_of(expr.id).clone(), path, computed }
    }

    /// The elements of a list.
    fn elements(&self, list: &Node<'c>) -> Option<Node<'c>> {
        let ty = match &list.ty {
            Type::List(item) => (**item).clone(),
            Type::Map(key, _) => (**key).clone(),
            Type::Optional(of) => (**of).clone(),
            _ => return None,
        };
        let path = list.path.as_ref().and_then(|_| extended(&list.path, "@items"));
        Some(Node { expr: None, ty, path, computed: None })
    }

    /// What is declared of the data at a path.
    fn declared(&self, path: &Path) -> Option<Size> {
        let path = path.as_ref()?;
        let (variable, rest) = path.split_first()?;
        let own = self.env.find(variable).and_then(|variable| variable.decl.as_deref());
        let mut decl: &Decl = own.or_else(|| self.env.root())?;
        for part in rest {
            decl = match (part.as_str(), &decl.shape) {
                ("@items" | "@values", Shape::List { items, .. }) => items,
                ("@items" | "@values", Shape::Map { values }) => values,
                ("@items" | "@values", _) => return None,
                // Keys have no declaration of their own, and are as long as any text may be of nought.
                ("@keys", Shape::Map { .. }) => return Some(Size { min: 0, max: 0 }),
                (field, Shape::Object(object)) => &object.field(field)?.decl,
                _ => return None,
            };
        }
        Some(Size { min: 0, max: decl.max_elements })
    }

    /// The size a node is known to have, from wherever.
    fn size_of(&self, node: &Node<'c>) -> Size {
        node.computed.or_else(|| self.declared(&node.path)).unwrap_or(Size::UNKNOWN)
    }
    fn size_or_unknown(&mut self, expr: &Expr) -> Size {
        self.size(expr).unwrap_or(Size::UNKNOWN)
    }

    fn size(&mut self, expr: &Expr) -> Option<Size> {
        if let Some(size) = self.sizes.get(&expr.id) {
            return Some(*size);
        }
        match &expr.kind {
            Kind::Literal(Value::String(text)) => return Some(Size::fixed(text.chars().count() as u64)),
            Kind::Literal(Value::Bytes(bytes)) => return Some(Size::fixed(bytes.len() as u64)),
            Kind::Literal(_) => return Some(Size::fixed(1)),
            Kind::List { items, .. } => return Some(Size::fixed(items.len() as u64)),
            Kind::Map(entries) => return Some(Size::fixed(entries.len() as u64)),
            _ => {}
        }
        if let Some(size) = self.declared(&self.path(expr)) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if is_scalar(self.checked.type_of(expr.id)) {
            return Some(Size::fixed(1));
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }
    fn set_size(&mut self, expr: &Expr, size: Option<Size>) {
        if let Some(size) = size {
            self.sizes.insert(expr.id, size);
        }
    }

    fn entry(&self, expr: &Expr) -> Option<EntrySize> {
        if let Some(entry) = self.entries.get(&expr.id) {
            return Some(*entry);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.entry),
            _ => None,
        }
    }
    fn set_entry(&mut self, expr: &Expr, entry: Option<EntrySize>) {
        if let Some(entry) = entry {
            self.entries.insert(expr.id, entry);
        }
    }

    fn cost(&mut self, expr: &'c Expr) -> CostRange {
        crate::stack::deep(|| self.cost_of(expr))
    }
    fn cost_of(&mut self, expr: &'c Expr) -> CostRange {
        match &expr.kind {
            Kind::Broken | Kind::Literal(_) => fixed(0),
            Kind::Ident(name) => {
                let path = match self.local(name) {
                    Some(local) => local.path.clone(),
                    None => Some(Arc::new(vec![name.to_string()])),
                };
                self.set_path(expr, path);
                fixed(1)
            }
            Kind::Select { operand, field, test } => {
                let cost = self.cost(operand);
                if *test {
                    return cost;
                }
                let own = match self.checked.type_of(operand.id) {
                    Type::Map(..) | Type::Object(_) => 1,
                    _ => 0,
                };
                let path = extended(&self.path(operand), field);
                self.set_path(expr, path);
                cost.add(fixed(own))
            }
            Kind::Call { function, target, args } => self.call(expr, function, target.as_deref(), args),
            Kind::List { items, .. } => {
                let mut sum = fixed(0);
                let mut size = Size { min: if items.is_empty() { 0 } else { u64::MAX }, max: 0 };
                for item in items {
                    sum = sum.add(self.cost(item));
                    size = size.union(self.size_or_unknown(item));
                }
                self.set_entry(expr, Some(EntrySize { is_list: true, key: Size::fixed(1), value: size }));
                sum.add(fixed(crate::runtime_cost::LIST))
            }
            Kind::Map(entries) => {
                let mut sum = fixed(0);
                let least = if entries.is_empty() { 0 } else { u64::MAX };
                let (mut keys, mut values) = (Size { min: least, max: 0 }, Size { min: least, max: 0 });
                for entry in entries {
                    sum = sum.add(self.cost(&entry.key)).add(self.cost(&entry.value));
                    keys = keys.union(self.size_or_unknown(&entry.key));
                    values = values.union(self.size_or_unknown(&entry.value));
                }
                self.set_entry(expr, Some(EntrySize { is_list: false, key: keys, value: values }));
                sum.add(fixed(crate::runtime_cost::MAP))
            }
            Kind::Struct { fields, .. } => {
                let sum = fields.iter().fold(fixed(0), |sum, field| sum.add(self.cost(&field.value)));
                sum.add(fixed(crate::runtime_cost::STRUCT))
            }
            Kind::Fold(fold) if fold.is_bind() => self.bind(expr, fold),
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn push(&mut self, name: &Arc<str>, value: &Expr) {
        let path = self.path(value);
        let entry = self.entry(value);
        let size = self.size(value);
        self.locals.push(Local { name: name.clone(), path, size, entry });
    }

    fn bind(&mut self, expr: &'c Expr, fold: &'c Fold) -> CostRange {
        let cost = self.cost(&fold.range).add(self.cost(&fold.init));
        self.push(&fold.accu, &fold.init);
        let cost = cost.add(self.cost(&fold.result));
        // While the name still means something.
        let (size, entry) = (self.size(&fold.result), self.entry(&fold.result));
        self.locals.pop();
        self.set_size(expr, size);
        self.set_entry(expr, entry);
        cost
    }

    fn fold(&mut self, expr: &'c Expr, fold: &'c Fold) -> CostRange {
        let cost = self.cost(&fold.range).add(self.cost(&fold.init));
        self.push(&fold.accu, &fold.init);
        let entry = self.entry(&fold.range);
        let path = self.path(&fold.range);
        let is_list = match entry {
            Some(entry) => entry.is_list,
            None => matches!(self.checked.type_of(fold.range.id), Type::List(_)),
        };
        let (keys, values) = (entry.map(|entry| entry.key), entry.map(|entry| entry.value));
        let local = |name: &Arc<str>, part: &str, size| Local {
            name: name.clone(),
            path: extended(&path, part),
            size,
            entry: None,
        };
        let names = match &fold.var2 {
            Some(var2) if is_list => {
                vec![local(&fold.var, "@indices", keys), local(var2, "@items", values)]
            }
            Some(var2) => vec![local(&fold.var, "@keys", keys), local(var2, "@values", values)],
            None if is_list => vec![local(&fold.var, "@items", values)],
            None => vec![local(&fold.var, "@keys", keys)],
        };
        let outer = self.locals.len();
        self.locals.extend(names);
        let each = self.cost(&fold.condition);
        let each = self.cost(&fold.step).add(each);
        self.locals.truncate(outer);
        let cost = cost.add(self.cost(&fold.result));
        // The accumulator's name is known only up to here, and so is what the step makes of it.
        let step_entry = self.entry(&fold.step);
        self.locals.pop();
        let count = self.size_or_unknown(&fold.range);
        let cost = cost.add(count.times_cost(each));
        match &fold.init.kind {
            Kind::Literal(_) => {
                let size = self.size(&fold.init);
                self.set_size(expr, size);
            }
            Kind::List { .. } | Kind::Map(_) => {
                self.set_size(expr, Some(count));
                self.set_entry(expr, step_entry);
            }
            _ => {}
        }
        cost
    }

    fn call(
        &mut self,
        expr: &'c Expr,
        function: &str,
        target: Option<&'c Expr>,
        args: &'c [Expr],
    ) -> CostRange {
        if function == "dyn"
            && let Some(arg) = args.first()
        {
            let cost = self.cost(arg).add(fixed(1));
            let (size, entry) = (self.size(arg), self.entry(arg));
            self.set_size(expr, size);
            self.set_entry(expr, entry);
            return cost;
        }
        let mut costs = Vec::with_capacity(args.len());
        let mut nodes = Vec::with_capacity(args.len());
        for arg in args {
            costs.push(self.cost(arg));
            nodes.push(self.node(arg));
        }
        let target_cost = target.map_or(fixed(0), |target| self.cost(target));
        let target = target.map(|target| self.node(target));
        let overloads = self.checked.overloads(expr.id);
        let mut whole = CostRange { min: u64::MAX, max: 0 };
        let mut size: Option<Size> = None;
        for overload in overloads {
            let estimate = self.overload(expr, function, overload, target.as_ref(), &nodes, &costs);
            whole = whole.union(estimate.cost);
            if let Some(result) = estimate.size {
                size = Some(size.map_or(result, |size| size.union(result)));
            }
            if let ("index_list" | "index_map", Some(of)) = (*overload, args.first()) {
                size = self.entry(of).map(|entry| entry.value);
                let part = if *overload == "index_list" { "@items" } else { "@values" };
                let path = extended(&self.path(of), part);
                self.set_path(expr, path);
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        self.set_size(expr, size);
        if overloads.is_empty() { fixed(0) } else { target_cost.add(whole) }
    }
}

fn is_scalar(ty: &Type) -> bool {
    match ty {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        Type::Optional(of) => is_scalar(of),
        _ => false,
    }
}

/// Operators whose cost is that of what they look at.
fn is_logic(function: &str) -> bool {
    matches!(function, op::AND | op::OR)
}
