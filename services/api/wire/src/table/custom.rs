//! Columns a custom resource definition asks for (`additionalPrinterColumns`).
//!
//! A column is a JSON path of the simple sort that definitions may contain: fields, `[0]`, `[*]`, `['a.b']`
//! and filters that compare one field (`[?(@.type=="Ready")]`). The first thing it finds fills the cell.

use api_machinery::Object;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::duration::since;
use super::row::time_of;
use super::{Column, NAME};

/// The columns of one version of a custom resource, ready to make rows.
#[derive(Debug, Clone)]
pub struct CustomColumns {
    columns: Vec<Column>,
    paths: Vec<Vec<Step>>,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    Every,
    Filter { path: Vec<Step>, equal: bool, to: Value },
}

impl CustomColumns {
    /// From `additionalPrinterColumns`; without any, there is the age. Fails with the path it cannot read.
    pub fn parse(definitions: &[Value]) -> Result<CustomColumns, String> {
        let age = [json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
            "description": "How long ago the object was created."})];
        let definitions = if definitions.is_empty() { &age } else { definitions };
        let mut parsed = CustomColumns { columns: vec![NAME], paths: Vec::new() };
        for definition in definitions {
            let of = |key: &str| definition[key].as_str().unwrap_or_default().to_owned();
            let path = of("jsonPath");
            let steps = steps(&path).ok_or_else(|| format!("unrecognized column definition {path:?}"))?;
            let description = match of("description") {
                text if text.is_empty() => format!("Column made from {path}."),
                text => text,
            };
            let priority = definition["priority"].as_i64().and_then(|it| i32::try_from(it).ok());
            parsed.columns.push(Column {
                name: of("name").into(),
                typ: of("type").into(),
                format: of("format").into(),
                description: description.into(),
                priority: priority.unwrap_or_default(),
            });
            parsed.paths.push(steps);
        }
        Ok(parsed)
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// One row; what is absent or of another type than the column says is null.
    pub fn cells(&self, object: &Object, now: Timestamp) -> Vec<Value> {
        let body = object.to_document().map(|document| document.into_value()).unwrap_or_default();
        let mut cells = vec![json!(object.header.name)];
        for (column, path) in self.columns.iter().skip(1).zip(&self.paths) {
            cells.push(find(&body, path).map_or(Value::Null, |value| cell(&column.typ, value, now)));
        }
        cells
    }
}

fn cell(typ: &str, value: &Value, now: Timestamp) -> Value {
    match typ {
        "integer" => match value.as_i64() {
            Some(number) => number.into(),
            None => value.as_f64().map_or(Value::Null, |number| (number as i64).into()),
        },
        "number" => value.as_f64().map_or(Value::Null, Value::from),
        "boolean" => value.as_bool().map_or(Value::Null, Value::from),
        "string" => match value {
            Value::String(text) => text.as_str().into(),
            other => other.to_string().into(),
        },
        "date" => match value.as_str().map(time_of) {
            Some(Some(then)) => since(then, now).into(),
            Some(None) => "<invalid>".into(),
            None => Value::Null,
        },
        _ => Value::Null,
    }
}

/// The first thing `path` leads to.
fn find<'v>(value: &'v Value, path: &[Step]) -> Option<&'v Value> {
    let Some((step, rest)) = path.split_first() else {
        return (!value.is_null()).then_some(value);
    };
    match step {
        Step::Field(name) => find(value.get(name)?, rest),
        Step::Index(at) => {
            let items = value.as_array()?;
            let at = if *at < 0 { items.len() as i64 + at } else { *at };
            find(items.get(usize::try_from(at).ok()?)?, rest)
        }
        Step::Every => match value {
            Value::Array(items) => items.iter().find_map(|item| find(item, rest)),
            Value::Object(members) => members.values().find_map(|member| find(member, rest)),
            _ => None,
        },
        Step::Filter { path, equal, to } => value
            .as_array()?
            .iter()
            .filter(|item| find(item, path).is_some_and(|found| (found == to) == *equal))
            .find_map(|item| find(item, rest)),
    }
}

/// Nobody writes longer ones; it also bounds how deep filters can nest.
const MAX_PATH_BYTES: usize = 1024;

/// `.spec.x[0]['a.b'][?(@.type=="Ready")].status`; `None` for anything else.
fn steps(path: &str) -> Option<Vec<Step>> {
    if path.len() > MAX_PATH_BYTES {
        return None;
    }
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    let mut steps = Vec::new();
    if rest == "." {
        return Some(steps);
    }
    if !rest.starts_with(['.', '[']) {
        return None;
    }
    while !rest.is_empty() {
        if let Some(bracket) = rest.strip_prefix('[') {
            let end = closing(bracket)?;
            steps.push(bracketed(&bracket[..end])?);
            rest = &bracket[end + 1..];
        } else {
            let (name, after) = field(rest.strip_prefix('.')?);
            rest = after;
            match name.as_str() {
                // `.[0]` is the same as `[0]`.
                "" if rest.starts_with('[') => {}
                "" => return None,
                "*" => steps.push(Step::Every),
                _ => steps.push(Step::Field(name)),
            }
        }
    }
    Some(steps)
}

