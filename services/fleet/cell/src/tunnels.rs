//! One cluster's node tunnels: mounted on its own port, used by its API server, and giving pods the
//! Service `kubernetes`.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Once, OnceLock, Weak};

use async_trait::async_trait;
use base_ids::TenantId;
use base_net::tasks::Tasks;
use base_tunnel::{DialHandler, NodeIdentity, Registry, SERVICE_NAME, TunnelService, TunnelStream};
use store_mvcc::{EventKind, Key, ReadError, Space};
use store_raft::Group;
use tenant_apiserver::{ControlPlane, Mount, Request, Response, erase};
use tenant_client::{NodeDialer, Stream, UserInfo};
use tower::ServiceExt;

use crate::peers::{Peers, open_relay};

/// What nodes may open: their cluster's own API server, as raw TLS (DESIGN §7, clients without SNI).
const APISERVER: &str = "apiserver";

/// The collection of Node objects.
const NODES: &str = "nodes";

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
    registry: Registry,
    space: Arc<Space>,
    tasks: Tasks,
    /// A cluster without nodes has no task for them.
    watching: Once,
}

impl TunnelMount {
    pub(crate) fn new(
        registry: &Registry,
        plane: Arc<OnceLock<Weak<ControlPlane>>>,
        space: Arc<Space>,
        tasks: Tasks,
    ) -> TunnelMount {
        let service = registry.service(ToApiServer { plane, tasks: tasks.clone() });
        TunnelMount { service, registry: registry.clone(), space, tasks, watching: Once::new() }
    }

    fn watch_nodes(&self) {
        let (registry, space) = (self.registry.clone(), self.space.clone());
        self.tasks.spawn(async move {
            deleted_nodes(&space, || registry.connected(), |node| registry.disconnect(node)).await;
        });
    }
}

/// Calls `gone` for every Node that is deleted, until the key space is closed. Where deletions may have been
/// missed, what is `connected` without a Node counts as deleted: an agent that is about to make its Node dials
/// again.
async fn deleted_nodes(space: &Arc<Space>, connected: impl Fn() -> Vec<String>, gone: impl Fn(&str)) {
    loop {
        let mut watch = match space.watch(NODES, space.revision()) {
            Ok(watch) => watch,
            Err(ReadError::Closed) => return,
            // Replaced between the two calls by a peer's state.
            Err(ReadError::Compacted { .. } | ReadError::Future { .. }) => continue,
        };
        loop {
            match watch.next().await {
                Ok(batch) => {
                    let deleted = batch.events.iter().filter(|event| event.kind == EventKind::Delete);
                    deleted.for_each(|event| gone(&event.entry.key.name));
                }
                Err(ReadError::Closed) => return,
                Err(ReadError::Compacted { .. } | ReadError::Future { .. }) => break,
            }
        }
        let exists = |node: &String| space.get(&Key::new(NODES, node.as_str())).is_some();
        connected().iter().filter(|node| !exists(node)).for_each(|node| gone(node));
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
            self.watching.call_once(|| self.watch_nodes());
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

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::time::Duration;
    use store_mvcc::{Command, Expect, Limits, Op, Value};

    async fn write(group: &Group, ops: Vec<Op>) {
        group.write(Command { ops, fence: None, at_ms: 1 }).await.unwrap();
    }
    fn put(name: &str) -> Op {
        let value = Value { body: "{}".into(), stamp: Default::default() };
        let key = Key::new(NODES, name);
        Op::Put { key, value, expect: Expect::Any, expires_at_ms: None, shared: false }
    }
    fn delete(name: &str) -> Op {
        Op::Delete { key: Key::new(NODES, name), expect: Expect::Any }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_node_loses_its_tunnel() {
        // A ring of one event: whoever does not read in between has missed some.
        let limits = Limits { ring_bytes: 1, ..Limits::default() };
        let group = Group::in_memory(limits);
        write(&group, vec![put("a"), put("b"), put("c")]).await;
        let gone = Arc::new(Mutex::new(Vec::new()));
        let (space, told) = (group.space().clone(), gone.clone());
        let following = tokio::spawn(async move {
            let connected = || vec!["b".to_owned(), "c".to_owned()];
            deleted_nodes(&space, connected, |node| told.lock().push(node.to_owned())).await;
        });
        let settle = || tokio::time::sleep(Duration::from_millis(1));
        settle().await;
        write(&group, vec![put("a")]).await;
        settle().await;
        assert!(gone.lock().is_empty(), "a change is no deletion");
        write(&group, vec![delete("a")]).await;
        settle().await;
        assert_eq!(std::mem::take(&mut *gone.lock()), ["a"]);
        write(&group, vec![delete("b"), put("d"), put("e")]).await;
        settle().await;
        assert_eq!(*gone.lock(), ["b"], "missed, and found by looking");
        group.close().await;
        following.await.unwrap();
    }
}
