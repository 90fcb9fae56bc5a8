//! What clients and other replicas ask of a group, and who answers it.
//!
//! A write goes to the leader, wherever that is, and is acknowledged once it is applied *here* too, so that
//! whoever reads next on this replica finds it. A read asks the leader how far it must see and waits until
//! this replica has come so far; readers that come meanwhile share one question. Writes with a fence belong to
//! loops of the leader and never leave this process (DESIGN §5).
//!
//! A command is sent on again only where it surely had no effect: if a leader could not be reached, or said
//! that it is none. Where that is not known the client hears so.
//!
//! Not here: who leads, and when somebody should (`member`, `peers`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use openraft::ReadPolicy;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, ForwardReason, LinearizableReadError, RaftError};
use store_log::Position;
use store_mvcc::{Applied, Command, Op, Outcome, Revision};

use crate::checkpoint::Checkpoint;
use crate::member::{MAX_UNITS, Member, Raft, Unanswered, WEIGHT_UNIT, checkpoint_aside, unavailable};
use crate::message::{Request, Response};
use crate::types::{Payload, Proposal, ReplicaId, Vote, position};
use crate::{WriteError, codec, storage};

/// How long a write may take before its caller is told to come back. A healthy disk needs a millisecond.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a group may be without leader or majority before clients are told (DESIGN §5: within 2 s). An
/// election takes well under a second.
const QUORUM_PATIENCE: Duration = Duration::from_millis(1_700);
/// Looks for a leader at least this often; a change wakes it at once.
const LEADER_POLL: Duration = Duration::from_millis(50);
/// Largest checkpoint taken from a peer, far over any quota: more is an attack on memory.
const MAX_SNAPSHOT_BYTES: u64 = 2 << 30;
/// A snapshot whose next part has not come by then is given up: its leader is gone, and another begins anew.
const PART_OVERDUE: Duration = Duration::from_secs(60);

/// Who takes a group's writes.
enum Leader {
    Here,
    There(ReplicaId),
    Nobody,
}

/// A snapshot as far as it has arrived.
pub(crate) struct Receiving {
    vote: Vote,
    number: u64,
    bytes: BytesMut,
    /// When its last part came.
    at: Instant,
}

type Round = Shared<BoxFuture<'static, Result<Option<Position>, WriteError>>>;

