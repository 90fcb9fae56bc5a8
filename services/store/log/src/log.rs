//! The handle: what groups submit, read and ask.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{oneshot, watch};

use crate::files::Files;
use crate::frame::{self, GroupId, Kind};
use crate::index::{GroupState, Index, Place, Position, Settled};
use crate::recover;
use crate::segment::Segment;
use crate::writer::{self, Writer};
use crate::{Failure, LogError};

/// Sizes of the log.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    /// Bytes of one segment. Also set aside a second time, as the reserve from which deletes are written
    /// when the disk is full.
    pub segment_bytes: u32,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { segment_bytes: 32 << 20 }
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub position: Position,
    pub body: Bytes,
}

/// One step in a group's log.
#[derive(Clone, Debug)]
pub enum Change {
    /// Must be the group's next entry ([`GroupState::next_index`]).
    Append(Record),
    /// Sets a small value (a vote, say) of which only the newest counts.
    Note { slot: u8, value: Bytes },
    /// Entries from this index on are gone.
    TruncateFrom(u64),
    /// Entries up to this one are gone; they may be more than the log has.
    PurgeTo(Position),
    /// The group is gone, with everything it had.
    Remove,
}

/// How soon a change has to be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// With the next sync.
    Now,
    /// With the next sync that somebody else pays for, or after a second.
    Soon,
}

/// Counters since open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub syncs: u64,
    pub frames: u64,
    pub bytes: u64,
    /// Bytes that were written again to free a segment.
    pub copied_bytes: u64,
    pub segments: u64,
    pub live_bytes: u64,
}

pub(crate) type Done = Box<dyn FnOnce(Result<(), LogError>) + Send>;

/// One frame on its way to the disk.
pub(crate) struct Draft {
    pub(crate) kind: Kind,
    pub(crate) group: GroupId,
    pub(crate) term: u64,
    pub(crate) index: u64,
    pub(crate) body: Bytes,
    /// Which record of the index this is, and where the index thinks it is now.
    pub(crate) record: Option<(Settled, Place)>,
}

pub(crate) struct Work {
    pub(crate) drafts: Vec<Draft>,
    pub(crate) done: Option<Done>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) index: Index,
    pub(crate) queue: VecDeque<Work>,
    /// Whether something in the queue is [`Urgency::Now`].
    pub(crate) urgent: bool,
    pub(crate) closing: bool,
    /// The disk gave no room for a reserve: writes that grow are not welcome.
    pub(crate) short_of_space: bool,
    pub(crate) failed: Option<Arc<Failure>>,
    pub(crate) stats: Stats,
}

pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    pub(crate) wake: Condvar,
    pub(crate) failure: watch::Sender<Option<Arc<Failure>>>,
    pub(crate) config: LogConfig,
}

/// A handle on the log. Cheap to clone; the last one to go stops the writer.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
    thread: Arc<WriterThread>,
}

