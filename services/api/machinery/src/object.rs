//! An object as it is kept and served.
//!
//! Stored form: a body and a [`Stamp`]. The body is compact JSON that begins with `{"metadata":{` and has
//! neither `apiVersion` and `kind` (the request's version decides them; items of typed lists have none)
//! nor `uid`, `creationTimestamp` and `resourceVersion`. Those differ between tenants for objects that are
//! otherwise the same everywhere, or are known only when a write is applied; serving splices them in.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Document;
use crate::names::Gvk;

/// How every stored body begins; the splice goes right behind it.
pub(crate) const BODY_START: &[u8] = b"{\"metadata\":{";

#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("stored body does not begin with its metadata")]
    NoMetadata,
    #[error("stored body is not the JSON of an object")]
    Json(#[source] serde_json::Error),
    #[error("stamp is not one of ours: {0:?}")]
    Stamp(Bytes),
}

/// What is stored beside the body: who this object is, since when, and in which version it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    pub uid: Uuid,
    pub created: Timestamp,
    /// `apps/v1`: the version the body is written in.
    pub api_version: String,
}

impl Stamp {
    /// `uid(16 bytes) seconds(i64, big endian) apiVersion(rest)`
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(24 + self.api_version.len());
        out.extend_from_slice(self.uid.as_bytes());
        out.extend_from_slice(&self.created.as_second().to_be_bytes());
        out.extend_from_slice(self.api_version.as_bytes());
        out.into()
    }
    pub fn decode(bytes: &Bytes) -> Result<Stamp, ObjectError> {
        let wrong = || ObjectError::Stamp(bytes.clone());
        let uid = bytes.get(..16).and_then(|uid| Uuid::from_slice(uid).ok()).ok_or_else(wrong)?;
        let seconds: [u8; 8] =
            bytes.get(16..24).and_then(|seconds| seconds.try_into().ok()).ok_or_else(wrong)?;
        let created = Timestamp::from_second(i64::from_be_bytes(seconds)).map_err(|_| wrong())?;
        let api_version = std::str::from_utf8(&bytes[24..]).map_err(|_| wrong())?.to_owned();
        Ok(Stamp { uid, created, api_version })
    }
}

/// What lists, watches, selectors and controllers ask of every object, parsed once.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    pub namespace: Option<Box<str>>,
    pub name: Box<str>,
    pub uid: Uuid,
    pub created: Timestamp,
    /// `metadata.resourceVersion`; 0 for an object that is not stored yet.
    pub revision: u64,
    pub generation: i64,
    pub labels: BTreeMap<String, String>,
    pub owners: Vec<OwnerReference>,
    pub finalizers: Vec<Box<str>>,
    pub deleting_since: Option<Timestamp>,
    /// The version the body is written in.
    pub api_version: Box<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

/// One object: header and bytes. Cheap to clone through an `Arc`; never changes.
#[derive(Debug, Clone)]
pub struct Object {
    pub header: Header,
    body: Bytes,
}

impl Object {
    /// From its stored form. `revision` is where the store says it was last modified.
    pub fn from_stored(body: Bytes, stamp: &Bytes, revision: u64) -> Result<Object, ObjectError> {
        #[derive(Deserialize)]
        struct Outer {
            metadata: Meta,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        #[derive(Default)]
        struct Meta {
            namespace: Option<Box<str>>,
            name: Box<str>,
            generation: i64,
            labels: Option<BTreeMap<String, String>>,
            owner_references: Option<Vec<OwnerReference>>,
            finalizers: Option<Vec<Box<str>>>,
            deletion_timestamp: Option<Timestamp>,
        }
        if !body.starts_with(BODY_START) {
            return Err(ObjectError::NoMetadata);
        }
        let Outer { metadata } = serde_json::from_slice(&body).map_err(ObjectError::Json)?;
        let stamp = Stamp::decode(stamp)?;
        let header = Header {
            namespace: metadata.namespace,
            name: metadata.name,
            uid: stamp.uid,
            created: stamp.created,
            revision,
            generation: metadata.generation,
            labels: metadata.labels.unwrap_or_default(),
            owners: metadata.owner_references.unwrap_or_default(),
            finalizers: metadata.finalizers.unwrap_or_default(),
            deleting_since: metadata.deletion_timestamp,
            api_version: stamp.api_version.into(),
        };
        Ok(Object { header, body })
    }

    /// From a document with full metadata, as a remote API server sent it or a test wrote it.
    pub fn from_document(document: &Document) -> Result<Object, ObjectError> {
        let (body, stamp) = document.to_stored();
        let revision = document.resource_version().parse().unwrap_or(0);
        Object::from_stored(body, &stamp.encode(), revision)
    }

    /// The stored bytes: see the module's first lines for what is missing from them.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Appends the object as JSON. With `gvk`, as a single object or an item of an untyped list; without,
    /// as an item of a typed list, which upstream sends without `apiVersion` and `kind`.
    pub fn write_json(&self, gvk: Option<&Gvk>, out: &mut Vec<u8>) {
        out.reserve(self.body.len() + 192);
        let rest = self.write_json_head(gvk, out);
        out.extend_from_slice(&self.body[self.body.len() - rest..]);
    }

    /// [`Object::write_json`] without copying most of it: what is appended differs from the stored bytes, what
    /// is returned are their end.
    pub fn split_json(&self, gvk: Option<&Gvk>, out: &mut Vec<u8>) -> Bytes {
        let rest = self.write_json_head(gvk, out);
        self.body.slice(self.body.len() - rest..)
    }

    /// All but the end of the body, whose length in bytes is returned.
    fn write_json_head(&self, gvk: Option<&Gvk>, out: &mut Vec<u8>) -> usize {
        out.push(b'{');
        if let Some(gvk) = gvk {
            out.extend_from_slice(b"\"apiVersion\":\"");
            if !gvk.group.is_empty() {
                out.extend_from_slice(gvk.group.as_bytes());
                out.push(b'/');
            }
            out.extend_from_slice(gvk.version.as_bytes());
            out.extend_from_slice(b"\",\"kind\":\"");
            out.extend_from_slice(gvk.kind.as_bytes());
            out.extend_from_slice(b"\",");
        }
        out.extend_from_slice(&BODY_START[1..]);
        let created = self.header.created.strftime("%Y-%m-%dT%H:%M:%SZ");
        let spliced = format!(
            "\"creationTimestamp\":\"{created}\",\"resourceVersion\":\"{}\",\"uid\":\"{}\"",
            self.header.revision, self.header.uid
        );
        out.extend_from_slice(spliced.as_bytes());
        let rest = &self.body[BODY_START.len()..];
        if rest.first() != Some(&b'}') {
            out.push(b',');
        }
        rest.len()
    }

    /// The object as JSON bytes, with `apiVersion` and `kind`.
    pub fn to_json(&self, gvk: &Gvk) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_json(Some(gvk), &mut out);
        out
    }

