//! Pods that wait for a node.
//!
//! Three places, as upstream: *ready* by priority and age, *backing off* until a moment, *parked* until
//! something changes that might help. Every pod is in one of them, or in flight.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api_placement::PodInfo;
use api_reconcile::Backoff;

pub(crate) type Key = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pods: HashMap<Key, Entry>,
    ready: BTreeSet<(Reverse<i32>, u64, Key)>,
    later: BTreeSet<(Duration, Key)>,
    arrivals: u64,
}

#[derive(Debug)]
struct Entry {
    pod: Arc<PodInfo>,
    arrival: u64,
    attempts: u32,
    last_try: Duration,
    place: Place,
    /// What its condition says already.
    told: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Ready,
    Later(Duration),
    Parked,
    InFlight,
}

impl Waiting {
    /// A pod that wants a node, new or changed. A changed one is tried again at once.
    pub fn put(&mut self, key: Key, pod: Arc<PodInfo>) {
        if let Some(entry) = self.pods.get_mut(&key) {
            let same = entry.pod.uid == pod.uid;
            if same && entry.place == Place::InFlight {
                entry.pod = pod;
                return;
            }
            let unchanged = same && is_same(&entry.pod, &pod);
            if unchanged {
                // Our own write of its condition comes back as a change; that is no reason to try again.
                entry.pod = pod;
                return;
            }
            self.remove(&key);
        }
        self.arrivals += 1;
        let entry = Entry {
            pod,
            arrival: self.arrivals,
            attempts: 0,
            last_try: Duration::ZERO,
            place: Place::Ready,
            told: None,
        };
        self.ready.insert((Reverse(entry.pod.priority), entry.arrival, key.clone()));
        self.pods.insert(key, entry);
    }

    pub fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.pods.remove(key) {
            self.leave(key, &entry);
        }
    }

    /// The most important pod that may be tried now.
    pub fn pop(&mut self, now: Duration) -> Option<(Key, Arc<PodInfo>)> {
        while let Some((at, _)) = self.later.first() {
            if *at > now {
                break;
            }
            let Some((_, key)) = self.later.pop_first() else { break };
            self.make_ready(key);
        }
        let (_, _, key) = self.ready.pop_first()?;
        let entry = self.pods.get_mut(&key)?;
        entry.place = Place::InFlight;
        entry.attempts = entry.attempts.saturating_add(1);
        entry.last_try = now;
        Some((key, entry.pod.clone()))
    }

    /// It did not fit: it waits until something changes. True when `message` is news.
    pub fn park(&mut self, key: &Key, message: &str) -> bool {
        let Some(entry) = self.pods.get_mut(key) else { return false };
        entry.place = Place::Parked;
        let news = entry.told.as_deref() != Some(message);
        entry.told = Some(message.to_owned());
        news
    }

    /// Binding failed: it is tried again after its backoff, whatever happens.
    pub fn retry(&mut self, key: &Key, now: Duration) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        let at = now + Backoff::SCHEDULER.after(entry.attempts);
        entry.place = Place::Later(at);
        self.later.insert((at, key.clone()));
    }

    /// Something changed that may help the parked pods that `may_help` picks.
    pub fn wake(&mut self, now: Duration, may_help: impl Fn(&PodInfo) -> bool) {
        let parked =
            self.pods.iter().filter(|(_, entry)| entry.place == Place::Parked && may_help(&entry.pod));
        let woken: Vec<Key> = parked.map(|(key, _)| key.clone()).collect();
        for key in woken {
            let Some(entry) = self.pods.get_mut(&key) else { continue };
            let at = entry.last_try + Backoff::SCHEDULER.after(entry.attempts);
            if at <= now {
                self.make_ready(key);
            } else {
                entry.place = Place::Later(at);
                self.later.insert((at, key));
            }
        }
    }

    pub fn next_at(&self) -> Option<Duration> {
        self.later.first().map(|(at, _)| *at)
    }
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }
    pub fn keys(&self) -> Vec<Key> {
        self.pods.keys().cloned().collect()
    }

    fn make_ready(&mut self, key: Key) {
        if let Some(entry) = self.pods.get_mut(&key) {
            entry.place = Place::Ready;
            self.ready.insert((Reverse(entry.pod.priority), entry.arrival, key));
        }
    }
    fn leave(&mut self, key: &Key, entry: &Entry) {
        match entry.place {
            Place::Ready => {
                self.ready.remove(&(Reverse(entry.pod.priority), entry.arrival, key.clone()));
            }
            Place::Later(at) => {
                self.later.remove(&(at, key.clone()));
            }
            Place::Parked | Place::InFlight => {}
        }
    }
}

/// Whatever may change on a pod that waits and matters to where it can go.
fn is_same(a: &PodInfo, b: &PodInfo) -> bool {
    a.labels == b.labels
        && a.requests == b.requests
        && a.tolerations == b.tolerations
        && a.node_selector == b.node_selector
        && a.node_affinity == b.node_affinity
        && a.priority == b.priority
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("d".into(), name.into())
    }
    fn pod(name: &str, priority: i32) -> Arc<PodInfo> {
        Arc::new(PodInfo { uid: name.to_owned(), priority, ..PodInfo::default() })
    }
    fn next(waiting: &mut Waiting, seconds: u64) -> String {
        waiting.pop(Duration::from_secs(seconds)).map(|(key, _)| key.1.to_string()).unwrap_or_default()
    }

    #[test]
    fn important_pods_come_first_then_older_ones() {
        let mut waiting = Waiting::default();
        for (name, priority) in [("a", 0), ("b", 5), ("c", 0), ("d", 5)] {
            waiting.put(key(name), pod(name, priority));
        }
        waiting.remove(&key("c"));
        let order: Vec<String> = (0..4).map(|_| next(&mut waiting, 0)).collect();
        assert_eq!(order, ["b", "d", "a", ""]);
    }

    #[test]
    fn a_parked_pod_waits_for_a_change_and_its_backoff() {
        let mut waiting = Waiting::default();
        waiting.put(key("a"), pod("a", 0));
        assert_eq!(next(&mut waiting, 10), "a");
        assert!(waiting.park(&key("a"), "no"));
        waiting.put(key("a"), pod("a", 0));
        assert_eq!(next(&mut waiting, 100), "", "nothing changed");
        waiting.wake(Duration::from_secs(10), |_| true);
        assert_eq!(next(&mut waiting, 10), "", "backing off");
        assert_eq!(waiting.next_at(), Some(Duration::from_secs(11)));
        assert_eq!(next(&mut waiting, 11), "a");
        assert!(!waiting.park(&key("a"), "no"), "said already");
        waiting.wake(Duration::from_secs(60), |_| false);
        assert_eq!(next(&mut waiting, 60), "");
        waiting.wake(Duration::from_secs(60), |_| true);
        assert_eq!(next(&mut waiting, 60), "a", "its backoff is over");
    }
}
