//! The bodies of all functions, by subject. What they may be called with is in `overloads.txt`; a body still
//! looks at what it got, since types may be dynamic, and answers "no such overload" as cel-go does.

mod authz;
mod format;
mod lists;
mod named;
mod net;
mod optional;
mod quantity;
mod regexes;
mod semver;
mod standard;
mod strings;
pub(crate) mod time;
mod url;

pub(crate) use format::{Clause, Piece, pieces, refusal};
pub use named::NamedFormat;
pub(crate) use regexes::{MAX_WEIGHT, Pattern};
pub use semver::Semver;
pub(crate) use standard::{index, insert};
pub use url::Url;

use crate::eval::{EvalError, Meter, Outcome};
use crate::plan::Call;
use crate::value::Value;

pub(crate) type Body = for<'a, 'c> fn(&mut Meter, &'c Call, &[Value<'a>]) -> Outcome<'a>;

/// The longest text a function makes. Some make one much longer than what they are charged for.
pub(crate) const MAX_TEXT_BYTES: usize = 16 * 1024 * 1024;

/// The body of a function, and its name for good.
pub(crate) fn body(function: &str) -> Option<(&'static str, Body)> {
    let tables: [&[(&'static str, Body)]; 11] = [
        standard::BODIES,
        strings::BODIES,
        lists::BODIES,
        optional::BODIES,
        regexes::BODIES,
        time::BODIES,
        url::BODIES,
        net::BODIES,
        quantity::BODIES,
        semver::BODIES,
        named::BODIES,
    ];
    let tables = tables.into_iter().chain([authz::BODIES]);
    tables.flatten().find(|(name, _)| *name == function).copied()
}

/// No overload of the function takes these.
fn no_overload<'a>(call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let types: Vec<&str> = args.iter().map(Value::type_name).collect();
    Err(EvalError::failed(format!("no such overload: {}({})", call.function, types.join(", "))))
}
