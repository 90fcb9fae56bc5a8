//! `metav1.Status`: every error a client of Kubernetes sees.
//!
//! Constructors word their messages as upstream's `k8s.io/apimachinery/pkg/api/errors` does.

use serde::{Deserialize, Serialize};

use crate::field::FieldError;
use crate::names::Gvr;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default = "Status::kind")]
    kind: String,
    #[serde(default = "Status::api_version", rename = "apiVersion")]
    api_version: String,
    #[serde(default)]
    metadata: StatusMeta,
    /// `Success` or `Failure`
    pub status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
    #[serde(default)]
    pub code: u16,
}

/// `ListMeta` of a status: empty but for the fresh token of an expired `continue`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct StatusMeta {
    #[serde(default, rename = "continue", skip_serializing_if = "Option::is_none")]
    continue_token: Option<String>,
}

/// `metav1.StatusReason`. An open set on the wire, closed for what this server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    Conflict,
    Gone,
    Invalid,
    ServerTimeout,
    StoreReadError,
    Timeout,
    TooManyRequests,
    BadRequest,
    MethodNotAllowed,
    NotAcceptable,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    InternalError,
    Expired,
    ServiceUnavailable,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

impl Status {
    fn kind() -> String {
        "Status".to_owned()
    }
    fn api_version() -> String {
        "v1".to_owned()
    }

    /// A failure in words of the caller's own. Prefer the named constructors.
    pub fn failure(code: u16, reason: Reason, message: impl Into<String>) -> Status {
        Status {
            kind: Status::kind(),
            api_version: Status::api_version(),
            metadata: StatusMeta::default(),
            status: "Failure".to_owned(),
            message: message.into(),
            reason: Some(reason),
            details: None,
            code,
        }
    }

    /// What a delete answers once the object is gone for good.
    pub fn success(details: Details) -> Status {
        Status {
            status: "Success".to_owned(),
            reason: None,
            details: Some(details),
            ..Status::failure(200, Reason::Unknown, "")
        }
    }

    pub fn not_found(of: &Gvr, name: &str) -> Status {
        Status::failure(404, Reason::NotFound, format!("{} {name:?} not found", of.group_resource()))
            .about(of, name)
    }
    pub fn already_exists(of: &Gvr, name: &str) -> Status {
        Status::failure(
            409,
            Reason::AlreadyExists,
            format!("{} {name:?} already exists", of.group_resource()),
        )
        .about(of, name)
    }
    pub fn conflict(of: &Gvr, name: &str, why: &str) -> Status {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", of.group_resource());
        Status::failure(409, Reason::Conflict, message).about(of, name)
    }
    /// A stale resourceVersion.
    pub fn stale(of: &Gvr, name: &str) -> Status {
        Status::conflict(
            of,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }
    pub fn forbidden(of: &Gvr, name: &str, why: &str) -> Status {
        let what = of.group_resource();
        let message = if name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} {name:?} is forbidden: {why}")
        };
        Status::failure(403, Reason::Forbidden, message).about(of, name)
    }
    /// `kind` and `group` of the object, and everything wrong with it.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Status {
        let shown: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        let list = if shown.len() == 1 { shown[0].clone() } else { format!("[{}]", shown.join(", ")) };
        let what = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let mut status = Status::failure(422, Reason::Invalid, format!("{what} {name:?} is invalid: {list}"));
        status.details = Some(Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            causes: errors.iter().map(FieldError::to_cause).collect(),
            ..Details::default()
        });
        status
    }
    pub fn bad_request(message: impl Into<String>) -> Status {
        Status::failure(400, Reason::BadRequest, message)
    }
    pub fn unauthorized() -> Status {
        Status::failure(401, Reason::Unauthorized, "Unauthorized")
    }
    /// No such route.
    pub fn no_route() -> Status {
        let mut status =
            Status::failure(404, Reason::NotFound, "the server could not find the requested resource");
        status.details = Some(Details::default());
        status
    }
    pub fn method_not_allowed() -> Status {
        let mut status = Status::failure(
            405,
            Reason::MethodNotAllowed,
            "the server does not allow this method on the requested resource",
        );
        status.details = Some(Details::default());
        status
    }
    pub fn not_acceptable(message: impl Into<String>) -> Status {
        Status::failure(406, Reason::NotAcceptable, message)
    }
    /// Upstream doesn't repeat what was given.
    pub fn unsupported_media_type(_given: &str, supported: &[&str]) -> Status {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            supported.join(", ")
        );
        Status::failure(415, Reason::UnsupportedMediaType, message)
    }
    pub fn too_large(message: impl Into<String>) -> Status {
        Status::failure(413, Reason::RequestEntityTooLarge, message)
    }
    pub fn gone(message: impl Into<String>) -> Status {
        Status::failure(410, Reason::Gone, message)
    }
    pub fn expired(message: impl Into<String>) -> Status {
        Status::failure(410, Reason::Expired, message)
    }
    /// Expired, with a token to go on from (inconsistently).
    pub fn expired_with_continue(message: impl Into<String>, token: String) -> Status {
        let mut status = Status::expired(message);
        status.metadata.continue_token = Some(token);
        status
    }
    /// A resourceVersion this server has not reached yet.
    pub fn too_large_resource_version(asked: u64, current: u64) -> Status {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut status = Status::failure(504, Reason::Timeout, format!("Timeout: {message}"));
        status.details = Some(Details {
            causes: vec![Cause {
                reason: "ResourceVersionTooLarge".to_owned(),
                message: "Too large resource version".to_owned(),
                field: String::new(),
            }],
            retry_after_seconds: 1,
            ..Details::default()
        });
        status
    }
    pub fn timeout(message: impl Into<String>) -> Status {
        Status::failure(504, Reason::Timeout, message)
    }
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Status {
        Status::failure(429, Reason::TooManyRequests, message).retry_after(retry_after_seconds)
    }
    pub fn unavailable(message: impl Into<String>) -> Status {
        Status::failure(503, Reason::ServiceUnavailable, message)
    }
    /// The operator's detail belongs in the log, not in `message`.
    pub fn internal(message: impl Into<String>) -> Status {
        let message = message.into();
        let mut status =
            Status::failure(500, Reason::InternalError, format!("Internal error occurred: {message}"));
        status.details =
            Some(Details { causes: vec![Cause { message, ..Cause::default() }], ..Details::default() });
        status
    }

    pub fn retry_after(mut self, seconds: u32) -> Status {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }
    pub fn with_cause(mut self, cause: Cause) -> Status {
        self.details.get_or_insert_default().causes.push(cause);
        self
    }

    fn about(mut self, of: &Gvr, name: &str) -> Status {
        self.details = Some(Details {
            name: name.to_owned(),
            group: of.group.to_string(),
            // Upstream puts the resource here, not the kind, for these errors.
            kind: of.resource.to_string(),
            ..Details::default()
        });
        self
    }

    pub fn is(&self, reason: Reason) -> bool {
        self.reason == Some(reason)
    }
    pub fn is_not_found(&self) -> bool {
        self.is(Reason::NotFound)
    }
    pub fn is_conflict(&self) -> bool {
        self.is(Reason::Conflict)
    }
    pub fn is_already_exists(&self) -> bool {
        self.is(Reason::AlreadyExists)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}
impl std::error::Error for Status {}
