//! Regular expressions: RE2's syntax in upstream, the `regex` crate's here, linear both.
//!
//! The two differ little: `\z` is spelt alike, `\C` and `\Q..\E` are RE2's alone, and classes nest here
//! (`[a[b]]`), which RE2 reads as text; what can be translated is. In RE2 `\d`, `\w`, `\s` and `\b` are of
//! ASCII; here they are made so. Patterns that would take too much memory are refused.

use regex::{Regex, RegexBuilder};

use super::{Body, no_overload};
use crate::eval::{EvalError, Meter, Outcome, bool_value, text_value};
use crate::plan::Call;
use crate::value::{List, Value};

/// Bytes that one compiled pattern may take.
const MAX_COMPILED_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Pattern(Regex);

impl Pattern {
    pub fn new(pattern: &str) -> Result<Pattern, EvalError> {
        if let Some(why) = refused_by_re2(pattern) {
            return Err(EvalError::failed(format!("error parsing regexp: {why}")));
        }
        RegexBuilder::new(&translate(pattern))
            .size_limit(MAX_COMPILED_BYTES)
            .dfa_size_limit(MAX_COMPILED_BYTES)
            .nest_limit(200)
            .build()
            .map(Pattern)
            .map_err(|err| EvalError::failed(format!("error parsing regexp: {}", reason(pattern, &err))))
    }
}

/// As Go puts the commonest mistakes; otherwise in our crate's words.
fn reason(pattern: &str, err: &regex::Error) -> String {
    let text = err.to_string();
    for (ours, theirs) in [
        ("unclosed group", "missing closing )"),
        ("unopened group", "unexpected )"),
        ("unclosed character class", "missing closing ]"),
        ("repetition operator missing expression", "missing argument to repetition operator"),
        ("unrecognized escape sequence", "invalid escape sequence"),
        ("look-around", "invalid or unsupported Perl syntax"),
        ("backreferences", "invalid escape sequence"),
        ("invalid character class range", "invalid character class range"),
    ] {
        if text.contains(ours) {
            return format!("{theirs}: `{pattern}`");
        }
    }
    text.lines().last().unwrap_or("invalid").trim().to_owned()
}

/// Repetitions that the crate takes and RE2 does not: of a repetition, and of more than a thousand times.
fn refused_by_re2(pattern: &str) -> Option<String> {
    let bytes = pattern.as_bytes();
    let mut at = 0;
    let mut in_class = false;
    // Where the repetition began that ended just before.
    let mut before: Option<usize> = None;
    while let Some(byte) = bytes.get(at) {
        let start = at;
        let mut repeats = false;
        match byte {
            b'\\' if bytes.get(at + 1) == Some(&b'Q') && !in_class => {
                at += pattern[at..].find("\\E").unwrap_or(bytes.len() - at);
                at += 1;
            }
            b'\\' => at += 1,
            b'[' if !in_class => {
                in_class = true;
                at += usize::from(bytes.get(at + 1) == Some(&b'^'));
                at += usize::from(bytes.get(at + 1) == Some(&b']'));
            }
            b']' => in_class = false,
            b'*' | b'+' | b'?' if !in_class => repeats = at > 0 && bytes[at - 1] != b'(',
            b'{' if !in_class => {
                if let Some(len) = bytes[at..].iter().position(|byte| *byte == b'}')
                    && let Some(counts) = pattern.get(at + 1..at + len)
                    && counts.starts_with(|c: char| c.is_ascii_digit())
                    && counts.bytes().all(|byte| byte.is_ascii_digit() || byte == b',')
                {
                    repeats = true;
                    if counts
                        .split(',')
                        .any(|count| !count.is_empty() && count.parse().unwrap_or(1001) > 1000)
                    {
                        return Some(format!("invalid repeat count: `{{{counts}}}`"));
                    }
                    at += len;
                }
            }
            _ => {}
        }
        at += 1;
        if !repeats {
            before = None;
            continue;
        }
        if let Some(first) = before {
            return Some(format!(
                "invalid nested repetition operator: `{}`",
                pattern.get(first..at).unwrap_or("")
            ));
        }
        // One question mark more only says how much to take.
        at += usize::from(bytes.get(at) == Some(&b'?'));
        before = Some(start);
    }
    None
}

/// RE2 to the crate's syntax.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        let mut taken = c.len_utf8();
        match c {
            '\\' => {
                let escaped = rest[1..].chars().next();
                taken += escaped.map_or(0, char::len_utf8);
                match escaped {
                    Some('d') => out.push_str(if in_class { "0-9" } else { "[0-9]" }),
                    Some('D') if !in_class => out.push_str("[^0-9]"),
                    Some('w') => out.push_str(if in_class { "0-9A-Za-z_" } else { "[0-9A-Za-z_]" }),
                    Some('W') if !in_class => out.push_str("[^0-9A-Za-z_]"),
                    Some('s') => out.push_str(if in_class { "\\t\\n\\f\\r " } else { "[\\t\\n\\f\\r ]" }),
                    Some('S') if !in_class => out.push_str("[^\\t\\n\\f\\r ]"),
                    Some('D') => out.push_str("[^0-9]"),
                    Some('W') => out.push_str("[^0-9A-Za-z_]"),
                    Some('S') => out.push_str("[^\\t\\n\\f\\r ]"),
                    Some('b') if !in_class => out.push_str("(?-u:\\b)"),
                    Some('B') if !in_class => {
                        // Of ASCII it could match within a character, which texts do not allow.
                        out.push_str("\\B");
                    }
                    Some('Q') if !in_class => {
                        let literal = &rest[2..];
                        let end = literal.find("\\E").unwrap_or(literal.len());
                        out.push_str(&regex::escape(&literal[..end]));
                        taken = (2 + end + 2).min(rest.len());
                    }
                    Some(escaped) => {
                        out.push('\\');
                        out.push(escaped);
                    }
                    None => out.push('\\'),
                }
            }
            '[' if in_class => {
                // `[:alpha:]` is the same in both; any other bracket is one.
                if rest.starts_with("[:") && rest[2..].contains(":]") {
                    let end = rest[2..].find(":]").map_or(rest.len(), |end| end + 4);
                    out.push_str(&rest[..end]);
                    taken = end;
                } else {
                    out.push_str("\\[");
                }
            }
            '[' => {
                in_class = true;
                out.push('[');
                let mut after = &rest[1..];
                if let Some(tail) = after.strip_prefix('^') {
                    out.push('^');
                    taken += 1;
                    after = tail;
                }
                // A closing bracket in the first place is text.
                if after.starts_with(']') {
                    out.push_str("\\]");
                    taken += 1;
                }
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            // Two of these mean set operations in the crate.
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            '-' if in_class && rest[1..].starts_with('-') => out.push_str("\\-"),
            c => out.push(c),
        }
        rest = &rest[taken..];
    }
    out
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
    // Compiling takes far longer than matching does.
    meter.work(1000 + 20 * pattern.len() as u64)?;
    match Pattern::new(pattern) {
        Ok(pattern) => found(&pattern.0),
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
    with(meter, call, pattern, |regex| {
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
            parts.push(found.as_str().to_owned());
        }
        Ok(Value::List(List::texts(parts)))
    })
}
