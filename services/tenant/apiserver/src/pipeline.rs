//! The one path every request takes.
//!
//! Request id and span, then: authenticate (and impersonate), flow control, authorize, answer. Whatever goes
//! wrong on the way is a [`Status`] and is encoded in one place, at the end, as are the headers, metrics and
//! warnings every answer carries. A panic costs its own request a 500 and nobody else anything.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use api_machinery::Status;
use base_telemetry::Caller;
use bytes::Bytes;
use futures::FutureExt;
use http::header::{ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use http_body::Body as _;
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use tenant_admission::{Annotations, Warnings};
use tenant_auth::{Credentials, Refusal};
use tenant_client::UserInfo;
use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument, Span};

use crate::body::{self, BODY_LIMIT_BYTES, Body, Request, Response};
use crate::connection::PeerCertificates;
use crate::metrics::{RequestLabels, verb_label};
use crate::negotiate::Accept;
use crate::plane::ControlPlane;
use crate::query::Query;
use crate::request::RequestInfo;
use crate::{aggregate, encode, options, paths, resources};

/// Requests that do not last are given up after this long: upstream's `--request-timeout`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A request that passed authentication and authorization; what handlers read.
pub struct Call {
    pub plane: Arc<ControlPlane>,
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub info: RequestInfo,
    pub query: Query,
    pub accept: Accept,
    /// The client takes gzip.
    pub gzip: bool,
    pub user: UserInfo,
    pub request_id: Arc<str>,
    pub warnings: Warnings,
    pub annotations: Annotations,
    /// Room for a large body, held until the answer is made.
    room: Mutex<Option<OwnedSemaphorePermit>>,
}

/// Bodies up to this size are what nearly all requests have, and wait for nobody.
const SMALL_BODY_BYTES: u64 = 64 * 1024;

/// What can be taken from a request only once.
pub struct Inbound {
    pub body: Body,
    pub upgrade: Option<OnUpgrade>,
}

impl Call {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// All of the request's body; 413 beyond the limit. A large one waits until its cluster has room for it, so
    /// that no number of requests makes this process hold more than it can.
    pub async fn read(&self, body: Body) -> Result<Bytes, Status> {
        let most = BODY_LIMIT_BYTES as u64;
        let expected = body.size_hint().upper().unwrap_or(most).min(most);
        if expected > SMALL_BODY_BYTES {
            let kib = u32::try_from(expected.div_ceil(1024)).unwrap_or(u32::MAX);
            let room = self.plane.bodies.clone().acquire_many_owned(kib).await;
            *self.room.lock() = Some(room.map_err(|_| Status::unavailable("the server is stopping"))?);
        }
        body::read(body).await
    }
}

/// Answers one request. Never fails: a failure is an answer.
pub async fn handle(plane: Arc<ControlPlane>, peer: PeerCertificates, request: Request) -> Response {
    let started = plane.clock.monotonic();
    let request_id = request_id(request.headers());
    let query = Query::parse(request.uri().query());
    let info = RequestInfo::parse(request.method(), request.uri().path(), &query);
    let accept = Accept::parse(text(&request, &ACCEPT), &query, text(&request, &USER_AGENT));
    let gzip = text(&request, &ACCEPT_ENCODING).is_some_and(|value| {
        value.split(',').any(|one| one.split(';').next().is_some_and(|name| name.trim() == "gzip"))
    });
    let long_running = info.is_long_running(&query);
    let labels = labels(&plane, &info, &query);
    let error_form = accept.choose_for_error();
    let span = tracing::info_span!(
        "request",
        tenant = %plane.tenant_text,
        id = %request_id,
        verb = %info.verb,
        path = %info.path,
        otel.kind = "server",
    );
    let warnings = Warnings::default();

    let annotations = Annotations::default();
    let arrival = Arrival {
        request,
        query,
        info,
        accept,
        gzip,
        request_id,
        warnings: warnings.clone(),
        annotations: annotations.clone(),
    };
    let request_id = arrival.request_id.clone();
    let work = AssertUnwindSafe(process(plane.clone(), peer, arrival, long_running, span.clone()));
    let mut response = match work.catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(status)) => {
            if status.code >= 500 {
                span.in_scope(
                    || tracing::info!(code = status.code, message = %status.message, "request failed"),
                );
            }
            encode::status(&status, error_form)
        }
        Err(panic) => {
            plane.metrics.panicked();
            let what = panic_text(&*panic);
            span.in_scope(|| tracing::error!(what, "request panicked"));
            // The client learns that it failed and by which id to ask; what failed is the operator's.
            let status = Status::internal(format!("the request failed in the server (id {request_id})"));
            encode::status(&status, error_form)
        }
    };

    let code = response.status().as_u16();
    finish_headers(response.headers_mut(), &request_id, &warnings);
    for (key, value) in annotations.take() {
        span.in_scope(|| tracing::debug!(key, value, "audit annotation"));
    }
    let took = plane.clock.monotonic().saturating_sub(started);
    base_telemetry::answered(&span, code, || labels.span_name());
    plane.metrics.answered(labels, code, took, long_running);
    response
}

struct Arrival {
    request: Request,
    query: Query,
    info: RequestInfo,
    accept: Accept,
    gzip: bool,
    request_id: Arc<str>,
    warnings: Warnings,
    annotations: Annotations,
}

async fn process(
    plane: Arc<ControlPlane>,
    peer: PeerCertificates,
    arrival: Arrival,
    long_running: bool,
    span: Span,
) -> Result<Response, Status> {
    let user = authenticate(&plane, peer, arrival.request.headers(), &span)?;
    let headers = arrival.request.headers();
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    base_telemetry::continue_trace(&span, header, trust(&user));
    serve(plane, arrival, long_running, user).instrument(span).await
}

