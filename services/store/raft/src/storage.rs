//! The log and the state machine, as openraft wants to see them.
//!
//! Both are thin: entries live in the cell's shared log, state in [`Replica`].

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use futures::{Stream, TryStreamExt};
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::storage::{EntryResponder, IOFlushed, RaftLogReader, RaftLogStorage, RaftStateMachine};
use openraft::{LogState, OptionalSend, RaftSnapshotBuilder};
use store_log::{Change, LogError, Record, Urgency};
use store_mvcc::Writer;

use crate::checkpoint::Checkpoint;
use crate::replica::{Replica, Saved};
use crate::types::{Entry, LogId, StoredMembership, Types, Vote, log_id, position};
use crate::{codec, note};

/// The group's part of the shared log.
#[derive(Clone)]
pub(crate) struct LogStore {
    pub(crate) replica: Arc<Replica>,
}

impl LogStore {
    fn submit(&self, change: Change) -> io::Result<()> {
        // The order within a group is kept, so whatever depends on this is durable no earlier.
        self.replica
            .log
            .submit(self.replica.group, vec![change], Urgency::Soon, |_| {})
            .map_err(LogError::into_io)
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let from = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(index) => index.saturating_add(1),
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        if let Some(entries) = self.replica.recent(from, to) {
            return Ok(entries);
        }
        let records = self.replica.log.read(self.replica.group, from..to).map_err(LogError::into_io)?;
        let decode =
            |record: &Record| codec::decode_entry(record.position, &record.body).map_err(io::Error::other);
        records.iter().map(decode).collect()
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        self.replica.vote()
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let state =
            self.replica.log.state(self.replica.group).map_err(LogError::into_io)?.unwrap_or_default();
        let last_purged_log_id = state.purged.map(log_id);
        Ok(LogState { last_purged_log_id, last_log_id: state.last.map(log_id).or(last_purged_log_id) })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let change = Change::Note { slot: note::VOTE, value: codec::encode_vote(vote) };
        self.replica.log.commit(self.replica.group, vec![change]).await.map_err(LogError::into_io)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        // With no other voter the end of the log says the same.
        if self.replica.is_sole_voter() {
            return Ok(());
        }
        let mut to = Writer::default();
        codec::write_position(&mut to, committed.as_ref().map(position));
        self.submit(Change::Note { slot: note::COMMITTED, value: to.finish().into() })
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        if self.replica.is_sole_voter() {
            return Ok(self.get_log_state().await?.last_log_id);
        }
        Ok(self.replica.saved_committed().map_err(io::Error::other)?.map(log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let changes = entries
            .iter()
            .map(|entry| {
                let position = position(&entry.log_id);
                Change::Append(Record { position, body: codec::encode_payload(&entry.payload) })
            })
            .collect();
        self.replica.remember(&entries);
        let done =
            move |result: Result<(), LogError>| callback.io_completed(result.map_err(LogError::into_io));
        self.replica.log.submit(self.replica.group, changes, Urgency::Now, done).map_err(LogError::into_io)
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let from = last.map_or(0, |log_id| log_id.index() + 1);
        self.replica.forget_from(from);
        self.submit(Change::TruncateFrom(from))
    }

    async fn purge(&mut self, to: LogId) -> Result<(), io::Error> {
        self.submit(Change::PurgeTo(position(&to)))
    }
}

/// The key space, during one opening of Raft.
pub(crate) struct Machine {
    pub(crate) replica: Arc<Replica>,
    pub(crate) generation: u64,
}

/// What a snapshot is sent as: the checkpoint on this disk, or one that a peer has sent.
pub(crate) enum Parcel {
    Stored(Arc<Replica>),
    Received(Box<Checkpoint>),
}

impl Parcel {
    /// The checkpoint itself. Blocks when it has to be read.
    pub(crate) fn open(self) -> io::Result<Checkpoint> {
        match self {
            Parcel::Received(checkpoint) => Ok(*checkpoint),
            Parcel::Stored(replica) => replica
                .checkpoints
                .load(replica.tenant)
                .map_err(io::Error::other)?
                .ok_or_else(|| io::ErrorKind::NotFound.into()),
        }
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = Parcel;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let (applied, membership) = self.replica.applied_state();
        Ok((applied.map(log_id), membership))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let reply = self.replica.apply(self.generation, &entry)?;
            if let Some(responder) = responder {
                responder.send(reply);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder { replica: self.replica.clone() }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Types>,
        snapshot: Parcel,
    ) -> Result<(), io::Error> {
        let replica = self.replica.clone();
        let generation = self.generation;
        let expected = meta.last_log_id.as_ref().map(position);
        blocking(move || {
            let checkpoint = snapshot.open()?;
            if Some(checkpoint.applied) != expected {
                return Err(io::Error::other("the snapshot is not of the announced position"));
            }
            replica.install(generation, &checkpoint)
        })
        .await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<Types, Parcel>>, io::Error> {
        Ok(self.replica.saved_checkpoint().map(|saved| stored(&self.replica, saved)))
    }
}

/// Hands openraft the checkpoint that is on disk.
///
/// It writes none, if it can help it: members write checkpoints before they tell openraft of them, since a
/// builder that fails, for want of disk say, ends the whole group.
pub(crate) struct Builder {
    replica: Arc<Replica>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = Parcel;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<Types, Parcel>, io::Error> {
        if self.replica.saved_checkpoint().is_none() {
            save(&self.replica).await?;
        }
        let saved =
            self.replica.saved_checkpoint().ok_or_else(|| io::Error::other("the checkpoint is gone"))?;
        Ok(stored(&self.replica, saved))
    }
}

fn stored(replica: &Arc<Replica>, saved: Saved) -> SnapshotOf<Types, Parcel> {
    let meta = SnapshotMetaOf::<Types> {
        last_log_id: Some(log_id(saved.applied)),
        last_membership: saved.membership,
    };
    SnapshotOf::<Types, Parcel> { meta, snapshot: Parcel::Stored(replica.clone()) }
}

/// The snapshot that a peer has sent.
pub(crate) fn received(checkpoint: Checkpoint) -> SnapshotOf<Types, Parcel> {
    let meta = SnapshotMetaOf::<Types> {
        last_log_id: Some(log_id(checkpoint.applied)),
        last_membership: checkpoint.membership.clone(),
    };
    SnapshotOf::<Types, Parcel> { meta, snapshot: Parcel::Received(Box::new(checkpoint)) }
}

/// Writes a checkpoint of the state as it is now.
pub(crate) async fn save(replica: &Arc<Replica>) -> io::Result<()> {
    let replica = replica.clone();
    blocking(move || replica.save()).await
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
