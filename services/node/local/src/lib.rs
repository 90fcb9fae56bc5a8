//! A node beside others on one machine: in namespaces of its own, with a capacity that is told.
//!
//! [`check`] says whether this machine can have any, [`LocalNode::lay_out`] writes what one needs and makes
//! its network, and answers the command that runs it. `roadstead up` starts the demo cluster's nodes so,
//! the provider `local` its machines.
//!
//! Not here: keeping the process running (`base-child`), taking the network away again
//! (`node_network::host`), what the node does (`node-agent`).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base_files::private_dir;
use node_agent::{Bootstrap, CapacityConfig, NodeConfig, TaintConfig};
use node_network::host::HostNetwork;
use node_network::{cgroups, cni, launch, requirements};
use node_runtime::images;

/// What a local node offers unless told otherwise. Not the machine's own: several nodes share it, and a
/// cluster's scheduler should see the same on every laptop.
pub const MEMORY_BYTES: u64 = 4 << 30;
pub const EPHEMERAL_STORAGE_BYTES: u64 = 20 << 30;
pub const PODS: u32 = 110;

/// Whether this machine can have local nodes; the error says what to install.
pub fn check() -> Result<()> {
    requirements::check()?;
    cni::check_plugins(&node_agent::default_cni_bin_dir())?;
    if !Path::new(images::BUSYBOX).exists() {
        bail!("{} is missing: `apt-get install busybox-static`", images::BUSYBOX);
    }
    Ok(())
}

/// A node to be.
#[derive(Debug, Clone)]
pub struct LocalNode {
    /// In its cluster.
    pub name: String,
    /// Among all nodes of the bridge.
    pub number: u8,
    /// Names its cgroups; unique on the bridge, which names in clusters are not.
    pub cgroup: String,
    /// Everything it keeps.
    pub dir: PathBuf,
    /// What it dials.
    pub server: SocketAddr,
    pub tls_server_name: String,
    /// Not used once it has an identity.
    pub bootstrap: Bootstrap,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<TaintConfig>,
}

/// How to run one that is laid out.
#[derive(Debug, Clone)]
pub struct Laid {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub address: IpAddr,
}

impl LocalNode {
    /// Writes its configuration and images, and makes its network on `host`, which has none of it yet.
    pub async fn lay_out(&self, host: &HostNetwork, binary: &Path) -> Result<Laid> {
        private_dir(&self.dir)?;
        let server = format!("https://{}", self.server);
        let mut config = NodeConfig::new(self.name.clone(), self.dir.clone(), server);
        config.tls_server_name = Some(self.tls_server_name.clone());
        config.bootstrap = Some(self.bootstrap.clone());
        config.own_namespaces = true;
        // Below the run's own folder, so that the next start finds what a killed one left.
        config.cgroup_root = Some(cgroups::of_node(host.run_id(), &self.cgroup));
        config.stop_containers_on_exit = true;
        config.labels = self.labels.clone();
        config.taints = self.taints.clone();
        config.capacity = Some(CapacityConfig {
            cpu_millis: self.cpu_millis,
            memory_bytes: self.memory_bytes,
            ephemeral_storage_bytes: EPHEMERAL_STORAGE_BYTES,
            pods: PODS,
        });
        let images_dir = config.images_dir();
        private_dir(&images_dir)?;
        for version in [1, 2] {
            let archive = images::demo_of_this_machine(version).await?;
            archive
                .write_to(&images_dir)
                .with_context(|| format!("cannot write {}", images_dir.display()))?;
        }
        let place = host.add_node(self.number).await?;
        let address = IpAddr::V4(place.address);
        config.node_ip = Some(address);
        let config_file = self.dir.join("run.yaml");
        config.write(&config_file)?;
        let (program, arguments) = launch::command_line(&place, binary, &config_file);
        let arguments = arguments.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(Laid { program, arguments, address })
    }
}

/// Ends whatever is left of node `number` on `host`: processes, namespace, cgroups. Nothing there is fine.
pub async fn clear(host: &HostNetwork, number: u8, cgroup: &str) -> Result<()> {
    host.remove_node(number).await?;
    cgroups::sweep(&cgroups::of_node(host.run_id(), cgroup)).await;
    Ok(())
}
