//! One revisioned key space per tenant, in memory and pure.
//!
//! [`Space`] is the state machine that every replica of a tenant applies the same [`Command`]s to: one
//! counter, +1 per mutation, so a revision names the same moment on every replica. It is also the watch
//! cache: the current entries of a collection are a persistent map (a [`Snapshot`] costs a pointer), and
//! each collection keeps its recent events in a ring from which watches read at their own pace and from
//! which a snapshot at an older revision is rebuilt. Start at [`Space::apply`].
//!
//! Not here: disks, consensus, clocks (the leader writes its time into the command), or any idea of what
//! the bytes mean. This plane has never heard of a Pod.

mod codec;
mod intern;
mod memo;
mod ring;
mod space;
mod types;
mod watch;
mod wire;

pub use codec::Image;
pub use memo::{Mark, Memo};
pub use space::{Limits, Snapshot, Space, Usage};
pub use types::{
    Applied, Command, Entry, Event, EventKind, Expect, Key, Op, Outcome, ReadError, Rejected, Revision, Term,
    Value,
};
pub use watch::{Batch, Watch};
pub use wire::{DecodeError, Reader, Writer};
