//! The API as components in the same process see it.
//!
//! Scheduler and controllers reach the store through [`Api`] alone: it authorizes, admits and audits
//! them under their own identity like any client (DESIGN §4.1), but hands out shared [`Object`]s, so that
//! a list costs pointers and no copy of anything is kept.
//!
//! Not here: HTTP (nodes use a stock client), deciding anything.

mod api;
#[cfg(feature = "testing")]
pub mod fake;
mod identity;
pub mod lease;
mod recorder;

pub use api::{
    Api, CreateOptions, DeleteOptions, ListOptions, ObjectList, Patch, Propagation, SharedApi, WatchEvent,
    WatchOptions, WatchStream,
};
pub use identity::{Access, Authorizer, Decision, NodeDialer, SharedAuthorizer, Stream, Target, UserInfo};
pub use recorder::Recorder;
