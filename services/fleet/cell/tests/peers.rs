//! Who may speak to a cell as another cell, and what it is told.

use std::time::Duration;

use base_clock::SystemClock;
use base_ids::{CellId, TenantId};
use base_net::pki::{Ca, Issued, Profile, YEAR};
use base_net::tasks::Tasks;
use fleet_cell::{Cell, Config, certificate_name};
use fleet_rpc::peer_client::PeerClient;
use fleet_rpc::relay_chunk::Message;
use fleet_rpc::{Hello, PeerCall, PeerFrame, RelayChunk, RelayOpen};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

struct World {
    ca: Ca,
    cell: Cell,
    id: CellId,
    tasks: Tasks,
    _dir: tempfile::TempDir,
}

async fn world() -> World {
    base_net::tls::install_crypto_provider();
    let ca = Ca::generate("fleet").unwrap();
    let (id, dir, tasks) = (CellId::generate(), tempfile::tempdir().unwrap(), Tasks::new());
    let identity = identity(&ca, "cell", &[&certificate_name(id)]);
    let any = "127.0.0.1:0".parse().unwrap();
    let config = Config {
        id,
        data_dir: dir.path().to_owned(),
        rpc_listen: any,
        api_listen: any,
        any_port_if_taken: true,
        egress: Default::default(),
        ca_pem: ca.cert_pem().to_owned(),
        cert_pem: identity.cert_pem,
        key_pem: identity.key_pem,
        providers: Vec::new(),
    };
    let cell = Cell::start(config, SystemClock::shared(), &tasks).await.unwrap();
    World { ca, cell, id, tasks, _dir: dir }
}

fn identity(ca: &Ca, name: &str, more: &[&str]) -> Issued {
    let names = [name, "localhost"].into_iter().chain(more.iter().copied());
    ca.issue(&Profile {
        common_name: name.to_owned(),
        dns_names: names.map(str::to_owned).collect(),
        server: true,
        client: true,
        lifetime: YEAR,
        ..Profile::default()
    })
    .unwrap()
}

impl World {
    async fn client(&self, shown: &Issued) -> Result<PeerClient<Channel>, tonic::transport::Error> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.ca.cert_pem()))
            .identity(Identity::from_pem(&shown.cert_pem, &shown.key_pem))
            .domain_name(certificate_name(self.id));
        let channel = Endpoint::from_shared(format!("https://{}", self.cell.rpc_address))?
            .connect_timeout(Duration::from_secs(5))
            .tls_config(tls)?
            .connect()
            .await?;
        Ok(PeerClient::new(channel))
    }

    async fn end(self) {
        self.cell.stop().await;
        self.tasks.stop(Duration::from_secs(5)).await;
    }
}

fn hello(cell: &str) -> PeerFrame {
    let hello = Hello { cell_id: cell.to_owned(), boot: 1, address: "127.0.0.1:1".to_owned() };
    PeerFrame { hello: Some(hello), ..PeerFrame::default() }
}

/// What the first frame of a stream gets.
async fn answer(client: &mut PeerClient<Channel>, first: PeerFrame) -> Result<PeerFrame, Code> {
    let (frames, outbound) = mpsc::channel(1);
    frames.send(first).await.unwrap();
    let exchange = client.exchange(ReceiverStream::new(outbound)).await.map_err(|status| status.code())?;
    let frame = exchange.into_inner().message().await.map_err(|status| status.code())?;
    Ok(frame.expect("a frame"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_cell_speaks_as_a_cell_and_only_as_itself() {
    let world = world().await;
    let (other, third) = (CellId::generate(), CellId::generate());
    let name = certificate_name(other);
    let rows = [
        ("its own certificate", identity(&world.ca, "cell", &[&name]), other.to_string(), None),
        (
            "another cell's",
            identity(&world.ca, "cell", &[&name]),
            third.to_string(),
            Some(Code::PermissionDenied),
        ),
        ("a gateway's", identity(&world.ca, "gateway", &[]), other.to_string(), Some(Code::PermissionDenied)),
        ("a manager's", identity(&world.ca, "manager", &[]), other.to_string(), Some(Code::PermissionDenied)),
        ("no id", identity(&world.ca, "cell", &[&name]), "../../etc".to_owned(), Some(Code::InvalidArgument)),
    ];
    for (what, shown, said, refused) in rows {
        let mut client = world.client(&shown).await.unwrap();
        let answer = answer(&mut client, hello(&said)).await;
        match refused {
            Some(code) => assert_eq!(answer.err(), Some(code), "{what}"),
            None => {
                let hello = answer.expect(what).hello.expect("it introduces itself");
                assert_eq!(hello.cell_id, world.id.to_string());
                assert_eq!(hello.address, world.cell.rpc_address.to_string());
            }
        }
    }
    let mut client = world.client(&identity(&world.ca, "cell", &[&name])).await.unwrap();
    assert_eq!(answer(&mut client, PeerFrame::default()).await.err(), Some(Code::InvalidArgument));
    // A stranger's certificate does not even get through the handshake.
    let strange = Ca::generate("another fleet").unwrap();
    let shown = identity(&strange, "cell", &[&name]);
    let refused = match world.client(&shown).await {
        Err(_) => true,
        Ok(mut client) => answer(&mut client, hello(&other.to_string())).await.is_err(),
    };
    assert!(refused);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_without_a_replica_gets_nothing_of_a_cluster() {
    let world = world().await;
    let other = CellId::generate();
    let shown = identity(&world.ca, "cell", &[&certificate_name(other)]);
    let mut client = world.client(&shown).await.unwrap();
    let (frames, outbound) = mpsc::channel(4);
    frames.send(hello(&other.to_string())).await.unwrap();
    let mut inbound = client.exchange(ReceiverStream::new(outbound)).await.unwrap().into_inner();
    inbound.message().await.unwrap().expect("its Hello");
    let cluster_id: bytes::Bytes = TenantId::generate().as_uuid().as_bytes().to_vec().into();
    let call = |id, cluster_id, message: &'static [u8]| PeerCall { id, cluster_id, message: message.into() };
    let calls = vec![
        // "How far must a read see?", of a cluster that is not here.
        call(1, cluster_id.clone(), &[2, 7]),
        call(2, cluster_id.clone(), b"\xff\xff\xff"),
        call(3, bytes::Bytes::from_static(b"short"), &[2, 7]),
    ];
    frames.send(PeerFrame { calls, beat: 5, ..PeerFrame::default() }).await.unwrap();
    let (mut answers, mut beat) = (Vec::new(), 0);
    while answers.len() < 3 || beat == 0 {
        let frame = tokio::time::timeout(Duration::from_secs(5), inbound.message()).await;
        let frame = frame.expect("in time").unwrap().expect("a frame");
        beat = beat.max(frame.beat);
        answers.extend(frame.answers);
    }
    assert_eq!(beat, 5, "the same number comes back");
    answers.sort_by_key(|answer| answer.id);
    let said = |place: usize| String::from_utf8_lossy(&answers[place].message).into_owned();
    assert!(said(0).contains("no replica"), "{}", said(0));
    assert!(said(1).contains("none"), "{}", said(1));
    assert_eq!(said(2), "");

    let open = RelayOpen { cluster_id, node: "n1".to_owned(), address: "127.0.0.1:10250".to_owned() };
    let asked = RelayChunk { message: Some(Message::Open(open)) };
    let relayed = client.relay(tokio_stream::iter([asked])).await;
    assert_eq!(relayed.err().map(|status| status.code()), Some(Code::NotFound));
    world.end().await;
}
