//! Semantic versions 2.0, as `github.com/blang/semver/v4` reads them. How two compare is in `quantity`, where
//! the functions of the same names are.

use std::cmp::Ordering;

use super::{Body, no_overload};
use crate::eval::{EvalError, Outcome, bool_value};
use crate::plan::Call;
use crate::value::{Opaque, Value, quote_go};

#[derive(Debug)]
pub struct Semver {
    numbers: [u64; 3],
    pre: Vec<Part>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// Numbers come before words.
    Number(u64),
    Word(String),
}

impl Semver {
    /// By precedence, which build metadata is no part of.
    pub(crate) fn cmp(&self, other: &Semver) -> Ordering {
        let pre = match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.pre.cmp(&other.pre),
        };
        self.numbers.cmp(&other.numbers).then(pre)
    }

    fn parse(text: &str) -> Result<Semver, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let (rest, build) = match rest.split_once('+') {
            Some((rest, build)) => (rest, Some(build)),
            None => (rest, None),
        };
        let (patch, pre) = match rest.split_once('-') {
            Some((patch, pre)) => (patch, Some(pre)),
            None => (rest, None),
        };
        let numbers = [number("Major", major)?, number("Minor", minor)?, number("Patch", patch)?];
        let allowed = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let mut pre_parts = Vec::new();
        for part in pre.iter().flat_map(|pre| pre.split('.')) {
            if part.is_empty() {
                return Err("Prerelease is empty".to_owned());
            }
            if part.bytes().all(|byte| byte.is_ascii_digit()) {
                if part.len() > 1 && part.starts_with('0') {
                    return Err(format!(
                        "Numeric PreRelease version must not contain leading zeroes {}",
                        quote_go(part)
                    ));
                }
                pre_parts.push(Part::Number(part.parse().map_err(|_| format!("Invalid prerelease {part}"))?));
            } else if allowed(part) {
                pre_parts.push(Part::Word(part.to_owned()));
            } else {
                return Err(format!("Invalid character(s) found in prerelease {}", quote_go(part)));
            }
        }
        for part in build.iter().flat_map(|build| build.split('.')) {
            if part.is_empty() {
                return Err("Build meta data is empty".to_owned());
            }
            if !allowed(part) {
                return Err(format!("Invalid character(s) found in build meta data {}", quote_go(part)));
            }
        }
        Ok(Semver { numbers, pre: pre_parts })
    }

    /// Takes a leading `v`, missing minor and patch, and leading noughts.
    fn parse_lenient(text: &str) -> Result<Semver, String> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_owned).collect();
        for part in &mut parts {
            if part.len() > 1 {
                let trimmed = part.trim_start_matches('0');
                let starts_with_digit = trimmed.starts_with(|c: char| c.is_ascii_digit());
                *part = if starts_with_digit { trimmed.to_owned() } else { format!("0{trimmed}") };
            }
        }
        if parts.len() < 3 {
            if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
                return Err("short version cannot contain PreRelease/Build meta data".to_owned());
            }
            parts.resize(3, "0".to_owned());
        }
        Semver::parse(&parts.join("."))
    }
}

fn number(what: &str, text: &str) -> Result<u64, String> {
    let quoted = quote_go(text);
    let lower = what.to_lowercase();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {lower} number {quoted}"));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{what} number must not contain leading zeroes {quoted}"));
    }
    text.parse().map_err(|_| format!("strconv.ParseUint: parsing {quoted}: value out of range"))
}

pub(super) const BODIES: &[(&str, Body)] = &[
    ("semver", |_, call, args| match parsed(args) {
        Some(Ok(version)) => Ok(Value::opaque(Opaque::Semver(version))),
        Some(Err(why)) => Err(EvalError::failed(why)),
        None => no_overload(call, args),
    }),
    ("isSemver", |_, call, args| match parsed(args) {
        Some(parsed) => bool_value(parsed.is_ok()),
        None => no_overload(call, args),
    }),
    ("major", |_, call, args| part(call, args, 0)),
    ("minor", |_, call, args| part(call, args, 1)),
    ("patch", |_, call, args| part(call, args, 2)),
];

fn parsed(args: &[Value<'_>]) -> Option<Result<Semver, String>> {
    match args {
        [Value::String(text)] | [Value::String(text), Value::Bool(false)] => Some(Semver::parse(text)),
        [Value::String(text), Value::Bool(true)] => Some(Semver::parse_lenient(text)),
        _ => None,
    }
}

fn part<'a>(call: &Call, args: &[Value<'a>], at: usize) -> Outcome<'a> {
    match args {
        [Value::Opaque(value)] => match &**value {
            Opaque::Semver(version) => Ok(Value::Int(i64::try_from(version.numbers[at]).unwrap_or(i64::MAX))),
            _ => no_overload(call, args),
        },
        _ => no_overload(call, args),
    }
}
