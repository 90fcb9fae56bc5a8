//! The server's half: which nodes are connected, and streams to them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use tracing::{debug, info, warn};

use crate::proto::{self, Chunk, FromNode, ToNode, from_node, refused::Reason, to_node, tunnel_server};
use crate::stream::{CHUNKS_IN_FLIGHT, TunnelStream};
use crate::{STREAM_ID, STREAMS_PER_NODE, TARGET};

/// How long [`Registry::open`] waits for the node to dial. Longer than the node's own patience, so that
/// the node's reason arrives before ours is made up.
const OPEN_PATIENCE: Duration = Duration::from_secs(15);

/// A node that says nothing for three pings is gone.
const PING_EVERY: Duration = Duration::from_secs(15);
const SILENCE: Duration = Duration::from_secs(45);

const HELLO_PATIENCE: Duration = Duration::from_secs(10);

/// Requests to one node that its connection has not taken yet: a burst may use every stream at once, and
/// pings and farewells need room beside it.
const CONTROL_QUEUE: usize = STREAMS_PER_NODE + 16;

/// Longest `instance`, `version` or `message` kept of what a node says.
const TEXT_BYTES: usize = 256;

/// The gRPC service of a [`Registry`]; a tower service, also for `axum`'s `route_service`.
pub type TunnelService<H> = tunnel_server::TunnelServer<Endpoint<H>>;

/// The authenticated name of the node that a request comes from. The host puts it into the request's
/// extensions; a request without one is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeIdentity(pub String);

/// What the host does with streams that nodes open.
pub trait DialHandler: Send + Sync + 'static {
    /// Whether `node` may reach `target`. An error is told to the node.
    fn admit(&self, node: &str, target: &str) -> io::Result<()>;
    /// Takes over the stream. Must not block: it spawns what it needs.
    fn accept(&self, node: &str, target: &str, stream: TunnelStream);
}

/// For hosts where nodes may open nothing.
#[derive(Debug, Clone, Copy)]
pub struct NoDials;

impl DialHandler for NoDials {
    fn admit(&self, _: &str, target: &str) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("nothing called {target:?} here")))
    }
    fn accept(&self, _: &str, _: &str, _: TunnelStream) {}
}

/// The nodes connected to this server. Clones are handles on the same registry.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    nodes: Mutex<HashMap<String, Connected>>,
    pending: Mutex<HashMap<u64, Pending>>,
    /// What is left of each node's streams. They go on when a newer connection takes over, so what they hold is
    /// the node's and not the connection's: else one that connects over and over would have no bound. Lives as
    /// long as a connection or a stream does.
    slots: Mutex<HashMap<String, Weak<Semaphore>>>,
    next_stream: AtomicU64,
    next_generation: AtomicU64,
    changes: watch::Sender<u64>,
    stop: CancellationToken,
}

/// The newest connection of a node.
struct Connected {
    generation: u64,
    instance: String,
    control: mpsc::Sender<Result<ToNode, Status>>,
    slots: Arc<Semaphore>,
    superseded: CancellationToken,
}

/// A stream asked for and not answered yet.
struct Pending {
    node: String,
    slot: OwnedSemaphorePermit,
    answer: oneshot::Sender<io::Result<TunnelStream>>,
}

impl Default for Registry {
    fn default() -> Registry {
        Registry::new()
    }
}

impl Registry {
    pub fn new() -> Registry {
        Registry {
            shared: Arc::new(Shared {
                nodes: Mutex::default(),
                pending: Mutex::default(),
                slots: Mutex::default(),
                next_stream: AtomicU64::new(1),
                next_generation: AtomicU64::new(1),
                changes: watch::Sender::new(0),
                stop: CancellationToken::new(),
            }),
        }
    }

    /// The gRPC service nodes talk to. `dials` gets what nodes open.
    pub fn service<H: DialHandler>(&self, dials: H) -> TunnelService<H> {
        let endpoint = Endpoint { shared: self.shared.clone(), dials: Arc::new(dials) };
        tunnel_server::TunnelServer::new(endpoint).max_decoding_message_size(1 << 20)
    }

