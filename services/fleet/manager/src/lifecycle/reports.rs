//! Brings what cells say about node pools into the rows, and moves operations on pools along.
//!
//! Cells are asked, never told to tell: a manager that was away has missed nothing. What they say is
//! believed only when it is about the assignment that the rows are at.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base_ids::{CellId, NodePoolId, TenantId};
use fleet_model::{FieldProblem, Machine, MachineState, MachineType};
use fleet_rpc::{ClusterReport, NodePoolReport, ProviderReport, ReportRequest};
use futures::future::join_all;
use parking_lot::RwLock;

use super::plan;
use crate::State;
use crate::db::{CellRow, DbError};

/// Clusters asked about in one call.
const CLUSTERS_PER_CALL: usize = 500;

/// Asks about no cluster: the answer then only says which providers there are.
const NO_CLUSTER: &str = "-";

/// Cloud providers as cells last described them.
#[derive(Debug, Default)]
pub(crate) struct Providers(RwLock<BTreeMap<CellId, Vec<ProviderReport>>>);

impl Providers {
    fn learn(&self, cell: CellId, found: Vec<ProviderReport>) {
        self.0.write().insert(cell, found);
    }

    /// Every machine type once, by provider.
    pub(crate) fn machine_types(&self) -> Vec<MachineType> {
        let mut types = BTreeMap::new();
        for provider in self.0.read().values().flatten() {
            for (nth, offered) in provider.machine_types.iter().enumerate() {
                types.entry((provider.name.clone(), offered.name.clone())).or_insert(MachineType {
                    name: offered.name.clone(),
                    provider: provider.name.clone(),
                    cpu_millis: u64::from(offered.cpu_millis),
                    memory_bytes: offered.memory_bytes,
                    default: nth == 0,
                });
            }
        }
        types.into_values().collect()
    }

    /// The provider of clusters on that cell; `None` when it has none, or none is known yet.
    pub(crate) fn default_of(&self, cell: CellId) -> Option<String> {
        Some(self.0.read().get(&cell)?.first()?.name.clone())
    }

    /// What is wrong with asking that cell for machines of this kind. Knows nothing of cells that have not
    /// reported: their controllers refuse later, with a message.
    pub(crate) fn check(
        &self,
        cell: CellId,
        provider: Option<&str>,
        machine_type: Option<&str>,
    ) -> Result<(), FieldProblem> {
        let known = self.0.read();
        let Some(known) = known.get(&cell) else { return Ok(()) };
        let names = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let found = match provider {
            Some(name) => known.iter().find(|one| one.name == name).ok_or_else(|| {
                let all = names(known.iter().map(|one| one.name.as_str()).collect());
                FieldProblem::new("/provider", format!("{name:?} is not there; there is: {all}"))
            })?,
            None => match known.first() {
                Some(first) => first,
                None => {
                    let why = "this fleet has no cloud provider that makes machines";
                    return Err(FieldProblem::new("/provider", why));
                }
            },
        };
        let types: Vec<&str> = found.machine_types.iter().map(|one| one.name.as_str()).collect();
        match machine_type {
            Some(wanted) if !types.is_empty() && !types.contains(&wanted) => {
                let offered = names(types);
                let why = format!("{wanted:?} is not offered by {}; it offers: {offered}", found.name);
                Err(FieldProblem::new("/machine_type", why))
            }
            _ => Ok(()),
        }
    }
}

/// Asked this often when nothing is under way, and while somebody waits for an operation.
const ROUND_INTERVAL: Duration = Duration::from_secs(5);
const BUSY_INTERVAL: Duration = Duration::from_millis(500);

/// A cell that takes longer is asked again in the next round; the others' pools do not wait for it.
const PATIENCE: Duration = Duration::from_secs(3);

/// A loop beside the driver's: a cell that is slow to take an order delays no report, and the other way.
pub(crate) async fn run(state: Arc<State>) {
    let mut changes = state.changes.subscribe();
    loop {
        changes.mark_unchanged();
        let busy = match collect(&state).await {
            Ok(busy) => busy,
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot take in reports");
                false
            }
        };
        if !busy {
            // Somebody may begin something meanwhile.
            let _ = tokio::time::timeout(ROUND_INTERVAL, changes.changed()).await;
        }
        tokio::time::sleep(BUSY_INTERVAL).await;
    }
}

/// One round over all cells; whether somebody waits for an operation.
async fn collect(state: &State) -> Result<bool, DbError> {
    let mut asked: HashMap<CellId, Vec<TenantId>> = HashMap::new();
    for (cluster, cell) in state.db.clusters_with_pools().await? {
        asked.entry(cell).or_default().push(cluster);
    }
    let cells = state.db.cells().await?;
    let rounds = cells.iter().map(|cell| {
        let clusters = asked.remove(&cell.id).unwrap_or_default();
        ask(state, cell, clusters)
    });
    for outcome in join_all(rounds).await {
        outcome?;
    }
    settle(state).await?;
    state.db.any_operation_runs().await
}

