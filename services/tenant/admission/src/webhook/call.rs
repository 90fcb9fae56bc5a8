//! One call of one webhook, and what its failure is called.

use api_machinery::{Document, Status};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use serde_json::Value;
use tenant_outbound::{Limits, Outbound};

use super::hook::Hook;
use super::review;
use crate::attributes::Attributes;
use crate::matching::Matched;

/// Of an answer: a patch may replace the largest object there is, in base64.
const RESPONSE_BYTES: usize = 8 * 1024 * 1024;

#[derive(Debug)]
pub(crate) enum Failure {
    /// There was no usable answer: the failure policy decides.
    Calling(String),
    /// The webhook said no, or the request is none for it.
    Refused(Box<Status>),
}

impl Failure {
    pub(crate) fn into_status(self, hook: &str) -> Status {
        match self {
            Failure::Calling(why) => Status::internal(format!("failed calling webhook {hook:?}: {why}")),
            Failure::Refused(status) => *status,
        }
    }
}

/// Asks; gives the operations to patch the object with. Warnings and annotations are noted on the request.
pub(crate) async fn call(
    outbound: &dyn Outbound,
    hook: &Hook,
    attributes: &Attributes<'_>,
    matched: &Matched,
    object: Option<&Document>,
    old: Option<&Document>,
    mutating: bool,
) -> Result<Option<Value>, Failure> {
    if attributes.dry_run && !hook.dry_runs {
        let why = format!("admission webhook {:?} does not support dry run", hook.name);
        return Err(Failure::Refused(Box::new(Status::bad_request(why))));
    }
    let Some(version) = hook.version else {
        return Err(Failure::Calling(
            "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)"
                .to_owned(),
        ));
    };
    let to = hook
        .destination
        .as_ref()
        .map_err(|cause| Failure::Calling(format!("could not get REST client: {cause}")))?;
    let target = to.target(&format!("timeout={}s", hook.timeout.as_secs()));
    let failed = |cause: &dyn std::fmt::Display| {
        Failure::Calling(format!("failed to call webhook: Post \"{}{target}\": {cause}", to.base()))
    };
    let Some(pass) = hook.breaker.enter().await else {
        return Err(failed(
            &"context deadline exceeded (it has not answered for some time and is asked by one request at a time)",
        ));
    };
    let uid = uuid::Uuid::new_v4().to_string();
    let body = review::request(version, &uid, attributes, matched, object, old);
    let request = http::Request::post(&target)
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json, */*")
        .header(USER_AGENT, "kube-apiserver-admission")
        .body(Bytes::from(body))
        .map_err(|cause| failed(&cause))?;
    let limits = Limits { timeout: hook.timeout, response_bytes: RESPONSE_BYTES };
    let response = match outbound.call(to, request, limits).await {
        Ok(response) => {
            pass.answered();
            response
        }
        Err(cause) => {
            if cause.is_timeout() {
                pass.timed_out()
            } else {
                pass.answered()
            }
            return Err(failed(&cause));
        }
    };
    let code = response.status().as_u16();
    if !(200..=206).contains(&code) {
        let said = in_clients_words(code, response.body());
        return Err(Failure::Calling(format!("failed to call webhook: {said}")));
    }
    let verdict =
        review::verdict(version, &uid, &hook.name, mutating, response.body()).map_err(Failure::Calling)?;
    for (key, value) in verdict.annotations {
        attributes.annotations.add(format!("{}/{key}", hook.name), value);
    }
    for warning in verdict.warnings {
        attributes.warnings.add(warning);
    }
    match verdict.refusal {
        Some(status) => Err(Failure::Refused(Box::new(status))),
        None => Ok(verdict.patch),
    }
}

/// What upstream's client makes of an answer that is no success.
/// Facts: `apimachinery/pkg/api/errors`, `NewGenericServerResponse`.
fn in_clients_words(code: u16, body: &[u8]) -> String {
    if let Ok(status) = serde_json::from_slice::<Value>(body)
        && status["kind"] == "Status"
        && let Some(message) = status["message"].as_str().filter(|message| !message.is_empty())
    {
        return message.to_owned();
    }
    // Enough to recognise an error page by.
    let text: String = String::from_utf8_lossy(body).trim().chars().take(512).collect();
    let shown = if text.is_empty() { "unknown".to_owned() } else { text.clone() };
    match code {
        300..=399 => format!("the webhook answered with a redirect ({code}), which is not followed"),
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => shown,
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        413 => format!("Request entity too large: {text}"),
        415 => shown,
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the request"
            .to_owned(),
        500.. => format!("an error on the server ({shown:?}) has prevented the request from succeeding"),
        _ => format!("the server responded with the status code {code} but did not return more information"),
    }
}
