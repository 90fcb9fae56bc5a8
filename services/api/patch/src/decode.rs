//! From bytes to a document that is what its kind says.
//!
//! Three things at once, since each needs the same walk: values of the wrong type are refused as Go's
//! decoder words it; unknown and duplicate fields are dropped and reported, for the request's
//! `fieldValidation` to decide about; and values with several spellings (quantities, times, nulls) take
//! the one that upstream's types would print.

use api_kinds::{Cardinality, FieldInfo, FieldKind, Message, MessageId, kinds};
use api_machinery::{Document, MAX_DEPTH, Quantity, is_deeper_than};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::PatchError;

/// Unknown and duplicate fields reported, at most. A body of nothing else would make a message as large.
const MAX_PROBLEMS: usize = 100;

/// A body, decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    pub document: Document,
    /// `unknown field "spec.x"`, `duplicate field "spec.y"`: errors when validation is strict, warnings
    /// when it warns.
    pub problems: Vec<String>,
}

/// The error of `fieldValidation: Strict`: `strict decoding error: unknown field "spec.x", …`.
pub fn strict_error(problems: &[String]) -> String {
    format!("strict decoding error: {}", problems.join(", "))
}

/// Decodes the JSON of an object whose body is `message`.
///
/// The error is what upstream puts behind `Pod in version "v1" cannot be handled as a Pod: `.
pub fn decode_strict(message: MessageId, bytes: &[u8]) -> Result<Decoded, PatchError> {
    let mut parser = Parser::default();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Node(&mut parser)
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(|cause| PatchError::Malformed(format!("json parse error: {cause}")))?;
    let Value::Object(object) = value else {
        let message = kinds().message(message);
        return Err(PatchError::Malformed(format!(
            "json: cannot unmarshal {} into Go value of type {}",
            json_type(&value),
            go_name(message)
        )));
    };
    let mut document = Document(object);
    let mut problems = parser.duplicates;
    problems.extend(check(message, &mut document)?);
    problems.truncate(MAX_PROBLEMS);
    if problems.len() > 1 {
        problems = in_order(bytes, problems);
    }
    Ok(Decoded { document, problems })
}

/// The same for a document that is parsed already (the outcome of a patch, a YAML body): drops unknown
/// fields and gives them, brings values into canonical form, refuses wrong types.
pub fn check(message: MessageId, document: &mut Document) -> Result<Vec<String>, PatchError> {
    // The document itself is the first level.
    if document.0.values().any(|value| is_deeper_than(value, MAX_DEPTH - 1)) {
        return Err(PatchError::Malformed("exceeded max depth".to_owned()));
    }
    let mut walk = Walk { path: Vec::new(), problems: Vec::new() };
    walk.object(kinds().message(message), &mut document.0)?;
    Ok(walk.problems)
}

/// `problems` in the order of the body, as upstream's decoder meets them. A second look at the body: more
/// than one problem is rare.
fn in_order(bytes: &[u8], problems: Vec<String>) -> Vec<String> {
    let mut parser = Parser { waiting: problems, ..Parser::default() };
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    // It parsed before. Should it not now, what was not met follows in the order it had.
    let _parsed = Node(&mut parser).deserialize(&mut deserializer);
    parser.met.extend(parser.waiting);
    parser.met
}

// ---- parsing with an eye on duplicates ----

#[derive(Default)]
struct Parser {
    path: Vec<Step>,
    duplicates: Vec<String>,
    /// Problems that are known but for their order, and those met so far.
    waiting: Vec<String>,
    met: Vec<String>,
}

impl Parser {
    /// The parser stands at a key; `again` where its object had it before.
    fn meet(&mut self, again: bool) {
        if self.waiting.is_empty() {
            return;
        }
        let shown = show(&self.path);
        let problem = if again { duplicate(&shown) } else { unknown(&shown) };
        if let Some(at) = self.waiting.iter().position(|one| *one == problem) {
            self.met.push(self.waiting.remove(at));
        }
    }
}

fn duplicate(shown: &str) -> String {
    format!("duplicate field {shown:?}")
}

fn unknown(shown: &str) -> String {
    format!("unknown field {shown:?}")
}

#[derive(Debug, Clone)]
enum Step {
    Field(String),
    Index(usize),
}

/// `spec.containers[0].name`
fn show(path: &[Step]) -> String {
    let mut shown = String::new();
    for step in path {
        match step {
            Step::Field(name) if shown.is_empty() => shown.push_str(name),
            Step::Field(name) => {
                shown.push('.');
                shown.push_str(name);
            }
            Step::Index(index) => shown.push_str(&format!("[{index}]")),
        }
    }
    shown
}

