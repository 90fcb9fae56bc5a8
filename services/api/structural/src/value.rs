//! Whether a value is what its schema says, and if not, why: in upstream's words.
//!
//! [`validate`] walks value and schema together. After `k8s.io/kube-openapi/pkg/validation/validate`, and
//! `apiserver/validation` of `k8s.io/apiextensions-apiserver` for how its findings become field errors and
//! for ratcheting. Numbers are in `number`, formats of strings in `formats`.
//!
//! Not here: uniqueness in lists (`lists`), embedded metadata (`metadata`), CEL (`rules`).

mod number;

use api_machinery::{Field, FieldError, FieldErrorKind, shortened};
use serde_json::Value;

use crate::bounds::{self, MAX_ERROR_BYTES, MAX_ERRORS, Work};
use crate::correlate::Correlated;
use crate::formats;
use crate::schema::Schema;

/// Everything wrong with `value`, its fields beginning with `base`. What `past` shows to be unchanged is not
/// held against it.
pub(crate) fn validate(
    base: &Field,
    value: &Value,
    schema: &Schema,
    past: Option<Correlated<'_>>,
) -> Vec<FieldError> {
    let work = Work::new();
    let mut found = node(value, schema, &At::Root, past, &work);
    if work.is_over() {
        found.add(Flaw::general("checking it against its schema takes too long".to_owned()), &work);
    }
    found.flaws.into_iter().map(|flaw| flaw.into_error(base)).collect()
}

/// Long keys are cut: every error has its path in it twice.
const MAX_PATH_BYTES: usize = 4096;

/// The way to a value, written out only when something is wrong there.
enum At<'a> {
    Root,
    Property(&'a At<'a>, &'a str),
    /// Of `additionalProperties`: a dot goes before it even at the root.
    Other(&'a At<'a>, &'a str),
    Index(&'a At<'a>, usize),
}

impl At<'_> {
    fn path(&self) -> String {
        let mut path = match self {
            At::Root => return String::new(),
            At::Property(parent, _) | At::Other(parent, _) | At::Index(parent, _) => parent.path(),
        };
        let left = MAX_PATH_BYTES.saturating_sub(path.len());
        if left == 0 {
            return path;
        }
        match self {
            At::Index(_, index) => path.push_str(&format!("[{index}]")),
            At::Root | At::Property(At::Root, _) => {}
            At::Property(..) | At::Other(..) => path.push('.'),
        }
        if let At::Property(_, key) | At::Other(_, key) = self {
            path.push_str(&shortened(key, left));
        }
        path
    }
}

struct Flaw {
    /// Tells it from others; what somebody reads, for most kinds.
    message: String,
    error: FieldError,
}

impl Flaw {
    /// With the path in its message, and a field of its own.
    fn at(path: &str, kind: FieldErrorKind, value: Value, message: String) -> Flaw {
        let field = path.strip_prefix('.').unwrap_or(path).to_owned();
        let message = bounds::text_shown(&message);
        Flaw {
            error: FieldError { kind, field, value: bounds::shown(&value), detail: message.clone() },
            message,
        }
    }
    fn invalid(path: &str, value: Value, message: String) -> Flaw {
        Flaw::at(path, FieldErrorKind::Invalid, value, message)
    }
    /// Of no field in particular: upstream puts these at the root of what was validated.
    fn general(message: String) -> Flaw {
        Flaw::at("", FieldErrorKind::Invalid, Value::from(""), message)
    }
    fn wrong_type(path: &str, wanted: &str, found: &str) -> Flaw {
        let message = format!("{path} in body must be of type {wanted}: {found:?}");
        Flaw::at(path, FieldErrorKind::TypeInvalid, Value::from(found), message)
    }

    fn into_error(self, base: &Field) -> FieldError {
        let mut error = self.error;
        error.field = match (base.as_str(), error.field.as_str()) {
            // What a path that isn't there is printed as.
            ("", "") => "<nil>".to_owned(),
            (_, "") => base.as_str().to_owned(),
            (_, field) => base.child(field).as_str().to_owned(),
        };
        error
    }
}

#[derive(Default)]
struct Found {
    flaws: Vec<Flaw>,
    /// Of the flaws.
    bytes: usize,
    /// Checks that went well or ill: of several alternatives that all fail, the one with most is reported.
    checks: usize,
}

