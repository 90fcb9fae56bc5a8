//! What is to be done, and how things stand: pure functions of rows.
//!
//! Not here: doing it.

use base_ids::{NodePoolId, OperationId, OrgId};
use fleet_model::{
    Cluster, ClusterState, Machine, MachineState, NodePoolState, OperationKind, OperationState,
    ReceiptResource,
};

/// A cluster as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClusterRow {
    pub(crate) cluster: Cluster,
    pub(crate) organization_id: OrgId,
    pub(crate) generation: i64,
    pub(crate) assigned_generation: i64,
    /// While deleting, once nothing is left outside its store: all there ever was.
    pub(crate) drained: Option<Vec<ReceiptResource>>,
}

/// What comes next for a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Tell its cells what the row says.
    Assign,
    /// Remove what it has at cloud providers.
    Drain,
    /// Remove its store, then write the receipt.
    Remove,
}

pub(crate) fn next(row: &ClusterRow) -> Step {
    match (row.cluster.state, &row.drained) {
        (ClusterState::Creating, _) => Step::Assign,
        (ClusterState::Ready, _) if row.assigned_generation < row.generation => Step::Assign,
        (ClusterState::Ready, _) => Step::Nothing,
        (ClusterState::Deleting, None) => Step::Drain,
        (ClusterState::Deleting, Some(_)) => Step::Remove,
    }
}

/// What decides about a pool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pool {
    pub(crate) size: u32,
    pub(crate) deleting: bool,
    /// It once had as many machines as wanted.
    pub(crate) settled: bool,
    pub(crate) machines: Vec<Machine>,
    pub(crate) message: String,
    pub(crate) refused: bool,
}

impl Pool {
    pub(crate) fn ready(&self) -> u32 {
        count(&self.machines, MachineState::Joined)
    }

    /// As many machines as wanted, all of them Ready nodes, and no other.
    pub(crate) fn is_settled(&self) -> bool {
        !self.deleting && self.ready() == self.size && self.machines.len() == self.size as usize
    }

    pub(crate) fn state(&self) -> NodePoolState {
        if self.deleting {
            return NodePoolState::Deleting;
        }
        if self.is_settled() {
            return NodePoolState::Ready;
        }
        if self.refused || count(&self.machines, MachineState::Failed) > 0 {
            return NodePoolState::Failed;
        }
        if self.settled { NodePoolState::Resizing } else { NodePoolState::Provisioning }
    }

    /// Why it is not as wanted, in the words of whoever knows best.
    pub(crate) fn why(&self) -> Option<String> {
        // One that failed says more than one that only takes its time.
        let telling = [MachineState::Failed, MachineState::Running, MachineState::Deleting];
        let of_machine = telling.into_iter().find_map(|state| {
            let machine = self.machines.iter().find(|one| one.state == state && one.message.is_some())?;
            Some(format!("machine {}: {}", machine.name, machine.message.as_deref()?))
        });
        let own = (!self.message.is_empty()).then(|| self.message.clone());
        own.or(of_machine)
    }
}

fn count(machines: &[Machine], state: MachineState) -> u32 {
    let found = machines.iter().filter(|machine| machine.state == state).count();
    u32::try_from(found).unwrap_or(u32::MAX)
}

/// A running operation as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) id: OperationId,
    pub(crate) kind: OperationKind,
    pub(crate) node_pool: Option<NodePoolId>,
    pub(crate) progress: u8,
    pub(crate) message: String,
}

/// How far an operation is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) state: OperationState,
    pub(crate) percent: u8,
    pub(crate) message: String,
}

impl Progress {
    pub(crate) fn running(percent: u8, message: impl Into<String>) -> Progress {
        Progress { state: OperationState::Running, percent: percent.min(99), message: message.into() }
    }
    pub(crate) fn done(message: impl Into<String>) -> Progress {
        Progress { state: OperationState::Succeeded, percent: 100, message: message.into() }
    }
}

