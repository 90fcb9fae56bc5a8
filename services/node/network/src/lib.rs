//! The ground a node stands on: namespaces, links, routes, CNI, cgroups.
//!
//! [`host`] is for a machine that carries several nodes (`roadstead up`): a bridge, and a network
//! namespace per node with an address on it. [`launch`] starts a node's process inside. [`node`] is what
//! that process does first, [`cni`] configures the plug-ins that connect pods, [`routes`] connects the
//! nodes' pod networks. Everything made here carries a [`RunId`] in its name, so two runs on one machine
//! never touch each other's, and the next start can sweep what a killed one left.
//!
//! `ip`, `nft`, `nsenter` and `unshare` do the work: each change is one line that an operator can repeat
//! by hand, and none of it is frequent.
//!
//! Not here: Services (`node-proxy`), starting containers (`node-runtime`), watching the API.

pub mod cgroups;
pub mod cni;
mod command;
pub mod host;
pub mod launch;
mod net;
pub mod node;
pub mod requirements;
pub mod routes;

pub use command::{CommandError, run, search_path};
pub use net::{ParseNetError, Subnet};

use std::fmt;
use std::path::Path;

use sha2::{Digest, Sha256};

/// Names what one run made: six hex digits of its data directory's hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunId(String);

impl RunId {
    /// The same for the same directory, whatever path leads to it.
    pub fn of(data_dir: &Path) -> RunId {
        let canonical = data_dir.canonicalize().unwrap_or_else(|_| data_dir.to_path_buf());
        let digest = Sha256::digest(canonical.as_os_str().as_encoded_bytes());
        RunId(hex::encode(&digest[..3]))
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
