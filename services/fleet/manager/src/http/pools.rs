//! Node pools: rows changed first; the cluster's controllers make and remove machines after.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use base_ids::NodePoolId;
use fleet_model::labels::{Labels, check_labels};
use fleet_model::{
    Cluster, CreateNodePool, MAX_POOL_SIZE, NodePool, NodePoolRef, NodePoolState, Operation, OperationKind,
    Page, Problem, UpdateNodePool, check_taints,
};

use super::access::InCluster;
use super::clusters::{OPERATION, accepted, begin, check_name, drive_soon};
use super::extract::{Body, NewId, PageQuery, page};
use super::{Answer, Shared};
use crate::State;
use crate::db::{DbError, MAX_POOLS, NewOperation, PoolChange};
use crate::problem::Failure;

/// Labels that kubelets set by what the machine is; another value would mislead the scheduler.
const OF_THE_MACHINE: [&str; 3] = ["kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch"];

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/clusters/{cluster}/nodepools", operation_id = "list_node_pools",
    params(("organization" = String, Path), ("cluster" = String, Path), PageQuery),
    responses((status = 200, body = Page<NodePool>), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem)))]
pub(super) async fn list(state: Shared, at: InCluster, query: PageQuery) -> Answer<Json<Page<NodePool>>> {
    let limit = query.limit()?;
    let items = state.db.pools(at.cluster.id, query.after(), limit + 1).await?;
    Ok(page(items, limit, |item| item.name.to_string()))
}

