//! The one thread that writes.
//!
//! It takes all that is queued (up to a limit), writes it in one piece, syncs, tells the index where
//! everything went, and calls those who wait. Between batches it frees old segments and keeps a spare one.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::files::Files;
use crate::frame::{self, GroupId, Header, Kind};
use crate::index::{Live, Place, Position, Settled};
use crate::log::{Done, Draft, Shared, State, Work, read_entry};
use crate::recover::Tail;
use crate::segment::{self, Segment, Spare};
use crate::{Failure, LogError};

/// Bytes written between two syncs, about. More would make the first in line wait for strangers.
const BATCH_BYTES: usize = 4 << 20;
/// Between two looks for room on a full disk, and between lazy syncs.
const RETRY: Duration = Duration::from_millis(200);
const LAZY_SYNC: Duration = Duration::from_secs(1);
/// Segments kept however little of them is of use; freeing them would cost more than it gives.
const SEGMENTS_ALLOWED: u64 = 4;
const END_SIZE: usize = frame::size_of(0);

pub(crate) struct Writer {
    shared: Arc<Shared>,
    files: Arc<dyn Files>,
    active: Option<Active>,
    spare: Option<Spare>,
    /// Whether a file is put aside to become the next spare.
    free: bool,
    /// Turned off when a live record proved unreadable: freeing its segment would make that final.
    collecting: bool,
    next_number: u32,
    next_batch: u64,
    buffer: Vec<u8>,
    /// Frames in the buffer.
    frames: u64,
    lazy_since: Option<Instant>,
}

struct Active {
    segment: Arc<Segment>,
    offset: u32,
}

/// Records of the batch in hand, in the order of their frames: which, and where in the segment.
type Written = Vec<(GroupId, Settled, Place, u32)>;

