//! `/openapi/v2` and `/openapi/v3`, from `api-schema`.
//!
//! Documents are kept compressed and are sent that way to whoever takes it. A v3 document asked for by its
//! hash never changes under that URL, so clients may keep it for ever.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_kinds::ResourceInfo;
use api_machinery::Status;
use api_schema::{Custom, Document};
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, LOCATION, VARY};
use http::{HeaderValue, StatusCode};
use serde_json::Value;
use tenant_registry::{Catalogue, Dialect};

use crate::body::{Response, empty, full};
use crate::discovery::{Documents, tagged};
use crate::encode;
use crate::negotiate::Media;
use crate::pipeline::Call;

/// The documents of one cluster.
struct Book {
    catalogue: Arc<Catalogue>,
}

impl Book {
    fn of(call: &Call) -> Book {
        Book { catalogue: call.plane.registry().catalogue() }
    }

    /// Custom resources of `version` (`example.com/v1`), or all, with their schemas.
    fn custom(&self, version: Option<&str>, dialect: Dialect) -> Vec<(&ResourceInfo, Value)> {
        let all = self.catalogue.served().iter();
        let wanted = all.filter(|one| version.is_none_or(|version| one.info().gvr.api_version() == version));
        wanted.map(|one| (one.info(), one.published(dialect))).collect()
    }

    fn kept(&self, key: &str, make: impl FnOnce() -> Document) -> Document {
        let kept = &Documents::of(&self.catalogue).openapi;
        if let Some(found) = kept.lock().get(key) {
            return found.clone();
        }
        // Made outside the lock: two callers may both make it, and one result is kept.
        let made = make();
        kept.lock().entry(key.to_owned()).or_insert(made).clone()
    }

    fn v2(&self, protobuf: bool) -> Document {
        if self.catalogue.is_empty() {
            return if protobuf { api_schema::v2_protobuf() } else { api_schema::v2() };
        }
        self.kept(if protobuf { "v2.pb" } else { "v2" }, || {
            let own = self.custom(None, Dialect::V2);
            let custom = customs(&own);
            if protobuf { api_schema::v2_protobuf_with(&custom) } else { api_schema::v2_with(&custom) }
        })
    }

    fn v3(&self, path: &str) -> Option<Document> {
        let version = path.strip_prefix("apis/")?;
        let hash = self.hashes().into_iter().find(|(known, _)| known == path).map(|(_, hash)| hash);
        let Some(hash) = hash else { return api_schema::v3(path) };
        Some(self.kept(path, || {
            let own = self.custom(Some(version), Dialect::V3);
            api_schema::v3_with(path, &customs(&own), hash)
        }))
    }

    /// Path and hash of every document with custom resources: of what goes into it, so that the index makes none.
    fn hashes(&self) -> Vec<(String, Arc<str>)> {
        let mut versions: BTreeMap<String, String> = BTreeMap::new();
        for one in self.catalogue.served() {
            let info = one.info();
            let says = versions.entry(format!("apis/{}", info.gvr.api_version())).or_default();
            *says += &format!("{:?} {:?}\n", one.edition(), info);
        }
        versions.into_iter().map(|(path, says)| (path, api_schema::hash_of(says.as_bytes()))).collect()
    }
}

fn customs<'a>(own: &'a [(&'a ResourceInfo, Value)]) -> Vec<Custom<'a>> {
    own.iter().map(|(info, schema)| Custom { info, schema }).collect()
}

/// `parts` follow `/openapi/`. `None` for what is no such document.
pub fn answer(call: &Call, parts: &[&str]) -> Option<Result<Response, Status>> {
    match parts {
        ["v2"] => Some(v2(call)),
        ["v3"] | ["v3", ""] => Some(json_only(call).map(|()| index(call))),
        ["v3", path @ ..] => {
            let path = path.join("/");
            let found =
                if path.starts_with("apis/") { Book::of(call).v3(&path) } else { api_schema::v3(&path) }?;
            Some(json_only(call).map(|()| v3(call, &path, &found)))
        }
        _ => None,
    }
}

/// The names under which clients ask for OpenAPI 2 as protobuf, and the one it is sent under.
const V2_PROTOBUF_ASKED: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];
const V2_PROTOBUF_SENT: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

fn v2(call: &Call) -> Result<Response, Status> {
    if V2_PROTOBUF_ASKED.iter().any(|asked| call.accept.names(asked)) {
        return Ok(document(call, &Book::of(call).v2(true), V2_PROTOBUF_SENT));
    }
    json_only(call).map(|()| document(call, &Book::of(call).v2(false), Media::Json.content_type()))
}

/// OpenAPI 3 is made as JSON alone; clients that can take nothing else are told so.
fn json_only(call: &Call) -> Result<(), Status> {
    let fine = call.accept.is_empty()
        || ["application/json", "application/*", "*/*"].iter().any(|range| call.accept.names(range));
    if fine {
        return Ok(());
    }
    Err(Status::not_acceptable("only the following media types are accepted: application/json"))
}

fn index(call: &Call) -> Response {
    let body = api_schema::v3_index(&Book::of(call).hashes());
    let etag = encode::etag(&body);
    tagged(call, &etag, || encode::bytes(call.gzip, 200, Media::Json.content_type(), body))
}

fn v3(call: &Call, path: &str, found: &Document) -> Response {
    let asked = call.query.get("hash");
    if asked.is_some_and(|hash| hash != &*found.hash) {
        // An old hash: the document has moved on, and so must its URL.
        let mut response = Response::new(empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        if let Ok(to) = HeaderValue::from_str(&format!("/openapi/v3/{path}?hash={}", found.hash)) {
            response.headers_mut().insert(LOCATION, to);
        }
        return response;
    }
    let mut response = document(call, found, Media::Json.content_type());
    if asked.is_some() {
        response
            .headers_mut()
            .insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable, max-age=31536000"));
    }
    response
}

fn document(call: &Call, found: &Document, content_type: &'static str) -> Response {
    let mut response = tagged(call, &format!("\"{}\"", found.hash), || {
        if !call.gzip {
            return encode::bytes(false, 200, content_type, found.json());
        }
        let mut response = Response::new(full(found.gzip().clone()));
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    });
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    response
}
