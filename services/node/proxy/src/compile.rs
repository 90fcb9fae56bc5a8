//! One Service as chains and map elements.
//!
//! A packet's way: `services` looks its destination up in `service-ips` or `service-nodeports`. Nearly
//! always the verdict is one of a few chains that all Services share: `ip-tcp-3` (cluster addresses),
//! `ext-ip-tcp-3` and `port-tcp-3` (from outside) draw one of three endpoints from the map `endpoints` or
//! `port-endpoints`, where they lie under the destination and a number. So a Service is a few map elements
//! and no chain, which is what makes ten thousand of them load quickly and one change cheap.
//!
//! Session affinity, source ranges and externalTrafficPolicy Local need more and get chains of their own:
//! an entry (`int-`, `ext-`, `lb-`) that marks what has to be masqueraded and goes to `svc-` (all
//! endpoints) or `loc-` (this node's). Ports without endpoints are in the `refused-` maps instead.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use node_network::Subnet;
use sha2::{Digest, Sha256};

use crate::model::{Protocol, ServiceKey, ServiceModel, ServicePort, SliceModel};

/// The packet mark that asks for masquerading; the bit stock kube-proxy uses, for firewalls that know it.
pub const MASQUERADE_MARK: &str = "0x4000";

/// What the rules depend on beside Services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Sources that are pods: the only ones whose address a remote pod can answer directly.
    pub pod_cidrs: Vec<Subnet>,
}

/// A Service address this node answers itself, whatever its endpoints are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalService {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
    /// An address of this node that is not a loopback one.
    pub to: SocketAddr,
}

/// The named maps and sets elements live in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Map {
    ServiceIps,
    ServiceNodePorts,
    RefusedIps,
    RefusedNodePorts,
    /// Addresses where everything that is not a Service port is refused.
    ClusterIps,
    /// Destination and number, to endpoint.
    Endpoints,
    PortEndpoints,
    /// Endpoints that may be their own clients.
    Hairpin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }
    /// `ip` or `ip6`.
    pub fn keyword(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }
    fn address_type(self) -> &'static str {
        match self {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        }
    }
}

/// What one Service contributes to the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pieces {
    /// Rules by chain.
    pub chains: BTreeMap<String, Vec<String>>,
    /// Chains that other Services use as well; the name decides the rules.
    pub shared: BTreeMap<String, Vec<String>>,
    /// Declarations by set.
    pub sets: BTreeMap<String, String>,
    /// Values by element; empty for sets.
    pub elements: BTreeMap<(Map, Family, String), String>,
    /// Where connection tracking may keep sending datagrams after an endpoint went.
    pub datagrams: BTreeMap<DatagramTarget, BTreeSet<IpAddr>>,
}

/// A UDP destination: a Service address, or any address of the node for a node port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DatagramTarget {
    pub family: Family,
    pub address: Option<IpAddr>,
    pub port: u16,
}

/// Compiles one Service with its slices.
pub fn compile(key: &ServiceKey, service: &ServiceModel, slices: &[&SliceModel], node: &NodeFacts) -> Pieces {
    let mut pieces = Pieces::default();
    for family in [Family::V4, Family::V6] {
        let of_family = |ips: &[IpAddr]| -> Vec<IpAddr> {
            ips.iter().copied().filter(|ip| Family::of(*ip) == family).collect()
        };
        let cluster_ips = of_family(&service.cluster_ips);
        if cluster_ips.is_empty() {
            continue;
        }
        for ip in &cluster_ips {
            pieces.elements.insert((Map::ClusterIps, family, ip.to_string()), String::new());
        }
        for port in &service.ports {
            let frame = Frame {
                id: identity(key, port, family),
                family,
                service,
                port,
                node,
                external_ips: of_family(&service.external_ips),
                load_balancer_ips: of_family(&service.load_balancer_ips),
                cluster_ips: cluster_ips.clone(),
            };
            frame.compile(&Endpoints::choose(slices, port, family), &mut pieces);
        }
    }
    pieces
}

