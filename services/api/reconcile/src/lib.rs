//! Plans, queues, backoff and event counting as values.
//!
//! A reconciler is told *that* it should look at a key, reads the world and answers with a
//! [`Plan`]: what to write, and when to look again without being told. This crate has the words for that
//! and the three pure machines every loop needs: the [`Queue`] of keys to look at, its [`Backoff`], and the
//! [`Correlator`] that keeps Events from flooding anybody. Time comes in as a value everywhere.
//! Start at `plan`.
//!
//! Not here: caches, tasks, the API (`tenant-controllers`, `tenant-scheduler` do the acting).

mod backoff;
mod events;
mod plan;
mod queue;

pub use backoff::Backoff;
pub use events::{Correlator, EventText, Recorded, Regarding};
pub use plan::{Action, Deletion, PatchKind, Plan, Spread, Subject};
pub use queue::Queue;
