//! The other cells: how they are reached, whether they are there, and which nodes' tunnels they hold.
//!
//! Each cell dials each other cell it shares a cluster with, and asks over that one connection ([`link`]);
//! it answers over the connections that others dial ([`serve`]). Streams to nodes whose tunnel ends at
//! another cell go through the same connection ([`relay`]). Start at [`Peers`].
//!
//! Where a cell is, is known from assignments, and from the cell itself, which says so when it dials: one that
//! comes back on another port is found without the manager.
//!
//! Not here: what replicas say to one another (`store-raft`).

mod link;
mod relay;
mod serve;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base_ids::{CellId, TenantId};
use base_net::tasks::Tasks;
use bytes::Bytes;
use fleet_rpc::{HeldTunnels, Hello};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use store_raft::{Standing, Transport, TransportError};
use tokio::sync::watch;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::Config;
use link::Link;

pub(crate) use link::KEEP_ALIVE;
pub(crate) use relay::open as open_relay;
pub(crate) use serve::PeerService;

/// Between two heartbeats of a pair of cells (DESIGN §5).
const BEAT: Duration = Duration::from_millis(150);
/// Four missed: the cell is gone as far as this one is concerned.
const SILENCE: Duration = Duration::from_millis(4 * 150);
/// Messages of one frame. Many small ones become one write; a large one does not hold up the rest for long.
const FRAME_CALLS: usize = 256;
const FRAME_BYTES: usize = 1 << 20;
/// Largest frame taken: a full one whose last message is as large as a log entry may be.
const MAX_FRAME_BYTES: usize = 32 << 20;

/// The name in a cell's certificate that says which one it is.
pub fn certificate_name(cell: CellId) -> String {
    format!("{cell}.cell.roadstead")
}

/// All other cells, as one [`Transport`].
pub(crate) struct Peers {
    me: CellId,
    boot: u64,
    /// Known once the listener is bound.
    address: OnceLock<SocketAddr>,
    ca_pem: String,
    identity: base_net::pki::Issued,
    links: RwLock<HashMap<CellId, Arc<Link>>>,
    /// Nodes whose tunnel ends here, by cluster, with the other cells of that cluster.
    held: Mutex<HashMap<TenantId, Held>>,
    /// Changes with `held`.
    held_changes: watch::Sender<u64>,
    /// Nodes whose tunnel ends at another cell. Soft: a wrong entry costs one refused stream.
    elsewhere: RwLock<HashMap<(TenantId, CellId), Elsewhere>>,
    next_exchange: AtomicU64,
    tasks: Tasks,
}

struct Held {
    cells: Vec<CellId>,
    nodes: Vec<String>,
}

/// What another cell has said of one cluster's tunnels.
struct Elsewhere {
    nodes: Vec<String>,
    /// The connection it was said on.
    exchange: u64,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Peers {
    pub(crate) fn new(config: &Config, tasks: &Tasks) -> Arc<Peers> {
        Arc::new(Peers {
            me: config.id,
            boot: rand::random(),
            address: OnceLock::new(),
            ca_pem: config.ca_pem.clone(),
            identity: config.identity(),
            links: RwLock::default(),
            held: Mutex::default(),
            held_changes: watch::Sender::new(0),
            elsewhere: RwLock::default(),
            next_exchange: AtomicU64::new(0),
            tasks: tasks.clone(),
        })
    }

    /// Where this cell listens; told to those it dials.
    pub(crate) fn listening(&self, address: SocketAddr) {
        // Said once, when the listener is bound.
        let _ = self.address.set(address);
    }

    /// Makes another cell known, by what an assignment says of it.
    pub(crate) fn introduce(self: &Arc<Self>, cell: CellId, address: SocketAddr) {
        if cell != self.me {
            self.link(cell, address, false);
        }
    }

    /// The cell itself says where it is now, which is worth more than an assignment.
    fn learn(self: &Arc<Self>, cell: CellId, address: SocketAddr) {
        self.link(cell, address, true);
    }

    fn link(self: &Arc<Self>, cell: CellId, address: SocketAddr, certain: bool) {
        let mut links = self.links.write();
        match links.get(&cell) {
            Some(link) => link.moved(address, certain),
            None => {
                let link = Arc::new(Link::new(cell, address));
                links.insert(cell, link.clone());
                self.tasks.spawn(link::run(link, self.clone()));
            }
        }
    }

    fn hello(&self) -> Hello {
        Hello {
            cell_id: self.me.to_string(),
            boot: self.boot,
            address: self.address.get().map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// A client that talks to `cell` and to nobody else.
    fn tls(&self, cell: CellId) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca_pem))
            .identity(Identity::from_pem(&self.identity.cert_pem, &self.identity.key_pem))
            .domain_name(certificate_name(cell))
    }

