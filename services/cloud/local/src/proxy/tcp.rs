//! Connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use base_net::tasks::Tasks;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::Shared;

/// Of one port at a time; each costs two file descriptors and two buffers.
const CONNECTIONS: usize = 2048;
/// A target on the same machine or network that has not answered by then is taken for dead.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Targets tried for one connection.
const ATTEMPTS: usize = 3;

pub(super) async fn run(listener: TcpListener, node_port: Arc<AtomicU16>, shared: Arc<Shared>, tasks: Tasks) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely; accepting in a tight loop would not help.
                tracing::warn!(%error, "a balancer's accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Whoever may not connect learns nothing but that the connection ended.
        if !shared.admits(peer.ip()) {
            continue;
        }
        let Ok(slot) = slots.clone().try_acquire_owned() else { continue };
        let (shared, port) = (shared.clone(), node_port.load(Ordering::Relaxed));
        tasks.spawn(async move {
            let _slot = slot;
            if let Err(error) = carry(stream, port, &shared).await {
                tracing::debug!(%peer, %error, "a balanced connection ended");
            }
        });
    }
}

async fn carry(mut client: TcpStream, port: u16, shared: &Shared) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let mut failure = std::io::Error::other("no targets");
    for address in shared.choose().into_iter().take(ATTEMPTS) {
        let connecting = TcpStream::connect(SocketAddr::new(address, port));
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(mut target)) => {
                target.set_nodelay(true)?;
                // Ends when both sides have; a side that only stops sending keeps what it still receives.
                return tokio::io::copy_bidirectional(&mut client, &mut target).await.map(drop);
            }
            Ok(Err(error)) => failure = error,
            Err(_) => failure = std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer"),
        }
    }
    Err(failure)
}