struct WriterThread {
    shared: Arc<Shared>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Opens the log in `files`: reads all of it, cuts off a torn tail, refuses damage, starts the writer.
    pub fn open(files: Arc<dyn Files>, config: LogConfig) -> Result<Log, LogError> {
        let recovered = recover::recover(&*files, config)?;
        let (failure, _) = watch::channel(None);
        let state = State { index: recovered.index, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new(), failure, config });
        let writer = Writer::new(shared.clone(), files, recovered.tail)?;
        let watched = shared.clone();
        let handle = std::thread::Builder::new()
            .name("store-log".into())
            .spawn(move || {
                let _told = TellOnPanic(watched);
                writer.run();
            })
            .map_err(|error| LogError::io("start the writer of", "the log", error))?;
        let thread = WriterThread { shared: shared.clone(), handle: Mutex::new(Some(handle)) };
        Ok(Log { shared, thread: Arc::new(thread) })
    }

    /// Every group that the log knows.
    pub fn groups(&self) -> Vec<GroupId> {
        let mut groups: Vec<GroupId> = self.shared.state.lock().index.groups.keys().copied().collect();
        groups.sort();
        groups
    }

    /// What there is of a group; `None` when the log has never heard of it.
    pub fn state(&self, group: GroupId) -> Result<Option<GroupState>, LogError> {
        Ok(self.shared.state.lock().index.group(group)?.map(|group| group.state()))
    }

    /// The newest value of a note.
    pub fn note(&self, group: GroupId, slot: u8) -> Option<Bytes> {
        let state = self.shared.state.lock();
        Some(state.index.groups.get(&group)?.notes.get(&slot)?.value.clone())
    }

    /// Queues changes of one group, in order; `done` is called from the writer's thread once they are
    /// durable, or never will be. An error means that nothing was queued and `done` is not called.
    ///
    /// A crash may keep only the first few of the changes.
    pub fn submit(
        &self,
        group: GroupId,
        changes: Vec<Change>,
        urgency: Urgency,
        done: impl FnOnce(Result<(), LogError>) + Send + 'static,
    ) -> Result<(), LogError> {
        let mut state = self.shared.state.lock();
        if let Some(failure) = &state.failed {
            return Err(LogError::Failed(failure.clone()));
        }
        if state.closing {
            return Err(LogError::Closed);
        }
        self.check(&state.index, group, &changes)?;
        let drafts = changes.into_iter().map(|change| draft(&mut state.index, group, change)).collect();
        state.queue.push_back(Work { drafts, done: Some(Box::new(done)) });
        state.urgent |= urgency == Urgency::Now;
        drop(state);
        self.shared.wake.notify_one();
        Ok(())
    }

    /// [`Log::submit`], waiting for durability.
    pub async fn commit(&self, group: GroupId, changes: Vec<Change>) -> Result<(), LogError> {
        let (sender, receiver) = oneshot::channel();
        self.submit(group, changes, Urgency::Now, move |result| {
            // Whoever asked may have gone away.
            let _ = sender.send(result);
        })?;
        receiver.await.unwrap_or(Err(LogError::Closed))
    }

    /// Entries with indexes in `range` that the log has, in order, without a hole.
    pub fn read(&self, group: GroupId, range: Range<u64>) -> Result<Vec<Record>, LogError> {
        let mut records = Vec::new();
        let mut next = range.start;
        loop {
            let wanted = self.places(group, next..range.end)?;
            let Some((first, _, _)) = wanted.first() else { return Ok(records) };
            // A purge may have taken the beginning away; never the middle.
            if !records.is_empty() && first.index != next {
                return Ok(records);
            }
            for (position, source, moved_from) in wanted {
                let body = match source {
                    Source::Memory(body) => body,
                    Source::Disk(segment, offset) => match read_entry(&segment, offset, group, position) {
                        Ok(body) => body,
                        Err(error) => {
                            // The segment may have been freed between looking and reading.
                            let still = self.places(group, position.index..position.index + 1)?;
                            if still.first().is_some_and(|(_, _, place)| *place == moved_from) {
                                return Err(error);
                            }
                            break;
                        }
                    },
                };
                next = position.index + 1;
                records.push(Record { position, body });
            }
        }
    }

    /// Bytes that the body of one record may have at most.
    pub fn record_limit(&self) -> usize {
        self.shared.config.segment_bytes as usize / 2
    }

    /// Whether writes that grow are welcome. When not, the disk is full and only the reserve is left:
    /// deletes are fine. Turns back by itself when there is room.
    pub fn accepting(&self) -> bool {
        !self.shared.state.lock().short_of_space
    }

    /// Becomes something when the log has failed for good.
    pub fn failure(&self) -> watch::Receiver<Option<Arc<Failure>>> {
        self.shared.failure.subscribe()
    }

    pub fn stats(&self) -> Stats {
        let state = self.shared.state.lock();
        Stats {
            segments: state.index.segments.len() as u64,
            live_bytes: state.index.live_bytes(),
            ..state.stats
        }
    }

    /// Writes what is queued and stops. Blocks; what is submitted later gets [`LogError::Closed`].
    pub fn close(&self) {
        self.thread.stop();
    }

    fn check(&self, index: &Index, group: GroupId, changes: &[Change]) -> Result<(), LogError> {
        let limit = self.record_limit();
        let mut state = index.group(group)?.map(|group| group.state()).unwrap_or_default();
        let mut first = index.groups.get(&group).map_or(0, |group| group.first);
        for change in changes {
            match change {
                Change::Append(Record { position, body }) => {
                    if body.len() > limit {
                        return Err(LogError::TooLarge { length: body.len(), limit });
                    }
                    let expected = state.next_index();
                    if position.index != expected {
                        return Err(LogError::Gap { group, expected, given: position.index });
                    }
                    if state.last.is_none() {
                        first = position.index;
                    }
                    state.last = Some(*position);
                }
                Change::Note { value, .. } => {
                    if value.len() > limit {
                        return Err(LogError::TooLarge { length: value.len(), limit });
                    }
                }
                Change::TruncateFrom(from) => {
                    // The term does not matter for what may come next.
                    state.last = state.last.and_then(|last| match from.checked_sub(1) {
                        Some(before) if before >= first => {
                            Some(Position { index: last.index.min(before), ..last })
                        }
                        _ => None,
                    });
                }
                Change::PurgeTo(position) => {
                    state.purged = Some(*position);
                    state.last = state.last.filter(|last| last.index > position.index);
                }
                Change::Remove => state = GroupState::default(),
            }
        }
        Ok(())
    }

    fn places(&self, group: GroupId, range: Range<u64>) -> Result<Vec<(Position, Source, Place)>, LogError> {
        let state = self.shared.state.lock();
        let Some(found) = state.index.group(group)? else { return Ok(Vec::new()) };
        let from = range.start.max(found.first);
        let to = range.end.min(found.first + found.entries.len() as u64);
        let mut places = Vec::with_capacity(to.saturating_sub(from) as usize);
        for index in from..to {
            let Some(slot) = found.slot(index) else { break };
            let source = match slot.place {
                Place::Queued(ticket) => match found.queued.get(&ticket) {
                    Some(body) => Source::Memory(body.clone()),
                    None => break,
                },
                Place::Disk { segment, offset } => match state.index.segments.get(&segment) {
                    Some(segment) => Source::Disk(segment.clone(), offset),
                    None => break,
                },
            };
            places.push((Position { term: slot.term, index }, source, slot.place));
        }
        Ok(places)
    }
}

