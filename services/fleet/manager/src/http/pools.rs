//! Node pools: rows changed first; the cluster's controllers make and remove machines after.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode};
use base_ids::{NodePoolId, OperationId};
use fleet_model::labels::{Labels, check_labels};
use fleet_model::{
    Cluster, CreateNodePool, FieldProblem, MAX_POOL_SIZE, NodePool, NodePoolRef, NodePoolState, Operation,
    OperationKind, Page, Problem, UpdateNodePool, check_taints, pointer_step,
};

use super::access::InCluster;
use super::body::Body;
use super::clusters::{PATCH_TRIES, accepted, begin, changed_meanwhile, check_name, drive_soon, named};
use super::extract::{NewId, PageQuery, page};
use super::{Answer, Shared};
use crate::State;
use crate::db::{DbError, MAX_POOLS, OperationRow, PoolChange};
use crate::problem::{Failure, Faults};

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
    new: NewId,
    Body(request): Body<CreateNodePool>,
) -> Answer<(StatusCode, HeaderMap, Json<NodePool>)> {
    check(&state, &at.cluster, &request)?;
    let id = NodePoolId::from_uuid(new.id);
    let began = if new.again && state.db.pool(at.cluster.id, &NodePoolRef::Id(id)).await?.is_some() {
        None
    } else {
        insert(&state, &at, id, request).await?
    };
    changed(&state, &at.cluster);
    let pool = reread(&state, &at.cluster, id).await?;
    let headers = pool.operation.or(began).map(named).unwrap_or_default();
    Ok((StatusCode::CREATED, headers, Json(pool)))
}

/// What a pool's types do not say about it.
fn check(state: &State, cluster: &Cluster, request: &CreateNodePool) -> Answer<()> {
    let (provider, machine_type) = (request.provider.as_deref(), request.machine_type.as_deref());
    let mut faults = Faults::default();
    faults.note("/name", check_name(&request.name));
    faults.note("/size", check_size(request.size));
    faults.note_all("/labels", check_pool_labels(&request.labels));
    faults.note_all("/taints", check_taints(&request.taints));
    faults.note("/provider", provider.map_or(Ok(()), check_plain));
    faults.note("/machine_type", machine_type.map_or(Ok(()), check_plain));
    faults.none()?;
    let mut faults = Faults::default();
    if let Some(cell) = cluster.cells.first()
        && let Err(fault) = state.providers.check(*cell, provider.or(provider_of(cluster)), machine_type)
    {
        faults.note_all("", vec![fault]);
    }
    faults.none()
}