#[utoipa::path(post, path = "/api/v1/organizations/{organization}/clusters/{cluster}/nodepools", operation_id = "create_node_pool",
    request_body = CreateNodePool,
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 201, description = "Accepted; its machines join as they are made.", body = NodePool,
            headers(("Roadstead-Operation" = String, description = "Id of the operation that makes its machines"))),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 413, body = Problem),
        (status = 415, body = Problem), (status = 422, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn create(
    state: Shared,
    at: InCluster,
    NewId(id): NewId,
    Body(request): Body<CreateNodePool>,
) -> Answer<(StatusCode, HeaderMap, Json<NodePool>)> {
    check_name(&request.name)?;
    check_size(request.size)?;
    check_pool_labels(&request.labels)?;
    check_taints(&request.taints).map_err(Failure::Invalid)?;
    let cell = at.cluster.cells.first().copied();
    let (provider, machine_type) = (request.provider.as_deref(), request.machine_type.as_deref());
    for (field, given) in [("provider", provider), ("machine_type", machine_type)] {
        if given.is_some_and(|text| text.is_empty() || text.len() > 63 || !text.bytes().all(is_plain)) {
            return Err(Failure::Invalid(format!("{field} is 1 to 63 letters, digits, '-', '_' and '.'")));
        }
    }
    if let Some(cell) = cell {
        state.providers.check(cell, provider, machine_type).map_err(Failure::Invalid)?;
    }
    let provider = request.provider.or_else(|| state.providers.default_of(cell?)).unwrap_or_default();
    let pool = NodePool {
        id: NodePoolId::from_uuid(id),
        cluster: at.cluster.name.clone(),
        name: request.name,
        size: request.size,
        provider,
        machine_type: request.machine_type.unwrap_or_default(),
        labels: request.labels,
        taints: request.taints,
        state: NodePoolState::Provisioning,
        machines: Vec::new(),
        ready: 0,
        message: None,
        created_at: state.now(),
        operation: None,
    };
    let operation = on_pool(&state, &at, OperationKind::NodePoolCreate, &pool, None);
    match state.db.insert_pool(at.cluster.id, &pool, &operation).await {
        Ok(PoolChange::Done) => {}
        Ok(PoolChange::TooMany) => {
            return Err(Failure::Conflict(format!("a cluster has at most {MAX_POOLS} node pools")));
        }
        Ok(PoolChange::NoCluster | PoolChange::NoPool | PoolChange::Deleting(_)) => {
            return Err(being_deleted("cluster"));
        }
        Err(DbError::Constraint) => {
            // The same keyed request, done again after a crash, finds its own row.
            let ours = state.db.pool(at.cluster.id, &NodePoolRef::Id(pool.id)).await?;
            if ours.is_none() {
                return Err(taken(&at.cluster, &pool));
            }
        }
        Err(error) => return Err(error.into()),
    }
    changed(&state, &at.cluster);
    let pool = reread(&state, &at.cluster, pool.id).await?;
    let id = pool.operation.unwrap_or(operation.operation.id);
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        headers.insert(OPERATION, value);
    }
    Ok((StatusCode::CREATED, headers, Json(pool)))
}

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/clusters/{cluster}/nodepools/{nodepool}", operation_id = "get_node_pool",
    params(("organization" = String, Path), ("cluster" = String, Path), ("nodepool" = String, Path)),
    responses((status = 200, body = NodePool), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn get(
    state: Shared,
    at: InCluster,
    Path(path): Path<(String, String, String)>,
) -> Answer<Json<NodePool>> {
    let pool = path.2;
    find(&state, &at, &pool).await.map(Json)
}

#[utoipa::path(patch, path = "/api/v1/organizations/{organization}/clusters/{cluster}/nodepools/{nodepool}", operation_id = "update_node_pool",
    request_body(content = UpdateNodePool, content_type = "application/merge-patch+json"),
    params(("organization" = String, Path), ("cluster" = String, Path), ("nodepool" = String, Path)),
    responses((status = 200, body = NodePool), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 403, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 413, body = Problem), (status = 415, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn update(
    state: Shared,
    at: InCluster,
    Path(path): Path<(String, String, String)>,
    Body(change): Body<UpdateNodePool>,
) -> Answer<Json<NodePool>> {
    let pool = path.2;
    let before = find(&state, &at, &pool).await?;
    let mut pool = before.clone();
    if let Some(name) = change.name {
        check_name(&name)?;
        pool.name = name;
    }
    if let Some(size) = change.size {
        check_size(size)?;
        pool.size = size;
    }
    change.labels.apply(&mut pool.labels);
    check_pool_labels(&pool.labels)?;
    if pool == before {
        return Ok(Json(pool));
    }
    let operation = (pool.size != before.size)
        .then(|| on_pool(&state, &at, OperationKind::NodePoolResize, &pool, Some(before.size)));
    resize(&state, &at.cluster, &pool, operation.as_ref()).await?;
    reread(&state, &at.cluster, pool.id).await.map(Json)
}

#[utoipa::path(delete, path = "/api/v1/organizations/{organization}/clusters/{cluster}/nodepools/{nodepool}", operation_id = "delete_node_pool",
    params(("organization" = String, Path), ("cluster" = String, Path), ("nodepool" = String, Path)),
    responses((status = 202, description = "It is being deleted; the operation ends when its machines are gone.", body = Operation,
            headers(("Roadstead-Operation" = String, description = "Id of the operation"))),
        (status = 401, body = Problem), (status = 403, body = Problem), (status = 404, body = Problem),
        (status = 409, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn delete(
    state: Shared,
    at: InCluster,
    Path(path): Path<(String, String, String)>,
) -> Answer<(StatusCode, HeaderMap, Json<Operation>)> {
    let pool = path.2;
    let pool = find(&state, &at, &pool).await?;
    let operation = on_pool(&state, &at, OperationKind::NodePoolDelete, &pool, None);
    delete_pool(&state, &at.cluster, &pool, operation).await.map(accepted)
}

/// Begins the deletion of a pool, or finds the one that is under way.
pub(super) async fn delete_pool(
    state: &Arc<State>,
    cluster: &Cluster,
    pool: &NodePool,
    new: NewOperation,
) -> Answer<Operation> {
    match state.db.delete_pool(cluster.id, pool.id, &new, state.now()).await? {
        PoolChange::Done => {
            changed(state, cluster);
            Ok(new.operation)
        }
        PoolChange::Deleting(operation) => Ok(*operation),
        PoolChange::NoPool | PoolChange::TooMany => Err(Failure::NotFound("node pool")),
        PoolChange::NoCluster => Err(being_deleted("cluster")),
    }
}

/// Writes a pool's new name, size and labels down.
pub(super) async fn resize(
    state: &Arc<State>,
    cluster: &Cluster,
    pool: &NodePool,
    operation: Option<&NewOperation>,
) -> Answer<()> {
    let change = (&pool.name, pool.size, &pool.labels);
    match state.db.update_pool(cluster.id, pool.id, change, operation, state.now()).await {
        Ok(PoolChange::Done) => {}
        Ok(PoolChange::NoCluster) => return Err(being_deleted("cluster")),
        Ok(PoolChange::Deleting(_)) => return Err(being_deleted("node pool")),
        Ok(PoolChange::NoPool | PoolChange::TooMany) => return Err(Failure::NotFound("node pool")),
        Err(DbError::Constraint) => return Err(taken(cluster, pool)),
        Err(error) => return Err(error.into()),
    }
    changed(state, cluster);
    Ok(())
}

/// An operation that begins now, on a pool.
pub(super) fn on_pool(
    state: &State,
    at: &InCluster,
    kind: OperationKind,
    pool: &NodePool,
    size_before: Option<u32>,
) -> NewOperation {
    let mut new = begin(state, at.organization.id, kind, &at.cluster);
    new.operation.target = pool.name.to_string();
    new.node_pool = Some(pool.id);
    new.size_before = size_before;
    new
}

fn changed(state: &Arc<State>, cluster: &Cluster) {
    state.changes.touch();
    drop(drive_soon(state, cluster.id));
}

async fn find(state: &State, at: &InCluster, pool: &str) -> Answer<NodePool> {
    let missing = || Failure::NotFound("node pool");
    let pool: NodePoolRef = pool.parse().map_err(|_| missing())?;
    state.db.pool(at.cluster.id, &pool).await?.ok_or_else(missing)
}

async fn reread(state: &State, cluster: &Cluster, id: NodePoolId) -> Answer<NodePool> {
    state.db.pool(cluster.id, &NodePoolRef::Id(id)).await?.ok_or(Failure::NotFound("node pool"))
}

fn check_size(size: u32) -> Answer<()> {
    if size <= MAX_POOL_SIZE {
        return Ok(());
    }
    Err(Failure::Invalid(format!("size is 0 to {MAX_POOL_SIZE}, not {size}")))
}

fn check_pool_labels(labels: &Labels) -> Answer<()> {
    check_labels(labels).map_err(Failure::Invalid)?;
    match OF_THE_MACHINE.into_iter().find(|key| labels.contains_key(*key)) {
        Some(key) => {
            Err(Failure::Invalid(format!("label {key:?} says what a machine is; it cannot be chosen")))
        }
        None => Ok(()),
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

fn being_deleted(what: &str) -> Failure {
    Failure::Conflict(format!("the {what} is being deleted"))
}

fn taken(cluster: &Cluster, pool: &NodePool) -> Failure {
    Failure::Conflict(format!("cluster {} has a node pool named {}", cluster.name, pool.name))
}
