//! A process that hosts many clusters' control planes.
//!
//! [`Cell::start`] opens every cluster assigned to it, accepts clients (told apart by TLS server name) and
//! takes orders from the manager over gRPC. A cluster may have replicas on other cells (`peers`). Assignments
//! are on its own disk, so it serves on when the manager is away. `hosted` is one cluster's life: group, API
//! server, and on the Raft leader the controllers, the scheduler and the cloud loops.
//!
//! Not here: what a cluster is (`tenant/*`), how bytes are kept (`store/*`), who may have one (manager).

mod accept;
mod assignments;
mod cloud;
mod hosted;
mod join_tokens;
mod peers;
mod rpc;
mod signer;
mod tunnels;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base_clock::SharedClock;
use base_ids::{CellId, TenantId};
use base_net::pki::Issued;
use base_net::tasks::Tasks;
use futures::stream::{self, StreamExt};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use store_raft::{Host, HostConfig};
use tenant_outbound::{Egress, NetworkError};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

pub use assignments::{Assignment, AssignmentError, Replica};
pub use cloud::ProviderConfig;
pub use hosted::HostError;
pub use peers::certificate_name;
pub use tenant_outbound::EgressConfig;

use assignments::Assignments;
use cloud::Clouds;
use hosted::Hosted;
use peers::Peers;

/// Clusters opened at the same time at start: enough to keep both cores and the disk busy.
const OPENING_AT_ONCE: usize = 8;

/// How often entries whose time is up (Events, after an hour) are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// How long clusters get to end their connections when the cell stops.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    pub id: CellId,
    pub data_dir: PathBuf,
    /// gRPC, for the manager.
    pub rpc_listen: SocketAddr,
    /// TLS, for clients that a gateway sends.
    pub api_listen: SocketAddr,
    /// Listen elsewhere when somebody has taken a port meanwhile; whoever started the cell learns where.
    #[serde(default)]
    pub any_port_if_taken: bool,
    /// The first one serves clusters that name none.
    #[serde(default)]
    pub providers: Vec<ProviderConfig>,
    /// Where tenants' webhooks and the like may be, beyond the internet, and what of it is the provider's.
    #[serde(default)]
    pub egress: EgressConfig,
    pub ca_pem: String,
    pub cert_pem: String,
    pub key_pem: String,
}

