//! Local worker nodes of the demo cluster: each in network, mount and UTS namespaces of its own.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base_child::Recipe;
use base_net::tasks::Tasks;
use fleet_client::Client;
use fleet_model::Cluster;
use node_agent::Bootstrap;
use node_local::{Laid, LocalNode};
use node_network::host::{DEFAULT_RANGE, HostNetwork};
use node_network::{RunId, Subnet};

use super::layout::Layout;
use super::progress;
use crate::cli::Up;
use crate::service::NodeReady;

/// The bridge that nodes hang on.
#[derive(Debug, Clone)]
pub struct Network {
    host: HostNetwork,
    /// The folder after which the bridge is named.
    pub named_after: PathBuf,
    /// The machine's own address there: where nodes reach the gateway.
    pub host_address: IpAddr,
}

/// The network of nodes and of the machines that pools get; `None` where there cannot be any.
pub async fn prepare(options: &Up, layout: &Layout) -> Result<Option<Network>> {
    let wants_nodes = !options.no_demo && options.nodes > 0;
    if !rustix::process::geteuid().is_root() {
        progress(
            "not root: no worker nodes (they need network namespaces and containerd); all else comes up",
        );
        return Ok(None);
    }
    if let Err(why) = node_local::check() {
        if wants_nodes {
            bail!("{why:#}; or start with --nodes 0");
        }
        progress(&format!("no machines for node pools: {why:#}"));
        return Ok(None);
    }
    let range: Subnet = DEFAULT_RANGE.parse().context("the range of node addresses")?;
    let host = HostNetwork::create(&RunId::of(layout.root()), range).await.context("the nodes' network")?;
    let host_address = IpAddr::V4(host.gateway());
    Ok(Some(Network { host, named_after: layout.root().to_owned(), host_address }))
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
    // A token at every start: a node that has its identity does not use it, and it expires by itself.
    let token = client.join_token(&cluster.organization, &cluster.name).await?;
    let node = LocalNode {
        name: name.to_owned(),
        number,
        cgroup: name.to_owned(),
        dir,
        server,
        tls_server_name: cluster.server_name.clone(),
        bootstrap: Bootstrap { token: token.token, ca_file: None, ca_cert_hashes: vec![token.ca_cert_hash] },
        cpu_millis: 1000 * std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
        memory_bytes: node_local::MEMORY_BYTES,
        labels: BTreeMap::new(),
        taints: Vec::new(),
    };
    let Laid { program, arguments, .. } = node.lay_out(&network.host, binary).await?;
    let recipe = Recipe { name: name.to_owned(), program, arguments, log: layout.log(name) };
    let (NodeReady { .. }, _running) = recipe.keep_running(tasks).await?;
    Ok(())
}
