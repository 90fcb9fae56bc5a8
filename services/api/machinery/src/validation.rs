//! What names, label keys and values may look like, wherever a kind comes from. Each check gives the reasons
//! against, in upstream's words (`k8s.io/apimachinery/pkg/util/validation`); none means fine.

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

pub type Reasons = Vec<String>;

/// What is said of a text that has too many bytes.
pub fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// Letters, digits and dashes, whatever their number.
pub fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    bytes.first().is_some_and(inner)
        && bytes.last().is_some_and(inner)
        && bytes.iter().all(|b| inner(b) || *b == b'-')
}

/// Labels with dots between them, whatever their number.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

/// RFC 1123: names of most objects.
pub fn dns_subdomain(name: &str) -> Reasons {
    let mut reasons = Vec::new();
    if name.len() > 253 {
        reasons.push(too_long(253));
    }
    if !is_dns_subdomain(name) {
        reasons.push(SUBDOMAIN.to_owned());
    }
    reasons
}

/// RFC 1123: names that become part of a host name.
pub fn dns_label(name: &str) -> Reasons {
    let mut reasons = Vec::new();
    if name.len() > 63 {
        reasons.push(too_long(63));
    }
    if !is_dns_label(name) {
        if is_dns_subdomain(name) {
            // A subdomain where a label is wanted: upstream points at the dots.
            reasons.push("must not contain dots".to_owned());
        } else {
            reasons.push(LABEL.to_owned());
        }
    }
    reasons
}

/// RFC 1035: as RFC 1123, and a letter comes first.
pub fn dns_1035_label(name: &str) -> Reasons {
    let mut reasons = Vec::new();
    if name.len() > 63 {
        reasons.push(too_long(63));
    }
    if !(is_dns_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase())) {
        reasons.push(LABEL_1035.to_owned());
    }
    reasons
}

/// Anything that can stand between two slashes. `prefix`: a suffix will follow.
pub fn path_segment(name: &str, prefix: bool) -> Reasons {
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

/// At most 63 letters, digits, `-`, `_`, `.`, with a letter or digit at both ends.
fn name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// `example.com/name`, or `name`: label keys, annotation keys, resources, taints.
pub fn qualified_name(name: &str) -> Reasons {
    let mut reasons = Vec::new();
    let part = match name.split_once('/') {
        None => name,
        Some((_, rest)) if rest.contains('/') => {
            reasons.push(format!(
                "a qualified name {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
            return reasons;
        }
        Some((prefix, part)) => {
            if prefix.is_empty() {
                reasons.push("prefix part must be non-empty".to_owned());
            } else {
                reasons.extend(dns_subdomain(prefix).iter().map(|reason| format!("prefix part {reason}")));
            }
            part
        }
    };
    if part.is_empty() {
        reasons.push("name part must be non-empty".to_owned());
    } else if part.len() > 63 {
        reasons.push("name part must be no more than 63 characters".to_owned());
    }
    if !name_part(part) {
        reasons.push(format!("name part {QUALIFIED}"));
    }
    reasons
}

/// What a label may say.
pub fn label_value(value: &str) -> Reasons {
    let mut reasons = Vec::new();
    if value.len() > 63 {
        reasons.push(too_long(63));
    }
    if !value.is_empty() && !name_part(value) {
        reasons.push(LABEL_VALUE.to_owned());
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_of_labels() {
        for (key, fine) in [
            ("app", true),
            ("example.com/app", true),
            ("", false),
            ("/app", false),
            ("a/b/c", false),
            ("a b", false),
        ] {
            assert_eq!(qualified_name(key).is_empty(), fine, "{key:?}");
        }
        for (value, fine) in [("", true), ("v1.2_x", true), ("-x", false), ("a b", false)] {
            assert_eq!(label_value(value).is_empty(), fine, "{value:?}");
        }
    }
}