    /// A connection to `address` as `node` sees it.
    ///
    /// `NotConnected`: the node has no tunnel here. `PermissionDenied`: the node does not allow the
    /// address. `ConnectionRefused`, `HostUnreachable`, `TimedOut`: what the node's own dial ended in.
    /// `ResourceBusy`: too many streams are open.
    pub async fn open(&self, node: &str, address: SocketAddr) -> io::Result<TunnelStream> {
        let id = self.shared.next_stream.fetch_add(1, Ordering::Relaxed);
        let answered = self.ask(node, address, id)?;
        // Whatever ends this future, the entry does not outlive it.
        let _forget = Forget { shared: &self.shared, id };
        match tokio::time::timeout(OPEN_PATIENCE, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(not_connected(node)),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("node {node} did not dial {address} within {} s", OPEN_PATIENCE.as_secs()),
            )),
        }
    }

    fn ask(
        &self,
        node: &str,
        address: SocketAddr,
        id: u64,
    ) -> io::Result<oneshot::Receiver<io::Result<TunnelStream>>> {
        let busy = |what: &str| io::Error::new(io::ErrorKind::ResourceBusy, format!("node {node} {what}"));
        let (control, slots) = {
            let nodes = self.shared.nodes.lock();
            let connected = nodes.get(node).ok_or_else(|| not_connected(node))?;
            (connected.control.clone(), connected.slots.clone())
        };
        let slot = slots.try_acquire_owned().map_err(|_| busy("has too many streams open"))?;
        let (answer, answered) = oneshot::channel();
        self.shared.pending.lock().insert(id, Pending { node: node.to_owned(), slot, answer });
        let open = to_node::Message::Open(proto::Open { id, address: address.to_string() });
        control.try_send(Ok(ToNode { message: Some(open) })).map_err(|error| {
            self.shared.pending.lock().remove(&id);
            match error {
                mpsc::error::TrySendError::Full(_) => busy("does not keep up with requests"),
                mpsc::error::TrySendError::Closed(_) => not_connected(node),
            }
        })?;
        Ok(answered)
    }

    /// Names of the connected nodes, sorted.
    pub fn connected(&self) -> Vec<String> {
        let mut names: Vec<String> = self.shared.nodes.lock().keys().cloned().collect();
        names.sort();
        names
    }

    pub fn is_connected(&self, node: &str) -> bool {
        self.shared.nodes.lock().contains_key(node)
    }

    /// Changes whenever a node comes or goes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Asks every node to dial elsewhere. Streams that are open stay until they end.
    pub fn drain(&self) {
        for (name, node) in self.shared.nodes.lock().iter() {
            let drain = to_node::Message::Drain(proto::Drain {});
            if node.control.try_send(Ok(ToNode { message: Some(drain) })).is_err() {
                debug!(node = %name, "no room to ask for a drain; the end of the connection will do");
            }
        }
    }

    /// Ends the control stream of one node, for instance because it was deleted.
    pub fn disconnect(&self, node: &str) {
        if let Some(connected) = self.shared.nodes.lock().remove(node) {
            connected.superseded.cancel();
            self.shared.changed();
        }
    }

    /// Ends all control streams.
    pub fn close(&self) {
        self.shared.stop.cancel();
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("connected", &self.connected()).finish_non_exhaustive()
    }
}

struct Forget<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.shared.pending.lock().remove(&self.id);
    }
}

impl Shared {
    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn slots_of(&self, node: &str) -> Arc<Semaphore> {
        let mut slots = self.slots.lock();
        slots.retain(|_, slots| slots.strong_count() > 0);
        if let Some(known) = slots.get(node).and_then(Weak::upgrade) {
            return known;
        }
        let fresh = Arc::new(Semaphore::new(STREAMS_PER_NODE));
        slots.insert(node.to_owned(), Arc::downgrade(&fresh));
        fresh
    }

