//! Which functions there are: read once from `overloads.txt`, which is the list to look at.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::types::Type;

#[derive(Debug)]
pub(crate) struct Overload {
    pub id: &'static str,
    /// Called upon a value, which is the first argument.
    pub member: bool,
    pub args: Vec<Type>,
    pub result: Type,
    /// How many type variables it has; they are `Param(0)` and up.
    pub params: u32,
}

type Functions = HashMap<&'static str, Vec<Overload>>;

pub(crate) fn functions() -> &'static Functions {
    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let mut functions = Functions::new();
        for line in include_str!("overloads.txt").lines() {
            if let Some((function, overload)) = read(line) {
                functions.entry(function).or_default().push(overload);
            }
        }
        functions
    })
}

/// None for empty lines and comments. The tests see to it that every other line can be read.
fn read(line: &'static str) -> Option<(&'static str, Overload)> {
    if line.starts_with('#') {
        return None;
    }
    let (head, rest) = line.split_once('(')?;
    let mut depth = 1i32;
    let end = rest.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    })?;
    let (args, result) = (&rest[..end], &rest[end + 1..]);
    let mut head = head.split_whitespace();
    let (function, id) = (head.next()?, head.next()?);
    let member = head.next() == Some(".");
    let args: Vec<Type> = split(args).iter().map(|arg| read_type(arg)).collect::<Option<_>>()?;
    let result = read_type(result.trim())?;
    let params = args.iter().chain([&result]).map(params).max().unwrap_or(0);
    Some((function, Overload { id, member, args, result, params }))
}

/// At commas outside of brackets.
fn split(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0i32, 0);
    for (at, c) in list.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = list[start..].trim();
    if !last.is_empty() {
        parts.push(last);
    }
    parts
}

fn params(ty: &Type) -> u32 {
    match ty {
        Type::Param(id) => id + 1,
        Type::List(one) | Type::Optional(one) | Type::Type(one) => params(one),
        Type::Map(key, value) => params(key).max(params(value)),
        _ => 0,
    }
}

fn read_type(text: &'static str) -> Option<Type> {
    if let Some((outer, inner)) = text.split_once('(') {
        let inner = split(inner.strip_suffix(')')?);
        let mut inner = inner.into_iter().map(read_type);
        let first = Arc::new(inner.next()??);
        return Some(match outer {
            "list" => Type::List(first),
            "optional" => Type::Optional(first),
            "type" => Type::Type(first),
            "map" => Type::Map(first, Arc::new(inner.next()??)),
            _ => return None,
        });
    }
    Some(match text {
        "A" => Type::Param(0),
        "B" => Type::Param(1),
        "dyn" => Type::Dyn,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        name if name.contains('.') => Type::Opaque(name),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read() {
        for line in include_str!("overloads.txt").lines() {
            assert!(line.is_empty() || line.starts_with('#') || read(line).is_some(), "{line}");
        }
        let spelt = |function: &str, at: usize| {
            let overload = &functions()[function][at];
            format!(
                "{:?} {:?} {}",
                overload.args.iter().map(ToString::to_string).collect::<Vec<_>>(),
                overload.member,
                overload.result
            )
        };
        assert_eq!(spelt("_[_]", 1), r#"["map(_var0, _var1)", "_var0"] false _var1"#);
        assert_eq!(spelt("getQuery", 0), r#"["kubernetes.URL"] true map(string, list(string))"#);
        assert_eq!(spelt("optional.none", 0), r#"[] false optional_type(_var0)"#);
    }

    /// What is declared can also be called.
    #[test]
    fn every_function_has_a_body() {
        for function in functions().keys() {
            assert!(crate::plan::is_known(function), "{function}");
        }
    }
}
