//! Real questions over real sockets.

use std::net::SocketAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, Record, RecordType};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use node_dns::{Dns, DnsConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio_util::sync::CancellationToken;

fn service(name: &str, spec: Value) -> Service {
    serde_json::from_value(json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec})).unwrap()
}

fn slice(service: &str, endpoints: Value) -> EndpointSlice {
    serde_json::from_value(json!({
        "addressType": "IPv4",
        "metadata": {"namespace": "shop", "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }))
    .unwrap()
}

fn fill(dns: &Dns) {
    let http = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
    dns.service(&service("web", json!({"clusterIP": "10.96.0.5", "ports": http})));
    dns.service(&service("dual", json!({"clusterIPs": ["10.96.0.6", "fd00::6"], "ports": http})));
    dns.service(&service("db", json!({"clusterIP": "None", "ports": http})));
    dns.service(&service("idle", json!({"clusterIP": "None", "ports": http})));
    dns.service(&service("out", json!({"type": "ExternalName", "externalName": "Www.Example.org"})));
    dns.service(&service(
        "inside",
        json!({"type": "ExternalName", "externalName": "web.shop.svc.cluster.local"}),
    ));
    dns.slice(&slice("web", json!([{"addresses": ["10.244.1.9"]}])));
    let db = json!([
        {"addresses": ["10.244.1.2"], "hostname": "db-0"},
        {"addresses": ["10.244.1.3"]},
        {"addresses": ["10.244.1.4"], "hostname": "db-2", "conditions": {"ready": false}},
    ]);
    dns.slice(&slice("db", db));
    let all = |names: &[&str]| names.iter().map(|name| ("shop".to_owned(), (*name).to_owned())).collect();
    dns.services_complete(&all(&["web", "dual", "db", "idle", "out", "inside"]));
    dns.slices_complete(&all(&["web-1", "db-1"]));
}

/// A server on loopback, told where the rest of the world is.
async fn start(resolvers: Vec<SocketAddr>) -> (Dns, SocketAddr) {
    let ranges = vec!["10.96.0.0/16".parse().unwrap(), "10.244.0.0/16".parse().unwrap()];
    let dns = Dns::new(DnsConfig { domain: "cluster.local".to_owned(), ranges, resolvers });
    // The port that UDP was given may be somebody's over TCP.
    let bound = loop {
        match dns.bind("127.0.0.1:0".parse().unwrap()).await {
            Ok(bound) => break bound,
            Err(cause) => assert_eq!(cause.kind(), std::io::ErrorKind::AddrInUse),
        }
    };
    let address = bound.local_addr().unwrap();
    tokio::spawn(bound.run(CancellationToken::new()));
    (dns, address)
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

async fn over_udp(server: SocketAddr, question: &Message) -> Message {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server).await.unwrap();
    socket.send(&question.to_vec().unwrap()).await.unwrap();
    let mut buffer = vec![0; 4096];
    let received = tokio::time::timeout(std::time::Duration::from_secs(10), socket.recv(&mut buffer));
    let len = received.await.expect("no answer").unwrap();
    Message::from_vec(&buffer[..len]).unwrap()
}

async fn over_tcp(server: SocketAddr, question: &Message) -> Message {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let bytes = question.to_vec().unwrap();
    stream.write_u16(bytes.len().try_into().unwrap()).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let mut answer = vec![0; stream.read_u16().await.unwrap().into()];
    stream.read_exact(&mut answer).await.unwrap();
    Message::from_vec(&answer).unwrap()
}

/// Code and sorted data: `NOERROR 10.96.0.5`.
fn say(answer: &Message) -> String {
    let data = |records: &[Record]| {
        let mut all: Vec<String> = records.iter().map(|record| record.data.to_string()).collect();
        all.sort();
        all
    };
    let code = match answer.metadata.response_code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::Refused => "REFUSED",
        other => return format!("{other:?}"),
    };
    [vec![code.to_owned()], data(&answer.answers)].concat().join(" | ")
}

#[tokio::test]
async fn the_specification_row_by_row() {
    use RecordType::{A, AAAA, CNAME, MX, NS, PTR, SOA, SRV, TXT};
    let (dns, server) = start(Vec::new()).await;
    fill(&dns);
    for (name, kind, said) in [
        ("web.shop.svc.cluster.local.", A, "NOERROR | 10.96.0.5"),
        ("WEB.Shop.svc.Cluster.LOCAL.", A, "NOERROR | 10.96.0.5"),
        ("web.shop.svc.cluster.local.", AAAA, "NOERROR"),
        ("web.shop.svc.cluster.local.", MX, "NOERROR"),
        ("web.shop.svc.cluster.local.", SRV, "NOERROR | 0 100 80 web.shop.svc.cluster.local."),
        ("dual.shop.svc.cluster.local.", A, "NOERROR | 10.96.0.6"),
        ("dual.shop.svc.cluster.local.", AAAA, "NOERROR | fd00::6"),
        ("_http._tcp.web.shop.svc.cluster.local.", SRV, "NOERROR | 0 100 80 web.shop.svc.cluster.local."),
        ("_http._tcp.web.shop.svc.cluster.local.", A, "NOERROR"),
        ("_tcp.web.shop.svc.cluster.local.", A, "NOERROR"),
        ("_http._udp.web.shop.svc.cluster.local.", SRV, "NXDOMAIN"),
        ("_https._tcp.web.shop.svc.cluster.local.", SRV, "NXDOMAIN"),
        ("10-244-1-9.web.shop.svc.cluster.local.", A, "NOERROR | 10.244.1.9"),
        // Headless.
        ("db.shop.svc.cluster.local.", A, "NOERROR | 10.244.1.2 | 10.244.1.3"),
        ("db-0.db.shop.svc.cluster.local.", A, "NOERROR | 10.244.1.2"),
        ("10-244-1-3.db.shop.svc.cluster.local.", A, "NOERROR | 10.244.1.3"),
        ("db-2.db.shop.svc.cluster.local.", A, "NXDOMAIN"),
        (
            "_http._tcp.db.shop.svc.cluster.local.",
            SRV,
            "NOERROR | 0 50 8080 10-244-1-3.db.shop.svc.cluster.local. | 0 50 8080 db-0.db.shop.svc.cluster.local.",
        ),
        ("idle.shop.svc.cluster.local.", A, "NOERROR"),
        // What is not there.
        ("none.shop.svc.cluster.local.", A, "NXDOMAIN"),
        ("web.none.svc.cluster.local.", A, "NXDOMAIN"),
        ("a.b.c.web.shop.svc.cluster.local.", A, "NXDOMAIN"),
        ("web.shop.cluster.local.", A, "NXDOMAIN"),
        ("example.org.svc.cluster.local.", A, "NXDOMAIN"),
        // What is above.
        ("shop.svc.cluster.local.", A, "NOERROR"),
        ("none.svc.cluster.local.", A, "NXDOMAIN"),
        ("svc.cluster.local.", A, "NOERROR"),
        ("cluster.local.", A, "NOERROR"),
        ("cluster.local.", NS, "NOERROR | ns.dns.cluster.local."),
        ("dns-version.cluster.local.", TXT, "NOERROR | 1.1.0"),
        // Pods.
        ("10-244-7-7.shop.pod.cluster.local.", A, "NOERROR | 10.244.7.7"),
        ("10-244-7-7.shop.pod.cluster.local.", AAAA, "NOERROR"),
        ("not-an-address.shop.pod.cluster.local.", A, "NXDOMAIN"),
        // Aliases.
        ("out.shop.svc.cluster.local.", CNAME, "NOERROR | Www.Example.org."),
        ("out.shop.svc.cluster.local.", A, "NOERROR | Www.Example.org."),
        ("inside.shop.svc.cluster.local.", A, "NOERROR | 10.96.0.5 | web.shop.svc.cluster.local."),
        // Backwards.
        ("5.0.96.10.in-addr.arpa.", PTR, "NOERROR | web.shop.svc.cluster.local."),
        ("2.1.244.10.in-addr.arpa.", PTR, "NOERROR | db-0.db.shop.svc.cluster.local."),
        ("2.1.244.10.in-addr.arpa.", A, "NOERROR"),
        ("200.0.96.10.in-addr.arpa.", PTR, "NXDOMAIN"),
        (
            "6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.",
            PTR,
            "NOERROR | dual.shop.svc.cluster.local.",
        ),
        // Nobody knows the rest of the world here.
        ("example.org.", A, "SERVFAIL"),
        ("1.2.0.192.in-addr.arpa.", PTR, "SERVFAIL"),
    ] {
        let question = query(name, kind);
        let answer = over_udp(server, &question).await;
        assert_eq!(say(&answer), said, "{name} {kind}");
        assert_eq!(say(&over_tcp(server, &question).await), said, "{name} {kind} over TCP");
        assert_eq!(answer.queries, question.queries);
        assert_eq!(answer.metadata.id, 4711);
        if said == "NXDOMAIN" || said == "NOERROR" {
            let authority: Vec<RecordType> = answer.authorities.iter().map(Record::record_type).collect();
            assert_eq!(authority, [SOA], "{name} {kind} has to say how long to remember it");
            assert!(answer.metadata.authoritative);
        }
    }
}

#[tokio::test]
async fn srv_answers_bring_the_addresses_along() {
    let (dns, server) = start(Vec::new()).await;
    fill(&dns);
    let answer = over_udp(server, &query("_http._tcp.db.shop.svc.cluster.local.", RecordType::SRV)).await;
    let mut found: Vec<String> =
        answer.additionals.iter().map(|record| format!("{} {}", record.name, record.data)).collect();
    found.sort();
    assert_eq!(
        found,
        ["10-244-1-3.db.shop.svc.cluster.local. 10.244.1.3", "db-0.db.shop.svc.cluster.local. 10.244.1.2"]
    );
}

#[tokio::test]
async fn changes_show_at_once_and_nothing_is_denied_too_early() {
    let (dns, server) = start(Vec::new()).await;
    let web = query("web.shop.svc.cluster.local.", RecordType::A);
    let back = query("5.0.96.10.in-addr.arpa.", RecordType::PTR);
    assert_eq!(say(&over_udp(server, &web).await), "SERVFAIL");
    fill(&dns);
    assert_eq!(say(&over_udp(server, &web).await), "NOERROR | 10.96.0.5");
    dns.service(&service("web", json!({"clusterIP": "10.96.0.99"})));
    assert_eq!(say(&over_udp(server, &web).await), "NOERROR | 10.96.0.99");
    assert_eq!(say(&over_udp(server, &back).await), "NXDOMAIN");
    dns.service_gone("shop", "web");
    assert_eq!(say(&over_udp(server, &web).await), "NXDOMAIN");
    let db = query("db.shop.svc.cluster.local.", RecordType::A);
    dns.slices_complete(&Default::default());
    assert_eq!(say(&over_udp(server, &db).await), "NOERROR");
    dns.services_complete(&Default::default());
    assert_eq!(say(&over_udp(server, &db).await), "NXDOMAIN");
}

#[tokio::test]
async fn long_answers_are_cut_over_udp_and_whole_over_tcp() {
    let (dns, server) = start(Vec::new()).await;
    fill(&dns);
    let many: Vec<Value> = (0..200).map(|at| json!({"addresses": [format!("10.244.9.{at}")]})).collect();
    dns.slice(&slice("idle", many.into()));
    let mut question = query("idle.shop.svc.cluster.local.", RecordType::A);
    let cut = over_udp(server, &question).await;
    assert!(cut.metadata.truncation && cut.answers.is_empty());
    assert_eq!(over_tcp(server, &question).await.answers.len(), 200);

    let some: Vec<Value> = (0..50).map(|at| json!({"addresses": [format!("10.244.9.{at}")]})).collect();
    dns.slice(&slice("idle", some.into()));
    assert!(over_udp(server, &question).await.metadata.truncation);
    let mut edns = Edns::new();
    edns.set_max_payload(4096);
    question.set_edns(edns);
    let whole = over_udp(server, &question).await;
    assert_eq!((whole.answers.len(), whole.metadata.truncation), (50, false));
    assert!(whole.edns.is_some());
}

/// A resolver that knows `www.example.org` and nothing else.
async fn the_world() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 1024];
        while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
            let request = Message::from_vec(&buffer[..len]).unwrap();
            let mut response = Message::response(request.metadata.id, OpCode::Query);
            response.add_queries(request.queries.clone());
            let known = Name::from_ascii("www.example.org.").unwrap();
            if request.queries[0].name() == &known {
                let data = hickory_proto::rr::RData::A(hickory_proto::rr::rdata::A([192, 0, 2, 80].into()));
                response.add_answer(Record::from_rdata(known, 60, data));
            } else {
                response.metadata.response_code = ResponseCode::NXDomain;
            }
            // Somebody who guesses ids speaks first and must not be believed.
            let mut forged = response.clone();
            forged.metadata.id ^= 1;
            socket.send_to(&forged.to_vec().unwrap(), from).await.unwrap();
            socket.send_to(&response.to_vec().unwrap(), from).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn the_rest_of_the_world_is_asked() {
    let dead = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (dns, server) = start(vec![dead.local_addr().unwrap(), the_world().await]).await;
    fill(&dns);
    for (name, said) in [
        ("www.example.org.", "NOERROR | 192.0.2.80"),
        ("none.example.org.", "NXDOMAIN"),
        ("out.shop.svc.cluster.local.", "NOERROR | 192.0.2.80 | Www.Example.org."),
        ("web.shop.svc.cluster.local.", "NOERROR | 10.96.0.5"),
    ] {
        let answer = over_udp(server, &query(name, RecordType::A)).await;
        assert_eq!(say(&answer), said, "{name}");
        assert_eq!(answer.metadata.id, 4711);
    }
}

#[tokio::test]
async fn rubbish_gets_an_error_or_nothing() {
    let (dns, server) = start(Vec::new()).await;
    fill(&dns);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server).await.unwrap();
    for rubbish in [&[][..], &[1], &[0x12, 0x34, 0x80, 0, 0, 1], &[0xff; 600]] {
        socket.send(rubbish).await.unwrap();
    }
    // A query cut off in its name.
    let whole = query("web.shop.svc.cluster.local.", RecordType::A).to_vec().unwrap();
    socket.send(&whole[..20]).await.unwrap();
    let mut buffer = [0; 512];
    let len = tokio::time::timeout(std::time::Duration::from_secs(5), socket.recv(&mut buffer))
        .await
        .unwrap()
        .unwrap();
    let answer = Message::from_vec(&buffer[..len]).unwrap();
    assert_eq!((answer.metadata.id, answer.metadata.response_code), (4711, ResponseCode::FormErr));
    let two = {
        let mut message = query("web.shop.svc.cluster.local.", RecordType::A);
        message.add_query(message.queries[0].clone());
        message
    };
    assert_eq!(over_udp(server, &two).await.metadata.response_code, ResponseCode::FormErr);
    let mut update = query("web.shop.svc.cluster.local.", RecordType::A);
    update.metadata.op_code = OpCode::Status;
    assert_eq!(over_udp(server, &update).await.metadata.response_code, ResponseCode::NotImp);
}
