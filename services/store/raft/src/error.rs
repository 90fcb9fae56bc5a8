//! What a caller of a group or host can do about a failure.

use std::io;
use std::path::PathBuf;

use base_ids::TenantId;
use store_log::LogError;
use store_mvcc::{DecodeError, Rejected};

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
    /// More than one entry of the log can hold; nothing happened.
    #[error("a command of {length} bytes is over the limit of {limit}")]
    TooLarge { length: usize, limit: usize },
    /// The group was closed or deleted here.
    #[error("the group is closed")]
    Closed,
}

/// Why a host, or one of its groups, cannot be opened, made or deleted.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("cannot use the log")]
    Log(#[from] LogError),
    #[error("cannot {doing} {path}")]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("cluster {0} has no replica here")]
    Unknown(TenantId),
    #[error("cluster {0} has a replica here already")]
    Exists(TenantId),
    /// Only this cluster is affected: its files need repair or its replica a rebuild.
    #[error("{path} is no checkpoint that this version can read")]
    Checkpoint { path: PathBuf, source: DecodeError },
    #[error("the log of cluster {tenant} is unreadable at index {index}: {reason}")]
    Entry { tenant: TenantId, index: u64, reason: String },
    #[error("cluster {tenant} cannot start its consensus: {reason}")]
    Consensus { tenant: TenantId, reason: String },
    #[error("the first command of cluster {tenant} was declined")]
    Bootstrap { tenant: TenantId, source: WriteError },
    #[error("the host is closed")]
    Closed,
}
