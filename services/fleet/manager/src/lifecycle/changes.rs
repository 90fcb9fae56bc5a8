//! Tells event streams to look again.
//!
//! One counter for all organisations: streams are people looking at a page, and one that wakes for
//! nothing costs three short reads. What changed is never said; a stream compares with what it sent.
//!
//! Not here: changes made by another manager on the same database; streams look by themselves as well.

use tokio::sync::watch;

#[derive(Debug, Default)]
pub(crate) struct Changes(watch::Sender<u64>);

impl Changes {
    /// Rows were changed.
    pub(crate) fn touch(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}
