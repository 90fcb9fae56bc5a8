//! The routing table: from the manager, kept on disk.

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fleet_rpc::WatchRoutesRequest;
use fleet_rpc::routing_client::RoutingClient;
use tokio::sync::watch;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::Config;

/// Between attempts to reach the manager. Routing goes on meanwhile.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);

pub(crate) type Table = HashMap<String, Vec<SocketAddr>>;

#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    #[error("{} cannot be read", path.display())]
    Read { path: PathBuf, source: std::io::Error },
}

/// Which cells serve which server name. Clones share one table.
#[derive(Debug, Clone)]
pub struct Routes {
    table: Arc<watch::Sender<Table>>,
}

impl Routes {
    /// The table of the last run; empty at the first, and where it is damaged.
    pub fn load(path: &Path) -> Result<Routes, RouteError> {
        let table = match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                // The manager sends a new one, and a gateway that does not start would not even ask.
                tracing::error!(file = %path.display(), %error, "damaged routing table; waiting for the manager's");
                Table::new()
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Table::new(),
            Err(source) => return Err(RouteError::Read { path: path.to_owned(), source }),
        };
        Ok(Routes { table: Arc::new(watch::Sender::new(table)) })
    }

    /// Addresses for `name`, waiting `patience` for a name that is not known yet.
    pub async fn wait_for(&self, name: &str, patience: Duration) -> Option<Vec<SocketAddr>> {
        let mut table = self.table.subscribe();
        let known = table.wait_for(|table| table.contains_key(name));
        let table = tokio::time::timeout(patience, known).await.ok()?.ok()?;
        table.get(name).cloned()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Table> {
        self.table.subscribe()
    }

    pub fn replace(&self, table: HashMap<String, Vec<SocketAddr>>) {
        self.table.send_replace(table);
    }

    fn save(&self, path: &Path) -> std::io::Result<()> {
        let bytes = serde_json::to_vec(&*self.table.borrow())?;
        let fresh = path.with_extension("new");
        let mut file = std::fs::File::create(&fresh)?;
        file.write_all(&bytes)?;
        // Renamed before it is on the disk, it could be an empty file after a power cut.
        file.sync_all()?;
        std::fs::rename(&fresh, path)
    }
}

/// Keeps the table equal to the manager's, for ever.
pub(crate) async fn follow(config: Config, routes: Routes) {
    loop {
        match stream(&config, &routes).await {
            Ok(()) => tracing::info!("the manager ended the stream of routes"),
            Err(error) => tracing::debug!(%error, "no routes from the manager; keeping what there is"),
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

async fn stream(config: &Config, routes: &Routes) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&config.ca_pem))
        .identity(Identity::from_pem(&config.cert_pem, &config.key_pem))
        .domain_name("manager");
    let channel = Endpoint::from_shared(format!("https://{}", config.manager))?
        .connect_timeout(Duration::from_secs(2))
        // Notices a manager that vanished without closing the connection.
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_while_idle(true)
        .tls_config(tls)?
        .connect()
        .await?;
    let mut tables = RoutingClient::new(channel).watch_routes(WatchRoutesRequest {}).await?.into_inner();
    while let Some(message) = tables.message().await? {
        let mut table = Table::new();
        for route in message.routes {
            let addresses: Vec<SocketAddr> =
                route.addresses.iter().filter_map(|address| address.parse().ok()).collect();
            table.insert(route.server_name.to_ascii_lowercase(), addresses);
        }
        tracing::debug!(routes = table.len(), "new routing table");
        routes.replace(table);
        if let Err(error) = routes.save(&config.state_file) {
            tracing::warn!(%error, file = %config.state_file.display(), "routing table not saved");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_table_outlives_the_process_and_a_damaged_one_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("routes.json");
        let known = async |routes: Routes| routes.wait_for("c1", Duration::ZERO).await;
        let routes = Routes::load(&path).unwrap();
        assert_eq!(known(routes.clone()).await, None);
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        routes.replace(HashMap::from([("c1".to_owned(), vec![address])]));
        routes.save(&path).unwrap();
        assert_eq!(known(Routes::load(&path).unwrap()).await, Some(vec![address]));
        std::fs::write(&path, b"{\"c1\": [").unwrap();
        assert_eq!(known(Routes::load(&path).unwrap()).await, None);
        // What cannot be read at all is another matter: it may be there.
        assert!(matches!(Routes::load(dir.path()), Err(RouteError::Read { .. })));
    }
}
