//! Field names as identifiers: what CEL could not spell is escaped (`a-b` is `a__dash__b`).
//! Source: `k8s.io/apiserver/pkg/cel/escaping.go`.

use std::borrow::Cow;

const RESERVED: &[&str] = &[
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Whether CEL keeps the word for itself, so that no variable can be called it.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// The identifier for a field, or none if the field cannot be named in an expression.
pub fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.as_bytes()[0].is_ascii_digit() {
        return None;
    }
    if is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("__") {
            out.push_str("__underscores__");
            rest = after;
            continue;
        }
        match c {
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => out.push(c),
            _ => return None,
        }
        rest = &rest[c.len_utf8()..];
    }
    Some(out)
}

/// The field that an identifier names, or none if it holds an escape there is not.
pub fn unescape(ident: &str) -> Option<Cow<'_, str>> {
    if !ident.contains("__") {
        return Some(Cow::Borrowed(ident));
    }
    let mut out = String::with_capacity(ident.len());
    let mut rest = ident;
    while let Some(start) = rest.find("__") {
        // An escape is two underscores, text without any, and two again.
        let inner = &rest[start + 2..];
        let end = inner.find('_').unwrap_or(inner.len());
        if end == 0 || !inner[end..].starts_with("__") {
            out.push_str(&rest[..=start]);
            rest = &rest[start + 1..];
            continue;
        }
        out.push_str(&rest[..start]);
        let name = &inner[..end];
        match name {
            "underscores" => out.push_str("__"),
            "dot" => out.push('.'),
            "dash" => out.push('-'),
            "slash" => out.push('/'),
            reserved if is_reserved(reserved) && ident.len() == end + 4 => out.push_str(reserved),
            _ => return None,
        }
        rest = &inner[end + 2..];
    }
    out.push_str(rest);
    Some(Cow::Owned(out))
}
