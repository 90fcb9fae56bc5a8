//! Both halves over real HTTP/2, on an in-memory connection that a test can cut.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base_tunnel::{
    BoxedIo, CONNECTION_WINDOW_BYTES, ClientConfig, DialHandler, MAX_CONCURRENT_STREAMS, NoDials,
    NodeIdentity, Registry, STREAM_WINDOW_BYTES, STREAMS_PER_NODE, State, TunnelClient, TunnelStream,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tower::{ServiceBuilder, ServiceExt};

/// A server with its connections, and the clients that reach it.
#[derive(Clone)]
struct World {
    registry: Registry,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    stop: CancellationToken,
}

impl World {
    fn new() -> World {
        World { registry: Registry::new(), connections: Arc::default(), stop: CancellationToken::new() }
    }

    /// Serves one connection of `node`; returns the node's end.
    fn accept<H: DialHandler + Clone>(&self, node: &str, dials: H) -> BoxedIo {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let identity = NodeIdentity(node.to_owned());
        let service = ServiceBuilder::new()
            .map_request(move |mut request: http::Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(identity.clone());
                request.map(tonic::body::Body::new)
            })
            .service(self.registry.service(dials))
            .boxed_clone();
        let served = tokio::spawn(async move {
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .serve_connection(TokioIo::new(ours), TowerToHyperService::new(service))
                .await;
        });
        self.connections.lock().push(served.abort_handle());
        Box::new(theirs)
    }

    fn cut_all(&self) {
        for connection in self.connections.lock().drain(..) {
            connection.abort();
        }
    }

    /// A running client, connected. The address ending in port 1 is forbidden.
    async fn node<H: DialHandler + Clone>(&self, name: &str, instance: &str, dials: H) -> TunnelClient {
        let world = self.clone();
        let node = name.to_owned();
        let connect = move || {
            let io = world.accept(&node, dials.clone());
            async move { Ok::<BoxedIo, io::Error>(io) }
        };
        let config = ClientConfig {
            authority: "server.test".to_owned(),
            instance: instance.to_owned(),
            version: "test".to_owned(),
        };
        let client = TunnelClient::new(config, connect, |address| address.port() != 1);
        let (running, stop) = (client.clone(), self.stop.clone());
        tokio::spawn(async move { running.run(stop).await });
        client.state().wait_for(|state| *state == State::Up).await.unwrap();
        client
    }

    async fn open(&self, to: SocketAddr) -> TunnelStream {
        within("open", self.registry.open("n1", to)).await.unwrap()
    }
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .unwrap_or_else(|_| panic!("{what} took too long"))
}

async fn serve<F, Fut>(handle: F) -> SocketAddr
where
    F: Fn(TcpStream) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handle(stream));
        }
    });
    address
}

async fn echo() -> SocketAddr {
    serve(|mut stream| async move {
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    })
    .await
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + seed * 7) % 251) as u8).collect()
}

async fn round_trip(stream: TunnelStream, sent: Vec<u8>) {
    let (mut read, mut write) = tokio::io::split(stream);
    let expected = sent.clone();
    let writer = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
        write
    });
    let mut got = Vec::new();
    within("reading the echo", read.read_to_end(&mut got)).await.unwrap();
    writer.await.unwrap();
    assert_eq!(got.len(), expected.len());
    assert!(got == expected, "bytes changed on the way");
}