impl Found {
    /// What nobody will read is not kept; one flaw always is.
    fn add(&mut self, flaw: Flaw, work: &Work) {
        let bytes = flaw.message.len() + bounds::bytes(&flaw.error);
        work.take(bytes / 16);
        let full = self.flaws.len() >= MAX_ERRORS || self.bytes + bytes > MAX_ERROR_BYTES;
        if self.flaws.is_empty() || !(full || self.flaws.iter().any(|known| known.message == flaw.message)) {
            self.bytes += bytes;
            self.flaws.push(flaw);
        }
    }
    fn merge(&mut self, other: Found, work: &Work) {
        other.flaws.into_iter().for_each(|flaw| self.add(flaw, work));
        self.checks += other.checks;
    }
    fn is_valid(&self) -> bool {
        self.flaws.is_empty()
    }
}

fn node(value: &Value, schema: &Schema, at: &At<'_>, past: Option<Correlated<'_>>, work: &Work) -> Found {
    // Every one of these is gone through for every value.
    let each = schema.enumeration.len() + schema.required.len() + schema.properties.len();
    if !work.take(1 + each) {
        return Found::default();
    }
    let mut found = checked(value, schema, at, past, work);
    if !found.is_valid() && past.is_some_and(Correlated::is_unchanged) {
        found.flaws.clear();
    }
    found
}

fn checked(value: &Value, schema: &Schema, at: &At<'_>, past: Option<Correlated<'_>>, work: &Work) -> Found {
    let mut found = Found::default();
    let format = effective_format(schema);
    if value.is_null() {
        type_of(value, schema, format, at, &mut found, work);
        enumeration(value, schema, at, &mut found, work);
        return found;
    }
    if !types(schema).is_empty() || !format.is_empty() {
        type_of(value, schema, format, at, &mut found, work);
        found.checks += 1;
    }
    junctors(value, schema, at, &mut found, work);
    found.checks += 1;
    match value {
        Value::String(text) => {
            string(text, schema, at, &mut found, work);
            found.checks += 1;
            if let Some(check) = formats::check(format) {
                if !check(text) {
                    let path = at.path();
                    found.add(Flaw::wrong_type(&path, format, text), work);
                }
                found.checks += 1;
            }
        }
        Value::Number(number) => {
            number::validate(number, schema, format, at, &mut found, work);
            found.checks += 2;
        }
        Value::Array(items) => {
            list(items, schema, at, past, &mut found, work);
            found.checks += 2;
        }
        _ => {}
    }
    enumeration(value, schema, at, &mut found, work);
    found.checks += 1;
    if let Value::Object(members) = value {
        object(members, schema, at, past, &mut found, work);
        found.checks += 1;
    }
    found.checks += 1;
    found
}

fn types(schema: &Schema) -> &'static [&'static str] {
    if schema.int_or_string {
        return &["integer", "string"];
    }
    match schema.kind.as_str() {
        "object" => &["object"],
        "array" => &["array"],
        "string" => &["string"],
        "integer" => &["integer"],
        "number" => &["number"],
        "boolean" => &["boolean"],
        _ => &[],
    }
}

/// Formats that don't belong to the type, or that nobody knows, are as if not there.
pub(crate) fn effective_format(schema: &Schema) -> &str {
    let format = schema.format.as_str();
    if format.is_empty() {
        return "";
    }
    let known = match types(schema) {
        [] | ["string"] | [_, _] => formats::check(format).is_some(),
        ["integer"] => matches!(format, "int32" | "int64"),
        ["number"] => matches!(format, "float" | "double"),
        _ => false,
    };
    if known { format } else { "" }
}

fn type_of(value: &Value, schema: &Schema, format: &str, at: &At<'_>, found: &mut Found, work: &Work) {
    let types = types(schema);
    let wanted = |path: &str, kind: &str| Flaw::wrong_type(path, &types.join(","), kind);
    let (kind, own_format) = match value {
        Value::Null => {
            if !types.is_empty() && !schema.nullable {
                found.add(wanted(&at.path(), "null"), work);
            } else {
                found.checks += 1;
            }
            return;
        }
        Value::Bool(_) => ("boolean", ""),
        Value::String(_) => ("string", ""),
        Value::Number(number) if number.is_i64() => ("integer", "int64"),
        Value::Number(_) => ("number", "float64"),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
    };
    let whole =
        kind == "number" && value.as_f64().is_some_and(number::is_whole) && types.contains(&"integer");
    let fits = types.contains(&kind) || whole || (kind == "integer" && types.contains(&"number"));
    let is_text = matches!(value, Value::String(_) | Value::Array(_));
    let numeric = types.contains(&"number") || types.contains(&"integer");
    if !is_text && !format.is_empty() && !fits && own_format != format {
        found.add(Flaw::wrong_type(&at.path(), format, own_format), work);
    } else if fits || (!numeric && !format.is_empty() && is_text) {
        // A string or list with a format passes here: the format is what is looked at.
        found.checks += 1;
    } else {
        found.add(wanted(&at.path(), kind), work);
    }
}

