//! Where everything of use lies: per group its entries, notes and purge mark.
//!
//! The index changes when work is queued, not when it is durable, so that entries are readable at once;
//! a record's place is [`Place::Queued`] until the writer reports where it put it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::LogError;
use crate::frame::{self, GroupId};
use crate::segment::Segment;

/// One entry's name in its group's history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub term: u64,
    pub index: u64,
}

/// What the log holds of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    /// Everything up to here is gone.
    pub purged: Option<Position>,
    /// The newest entry; `None` when there is none, or all are purged.
    pub last: Option<Position>,
    pub entries: u64,
    /// Bytes of frames of those entries.
    pub bytes: u64,
}

impl GroupState {
    /// The index that the next entry must have.
    pub fn next_index(&self) -> u64 {
        self.last.or(self.purged).map_or(0, |position| position.index + 1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Not written yet; the ticket tells a record from a later one in the same place.
    Queued(u64),
    Disk {
        segment: u32,
        offset: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) term: u64,
    pub(crate) place: Place,
    /// Bytes of the whole frame.
    pub(crate) size: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) value: Bytes,
    pub(crate) slot: Slot,
}

#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) first: u64,
    pub(crate) entries: VecDeque<Slot>,
    pub(crate) bytes: u64,
    pub(crate) purged: Option<(Position, Slot)>,
    pub(crate) notes: BTreeMap<u8, Note>,
    /// Bodies of entries that are not on the disk yet, by ticket.
    pub(crate) queued: HashMap<u64, Bytes>,
    /// The first entry that recovery looked for in vain.
    pub(crate) hole: Option<u64>,
}

impl Group {
    pub(crate) fn state(&self) -> GroupState {
        let last = self
            .entries
            .back()
            .map(|slot| Position { term: slot.term, index: self.first + self.entries.len() as u64 - 1 });
        GroupState {
            purged: self.purged.map(|(position, _)| position),
            last,
            entries: self.entries.len() as u64,
            bytes: self.bytes,
        }
    }

