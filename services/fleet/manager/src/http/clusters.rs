//! Clusters: rows changed first, their cells driven after.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use base_ids::{CellId, OperationId, OrgId, Slug, TenantId};
use fleet_model::labels::check_labels;
use fleet_model::placement::{Candidate, PlacementError, place};
use fleet_model::{
    Cluster, ClusterState, CreateCluster, DEFAULT_VERSION, Operation, OperationKind, OperationState,
    Organization, Page, Problem, UpdateCluster, looks_like_id, server_name,
};

use super::access::{InCluster, InOrganization};
use super::body::Body;
use super::extract::{NewId, PageQuery, page};
use super::pools::check_plain;
use super::{Answer, Shared};
use crate::State;
use crate::db::{DbError, Deletion, OperationRow};
use crate::lifecycle::driver;
use crate::observe;
use crate::problem::{Failure, Faults};

/// How long a request waits for its cluster to serve. It goes on being made after that.
const PATIENCE: Duration = Duration::from_secs(10);

/// Names the operation that a request began.
const OPERATION: HeaderName = HeaderName::from_static("roadstead-operation");

/// How often a patch is tried on what others have just changed.
pub(super) const PATCH_TRIES: usize = 5;

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/clusters", operation_id = "list_clusters",
    params(("organization" = String, Path), PageQuery),
    responses((status = 200, body = Page<Cluster>), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem)))]
pub(super) async fn list(state: Shared, at: InOrganization, query: PageQuery) -> Answer<Json<Page<Cluster>>> {
    let limit = query.limit()?;
    let items = state.db.clusters(at.organization.id, at.only(), query.after(), limit + 1).await?;
    Ok(page(items, limit, |item| item.name.to_string()))
}

#[utoipa::path(post, path = "/api/v1/organizations/{organization}/clusters", operation_id = "create_cluster", request_body = CreateCluster,
    params(("organization" = String, Path)),
    responses((status = 201, description = "It serves requests; or, when that takes longer than 10 s, it is `creating` and names its operation.", body = Cluster,
            headers(("Roadstead-Operation" = String, description = "Id of the operation that creates it"))),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 413, body = Problem),
        (status = 415, body = Problem), (status = 422, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn create(
    state: Shared,
    at: InOrganization,
    new: NewId,
    Body(request): Body<CreateCluster>,
) -> Answer<(StatusCode, HeaderMap, Json<Cluster>)> {
    check(&request)?;
    let id = TenantId::from_uuid(new.id);
    let began = if new.again && state.db.cluster_row(id).await?.is_some() {
        None
    } else {
        insert(&state, &at.organization, id, request).await?
    };
    // On a task of its own: whoever hangs up does not stop it.
    let driven = drive_soon(&state, id);
    let _ = tokio::time::timeout(PATIENCE, driven).await;
    let row = state.db.cluster_row(id).await?.ok_or(Failure::NotFound("cluster"))?;
    let headers = row.cluster.operation.or(began).map(named).unwrap_or_default();
    Ok((StatusCode::CREATED, headers, Json(row.cluster)))
}

/// What a cluster's types do not say about it.
fn check(request: &CreateCluster) -> Answer<()> {
    let mut faults = Faults::default();
    faults.note("/name", check_name(&request.name));
    faults.note_all("/labels", check_labels(&request.labels));
    if let Some(version) = request.kubernetes_version.as_deref().filter(|asked| *asked != DEFAULT_VERSION) {
        let fault = format!("{version:?} is not offered; {DEFAULT_VERSION} is");
        faults.note::<(), _>("/kubernetes_version", Err(fault));
    }
    if let Some(replicas) = request.replicas.filter(|replicas| !matches!(replicas, 1 | 3)) {
        faults.note::<(), _>("/replicas", Err(format!("a cluster has 1 or 3, not {replicas}")));
    }
    faults.note("/provider", request.provider.as_deref().map_or(Ok(()), check_plain));
    faults.none()
}

/// Writes a new cluster and the operation that creates it, whose id is the answer; `None` when the same
/// request has done so before.
async fn insert(
    state: &Arc<State>,
    organization: &Organization,
    id: TenantId,
    request: CreateCluster,
) -> Answer<Option<OperationId>> {
    let replicas = request.replicas.unwrap_or(1);
    let cells = room_for(state, replicas).await?;
    if let Some(name) = &request.provider {
        let mut faults = Faults::default();
        // Any of them may come to lead it; one that lacks it is enough to say so.
        if let Some(fault) =
            cells.iter().find_map(|cell| state.providers.check(*cell, Some(name), None).err())
        {
            faults.note_all("", vec![fault]);
        }
        faults.none()?;
    }
    let first = || state.providers.default_of(*cells.first()?);
    let provider = request.provider.or_else(first).unwrap_or_default();
    let cluster = Cluster {
        id,
        organization: organization.name.clone(),
        name: request.name,
        state: ClusterState::Creating,
        kubernetes_version: request.kubernetes_version.unwrap_or_else(|| DEFAULT_VERSION.to_owned()),
        replicas,
        cells,
        provider,
        labels: request.labels,
        operation: None,
        server_name: server_name(&id),
        created_at: state.now(),
    };
    let operation = begin(state, organization.id, OperationKind::ClusterCreate, &cluster);
    match state.db.insert_cluster(organization.id, &cluster, &operation).await {
        Ok(()) => {
            state.changes.touch();
            Ok(Some(operation.operation.id))
        }
        // Whoever held the key's lease before may be at it still.
        Err(DbError::Constraint) if state.db.cluster_row(id).await?.is_some() => Ok(None),
        Err(DbError::Constraint) => Err(taken(&cluster.organization, &cluster.name)),
        Err(error) => Err(error.into()),
    }
}

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/clusters/{cluster}", operation_id = "get_cluster",
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 200, body = Cluster), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn get(at: InCluster) -> Answer<Json<Cluster>> {
    Ok(Json(at.cluster))
}