/// How far an operation on a pool is; `pool` is `None` when it is gone.
pub(crate) fn pool_progress(kind: OperationKind, pool: Option<&Pool>) -> Progress {
    let Some(pool) = pool else {
        return match kind {
            OperationKind::NodePoolDelete => Progress::done("deleted"),
            _ => Progress {
                state: OperationState::Cancelled,
                percent: 0,
                message: "the node pool is gone".to_owned(),
            },
        };
    };
    let because = pool.why().map(|why| format!("; {why}")).unwrap_or_default();
    if kind == OperationKind::NodePoolDelete {
        let left = pool.machines.len();
        return Progress::running(
            if left == 0 { 90 } else { 10 },
            format!("{} left{because}", machines(left)),
        );
    }
    if pool.is_settled() {
        return Progress::done(format!("{} joined", machines(pool.size as usize)));
    }
    let (have, ready) = (pool.machines.len(), pool.ready());
    let percent =
        |done: u32, of: u32| u8::try_from(u64::from(done) * 100 / u64::from(of.max(1))).unwrap_or(99);
    let surplus = have.saturating_sub(pool.size as usize);
    let mut progress = if surplus > 0 && ready >= pool.size {
        let message = format!("{} to remove{because}", machines(surplus));
        Progress::running(percent(pool.size, u32::try_from(have).unwrap_or(u32::MAX)), message)
    } else {
        Progress::running(
            percent(ready, pool.size),
            format!("{ready} of {} joined{because}", machines(pool.size as usize)),
        )
    };
    if pool.refused {
        progress.state = OperationState::Failed;
    }
    progress
}

fn machines(count: usize) -> String {
    if count == 1 { "1 machine".to_owned() } else { format!("{count} machines") }
}

/// What cancelling an operation means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancel {
    /// Delete what it was making.
    DeleteCluster,
    DeletePool,
    /// Go back to the size before.
    ResizeBack,
    /// It can't be; why.
    Refuse(&'static str),
}

