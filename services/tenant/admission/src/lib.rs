//! What may be stored, and what is added on the way.
//!
//! A write passes the [`Chain`] twice: [`Admission::admit`] may change the object, then, after the kind's own
//! validation, [`Admission::validate`] may only refuse it. In-tree plugins are stateless and shared by all
//! clusters of a process; what they need to know of one cluster they ask through its [`Lookup`]. A plugin
//! that must charge something elsewhere (a quota's use) returns a [`SideWrite`], which the registry commits
//! in the same command as the object: both happen or neither, and no second round of bookkeeping is needed.
//! Start at [`default_chain`] for the order.
//!
//! Not here: decoding, defaulting, a kind's validation (`tenant-registry`), RBAC (`tenant-auth`), webhooks.

mod attributes;
mod certificates;
mod chain;
mod limits;
mod namespace;
mod network;
mod node;
mod owners;
mod pod;
mod pod_security;
mod quota;
mod resources;
mod service_account;
mod storage;

pub use attributes::{Attributes, Lookup, Operation, SideWrite, Warnings};
pub use chain::{Admission, Chain, default_chain};
