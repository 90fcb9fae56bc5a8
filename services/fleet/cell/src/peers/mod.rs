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
    elsewhere: RwLock<HashMap<(TenantId, CellId), Vec<String>>>,
    tasks: Tasks,
}

struct Held {
    cells: Vec<CellId>,
    nodes: Vec<String>,
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

    /// What `cell` is to hear of tunnels here, as far as it differs from what it was `told`.
    fn news(&self, cell: CellId, told: &mut HashMap<TenantId, Vec<String>>) -> Vec<HeldTunnels> {
        let held = self.held.lock();
        told.retain(|cluster, _| held.contains_key(cluster));
        let mut news = Vec::new();
        for (cluster, held) in held.iter().filter(|(_, held)| held.cells.contains(&cell)) {
            if told.get(cluster) != Some(&held.nodes) {
                told.insert(*cluster, held.nodes.clone());
                let cluster_id = Bytes::copy_from_slice(cluster.as_uuid().as_bytes());
                news.push(HeldTunnels { cluster_id, nodes: held.nodes.clone() });
            }
        }
        news
    }

    fn note_elsewhere(&self, cluster: TenantId, cell: CellId, nodes: Vec<String>) {
        let mut elsewhere = self.elsewhere.write();
        if nodes.is_empty() {
            elsewhere.remove(&(cluster, cell));
        } else {
            elsewhere.insert((cluster, cell), nodes);
        }
    }

    fn forget_tunnels_of(&self, cell: CellId) {
        self.elsewhere.write().retain(|(_, at), _| *at != cell);
    }

    /// The one of `cells` that holds the node's tunnel.
    pub(crate) fn holder(&self, cluster: TenantId, cells: &[CellId], node: &str) -> Option<CellId> {
        let elsewhere = self.elsewhere.read();
        let holds = |cell: &&CellId| {
            elsewhere.get(&(cluster, **cell)).is_some_and(|nodes| nodes.iter().any(|one| one == node))
        };
        cells.iter().find(holds).copied()
    }

    /// All nodes of the cluster whose tunnel ends at one of `cells`.
    pub(crate) fn nodes_elsewhere(&self, cluster: TenantId, cells: &[CellId]) -> Vec<String> {
        let elsewhere = self.elsewhere.read();
        cells.iter().filter_map(|cell| elsewhere.get(&(cluster, *cell))).flatten().cloned().collect()
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
