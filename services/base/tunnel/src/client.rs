//! The node's half: keeps one connection open, dials what it is asked to, and opens streams of its own.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::{Request, Streaming};
use tracing::{debug, info, warn};

use crate::proto::{self, Chunk, FromNode, ToNode, from_node, refused::Reason, to_node, tunnel_client};
use crate::stream::{CHUNKS_IN_FLIGHT, TunnelStream};
use crate::{CONNECTION_WINDOW_BYTES, STREAM_ID, STREAM_WINDOW_BYTES, STREAMS_PER_NODE, TARGET};

/// Shorter than the server's patience, so that our reason reaches it.
const DIAL_PATIENCE: Duration = Duration::from_secs(10);

/// For the whole of TCP, TLS, HTTP/2 and Hello.
const CONNECT_PATIENCE: Duration = Duration::from_secs(20);

/// The server pings every 15 s; three missed and the connection is dead, whatever TCP thinks.
const SILENCE: Duration = Duration::from_secs(50);

/// The first wait after a lost connection; doubles to [`BACKOFF_MAX`], always with full jitter, so that
/// a restarted server meets its nodes one by one.
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(20);

/// A connection that lasted this long was a good one: the next wait is short again.
const GOOD_CONNECTION: Duration = Duration::from_secs(10);

/// How long streams may go on over a connection that was drained or taken over.
const LINGER: Duration = Duration::from_secs(60);

/// How long [`TunnelClient::dial`] waits for a connection when there is none.
const DIAL_WAITS_FOR_CONNECTION: Duration = Duration::from_secs(10);

/// Answers on the way to the server: one per request, and requests are bounded by streams.
const CONTROL_QUEUE: usize = STREAMS_PER_NODE + 16;

/// What HTTP/2 may hold of one stream's outgoing bytes; together with the receiver's window, all a
/// stalled stream costs.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// Any byte stream.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}
pub type BoxedIo = Box<dyn Io>;

/// Makes the connection that carries everything: TCP, proxies and TLS (ALPN `h2`) are its business.
#[async_trait::async_trait]
pub trait Connect: Send + Sync + 'static {
    async fn connect(&self) -> io::Result<BoxedIo>;
}

#[async_trait::async_trait]
impl<F, Fut> Connect for F
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = io::Result<BoxedIo>> + Send,
{
    async fn connect(&self) -> io::Result<BoxedIo> {
        self().await
    }
}

/// What a node says about itself.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// `:authority` of the requests: the server's name.
    pub authority: String,
    /// Differs between two runs and two machines.
    pub instance: String,
    pub version: String,
}

/// How the tunnel is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Before the first attempt.
    Starting,
    Up,
    /// Between attempts; says what the last one ended in.
    Down {
        why: String,
    },
}

/// One node's tunnel. Clones are handles on the same one.
#[derive(Clone)]
pub struct TunnelClient {
    shared: Arc<Shared>,
}

struct Shared {
    config: ClientConfig,
    connect: Box<dyn Connect>,
    allow: Box<dyn Fn(SocketAddr) -> bool + Send + Sync>,
    slots: Arc<Semaphore>,
    state: watch::Sender<State>,
    current: watch::Sender<Option<Client>>,
}

type Client = tunnel_client::TunnelClient<Connection>;

/// Why a session is no longer the current one.
enum Ended {
    /// The server asked for a new connection.
    Drained,
    /// Another connection speaks for this node's name.
    Superseded {
        by_us: bool,
    },
    Broken(String),
}

impl TunnelClient {
    /// `allow` says which addresses the server may reach through this node; everything else is refused.
    pub fn new(
        config: ClientConfig,
        connect: impl Connect,
        allow: impl Fn(SocketAddr) -> bool + Send + Sync + 'static,
    ) -> TunnelClient {
        TunnelClient {
            shared: Arc::new(Shared {
                config,
                connect: Box::new(connect),
                allow: Box::new(allow),
                slots: Arc::new(Semaphore::new(STREAMS_PER_NODE)),
                state: watch::Sender::new(State::Starting),
                current: watch::Sender::new(None),
            }),
        }
    }

    /// Keeps the tunnel up until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let mut backoff = Backoff::new();
        // Sessions that were drained or taken over and may finish their streams.
        let mut lingering = JoinSet::new();
        loop {
            while lingering.try_join_next().is_some() {}
            let attempt = tokio::select! {
                () = stop.cancelled() => break,
                attempt = self.attempt() => attempt,
            };
            let ended = match attempt {
                Ok(mut session) => {
                    self.shared.current.send_replace(Some(session.client.clone()));
                    self.shared.state.send_replace(State::Up);
                    info!("tunnel is up");
                    let since = tokio::time::Instant::now();
                    let ended = tokio::select! {
                        () = stop.cancelled() => break,
                        ended = session.serve(&self.shared) => ended,
                    };
                    if since.elapsed() >= GOOD_CONNECTION {
                        backoff.reset();
                    }
                    if !matches!(ended, Ended::Broken(_)) {
                        lingering.spawn(session.linger());
                    }
                    ended
                }
                Err(error) => Ended::Broken(error.to_string()),
            };
            let (why, wait) = match ended {
                Ended::Drained => ("the server asked to dial elsewhere".to_owned(), backoff.next()),
                Ended::Superseded { by_us: true } => {
                    ("a newer connection of ours".to_owned(), backoff.next())
                }
                Ended::Superseded { by_us: false } => {
                    let why = "another machine connected under this node's name";
                    warn!("{why}: two machines with one name take each other's tunnel away");
                    (why.to_owned(), BACKOFF_MAX)
                }
                Ended::Broken(why) => (why, backoff.next()),
            };
            warn!(%why, retry_in_ms = wait.as_millis() as u64, "tunnel is down");
            self.shared.current.send_replace(None);
            self.shared.state.send_replace(State::Down { why });
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.shared.current.send_replace(None);
        self.shared.state.send_replace(State::Down { why: "stopped".to_owned() });
    }

