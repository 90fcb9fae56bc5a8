//! The connection to one other cell: kept up, asked over, listened to for its heartbeat.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base_ids::{CellId, TenantId};
use bytes::Bytes;
use fleet_rpc::peer_client::PeerClient;
use fleet_rpc::{PeerCall, PeerFrame};
use parking_lot::{Mutex, RwLock};
use store_raft::TransportError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::{BEAT, FRAME_BYTES, FRAME_CALLS, MAX_FRAME_BYTES, Peers, SILENCE};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two tries to reach a cell that is away. Short: a group may wait for its second replica.
const RETRY: Duration = Duration::from_millis(100);
/// Calls waiting for the connection; who comes then waits as well.
const QUEUE: usize = 1024;
/// Frames on their way into the connection, beyond what HTTP/2 itself has in flight.
const FRAMES: usize = 4;
/// What HTTP/2 lets the other side have in flight.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Relayed streams outlive a cell's silence, since it may only have been slow. One whose machine vanished is
/// given up after two of these.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) struct Link {
    pub(super) cell: CellId,
    address: watch::Sender<SocketAddr>,
    /// While connected.
    session: RwLock<Option<Session>>,
    waiting: Mutex<HashMap<u64, Waiting>>,
    next_call: AtomicU64,
}

#[derive(Clone)]
struct Session {
    boot: u64,
    heard: Arc<Mutex<Instant>>,
    calls: mpsc::Sender<PeerCall>,
    /// For streams beside the exchange.
    client: PeerClient<Channel>,
}

/// Somebody who waits for an answer.
struct Waiting {
    answer: oneshot::Sender<Result<Bytes, TransportError>>,
    sent: bool,
}

impl Link {
    pub(super) fn new(cell: CellId, address: SocketAddr) -> Link {
        Link {
            cell,
            address: watch::Sender::new(address),
            session: RwLock::default(),
            waiting: Mutex::default(),
            next_call: AtomicU64::new(1),
        }
    }

    /// The cell is (`certain`), or may be, somewhere else now. A connection that works is kept.
    pub(super) fn moved(&self, address: SocketAddr, certain: bool) {
        if certain || self.up().is_none() {
            self.address.send_if_modified(|known| std::mem::replace(known, address) != address);
        }
    }

    /// The run of the cell's process, while it is heard.
    pub(super) fn up(&self) -> Option<u64> {
        let session = self.session.read();
        let session = session.as_ref()?;
        (session.heard.lock().elapsed() < SILENCE).then_some(session.boot)
    }

    pub(super) fn client(&self) -> Option<PeerClient<Channel>> {
        self.session.read().as_ref().map(|session| session.client.clone())
    }

    pub(super) async fn call(&self, tenant: TenantId, message: Bytes) -> Result<Bytes, TransportError> {
        let unreachable =
            || TransportError::Unreachable { cell: self.cell, reason: "not connected".to_owned() };
        let calls = match &*self.session.read() {
            Some(session) => session.calls.clone(),
            None => return Err(unreachable()),
        };
        let room = calls.reserve().await.map_err(|_| unreachable())?;
        let id = self.next_call.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().insert(id, Waiting { answer, sent: false });
        // Whatever ends this future, nobody waits for the answer any more.
        let _forget = Forget { link: self, id };
        let cluster_id = Bytes::copy_from_slice(tenant.as_uuid().as_bytes());
        room.send(PeerCall { id, cluster_id, message });
        if calls.is_closed() {
            // The connection ended between asking for room and having it; nobody else would notice.
            return Err(unreachable());
        }
        answered.await.unwrap_or_else(|_| Err(unreachable()))
    }

    /// The connection is gone: everybody who waits hears it, and whether their message may have arrived.
    fn broke(&self, reason: &str) {
        *self.session.write() = None;
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for waiting in waiting.into_values() {
            let (cell, reason) = (self.cell, reason.to_owned());
            let error = if waiting.sent {
                TransportError::Broken { cell, reason }
            } else {
                TransportError::Unreachable { cell, reason }
            };
            // Whoever asked may have gone.
            let _ = waiting.answer.send(Err(error));
        }
    }
}

struct Forget<'a> {
    link: &'a Link,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.link.waiting.lock().remove(&self.id);
    }
}

/// Keeps the connection up, as long as the cell runs.
pub(super) async fn run(link: Arc<Link>, peers: Arc<Peers>) {
    let mut address = link.address.subscribe();
    let mut said = String::new();
    loop {
        let at = *address.borrow_and_update();
        let ended = match session(&link, &peers, at).await {
            Ok(never) => match never {},
            Err(reason) => reason,
        };
        link.broke(&ended);
        // Once for each reason: a cell that is down for an hour is one line.
        if said != ended {
            tracing::info!(cell = %link.cell, %at, reason = %ended, "no connection to another cell");
            said = ended;
        }
        let moved = address.changed();
        // Whichever is first; the address cannot go away while this runs.
        let _ = tokio::time::timeout(RETRY, moved).await;
    }
}

