//! An L4 proxy: one balancer's listeners, its targets and who of them can take traffic.
//!
//! [`Proxy::become_`] turns it into what a description says; listeners that stay are not touched, and
//! connections that are under way end when their peers end them, or with the balancer. `tcp` and `udp`
//! carry bytes, `health` finds out which targets answer.

mod health;
mod tcp;
mod udp;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use base_net::tasks::Tasks;
use cloud_interface::{BalancerSpec, HealthCheck, Protocol, Target};
use node_network::Subnet;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Notify;

/// For a balancer's connections to be cut.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// What listeners need to know, exchanged whole.
pub(crate) struct Routing {
    targets: Vec<Arc<Backend>>,
    /// Nobody else may connect; everybody when empty.
    source_ranges: Vec<Subnet>,
    check: HealthCheck,
}

/// A target and how it is.
pub(crate) struct Backend {
    target: Target,
    healthy: AtomicBool,
}

pub(crate) struct Shared {
    routing: ArcSwap<Routing>,
    /// Round robin.
    turn: AtomicUsize,
    changed: Notify,
}

impl Shared {
    fn admits(&self, peer: IpAddr) -> bool {
        let ranges = &self.routing.load().source_ranges;
        ranges.is_empty() || ranges.iter().any(|range| range.contains(peer))
    }

    /// Whom to try, in order: the healthy ones from whose turn it is; all of them when none is, since a
    /// check that fails for another reason must not take everything down.
    fn choose(&self) -> Vec<IpAddr> {
        let routing = self.routing.load();
        let address = |one: &Arc<Backend>| one.target.address;
        let healthy = routing.targets.iter().filter(|one| one.healthy.load(Ordering::Relaxed));
        let mut found: Vec<IpAddr> = healthy.map(address).collect();
        if found.is_empty() {
            found = routing.targets.iter().map(address).collect();
        }
        if !found.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % found.len();
            found.rotate_left(turn);
        }
        found
    }
}

struct Listening {
    node_port: Arc<AtomicU16>,
    /// Accepting; connections are the proxy's.
    tasks: Tasks,
}

pub(crate) struct Proxy {
    shared: Arc<Shared>,
    listening: HashMap<(u16, Protocol), Listening>,
    tasks: Tasks,
}

impl Proxy {
    pub(crate) fn new(tasks: &Tasks) -> Proxy {
        let none = HealthCheck {
            port: 1,
            http_path: None,
            interval_ms: 10_000,
            timeout_ms: 1000,
            unhealthy_after: 1,
            healthy_after: 1,
        };
        let routing = Routing { targets: Vec::new(), source_ranges: Vec::new(), check: none };
        let shared = Arc::new(Shared {
            routing: ArcSwap::from_pointee(routing),
            turn: AtomicUsize::new(0),
            changed: Notify::new(),
        });
        let tasks = tasks.child();
        tasks.spawn(health::run(shared.clone()));
        Proxy { shared, listening: HashMap::new(), tasks }
    }

    /// Becomes what `spec` says, at `address`. On failure what could be done is done; it is called again.
    pub(crate) async fn become_(&mut self, address: IpAddr, spec: &BalancerSpec) -> Result<(), String> {
        let before = self.shared.routing.load_full();
        let backend = |target: &Target| {
            let known = before
                .targets
                .iter()
                .find(|one| one.target.address == target.address && one.target.name == target.name);
            // A new one is trusted until its first check, which comes at once.
            let healthy = known.is_none_or(|one| one.healthy.load(Ordering::Relaxed));
            Arc::new(Backend { target: target.clone(), healthy: AtomicBool::new(healthy) })
        };
        let ranges = spec.source_ranges.iter().map(|range| range.parse().map_err(|_| range));
        let source_ranges = ranges
            .collect::<Result<Vec<Subnet>, _>>()
            .map_err(|range| format!("{range:?} is not a range of addresses"))?;
        self.shared.routing.store(Arc::new(Routing {
            targets: spec.targets.iter().map(backend).collect(),
            source_ranges,
            check: spec.health_check.clone(),
        }));
        self.shared.changed.notify_one();

        let wanted =
            |key: &(u16, Protocol)| spec.listeners.iter().any(|one| (one.port, one.protocol) == *key);
        let gone: Vec<_> = self.listening.keys().filter(|key| !wanted(key)).copied().collect();
        for key in gone {
            if let Some(listening) = self.listening.remove(&key) {
                listening.tasks.stop(STOP_PATIENCE).await;
            }
        }
        let mut problems = Vec::new();
        for listener in &spec.listeners {
            let key = (listener.port, listener.protocol);
            if let Some(listening) = self.listening.get(&key) {
                listening.node_port.store(listener.node_port, Ordering::Relaxed);
                continue;
            }
            let at = SocketAddr::new(address, listener.port);
            match self.listen(at, listener.protocol, listener.node_port).await {
                Ok(listening) => drop(self.listening.insert(key, listening)),
                Err(error) => problems.push(format!("cannot listen on {at}: {error}")),
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }

    async fn listen(&self, at: SocketAddr, protocol: Protocol, node_port: u16) -> std::io::Result<Listening> {
        let node_port = Arc::new(AtomicU16::new(node_port));
        let tasks = self.tasks.child();
        let (shared, to) = (self.shared.clone(), node_port.clone());
        match protocol {
            Protocol::Tcp => {
                let listener = TcpListener::bind(at).await?;
                tasks.spawn(tcp::run(listener, to, shared, self.tasks.clone()));
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind(at).await?;
                tasks.spawn(udp::run(socket, to, shared, tasks.clone()));
            }
        }
        Ok(Listening { node_port, tasks })
    }

    /// Nothing listens and nothing is connected when it returns.
    pub(crate) async fn stop(self) {
        for listening in self.listening.into_values() {
            listening.tasks.stop(STOP_PATIENCE).await;
        }
        self.tasks.stop(STOP_PATIENCE).await;
    }
}
