//! What has to happen to a cluster's machines. Pure.
//!
//! [`plan`] looks at all pools at once and decides which machines there are to be; [`next`] looks at one
//! machine and says what its next step is.

use std::collections::BTreeMap;
use std::time::Duration;

use base_clock::Timestamp;
use base_ids::NodePoolId;
use cloud_interface::{ClientToken, Machine, MachineState};

use crate::ledger::{Entry, Phase, What};
use crate::model::{MachineStatus, NodeView, Pool, PoolStatus, Step};

/// Machines of one pool that are begun in one round: a pool of a thousand comes in portions, so that a
/// mistake or a quota shows after a few.
const BEGUN_AT_ONCE: usize = 10;

/// A machine that is no Ready node by then is replaced. Clouds boot within minutes; ten is generous.
pub(crate) const JOIN_PATIENCE: Duration = Duration::from_secs(600);

/// From then on it is said that a machine runs and is no Ready node.
const SLOW_TO_JOIN: Duration = Duration::from_secs(60);

/// A list that is younger than a machine by less than this may not have it yet.
const LIST_GRACE: Duration = Duration::from_secs(10);

/// After this long, a call whose outcome nobody knows has either shown or never happened: the interface's
/// own deadline is half of it.
pub(crate) const CALL_OVER: Duration = Duration::from_secs(60);

/// Pods get this long to leave a node that goes.
pub(crate) const DRAIN_PATIENCE: Duration = Duration::from_secs(120);

/// Tags by which a machine is known for ours if the ledger lost it.
pub(crate) const TAG_CLUSTER: &str = "roadstead-cluster";
pub(crate) const TAG_POOL: &str = "roadstead-pool";

/// Labels a pool's nodes carry besides the pool's own.
pub const LABEL_POOL: &str = "roadstead.dev/node-pool";
const LABEL_ZONE: &str = "topology.kubernetes.io/zone";
const LABEL_REGION: &str = "topology.kubernetes.io/region";
const LABEL_TYPE: &str = "node.kubernetes.io/instance-type";

/// What one provider has of the cluster, when it was last asked.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    pub at: Timestamp,
    /// Of its machines' provider ids. Two providers may share one: two regions of a cloud do.
    pub scheme: String,
    pub machines: Vec<Machine>,
}

/// Everything the decisions are made from.
pub(crate) struct Seen<'a> {
    pub pools: &'a [Pool],
    pub entries: &'a BTreeMap<ClientToken, Entry>,
    /// By provider; absent while a provider was never reached.
    pub listings: &'a BTreeMap<String, Listing>,
    pub nodes: &'a BTreeMap<String, NodeView>,
    /// Pools that may not begin machines yet.
    pub held: &'a dyn Fn(NodePoolId) -> bool,
    /// Name of the provider that each pool's machines come from; `None` when the cell has no such one.
    pub provider_of: &'a dyn Fn(&Pool) -> Option<String>,
    pub draining: bool,
    pub now: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Put a new machine of this pool on the books.
    Begin { pool: NodePoolId },
    /// It goes; `failed` when it is to be replaced because of what it is.
    Leave { token: ClientToken, failed: Option<String> },
    /// It is listed and not on the books: a pool's, or to be deleted.
    Adopt { machine: Box<Machine>, provider: String, keep: Option<NodePoolId> },
    /// A Node whose machine is gone, as a cloud controller manager removes it.
    DeleteNode { name: String },
}

impl Seen<'_> {
    fn pool(&self, id: NodePoolId) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.id == id && !pool.deleting && !self.draining)
    }

    /// The provider's word on a machine.
    fn machine(&self, entry: &Entry) -> Option<&Machine> {
        let listing = self.listings.get(&entry.provider)?;
        listing.machines.iter().find(|one| one.client_token == entry.token)
    }

    /// The provider certainly does not have it (any more).
    fn is_absent(&self, entry: &Entry) -> bool {
        let Some(listing) = self.listings.get(&entry.provider) else { return false };
        let settled = match &entry.phase {
            Phase::Intended => return false,
            Phase::Made { at, .. } => *at + LIST_GRACE,
            Phase::Deleting { id: Some(_), since } => *since,
            Phase::Deleting { id: None, since } => *since + CALL_OVER,
        };
        listing.at >= settled && self.machine(entry).is_none()
    }

    fn is_joined(&self, entry: &Entry) -> bool {
        self.nodes.get(entry.name()).is_some_and(|node| node.ready)
    }

    /// Why a machine that was made is no good.
    fn fault(&self, entry: &Entry) -> Option<String> {
        let Phase::Made { at, .. } = &entry.phase else { return None };
        if self.is_absent(entry) {
            return Some("the provider does not have it any more".to_owned());
        }
        let machine = self.machine(entry)?;
        if machine.state == MachineState::Failed {
            return Some(format!("it failed: {}", machine.message));
        }
        let unknown = !self.nodes.contains_key(entry.name());
        if unknown && *at + JOIN_PATIENCE < self.now {
            let minutes = JOIN_PATIENCE.as_secs() / 60;
            return Some(match machine.message.as_str() {
                "" => format!("it did not join within {minutes} min"),
                why => format!("it did not join within {minutes} min: {why}"),
            });
        }
        None
    }
}

