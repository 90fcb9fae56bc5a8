//! Sockets around a zone.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use node_network::Subnet;
use parking_lot::RwLock;
use rand::seq::SliceRandom;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::forward::Forwarder;
use crate::zone::{Answer, Zone};

/// What a client without EDNS can take.
const PLAIN_UDP_BYTES: usize = 512;
/// What we send at most over UDP, and say so: fits every path without fragments (DNS flag day 2020).
const EDNS_UDP_BYTES: u16 = 1232;

/// Questions being worked on at a time; more are dropped, and asked again by their clients.
const QUESTIONS: usize = 1024;

/// TCP connections at a time.
const CONNECTIONS: usize = 128;
const IDLE: Duration = Duration::from_secs(10);

/// Aliases of aliases followed.
const ALIAS_DEPTH: usize = 4;

#[derive(Debug, Clone)]
pub struct DnsConfig {
    /// `cluster.local`
    pub domain: String,
    /// The cluster's Service and pod addresses, whose reverse names nobody else knows.
    pub ranges: Vec<Subnet>,
    /// Who answers for the rest of the world; may be nobody.
    pub resolvers: Vec<SocketAddr>,
}

/// The DNS server of one node. Clones are handles on the same one: feed it with what the API says.
#[derive(Clone)]
pub struct Dns {
    shared: Arc<Shared>,
}

struct Shared {
    zone: RwLock<Zone>,
    services_complete: AtomicBool,
    slices_complete: AtomicBool,
    forwarder: Forwarder,
    questions: Arc<Semaphore>,
}

impl Dns {
    pub fn new(config: DnsConfig) -> Dns {
        Dns {
            shared: Arc::new(Shared {
                zone: RwLock::new(Zone::new(&config.domain, config.ranges)),
                services_complete: AtomicBool::new(false),
                slices_complete: AtomicBool::new(false),
                forwarder: Forwarder::new(config.resolvers),
                questions: Arc::new(Semaphore::new(QUESTIONS)),
            }),
        }
    }

    pub fn service(&self, service: &Service) {
        self.shared.zone.write().service(service);
    }
    pub fn service_gone(&self, namespace: &str, name: &str) {
        self.shared.zone.write().service_gone(namespace, name);
    }
    /// All Services have been told; those not in `present` (namespace, name) are gone.
    pub fn services_complete(&self, present: &HashSet<(String, String)>) {
        self.shared.zone.write().retain_services(present);
        self.shared.services_complete.store(true, Ordering::Release);
    }
    pub fn slice(&self, slice: &EndpointSlice) {
        self.shared.zone.write().slice(slice);
    }
    pub fn slice_gone(&self, slice: &EndpointSlice) {
        self.shared.zone.write().slice_gone(slice);
    }
    /// All slices have been told; those not in `present` (namespace, name of the slice) are gone.
    pub fn slices_complete(&self, present: &HashSet<(String, String)>) {
        self.shared.zone.write().retain_slices(present);
        self.shared.slices_complete.store(true, Ordering::Release);
    }

    /// Listens on `address`, over UDP and TCP. A UDP answer leaves from the address its question came to
    /// only if that is bound, so bind each address of the node by itself and not the wildcard.
    pub async fn bind(&self, address: SocketAddr) -> io::Result<BoundDns> {
        let udp = UdpSocket::bind(address).await?;
        // The same port for both, also when any was asked for.
        let tcp = TcpListener::bind(udp.local_addr()?).await?;
        Ok(BoundDns { dns: self.clone(), udp: Arc::new(udp), tcp })
    }

    fn is_complete(&self) -> bool {
        self.shared.services_complete.load(Ordering::Acquire)
            && self.shared.slices_complete.load(Ordering::Acquire)
    }

    /// The answer to a message, as bytes; `None` for what deserves none.
    async fn respond(&self, bytes: &[u8], over_tcp: bool) -> Option<Vec<u8>> {
        let request = match Message::from_vec(bytes) {
            Ok(request) => request,
            Err(error) => {
                debug!(%error, "not a DNS message");
                let id = u16::from_be_bytes([*bytes.first()?, *bytes.get(1)?]);
                // An answer to what may itself be an answer would let two servers shout at each other.
                let is_query = bytes.get(2)? & 0x80 == 0;
                return is_query
                    .then(|| Message::error_msg(id, OpCode::Query, ResponseCode::FormErr).to_vec().ok())
                    .flatten();
            }
        };
        if request.metadata.message_type != MessageType::Query {
            return None;
        }
        let question = match (request.metadata.op_code, request.queries.as_slice()) {
            (OpCode::Query, [question]) => question.clone(),
            (OpCode::Query, _) => {
                return encode(&request, failure(&request, ResponseCode::FormErr), over_tcp);
            }
            _ => return encode(&request, failure(&request, ResponseCode::NotImp), over_tcp),
        };
        if question.query_class() != DNSClass::IN {
            return encode(&request, failure(&request, ResponseCode::Refused), over_tcp);
        }
        let (answer, soa) = {
            let zone = self.shared.zone.read();
            (zone.answer(question.name(), question.query_type()), zone.soa())
        };
        if answer == Answer::NotOurs {
            return match self.shared.forwarder.ask(bytes, over_tcp).await {
                Some(answer) => Some(answer),
                None => encode(&request, failure(&request, ResponseCode::ServFail), over_tcp),
            };
        }
        if !self.is_complete() {
            // "No such name" would be kept by the client; this makes it ask again.
            return encode(&request, failure(&request, ResponseCode::ServFail), over_tcp);
        }
        let mut response = failure(&request, ResponseCode::NoError);
        response.metadata.authoritative = true;
        match answer {
            Answer::NotOurs => {}
            Answer::NoSuchName => {
                response.metadata.response_code = ResponseCode::NXDomain;
                response.add_authority(soa);
            }
            Answer::NoData => {
                response.add_authority(soa);
            }
            Answer::Records { mut answers, additionals } => {
                // Clients take the first; let that be another one each time.
                answers.shuffle(&mut rand::rng());
                response.add_answers(answers);
                response.add_additionals(additionals);
            }
            Answer::Alias { cname, target } => {
                response.add_answer(*cname);
                if matches!(question.query_type(), RecordType::A | RecordType::AAAA) {
                    self.follow(&mut response, target, question.query_type()).await;
                }
            }
        }
        encode(&request, response, over_tcp)
    }

