//! How much of a bounded thing one party may hold, so that none can take it all from the others.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts what each party holds. Clones share the counts; parties that hold nothing cost nothing.
#[derive(Debug)]
pub struct Shares<K: Eq + Hash + Clone> {
    most: usize,
    held: Arc<Mutex<HashMap<K, usize>>>,
}

impl<K: Eq + Hash + Clone> Clone for Shares<K> {
    fn clone(&self) -> Shares<K> {
        Shares { most: self.most, held: self.held.clone() }
    }
}

/// One unit, given back when dropped.
#[derive(Debug)]
pub struct Share<K: Eq + Hash + Clone> {
    of: Shares<K>,
    party: K,
}

impl<K: Eq + Hash + Clone> Shares<K> {
    /// `most` is what one party may hold at a time.
    pub fn new(most: usize) -> Shares<K> {
        Shares { most, held: Arc::default() }
    }

    /// One more for `party`; `None` when it holds its most.
    pub fn take(&self, party: K) -> Option<Share<K>> {
        self.take_up_to(party, self.most)
    }

    /// The same, where right now no party may hold more than `most`. Who holds more already keeps it.
    pub fn take_up_to(&self, party: K, most: usize) -> Option<Share<K>> {
        let most = most.min(self.most);
        // Counting cannot panic half-way, so a poisoned lock is as good as any.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(party.clone()).or_insert(0);
        if *count >= most {
            if *count == 0 {
                held.remove(&party);
            }
            return None;
        }
        *count += 1;
        drop(held);
        Some(Share { of: self.clone(), party })
    }
}

impl<K: Eq + Hash + Clone> Drop for Share<K> {
    fn drop(&mut self) {
        let mut held = self.of.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.party) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.party);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_more_than_a_share_and_nothing_is_left_behind() {
        let shares = Shares::new(2);
        let first = shares.take("a");
        let second = shares.take("a");
        assert!(first.is_some() && second.is_some());
        assert!(shares.take("a").is_none(), "a has its share");
        let other = shares.take("b");
        assert!(other.is_some(), "b has nothing to do with it");
        drop(first);
        assert!(shares.take("a").is_some());
        drop((second, other));
        assert!(shares.held.lock().unwrap().is_empty());
    }
}
