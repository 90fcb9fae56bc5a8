//! Makes cells agree with the rows.
//!
//! A level-triggered loop: it looks at every cluster that is not where it should be and takes the one step
//! that [`plan::next`] names. A request handler has its own cluster driven through the same [`drive`] at
//! once, so that creation is quick; after a crash of either side the loop finishes what is left.
//!
//! Every step may be taken twice. The order of a deletion is what makes it so: what was drained is written
//! down before the store that knew it goes, and the receipt in the transaction that forgets the cluster.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base_clock::Timestamp;
use base_ids::TenantId;
use fleet_model::{ClusterState, OperationKind, ReceiptResource};
use fleet_rpc::{Assignment, DrainClusterRequest, DrainClusterResponse, Revocation};
use futures::stream::{self, StreamExt};
use tonic::Code;

use super::plan::{self, ClusterRow, Progress, Step};
use super::receipts;
use crate::db::{DbError, RevocationRow};
use crate::{State, replicas, routing};

/// The loop looks this often when nothing is under way and nobody nudged it.
const ROUND_INTERVAL: Duration = Duration::from_secs(5);

/// And this often while somebody waits for an operation.
const BUSY_INTERVAL: Duration = Duration::from_millis(500);

/// Clusters looked at per round, and at the same time: enough to catch up after an outage, without
/// flooding a cell that has just come back.
const ROUND_SIZE: i64 = 1000;
const CONCURRENCY: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    #[error("database")]
    Db(#[from] DbError),
    #[error("the cluster's cell is not known")]
    NoCell,
    #[error("the cell's address is not usable")]
    Channel(#[from] tonic::transport::Error),
    #[error("the cell answered: {}", .0.message())]
    Cell(tonic::Status),
    #[error("receipt")]
    Receipt(#[from] receipts::ReceiptError),
}

/// One driver per cluster at a time in this manager. Another manager's is harmless, only wasted.
#[derive(Debug, Default)]
pub(crate) struct Turns(parking_lot::Mutex<HashMap<TenantId, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    fn of(&self, id: TenantId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock();
        // Those that nobody holds or waits for are made again when needed.
        if turns.len() > 1024 {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        turns.entry(id).or_default().clone()
    }
}

pub(crate) async fn run(state: Arc<State>) {
    loop {
        let busy = match round(&state).await {
            Ok(busy) => busy,
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot look for unfinished clusters"
                );
                false
            }
        };
        let interval = if busy { BUSY_INTERVAL } else { ROUND_INTERVAL };
        let _ = tokio::time::timeout(interval, state.nudge.notified()).await;
    }
}

/// Whether somebody waits for what it worked on.
async fn round(state: &Arc<State>) -> Result<bool, DbError> {
    let clusters = state.db.unfinished_clusters(ROUND_SIZE).await?;
    stream::iter(clusters)
        .for_each_concurrent(CONCURRENCY, |id| {
            let state = state.clone();
            async move {
                if let Err(error) = drive(&state, id).await {
                    tracing::warn!(tenant = %id, error = &error as &dyn std::error::Error, "cluster not where it should be yet");
                }
            }
        })
        .await;
    state.db.any_operation_runs().await
}

/// Takes steps until there is none to take or one has to be waited for. May be repeated at will.
pub(crate) async fn drive(state: &State, id: TenantId) -> Result<(), DriveError> {
    let turn = state.turns.of(id);
    let _turn = turn.lock().await;
    loop {
        let Some(row) = state.db.cluster_row(id).await? else { return Ok(()) };
        let done = match plan::next(&row) {
            Step::Nothing => return Ok(()),
            Step::Assign => assign(state, &row).await,
            Step::Drain => drain(state, &row).await,
            Step::Remove => remove(state, &row).await,
        };
        state.changes.touch();
        match done {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                note(state, &row, &error).await?;
                return Err(error);
            }
        }
    }
}

