//! Values: cheap to clone, and JSON is borrowed, never copied.
//!
//! [`Value::from_json`] reads JSON as it comes, [`Value::typed`] by a declaration. Both look at no more than
//! the outermost level; what is inside is read when asked for.
//! How values compare is in `equal`, how lists and maps are held in `list` and `map`.

mod equal;
mod json;
mod list;
mod map;
mod show;

use std::net::IpAddr;
use std::sync::Arc;

use api_machinery::Quantity;

use crate::authorize::AuthorizerValue;
use crate::eval::EvalError;
use crate::library::{NamedFormat, Semver, Url};

pub(crate) use equal::{compare, equal, is_zero};
pub use json::ConvertError;
pub use list::{Iter as ListIter, List};
pub(crate) use map::Entries;
pub use map::{Key, Map};
pub(crate) use show::{format_double, quote_go};

/// Lists in lists and the like that an expression builds itself. Values are dropped and compared by recursion.
pub(crate) const MAX_VALUE_DEPTH: u16 = 200;

#[derive(Debug, Clone)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    Timestamp(Time),
    /// Nanoseconds.
    Duration(i64),
    List(List<'a>),
    Map(Map<'a>),
    /// What `Object{...}` or `JSONPatch{...}` makes.
    Struct(Arc<Struct<'a>>),
    Optional(Option<Arc<Value<'a>>>),
    /// A type, by its name.
    Type(Text<'a>),
    Opaque(Arc<Opaque>),
}

#[derive(Debug, Clone)]
pub enum Text<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

impl Text<'_> {
    pub fn as_str(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl std::ops::Deref for Text<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

/// A moment, with the offset it was written in, since `string()` writes it so again.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    /// Since 1970.
    pub seconds: i64,
    pub nanos: u32,
    pub offset_seconds: i32,
}

#[derive(Debug)]
pub struct Struct<'a> {
    pub name: Arc<str>,
    pub fields: Vec<(Arc<str>, Value<'a>)>,
    pub(crate) depth: u16,
}

impl<'a> Struct<'a> {
    pub(crate) fn new(name: Arc<str>, fields: Vec<(Arc<str>, Value<'a>)>) -> Result<Struct<'a>, EvalError> {
        let depth = map::depth_of(fields.iter().map(|(_, value)| value))?;
        Ok(Struct { name, fields, depth })
    }
    pub fn get(&self, field: &str) -> Option<&Value<'a>> {
        self.fields.iter().find(|(name, _)| &**name == field).map(|(_, value)| value)
    }
}

/// Values of the libraries' own types.
#[derive(Debug)]
pub enum Opaque {
    Url(Url),
    Ip(IpAddr),
    /// Address as written, and how many bits of it are the network's.
    Cidr(IpAddr, u8),
    Quantity(Quantity),
    Semver(Semver),
    Format(&'static NamedFormat),
    Authorizer(AuthorizerValue),
}

impl Opaque {
    pub fn type_name(&self) -> &'static str {
        match self {
            Opaque::Url(_) => "kubernetes.URL",
            Opaque::Ip(_) => "net.IP",
            Opaque::Cidr(..) => "net.CIDR",
            Opaque::Quantity(_) => "kubernetes.Quantity",
            Opaque::Semver(_) => "kubernetes.Semver",
            Opaque::Format(_) => "kubernetes.NamedFormat",
            Opaque::Authorizer(value) => value.type_name(),
        }
    }
}

impl<'a> Value<'a> {
    pub fn text(text: impl Into<Arc<str>>) -> Value<'a> {
        Value::String(Text::Shared(text.into()))
    }
    pub fn some(value: Value<'a>) -> Value<'a> {
        Value::Optional(Some(Arc::new(value)))
    }
    pub(crate) fn opaque(value: Opaque) -> Value<'a> {
        Value::Opaque(Arc::new(value))
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// Whether every `Object.a.b{...}` stands where its name says; what is wrong is said as upstream says it.
    /// Mutating policies require it of what they apply.
    pub fn check_type_names(&self) -> Result<(), String> {
        let mut wrong = Vec::new();
        let path = match self {
            Value::Struct(value) => value.name.to_string(),
            _ => return Ok(()),
        };
        names_in(self, &path, &mut wrong);
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    /// What `type(x)` is called.
    pub fn type_name(&self) -> &str {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::String(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::List(_) => "list",
            Value::Map(_) => "map",
            Value::Struct(value) => &value.name,
            Value::Optional(_) => "optional_type",
            Value::Type(_) => "type",
            Value::Opaque(value) => value.type_name(),
        }
    }

    /// Characters, bytes, elements or entries; one for what has no size, as cel-go counts for costs.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Value::String(text) => char_count(text),
            Value::Bytes(bytes) => bytes.len() as u64,
            Value::List(list) => list.len() as u64,
            Value::Map(map) => map.len() as u64,
            Value::Optional(Some(value)) => value.size(),
            Value::Opaque(value) => match &**value {
                Opaque::Ip(ip) => ip_bytes(ip),
                Opaque::Cidr(_, bits) => u64::from(*bits).div_ceil(8),
                _ => 1,
            },
            _ => 1,
        }
    }

    /// Levels of what the expression itself built.
    pub(crate) fn depth(&self) -> u16 {
        match self {
            Value::List(list) => list.depth(),
            Value::Map(map) => map.depth(),
            Value::Struct(value) => value.depth,
            Value::Optional(Some(value)) => value.depth().saturating_add(1),
            _ => 0,
        }
    }
}

fn char_count(text: &str) -> u64 {
    if text.is_ascii() { text.len() as u64 } else { text.chars().count() as u64 }
}

fn ip_bytes(ip: &IpAddr) -> u64 {
    match ip {
        IpAddr::V4(_) => 4,
        IpAddr::V6(_) => 16,
    }
}

fn names_in(value: &Value<'_>, path: &str, wrong: &mut Vec<String>) {
    // No more is worth saying, and parts that are shared would be said again and again.
    const MAX_WRONG: usize = 100;
    if wrong.len() >= MAX_WRONG {
        return;
    }
    crate::stack::deep(|| match value {
        Value::Struct(value) => {
            if *value.name != *path {
                let (name, path) = (quote_go(&value.name), quote_go(path));
                wrong.push(format!(
                    "unexpected type name {name}, expected {path}, which matches field name path from root Object type"
                ));
            }
            for (field, value) in &value.fields {
                names_in(value, &format!("{path}.{field}"), wrong);
            }
        }
        Value::List(list) if list.depth() > 0 => {
            for value in list.iter().flatten() {
                names_in(&value, path, wrong);
            }
        }
        Value::Map(map) if map.depth() > 0 => {
            for value in map.keys().iter().filter_map(|key| map.get(key)?.ok()) {
                names_in(&value, path, wrong);
            }
        }
        _ => {}
    });
}
