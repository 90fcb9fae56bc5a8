//! Operations and receipts; and what a fleet offers.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, header};
use base_ids::{OperationId, TenantId};
use fleet_model::{
    DEFAULT_VERSION, MachineType, NodePool, NodePoolRef, Operation, OperationKind, OperationState, Page,
    Problem, Receipt, Version,
};
use serde::Deserialize;

use super::access::{InCluster, InOrganization};
use super::clusters::delete_cluster;
use super::extract::{NewId, PageQuery, page};
use super::pools::{delete_pool, on_pool, put};
use super::{Answer, Shared};
use crate::State;
use crate::db::OperationRow;
use crate::lifecycle::plan::{Cancel, Progress, cancel as plan_cancel};
use crate::problem::Failure;

/// Which operations.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct StateQuery {
    /// Only those in this state.
    state: Option<OperationState>,
}

impl<S: Send + Sync> FromRequestParts<S> for StateQuery {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<StateQuery, Failure> {
        Query::try_from_uri(&parts.uri)
            .map(|Query(query)| query)
            .map_err(|error| Failure::Invalid(error.body_text()))
    }
}

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/operations", operation_id = "list_operations",
    params(("organization" = String, Path), StateQuery, PageQuery),
    responses((status = 200, description = "Newest first.", body = Page<Operation>), (status = 400, body = Problem),
        (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn list(
    state: Shared,
    at: InOrganization,
    only: StateQuery,
    query: PageQuery,
) -> Answer<Json<Page<Operation>>> {
    let limit = query.limit()?;
    let items =
        state.db.operations(at.organization.id, at.only(), only.state, query.after(), limit + 1).await?;
    Ok(page(items, limit, |item| item.id.to_string()))
}

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/operations/{operation}", operation_id = "get_operation",
    params(("organization" = String, Path), ("operation" = String, Path)),
    responses((status = 200, body = Operation), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn get(
    state: Shared,
    at: InOrganization,
    Path(path): Path<(String, String)>,
) -> Answer<Json<Operation>> {
    find(&state, &at, &path.1).await.map(|found| Json(found.operation))
}

#[utoipa::path(post, path = "/api/v1/organizations/{organization}/operations/{operation}/cancel", operation_id = "cancel_operation",
    params(("organization" = String, Path), ("operation" = String, Path)),
    responses((status = 200, description = "Cancelled. What it was making is being deleted; a resize goes back.", body = Operation),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, description = "It has ended, or cannot be taken back.", body = Problem),
        (status = 422, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn cancel(
    state: Shared,
    at: InOrganization,
    new: NewId,
    Path(path): Path<(String, String)>,
) -> Answer<Json<Operation>> {
    let found = find(&state, &at, &path.1).await?;
    if new.again && found.operation.state == OperationState::Cancelled {
        return Ok(Json(found.operation));
    }
    let what = match plan_cancel(found.operation.kind, found.operation.state) {
        Cancel::Refuse(why) => return Err(Failure::Conflict(why.to_owned())),
        what => what,
    };
    let row = state.db.cluster_row(found.cluster_id).await?.ok_or_else(gone)?;
    let at =
        InCluster { caller: at.caller, organization: at.organization, role: at.role, cluster: row.cluster };
    take_back(&state, &at, &found, what).await?;
    // Whatever took its place has ended it already, with a reason that says less than this one.
    let by = Progress {
        state: OperationState::Cancelled,
        percent: found.operation.progress,
        message: format!("cancelled by {}", at.caller.name()),
    };
    state.db.cancelled(found.operation.id, &by, state.now()).await?;
    state.changes.touch();
    let ended = state.db.operation(at.organization.id, found.operation.id).await?;
    Ok(Json(ended.ok_or(Failure::NotFound("operation"))?.operation))
}

/// Begins what undoes an operation.
async fn take_back(state: &Arc<State>, at: &InCluster, found: &OperationRow, what: Cancel) -> Answer<()> {
    let pool = async || {
        let id = found.node_pool.ok_or_else(gone)?;
        state.db.pool(at.cluster.id, &NodePoolRef::Id(id)).await?.ok_or_else(gone)
    };
    match what {
        Cancel::Refuse(_) => {}
        Cancel::DeleteCluster => drop(delete_cluster(state, at.organization.id, &at.cluster).await?),
        Cancel::DeletePool => {
            let pool = pool().await?;
            let new = on_pool(state, at, OperationKind::NodePoolDelete, &pool, None);
            drop(delete_pool(state, &at.cluster, &pool, new).await?);
        }
        Cancel::ResizeBack => {
            let before = pool().await?;
            let after = NodePool { size: found.size_before.ok_or_else(gone)?, ..before.clone() };
            // Somebody who was quicker has given it yet another size, and ended this operation by that.
            if !put(state, at, &before, &after).await? {
                return Err(Failure::Conflict("the node pool was changed at the same time".to_owned()));
            }
        }
    }
    Ok(())
}

fn gone() -> Failure {
    Failure::Conflict("what the operation works on is gone".to_owned())
}

async fn find(state: &State, at: &InOrganization, id: &str) -> Answer<OperationRow> {
    let missing = || Failure::NotFound("operation");
    let id: OperationId = id.parse().map_err(|_| missing())?;
    let found = state.db.operation(at.organization.id, id).await?.ok_or_else(missing)?;
    // A token that is limited to one cluster sees what belongs to that one.
    if at.only().is_some_and(|only| only != found.cluster_id) {
        return Err(missing());
    }
    Ok(found)
}

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/receipts", operation_id = "list_receipts",
    params(("organization" = String, Path), PageQuery),
    responses((status = 200, body = Page<Receipt>), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem)))]
pub(super) async fn receipts(
    state: Shared,
    at: InOrganization,
    query: PageQuery,
) -> Answer<Json<Page<Receipt>>> {
    let limit = query.limit()?;
    let items = state.db.receipts(at.organization.id, at.only(), query.after(), limit + 1).await?;
    Ok(page(items, limit, |item| item.cluster.to_string()))
}

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/receipts/{receipt}", operation_id = "get_receipt",
    params(("organization" = String, Path), ("receipt" = String, Path, description = "Id of the deleted cluster")),
    responses((status = 200, body = Receipt), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn receipt(
    state: Shared,
    at: InOrganization,
    Path(path): Path<(String, String)>,
) -> Answer<Json<Receipt>> {
    let missing = || Failure::NotFound("receipt");
    let id: TenantId = path.1.parse().map_err(|_| missing())?;
    if at.only().is_some_and(|only| only != id) {
        return Err(missing());
    }
    let mut found = state.db.receipts(at.organization.id, Some(id), "", 1).await?;
    found.pop().map(Json).ok_or_else(missing)
}

/// Public: whoever holds a receipt may check it.
#[utoipa::path(get, path = "/api/v1/receipt-key", operation_id = "get_receipt_key", security(()),
    responses((status = 200, description = "The public key (JWK, RFC 7517) that receipts are signed with.",
        content_type = "application/jwk+json", body = Object)))]
