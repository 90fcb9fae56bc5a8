//! Which cells answer, and which of them lead which clusters: soft knowledge, made anew by every manager.
//!
//! Every cell is asked once a second. What changes goes into the routing table, so that gateways send clients
//! to the leader first, and decides where new clusters may go. Nothing depends on it being right: any replica
//! serves any request, and gateways find out by themselves that a cell is gone.
//!
//! Not here: what cells say of pools and machines.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base_ids::{CellId, TenantId};
use fleet_rpc::HealthRequest;
use futures::future::join_all;
use parking_lot::RwLock;

use crate::db::CellRow;
use crate::{State, routing};

const ROUND: Duration = Duration::from_secs(1);
/// A cell that takes longer is away, as far as new clusters are concerned.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(crate) struct Observed(RwLock<Fleet>);

#[derive(Debug, Default, PartialEq)]
struct Fleet {
    cells: HashMap<CellId, bool>,
    /// With the term, since an old leader may not have heard of its end.
    leaders: HashMap<TenantId, (u64, CellId)>,
}

impl Observed {
    /// One that was never asked is given the benefit of the doubt.
    pub(crate) fn is_reachable(&self, cell: CellId) -> bool {
        self.0.read().cells.get(&cell).copied().unwrap_or(true)
    }

    pub(crate) fn leader(&self, cluster: TenantId) -> Option<CellId> {
        self.0.read().leaders.get(&cluster).map(|(_, cell)| *cell)
    }

    /// `cells` in the order in which one should try them: the leader, those that answer, the others.
    pub(crate) fn by_preference(&self, cluster: TenantId, cells: &[CellId]) -> Vec<CellId> {
        let leader = self.leader(cluster);
        let mut cells = cells.to_vec();
        cells.sort_by_key(|cell| (!self.is_reachable(*cell), Some(*cell) != leader));
        cells
    }

    /// Says whether anything is different now.
    fn replace(&self, fleet: Fleet) -> bool {
        let mut known = self.0.write();
        let changed = *known != fleet;
        *known = fleet;
        changed
    }
}

pub(crate) async fn run(state: Arc<State>) {
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        look(&state).await;
    }
}

/// Asks every cell once. Whoever would say no for want of a cell looks first: what is known may be a second
/// old, and a cell that was started again answers by now.
pub(crate) async fn look(state: &State) {
    let cells = match state.db.cells().await {
        Ok(cells) => cells,
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot look for cells");
            return;
        }
    };
    let answers = join_all(cells.iter().map(|cell| ask(state, cell))).await;
    let mut fleet = Fleet::default();
    for (cell, leads) in cells.iter().zip(answers) {
        fleet.cells.insert(cell.id, leads.is_some());
        for (cluster, term) in leads.into_iter().flatten() {
            let newest = fleet.leaders.entry(cluster).or_insert((term, cell.id));
            if newest.0 < term {
                *newest = (term, cell.id);
            }
        }
    }
    if state.observed.replace(fleet)
        && let Err(error) = routing::publish(state).await
    {
        tracing::warn!(error = &error as &dyn std::error::Error, "routes not published");
    }
}

/// The clusters that a cell leads; `None` when it does not answer.
async fn ask(state: &State, cell: &CellRow) -> Option<Vec<(TenantId, u64)>> {
    let mut client = state.cells.client(cell).ok()?;
    let answer = tokio::time::timeout(PATIENCE, client.health(HealthRequest {})).await.ok()?;
    match answer {
        Ok(answer) => {
            let leads = answer.into_inner().leads;
            Some(leads.iter().filter_map(|led| Some((led.cluster_id.parse().ok()?, led.term))).collect())
        }
        Err(status) => {
            tracing::debug!(cell = %cell.name, %status, "no answer");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_comes_first_and_the_dead_last() {
        let cells: Vec<CellId> = (0..3).map(|_| CellId::generate()).collect();
        let (led, other) = (TenantId::generate(), TenantId::generate());
        let observed = Observed::default();
        assert_eq!(observed.by_preference(led, &cells), cells, "nothing known: replica numbers decide");
        let fleet = |dead: Option<usize>, leader: usize| Fleet {
            cells: cells.iter().enumerate().map(|(n, cell)| (*cell, Some(n) != dead)).collect(),
            leaders: HashMap::from([(led, (7, cells[leader]))]),
        };
        assert!(observed.replace(fleet(None, 2)));
        assert!(!observed.replace(fleet(None, 2)), "the same again");
        assert_eq!(observed.by_preference(led, &cells), [cells[2], cells[0], cells[1]]);
        assert_eq!(observed.by_preference(other, &cells), cells);
        assert!(observed.replace(fleet(Some(0), 1)));
        assert_eq!(observed.by_preference(led, &cells), [cells[1], cells[2], cells[0]]);
        assert_eq!(observed.by_preference(other, &cells), [cells[1], cells[2], cells[0]]);
    }
}
