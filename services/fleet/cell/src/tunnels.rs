//! One cluster's node tunnels: mounted on its own port, used by its API server, and giving pods the
//! Service `kubernetes`.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use base_ids::TenantId;
use base_net::tasks::Tasks;
use base_tunnel::{DialHandler, NodeIdentity, Registry, SERVICE_NAME, TunnelService, TunnelStream};
use store_raft::Group;
use tenant_apiserver::{ControlPlane, Mount, Request, Response, erase};
use tenant_client::{NodeDialer, Stream, UserInfo};
use tower::ServiceExt;

use crate::peers::{Peers, open_relay};

/// What nodes may open: their cluster's own API server, as raw TLS (DESIGN §7, clients without SNI).
const APISERVER: &str = "apiserver";

/// Reaches nodes through the tunnel they have, here or at another cell of the cluster.
pub(crate) struct Dialer {
    pub(crate) cluster: TenantId,
    pub(crate) group: Group,
    pub(crate) registry: Registry,
    pub(crate) peers: Arc<Peers>,
}

#[async_trait]
impl NodeDialer for Dialer {
    async fn dial(&self, node: &str, address: SocketAddr) -> io::Result<Box<dyn Stream>> {
        if !self.registry.is_connected(node)
            && let Some(cell) = self.peers.holder(self.cluster, &self.group.cells(), node)
        {
            return Ok(Box::new(open_relay(&self.peers, cell, self.cluster, node, address).await?));
        }
        Ok(Box::new(self.registry.open(node, address).await?))
    }
    fn connected(&self) -> Vec<String> {
        let mut nodes = self.registry.connected();
        nodes.extend(self.peers.nodes_elsewhere(self.cluster, &self.group.cells()));
        nodes.sort();
        nodes.dedup();
        nodes
    }
}

/// Tells the cluster's other cells which nodes have their tunnel here, as long as the cluster is served.
pub(crate) async fn announce(group: Group, cluster: TenantId, registry: Registry, peers: Arc<Peers>) {
    let mut changes = registry.changes();
    loop {
        changes.mark_unchanged();
        peers.hold(cluster, group.cells(), registry.connected());
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Hands tunnel requests of authenticated nodes to the registry.
pub(crate) struct TunnelMount {
    service: TunnelService<ToApiServer>,
}

impl TunnelMount {
    pub(crate) fn new(
        registry: &Registry,
        plane: Arc<OnceLock<Weak<ControlPlane>>>,
        tasks: Tasks,
    ) -> TunnelMount {
        TunnelMount { service: registry.service(ToApiServer { plane, tasks }) }
    }
}

#[async_trait]
impl Mount for TunnelMount {
    fn claims(&self, path: &str) -> bool {
        path.strip_prefix('/')
            .and_then(|rest| rest.strip_prefix(SERVICE_NAME))
            .is_some_and(|rest| rest.starts_with('/'))
    }

    async fn serve(&self, user: UserInfo, mut request: Request) -> Response {
        // Without an identity the service answers "unauthenticated" in gRPC's own words.
        let node = user
            .name
            .strip_prefix("system:node:")
            .filter(|node| !node.is_empty() && user.is_in("system:nodes"));
        if let Some(node) = node {
            request.extensions_mut().insert(NodeIdentity(node.to_owned()));
        }
        let request = request.map(tonic::body::Body::new);
        match self.service.clone().oneshot(request).await {
            Ok(response) => response.map(erase),
            Err(never) => match never {},
        }
    }
}

/// Pods that dial the Service `kubernetes` arrive here. They are strangers until their TLS and token say
/// otherwise; the node they come through lends them nothing.
pub(crate) struct ToApiServer {
    /// Weak and late: the plane owns the mount that owns this.
    plane: Arc<OnceLock<Weak<ControlPlane>>>,
    tasks: Tasks,
}

impl DialHandler for ToApiServer {
    fn admit(&self, _node: &str, target: &str) -> io::Result<()> {
        if target == APISERVER {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("nothing called {target:?} here")))
    }

    fn accept(&self, node: &str, _target: &str, stream: TunnelStream) {
        let Some(plane) = self.plane.get().and_then(Weak::upgrade) else { return };
        let node = node.to_owned();
        self.tasks.spawn(async move {
            if let Err(error) = plane.accept(stream).await {
                tracing::debug!(%node, error = &error as &dyn std::error::Error, "connection through a node ended");
            }
        });
    }
}