pub(super) async fn receipt_key(state: Shared) -> ([(HeaderName, HeaderValue); 1], String) {
    let kind = HeaderValue::from_static("application/jwk+json");
    ([(header::CONTENT_TYPE, kind)], state.receipts.public_key().to_string())
}

#[utoipa::path(get, path = "/api/v1/versions", operation_id = "list_versions", params(PageQuery),
    responses((status = 200, body = Page<Version>), (status = 400, body = Problem), (status = 401, body = Problem)))]
pub(super) async fn versions(query: PageQuery) -> Answer<Json<Page<Version>>> {
    let limit = query.limit()?;
    let offered = [Version { version: DEFAULT_VERSION.to_owned(), default: true }];
    let items = offered.into_iter().filter(|offer| offer.version.as_str() > query.after()).collect();
    Ok(page(items, limit, |item| item.version.clone()))
}

#[utoipa::path(get, path = "/api/v1/machine-types", operation_id = "list_machine_types", params(PageQuery),
    responses((status = 200, body = Page<MachineType>), (status = 400, body = Problem), (status = 401, body = Problem)))]
pub(super) async fn machine_types(state: Shared, query: PageQuery) -> Answer<Json<Page<MachineType>>> {
    let limit = query.limit()?;
    let key = |offer: &MachineType| format!("{}/{}", offer.provider, offer.name);
    let types = state.providers.machine_types().into_iter();
    let items = types
        .filter(|offer| key(offer).as_str() > query.after())
        .take(usize::try_from(limit + 1).unwrap_or(usize::MAX))
        .collect();
    Ok(page(items, limit, key))
}
