//! Protobuf to JSON values.

use api_kinds::{Cardinality, FieldInfo, FieldKind, Message, kinds};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Number, Value};

use super::{MAX_DEPTH, ProtobufError, is_optional};

/// One field off the wire.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'a> {
    pub number: u32,
    content: Content<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Content<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32,
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    pub(super) fn bytes(&self) -> Result<&'a [u8], ProtobufError> {
        match self.content {
            Content::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtobufError::Malformed("wrong wireType")),
        }
    }
    pub(super) fn text(&self) -> Result<String, ProtobufError> {
        let text = std::str::from_utf8(self.bytes()?);
        text.map(str::to_owned).map_err(|_| ProtobufError::Malformed("string field contains invalid UTF-8"))
    }
    fn integer(&self) -> Result<i64, ProtobufError> {
        match self.content {
            // Two's complement: what was written as negative comes back so.
            Content::Varint(value) => Ok(value as i64),
            _ => Err(ProtobufError::Malformed("wrong wireType")),
        }
    }
    fn double(&self) -> Result<f64, ProtobufError> {
        match self.content {
            Content::Fixed64(bytes) => Ok(f64::from_le_bytes(bytes)),
            _ => Err(ProtobufError::Malformed("wrong wireType")),
        }
    }
}

/// The fields of a message, in the order they were written. Ends after its first error.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(ProtobufError::Truncated)?;
            self.0 = rest;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Malformed("integer overflow"))
    }
    fn cut(&mut self, length: usize) -> Result<&'a [u8], ProtobufError> {
        let taken = self.0.get(..length).ok_or(ProtobufError::Truncated)?;
        self.0 = &self.0[length..];
        Ok(taken)
    }
    fn field(&mut self) -> Result<Field<'a>, ProtobufError> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtobufError::Malformed("illegal tag"))?;
        if number == 0 {
            return Err(ProtobufError::Malformed("illegal tag 0"));
        }
        let content = match tag & 7 {
            0 => Content::Varint(self.varint()?),
            1 => {
                let bytes = self.cut(8)?.try_into().map_err(|_| ProtobufError::Truncated)?;
                Content::Fixed64(bytes)
            }
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Truncated)?;
                Content::Bytes(self.cut(length)?)
            }
            5 => {
                self.cut(4)?;
                Content::Fixed32
            }
            _ => return Err(ProtobufError::Malformed("illegal wireType")),
        };
        Ok(Field { number, content })
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Field<'a>, ProtobufError>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// A message as JSON. Fields the table doesn't know are skipped, as in any protobuf.
pub(super) fn message(
    bytes: &[u8],
    of: &'static Message,
    depth: usize,
) -> Result<Map<String, Value>, ProtobufError> {
    if depth > MAX_DEPTH {
        return Err(ProtobufError::TooDeep);
    }
    let mut object = Map::new();
    for wire in Reader::new(bytes) {
        let wire = wire?;
        let Some(field) = of.by_number(wire.number) else { continue };
        if field.inline {
            if let FieldKind::Message(id) = field.kind {
                object.extend(message(wire.bytes()?, kinds().message(id), depth + 1)?);
            }
            continue;
        }
        match field.cardinality {
            Cardinality::One => {
                let value = element(field, &wire, depth)?;
                if let Some(value) =
                    value.filter(|value| !is_zero(field.kind, value) || is_optional(of.name, field.json))
                {
                    object.insert(field.json.to_owned(), value);
                }
            }
            Cardinality::List => {
                let items = object.entry(field.json).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(items) = items {
                    list_items(field, &wire, depth, items)?;
                }
            }
            Cardinality::Map => {
                let members = object.entry(field.json).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(members) = members {
                    let (key, value) = map_entry(field, wire.bytes()?, depth)?;
                    members.insert(key, value);
                }
            }
        }
    }
    Ok(object)
}

/// Scalars only: anything else says something by being there.
fn is_zero(kind: FieldKind, value: &Value) -> bool {
    match kind {
        FieldKind::String | FieldKind::Bytes => value == "",
        FieldKind::Bool => *value == false,
        FieldKind::Int32 | FieldKind::Int64 | FieldKind::Double | FieldKind::IntOrString => {
            value.as_f64() == Some(0.0)
        }
        _ => value.is_null(),
    }
}

