//! Clients: which cluster they mean, from the TLS server name, before any key is touched.

use std::sync::Arc;
use std::time::Duration;

use base_ids::TenantId;
use base_net::tls::UNRECOGNIZED_NAME;
use rustls::server::Acceptor;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::LazyConfigAcceptor;

use crate::Shared;

/// A client that has not finished its handshake by then is let go.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections open at the same time, of all clusters together. Gateways bound their own; this is for when there
/// are several, or somebody reaches the cell without one. Who comes then waits in the kernel's backlog.
const MAX_CONNECTIONS: usize = 50_000;

pub(crate) async fn run(listener: TcpListener, shared: Arc<Shared>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // Closed never: it is ours.
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let serving = shared.clone();
                shared.tasks.spawn(async move {
                    if let Err(error) = serve(stream, &serving).await {
                        tracing::debug!(%peer, %error, "connection ended");
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

async fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    // Watches and small answers must not wait for the peer's delayed acknowledgement.
    stream.set_nodelay(true)?;
    let late = || std::io::Error::new(std::io::ErrorKind::TimedOut, "TLS handshake");
    let acceptor = LazyConfigAcceptor::new(Acceptor::default(), stream);
    tokio::pin!(acceptor);
    let start = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.as_mut()).await {
        Ok(Ok(start)) => start,
        Ok(Err(error)) => {
            if let Some(mut stream) = acceptor.take_io() {
                // `protocol_version`: most of these spoke plain HTTP to a TLS port.
                let _ = stream.write_all(&[21, 3, 3, 0, 2, 2, 70]).await;
            }
            return Err(error);
        }
        Err(_) => return Err(late()),
    };
    let hello = start.client_hello();
    let id = hello.server_name().and_then(|name| name.split('.').next()).and_then(TenantId::from_dns_label);
    let Some(hosted) = id.and_then(|id| shared.cluster(id)) else {
        // The same whether it never was or is gone.
        let mut stream = start.io;
        stream.write_all(&UNRECOGNIZED_NAME).await?;
        return Err(std::io::Error::other("no such cluster here"));
    };
    let plane = hosted.plane();
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, start.into_stream(plane.tls_config()))
        .await
        .map_err(|_| late())??;
    let peer = stream
        .get_ref()
        .1
        .peer_certificates()
        .unwrap_or_default()
        .iter()
        .map(|certificate| certificate.clone().into_owned())
        .collect();
    plane.serve(stream, peer).await;
    Ok(())
}
