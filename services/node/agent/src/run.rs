//! The whole node, from first to last.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base_clock::SystemClock;
use base_net::tasks::Tasks;
use base_tunnel::{ClientConfig, TunnelClient};
use k8s_openapi::api::core::v1::Taint;
use node_dns::{Dns, DnsConfig};
use node_kubelet::{Capacity, Kubelet, Serving};
use node_network::cni::{self, CniConfig};
use node_network::node::{self as ground, Masquerade};
use node_network::routes::Routes;
use node_network::{RunId, cgroups, requirements};
use node_proxy::model::Protocol;
use node_proxy::{LocalService, NodeFacts, Proxy};
use node_runtime::{Containerd, ContainerdConfig};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::certificates;
use crate::config::{AgentError, NodeConfig};
use crate::connect::{Connector, Identity, Target};
use crate::join::{self, Membership};
use crate::resolvers::Resolvers;
use crate::watch::{self as cluster, Peers};

/// What the tunnel's other side calls the API server's own port.
const APISERVER: &str = "apiserver";

/// Ports of the node's own listeners; any other where they are taken. Fixed, so that what connection
/// tracking remembers stays right over a restart.
const DNS_PORT: u16 = 10053;
const API_PORT: u16 = 10443;

/// Connections of pods to the Service `kubernetes` at a time; each is a stream of the tunnel.
const API_CONNECTIONS: usize = 400;

/// The nftables table of Services.
const SERVICES_TABLE: &str = "roadstead-services";

/// How long containers may take to stop with the node.
const CONTAINER_GRACE: Duration = Duration::from_secs(5);
/// For each other part.
const PART_PATIENCE: Duration = Duration::from_secs(5);

/// Runs a node until `stop`, then takes down what it made. `on_ready` is called with the node's address
/// once the cluster knows that the node is Ready.
pub async fn run(
    config: NodeConfig,
    stop: CancellationToken,
    on_ready: impl FnOnce(IpAddr) + Send,
) -> Result<(), AgentError> {
    requirements::check()?;
    base_net::tls::install_crypto_provider();
    let tasks = Tasks::new();
    let started = tokio::select! {
        () = stop.cancelled() => None,
        started = Agent::start(config.clone(), &tasks) => Some(started),
    };
    let result = match started {
        None => Ok(()),
        Some(Err(error)) => Err(error),
        Some(Ok(agent)) => {
            info!(node = %config.name, address = %agent.address, "node is registered");
            let mut ready = agent.kubelet.ready();
            // What `wait_for` answers is a lock on the value, against which the kubelet's next word would
            // block for ever: let go of it before anything is awaited.
            let became_ready = async { ready.wait_for(|ready| *ready).await.map(drop) };
            tokio::select! {
                () = stop.cancelled() => {}
                Ok(()) = became_ready => {
                    info!(node = %config.name, "node is ready");
                    on_ready(agent.address);
                    stop.cancelled().await;
                }
            }
            info!(node = %config.name, "node stops");
            agent.stop(&tasks).await;
            Ok(())
        }
    };
    if !tasks.stop(PART_PATIENCE).await {
        warn!("some parts of the node did not stop in time");
    }
    result
}

/// Resolves when this process is asked to stop: SIGTERM, SIGINT, or with `with_parent` the end of
/// standard input.
pub async fn stop_signal(with_parent: bool) {
    use tokio::signal::unix::{SignalKind, signal};
    let wait = |kind: SignalKind| async move {
        match signal(kind) {
            Ok(mut signals) => drop(signals.recv().await),
            Err(error) => {
                warn!(%error, "signals cannot be received");
                std::future::pending::<()>().await;
            }
        }
    };
    let parent = async {
        if !with_parent {
            std::future::pending::<()>().await;
        }
        let mut stdin = tokio::io::stdin();
        let mut buffer = [0; 64];
        while stdin.read(&mut buffer).await.is_ok_and(|len| len > 0) {}
    };
    tokio::select! {
        () = wait(SignalKind::terminate()) => {}
        () = wait(SignalKind::interrupt()) => {}
        () = parent => {}
    }
}