async fn assign(state: &State, row: &ClusterRow) -> Result<bool, DriveError> {
    let cluster = &row.cluster;
    let pools = state.db.wanted_pools(cluster.id).await?;
    // After the row: whatever this generation is about is in them.
    let revocations = state.db.revocations(row.organization_id).await?;
    let revocation = |one: RevocationRow| Revocation { user: one.user, before_unix_ms: one.before_ms };
    let assignment = Assignment {
        cluster_id: cluster.id.to_string(),
        name: cluster.name.to_string(),
        organization: cluster.organization.to_string(),
        kubernetes_version: cluster.kubernetes_version.clone(),
        server_name: cluster.server_name.clone(),
        gateway_addresses: state.config.gateway_addresses.iter().map(ToString::to_string).collect(),
        provider: cluster.provider.clone(),
        node_pools: pools,
        revocations: revocations.into_iter().map(revocation).collect(),
        generation: row.generation,
        ..Assignment::default()
    };
    // Until all cells have confirmed it once, each of them may make what it does not have.
    replicas::assign(state, cluster, assignment, row.assigned_generation == 0).await?;
    // Not ready any more if somebody deleted it meanwhile; the next step then drains it.
    if state.db.assigned(cluster.id, row.generation, state.now()).await? {
        routing::publish(state).await?;
    }
    Ok(true)
}

async fn drain(state: &State, row: &ClusterRow) -> Result<bool, DriveError> {
    let id = row.cluster.id;
    // Clients are turned away first, so that nobody writes to what is being removed.
    routing::publish(state).await?;
    let answer = replicas::ask(state, &row.cluster, |mut cell| async move {
        cell.drain_cluster(DrainClusterRequest { cluster_id: id.to_string() }).await
    })
    .await;
    let drained = match answer {
        Ok(answer) => answer,
        // Its cells never all confirmed it, and those asked do not have it: nothing was made. One that is
        // away is asked last, so its silence would be what is seen here.
        Err(DriveError::Cell(status)) if status.code() == Code::NotFound && row.assigned_generation == 0 => {
            DrainClusterResponse::default()
        }
        Err(error) => return Err(error),
    };
    if drained.left > 0 {
        let what = if drained.left == 1 { "thing" } else { "things" };
        let mut message = format!("{} {what} left at the cloud provider", drained.left);
        if !drained.message.is_empty() {
            message += &format!(": {}", drained.message);
        }
        state.db.progress_of(id, OperationKind::ClusterDelete, &Progress::running(20, message)).await?;
        return Ok(false);
    }
    let resources: Vec<ReceiptResource> = drained.resources.into_iter().map(resource).collect();
    state.db.set_drained(id, &resources).await?;
    let progress = Progress::running(60, "removing the cluster's data");
    state.db.progress_of(id, OperationKind::ClusterDelete, &progress).await?;
    Ok(true)
}

fn resource(made: fleet_rpc::CloudResource) -> ReceiptResource {
    let at = |unix_ms| Timestamp::from_millisecond(unix_ms).unwrap_or(Timestamp::UNIX_EPOCH);
    ReceiptResource {
        kind: made.kind,
        id: made.id,
        name: made.name,
        provider: made.provider,
        created_at: at(made.created_unix_ms),
        deleted_at: at(made.deleted_unix_ms),
    }
}

async fn remove(state: &State, row: &ClusterRow) -> Result<bool, DriveError> {
    let cluster = &row.cluster;
    replicas::remove(state, cluster).await?;
    let now = state.now();
    let mut resources = row.drained.clone().unwrap_or_default();
    // Each cell's copy of its data is a resource as well, and it is gone since just now.
    for cell in &cluster.cells {
        resources.push(ReceiptResource {
            kind: "replica".to_owned(),
            id: cell.to_string(),
            name: String::new(),
            provider: String::new(),
            created_at: cluster.created_at,
            deleted_at: now,
        });
    }
    let receipt = state.receipts.sign(cluster, resources, now)?;
    state.db.finish_cluster(row, &receipt).await?;
    routing::publish(state).await?;
    Ok(true)
}

/// Says on the running operation why it does not get on.
async fn note(state: &State, row: &ClusterRow, error: &DriveError) -> Result<(), DbError> {
    let (kind, percent) = match row.cluster.state {
        ClusterState::Creating => (OperationKind::ClusterCreate, 10),
        ClusterState::Deleting => (OperationKind::ClusterDelete, 20),
        ClusterState::Ready => return Ok(()),
    };
    // What the tenant may know: that it is tried again, not the fleet's addresses and errors.
    let message = match error {
        DriveError::Cell(status) if status.code() == Code::DataLoss => {
            "the cluster's data is damaged on its cell; its provider has to restore it"
        }
        DriveError::Cell(status) if status.code() == Code::ResourceExhausted => {
            "the disk of the cluster's cell is full; trying again"
        }
        DriveError::Db(_) | DriveError::Receipt(_) => "the manager's database does not answer; trying again",
        _ => "the cluster's cell does not answer; trying again",
    };
    state.db.progress_of(row.cluster.id, kind, &Progress::running(percent, message)).await
}
