//! Routes TLS connections to the cells that serve them, by server name.
//!
//! [`run`] accepts, reads the ClientHello, looks its server name up in the routing table and from then on
//! copies bytes. It holds no key of any cluster and never sees plaintext. The table comes from the
//! manager and is kept on disk, so that routing outlives the manager. Which of a cluster's cells answer it
//! finds out by itself (`backends`).
//!
//! Not here: authentication, HTTP, anything about Kubernetes.

mod backends;
mod hello;
mod routes;
mod silent;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base_net::shares::{Share, Shares};
use base_net::tasks::Tasks;
use base_net::tls::UNRECOGNIZED_NAME;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{IpFreebind, KeepAlive, TcpKeepCount, TcpKeepIdle, TcpKeepInterval};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;

use backends::Backends;
pub use routes::{RouteError, Routes};
use silent::{Silent, Silents};

/// Connections open at the same time. Each costs two sockets and two copy buffers of 8 KiB; the bound is
/// what a process may have in file descriptors (`ulimit -n` of 65,536 on the machines we run on), halved.
const MAX_CONNECTIONS: usize = 30_000;

/// One cluster may hold so much of what is *left*: its clients must not lock out everybody else's, and neither must
/// those of somebody who has a few clusters. While the gateway is empty that is an eighth of it, and the less is left,
/// the less one may take. Nodes keep a handful each, people fewer.
const SHARE_OF_THE_REST: usize = 8;

/// What a cluster may hold however full the gateway is, as long as it is not.
const ALWAYS_PER_NAME: usize = 64;

/// Connections of one address that have not said what they want; the oldest goes for one more. An honest one says
/// it within milliseconds, so this also suffices for thousands of clients behind one address.
const MAX_SILENT_PER_ADDRESS: usize = 256;

/// The same of all addresses together: strangers from everywhere leave most of the gateway to those who speak.
const MAX_SILENT: usize = MAX_CONNECTIONS / 4;

/// Connections that the kernel has completed and nobody has accepted yet: what tokio's own listeners have.
const BACKLOG: u32 = 1024;

/// How long a client may go on after its cell has said its last; it may stay half-open for ever otherwise.
const FAREWELL: Duration = Duration::from_secs(5);

/// A connection that has been quiet for so long is asked whether it is there; after three unanswered questions it
/// is not. Between them they take two minutes, which a laptop's short sleep survives.
const KEEP_ALIVE_IDLE_SECONDS: u32 = 60;
const KEEP_ALIVE_INTERVAL_SECONDS: u32 = 20;
const KEEP_ALIVE_PROBES: u32 = 3;

/// How long a client may take to send its ClientHello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a name that is not in the table is waited for. A cluster's route follows its creation within
/// milliseconds; without this, the first request after `create` could come in between.
const ROUTE_PATIENCE: Duration = Duration::from_secs(1);

/// How long one cell may take to accept before the next in line is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

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

