//! What a fleet gives to a provider that somebody starts by hand, in one file.
//!
//! Not here: what the provider needs to reach its cloud, which the fleet must never see.

use std::net::SocketAddr;

use base_net::pki::Issued;
use serde::{Deserialize, Serialize};

/// The name of that file.
pub const IDENTITY_FILE: &str = "identity.json";

/// One file and not three, so that a provider that starts while it is written reads a key that fits the
/// certificate.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    /// What the fleet calls the provider.
    pub name: String,
    /// Where its cells look for it.
    pub address: SocketAddr,
    /// The fleet's CA: cells are known by it.
    pub ca_pem: String,
    /// For [`crate::TLS_NAME`].
    pub cert_pem: String,
    pub key_pem: String,
}

impl Identity {
    pub fn issued(&self) -> Issued {
        Issued { cert_pem: self.cert_pem.clone(), key_pem: self.key_pem.clone() }
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key must not end up in a log.
        f.debug_struct("Identity")
            .field("name", &self.name)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