/// A Service address that is this node's own business.
pub fn compile_local(local: &LocalService) -> Pieces {
    let family = Family::of(local.address);
    let proto = local.protocol.as_str();
    let digest = Sha256::digest(format!("{} {proto} {}", local.address, local.port));
    let chain = format!("own-{}", hex::encode(&digest[..6]));
    let rule = format!("meta l4proto {proto} dnat {} to {}", family.keyword(), local.to);
    let key = format!("{} . {proto} . {}", local.address, local.port);
    let mut pieces = Pieces::default();
    pieces.elements.insert((Map::ServiceIps, family, key), format!("goto {chain}"));
    pieces.chains.insert(chain, vec![rule]);
    pieces
}

/// The endpoints that get traffic.
#[derive(Debug, Default)]
struct Endpoints {
    cluster: BTreeSet<SocketAddr>,
    local: BTreeSet<SocketAddr>,
}

impl Endpoints {
    /// Ready ones; only where none is ready, those that still serve while they end.
    fn choose(slices: &[&SliceModel], port: &ServicePort, family: Family) -> Endpoints {
        let mut ready = Endpoints::default();
        let mut ending = Endpoints::default();
        for slice in slices {
            let matches =
                |one: &&crate::model::SlicePort| one.name == port.name && one.protocol == port.protocol;
            for target in slice.ports.iter().filter(matches) {
                for endpoint in slice.endpoints.iter().filter(|one| Family::of(one.address) == family) {
                    let to = match (endpoint.ready, endpoint.serving && endpoint.terminating) {
                        (true, _) => &mut ready,
                        (false, true) => &mut ending,
                        (false, false) => continue,
                    };
                    let address = SocketAddr::new(endpoint.address, target.port);
                    to.cluster.insert(address);
                    if endpoint.local {
                        to.local.insert(address);
                    }
                }
            }
        }
        Endpoints {
            cluster: if ready.cluster.is_empty() { ending.cluster } else { ready.cluster },
            local: if ready.local.is_empty() { ending.local } else { ready.local },
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Entry {
    Inside,
    Outside,
    Port,
}

/// One port of one Service in one family.
struct Frame<'a> {
    id: String,
    family: Family,
    service: &'a ServiceModel,
    port: &'a ServicePort,
    node: &'a NodeFacts,
    cluster_ips: Vec<IpAddr>,
    external_ips: Vec<IpAddr>,
    load_balancer_ips: Vec<IpAddr>,
}

impl Frame<'_> {
    fn compile(&self, endpoints: &Endpoints, pieces: &mut Pieces) {
        let service = self.service;
        if endpoints.cluster.is_empty() {
            self.refuse(pieces);
            return self.watch_datagrams(&BTreeSet::new(), pieces);
        }
        for endpoint in &endpoints.cluster {
            let pair = format!("{0} . {0}", endpoint.ip());
            pieces.elements.insert((Map::Hairpin, self.family, pair), String::new());
        }

        let inside = if service.internal_local { &endpoints.local } else { &endpoints.cluster };
        if inside.is_empty() {
            for ip in &self.cluster_ips {
                pieces.elements.insert((Map::RefusedIps, self.family, self.ip_key(*ip)), "drop".to_owned());
            }
        } else {
            let chain = match service.affinity_seconds {
                None => self.shared_chain(Entry::Inside, inside.len(), pieces),
                Some(_) => self.inside_chain(inside, pieces),
            };
            self.enter(&self.cluster_ips, &chain, inside, pieces);
        }

        let ips: Vec<IpAddr> = self.external_ips.iter().chain(&self.load_balancer_ips).copied().collect();
        if service.external_local || service.affinity_seconds.is_some() {
            if !ips.is_empty() || self.port.node_port.is_some() {
                let chain = self.outside_chain(endpoints, pieces);
                let entry = self.balancer_entry(&chain, pieces);
                let none = BTreeSet::new();
                self.enter(&self.external_ips, &chain, &none, pieces);
                self.enter(&self.load_balancer_ips, &entry, &none, pieces);
                self.enter_port(&chain, &none, pieces);
            }
        } else {
            let everybody = &endpoints.cluster;
            if !ips.is_empty() {
                let chain = self.shared_chain(Entry::Outside, everybody.len(), pieces);
                let entry = self.balancer_entry(&chain, pieces);
                self.enter(&self.external_ips, &chain, everybody, pieces);
                self.enter(&self.load_balancer_ips, &entry, everybody, pieces);
            }
            if self.port.node_port.is_some() {
                let chain = self.shared_chain(Entry::Port, everybody.len(), pieces);
                self.enter_port(&chain, everybody, pieces);
            }
        }
        self.watch_datagrams(&endpoints.cluster, pieces);
    }

    fn refuse(&self, pieces: &mut Pieces) {
        let verdict = || "goto refuse".to_owned();
        for ip in self.all_ips() {
            pieces.elements.insert((Map::RefusedIps, self.family, self.ip_key(ip)), verdict());
        }
        if let Some(port) = self.port.node_port {
            let key = (Map::RefusedNodePorts, self.family, self.node_port_key(port));
            pieces.elements.insert(key, verdict());
        }
    }

    /// Sends `ips` to `chain`; `endpoints` are what a shared chain draws from.
    fn enter(&self, ips: &[IpAddr], chain: &str, endpoints: &BTreeSet<SocketAddr>, pieces: &mut Pieces) {
        for ip in ips {
            let key = self.ip_key(*ip);
            self.number(Map::Endpoints, &key, endpoints, pieces);
            pieces.elements.insert((Map::ServiceIps, self.family, key), format!("goto {chain}"));
        }
    }

    fn enter_port(&self, chain: &str, endpoints: &BTreeSet<SocketAddr>, pieces: &mut Pieces) {
        if let Some(port) = self.port.node_port {
            let key = self.node_port_key(port);
            self.number(Map::PortEndpoints, &key, endpoints, pieces);
            pieces.elements.insert((Map::ServiceNodePorts, self.family, key), format!("goto {chain}"));
        }
    }

    fn number(&self, map: Map, key: &str, endpoints: &BTreeSet<SocketAddr>, pieces: &mut Pieces) {
        for (at, to) in endpoints.iter().enumerate() {
            let value = format!("{} . {}", to.ip(), to.port());
            pieces.elements.insert((map, self.family, format!("{key} . {at}")), value);
        }
    }

    /// The chain that draws one of `count` endpoints.
    fn shared_chain(&self, entry: Entry, count: usize, pieces: &mut Pieces) -> String {
        let (proto, keyword) = (self.port.protocol.as_str(), self.family.keyword());
        let family = match self.family {
            Family::V4 => "4",
            Family::V6 => "6",
        };
        let by_address =
            format!("{keyword} daddr . meta l4proto . th dport . ct mark map @endpoints-{family}");
        let (name, marks, map) = match entry {
            Entry::Inside => ("ip", self.mark_strangers(), by_address),
            Entry::Outside => ("ext-ip", Some(mark()), by_address),
            Entry::Port => {
                let by_port = format!("meta l4proto . th dport . ct mark map @port-endpoints-{family}");
                ("port", Some(mark()), by_port)
            }
        };
        let chain = format!("{name}-{proto}-{count}-{family}");
        // The number lies in the connection's mark on its way into the map: nft before 1.0.7 cannot read
        // back a map whose key is a drawn number itself, and refuses every later change.
        let translate =
            format!("meta l4proto {proto} ct mark set numgen random mod {count} dnat {keyword} to {map}");
        pieces.shared.insert(chain.clone(), marks.into_iter().chain([translate]).collect());
        chain
    }

    /// Own chains for cluster addresses.
    fn inside_chain(&self, endpoints: &BTreeSet<SocketAddr>, pieces: &mut Pieces) -> String {
        let target = if self.service.internal_local { self.local_chain() } else { self.cluster_chain() };
        self.balance(&target, endpoints, pieces);
        let chain = format!("int-{}", self.id);
        let rules = self.mark_strangers().into_iter().chain([format!("goto {target}")]).collect();
        pieces.chains.insert(chain.clone(), rules);
        chain
    }

    /// Own chains for everything from outside.
    fn outside_chain(&self, endpoints: &Endpoints, pieces: &mut Pieces) -> String {
        self.balance(&self.cluster_chain(), &endpoints.cluster, pieces);
        let local = self.service.external_local && !endpoints.local.is_empty();
        if local {
            self.balance(&self.local_chain(), &endpoints.local, pieces);
        }
        let chain = format!("ext-{}", self.id);
        let local_chain = local.then(|| self.local_chain());
        let rules = self.external_rules(&self.cluster_chain(), local_chain.as_deref());
        pieces.chains.insert(chain.clone(), rules);
        chain
    }

    fn cluster_chain(&self) -> String {
        format!("svc-{}", self.id)
    }
    fn local_chain(&self) -> String {
        format!("loc-{}", self.id)
    }
    /// Who is no pod cannot be answered by a pod of another node directly.
    fn mark_strangers(&self) -> Option<String> {
        self.pods().map(|pods| format!("{} saddr != {pods} {}", self.family.keyword(), mark()))
    }

    fn external_rules(&self, cluster_chain: &str, local_chain: Option<&str>) -> Vec<String> {
        if !self.service.external_local {
            return vec![mark(), format!("goto {cluster_chain}")];
        }
        // Pods and this node itself are no outsiders: for them the policy says nothing, and any node is near.
        let mut rules = Vec::new();
        if let Some(pods) = self.pods() {
            rules.push(format!("{} saddr {pods} goto {cluster_chain}", self.family.keyword()));
        }
        rules.push(format!("fib saddr type local {}", mark()));
        rules.push(format!("fib saddr type local goto {cluster_chain}"));
        rules.push(local_chain.map_or_else(|| "drop".to_owned(), |chain| format!("goto {chain}")));
        rules
    }

    /// The chain that keeps strangers from the balancer's addresses, if somebody is a stranger.
    fn balancer_entry(&self, chain: &str, pieces: &mut Pieces) -> String {
        let ranges: Vec<Subnet> = self.service.source_ranges.clone();
        if ranges.is_empty() || self.load_balancer_ips.is_empty() {
            return chain.to_owned();
        }
        let own = ranges.iter().filter(|range| range.is_ipv4() == (self.family == Family::V4));
        let own: Vec<String> =
            without_contained(own.copied().collect()).iter().map(Subnet::to_string).collect();
        let keep_out = if own.is_empty() {
            "drop".to_owned() // ranges of the other family only: nobody of this one may
        } else {
            format!("{} saddr != {{ {} }} drop", self.family.keyword(), own.join(", "))
        };
        let entry = format!("lb-{}", self.id);
        pieces.chains.insert(entry.clone(), vec![keep_out, format!("goto {chain}")]);
        entry
    }

    /// Fills `chain` with the choice among `endpoints`, which are not empty.
    fn balance(&self, chain: &str, endpoints: &BTreeSet<SocketAddr>, pieces: &mut Pieces) {
        let (proto, keyword) = (self.port.protocol.as_str(), self.family.keyword());
        let translate = |to: &SocketAddr| format!("meta l4proto {proto} dnat {keyword} to {to}");
        let rules = match (self.service.affinity_seconds, endpoints.len()) {
            (_, 1) => endpoints.iter().map(translate).collect(),
            (None, count) => {
                let choices: Vec<String> = endpoints
                    .iter()
                    .enumerate()
                    .map(|(at, to)| format!("{at} : {} . {}", to.ip(), to.port()))
                    .collect();
                vec![format!(
                    "meta l4proto {proto} dnat {keyword} to numgen random mod {count} map {{ {} }}",
                    choices.join(", ")
                )]
            }
            (Some(seconds), count) => {
                let mut rules = Vec::new();
                let mut choices = Vec::new();
                for (at, to) in endpoints.iter().enumerate() {
                    let digest = Sha256::digest(to.to_string());
                    // One set per endpoint and port: shared by svc- and loc-, so policies agree on who is whose.
                    // The time is in the name because a set's cannot be changed.
                    let own = format!("{}-{}-{seconds}", self.id, hex::encode(&digest[..4]));
                    let (set, endpoint_chain) = (format!("aff-{own}"), format!("ep-{own}"));
                    let declaration = format!(
                        "type {}; flags dynamic,timeout; timeout {seconds}s; size 65535;",
                        self.family.address_type()
                    );
                    let remember = format!("update @{set} {{ {keyword} saddr }}");
                    rules.push(format!("{keyword} saddr @{set} goto {endpoint_chain}"));
                    choices.push(format!("{at} : goto {endpoint_chain}"));
                    pieces.sets.insert(set, declaration);
                    pieces.chains.insert(endpoint_chain, vec![remember, translate(to)]);
                }
                rules.push(format!("numgen random mod {count} vmap {{ {} }}", choices.join(", ")));
                rules
            }
        };
        pieces.chains.insert(chain.to_owned(), rules);
    }

    fn watch_datagrams(&self, endpoints: &BTreeSet<SocketAddr>, pieces: &mut Pieces) {
        if self.port.protocol != Protocol::Udp {
            return;
        }
        let addresses: BTreeSet<IpAddr> = endpoints.iter().map(SocketAddr::ip).collect();
        let ips = self.all_ips().map(|ip| (Some(ip), self.port.port));
        for (address, port) in ips.chain(self.port.node_port.map(|port| (None, port))) {
            let target = DatagramTarget { family: self.family, address, port };
            pieces.datagrams.insert(target, addresses.clone());
        }
    }

    fn all_ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.cluster_ips.iter().chain(&self.external_ips).chain(&self.load_balancer_ips).copied()
    }
    fn ip_key(&self, ip: IpAddr) -> String {
        format!("{ip} . {} . {}", self.port.protocol.as_str(), self.port.port)
    }
    fn node_port_key(&self, port: u16) -> String {
        format!("{} . {port}", self.port.protocol.as_str())
    }
    /// The cluster's pods as an anonymous set.
    fn pods(&self) -> Option<String> {
        let own = self.node.pod_cidrs.iter().filter(|cidr| cidr.is_ipv4() == (self.family == Family::V4));
        let own: Vec<String> = own.map(Subnet::to_string).collect();
        (!own.is_empty()).then(|| format!("{{ {} }}", own.join(", ")))
    }
}

fn mark() -> String {
    format!("meta mark set meta mark or {MASQUERADE_MARK}")
}

/// nft refuses overlapping ranges in one set.
fn without_contained(ranges: Vec<Subnet>) -> Vec<Subnet> {
    let unique: BTreeSet<Subnet> = ranges.into_iter().collect();
    let inside = |one: &Subnet| {
        unique
            .iter()
            .any(|other| other != one && other.prefix() <= one.prefix() && other.contains(one.base()))
    };
    unique.iter().copied().filter(|one| !inside(one)).collect()
}

/// Names a Service port in chains: a hash that decides, and the name for whoever reads the table.
fn identity(key: &ServiceKey, port: &ServicePort, family: Family) -> String {
    let proto = port.protocol.as_str();
    let exact = format!("{key} {} {proto} {} {family:?}", port.name, port.port);
    let digest = Sha256::digest(exact);
    // Chain names may hold these characters and 128 bytes; what does not fit is left to the hash.
    let readable: String = key
        .to_string()
        .chars()
        .filter(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '/'))
        .take(70)
        .collect();
    format!("{}/{readable}/{proto}/{}", hex::encode(&digest[..5]), port.port)
}
