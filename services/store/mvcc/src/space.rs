//! The state machine and its reads.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;
use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::intern;
use crate::ring::Ring;
use crate::types::{
    Applied, Command, Entry, Event, EventKind, Expect, Key, Op, Outcome, ReadError, Rejected, Revision, Term,
    Value,
};
use crate::{Mark, Memo, Watch};

/// Bounds of one tenant's key space.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of live entries; puts that grow it beyond are refused.
    pub quota_bytes: u64,
    /// Bytes of events kept per collection. Per collection, so that Leases and Events push nobody into 410.
    pub ring_bytes: usize,
    /// Milliseconds that events are kept at most.
    pub history_ms: i64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { quota_bytes: 512 << 20, ring_bytes: 8 << 20, history_ms: 5 * 60 * 1000 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub keys: u64,
}

/// Bytes an entry costs beyond its value: key, pointers, counters, its share of the map.
const ENTRY_OVERHEAD: u64 = 200;

/// One tenant's key space. Cheap to share behind an `Arc`; one writer (apply), many readers.
#[derive(Debug)]
pub struct Space {
    limits: Limits,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) revision: Revision,
    pub(crate) term: Term,
    pub(crate) usage: Usage,
    pub(crate) closed: bool,
    /// Collections that were never written are complete after this; see [`Ring::starting_after`].
    pub(crate) history_starts: Revision,
    pub(crate) collections: HashMap<Arc<str>, Collection>,
    /// Entries that expire, soonest first.
    pub(crate) expiring: BTreeMap<(i64, Revision), Arc<Entry>>,
}

#[derive(Debug, Default)]
pub(crate) struct Collection {
    pub(crate) entries: OrdMap<Arc<str>, Arc<Entry>>,
    pub(crate) ring: Ring,
    pub(crate) changed: Arc<Notify>,
}

/// The entries of one collection at one revision. Free to take, free to keep.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub revision: Revision,
    pub entries: OrdMap<Arc<str>, Arc<Entry>>,
}

impl Snapshot {
    /// Entries whose names begin with `prefix` and come after `after`, in order.
    pub fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Entry>> + 'a {
        use std::ops::Bound;
        let from: Bound<&str> = match after {
            Some(name) if name >= prefix => Bound::Excluded(name),
            _ => Bound::Included(prefix),
        };
        // The end is looked for once: no name is looked at on the way.
        let end = end_of(prefix);
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        // A range that ends before it begins is a mistake to the map.
        let beyond = after.zip(end.as_deref()).is_some_and(|(name, end)| name >= end);
        let entries = (!beyond).then(|| self.entries.range::<_, str>((from, to)));
        entries.into_iter().flatten().map(|(_, entry)| entry)
    }
}

/// The first text after all that begin with `prefix`; `None` if nothing comes after them.
fn end_of(prefix: &str) -> Option<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        // Surrogates are no chars: what comes after them is the next.
        if let Some(next) = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32) {
            end.push(next);
            return Some(end.into_iter().collect());
        }
    }
    None
}

impl Space {
    pub fn new(limits: Limits) -> Space {
        Space { limits, state: RwLock::new(State::default()) }
    }

    pub(crate) fn from_state(limits: Limits, state: State) -> Space {
        Space { limits, state: RwLock::new(state) }
    }

