//! Request bodies, and what is wrong with them field by field.
//!
//! [`Body`] parses; what a field's own type cannot say (a size that is too large, a label that Kubernetes
//! would not take) handlers note in [`Faults`](crate::problem::Faults). Both end in the same answer.
//!
//! Serde stops at the first fault and says where it was only in words. `serde_path_to_error` follows the way
//! there; the name of a field that is missing or unknown is still taken from the words, which a test pins.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use fleet_model::{FieldProblem, pointer_step};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_json::error::Category;
use serde_path_to_error::{Path, Segment};

use super::Answer;
use crate::problem::Failure;

/// Unknown fields that one answer names.
const MOST_UNKNOWN: usize = 16;

/// The longest free text (what a token is for) in characters.
const MAX_DESCRIPTION_CHARS: usize = 200;

/// A JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failure;
    async fn from_request(request: Request, state: &S) -> Result<Body<T>, Failure> {
        let kind = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json")
            && !kind.eq_ignore_ascii_case("application/merge-patch+json")
        {
            return Err(Failure::UnsupportedMediaType);
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|_| Failure::TooLarge)?;
        parse(&bytes).map(Body)
    }
}

/// A JSON body that may be left out.
pub(crate) struct BodyOrDefault<T>(pub(crate) T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for BodyOrDefault<T> {
    type Rejection = Failure;
    async fn from_request(request: Request, state: &S) -> Result<BodyOrDefault<T>, Failure> {
        let (parts, body) = request.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.map_err(|_| Failure::TooLarge)?;
        if bytes.is_empty() || bytes.trim_ascii() == b"null" {
            return Ok(BodyOrDefault(T::default()));
        }
        Body::from_request(Request::from_parts(parts, bytes.into()), state)
            .await
            .map(|Body(given)| BodyOrDefault(given))
    }
}

/// What a description in a body must look like.
pub(super) fn check_description(text: &str) -> Result<(), String> {
    if text.chars().count() > MAX_DESCRIPTION_CHARS || text.chars().any(char::is_control) {
        return Err(format!("at most {MAX_DESCRIPTION_CHARS} characters, none of them control characters"));
    }
    Ok(())
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Answer<T> {
    // Serde would take a list of a struct's values for the struct.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        serde_json::from_slice::<IgnoredAny>(bytes).map_err(|error| no_json(&error))?;
        return Err(Failure::field("", "the body is a JSON object"));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let error = match serde_path_to_error::deserialize(&mut reader) {
        Ok(value) => match reader.end() {
            Ok(()) => return Ok(value),
            Err(error) => return Err(no_json(&error)),
        },
        Err(error) => error,
    };
    if error.inner().classify() != Category::Data {
        return Err(no_json(error.inner()));
    }
    let first = fault(error.path(), error.inner());
    let found = faults::<T>(bytes);
    // A field that is there twice is a fault of the text; as a value there is just one of them.
    Err(Failure::Fields(if found.is_empty() { vec![first.problem] } else { found }))
}

fn no_json(error: &serde_json::Error) -> Failure {
    Failure::field("", format!("the body is not JSON: {error}"))
}

/// All faults that can be told from one another: unknown fields are taken out and the rest is looked at again,
/// so that whoever misspelt two fields hears of both.
fn faults<T: DeserializeOwned>(bytes: &[u8]) -> Vec<FieldProblem> {
    let mut found = Vec::new();
    let Ok(mut value) = serde_json::from_slice::<Value>(bytes) else { return found };
    while found.len() < MOST_UNKNOWN {
        let Err(error) = serde_path_to_error::deserialize::<_, T>(value.clone()) else { break };
        let Fault { problem, unknown } = fault(error.path(), error.inner());
        let taken_out = unknown.and_then(|(parent, name)| {
            value.pointer_mut(&parent).and_then(Value::as_object_mut).and_then(|object| object.remove(&name))
        });
        found.push(problem);
        if taken_out.is_none() {
            break;
        }
    }
    found
}

struct Fault {
    problem: FieldProblem,
    /// Of an unknown field: the pointer of the object that it is in, and its name.
    unknown: Option<(String, String)>,
}

fn fault(path: &Path, error: &serde_json::Error) -> Fault {
    let parent = pointer(path);
    let mut words = error.to_string();
    // Where in the text it is says less than which field it is.
    if let Some(end) = words.find(&format!(" at line {} column {}", error.line(), error.column())) {
        words.truncate(end);
    }
    let named = |kind: &str| -> Option<String> {
        let (name, _) = words.strip_prefix(kind)?.strip_prefix(" field `")?.split_once('`')?;
        Some(name.to_owned())
    };
    if let Some(name) = named("missing") {
        let problem = FieldProblem::new(parent + &pointer_step(&name), "it is required");
        return Fault { problem, unknown: None };
    }
    if let Some(name) = named("duplicate") {
        let problem = FieldProblem::new(parent + &pointer_step(&name), "it is there twice");
        return Fault { problem, unknown: None };
    }
    if let Some(name) = named("unknown") {
        let known = words.split_once("expected ").map_or("", |(_, known)| known).replace('`', "");
        let detail = format!("there is no such field; known: {known}");
        // Here the way leads to the field itself.
        let parent = parent.strip_suffix(&pointer_step(&name)).unwrap_or(&parent).to_owned();
        let problem = FieldProblem::new(format!("{parent}{}", pointer_step(&name)), detail);
        return Fault { problem, unknown: Some((parent, name)) };
    }
    Fault { problem: FieldProblem::new(parent, plain(&words)), unknown: None }
}

/// Serde says what it expected in the words of this program; people know JSON's.
fn plain(words: &str) -> String {
    let found = words.replacen("invalid type: sequence", "invalid type: an array", 1).replacen(
        "invalid type: map",
        "invalid type: an object",
        1,
    );
    let Some((found, expected)) = found.rsplit_once(", expected ") else { return found };
    let expected = match expected.split(' ').next().unwrap_or_default() {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "struct" => "an object",
        "string" => "a string",
        "option" => "a value or null",
        "variant" | "enum" => "one of the values that are listed in /openapi.json",
        _ => match expected {
            "a map" => "an object",
            "a sequence" => "an array",
            "a boolean" => "true or false",
            other => other,
        },
    };
    format!("{found}, expected {expected}")
}

/// The way to the fault as a JSON pointer.
fn pointer(path: &Path) -> String {
    path.iter()
        .filter_map(|segment| match segment {
            Segment::Map { key } => Some(pointer_step(key)),
            Segment::Seq { index } => Some(format!("/{index}")),
            Segment::Enum { .. } | Segment::Unknown => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_model::{CreateCluster, CreateJoinToken, CreateNodePool, UpdateNodePool};

    fn said<T: DeserializeOwned>(body: &str) -> String {
        match parse::<T>(body.as_bytes()) {
            Ok(_) => "fine".to_owned(),
            Err(Failure::Fields(errors)) => {
                errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | ")
            }
            Err(other) => format!("{other:?}"),
        }
    }

    #[test]
    fn every_fault_names_its_field() {
        let pool = said::<CreateNodePool>;
        let cluster = said::<CreateCluster>;
        for (got, wanted) in [
            (pool(r#"{"name":"w","size":1}"#), "fine"),
            (pool(r#"{"name":"w"}"#), "/size: it is required"),
            (
                pool(r#"{"name":"w","size":-1}"#),
                "/size: invalid value: integer `-1`, expected a whole number that is not negative",
            ),
            (
                pool(r#"{"name":"w","size":"1"}"#),
                "/size: invalid type: string \"1\", expected a whole number that is not negative",
            ),
            (pool(r#"{"name":"w","size":1,"size":2}"#), "/size: it is there twice"),
            (
                pool(r#"{"name":"w","size":1,"labels":{"a/b":1}}"#),
                "/labels/a~1b: invalid type: integer `1`, expected a string",
            ),
            (
                pool(r#"{"name":"w","size":1,"taints":[{"key":"a","effect":"NoSchedule"},{"key":"b"}]}"#),
                "/taints/1/effect: it is required",
            ),
            (
                pool(r#"{"name":"w","size":1,"taints":[{"key":"a","effect":"NoSchedule","color":1}]}"#),
                "/taints/0/color: there is no such field; known: one of key, value, effect",
            ),
            (
                cluster(r#"{"name":"a","colour":"red","size":3}"#),
                "/colour: there is no such field; known: one of name, kubernetes_version, replicas, provider, labels | \
                 /size: there is no such field; known: one of name, kubernetes_version, replicas, provider, labels",
            ),
            (cluster(r#"{"replicas":1}"#), "/name: it is required"),
            (
                pool(r#"{"name":"w","size":1,"taints":[["a","b","NoSchedule"]]}"#),
                "/taints/0: invalid type: an array, expected an object",
            ),
            (
                pool(r#"{"name":"w","size":1,"taints":{}}"#),
                "/taints: invalid type: an object, expected an array",
            ),
            (
                pool(r#"{"name":"w","size":1,"labels":[]}"#),
                "/labels: invalid type: an array, expected an object",
            ),
            (
                said::<CreateJoinToken>(r#"{"expires_in_seconds":"1"}"#),
                "/expires_in_seconds: invalid type: string \"1\", expected a number",
            ),
            (cluster(r#"["acme"]"#), "the body is a JSON object"),
            (cluster("null"), "the body is a JSON object"),
            (said::<UpdateNodePool>(r#"{"name":null}"#), "/name: invalid type: null, expected a string"),
        ] {
            assert_eq!(got, wanted);
        }
        for text in ["", "{", "{\"name\":\"a\"}}", "{\"name\":}", "\u{0}"] {
            assert!(cluster(text).contains("the body is not JSON: "), "{text:?}: {}", cluster(text));
        }
        assert!(cluster(r#"{"name":"Not A Name"}"#).starts_with("/name: "));
    }
}
