//! What an expression may speak of.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::decl::{Decl, Field, ObjectType};
use crate::parser::Dialect;
use crate::types::Type;

/// Variables, functions and types of an expression. Cheap to clone; each step of building makes a new one.
#[derive(Debug, Clone)]
pub struct Env(Arc<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    variables: BTreeMap<String, Variable>,
    dialect: Dialect,
    /// `Object{...}`, `JSONPatch{...}` and `jsonpatch.escapeKey` of mutating policies.
    mutation: bool,
    /// Constants are computed when the program is made, and then cost nothing. Upstream does so everywhere
    /// but in some of its own tests of costs.
    folds_constants: bool,
    json_patch: Arc<ObjectType>,
}

#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub ty: Type,
    pub decl: Option<Arc<Decl>>,
}

impl Env {
    /// All that Kubernetes 1.36 gives to every expression: the standard functions and its libraries.
    /// Source: `k8s.io/apiserver/pkg/cel/environment/base.go`.
    pub fn kubernetes() -> Env {
        let field = |decl: Decl| Field { decl: Arc::new(decl), required: false };
        let fields = [
            ("op".to_owned(), field(Decl::string(None))),
            ("path".to_owned(), field(Decl::string(None))),
            ("from".to_owned(), field(Decl::string(None))),
            ("value".to_owned(), field(Decl::dynamic())),
        ];
        let json_patch = ObjectType { name: "JSONPatch".to_owned(), fields: fields.into(), open: false };
        Env(Arc::new(Inner {
            variables: BTreeMap::new(),
            dialect: Dialect { bindings: false },
            mutation: false,
            folds_constants: true,
            json_patch: Arc::new(json_patch),
        }))
    }

    fn with(self, change: impl FnOnce(&mut Inner)) -> Env {
        let mut inner = Arc::unwrap_or_clone(self.0);
        change(&mut inner);
        Env(Arc::new(inner))
    }

    pub fn variable(self, name: &str, ty: Type) -> Env {
        self.with(|inner| {
            inner.variables.insert(name.to_owned(), Variable { ty, decl: None });
        })
    }
    /// A variable of which also the sizes are known, for the estimate of costs.
    pub fn declared(self, name: &str, decl: Arc<Decl>) -> Env {
        let ty = decl.ty.clone();
        self.declared_as(name, ty, decl)
    }
    /// As `declared`, with a type of its own: an optional of it.
    pub fn declared_as(self, name: &str, ty: Type, decl: Arc<Decl>) -> Env {
        self.with(|inner| {
            inner.variables.insert(name.to_owned(), Variable { ty, decl: Some(decl) });
        })
    }
    /// Adds what mutating policies have: `Object{...}`, `JSONPatch{...}`, `jsonpatch.escapeKey`.
    pub fn mutation(self) -> Env {
        self.with(|inner| inner.mutation = true)
    }
    /// Adds `cel.bind`, which Kubernetes does not have.
    pub fn bindings(self) -> Env {
        self.with(|inner| inner.dialect.bindings = true)
    }
    /// Leaves constants to be computed at each evaluation, and charged: only to compare costs with those
    /// upstream's tests note.
    pub fn without_folded_constants(self) -> Env {
        self.with(|inner| inner.folds_constants = false)
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.0.dialect
    }
    pub(crate) fn folds_constants(&self) -> bool {
        self.0.folds_constants
    }
    pub(crate) fn find(&self, name: &str) -> Option<&Variable> {
        self.0.variables.get(name)
    }
    /// What upstream's estimate takes the sizes of names from that have no declaration: that of the root,
    /// whichever name it is.
    pub(crate) fn root(&self) -> Option<&Decl> {
        self.0.variables.values().find_map(|variable| variable.decl.as_deref())
    }
    pub(crate) fn has_function(&self, name: &str) -> bool {
        self.0.mutation || name != "jsonpatch.escapeKey"
    }

    /// The type that a name stands for.
    pub(crate) fn type_named(&self, name: &str) -> Option<Type> {
        Some(match name {
            "bool" => Type::Bool,
            "bytes" => Type::Bytes,
            "double" => Type::Double,
            "int" => Type::Int,
            "uint" => Type::Uint,
            "string" => Type::String,
            "list" => Type::list(Type::Dyn),
            "map" => Type::map(Type::Dyn, Type::Dyn),
            "null_type" => Type::Null,
            "type" => Type::type_of(Type::Error),
            "google.protobuf.Timestamp" => Type::Timestamp,
            "google.protobuf.Duration" => Type::Duration,
            "optional_type" => Type::optional(Type::Dyn),
            "net.IP" => Type::Opaque("net.IP"),
            "net.CIDR" => Type::Opaque("net.CIDR"),
            "JSONPatch" if self.0.mutation => Type::Object(self.0.json_patch.clone()),
            _ if self.0.mutation && (name == "Object" || name.starts_with("Object.")) => {
                let open = ObjectType { name: name.to_owned(), fields: BTreeMap::new(), open: true };
                Type::Object(Arc::new(open))
            }
            _ => return None,
        })
    }
}