    // ---- tunnels ----

    /// Says which nodes of a cluster have their tunnel here; told to `cells`.
    pub(crate) fn hold(&self, cluster: TenantId, cells: Vec<CellId>, nodes: Vec<String>) {
        self.held.lock().insert(cluster, Held { cells, nodes });
        self.held_changes.send_modify(|changes| *changes += 1);
    }

    pub(crate) fn let_go(&self, cluster: TenantId) {
        self.held.lock().remove(&cluster);
        self.elsewhere.write().retain(|(of, _), _| *of != cluster);
        self.held_changes.send_modify(|changes| *changes += 1);
    }

    /// What `cell` is to hear of tunnels here, as far as it differs from what it was `told`, and whether there is
    /// more than fits into one frame: a cell that comes back hears of all clusters at once.
    fn news(&self, cell: CellId, told: &mut HashMap<TenantId, Vec<String>>) -> (Vec<HeldTunnels>, bool) {
        let held = self.held.lock();
        told.retain(|cluster, _| held.contains_key(cluster));
        let (mut news, mut bytes) = (Vec::new(), 0);
        for (cluster, held) in held.iter().filter(|(_, held)| held.cells.contains(&cell)) {
            if told.get(cluster) != Some(&held.nodes) {
                if bytes > FRAME_BYTES {
                    return (news, true);
                }
                bytes += held.nodes.iter().map(String::len).sum::<usize>();
                told.insert(*cluster, held.nodes.clone());
                let cluster_id = Bytes::copy_from_slice(cluster.as_uuid().as_bytes());
                news.push(HeldTunnels { cluster_id, nodes: held.nodes.clone() });
            }
        }
        (news, false)
    }

    /// A number for a connection that another cell has dialled.
    fn exchange_begins(&self) -> u64 {
        self.next_exchange.fetch_add(1, Ordering::Relaxed)
    }

    fn note_elsewhere(&self, cluster: TenantId, cell: CellId, exchange: u64, nodes: Vec<String>) {
        let mut elsewhere = self.elsewhere.write();
        if nodes.is_empty() {
            elsewhere.remove(&(cluster, cell));
        } else {
            elsewhere.insert((cluster, cell), Elsewhere { nodes, exchange });
        }
    }

    /// A cell's connection has ended, and with it what was said on it. It may have dialled anew before the end
    /// of the old one was noticed here, and what it said then holds: it says it only once.
    fn exchange_ended(&self, cell: CellId, exchange: u64) {
        self.elsewhere.write().retain(|(_, at), said| *at != cell || said.exchange != exchange);
    }

    /// The one of `cells` that holds the node's tunnel.
    pub(crate) fn holder(&self, cluster: TenantId, cells: &[CellId], node: &str) -> Option<CellId> {
        let elsewhere = self.elsewhere.read();
        let holds = |cell: &&CellId| {
            elsewhere.get(&(cluster, **cell)).is_some_and(|said| said.nodes.iter().any(|one| one == node))
        };
        cells.iter().find(holds).copied()
    }

    /// All nodes of the cluster whose tunnel ends at one of `cells`.
    pub(crate) fn nodes_elsewhere(&self, cluster: TenantId, cells: &[CellId]) -> Vec<String> {
        let elsewhere = self.elsewhere.read();
        let said = cells.iter().filter_map(|cell| elsewhere.get(&(cluster, *cell)));
        said.flat_map(|said| &said.nodes).cloned().collect()
    }

