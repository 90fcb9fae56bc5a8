//! Paths into an object that its schema knows: `.spec.color`, `.labels['a.b/c']`.
//!
//! For `fieldPath` of rules and `jsonPath` of selectable fields. After `ValidFieldPath` in
//! `apiserver/schema/cel` of `k8s.io/apiextensions-apiserver`.

use api_machinery::Field;

use crate::schema::Schema;

#[derive(Debug)]
pub(crate) struct Found<'a> {
    /// As errors write it.
    pub path: Field,
    /// The first name in it.
    pub root: String,
    /// `None` for a member of an object of which only that it may have others is known.
    pub schema: Option<&'a Schema>,
}

/// Finds what `path` names. `brackets` says whether `['name']` may be used.
pub(crate) fn find<'a>(path: &str, schema: &'a Schema, brackets: bool) -> Result<Found<'a>, String> {
    let mut found = Found { path: Field::default(), root: String::new(), schema: Some(schema) };
    let mut tokens = Tokens(path);
    let end = || "unexpected end of JSON path".to_owned();
    while let Some(token) = tokens.next() {
        match token {
            "[" => {
                if !brackets {
                    return Err("array notation is not allowed".to_owned());
                }
                let token = tokens.next().ok_or_else(end)?;
                let quoted = token.strip_prefix('\'').and_then(|token| token.strip_suffix('\''));
                let Some(quoted) = quoted.filter(|_| token.len() >= 2) else {
                    return Err(format!("expected single quoted string but got {token}"));
                };
                let name = unescaped(quoted).map_err(|why| format!("invalid string literal: {why}"))?;
                found.step(&name)?;
                match tokens.next() {
                    Some("]") => {}
                    Some(other) => return Err(format!("expected ] but got {other}")),
                    None => return Err(end()),
                }
            }
            "." => found.step(tokens.next().ok_or_else(end)?)?,
            other => return Err(format!("expected [ or . but got: {other}")),
        }
    }
    Ok(found)
}

impl Found<'_> {
    fn step(&mut self, name: &str) -> Result<(), String> {
        let unknown = || "does not refer to a valid field".to_owned();
        let schema = self.schema.ok_or_else(unknown)?;
        if self.root.is_empty() {
            self.root = name.to_owned();
        }
        if !schema.properties.is_empty() {
            self.path = self.path.child(name);
            self.schema = Some(schema.property(name).ok_or_else(unknown)?);
        } else if let Some(additional) = &schema.additional {
            self.path = self.path.key(name);
            self.schema = additional.schema.as_deref();
        } else {
            return Err(unknown());
        }
        Ok(())
    }
}

/// `.`, `[`, `]`, a string in single quotes, or what is between those.
struct Tokens<'a>(&'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;
    fn next(&mut self) -> Option<&'a str> {
        if self.0.is_empty() {
            return None;
        }
        let length = if self.0.starts_with('\'') {
            let bytes = self.0.as_bytes();
            let close = (1..bytes.len()).find(|&at| bytes[at] == b'\'' && bytes[at - 1] != b'\\');
            close.map_or(bytes.len(), |at| at + 1)
        } else {
            self.0.find(['.', '[', ']']).map_or(self.0.len(), |at| at.max(1))
        };
        let (token, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(token)
    }
}

fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            out.push(char);
            continue;
        }
        match chars.next() {
            Some('a') => out.push('\x07'),
            Some('b') => out.push('\x08'),
            Some('f') => out.push('\x0c'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('v') => out.push('\x0b'),
            Some(char @ ('\'' | '\\')) => out.push(char),
            Some(other) => return Err(format!("invalid escape char \\{other}")),
            None => out.push('\\'),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_follow_the_schema() {
        let schema = Schema::read(&json!({"properties": {
            "a": {"properties": {"b.c": {"type": "string"}, "b": {"type": "string"}}},
            "m": {"additionalProperties": {"properties": {"x": {}}}}, "free": {"additionalProperties": true},
        }}))
        .unwrap();
        for (path, brackets, expected) in [
            (".a.b", true, Ok("a.b")),
            (".a['b.c']", true, Ok("a.b.c")),
            (".a['b.c']", false, Err("array notation is not allowed")),
            (".m['k'].x", true, Ok("m[k].x")),
            (".m.k", true, Ok("m[k]")),
            (".free.k", true, Ok("free[k]")),
            (".free.k.l", true, Err("does not refer to a valid field")),
            (".a.z", true, Err("does not refer to a valid field")),
            (".a.b.c", true, Err("does not refer to a valid field")),
            ("a", true, Err("expected [ or . but got: a")),
            (".", true, Err("unexpected end of JSON path")),
            (".a[b]", true, Err("expected single quoted string but got b")),
            (".a['b", true, Err("expected single quoted string but got 'b")),
            (".a['b'", true, Err("unexpected end of JSON path")),
            (".a['\\q']", true, Err("invalid string literal: invalid escape char \\q")),
        ] {
            let found = find(path, &schema, brackets);
            let found = found.as_ref().map(|found| found.path.as_str()).map_err(String::as_str);
            assert_eq!(found, expected, "{path}");
        }
    }
}