    /// Adds what an alias stands for: stub resolvers do not ask again.
    async fn follow(&self, response: &mut Message, mut target: Name, wanted: RecordType) {
        for _ in 0..ALIAS_DEPTH {
            let answer = self.shared.zone.read().answer(&target, wanted);
            match answer {
                Answer::Records { answers, .. } => {
                    response.add_answers(answers);
                    return;
                }
                Answer::Alias { cname, target: next } => {
                    response.add_answer(*cname);
                    target = next;
                }
                Answer::NoSuchName | Answer::NoData => return,
                Answer::NotOurs => {
                    let mut query = Message::new(0, MessageType::Query, OpCode::Query);
                    query.metadata.recursion_desired = true;
                    query.add_query(Query::query(target, wanted));
                    let Ok(bytes) = query.to_vec() else { return };
                    let Some(answer) = self.shared.forwarder.ask(&bytes, false).await else { return };
                    if let Ok(answer) = Message::from_vec(&answer) {
                        response.add_answers(answer.answers);
                    }
                    return;
                }
            }
        }
    }
}

/// Sockets that are open and not served yet.
pub struct BoundDns {
    dns: Dns,
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
}

impl BoundDns {
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Answers until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        if let Ok(address) = self.local_addr() {
            info!(%address, "cluster DNS answers");
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = serve_udp(&self.dns, &self.udp, &tasks) => {}
            () = serve_tcp(&self.dns, &self.tcp, &tasks, &stop) => {}
        }
        tasks.close();
        // Whoever waits for a resolver is told nothing more.
        let _ = tokio::time::timeout(Duration::from_millis(100), tasks.wait()).await;
    }
}

async fn serve_udp(dns: &Dns, socket: &Arc<UdpSocket>, tasks: &TaskTracker) {
    let mut buffer = vec![0; 4096];
    loop {
        let (len, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // What a client's ICMP error leaves on the socket; the socket itself is fine.
            Err(error) => {
                debug!(%error, "receiving a question failed");
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
        };
        let Ok(slot) = dns.shared.questions.clone().try_acquire_owned() else { continue };
        let (dns, socket, question) = (dns.clone(), socket.clone(), buffer[..len].to_vec());
        tasks.spawn(async move {
            if let Some(answer) = dns.respond(&question, false).await
                && let Err(error) = socket.send_to(&answer, from).await
            {
                debug!(%error, %from, "answer was not sent");
            }
            drop(slot);
        });
    }
}

async fn serve_tcp(dns: &Dns, listener: &TcpListener, tasks: &TaskTracker, stop: &CancellationToken) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "accepting a DNS connection failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(slot) = connections.clone().try_acquire_owned() else { continue };
        let (dns, stop) = (dns.clone(), stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                _ = serve_connection(&dns, stream) => {}
            }
            drop(slot);
        });
    }
}

/// One question after the other until the client leaves or falls silent.
async fn serve_connection(dns: &Dns, mut stream: TcpStream) -> io::Result<()> {
    loop {
        let read = async {
            let len = stream.read_u16().await?;
            let mut question = vec![0; usize::from(len)];
            stream.read_exact(&mut question).await.map(|_| question)
        };
        let question = tokio::time::timeout(IDLE, read).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let Some(answer) = dns.respond(&question, true).await else { return Ok(()) };
        let len = u16::try_from(answer.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        let write = stream.write_all(&[&len.to_be_bytes()[..], &answer].concat()).await;
        write?;
    }
}

/// A response without records.
fn failure(request: &Message, code: ResponseCode) -> Message {
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.metadata.recursion_desired = request.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    response.metadata.response_code = code;
    response.add_queries(request.queries.iter().cloned());
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(EDNS_UDP_BYTES);
        response.set_edns(edns);
    }
    response
}

fn encode(request: &Message, response: Message, over_tcp: bool) -> Option<Vec<u8>> {
    let limit = match (&request.edns, over_tcp) {
        (_, true) => usize::from(u16::MAX),
        (None, false) => PLAIN_UDP_BYTES,
        (Some(edns), false) => usize::from(edns.max_payload().min(EDNS_UDP_BYTES)).max(PLAIN_UDP_BYTES),
    };
    let bytes = response.to_vec().ok()?;
    if bytes.len() <= limit {
        return Some(bytes);
    }
    // Additional records are a courtesy; without them it may fit.
    let mut shorter = response;
    shorter.additionals.retain(|record| matches!(record.data, RData::OPT(_)));
    let bytes = shorter.to_vec().ok()?;
    if bytes.len() <= limit {
        return Some(bytes);
    }
    shorter.answers.clear();
    shorter.authorities.clear();
    shorter.metadata.truncation = true;
    shorter.to_vec().ok()
}
