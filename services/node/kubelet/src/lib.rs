//! Runs the pods of one node: what the cluster wants on one side, containerd on the other.
//!
//! Start at [`Kubelet::run`]. Each pod has a worker (`worker`) that looks at the runtime (`observed`), decides with
//! a pure function (`plan`), acts (`execute`) and tells the cluster (`status`). `node` keeps the Node object and its
//! Lease, `server` answers the API server on port 10250.
//!
//! All paths and names come from [`Config`], so that several nodes can share a machine. The kubelet reaches its
//! cluster over the API alone, as `system:node:<name>`.
//!
//! Not here: joining a cluster and certificates (`node-agent`), pod addresses and Services (`node-network`,
//! `node-proxy`), containerd's process (`node-runtime`), static pods, device plug-ins, eviction for pressure.

mod backoff;
mod cgroups;
mod cluster;
mod config;
mod container;
mod env;
mod events;
mod execute;
mod images;
mod logs;
mod memory;
mod node;
mod observed;
mod plan;
mod pod;
mod pods;
mod probing;
mod qos;
mod recall;
mod sandbox;
mod server;
mod shared;
mod status;
mod status_writer;
mod worker;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base_net::tasks::Tasks;
use node_runtime::{Cri, CriError};
use node_volumes::Volumes;
use tokio::sync::{Semaphore, watch};

pub use cgroups::Cgroups;
pub use config::{Capacity, Config, KUBELET_VERSION, Serving};
pub use server::ServerError;

#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    #[error("{} is not usable", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the container runtime at {} is not usable", socket.display())]
    Runtime {
        socket: PathBuf,
        #[source]
        cause: CriError,
    },
    #[error("cgroups are not usable")]
    Cgroups(#[source] io::Error),
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// A running kubelet. It ends with the task group it was given; its pods run on.
#[derive(Clone)]
pub struct Kubelet {
    shared: Arc<shared::Shared>,
    tasks: Tasks,
    address: SocketAddr,
    ready: watch::Receiver<bool>,
}

impl Kubelet {
    /// Starts everything and returns once the node is registered and the server listens.
    ///
    /// The runtime must answer. Pods that run already are recognised and left alone.
    pub async fn run(config: Config, tasks: &Tasks) -> Result<Kubelet, KubeletError> {
        let logs = config.root_dir.join("logs/pods");
        for path in [config.root_dir.join("pods"), logs.clone()] {
            std::fs::create_dir_all(&path).map_err(|cause| KubeletError::Folder { path, cause })?;
        }
        let unusable = |cause| KubeletError::Runtime { socket: config.cri_socket.clone(), cause };
        let cri = Cri::connect(&config.cri_socket).map_err(unusable)?;
        cri.version().await.map_err(unusable)?;
        let cgroups = Cgroups::detect(&config.cgroup_root).map_err(KubeletError::Cgroups)?;
        let resolv_conf = std::fs::read_to_string(&config.resolv_conf).unwrap_or_else(|cause| {
            tracing::warn!(path = %config.resolv_conf.display(), %cause, "no resolver configuration for pods");
            String::new()
        });

        let tasks = tasks.child();
        let (client, clock) = (config.client.clone(), config.clock.clone());
        let allocatable = node::allocatable(&config.capacity);
        let shared = Arc::new(shared::Shared {
            cri,
            cluster: cluster::Cluster::start(client.clone(), clock.clone(), allocatable, &tasks),
            events: events::Events::start(client, config.node_name.clone(), clock, &tasks),
            volumes: Volumes::new(&config.root_dir),
            cgroups,
            around: sandbox::Surroundings {
                logs,
                cluster_dns: config.cluster_dns.clone(),
                cluster_domain: config.cluster_domain.clone(),
                resolv_conf,
            },
            tasks: tasks.clone(),
            pulls: Arc::new(Semaphore::new(shared::PULLS)),
            config,
        });

        let uid = node::register(&shared).await;
        let pods = pods::Pods::start(shared.clone());
        let address = server::start(shared.clone(), pods).await?;
        let (ready_to, ready) = watch::channel(false);
        tasks.spawn(node::keep_lease(shared.clone(), uid));
        tasks.spawn(node::keep_status(shared.clone(), address.port(), ready_to));
        let name = &shared.config.node_name;
        shared.events.node(name, events::Kind::Normal, "Starting", "Starting kubelet.");
        Ok(Kubelet { shared, tasks, address, ready })
    }

    /// Where the kubelet's server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the API server has been told that this node is ready.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.clone()
    }

    /// Stops the kubelet; containers run on and are recognised by the next one.
    pub async fn stop(&self, patience: Duration) {
        self.tasks.stop(patience).await;
    }

    /// Stops the kubelet and then every pod of the node, `grace` at most for each container, as a machine does
    /// that is shut down: sandboxes are down, volumes and cgroups gone, and the ended containers stay on the
    /// disk. The cluster's objects are not touched; the next kubelet tells how the containers ended and starts
    /// those that their pods' policies want started again.
    pub async fn stop_pods(&self, grace: Duration) -> Result<(), CriError> {
        self.stop(Duration::from_secs(5)).await;
        let cri = &self.shared.cri;
        let grace_s = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let containers = cri.list_containers(HashMap::new()).await?;
        futures::future::join_all(containers.iter().map(|one| async {
            if let Err(error) = cri.stop_container(&one.id, grace_s).await {
                tracing::warn!(id = one.id, %error, "container does not stop");
            }
        }))
        .await;
        let sandboxes = cri.list_pod_sandboxes(HashMap::new()).await?;
        let stopped =
            futures::future::join_all(sandboxes.iter().map(|sandbox| cri.stop_pod_sandbox(&sandbox.id)))
                .await;
        let uids = sandboxes.iter().filter_map(|one| one.labels.get(observed::label::POD_UID));
        for uid in uids {
            if let Err(error) = self.shared.volumes.tear_down(uid) {
                tracing::warn!(uid, %error, "volumes stay mounted");
            }
        }
        if let Err(error) = self.shared.cgroups.remove_all() {
            tracing::warn!(%error, "cgroups stay");
        }
        stopped.into_iter().collect()
    }
}

impl std::fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubelet")
            .field("node", &self.shared.config.node_name)
            .field("address", &self.address)
            .finish()
    }
}
