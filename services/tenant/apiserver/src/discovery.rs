//! Discovery and OpenAPI: what the server says it can do.
//!
//! Clients ask for it with `If-None-Match` and mostly hear 304. Documents are made when first asked for. Clusters
//! without custom resources share theirs, made once per process; a cluster that has some keeps documents of its
//! own with its catalogue, and so for as long as its definitions stay as they are.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use api_kinds::discovery::{self, Root};
use api_kinds::{ResourceInfo, kinds};
use api_machinery::Status;
use api_schema::Document;
use bytes::Bytes;
use http::header::{ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderValue, StatusCode};
use parking_lot::Mutex;
use tenant_registry::Catalogue;

use crate::body::{Response, empty};
use crate::encode;
use crate::negotiate::Discovery;
use crate::pipeline::Call;

/// A document and what names its content.
#[derive(Clone)]
struct Fixed {
    body: Bytes,
    etag: String,
}

impl Fixed {
    fn new(value: &serde_json::Value) -> Fixed {
        let mut body = value.to_string().into_bytes();
        body.push(b'\n');
        let etag = encode::etag(&body);
        Fixed { body: body.into(), etag }
    }
}

/// Documents by path and form. Bounded: only known paths get in.
#[derive(Default)]
pub struct Documents {
    /// Custom resources, as discovery shows them.
    custom: Vec<ResourceInfo>,
    fixed: Mutex<HashMap<String, Arc<Fixed>>>,
    pub openapi: Mutex<HashMap<String, Document>>,
}

static SHARED: LazyLock<Documents> = LazyLock::new(Documents::default);

impl Documents {
    /// With what other servers say they have. That changes without a trace in the store, and so is put together
    /// when it is asked for; `None` where there are no such servers.
    fn with(catalogue: &Catalogue, more: &[ResourceInfo]) -> Option<Documents> {
        let custom =
            || catalogue.served().iter().map(|one| one.shown()).chain(more.iter().cloned()).collect();
        (!more.is_empty()).then(|| Documents { custom: custom(), ..Documents::default() })
    }

    /// Those of a cluster with these custom resources.
    pub fn of(catalogue: &Catalogue) -> &Documents {
        if catalogue.is_empty() {
            return &SHARED;
        }
        catalogue.memo().get_or_init(|| Documents {
            custom: catalogue.served().iter().map(|one| one.shown()).collect(),
            ..Documents::default()
        })
    }

    fn fixed(
        &self,
        key: &str,
        make: impl FnOnce(&[&ResourceInfo]) -> Option<serde_json::Value>,
    ) -> Option<Arc<Fixed>> {
        if let Some(found) = self.fixed.lock().get(key) {
            return Some(found.clone());
        }
        // Made outside the lock: two callers may both make it, and one result is kept.
        let made = Arc::new(Fixed::new(&make(&self.resources())?));
        Some(self.fixed.lock().entry(key.to_owned()).or_insert(made).clone())
    }

    /// All resources, built-in ones first.
    fn resources(&self) -> Vec<&ResourceInfo> {
        kinds().resources().iter().chain(&self.custom).collect()
    }
}

/// `None` for a path that is no discovery or OpenAPI document.
///
/// `more` are resources of servers behind this one.
pub fn answer(call: &Call, more: &[ResourceInfo]) -> Option<Result<Response, Status>> {
    let path = call.info.path.trim_end_matches('/');
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match parts[..] {
        ["api"] => Some(Ok(root(call, Root::Api, &[]))),
        ["apis"] => Some(Ok(root(call, Root::Apis, more))),
        ["api", version] => Some(resource_list(call, "", version)),
        ["apis", group] => Some(document(call, path, more, |all| discovery::group(all, group))),
        ["apis", group, version] => Some(resource_list(call, group, version)),
        ["openapi", ..] => crate::openapi::answer(call, &parts[1..]),
        _ => None,
    }
}

/// `/api` and `/apis`, plain or with everything below them in one document.
fn root(call: &Call, root: Root, more: &[ResourceInfo]) -> Response {
    let catalogue = call.plane.registry().catalogue();
    let own = Documents::with(&catalogue, more);
    let documents = own.as_ref().unwrap_or_else(|| Documents::of(&catalogue));
    let aggregated = |version: &'static str, content_type: &'static str| {
        let key = format!("{} {version}", if root == Root::Api { "/api" } else { "/apis" });
        documents
            .fixed(&key, |all| Some(discovery::aggregated(all, root, version)))
            .map(|fixed| send(call, &fixed, content_type))
    };
    let made = match call.accept.discovery() {
        Discovery::AggregatedV2 => {
            aggregated("v2", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
        }
        Discovery::AggregatedV2Beta1 => {
            aggregated("v2beta1", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList")
        }
        Discovery::Plain if root == Root::Api => {
            // Names the address the client used, so it is the client's own document.
            let host = call.uri.authority().map(http::uri::Authority::as_str).or(call.header("host"));
            Some(send(
                call,
                &Fixed::new(&discovery::api_versions(host.unwrap_or_default())),
                "application/json",
            ))
        }
        Discovery::Plain => documents
            .fixed("/apis", |all| Some(discovery::group_list(all)))
            .map(|fixed| send(call, &fixed, "application/json")),
    };
    let mut response =
        made.unwrap_or_else(|| encode::status(&Status::no_route(), call.accept.choose_for_error()));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response
}

fn resource_list(call: &Call, group: &str, version: &str) -> Result<Response, Status> {
    let key = call.info.path.trim_end_matches('/');
    document(call, key, &[], |all| discovery::resource_list(all, group, version))
}

fn document(
    call: &Call,
    key: &str,
    more: &[ResourceInfo],
    make: impl FnOnce(&[&ResourceInfo]) -> Option<serde_json::Value>,
) -> Result<Response, Status> {
    let catalogue = call.plane.registry().catalogue();
    let own = Documents::with(&catalogue, more);
    let documents = own.as_ref().unwrap_or_else(|| Documents::of(&catalogue));
    let fixed = documents.fixed(key, make).ok_or_else(Status::no_route)?;
    Ok(send(call, &fixed, "application/json"))
}

fn send(call: &Call, fixed: &Fixed, content_type: &'static str) -> Response {
    tagged(call, &fixed.etag, || encode::bytes(call.gzip, 200, content_type, fixed.body.clone()))
}

/// 304 if the client has it, else what `make` makes, tagged.
pub fn tagged(call: &Call, etag: &str, make: impl FnOnce() -> Response) -> Response {
    let known = call
        .headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|line| line.split(','))
        .any(|one| one.trim().trim_start_matches("W/") == etag || one.trim() == "*");
    let mut response = if known {
        let mut response = Response::new(empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        make()
    };
    if let Ok(value) = HeaderValue::from_str(etag) {
        response.headers_mut().insert(ETAG, value);
    }
    response
}

/// For the list of paths at `/`.
pub fn group_paths(catalogue: &Catalogue) -> Vec<String> {
    let mut paths = Vec::new();
    for (group, versions) in discovery::groups(&Documents::of(catalogue).resources()) {
        if group.is_empty() {
            continue;
        }
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
    }
    paths
}
