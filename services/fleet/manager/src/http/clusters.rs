//! Clusters: rows changed first, their cells driven after.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use base_ids::{CellId, OperationId, OrgId, Slug, TenantId};
use fleet_model::labels::check_labels;
use fleet_model::placement::{Candidate, PlacementError, place};
use fleet_model::{
    Cluster, ClusterState, CreateCluster, DEFAULT_VERSION, Operation, OperationKind, OperationState, Page,
    Problem, UpdateCluster, looks_like_id, server_name,
};

use super::access::{InCluster, InOrganization};
use super::extract::{Body, NewId, PageQuery, page};
use super::{Answer, Shared};
use crate::State;
use crate::db::{DbError, Deletion, NewOperation};
use crate::lifecycle::driver;
use crate::observe;
use crate::problem::Failure;

/// How long a request waits for its cluster to serve. It goes on being made after that.
const PATIENCE: Duration = Duration::from_secs(10);

/// Names the operation that a request began.
pub(super) const OPERATION: HeaderName = HeaderName::from_static("roadstead-operation");

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
    NewId(id): NewId,
    Body(request): Body<CreateCluster>,
) -> Answer<(StatusCode, HeaderMap, Json<Cluster>)> {
    check_name(&request.name)?;
    check_labels(&request.labels).map_err(Failure::Invalid)?;
    let version = request.kubernetes_version.unwrap_or_else(|| DEFAULT_VERSION.to_owned());
    if version != DEFAULT_VERSION {
        return Err(Failure::Invalid(format!(
            "kubernetes_version {version:?} is not offered; {DEFAULT_VERSION} is"
        )));
    }
    let replicas = request.replicas.unwrap_or(1);
    if !matches!(replicas, 1 | 3) {
        return Err(Failure::Invalid(format!("replicas is {replicas}; a cluster has 1 or 3")));
    }
    let cells = match choose_cells(&state, replicas).await? {
        Err(PlacementError::NoRoom { .. }) => {
            observe::look(&state).await;
            choose_cells(&state, replicas).await?
        }
        chosen => chosen,
    };
    let cells = cells.map_err(|error| match error {
        PlacementError::TooFewCells { .. } => Failure::Conflict(error.to_string()),
        PlacementError::NoCells | PlacementError::NoRoom { .. } => Failure::Unavailable(error.to_string()),
    })?;
    let id = TenantId::from_uuid(id);
    let cluster = Cluster {
        id,
        organization: at.organization.name.clone(),
        name: request.name,
        state: ClusterState::Creating,
        kubernetes_version: version,
        replicas,
        cells,
        labels: request.labels,
        operation: None,
        server_name: server_name(&id),
        created_at: state.now(),
    };
    let operation = begin(&state, at.organization.id, OperationKind::ClusterCreate, &cluster);
    match state.db.insert_cluster(at.organization.id, &cluster, &operation).await {
        Ok(()) => {}
        Err(DbError::Constraint) => {
            // The same keyed request, done again after a crash, finds its own row.
            let ours = state.db.cluster_row(id).await?;
            if ours.is_none_or(|row| row.cluster.name != cluster.name) {
                return Err(taken(&cluster.organization, &cluster.name));
            }
        }
        Err(error) => return Err(error.into()),
    }
    state.changes.touch();
    // On a task of its own: whoever hangs up does not stop it.
    let driven = drive_soon(&state, id);
    let _ = tokio::time::timeout(PATIENCE, driven).await;
    let row = state.db.cluster_row(id).await?.ok_or(Failure::NotFound("cluster"))?;
    let mut headers = HeaderMap::new();
    let operation_id = row.cluster.operation.unwrap_or(operation.operation.id);
    headers.insert(OPERATION, header_value(operation_id));
    Ok((StatusCode::CREATED, headers, Json(row.cluster)))
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
    let mut cluster = at.cluster;
    let before = cluster.clone();
    if let Some(name) = change.name {
        check_name(&name)?;
        cluster.name = name;
    }
    change.labels.apply(&mut cluster.labels);
    check_labels(&cluster.labels).map_err(Failure::Invalid)?;
    if cluster == before {
        return Ok(Json(cluster));
    }
    match state.db.update_cluster(cluster.id, &cluster.name, &cluster.labels).await {
        Ok(true) => {}
        Ok(false) => return Err(Failure::Conflict("the cluster is being deleted".to_owned())),
        Err(DbError::Constraint) => return Err(taken(&cluster.organization, &cluster.name)),
        Err(error) => return Err(error.into()),
    }
    state.changes.touch();
    // Its cells only want the name for their messages: nobody has to wait for them.
    drop(drive_soon(&state, cluster.id));
    Ok(Json(cluster))
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

/// Where a new cluster goes, by what is known of the cells.
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
) -> NewOperation {
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
    NewOperation { operation, organization_id, cluster_id: cluster.id, node_pool: None, size_before: None }
}

pub(super) fn accepted(operation: Operation) -> (StatusCode, HeaderMap, Json<Operation>) {
    let mut headers = HeaderMap::new();
    headers.insert(OPERATION, header_value(operation.id));
    (StatusCode::ACCEPTED, headers, Json(operation))
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

fn header_value(id: OperationId) -> HeaderValue {
    // A UUID's text is always a header value.
    HeaderValue::from_str(&id.to_string()).unwrap_or(HeaderValue::from_static(""))
}

/// Paths take a name or an id; a name that reads like an id would never be found.
pub(super) fn check_name(name: &Slug) -> Answer<()> {
    if looks_like_id(name.as_str()) {
        return Err(Failure::Invalid(format!("the name {name} reads like an id; choose another one")));
    }
    Ok(())
}

fn taken(organization: &Slug, name: &Slug) -> Failure {
    Failure::Conflict(format!("organization {organization} has a cluster named {name}"))
}
