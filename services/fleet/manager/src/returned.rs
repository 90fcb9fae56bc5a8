//! A cell that has come (back): what it holds is compared with what the rows say it should.
//!
//! What it has lost of what it was told it is told again; what it has lost of a cluster's data, and what it holds
//! without the rows knowing, is said and left alone.
//!
//! Not here: what a cell does with an order (`fleet-cell`).

use std::collections::HashMap;
use std::sync::Arc;

use base_ids::{CellId, Slug, TenantId};
use fleet_rpc::ReportRequest;
use futures::stream::{self, StreamExt};

use crate::db::DbError;
use crate::lifecycle::driver;
use crate::{ManagerError, State};

/// Clusters that are told again at once, and at the same time; the driver looks after any more.
const AT_ONCE: usize = 8;
const TOLD_NOW: usize = 200;

/// A cluster that one of its cells cannot serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unserved {
    pub cluster: TenantId,
    pub organization: Slug,
    pub name: Slug,
    /// The file, and what to do.
    pub why: String,
}

/// By cluster: empty when it is open there, else why it is not.
type Held = HashMap<TenantId, String>;

pub(crate) async fn take_stock(
    state: &Arc<State>,
    id: CellId,
    name: &Slug,
) -> Result<Vec<Unserved>, ManagerError> {
    let known = state.db.clusters_of_cell(id).await?;
    let Some(held) = ask(state, id).await? else { return Ok(Vec::new()) };
    let strangers = held.keys().filter(|id| !known.contains(id)).count();
    if strangers > 0 {
        tracing::error!(
            cell = %name,
            strangers,
            "the cell holds clusters that {} does not know; was the database lost or replaced?",
            state.config.database
        );
    }
    let lost: Vec<TenantId> = known.iter().filter(|id| !held.contains_key(id)).copied().collect();
    let held = if lost.is_empty() {
        held
    } else {
        tell_again(state, &lost).await?;
        let Some(held) = ask(state, id).await? else { return Ok(Vec::new()) };
        held
    };
    let mut unserved = Vec::new();
    for (id, why) in held.into_iter().filter(|(_, why)| !why.is_empty()) {
        let Some(row) = state.db.cluster_row(id).await? else { continue };
        let cluster = row.cluster;
        unserved.push(Unserved { cluster: id, organization: cluster.organization, name: cluster.name, why });
    }
    unserved.sort_by_key(|one| one.cluster);
    Ok(unserved)
}

/// `None` from a cell that does not answer, which is the driver's concern.
async fn ask(state: &State, id: CellId) -> Result<Option<Held>, ManagerError> {
    let Some(cell) = state.db.cell(id).await? else { return Ok(None) };
    let Ok(report) = state.cells.client(&cell)?.report(ReportRequest::default()).await else {
        return Ok(None);
    };
    let clusters = report.into_inner().clusters.into_iter();
    Ok(Some(clusters.filter_map(|one| Some((one.cluster_id.parse().ok()?, one.problem))).collect()))
}

/// Clusters that were never confirmed are left to the driver, which may have them made.
async fn tell_again(state: &Arc<State>, lost: &[TenantId]) -> Result<(), DbError> {
    for id in lost {
        state.db.assign_again(*id).await?;
    }
    stream::iter(lost.iter().take(TOLD_NOW).copied())
        .for_each_concurrent(AT_ONCE, |id| async move {
            if let Err(error) = driver::drive(state, id).await {
                tracing::warn!(tenant = %id, error = &error as &dyn std::error::Error, "cluster not where it should be yet");
            }
        })
        .await;
    Ok(())
}
