//! Controllers of volumes and claims.
//!
//! Not here: binding claims to volumes and provisioning.

pub(crate) mod protection;
