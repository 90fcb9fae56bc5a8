//! Bodies and queries, with what is wrong with them in the answer.

use std::convert::Infallible;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::header;
use axum::http::request::Parts;
use fleet_model::Page;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::Answer;
use crate::problem::Failure;

/// Rows per page when the caller names no limit, and at most.
const PAGE: i64 = 100;
const MAX_PAGE: i64 = 500;

/// No `continue` of ours is longer.
const MAX_CONTINUE_BYTES: usize = 256;

/// A JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failure;
    async fn from_request(request: Request, state: &S) -> Result<Body<T>, Failure> {
        let kind = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json")
            && !kind.eq_ignore_ascii_case("application/merge-patch+json")
        {
            return Err(Failure::UnsupportedMediaType);
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|_| Failure::TooLarge)?;
        serde_json::from_slice(&bytes).map(Body).map_err(|error| Failure::Invalid(error.to_string()))
    }
}

/// The id of what a POST makes; the same one when a keyed request is done again (see `idempotency`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewId(pub(crate) Uuid);

impl<S: Send + Sync> FromRequestParts<S> for NewId {
    type Rejection = Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<NewId, Infallible> {
        Ok(parts.extensions.get::<NewId>().copied().unwrap_or_else(|| NewId(Uuid::now_v7())))
    }
}

/// Which part of a list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// Items per page.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<i64>,
    /// `continue` of the page before.
    #[serde(rename = "continue")]
    #[param(max_length = 256, pattern = "^[ -~]*$")]
    after: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for PageQuery {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<PageQuery, Failure> {
        let Query(query): Query<PageQuery> =
            Query::try_from_uri(&parts.uri).map_err(|error| Failure::Invalid(error.body_text()))?;
        if query.after().len() > MAX_CONTINUE_BYTES
            || !query.after().bytes().all(|byte| (32..127).contains(&byte))
        {
            return Err(Failure::Invalid("continue is the one of the page before".to_owned()));
        }
        Ok(query)
    }
}

impl PageQuery {
    pub(crate) fn limit(&self) -> Answer<i64> {
        match self.limit {
            None => Ok(PAGE),
            Some(limit) if (1..=MAX_PAGE).contains(&limit) => Ok(limit),
            Some(limit) => Err(Failure::Invalid(format!("limit is 1 to {MAX_PAGE}, not {limit}"))),
        }
    }
    pub(crate) fn after(&self) -> &str {
        self.after.as_deref().unwrap_or_default()
    }
}

/// `items` was asked for with one more than `limit`, to know whether there is a next page.
pub(crate) fn page<T>(mut items: Vec<T>, limit: i64, key: impl Fn(&T) -> String) -> Json<Page<T>> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let next = (items.len() > limit).then(|| {
        items.truncate(limit);
        items.last().map(&key).unwrap_or_default()
    });
    Json(Page { items, next })
}