/// A field's name, in which a backslash takes the meaning from a dot, and what follows it.
fn field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '.' | '[' => return (name, &text[at..]),
            '\\' => name.extend(chars.next().map(|(_, escaped)| escaped)),
            c => name.push(c),
        }
    }
    (name, "")
}

/// Where the bracket that is open at the beginning is closed, quotes and inner brackets left alone.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0usize, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            (None, _) => {}
        }
    }
    None
}

fn bracketed(text: &str) -> Option<Step> {
    let text = text.trim();
    if text == "*" {
        return Some(Step::Every);
    }
    if let Some(name) = quoted(text) {
        return Some(Step::Field(name.to_owned()));
    }
    if let Some(filter) = text.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        let (at, equal) = match (filter.find("=="), filter.find("!=")) {
            (Some(at), None) => (at, true),
            (None, Some(at)) => (at, false),
            (Some(equal), Some(unequal)) => (equal.min(unequal), equal < unequal),
            (None, None) => return None,
        };
        let path = steps(filter[..at].trim().strip_prefix('@')?)?;
        let to = filter[at + 2..].trim();
        let to = match quoted(to) {
            Some(text) => text.into(),
            None => serde_json::from_str(to).ok()?,
        };
        return Some(Step::Filter { path, equal, to });
    }
    text.parse().ok().map(Step::Index)
}

fn quoted(text: &str) -> Option<&str> {
    let inner = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('\'').or_else(|| inner('"'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api_machinery::Document;

    #[test]
    fn paths_find_what_they_name() {
        let object = json!({
            "metadata": {"name": "x", "creationTimestamp": "2026-11-30T11:00:00Z", "labels": {"a.b/c": "d"}},
            "spec": {"count": 3, "ratio": 0.5, "on": true, "list": [{"v": 1}, {"v": 2}], "empty": [], "map": {"k": "v"}},
            "status": {"at": "soon", "conditions": [
                {"type": "Synced", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let object = Document::from_value(object).and_then(|document| Object::from_document(&document).ok());
        let object = object.expect("an object");
        let now = "2026-11-30T12:00:00Z".parse().expect("a time");
        for (typ, path, wanted) in [
            ("integer", ".spec.count", json!(3)),
            ("integer", ".spec.ratio", json!(0)),
            ("integer", ".spec.on", Value::Null),
            ("number", ".spec.count", json!(3.0)),
            ("boolean", ".spec.on", json!(true)),
            ("string", ".spec.count", json!("3")),
            ("string", ".spec.map", json!("{\"k\":\"v\"}")),
            ("string", ".metadata.labels['a.b/c']", json!("d")),
            ("string", ".metadata.labels.a\\.b/c", json!("d")),
            ("string", ".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            ("string", ".status.conditions[?(@.type!='Ready')].status", json!("False")),
            ("string", ".status.conditions[?(@.type=='Gone')].status", Value::Null),
            ("integer", ".spec.list[1].v", json!(2)),
            ("integer", ".spec.list[-1].v", json!(2)),
            ("integer", ".spec.list[7].v", Value::Null),
            ("integer", ".spec.list[*].v", json!(1)),
            ("integer", ".spec.empty[*].v", Value::Null),
            ("date", ".metadata.creationTimestamp", json!("60m")),
            ("date", ".status.at", json!("<invalid>")),
            ("string", ".spec.absent", Value::Null),
        ] {
            let columns = CustomColumns::parse(&[json!({"name": "C", "type": typ, "jsonPath": path})]);
            assert_eq!(columns.expect(path).cells(&object, now)[1], wanted, "{typ} {path}");
        }
        let age = CustomColumns::parse(&[]).expect("the age");
        assert_eq!(age.cells(&object, now), [json!("x"), json!("60m")]);
        assert_eq!((age.columns().len(), &*age.columns()[1].name), (2, "Age"));
    }

    #[test]
    fn nonsense_is_refused() {
        let deep = format!(".a{}", "[?(@".repeat(10_000));
        for path in ["spec", ".spec[", ".spec..x", ".a[?(@.b)]", ".a[?(x==1)]", ".a[b]", "", &deep] {
            assert_eq!(steps(path), None, "{path}");
        }
    }
}
