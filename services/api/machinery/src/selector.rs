//! Label and field selectors, in their query-parameter form.
//!
//! Grammar: <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#api>.

use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unable to parse requirement: {0}")]
pub struct SelectorError(pub String);

/// All requirements must hold. An empty selector selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    pub requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    NotExists(String),
    GreaterThan(String, i64),
    LessThan(String, i64),
}

impl LabelSelector {
    pub fn everything() -> LabelSelector {
        LabelSelector::default()
    }
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }
    /// `spec.selector` of the old kinds (Service, ReplicationController): equality only.
    pub fn from_map<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> LabelSelector {
        let requirements = labels
            .into_iter()
            .map(|(key, value)| Requirement::In(key.clone(), vec![value.clone()]))
            .collect();
        LabelSelector { requirements }
    }

    /// Parses `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>1`.
    pub fn parse(text: &str) -> Result<LabelSelector, SelectorError> {
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(text) {
            let part = part.trim();
            if part.is_empty() {
                // A trailing comma or an empty selector; upstream accepts the empty string only.
                if text.trim().is_empty() {
                    break;
                }
                return Err(SelectorError("found '', expected: identifier after ','".to_owned()));
            }
            requirements.push(parse_requirement(part)?);
        }
        Ok(LabelSelector { requirements })
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let number = |key: &String| labels.get(key).and_then(|value| value.parse::<i64>().ok());
        match self {
            Requirement::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            // Absent counts as "not in": upstream's semantics for both != and notin.
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::NotExists(key) => !labels.contains_key(key),
            Requirement::GreaterThan(key, bound) => number(key).is_some_and(|value| value > *bound),
            Requirement::LessThan(key, bound) => number(key).is_some_and(|value| value < *bound),
        }
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0usize);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_requirement(part: &str) -> Result<Requirement, SelectorError> {
    if let Some(key) = part.strip_prefix('!') {
        return Ok(Requirement::NotExists(label_key(key)?));
    }
    if let Some(open) = part.find('(') {
        let list = part[open + 1..]
            .strip_suffix(')')
            .ok_or_else(|| SelectorError(format!("found '', expected: ')' in {part:?}")))?;
        let values = list.split(',').map(label_value).collect::<Result<Vec<_>, _>>()?;
        let mut words = part[..open].split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(key), Some("in"), None) => Ok(Requirement::In(label_key(key)?, values)),
            (Some(key), Some("notin"), None) => Ok(Requirement::NotIn(label_key(key)?, values)),
            _ => Err(SelectorError(format!("found '{part}', expected: in, notin"))),
        };
    }
    for (operator, make) in [
        ("!=", not_equals as fn(String, &str) -> Result<Requirement, SelectorError>),
        ("==", equals),
        ("=", equals),
        (">", greater),
        ("<", less),
    ] {
        if let Some((key, value)) = part.split_once(operator) {
            return make(label_key(key)?, value);
        }
    }
    Ok(Requirement::Exists(label_key(part)?))
}

fn equals(key: String, value: &str) -> Result<Requirement, SelectorError> {
    Ok(Requirement::In(key, vec![label_value(value)?]))
}
fn not_equals(key: String, value: &str) -> Result<Requirement, SelectorError> {
    Ok(Requirement::NotIn(key, vec![label_value(value)?]))
}
fn greater(key: String, value: &str) -> Result<Requirement, SelectorError> {
    Ok(Requirement::GreaterThan(key, bound(value)?))
}
fn less(key: String, value: &str) -> Result<Requirement, SelectorError> {
    Ok(Requirement::LessThan(key, bound(value)?))
}
fn bound(value: &str) -> Result<i64, SelectorError> {
    value.trim().parse().map_err(|_| {
        SelectorError(format!("for 'Gt', 'Lt' operators, the value must be an integer, not {value:?}"))
    })
}

fn label_key(text: &str) -> Result<String, SelectorError> {
    let key = text.trim();
    let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
    let prefix_fine = prefix.len() <= 253
        && prefix.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-'));
    if prefix_fine && !name.is_empty() && qualified(name) {
        Ok(key.to_owned())
    } else {
        Err(SelectorError(format!(
            "<nil>: Invalid value: {key:?}: name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        )))
    }
}

fn label_value(text: &str) -> Result<String, SelectorError> {
    let value = text.trim();
    if value.is_empty() || qualified(value) {
        Ok(value.to_owned())
    } else {
        Err(SelectorError(format!(
            "values[0]: Invalid value: {value:?}: a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
        )))
    }
}

/// At most 63 letters, digits, `-`, `_`, `.`, with a letter or digit at both ends.
fn qualified(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}

/// `metadata.name=x,status.phase!=Running`: path, wanted value, whether it must equal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector {
    pub terms: Vec<(String, String, bool)>,
}

impl FieldSelector {
    pub fn parse(text: &str) -> Result<FieldSelector, SelectorError> {
        let mut terms = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (path, value, equal) = if let Some((path, value)) = part.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (path, value, true)
            } else {
                return Err(SelectorError(format!("invalid selector: '{text}'; can't understand '{part}'")));
            };
            terms.push((path.trim().to_owned(), value.trim().to_owned(), equal));
        }
        Ok(FieldSelector { terms })
    }
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }
    /// `field` gives a field's value as text, empty when absent.
    pub fn matches(&self, mut field: impl FnMut(&str) -> String) -> bool {
        self.terms.iter().all(|(path, wanted, equal)| (field(path) == *wanted) == *equal)
    }
    /// The name this selector pins down, if it does.
    pub fn single_name(&self) -> Option<&str> {
        self.terms
            .iter()
            .find(|(path, _, equal)| *equal && path == "metadata.name")
            .map(|(_, value, _)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_selectors_select_as_documented() {
        let labels: BTreeMap<String, String> =
            [("app", "web"), ("tier", "front"), ("n", "5")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (text, wanted) in [
            ("", Some(true)),
            ("app=web", Some(true)),
            ("app==web,tier!=back", Some(true)),
            ("app in (web, api),tier notin (back)", Some(true)),
            ("missing notin (x)", Some(true)),
            ("missing!=x", Some(true)),
            ("app", Some(true)),
            ("!app", Some(false)),
            ("!missing", Some(true)),
            ("n>4,n<6", Some(true)),
            ("n>5", Some(false)),
            ("app=api", Some(false)),
            ("example.com/app=web", Some(false)),
            ("app in (web", None),
            ("app=we b", None),
            ("=x", None),
            ("app=web,", None),
            ("n>x", None),
        ] {
            let got = LabelSelector::parse(text).ok().map(|selector| selector.matches(&labels));
            assert_eq!(got, wanted, "{text:?}");
        }
    }

    #[test]
    fn field_selectors_compare_text() {
        let field = |path: &str| if path == "status.phase" { "Running".to_owned() } else { String::new() };
        for (text, wanted) in [
            ("status.phase=Running", Some(true)),
            ("status.phase==Running,spec.nodeName=", Some(true)),
            ("status.phase!=Running", Some(false)),
            ("status.phase", None),
        ] {
            assert_eq!(FieldSelector::parse(text).ok().map(|s| s.matches(field)), wanted, "{text:?}");
        }
    }
}
