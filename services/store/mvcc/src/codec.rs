//! The binary forms of a [`Command`] (one log entry) and of a whole key space (a checkpoint).
//!
//! Both begin with a format number. An [`Image`] is captured under the lock for the price of some pointers
//! and encoded outside it. It carries the event rings too, so that watches resume after a restart; an entry
//! that is both live and in a ring is written once.

use std::collections::HashMap;
use std::sync::Arc;

use imbl::OrdMap;

use crate::intern;
use crate::ring::Ring;
use crate::space::{Collection, State, entry_cost};
use crate::types::{Command, Entry, Event, EventKind, Expect, Key, Op, Revision, Term, Value};
use crate::wire::{DecodeError, Reader, Writer};
use crate::{Limits, Mark, Memo, Space};

const COMMAND_FORMAT: u8 = 1;
const IMAGE_FORMAT: u8 = 1;

const PUT: u8 = 0;
const PUT_SHARED: u8 = 1;
const DELETE: u8 = 2;

const EXPECT_ANY: u8 = 0;
const EXPECT_ABSENT: u8 = 1;
const EXPECT_AT: u8 = 2;

impl Command {
    /// The bytes that go into the log.
    pub fn encode(&self) -> Vec<u8> {
        let estimate: usize = self.ops.iter().map(|op| op.weight() + 32).sum();
        let mut to = Writer::with_capacity(32 + estimate);
        to.byte(COMMAND_FORMAT);
        to.signed(self.at_ms);
        match self.fence {
            None => to.byte(0),
            Some(Term(term)) => {
                to.byte(1);
                to.number(term);
            }
        }
        to.number(self.ops.len() as u64);
        for op in &self.ops {
            write_op(&mut to, op);
        }
        to.finish()
    }

    /// The inverse of [`Command::encode`]; any bytes are safe to give.
    pub fn decode(from: &[u8]) -> Result<Command, DecodeError> {
        let mut from = Reader::new(from);
        from.version(COMMAND_FORMAT)?;
        let at_ms = from.signed()?;
        let fence = match from.byte()? {
            0 => None,
            1 => Some(Term(from.number()?)),
            _ => return Err(from.invalid("fence")),
        };
        let count = from.count(4)?;
        let mut ops = Vec::with_capacity(count);
        for _ in 0..count {
            ops.push(read_op(&mut from)?);
        }
        from.end()?;
        Ok(Command { ops, fence, at_ms })
    }
}

impl Op {
    /// Bytes that this op brings along, about.
    pub fn weight(&self) -> usize {
        let key = self.key();
        let value = match self {
            Op::Put { value, .. } => value.len(),
            Op::Delete { .. } => 0,
        };
        key.collection.len() + key.name.len() + value
    }
}

fn write_op(to: &mut Writer, op: &Op) {
    let (tag, key, expect) = match op {
        Op::Put { key, expect, shared, .. } => (if *shared { PUT_SHARED } else { PUT }, key, expect),
        Op::Delete { key, expect } => (DELETE, key, expect),
    };
    to.byte(tag);
    to.bytes(key.collection.as_bytes());
    to.bytes(key.name.as_bytes());
    match expect {
        Expect::Any => to.byte(EXPECT_ANY),
        Expect::Absent => to.byte(EXPECT_ABSENT),
        Expect::At(revision) => {
            to.byte(EXPECT_AT);
            to.number(revision.0);
        }
    }
    if let Op::Put { value, expires_at_ms, .. } = op {
        to.optional_signed(*expires_at_ms);
        to.bytes(&value.stamp);
        to.bytes(&value.body);
    }
}

