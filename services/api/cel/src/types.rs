//! Types as the checker knows them.

use std::fmt;
use std::sync::Arc;

use crate::decl::ObjectType;

/// The type of an expression.
#[derive(Debug, Clone)]
pub enum Type {
    /// Anything: what it is shows when it is evaluated.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    Object(Arc<ObjectType>),
    Optional(Arc<Type>),
    /// The type of a type.
    Type(Arc<Type>),
    /// One of the libraries', which have functions and no fields: `kubernetes.URL`, `net.IP`, …
    Opaque(&'static str),
    /// A type variable.
    Param(u32),
    /// Stands where an issue was reported; fits everywhere, so that there is no second one.
    Error,
}

impl Type {
    pub fn list(item: Type) -> Type {
        Type::List(Arc::new(item))
    }
    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new(key), Arc::new(value))
    }
    pub fn optional(of: Type) -> Type {
        Type::Optional(Arc::new(of))
    }
    pub(crate) fn type_of(of: Type) -> Type {
        Type::Type(Arc::new(of))
    }

    pub fn is_dyn(&self) -> bool {
        matches!(self, Type::Dyn)
    }
    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }

    /// What `type(x)` of such a value is.
    pub(crate) fn runtime_name(&self) -> &str {
        match self {
            Type::Dyn | Type::Param(_) => "dyn",
            Type::Null => "null_type",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Timestamp => "google.protobuf.Timestamp",
            Type::Duration => "google.protobuf.Duration",
            Type::List(_) => "list",
            Type::Map(..) => "map",
            Type::Object(object) => &object.name,
            Type::Optional(_) => "optional_type",
            Type::Type(_) => "type",
            Type::Opaque(name) => name,
            Type::Error => "!error!",
        }
    }

    /// The same type, parameters and all. `named` says whether type variables must be the same ones.
    pub(crate) fn same(&self, other: &Type, named: bool) -> bool {
        match (self, other) {
            (Type::List(one), Type::List(two))
            | (Type::Optional(one), Type::Optional(two))
            | (Type::Type(one), Type::Type(two)) => one.same(two, named),
            (Type::Map(key1, value1), Type::Map(key2, value2)) => {
                key1.same(key2, named) && value1.same(value2, named)
            }
            (Type::Object(one), Type::Object(two)) => Arc::ptr_eq(one, two) || one.name == two.name,
            (Type::Opaque(one), Type::Opaque(two)) => one == two,
            (Type::Param(one), Type::Param(two)) => !named || one == two,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// Nodes of the type, counted no further than `cap`.
    pub(crate) fn weight(&self, cap: usize) -> usize {
        match self {
            _ if cap == 0 => 0,
            Type::List(one) | Type::Optional(one) | Type::Type(one) => 1 + one.weight(cap - 1),
            Type::Map(key, value) => {
                let keys = key.weight(cap - 1);
                1 + keys + value.weight((cap - 1).saturating_sub(keys))
            }
            _ => 1,
        }
    }
}

impl PartialEq for Type {
    fn eq(&self, other: &Type) -> bool {
        self.same(other, true)
    }
}
impl Eq for Type {}

/// As cel-go's messages spell types.
impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Null => out.write_str("null"),
            Type::Timestamp => out.write_str("timestamp"),
            Type::Duration => out.write_str("duration"),
            Type::Param(id) => write!(out, "_var{id}"),
            Type::List(item) => write!(out, "list({item})"),
            Type::Map(key, value) => write!(out, "map({key}, {value})"),
            Type::Optional(of) => write!(out, "optional_type({of})"),
            Type::Type(of) if matches!(**of, Type::Error) => out.write_str("type"),
            Type::Type(of) => write!(out, "type({of})"),
            other => out.write_str(other.runtime_name()),
        }
    }
}
