//! The seam between cells: who carries a group's messages to its replicas elsewhere.
//!
//! Messages are opaque bytes in our own encoding (`message`); a transport adds addressing, mutual
//! authentication, batching and back-pressure, and hands what arrives to [`crate::Host::receive`]. It also
//! watches the other cells, so that groups need no heartbeats of their own (DESIGN §5).

use std::fmt;

use base_ids::{CellId, TenantId};
use bytes::Bytes;
use futures::future::BoxFuture;

/// Why a message got no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TransportError {
    /// Nobody is there now, and the message did not leave; asking again at once is no use.
    #[error("cell {cell} is unreachable: {reason}")]
    Unreachable { cell: CellId, reason: String },
    /// The connection broke under the message; it may have arrived.
    #[error("the connection to cell {cell} broke: {reason}")]
    Broken { cell: CellId, reason: String },
}

/// What this cell knows of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It answers. `boot` differs between any two runs of its process.
    Up { boot: u64 },
    /// It has missed its heartbeats, or was never heard.
    Down,
}

/// Carries one message to another cell and its answer back.
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// `to` must give the bytes to its [`crate::Host::receive`] for `tenant` and return what that returns.
    /// Dropping the future gives the message up.
    fn call(
        &self,
        to: CellId,
        tenant: TenantId,
        message: Bytes,
    ) -> BoxFuture<'static, Result<Bytes, TransportError>>;

    /// Whether `cell` is there, as far as this one can tell. Asked often; answers from memory.
    fn standing(&self, cell: CellId) -> Standing;
}
