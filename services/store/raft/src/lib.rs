//! A Raft group per tenant.
//!
//! [`Host`] holds the groups of one cell over one directory and one shared log; [`Group`] is one tenant's
//! replicated key space as the planes above use it. Start at [`Host::open`] and [`Group::write`].
//!
//! openraft decides, and no name of it leaves this crate; what is on disk is in our own encoding (`codec`,
//! `checkpoint`). State is kept in `replica` whether or not Raft is open (`member`), so that a tenant that
//! writes nothing costs its objects and little else.
//!
//! Not here: what the bytes mean, which tenants live on which cell, and (yet) a transport between cells:
//! groups have one replica.

mod checkpoint;
mod codec;
mod error;
mod group;
mod host;
mod member;
mod network;
mod note;
mod replica;
mod storage;
mod types;

pub use error::{HostError, WriteError};
pub use group::Group;
pub use host::{Host, HostConfig};