/// Which machines there are to be.
pub(crate) fn plan(seen: &Seen<'_>) -> Vec<Action> {
    let mut actions = Vec::new();
    let machines = |pool: NodePoolId| {
        seen.entries
            .values()
            .filter(move |entry| matches!(&entry.what, What::Machine { pool: of, .. } if *of == pool))
            .filter(|entry| !entry.is_deleting())
    };
    for pool in seen.pools {
        if seen.pool(pool.id).is_none() {
            continue;
        }
        let mut live: Vec<&Entry> = Vec::new();
        for entry in machines(pool.id) {
            match seen.fault(entry) {
                Some(why) => actions.push(Action::Leave { token: entry.token.clone(), failed: Some(why) }),
                None => live.push(entry),
            }
        }
        let size = usize::try_from(pool.size).unwrap_or(usize::MAX);
        if live.len() > size {
            // Those that are least missed first: not asked for yet, not joined, newest.
            live.sort_by_key(|entry| {
                let rank = match entry.phase {
                    Phase::Intended => 0,
                    _ if !seen.is_joined(entry) => 1,
                    _ => 2,
                };
                (rank, std::cmp::Reverse(entry.created_at))
            });
            for entry in &live[..live.len() - size] {
                actions.push(Action::Leave { token: entry.token.clone(), failed: None });
            }
        } else if (seen.provider_of)(pool).is_some() && !(seen.held)(pool.id) {
            let under_way = live.iter().filter(|entry| matches!(entry.phase, Phase::Intended)).count();
            let begin = (size - live.len()).min(BEGUN_AT_ONCE.saturating_sub(under_way));
            actions.extend((0..begin).map(|_| Action::Begin { pool: pool.id }));
        }
    }
    for entry in seen.entries.values().filter(|entry| !entry.is_deleting()) {
        if let What::Machine { pool, .. } = entry.what
            && seen.pool(pool).is_none()
        {
            actions.push(Action::Leave { token: entry.token.clone(), failed: None });
        }
    }
    for (provider, listing) in seen.listings {
        for machine in &listing.machines {
            if seen.entries.contains_key(&machine.client_token) || machine.state == MachineState::Deleting {
                continue;
            }
            let of = machine.tags.get(TAG_POOL).and_then(|id| id.parse().ok());
            let keep = of.filter(|id| seen.pool(*id).is_some());
            let machine = Box::new(machine.clone());
            actions.push(Action::Adopt { machine, provider: provider.clone(), keep });
        }
        let scheme = format!("{}://", listing.scheme);
        let of_scheme = || seen.listings.values().filter(|one| one.scheme == listing.scheme);
        for node in seen.nodes.values().filter(|node| !node.ready && !node.deleting) {
            let Some(id) = node.provider_id.as_deref().filter(|id| id.starts_with(&scheme)) else { continue };
            let known = of_scheme().any(|one| one.machines.iter().any(|machine| machine.provider_id == id));
            let settled = of_scheme().all(|one| one.at >= node.created + LIST_GRACE);
            let delete = Action::DeleteNode { name: node.name.clone() };
            let ours = seen.entries.values().any(|entry| entry.name() == node.name);
            if !known && !ours && settled && !actions.contains(&delete) {
                actions.push(delete);
            }
        }
    }
    actions
}

/// What comes next for one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// Ask the provider for it, whether or not somebody did before.
    Create,
    /// Its Node is to say where it comes from, and carry what its pool's nodes carry.
    Mark {
        change: serde_json::Value,
        uid: String,
    },
    /// Nothing to do until something changes or the provider was asked again.
    Wait,
    /// Nothing to do.
    Rest,
    Cordon,
    /// Its pods are to leave.
    Drain,
    DeleteNode,
    /// Tell the provider.
    Delete {
        id: String,
    },
    /// Nothing is left of it.
    Close,
}

/// How far a machine that goes has come under this leadership.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Farewell {
    #[default]
    Begun,
    /// No pod is left that would have to leave.
    Drained,
    /// Its Node was deleted. A kubelet that runs on may make it again, which must not hold the end up.
    NodeDeleted,
}

