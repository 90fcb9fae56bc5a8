//! Local worker nodes of the demo cluster: each in network, mount and UTS namespaces of its own.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, bail};
use base_net::tasks::Tasks;
use fleet_client::Client;
use fleet_model::Cluster;
use node_agent::{Bootstrap, CapacityConfig, NodeConfig};
use node_network::host::{DEFAULT_RANGE, HostNetwork};
use node_network::{RunId, Subnet, cni, launch, requirements};
use node_runtime::images;

use super::layout::Layout;
use super::progress;
use crate::child::Recipe;
use crate::cli::Up;
use crate::files::private_dir;
use crate::service::NodeReady;

/// What a local node offers. Not the machine's own: several nodes share it, and a cluster's scheduler
/// should see the same on every laptop.
const MEMORY_BYTES: u64 = 4 << 30;
const EPHEMERAL_STORAGE_BYTES: u64 = 20 << 30;
const PODS: u32 = 110;

/// The bridge that nodes hang on.
#[derive(Debug, Clone)]
pub struct Network {
    host: HostNetwork,
    /// The machine's own address there: where nodes reach the gateway.
    pub host_address: IpAddr,
}

/// The nodes' network; `None` when there are to be no nodes, or cannot be.
pub async fn prepare(options: &Up, layout: &Layout) -> Result<Option<Network>> {
    if options.no_demo || options.nodes == 0 {
        return Ok(None);
    }
    if !rustix::process::geteuid().is_root() {
        progress(
            "not root: no worker nodes (they need network namespaces and containerd); all else comes up",
        );
        return Ok(None);
    }
    if let Err(why) = can_have_nodes() {
        bail!("{why:#}; or start with --nodes 0");
    }
    let range: Subnet = DEFAULT_RANGE.parse().context("the range of node addresses")?;
    let host = HostNetwork::create(&RunId::of(layout.root()), range).await.context("the nodes' network")?;
    let host_address = IpAddr::V4(host.gateway());
    Ok(Some(Network { host, host_address }))
}

fn can_have_nodes() -> Result<()> {
    requirements::check()?;
    cni::check_plugins(&node_agent::default_cni_bin_dir())?;
    if !Path::new(images::BUSYBOX).exists() {
        bail!("{} is missing: `apt-get install busybox-static`", images::BUSYBOX);
    }
    Ok(())
}

impl Network {
    /// Takes away what [`prepare`] made, after the last node has stopped.
    pub async fn remove(&self) {
        if let Err(error) = self.host.remove().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the nodes' network is left behind; the next start sweeps it"
            );
        }
    }
}

/// Starts all nodes; they are Ready when it returns.
pub async fn start(
    options: &Up,
    layout: &Layout,
    network: &Network,
    client: &Client,
    cluster: &Cluster,
    binary: &Path,
    tasks: &Tasks,
) -> Result<()> {
    let server = SocketAddr::new(network.host_address, options.gateway.port());
    let starting = (1..=options.nodes).map(|number| async move {
        let name = format!("node-{number}");
        start_one(number, &name, layout, network, client, cluster, server, binary, tasks)
            .await
            .with_context(|| format!("{name} does not start (see {})", layout.log(&name).display()))?;
        progress(&format!("{name} ready"));
        Ok::<_, anyhow::Error>(())
    });
    futures::future::try_join_all(starting).await.map(drop)
}

#[allow(clippy::too_many_arguments, reason = "one caller, right above; a struct would only rename them")]
async fn start_one(
    number: u8,
    name: &str,
    layout: &Layout,
    network: &Network,
    client: &Client,
    cluster: &Cluster,
    server: SocketAddr,
    binary: &Path,
    tasks: &Tasks,
) -> Result<()> {
    let dir = layout.node(name);
    private_dir(&dir)?;
    // A token at every start: a node that has its identity does not use it, and it expires by itself.
    let token = client.join_token(&cluster.organization, &cluster.name).await?;
    let mut config = NodeConfig::new(name.to_owned(), dir.clone(), format!("https://{server}"));
    config.tls_server_name = Some(cluster.server_name.clone());
    config.bootstrap =
        Some(Bootstrap { token: token.token, ca_file: None, ca_cert_hashes: vec![token.ca_cert_hash] });
    config.own_namespaces = true;
    // Below the run's own folder, so that the next start finds what a killed one left.
    config.cgroup_root = Some(node_network::cgroups::of_node(network.host.run_id(), name));
    config.stop_containers_on_exit = true;
    config.capacity = Some(CapacityConfig {
        cpu_millis: 1000 * std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
        memory_bytes: MEMORY_BYTES,
        ephemeral_storage_bytes: EPHEMERAL_STORAGE_BYTES,
        pods: PODS,
    });
    let images_dir = config.images_dir();
    private_dir(&images_dir)?;
    for version in [1, 2] {
        let archive = images::demo_of_this_machine(version).await?;
        archive.write_to(&images_dir).with_context(|| format!("cannot write {}", images_dir.display()))?;
    }
    let place = network.host.add_node(number).await?;
    config.node_ip = Some(IpAddr::V4(place.address));
    let config_file = dir.join("run.yaml");
    config.write(&config_file)?;
    let (program, arguments) = launch::command_line(&place, binary, &config_file);
    let recipe = Recipe {
        name: name.to_owned(),
        program,
        arguments: arguments.into_iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        log: layout.log(name),
    };
    let (NodeReady { .. }, _running) = recipe.keep_running(tasks).await?;
    Ok(())
}
