//! Tells gateways which cell serves which cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use base_ids::{CellId, TenantId};
use base_net::tasks::Tasks;
use fleet_model::server_name;
use fleet_rpc::routing_server::{Routing, RoutingServer};
use fleet_rpc::{Route, RouteTable, WatchRoutesRequest};
use futures::Stream;
use futures::stream::{self, StreamExt};
use tokio::sync::watch;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::db::{DbError, RouteRow};
use crate::{ManagerError, State};

/// The newest table. A slow gateway skips what was in between, since each message is the whole table.
#[derive(Debug, Default)]
pub(crate) struct Publisher(watch::Sender<RouteTable>);

impl Publisher {
    /// Where a cluster is reached, in order of preference; empty when clients may not reach it.
    pub(crate) fn addresses(&self, server_name: &str) -> Vec<SocketAddr> {
        let table = self.0.borrow();
        let route = table.routes.iter().find(|route| route.server_name == server_name);
        route.map(|route| crate::proxy::addresses(&route.addresses)).unwrap_or_default()
    }
}

/// Reads the table from the database and hands it to all gateways.
pub(crate) async fn publish(state: &State) -> Result<(), DbError> {
    let rows = state.db.routes().await?;
    let mut replicas: BTreeMap<TenantId, Vec<RouteRow>> = BTreeMap::new();
    for row in rows {
        replicas.entry(row.cluster).or_default().push(row);
    }
    let routes = replicas
        .iter()
        .map(|(cluster, replicas)| {
            let cells: Vec<CellId> = replicas.iter().map(|replica| replica.cell).collect();
            let order = state.observed.by_preference(*cluster, &cells);
            let address = |cell: &CellId| {
                replicas.iter().find(|replica| replica.cell == *cell).map(|found| found.api_address.clone())
            };
            let addresses = order.iter().filter_map(address).collect();
            Route { server_name: server_name(cluster), addresses }
        })
        .collect();
    let table = RouteTable { routes };
    state.routes.0.send_if_modified(|old| {
        let changed = *old != table;
        *old = table;
        changed
    });
    Ok(())
}

pub(crate) async fn serve(state: Arc<State>, tasks: &Tasks) -> Result<SocketAddr, ManagerError> {
    let address = state.config.rpc_listen;
    let identity = &state.config.fleet;
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&identity.cert_pem, &identity.key_pem))
        .client_ca_root(Certificate::from_pem(&state.config.fleet_ca_pem));
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .map_err(|cause| ManagerError::Listen { address, cause })?;
    let bound = listener.local_addr().map_err(|cause| ManagerError::Listen { address, cause })?;
    let server = Server::builder().tls_config(tls)?.add_service(RoutingServer::new(Service(state)));
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let stop = tasks.stopping();
    tasks.spawn(async move {
        if let Err(error) = server.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await {
            tracing::error!(error = &error as &dyn std::error::Error, "gRPC for gateways ended");
        }
    });
    Ok(bound)
}

struct Service(Arc<State>);

#[tonic::async_trait]
impl Routing for Service {
    type WatchRoutesStream = Pin<Box<dyn Stream<Item = Result<RouteTable, Status>> + Send>>;

    async fn watch_routes(
        &self,
        _request: Request<WatchRoutesRequest>,
    ) -> Result<Response<Self::WatchRoutesStream>, Status> {
        let mut tables = self.0.routes.0.subscribe();
        tables.mark_changed();
        let stream = stream::unfold(tables, |mut tables| async move {
            tables.changed().await.ok()?;
            let table = tables.borrow_and_update().clone();
            Some((Ok(table), tables))
        });
        Ok(Response::new(stream.boxed()))
    }
}