    /// Taken apart, to be worked on; has uid, creationTimestamp and resourceVersion but no apiVersion or kind.
    pub fn to_document(&self) -> Result<Document, ObjectError> {
        let mut out = Vec::new();
        self.write_json(None, &mut out);
        serde_json::from_slice(&out).map(Document).map_err(ObjectError::Json)
    }

    /// A typed, read-only view (`k8s_openapi` structs); unknown fields are dropped in the view alone.
    pub fn view<T: serde::de::DeserializeOwned>(&self, gvk: &Gvk) -> Result<T, ObjectError> {
        serde_json::from_slice(&self.to_json(gvk)).map_err(ObjectError::Json)
    }

    /// One field by path (`spec.nodeName`), without building the rest; `None` when absent.
    pub fn field(&self, path: &str) -> Option<Value> {
        let mut raw: &serde_json::value::RawValue = serde_json::from_slice(&self.body).ok()?;
        for part in path.split('.') {
            let map: BTreeMap<std::borrow::Cow<'_, str>, &serde_json::value::RawValue> =
                serde_json::from_str(raw.get()).ok()?;
            raw = map.get(part)?;
        }
        serde_json::from_str(raw.get()).ok()
    }

    /// The owner that manages this object, if one does.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.header.owners.iter().find(|owner| owner.controller == Some(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Document {
        serde_json::from_value::<serde_json::Map<String, Value>>(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web", "namespace": "default", "labels": {"app": "web"},
                "uid": "0190163d-8694-739b-aea5-966c26f8ad91",
                "creationTimestamp": "2026-11-30T21:05:48Z", "resourceVersion": "7",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1",
                    "uid": "u", "controller": true}]
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "extra": {"metadata": {}}}]}
        }))
        .map(Document)
        .unwrap()
    }

    #[test]
    fn nothing_is_lost_between_document_and_object() {
        let before = document();
        let object = Object::from_document(&before).unwrap();
        let served: Value = serde_json::from_slice(&object.to_json(&Gvk::new("", "v1", "Pod"))).unwrap();
        assert_eq!(served, Value::Object(before.0));
    }

    #[test]
    fn the_header_knows_what_selectors_ask() {
        let object = Object::from_document(&document()).unwrap();
        assert_eq!(&*object.header.name, "web");
        assert_eq!(object.header.revision, 7);
        assert_eq!(object.header.labels["app"], "web");
        assert_eq!(object.controller().unwrap().name, "web-1");
        assert_eq!(object.field("spec.nodeName"), Some(Value::from("n1")));
        assert_eq!(object.field("spec.absent"), None);
    }

    #[test]
    fn parts_make_the_whole() {
        let object = Object::from_document(&document()).unwrap();
        let gvk = Gvk::new("", "v1", "Pod");
        for gvk in [None, Some(&gvk)] {
            let (mut whole, mut parts) = (Vec::new(), Vec::new());
            object.write_json(gvk, &mut whole);
            let rest = object.split_json(gvk, &mut parts);
            parts.extend_from_slice(&rest);
            assert_eq!(String::from_utf8(parts), String::from_utf8(whole));
        }
    }

    #[test]
    fn items_of_typed_lists_carry_no_kind() {
        let mut out = Vec::new();
        Object::from_document(&document()).unwrap().write_json(None, &mut out);
        assert!(out.starts_with(b"{\"metadata\":{\"creationTimestamp\""));
    }

    #[test]
    fn a_foreign_stamp_is_refused() {
        assert!(Stamp::decode(&Bytes::from_static(b"short")).is_err());
    }
}