/// Upstream's rule (`WithTracing` of its API server): only these groups' traces go on here, since whoever
/// names a trace also says whether it is recorded.
fn trust(user: &UserInfo) -> Caller {
    let trusted = |group: &String| group == UserInfo::MASTERS || group == "system:monitoring";
    if user.groups.iter().any(trusted) { Caller::Trusted } else { Caller::Stranger }
}

async fn serve(
    plane: Arc<ControlPlane>,
    arrival: Arrival,
    long_running: bool,
    user: UserInfo,
) -> Result<Response, Status> {
    let Arrival { mut request, query, info, accept, gzip, request_id, warnings, annotations } = arrival;

    if info.resource.is_none()
        && let Some(mount) = plane.mount.as_ref().filter(|mount| mount.claims(&info.path))
    {
        return Ok(mount.serve(user, request).await);
    }

    // Counted while it is worked on; a watch counts for as long as its stream lives (`watch`).
    let _in_flight = (!long_running)
        .then(|| plane.metrics.in_flight(!matches!(*request.method(), Method::GET | Method::HEAD)));
    let seat = if long_running || is_health(&info.path) {
        None
    } else {
        plane.flow.enter(&user).await.inspect_err(|_| plane.metrics.rejected())?
    };

    let mut access = info.access();
    if matches!(info.verb.as_str(), "list" | "watch" | "deletecollection") {
        // A selector that cannot be read is refused further on, in the words of its own error.
        access.fields = options::fields(&query).unwrap_or_default();
    }
    plane.authority.require(&user, &access)?;

    let upgrade =
        request.headers().contains_key(http::header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
    let limit = query
        .text("timeout")
        .and_then(options::duration)
        .filter(|wanted| !wanted.is_zero())
        .map_or(REQUEST_TIMEOUT, |wanted| wanted.min(REQUEST_TIMEOUT));
    let (parts, body) = request.into_parts();
    let call = Call {
        plane,
        method: parts.method,
        uri: parts.uri,
        headers: parts.headers,
        info,
        query,
        accept,
        gzip,
        user,
        request_id,
        warnings,
        annotations,
        room: Mutex::default(),
    };
    let inbound = Inbound { body, upgrade };
    // Boxed: the handlers' states are large, and most connections sit idle most of the time.
    let answer = async {
        if let Some(elsewhere) = aggregate::responsible(&call.plane, &call.info.path) {
            return aggregate::answer(&call, &elsewhere, inbound).await;
        }
        match &call.info.resource {
            Some(at) => resources::answer(&call, at, inbound).await,
            None => paths::answer(&call).await,
        }
    }
    .boxed();
    let response = if long_running {
        answer.await
    } else {
        tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
            Err(Status::timeout(
                "Timeout: request did not complete within requested timeout - context deadline exceeded",
            ))
        })
    };
    drop(seat);
    response
}

/// Takes the certificates, so that they are gone before anything is waited for.
fn authenticate(
    plane: &ControlPlane,
    peer: PeerCertificates,
    headers: &HeaderMap,
    span: &Span,
) -> Result<UserInfo, Status> {
    let credentials = Credentials { peer_certificates: &peer, headers };
    match plane.authenticator.authenticate(&credentials, &*plane.authority) {
        Ok(identity) => Ok(identity.user),
        Err(refusal) => {
            if let Refusal::Unauthorized(why) = &refusal {
                tracing::debug!(parent: span, why, "unauthorized");
            }
            Err(refusal.to_status())
        }
    }
}

fn text<'a>(request: &'a Request, name: &HeaderName) -> Option<&'a str> {
    request.headers().get(name)?.to_str().ok()
}

fn is_health(path: &str) -> bool {
    ["/healthz", "/livez", "/readyz"].iter().any(|root| path.starts_with(root))
}

/// The client's own id if it sent a sensible one, as upstream's audit id.
fn request_id(headers: &HeaderMap) -> Arc<str> {
    let given = headers.get("audit-id").and_then(|value| value.to_str().ok());
    match given.filter(|id| id.len() <= 64 && id.bytes().all(|b| b.is_ascii_graphic())) {
        Some(id) if !id.is_empty() => id.into(),
        _ => uuid::Uuid::new_v4().to_string().into(),
    }
}

fn labels(plane: &ControlPlane, info: &RequestInfo, query: &Query) -> RequestLabels {
    let dry_run = if query.text("dryRun").is_some() { "All" } else { "" };
    let mut labels = RequestLabels {
        verb: verb_label(&info.verb),
        group: String::new(),
        version: String::new(),
        resource: String::new(),
        subresource: String::new(),
        scope: info.scope(),
        dry_run,
        component: "apiserver",
    };
    // Only what is served becomes a label, and of custom resources a bounded number: nobody can invent series.
    if let Some(at) = &info.resource
        && let Some(resource) = resources::lookup(&plane.registry, at)
        && (!resource.is_custom() || plane.metrics.takes_custom(&at.group, &at.version, &at.resource))
    {
        labels.group = at.group.clone();
        labels.version = at.version.clone();
        labels.resource = at.resource.clone();
        if resource.subresource(&at.subresource).is_some() {
            labels.subresource = at.subresource.clone();
        }
    }
    labels
}

fn finish_headers(headers: &mut HeaderMap, request_id: &str, warnings: &Warnings) {
    if let Ok(value) = HeaderValue::from_str(request_id) {
        headers.insert(HeaderName::from_static("audit-id"), value);
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    for text in warnings.take() {
        let quoted: String = text
            .chars()
            .filter(|c| !c.is_control())
            .flat_map(|c| {
                let escape = matches!(c, '"' | '\\').then_some('\\');
                escape.into_iter().chain([c])
            })
            .collect();
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            headers.append(http::header::WARNING, value);
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