    pub(crate) fn slot(&self, index: u64) -> Option<&Slot> {
        self.entries.get(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn slot_mut(&mut self, index: u64) -> Option<&mut Slot> {
        self.entries.get_mut(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }
}

/// All groups, and the segments their records lie in.
#[derive(Default)]
pub(crate) struct Index {
    pub(crate) groups: HashMap<GroupId, Group>,
    pub(crate) segments: BTreeMap<u32, Arc<Segment>>,
    tickets: u64,
}

impl Index {
    pub(crate) fn group(&self, group: GroupId) -> Result<Option<&Group>, LogError> {
        match self.groups.get(&group) {
            Some(Group { hole: Some(index), .. }) => Err(LogError::Hole { group, index: *index }),
            found => Ok(found),
        }
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    fn forget(&self, slot: &Slot) {
        if let Place::Disk { segment, .. } = slot.place
            && let Some(segment) = self.segments.get(&segment)
        {
            segment.sub_live(slot.size as usize);
        }
    }

    fn forget_all(&self, slots: impl IntoIterator<Item = Slot>) {
        slots.into_iter().for_each(|slot| self.forget(&slot));
    }

    /// Queues an entry behind the newest; returns its ticket. The caller checked that it fits there.
    pub(crate) fn append(&mut self, id: GroupId, position: Position, body: Bytes) -> u64 {
        let ticket = self.ticket();
        let size = frame::size_of(body.len());
        let group = self.groups.entry(id).or_default();
        if group.entries.is_empty() {
            group.first = position.index;
        }
        group.bytes += size as u64;
        group.entries.push_back(Slot {
            term: position.term,
            place: Place::Queued(ticket),
            size: size as u32,
        });
        group.queued.insert(ticket, body);
        ticket
    }

    pub(crate) fn note(&mut self, id: GroupId, place: u8, value: Bytes) -> u64 {
        let ticket = self.ticket();
        let size = frame::size_of(value.len()) as u32;
        let slot = Slot { term: 0, place: Place::Queued(ticket), size };
        let old = self.groups.entry(id).or_default().notes.insert(place, Note { value, slot });
        self.forget_all(old.map(|note| note.slot));
        ticket
    }

    /// Drops entries from `from` on.
    pub(crate) fn truncate(&mut self, id: GroupId, from: u64) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let keep = usize::try_from(from.saturating_sub(group.first)).unwrap_or(usize::MAX);
        let mut gone = Vec::new();
        while group.entries.len() > keep {
            gone.extend(group.entries.pop_back());
        }
        group.dropped(&gone);
        self.forget_all(gone);
    }

    /// Drops entries up to `to`, and remembers that; a purge beyond the newest entry drops all.
    pub(crate) fn purge(&mut self, id: GroupId, to: Position) -> u64 {
        let ticket = self.ticket();
        let group = self.groups.entry(id).or_default();
        let mut gone = Vec::new();
        while group.first <= to.index
            && let Some(slot) = group.entries.pop_front()
        {
            group.first += 1;
            gone.push(slot);
        }
        group.dropped(&gone);
        // The space of what is gone is given back: idle groups are many.
        group.entries.shrink_to(group.entries.len() * 2);
        let slot = Slot { term: to.term, place: Place::Queued(ticket), size: frame::size_of(0) as u32 };
        let old = group.purged.replace((to, slot));
        gone.extend(old.map(|(_, slot)| slot));
        self.forget_all(gone);
        ticket
    }

    pub(crate) fn remove(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        self.forget_all(group.entries.iter().copied());
        self.forget_all(group.notes.values().map(|note| note.slot));
        self.forget_all(group.purged.map(|(_, slot)| slot));
    }

    /// The writer put a record here. Nothing happens when the record is of no use any more.
    pub(crate) fn settle(
        &mut self,
        id: GroupId,
        what: Settled,
        was: Place,
        segment: &Arc<Segment>,
        offset: u32,
    ) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let slot = match what {
            Settled::Entry(index) => group.slot_mut(index),
            Settled::Note(place) => group.notes.get_mut(&place).map(|note| &mut note.slot),
            Settled::Purge => group.purged.as_mut().map(|(_, slot)| slot),
        };
        let wanted = slot.filter(|slot| slot.place == was).map(|slot| {
            slot.place = Place::Disk { segment: segment.number, offset };
            slot.size
        });
        if let Place::Queued(ticket) = was {
            group.queued.remove(&ticket);
            if group.queued.is_empty() {
                group.queued.shrink_to_fit();
            }
        }
        if let Some(size) = wanted {
            segment.add_live(size as usize);
            if let Place::Disk { segment: old, .. } = was
                && let Some(old) = self.segments.get(&old)
            {
                old.sub_live(size as usize);
            }
        }
    }

    /// Every record of use in one segment: what has to be copied forward before the file is free.
    pub(crate) fn live_in(&self, segment: u32) -> Vec<Live> {
        let here = |slot: &Slot| matches!(slot.place, Place::Disk { segment: at, .. } if at == segment);
        let mut live = Vec::new();
        for (id, group) in &self.groups {
            let mut found = |what, slot: &Slot, index, value: Option<&Bytes>| {
                if here(slot) {
                    live.push(Live { group: *id, what, slot: *slot, index, value: value.cloned() });
                }
            };
            for (place, note) in &group.notes {
                found(Settled::Note(*place), &note.slot, u64::from(*place), Some(&note.value));
            }
            if let Some((position, slot)) = &group.purged {
                found(Settled::Purge, slot, position.index, Some(&Bytes::new()));
            }
            for (index, slot) in (group.first..).zip(&group.entries) {
                found(Settled::Entry(index), slot, index, None);
            }
        }
        live
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.segments.values().map(|s| s.live_bytes.load(std::sync::atomic::Ordering::Relaxed)).sum()
    }
}

impl Group {
    fn dropped(&mut self, gone: &[Slot]) {
        for slot in gone {
            self.bytes -= u64::from(slot.size);
            if let Place::Queued(ticket) = slot.place {
                self.queued.remove(&ticket);
            }
        }
    }
}

/// Which record of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Entry(u64),
    Note(u8),
    Purge,
}

/// A record to be copied forward; entries' bodies are still to be read.
pub(crate) struct Live {
    pub(crate) group: GroupId,
    pub(crate) what: Settled,
    pub(crate) slot: Slot,
    pub(crate) index: u64,
    pub(crate) value: Option<Bytes>,
}
