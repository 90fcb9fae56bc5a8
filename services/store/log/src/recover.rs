//! Reading the whole log at open.
//!
//! Segments are replayed in order into an index. A bad frame in the last segment, with nothing after it
//! that proves it had been synced, is the torn tail of a batch nobody was told about: the log ends there.
//! Anywhere else it is damage to acknowledged data, and open says so instead of guessing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use crate::files::Files;
use crate::frame::{self, GroupId, Kind};
use crate::index::{Group, Index, Note, Place, Position, Slot};
use crate::segment::{self, Segment};
use crate::{LogConfig, LogError};

pub(crate) struct Recovered {
    pub(crate) index: Index,
    pub(crate) tail: Option<Tail>,
}

/// Where writing goes on.
pub(crate) struct Tail {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u32,
    /// The segment has its end mark already.
    pub(crate) sealed: bool,
    /// Higher than any batch ever written, torn ones included: leftovers behind a torn tail must never
    /// look like a continuation of what is written over it.
    pub(crate) next_batch: u64,
}

pub(crate) fn recover(files: &dyn Files, config: LogConfig) -> Result<Recovered, LogError> {
    let list_error = |error| LogError::io("list", files.path(""), error);
    let mut numbers = Vec::new();
    for name in files.list().map_err(list_error)? {
        if let Some(number) = segment::number_of(&name) {
            numbers.push(number);
        } else if segment::is_leftover(&name) {
            files.remove(&name).map_err(|error| LogError::io("remove", files.path(&name), error))?;
        }
    }
    numbers.sort_unstable();
    for pair in numbers.windows(2) {
        if pair[0] + 1 != pair[1] {
            let path = files.path(&segment::name(pair[0] + 1));
            return Err(LogError::Corrupt { path, offset: 0, reason: "the segment is missing".into() });
        }
    }
    let mut replay = Replay::default();
    let mut tail = None;
    let mut bytes = vec![0; config.segment_bytes as usize];
    for (place, number) in numbers.iter().enumerate() {
        let segment = Arc::new(Segment::open(files, *number)?);
        replay.index.segments.insert(*number, segment.clone());
        let io = |error| LogError::io("read", &segment.path, error);
        let length = usize::try_from(segment.file.length().map_err(io)?).unwrap_or(usize::MAX);
        // Frame offsets have 32 bits; a longer file is none of ours.
        if length > u32::MAX as usize {
            let (path, reason) = (segment.path.clone(), "it is longer than any segment".to_owned());
            return Err(LogError::Corrupt { path, offset: 0, reason });
        }
        // A segment has its full length, synced, before it has its name: a shorter one lost its end since, and
        // what was acknowledged there would otherwise look like a tail that never was.
        if length < config.segment_bytes as usize {
            let reason = format!("it is {length} bytes long, {} were allocated", config.segment_bytes);
            return Err(LogError::Corrupt { path: segment.path.clone(), offset: length as u64, reason });
        }
        bytes.resize(length, 0);
        let read = segment.file.read_at(0, &mut bytes).map_err(io)?;
        bytes.truncate(read);
        let last = place + 1 == numbers.len();
        let (offset, sealed) = replay.segment(&segment, &bytes, last)?;
        tail = Some(Tail { segment, offset, sealed, next_batch: 0 });
    }
    let next_batch = replay.newest_batch + 1;
    if let Some(tail) = &mut tail {
        tail.next_batch = next_batch;
    }
    Ok(Recovered { index: replay.finish(), tail })
}

#[derive(Default)]
struct Replay {
    index: Index,
    groups: HashMap<GroupId, Draft>,
    /// The batch of the last frame that was taken.
    batch: u64,
    newest_batch: u64,
}

/// A group while its history is read; entries may come in any order, since old ones are copied forward.
#[derive(Default)]
struct Draft {
    entries: BTreeMap<u64, Slot>,
    purged: Option<(Position, Slot)>,
    notes: BTreeMap<u8, Note>,
}

impl Replay {
    /// Takes one segment's frames; says where they end and whether by an end mark.
    fn segment(&mut self, segment: &Segment, bytes: &[u8], last: bool) -> Result<(u32, bool), LogError> {
        let mut at = segment::HEADER;
        let reason = loop {
            let (header, body) = match frame::read(&bytes[at.min(bytes.len())..], segment.seed) {
                Ok(found) => found,
                Err(reason) => break reason,
            };
            if header.batch < self.batch {
                break "a frame older than its predecessor";
            }
            self.batch = header.batch;
            self.newest_batch = self.newest_batch.max(header.batch);
            let size = frame::size_of(body.len());
            if header.kind == Kind::End {
                return Ok(((at + size) as u32, true));
            }
            let slot = Slot {
                term: header.term,
                place: Place::Disk { segment: segment.number, offset: at as u32 },
                size: size as u32,
            };
            self.apply(&header, slot, body);
            at += size;
        };
        let corrupt = |why: &str| LogError::Corrupt {
            path: segment.path.clone(),
            offset: at as u64,
            reason: format!("{reason}, {why}"),
        };
        if !last {
            return Err(corrupt("and later segments exist"));
        }
        let rest = &bytes[at.min(bytes.len())..];
        for (_, header) in frame::scan(rest, segment.seed) {
            self.newest_batch = self.newest_batch.max(header.batch);
            if header.batch_start as usize > at {
                return Err(corrupt("and later frames say that it was synced"));
            }
        }
        Ok((at as u32, false))
    }

    fn apply(&mut self, header: &frame::Header, slot: Slot, body: &[u8]) {
        let draft = self.groups.entry(header.group).or_default();
        match header.kind {
            Kind::Entry => {
                draft.entries.insert(header.index, slot);
            }
            Kind::Note => {
                let note = Note { value: Bytes::copy_from_slice(body), slot };
                draft.notes.insert(header.index as u8, note);
            }
            Kind::Truncate => {
                draft.entries.split_off(&header.index);
            }
            Kind::Purge => {
                draft.entries = draft.entries.split_off(&(header.index.saturating_add(1)));
                draft.purged = Some((Position { term: header.term, index: header.index }, slot));
            }
            Kind::Remove => {
                self.groups.remove(&header.group);
            }
            Kind::End => {}
        }
    }

    fn finish(mut self) -> Index {
        for (id, draft) in self.groups {
            let purged = draft.purged.map(|(position, _)| position);
            let first = purged.map_or(0, |position| position.index + 1);
            let mut group = Group { first, purged: draft.purged, notes: draft.notes, ..Group::default() };
            for (expected, (index, slot)) in (first..).zip(draft.entries) {
                if expected != index {
                    group.hole = Some(expected);
                    break;
                }
                group.bytes += u64::from(slot.size);
                group.entries.push_back(slot);
            }
            let notes = group.notes.values().map(|note| &note.slot);
            let mark = group.purged.iter().map(|(_, slot)| slot);
            for slot in group.entries.iter().chain(notes).chain(mark) {
                if let Place::Disk { segment, .. } = slot.place
                    && let Some(segment) = self.index.segments.get(&segment)
                {
                    segment.add_live(slot.size as usize);
                }
            }
            self.index.groups.insert(id, group);
        }
        self.index
    }
}
