//! What a caller of a group or host can do about a failure.

use store_mvcc::Rejected;

/// Why a write, or a read barrier, did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WriteError {
    /// The command reached the state machine, which declined it: read again, or give up.
    #[error("the key space declined the command")]
    Rejected(#[from] Rejected),
    /// No leader to take it: nothing happened, try again soon.
    #[error("the group has no leader")]
    NoLeader,
    /// It may or may not have happened; `retry_after_ms` is a hint for when asking again makes sense.
    #[error("the group cannot answer now: {reason}")]
    Unavailable { retry_after_ms: u64, reason: String },
    /// The disk is full. Nothing happened; deletes and reads go on.
    #[error("no space left for the log")]
    NoSpace,
    /// The group was closed or deleted here.
    #[error("the group is closed")]
    Closed,
}
