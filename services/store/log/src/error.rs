//! What can go wrong with the log, and what the caller can do about it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::frame::GroupId;

/// Where and how the disk let us down. Final: the process must not go on writing.
#[derive(Debug, thiserror::Error)]
#[error("{path} failed at offset {offset}; nothing of that batch was acknowledged")]
pub struct Failure {
    pub path: PathBuf,
    pub offset: u64,
    #[source]
    pub source: io::Error,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum LogError {
    /// Somebody else has the directory. `holder` is what they wrote into the lock file.
    #[error("{path} is in use by {holder}; stop it, or give this process a directory of its own")]
    Locked { path: PathBuf, holder: String },
    #[error("cannot {doing} {path}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// A frame that was once synced is unreadable: the disk lost acknowledged data.
    #[error("{path} is damaged at offset {offset}: {reason}")]
    Corrupt { path: PathBuf, offset: u64, reason: String },
    /// One group's entries are incomplete; other groups are not affected.
    #[error("the log of group {group} lacks entry {index}")]
    Hole { group: GroupId, index: u64 },
    #[error("group {group} expects entry {expected} next, not {given}")]
    Gap { group: GroupId, expected: u64, given: u64 },
    #[error("a record of {length} bytes is over the limit of {limit}")]
    TooLarge { length: usize, limit: usize },
    /// A write or fsync failed. Never retried; the owner of the log has to stop.
    #[error("the log has failed")]
    Failed(#[source] Arc<Failure>),
    #[error("the log is closed")]
    Closed,
}

impl LogError {
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> LogError {
        LogError::Io { doing, path: path.into(), source: Arc::new(source) }
    }

    /// As an [`io::Error`], for interfaces that know nothing better.
    pub fn into_io(self) -> io::Error {
        io::Error::other(self)
    }
}
