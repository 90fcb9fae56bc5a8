//! One group's state in this process, kept whether or not its Raft is open.
//!
//! openraft's instance comes and goes (see `member`); the key space, what was applied to it, and the newest
//! entries stay here. Everything that moves the state forward goes through [`Replica::apply`], which takes
//! an entry exactly once, whichever instance brings it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base_ids::{CellId, TenantId};
use parking_lot::Mutex;
use store_log::{GroupId, Log, Position};
use store_mvcc::{Limits, Outcome, Rejected, Space, Term};
use tokio::sync::watch;

use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::codec;
use crate::types::{Entry, Payload, ReplicaId, Reply, StoredMembership, Vote, log_id, position};
use crate::{HostError, note};

/// Entries replayed at once; bounds memory, nothing else.
const REPLAY_ENTRIES: u64 = 256;
/// Log that may gather before a checkpoint is due: this much, or as much as the last checkpoint was long,
/// whichever is more, so that the cost of checkpoints stays in proportion to what is written.
const CHECKPOINT_BYTES: u64 = 4 << 20;
const CHECKPOINT_ENTRIES: u64 = 10_000;
/// Between two tries when the disk does not take one.
const CHECKPOINT_RETRY: Duration = Duration::from_secs(10);

pub(crate) struct Replica {
    pub(crate) tenant: TenantId,
    pub(crate) group: GroupId,
    pub(crate) id: ReplicaId,
    pub(crate) space: Arc<Space>,
    pub(crate) log: Log,
    pub(crate) checkpoints: Checkpoints,
    progress: Mutex<Progress>,
    /// Entries appended and not yet applied, so that applying does not read the disk. Bounded by what may
    /// be in flight at once.
    recent: Mutex<VecDeque<Entry>>,
    /// Index of the newest entry applied, and one more; for those who wait for it.
    reached: watch::Sender<u64>,
    /// What came of the newest entries, while somebody waits for a command that was sent to the leader.
    outcomes: Mutex<Outcomes>,
    /// Held while a checkpoint is written: there is one unfinished file per tenant. True once this replica
    /// is closed, and what is on disk no longer its to change.
    retired: Mutex<bool>,
}

#[derive(Clone, Default)]
struct Progress {
    applied: Option<Position>,
    membership: StoredMembership,
    /// Counts openings of Raft. A task left over from an earlier one is told apart and applies nothing.
    generation: u64,
    checkpoint: Option<Saved>,
    entries_since: u64,
    bytes_since: u64,
    checkpointing: bool,
    /// After a failure: when to try again.
    not_before: Option<Instant>,
}

/// Outcomes kept for those who wait; a follower that is so far behind tells its clients that it cannot say.
const OUTCOMES: usize = 8192;

#[derive(Default)]
struct Outcomes {
    waiting: usize,
    kept: VecDeque<(Position, Outcome)>,
}

/// Keeps outcomes from being thrown away; see [`Replica::expect`].
pub(crate) struct Expecting<'a>(&'a Replica);

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        let mut outcomes = self.0.outcomes.lock();
        outcomes.waiting -= 1;
        if outcomes.waiting == 0 {
            outcomes.kept = VecDeque::new();
        }
    }
}

impl Expecting<'_> {
    /// What came of the command at `at`, once it is applied here. `None` when that cannot be said: the state
    /// came past it in a snapshot.
    pub(crate) async fn outcome(&self, at: Position) -> Option<Outcome> {
        self.0.reaches(at.index).await;
        let outcomes = self.0.outcomes.lock();
        outcomes.kept.iter().rev().find(|(position, _)| *position == at).map(|(_, outcome)| outcome.clone())
    }
}

/// What is remembered of the checkpoint on disk.
#[derive(Clone)]
pub(crate) struct Saved {
    pub(crate) applied: Position,
    pub(crate) membership: StoredMembership,
    pub(crate) bytes: u64,
}

impl Replica {
    /// A replica with nothing applied.
    pub(crate) fn empty(
        tenant: TenantId,
        id: ReplicaId,
        limits: Limits,
        log: Log,
        checkpoints: Checkpoints,
    ) -> Replica {
        Replica {
            tenant,
            group: group_of(tenant),
            id,
            space: Arc::new(Space::new(limits)),
            log,
            checkpoints,
            progress: Mutex::default(),
            recent: Mutex::default(),
            reached: watch::Sender::new(0),
            outcomes: Mutex::default(),
            retired: Mutex::default(),
        }
    }

