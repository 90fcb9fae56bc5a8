//! What all workers of a node have in common.

use std::net::IpAddr;
use std::sync::Arc;

use base_net::tasks::Tasks;
use node_runtime::Cri;
use node_volumes::Volumes;
use tokio::sync::Semaphore;

use crate::cgroups::Cgroups;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::events::Events;
use crate::sandbox::Surroundings;

pub struct Shared {
    pub config: Config,
    pub cri: Cri,
    pub cluster: Arc<Cluster>,
    pub events: Events,
    pub volumes: Volumes,
    pub cgroups: Cgroups,
    pub around: Surroundings,
    pub tasks: Tasks,
    /// Pulls at the same time: one by one is upstream's habit, a few keep a slow registry from holding all others.
    pub pulls: Arc<Semaphore>,
}

/// See [`Shared::pulls`].
pub const PULLS: usize = 4;

impl Shared {
    pub fn host_ips(&self) -> Vec<String> {
        self.config.node_ips.iter().map(IpAddr::to_string).collect()
    }
}
