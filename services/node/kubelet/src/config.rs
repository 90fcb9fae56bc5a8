//! What a kubelet is told.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use base_clock::SharedClock;
use base_net::pki::Issued;
use k8s_openapi::api::core::v1::Taint;
use tokio::sync::watch;

/// The version this kubelet reports and is measured by.
pub const KUBELET_VERSION: &str = "v1.36.0";

#[derive(Clone)]
pub struct Config {
    pub node_name: String,
    /// The kubelet's own folder: `pods/` and `logs/` are below it.
    pub root_dir: PathBuf,
    /// Reaches the cluster as `system:node:<node_name>`.
    pub client: kube::Client,
    /// containerd's socket.
    pub cri_socket: PathBuf,
    /// `/roadstead/<node>`: pods' cgroups are below it; `/` on a machine of its own.
    pub cgroup_root: String,
    /// The node's addresses, the one that others should use first.
    pub node_ips: Vec<IpAddr>,
    /// What pods of DNS policy ClusterFirst ask.
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// The resolver configuration of pods of DNS policy Default, and the upstream part of the others'.
    pub resolv_conf: PathBuf,
    pub capacity: Capacity,
    /// Beside those that the kubelet knows itself.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub serving: Serving,
    pub clock: SharedClock,
}

/// What the node offers; configured, since several nodes may share one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub ephemeral_storage_bytes: u64,
    pub pods: u32,
}

impl Capacity {
    /// All of this machine, as `/proc` and the file system of `/` say.
    pub fn of_this_machine() -> Capacity {
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = meminfo
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.trim().split(' ').next()?.parse().ok());
        let disk = nix::sys::statvfs::statvfs("/").map(|fs| fs.blocks() * fs.fragment_size());
        Capacity {
            cpu_millis: cpus * 1000,
            memory_bytes: kib.unwrap_or(1 << 20_u64) * 1024,
            ephemeral_storage_bytes: disk.unwrap_or(1 << 30),
            pods: 110,
        }
    }
}

/// The kubelet's own HTTPS server.
#[derive(Clone)]
pub struct Serving {
    /// Usually `0.0.0.0:10250`.
    pub listen: SocketAddr,
    /// The serving certificate, as soon as there is one, and again whenever it is renewed.
    pub identity: watch::Receiver<Option<Issued>>,
    /// Who may have signed a client's certificate: the cluster's CA, PEM.
    pub client_ca_pem: String,
}