fn read_op(from: &mut Reader<'_>) -> Result<Op, DecodeError> {
    let tag = from.byte()?;
    let key = Key { collection: intern::name(from.text()?), name: from.text()?.into() };
    let expect = match from.byte()? {
        EXPECT_ANY => Expect::Any,
        EXPECT_ABSENT => Expect::Absent,
        EXPECT_AT => Expect::At(Revision(from.number()?)),
        _ => return Err(from.invalid("expectation")),
    };
    match tag {
        PUT | PUT_SHARED => {
            let expires_at_ms = from.optional_signed()?;
            let stamp = from.bytes()?;
            let body = from.bytes()?;
            Ok(Op::Put {
                key,
                value: Value { body, stamp },
                expect,
                expires_at_ms,
                shared: tag == PUT_SHARED,
            })
        }
        DELETE => Ok(Op::Delete { key, expect }),
        _ => Err(from.invalid("op")),
    }
}

/// Everything a key space holds at one revision, captured cheaply, encoded at leisure.
#[derive(Debug)]
pub struct Image {
    pub revision: Revision,
    pub term: Term,
    history_starts: Revision,
    collections: Vec<CollectionImage>,
}

#[derive(Debug)]
struct CollectionImage {
    name: Arc<str>,
    entries: OrdMap<Arc<str>, Arc<Entry>>,
    events: Vec<Arc<Event>>,
    complete_after: Revision,
}

impl Space {
    /// Captures the whole key space as it is now.
    pub fn image(&self) -> Image {
        self.read(|state| {
            let mut collections: Vec<CollectionImage> = state
                .collections
                .iter()
                .map(|(name, collection)| CollectionImage {
                    name: name.clone(),
                    entries: collection.entries.clone(),
                    events: collection.ring.iter().cloned().collect(),
                    complete_after: collection.ring.complete_after,
                })
                .collect();
            collections.sort_by(|a, b| a.name.cmp(&b.name));
            Image {
                revision: state.revision,
                term: state.term,
                history_starts: state.history_starts,
                collections,
            }
        })
    }

    /// A key space from an encoded image; any bytes are safe to give.
    pub fn restore(limits: Limits, image: &[u8]) -> Result<Space, DecodeError> {
        Ok(Space::from_state(limits, read_state(image)?))
    }

    /// Replaces everything by an encoded image, as when a peer sends its state.
    ///
    /// Running watches go on when their place in history is in the image, and end as compacted when not.
    pub fn install(&self, image: &[u8]) -> Result<(), DecodeError> {
        self.replace(read_state(image)?);
        Ok(())
    }
}

impl Image {
    /// The bytes that go into a checkpoint.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::with_capacity(4096);
        to.byte(IMAGE_FORMAT);
        to.number(self.revision.0);
        to.number(self.term.0);
        to.number(self.history_starts.0);
        to.number(self.collections.len() as u64);
        for collection in &self.collections {
            collection.write(&mut to);
        }
        to.finish()
    }
}

impl CollectionImage {
    fn write(&self, to: &mut Writer) {
        to.bytes(self.name.as_bytes());
        to.number(self.complete_after.0);
        // An entry's revision is its own alone, so it names the entry within the collection.
        let mut places: HashMap<Revision, u64> = HashMap::with_capacity(self.entries.len());
        let mut table: Vec<&Arc<Entry>> = Vec::with_capacity(self.entries.len());
        let mentioned = self.events.iter().flat_map(|event| [Some(&event.entry), event.previous.as_ref()]);
        for entry in self.entries.values().chain(mentioned.flatten()) {
            places.entry(entry.modified).or_insert_with(|| {
                table.push(entry);
                table.len() as u64 - 1
            });
        }
        to.number(table.len() as u64);
        for entry in &table {
            to.bytes(entry.key.name.as_bytes());
            to.number(entry.modified.0);
            to.number(entry.created.0);
            to.optional_signed(entry.expires_at_ms);
            to.byte(u8::from(entry.shared));
            to.bytes(&entry.value.stamp);
            to.bytes(&entry.value.body);
        }
        // The live ones came first, in the order of their names.
        to.number(self.entries.len() as u64);
        to.number(self.events.len() as u64);
        for event in &self.events {
            to.byte(match event.kind {
                EventKind::Put => 0,
                EventKind::Delete => 1,
            });
            to.number(event.revision.0);
            to.signed(event.at_ms);
            to.number(places[&event.entry.modified]);
            to.number(event.previous.as_ref().map_or(0, |entry| places[&entry.modified] + 1));
        }
    }
}