/// Lets reads that come while a question is on its way share the next one.
#[derive(Default)]
pub(crate) struct ReadGate {
    /// The round that has not begun. Nobody who joins it can have been acknowledged something it misses.
    next: parking_lot::Mutex<Option<Round>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Member {
    pub(crate) fn has_peers(&self) -> bool {
        !self.replica.is_sole_voter()
    }

    pub(crate) async fn write(&self, command: Command) -> Result<Vec<Applied>, WriteError> {
        let grows = grows(&command);
        if grows && !self.replica.log.accepting() && !self.has_peers() {
            return Err(WriteError::NoSpace);
        }
        let encoded = codec::encode_command(&command);
        let limit = self.replica.log.record_limit();
        if encoded.len() > limit {
            // Later it would end the group's Raft instead of the request.
            return Err(WriteError::TooLarge { length: encoded.len(), limit });
        }
        let work = async {
            let units = units(&encoded);
            let _permit = self.in_flight.acquire_many(units).await.map_err(|_| WriteError::Closed)?;
            self.route(Arc::new(command), encoded).await
        };
        tokio::pin!(work);
        let late = || unavailable("the write takes too long".to_owned());
        if self.has_peers() {
            match tokio::time::timeout(QUORUM_PATIENCE + LEADER_POLL, &mut work).await {
                Ok(done) => return Ok(done??),
                Err(_) if !self.has_quorum() => {
                    return Err(unavailable("most of the cluster's replicas are away".to_owned()));
                }
                // A slow disk, or a long queue before it.
                Err(_) => {}
            }
        }
        Ok(tokio::time::timeout(WRITE_TIMEOUT, work).await.map_err(|_| late())???)
    }

    async fn route(&self, command: Arc<Command>, encoded: Bytes) -> Result<Outcome, WriteError> {
        let fenced = command.fence.is_some();
        let deadline = Instant::now() + QUORUM_PATIENCE;
        loop {
            let using = self.open().await?;
            let done = match self.leader(&using.0.raft) {
                Leader::Here => self.take(command.clone(), encoded.clone()).await.map(|(_, outcome)| outcome),
                Leader::There(leader) if !fenced => self.forward(leader, encoded.clone()).await,
                Leader::There(_) | Leader::Nobody => Err(WriteError::NoLeader),
            };
            match done {
                Err(WriteError::NoLeader) if !fenced && self.has_peers() && Instant::now() < deadline => {}
                done => return done,
            }
            self.leader_changes(&using.0.raft).await;
        }
    }

    /// Takes a command as the leader. [`WriteError::NoLeader`] means that nothing happened.
    async fn take(&self, command: Arc<Command>, encoded: Bytes) -> Result<(Position, Outcome), WriteError> {
        if grows(&command) && !self.replica.log.accepting() {
            return Err(WriteError::NoSpace);
        }
        let using = self.open().await?;
        using.0.writes.fetch_add(1, Ordering::Relaxed);
        let raft = &using.0.raft;
        let deadline = Instant::now() + QUORUM_PATIENCE;
        let written = loop {
            let proposal = Proposal { command: command.clone(), encoded: encoded.clone() };
            match raft.client_write(proposal).await {
                // A leader that has not heard of a majority for a while takes nothing before it has: there are
                // no heartbeats, so that is so for every group that was quiet.
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(why)))
                    if why.reason == ForwardReason::LeaseExpired && Instant::now() < deadline =>
                {
                    self.confirm(raft).await?;
                }
                written => break written,
            }
        };
        match written {
            Ok(response) => {
                if self.replica.checkpoint_is_due() {
                    tokio::spawn(checkpoint_aside(self.replica.clone(), using));
                }
                match response.data.0 {
                    Some(outcome) => Ok((position(&response.log_id), outcome)),
                    None => Err(unavailable("the write was replaced by another leader's".to_owned())),
                }
            }
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => Err(WriteError::NoLeader),
            // In the log here, and maybe of others too: another leader may yet commit it.
            Err(RaftError::APIError(other)) => Err(unavailable(other.to_string())),
            Err(RaftError::Fatal(fatal)) => {
                self.discard(&using.0);
                if self.is_closed() { Err(WriteError::Closed) } else { Err(unavailable(fatal.to_string())) }
            }
        }
    }

    /// Has the leader take a command, and waits until it is applied here.
    async fn forward(&self, leader: ReplicaId, entry: Bytes) -> Result<Outcome, WriteError> {
        let expecting = self.replica.expect();
        let at = match self.ask(leader, Request::Write { entry }).await {
            Ok(Response::Written { at }) => at,
            Ok(Response::NotLeader) | Err(Unanswered::NotSent) => return Err(WriteError::NoLeader),
            Ok(Response::NoSpace) => return Err(WriteError::NoSpace),
            Ok(Response::Failed { reason }) | Err(Unanswered::Lost(reason)) => {
                return Err(unavailable(reason));
            }
            Ok(_) => return Err(unavailable("the leader answers another question".to_owned())),
        };
        let outcome = expecting.outcome(at).await;
        outcome.ok_or_else(|| unavailable("it is not known here what came of the write".to_owned()))
    }

    pub(crate) async fn read_index(self: &Arc<Self>) -> Result<Revision, WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        if self.leadership().borrow().is_some() && self.replica.is_sole_voter() {
            // Whoever was told of a write was told after it was applied here, and nobody else could have
            // taken one.
            return Ok(self.space().revision());
        }
        let work = async {
            if let Some(at) = self.read_at().await? {
                self.replica.reaches(at.index).await;
            }
            Ok(self.space().revision())
        };
        let late = |_| unavailable("the cluster's replicas do not answer in time".to_owned());
        tokio::time::timeout(QUORUM_PATIENCE + LEADER_POLL, work).await.map_err(late)?
    }

    /// Up to where a read that begins now has to see.
    async fn read_at(self: &Arc<Self>) -> Result<Option<Position>, WriteError> {
        let round = {
            let mut next = self.reads.next.lock();
            let join = next.get_or_insert_with(|| {
                // Weak: the round lies in the member until somebody needs it.
                let (member, turn) = (Arc::downgrade(self), self.reads.turn.clone());
                let round = async move {
                    let _turn = turn.lock().await;
                    let member = member.upgrade().ok_or(WriteError::Closed)?;
                    // Whoever comes from now on may have been told of a write that this question misses.
                    member.reads.next.lock().take();
                    member.ask_read_at().await
                };
                round.boxed().shared()
            });
            join.clone()
        };
        round.await
    }

    async fn ask_read_at(&self) -> Result<Option<Position>, WriteError> {
        let deadline = Instant::now() + QUORUM_PATIENCE;
        loop {
            let using = self.open().await?;
            let answer = match self.leader(&using.0.raft) {
                Leader::Here => self.confirm(&using.0.raft).await,
                Leader::There(leader) => match self.ask(leader, Request::ReadIndex).await {
                    Ok(Response::ReadAt { at }) => Ok(at),
                    _ => Err(WriteError::NoLeader),
                },
                Leader::Nobody => Err(WriteError::NoLeader),
            };
            match answer {
                Err(WriteError::NoLeader) if self.has_peers() && Instant::now() < deadline => {}
                answer => return answer,
            }
            self.leader_changes(&using.0.raft).await;
        }
    }

    /// Makes sure that this replica leads still; says what is committed.
    async fn confirm(&self, raft: &Raft) -> Result<Option<Position>, WriteError> {
        match raft.get_read_log_id(ReadPolicy::ReadIndex).await {
            Ok((read, _)) => Ok(Some(position(read.log_id()))),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => Err(WriteError::NoLeader),
            // Not confirmed in time: asked again until the caller's patience ends.
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => Err(WriteError::NoLeader),
            Err(RaftError::Fatal(fatal)) => Err(unavailable(fatal.to_string())),
        }
    }

    fn leader(&self, raft: &Raft) -> Leader {
        if self.replica.is_sole_voter() {
            return Leader::Here;
        }
        let view = self.view(raft);
        match view.leader {
            Some((_, leader)) if leader == view.me => Leader::Here,
            // One that is gone would keep its callers waiting for nothing.
            Some((_, leader)) if self.beliefs.trusts_leader(&view) => Leader::There(leader),
            _ => Leader::Nobody,
        }
    }

    /// Waits until somebody else leads, for a moment at most.
    async fn leader_changes(&self, raft: &Raft) {
        let mut metrics = raft.metrics();
        let before = metrics.borrow_and_update().current_leader;
        let changes = async {
            while metrics.changed().await.is_ok() {
                if metrics.borrow_watched().current_leader != before {
                    return;
                }
            }
            std::future::pending().await
        };
        let _ = tokio::time::timeout(LEADER_POLL, changes).await;
    }

    /// Answers a replica elsewhere.
    pub(crate) async fn receive(self: &Arc<Self>, request: Request) -> Response {
        match self.answer(request).await {
            Ok(response) => response,
            Err(reason) => Response::Failed { reason },
        }
    }

    async fn answer(self: &Arc<Self>, request: Request) -> Result<Response, String> {
        let using = self.open().await.map_err(|error| error.to_string())?;
        let raft = &using.0.raft;
        Ok(match request {
            Request::Append(append) => {
                let vote = append.vote;
                let answer = raft.append_entries(append).await.map_err(|error| error.to_string())?;
                if !matches!(answer, openraft::raft::AppendEntriesResponse::HigherVote(_)) {
                    self.beliefs.heard((vote.leader_id.term, vote.leader_id.voted_for));
                }
                Response::Append(answer)
            }
            Request::Vote(vote) => {
                self.candidate_is(vote.vote.leader_id.voted_for);
                Response::Vote(raft.vote(vote).await.map_err(|error| error.to_string())?)
            }
            Request::PreVote { vote, deposed } => {
                self.candidate_is(vote.vote.leader_id.voted_for);
                let view = self.view(raft);
                let leads = view.leader.is_some_and(|(_, leader)| leader == view.me) && self.has_quorum();
                if leads || (!deposed && self.beliefs.trusts_leader(&view)) {
                    return Err("the leader is there".to_owned());
                }
                Response::Vote(raft.pre_vote(vote).await.map_err(|error| error.to_string())?)
            }
            Request::Snapshot { vote, number, offset, total, part } => {
                match self.gather(vote, number, offset, total, &part).await? {
                    None => Response::More,
                    Some(bytes) => {
                        let checkpoint =
                            Checkpoint::decode(self.tenant(), &bytes).map_err(|error| error.to_string())?;
                        drop(bytes);
                        let snapshot = storage::received(checkpoint);
                        let installed = raft.install_full_snapshot(vote, snapshot).await;
                        Response::Snapshot { vote: installed.map_err(|error| error.to_string())?.vote }
                    }
                }
            }
            Request::Transfer(transfer) => {
                let answer =
                    raft.handle_transfer_leader(transfer).await.map_err(|fatal| fatal.to_string())?;
                Response::Transfer { accepted: answer.is_ok() }
            }
            Request::Write { entry } => self.take_forwarded(raft, entry).await?,
            Request::ReadIndex => match self.leader(raft) {
                // Through the gate: questions of several replicas share an answer as well.
                Leader::Here => match self.read_at().await {
                    Ok(at) => Response::ReadAt { at },
                    Err(WriteError::NoLeader) if !matches!(self.leader(raft), Leader::Here) => {
                        Response::NotLeader
                    }
                    // It leads and cannot prove it now: no reason to depose it.
                    Err(_) => return Ok(Response::More),
                },
                Leader::There(_) | Leader::Nobody => Response::NotLeader,
            },
        })
    }

    async fn take_forwarded(&self, raft: &Raft, entry: Bytes) -> Result<Response, String> {
        if !matches!(self.leader(raft), Leader::Here) {
            return Ok(Response::NotLeader);
        }
        let nowhere = Position { term: 0, index: 0 };
        let decoded = codec::decode_entry(nowhere, &entry).map_err(|error| error.to_string())?;
        let Payload::Normal(proposal) = decoded.payload else { return Err("no command".to_owned()) };
        if proposal.command.fence.is_some() {
            return Err("a loop's write from another replica".to_owned());
        }
        if entry.len() > self.replica.log.record_limit() {
            return Err("a command over the limit".to_owned());
        }
        let permit = self.in_flight.acquire_many(units(&entry)).await;
        let _permit = permit.map_err(|_| "the host is closed".to_owned())?;
        match self.take(proposal.command, entry).await {
            Ok((at, _)) => Ok(Response::Written { at }),
            Err(WriteError::NoLeader) => Ok(Response::NotLeader),
            Err(WriteError::NoSpace) => Ok(Response::NoSpace),
            Err(other) => Err(other.to_string()),
        }
    }

    /// Whoever stands for election does not lead.
    fn candidate_is(&self, candidate: ReplicaId) {
        if let Some(reign) = self.reign().filter(|(_, leader)| *leader == candidate) {
            self.beliefs.depose(reign);
        }
    }

    /// Lets go of a snapshot that is not going to be finished; it may be as large as a cluster's whole state.
    pub(crate) fn give_up_overdue(&self, now: Instant) {
        // Whoever holds the lock is adding to it.
        if let Ok(mut slot) = self.receiving.try_lock()
            && slot.as_ref().is_some_and(|one| now.saturating_duration_since(one.at) > PART_OVERDUE)
        {
            *slot = None;
        }
    }

    /// Adds a part to the snapshot that is arriving; the whole of it, once it is complete.
    async fn gather(
        &self,
        vote: Vote,
        number: u64,
        offset: u64,
        total: u64,
        part: &[u8],
    ) -> Result<Option<Bytes>, String> {
        if total > MAX_SNAPSHOT_BYTES {
            return Err(format!("a snapshot of {total} bytes"));
        }
        let mut slot = self.receiving.lock().await;
        if offset == 0 {
            *slot = Some(Receiving { vote, number, bytes: BytesMut::new(), at: Instant::now() });
        }
        let Some(receiving) = slot.as_mut() else { return Err("a snapshot from its middle".to_owned()) };
        let expected = receiving.bytes.len() as u64;
        if receiving.vote != vote || receiving.number != number || expected != offset {
            return Err(format!("a part at {offset} where {expected} is next"));
        }
        receiving.bytes.extend_from_slice(part);
        receiving.at = Instant::now();
        match (receiving.bytes.len() as u64).cmp(&total) {
            std::cmp::Ordering::Less => Ok(None),
            std::cmp::Ordering::Equal => Ok(slot.take().map(|receiving| receiving.bytes.freeze())),
            std::cmp::Ordering::Greater => {
                *slot = None;
                Err("a snapshot that is longer than it says".to_owned())
            }
        }
    }
}

fn grows(command: &Command) -> bool {
    command.ops.iter().any(|op| matches!(op, Op::Put { .. }))
}

fn units(encoded: &Bytes) -> u32 {
    (encoded.len() / WEIGHT_UNIT + 1).min(MAX_UNITS) as u32
}