    /// A stream to what the server calls `target`. Waits a little for a connection if there is none.
    pub async fn dial(&self, target: &str) -> io::Result<TunnelStream> {
        let mut current = self.shared.current.subscribe();
        let client = tokio::time::timeout(DIAL_WAITS_FOR_CONNECTION, current.wait_for(Option::is_some))
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::NotConnected, "the tunnel is down"))?
            .ok()
            .and_then(|client| client.clone());
        let client =
            client.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the tunnel is down"))?;
        let value = MetadataValue::try_from(target)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "not a target"))?;
        let slot = self.shared.slots.clone().try_acquire_owned();
        let slot =
            slot.map_err(|_| io::Error::new(io::ErrorKind::ResourceBusy, "too many streams are open"))?;
        let opened = open(client, Call::Dial, TARGET, value, slot);
        tokio::time::timeout(DIAL_PATIENCE, opened)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the server did not answer"))?
    }

    /// How the tunnel is, and every change of it.
    pub fn state(&self) -> watch::Receiver<State> {
        self.shared.state.subscribe()
    }

    async fn attempt(&self) -> io::Result<Session> {
        tokio::time::timeout(CONNECT_PATIENCE, Session::start(&self.shared)).await.unwrap_or_else(|_| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no tunnel within {} s", CONNECT_PATIENCE.as_secs()),
            ))
        })
    }
}

impl std::fmt::Debug for TunnelClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.shared.state.borrow().clone();
        f.debug_struct("TunnelClient").field("state", &state).finish_non_exhaustive()
    }
}

/// One connection with its control stream.
struct Session {
    client: Client,
    inbound: Streaming<ToNode>,
    answers: mpsc::Sender<FromNode>,
    streams: JoinSet<()>,
    /// The HTTP/2 connection itself; ends with the session.
    _connection: JoinSet<()>,
}

impl Session {
    async fn start(shared: &Shared) -> io::Result<Session> {
        let io = shared.connect.connect().await?;
        let (send, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20))
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(io))
            .await
            .map_err(io::Error::other)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "tunnel connection ended");
            }
        });
        let origin = http::Uri::builder()
            .scheme("https")
            .authority(shared.config.authority.as_str())
            .path_and_query("/")
            .build()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mut client = Client::with_origin(Connection { send }, origin).max_decoding_message_size(1 << 20);

        let (answers, outbound) = mpsc::channel(CONTROL_QUEUE);
        let hello =
            proto::Hello { instance: shared.config.instance.clone(), version: shared.config.version.clone() };
        let _ = answers.try_send(FromNode { message: Some(from_node::Message::Hello(hello)) });
        let mut inbound =
            client.control(ReceiverStream::new(outbound)).await.map_err(status_to_io)?.into_inner();
        match inbound.message().await.map_err(status_to_io)? {
            Some(ToNode { message: Some(to_node::Message::Welcome(_)) }) => {}
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "the server said no Welcome")),
        }
        Ok(Session { client, inbound, answers, streams: JoinSet::new(), _connection: tasks })
    }

    async fn serve(&mut self, shared: &Arc<Shared>) -> Ended {
        loop {
            let message = tokio::select! {
                message = tokio::time::timeout(SILENCE, self.inbound.message()) => message,
                Some(_) = self.streams.join_next() => continue,
            };
            let message = match message {
                Err(_) => return Ended::Broken("the server fell silent".to_owned()),
                Ok(Err(status)) => return Ended::Broken(status_to_io(status).to_string()),
                Ok(Ok(None)) => return Ended::Broken("the server ended the tunnel".to_owned()),
                Ok(Ok(Some(message))) => message.message,
            };
            match message {
                Some(to_node::Message::Open(open)) => {
                    let (shared, client, answers) =
                        (shared.clone(), self.client.clone(), self.answers.clone());
                    self.streams.spawn(async move { serve_stream(&shared, client, answers, open).await });
                }
                Some(to_node::Message::Ping(ping)) => {
                    let pong = from_node::Message::Pong(proto::Pong { nonce: ping.nonce });
                    let _ = self.answers.try_send(FromNode { message: Some(pong) });
                }
                Some(to_node::Message::Drain(_)) => return Ended::Drained,
                Some(to_node::Message::Superseded(by)) => {
                    return Ended::Superseded { by_us: by.by_instance == shared.config.instance };
                }
                // Something a newer server says: what matters has a meaning without it.
                Some(to_node::Message::Welcome(_)) | None => {}
            }
        }
    }

    /// Lets open streams end in peace, for a while.
    async fn linger(mut self) {
        let _ =
            tokio::time::timeout(LINGER, async { while self.streams.join_next().await.is_some() {} }).await;
    }
}

