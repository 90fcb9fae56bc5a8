//! `application/vnd.kubernetes.protobuf`.
//!
//! One transcoder between JSON values and protobuf for every built-in kind, driven by the field table. An
//! object travels in an envelope ([`encode`], [`decode`]): four magic bytes and a `runtime.Unknown` that
//! names its kind. Lists are put together from items that are encoded already ([`encode_list`]), watch
//! events come in frames of their own ([`watch_frame`]).
//!
//! Go writes scalars that are no pointers even when they are zero, and JSON leaves them out; so zeros that
//! arrive are dropped unless `data/optional.txt` says that the field can tell zero from absent.
//!
//! Not here: custom resources, which have no protobuf.

mod read;
mod write;

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use api_kinds::kinds;
use api_machinery::{Gvk, is_deeper_than};
use serde_json::{Map, Value};

use write::Writer;

/// What every encoded object begins with.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// Messages nested deeper than this are refused: each level is a stack frame, and a stack overflow would
/// end all clusters of the cell.
const MAX_DEPTH: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoMagic,
    #[error("{kind} has no protobuf encoding")]
    NoMessage { kind: String },
    #[error("unexpected EOF")]
    Truncated,
    #[error("proto: {0}")]
    Malformed(&'static str),
    #[error("proto: nested too deeply")]
    TooDeep,
    #[error("field {field} can not be encoded")]
    Field { field: String },
}

/// The object of kind `gvk` in its envelope. `apiVersion` and `kind` in `object` don't matter.
pub fn encode(gvk: &Gvk, object: &Value) -> Result<Vec<u8>, ProtobufError> {
    Ok(envelope(gvk, &encode_bare(gvk, object)?))
}

/// The object without an envelope: an item of a list.
pub fn encode_bare(gvk: &Gvk, object: &Value) -> Result<Vec<u8>, ProtobufError> {
    let message = kinds().kind_message(gvk).filter(|message| !message.open);
    let message = message.ok_or_else(|| ProtobufError::NoMessage { kind: gvk.to_string() })?;
    let object = object.as_object().ok_or_else(|| ProtobufError::Field { field: String::new() })?;
    let mut out = Writer::default();
    write::message(&mut out, message, object, 0)?;
    Ok(out.into_bytes())
}

/// A list of items encoded by [`encode_bare`]; `metadata` is its `ListMeta`.
pub fn encode_list(gvk: &Gvk, metadata: &Value, items: &[Vec<u8>]) -> Result<Vec<u8>, ProtobufError> {
    let mut out = list_head(gvk, metadata, items.iter().map(Vec::len))?;
    for item in items {
        out.extend(item_head(item.len()));
        out.extend_from_slice(item);
    }
    out.extend_from_slice(ENVELOPE_END);
    Ok(out)
}

/// What comes before the first item of a list whose items are not all in memory at once.
///
/// `lengths` are those of the items as [`encode_bare`] makes them, since an envelope begins with its length. Each
/// item is then preceded by [`item_head`], and [`ENVELOPE_END`] follows the last one.
pub fn list_head(
    gvk: &Gvk,
    metadata: &Value,
    lengths: impl Iterator<Item = usize>,
) -> Result<Vec<u8>, ProtobufError> {
    let mut head = Map::new();
    head.insert("metadata".to_owned(), metadata.clone());
    // In every list of the API the metadata is field 1 and the items are field 2.
    let metadata = encode_bare(gvk, &Value::Object(head))?;
    let items: usize = lengths.map(|length| item_head(length).len() + length).sum();
    let mut out = Writer::default();
    out.raw(MAGIC);
    out.bytes(1, &type_meta(gvk));
    out.bytes_head(2, metadata.len() + items);
    out.raw(&metadata);
    Ok(out.into_bytes())
}

/// What comes before an item of a list.
pub fn item_head(length: usize) -> Vec<u8> {
    let mut out = Writer::default();
    out.bytes_head(2, length);
    out.into_bytes()
}

/// Content encoding and type, both empty: what ends an envelope.
pub const ENVELOPE_END: &[u8] = &[3 << 3 | 2, 0, 4 << 3 | 2, 0];

fn type_meta(gvk: &Gvk) -> Vec<u8> {
    let mut names = Writer::default();
    names.bytes(1, gvk.api_version().as_bytes());
    names.bytes(2, gvk.kind.as_bytes());
    names.into_bytes()
}

/// Wraps an encoded object.
pub fn envelope(gvk: &Gvk, object: &[u8]) -> Vec<u8> {
    let mut unknown = Writer::default();
    unknown.raw(MAGIC);
    unknown.bytes(1, &type_meta(gvk));
    unknown.bytes(2, object);
    unknown.raw(ENVELOPE_END);
    unknown.into_bytes()
}

/// One event of a watch: a length, then a bare `WatchEvent` whose object is enveloped.
///
/// `kind` is `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`; `object` comes from [`encode`].
pub fn watch_frame(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut extension = Writer::default();
    extension.bytes(1, object);
    let mut event = Writer::default();
    event.bytes(1, kind.as_bytes());
    event.bytes(2, &extension.into_bytes());
    let event = event.into_bytes();
    // An object is far smaller than 4 GiB: the store's limit is a few MiB.
    let mut frame = u32::try_from(event.len()).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    frame.extend(event);
    frame
}

/// An enveloped object: its kind, and its JSON with `apiVersion` and `kind`.
///
/// A kind that is missing from the envelope is `default`, as for options that clients send without one.
pub fn decode(bytes: &[u8], default: Option<&Gvk>) -> Result<(Gvk, Value), ProtobufError> {
    let read::Envelope { api_version, kind, raw } =
        read::envelope(bytes.strip_prefix(MAGIC).ok_or(ProtobufError::NoMagic)?)?;
    let gvk = match (kind.is_empty(), default) {
        (true, Some(gvk)) => gvk.clone(),
        _ => Gvk::parse(&api_version, &kind)
            .ok_or_else(|| ProtobufError::NoMessage { kind: format!("{api_version}, Kind={kind}") })?,
    };
    let message = kinds().kind_message(&gvk).filter(|message| !message.open);
    let message = message.ok_or_else(|| ProtobufError::NoMessage { kind: gvk.to_string() })?;
    let mut object = read::message(raw, message, 0)?;
    object.insert("apiVersion".to_owned(), gvk.api_version().into());
    object.insert("kind".to_owned(), gvk.kind.to_string().into());
    // A message of one level may be JSON of several.
    let object = Value::Object(object);
    if is_deeper_than(&object, api_machinery::MAX_DEPTH) {
        return Err(ProtobufError::TooDeep);
    }
    Ok((gvk, object))
}

/// Scalars that can tell zero from absent, by message.
static OPTIONAL: LazyLock<HashMap<&'static str, HashSet<&'static str>>> = LazyLock::new(|| {
    let lines = include_str!("../../data/optional.txt").lines();
    lines
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.collect()))
        })
        .collect()
});

fn is_optional(message: &str, field: &str) -> bool {
    OPTIONAL.get(message).is_some_and(|fields| fields.contains(field))
}

#[cfg(test)]
mod tests;