    /// Reads checkpoint and log of a group that exists here. Blocks.
    pub(crate) fn load(
        tenant: TenantId,
        limits: Limits,
        log: Log,
        checkpoints: Checkpoints,
    ) -> Result<Replica, HostError> {
        let group = group_of(tenant);
        let id = match log.note(group, note::IDENTITY) {
            Some(bytes) => note::decode_identity(&bytes).map_err(|error| HostError::Consensus {
                tenant,
                reason: format!("its identity is unreadable: {error}"),
            })?,
            None => return Err(HostError::Unknown(tenant)),
        };
        let mut replica = Replica::empty(tenant, id, limits, log, checkpoints);
        if let Some(checkpoint) = replica.checkpoints.load(tenant)? {
            let path = std::path::PathBuf::from(format!("{tenant}.checkpoint"));
            let space = Space::restore(limits, &checkpoint.image)
                .map_err(|source| HostError::Checkpoint { path, source })?;
            replica.space = Arc::new(space);
            let saved = Saved {
                applied: checkpoint.applied,
                membership: checkpoint.membership.clone(),
                bytes: checkpoint.image.len() as u64,
            };
            let progress = replica.progress.get_mut();
            progress.applied = Some(checkpoint.applied);
            progress.membership = checkpoint.membership;
            progress.checkpoint = Some(saved);
            replica.reached.send_replace(checkpoint.applied.index + 1);
        }
        replica.replay()?;
        Ok(replica)
    }

    /// Applies what the log holds beyond the checkpoint, as far as it is known to be committed.
    fn replay(&self) -> Result<(), HostError> {
        let state = self.log.state(self.group)?.unwrap_or_default();
        let mut next = self.applied().map_or(0, |position| position.index + 1);
        if let Some(purged) = state.purged
            && next <= purged.index
        {
            return Err(HostError::Entry {
                tenant: self.tenant,
                index: next,
                reason: format!("it is purged up to {}, and no checkpoint reaches so far", purged.index),
            });
        }
        let end = state.next_index();
        // A majority of one: with no other voter, what is durable is committed. The membership may change
        // on the way, so it is asked again for every batch.
        while next < end {
            let committed = if self.is_sole_voter() {
                end
            } else {
                // The very first entry is the membership the group was made with, by its only voter.
                let known = self.saved_committed()?.map_or(0, |position| position.index + 1);
                known.max(1).min(end)
            };
            let to = committed.min(next + REPLAY_ENTRIES);
            if to <= next {
                break;
            }
            for record in self.log.read(self.group, next..to)? {
                let entry =
                    codec::decode_entry(record.position, &record.body).map_err(|error| HostError::Entry {
                        tenant: self.tenant,
                        index: record.position.index,
                        reason: error.to_string(),
                    })?;
                self.take(&mut self.progress.lock(), &entry, record.body.len() as u64);
                next = record.position.index + 1;
            }
        }
        Ok(())
    }

    /// Begins a new opening of Raft; earlier ones can apply nothing from now on.
    pub(crate) fn next_generation(&self) -> u64 {
        let mut progress = self.progress.lock();
        progress.generation += 1;
        // Entries the last opening appended but did not apply are on the disk.
        self.recent.lock().clear();
        progress.generation
    }

    /// Applies one committed entry on behalf of opening `generation`.
    pub(crate) fn apply(&self, generation: u64, entry: &Entry) -> io::Result<Reply> {
        let mut progress = self.progress.lock();
        if progress.generation != generation {
            return Err(io::Error::other("this opening of the group has ended"));
        }
        let at = position(&entry.log_id);
        if progress.applied.is_some_and(|applied| at.index <= applied.index) {
            return Ok(Reply(None));
        }
        let bytes = match &entry.payload {
            Payload::Normal(proposal) => proposal.encoded.len() as u64,
            _ => 0,
        };
        let reply = self.take(&mut progress, entry, bytes);
        drop(progress);
        let mut recent = self.recent.lock();
        while recent.front().is_some_and(|first| first.log_id.index() <= at.index) {
            recent.pop_front();
        }
        if recent.is_empty() {
            recent.shrink_to(64);
        }
        Ok(reply)
    }

