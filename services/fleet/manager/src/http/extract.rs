//! What handlers take from a request beside its body: queries, and the id of what they make.

use std::convert::Infallible;

use axum::Json;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use fleet_model::Page;
use serde::Deserialize;
use uuid::Uuid;

use super::Answer;
use crate::problem::Failure;

/// Rows per page when the caller names no limit, and at most.
const PAGE: i64 = 100;
const MAX_PAGE: i64 = 500;

/// No `continue` of ours is longer.
const MAX_CONTINUE_BYTES: usize = 256;

/// The id of what a POST makes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewId {
    pub(crate) id: Uuid,
    /// A keyed request that was begun before and has no answer (see `idempotency`): what it makes may be there
    /// already. A handler looks for that first, since a limit that its own earlier work has reached must not
    /// turn it into a refusal.
    pub(crate) again: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for NewId {
    type Rejection = Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<NewId, Infallible> {
        Ok(parts
            .extensions
            .get::<NewId>()
            .copied()
            .unwrap_or_else(|| NewId { id: Uuid::now_v7(), again: false }))
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
