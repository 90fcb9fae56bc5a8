//! One group on this cell: its replica, and its Raft while there is something to do.
//!
//! An open Raft costs tasks and rings of some hundred KiB, so it is opened by the first write and closed
//! when nothing was written for a while; state, leadership and watches do not notice. A replica that is a
//! majority by itself needs no Raft to know that it leads and that what is durable is committed; one with
//! peers keeps its Raft open, looks after its leader ([`Member::tend`]), and tells who leads from what Raft
//! says.
//!
//! Clients' reads and writes, and what other replicas ask, are in `route`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base_ids::{CellId, TenantId};
use openraft::async_runtime::WatchReceiver;
use parking_lot::RwLock;
use store_mvcc::{Space, Term};
use tokio::sync::{Mutex, Semaphore, watch};

use crate::message::{Request, Response};
use crate::network::Network;
use crate::peers::{Beliefs, Reign, Step, View};
use crate::replica::Replica;
use crate::route::{ReadGate, Receiving};
use crate::storage::{self, LogStore, Machine};
use crate::transport::{Standing, Transport};
use crate::types::{ReplicaId, Types};
use crate::{HostError, WriteError};

/// When asking again makes sense after an answer that says nothing.
const RETRY_AFTER_MS: u64 = 1000;
/// Index of a group's first command: a membership and a leader's blank entry come before it.
pub(crate) const FIRST_COMMAND: u64 = 2;
/// How long a leader that stops waits for another to take over. The others notice its absence anyway.
const HANDOVER_PATIENCE: Duration = Duration::from_millis(500);
const PROBE_PATIENCE: Duration = Duration::from_secs(1);

pub(crate) type Raft = openraft::Raft<Types, Machine>;

/// How Raft is run, alone and among others.
pub(crate) struct RaftConfigs {
    /// A leader that was closed leads on when it is opened again: nobody else could have taken over.
    pub(crate) alone: Arc<openraft::Config>,
    /// It does not: followers may hold entries of its term that were not on its own disk yet.
    pub(crate) among_peers: Arc<openraft::Config>,
}

/// Groups whose Raft is open: what the host's rounds look at, so that those at rest cost them nothing. Counted,
/// since a member that closes may overlap with its successor.
#[derive(Default)]
pub(crate) struct Awake(parking_lot::Mutex<HashMap<TenantId, u32>>);

impl Awake {
    pub(crate) fn tenants(&self) -> Vec<TenantId> {
        self.0.lock().keys().copied().collect()
    }
    fn wakes(&self, tenant: TenantId) {
        *self.0.lock().entry(tenant).or_default() += 1;
    }
    fn rests(&self, tenant: TenantId) {
        let mut awake = self.0.lock();
        match awake.get_mut(&tenant) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(awake.remove(&tenant)),
        }
    }
}

/// What a host's members have in common.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) raft_configs: Arc<RaftConfigs>,
    pub(crate) transport: Option<Arc<dyn Transport>>,
    /// Bytes of commands in flight in the whole host, in units of [`WEIGHT_UNIT`].
    pub(crate) in_flight: Arc<Semaphore>,
    pub(crate) awake: Arc<Awake>,
}

pub(crate) struct Member {
    pub(crate) replica: Arc<Replica>,
    raft_configs: Arc<RaftConfigs>,
    awake: Arc<Awake>,
    pub(crate) transport: Option<Arc<dyn Transport>>,
    pub(crate) in_flight: Arc<Semaphore>,
    open: RwLock<Option<Arc<Open>>>,
    /// Held while Raft is being opened or closed.
    door: Mutex<()>,
    closed: AtomicBool,
    /// This replica has just made the group: all others are made having voted for it, so it leads at once.
    founder: AtomicBool,
    leadership: watch::Sender<Option<Term>>,
    pub(crate) beliefs: Arc<Beliefs>,
    pub(crate) reads: ReadGate,
    /// A snapshot that is arriving.
    pub(crate) receiving: Mutex<Option<Receiving>>,
}

/// Granularity of the limit on bytes in flight.
pub(crate) const WEIGHT_UNIT: usize = 1024;

/// Raft while it is open.
pub(crate) struct Open {
    pub(crate) raft: Raft,
    users: AtomicUsize,
    started: Instant,
    /// Milliseconds after `started`.
    used_at_ms: AtomicU64,
    pub(crate) writes: AtomicU64,
}

/// Keeps Raft from being closed under its user.
pub(crate) struct Use(pub(crate) Arc<Open>);

