//! What names may look like: reasons against, in upstream's words (`k8s.io/apimachinery/pkg/util/validation`).

const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

pub(crate) fn dns_1035_label(name: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    if name.len() > 63 {
        reasons.push(too_long(63));
    }
    if !(is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase())) {
        reasons.push(LABEL_1035.to_owned());
    }
    reasons
}

pub(crate) fn dns_label(name: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    if name.len() > 63 {
        reasons.push(too_long(63));
    }
    if !is_label(name) {
        reasons.push(LABEL.to_owned());
    }
    reasons
}

pub(crate) fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let end = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    bytes.first().is_some_and(end)
        && bytes.last().is_some_and(end)
        && bytes.iter().all(|b| end(b) || *b == b'-')
}

pub(crate) fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

pub(crate) fn dns_subdomain(name: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    if name.len() > 253 {
        reasons.push(too_long(253));
    }
    if !is_subdomain(name) {
        reasons.push(SUBDOMAIN.to_owned());
    }
    reasons
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// `name` or `example.com/name`.
pub(crate) fn qualified_name(name: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    let part = match name.split_once('/') {
        None => name,
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "a qualified name {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some(("", part)) => {
            reasons.push("prefix part must be non-empty".to_owned());
            part
        }
        Some((prefix, part)) => {
            reasons.extend(dns_subdomain(prefix).iter().map(|reason| format!("prefix part {reason}")));
            part
        }
    };
    if part.is_empty() {
        reasons.push("name part must be non-empty".to_owned());
    } else if part.len() > 63 {
        reasons.push(format!("name part {}", too_long(63)));
    }
    if !is_name_part(part) {
        reasons.push(format!("name part {QUALIFIED}"));
    }
    reasons
}

pub(crate) fn label_value(value: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    if value.len() > 63 {
        reasons.push(too_long(63));
    }
    if !value.is_empty() && !is_name_part(value) {
        reasons.push(LABEL_VALUE.to_owned());
    }
    reasons
}

/// Anything that can stand between two slashes. `prefix`: a suffix will follow.
pub(crate) fn path_segment(name: &str, prefix: bool) -> Vec<String> {
    let mut reasons = Vec::new();
    if !prefix && (name == "." || name == "..") {
        reasons.push(format!("may not be '{name}'"));
    }
    for bad in ["/", "%"] {
        if name.contains(bad) {
            reasons.push(format!("may not contain '{bad}'"));
        }
    }
    reasons
}