    /// Applies one committed command of `term`. All of it or nothing; wakes the watchers it concerns.
    ///
    /// Deterministic: every replica that applied the same commands holds the same bytes and revisions.
    pub fn apply(&self, term: Term, command: &Command) -> Outcome {
        let mut state = self.state.write();
        state.term = state.term.max(term);
        if let Some(written) = command.fence
            && written != term
        {
            return Err(Rejected::Fenced { written, now: term });
        }
        state.check(command)?;
        state.check_quota(command, self.limits.quota_bytes)?;
        let oldest_ms = command.at_ms.saturating_sub(self.limits.history_ms);
        let applied =
            command.ops.iter().map(|op| state.apply_op(op, command.at_ms, oldest_ms, &self.limits)).collect();
        Ok(applied)
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The newest applied revision.
    pub fn revision(&self) -> Revision {
        self.state.read().revision
    }

    pub fn usage(&self) -> Usage {
        self.state.read().usage
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.state.read().collections.get(&key.collection)?.entries.get(&key.name).cloned()
    }

    /// One collection as it is now.
    pub fn snapshot(&self, collection: &str) -> Snapshot {
        let state = self.state.read();
        let entries = state.collections.get(collection).map(|c| c.entries.clone()).unwrap_or_default();
        Snapshot { revision: state.revision, entries }
    }

    /// One collection as it was at `at`, rebuilt by undoing the events since.
    pub fn snapshot_at(&self, collection: &str, at: Revision) -> Result<Snapshot, ReadError> {
        let state = self.state.read();
        if at > state.revision {
            return Err(ReadError::Future { asked: at, current: state.revision });
        }
        let Some(found) = state.collections.get(collection) else {
            return state.check_history(at).map(|()| Snapshot { revision: at, entries: OrdMap::new() });
        };
        let mut entries = found.entries.clone();
        let undo = found
            .ring
            .newest_first_down_to(at)
            .ok_or(ReadError::Compacted { asked: at, oldest: found.ring.complete_after })?;
        for event in undo {
            let name = &event.entry.key.name;
            let before = match event.kind {
                EventKind::Put => event.previous.clone(),
                EventKind::Delete => Some(event.entry.clone()),
            };
            match before {
                Some(entry) => entries.insert(name.clone(), entry),
                None => entries.remove(name),
            };
        }
        Ok(Snapshot { revision: at, entries })
    }

    /// Events of one collection after `after`, as they are applied.
    pub fn watch(self: &Arc<Space>, collection: &str, after: Revision) -> Result<Watch, ReadError> {
        let mut state = self.state.write();
        if state.closed {
            return Err(ReadError::Closed);
        }
        if after > state.revision {
            return Err(ReadError::Future { asked: after, current: state.revision });
        }
        let found = state.collection(collection);
        if after < found.ring.complete_after {
            return Err(ReadError::Compacted { asked: after, oldest: found.ring.complete_after });
        }
        let changed = found.changed.clone();
        Ok(Watch::new(self.clone(), collection.into(), after, changed))
    }

    /// Names of all collections that hold something.
    pub fn collections(&self) -> Vec<Arc<str>> {
        let state = self.state.read();
        let mut names: Vec<_> = state
            .collections
            .iter()
            .filter(|(_, c)| !c.entries.is_empty())
            .map(|(name, _)| name.clone())
            .collect();
        names.sort();
        names
    }

    /// Entries whose time was up at `now_ms`, at most `limit`, soonest first.
    pub fn expired(&self, now_ms: i64, limit: usize) -> Vec<Arc<Entry>> {
        let state = self.state.read();
        state
            .expiring
            .range(..=(now_ms, Revision(u64::MAX)))
            .take(limit)
            .map(|(_, entry)| entry.clone())
            .collect()
    }

    /// Lets go of history that is too old at `now_ms`. Writes do so for their own collection; this is for
    /// those that have gone quiet.
    pub fn forget_history(&self, now_ms: i64) {
        let oldest_ms = now_ms.saturating_sub(self.limits.history_ms);
        let mut state = self.state.write();
        for collection in state.collections.values_mut() {
            collection.ring.trim(self.limits.ring_bytes, oldest_ms);
        }
    }

    /// Ends all watches and refuses new ones; the group is being closed.
    pub fn close(&self) {
        let mut state = self.state.write();
        state.closed = true;
        for collection in state.collections.values() {
            collection.changed.notify_waiters();
        }
    }

    pub(crate) fn read<T>(&self, f: impl FnOnce(&State) -> T) -> T {
        f(&self.state.read())
    }

    /// Replaces everything; wakes all watches, which look for their place in the new history.
    pub(crate) fn replace(&self, mut new: State) {
        let mut state = self.state.write();
        new.closed = state.closed;
        // Collections that are watched but were never written are in no image.
        for name in state.collections.keys() {
            new.collection(name);
        }
        let old = std::mem::replace(&mut *state, new);
        drop(state);
        for collection in old.collections.values() {
            collection.changed.notify_waiters();
        }
    }
}

impl State {
    fn collection(&mut self, name: &str) -> &mut Collection {
        if !self.collections.contains_key(name) {
            let fresh =
                Collection { ring: Ring::starting_after(self.history_starts), ..Collection::default() };
            self.collections.insert(intern::name(name), fresh);
        }
        self.collections.get_mut(name).expect("inserted above")
    }

    fn check_history(&self, at: Revision) -> Result<(), ReadError> {
        if at < self.history_starts {
            return Err(ReadError::Compacted { asked: at, oldest: self.history_starts });
        }
        Ok(())
    }

    fn find(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.collections.get(&key.collection)?.entries.get(&key.name)
    }

