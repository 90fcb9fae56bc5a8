//! Byte streams to nodes whose tunnel ends at another cell.
//!
//! One hop: a cell that is asked for a node it does not hold says so, and does not ask on.

use std::io;
use std::sync::Arc;

use base_ids::{CellId, TenantId};
use bytes::Bytes;
use fleet_rpc::relay_chunk::Message;
use fleet_rpc::relay_opened::Kind;
use fleet_rpc::{RelayChunk, RelayEnd, RelayOpen, RelayOpened};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{Peers, certificate_name, tenant};
use crate::Shared;

/// Bytes of one chunk, and of the pipe between it and whoever reads: HTTP/2's windows do the rest.
const CHUNK_BYTES: usize = 32 << 10;
const PIPE_BYTES: usize = 64 << 10;
const CHUNKS: usize = 2;

/// How long the other cell may take to have its node dial. Longer than it waits itself, so that its reason
/// arrives before ours is made up.
const OPEN_PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

/// A stream to `address` as `node` sees it, through `cell`, which holds the node's tunnel.
pub(crate) async fn open(
    peers: &Peers,
    cell: CellId,
    cluster: TenantId,
    node: &str,
    address: std::net::SocketAddr,
) -> io::Result<DuplexStream> {
    let gone = |why: String| io::Error::new(io::ErrorKind::NotConnected, format!("node {node}: {why}"));
    let client = peers.link_to(cell).and_then(|link| link.client());
    let mut client = client.ok_or_else(|| gone("the cell that holds its tunnel is away".to_owned()))?;
    let (chunks, outbound) = mpsc::channel(CHUNKS);
    let asked = RelayOpen {
        cluster_id: Bytes::copy_from_slice(cluster.as_uuid().as_bytes()),
        node: node.to_owned(),
        address: address.to_string(),
    };
    // The channel is empty.
    let _ = chunks.try_send(chunk(Message::Open(asked)));
    let asking = async {
        let mut inbound = client.relay(ReceiverStream::new(outbound)).await?.into_inner();
        let first = inbound.message().await?;
        Ok::<_, Status>((first, inbound))
    };
    let late =
        |_| io::Error::new(io::ErrorKind::TimedOut, format!("node {node}: cell {cell} does not answer"));
    let answered = tokio::time::timeout(OPEN_PATIENCE, asking).await.map_err(late)?;
    let (first, inbound) = answered.map_err(|status| gone(status.message().to_owned()))?;
    match first.and_then(|chunk| chunk.message) {
        Some(Message::Opened(opened)) if opened.refused.is_empty() => {}
        Some(Message::Opened(opened)) => {
            return Err(io::Error::new(io_kind(opened.kind()), opened.refused));
        }
        _ => return Err(gone("the cell that holds its tunnel answers something else".to_owned())),
    }
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    // Ends with the streams it reads from.
    tokio::spawn(splice(far, inbound, chunks));
    Ok(near)
}

/// Answers another cell's [`open`].
pub(super) async fn serve(
    shared: &Arc<Shared>,
    named: &[String],
    mut inbound: Streaming<RelayChunk>,
) -> Result<mpsc::Receiver<RelayChunk>, Status> {
    let Some(Message::Open(asked)) = inbound.message().await?.and_then(|chunk| chunk.message) else {
        return Err(Status::invalid_argument("the first chunk asks for nothing"));
    };
    let cluster = tenant(&asked.cluster_id).ok_or_else(|| Status::invalid_argument("no cluster's id"))?;
    let address = asked.address.parse().map_err(|_| Status::invalid_argument("no address"))?;
    let hosted = shared.cluster(cluster).ok_or_else(|| Status::not_found("not served here"))?;
    if !hosted.group().cells().iter().any(|cell| named.contains(&certificate_name(*cell))) {
        return Err(Status::permission_denied("the certificate is of no cell of that cluster"));
    }
    let (chunks, outbound) = mpsc::channel(CHUNKS);
    let opened = hosted.tunnels().open(&asked.node, address).await;
    let said = match &opened {
        Ok(_) => RelayOpened::default(),
        Err(error) => {
            // Empty means that it is open.
            let refused = format!("{error}.");
            RelayOpened { refused, kind: kind(error.kind()) as i32 }
        }
    };
    // The channel is empty.
    let _ = chunks.try_send(chunk(Message::Opened(said)));
    if let Ok(stream) = opened {
        shared.tasks.spawn(splice(stream, inbound, chunks));
    }
    Ok(outbound)
}

fn chunk(message: Message) -> RelayChunk {
    RelayChunk { message: Some(message) }
}

/// Carries bytes both ways until both directions have ended. One that breaks cuts the other as well: the call
/// ends with the halves that are dropped here, and the far side sees no `end`.
async fn splice(
    stream: impl AsyncRead + AsyncWrite,
    mut inbound: Streaming<RelayChunk>,
    chunks: mpsc::Sender<RelayChunk>,
) {
    let (mut read, mut write) = tokio::io::split(stream);
    let outwards = async {
        loop {
            let mut bytes = bytes::BytesMut::with_capacity(CHUNK_BYTES);
            let ends = read.read_buf(&mut bytes).await? == 0;
            let message = if ends { Message::End(RelayEnd {}) } else { Message::Data(bytes.freeze()) };
            chunks.send(chunk(message)).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
            if ends {
                return Ok(());
            }
        }
    };
    let inwards = async {
        loop {
            match inbound.message().await.ok().flatten().and_then(|chunk| chunk.message) {
                Some(Message::Data(bytes)) => write.write_all(&bytes).await?,
                Some(Message::End(_)) => return write.shutdown().await,
                _ => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
    };
    if let Err(error) = tokio::try_join!(outwards, inwards) {
        tracing::debug!(%error, "a relayed stream was cut");
    }
}

fn kind(of: io::ErrorKind) -> Kind {
    match of {
        io::ErrorKind::NotConnected => Kind::NotConnected,
        io::ErrorKind::ConnectionRefused => Kind::Refused,
        io::ErrorKind::HostUnreachable => Kind::Unreachable,
        io::ErrorKind::TimedOut => Kind::TimedOut,
        io::ErrorKind::PermissionDenied => Kind::Forbidden,
        io::ErrorKind::ResourceBusy => Kind::Busy,
        _ => Kind::Unspecified,
    }
}

fn io_kind(of: Kind) -> io::ErrorKind {
    match of {
        Kind::NotConnected => io::ErrorKind::NotConnected,
        Kind::Refused => io::ErrorKind::ConnectionRefused,
        Kind::Unreachable => io::ErrorKind::HostUnreachable,
        Kind::TimedOut => io::ErrorKind::TimedOut,
        Kind::Forbidden => io::ErrorKind::PermissionDenied,
        Kind::Busy => io::ErrorKind::ResourceBusy,
        Kind::Unspecified => io::ErrorKind::Other,
    }
}
