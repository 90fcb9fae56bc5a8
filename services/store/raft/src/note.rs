//! The small values that a group keeps beside its entries.

use bytes::Bytes;
use store_mvcc::{DecodeError, Reader, Writer};

use crate::types::ReplicaId;

/// The newest vote.
pub(crate) const VOTE: u8 = 0;
/// How far the group was known to be committed; only kept where that cannot be seen from the log itself.
pub(crate) const COMMITTED: u8 = 1;
/// Which replica of the group this is. Written last when a group is made: one without it is unfinished.
pub(crate) const IDENTITY: u8 = 2;

const IDENTITY_FORMAT: u8 = 1;

pub(crate) fn encode_identity(id: ReplicaId) -> Bytes {
    let mut to = Writer::default();
    to.byte(IDENTITY_FORMAT);
    to.number(id);
    to.finish().into()
}

pub(crate) fn decode_identity(bytes: &[u8]) -> Result<ReplicaId, DecodeError> {
    let mut from = Reader::new(bytes);
    from.version(IDENTITY_FORMAT)?;
    let id = from.number()?;
    from.end()?;
    Ok(id)
}