#[utoipa::path(patch, path = "/api/v1/organizations/{organization}/clusters/{cluster}", operation_id = "update_cluster",
    params(("organization" = String, Path), ("cluster" = String, Path)),
    request_body(content = UpdateCluster, content_type = "application/merge-patch+json"),
    responses((status = 200, body = Cluster), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 403, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 413, body = Problem), (status = 415, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn update(
    state: Shared,
    at: InCluster,
    Body(change): Body<UpdateCluster>,
) -> Answer<Json<Cluster>> {
    let mut before = at.cluster;
    // A patch is about what is there when it is written: whoever was quicker has changed that.
    for _ in 0..PATCH_TRIES {
        let mut after = before.clone();
        if let Some(name) = &change.name {
            after.name = name.clone();
        }
        change.labels.apply(&mut after.labels);
        let mut faults = Faults::default();
        faults.note("/name", check_name(&after.name));
        faults.note_all("/labels", check_labels(&after.labels));
        faults.none()?;
        if after == before {
            return Ok(Json(after));
        }
        match state.db.update_cluster(&before, &after).await {
            Ok(true) => {
                state.changes.touch();
                // Its cells only want the name for their messages: nobody has to wait for them.
                drop(drive_soon(&state, after.id));
                return Ok(Json(after));
            }
            Ok(false) => {}
            Err(DbError::Constraint) => return Err(taken(&after.organization, &after.name)),
            Err(error) => return Err(error.into()),
        }
        before = state.db.cluster_row(before.id).await?.ok_or(Failure::NotFound("cluster"))?.cluster;
        if before.state == ClusterState::Deleting {
            return Err(Failure::Conflict("the cluster is being deleted".to_owned()));
        }
    }
    Err(changed_meanwhile())
}

#[utoipa::path(delete, path = "/api/v1/organizations/{organization}/clusters/{cluster}", operation_id = "delete_cluster",
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 202, description = "It is being deleted; the operation ends when nothing is left, in a receipt.", body = Operation,
            headers(("Roadstead-Operation" = String, description = "Id of the operation"))),
        (status = 401, body = Problem), (status = 403, body = Problem), (status = 404, body = Problem),
        (status = 503, body = Problem)))]
pub(super) async fn delete(state: Shared, at: InCluster) -> Answer<(StatusCode, HeaderMap, Json<Operation>)> {
    let operation = delete_cluster(&state, at.organization.id, &at.cluster).await?;
    Ok(accepted(operation))
}

