//! Named formats: `format.dns1123Label().validate(x)`.
//! Source: `k8s.io/apiserver/pkg/cel/library/format.go` and what it calls.

use std::sync::OnceLock;

use base64::Engine;
use regex::Regex;

use super::url::Url;
use super::{Body, no_overload, time};
use crate::eval::Outcome;
use crate::value::{List, Opaque, Value};

#[derive(Debug)]
pub struct NamedFormat {
    /// As `format.named` knows it.
    pub name: &'static str,
    /// For costs: how long a pattern for it would be.
    pub(crate) pattern_size: u64,
    check: fn(&str) -> Vec<String>,
}

const FORMATS: &[NamedFormat] = &[
    NamedFormat { name: "dns1123Label", pattern_size: 30, check: |text| dns_label(text, false) },
    NamedFormat { name: "dns1123Subdomain", pattern_size: 60, check: |text| dns_subdomain(text, false) },
    NamedFormat { name: "dns1035Label", pattern_size: 30, check: |text| dns_1035_label(text, false) },
    NamedFormat { name: "qualifiedName", pattern_size: 60, check: qualified_name },
    NamedFormat { name: "dns1123LabelPrefix", pattern_size: 30, check: |text| dns_label(text, true) },
    NamedFormat { name: "dns1123SubdomainPrefix", pattern_size: 60, check: |text| dns_subdomain(text, true) },
    NamedFormat { name: "dns1035LabelPrefix", pattern_size: 30, check: |text| dns_1035_label(text, true) },
    NamedFormat { name: "labelValue", pattern_size: 40, check: label_value },
    NamedFormat {
        name: "uri",
        pattern_size: 1103,
        check: |text| Url::parse(text).err().into_iter().collect(),
    },
    NamedFormat {
        name: "uuid",
        pattern_size: 70,
        check: |text| complain(!is_uuid(text), "does not match the UUID format"),
    },
    NamedFormat {
        name: "byte",
        pattern_size: 84,
        check: |text| {
            let bad = text.is_empty() || base64::engine::general_purpose::STANDARD.decode(text).is_err();
            complain(bad, "invalid base64")
        },
    },
    NamedFormat {
        name: "date",
        pattern_size: 71,
        check: |text| complain(time::parse_date(text).is_none(), "invalid date"),
    },
    NamedFormat {
        name: "datetime",
        pattern_size: 71,
        check: |text| {
            let bad = text.is_empty() || time::parse_open_api_date_time(text).is_none();
            complain(bad, "invalid datetime")
        },
    },
];

pub(super) const BODIES: &[(&str, Body)] = &[
    ("format.named", |_, call, args| match args {
        [Value::String(name)] => Ok(match find(name) {
            Some(format) => Value::some(Value::opaque(Opaque::Format(format))),
            None => Value::Optional(None),
        }),
        _ => no_overload(call, args),
    }),
    ("validate", |_, call, args| match args {
        [Value::Opaque(value), Value::String(text)] => match &**value {
            Opaque::Format(format) => {
                let complaints = (format.check)(text);
                Ok(match complaints.is_empty() {
                    true => Value::Optional(None),
                    false => Value::some(Value::List(List::texts(complaints))),
                })
            }
            _ => no_overload(call, args),
        },
        _ => no_overload(call, args),
    }),
    ("format.dns1123Label", |_, call, _| constant(call)),
    ("format.dns1123Subdomain", |_, call, _| constant(call)),
    ("format.dns1035Label", |_, call, _| constant(call)),
    ("format.qualifiedName", |_, call, _| constant(call)),
    ("format.dns1123LabelPrefix", |_, call, _| constant(call)),
    ("format.dns1123SubdomainPrefix", |_, call, _| constant(call)),
    ("format.dns1035LabelPrefix", |_, call, _| constant(call)),
    ("format.labelValue", |_, call, _| constant(call)),
    ("format.uri", |_, call, _| constant(call)),
    ("format.uuid", |_, call, _| constant(call)),
    ("format.byte", |_, call, _| constant(call)),
    ("format.date", |_, call, _| constant(call)),
    ("format.datetime", |_, call, _| constant(call)),
];

