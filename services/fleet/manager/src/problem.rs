//! Errors of the REST API, as `application/problem+json` (RFC 9457).

use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use fleet_model::Problem;

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
    Invalid(String),
    /// Each field is fine, together they mean nothing.
    Contradiction(&'static str),
    TooLarge,
    /// The body did not come in time.
    TooSlow,
    UnsupportedMediaType,
    MethodNotAllowed,
    Conflict(String),
    /// Nobody's fault; try again.
    Unavailable(String),
    Internal(Box<dyn std::error::Error + Send + Sync>),
}

impl From<DbError> for Failure {
    fn from(error: DbError) -> Failure {
        match error {
            DbError::Nul => Failure::Invalid("a text has a NUL character in it".to_owned()),
            DbError::Busy(_) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "request not served");
                Failure::Unavailable("the manager's database is busy or away".to_owned())
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
            DriveError::Cell(status) => {
                Failure::Unavailable(format!("the cluster's cell: {}", status.message()))
            }
            other => Failure::Internal(Box::new(other)),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let retry_after_seconds = match &self {
            Failure::TooMany(wait) => Some(wait.as_secs() + 1),
            Failure::Unavailable(_) | Failure::StillRunning => Some(1),
            _ => None,
        };
        let (status, title, detail) = match self {
            Failure::WrongPassword(why) => (StatusCode::UNAUTHORIZED, "Not signed in", why.to_owned()),
            Failure::TooMany(_) => (
                StatusCode::TOO_MANY_REQUESTS,
                "Too many requests",
                "this was tried too often; wait as long as Retry-After says".to_owned(),
            ),
            Failure::StillRunning => (
                StatusCode::CONFLICT,
                "Still running",
                "the first request with this Idempotency-Key is not answered yet".to_owned(),
            ),
            Failure::KeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "Key used before",
                "this Idempotency-Key was sent with another request".to_owned(),
            ),
            Failure::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "Not signed in",
                "sign in, or send a valid API token: Authorization: Bearer rs_…".to_owned(),
            ),
            Failure::NotFound(what) => {
                (StatusCode::NOT_FOUND, "Not found", format!("there is no such {what}"))
            }
            Failure::Forbidden(why) => (StatusCode::FORBIDDEN, "Not allowed", why.to_owned()),
            Failure::Invalid(why) => (StatusCode::BAD_REQUEST, "Invalid request", why),
            Failure::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "Request too large",
                "a request body is at most 64 KiB".to_owned(),
            ),
            Failure::Contradiction(why) => {
                (StatusCode::UNPROCESSABLE_ENTITY, "Fields contradict each other", why.to_owned())
            }
            Failure::TooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                "Too slow",
                "the request's body did not arrive in time".to_owned(),
            ),
            Failure::UnsupportedMediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "Unsupported media type",
                "send Content-Type: application/json".to_owned(),
            ),
            Failure::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "Method not allowed",
                "this path does not take that method; see /openapi.json".to_owned(),
            ),
            Failure::Conflict(why) => (StatusCode::CONFLICT, "Conflict", why),
            Failure::Unavailable(why) => (StatusCode::SERVICE_UNAVAILABLE, "Try again", why),
            Failure::Internal(error) => {
                tracing::error!(error = &*error as &dyn std::error::Error, "request failed");
                (
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "Internal error",
                    "the manager's log says more".to_owned(),
                )
            }
        };
        let problem = Problem {
            kind: "about:blank".to_owned(),
            title: title.to_owned(),
            status: status.as_u16(),
            detail,
        };
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
