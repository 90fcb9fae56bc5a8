//! Text to tokens. Positions are code points, as cel-go counts them.
//!
//! What is no token is reported and stepped over, the way the grammar's generated lexer does it, so that one
//! stray character gives one message. Literals keep their spelling here; the parser reads them.

use std::sync::Arc;

use crate::issue::{Issue, Source};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    Int,
    Uint,
    Float,
    String,
    Bytes,
    Ident,
    EscapedIdent,
    /// Operators and punctuation, by their spelling.
    Sign(&'static str),
    End,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Lexeme<'s> {
    pub token: Token,
    pub text: &'s str,
    /// Code points before it.
    pub at: u32,
}

/// Longer ones first.
const SIGNS: &[&str] = &[
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":",
    "+", "*", "/", "%",
];

/// All tokens, the last of them `End`, and what could not be read.
pub(crate) fn lex<'s>(source: &'s Arc<Source>) -> (Vec<Lexeme<'s>>, Vec<Issue>) {
    let text = source.text.as_str();
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut issues = Vec::new();
    let (mut pos, mut at) = (0usize, 0u32);
    while pos < bytes.len() {
        let rest = &bytes[pos..];
        let (token, len) = match rest[0] {
            b' ' | b'\t' | b'\r' | b'\n' | 0x0c => (None, 1),
            b'/' if rest.get(1) == Some(&b'/') => {
                (None, rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()))
            }
            b'0'..=b'9' => number(rest),
            b'.' if rest.get(1).is_some_and(u8::is_ascii_digit) => number(rest),
            b'`' => match escaped_ident(rest) {
                Some(len) => (Some(Token::EscapedIdent), len),
                None => unknown(text, pos, at, source, &mut issues),
            },
            _ => match literal(rest) {
                Some((token, len)) => (Some(token), len),
                None if rest[0].is_ascii_alphabetic() || rest[0] == b'_' => {
                    let len = rest
                        .iter()
                        .position(|b| !b.is_ascii_alphanumeric() && *b != b'_')
                        .unwrap_or(rest.len());
                    (Some(if &rest[..len] == b"in" { Token::Sign("in") } else { Token::Ident }), len)
                }
                None => match SIGNS.iter().find(|sign| rest.starts_with(sign.as_bytes())) {
                    Some(sign) => (Some(Token::Sign(sign)), sign.len()),
                    None => unknown(text, pos, at, source, &mut issues),
                },
            },
        };
        let spelt = &text[pos..pos + len];
        if let Some(token) = token {
            tokens.push(Lexeme { token, text: spelt, at });
        }
        at += u32::try_from(spelt.chars().count()).unwrap_or(0);
        pos += len;
    }
    tokens.push(Lexeme { token: Token::End, text: "<EOF>", at });
    (tokens, issues)
}

fn digits(rest: &[u8]) -> usize {
    rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len())
}

fn number(rest: &[u8]) -> (Option<Token>, usize) {
    if rest.starts_with(b"0x") {
        let hex = rest[2..].iter().position(|b| !b.is_ascii_hexdigit()).unwrap_or(rest.len() - 2);
        if hex > 0 {
            let len = 2 + hex;
            return match rest.get(len) {
                Some(b'u' | b'U') => (Some(Token::Uint), len + 1),
                _ => (Some(Token::Int), len),
            };
        }
    }
    let whole = digits(rest);
    let mut len = whole;
    let mut float = false;
    if rest.get(len) == Some(&b'.') && rest.get(len + 1).is_some_and(u8::is_ascii_digit) {
        len += 1 + digits(&rest[len + 1..]);
        float = true;
    }
    if matches!(rest.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(rest.get(len + 1), Some(b'+' | b'-')));
        let exponent = digits(&rest[(len + 1 + sign).min(rest.len())..]);
        if exponent > 0 {
            len += 1 + sign + exponent;
            float = true;
        }
    }
    if float {
        return (Some(Token::Float), len);
    }
    match rest.get(len) {
        Some(b'u' | b'U') => (Some(Token::Uint), len + 1),
        _ => (Some(Token::Int), len),
    }
}

fn escaped_ident(rest: &[u8]) -> Option<usize> {
    let len = rest[1..].iter().position(|b| !(b.is_ascii_alphanumeric() || b"_.-/ ".contains(b)))?;
    (len > 0 && rest[1 + len] == b'`').then_some(len + 2)
}

/// A string or bytes literal at the start of `rest`.
fn literal(rest: &[u8]) -> Option<(Token, usize)> {
    let bytes = usize::from(matches!(rest[0], b'b' | b'B'));
    let raw = usize::from(matches!(rest.get(bytes), Some(b'r' | b'R')));
    let start = bytes + raw;
    let len = quoted(rest.get(start..)?, raw == 1).ok()?;
    Some((if bytes == 1 { Token::Bytes } else { Token::String }, start + len))
}

/// How long the quoted text is, or how far it could be read.
fn quoted(rest: &[u8], raw: bool) -> Result<usize, usize> {
    let quote = match rest.first() {
        Some(quote @ (b'"' | b'\'')) => *quote,
        _ => return Err(0),
    };
    let triple = [quote; 3];
    if rest.starts_with(&triple) {
        let mut at = 3;
        while at < rest.len() {
            if rest[at..].starts_with(&triple) {
                return Ok(at + 3);
            }
            at += match rest[at] {
                b'\\' if !raw => match escape(&rest[at..]) {
                    Some(len) => len,
                    None => break,
                },
                _ => 1,
            };
        }
        // No such end: it is an empty string, and the rest something else.
        return Ok(2);
    }
    let mut at = 1;
    while at < rest.len() {
        at += match rest[at] {
            byte if byte == quote => return Ok(at + 1),
            b'\n' | b'\r' => return Err(at),
            b'\\' if !raw => match escape(&rest[at..]) {
                Some(len) => len,
                None => return Err(at + 1),
            },
            _ => 1,
        };
    }
    Err(at)
}

fn escape(rest: &[u8]) -> Option<usize> {
    let hex = |count: usize| {
        rest.get(2..2 + count)
            .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .then_some(2 + count)
    };
    match rest.get(1)? {
        b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'"' | b'\'' | b'\\' | b'?' | b'`' => Some(2),
        b'x' | b'X' => hex(2),
        b'u' => hex(4),
        b'U' => hex(8),
        b'0'..=b'3' => rest.get(2..4)?.iter().all(|b| (b'0'..=b'7').contains(b)).then_some(4),
        _ => None,
    }
}

/// Reports what begins no token and says how much of it to step over: up to and with the character at which
/// no token was possible any more.
fn unknown(
    text: &str,
    pos: usize,
    at: u32,
    source: &Arc<Source>,
    issues: &mut Vec<Issue>,
) -> (Option<Token>, usize) {
    let rest = &text[pos..];
    let good = match rest.as_bytes()[0] {
        b'=' | b'&' | b'|' => 1,
        b'"' | b'\'' => quoted(rest.as_bytes(), false).err().unwrap_or(1),
        _ => 0,
    };
    let failing = rest[good..].chars().next().map_or(0, char::len_utf8);
    let spelt = &rest[..good + failing];
    let shown = spelt.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t");
    if issues.len() < crate::issue::MAX_ISSUES {
        issues.push(Issue::at(source, at, format!("Syntax error: token recognition error at: '{shown}'")));
    }
    (None, spelt.len().max(1))
}
