//! Functions of regular expressions. What patterns mean is in `go_regex`.

use regex::Regex;

use super::{Body, no_overload};
use crate::eval::{EvalError, Meter, Outcome, bool_value, text_value};
use crate::go_regex;
use crate::plan::Call;
use crate::value::{List, Value};

#[derive(Debug, Clone)]
pub(crate) struct Pattern(Regex);

/// States that all constant patterns of an expression may have together: they are kept with it.
pub(crate) const MAX_WEIGHT: u64 = 200_000;

impl Pattern {
    pub fn new(pattern: &str) -> Result<Pattern, EvalError> {
        go_regex::compile(pattern).map(Pattern).map_err(EvalError::failed)
    }
}

pub(super) const BODIES: &[(&str, Body)] = &[("matches", matches), ("find", find), ("findAll", find_all)];

/// With the pattern compiled beforehand, or compiled now.
fn with<'a>(
    meter: &mut Meter,
    call: &Call,
    pattern: &str,
    found: impl FnOnce(&Regex) -> Outcome<'a>,
) -> Outcome<'a> {
    if let Some(pattern) = &call.pattern {
        return found(&pattern.0);
    }
    match meter.pattern(pattern) {
        Ok(pattern) => found(&pattern.0),
        Err(err) if err.is_final() => Err(err),
        Err(err) if call.function == "matches" => Err(err),
        Err(err) => Err(EvalError::failed(format!("Illegal regex: {err}"))),
    }
}

fn matches<'a>(meter: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::String(pattern)] => {
            with(meter, call, pattern, |regex| bool_value(regex.is_match(text)))
        }
        _ => no_overload(call, args),
    }
}

fn find<'a>(meter: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::String(pattern)] => with(meter, call, pattern, |regex| {
            text_value(regex.find(text).map_or("", |found| found.as_str()))
        }),
        _ => no_overload(call, args),
    }
}

fn find_all<'a>(meter: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, pattern, limit) = match args {
        [Value::String(text), Value::String(pattern)] => (text, pattern, -1),
        [Value::String(text), Value::String(pattern), Value::Int(limit)] => (text, pattern, *limit),
        _ => return no_overload(call, args),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut steps = 0;
    let found = with(meter, call, pattern, |regex| {
        let mut parts = Vec::new();
        let mut before = None;
        for found in regex.find_iter(text) {
            if parts.len() >= limit {
                break;
            }
            // Go drops an empty match right behind another match.
            if found.is_empty() && before == Some(found.start()) {
                continue;
            }
            before = Some(found.end());
            steps += 4 + found.as_str().len() as u64 / 2;
            parts.push(found.as_str().to_owned());
        }
        Ok(Value::List(List::texts(parts)))
    });
    meter.work(steps)?;
    found
}
