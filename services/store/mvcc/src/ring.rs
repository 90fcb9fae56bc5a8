//! The recent events of one collection, bounded by bytes and age.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::types::{Event, Revision};

/// Estimated cost of an event beyond the entries it shares: the event itself and its place in the ring.
const EVENT_OVERHEAD: usize = 128;

#[derive(Debug, Default)]
pub(crate) struct Ring {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// Everything after this revision is in the ring.
    pub(crate) complete_after: Revision,
}

impl Ring {
    pub(crate) fn starting_after(complete_after: Revision) -> Ring {
        Ring { complete_after, ..Ring::default() }
    }

    pub(crate) fn push(&mut self, event: Arc<Event>, max_bytes: usize, oldest_ms: i64) {
        debug_assert!(self.events.back().is_none_or(|last| last.revision < event.revision));
        self.bytes += cost(&event);
        self.events.push_back(event);
        self.trim(max_bytes, oldest_ms);
    }

    /// Takes back an event that a checkpoint kept; the next push trims.
    pub(crate) fn load(&mut self, event: Arc<Event>) {
        self.bytes += cost(&event);
        self.events.push_back(event);
    }

    /// Drops what is over `max_bytes`, and what happened before `oldest_ms`.
    pub(crate) fn trim(&mut self, max_bytes: usize, oldest_ms: i64) {
        // The newest event always stays: a ring that cannot hold one event would end every watch.
        while self.events.len() > 1 {
            let first = &self.events[0];
            if self.bytes <= max_bytes && first.at_ms >= oldest_ms {
                break;
            }
            self.bytes -= cost(first);
            self.complete_after = first.revision;
            self.events.pop_front();
        }
        if self.events.capacity() > 64 && self.events.len() < self.events.capacity() / 4 {
            self.events.shrink_to(self.events.len() * 2);
        }
    }

    /// Events with `revision > after`, oldest first, at most `limit`; `None` when some are gone already.
    pub(crate) fn after(&self, after: Revision, limit: usize) -> Option<Vec<Arc<Event>>> {
        if after < self.complete_after {
            return None;
        }
        let start = self.events.partition_point(|event| event.revision <= after);
        Some(self.events.iter().skip(start).take(limit).cloned().collect())
    }

    /// Events with `revision > after`, newest first: what has to be undone to see the past.
    pub(crate) fn newest_first_down_to(&self, after: Revision) -> Option<impl Iterator<Item = &Arc<Event>>> {
        (after >= self.complete_after)
            .then(|| self.events.iter().rev().take_while(move |event| event.revision > after))
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Event>> {
        self.events.iter()
    }
}

fn cost(event: &Event) -> usize {
    EVENT_OVERHEAD + event.previous.as_ref().map_or(0, |entry| entry.value.len()) + event.entry.value.len()
}