    /// Every expectation, against the state before the command. Ops of one command name distinct keys.
    fn check(&self, command: &Command) -> Result<(), Rejected> {
        for (index, op) in command.ops.iter().enumerate() {
            let (key, expect) = match op {
                Op::Put { key, expect, .. } | Op::Delete { key, expect } => (key, expect),
            };
            let found = self.find(key);
            let fine = match expect {
                Expect::Any => true,
                Expect::Absent => found.is_none(),
                Expect::At(revision) => found.is_some_and(|entry| entry.modified == *revision),
            };
            if !fine {
                return Err(Rejected::Conflict { op: index, key: key.clone(), found: found.cloned() });
            }
        }
        Ok(())
    }

    fn check_quota(&self, command: &Command, quota: u64) -> Result<(), Rejected> {
        let mut grows = 0i128;
        for op in &command.ops {
            let before = self.find(op.key()).map_or(0, |entry| entry_cost(&entry.key, &entry.value));
            let after = match op {
                Op::Put { key, value, .. } => entry_cost(key, value),
                Op::Delete { .. } => 0,
            };
            grows += i128::from(after) - i128::from(before);
        }
        // What shrinks or keeps its size is let through even over quota, or nobody could ever clean up.
        if grows > 0 && i128::from(self.usage.bytes) + grows > i128::from(quota) {
            return Err(Rejected::OverQuota { used: self.usage.bytes, quota });
        }
        Ok(())
    }

    fn apply_op(&mut self, op: &Op, at_ms: i64, oldest_ms: i64, limits: &Limits) -> Applied {
        match op {
            Op::Put { key, value, expires_at_ms, shared, .. } => {
                self.revision.0 += 1;
                let revision = self.revision;
                let previous = self.find(key).cloned();
                let body: Bytes = if *shared { intern::body(&value.body) } else { value.body.clone() };
                let collection_name = self.interned(&key.collection);
                let entry = Arc::new(Entry {
                    key: Key { collection: collection_name, name: key.name.clone() },
                    value: Value { body, stamp: value.stamp.clone() },
                    created: previous.as_ref().map_or(revision, |before| before.created),
                    modified: revision,
                    expires_at_ms: *expires_at_ms,
                    shared: *shared,
                    memo: Memo::default(),
                    mark: Mark::default(),
                });
                self.account(previous.as_ref(), Some(&entry));
                let collection = self.collection(&key.collection);
                collection.entries.insert(entry.key.name.clone(), entry.clone());
                let event = Event {
                    kind: EventKind::Put,
                    revision,
                    at_ms,
                    entry: entry.clone(),
                    previous: previous.clone(),
                    memo: Memo::default(),
                };
                collection.ring.push(Arc::new(event), limits.ring_bytes, oldest_ms);
                collection.changed.notify_waiters();
                Applied { revision, entry: Some(entry), previous }
            }
            Op::Delete { key, .. } => {
                let Some(previous) = self.find(key).cloned() else {
                    return Applied { revision: self.revision, entry: None, previous: None };
                };
                self.revision.0 += 1;
                let revision = self.revision;
                self.account(Some(&previous), None);
                let collection = self.collection(&key.collection);
                collection.entries.remove(&key.name);
                let event = Event {
                    kind: EventKind::Delete,
                    revision,
                    at_ms,
                    entry: previous.clone(),
                    previous: None,
                    memo: Memo::default(),
                };
                collection.ring.push(Arc::new(event), limits.ring_bytes, oldest_ms);
                collection.changed.notify_waiters();
                Applied { revision, entry: None, previous: Some(previous) }
            }
        }
    }

    pub(crate) fn expire_later(&mut self, entry: &Arc<Entry>) {
        if let Some(at_ms) = entry.expires_at_ms {
            self.expiring.insert((at_ms, entry.modified), entry.clone());
        }
    }

    fn interned(&mut self, collection: &str) -> Arc<str> {
        match self.collections.get_key_value(collection) {
            Some((name, _)) => name.clone(),
            None => intern::name(collection),
        }
    }

    fn account(&mut self, before: Option<&Arc<Entry>>, after: Option<&Arc<Entry>>) {
        let cost = |entry: Option<&Arc<Entry>>| entry.map_or(0, |entry| entry_cost(&entry.key, &entry.value));
        self.usage.bytes = (self.usage.bytes + cost(after)).saturating_sub(cost(before));
        self.usage.keys = self.usage.keys + u64::from(after.is_some()) - u64::from(before.is_some());
        if let Some(before) = before
            && let Some(at_ms) = before.expires_at_ms
        {
            self.expiring.remove(&(at_ms, before.modified));
        }
        after.into_iter().for_each(|entry| self.expire_later(entry));
    }
}

pub(crate) fn entry_cost(key: &Key, value: &Value) -> u64 {
    ENTRY_OVERHEAD + (key.collection.len() + key.name.len() + value.len()) as u64
}
