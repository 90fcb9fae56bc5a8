//! Texts: cel-go's strings extension, version 2. Positions are characters.

use super::{Body, no_overload};
use crate::eval::{EvalError, Meter, Outcome, text_value};
use crate::plan::Call;
use crate::value::{List, Value};

pub(super) const BODIES: &[(&str, Body)] = &[
    ("charAt", |_, call, args| match args {
        [Value::String(text), Value::Int(at)] => {
            let chars = chars(text);
            match usize::try_from(*at).ok().filter(|at| *at <= chars.len()) {
                Some(at) => text_value(chars.get(at).map(char::to_string).unwrap_or_default()),
                None => out_of_range(*at),
            }
        }
        _ => no_overload(call, args),
    }),
    ("lowerAscii", |_, call, args| match args {
        [Value::String(text)] => text_value(text.to_ascii_lowercase()),
        _ => no_overload(call, args),
    }),
    ("upperAscii", |_, call, args| match args {
        [Value::String(text)] => text_value(text.to_ascii_uppercase()),
        _ => no_overload(call, args),
    }),
    ("trim", |_, call, args| match args {
        [Value::String(text)] => text_value(text.trim()),
        _ => no_overload(call, args),
    }),
    ("replace", replace),
    ("split", split),
    ("substring", substring),
    ("join", join),
    ("strings.quote", |_, call, args| match args {
        [Value::String(text)] => text_value(quote(text)),
        _ => no_overload(call, args),
    }),
    ("format", |meter, call, args| match args {
        [Value::String(text), Value::List(list)] => {
            super::format::format(text, list, meter).and_then(text_value)
        }
        _ => no_overload(call, args),
    }),
    ("jsonpatch.escapeKey", |_, call, args| match args {
        [Value::String(text)] => text_value(text.replace('~', "~0").replace('/', "~1")),
        _ => no_overload(call, args),
    }),
];

fn chars(text: &str) -> Vec<char> {
    text.chars().collect()
}

fn out_of_range<'a>(at: i64) -> Outcome<'a> {
    Err(EvalError::failed(format!("index out of range: {at}")))
}

/// `indexOf` and `lastIndexOf` of texts; the same of lists is in `lists`.
pub(super) fn position<'a>(
    meter: &mut Meter,
    text: &str,
    part: &str,
    from: Option<i64>,
    last: bool,
) -> Outcome<'a> {
    let (text, part) = (chars(text), chars(part));
    if part.is_empty() {
        let end = if last { text.len() } else { 0 };
        return Ok(Value::Int(from.unwrap_or(i64::try_from(end).unwrap_or(0))));
    }
    if last && from.is_none() && text.len() < part.len() {
        return Ok(Value::Int(-1));
    }
    let start = match (from, last) {
        (Some(from), _) => from,
        (None, false) => 0,
        (None, true) => i64::try_from(text.len()).unwrap_or(0) - 1,
    };
    let Ok(start) = usize::try_from(start) else { return out_of_range(start) };
    if start >= text.len() || part.len() > text.len() {
        return Ok(Value::Int(-1));
    }
    // At most the product of the two, which upstream does not charge for.
    meter.work((text.len() as u64).saturating_mul(part.len() as u64) / 64)?;
    let fits = |at: &usize| text[*at..].starts_with(&part);
    let end = text.len() - part.len();
    let found =
        if last { (0..=start.min(end)).rev().find(fits) } else { (start..=end.max(start)).find(fits) };
    Ok(Value::Int(found.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1)))
}

fn replace<'a>(meter: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, old, new, limit) = match args {
        [Value::String(text), Value::String(old), Value::String(new)] => (text, old, new, -1),
        [Value::String(text), Value::String(old), Value::String(new), Value::Int(limit)] => {
            (text, old, new, *limit)
        }
        _ => return no_overload(call, args),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let count = text.matches(old.as_str()).count().min(limit);
    meter.produce(text.len().saturating_add(count.saturating_mul(new.len())))?;
    text_value(text.replacen(old.as_str(), new, limit))
}

fn split<'a>(meter: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, separator, limit) = match args {
        [Value::String(text), Value::String(separator)] => (text, separator, -1),
        [Value::String(text), Value::String(separator), Value::Int(limit)] => (text, separator, *limit),
        _ => return no_overload(call, args),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let parts: Vec<String> = if limit == 0 {
        Vec::new()
    } else if separator.is_empty() {
        // Into characters, as Go does: the last part holds what is beyond the limit.
        let mut parts: Vec<String> = Vec::new();
        for (count, c) in text.chars().enumerate() {
            match parts.last_mut() {
                Some(last) if count >= limit => last.push(c),
                _ => parts.push(c.to_string()),
            }
        }
        parts
    } else {
        text.splitn(limit, separator.as_str()).map(str::to_owned).collect()
    };
    meter.work(4 * parts.len() as u64)?;
    Ok(Value::List(List::texts(parts)))
}

fn substring<'a>(_: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let (text, start, end) = match args {
        [Value::String(text), Value::Int(start)] => (text, *start, None),
        [Value::String(text), Value::Int(start), Value::Int(end)] => (text, *start, Some(*end)),
        _ => return no_overload(call, args),
    };
    if let Some(end) = end
        && start > end
    {
        let message = format!("invalid substring range. start: {start}, end: {end}");
        return Err(EvalError::failed(message));
    }
    let chars = chars(text);
    let place = |at: i64| usize::try_from(at).ok().filter(|at| *at <= chars.len());
    let Some(from) = place(start) else { return out_of_range(start) };
    let to = match end {
        None => chars.len(),
        Some(end) => match place(end) {
            Some(to) => to,
            None => return out_of_range(end),
        },
    };
    text_value(chars[from..to].iter().collect::<String>())
}

fn join<'a>(meter: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(separator)] => (list, separator.as_str()),
        _ => return no_overload(call, args),
    };
    let mut joined = String::new();
    for (at, item) in list.iter().enumerate() {
        meter.work(1)?;
        if at > 0 {
            joined.push_str(separator);
        }
        match item? {
            Value::String(text) => joined.push_str(&text),
            other => return Err(EvalError::failed(format!("join: invalid input: {other}"))),
        }
        if joined.len() > super::MAX_TEXT_BYTES {
            break;
        }
    }
    meter.produce(joined.len())?;
    text_value(joined)
}

/// As a literal of CEL.
fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