/// Dials what the server asked for and carries bytes until both directions ended.
async fn serve_stream(
    shared: &Shared,
    client: Client,
    answers: mpsc::Sender<FromNode>,
    open_request: proto::Open,
) {
    let id = open_request.id;
    match dial_local(shared, &open_request.address).await {
        Err((reason, message)) => {
            let refused = proto::Refused { id, reason: reason.into(), message };
            // Gone with the connection, if the connection is gone.
            let _ = answers.send(FromNode { message: Some(from_node::Message::Refused(refused)) }).await;
        }
        Ok((local, slot)) => {
            let opened = open(client, Call::Data, STREAM_ID, MetadataValue::from(id), slot).await;
            let remote = match opened {
                Ok(remote) => remote,
                Err(error) => return debug!(id, %error, "the server no longer wants this stream"),
            };
            if let Err(error) = base_net::relay(local, remote).await {
                debug!(id, %error, "tunnel stream was cut");
            }
        }
    }
}

async fn dial_local(
    shared: &Shared,
    address: &str,
) -> Result<(TcpStream, OwnedSemaphorePermit), (Reason, String)> {
    let parsed: SocketAddr =
        address.parse().map_err(|_| (Reason::Forbidden, format!("{address:?} is not an address")))?;
    if !(shared.allow)(parsed) {
        return Err((Reason::Forbidden, format!("{parsed} is not reachable through the tunnel")));
    }
    let slot = shared.slots.clone().try_acquire_owned();
    let slot = slot.map_err(|_| (Reason::Busy, "too many streams are open".to_owned()))?;
    match tokio::time::timeout(DIAL_PATIENCE, TcpStream::connect(parsed)).await {
        Ok(Ok(stream)) => {
            // Small writes of an interactive shell should not wait for one another.
            let _ = stream.set_nodelay(true);
            Ok((stream, slot))
        }
        Ok(Err(error)) => Err((reason_of(&error), format!("dial {parsed}: {error}"))),
        Err(_) => Err((Reason::TimedOut, format!("dial {parsed}: no answer"))),
    }
}

#[derive(Debug, Clone, Copy)]
enum Call {
    Data,
    Dial,
}

async fn open(
    mut client: Client,
    call: Call,
    key: &'static str,
    value: MetadataValue<tonic::metadata::Ascii>,
    slot: OwnedSemaphorePermit,
) -> io::Result<TunnelStream> {
    let (sender, receiver) = mpsc::channel::<Chunk>(CHUNKS_IN_FLIGHT);
    let mut request = Request::new(ReceiverStream::new(receiver));
    request.metadata_mut().insert(MetadataKey::from_static(key), value);
    let response = match call {
        Call::Data => client.data(request).await,
        Call::Dial => client.dial(request).await,
    };
    let inbound = response.map_err(status_to_io)?.into_inner();
    Ok(TunnelStream::new(inbound, sender, Some(slot)))
}

fn reason_of(error: &io::Error) -> Reason {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Reason::Refused,
        io::ErrorKind::TimedOut => Reason::TimedOut,
        _ => Reason::Unreachable,
    }
}

fn status_to_io(status: tonic::Status) -> io::Error {
    let kind = match status.code() {
        tonic::Code::PermissionDenied | tonic::Code::Unauthenticated => io::ErrorKind::PermissionDenied,
        tonic::Code::ResourceExhausted => io::ErrorKind::ResourceBusy,
        tonic::Code::DeadlineExceeded => io::ErrorKind::TimedOut,
        tonic::Code::Unavailable => io::ErrorKind::ConnectionReset,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("{}: {}", status.code(), status.message()))
}

/// Exactly one HTTP/2 connection as a tower service: a stream never lands on another one.
#[derive(Clone)]
struct Connection {
    send: hyper::client::conn::http2::SendRequest<tonic::body::Body>,
}

impl tower::Service<http::Request<tonic::body::Body>> for Connection {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.send.poll_ready(cx)
    }
    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.send.send_request(request))
    }
}

struct Backoff {
    ceiling: Duration,
}

impl Backoff {
    fn new() -> Backoff {
        Backoff { ceiling: BACKOFF_MIN }
    }
    fn reset(&mut self) {
        self.ceiling = BACKOFF_MIN;
    }
    /// Anything between a tenth of the ceiling and the ceiling; the ceiling doubles.
    fn next(&mut self) -> Duration {
        let wait = self.ceiling.mul_f64(0.1 + 0.9 * rand::random::<f64>());
        self.ceiling = (self.ceiling * 2).min(BACKOFF_MAX);
        wait
    }
}
