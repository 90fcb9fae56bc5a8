//! A Raft group per tenant.
//!
//! [`Host`] holds the groups of one cell over one directory and one shared log; [`Group`] is one tenant's
//! replicated key space as the planes above use it. Start at [`Host::open`] and [`Group::write`].
//!
//! openraft decides, and no name of it leaves this crate; what is on disk is in our own encoding (`codec`,
//! `checkpoint`). State is kept in `replica` whether or not Raft is open (`member`), so that a tenant that
//! writes nothing costs its objects and little else.
//!
//! A group has one replica ([`Host::create`]) or one on each of several cells ([`Host::found`],
//! [`Host::join`]). Any replica takes reads and writes (`route`); cells watch one another instead of groups
//! (`peers`), through the seam that carries their messages ([`Transport`], [`Host::receive`]).
//!
//! Not here: what the bytes mean, which tenants live on which cell, and (yet) changing a group's membership.

mod checkpoint;
mod codec;
mod error;
mod group;
mod host;
mod member;
mod message;
mod network;
mod note;
mod peers;
mod replica;
#[cfg(test)]
mod replication;
mod route;
mod storage;
mod transport;
mod types;

pub use error::{HostError, WriteError};
pub use group::Group;
pub use host::{Host, HostConfig};
pub use transport::{Standing, Transport, TransportError};