/// A node that runs.
struct Agent {
    config: NodeConfig,
    address: IpAddr,
    kubelet: Kubelet,
    containerd: Containerd,
}

impl Agent {
    async fn start(config: NodeConfig, tasks: &Tasks) -> Result<Agent, AgentError> {
        // Read before /run is our own, where systemd keeps the real list.
        let resolvers = resolvers(&config);
        if config.own_namespaces {
            ground::isolate(&config.name, &config.data_dir.join("cni/cache"))?;
        }
        ground::prepare().await?;
        cni::check_plugins(&config.cni_bin_dir)?;
        cni::check_folder(&cni_conf_dir(&config))?;
        cgroups::prepare(&config.cgroup_root())?;
        if config.own_namespaces {
            sweep(&config).await;
        }

        let target = Target::parse(&config.server, config.tls_server_name.as_deref())?;
        let (membership, containerd) =
            tokio::try_join!(join::obtain(&config, &target), start_containerd(&config, tasks))?;
        let identity = Arc::new(Identity::default());
        identity.set(&membership.client)?;
        let connector = Connector::trusting(target.clone(), &membership.ca_pem, Some(identity.clone()))?;
        let client = connector.client(None)?;
        let address = match config.node_ip {
            Some(address) => address,
            None => target.local_address().await.map_err(|cause| AgentError::Unreachable {
                server: target.server(),
                cause: Box::new(cause),
            })?,
        };
        warn_of_skew(&client, &target).await;

        let tunnel = tunnel(&config, &connector, address);
        let stopping = tasks.stopping();
        tasks.spawn_to_end({
            let (tunnel, stopping) = (tunnel.clone(), stopping.clone());
            async move { tunnel.run(stopping).await }
        });

        let api = listen("the Service kubernetes", address, API_PORT, TcpListener::bind).await?;
        let api_at = local_address(&api, "the Service kubernetes", address)?;
        tasks.spawn(serve_api(api, tunnel));
        let dns = Dns::new(DnsConfig {
            domain: config.cluster.domain.clone(),
            ranges: vec![config.cluster.service_cidr, config.cluster.pod_cidr],
            resolvers: resolvers.servers.iter().map(|server| SocketAddr::new(*server, 53)).collect(),
        });
        let bound = listen("cluster DNS", address, DNS_PORT, |at| dns.bind(at)).await?;
        let dns_at = bound.local_addr().map_err(|cause| AgentError::Listen {
            what: "cluster DNS",
            address: (address, 0).into(),
            cause,
        })?;
        tasks.spawn_to_end(bound.run(stopping.clone()));

        let proxy = proxy(&config, api_at, dns_at);
        // What the whole cluster's network is like is not a node's to read: it asks as kube-proxy does.
        let network = cluster::Reader::new(connector.client_as(cluster::KUBE_PROXY), client.clone());
        tasks.spawn(cluster::services(network.clone(), proxy.clone(), dns.clone()));
        tasks.spawn(cluster::slices(network.clone(), proxy.clone(), dns));
        if config.stop_containers_on_exit {
            tasks.spawn_to_end(async move { proxy.run(stopping).await });
        } else {
            // Pods run on without us, and so do the rules they need: ended, but never told to clean up.
            tasks.spawn(async move { proxy.run(CancellationToken::new()).await });
        }
        let (peers_to, peers) = watch::channel(None);
        tasks.spawn(cluster::nodes(network, peers_to));
        tasks.spawn(keep_network(config.clone(), address, peers));

        let (serving_to, serving) = watch::channel(None);
        tasks.spawn(certificates::keep_serving(config.clone(), address, client.clone(), serving_to));
        tasks.spawn(certificates::keep_client(config.clone(), membership.clone(), identity, client.clone()));

        let resolv_conf = config.data_dir.join("resolv.conf");
        std::fs::write(&resolv_conf, resolvers.render()).map_err(|cause| AgentError::File {
            what: "the pods' resolver configuration",
            path: resolv_conf.clone(),
            cause,
        })?;
        let settings =
            kubelet_config(&config, &membership, client, &containerd, address, resolv_conf, serving);
        let kubelet = Kubelet::run(settings, tasks).await?;
        Ok(Agent { config, address, kubelet, containerd })
    }

