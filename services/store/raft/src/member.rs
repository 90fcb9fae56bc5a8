//! One group on this cell: its replica, and its Raft while there is something to do.
//!
//! An open Raft costs tasks and rings of some hundred KiB, so it is opened by the first write and closed
//! when nothing was written for a while; state, leadership and watches do not notice. A replica that is a
//! majority by itself needs no Raft to know that it leads and that what is durable is committed; one with
//! peers has to keep its Raft open, and reads go through it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base_ids::TenantId;
use openraft::ReadPolicy;
use openraft::errors::{ClientWriteError, LinearizableReadError, RaftError};
use parking_lot::RwLock;
use store_mvcc::{Applied, Command, Op, Revision, Space, Term};
use tokio::sync::{Mutex, Semaphore, watch};

use crate::checkpoint::Checkpoint;
use crate::message::{Request, Response};
use crate::network::Network;
use crate::replica::Replica;
use crate::storage::{self, LogStore, Machine};
use crate::transport::Transport;
use crate::types::{Proposal, Types};
use crate::{HostError, WriteError, codec};

/// How long a write may take before its caller is told to come back. A healthy disk needs a millisecond.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// When asking again makes sense after an answer that says nothing.
const RETRY_AFTER_MS: u64 = 1000;

pub(crate) type Raft = openraft::Raft<Types, Machine>;

pub(crate) struct Member {
    replica: Arc<Replica>,
    raft_config: Arc<openraft::Config>,
    transport: Option<Arc<dyn Transport>>,
    /// Bytes of commands in flight in the whole host, in units of [`WEIGHT_UNIT`].
    in_flight: Arc<Semaphore>,
    open: RwLock<Option<Arc<Open>>>,
    /// Held while Raft is being opened or closed.
    door: Mutex<()>,
    closed: AtomicBool,
    leadership: watch::Sender<Option<Term>>,
}

/// Granularity of the limit on bytes in flight.
pub(crate) const WEIGHT_UNIT: usize = 1024;

/// Raft while it is open.
struct Open {
    raft: Raft,
    users: AtomicUsize,
    started: Instant,
    /// Milliseconds after `started`.
    used_at_ms: AtomicU64,
    writes: AtomicU64,
}