impl Config {
    fn identity(&self) -> Issued {
        Issued { cert_pem: self.cert_pem.clone(), key_pem: self.key_pem.clone() }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CellError {
    #[error("cannot listen on {address}: {cause}; is another cell running there?")]
    Listen { address: SocketAddr, cause: std::io::Error },
    #[error("the store in {} cannot be opened", path.display())]
    Store { path: PathBuf, source: store_raft::HostError },
    #[error("the cell's cloud providers: {0}")]
    Providers(String),
    #[error("assignments")]
    Assignments(#[from] AssignmentError),
    #[error("egress rules")]
    Egress(#[from] NetworkError),
    #[error("gRPC TLS")]
    Rpc(#[from] tonic::transport::Error),
}

/// A running cell. Clones are handles.
#[derive(Clone)]
pub struct Cell {
    shared: Arc<Shared>,
    pub rpc_address: SocketAddr,
    pub api_address: SocketAddr,
}

pub(crate) struct Shared {
    pub(crate) id: CellId,
    pub(crate) host: Arc<Host>,
    /// Where the host keeps its log and checkpoints.
    pub(crate) store: PathBuf,
    pub(crate) peers: Arc<Peers>,
    pub(crate) clock: SharedClock,
    pub(crate) assignments: Assignments,
    pub(crate) clouds: Arc<Clouds>,
    pub(crate) egress: Arc<Egress>,
    pub(crate) clusters: RwLock<HashMap<TenantId, Arc<Hosted>>>,
    /// Why what it should serve it does not; in memory, found out anew at every start.
    pub(crate) damaged: RwLock<HashMap<TenantId, String>>,
    /// One order per cluster at a time. Entries stay: a mutex is smaller than the trouble of removing one
    /// that somebody waits for.
    orders: parking_lot::Mutex<HashMap<TenantId, Arc<Mutex<()>>>>,
    pub(crate) tasks: Tasks,
}

impl Cell {
    /// Serving when it returns: both listeners are bound and every assigned cluster is open, or its
    /// failure is logged and tried again when the manager asks for it.
    pub async fn start(config: Config, clock: SharedClock, tasks: &Tasks) -> Result<Cell, CellError> {
        ProviderConfig::check_all(&config.providers).map_err(CellError::Providers)?;
        let store_dir = config.data_dir.join("store");
        let assignments = Assignments::open(&config.data_dir.join("assignments"))?;
        let peers = Peers::new(&config, tasks);
        let mut host_config = HostConfig::new(config.id);
        host_config.transport = Some(peers.clone());
        let host = Host::open(&store_dir, host_config)
            .await
            .map_err(|source| CellError::Store { path: store_dir.clone(), source })?;
        let clouds = Arc::new(Clouds::new(&config)?);
        let shared = Arc::new(Shared {
            id: config.id,
            host,
            store: store_dir,
            peers,
            clock,
            assignments,
            clouds: clouds.clone(),
            egress: Egress::new(&config.egress)?,
            clusters: RwLock::default(),
            damaged: RwLock::default(),
            orders: parking_lot::Mutex::default(),
            tasks: tasks.clone(),
        });
        let bind = async |address: SocketAddr| {
            let bound = match TcpListener::bind(address).await {
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && config.any_port_if_taken => {
                    TcpListener::bind(SocketAddr::new(address.ip(), 0)).await
                }
                bound => bound,
            };
            bound.map_err(|cause| CellError::Listen { address, cause })
        };
        let rpc = bind(config.rpc_listen).await?;
        let api = bind(config.api_listen).await?;
        let address_of = |listener: &TcpListener, address: SocketAddr| {
            listener.local_addr().map_err(|cause| CellError::Listen { address, cause })
        };
        let rpc_address = address_of(&rpc, config.rpc_listen)?;
        let api_address = address_of(&api, config.api_listen)?;
        shared.peers.listening(rpc_address);
        // First: clusters with replicas elsewhere need one another to open.
        rpc::serve(rpc, &config, shared.clone(), tasks)?;
        shared.clone().open_all().await;
        tasks.spawn(accept::run(api, shared.clone()));
        tasks.spawn(sweep(shared.clone()));
        tasks.spawn(clouds.describe());
        Ok(Cell { shared, rpc_address, api_address })
    }

    /// Resolves when the log's disk failed. Nothing written since is acknowledged and a failed fsync is never
    /// retried (DESIGN §5), so the process has to end; it recovers by scanning at its next start.
    pub async fn failed(&self) -> String {
        let mut failure = self.shared.host.failure();
        match failure.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(failure)) => failure.to_string(),
            _ => std::future::pending().await,
        }
    }

    /// Ends every cluster cleanly.
    pub async fn stop(&self) {
        let clusters: Vec<_> = self.shared.clusters.write().drain().map(|(_, hosted)| hosted).collect();
        stream::iter(clusters)
            .for_each_concurrent(OPENING_AT_ONCE, |hosted| async move { hosted.stop(STOP_PATIENCE).await })
            .await;
        self.shared.host.close().await;
    }
}

impl Shared {
    /// Another cell, which is where its peers find it and where no tenant is let.
    pub(crate) fn introduce(&self, replica: &Replica) {
        self.peers.introduce(replica.cell, replica.address);
        self.egress.refuse(replica.address.ip());
    }

    /// A cluster that is being served.
    pub(crate) fn cluster(&self, id: TenantId) -> Option<Arc<Hosted>> {
        self.clusters.read().get(&id).cloned()
    }

    /// Opens what the store has, and makes nothing: an empty cluster in the place of one whose data is gone
    /// would look like the tenant's own. The manager asks again for what a crash left half made.
    async fn open_all(self: Arc<Shared>) {
        let held: HashSet<TenantId> = self.host.tenants().into_iter().collect();
        stream::iter(self.assignments.all())
            .for_each_concurrent(OPENING_AT_ONCE, |assignment| {
                let shared = self.clone();
                let held = held.contains(&assignment.cluster);
                async move {
                    let id = assignment.cluster;
                    if !held {
                        let error = HostError::NoData { store: shared.store.clone() };
                        tracing::error!(tenant = %id, error = &error as &dyn std::error::Error, "cluster not opened");
                        shared.note_damage(id, &error);
                        return;
                    }
                    // One cluster's damage is not the others' (DESIGN §9).
                    if let Err(error) = shared.assign(assignment).await {
                        tracing::error!(tenant = %id, error = &error as &dyn std::error::Error, "cluster not opened");
                    }
                }
            })
            .await;
    }

    /// Serves the cluster, creating it if this cell never had it; a newer assignment replaces the one that it
    /// has. May be repeated.
    pub(crate) async fn assign(&self, assignment: Assignment) -> Result<Arc<Hosted>, HostError> {
        let id = assignment.cluster;
        let order = self.order(id);
        let _order = order.lock().await;
        if let Some(hosted) = self.cluster(id) {
            for replica in &assignment.replicas {
                self.introduce(replica);
            }
            // An order that was overtaken on its way is not obeyed any more.
            if assignment.generation > hosted.assignment().generation {
                self.assignments.put(&assignment)?;
                hosted.reassign(assignment);
            }
            return Ok(hosted);
        }
        // Written down first: a group without an assignment would never be found again.
        self.assignments.put(&assignment)?;
        let opened = Hosted::open(self, assignment).await;
        let hosted = opened.inspect_err(|error| self.note_damage(id, error))?;
        self.damaged.write().remove(&id);
        self.clusters.write().insert(id, hosted.clone());
        Ok(hosted)
    }

    /// Deletes the cluster and its data. Succeeds when it is not there.
    pub(crate) async fn remove(&self, id: TenantId) -> Result<(), HostError> {
        let order = self.order(id);
        let _order = order.lock().await;
        let hosted = self.clusters.write().remove(&id);
        if let Some(hosted) = hosted {
            hosted.stop(STOP_PATIENCE).await;
        }
        self.peers.let_go(id);
        match self.host.delete(id).await {
            Ok(()) | Err(store_raft::HostError::Unknown(_)) => {}
            Err(error) => return Err(error.into()),
        }
        self.assignments.remove(id)?;
        self.damaged.write().remove(&id);
        Ok(())
    }

    /// Remembers what only an operator can mend; the rest passes, or is answered to whoever asked.
    fn note_damage(&self, id: TenantId, error: &HostError) {
        if error.is_damage() {
            self.damaged.write().insert(id, format!("{}; {}", error.in_full(), HostError::ADVICE));
        }
    }

    fn order(&self, id: TenantId) -> Arc<Mutex<()>> {
        self.orders.lock().entry(id).or_default().clone()
    }
}

/// Deletes what has expired, cluster by cluster. One timer for the cell: idle clusters have none.
async fn sweep(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let clusters: Vec<_> = shared.clusters.read().values().cloned().collect();
        for hosted in clusters {
            let now_ms = shared.clock.now().as_millisecond();
            if let Err(error) = hosted.group().delete_expired(now_ms).await {
                tracing::debug!(tenant = %hosted.id(), error = &error as &dyn std::error::Error, "expired entries stay for now");
            }
        }
    }
}