    async fn stop(self, tasks: &Tasks) {
        if !self.config.stop_containers_on_exit {
            self.kubelet.stop(PART_PATIENCE).await;
            self.containerd.stop().await;
            return;
        }
        let patience = CONTAINER_GRACE + PART_PATIENCE;
        match tokio::time::timeout(patience, self.kubelet.stop_pods(CONTAINER_GRACE)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "some pods did not stop"),
            Err(_) => warn!("pods did not stop in time"),
        }
        self.containerd.stop().await;
        tasks.stop(PART_PATIENCE).await;
        sweep(&self.config).await;
        cgroups::sweep(&self.config.cgroup_root()).await;
        if let Err(error) = ground::clean().await {
            warn!(%error, "some network rules stay behind");
        }
    }
}

fn resolvers(config: &NodeConfig) -> Resolvers {
    let mut resolvers = Resolvers::of_this_machine(!config.own_namespaces);
    if let Some(servers) = &config.resolvers {
        resolvers.servers = servers.clone();
    }
    // Asking ourselves for what we do not know would go round in circles.
    resolvers
        .servers
        .retain(|server| *server != config.cluster.dns_service && Some(*server) != config.node_ip);
    if resolvers.servers.is_empty() {
        warn!("no resolver for names outside the cluster: pods resolve the cluster's names only");
    }
    resolvers
}

fn cni_conf_dir(config: &NodeConfig) -> PathBuf {
    config.data_dir.join("cni/net.d")
}

/// Short, because a socket's path ends at 107 bytes; named after the data directory, because shims of
/// several nodes are told apart by it.
fn containerd_state(config: &NodeConfig) -> PathBuf {
    PathBuf::from(format!("/run/roadstead-{}", RunId::of(&config.data_dir)))
}

fn containerd_config(config: &NodeConfig) -> ContainerdConfig {
    let state = containerd_state(config);
    ContainerdConfig {
        root: config.data_dir.join("containerd"),
        socket: state.join("containerd.sock"),
        state: state.join("state"),
        config_file: config.data_dir.join("containerd.toml"),
        log_file: config.data_dir.join("containerd.log"),
        cni_conf_dir: cni_conf_dir(config),
        cni_bin_dir: config.cni_bin_dir.clone(),
        images_dir: config.images_dir(),
        search_path: node_network::search_path(),
    }
}

async fn start_containerd(config: &NodeConfig, tasks: &Tasks) -> Result<Containerd, AgentError> {
    Ok(Containerd::start(containerd_config(config), tasks).await?)
}

/// Ends what a killed run of this node left: its shims live in namespaces that are lost, so nobody can
/// take them over.
async fn sweep(config: &NodeConfig) {
    let runtime = containerd_config(config);
    let folders = [config.data_dir.join("kubelet"), runtime.state.clone(), runtime.root.clone()];
    let folders: Vec<&std::path::Path> = folders.iter().map(PathBuf::as_path).collect();
    match node_runtime::sweep(&runtime.socket, &folders).await {
        Ok(0) => {}
        Ok(ended) => info!(ended, "processes of an earlier run ended"),
        Err(error) => warn!(%error, "an earlier run could not be swept"),
    }
    if let Err(error) = cni::forget_addresses(&config.data_dir.join("cni/state")) {
        warn!(%error, "addresses of gone pods stay reserved");
    }
}

/// Not fatal for a node that was a member already: its pods should run while somebody sets the clock.
async fn warn_of_skew(client: &kube::Client, target: &Target) {
    match join::check_clock(client, target).await {
        Ok(()) => {}
        Err(error @ AgentError::Skew { .. }) => warn!("{error}"),
        Err(error) => info!(%error, "the API server does not answer yet"),
    }
}