fn list_items(
    field: &FieldInfo,
    wire: &Field<'_>,
    depth: usize,
    items: &mut Vec<Value>,
) -> Result<(), ProtobufError> {
    let packable =
        matches!(field.kind, FieldKind::Bool | FieldKind::Int32 | FieldKind::Int64 | FieldKind::Double);
    if let (true, Content::Bytes(packed)) = (packable, wire.content) {
        let mut packed = Reader::new(packed);
        while !packed.0.is_empty() {
            let content = if field.kind == FieldKind::Double {
                let bytes = packed.cut(8)?.try_into().map_err(|_| ProtobufError::Truncated)?;
                Content::Fixed64(bytes)
            } else {
                Content::Varint(packed.varint()?)
            };
            items.extend(element(field, &Field { number: wire.number, content }, depth)?);
        }
        return Ok(());
    }
    items.push(element(field, wire, depth)?.unwrap_or(Value::Null));
    Ok(())
}

fn map_entry(field: &FieldInfo, bytes: &[u8], depth: usize) -> Result<(String, Value), ProtobufError> {
    let (mut key, mut value) = (String::new(), None);
    for wire in Reader::new(bytes) {
        let wire = wire?;
        match wire.number {
            1 => key = wire.text()?,
            2 => value = element(field, &wire, depth)?,
            _ => {}
        }
    }
    // An entry without a value has its type's zero.
    let value = match value {
        Some(value) => value,
        None => {
            let empty = Field { number: 2, content: Content::Bytes(&[]) };
            match field.kind {
                FieldKind::Bool => Value::Bool(false),
                FieldKind::Int32 | FieldKind::Int64 | FieldKind::Double => 0.into(),
                _ => element(field, &empty, depth)?.unwrap_or(Value::Null),
            }
        }
    };
    Ok((key, value))
}

/// `None` where Go would print null: a zero time.
fn element(field: &FieldInfo, wire: &Field<'_>, depth: usize) -> Result<Option<Value>, ProtobufError> {
    Ok(Some(match field.kind {
        FieldKind::String => wire.text()?.into(),
        FieldKind::Bool => (wire.integer()? != 0).into(),
        // A narrower reader cuts a number to its width; so does Go.
        FieldKind::Int32 => (wire.integer()? as i32).into(),
        FieldKind::Int64 => wire.integer()?.into(),
        FieldKind::Double => Number::from_f64(wire.double()?).map_or(Value::Null, Value::Number),
        FieldKind::Bytes => STANDARD.encode(wire.bytes()?).into(),
        FieldKind::Quantity => {
            let mut amount = "0".to_owned();
            for inner in Reader::new(wire.bytes()?) {
                let inner = inner?;
                if inner.number == 1 {
                    amount = Some(inner.text()?).filter(|text| !text.is_empty()).unwrap_or(amount);
                }
            }
            amount.into()
        }
        FieldKind::IntOrString => int_or_string(wire.bytes()?)?,
        FieldKind::Time | FieldKind::MicroTime => return time(field, wire.bytes()?),
        FieldKind::Duration => return Err(ProtobufError::Field { field: field.json.to_owned() }),
        FieldKind::RawExtension | FieldKind::FieldsV1 | FieldKind::Json => {
            let mut raw = &[][..];
            for inner in Reader::new(wire.bytes()?) {
                let inner = inner?;
                if inner.number == 1 {
                    raw = inner.bytes()?;
                }
            }
            if raw.is_empty() {
                return Ok(None);
            }
            if raw.starts_with(super::MAGIC) {
                // An object within an object, in its own envelope. It has no depth of ours to count, so it
                // may be there once.
                if depth > MAX_DEPTH / 2 {
                    return Err(ProtobufError::TooDeep);
                }
                return nested(raw, depth).map(Some);
            }
            serde_json::from_slice(raw)
                .map_err(|_| ProtobufError::Malformed("embedded JSON can not be parsed"))?
        }
        FieldKind::Strings => {
            let mut items = Vec::new();
            for inner in Reader::new(wire.bytes()?) {
                let inner = inner?;
                if inner.number == 1 {
                    items.push(Value::from(inner.text()?));
                }
            }
            Value::Array(items)
        }
        FieldKind::SchemaOrArray | FieldKind::SchemaOrBool | FieldKind::SchemaOrStrings => {
            schema_or(field, wire.bytes()?, depth)?
        }
        FieldKind::Message(id) => Value::Object(message(wire.bytes()?, kinds().message(id), depth + 1)?),
    }))
}