    /// Takes the pending stream `id`, if it was asked of `node`.
    fn take(&self, node: &str, id: u64) -> Option<Pending> {
        let mut pending = self.pending.lock();
        if pending.get(&id)?.node != node {
            return None;
        }
        pending.remove(&id)
    }

    /// Makes a connection the node's newest; the one before is told.
    fn connect(&self, node: &str, connected: Connected) {
        let instance = connected.instance.clone();
        if let Some(old) = self.nodes.lock().insert(node.to_owned(), connected) {
            if old.instance != instance {
                warn!(node, old = %old.instance, new = %instance, "another machine or run took over this node's tunnel");
            }
            let message = to_node::Message::Superseded(proto::Superseded { by_instance: instance });
            // If there is no room, the stream just ends, which the node understands as well.
            let _ = old.control.try_send(Ok(ToNode { message: Some(message) }));
            old.superseded.cancel();
        }
        self.changed();
    }

    fn disconnected(&self, node: &str, generation: u64) {
        let mut nodes = self.nodes.lock();
        if nodes.get(node).is_some_and(|now| now.generation == generation) {
            nodes.remove(node);
            drop(nodes);
            // Whoever waits for this node hears it now rather than at the end of their patience.
            self.pending.lock().retain(|_, pending| pending.node != node);
            self.changed();
        }
    }
}

/// The gRPC side of a registry.
pub struct Endpoint<H> {
    shared: Arc<Shared>,
    dials: Arc<H>,
}

type Outbound<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl<H: DialHandler> tunnel_server::Tunnel for Endpoint<H> {
    type ControlStream = Outbound<ToNode>;
    type DataStream = Outbound<Chunk>;
    type DialStream = Outbound<Chunk>;

    async fn control(
        &self,
        request: Request<Streaming<FromNode>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        let node = identity(&request)?;
        let mut inbound = request.into_inner();
        let first = tokio::time::timeout(HELLO_PATIENCE, inbound.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no Hello"))??;
        let Some(FromNode { message: Some(from_node::Message::Hello(hello)) }) = first else {
            return Err(Status::invalid_argument("the first message is not Hello"));
        };
        let instance = clipped(&hello.instance);
        let (control, outbound) = mpsc::channel(CONTROL_QUEUE);
        let welcome = to_node::Message::Welcome(proto::Welcome {});
        let _ = control.try_send(Ok(ToNode { message: Some(welcome) }));

        let generation = self.shared.next_generation.fetch_add(1, Ordering::Relaxed);
        let superseded = CancellationToken::new();
        self.shared.connect(
            &node,
            Connected {
                generation,
                instance: instance.clone(),
                control: control.clone(),
                slots: self.shared.slots_of(&node),
                superseded: superseded.clone(),
            },
        );
        info!(%node, %instance, version = %clipped(&hello.version), "tunnel is up");
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let why = tokio::select! {
                () = shared.stop.cancelled() => "the server stops",
                () = superseded.cancelled() => "a newer connection took over",
                why = follow(&shared, &node, inbound, control) => why,
            };
            shared.disconnected(&node, generation);
            info!(%node, %instance, why, "tunnel is down");
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(outbound))))
    }

    async fn data(&self, request: Request<Streaming<Chunk>>) -> Result<Response<Self::DataStream>, Status> {
        let node = identity(&request)?;
        let id = request
            .metadata()
            .get(STREAM_ID)
            .and_then(|value| value.to_str().ok()?.parse::<u64>().ok())
            .ok_or_else(|| Status::invalid_argument("no stream id"))?;
        let pending =
            self.shared.take(&node, id).ok_or_else(|| Status::not_found("nobody waits for this stream"))?;
        let (stream, outbound) = accept(request.into_inner(), Some(pending.slot));
        if pending.answer.send(Ok(stream)).is_err() {
            return Err(Status::cancelled("whoever asked for this stream has gone"));
        }
        Ok(Response::new(outbound))
    }

    async fn dial(&self, request: Request<Streaming<Chunk>>) -> Result<Response<Self::DialStream>, Status> {
        let node = identity(&request)?;
        let target = request
            .metadata()
            .get(TARGET)
            .and_then(|value| value.to_str().ok())
            .filter(|target| target.len() <= TEXT_BYTES)
            .ok_or_else(|| Status::invalid_argument("no target"))?
            .to_owned();
        self.dials.admit(&node, &target).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Status::permission_denied(error.to_string()),
            _ => Status::unavailable(error.to_string()),
        })?;
        let slots = self.shared.nodes.lock().get(&node).map(|connected| connected.slots.clone());
        let slots = slots.ok_or_else(|| Status::failed_precondition("no control stream"))?;
        let slot =
            slots.try_acquire_owned().map_err(|_| Status::resource_exhausted("too many streams are open"))?;
        let (stream, outbound) = accept(request.into_inner(), Some(slot));
        self.dials.accept(&node, &target, stream);
        Ok(Response::new(outbound))
    }
}

