//! A Raft group per tenant.
//!
//! [`Host`] holds the groups of one cell over one directory and one shared log; [`Group`] is one tenant's
//! replicated key space as the planes above use it. Start at [`Host::open`] and [`Group::write`].
//!
//! openraft decides, and no name of it leaves this crate; what is on disk is in our own encoding (`codec`,
//! `checkpoint`). State is kept in `replica` whether or not Raft is open (`member`), so that a tenant that
//! writes nothing costs its objects and little else.
//!
//! Between cells there is a seam ([`Transport`], [`Host::receive`]).
//!
//! Not here: what the bytes mean, which tenants live on which cell, and (yet) changing a group's membership
//! or elections among peers: groups have one replica.

mod checkpoint;
mod codec;
mod error;
mod group;
mod host;
mod member;
mod message;
mod network;
mod note;
mod replica;
#[cfg(test)]
mod replication;
mod storage;
mod transport;
mod types;

pub use error::{HostError, WriteError};
pub use group::Group;
pub use host::{Host, HostConfig};
pub use transport::{Transport, TransportError};
