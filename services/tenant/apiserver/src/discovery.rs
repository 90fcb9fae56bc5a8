//! Discovery and OpenAPI: documents that are the same for every cluster, made once per process.
//!
//! Clients ask for them with `If-None-Match` and mostly hear 304. What a cluster adds of its own (custom
//! resources) is not here yet; the functions of `api-kinds` that make the documents take it as arguments.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use api_kinds::discovery::{self, Root};
use api_kinds::{ResourceInfo, kinds};
use api_machinery::Status;
use bytes::Bytes;
use http::header::{ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderValue, StatusCode};
use parking_lot::Mutex;

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

/// Documents by path and form, each made when first asked for. Bounded: only known paths get in.
static FIXED: LazyLock<Mutex<HashMap<String, Arc<Fixed>>>> = LazyLock::new(Mutex::default);

fn fixed(key: &str, make: impl FnOnce() -> Option<serde_json::Value>) -> Option<Arc<Fixed>> {
    if let Some(found) = FIXED.lock().get(key) {
        return Some(found.clone());
    }
    // Made outside the lock: two callers may both make it, and one result is kept.
    let made = Arc::new(Fixed::new(&make()?));
    Some(FIXED.lock().entry(key.to_owned()).or_insert(made).clone())
}

fn built_in() -> Vec<&'static ResourceInfo> {
    kinds().resources().iter().collect()
}

/// `None` for a path that is no discovery or OpenAPI document.
pub fn answer(call: &Call) -> Option<Result<Response, Status>> {
    let path = call.info.path.trim_end_matches('/');
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match parts[..] {
        ["api"] => Some(Ok(root(call, Root::Api))),
        ["apis"] => Some(Ok(root(call, Root::Apis))),
        ["api", version] => Some(resource_list(call, "", version)),
        ["apis", group] => Some(document(call, path, || discovery::group(&built_in(), group))),
        ["apis", group, version] => Some(resource_list(call, group, version)),
        ["openapi", ..] => crate::openapi::answer(call, &parts[1..]),
        _ => None,
    }
}

/// `/api` and `/apis`, plain or with everything below them in one document.
fn root(call: &Call, root: Root) -> Response {
    let aggregated = |version: &'static str, content_type: &'static str| {
        let key = format!("{} {version}", if root == Root::Api { "/api" } else { "/apis" });
        fixed(&key, || Some(discovery::aggregated(&built_in(), root, version)))
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
        Discovery::Plain => fixed("/apis", || Some(discovery::group_list(&built_in())))
            .map(|fixed| send(call, &fixed, "application/json")),
    };
    let mut response =
        made.unwrap_or_else(|| encode::status(&Status::no_route(), call.accept.choose_for_error()));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response
}

fn resource_list(call: &Call, group: &str, version: &str) -> Result<Response, Status> {
    let key = call.info.path.trim_end_matches('/');
    document(call, key, || discovery::resource_list(&built_in(), group, version))
}

fn document(
    call: &Call,
    key: &str,
    make: impl FnOnce() -> Option<serde_json::Value>,
) -> Result<Response, Status> {
    let fixed = fixed(key, make).ok_or_else(Status::no_route)?;
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
pub fn group_paths() -> Vec<String> {
    let mut paths = Vec::new();
    for (group, versions) in discovery::groups(&built_in()) {
        if group.is_empty() {
            continue;
        }
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
    }
    paths
}
