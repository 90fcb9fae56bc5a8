//! JSON values to protobuf.

use api_kinds::{Cardinality, FieldInfo, FieldKind, Message, kinds};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{MAX_DEPTH, ProtobufError};

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;

/// The wire format.
#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
    fn tag(&mut self, number: u32, wire: u32) {
        self.varint(u64::from(number << 3 | wire));
    }
    pub(super) fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.bytes_head(number, bytes.len());
        self.raw(bytes);
    }
    pub(super) fn bytes_head(&mut self, number: u32, length: usize) {
        self.tag(number, BYTES);
        self.varint(length as u64);
    }
    /// Negative numbers take ten bytes, as int32 and int64 do in protobuf.
    fn integer(&mut self, number: u32, value: i64) {
        self.tag(number, VARINT);
        self.varint(value as u64);
    }
    fn double(&mut self, number: u32, value: f64) {
        self.tag(number, FIXED64);
        self.raw(&value.to_le_bytes());
    }
}

fn unfit(field: &str) -> ProtobufError {
    ProtobufError::Field { field: field.to_owned() }
}

/// Writes the fields that `object` has and `message` knows.
pub(super) fn message(
    out: &mut Writer,
    message: &'static Message,
    object: &Map<String, Value>,
    depth: usize,
) -> Result<(), ProtobufError> {
    if depth > MAX_DEPTH {
        return Err(ProtobufError::TooDeep);
    }
    for field in &message.fields {
        if field.number == 0 {
            continue;
        }
        if field.inline {
            let FieldKind::Message(id) = field.kind else { continue };
            let inner = kinds().message(id);
            // Its members are among ours. With none of them there is nothing to write.
            if inner.json_fields().any(|member| object.contains_key(member.json)) {
                let mut nested = Writer::default();
                self::message(&mut nested, inner, object, depth + 1)?;
                out.bytes(field.number, &nested.into_bytes());
            }
            continue;
        }
        let Some(value) = object.get(field.json).filter(|value| !value.is_null()) else { continue };
        match field.cardinality {
            Cardinality::One => element(out, field, field.number, value, depth)?,
            Cardinality::List => {
                for item in value.as_array().ok_or_else(|| unfit(field.json))? {
                    element(out, field, field.number, item, depth)?;
                }
            }
            Cardinality::Map => {
                for (key, value) in value.as_object().ok_or_else(|| unfit(field.json))? {
                    let mut entry = Writer::default();
                    entry.bytes(1, key.as_bytes());
                    element(&mut entry, field, 2, value, depth)?;
                    out.bytes(field.number, &entry.into_bytes());
                }
            }
        }
    }
    Ok(())
}

fn element(
    out: &mut Writer,
    field: &FieldInfo,
    number: u32,
    value: &Value,
    depth: usize,
) -> Result<(), ProtobufError> {
    let wrong = || unfit(field.json);
    match field.kind {
        FieldKind::String => out.bytes(number, value.as_str().ok_or_else(wrong)?.as_bytes()),
        FieldKind::Bool => out.integer(number, i64::from(value.as_bool().ok_or_else(wrong)?)),
        FieldKind::Int32 | FieldKind::Int64 => out.integer(number, value.as_i64().ok_or_else(wrong)?),
        FieldKind::Double => out.double(number, value.as_f64().ok_or_else(wrong)?),
        FieldKind::Bytes => {
            let text = value.as_str().ok_or_else(wrong)?;
            out.bytes(number, &STANDARD.decode(text).map_err(|_| wrong())?);
        }
        FieldKind::Quantity => {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(amount) => amount.to_string(),
                _ => return Err(wrong()),
            };
            let mut inner = Writer::default();
            inner.bytes(1, text.as_bytes());
            out.bytes(number, &inner.into_bytes());
        }
        FieldKind::IntOrString => {
            let mut inner = Writer::default();
            match value {
                Value::String(text) => {
                    inner.integer(1, 1);
                    inner.integer(2, 0);
                    inner.bytes(3, text.as_bytes());
                }
                other => {
                    inner.integer(1, 0);
                    inner.integer(2, other.as_i64().ok_or_else(wrong)?);
                    inner.bytes(3, b"");
                }
            }
            out.bytes(number, &inner.into_bytes());
        }
        FieldKind::Time | FieldKind::MicroTime => {
            let at: Timestamp = value.as_str().and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
            let nanos =
                if field.kind == FieldKind::MicroTime { at.subsec_nanosecond() / 1000 * 1000 } else { 0 };
            // Before 1970 jiff counts fractions backwards; protobuf always counts them forwards.
            let (seconds, nanos) =
                if nanos < 0 { (at.as_second() - 1, nanos + 1_000_000_000) } else { (at.as_second(), nanos) };
            let mut inner = Writer::default();
            inner.integer(1, seconds);
            inner.integer(2, i64::from(nanos));
            out.bytes(number, &inner.into_bytes());
        }
        // No field of the API has this kind; a table that gains one should say so loudly.
        FieldKind::Duration => return Err(wrong()),
        FieldKind::RawExtension | FieldKind::FieldsV1 | FieldKind::Json => {
            let mut inner = Writer::default();
            inner.bytes(1, value.to_string().as_bytes());
            out.bytes(number, &inner.into_bytes());
        }
        FieldKind::Strings => {
            let mut inner = Writer::default();
            for item in value.as_array().ok_or_else(wrong)? {
                inner.bytes(1, item.as_str().ok_or_else(wrong)?.as_bytes());
            }
            out.bytes(number, &inner.into_bytes());
        }
        FieldKind::SchemaOrArray | FieldKind::SchemaOrBool | FieldKind::SchemaOrStrings => {
            let mut inner = Writer::default();
            schema_or(&mut inner, field, value, depth)?;
            out.bytes(number, &inner.into_bytes());
        }
        FieldKind::Message(id) => {
            let mut inner = Writer::default();
            message(&mut inner, kinds().message(id), value.as_object().ok_or_else(wrong)?, depth + 1)?;
            out.bytes(number, &inner.into_bytes());
        }
    }
    Ok(())
}

fn schema_or(out: &mut Writer, field: &FieldInfo, value: &Value, depth: usize) -> Result<(), ProtobufError> {
    let schema = super::read::schema_message().ok_or_else(|| unfit(field.json))?;
    let write = |out: &mut Writer, number: u32, object: &Map<String, Value>| {
        let mut inner = Writer::default();
        message(&mut inner, schema, object, depth + 1)?;
        out.bytes(number, &inner.into_bytes());
        Ok::<(), ProtobufError>(())
    };
    match (field.kind, value) {
        (FieldKind::SchemaOrBool, Value::Bool(allows)) => out.integer(1, i64::from(*allows)),
        (FieldKind::SchemaOrBool, Value::Object(object)) => {
            out.integer(1, 1);
            write(out, 2, object)?;
        }
        (FieldKind::SchemaOrArray | FieldKind::SchemaOrStrings, Value::Object(object)) => {
            write(out, 1, object)?
        }
        (FieldKind::SchemaOrArray, Value::Array(items)) => {
            for item in items {
                write(out, 2, item.as_object().ok_or_else(|| unfit(field.json))?)?;
            }
        }
        (FieldKind::SchemaOrStrings, Value::Array(items)) => {
            for item in items {
                out.bytes(2, item.as_str().ok_or_else(|| unfit(field.json))?.as_bytes());
            }
        }
        _ => return Err(unfit(field.json)),
    }
    Ok(())
}
