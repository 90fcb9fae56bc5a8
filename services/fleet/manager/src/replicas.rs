//! Calls about a cluster, to all cells that have a replica of it or to the one that can answer.
//!
//! Not here: which cells those are (`db`), and what is asked of them when (`driver`, `http`).

use base_ids::CellId;
use fleet_model::Cluster;
use fleet_rpc::cell_client::CellClient;
use fleet_rpc::{AssignClusterRequest, Assignment, RemoveClusterRequest, Replica};
use futures::future::join_all;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::State;
use crate::db::CellRow;
use crate::lifecycle::driver::DriveError;

/// The cluster's cells, in the order of replica numbers.
pub(crate) async fn cells(state: &State, cluster: &Cluster) -> Result<Vec<CellRow>, DriveError> {
    let known = state.db.cells().await?;
    let row = |id: &CellId| known.iter().find(|cell| cell.id == *id).cloned().ok_or(DriveError::NoCell);
    let cells: Vec<CellRow> = cluster.cells.iter().map(row).collect::<Result<_, _>>()?;
    if cells.is_empty() { Err(DriveError::NoCell) } else { Ok(cells) }
}

/// Sends `assignment` to all cells of the cluster at once, with the replicas filled in. All of them have it
/// when it returns `Ok`.
pub(crate) async fn assign(
    state: &State,
    cluster: &Cluster,
    mut assignment: Assignment,
    founding: bool,
) -> Result<(), DriveError> {
    let cells = cells(state, cluster).await?;
    assignment.founding = founding;
    assignment.replicas = cells
        .iter()
        .map(|cell| Replica { cell_id: cell.id.to_string(), cell_address: cell.rpc_address.to_string() })
        .collect();
    all(state, &cells, |mut client| {
        let request = AssignClusterRequest { assignment: Some(assignment.clone()) };
        async move { client.assign_cluster(request).await.map(drop) }
    })
    .await
}

/// Removes the cluster from all its cells; they have nothing of it when it returns `Ok`.
pub(crate) async fn remove(state: &State, cluster: &Cluster) -> Result<(), DriveError> {
    let cells = cells(state, cluster).await?;
    all(state, &cells, |mut client| {
        let request = RemoveClusterRequest { cluster_id: cluster.id.to_string() };
        async move { client.remove_cluster(request).await.map(drop) }
    })
    .await
}

/// Asks one cell of the cluster, the leader first; another where that one is away or not the one to ask.
pub(crate) async fn ask<T, F>(
    state: &State,
    cluster: &Cluster,
    call: impl Fn(CellClient<Channel>) -> F,
) -> Result<T, DriveError>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let cells = cells(state, cluster).await?;
    let order = state.observed.by_preference(cluster.id, &cluster.cells);
    let mut failure = DriveError::NoCell;
    for id in order {
        let Some(cell) = cells.iter().find(|cell| cell.id == id) else { continue };
        match call(state.cells.client(cell)?).await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) => {
                let elsewhere = matches!(
                    status.code(),
                    Code::Unavailable
                        | Code::NotFound
                        | Code::FailedPrecondition
                        | Code::DeadlineExceeded
                        // That replica's files; the others are whole.
                        | Code::DataLoss
                );
                failure = DriveError::Cell(status);
                if !elsewhere {
                    break;
                }
            }
        }
    }
    Err(failure)
}

async fn all<F>(
    state: &State,
    cells: &[CellRow],
    call: impl Fn(CellClient<Channel>) -> F,
) -> Result<(), DriveError>
where
    F: Future<Output = Result<(), Status>>,
{
    let clients: Vec<CellClient<Channel>> =
        cells.iter().map(|cell| state.cells.client(cell)).collect::<Result<_, _>>()?;
    // Every one of them is told, whatever the others answer.
    let answers = join_all(clients.into_iter().map(call)).await;
    answers.into_iter().collect::<Result<(), Status>>().map_err(DriveError::Cell)
}
