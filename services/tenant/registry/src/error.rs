//! The store's refusals in the API's words.

use api_machinery::{Reason, Status};
use store_mvcc::{ReadError, Rejected};
use store_raft::WriteError;

/// For failures that are nobody's conflict; conflicts are told apart where the operation is known.
pub(crate) fn write_status(cause: &WriteError) -> Status {
    match cause {
        WriteError::Rejected(Rejected::Conflict { .. }) => Status::failure(
            409,
            Reason::Conflict,
            "the object has been modified; please apply your changes to the latest version and try again",
        ),
        WriteError::Rejected(Rejected::Fenced { .. }) => Status::failure(
            409,
            Reason::Conflict,
            "the component that wrote this no longer leads; nothing was changed",
        ),
        WriteError::Rejected(Rejected::OverQuota { used, quota }) => Status::failure(
            403,
            Reason::Forbidden,
            format!(
                "the cluster's store is full: it holds {used} bytes and its quota is {quota}; deleting still works"
            ),
        ),
        WriteError::NoLeader => {
            Status::unavailable("the cluster's store has no leader at the moment").retry_after(1)
        }
        WriteError::Unavailable { retry_after_ms, .. } => {
            let seconds = u32::try_from(retry_after_ms.div_ceil(1000)).unwrap_or(u32::MAX).max(1);
            Status::timeout(
                "the cluster's store did not answer in time; the write may or may not have happened",
            )
            .retry_after(seconds)
        }
        WriteError::NoSpace => {
            Status::unavailable("the disk below the cluster's store is full; reads and deletes go on")
                .retry_after(5)
        }
        WriteError::TooLarge { length, limit } => {
            Status::too_large(format!("the request writes {length} bytes at once, the limit is {limit}"))
        }
        WriteError::Closed => Status::unavailable("the cluster is being moved or shut down").retry_after(1),
    }
}

/// For reads at a revision.
pub(crate) fn read_status(cause: &ReadError) -> Status {
    match cause {
        ReadError::Compacted { asked, oldest } => {
            Status::expired(format!("too old resource version: {asked} ({oldest})"))
        }
        ReadError::Future { asked, current } => Status::too_large_resource_version(asked.0, current.0),
        ReadError::Closed => Status::unavailable("the cluster is being moved or shut down").retry_after(1),
    }
}
