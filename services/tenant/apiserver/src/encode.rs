//! Answers as bytes: objects, documents and errors, in the form the client chose. Lists are `lists`'.
//!
//! Everything is made as compact JSON, most of it by copying stored bytes, and turned into YAML, protobuf or
//! indented JSON at the end. Bodies worth it are compressed.

use std::io::Write;
use std::sync::Arc;

use api_machinery::{Document, Gvk, Object, Status};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, VARY};
use http::{HeaderValue, StatusCode};
use jiff::Timestamp;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tenant_registry::{List, Resource};

use crate::body::{Response, full};
use crate::negotiate::{Chosen, Media, Shape};
use crate::tables::{self, Include};
use crate::wire;

/// Below this, compressing costs more than it saves: upstream's threshold.
pub(crate) const GZIP_FROM_BYTES: usize = 128 * 1024;

const STATUS: Gvk = Gvk::new("", "v1", "Status");
pub(crate) const PARTIAL: Gvk = Gvk::new("meta.k8s.io", "v1", "PartialObjectMetadata");
pub(crate) const PARTIAL_LIST: Gvk = Gvk::new("meta.k8s.io", "v1", "PartialObjectMetadataList");

/// How one answer is to look.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    pub chosen: Chosen,
    pub gzip: bool,
    pub include: Include,
    /// For ages in tables.
    pub now: Timestamp,
}

/// One object.
pub fn object(form: &Form, code: u16, resource: &Resource, object: &Arc<Object>) -> Result<Response, Status> {
    let (json, gvk) = match form.chosen.shape {
        Shape::Itself => (object.to_json(&resource.gvk), resource.gvk.clone()),
        Shape::PartialMetadata => {
            let mut out = Vec::new();
            partial_metadata(object, &mut out);
            (out, PARTIAL)
        }
        Shape::Table => {
            let items = std::slice::from_ref(object);
            let head = List { revision: object.header.revision, ..List::default() };
            return Ok(table(
                form,
                code,
                tables::render(resource, items, &head, form.include, true, form.now),
            ));
        }
    };
    finish(form, code, json, &gvk)
}

/// Something that is not stored; has its own `apiVersion` and `kind`.
pub fn document(form: &Form, code: u16, document: &Document) -> Result<Response, Status> {
    let gvk = Gvk::parse(document.api_version(), document.kind()).unwrap_or(STATUS);
    let json = serde_json::to_vec(document).map_err(|cause| Status::internal(cause.to_string()))?;
    finish(form, code, json, &gvk)
}

/// An error, or the success of a delete.
pub fn status(status: &Status, chosen: Chosen) -> Response {
    let code = if status.code == 0 { 500 } else { status.code };
    let json = serde_json::to_vec(status).unwrap_or_default();
    let form = Form { chosen, gzip: false, include: Include::None, now: Timestamp::UNIX_EPOCH };
    let mut response = finish(&form, code, json.clone(), &STATUS)
        .unwrap_or_else(|_| bytes(false, code, Media::Json.content_type(), json));
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if seconds > 0 {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// `{"kind":"PartialObjectMetadata",…,"metadata":{…}}`
pub fn partial_metadata(object: &Object, out: &mut Vec<u8>) {
    out.extend_from_slice(
        b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":",
    );
    out.extend_from_slice(metadata_of(object).as_bytes());
    out.push(b'}');
}

fn metadata_of(object: &Object) -> String {
    #[derive(serde::Deserialize)]
    struct Outer<'a> {
        #[serde(borrow)]
        metadata: &'a RawValue,
    }
    let mut json = Vec::new();
    object.write_json(None, &mut json);
    // A stored object was parsed once already when its header was made.
    serde_json::from_slice::<Outer<'_>>(&json)
        .map_or_else(|_| "{}".to_owned(), |outer| outer.metadata.get().to_owned())
}

pub(crate) fn table(form: &Form, code: u16, json: Vec<u8>) -> Response {
    let content_type = match form.chosen.media {
        Media::Yaml => "application/yaml",
        // Upstream says no more than this, and clients look at the body.
        _ => "application/json",
    };
    let body = match form.chosen.media {
        Media::Yaml => wire::yaml_of_json(&json).unwrap_or(json),
        _ => with_newline(form.chosen, json),
    };
    bytes(form.gzip, code, content_type, body)
}

/// JSON in the chosen serialisation.
pub(crate) fn finish(form: &Form, code: u16, json: Vec<u8>, gvk: &Gvk) -> Result<Response, Status> {
    let (media, body) = match form.chosen.media {
        Media::Json => (Media::Json, with_newline(form.chosen, json)),
        Media::Yaml => (Media::Yaml, wire::yaml_of_json(&json)?),
        Media::Protobuf => (Media::Protobuf, wire::protobuf_of_json(gvk, &json)?),
    };
    Ok(bytes(form.gzip, code, media.content_type(), body))
}

fn with_newline(chosen: Chosen, json: Vec<u8>) -> Vec<u8> {
    let mut json = if chosen.pretty { wire::indent(&json) } else { json };
    json.push(b'\n');
    json
}

/// A body that is ready, compressed if the client takes that and it pays.
pub fn bytes(gzip: bool, code: u16, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let body: Bytes = body.into();
    let packed = (gzip && body.len() >= GZIP_FROM_BYTES).then(|| pack(&body)).flatten();
    let compressed = packed.is_some();
    let mut response = Response::new(full(packed.unwrap_or(body)));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if compressed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    response
}

/// An entity tag of `body`'s content, quotes included.
pub fn etag(body: &[u8]) -> String {
    let hash: String = Sha256::digest(body).iter().take(16).map(|byte| format!("{byte:02X}")).collect();
    format!("\"{hash}\"")
}

fn pack(body: &Bytes) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::fast());
    encoder.write_all(body).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

/// For watches: what an event's object is, as compact JSON.
pub fn event_object(
    chosen: Chosen,
    resource: &Resource,
    object: &Arc<Object>,
    include: Include,
    columns: bool,
    now: Timestamp,
) -> Vec<u8> {
    match chosen.shape {
        Shape::Itself => object.to_json(&resource.gvk),
        Shape::PartialMetadata => {
            let mut out = Vec::new();
            partial_metadata(object, &mut out);
            out
        }
        Shape::Table => {
            let head = List { revision: object.header.revision, ..List::default() };
            tables::render(resource, std::slice::from_ref(object), &head, include, columns, now)
        }
    }
}

/// The object of a bookmark: nothing but a revision.
pub fn bookmark_object(
    chosen: Chosen,
    resource: &Resource,
    revision: u64,
    initial_events_end: bool,
) -> Vec<u8> {
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if initial_events_end {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    if chosen.shape != Shape::Table {
        metadata["creationTimestamp"] = Value::Null;
    }
    let value = match chosen.shape {
        Shape::Itself => json!({
            "kind": resource.gvk.kind, "apiVersion": resource.gvk.api_version(), "metadata": metadata,
        }),
        Shape::PartialMetadata => json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        }),
        Shape::Table => json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            "columnDefinitions": null, "rows": [],
        }),
    };
    value.to_string().into_bytes()
}
