//! Binds pods to nodes.
//!
//! [`Scheduler::run`] is one task per tenant: it keeps a [`Snapshot`](api_placement::Snapshot) of the nodes,
//! asks `api_placement::place` for one pod after the other, and binds through the API. A pod counts as
//! placed from the moment it was decided, so decisions run ahead of the watch. `waiting` says in which order
//! pods come and when one that did not fit comes again; `state` is what is known; `scheduler` is the loop.
//!
//! Not here: the rules (`api-placement`), volumes, several profiles.

mod scheduler;
mod state;
mod waiting;

pub use scheduler::{Config, Scheduler};