fn string(text: &str, schema: &Schema, at: &At<'_>, found: &mut Found, work: &Work) {
    if schema.max_length.is_some() || schema.min_length.is_some() || schema.pattern.is_some() {
        work.take(text.len() / 16);
    }
    let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(most) = schema.max_length
        && length() > most
    {
        let path = at.path();
        let message = format!("{path} in body should be at most {most} chars long");
        let mut flaw = Flaw::at(&path, FieldErrorKind::TooLong, Value::Null, message);
        flaw.error.detail = Field::default().too_long(usize::try_from(most).unwrap_or_default()).detail;
        return found.add(flaw, work);
    }
    if let Some(least) = schema.min_length
        && length() < least
    {
        let path = at.path();
        let message = format!("{path} in body should be at least {least} chars long");
        return found.add(Flaw::invalid(&path, Value::from(text), message), work);
    }
    let Some(pattern) = &schema.pattern else { return };
    let shown = match pattern.compiled() {
        Ok(compiled) if compiled.is_match(text) => return,
        Ok(_) => pattern.as_str().to_owned(),
        Err(why) => format!("{}, but pattern is invalid: {why}", pattern.as_str()),
    };
    let path = at.path();
    found
        .add(Flaw::invalid(&path, Value::from(text), format!("{path} in body should match '{shown}'")), work);
}

fn list(
    items: &[Value],
    schema: &Schema,
    at: &At<'_>,
    past: Option<Correlated<'_>>,
    found: &mut Found,
    work: &Work,
) {
    if let Some(below) = schema.items() {
        let pasts = past.map(Correlated::items).unwrap_or_default();
        for (index, item) in items.iter().enumerate() {
            let past = pasts.get(index).copied().flatten();
            found.merge(node(item, below, &At::Index(at, index), past, work), work);
        }
    }
    let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
    if let Some(least) = schema.min_items
        && size < least
    {
        let path = at.path();
        let message = format!("{path} in body should have at least {least} items");
        found.add(Flaw::invalid(&path, Value::from(size), message), work);
    }
    if let Some(most) = schema.max_items
        && size > most
    {
        let path = at.path();
        let message = format!("{path} in body should have at most {most} items");
        found.add(too_many(&path, size, most, message), work);
    }
    if schema.unique_items {
        let mut seen = std::collections::HashSet::new();
        if !items.iter().all(|item| seen.insert(item.to_string())) {
            let path = at.path();
            let message = format!("{path} in body shouldn't contain duplicates");
            found.add(Flaw::invalid(&path, Value::from(""), message), work);
        }
    }
}

fn too_many(path: &str, size: i64, most: i64, message: String) -> Flaw {
    let mut flaw = Flaw::at(path, FieldErrorKind::TooMany, Value::from(size), message);
    let count = |number: i64| usize::try_from(number).unwrap_or_default();
    flaw.error.detail = Field::default().too_many(count(size), count(most)).detail;
    flaw
}

fn object(
    members: &serde_json::Map<String, Value>,
    schema: &Schema,
    at: &At<'_>,
    past: Option<Correlated<'_>>,
    found: &mut Found,
    work: &Work,
) {
    let size = i64::try_from(members.len()).unwrap_or(i64::MAX);
    if let Some(least) = schema.min_properties
        && size < least
    {
        let path = at.path();
        let message = format!("{path} in body should have at least {least} properties");
        found.add(Flaw::invalid(&path, Value::from(size), message), work);
    }
    if let Some(most) = schema.max_properties
        && size > most
    {
        let path = at.path();
        let message = format!("{path} in body should have at most {most} properties");
        found.add(too_many(&path, size, most, message), work);
    }
    // Both come in the same version always, so that a change of these can't be seen.
    let past_of = |key: &str| match at {
        At::Root if key == "apiVersion" || key == "kind" => None,
        _ => past.and_then(|past| past.key(key)),
    };
    if let Some(additional) = &schema.additional {
        for (key, value) in members.iter().filter(|(key, _)| schema.property(key).is_none()) {
            if let Some(below) = additional.schema.as_deref() {
                found.merge(node(value, below, &At::Other(at, key), past_of(key), work), work);
            } else if !additional.allows {
                let path = at.path();
                let message = format!("{path}.{key} in body is a forbidden property");
                found.add(Flaw::invalid(&path, Value::from(key.as_str()), message), work);
            }
        }
    }
    for (key, property) in &schema.properties {
        if let Some(value) = members.get(key) {
            found.merge(node(value, property, &At::Property(at, key), past_of(key), work), work);
        }
    }
    for key in schema.required.iter().filter(|key| !members.contains_key(*key)) {
        let path = format!("{}.{key}", at.path());
        let message = format!("{path} in body is required");
        let mut flaw = Flaw::at(&path, FieldErrorKind::Required, Value::Null, message);
        flaw.error.detail.clear();
        found.add(flaw, work);
    }
}