/// Asks one cell about all of its clusters that have pools.
async fn ask(state: &State, cell: &CellRow, clusters: Vec<TenantId>) -> Result<(), DbError> {
    let mut calls: Vec<Vec<String>> =
        clusters.chunks(CLUSTERS_PER_CALL).map(|ids| ids.iter().map(ToString::to_string).collect()).collect();
    if calls.is_empty() {
        calls.push(vec![NO_CLUSTER.to_owned()]);
    }
    for cluster_ids in calls {
        let Ok(mut client) = state.cells.client(cell) else { return Ok(()) };
        let answer = tokio::time::timeout(PATIENCE, client.report(ReportRequest { cluster_ids })).await;
        let answer = match answer {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(error)) => {
                tracing::debug!(cell = %cell.name, %error, "no report");
                return Ok(());
            }
            Err(_) => {
                tracing::debug!(cell = %cell.name, "no report within {PATIENCE:?}");
                return Ok(());
            }
        };
        state.providers.learn(cell.id, answer.providers);
        for report in answer.clusters {
            take_in(state, report).await?;
        }
    }
    Ok(())
}

/// Writes down what the leader says about a cluster's pools.
async fn take_in(state: &State, report: ClusterReport) -> Result<(), DbError> {
    let (Ok(id), Some(cloud)) = (report.cluster_id.parse::<TenantId>(), report.cloud) else { return Ok(()) };
    // The pools before the generation: a report that is as new as the second knows of every change in the
    // first. The other way round, a pool that was made and deleted in between would be taken for one of
    // which the leader says that nothing is left.
    let pools = state.db.pool_rows(id).await?;
    let Some(row) = state.db.cluster_row(id).await? else { return Ok(()) };
    if report.generation < row.generation {
        return Ok(());
    }
    let reports: HashMap<String, NodePoolReport> =
        cloud.node_pools.into_iter().map(|pool| (pool.id.clone(), pool)).collect();
    let mut forgotten = false;
    for pool in pools {
        let said = reports.get(&pool.id.to_string());
        let mut now = pool.pool.clone();
        if let Some(said) = said {
            now.machines = said.machines.iter().filter_map(machine).collect();
            now.message = said.message.clone();
            now.refused = said.refused;
        } else if now.deleting {
            now.machines.clear();
        }
        now.settled |= now.is_settled();
        // Nothing of it is left, says a leader that knows it is to go.
        if now.deleting && now.machines.is_empty() {
            forgotten |= state.db.forget_pool(pool.id, state.now()).await?;
        } else if now != pool.pool && state.db.report_pool(pool.id, &now).await? {
            state.changes.touch();
        }
    }
    if forgotten {
        state.changes.touch();
        // Its cell is told that the pool is no more.
        state.nudge.notify_one();
    }
    Ok(())
}

/// Moves every running operation on a pool to where its pool is.
async fn settle(state: &State) -> Result<(), DbError> {
    for (operation, cluster) in state.db.running_pool_operations().await? {
        let Some(id) = operation.node_pool else { continue };
        let pool: Option<plan::Pool> = state.db.pool_row(cluster, id).await?.map(|row| row.pool);
        let progress = plan::pool_progress(operation.kind, pool.as_ref());
        let same = progress.state == fleet_model::OperationState::Running
            && progress.percent == operation.progress
            && progress.message == operation.message;
        if !same && state.db.progress(operation.id, &progress, state.now()).await? {
            state.changes.touch();
        }
    }
    Ok(())
}

fn machine(said: &fleet_rpc::MachineReport) -> Option<Machine> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Some(Machine {
        id: said.id.clone(),
        name: said.name.clone(),
        state: MachineState::parse(&said.state)?,
        address: some(&said.address),
        message: some(&said.message),
    })
}

/// A pool as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PoolRow {
    pub(crate) id: NodePoolId,
    pub(crate) pool: plan::Pool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(name: &str, types: &[&str]) -> ProviderReport {
        let machine_types = types
            .iter()
            .map(|name| fleet_rpc::MachineType { name: (*name).to_owned(), ..Default::default() })
            .collect();
        ProviderReport { name: name.to_owned(), machine_types, ..ProviderReport::default() }
    }

    #[test]
    fn what_no_provider_has_is_refused_at_once() {
        let (with, without, silent) = (CellId::generate(), CellId::generate(), CellId::generate());
        let providers = Providers::default();
        providers.learn(with, vec![provider("local", &["small", "large"]), provider("aws", &[])]);
        providers.learn(without, Vec::new());
        for (cell, asked, machine_type, wanted) in [
            (with, None, None, "fine"),
            (with, Some("local"), Some("large"), "fine"),
            (with, Some("aws"), Some("m7g.large"), "fine"),
            (
                with,
                None,
                Some("huge"),
                "/machine_type: \"huge\" is not offered by local; it offers: small, large",
            ),
            (with, Some("gcp"), None, "/provider: \"gcp\" is not there; there is: local, aws"),
            (without, None, None, "/provider: this fleet has no cloud provider that makes machines"),
            (silent, Some("gcp"), None, "fine"),
        ] {
            let said = providers.check(cell, asked, machine_type);
            let said = said.map_or_else(|fault| fault.to_string(), |()| "fine".to_owned());
            assert_eq!(said, wanted);
        }
        let types = providers.machine_types();
        let names: Vec<_> = types.iter().map(|one| (one.name.as_str(), one.default)).collect();
        assert_eq!(names, [("large", false), ("small", true)]);
    }
}
