//! Keeps a webhook that does not answer from holding the cluster's request seats.
//!
//! A webhook that let several calls in a row run into their timeout is asked by one request at a time; the
//! others are told at once. The first answer, good or bad, ends that. So whoever writes alone sees exactly
//! what upstream would show, and there is no clock to wait for after a repair.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Timeouts in a row after which a webhook counts as dead.
const DEAD_AFTER: u32 = 5;
/// Requests that may wait for one webhook at a time. A cluster has a few hundred seats.
const WAITING: usize = 64;

#[derive(Debug)]
pub(crate) struct Breaker {
    timeouts: AtomicU32,
    probing: AtomicBool,
    room: Semaphore,
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker {
            timeouts: AtomicU32::new(0),
            probing: AtomicBool::new(false),
            room: Semaphore::new(WAITING),
        }
    }
}

/// The right to call. Dropped without a verdict (the client went away), it says nothing about the webhook.
pub(crate) struct Pass<'a> {
    breaker: &'a Breaker,
    probe: bool,
    _room: Option<SemaphorePermit<'a>>,
}

impl Breaker {
    /// `None` when the webhook is dead and somebody else is finding out whether it still is.
    pub(crate) async fn enter(&self) -> Option<Pass<'_>> {
        let room = if self.is_dead() { None } else { self.room.acquire().await.ok() };
        // It may have died while this request waited.
        if !self.is_dead() {
            return Some(Pass { breaker: self, probe: false, _room: room });
        }
        let free = !self.probing.swap(true, Ordering::AcqRel);
        free.then(|| Pass { breaker: self, probe: true, _room: room })
    }

    fn is_dead(&self) -> bool {
        self.timeouts.load(Ordering::Acquire) >= DEAD_AFTER
    }
}

impl Pass<'_> {
    pub(crate) fn answered(self) {
        self.breaker.timeouts.store(0, Ordering::Release);
    }
    pub(crate) fn timed_out(self) {
        self.breaker.timeouts.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.probe {
            self.breaker.probing.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dead_webhook_is_asked_by_one_at_a_time() {
        let breaker = Breaker::default();
        for _ in 0..DEAD_AFTER {
            breaker.enter().await.expect("still alive").timed_out();
        }
        let probe = breaker.enter().await.expect("one may try");
        assert!(breaker.enter().await.is_none(), "only one");
        probe.timed_out();
        let gone = breaker.enter().await.expect("the next one may try");
        drop(gone);
        breaker.enter().await.expect("a client that left has proved nothing").answered();
        let (first, second) = (breaker.enter().await, breaker.enter().await);
        assert!(first.is_some() && second.is_some(), "an answer brings it back");
    }

    #[tokio::test]
    async fn an_answer_in_between_counts() {
        let breaker = Breaker::default();
        for _ in 0..3 {
            for _ in 0..DEAD_AFTER - 1 {
                breaker.enter().await.unwrap().timed_out();
            }
            breaker.enter().await.unwrap().answered();
        }
        assert!(!breaker.is_dead());
    }
}