fn read_state(image: &[u8]) -> Result<State, DecodeError> {
    let mut from = Reader::new(image);
    from.version(IMAGE_FORMAT)?;
    let mut state = State {
        revision: Revision(from.number()?),
        term: Term(from.number()?),
        history_starts: Revision(from.number()?),
        ..State::default()
    };
    let count = from.count(4)?;
    for _ in 0..count {
        let (name, collection) = read_collection(&mut from, &mut state)?;
        if state.collections.insert(name, collection).is_some() {
            return Err(from.invalid("a collection twice"));
        }
    }
    from.end()?;
    Ok(state)
}

fn read_collection(from: &mut Reader<'_>, state: &mut State) -> Result<(Arc<str>, Collection), DecodeError> {
    let newest = state.revision;
    let name = intern::name(from.text()?);
    let complete_after = Revision(from.number()?);
    let count = from.count(7)?;
    let mut table = Vec::with_capacity(count);
    for _ in 0..count {
        table.push(Arc::new(read_entry(from, &name, newest)?));
    }
    let live = from.number()?;
    if live > table.len() as u64 {
        return Err(from.invalid("more live entries than entries"));
    }
    let mut entries = OrdMap::new();
    for entry in &table[..live as usize] {
        state.usage.bytes += entry_cost(&entry.key, &entry.value);
        state.usage.keys += 1;
        state.expire_later(entry);
        if entries.insert(entry.key.name.clone(), entry.clone()).is_some() {
            return Err(from.invalid("a key twice"));
        }
    }
    let mut ring = Ring::starting_after(complete_after);
    let count = from.count(5)?;
    let mut last = complete_after;
    for _ in 0..count {
        let kind = match from.byte()? {
            0 => EventKind::Put,
            1 => EventKind::Delete,
            _ => return Err(from.invalid("event kind")),
        };
        let revision = Revision(from.number()?);
        if revision <= last || revision > newest {
            return Err(from.invalid("an event out of order"));
        }
        last = revision;
        let at_ms = from.signed()?;
        let place = from.number()?;
        let entry = at(from, &table, place)?;
        let previous = match from.number()? {
            0 => None,
            place => Some(at(from, &table, place - 1)?),
        };
        ring.load(Arc::new(Event { kind, revision, at_ms, entry, previous, memo: Memo::default() }));
    }
    Ok((name, Collection { entries, ring, ..Collection::default() }))
}

fn at(from: &Reader<'_>, table: &[Arc<Entry>], place: u64) -> Result<Arc<Entry>, DecodeError> {
    let found = usize::try_from(place).ok().and_then(|place| table.get(place));
    found.cloned().ok_or_else(|| from.invalid("an event of an unknown entry"))
}

fn read_entry(from: &mut Reader<'_>, collection: &Arc<str>, newest: Revision) -> Result<Entry, DecodeError> {
    let name: Arc<str> = from.text()?.into();
    let modified = Revision(from.number()?);
    let created = Revision(from.number()?);
    if modified > newest || created > modified {
        return Err(from.invalid("an entry from the future"));
    }
    let expires_at_ms = from.optional_signed()?;
    let shared = match from.byte()? {
        0 => false,
        1 => true,
        _ => return Err(from.invalid("neither shared nor not")),
    };
    let stamp = from.bytes()?;
    let body = from.slice()?;
    let body = if shared { intern::body(body) } else { bytes::Bytes::copy_from_slice(body) };
    Ok(Entry {
        key: Key { collection: collection.clone(), name },
        value: Value { body, stamp },
        created,
        modified,
        expires_at_ms,
        shared,
        memo: Memo::default(),
        mark: Mark::default(),
    })
}