#[tokio::test]
async fn many_streams_carry_their_own_bytes() {
    let world = World::new();
    world.node("n1", "a", NoDials).await;
    let address = echo().await;
    let mut all = tokio::task::JoinSet::new();
    for seed in 0..300 {
        let world = world.clone();
        // From nothing to several times the windows.
        let len = [0, 1, 1000, 40_000, 700_000][seed % 5];
        all.spawn(async move { round_trip(world.open(address).await, pattern(seed, len)).await });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
    assert_eq!(world.registry.connected(), ["n1"]);
}

#[tokio::test]
async fn either_direction_may_end_first() {
    let world = World::new();
    world.node("n1", "a", NoDials).await;

    let counts = serve(|mut stream| async move {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        stream.write_all(format!("{} bytes", all.len()).as_bytes()).await.unwrap();
    })
    .await;
    let mut stream = world.open(counts).await;
    stream.write_all(&pattern(1, 100_000)).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut said = String::new();
    within("the answer after our end", stream.read_to_string(&mut said)).await.unwrap();
    assert_eq!(said, "100000 bytes");

    let (heard_tx, mut heard) = tokio::sync::mpsc::channel(1);
    let speaks_first = serve(move |mut stream| {
        let heard = heard_tx.clone();
        async move {
            stream.write_all(b"bye").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut rest = String::new();
            stream.read_to_string(&mut rest).await.unwrap();
            heard.send(rest).await.unwrap();
        }
    })
    .await;
    let mut stream = world.open(speaks_first).await;
    let mut said = String::new();
    within("their words", stream.read_to_string(&mut said)).await.unwrap();
    assert_eq!(said, "bye");
    stream.write_all(b"but I go on").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(within("ours", heard.recv()).await.unwrap(), "but I go on");
}

#[tokio::test]
async fn a_stream_that_is_dropped_is_no_clean_end() {
    let world = World::new();
    world.node("n1", "a", NoDials).await;
    let (ended_tx, mut ended) = tokio::sync::mpsc::channel(1);
    let holds = serve(move |mut stream| {
        let ended = ended_tx.clone();
        async move {
            let mut one = [0; 1];
            stream.read_exact(&mut one).await.unwrap();
            let _ = ended.send(stream.read(&mut one).await.map_err(|error| error.kind())).await;
        }
    })
    .await;
    let mut stream = world.open(holds).await;
    stream.write_all(b"x").await.unwrap();
    drop(stream);
    // The node's socket closes; what matters is that it does and promptly.
    within("the far socket to close", ended.recv()).await.unwrap().ok();

    let mut stream = world.open(holds).await;
    world.cut_all();
    let error = within("the cut", stream.read(&mut [0; 1])).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_slow_reader_stops_its_writer_and_nobody_else() {
    let world = World::new();
    world.node("n1", "a", NoDials).await;
    let fire_hose = serve(|mut stream| async move {
        let block = vec![7; 64 * 1024];
        while stream.write_all(&block).await.is_ok() {}
    })
    .await;
    // More stalled streams than one HTTP/2 connection window of the default size could bear.
    let mut stalled = Vec::new();
    for _ in 0..64 {
        stalled.push(world.open(fire_hose).await);
    }
    // And writers whose far side never reads.
    let never_reads = serve(|stream| async move {
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(stream);
    })
    .await;
    let mut stuck = world.open(never_reads).await;
    let mut written = 0;
    let block = vec![1; 64 * 1024];
    while let Ok(Ok(())) = tokio::time::timeout(Duration::from_millis(500), stuck.write_all(&block)).await {
        written += block.len();
        assert!(written < 64 << 20, "nothing pushes back");
    }
    round_trip(world.open(echo().await).await, pattern(3, 2_000_000)).await;
    // The stalled ones are alive.
    let mut some = vec![0; 1 << 20];
    within("a stalled stream", stalled[0].read_exact(&mut some)).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_opened_says_why() {
    let world = World::new();
    world.node("n1", "a", NoDials).await;
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    for (node, address, kind) in [
        ("n1", closed, io::ErrorKind::ConnectionRefused),
        ("n1", "127.0.0.1:1".parse().unwrap(), io::ErrorKind::PermissionDenied),
        ("n2", closed, io::ErrorKind::NotConnected),
    ] {
        let error = within("the answer", world.registry.open(node, address)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{node} {address}: {error}");
    }
    // Failures leave no slot taken: after many more than there are slots, all are still free.
    for _ in 0..STREAMS_PER_NODE * 2 {
        world.registry.open("n1", closed).await.unwrap_err();
    }
    let address = echo().await;
    let mut open = Vec::new();
    for _ in 0..STREAMS_PER_NODE {
        open.push(world.open(address).await);
    }
    let error = world.registry.open("n1", address).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
}

#[tokio::test]
async fn a_lost_connection_comes_back() {
    let world = World::new();
    let client = world.node("n1", "a", NoDials).await;
    let address = echo().await;
    for round in 0..5 {
        round_trip(world.open(address).await, pattern(round, 10_000)).await;
        let mut state = client.state();
        state.mark_unchanged();
        world.cut_all();
        within("the loss", state.changed()).await.unwrap();
        within("the return", state.wait_for(|state| *state == State::Up)).await.unwrap();
        let mut changes = world.registry.changes();
        within("the registry", async {
            while !world.registry.is_connected("n1") {
                changes.changed().await.unwrap();
            }
        })
        .await;
    }
    round_trip(world.open(address).await, pattern(9, 10_000)).await;
}

#[tokio::test]
async fn the_newest_connection_of_a_name_wins() {
    let world = World::new();
    let first = world.node("n1", "first", NoDials).await;
    let mut state = first.state();
    let second = world.node("n1", "second", NoDials).await;
    let down = within("the first to hear", state.wait_for(|state| matches!(state, State::Down { .. }))).await;
    let State::Down { why } = down.unwrap().clone() else { panic!("not down") };
    assert_eq!(why, "another machine connected under this node's name");
    assert_eq!(*second.state().borrow(), State::Up);
    round_trip(world.open(echo().await).await, pattern(1, 1000)).await;
}

/// Streams go on when a newer connection takes over, so a node that connects over and over would have as many as it
/// likes if they counted against the connection.
#[tokio::test]
async fn a_new_connection_is_no_way_around_the_limit_on_streams() {
    let world = World::new();
    let _first = world.node("n1", "first", NoDials).await;
    let address = echo().await;
    let mut held = Vec::new();
    for _ in 0..STREAMS_PER_NODE {
        held.push(world.open(address).await);
    }
    let _second = world.node("n1", "second", NoDials).await;
    let refused = within("the refusal", world.registry.open("n1", address)).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
    held.pop();
    round_trip(world.open(address).await, pattern(1, 1000)).await;
    // Another node has its own.
    let _other = world.node("n2", "other", NoDials).await;
    within("open", world.registry.open("n2", address)).await.unwrap();
}

#[tokio::test]
async fn a_drained_node_dials_anew_and_keeps_its_streams() {
    let world = World::new();
    let client = world.node("n1", "a", NoDials).await;
    let address = echo().await;
    let mut old = world.open(address).await;
    let mut state = client.state();
    state.mark_unchanged();
    world.registry.drain();
    within("leaving", state.wait_for(|state| *state != State::Up)).await.unwrap();
    within("arriving", state.wait_for(|state| *state == State::Up)).await.unwrap();
    old.write_all(b"still here").await.unwrap();
    let mut got = [0; 10];
    within("the old stream", old.read_exact(&mut got)).await.unwrap();
    assert_eq!(&got, b"still here");
    round_trip(world.open(address).await, pattern(1, 1000)).await;
}

/// Answers each stream with who dialled what, and echoes.
#[derive(Clone)]
struct Announce;

impl DialHandler for Announce {
    fn admit(&self, _: &str, target: &str) -> io::Result<()> {
        match target {
            "apiserver" => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::PermissionDenied, "no such target")),
        }
    }
    fn accept(&self, node: &str, target: &str, mut stream: TunnelStream) {
        let greeting = format!("{node} to {target}\n");
        tokio::spawn(async move {
            stream.write_all(greeting.as_bytes()).await.unwrap();
            let (mut read, mut write) = tokio::io::split(stream);
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = write.shutdown().await;
        });
    }
}

#[tokio::test]
async fn a_node_dials_what_the_server_offers() {
    let world = World::new();
    let client = world.node("n1", "a", Announce).await;
    let mut stream = within("dial", client.dial("apiserver")).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut said = String::new();
    within("the echo", stream.read_to_string(&mut said)).await.unwrap();
    assert_eq!(said, "n1 to apiserver\nhello");

    let error = within("the refusal", client.dial("elsewhere")).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}