impl Writer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        files: Arc<dyn Files>,
        tail: Option<Tail>,
    ) -> Result<Writer, LogError> {
        let mut writer = Writer {
            shared,
            files,
            active: None,
            spare: None,
            free: false,
            collecting: true,
            frames: 0,
            next_number: 1,
            next_batch: 1,
            buffer: Vec::new(),
            lazy_since: None,
        };
        if let Some(tail) = tail {
            writer.next_number = tail.segment.number + 1;
            writer.next_batch = tail.next_batch;
            if !tail.sealed {
                writer.active = Some(Active { segment: tail.segment, offset: tail.offset });
            }
        }
        if writer.active.is_none() {
            writer.find_spare();
            writer.try_advance()?;
        }
        writer.find_spare();
        Ok(writer)
    }

    pub(crate) fn run(mut self) {
        while let Some(batch) = self.next_batch() {
            // Whoever waited has been told, and the log is marked as failed.
            if self.write_batch(batch).and_then(|()| self.collect()).is_err() {
                break;
            }
            self.find_spare();
        }
        // Whoever is still in the queue came too late.
        let mut state = self.shared.state.lock();
        state.closing = true;
        let failed = state.failed.clone();
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        for done in queue.into_iter().filter_map(|work| work.done) {
            done(Err(failed.clone().map_or(LogError::Closed, LogError::Failed)));
        }
    }

    /// Waits for work; `None` when the log is closing and everything is written.
    fn next_batch(&mut self) -> Option<Vec<Work>> {
        let shared = self.shared.clone();
        let mut state = shared.state.lock();
        loop {
            if !state.queue.is_empty() {
                let since = *self.lazy_since.get_or_insert_with(Instant::now);
                if state.urgent || state.closing || since.elapsed() >= LAZY_SYNC {
                    self.lazy_since = None;
                    return Some(take_batch(&mut state));
                }
            } else if state.closing {
                return None;
            }
            let timeout = match self.lazy_since {
                Some(since) => LAZY_SYNC.saturating_sub(since.elapsed()),
                None if state.short_of_space => RETRY,
                None => {
                    shared.wake.wait(&mut state);
                    continue;
                }
            };
            if shared.wake.wait_for(&mut state, timeout).timed_out() && state.short_of_space {
                drop(state);
                self.find_spare();
                state = shared.state.lock();
            }
        }
    }

    fn write_batch(&mut self, batch: Vec<Work>) -> Result<(), Arc<Failure>> {
        let mut waiting: Vec<Done> = Vec::with_capacity(batch.len());
        let mut drafts = Vec::with_capacity(batch.len());
        for work in batch {
            drafts.extend(work.drafts);
            waiting.extend(work.done);
        }
        let outcome = self.write_drafts(drafts);
        for done in waiting {
            done(outcome.clone().map_err(LogError::Failed));
        }
        outcome
    }

    fn write_drafts(&mut self, drafts: Vec<Draft>) -> Result<(), Arc<Failure>> {
        let mut written: Written = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let size = frame::size_of(draft.body.len());
            let room = match &self.active {
                Some(active) => {
                    let used = active.offset as usize + self.buffer.len();
                    (self.shared.config.segment_bytes as usize).saturating_sub(used + END_SIZE)
                }
                None => 0,
            };
            if size > room {
                self.seal(&mut written)?;
            } else if self.buffer.len() >= BATCH_BYTES {
                self.flush(&mut written)?;
            }
            let offset = self.push(draft.kind, draft.group, draft.term, draft.index, &draft.body);
            if let Some((what, was)) = draft.record {
                written.push((draft.group, what, was, offset));
            }
        }
        self.flush(&mut written)
    }

    /// Appends a frame to the buffer; returns where in the active segment it will be.
    fn push(&mut self, kind: Kind, group: GroupId, term: u64, index: u64, body: &[u8]) -> u32 {
        let active = self.active.as_ref().expect("sealing leaves an active segment");
        let offset = active.offset + self.buffer.len() as u32;
        let header = Header { kind, group, term, index, batch: self.next_batch, batch_start: active.offset };
        frame::write(&mut self.buffer, active.segment.seed, &header, body);
        self.frames += 1;
        offset
    }

    /// Writes the buffer, syncs, and settles the records in it.
    fn flush(&mut self, written: &mut Written) -> Result<(), Arc<Failure>> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let active = self.active.as_mut().expect("frames were pushed for it");
        let shared = self.shared.clone();
        let failure = |source| fail(&shared, active.segment.path.clone(), active.offset, source);
        loop {
            match active.segment.file.write_at(u64::from(active.offset), &self.buffer) {
                Ok(()) => break,
                // Some file systems find room only now. Nothing is synced, so the same write may be tried
                // again; those who wait, wait.
                Err(error) if is_full(&error) && !self.shared.state.lock().closing => {
                    self.shared.state.lock().short_of_space = true;
                    std::thread::sleep(RETRY);
                }
                Err(error) => return Err(failure(error)),
            }
        }
        active.segment.file.sync().map_err(failure)?;
        let mut state = self.shared.state.lock();
        state.stats.syncs += 1;
        state.stats.frames += std::mem::take(&mut self.frames);
        state.stats.bytes += self.buffer.len() as u64;
        for (group, what, was, offset) in written.drain(..) {
            state.index.settle(group, what, was, &active.segment, offset);
        }
        drop(state);
        active.offset += self.buffer.len() as u32;
        self.next_batch += 1;
        self.buffer.clear();
        // One huge batch must not keep its memory for good.
        self.buffer.shrink_to(BATCH_BYTES / 4);
        Ok(())
    }

    /// Ends the active segment, durably, and goes on in the next.
    fn seal(&mut self, written: &mut Written) -> Result<(), Arc<Failure>> {
        if self.active.is_some() {
            self.push(Kind::End, GroupId([0; 16]), 0, 0, &[]);
            self.flush(written)?;
            self.active = None;
        }
        loop {
            self.find_spare();
            match self.try_advance() {
                Ok(()) if self.active.is_some() => return Ok(()),
                Ok(()) => {}
                Err(error) => {
                    let path = self.files.path(&segment::name(self.next_number));
                    return Err(fail(&self.shared, path, 0, error.into_io()));
                }
            }
            // Even the reserve is used up. Nothing can be acknowledged until there is room.
            if self.shared.state.lock().closing {
                let path = self.files.path(&segment::name(self.next_number));
                return Err(fail(&self.shared, path, 0, io::ErrorKind::StorageFull.into()));
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Makes the spare the active segment, if there is one.
    fn try_advance(&mut self) -> Result<(), LogError> {
        let Some(spare) = self.spare.take() else { return Ok(()) };
        let segment = spare.take_into_use(&*self.files).map_err(|error| {
            LogError::io("begin", self.files.path(&segment::name(self.next_number)), error)
        })?;
        let segment = Arc::new(segment);
        self.next_number += 1;
        self.shared.state.lock().index.segments.insert(segment.number, segment.clone());
        self.active = Some(Active { segment, offset: segment::HEADER as u32 });
        Ok(())
    }

    /// Sets the next segment aside, so that running out of disk is known before it hurts.
    fn find_spare(&mut self) {
        if self.spare.is_none() {
            let size = u64::from(self.shared.config.segment_bytes);
            let salt = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), self.next_number);
            let recycle = std::mem::take(&mut self.free);
            match Spare::prepare(&*self.files, self.next_number, salt, size, recycle) {
                Ok(spare) => self.spare = Some(spare),
                Err(error) => {
                    let mut state = self.shared.state.lock();
                    if !state.short_of_space {
                        tracing::warn!(%error, "no room for another log segment, refusing writes that grow");
                        state.short_of_space = true;
                    }
                    return;
                }
            }
        }
        let mut state = self.shared.state.lock();
        if state.short_of_space {
            tracing::info!("there is room for the log again");
            state.short_of_space = false;
        }
    }

    /// Frees oldest segments while the log is much bigger than what is of use in it.
    fn collect(&mut self) -> Result<(), Arc<Failure>> {
        loop {
            let (oldest, drafts, batch) = {
                let mut state = self.shared.state.lock();
                let Some(oldest) = self.worth_freeing(&state).filter(|_| self.collecting) else {
                    return Ok(());
                };
                let live = state.index.live_in(oldest.number);
                // What is queued goes first: a purge in it made records useless, and must be on the disk
                // before the file that holds them goes.
                let batch = take_all(&mut state);
                (oldest, live, batch)
            };
            let mut copies = Vec::with_capacity(drafts.len());
            for live in drafts {
                match self.copy(&oldest, live) {
                    Ok(copy) => copies.extend(copy),
                    Err(error) => {
                        tracing::error!(%error, "a live record is unreadable, old segments are kept from now on");
                        self.collecting = false;
                    }
                }
            }
            self.write_batch(batch)?;
            if !self.collecting {
                return Ok(());
            }
            let copied: usize = copies.iter().map(|draft| frame::size_of(draft.body.len())).sum();
            self.write_drafts(copies)?;
            let mut state = self.shared.state.lock();
            state.stats.copied_bytes += copied as u64;
            state.index.segments.remove(&oldest.number);
            drop(state);
            self.release(oldest.number);
        }
    }

    fn worth_freeing(&self, state: &State) -> Option<Arc<Segment>> {
        let active = self.active.as_ref()?.segment.number;
        let oldest = state.index.segments.values().next().filter(|segment| segment.number != active)?;
        let size = u64::from(self.shared.config.segment_bytes);
        let total = state.index.segments.len() as u64 * size;
        let useless = oldest.live_bytes.load(Ordering::Relaxed) == 0;
        let bloated = total > 2 * state.index.live_bytes() + SEGMENTS_ALLOWED * size;
        (useless || bloated).then(|| oldest.clone())
    }

    /// The draft that writes a record again. `None` for one whose bytes are of no use any more.
    fn copy(&self, from: &Segment, live: Live) -> Result<Option<Draft>, LogError> {
        let Place::Disk { offset, .. } = live.slot.place else { return Ok(None) };
        let (kind, body) = match live.what {
            Settled::Entry(index) => {
                let position = Position { term: live.slot.term, index };
                (Kind::Entry, read_entry(from, offset, live.group, position)?)
            }
            Settled::Note(_) => (Kind::Note, live.value.unwrap_or_default()),
            Settled::Purge => (Kind::Purge, Bytes::new()),
        };
        Ok(Some(Draft {
            kind,
            group: live.group,
            term: live.slot.term,
            index: live.index,
            body,
            record: Some((live.what, live.slot.place)),
        }))
    }

    fn release(&mut self, number: u32) {
        let released = if self.free {
            self.files.remove(&segment::name(number)).and_then(|()| self.files.sync_directory())
        } else {
            segment::put_aside(&*self.files, number).map(|()| self.free = true)
        };
        if let Err(error) = released {
            // It is read again at the next open, to no effect; but a younger one must not go before it.
            self.collecting = false;
            let path = self.files.path(&segment::name(number));
            tracing::error!(%error, path = %path.display(), "cannot free a log segment, old ones are kept from now on");
        }
    }
}

/// Marks the log as failed, before anybody hears of it, so that whoever asks next gets the same answer.
pub(crate) fn fail(shared: &Shared, path: PathBuf, offset: u32, source: io::Error) -> Arc<Failure> {
    tracing::error!(
        path = %path.display(), offset, error = %source,
        "the log has failed; nothing of this batch was acknowledged and nothing more will be written"
    );
    let failure = Arc::new(Failure { path, offset: u64::from(offset), source });
    let mut state = shared.state.lock();
    state.closing = true;
    state.failed = Some(failure.clone());
    drop(state);
    shared.failure.send_replace(Some(failure.clone()));
    failure
}

fn take_batch(state: &mut State) -> Vec<Work> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    while bytes < BATCH_BYTES
        && let Some(work) = state.queue.pop_front()
    {
        bytes += work.drafts.iter().map(|draft| frame::size_of(draft.body.len())).sum::<usize>();
        batch.push(work);
    }
    // What stays behind may be urgent; treating it so costs one sync at most.
    state.urgent = !state.queue.is_empty();
    batch
}

fn take_all(state: &mut State) -> Vec<Work> {
    state.urgent = false;
    state.queue.drain(..).collect()
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