fn find(name: &str) -> Option<&'static NamedFormat> {
    FORMATS.iter().find(|format| format.name == name)
}

fn constant<'a>(call: &crate::plan::Call) -> Outcome<'a> {
    match call.function.strip_prefix("format.").and_then(find) {
        Some(format) => Ok(Value::opaque(Opaque::Format(format))),
        None => no_overload(call, &[]),
    }
}

fn complain(bad: bool, message: &str) -> Vec<String> {
    if bad { vec![message.to_owned()] } else { Vec::new() }
}

fn is_lower_alnum(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Lower-case letters, digits and dashes, with no dash at either end.
fn is_label_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(|byte| is_lower_alnum(*byte));
    ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| is_lower_alnum(*byte) || *byte == b'-')
}

pub(super) fn is_dns_label(text: &str) -> bool {
    dns_label(text, false).is_empty()
}
pub(super) fn is_dns_subdomain(text: &str) -> bool {
    dns_subdomain(text, false).is_empty()
}

/// A prefix may end in a dash, since something follows it.
fn masked(text: &str, prefix: bool) -> String {
    match text.strip_suffix('-') {
        Some(head) if prefix && text.len() > 1 => format!("{head}a"),
        _ => text.to_owned(),
    }
}

fn too_long(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

fn dns_label(text: &str, prefix: bool) -> Vec<String> {
    let text = masked(text, prefix);
    let mut complaints = Vec::new();
    if text.len() > 63 {
        complaints.push(too_long(63));
    }
    if !is_label_text(&text) {
        if text.split('.').all(is_label_text) && text.contains('.') {
            complaints.push("must not contain dots".to_owned());
        } else {
            complaints.push("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')".to_owned());
        }
    }
    complaints
}

fn dns_subdomain(text: &str, prefix: bool) -> Vec<String> {
    let text = masked(text, prefix);
    let mut complaints = Vec::new();
    if text.len() > 253 {
        complaints.push(too_long(253));
    }
    if !text.split('.').all(is_label_text) {
        complaints.push("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')".to_owned());
    }
    complaints
}

fn dns_1035_label(text: &str, prefix: bool) -> Vec<String> {
    let text = masked(text, prefix);
    let mut complaints = Vec::new();
    if text.len() > 63 {
        complaints.push(too_long(63));
    }
    if !(is_label_text(&text) && text.starts_with(|c: char| c.is_ascii_lowercase())) {
        complaints.push("a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')".to_owned());
    }
    complaints
}

/// Letters, digits, `-`, `_` and `.`, with a letter or digit at either end.
fn is_name_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn qualified_name(text: &str) -> Vec<String> {
    const WORDS: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut complaints = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                complaints.push("prefix part must be non-empty".to_owned());
            } else {
                complaints
                    .extend(dns_subdomain(prefix, false).into_iter().map(|why| format!("prefix part {why}")));
            }
            *name
        }
        _ => {
            return vec![format!(
                "a qualified name {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                WORDS
            )];
        }
    };
    if name.is_empty() {
        complaints.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        complaints.push(format!("name part {}", too_long(63)));
    }
    if !is_name_text(name) {
        complaints.push(format!("name part {WORDS}"));
    }
    complaints
}

fn label_value(text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if text.len() > 63 {
        complaints.push(too_long(63));
    }
    if !text.is_empty() && !is_name_text(text) {
        complaints.push("a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')".to_owned());
    }
    complaints
}

fn is_uuid(text: &str) -> bool {
    static UUID: OnceLock<Option<Regex>> = OnceLock::new();
    UUID.get_or_init(|| {
        Regex::new("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$").ok()
    })
    .as_ref()
    .is_some_and(|regex| regex.is_match(text))
}