enum Source {
    Memory(Bytes),
    Disk(Arc<Segment>, u32),
}

fn draft(index: &mut Index, group: GroupId, change: Change) -> Draft {
    let plain = |kind, term, at, body, record| Draft { kind, group, term, index: at, body, record };
    match change {
        Change::Append(Record { position, body }) => {
            let ticket = index.append(group, position, body.clone());
            let record = Some((Settled::Entry(position.index), Place::Queued(ticket)));
            plain(Kind::Entry, position.term, position.index, body, record)
        }
        Change::Note { slot, value } => {
            let ticket = index.note(group, slot, value.clone());
            let record = Some((Settled::Note(slot), Place::Queued(ticket)));
            plain(Kind::Note, 0, u64::from(slot), value, record)
        }
        Change::TruncateFrom(from) => {
            index.truncate(group, from);
            plain(Kind::Truncate, 0, from, Bytes::new(), None)
        }
        Change::PurgeTo(position) => {
            let ticket = index.purge(group, position);
            let record = Some((Settled::Purge, Place::Queued(ticket)));
            plain(Kind::Purge, position.term, position.index, Bytes::new(), record)
        }
        Change::Remove => {
            index.remove(group);
            plain(Kind::Remove, 0, 0, Bytes::new(), None)
        }
    }
}

/// Reads one entry from its segment and checks that it is the one that was asked for.
pub(crate) fn read_entry(
    segment: &Segment,
    offset: u32,
    group: GroupId,
    position: Position,
) -> Result<Bytes, LogError> {
    let corrupt = |reason: &str| LogError::Corrupt {
        path: segment.path.clone(),
        offset: u64::from(offset),
        reason: reason.to_owned(),
    };
    let io = |error| LogError::io("read", &segment.path, error);
    let offset_bytes = u64::from(offset);
    let mut head = [0; frame::HEADER];
    if segment.file.read_at(offset_bytes, &mut head).map_err(io)? < frame::HEADER {
        return Err(corrupt("cut short"));
    }
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let most = segment.file.length().map_err(io)?.saturating_sub(offset_bytes);
    if (frame::HEADER + length) as u64 > most {
        return Err(corrupt("a frame longer than its segment"));
    }
    let mut bytes = vec![0; frame::HEADER + length];
    if segment.file.read_at(offset_bytes, &mut bytes).map_err(io)? < bytes.len() {
        return Err(corrupt("cut short"));
    }
    let (header, body) = frame::read(&bytes, segment.seed).map_err(corrupt)?;
    if (header.kind, header.group, header.term, header.index)
        != (Kind::Entry, group, position.term, position.index)
    {
        return Err(corrupt("another record than the one expected here"));
    }
    Ok(Bytes::copy_from_slice(body))
}

/// A writer that panicked must not leave everybody waiting for it.
struct TellOnPanic(Arc<Shared>);

impl Drop for TellOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            writer::fail(&self.0, "the writer of the log".into(), 0, std::io::Error::other("it panicked"));
        }
    }
}

impl WriterThread {
    fn stop(&self) {
        self.shared.state.lock().closing = true;
        self.shared.wake.notify_one();
        let Some(handle) = self.handle.lock().take() else { return };
        // The last handle may be dropped by a callback on the writer's own thread.
        if handle.thread().id() != std::thread::current().id() && handle.join().is_err() {
            tracing::error!("the log's writer panicked");
        }
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.stop();
    }
}