/// Writes a new pool and the operation that makes its machines, whose id is the answer; `None` when the same
/// request has done so before.
async fn insert(
    state: &State,
    at: &InCluster,
    id: NodePoolId,
    request: CreateNodePool,
) -> Answer<Option<OperationId>> {
    let cell = at.cluster.cells.first().copied();
    let named = request.provider.or_else(|| provider_of(&at.cluster).map(str::to_owned));
    let provider = named.or_else(|| state.providers.default_of(cell?)).unwrap_or_default();
    let pool = NodePool {
        id,
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
    let operation = on_pool(state, at, OperationKind::NodePoolCreate, &pool, None);
    match state.db.insert_pool(at.cluster.id, &pool, &operation).await {
        Ok(PoolChange::Done) => Ok(Some(operation.operation.id)),
        Ok(PoolChange::TooMany) => {
            Err(Failure::Conflict(format!("a cluster has at most {MAX_POOLS} node pools")))
        }
        Ok(PoolChange::NoCluster | PoolChange::NoPool | PoolChange::Deleting(_) | PoolChange::Overtaken) => {
            Err(being_deleted("cluster"))
        }
        Err(DbError::Constraint) => {
            // Whoever held the key's lease before may be at it still.
            match state.db.pool(at.cluster.id, &NodePoolRef::Id(id)).await? {
                Some(_) => Ok(None),
                None => Err(taken(&at.cluster, &pool)),
            }
        }
        Err(error) => Err(error.into()),
    }
}

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/clusters/{cluster}/nodepools/{nodepool}", operation_id = "get_node_pool",
    params(("organization" = String, Path), ("cluster" = String, Path), ("nodepool" = String, Path)),
    responses((status = 200, body = NodePool), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn get(
    state: Shared,
    at: InCluster,
    Path(path): Path<(String, String, String)>,
) -> Answer<Json<NodePool>> {
    find(&state, &at, &path.2).await.map(Json)
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
    let mut before = find(&state, &at, &path.2).await?;
    // A patch is about what is there when it is written: whoever was quicker has changed that.
    for _ in 0..PATCH_TRIES {
        let after = patched(&before, &change)?;
        if after == before || put(&state, &at, &before, &after).await? {
            return reread(&state, &at.cluster, before.id).await.map(Json);
        }
        before = reread(&state, &at.cluster, before.id).await?;
    }
    Err(changed_meanwhile())
}

/// The pool as `change` wants it.
fn patched(pool: &NodePool, change: &UpdateNodePool) -> Answer<NodePool> {
    let mut after = pool.clone();
    if let Some(name) = &change.name {
        after.name = name.clone();
    }
    if let Some(size) = change.size {
        after.size = size;
    }
    change.labels.apply(&mut after.labels);
    let mut faults = Faults::default();
    faults.note("/name", check_name(&after.name));
    faults.note("/size", check_size(after.size));
    faults.note_all("/labels", check_pool_labels(&after.labels));
    faults.none()?;
    Ok(after)
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
    let pool = find(&state, &at, &path.2).await?;
    let operation = on_pool(&state, &at, OperationKind::NodePoolDelete, &pool, None);
    delete_pool(&state, &at.cluster, &pool, operation).await.map(accepted)
}

/// Begins the deletion of a pool, or finds the one that is under way.
pub(super) async fn delete_pool(
    state: &Arc<State>,
    cluster: &Cluster,
    pool: &NodePool,
    new: OperationRow,
) -> Answer<Operation> {
    match state.db.delete_pool(cluster.id, pool.id, &new, state.now()).await? {
        PoolChange::Done => {
            changed(state, cluster);
            Ok(new.operation)
        }
        PoolChange::Deleting(operation) => Ok(*operation),
        PoolChange::NoPool | PoolChange::TooMany | PoolChange::Overtaken => {
            Err(Failure::NotFound("node pool"))
        }
        PoolChange::NoCluster => Err(being_deleted("cluster")),
    }
}

/// Turns the pool `before` into `after` (name, size, labels); false when it is no longer as `before` says.
pub(super) async fn put(
    state: &Arc<State>,
    at: &InCluster,
    before: &NodePool,
    after: &NodePool,
) -> Answer<bool> {
    let operation = (after.size != before.size)
        .then(|| on_pool(state, at, OperationKind::NodePoolResize, after, Some(before.size)));
    match state.db.update_pool(at.cluster.id, before, after, operation.as_ref(), state.now()).await {
        Ok(PoolChange::Done) => {
            changed(state, &at.cluster);
            Ok(true)
        }
        Ok(PoolChange::Overtaken) => Ok(false),
        Ok(PoolChange::NoCluster) => Err(being_deleted("cluster")),
        Ok(PoolChange::Deleting(_)) => Err(being_deleted("node pool")),
        Ok(PoolChange::NoPool | PoolChange::TooMany) => Err(Failure::NotFound("node pool")),
        Err(DbError::Constraint) => Err(taken(&at.cluster, after)),
        Err(error) => Err(error.into()),
    }
}

/// An operation that begins now, on a pool.
pub(super) fn on_pool(
    state: &State,
    at: &InCluster,
    kind: OperationKind,
    pool: &NodePool,
    size_before: Option<u32>,
) -> OperationRow {
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

fn check_size(size: u32) -> Result<(), String> {
    if size <= MAX_POOL_SIZE { Ok(()) } else { Err(format!("0 to {MAX_POOL_SIZE}, not {size}")) }
}

fn check_pool_labels(labels: &Labels) -> Vec<FieldProblem> {
    let mut found = check_labels(labels);
    for key in OF_THE_MACHINE.into_iter().filter(|key| labels.contains_key(*key)) {
        let why = format!("label {key:?} says what a machine is; it cannot be chosen");
        found.push(FieldProblem::new(pointer_step(key), why));
    }
    found
}

/// The name of a provider or of one of its machine types: what every provider can take.
pub(super) fn check_plain(text: &str) -> Result<(), &'static str> {
    if (1..=63).contains(&text.len()) && text.bytes().all(is_plain) {
        return Ok(());
    }
    Err("1 to 63 letters, digits, '-', '_' and '.'")
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

/// The cluster's own, which its pools have unless they name another.
fn provider_of(cluster: &Cluster) -> Option<&str> {
    Some(cluster.provider.as_str()).filter(|name| !name.is_empty())
}

fn being_deleted(what: &str) -> Failure {
    Failure::Conflict(format!("the {what} is being deleted"))
}

fn taken(cluster: &Cluster, pool: &NodePool) -> Failure {
    Failure::Conflict(format!("cluster {} has a node pool named {}", cluster.name, pool.name))
}