enum Never {}

/// One connection from its beginning to its end; says why it ended.
async fn session(link: &Arc<Link>, peers: &Arc<Peers>, at: SocketAddr) -> Result<Never, String> {
    let chain = |error: &dyn std::error::Error| {
        let causes = std::iter::successors(Some(error), |error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    };
    let endpoint = Endpoint::from_shared(format!("https://{at}")).map_err(|error| chain(&error))?;
    let channel = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .tls_config(peers.tls(link.cell))
        .map_err(|error| chain(&error))?
        .connect()
        .await
        .map_err(|error| chain(&error))?;
    let mut client = PeerClient::new(channel).max_decoding_message_size(MAX_FRAME_BYTES);
    let (frames, outbound) = mpsc::channel(FRAMES);
    let first = PeerFrame { hello: Some(peers.hello()), ..PeerFrame::default() };
    frames.try_send(first).map_err(|_| "no room for the first frame".to_owned())?;
    let opening = client.exchange(ReceiverStream::new(outbound));
    let opened = tokio::time::timeout(SILENCE * 2, opening).await.map_err(|_| "it does not answer")?;
    let mut inbound = opened.map_err(|status| chain(&status))?.into_inner();
    let hello = tokio::time::timeout(SILENCE * 2, inbound.message()).await;
    let hello = hello.map_err(|_| "it says nothing")?.map_err(|status| chain(&status))?;
    let hello = hello.and_then(|frame| frame.hello).ok_or("it does not introduce itself")?;
    if hello.cell_id != link.cell.to_string() {
        return Err(format!("it is cell {}", hello.cell_id));
    }
    let (calls, queue) = mpsc::channel(QUEUE);
    let heard = Arc::new(Mutex::new(Instant::now()));
    let session = Session { boot: hello.boot, heard: heard.clone(), calls, client };
    *link.session.write() = Some(session);
    tracing::debug!(cell = %link.cell, %at, "connected to another cell");
    tokio::select! {
        reason = send(link, peers, queue, frames) => Err(reason),
        reason = receive(link, inbound, &heard) => Err(reason),
        () = silence(&heard) => Err("it fell silent".to_owned()),
    }
}

/// Batches what there is to say, and beats.
async fn send(
    link: &Link,
    peers: &Peers,
    mut queue: mpsc::Receiver<PeerCall>,
    frames: mpsc::Sender<PeerFrame>,
) -> String {
    let mut beats = tokio::time::interval(BEAT);
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut beat = 0;
    let mut told = HashMap::new();
    let mut tunnels = peers.held_changes.subscribe();
    tunnels.mark_changed();
    loop {
        let mut frame = PeerFrame::default();
        tokio::select! {
            call = queue.recv() => match call {
                Some(call) => frame.calls.push(call),
                None => return "closed".to_owned(),
            },
            _ = beats.tick() => {
                beat += 1;
                frame.beat = beat;
            }
            changed = tunnels.changed() => {
                if changed.is_err() {
                    return "closed".to_owned();
                }
                let (news, more) = peers.news(link.cell, &mut told);
                if more {
                    tunnels.mark_changed();
                }
                frame.tunnels = news;
                if frame.tunnels.is_empty() {
                    continue;
                }
            }
        }
        let mut bytes: usize = frame.calls.iter().map(|call| call.message.len()).sum();
        while frame.calls.len() < FRAME_CALLS && bytes < FRAME_BYTES {
            let Ok(call) = queue.try_recv() else { break };
            bytes += call.message.len();
            frame.calls.push(call);
        }
        {
            let mut waiting = link.waiting.lock();
            // Those who have given up meanwhile need no answer, so their message needs no way.
            frame.calls.retain(|call| match waiting.get_mut(&call.id) {
                Some(waiting) => {
                    waiting.sent = true;
                    true
                }
                None => false,
            });
        }
        if frames.send(frame).await.is_err() {
            return "the connection ended".to_owned();
        }
    }
}

async fn receive(link: &Link, mut inbound: Streaming<PeerFrame>, heard: &Mutex<Instant>) -> String {
    loop {
        match inbound.message().await {
            Ok(Some(frame)) => {
                *heard.lock() = Instant::now();
                for answer in frame.answers {
                    if let Some(waiting) = link.waiting.lock().remove(&answer.id) {
                        // Whoever asked may have gone.
                        let _ = waiting.answer.send(Ok(answer.message));
                    }
                }
            }
            Ok(None) => return "it said goodbye".to_owned(),
            Err(status) => return format!("the connection broke: {}", status.message()),
        }
    }
}

async fn silence(heard: &Mutex<Instant>) {
    loop {
        let quiet = heard.lock().elapsed();
        let Some(left) = SILENCE.checked_sub(quiet) else { return };
        tokio::time::sleep(left.max(Duration::from_millis(10))).await;
    }
}