/// Listens where people connect, which has to be there, or where machines do: their network may come later
/// than the gateway and go before it.
fn listen(address: SocketAddr, may_come_later: bool) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    if may_come_later && address.is_ipv4() {
        setsockopt(&socket, IpFreebind, &true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Binds all addresses and serves until `tasks` is stopped.
pub async fn run(config: Config, tasks: &Tasks) -> Result<(), GatewayError> {
    let routes = Routes::load(&config.state_file)?;
    let mut listeners = Vec::new();
    for (nth, &address) in config.listen.iter().enumerate() {
        let listener = listen(address, nth > 0).map_err(|cause| GatewayError::Listen { address, cause })?;
        listeners.push(listener);
    }
    tasks.spawn(routes::follow(config, routes.clone()));
    let backends = Backends::default();
    tasks.spawn(backends::watch(routes.clone(), backends.clone()));
    let bounds = Bounds {
        slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        silent: Silents::new(MAX_SILENT_PER_ADDRESS, MAX_SILENT),
        named: Shares::new(MAX_CONNECTIONS / SHARE_OF_THE_REST),
    };
    for listener in listeners {
        tasks.spawn(accept_all(listener, routes.clone(), backends.clone(), bounds.clone(), tasks.clone()));
    }
    Ok(())
}

/// Who may hold how many connections.
#[derive(Clone)]
struct Bounds {
    slots: Arc<Semaphore>,
    silent: Silents,
    named: Shares<String>,
}

impl Bounds {
    /// One more connection of the cluster called `name`, if it may have it.
    fn share(&self, name: &str) -> Option<Share<String>> {
        let most = self.slots.available_permits() / SHARE_OF_THE_REST;
        self.named.take_up_to(name.to_owned(), most.max(ALWAYS_PER_NAME))
    }
}

async fn accept_all(listener: TcpListener, routes: Routes, backends: Backends, bounds: Bounds, tasks: Tasks) {
    loop {
        // The slot comes first: a full gateway leaves newcomers in the kernel's backlog.
        let Ok(slot) = bounds.slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let silent = bounds.silent.enter(peer.ip().to_canonical());
                let (routes, backends, bounds) = (routes.clone(), backends.clone(), bounds.clone());
                tasks.spawn(async move {
                    if let Err(why) = route(stream, silent, &routes, &backends, &bounds).await {
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
    #[error("silent for longer than all others when there were too many")]
    Displaced,
    #[error("not TLS: {0}")]
    NotTls(#[from] hello::HelloError),
    #[error("no cell serves {0:?}")]
    UnknownName(String),
    #[error("{0:?} has as many connections as one cluster may")]
    Crowded(String),
    #[error("no cell of {name} accepts: {cause}")]
    NoCell { name: String, cause: std::io::Error },
    #[error("the cell of {name} at {address} does not answer any more")]
    Died { name: String, address: SocketAddr },
    #[error("copying ended: {0}")]
    Copy(#[from] std::io::Error),
}

async fn route(
    mut client: TcpStream,
    silent: Silent,
    routes: &Routes,
    backends: &Backends,
    bounds: &Bounds,
) -> Result<(), NotRouted> {
    prepare(&client)?;
    let introduced = async {
        let hello = tokio::time::timeout(HELLO_TIMEOUT, hello::read(&mut client))
            .await
            .map_err(|_| NotRouted::Slow)??;
        let addresses = routes.wait_for(&hello.server_name, ROUTE_PATIENCE).await;
        Ok::<_, NotRouted>((hello, addresses))
    };
    let (hello, addresses) = tokio::select! {
        // One that has spoken gets in, even if its place was given away in the same moment.
        biased;
        introduced = introduced => introduced?,
        () = silent.displaced() => return Err(NotRouted::Displaced),
    };
    let name = hello.server_name;
    let Some(addresses) = addresses else {
        client.write_all(&UNRECOGNIZED_NAME).await?;
        return Err(NotRouted::UnknownName(name));
    };
    // It has spoken, and of a cluster that exists: what it may hold is that cluster's affair from now on.
    drop(silent);
    let Some(_share) = bounds.share(&name) else { return Err(NotRouted::Crowded(name)) };
    let (address, mut cell) = connect(&name, &addresses, backends).await?;
    prepare(&cell)?;
    cell.write_all(&hello.bytes).await?;
    if addresses.len() == 1 {
        // Nobody else could serve the client, and the cell may only have been slow.
        return Ok(carry(client, cell).await?);
    }
    let dies = backends.dies(address);
    tokio::select! {
        carried = carry(client, cell) => Ok(carried?),
        // The client dials again, and gets to another replica.
        () = dies.cancelled() => Err(NotRouted::Died { name, address }),
    }
}

/// Sets what both sides of a connection need: nothing waits for the other's acknowledgement, and a peer whose
/// machine vanished without a word is found out, where it would hold its slot for ever.
fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, KeepAlive, &true)?;
    setsockopt(stream, TcpKeepIdle, &KEEP_ALIVE_IDLE_SECONDS)?;
    setsockopt(stream, TcpKeepInterval, &KEEP_ALIVE_INTERVAL_SECONDS)?;
    setsockopt(stream, TcpKeepCount, &KEEP_ALIVE_PROBES)?;
    Ok(())
}

/// Copies both ways until the cell is done. A client that will send no more may still listen; a cell that has
/// closed has nothing left to hear.
async fn carry(mut client: TcpStream, mut cell: TcpStream) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_cell, mut to_cell) = cell.split();
    let up = async {
        tokio::io::copy(&mut from_client, &mut to_cell).await?;
        to_cell.shutdown().await
    };
    let down = async {
        tokio::io::copy(&mut from_cell, &mut to_client).await?;
        to_client.shutdown().await
    };
    tokio::pin!(up, down);
    tokio::select! {
        ended = &mut down => {
            ended?;
            tokio::time::timeout(FAREWELL, up).await.unwrap_or(Ok(()))
        }
        ended = &mut up => {
            ended?;
            down.await
        }
    }
}

async fn connect(
    name: &str,
    addresses: &[SocketAddr],
    backends: &Backends,
) -> Result<(SocketAddr, TcpStream), NotRouted> {
    let mut last = std::io::Error::other("the route has no addresses");
    for address in backends.in_order(addresses) {
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok((address, stream)),
            Ok(Err(error)) => last = error,
            Err(_) => last = std::io::Error::new(std::io::ErrorKind::TimedOut, "connect timed out"),
        }
        // For those who come next; it is looked at again in a moment.
        backends.found(address, false);
    }
    Err(NotRouted::NoCell { name: name.to_owned(), cause: last })
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_network_that_is_not_there_yet_is_no_reason_not_to_serve() {
        // TEST-NET-1: on no machine.
        let elsewhere: SocketAddr = "192.0.2.1:0".parse().unwrap();
        assert!(listen(elsewhere, false).is_err(), "where people connect has to be there");
        listen(elsewhere, true).unwrap();
        let taken = listen("127.0.0.1:0".parse().unwrap(), true).unwrap();
        assert!(listen(taken.local_addr().unwrap(), true).is_err(), "a port that is taken is still taken");
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_a_half_open_client_is_not_kept() {
        let (mut client, client_here) = pair().await;
        let (mut cell, cell_here) = pair().await;
        let carried = tokio::spawn(carry(client_here, cell_here));
        client.write_all(b"ask").await.unwrap();
        let mut asked = [0; 3];
        cell.read_exact(&mut asked).await.unwrap();
        cell.write_all(b"answer").await.unwrap();
        let mut answered = [0; 6];
        client.read_exact(&mut answered).await.unwrap();
        assert_eq!((&asked, &answered), (b"ask", b"answer"));
        // The cell is done; the client neither closes nor sends.
        drop(cell);
        let ended = tokio::time::timeout(FAREWELL + Duration::from_secs(5), carried).await;
        assert!(ended.is_ok(), "the gateway kept a client whose cell was gone");
    }

    #[tokio::test]
    async fn an_answer_outlives_the_end_of_the_question() {
        let (mut client, client_here) = pair().await;
        let (mut cell, cell_here) = pair().await;
        let carried = tokio::spawn(carry(client_here, cell_here));
        client.shutdown().await.unwrap();
        let mut asked = Vec::new();
        cell.read_to_end(&mut asked).await.unwrap();
        cell.write_all(b"late").await.unwrap();
        drop(cell);
        let mut answered = Vec::new();
        client.read_to_end(&mut answered).await.unwrap();
        assert_eq!(answered, b"late");
        carried.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn one_address_that_says_nothing_leaves_room_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let routes = Routes::load(&dir.path().join("none.json")).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounds =
            Bounds { slots: Arc::new(Semaphore::new(8)), silent: Silents::new(2, 6), named: Shares::new(1) };
        let tasks = Tasks::new();
        tasks.spawn(accept_all(listener, routes, Backends::default(), bounds.clone(), tasks.clone()));
        let mut held = Vec::new();
        for _ in 0..2 {
            held.push(TcpStream::connect(address).await.unwrap());
        }
        // For the third of one address the first is let go, at once and not after the patience for a hello.
        let mut third = TcpStream::connect(address).await.unwrap();
        let gone = tokio::time::timeout(Duration::from_secs(2), held[0].read(&mut [0; 1])).await;
        assert!(matches!(gone, Ok(Ok(0) | Err(_))), "{gone:?}");
        // Whoever speaks is answered, however many are silent: here, that there is no such cluster.
        third.write_all(&hello::tests::client_hello("none.roadstead.local")).await.unwrap();
        let mut answer = [0; UNRECOGNIZED_NAME.len()];
        let answered = tokio::time::timeout(Duration::from_secs(4), third.read_exact(&mut answer)).await;
        assert!(matches!(answered, Ok(Ok(_))), "{answered:?}");
        assert_eq!(answer, UNRECOGNIZED_NAME);
        tasks.stop(Duration::from_secs(1)).await;
    }

    #[test]
    fn many_greedy_clusters_leave_room_for_a_modest_one() {
        const SLOTS: usize = 8_000;
        let bounds = Bounds {
            slots: Arc::new(Semaphore::new(SLOTS)),
            silent: Silents::new(1, 1),
            named: Shares::new(SLOTS / SHARE_OF_THE_REST),
        };
        let mut held = Vec::new();
        let mut take = |name: &str| {
            let Some(share) = bounds.share(name) else { return false };
            held.push((bounds.slots.clone().try_acquire_owned().expect("a slot"), share));
            true
        };
        // An eighth each would be all of it after eight.
        for number in 0..20 {
            while take(&format!("greedy-{number}")) {}
        }
        for _ in 0..ALWAYS_PER_NAME {
            assert!(take("modest"), "nothing is left for one that asks for little");
        }
    }
}
