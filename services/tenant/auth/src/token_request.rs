//! The `token` subresource of service accounts.

use api_machinery::{Document, Field, Gvr, Reason, Status};
use base_clock::rfc3339;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use store_mvcc::Space;

use crate::stored::{self, Found};
use crate::token::{BoundTo, Claims, ISSUER, Reference, TokenIssuer};

const MIN_SECONDS: i64 = 10 * 60;
const MAX_SECONDS: i64 = 1 << 32;
const DEFAULT_SECONDS: i64 = 60 * 60;

/// What the ServiceAccount admission asks for in a pod's projected token. Clients that never read the file
/// again must not break after an hour, so such a token is good for a year and only warns earlier.
const INJECTED_SECONDS: i64 = 60 * 60 + 7;
const EXTENDED_SECONDS: i64 = 365 * 24 * 60 * 60;

/// Answers a TokenRequest (its `spec` defaulted or not) for the account `namespace`/`name`.
pub fn issue_token(
    space: &Space,
    issuer: &TokenIssuer,
    namespace: &str,
    name: &str,
    mut request: Document,
    now: Timestamp,
) -> Result<Document, Status> {
    let accounts = Gvr::core("serviceaccounts");
    let invalid =
        |name: &str, error| Status::invalid("authentication.k8s.io", "TokenRequest", name, &[error]);
    let metadata = Field::new("metadata");
    for (field, given, wanted) in
        [("name", request.name(), name), ("namespace", request.namespace(), namespace)]
    {
        if !given.is_empty() && given != wanted {
            let detail = format!("must match the service account {field} if specified");
            return Err(invalid(name, metadata.child(field).invalid(given, detail)));
        }
    }
    let account = find(space, &accounts, namespace, name)?;
    if !request.uid().is_empty() && request.uid() != account.uid {
        return Err(conflict(
            "TokenRequest.authentication.k8s.io",
            name,
            &format!(
                "the UID in the token request ({}) does not match the UID of the service account ({})",
                request.uid(),
                account.uid
            ),
        ));
    }

    let seconds = request.get_i64("spec.expirationSeconds").unwrap_or(DEFAULT_SECONDS);
    let expiration = Field::new("spec").child("expirationSeconds");
    if seconds < MIN_SECONDS {
        let error = expiration.invalid(seconds, "may not specify a duration less than 10 minutes");
        return Err(invalid("", error));
    }
    if seconds > MAX_SECONDS {
        let error = expiration.invalid(seconds, "may not specify a duration larger than 2^32 seconds");
        return Err(invalid("", error));
    }
    let mut audiences: Vec<String> =
        request.get_array("spec.audiences").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    if audiences.is_empty() {
        audiences.push(ISSUER.to_owned());
    }

    let bound = bound_object(space, namespace, name, &request)?;
    let injected = seconds == INJECTED_SECONDS
        && matches!(bound, BoundTo::Pod(..))
        && audiences.iter().all(|audience| audience == ISSUER);
    let lives = if injected { EXTENDED_SECONDS } else { seconds };
    let reference = Reference { name: name.to_owned(), uid: account.uid.clone() };
    let mut claims = Claims::new(namespace, reference, bound, audiences.clone(), now, lives);
    if injected {
        claims.kubernetes.warnafter = Some(now.as_second().saturating_add(seconds));
    }
    let token = issuer.sign(&claims).map_err(|_| Status::internal("failed to generate token"))?;

    request.set("apiVersion", "authentication.k8s.io/v1");
    request.set("kind", "TokenRequest");
    request.set("metadata.name", name);
    request.set("metadata.namespace", namespace);
    request.set("metadata.uid", account.uid);
    request.set("metadata.creationTimestamp", rfc3339(now));
    request.set("spec.audiences", audiences);
    request.set("spec.expirationSeconds", seconds);
    request.set_default("spec.boundObjectRef", Value::Null);
    request.clear_status();
    let until = now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
    request.set("status.token", token);
    request.set("status.expirationTimestamp", rfc3339(until));
    Ok(request)
}

fn bound_object(
    space: &Space,
    namespace: &str,
    account: &str,
    request: &Document,
) -> Result<BoundTo, Status> {
    let text = |field: &str| request.get_str(&format!("spec.boundObjectRef.{field}")).unwrap_or_default();
    if request.get("spec.boundObjectRef").is_none_or(Value::is_null) {
        return Ok(BoundTo::Nothing);
    }
    let (kind, name) = (text("kind"), text("name"));
    let core = matches!(text("apiVersion"), "v1" | "");
    let (resource, within) = match kind {
        "Pod" if core => ("pods", namespace),
        "Secret" if core => ("secrets", namespace),
        "Node" if core => ("nodes", ""),
        _ => {
            let message = format!("cannot bind token to object of type {}, Kind={kind}", text("apiVersion"));
            return Err(Status::bad_request(message));
        }
    };
    let found = find(space, &Gvr::core(resource), within, name)?;
    let wanted = text("uid");
    if !wanted.is_empty() && wanted != found.uid {
        return Err(conflict(
            kind,
            name,
            &format!(
                "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been deleted and then recreated"
            ),
        ));
    }
    let reference = Reference { name: name.to_owned(), uid: found.uid.clone() };
    Ok(match kind {
        "Secret" => BoundTo::Secret(reference),
        "Node" => BoundTo::Node(reference),
        _ => {
            let pod: Value = stored::body(&found.entry).unwrap_or_default();
            let field = |name: &str| {
                pod.pointer(&format!("/spec/{name}")).and_then(Value::as_str).unwrap_or_default()
            };
            if field("serviceAccountName") != account {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            let node = Some(field("nodeName")).filter(|name| !name.is_empty()).map(|name| Reference {
                name: name.to_owned(),
                uid: stored::find(space, &stored::key("nodes", "", name))
                    .map(|node| node.uid)
                    .unwrap_or_default(),
            });
            BoundTo::Pod(reference, node)
        }
    })
}

fn find(space: &Space, of: &Gvr, namespace: &str, name: &str) -> Result<Found, Status> {
    stored::find(space, &stored::key(&of.resource, namespace, name))
        .ok_or_else(|| Status::not_found(of, name))
}

fn conflict(what: &str, name: &str, why: &str) -> Status {
    Status::failure(409, Reason::Conflict, format!("Operation cannot be fulfilled on {what} {name:?}: {why}"))
}