pub(crate) fn next(seen: &Seen<'_>, entry: &Entry, farewell: Farewell) -> Next {
    let node = seen.nodes.get(entry.name());
    match &entry.phase {
        Phase::Intended => Next::Create,
        Phase::Made { .. } => {
            let What::Machine { pool, .. } = &entry.what else { return Next::Rest };
            let (Some(pool), Some(node)) = (seen.pool(*pool), node) else { return Next::Wait };
            if let Some(machine) = seen.machine(entry)
                && let Some(change) = mark(pool, machine, node)
            {
                return Next::Mark { change, uid: node.uid.clone() };
            }
            if node.ready { Next::Rest } else { Next::Wait }
        }
        Phase::Deleting { id, since } => {
            if seen.is_absent(entry) {
                // It may have come back to life as a Node while it was going.
                return match node {
                    Some(_) => Next::DeleteNode,
                    None => Next::Close,
                };
            }
            let machine = seen.machine(entry);
            let in_a_hurry = seen.draining || machine.is_none_or(|one| one.state == MachineState::Failed);
            if let Some(node) = node
                && !in_a_hurry
                && farewell < Farewell::Drained
                && seen.now < *since + DRAIN_PATIENCE
            {
                return if node.unschedulable { Next::Drain } else { Next::Cordon };
            }
            if node.is_some() && farewell < Farewell::NodeDeleted {
                return Next::DeleteNode;
            }
            match (id, machine) {
                (_, Some(machine)) if machine.state == MachineState::Deleting => Next::Wait,
                (_, Some(machine)) => Next::Delete { id: machine.id.clone() },
                (Some(_) | None, None) => Next::Wait,
            }
        }
    }
}

/// The merge patch that gives a Node its provider id, labels and taints; `None` when it has them.
fn mark(pool: &Pool, machine: &Machine, node: &NodeView) -> Option<serde_json::Value> {
    let mut labels = pool.labels.clone();
    labels.insert(LABEL_POOL.to_owned(), pool.name.clone());
    for (key, value) in
        [(LABEL_ZONE, &machine.zone), (LABEL_REGION, &machine.region), (LABEL_TYPE, &machine.machine_type)]
    {
        if !value.is_empty() {
            labels.insert(key.to_owned(), value.clone());
        }
    }
    labels.retain(|key, value| node.labels.get(key) != Some(value));
    // Only ever set: a person may have taken a taint away for a reason. So it comes with the provider id.
    let is_new = node.provider_id.is_none();
    if labels.is_empty() && !is_new {
        return None;
    }
    let mut change = serde_json::json!({"metadata": {"labels": labels}});
    if is_new {
        change["spec"] = serde_json::json!({"providerID": machine.provider_id});
        let missing: Vec<_> = pool
            .taints
            .iter()
            .filter(|taint| !node.taints.iter().any(|one| one.key == taint.key && one.effect == taint.effect))
            .collect();
        if !missing.is_empty() {
            let all: Vec<_> = node.taints.iter().chain(missing).collect();
            change["spec"]["taints"] = serde_json::json!(all);
        }
    }
    Some(change)
}

/// How a pool stands. `problem` is what the last attempt for it ran into.
pub(crate) fn status(seen: &Seen<'_>, pool: &Pool, problem: Option<&(String, bool)>) -> PoolStatus {
    let mut machines: Vec<MachineStatus> = Vec::new();
    for entry in seen.entries.values() {
        let What::Machine { pool: of, name, .. } = &entry.what else { continue };
        if *of != pool.id {
            continue;
        }
        let machine = seen.machine(entry);
        let step = match (&entry.phase, machine.map(|one| one.state)) {
            (Phase::Deleting { .. }, _) | (_, Some(MachineState::Deleting)) => Step::Deleting,
            (_, Some(MachineState::Failed)) => Step::Failed,
            (Phase::Made { .. }, _) if seen.is_joined(entry) => Step::Joined,
            (Phase::Made { .. }, Some(MachineState::Running)) => Step::Running,
            (Phase::Made { .. }, _) => Step::Creating,
            (Phase::Intended, _) => Step::Pending,
        };
        let mut message = machine.map(|one| one.message.clone()).unwrap_or_default();
        if let (Step::Running, "", Phase::Made { at, .. }) = (step, message.as_str(), &entry.phase)
            && *at + SLOW_TO_JOIN < seen.now
        {
            message = match seen.nodes.contains_key(name) {
                true => "it joined, and its node is not Ready".to_owned(),
                false => format!(
                    "it runs and has not joined; after {} min another one takes its place",
                    JOIN_PATIENCE.as_secs() / 60
                ),
            };
        }
        machines.push(MachineStatus {
            id: entry.id().unwrap_or_default().to_owned(),
            name: name.clone(),
            step,
            address: machine.and_then(|one| one.addresses.first().copied()),
            message: if step == Step::Joined { String::new() } else { message },
        });
    }
    machines.sort_by(|one, other| one.name.cmp(&other.name));
    let (message, refused) = problem.cloned().unwrap_or_default();
    PoolStatus { id: pool.id, machines, message, refused }
}

#[cfg(test)]
#[path = "pools_tests.rs"]
mod tests;
