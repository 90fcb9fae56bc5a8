//! Makes cells agree with the rows.
//!
//! A level-triggered loop: it looks at every cluster that is not `ready` and asks its cells for what the
//! row says. A request handler drives its own cluster through the same [`drive`] first, so that creation
//! is quick; after a crash of either side the loop finishes what is left.

use std::sync::Arc;
use std::time::Duration;

use fleet_model::{Cluster, ClusterState};
use fleet_rpc::Assignment;
use futures::stream::{self, StreamExt};

use crate::db::DbError;
use crate::{State, replicas, routing};

/// The loop looks this often even when nobody nudged it.
const ROUND_INTERVAL: Duration = Duration::from_secs(5);

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
}

pub(crate) async fn run(state: Arc<State>) {
    loop {
        match state.db.unfinished_clusters(ROUND_SIZE).await {
            Ok(clusters) => {
                stream::iter(clusters)
                    .for_each_concurrent(CONCURRENCY, |cluster| {
                        let state = state.clone();
                        async move {
                            if let Err(error) = drive(&state, &cluster).await {
                                tracing::warn!(tenant = %cluster.id, error = &error as &dyn std::error::Error, "cluster not where it should be yet");
                            }
                        }
                    })
                    .await;
            }
            Err(error) => tracing::error!(
                error = &error as &dyn std::error::Error,
                "cannot look for unfinished clusters"
            ),
        }
        let _ = tokio::time::timeout(ROUND_INTERVAL, state.nudge.notified()).await;
    }
}

/// One step: asks the cells for what the row says and moves the row on. May be repeated at will.
pub(crate) async fn drive(state: &State, cluster: &Cluster) -> Result<(), DriveError> {
    match cluster.state {
        ClusterState::Ready => {}
        ClusterState::Creating => {
            let assignment = Assignment {
                cluster_id: cluster.id.to_string(),
                name: cluster.name.to_string(),
                organization: cluster.organization.to_string(),
                kubernetes_version: cluster.kubernetes_version.clone(),
                server_name: cluster.server_name.clone(),
                gateway_addresses: state.config.gateway_addresses.iter().map(ToString::to_string).collect(),
                ..Assignment::default()
            };
            replicas::assign(state, cluster, assignment, true).await?;
            // Not ready any more if somebody deleted it meanwhile; the next round removes it then.
            state.db.move_cluster(cluster.id, ClusterState::Creating, ClusterState::Ready).await?;
        }
        ClusterState::Deleting => {
            replicas::remove(state, cluster).await?;
            state.db.delete_cluster(cluster.id).await?;
        }
    }
    routing::publish(state).await?;
    Ok(())
}
