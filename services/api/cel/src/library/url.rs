//! URLs, as Go's `net/url` takes them apart. Only absolute ones, or paths.

use std::collections::BTreeMap;

use super::{Body, no_overload};
use crate::eval::{EvalError, Outcome, bool_value, text_value};
use crate::plan::Call;
use crate::value::{List, Map, Opaque, Value, quote_go};

#[derive(Debug)]
pub struct Url {
    /// As given, but for the fragment: what two URLs are compared by.
    pub(crate) text: String,
    scheme: String,
    host: String,
    path: String,
    query: String,
}

pub(super) const BODIES: &[(&str, Body)] = &[
    ("url", |_, call, args| match args {
        [Value::String(text)] => match Url::parse(text) {
            Ok(url) => Ok(Value::opaque(Opaque::Url(url))),
            Err(why) => {
                Err(EvalError::failed(format!("URL parse error during conversion from string: {why}")))
            }
        },
        _ => no_overload(call, args),
    }),
    ("isURL", |_, call, args| match args {
        [Value::String(text)] => bool_value(Url::parse(text).is_ok()),
        _ => no_overload(call, args),
    }),
    ("getScheme", |_, call, args| of(call, args, |url| url.scheme.clone())),
    ("getHost", |_, call, args| of(call, args, |url| url.host.clone())),
    ("getHostname", |_, call, args| of(call, args, |url| url.host_and_port().0.to_owned())),
    ("getPort", |_, call, args| of(call, args, |url| url.host_and_port().1.to_owned())),
    ("getEscapedPath", |_, call, args| of(call, args, |url| url.path.clone())),
    ("getQuery", |_, call, args| {
        let Some(url) = url_of(args) else { return no_overload(call, args) };
        let parts = url.query().into_iter().map(|(key, values)| (key, Value::List(List::texts(values))));
        Map::of_texts(parts).map(Value::Map)
    }),
];

fn url_of<'v>(args: &'v [Value<'_>]) -> Option<&'v Url> {
    match args {
        [Value::Opaque(value)] => match &**value {
            Opaque::Url(url) => Some(url),
            _ => None,
        },
        _ => None,
    }
}

fn of<'a>(call: &Call, args: &[Value<'a>], part: fn(&Url) -> String) -> Outcome<'a> {
    match url_of(args) {
        Some(url) => text_value(part(url)),
        None => no_overload(call, args),
    }
}

impl Url {
    /// Or why not, as Go says it.
    pub(crate) fn parse(text: &str) -> Result<Url, String> {
        let wrong = |why: &str| format!("parse {}: {why}", quote_go(text));
        if text.is_empty() {
            return Err(wrong("empty url"));
        }
        if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
            return Err(wrong("net/url: invalid control character in URL"));
        }
        // A fragment is no part of what the check for absoluteness sees.
        let (whole, _fragment) = text.split_once('#').unwrap_or((text, ""));
        let (scheme, rest) = split_scheme(whole).map_err(wrong)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !rest.starts_with('/') {
            if scheme.is_empty() {
                return Err(wrong("invalid URI for request"));
            }
            // `mailto:x`: opaque, without host or path.
            return Ok(Url {
                text: whole.to_owned(),
                scheme: scheme.to_ascii_lowercase(),
                host: String::new(),
                path: String::new(),
                query: query.to_owned(),
            });
        }
        let (host, path) = match rest.strip_prefix("//") {
            // Three slashes without a scheme are a path.
            Some(after) if !(scheme.is_empty() && rest.starts_with("///")) => {
                let end = after.find('/').unwrap_or(after.len());
                let authority = &after[..end];
                let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
                check_host(host).map_err(|why| wrong(&why))?;
                (unescape(host).unwrap_or_else(|| host.to_owned()), &after[end..])
            }
            _ => (String::new(), rest),
        };
        if unescape(path).is_none() {
            let bad = path.char_indices().find(|(at, c)| *c == '%' && hex(&path.as_bytes()[*at..]).is_none());
            let at = bad.map_or(0, |(at, _)| at);
            let shown: String = path[at..].chars().take(3).collect();
            return Err(wrong(&format!("invalid URL escape {}", quote_go(&shown))));
        }
        Ok(Url {
            text: whole.to_owned(),
            scheme: scheme.to_ascii_lowercase(),
            host,
            path: escape_path(path),
            query: query.to_owned(),
        })
    }

    fn host_and_port(&self) -> (&str, &str) {
        let host = self.host.as_str();
        let (name, port) = match host.rfind(':') {
            Some(at)
                if at > host.rfind(']').unwrap_or(0)
                    && host[at + 1..].bytes().all(|b| b.is_ascii_digit()) =>
            {
                (&host[..at], &host[at + 1..])
            }
            _ => (host, ""),
        };
        let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        (name, port)
    }

    fn query(&self) -> BTreeMap<String, Vec<String>> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for part in self.query.split('&').filter(|part| !part.is_empty() && !part.contains(';')) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if let (Some(key), Some(value)) =
                (unescape(&key.replace('+', " ")), unescape(&value.replace('+', " ")))
            {
                all.entry(key).or_default().push(value);
            }
        }
        all
    }
}

fn split_scheme(text: &str) -> Result<(&str, &str), &'static str> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme"),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => return Ok(("", text)),
        }
    }
    Ok(("", text))
}

fn check_host(host: &str) -> Result<(), String> {
    let port = match host.strip_prefix('[') {
        Some(inner) => match inner.rfind(']') {
            None => return Err("missing ']' in host".to_owned()),
            Some(end) => &inner[end + 1..],
        },
        None => host.rfind(':').map_or("", |at| &host[at..]),
    };
    let valid = port.is_empty()
        || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    if !valid {
        return Err(format!("invalid port {} after host", quote_go(port)));
    }
    if let Some(bad) = host.chars().find(|c| matches!(c, ' ' | '^' | '`' | '{' | '}' | '|' | '\\')) {
        return Err(format!("invalid character {} in host name", quote_go(&bad.to_string())));
    }
    Ok(())
}

fn hex(text: &[u8]) -> Option<u8> {
    let digits = text.get(1..3)?;
    let digits = std::str::from_utf8(digits).ok()?;
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u8::from_str_radix(digits, 16).ok())?
}

fn unescape(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        if *byte == b'%' {
            out.push(hex(&bytes[at..])?);
            at += 3;
        } else {
            out.push(*byte);
            at += 1;
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

/// As Go's `EscapedPath`: what is a valid encoding stays; otherwise it is encoded.
fn escape_path(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!'()*[]%".contains(&byte);
    if path.bytes().all(plain) {
        return path.to_owned();
    }
    let mut out = String::new();
    for byte in unescape(path).unwrap_or_else(|| path.to_owned()).bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
