//! Everything that is no resource: version, health, metrics, discovery, OpenAPI, token keys.

use std::sync::Arc;

use api_machinery::Status;
use http::Method;
use serde_json::{Value, json};

use crate::body::{Response, full};
use crate::pipeline::Call;
use crate::{VERSION, aggregate, discovery, encode, health};

/// Paths that `/` lists beside those of API groups.
const LISTED: [&str; 14] = [
    "/.well-known/openid-configuration",
    "/api",
    "/api/v1",
    "/apis",
    "/apis/",
    "/healthz",
    "/livez",
    "/metrics",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/",
    "/openid/v1/jwks",
    "/readyz",
    "/version",
];

pub async fn answer(call: &Call) -> Result<Response, Status> {
    let path = call.info.path.as_str();
    let reading = matches!(call.method, Method::GET | Method::HEAD);
    let known = match path {
        "/" | "/index.html" => Some(index(call)),
        "/version" | "/version/" => Some(json_answer(call, &version())),
        "/metrics" => Some(metrics(call)),
        "/.well-known/openid-configuration" => {
            Some(plain(200, "application/json", call.plane.pki().issuer().discovery().to_string()))
        }
        "/openid/v1/jwks" => {
            Some(plain(200, "application/jwk-set+json", call.plane.pki().issuer().jwks().to_string()))
        }
        _ => None,
    };
    if let Some(response) = known {
        return if reading { Ok(response) } else { Err(Status::method_not_allowed()) };
    }
    if let Some(check) = health::Check::of(path) {
        return if reading {
            Ok(health::answer(call, &check).await)
        } else {
            Err(Status::method_not_allowed())
        };
    }
    // What other servers have is asked for only where it is shown.
    let more =
        if path.starts_with("/apis") { aggregate::resources(&call.plane).await } else { Arc::default() };
    match discovery::answer(call, &more) {
        Some(_) if !reading => Err(Status::method_not_allowed()),
        Some(answer) => answer,
        None => Err(Status::no_route()),
    }
}

fn index(call: &Call) -> Response {
    let mut paths: Vec<String> = LISTED.iter().map(|&path| path.to_owned()).collect();
    paths.extend(discovery::group_paths(&call.plane.registry().catalogue()));
    paths.extend(health::paths());
    paths.sort();
    json_answer(call, &json!({"paths": paths}))
}

fn version() -> Value {
    let (major, minor) = VERSION[1..].split_once('.').unwrap_or(("1", "0"));
    let minor = minor.split('.').next().unwrap_or_default();
    json!({
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": "35",
        "gitVersion": VERSION,
        "gitCommit": env!("CARGO_PKG_VERSION"),
        "gitTreeState": "clean",
        "buildDate": "2026-11-30T00:00:00Z",
        // Clients print these; `compiler` says honestly that this is no Go program.
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("linux/{}", match std::env::consts::ARCH { "x86_64" => "amd64", "aarch64" => "arm64", other => other }),
    })
}

fn metrics(call: &Call) -> Response {
    let usage = call.plane.registry().group().space().usage();
    let text = call.plane.metrics.expose(usage.bytes, usage.keys);
    plain(200, "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
}

fn json_answer(call: &Call, value: &Value) -> Response {
    let bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
    encode::bytes(call.gzip, 200, "application/json", bytes)
}

pub fn plain(code: u16, content_type: &'static str, body: impl Into<bytes::Bytes>) -> Response {
    let mut response = Response::new(full(body.into()));
    *response.status_mut() =
        http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}