/// Begins the deletion of a cluster, or finds the one that is under way.
pub(super) async fn delete_cluster(
    state: &Arc<State>,
    organization: OrgId,
    cluster: &Cluster,
) -> Answer<Operation> {
    let new = begin(state, organization, OperationKind::ClusterDelete, cluster);
    match state.db.delete_cluster(cluster.id, &new, state.now()).await? {
        Deletion::Begun => {
            state.changes.touch();
            drop(drive_soon(state, cluster.id));
            Ok(new.operation)
        }
        Deletion::Running(operation) => Ok(*operation),
        Deletion::Gone => Err(Failure::NotFound("cluster")),
    }
}

/// Where a new cluster goes.
async fn room_for(state: &State, replicas: u8) -> Answer<Vec<CellId>> {
    let cells = match choose_cells(state, replicas).await? {
        Err(PlacementError::NoRoom { .. }) => {
            observe::look(state).await;
            choose_cells(state, replicas).await?
        }
        chosen => chosen,
    };
    cells.map_err(|error| match error {
        PlacementError::TooFewCells { .. } => Failure::Conflict(error.to_string()),
        PlacementError::NoCells | PlacementError::NoRoom { .. } => Failure::Unavailable(error.to_string()),
    })
}

/// The same by what is known of the cells, which may be a second old.
async fn choose_cells(state: &State, replicas: u8) -> Result<Result<Vec<CellId>, PlacementError>, DbError> {
    let cells = state.db.cells().await?;
    let candidates: Vec<Candidate> = cells
        .into_iter()
        .map(|cell| Candidate {
            id: cell.id,
            reachable: state.observed.is_reachable(cell.id),
            clusters: cell.clusters,
            capacity: cell.capacity,
        })
        .collect();
    Ok(place(&candidates, replicas))
}

/// An operation that begins now, on a cluster.
pub(super) fn begin(
    state: &State,
    organization_id: OrgId,
    kind: OperationKind,
    cluster: &Cluster,
) -> OperationRow {
    let operation = Operation {
        id: OperationId::generate(),
        kind,
        organization: cluster.organization.clone(),
        cluster: Some(cluster.id.to_string()),
        target: cluster.name.to_string(),
        state: OperationState::Running,
        progress: 0,
        message: "begun".to_owned(),
        created_at: state.now(),
        finished_at: None,
    };
    OperationRow { operation, organization_id, cluster_id: cluster.id, node_pool: None, size_before: None }
}

/// The answer to what goes on after it.
pub(super) fn accepted(operation: Operation) -> (StatusCode, HeaderMap, Json<Operation>) {
    (StatusCode::ACCEPTED, named(operation.id), Json(operation))
}

/// The header that names an operation.
pub(super) fn named(id: OperationId) -> HeaderMap {
    // A UUID's text is always a header value.
    let value = HeaderValue::from_str(&id.to_string()).ok();
    value.map(|value| (OPERATION, value)).into_iter().collect()
}

/// Has the cluster's next steps taken now rather than at the driver's next round.
pub(super) fn drive_soon(state: &Arc<State>, id: TenantId) -> tokio::task::JoinHandle<()> {
    let state = state.clone();
    tokio::spawn(async move {
        if let Err(error) = driver::drive(&state, id).await {
            tracing::warn!(tenant = %id, error = &error as &dyn std::error::Error, "cluster not where it should be yet");
        }
        // The loop looks after whatever is left, and soon.
        state.nudge.notify_one();
    })
}

/// Paths take a name or an id; a name that reads like an id would never be found.
pub(super) fn check_name(name: &Slug) -> Result<(), String> {
    if looks_like_id(name.as_str()) {
        return Err(format!("{name} reads like an id; choose another name"));
    }
    Ok(())
}

/// Others kept changing what a patch is about.
pub(super) fn changed_meanwhile() -> Failure {
    Failure::Unavailable("it was changed by others at the same time; try again".to_owned())
}

fn taken(organization: &Slug, name: &Slug) -> Failure {
    Failure::Conflict(format!("organization {organization} has a cluster named {name}"))
}
