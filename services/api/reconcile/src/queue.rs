//! The keys a reconciler should look at.
//!
//! The promises of upstream's work queue: a key waits once however often it is added, is never worked on
//! twice at a time, and one that is added while it is worked on is looked at again afterwards. A delayed
//! key keeps its earliest moment. Nothing here knows a clock or a task: moments are durations since any
//! fixed start.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use crate::Backoff;

#[derive(Debug)]
pub struct Queue<K> {
    ready: VecDeque<K>,
    /// In `ready`, or to be put there once done.
    dirty: HashSet<K>,
    working: HashSet<K>,
    later: BTreeSet<(Duration, K)>,
    later_of: BTreeMap<K, Duration>,
    failures: HashMap<K, u32>,
    backoff: Backoff,
}

impl<K: Clone + Ord + Hash> Queue<K> {
    pub fn new(backoff: Backoff) -> Queue<K> {
        Queue {
            ready: VecDeque::new(),
            dirty: HashSet::new(),
            working: HashSet::new(),
            later: BTreeSet::new(),
            later_of: BTreeMap::new(),
            failures: HashMap::new(),
            backoff,
        }
    }

    /// Look at `key` as soon as possible.
    pub fn add(&mut self, key: K) {
        if !self.dirty.insert(key.clone()) {
            return;
        }
        if !self.working.contains(&key) {
            self.ready.push_back(key);
        }
    }

    /// Look at `key` at `when` at the latest.
    pub fn add_at(&mut self, key: K, when: Duration) {
        if let Some(known) = self.later_of.get(&key).copied() {
            if known <= when {
                return;
            }
            self.later.remove(&(known, key.clone()));
        }
        self.later_of.insert(key.clone(), when);
        self.later.insert((when, key));
    }

    /// The next key to work on; call [`Queue::done`] with it afterwards.
    pub fn pop(&mut self, now: Duration) -> Option<K> {
        while let Some((when, _)) = self.later.first() {
            if *when > now {
                break;
            }
            if let Some((_, key)) = self.later.pop_first() {
                self.later_of.remove(&key);
                self.add(key);
            }
        }
        let key = self.ready.pop_front()?;
        self.dirty.remove(&key);
        self.working.insert(key.clone());
        Some(key)
    }

    /// `key` has been worked on.
    pub fn done(&mut self, key: &K) {
        self.working.remove(key);
        if self.dirty.contains(key) {
            self.ready.push_back(key.clone());
        }
        self.shrink();
    }

    /// Work on `key` failed: look again after its backoff. Returns the wait.
    pub fn retry(&mut self, key: &K, now: Duration) -> Duration {
        let failures = self.failures.entry(key.clone()).or_insert(0);
        *failures = failures.saturating_add(1);
        let wait = self.backoff.after(*failures);
        self.add_at(key.clone(), now + wait);
        wait
    }

    /// Work on `key` went well: its next failure is a first one.
    pub fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    pub fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or(0)
    }

    /// When the first delayed key becomes ready; `None` when none waits. Ready keys don't count.
    pub fn next_at(&self) -> Option<Duration> {
        self.later.first().map(|(when, _)| *when)
    }

    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }
    pub fn working(&self) -> usize {
        self.working.len()
    }
    /// Ready and delayed keys.
    pub fn len(&self) -> usize {
        self.ready.len() + self.later.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A burst must not leave its buffers behind in a tenant that is idle for the rest of the day.
    fn shrink(&mut self) {
        const WORTH_FREEING: usize = 64;
        if self.ready.is_empty() && self.working.is_empty() && self.ready.capacity() > WORTH_FREEING {
            self.ready.shrink_to_fit();
            self.dirty.shrink_to_fit();
            self.working.shrink_to_fit();
            self.failures.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    #[test]
    fn a_key_waits_once_and_is_worked_on_once() {
        let mut queue = Queue::new(Backoff::CONTROLLER);
        queue.add("a");
        queue.add("b");
        queue.add("a");
        assert_eq!(queue.pop(ms(0)), Some("a"));
        queue.add("a");
        assert_eq!(queue.pop(ms(0)), Some("b"), "a is being worked on");
        assert_eq!(queue.pop(ms(0)), None);
        queue.done(&"a");
        assert_eq!(queue.pop(ms(0)), Some("a"), "it was added meanwhile");
        queue.done(&"a");
        queue.done(&"b");
        assert_eq!(queue.pop(ms(0)), None);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_delayed_key_keeps_its_earliest_moment() {
        let mut queue = Queue::new(Backoff::CONTROLLER);
        queue.add_at("a", ms(50));
        queue.add_at("a", ms(20));
        queue.add_at("a", ms(90));
        assert_eq!(queue.next_at(), Some(ms(20)));
        assert_eq!(queue.pop(ms(19)), None);
        assert_eq!(queue.pop(ms(20)), Some("a"));
        queue.done(&"a");
        assert_eq!(queue.next_at(), None);
    }

    #[test]
    fn failures_back_off_until_forgotten() {
        let mut queue = Queue::new(Backoff::CONTROLLER);
        assert_eq!(queue.retry(&"a", ms(0)), ms(5));
        assert_eq!(queue.pop(ms(5)), Some("a"));
        assert_eq!(queue.retry(&"a", ms(5)), ms(10));
        queue.done(&"a");
        queue.forget(&"a");
        assert_eq!(queue.retry(&"a", ms(100)), ms(5));
        assert_eq!(queue.next_at(), Some(ms(15)), "the earlier moment stays");
    }
}