    fn link_to(&self, cell: CellId) -> Option<Arc<Link>> {
        self.links.read().get(&cell).cloned()
    }
}

impl Transport for Peers {
    fn call(
        &self,
        to: CellId,
        tenant: TenantId,
        message: Bytes,
    ) -> BoxFuture<'static, Result<Bytes, TransportError>> {
        let link = self.link_to(to);
        async move {
            let reason = || "its address is not known".to_owned();
            let link = link.ok_or_else(|| TransportError::Unreachable { cell: to, reason: reason() })?;
            link.call(tenant, message).await
        }
        .boxed()
    }

    fn standing(&self, cell: CellId) -> Standing {
        match self.link_to(cell).and_then(|link| link.up()) {
            Some(boot) => Standing::Up { boot },
            None => Standing::Down,
        }
    }
}

/// A UUID's bytes, as they are between cells.
fn tenant(bytes: &[u8]) -> Option<TenantId> {
    let text = uuid::Uuid::from_slice(bytes).ok()?;
    Some(TenantId::from_uuid(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers() -> Arc<Peers> {
        let config = Config {
            id: CellId::generate(),
            data_dir: "/nowhere".into(),
            rpc_listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            api_listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            any_port_if_taken: false,
            providers: Vec::new(),
            egress: Default::default(),
            ca_pem: String::new(),
            cert_pem: String::new(),
            key_pem: String::new(),
        };
        Peers::new(&config, &Tasks::new())
    }

    #[test]
    fn what_a_cell_says_anew_outlives_its_old_connection() {
        let peers = peers();
        let (cluster, cell, other) = (TenantId::generate(), CellId::generate(), CellId::generate());
        let cells = [cell, other];
        let (old, new) = (peers.exchange_begins(), peers.exchange_begins());
        peers.note_elsewhere(cluster, cell, old, vec!["n1".to_owned(), "n2".to_owned()]);
        peers.note_elsewhere(cluster, other, peers.exchange_begins(), vec!["n3".to_owned()]);
        assert_eq!(peers.nodes_elsewhere(cluster, &cells), ["n1", "n2", "n3"]);
        // It dials again, says what it holds now, and only then the end of the old connection is noticed.
        peers.note_elsewhere(cluster, cell, new, vec!["n2".to_owned()]);
        peers.exchange_ended(cell, old);
        assert_eq!(peers.nodes_elsewhere(cluster, &cells), ["n2", "n3"]);
        assert_eq!(peers.holder(cluster, &cells, "n2"), Some(cell));
        peers.exchange_ended(cell, new);
        assert_eq!(peers.nodes_elsewhere(cluster, &cells), ["n3"]);
        assert_eq!(peers.holder(cluster, &cells, "n2"), None);
    }

    #[test]
    fn news_of_many_tunnels_come_in_frames_that_are_taken() {
        let peers = peers();
        let (cell, other) = (CellId::generate(), CellId::generate());
        let nodes = |count: usize| (0..count).map(|number| format!("{number:060}")).collect::<Vec<_>>();
        for number in 0..12 {
            let of = if number < 10 { cell } else { other };
            peers.hold(TenantId::generate(), vec![peers.me, of], nodes(5_000));
        }
        let (mut told, mut frames) = (HashMap::new(), Vec::new());
        loop {
            let (news, more) = peers.news(cell, &mut told);
            let bytes: usize = news.iter().flat_map(|held| &held.nodes).map(String::len).sum();
            assert!(bytes < MAX_FRAME_BYTES / 4, "{bytes}");
            frames.push(news.len());
            if !more {
                break;
            }
        }
        assert!(frames.len() > 1 && frames.iter().sum::<usize>() == 10, "{frames:?}");
        assert_eq!(peers.news(cell, &mut told), (Vec::new(), false), "all is said");
    }
}
