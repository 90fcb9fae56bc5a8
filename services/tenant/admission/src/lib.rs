//! What may be stored, and what is added on the way.
//!
//! A write passes the [`Chain`] twice: [`Admission::admit`] may change the object, then, after the kind's own
//! validation, [`Admission::validate`] may only refuse it. In-tree plugins are stateless and shared by all
//! clusters of a process; what they need to know of one cluster they ask through its [`Lookup`]. A plugin
//! that must charge something elsewhere (a quota's use) returns a [`SideWrite`], which the registry commits
//! in the same command as the object: both happen or neither, and no second round of bookkeeping is needed.
//! Start at [`default_chain`] for the order.
//!
//! What a tenant adds, webhooks and policies, is found through the same [`Lookup`], but calls out and so has one instance
//! per cluster: [`extended_chain`].
//!
//! Not here: decoding, defaulting, a kind's validation (`tenant-registry`), RBAC (`tenant-auth`), sockets
//! (`tenant-outbound`).

mod attributes;
mod certificates;
mod chain;
mod conditions;
mod expression;
mod limits;
mod matching;
mod namespace;
mod network;
mod node;
mod owners;
mod parsed;
mod pod;
mod pod_security;
pub mod policy;
mod quota;
mod reinvocation;
mod resize;
mod resources;
mod service_account;
mod storage;
#[cfg(test)]
mod testing;
mod versions;
mod webhook;

pub use attributes::{Annotations, Attributes, Lookup, Operation, Options, SideWrite, Warnings};
pub use chain::{Admission, Chain, default_chain, extended_chain};
pub use policy::{MutatingPolicies, ValidatingPolicies};
pub use reinvocation::Reinvocation;
pub use webhook::{MutatingWebhooks, ValidatingWebhooks};