    /// Applies one of the first entries of a group that is being made.
    pub(crate) fn seed(&self, at: Position, payload: Payload) -> Result<(), Rejected> {
        let entry = Entry { log_id: log_id(at), payload };
        match self.take(&mut self.progress.lock(), &entry, 0).0 {
            Some(Err(rejected)) => Err(rejected),
            _ => Ok(()),
        }
    }

    fn take(&self, progress: &mut Progress, entry: &Entry, bytes: u64) -> Reply {
        let at = position(&entry.log_id);
        let reply = match &entry.payload {
            Payload::Blank => None,
            Payload::Normal(proposal) => Some(self.space.apply(Term(at.term), &proposal.command)),
            Payload::Membership(membership) => {
                progress.membership = StoredMembership::new(Some(log_id(at)), membership.clone());
                None
            }
        };
        progress.applied = Some(at);
        progress.entries_since += 1;
        progress.bytes_since += bytes;
        if let Some(outcome) = &reply {
            let mut outcomes = self.outcomes.lock();
            if outcomes.waiting > 0 {
                if outcomes.kept.len() == OUTCOMES {
                    outcomes.kept.pop_front();
                }
                outcomes.kept.push_back((at, outcome.clone()));
            }
        }
        self.reached.send_replace(at.index + 1);
        Reply(reply)
    }