impl Use {
    fn new(open: &Arc<Open>) -> Use {
        open.users.fetch_add(1, Ordering::AcqRel);
        Use(open.clone())
    }
}
impl Drop for Use {
    fn drop(&mut self) {
        let now_ms = self.0.started.elapsed().as_millis() as u64;
        self.0.used_at_ms.store(now_ms, Ordering::Relaxed);
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Member {
    pub(crate) fn new(replica: Replica, common: Common, founder: bool) -> Result<Member, HostError> {
        let Common { raft_configs, transport, in_flight, awake } = common;
        let tenant = replica.tenant;
        let unreadable = |error: std::io::Error| HostError::Consensus { tenant, reason: error.to_string() };
        let vote = replica.vote().map_err(unreadable)?;
        let leads = vote.filter(|vote| {
            vote.committed && vote.leader_id.voted_for == replica.id && replica.is_sole_voter()
        });
        let (leadership, _) = watch::channel(leads.map(|vote| Term(vote.leader_id.term)));
        let salt = crc32fast::hash(&[tenant.as_uuid().as_bytes(), &replica.id.to_le_bytes()[..]].concat());
        Ok(Member {
            replica: Arc::new(replica),
            raft_configs,
            awake,
            transport,
            in_flight,
            open: RwLock::new(None),
            door: Mutex::new(()),
            closed: AtomicBool::new(false),
            founder: AtomicBool::new(founder),
            leadership,
            beliefs: Arc::new(Beliefs::new(salt)),
            reads: ReadGate::default(),
            receiving: Mutex::default(),
        })
    }

    pub(crate) fn tenant(&self) -> TenantId {
        self.replica.tenant
    }

    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.replica.space
    }

    pub(crate) fn leadership(&self) -> watch::Receiver<Option<Term>> {
        self.leadership.subscribe()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Writes a checkpoint now, if anything was applied since the last one.
    pub(crate) async fn checkpoint(&self) -> Result<(), WriteError> {
        let using = self.open().await?;
        let applied = self.replica.applied();
        if self.replica.saved_checkpoint().map(|saved| saved.applied) != applied {
            let saved = storage::save(&self.replica).await;
            saved.map_err(|error| unavailable(format!("the checkpoint cannot be written: {error}")))?;
        }
        let index = applied.map(|position| position.index);
        using.0.raft.trigger().snapshot().await.map_err(|fatal| unavailable(fatal.to_string()))?;
        if !self.replica.is_sole_voter() {
            // Some of the log is kept for replicas that lag a little.
            return Ok(());
        }
        let wait = using.0.raft.wait(Some(CHECKPOINT_TIMEOUT));
        let purged =
            wait.metrics(|metrics| metrics.purged.map(|id| id.index()) >= index, "checkpoint and purge");
        purged.await.map(drop).map_err(|error| unavailable(error.to_string()))
    }

    /// Raft, opened if it is not.
    pub(crate) async fn open(&self) -> Result<Use, WriteError> {
        if let Some(open) = &*self.open.read() {
            return Ok(Use::new(open));
        }
        let _door = self.door.lock().await;
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        // Somebody else may have been at the door before.
        if let Some(open) = &*self.open.read() {
            return Ok(Use::new(open));
        }
        let generation = self.replica.next_generation();
        let machine = Machine { replica: self.replica.clone(), generation };
        let store = LogStore { replica: self.replica.clone() };
        let network = Network {
            tenant: self.tenant(),
            transport: self.transport.clone(),
            beliefs: self.beliefs.clone(),
        };
        // Taken only once: after a second opening the group may have had other leaders.
        let leads_on = self.founder.swap(false, Ordering::AcqRel) || self.replica.is_sole_voter();
        let configs = &self.raft_configs;
        let config = if leads_on { configs.alone.clone() } else { configs.among_peers.clone() };
        let raft = Raft::new(self.replica.id, config, network, store, machine)
            .await
            .map_err(|fatal| unavailable(fatal.to_string()))?;
        if self.transport.is_some() {
            tokio::spawn(follow_leadership(
                raft.clone(),
                generation,
                self.replica.clone(),
                self.leadership.clone(),
            ));
        }
        let open = Arc::new(Open {
            raft,
            users: AtomicUsize::new(0),
            started: Instant::now(),
            used_at_ms: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        });
        let using = Use::new(&open);
        self.awake.wakes(self.tenant());
        *self.open.write() = Some(open);
        Ok(using)
    }

    /// Takes a Raft that has stopped out of use; the next write opens another.
    pub(crate) fn discard(&self, broken: &Arc<Open>) {
        let mut open = self.open.write();
        if open.as_ref().is_some_and(|open| Arc::ptr_eq(open, broken)) {
            *open = None;
            self.awake.rests(self.tenant());
        }
    }

    /// Closes Raft if it has not been used for `idle`, or has taken `writes` since it was opened.
    /// Says whether it is open still.
    pub(crate) async fn rest(&self, idle: Duration, writes: u64) -> bool {
        let _door = self.door.lock().await;
        let taken = {
            let mut slot = self.open.write();
            let Some(open) = &*slot else { return false };
            let since = open
                .started
                .elapsed()
                .saturating_sub(Duration::from_millis(open.used_at_ms.load(Ordering::Relaxed)));
            let tired = since >= idle || open.writes.load(Ordering::Relaxed) >= writes;
            // Only new users come through the slot, and the slot is ours.
            let unused = open.users.load(Ordering::Acquire) == 0;
            if !(tired && unused && self.replica.is_sole_voter()) {
                return true;
            }
            slot.take()
        };
        self.shut(taken).await;
        false
    }

    /// Looks after the leader of a group with peers, and after the log; called several times a second.
    pub(crate) fn tend(self: &Arc<Self>, now: Instant) {
        let using = match &*self.open.read() {
            Some(open) => Use::new(open),
            None => return,
        };
        if self.replica.checkpoint_is_due() {
            tokio::spawn(checkpoint_aside(self.replica.clone(), Use::new(&using.0)));
        }
        if self.replica.is_sole_voter() {
            return;
        }
        self.give_up_overdue(now);
        let view = self.view(&using.0.raft);
        match self.beliefs.step(view, now) {
            Step::Nothing => {}
            Step::Campaign => {
                let tenant = self.tenant();
                tracing::debug!(%tenant, me = view.me, leader = ?view.leader, "standing for election");
                tokio::spawn(async move {
                    if let Err(fatal) = using.0.raft.trigger().elect(true).await {
                        tracing::warn!(%tenant, %fatal, "cannot stand for election");
                    }
                });
            }
            Step::Probe => {
                let member = self.clone();
                tokio::spawn(async move {
                    if let Some((_, leader)) = view.leader {
                        let asked = member.ask(leader, Request::ReadIndex);
                        // What it says is noted by `ask`; a late answer is none.
                        let _ = tokio::time::timeout(PROBE_PATIENCE, asked).await;
                    }
                });
            }
        }
    }

    /// The group as it looks from here.
    pub(crate) fn view(&self, raft: &Raft) -> View {
        let (leader, may_stand) = {
            let metrics = raft.metrics();
            let metrics = metrics.borrow_watched();
            let leader = metrics.current_leader.map(|leader| (metrics.current_term, leader));
            (leader, metrics.last_log_index >= Some(FIRST_COMMAND))
        };
        let standing = leader.map_or(Standing::Down, |(_, leader)| self.standing(leader));
        View { me: self.replica.id, leader, standing, may_stand }
    }

    pub(crate) fn standing(&self, replica: ReplicaId) -> Standing {
        match (&self.transport, self.replica.seat(replica)) {
            (Some(transport), Some(cell)) => transport.standing(cell),
            _ => Standing::Down,
        }
    }

    /// Whether enough of the other replicas' cells are there to commit anything.
    pub(crate) fn has_quorum(&self) -> bool {
        let peers = self.replica.peers();
        let up = peers.iter().filter(|(peer, _)| matches!(self.standing(*peer), Standing::Up { .. })).count();
        (up + 1) * 2 > peers.len() + 1
    }

    /// Sends a request to another replica, and learns from the answer whether it leads.
    pub(crate) async fn ask(&self, replica: ReplicaId, request: Request) -> Result<Response, Unanswered> {
        let (Some(transport), Some(cell)) = (&self.transport, self.replica.seat(replica)) else {
            return Err(Unanswered::NotSent);
        };
        let reign = self.reign().filter(|(_, leader)| *leader == replica);
        let is_question = matches!(request, Request::ReadIndex);
        let answer = match transport.call(cell, self.tenant(), request.encode()).await {
            Ok(answer) => Response::decode(&answer).map_err(|error| Unanswered::Lost(error.to_string()))?,
            Err(crate::TransportError::Unreachable { .. }) => return Err(Unanswered::NotSent),
            Err(broken @ crate::TransportError::Broken { .. }) => {
                return Err(Unanswered::Lost(broken.to_string()));
            }
        };
        if let Some(reign) = reign {
            match &answer {
                Response::ReadAt { .. } | Response::Written { .. } => self.beliefs.heard(reign),
                Response::NotLeader => self.beliefs.depose(reign),
                // It could not even look: the group is not there, or cannot be opened.
                Response::Failed { .. } if is_question => self.beliefs.depose(reign),
                _ => {}
            }
        }
        Ok(answer)
    }

    /// The leader, in the newest term this replica has seen.
    pub(crate) fn reign(&self) -> Option<Reign> {
        let open = self.open.read().clone()?;
        self.view(&open.raft).leader
    }

    pub(crate) fn leading_cell(&self) -> Option<(CellId, Term)> {
        let reign = match *self.leadership.borrow() {
            Some(Term(term)) => Some((term, self.replica.id)),
            None => self.reign(),
        };
        let (term, leader) = reign?;
        Some((self.replica.seat(leader)?, Term(term)))
    }

    pub(crate) fn cells(&self) -> Vec<CellId> {
        let me = self.replica.seat(self.replica.id);
        me.into_iter().chain(self.replica.peers().into_iter().map(|(_, cell)| cell)).collect()
    }

    /// Asks a peer that is there to lead in this replica's place, if it leads.
    async fn hand_over(&self) {
        let Some(open) = self.open.read().clone() else { return };
        let view = self.view(&open.raft);
        if self.replica.is_sole_voter() || view.leader.is_none_or(|(_, leader)| leader != view.me) {
            return;
        }
        let matched = |replica: ReplicaId| {
            let metrics = open.raft.metrics();
            let metrics = metrics.borrow_watched();
            metrics.replication.as_ref().and_then(|all| all.get(&replica).cloned().flatten())
        };
        let peers = self.replica.peers().into_iter().map(|(peer, _)| peer);
        let there = peers.filter(|peer| matches!(self.standing(*peer), Standing::Up { .. }));
        let Some(next) = there.max_by_key(|peer| matched(*peer)) else { return };
        let mut metrics = open.raft.metrics();
        if open.raft.trigger().transfer_leader(next).await.is_err() {
            return;
        }
        let handed_over = async {
            while metrics.borrow_watched().state.is_leader() {
                if metrics.changed().await.is_err() {
                    return;
                }
            }
        };
        // In vain is no harm: the others will find the cell gone.
        let _ = tokio::time::timeout(HANDOVER_PATIENCE, handed_over).await;
    }

    pub(crate) async fn close(&self) {
        if !self.closed.load(Ordering::Acquire) {
            self.hand_over().await;
        }
        self.closed.store(true, Ordering::Release);
        let _door = self.door.lock().await;
        let taken = self.open.write().take();
        self.shut(taken).await;
        let replica = self.replica.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || replica.retire()).await {
            tracing::error!(tenant = %self.tenant(), %error, "a checkpoint may still be in the making");
        }
        self.replica.space.close();
        self.leadership.send_replace(None);
    }

    async fn shut(&self, open: Option<Arc<Open>>) {
        let Some(open) = open else { return };
        self.awake.rests(self.tenant());
        if let Err(error) = open.raft.shutdown().await {
            tracing::error!(tenant = %self.tenant(), %error, "Raft did not stop cleanly");
        }
    }

    #[cfg(test)]
    pub(crate) async fn raft(&self) -> Result<Raft, WriteError> {
        Ok(self.open().await?.0.raft.clone())
    }

    /// The disk has failed: nothing can be acknowledged any more, so nobody leads here.
    pub(crate) fn resign(&self) {
        self.leadership.send_replace(None);
    }
}

/// Why a replica elsewhere has not answered.
pub(crate) enum Unanswered {
    /// The request never left.
    NotSent,
    /// It may have arrived, and may have had its effect.
    Lost(String),
}

/// Tells whether this replica leads, from what Raft says, for as long as that opening of it lasts. To lead
/// means: to have applied everything of earlier terms, which is so once an entry of the leader's own term is.
async fn follow_leadership(
    raft: Raft,
    generation: u64,
    replica: Arc<Replica>,
    leadership: watch::Sender<Option<Term>>,
) {
    let mut metrics = raft.metrics();
    loop {
        let (leads, running) = {
            let now = metrics.borrow_and_update();
            let caught_up = now.last_applied.as_ref().map(|id| id.committed_leader_id().term);
            let leads = now.state.is_leader() && caught_up == Some(now.current_term);
            (leads.then_some(Term(now.current_term)), now.running_state.is_ok())
        };
        // Without peers nobody else can lead; see `Member::new`.
        if !replica.is_sole_voter() && replica.generation() == generation {
            let said = if running { leads } else { None };
            leadership.send_if_modified(|term| std::mem::replace(term, said) != said);
        }
        if !running || metrics.changed().await.is_err() {
            break;
        }
    }
    if !replica.is_sole_voter() && replica.generation() == generation {
        leadership.send_if_modified(|term| term.take().is_some());
    }
}

/// Writes a checkpoint beside the writes that go on, then lets openraft drop the log before it.
pub(crate) async fn checkpoint_aside(replica: Arc<Replica>, using: Use) {
    if let Err(error) = storage::save(&replica).await {
        tracing::warn!(tenant = %replica.tenant, %error, "cannot write a checkpoint; the log grows meanwhile");
        return;
    }
    if let Err(error) = using.0.raft.trigger().snapshot().await {
        tracing::warn!(tenant = %replica.tenant, %error, "cannot shorten the log");
    }
}

/// Units that one command may hold at most; a larger one waits for all of them and goes alone.
pub(crate) const MAX_UNITS: usize = 64 << 10;
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn unavailable(reason: String) -> WriteError {
    WriteError::Unavailable { retry_after_ms: RETRY_AFTER_MS, reason }
}
