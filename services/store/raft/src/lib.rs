//! A Raft group per tenant.
//!
//! [`Group`] is one tenant's replicated key space as the planes above use it; start at [`Group::write`].
//!
//! Not here: what the bytes mean, and which tenants live on which cell.

mod error;
mod group;

pub use error::WriteError;
pub use group::Group;