    /// Called before a command is sent to the leader, so that what comes of it here is kept.
    pub(crate) fn expect(&self) -> Expecting<'_> {
        self.outcomes.lock().waiting += 1;
        Expecting(self)
    }

    /// Waits until the entry at `index` is applied.
    pub(crate) async fn reaches(&self, index: u64) {
        // The sender lives as long as this does.
        let _ = self.reached.subscribe().wait_for(|reached| *reached > index).await;
    }

    /// Where `replica` sits, by the newest membership applied.
    pub(crate) fn seat(&self, replica: ReplicaId) -> Option<CellId> {
        self.progress.lock().membership.membership().get_node(&replica).map(|seat| seat.cell)
    }

    /// The other voters and where they sit.
    pub(crate) fn peers(&self) -> Vec<(ReplicaId, CellId)> {
        let progress = self.progress.lock();
        let membership = progress.membership.membership();
        let voters = membership.voter_ids().filter(|voter| *voter != self.id);
        voters.filter_map(|voter| Some((voter, membership.get_node(&voter)?.cell))).collect()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.progress.lock().generation
    }

    pub(crate) fn applied(&self) -> Option<Position> {
        self.progress.lock().applied
    }

    pub(crate) fn applied_state(&self) -> (Option<Position>, StoredMembership) {
        let progress = self.progress.lock();
        (progress.applied, progress.membership.clone())
    }

    /// Whether this replica is a majority by itself.
    pub(crate) fn is_sole_voter(&self) -> bool {
        let progress = self.progress.lock();
        let mut voters = progress.membership.voter_ids();
        voters.next() == Some(self.id) && voters.next().is_none()
    }

    pub(crate) fn vote(&self) -> io::Result<Option<Vote>> {
        let Some(bytes) = self.log.note(self.group, note::VOTE) else { return Ok(None) };
        codec::decode_vote(&bytes).map(Some).map_err(io::Error::other)
    }

    /// The position that an earlier life knew to be committed.
    pub(crate) fn saved_committed(&self) -> Result<Option<Position>, HostError> {
        let Some(bytes) = self.log.note(self.group, note::COMMITTED) else { return Ok(None) };
        codec::read_position(&mut store_mvcc::Reader::new(&bytes)).map_err(|error| HostError::Consensus {
            tenant: self.tenant,
            reason: format!("the committed position is unreadable: {error}"),
        })
    }

    pub(crate) fn remember(&self, entries: &[Entry]) {
        self.recent.lock().extend(entries.iter().cloned());
    }

    pub(crate) fn forget_from(&self, index: u64) {
        self.recent.lock().retain(|entry| entry.log_id.index() < index);
    }

    /// The entries with indexes in `from..to`, if the newest ones kept in memory are enough for that.
    pub(crate) fn recent(&self, from: u64, to: u64) -> Option<Vec<Entry>> {
        let recent = self.recent.lock();
        let first = recent.front()?.log_id.index();
        let skip = usize::try_from(from.checked_sub(first)?).ok()?;
        let count = usize::try_from(to.checked_sub(from)?).ok()?;
        (skip + count <= recent.len()).then(|| recent.iter().skip(skip).take(count).cloned().collect())
    }

    /// Whether enough has been written since the last checkpoint; says yes once, until [`Replica::save`]
    /// has been tried.
    pub(crate) fn checkpoint_is_due(&self) -> bool {
        let mut progress = self.progress.lock();
        let enough = CHECKPOINT_BYTES.max(progress.checkpoint.as_ref().map_or(0, |saved| saved.bytes));
        let due = progress.bytes_since >= enough || progress.entries_since >= CHECKPOINT_ENTRIES;
        if !due || progress.checkpointing || progress.not_before.is_some_and(|at| Instant::now() < at) {
            return false;
        }
        progress.checkpointing = true;
        true
    }

    pub(crate) fn saved_checkpoint(&self) -> Option<Saved> {
        self.progress.lock().checkpoint.clone()
    }

    /// Writes the state as it is now into a checkpoint. Blocks; durable when it returns.
    pub(crate) fn save(&self) -> io::Result<()> {
        let retired = self.retired.lock();
        if *retired {
            return Err(io::Error::other("the replica is closed"));
        }
        let captured = {
            // Held over both, so that image and position belong together. Capturing is cheap.
            let progress = self.progress.lock();
            let (applied, image) = (progress.applied, self.space.image());
            (applied, progress.membership.clone(), image, progress.entries_since, progress.bytes_since)
        };
        let (Some(applied), membership, image, entries, bytes) = captured else {
            return Err(io::Error::other("nothing is applied yet"));
        };
        let checkpoint = Checkpoint { applied, membership, image: image.encode() };
        let saved = self.checkpoints.save(self.tenant, &checkpoint);
        let mut progress = self.progress.lock();
        progress.checkpointing = false;
        if let Err(error) = saved {
            progress.not_before = Some(Instant::now() + CHECKPOINT_RETRY);
            return Err(error);
        }
        progress.not_before = None;
        progress.entries_since = progress.entries_since.saturating_sub(entries);
        progress.bytes_since = progress.bytes_since.saturating_sub(bytes);
        let bytes = checkpoint.image.len() as u64;
        progress.checkpoint = Some(Saved { applied, membership: checkpoint.membership, bytes });
        Ok(())
    }

    /// Waits for a checkpoint that is being written, and lets no other begin. Blocks.
    pub(crate) fn retire(&self) {
        *self.retired.lock() = true;
    }

    /// Replaces the state by a peer's. Blocks; durable when it returns.
    pub(crate) fn install(&self, generation: u64, checkpoint: &Checkpoint) -> io::Result<()> {
        let retired = self.retired.lock();
        if *retired {
            return Err(io::Error::other("the replica is closed"));
        }
        let mut progress = self.progress.lock();
        if progress.generation != generation {
            return Err(io::Error::other("this opening of the group has ended"));
        }
        self.checkpoints.save(self.tenant, checkpoint)?;
        self.space.install(&checkpoint.image).map_err(io::Error::other)?;
        progress.applied = Some(checkpoint.applied);
        progress.membership = checkpoint.membership.clone();
        progress.checkpoint = Some(Saved {
            applied: checkpoint.applied,
            membership: checkpoint.membership.clone(),
            bytes: checkpoint.image.len() as u64,
        });
        progress.entries_since = 0;
        progress.bytes_since = 0;
        self.reached.send_replace(checkpoint.applied.index + 1);
        Ok(())
    }
}

pub(crate) fn group_of(tenant: TenantId) -> GroupId {
    GroupId(*tenant.as_uuid().as_bytes())
}

pub(crate) fn tenant_of(group: GroupId) -> TenantId {
    TenantId::from_uuid(uuid::Uuid::from_bytes(group.0))
}
