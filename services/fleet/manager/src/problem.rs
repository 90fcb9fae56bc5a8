//! Errors of the REST API, as `application/problem+json` (RFC 9457).
//!
//! A handler ends in a [`Failure`], and gathers what is wrong with a body in [`Faults`].
//!
//! Not here: reading bodies (`http/extract.rs`).

use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use fleet_model::{FieldProblem, Problem};

use crate::db::DbError;
use crate::lifecycle::driver::DriveError;

/// What a handler can end in. What operators need to know is logged; callers get [`Problem`].
#[derive(Debug)]
pub(crate) enum Failure {
    Unauthorized,
    WrongPassword(&'static str),
    /// Too often; after this long it may be tried again.
    TooMany(Duration),
    /// The first request with this key has not been answered yet.
    StillRunning,
    /// The key was used for another request.
    KeyReused,
    /// Also what a stranger gets for what exists (DESIGN §9).
    NotFound(&'static str),
    Forbidden(&'static str),
    /// Something about the request that is no field of its body.
    Invalid(String),
    /// Fields of the body; see [`Faults`].
    Fields(Vec<FieldProblem>),
    /// Each field is fine, together they mean nothing; and the one that would have to be another.
    Contradiction {
        field: &'static str,
        why: &'static str,
    },
    TooLarge,
    /// The body did not come in time.
    TooSlow,
    UnsupportedMediaType,
    MethodNotAllowed,
    Conflict(String),
    /// Nobody's fault; try again.
    Unavailable(String),
    /// Nothing can be written down, for want of room.
    NoSpace,
    Internal(Box<dyn std::error::Error + Send + Sync>),
}

impl Failure {
    /// One field of the body, by its JSON pointer, is not what it has to be.
    pub(crate) fn field(field: impl Into<String>, detail: impl Into<String>) -> Failure {
        Failure::Fields(vec![FieldProblem::new(field, detail)])
    }
}

/// What is wrong with a body, gathered field by field: whoever made two mistakes hears of both.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<FieldProblem>);

impl Faults {
    /// What `outcome` says is wrong with the field at the JSON pointer `field`.
    pub(crate) fn note<T, E: std::fmt::Display>(&mut self, field: &str, outcome: Result<T, E>) {
        if let Err(why) = outcome {
            self.0.push(FieldProblem::new(field, why.to_string()));
        }
    }

    /// Faults found inside of the field at the JSON pointer `field`.
    pub(crate) fn note_all(&mut self, field: &str, found: Vec<FieldProblem>) {
        self.0.extend(found.into_iter().map(|one| one.below(field)));
    }

    /// Fails when any was noted.
    pub(crate) fn none(self) -> Result<(), Failure> {
        if self.0.is_empty() { Ok(()) } else { Err(Failure::Fields(self.0)) }
    }
}

impl From<DbError> for Failure {
    fn from(error: DbError) -> Failure {
        match error {
            DbError::Nul => Failure::Invalid("a text has a NUL character in it".to_owned()),
            DbError::Busy(_) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "request not served");
                Failure::Unavailable("the manager's database is busy or away".to_owned())
            }
            DbError::Full(_) => {
                tracing::error!(error = &error as &dyn std::error::Error, "request not served");
                Failure::NoSpace
            }
            DbError::Constraint | DbError::Open { .. } | DbError::Migrate { .. } | DbError::Sql(_) => {
                Failure::Internal(Box::new(error))
            }
        }
    }
}

impl From<DriveError> for Failure {
    fn from(error: DriveError) -> Failure {
        match error {
            // Where and what to do names files, and is the operator's.
            DriveError::Cell(status) if status.code() == tonic::Code::DataLoss => {
                tracing::error!(why = status.message(), "asked for a cluster whose data is damaged");
                let why = "the cluster's data is damaged on its cell; its provider has to restore it";
                Failure::Unavailable(why.to_owned())
            }
            DriveError::Cell(status) if status.code() == tonic::Code::ResourceExhausted => {
                tracing::error!(why = status.message(), "a cell's disk is full");
                Failure::Unavailable("the disk of the cluster's cell is full; try again later".to_owned())
            }
            DriveError::Cell(_) => {
                // The cell's own words name the fleet's addresses and are the operator's.
                tracing::warn!(error = &error as &dyn std::error::Error, "no cell answered for a request");
                Failure::Unavailable("the cluster's cell does not answer; try again".to_owned())
            }
            other => Failure::Internal(Box::new(other)),
        }
    }
}

/// What `errors` says, for whoever reads the one line of `detail`.
fn all(errors: &[FieldProblem]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Failure {
    /// Status, title and detail of the answer; an internal error is logged here.
    fn told(&self) -> (StatusCode, &'static str, String) {
        let fixed = |status, title, detail: &str| (status, title, detail.to_owned());
        match self {
            Failure::Unauthorized => fixed(
                StatusCode::UNAUTHORIZED,
                "Not signed in",
                "sign in, or send a valid API token: Authorization: Bearer rs_…",
            ),
            Failure::WrongPassword(why) => fixed(StatusCode::UNAUTHORIZED, "Not signed in", why),
            Failure::TooMany(_) => fixed(
                StatusCode::TOO_MANY_REQUESTS,
                "Too many requests",
                "this was tried too often; wait as long as Retry-After says",
            ),
            Failure::StillRunning => fixed(
                StatusCode::CONFLICT,
                "Still running",
                "the first request with this Idempotency-Key is not answered yet",
            ),
            Failure::KeyReused => fixed(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Key used before",
                "this Idempotency-Key was sent with another request",
            ),
            Failure::NotFound(what) => {
                (StatusCode::NOT_FOUND, "Not found", format!("there is no such {what}"))
            }
            Failure::Forbidden(why) => fixed(StatusCode::FORBIDDEN, "Not allowed", why),
            Failure::Invalid(why) => fixed(StatusCode::BAD_REQUEST, "Invalid request", why),
            Failure::Fields(errors) => (StatusCode::BAD_REQUEST, "Invalid request", all(errors)),
            Failure::Contradiction { why, .. } => {
                fixed(StatusCode::UNPROCESSABLE_ENTITY, "Fields contradict each other", why)
            }
            Failure::TooLarge => {
                fixed(StatusCode::PAYLOAD_TOO_LARGE, "Request too large", "a request body is at most 64 KiB")
            }
            Failure::TooSlow => {
                fixed(StatusCode::REQUEST_TIMEOUT, "Too slow", "the request's body did not arrive in time")
            }
            Failure::UnsupportedMediaType => fixed(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "Unsupported media type",
                "send Content-Type: application/json",
            ),
            Failure::MethodNotAllowed => fixed(
                StatusCode::METHOD_NOT_ALLOWED,
                "Method not allowed",
                "this path does not take that method; see /openapi.json",
            ),
            Failure::Conflict(why) => fixed(StatusCode::CONFLICT, "Conflict", why),
            Failure::Unavailable(why) => fixed(StatusCode::SERVICE_UNAVAILABLE, "Try again", why),
            Failure::NoSpace => fixed(
                StatusCode::INSUFFICIENT_STORAGE,
                "No space left",
                "the disk of the manager's database is full; the fleet's operator has to make room",
            ),
            Failure::Internal(error) => {
                tracing::error!(error = &**error as &dyn std::error::Error, "request failed");
                fixed(StatusCode::INTERNAL_SERVER_ERROR, "Internal error", "the manager's log says more")
            }
        }
    }

    /// Seconds until it makes sense to try again.
    fn retry_after_seconds(&self) -> Option<u64> {
        match self {
            Failure::TooMany(wait) => Some(wait.as_secs() + 1),
            Failure::Unavailable(_) | Failure::StillRunning => Some(1),
            _ => None,
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, title, detail) = self.told();
        let retry_after_seconds = self.retry_after_seconds();
        let errors = match self {
            Failure::Fields(errors) => errors,
            Failure::Contradiction { field, why } => vec![FieldProblem::new(field, why)],
            _ => Vec::new(),
        };
        let kind = "about:blank".to_owned();
        let problem = Problem { kind, title: title.to_owned(), status: status.as_u16(), detail, errors };
        let mut response = (status, Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = retry_after_seconds {
            headers.insert(header::RETRY_AFTER, header::HeaderValue::from(seconds));
        }
        response
    }
}