pub(crate) fn cancel(kind: OperationKind, state: OperationState) -> Cancel {
    if state != OperationState::Running {
        return Cancel::Refuse("the operation has ended");
    }
    match kind {
        OperationKind::ClusterCreate => Cancel::DeleteCluster,
        OperationKind::NodePoolCreate => Cancel::DeletePool,
        OperationKind::NodePoolResize => Cancel::ResizeBack,
        OperationKind::ClusterDelete | OperationKind::NodePoolDelete => {
            Cancel::Refuse("a deletion cannot be taken back")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: ClusterState, generation: i64, assigned: i64, drained: bool) -> ClusterRow {
        let id = base_ids::TenantId::generate();
        ClusterRow {
            cluster: Cluster {
                id,
                organization: "acme".parse().unwrap(),
                name: "demo".parse().unwrap(),
                state,
                kubernetes_version: "v1.36.0".to_owned(),
                replicas: 1,
                cells: Vec::new(),
                provider: String::new(),
                labels: Default::default(),
                server_name: fleet_model::server_name(&id),
                created_at: "2026-12-01T00:00:00Z".parse().unwrap(),
                operation: None,
            },
            organization_id: OrgId::generate(),
            generation,
            assigned_generation: assigned,
            drained: drained.then(Vec::new),
        }
    }

    #[test]
    fn a_cluster_goes_one_way_through_its_life() {
        use ClusterState::{Creating, Deleting, Ready};
        for (row, wanted) in [
            (row(Creating, 1, 0, false), Step::Assign),
            (row(Ready, 1, 1, false), Step::Nothing),
            (row(Ready, 2, 1, false), Step::Assign),
            // Its cell may have it even if nobody wrote down that it does.
            (row(Deleting, 2, 0, false), Step::Drain),
            (row(Deleting, 2, 1, false), Step::Drain),
            (row(Deleting, 2, 1, true), Step::Remove),
        ] {
            assert_eq!(next(&row), wanted, "{row:?}");
        }
    }

    /// `j` joined, `c` creating, `d` deleting, `f` failed.
    fn pool(size: u32, machines: &str) -> Pool {
        let machine = |letter| Machine {
            id: String::new(),
            name: "m".to_owned(),
            state: match letter {
                'j' => MachineState::Joined,
                'd' => MachineState::Deleting,
                'f' => MachineState::Failed,
                _ => MachineState::Creating,
            },
            address: None,
            message: (letter == 'f').then(|| "no quota".to_owned()),
        };
        Pool {
            size,
            deleting: false,
            settled: false,
            machines: machines.chars().map(machine).collect(),
            message: String::new(),
            refused: false,
        }
    }

    #[test]
    fn a_pool_is_ready_when_it_is_exactly_what_was_asked_for() {
        use NodePoolState::{Deleting, Failed, Provisioning, Ready, Resizing};
        let settled = |pool: Pool| Pool { settled: true, ..pool };
        for (pool, wanted) in [
            (pool(2, ""), Provisioning),
            (pool(2, "jc"), Provisioning),
            (pool(2, "jj"), Ready),
            (pool(0, ""), Ready),
            (pool(1, "jj"), Provisioning),
            (settled(pool(1, "jd")), Resizing),
            (settled(pool(3, "jj")), Resizing),
            (pool(2, "jf"), Failed),
            (Pool { refused: true, ..pool(2, "") }, Failed),
            (Pool { deleting: true, ..pool(2, "jj") }, Deleting),
        ] {
            assert_eq!(pool.state(), wanted, "{pool:?}");
        }
    }

    #[test]
    fn progress_says_what_is_missing() {
        use OperationKind::{NodePoolCreate, NodePoolDelete, NodePoolResize};
        let stuck = |mut pool: Pool| {
            pool.machines[1].message = Some("pod a/b stays: the budget c".to_owned());
            pool
        };
        let deleting = |pool: Pool| Pool { deleting: true, ..pool };
        for (kind, pool, wanted) in [
            (NodePoolCreate, Some(pool(2, "")), "running 0% 0 of 2 machines joined"),
            (NodePoolCreate, Some(pool(2, "jc")), "running 50% 1 of 2 machines joined"),
            (NodePoolCreate, Some(pool(2, "jf")), "running 50% 1 of 2 machines joined; machine m: no quota"),
            (NodePoolCreate, Some(pool(2, "jj")), "succeeded 100% 2 machines joined"),
            (NodePoolCreate, Some(pool(0, "")), "succeeded 100% 0 machines joined"),
            (
                NodePoolCreate,
                Some(Pool { refused: true, message: "no such type".to_owned(), ..pool(1, "") }),
                "failed 0% 0 of 1 machine joined; no such type",
            ),
            (NodePoolResize, Some(pool(1, "jd")), "running 50% 1 machine to remove"),
            (
                NodePoolResize,
                Some(stuck(pool(1, "jd"))),
                "running 50% 1 machine to remove; machine m: pod a/b stays: the budget c",
            ),
            (NodePoolResize, Some(pool(0, "d")), "running 0% 1 machine to remove"),
            (NodePoolResize, None, "cancelled 0% the node pool is gone"),
            (NodePoolDelete, Some(deleting(pool(2, "dd"))), "running 10% 2 machines left"),
            (NodePoolDelete, None, "succeeded 100% deleted"),
        ] {
            let progress = pool_progress(kind, pool.as_ref());
            let said = format!("{} {}% {}", progress.state.as_str(), progress.percent, progress.message);
            assert_eq!(said, wanted, "{kind:?} {pool:?}");
        }
    }

    #[test]
    fn what_can_be_taken_back_is() {
        use OperationKind::*;
        use OperationState::{Running, Succeeded};
        for (kind, state, wanted) in [
            (ClusterCreate, Running, Some(Cancel::DeleteCluster)),
            (NodePoolCreate, Running, Some(Cancel::DeletePool)),
            (NodePoolResize, Running, Some(Cancel::ResizeBack)),
            (ClusterDelete, Running, None),
            (NodePoolDelete, Running, None),
            (ClusterCreate, Succeeded, None),
        ] {
            let found = Some(cancel(kind, state)).filter(|cancel| !matches!(cancel, Cancel::Refuse(_)));
            assert_eq!(found, wanted, "{kind:?} {state:?}");
        }
    }
}