/// Keeps Raft from being closed under its user.
struct Use(Arc<Open>);

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
    pub(crate) fn new(
        replica: Replica,
        raft_config: Arc<openraft::Config>,
        transport: Option<Arc<dyn Transport>>,
        in_flight: Arc<Semaphore>,
    ) -> Result<Member, HostError> {
        let tenant = replica.tenant;
        let unreadable = |error: std::io::Error| HostError::Consensus { tenant, reason: error.to_string() };
        let vote = replica.vote().map_err(unreadable)?;
        let leads = vote.filter(|vote| {
            vote.committed && vote.leader_id.voted_for == replica.id && replica.is_sole_voter()
        });
        let (leadership, _) = watch::channel(leads.map(|vote| Term(vote.leader_id.term)));
        Ok(Member {
            replica: Arc::new(replica),
            raft_config,
            transport,
            in_flight,
            open: RwLock::new(None),
            door: Mutex::new(()),
            closed: AtomicBool::new(false),
            leadership,
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

    pub(crate) async fn write(&self, command: Command) -> Result<Vec<Applied>, WriteError> {
        let grows = command.ops.iter().any(|op| matches!(op, Op::Put { .. }));
        if grows && !self.replica.log.accepting() {
            return Err(WriteError::NoSpace);
        }
        let encoded = codec::encode_command(&command);
        let limit = self.replica.log.record_limit();
        if encoded.len() > limit {
            // Later it would end the group's Raft instead of the request.
            return Err(WriteError::TooLarge { length: encoded.len(), limit });
        }
        let units = (encoded.len() / WEIGHT_UNIT + 1).min(MAX_UNITS) as u32;
        let work = async {
            let _permit = self.in_flight.acquire_many(units).await.map_err(|_| WriteError::Closed)?;
            let using = self.open().await?;
            using.0.writes.fetch_add(1, Ordering::Relaxed);
            let written = using.0.raft.client_write(Proposal { command: Arc::new(command), encoded }).await;
            Ok::<_, WriteError>((using, written))
        };
        let (using, written) = match tokio::time::timeout(WRITE_TIMEOUT, work).await {
            Ok(done) => done?,
            Err(_) => return Err(unavailable("the write takes too long".to_owned())),
        };
        match written {
            Ok(response) => {
                if self.replica.checkpoint_is_due() {
                    tokio::spawn(checkpoint_aside(self.replica.clone(), using));
                }
                match response.data.0 {
                    Some(outcome) => Ok(outcome?),
                    None => Err(unavailable("the write was replaced by another leader's".to_owned())),
                }
            }
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => Err(WriteError::NoLeader),
            Err(RaftError::APIError(other)) => Err(unavailable(other.to_string())),
            Err(RaftError::Fatal(fatal)) => {
                self.discard(&using.0);
                if self.is_closed() { Err(WriteError::Closed) } else { Err(unavailable(fatal.to_string())) }
            }
        }
    }

    pub(crate) async fn read_index(&self) -> Result<Revision, WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        if self.leadership.borrow().is_some() && self.replica.is_sole_voter() {
            // Whoever was told of a write was told after it was applied here, and nobody else could have
            // taken one.
            return Ok(self.space().revision());
        }
        let using = self.open().await?;
        match using.0.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_) => Ok(self.space().revision()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => Err(WriteError::NoLeader),
            Err(RaftError::APIError(other)) => Err(unavailable(other.to_string())),
            Err(RaftError::Fatal(fatal)) => {
                self.discard(&using.0);
                Err(unavailable(fatal.to_string()))
            }
        }
    }

    /// Answers a replica elsewhere.
    pub(crate) async fn receive(&self, request: Request) -> Response {
        match self.answer(request).await {
            Ok(response) => response,
            Err(reason) => Response::Failed { reason },
        }
    }

    async fn answer(&self, request: Request) -> Result<Response, String> {
        let using = self.open().await.map_err(|error| error.to_string())?;
        let raft = &using.0.raft;
        Ok(match request {
            Request::Append(append) => {
                Response::Append(raft.append_entries(append).await.map_err(|error| error.to_string())?)
            }
            Request::Vote(vote) => Response::Vote(raft.vote(vote).await.map_err(|error| error.to_string())?),
            Request::PreVote(vote) => {
                Response::Vote(raft.pre_vote(vote).await.map_err(|error| error.to_string())?)
            }
            Request::Snapshot { vote, checkpoint } => {
                let checkpoint =
                    Checkpoint::decode(self.tenant(), &checkpoint).map_err(|error| error.to_string())?;
                let snapshot = storage::received(checkpoint);
                let response =
                    raft.install_full_snapshot(vote, snapshot).await.map_err(|error| error.to_string())?;
                Response::Snapshot { vote: response.vote }
            }
            Request::Transfer(transfer) => {
                let answer =
                    raft.handle_transfer_leader(transfer).await.map_err(|fatal| fatal.to_string())?;
                Response::Transfer { accepted: answer.is_ok() }
            }
        })
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
        let wait = using.0.raft.wait(Some(CHECKPOINT_TIMEOUT));
        let purged =
            wait.metrics(|metrics| metrics.purged.map(|id| id.index()) >= index, "checkpoint and purge");
        purged.await.map(drop).map_err(|error| unavailable(error.to_string()))
    }

    /// Raft, opened if it is not.
    async fn open(&self) -> Result<Use, WriteError> {
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
        let network = Network { tenant: self.tenant(), transport: self.transport.clone() };
        let raft = Raft::new(self.replica.id, self.raft_config.clone(), network, store, machine)
            .await
            .map_err(|fatal| unavailable(fatal.to_string()))?;
        let open = Arc::new(Open {
            raft,
            users: AtomicUsize::new(0),
            started: Instant::now(),
            used_at_ms: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        });
        let using = Use::new(&open);
        *self.open.write() = Some(open);
        Ok(using)
    }

    /// Takes a Raft that has stopped out of use; the next write opens another.
    fn discard(&self, broken: &Arc<Open>) {
        let mut open = self.open.write();
        if open.as_ref().is_some_and(|open| Arc::ptr_eq(open, broken)) {
            *open = None;
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

    pub(crate) async fn close(&self) {
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

    pub(crate) fn is_open(&self) -> bool {
        self.open.read().is_some()
    }
}

/// Writes a checkpoint beside the writes that go on, then lets openraft drop the log before it.
async fn checkpoint_aside(replica: Arc<Replica>, using: Use) {
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

fn unavailable(reason: String) -> WriteError {
    WriteError::Unavailable { retry_after_ms: RETRY_AFTER_MS, reason }
}
