//! JSON to values and back.
//!
//! Source of what becomes what: `k8s.io/apiserver/pkg/cel/common/valuesunstructured.go`; back,
//! `pkg/cel/mutation/dynamic` and cel-go's conversion to JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map as JsonMap, Number, Value as Json};

use super::{List, Map, Text, Value};
use crate::decl::{Decl, Shape};
use crate::eval::EvalError;
use crate::library::time;

/// Why data is not what its declaration says, or a value has no JSON.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct ConvertError(pub String);

impl From<ConvertError> for EvalError {
    fn from(err: ConvertError) -> EvalError {
        EvalError::failed(err.0)
    }
}

fn wrong<T>(message: impl Into<String>) -> Result<T, ConvertError> {
    Err(ConvertError(message.into()))
}

/// What Go calls the type of such JSON.
fn go_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "<nil>",
        Json::Bool(_) => "bool",
        Json::Number(number) if number.is_f64() => "float64",
        Json::Number(_) => "int64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    }
}

/// Values nested deeper than this have no JSON. JSON that came in is never nearly so deep.
const MAX_JSON_DEPTH: usize = 400;

impl<'a> Value<'a> {
    /// JSON without a declaration: whole numbers are ints, others doubles.
    pub fn from_json(json: &'a Json) -> Value<'a> {
        match json {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => match number.as_i64() {
                Some(whole) => Value::Int(whole),
                None => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::String(Text::Borrowed(text)),
            Json::Array(items) => Value::List(List::json(items, None)),
            Json::Object(object) => Value::Map(Map::json(object, None)),
        }
    }

    /// JSON by its declaration. Only the outermost level is looked at.
    pub fn typed(json: &'a Json, decl: &'a Decl) -> Result<Value<'a>, ConvertError> {
        if json.is_null() && !matches!(decl.shape, Shape::Dyn) {
            return match decl.nullable {
                true => Ok(Value::Null),
                false => wrong("invalid data, got null for schema with nullable=false"),
            };
        }
        Ok(match (&decl.shape, json) {
            (Shape::Dyn, _) => Value::from_json(json),
            (Shape::Bool, Json::Bool(value)) => Value::Bool(*value),
            (Shape::Bool, _) => return wrong(format!("invalid data, expected bool, got {}", go_type(json))),
            (Shape::Int, Json::Number(number)) if number.is_i64() => Value::Int(number.as_i64().unwrap_or(0)),
            (Shape::Int, _) => return wrong(format!("invalid data, expected int, got {}", go_type(json))),
            (Shape::Double, Json::Number(number)) => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
            (Shape::Double, _) => {
                return wrong(format!("invalid data, expected float, got {}", go_type(json)));
            }
            (Shape::IntOrString, Json::String(text)) => Value::String(Text::Borrowed(text)),
            (Shape::IntOrString, Json::Number(number)) if number.is_i64() => {
                Value::Int(number.as_i64().unwrap_or(0))
            }
            (Shape::IntOrString, _) => {
                return wrong("invalid data, expected XIntOrString value to be either a string or integer");
            }
            (Shape::Text, Json::String(text)) => Value::String(Text::Borrowed(text)),
            (Shape::Bytes, Json::String(text)) => match BASE64.decode(text) {
                Ok(bytes) => Value::Bytes(bytes.into()),
                Err(err) => return wrong(format!("Invalid byte formatted string {text}: {err}")),
            },
            (Shape::Duration, Json::String(text)) => match time::parse_open_api_duration(text) {
                Some(nanos) => Value::Duration(nanos),
                None => {
                    return wrong(format!("Invalid duration {text}: unable to parse {text} as duration"));
                }
            },
            (Shape::Date, Json::String(text)) => match time::parse_date(text) {
                Some(time) => Value::Timestamp(time),
                None => {
                    return wrong(format!(
                        "Invalid date formatted string {text}: cannot parse {text:?} as date"
                    ));
                }
            },
            (Shape::DateTime, Json::String(text)) => match time::parse_open_api_date_time(text) {
                Some(time) => Value::Timestamp(time),
                None => {
                    let message = format!("Invalid date-time formatted string {text}: cannot parse {text:?}");
                    return wrong(message);
                }
            },
            (Shape::Text | Shape::Bytes | Shape::Duration | Shape::Date | Shape::DateTime, _) => {
                return wrong(format!("invalid data, expected string, got {}", go_type(json)));
            }
            (Shape::List { .. }, Json::Array(items)) => Value::List(List::json(items, Some(decl))),
            (Shape::List { .. }, _) => {
                return wrong("invalid data, expected an array for the provided schema with type=array");
            }
            (Shape::Map { .. } | Shape::Object(_), Json::Object(object)) => {
                Value::Map(Map::json(object, Some(decl)))
            }
            (Shape::Map { .. } | Shape::Object(_), _) => {
                return wrong("invalid data, expected a map for the provided schema with type=object");
            }
        })
    }

    /// The value as JSON: bytes in base64, times and durations as text. Optionals without a value, types and
    /// the libraries' own values have none.
    pub fn to_json(&self) -> Result<Json, ConvertError> {
        to_json(self, MAX_JSON_DEPTH, &mut 2_000_000)
    }
}

/// `left`: nodes that may still be written. Lists may share parts, so that writing them out is larger.
fn to_json(value: &Value<'_>, levels: usize, left: &mut usize) -> Result<Json, ConvertError> {
    let (Some(levels), Some(fewer)) = (levels.checked_sub(1), left.checked_sub(1)) else {
        return wrong("value is too large for JSON");
    };
    *left = fewer;
    crate::stack::deep(|| parts_to_json(value, levels, left))
}

fn parts_to_json(value: &Value<'_>, levels: usize, left: &mut usize) -> Result<Json, ConvertError> {
    let convert = |err: EvalError| ConvertError(err.to_string());
    Ok(match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(value) => Json::from(*value),
        Value::Uint(value) => Json::from(*value),
        Value::Double(value) => match Number::from_f64(*value) {
            Some(number) => Json::Number(number),
            None => return wrong("NaN and infinity have no JSON"),
        },
        Value::String(text) => Json::from(text.as_str()),
        Value::Bytes(bytes) => Json::from(BASE64.encode(bytes)),
        Value::Timestamp(moment) => Json::from(time::format(moment)),
        Value::Duration(nanos) => Json::from(time::format_duration(*nanos)),
        Value::List(list) => {
            let mut items = Vec::with_capacity(list.len().min(1024));
            for item in list.iter() {
                items.push(to_json(&item.map_err(convert)?, levels, left)?);
            }
            Json::Array(items)
        }
        Value::Map(map) => {
            if let Some((object, decl)) = map.as_json()
                && decl.is_none()
            {
                return Ok(Json::Object(object.clone()));
            }
            let mut object = JsonMap::new();
            for key in map.keys() {
                let Some(name) = key.as_str() else {
                    return wrong(format!("map key is of type {}, not string", key.type_name()));
                };
                if let Some(value) = map.get(&key) {
                    object.insert(name.to_owned(), to_json(&value.map_err(convert)?, levels, left)?);
                }
            }
            Json::Object(object)
        }
        Value::Struct(value) => {
            let mut object = JsonMap::new();
            for (name, value) in &value.fields {
                object.insert(name.to_string(), to_json(value, levels, left)?);
            }
            Json::Object(object)
        }
        Value::Optional(Some(value)) => return to_json(value, levels, left),
        other => return wrong(format!("unsupported conversion of {} to JSON", other.type_name())),
    })
}