fn enumeration(value: &Value, schema: &Schema, at: &At<'_>, found: &mut Found, work: &Work) {
    if schema.enumeration.is_empty() || schema.enumeration.iter().any(|one| is_same(value, one)) {
        return;
    }
    let mut supported: Vec<String> = Vec::new();
    let mut bytes = 0;
    for one in &schema.enumeration {
        let one = one.as_str().map_or_else(|| bounds::text_shown(&one.to_string()), bounds::text_shown);
        bytes += one.len();
        supported.push(one);
        // More would not be shown.
        if bytes > bounds::MAX_SHOWN_BYTES {
            break;
        }
    }
    let path = at.path();
    let message = format!("{path} in body should be one of {supported:?}");
    let supported: Vec<&str> = supported.iter().map(String::as_str).collect();
    let mut flaw = Flaw::at(&path, FieldErrorKind::NotSupported, value.clone(), message);
    let detail = Field::default().not_supported(Value::Null, &supported).detail;
    flaw.error.detail = bounds::text_shown(&detail);
    found.add(flaw, work);
}

/// Go converts a number to the type of the one it is compared with.
fn is_same(value: &Value, one: &Value) -> bool {
    match (value, one) {
        (Value::Null, _) => false,
        (Value::Number(value), Value::Number(one)) => match one.as_i64() {
            Some(one) => {
                value.as_i64() == Some(one) || value.as_f64().is_some_and(|value| value as i64 == one)
            }
            None => value.as_f64() == one.as_f64(),
        },
        _ => value == one,
    }
}

fn junctors(value: &Value, schema: &Schema, at: &At<'_>, found: &mut Found, work: &Work) {
    // Neither these nor anything below is compared with what was before.
    let alternative = |schema: &Schema| node(value, schema, at, None, work);
    if !schema.any_of.is_empty() {
        let mut best: Option<Found> = None;
        let mut valid = None;
        for one in &schema.any_of {
            let result = alternative(one);
            if result.is_valid() {
                valid = Some(result);
                break;
            }
            if best.as_ref().is_none_or(|best| result.checks > best.checks) {
                best = Some(result);
            }
        }
        match (valid, best) {
            (Some(valid), _) => found.merge(valid, work),
            (None, best) => {
                let path = at.path();
                found.add(Flaw::general(format!("{path:?} must validate at least one schema (anyOf)")), work);
                best.into_iter().for_each(|best| found.merge(best, work));
            }
        }
    }
    if !schema.one_of.is_empty() {
        let mut best: Option<Found> = None;
        let mut first = None;
        let mut valid = 0;
        for one in &schema.one_of {
            let result = alternative(one);
            if result.is_valid() {
                valid += 1;
                best = None;
                first.get_or_insert(result);
            } else if valid == 0 && best.as_ref().is_none_or(|best| result.checks > best.checks) {
                best = Some(result);
            }
        }
        if valid == 1 {
            first.into_iter().for_each(|first| found.merge(first, work));
        } else {
            let path = at.path();
            let count = match valid {
                0 => "Found none valid".to_owned(),
                _ => format!("Found {valid} valid alternatives"),
            };
            found.add(
                Flaw::general(format!("{path:?} must validate one and only one schema (oneOf). {count}")),
                work,
            );
            best.into_iter().for_each(|best| found.merge(best, work));
        }
    }
    if !schema.all_of.is_empty() {
        let mut valid = 0;
        for one in &schema.all_of {
            let result = alternative(one);
            valid += usize::from(result.is_valid());
            found.merge(result, work);
        }
        if valid != schema.all_of.len() {
            let path = at.path();
            let none = if valid == 0 { ". None validated" } else { "" };
            found.add(Flaw::general(format!("{path:?} must validate all the schemas (allOf){none}")), work);
        }
    }
    if let Some(not) = &schema.not
        && alternative(not).is_valid()
    {
        let path = at.path();
        found.add(Flaw::general(format!("{path:?} must not validate the schema (not)")), work);
    }
    found.checks += 1;
}

#[cfg(test)]
mod tests;
