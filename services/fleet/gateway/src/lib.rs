//! Routes TLS connections to the cells that serve them, by server name.
//!
//! [`run`] accepts, reads the ClientHello, looks its server name up in the routing table and from then on
//! copies bytes. It holds no key of any cluster and never sees plaintext. The table comes from the
//! manager and is kept on disk, so that routing outlives the manager.
//!
//! Not here: authentication, HTTP, anything about Kubernetes.

mod hello;
mod routes;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base_net::tasks::Tasks;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

pub use routes::{RouteError, Routes};

/// Connections open at the same time. Each costs two sockets and two copy buffers of 8 KiB; the bound is
/// what a process may have in file descriptors (`ulimit -n` of 65,536 on the machines we run on), halved.
const MAX_CONNECTIONS: usize = 30_000;

/// How long a client may take to send its ClientHello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a name that is not in the table is waited for. A cluster's route follows its creation within
/// milliseconds; without this, the first request after `create` could come in between.
const ROUTE_PATIENCE: Duration = Duration::from_secs(1);

/// How long one cell may take to accept before the next in line is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    pub listen: Vec<SocketAddr>,
    /// The manager's gRPC address.
    pub manager: SocketAddr,
    pub ca_pem: String,
    pub cert_pem: String,
    pub key_pem: String,
    /// Where the last table is kept.
    pub state_file: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("cannot listen on {address}: {cause}; is another gateway running?")]
    Listen { address: SocketAddr, cause: std::io::Error },
    #[error("routing table")]
    Routes(#[from] RouteError),
}

/// Binds all addresses and serves until `tasks` is stopped.
pub async fn run(config: Config, tasks: &Tasks) -> Result<(), GatewayError> {
    let routes = Routes::load(&config.state_file)?;
    let mut listeners = Vec::new();
    for &address in &config.listen {
        let listener =
            TcpListener::bind(address).await.map_err(|cause| GatewayError::Listen { address, cause })?;
        listeners.push(listener);
    }
    tasks.spawn(routes::follow(config, routes.clone()));
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    for listener in listeners {
        tasks.spawn(accept_all(listener, routes.clone(), slots.clone(), tasks.clone()));
    }
    Ok(())
}

async fn accept_all(listener: TcpListener, routes: Routes, slots: Arc<Semaphore>, tasks: Tasks) {
    loop {
        // The slot comes first: a full gateway leaves newcomers in the kernel's backlog.
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let routes = routes.clone();
                tasks.spawn(async move {
                    if let Err(why) = route(stream, &routes).await {
                        tracing::debug!(%peer, %why, "connection not routed");
                    }
                    drop(slot);
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely; accepting in a tight loop would not help.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum NotRouted {
    #[error("no ClientHello within {HELLO_TIMEOUT:?}")]
    Slow,
    #[error("not TLS: {0}")]
    NotTls(#[from] hello::HelloError),
    #[error("no cell serves {0:?}")]
    UnknownName(String),
    #[error("no cell of {name} accepts: {cause}")]
    NoCell { name: String, cause: std::io::Error },
    #[error("copying ended: {0}")]
    Copy(#[from] std::io::Error),
}

async fn route(mut client: TcpStream, routes: &Routes) -> Result<(), NotRouted> {
    client.set_nodelay(true)?;
    let hello = tokio::time::timeout(HELLO_TIMEOUT, hello::read(&mut client))
        .await
        .map_err(|_| NotRouted::Slow)??;
    let name = hello.server_name;
    let Some(addresses) = routes.wait_for(&name, ROUTE_PATIENCE).await else {
        // `unrecognized_name`, RFC 6066: the client learns that the name is at fault, not the network.
        const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
        client.write_all(&ALERT).await?;
        return Err(NotRouted::UnknownName(name));
    };
    let mut cell = connect(&name, &addresses).await?;
    cell.set_nodelay(true)?;
    cell.write_all(&hello.bytes).await?;
    tokio::io::copy_bidirectional(&mut client, &mut cell).await?;
    Ok(())
}

async fn connect(name: &str, addresses: &[SocketAddr]) -> Result<TcpStream, NotRouted> {
    let mut last = std::io::Error::other("the route has no addresses");
    for address in addresses {
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = std::io::Error::new(std::io::ErrorKind::TimedOut, "connect timed out"),
        }
    }
    Err(NotRouted::NoCell { name: name.to_owned(), cause: last })
}
