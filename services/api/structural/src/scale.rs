//! Fields that the scale subresource reads and writes.
//!
//! After `registry/customresource/validator.go` of `k8s.io/apiextensions-apiserver`.

use api_machinery::{Field, FieldError};
use serde_json::Value;

use crate::structural::Part;

/// `spec.versions[*].subresources.scale`.
#[derive(Debug, Clone, Copy)]
pub struct ScalePaths<'a> {
    pub spec_replicas: &'a str,
    pub status_replicas: &'a str,
    pub label_selector: Option<&'a str>,
}

/// What is wrong with those fields of an object; through the status subresource only status is looked at.
pub fn validate_scale(object: &Value, paths: ScalePaths<'_>, part: Part) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if part == Part::Whole {
        replicas(object, paths.spec_replicas, &mut errors);
    }
    replicas(object, paths.status_replicas, &mut errors);
    if let Some(path) = paths.label_selector {
        match find(object, path) {
            Ok(None | Some(Value::String(_))) => {}
            Ok(Some(other)) => {
                let why = accessor(path, other, "string");
                errors.push(Field::new(path).invalid("", why));
            }
            Err(why) => errors.push(Field::new(path).invalid("", why)),
        }
    }
    errors
}

fn replicas(object: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let at = Field::new(path);
    let count = match find(object, path) {
        Ok(None) => return,
        Ok(Some(Value::Number(number))) if number.is_i64() => number.as_i64().unwrap_or_default(),
        Ok(Some(other)) => return errors.push(at.invalid(0, accessor(path, other, "int64"))),
        Err(why) => return errors.push(at.invalid(0, why)),
    };
    if count < 0 {
        errors.push(at.invalid(count, "should be a non-negative integer"));
    } else if count > i64::from(i32::MAX) {
        errors.push(at.invalid(count, format!("should be less than or equal to {}", i32::MAX)));
    }
}

/// What a path names (`.spec.replicas`). An error where something on the way is no object.
fn find<'a>(object: &'a Value, path: &str) -> Result<Option<&'a Value>, String> {
    let mut at = object;
    let path = path.strip_prefix('.').unwrap_or(path);
    let mut walked = String::new();
    for key in path.split('.') {
        let Value::Object(members) = at else {
            return Err(accessor(&walked, at, "map[string]interface{}"));
        };
        walked = format!("{walked}.{key}");
        match members.get(key) {
            Some(below) => at = below,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

/// In the words of Go's `unstructured.Nested…`.
fn accessor(path: &str, found: &Value, wanted: &str) -> String {
    let path = if path.starts_with('.') { path.to_owned() } else { format!(".{path}") };
    let shown = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
    format!("{path} accessor error: {shown} is of the type {}, expected {wanted}", go_type(found))
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scale_reads_whole_numbers() {
        let paths = ScalePaths {
            spec_replicas: ".spec.replicas",
            status_replicas: ".status.replicas",
            label_selector: Some(".status.selector"),
        };
        for (object, part, expected) in [
            (json!({}), Part::Whole, vec![]),
            (
                json!({"spec": {"replicas": 1}, "status": {"replicas": 0, "selector": "a=b"}}),
                Part::Whole,
                vec![],
            ),
            (
                json!({"spec": {"replicas": -1}, "status": {"replicas": 2_147_483_648_i64}}),
                Part::Whole,
                vec![
                    ".spec.replicas: Invalid value: -1: should be a non-negative integer",
                    ".status.replicas: Invalid value: 2147483648: should be less than or equal to 2147483647",
                ],
            ),
            (json!({"spec": {"replicas": -1}}), Part::Status, vec![]),
            (
                json!({"spec": {"replicas": "x"}, "status": {"selector": 1}}),
                Part::Whole,
                vec![
                    ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected int64",
                    ".status.selector: Invalid value: \"\": .status.selector accessor error: 1 is of the type int64, expected string",
                ],
            ),
            (
                json!({"spec": 1}),
                Part::Whole,
                vec![
                    ".spec.replicas: Invalid value: 0: .spec accessor error: 1 is of the type int64, expected map[string]interface{}",
                ],
            ),
        ] {
            let errors = validate_scale(&object, paths, part);
            let errors: Vec<String> = errors.iter().map(FieldError::to_string).collect();
            assert_eq!(errors, expected, "{object}");
        }
    }
}