fn tunnel(config: &NodeConfig, connector: &Connector, address: IpAddr) -> TunnelClient {
    let settings = ClientConfig {
        authority: connector.target().authority(),
        instance: format!("{}-{:08x}", config.name, rand::random::<u32>()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let connect = {
        let connector = connector.clone();
        move || {
            let connector = connector.clone();
            async move { connector.connect_h2().await }
        }
    };
    let (port, cluster) = (config.kubelet_port, config.cluster.clone());
    TunnelClient::new(settings, connect, move |to| is_allowed(to, address, port, &cluster))
}

/// What the API server may reach through this node: the kubelet, pods and Services; nothing else of the
/// machine or of the network around it.
fn is_allowed(to: SocketAddr, node: IpAddr, kubelet_port: u16, cluster: &crate::ClusterAddresses) -> bool {
    let ip = to.ip();
    let own = ip == node || ip == IpAddr::V4(Ipv4Addr::LOCALHOST);
    (own && to.port() == kubelet_port) || cluster.pod_cidr.contains(ip) || cluster.service_cidr.contains(ip)
}

async fn listen<T, Fut>(
    what: &'static str,
    address: IpAddr,
    port: u16,
    bind: impl Fn(SocketAddr) -> Fut,
) -> Result<T, AgentError>
where
    Fut: Future<Output = io::Result<T>>,
{
    match bind(SocketAddr::new(address, port)).await {
        Ok(bound) => Ok(bound),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let any = SocketAddr::new(address, 0);
            bind(any).await.map_err(|cause| AgentError::Listen { what, address: any, cause })
        }
        Err(cause) => Err(AgentError::Listen { what, address: (address, port).into(), cause }),
    }
}

fn local_address(
    listener: &TcpListener,
    what: &'static str,
    address: IpAddr,
) -> Result<SocketAddr, AgentError> {
    listener.local_addr().map_err(|cause| AgentError::Listen { what, address: (address, 0).into(), cause })
}

/// Carries what pods send to the Service `kubernetes` to the API server, as it is: their TLS ends there.
async fn serve_api(listener: TcpListener, tunnel: TunnelClient) {
    let slots = Arc::new(Semaphore::new(API_CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "accepting a connection to the Service kubernetes failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(slot) = slots.clone().try_acquire_owned() else { continue };
        let tunnel = tunnel.clone();
        // Ends with its connection; when the node stops, the tunnel and with it every stream is cut.
        tokio::spawn(async move {
            let _slot = slot;
            let _ = stream.set_nodelay(true);
            match tunnel.dial(APISERVER).await {
                Ok(remote) => {
                    if let Err(error) = base_net::relay(stream, remote).await {
                        debug!(%error, "connection of a pod to the API server was cut");
                    }
                }
                Err(error) => debug!(%error, "no way to the API server for a pod"),
            }
        });
    }
}

fn proxy(config: &NodeConfig, api_at: SocketAddr, dns_at: SocketAddr) -> Proxy {
    let own = |address, port, protocol, to| LocalService { address, port, protocol, to };
    let (api, dns) = (config.cluster.api_service, config.cluster.dns_service);
    let mut services = vec![own(api, 443, Protocol::Tcp, api_at)];
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        services.push(own(dns, 53, protocol, dns_at));
    }
    let facts = NodeFacts { pod_cidrs: vec![config.cluster.pod_cidr] };
    Proxy::new(SERVICES_TABLE, &config.name, facts, services)
}

/// Follows the cluster's nodes: the pods' plug-in configuration once this node has a range, routes to the
/// others, and who is reached without masquerading.
async fn keep_network(config: NodeConfig, address: IpAddr, mut peers: watch::Receiver<Option<Peers>>) {
    let mut routes = match Routes::load().await {
        Ok(routes) => routes,
        Err(error) => {
            warn!(%error, "routes of an earlier run are unknown");
            Routes::default()
        }
    };
    let mut last_masquerade = None;
    loop {
        let now = peers.borrow_and_update().clone();
        if let Some(now) = now {
            let own = now.get(&config.name).map(|peer| peer.pod_cidrs.clone()).unwrap_or_default();
            if !own.is_empty() {
                let conf = CniConfig {
                    conf_dir: cni_conf_dir(&config),
                    bin_dir: config.cni_bin_dir.clone(),
                    state_dir: config.data_dir.join("cni/state"),
                    pod_cidrs: own.clone(),
                    mtu: config.mtu,
                };
                if let Err(error) = cni::write(&conf) {
                    warn!(error = &error as &dyn std::error::Error, "pods cannot be connected");
                }
            }
            let mut nodes: Vec<IpAddr> = now.values().flat_map(|peer| peer.addresses.clone()).collect();
            nodes.push(address);
            nodes.sort();
            nodes.dedup();
            let wanted = Masquerade { pod_cidrs: own, cluster_cidrs: vec![config.cluster.pod_cidr], nodes };
            if last_masquerade.as_ref() != Some(&wanted) {
                match ground::masquerade(&wanted).await {
                    Ok(()) => last_masquerade = Some(wanted),
                    Err(error) => warn!(%error, "pods cannot leave the cluster"),
                }
            }
            routes.apply(&cluster::routes(&now, &config.name)).await;
        }
        // Also without news: a route that failed may work by now.
        if let Ok(Err(_)) = tokio::time::timeout(Duration::from_secs(30), peers.changed()).await {
            return; // nobody watches nodes any more
        }
    }
}

fn kubelet_config(
    config: &NodeConfig,
    membership: &Membership,
    client: kube::Client,
    containerd: &Containerd,
    address: IpAddr,
    resolv_conf: PathBuf,
    identity: watch::Receiver<Option<base_net::pki::Issued>>,
) -> node_kubelet::Config {
    let capacity = match &config.capacity {
        None => Capacity::of_this_machine(),
        Some(given) => Capacity {
            cpu_millis: given.cpu_millis,
            memory_bytes: given.memory_bytes,
            ephemeral_storage_bytes: given.ephemeral_storage_bytes,
            pods: given.pods,
        },
    };
    let taints = config.taints.iter().map(|taint| Taint {
        key: taint.key.clone(),
        value: Some(taint.value.clone()).filter(|value| !value.is_empty()),
        effect: taint.effect.clone(),
        ..Taint::default()
    });
    node_kubelet::Config {
        node_name: config.name.clone(),
        root_dir: config.data_dir.join("kubelet"),
        client,
        cri_socket: containerd.socket().to_path_buf(),
        cgroup_root: config.cgroup_root(),
        node_ips: vec![address],
        cluster_dns: vec![config.cluster.dns_service],
        cluster_domain: config.cluster.domain.clone(),
        resolv_conf,
        capacity,
        labels: config.labels.clone(),
        taints: taints.collect(),
        serving: Serving {
            listen: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), config.kubelet_port),
            identity,
            client_ca_pem: membership.ca_pem.clone(),
        },
        clock: SystemClock::shared(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tunnel_reaches_the_kubelet_pods_and_services_only() {
        let cluster = crate::ClusterAddresses::default();
        let node = "172.31.240.10".parse().unwrap();
        for (to, allowed) in [
            ("127.0.0.1:10250", true),
            ("172.31.240.10:10250", true),
            ("10.244.3.4:8080", true),
            ("10.96.0.50:443", true),
            ("127.0.0.1:22", false),
            ("172.31.240.10:22", false),
            ("172.31.240.11:10250", false),
            ("169.254.169.254:80", false),
            ("192.0.2.1:443", false),
            ("[::ffff:10.244.3.4]:80", false),
        ] {
            assert_eq!(is_allowed(to.parse().unwrap(), node, 10250, &cluster), allowed, "{to}");
        }
    }
}