struct Node<'a>(&'a mut Parser);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            self.0.path.push(Step::Index(list.len()));
            let item = items.next_element_seed(Node(self.0));
            self.0.path.pop();
            match item? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let again = map.contains_key(&key);
            self.0.path.push(Step::Field(key));
            self.0.meet(again);
            let value = members.next_value_seed(Node(self.0));
            let shown = self.0.path.clone();
            let Some(Step::Field(key)) = self.0.path.pop() else { continue };
            if map.insert(key, value?).is_some() && self.0.duplicates.len() < MAX_PROBLEMS {
                let problem = duplicate(&show(&shown));
                if !self.0.duplicates.contains(&problem) {
                    self.0.duplicates.push(problem);
                }
            }
        }
        Ok(Value::Object(map))
    }
}

// ---- checking against the table ----

struct Walk {
    path: Vec<Step>,
    problems: Vec<String>,
}

impl Walk {
    fn object(
        &mut self,
        message: &'static Message,
        object: &mut Map<String, Value>,
    ) -> Result<(), PatchError> {
        let mut gone = Vec::new();
        for (key, value) in object.iter_mut() {
            self.path.push(Step::Field(key.clone()));
            match message.field(key) {
                // Go takes null for absent.
                Some(_) if value.is_null() => gone.push(key.clone()),
                Some(field) => self.field(message, field, value)?,
                None if message.open => {}
                None => {
                    if self.problems.len() < MAX_PROBLEMS {
                        self.problems.push(unknown(&show(&self.path)));
                    }
                    gone.push(key.clone());
                }
            }
            self.path.pop();
        }
        for key in gone {
            object.remove(&key);
        }
        Ok(())
    }

    fn field(
        &mut self,
        of: &'static Message,
        field: &'static FieldInfo,
        value: &mut Value,
    ) -> Result<(), PatchError> {
        match field.cardinality {
            Cardinality::One => self.element(of, field, value),
            Cardinality::List => {
                let Value::Array(items) = value else {
                    return Err(self.wrong(of, value, &format!("[]{}", go_type(field.kind))));
                };
                for (index, item) in items.iter_mut().enumerate() {
                    self.path.push(Step::Index(index));
                    zero_if_null(field.kind, item);
                    self.element(of, field, item)?;
                    self.path.pop();
                }
                Ok(())
            }
            Cardinality::Map => {
                let Value::Object(members) = value else {
                    return Err(self.wrong(of, value, &format!("map[string]{}", go_type(field.kind))));
                };
                for (key, member) in members.iter_mut() {
                    self.path.push(Step::Field(key.clone()));
                    zero_if_null(field.kind, member);
                    // Go's errors name the map, not the key.
                    let result = self.element(of, field, member);
                    self.path.pop();
                    result?;
                }
                Ok(())
            }
        }
    }

    fn element(
        &mut self,
        of: &'static Message,
        field: &'static FieldInfo,
        value: &mut Value,
    ) -> Result<(), PatchError> {
        let wrong = |walk: &Walk, value: &Value| Err(walk.wrong(of, value, &go_type(field.kind)));
        match field.kind {
            FieldKind::Message(id) => {
                let message = kinds().message(id);
                match value {
                    Value::Object(object) => self.object(message, object),
                    other => Err(self.wrong(of, other, &go_name(message))),
                }
            }
            FieldKind::String if !value.is_string() => wrong(self, value),
            FieldKind::Bool if !value.is_boolean() => wrong(self, value),
            FieldKind::Int32 if value.as_i64().is_none_or(|number| i32::try_from(number).is_err()) => {
                wrong(self, value)
            }
            FieldKind::Int64 if value.as_i64().is_none() => wrong(self, value),
            FieldKind::Double if !value.is_number() => wrong(self, value),
            FieldKind::String | FieldKind::Bool | FieldKind::Int32 | FieldKind::Int64 | FieldKind::Double => {
                Ok(())
            }
            FieldKind::Bytes => match value {
                Value::String(text) => {
                    // Go skips line breaks within base64, and prints none.
                    if text.contains(['\n', '\r']) {
                        text.retain(|c| !matches!(c, '\n' | '\r'));
                    }
                    match STANDARD.decode(text.as_bytes()) {
                        Ok(_) => Ok(()),
                        Err(cause) => Err(PatchError::Malformed(illegal_base64(&cause))),
                    }
                }
                other => wrong(self, other),
            },
            FieldKind::Quantity => {
                if !matches!(value, Value::String(_) | Value::Number(_)) {
                    return wrong(self, value);
                }
                let amount =
                    Quantity::from_json(value).map_err(|why| PatchError::Malformed(why.to_string()))?;
                *value = Value::String(amount.to_string());
                Ok(())
            }
            FieldKind::IntOrString => match &*value {
                Value::String(_) => Ok(()),
                Value::Number(number) if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => Ok(()),
                other => wrong(self, other),
            },
            FieldKind::Time => self.time(of, field, value, base_time),
            FieldKind::MicroTime => self.time(of, field, value, micro_time),
            FieldKind::Duration => match value {
                Value::String(_) => Ok(()),
                other => wrong(self, other),
            },
            FieldKind::RawExtension | FieldKind::FieldsV1 | FieldKind::Json => Ok(()),
            FieldKind::Strings => match value {
                Value::Array(items) if items.iter().all(Value::is_string) => Ok(()),
                other => Err(self.wrong(of, other, "[]string")),
            },
            FieldKind::SchemaOrArray | FieldKind::SchemaOrBool | FieldKind::SchemaOrStrings => {
                self.schema(value)
            }
        }
    }

