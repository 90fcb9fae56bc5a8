//! Datagrams: who sent from one address and port talks to one target until it falls silent.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use base_net::tasks::Tasks;
use parking_lot::Mutex;
use tokio::net::UdpSocket;
use tokio::sync::Notify;

use super::Shared;

/// Of one port at a time; each has a socket. More are not answered until some fall silent.
const SESSIONS: usize = 1024;
const IDLE: Duration = Duration::from_secs(60);
const LARGEST_DATAGRAM: usize = 65_535;

struct Session {
    to_target: Arc<UdpSocket>,
    /// The client said something.
    alive: Arc<Notify>,
}

type Sessions = Arc<Mutex<HashMap<SocketAddr, Session>>>;

pub(super) async fn run(socket: UdpSocket, node_port: Arc<AtomicU16>, shared: Arc<Shared>, tasks: Tasks) {
    let socket = Arc::new(socket);
    let sessions = Sessions::default();
    let mut buffer = vec![0; LARGEST_DATAGRAM];
    loop {
        let (length, peer) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // Told of an earlier answer that a client did not want; nothing is wrong with the socket.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => continue,
            Err(error) => {
                tracing::warn!(%error, "a balancer's receive failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if !shared.admits(peer.ip()) {
            continue;
        }
        let known = sessions.lock().get(&peer).map(|one| (one.to_target.clone(), one.alive.clone()));
        let to_target = match known {
            Some((to_target, alive)) => {
                alive.notify_one();
                to_target
            }
            None => {
                if sessions.lock().len() >= SESSIONS {
                    continue;
                }
                let Some(target) = shared.choose().first().copied() else { continue };
                let target = SocketAddr::new(target, node_port.load(Ordering::Relaxed));
                let to_target = match open(target).await {
                    Ok(opened) => Arc::new(opened),
                    Err(error) => {
                        tracing::debug!(%target, %error, "no socket to a target");
                        continue;
                    }
                };
                let alive = Arc::new(Notify::new());
                let session = Session { to_target: to_target.clone(), alive: alive.clone() };
                sessions.lock().insert(peer, session);
                let answering = answer(socket.clone(), peer, to_target.clone(), alive, sessions.clone());
                tasks.spawn(answering);
                to_target
            }
        };
        // Lost on the way, as datagrams may be.
        let _ = to_target.send(&buffer[..length]).await;
    }
}

async fn open(target: SocketAddr) -> std::io::Result<UdpSocket> {
    let any = match target {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(target).await?;
    Ok(socket)
}

/// Carries what the target says back to the client, until neither has said anything for a while.
async fn answer(
    socket: Arc<UdpSocket>,
    peer: SocketAddr,
    to_target: Arc<UdpSocket>,
    alive: Arc<Notify>,
    sessions: Sessions,
) {
    let mut buffer = vec![0; LARGEST_DATAGRAM];
    loop {
        tokio::select! {
            received = to_target.recv(&mut buffer) => match received {
                Ok(length) => drop(socket.send_to(&buffer[..length], peer).await),
                // Nobody listens at the target: the client's next word goes to another.
                Err(_) => break,
            },
            () = alive.notified() => {}
            () = tokio::time::sleep(IDLE) => break,
        }
    }
    sessions.lock().remove(&peer);
}