/// Reads what a node says on its control stream until it falls silent or ends; says why it did.
async fn follow(
    shared: &Shared,
    node: &str,
    mut inbound: Streaming<FromNode>,
    control: mpsc::Sender<Result<ToNode, Status>>,
) -> &'static str {
    let mut pings = tokio::time::interval(PING_EVERY);
    let mut nonce = 0;
    let mut heard = tokio::time::Instant::now();
    loop {
        let message = tokio::select! {
            message = inbound.message() => message,
            now = pings.tick() => {
                if now.saturating_duration_since(heard) > SILENCE {
                    return "the node fell silent";
                }
                nonce += 1;
                let ping = to_node::Message::Ping(proto::Ping { nonce });
                // A full queue is a node that does not read; the silence will tell.
                let _ = control.try_send(Ok(ToNode { message: Some(ping) }));
                continue;
            }
        };
        heard = tokio::time::Instant::now();
        match message {
            Ok(Some(FromNode { message: Some(from_node::Message::Refused(refused)) })) => {
                if let Some(pending) = shared.take(node, refused.id) {
                    let text = format!("node {node}: {}", clipped(&refused.message));
                    let error = io::Error::new(kind_of(refused.reason()), text);
                    let _ = pending.answer.send(Err(error)); // whoever asked may have gone
                }
            }
            Ok(Some(_)) => {} // Pong, a second Hello, or something a newer node says
            Ok(None) => return "the node said goodbye",
            Err(_) => return "the connection broke",
        }
    }
}

fn accept(inbound: Streaming<Chunk>, slot: Option<OwnedSemaphorePermit>) -> (TunnelStream, Outbound<Chunk>) {
    let (sender, receiver) = mpsc::channel(CHUNKS_IN_FLIGHT);
    let stream = TunnelStream::new(inbound, sender, slot);
    (stream, Box::pin(ReceiverStream::new(receiver).map(Ok)))
}

fn identity<T>(request: &Request<T>) -> Result<String, Status> {
    match request.extensions().get::<NodeIdentity>() {
        Some(NodeIdentity(name)) => Ok(name.clone()),
        None => Err(Status::unauthenticated("only nodes may open a tunnel")),
    }
}

fn kind_of(reason: Reason) -> io::ErrorKind {
    match reason {
        Reason::Refused => io::ErrorKind::ConnectionRefused,
        Reason::Unreachable => io::ErrorKind::HostUnreachable,
        Reason::TimedOut => io::ErrorKind::TimedOut,
        Reason::Forbidden => io::ErrorKind::PermissionDenied,
        Reason::Busy => io::ErrorKind::ResourceBusy,
        Reason::Unspecified => io::ErrorKind::Other,
    }
}

fn not_connected(node: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, format!("node {node} has no tunnel here"))
}

/// A stranger's text, short enough for a log line.
fn clipped(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_BYTES).collect()
}