    /// A schema, or the one other thing its place allows: a list of schemas or strings, or a boolean.
    fn schema(&mut self, value: &mut Value) -> Result<(), PatchError> {
        let name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
        let Some(schema) = kinds().message_named(name) else { return Ok(()) };
        match value {
            Value::Object(object) => self.object(schema, object),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.path.push(Step::Index(index));
                    if let Value::Object(object) = item {
                        self.object(schema, object)?;
                    }
                    self.path.pop();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn time(
        &mut self,
        of: &'static Message,
        field: &'static FieldInfo,
        value: &mut Value,
        print: fn(Timestamp) -> String,
    ) -> Result<(), PatchError> {
        let Value::String(text) = &*value else { return Err(self.wrong(of, value, &go_type(field.kind))) };
        match text.parse::<Timestamp>() {
            Ok(at) => {
                *value = Value::String(print(at));
                Ok(())
            }
            Err(_) => Err(PatchError::Malformed(format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
            ))),
        }
    }

    fn wrong(&self, of: &Message, value: &Value, wanted: &str) -> PatchError {
        let fields: Vec<&str> = self
            .path
            .iter()
            .filter_map(|step| match step {
                Step::Field(name) => Some(name.as_str()),
                Step::Index(_) => None,
            })
            .collect();
        let found = match value {
            Value::Number(number) if wanted.starts_with("int") => format!("number {number}"),
            other => json_type(other).to_owned(),
        };
        PatchError::Malformed(format!(
            "json: cannot unmarshal {found} into Go struct field {}.{} of type {wanted}",
            of.short_name(),
            fields.join(".")
        ))
    }
}

/// In lists and maps Go makes a zero value of null.
fn zero_if_null(kind: FieldKind, value: &mut Value) {
    if !value.is_null() {
        return;
    }
    match kind {
        FieldKind::String | FieldKind::Bytes => *value = Value::String(String::new()),
        FieldKind::Bool => *value = Value::Bool(false),
        FieldKind::Int32 | FieldKind::Int64 | FieldKind::Double | FieldKind::IntOrString => *value = 0.into(),
        FieldKind::Quantity => *value = Value::String("0".to_owned()),
        FieldKind::Strings => *value = Value::Array(Vec::new()),
        FieldKind::Message(_) => *value = Value::Object(Map::new()),
        _ => {}
    }
}

fn base_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

fn illegal_base64(cause: &base64::DecodeError) -> String {
    let at = match cause {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => *at,
        base64::DecodeError::InvalidLength(length) => *length,
        base64::DecodeError::InvalidPadding => 0,
    };
    format!("illegal base64 data at input byte {at}")
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// `v1.PodSpec`
fn go_name(message: &Message) -> String {
    let mut parts = message.name.rsplit('.');
    let name = parts.next().unwrap_or_default();
    format!("{}.{name}", parts.next().unwrap_or_default())
}

fn go_type(kind: FieldKind) -> String {
    match kind {
        FieldKind::String => "string".to_owned(),
        FieldKind::Bool => "bool".to_owned(),
        FieldKind::Int32 => "int32".to_owned(),
        FieldKind::Int64 => "int64".to_owned(),
        FieldKind::Double => "float64".to_owned(),
        FieldKind::Bytes => "[]uint8".to_owned(),
        FieldKind::Quantity => "resource.Quantity".to_owned(),
        FieldKind::IntOrString => "intstr.IntOrString".to_owned(),
        FieldKind::Time => "v1.Time".to_owned(),
        FieldKind::MicroTime => "v1.MicroTime".to_owned(),
        FieldKind::Duration => "v1.Duration".to_owned(),
        FieldKind::RawExtension => "runtime.RawExtension".to_owned(),
        FieldKind::FieldsV1 => "v1.FieldsV1".to_owned(),
        FieldKind::Json => "v1.JSON".to_owned(),
        FieldKind::Strings => "[]string".to_owned(),
        FieldKind::SchemaOrArray => "v1.JSONSchemaPropsOrArray".to_owned(),
        FieldKind::SchemaOrBool => "v1.JSONSchemaPropsOrBool".to_owned(),
        FieldKind::SchemaOrStrings => "v1.JSONSchemaPropsOrStringArray".to_owned(),
        FieldKind::Message(id) => go_name(kinds().message(id)),
    }
}

#[cfg(test)]
mod tests {
    use api_machinery::Gvk;
    use serde_json::json;

    use super::*;

    fn decode(kind: (&'static str, &'static str, &'static str), text: &str) -> Result<Decoded, String> {
        let message = kinds().kind_message(&Gvk::new(kind.0, kind.1, kind.2)).unwrap().id;
        decode_strict(message, text.as_bytes()).map_err(|error| error.to_string())
    }

    const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");

    #[test]
    fn unknown_and_duplicate_fields_are_dropped_and_told() {
        let got = decode(
            DEPLOYMENT,
            r#"{"apiVersion":"apps/v1","kind":"Deployment","foo":1,"metadata":{"name":"a","labels":{"x":"1","x":"2"}},
                "spec":{"replicas":1,"replicas":2,"template":{"spec":{"containers":[{"name":"c","imag":"x"}]}}}}"#,
        )
        .unwrap();
        assert_eq!(
            got.problems,
            [
                "unknown field \"foo\"",
                "duplicate field \"metadata.labels.x\"",
                "duplicate field \"spec.replicas\"",
                "unknown field \"spec.template.spec.containers[0].imag\"",
            ]
        );
        assert_eq!(
            got.document.into_value(),
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "labels": {"x": "2"}},
                "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "c"}]}}}})
        );
        assert_eq!(
            strict_error(&["unknown field \"foo\"".to_owned(), "duplicate field \"x\"".to_owned()]),
            "strict decoding error: unknown field \"foo\", duplicate field \"x\""
        );
    }

    #[test]
    fn wrong_types_are_refused_in_the_words_of_go() {
        for (text, wanted) in [
            (
                r#"{"spec":{"replicas":"3"}}"#,
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                r#"{"spec":{"replicas":1.5}}"#,
                "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                r#"{"spec":{"replicas":99999999999}}"#,
                "json: cannot unmarshal number 99999999999 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                r#"{"spec":[]}"#,
                "json: cannot unmarshal array into Go struct field Deployment.spec of type v1.DeploymentSpec",
            ),
            (
                r#"{"spec":{"template":{"spec":{"containers":{}}}}}"#,
                "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container",
            ),
            (
                r#"{"spec":{"template":{"spec":{"containers":[{"env":[{"value":1}]}]}}}}"#,
                "json: cannot unmarshal number into Go struct field EnvVar.spec.template.spec.containers.env.value of type string",
            ),
            (
                r#"{"metadata":{"creationTimestamp":"yesterday"}}"#,
                "parsing time \"yesterday\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"yesterday\" as \"2006\"",
            ),
            ("[]", "json: cannot unmarshal array into Go value of type v1.Deployment"),
        ] {
            assert_eq!(decode(DEPLOYMENT, text), Err(wanted.to_owned()), "{text}");
        }
        for text in ["", "{", "{}x", "nul", "\u{1}", &"[".repeat(1000), &r#"{"a":"#.repeat(1000)] {
            assert!(decode(DEPLOYMENT, text).unwrap_err().starts_with("json parse error"), "{text}");
        }
    }

    #[test]
    fn values_take_their_canonical_form() {
        let pod = ("", "v1", "Pod");
        let secret = ("", "v1", "Secret");
        for (kind, given, wanted) in [
            (
                pod,
                r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"1000m","memory":1024}}}]}}"#,
                json!({"spec": {"containers": [{"resources": {"limits": {"cpu": "1", "memory": "1024"}}}]}}),
            ),
            (
                pod,
                r#"{"metadata":{"creationTimestamp":null,"labels":{"a":null}},"spec":{"nodeName":null}}"#,
                json!({"metadata": {"labels": {"a": ""}}, "spec": {}}),
            ),
            (
                pod,
                r#"{"metadata":{"deletionTimestamp":"2026-11-30T22:05:48.5+01:00"}}"#,
                json!({"metadata": {"deletionTimestamp": "2026-11-30T21:05:48Z"}}),
            ),
            (
                ("coordination.k8s.io", "v1", "Lease"),
                r#"{"spec":{"renewTime":"2026-11-30T21:05:48.1Z"}}"#,
                json!({"spec": {"renewTime": "2026-11-30T21:05:48.100000Z"}}),
            ),
            (secret, "{\"data\":{\"a\":\"aGVs\\nbG8=\"}}", json!({"data": {"a": "aGVsbG8="}})),
        ] {
            assert_eq!(decode(kind, given).unwrap().document.into_value(), wanted, "{given}");
        }
        assert_eq!(
            decode(secret, r#"{"data":{"a":"!"}}"#),
            Err("illegal base64 data at input byte 0".to_owned())
        );
        assert!(decode(pod, r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"lots"}}}]}}"#).is_err());
    }
}
