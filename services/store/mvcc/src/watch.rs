//! Reading a collection's events as they are applied.
//!
//! A watcher has a cursor and no queue: it reads the shared ring at its own pace, so a slow one costs
//! nothing and harms nobody. One that falls behind the ring ends with [`ReadError::Compacted`].

use std::sync::Arc;

use tokio::sync::Notify;

use crate::Space;
use crate::types::{Event, ReadError, Revision};

/// Events handed out at once; bounds what one wake-up may copy while others wait for the lock.
const BATCH: usize = 512;

#[derive(Debug)]
pub struct Watch {
    space: Arc<Space>,
    collection: Arc<str>,
    cursor: Revision,
    changed: Arc<Notify>,
}

/// Events in order, and the revision up to which this collection is now known.
#[derive(Debug, Clone)]
pub struct Batch {
    pub events: Vec<Arc<Event>>,
    pub revision: Revision,
}

impl Watch {
    pub(crate) fn new(
        space: Arc<Space>,
        collection: Arc<str>,
        cursor: Revision,
        changed: Arc<Notify>,
    ) -> Watch {
        Watch { space, collection, cursor, changed }
    }

    /// The next events; waits until there is one. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Batch, ReadError> {
        loop {
            let changed = self.changed.clone();
            let notified = changed.notified();
            tokio::pin!(notified);
            // Registered before looking, or a change between look and wait would be slept through.
            notified.as_mut().enable();
            let batch = self.poll()?;
            if !batch.events.is_empty() {
                return Ok(batch);
            }
            // The collection was replaced between the two: what wakes its watchers is another notifier now.
            if !Arc::ptr_eq(&changed, &self.changed) {
                continue;
            }
            notified.await;
        }
    }

    /// What there is now, possibly nothing. The batch's revision is good for a bookmark.
    pub fn poll(&mut self) -> Result<Batch, ReadError> {
        let (batch, changed) = self.space.read(|state| {
            if state.closed {
                return Err(ReadError::Closed);
            }
            let Some(found) = state.collections.get(&self.collection) else {
                return Err(ReadError::Compacted { asked: self.cursor, oldest: state.history_starts });
            };
            let events = found
                .ring
                .after(self.cursor, BATCH)
                .ok_or(ReadError::Compacted { asked: self.cursor, oldest: found.ring.complete_after })?;
            let revision = if events.len() == BATCH { events[BATCH - 1].revision } else { state.revision };
            // A snapshot from a peer may have replaced the collection under this watch; its events now
            // wake another notifier.
            Ok((Batch { events, revision }, found.changed.clone()))
        })?;
        self.cursor = batch.revision.max(self.cursor);
        self.changed = changed;
        Ok(batch)
    }

    /// The revision up to which events were handed out.
    pub fn cursor(&self) -> Revision {
        self.cursor
    }
}