/// What upstream calls `runtime.Unknown`: a message with its kind beside it.
#[derive(Default)]
pub(super) struct Envelope<'a> {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) raw: &'a [u8],
}

pub(super) fn envelope(bytes: &[u8]) -> Result<Envelope<'_>, ProtobufError> {
    let mut envelope = Envelope::default();
    for field in Reader::new(bytes) {
        let field = field?;
        match field.number {
            1 => {
                for name in Reader::new(field.bytes()?) {
                    let name = name?;
                    match name.number {
                        1 => envelope.api_version = name.text()?,
                        2 => envelope.kind = name.text()?,
                        _ => {}
                    }
                }
            }
            2 => envelope.raw = field.bytes()?,
            _ => {}
        }
    }
    Ok(envelope)
}

/// An enveloped object inside a RawExtension.
fn nested(raw: &[u8], depth: usize) -> Result<Value, ProtobufError> {
    let Envelope { api_version, kind, raw } = envelope(raw.strip_prefix(super::MAGIC).unwrap_or(raw))?;
    let gvk = api_machinery::Gvk::parse(&api_version, &kind);
    let of = gvk.and_then(|gvk| kinds().kind_message(&gvk)).filter(|of| !of.open);
    let of = of.ok_or_else(|| ProtobufError::NoMessage { kind: format!("{api_version}, Kind={kind}") })?;
    let mut object = message(raw, of, depth + MAX_DEPTH / 2)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    for inner in Reader::new(bytes) {
        let inner = inner?;
        match inner.number {
            1 => is_text = inner.integer()? == 1,
            2 => number = inner.integer()? as i32,
            3 => text = inner.text()?,
            _ => {}
        }
    }
    Ok(if is_text { text.into() } else { number.into() })
}

fn time(field: &FieldInfo, bytes: &[u8]) -> Result<Option<Value>, ProtobufError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let (mut seconds, mut nanos) = (0, 0);
    for inner in Reader::new(bytes) {
        let inner = inner?;
        match inner.number {
            1 => seconds = inner.integer()?,
            2 => nanos = inner.integer()?,
            _ => {}
        }
    }
    let nanos = i32::try_from(nanos).map_err(|_| ProtobufError::Malformed("time is out of range"))?;
    let at = Timestamp::new(seconds, nanos).map_err(|_| ProtobufError::Malformed("time is out of range"))?;
    let form =
        if field.kind == FieldKind::MicroTime { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(Some(at.strftime(form).to_string().into()))
}

pub(super) fn schema_message() -> Option<&'static Message> {
    kinds().message_named("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps")
}

fn schema_or(field: &FieldInfo, bytes: &[u8], depth: usize) -> Result<Value, ProtobufError> {
    let of = schema_message().ok_or_else(|| ProtobufError::Field { field: field.json.to_owned() })?;
    let (mut schema, mut allows, mut items) = (None, false, Vec::new());
    for inner in Reader::new(bytes) {
        let inner = inner?;
        match (field.kind, inner.number) {
            (FieldKind::SchemaOrBool, 1) => allows = inner.integer()? != 0,
            (FieldKind::SchemaOrBool, 2) | (FieldKind::SchemaOrArray | FieldKind::SchemaOrStrings, 1) => {
                schema = Some(Value::Object(message(inner.bytes()?, of, depth + 1)?));
            }
            (FieldKind::SchemaOrArray, 2) => {
                items.push(Value::Object(message(inner.bytes()?, of, depth + 1)?))
            }
            (FieldKind::SchemaOrStrings, 2) => items.push(inner.text()?.into()),
            _ => {}
        }
    }
    Ok(match (schema, field.kind) {
        (Some(schema), _) => schema,
        (None, FieldKind::SchemaOrBool) => allows.into(),
        (None, _) => Value::Array(items),
    })
}
