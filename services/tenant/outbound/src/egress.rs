//! Out to the internet: a name resolved once, every address checked, the checked address dialled.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::addresses::{Allowed, Network, NetworkError, is_public};
use crate::destination::OutboundError;

/// What a provider says about its own network.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EgressConfig {
    /// Exceptions that tenants may reach although they are not public: `10.1.2.0/24`, `127.0.0.1:8443`.
    pub allow: Vec<String>,
    /// Public addresses that are the provider's and that tenants may not reach from here.
    pub refuse: Vec<String>,
    /// What no exception lets a tenant reach: where the fleet itself listens. As IP:PORT; an unspecified IP is
    /// every address of this machine.
    pub never: Vec<SocketAddr>,
}

/// Answers a name with addresses. A trait, so that a test can let the answer change.
#[async_trait]
pub trait Resolve: Send + Sync + 'static {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The machine's resolver.
#[derive(Debug, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        // Absolute: the machine's search list would turn a tenant's short name into one of the provider's.
        let absolute = if host.ends_with('.') { host.to_owned() } else { format!("{host}.") };
        Ok(tokio::net::lookup_host((absolute, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// Lookups at a time, of all clusters: each blocks one of the runtime's threads, and a name server that does
/// not answer must not take all of them.
const LOOKUPS: usize = 32;
/// Of a name's addresses, how many are tried.
const TRIED: usize = 4;

/// The process's egress dialer. One for all clusters.
pub struct Egress {
    allow: Vec<Allowed>,
    refuse: RwLock<Vec<Network>>,
    never: Vec<SocketAddr>,
    resolver: Arc<dyn Resolve>,
    lookups: Arc<Semaphore>,
}

impl Egress {
    pub fn new(config: &EgressConfig) -> Result<Arc<Egress>, NetworkError> {
        Egress::with_resolver(config, Arc::new(SystemResolver))
    }

    pub fn with_resolver(
        config: &EgressConfig,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Arc<Egress>, NetworkError> {
        let allow = config.allow.iter().map(|one| one.parse()).collect::<Result<_, _>>()?;
        let refuse = config.refuse.iter().map(|one| one.parse()).collect::<Result<_, _>>()?;
        Ok(Arc::new(Egress {
            allow,
            refuse: RwLock::new(refuse),
            never: config.never.clone(),
            resolver,
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
        }))
    }

    /// One more address of the provider's: the manager, another cell.
    pub fn refuse(&self, ip: IpAddr) {
        let network = Network::from(ip);
        let mut refuse = self.refuse.write();
        if !refuse.contains(&network) {
            refuse.push(network);
        }
    }

    /// Whether an address belongs to the provider, by configuration or because it is this machine's.
    pub fn is_providers(&self, ip: IpAddr) -> bool {
        self.refuse.read().iter().any(|network| network.contains(ip)) || is_this_machine(ip)
    }

    fn is_the_fleets(&self, address: SocketAddr) -> bool {
        let (ip, port) = (address.ip().to_canonical(), address.port());
        self.never.iter().any(|one| {
            let here = || one.ip().is_unspecified() && is_this_machine(ip);
            one.port() == port && (one.ip().to_canonical() == ip || here())
        })
    }

    /// Whether this process may connect there for a tenant.
    pub fn may_reach(&self, address: SocketAddr) -> bool {
        if self.is_the_fleets(address) {
            return false;
        }
        if self.allow.iter().any(|one| one.covers(address)) {
            return true;
        }
        is_public(address.ip()) && !self.is_providers(address.ip())
    }

    /// Whether a node may be asked to connect there.
    pub fn may_reach_inside(&self, address: SocketAddr) -> bool {
        if self.is_the_fleets(address) {
            return false;
        }
        if self.allow.iter().any(|one| one.covers(address)) {
            return true;
        }
        crate::addresses::is_inside_cluster(address.ip())
            && !self.refuse.read().iter().any(|network| network.contains(address.ip()))
    }

    /// Connects to `host` (a name or an address, in brackets if IPv6). Gives up when it is dropped.
    pub async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, OutboundError> {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let candidates = match bare.parse::<IpAddr>() {
            Ok(ip) => {
                let address = SocketAddr::new(ip.to_canonical(), port);
                if !self.may_reach(address) {
                    return Err(OutboundError::Refused(address));
                }
                vec![address]
            }
            Err(_) => self.resolved(bare, port).await?,
        };
        let mut last = OutboundError::NoHost(bare.to_owned());
        for address in candidates.into_iter().take(TRIED) {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Err(cause) => last = OutboundError::Connect { address, cause: in_gos_words(cause) },
            }
        }
        Err(last)
    }

    /// What may be dialled of what the name resolves to, now. Nobody asks again before it is.
    async fn resolved(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, OutboundError> {
        let no_host = || OutboundError::NoHost(host.to_owned());
        let permit = self.lookups.clone().acquire_owned().await.map_err(|_| no_host())?;
        let (resolver, name) = (self.resolver.clone(), host.to_owned());
        // In a task of its own: a caller that gives up leaves its lookup's thread behind, and the permit with it.
        let lookup = tokio::spawn(async move {
            let answer = resolver.resolve(&name).await;
            drop(permit);
            answer
        });
        let found = lookup.await.map_err(|_| no_host())?.map_err(|_| no_host())?;
        let addresses: Vec<SocketAddr> = found
            .into_iter()
            .map(|ip| SocketAddr::new(ip.to_canonical(), port))
            .filter(|address| self.may_reach(*address))
            .collect();
        if addresses.is_empty() { Err(no_host()) } else { Ok(addresses) }
    }
}

/// One of this machine's own addresses can be bound; nobody else's can.
fn is_this_machine(ip: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}

/// `connect: connection refused`, without the operating system's number.
pub(crate) fn in_gos_words(cause: io::Error) -> io::Error {
    let words = match cause.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused",
        io::ErrorKind::HostUnreachable => "connect: no route to host",
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable",
        io::ErrorKind::TimedOut => "i/o timeout",
        io::ErrorKind::ConnectionReset => "connection reset by peer",
        _ => return cause,
    };
    io::Error::new(cause.kind(), words)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use parking_lot::Mutex;
    use tokio::net::TcpListener;

    use super::*;

    /// Answers in turn, and the last one for ever.
    struct Script(Mutex<VecDeque<Vec<IpAddr>>>, Mutex<usize>);

    impl Script {
        fn new(answers: &[&[&str]]) -> Arc<Script> {
            let answers =
                answers.iter().map(|one| one.iter().map(|ip| ip.parse().unwrap()).collect()).collect();
            Arc::new(Script(Mutex::new(answers), Mutex::new(0)))
        }
    }

    #[async_trait]
    impl Resolve for Script {
        async fn resolve(&self, _host: &str) -> io::Result<Vec<IpAddr>> {
            *self.1.lock() += 1;
            let mut answers = self.0.lock();
            let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
            answer.ok_or_else(|| io::Error::other("no such host"))
        }
    }

    fn config(allow: &[&str], refuse: &[&str]) -> EgressConfig {
        let owned = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect();
        EgressConfig { allow: owned(allow), refuse: owned(refuse), never: Vec::new() }
    }

    #[tokio::test]
    async fn a_literal_address_is_refused_in_every_notation() {
        let egress = Egress::with_resolver(&config(&[], &["198.41.0.4"]), Script::new(&[])).unwrap();
        for (host, wanted) in [
            ("127.0.0.1", "dial tcp 127.0.0.1:443: address not allowed"),
            ("169.254.169.254", "dial tcp 169.254.169.254:443: address not allowed"),
            ("[::1]", "dial tcp [::1]:443: address not allowed"),
            ("[::ffff:127.0.0.1]", "dial tcp 127.0.0.1:443: address not allowed"),
            ("[::ffff:a9fe:a9fe]", "dial tcp 169.254.169.254:443: address not allowed"),
            // A cell or the manager, on a public address of the provider's.
            ("198.41.0.4", "dial tcp 198.41.0.4:443: address not allowed"),
            // Not addresses to us, so names; whatever a resolver makes of them is checked like any answer.
            ("2130706433", "dial tcp: lookup 2130706433: no such host"),
            ("0x7f000001", "dial tcp: lookup 0x7f000001: no such host"),
            ("0177.0.0.1", "dial tcp: lookup 0177.0.0.1: no such host"),
            ("127.1", "dial tcp: lookup 127.1: no such host"),
            ("localhost", "dial tcp: lookup localhost: no such host"),
        ] {
            assert_eq!(egress.dial(host, 443).await.unwrap_err().to_string(), wanted, "{host}");
        }
    }

    #[tokio::test]
    async fn a_resolver_that_reads_odd_notations_changes_nothing() {
        for ip in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"] {
            let egress = Egress::with_resolver(&config(&[], &[]), Script::new(&[&[ip]])).unwrap();
            let got = egress.dial("0177.0.0.1", 443).await.unwrap_err().to_string();
            assert_eq!(got, "dial tcp: lookup 0177.0.0.1: no such host", "{ip}");
        }
    }

    #[tokio::test]
    async fn an_answer_is_asked_for_once_and_what_was_checked_is_dialled() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let allowed = format!("127.0.0.1:{port}");
        // First an address that may be reached, then one that may not: a second question would meet it.
        let script = Script::new(&[&["127.0.0.1"], &["127.0.0.2"]]);
        let egress = Egress::with_resolver(&config(&[&allowed], &[]), script.clone()).unwrap();
        let stream = egress.dial("rebinding.example.com", port).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
        assert_eq!(*script.1.lock(), 1, "one question per connection");
        let second = egress.dial("rebinding.example.com", port).await.unwrap_err().to_string();
        assert_eq!(second, "dial tcp: lookup rebinding.example.com: no such host");
    }

    #[tokio::test]
    async fn of_several_addresses_only_those_that_may_be_reached_are_dialled() {
        let listener = TcpListener::bind("127.0.0.3:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let allowed = format!("127.0.0.3:{port}");
        let script = Script::new(&[&["169.254.169.254", "127.0.0.1", "127.0.0.3"]]);
        let egress = Egress::with_resolver(&config(&[&allowed], &[]), script).unwrap();
        let stream = egress.dial("mixed.example.com", port).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
    }

    #[test]
    fn where_the_fleet_listens_no_exception_leads() {
        let never = ["127.0.0.1:8443", "0.0.0.0:9443"].map(|one| one.parse().unwrap()).to_vec();
        let egress =
            Egress::new(&EgressConfig { never, ..config(&["127.0.0.0/8", "10.0.0.0/8"], &[]) }).unwrap();
        for (address, allowed) in [
            ("127.0.0.1:8443", false),
            ("[::ffff:127.0.0.1]:8443", false),
            ("127.0.0.1:8444", true),
            ("127.0.0.1:9443", false),
            ("127.0.0.2:9443", false),
            ("10.9.9.9:9443", true),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(egress.may_reach(address), allowed, "{address}");
            assert_eq!(egress.may_reach_inside(address), allowed, "{address}");
        }
    }

    #[test]
    fn what_is_the_providers_is_refused_even_if_public() {
        let egress = Egress::new(&config(&["10.1.0.0/16"], &["8.8.8.0/24"])).unwrap();
        egress.refuse("9.9.9.9".parse().unwrap());
        for (address, out, inside) in [
            ("8.8.4.4:443", true, true),
            ("8.8.8.8:443", false, false),
            ("9.9.9.9:443", false, false),
            ("10.1.2.3:443", true, true),
            ("10.2.2.3:443", false, true),
            ("127.0.0.1:443", false, false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(
                (egress.may_reach(address), egress.may_reach_inside(address)),
                (out, inside),
                "{address}"
            );
        }
    }
}
