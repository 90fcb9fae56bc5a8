//! The cluster's names.
//!
//! One entry per Service, compiled when the Service or a slice of it changes; a question is then a lookup
//! or two. Labels are compared in lower case, as DNS wants it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::rdata::{A, AAAA, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use node_network::Subnet;

/// How long clients may keep an answer. Short, because asking again costs them a packet to their own node.
const TTL_SECONDS: u32 = 5;

/// The version of the DNS specification that is implemented.
const SPECIFICATION: &str = "1.1.0";

type Key = (String, String);

/// What the zone says to a question.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The name belongs to somebody else.
    NotOurs,
    NoSuchName,
    /// The name exists, but not with this type.
    NoData,
    Records {
        answers: Vec<Record>,
        additionals: Vec<Record>,
    },
    /// The name stands for another one.
    Alias {
        cname: Box<Record>,
        target: Name,
    },
}

/// The names of one cluster.
#[derive(Debug)]
pub struct Zone {
    /// Lower case, first label first: `["cluster", "local"]`.
    domain: Vec<String>,
    origin: Name,
    /// Addresses whose reverse names are ours, even where nobody is.
    ranges: Vec<Subnet>,
    services: HashMap<Key, ServiceFacts>,
    slices: HashMap<Key, BTreeMap<String, SliceFacts>>,
    entries: HashMap<Key, Entry>,
    /// Services per namespace: a namespace exists for DNS while it has one.
    namespaces: HashMap<String, usize>,
    reverse: HashMap<IpAddr, BTreeSet<String>>,
    serial: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ServiceFacts {
    cluster_ips: Vec<IpAddr>,
    external_name: Option<String>,
    ports: Vec<Port>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    name: String,
    protocol: String,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SliceFacts {
    ports: Vec<Port>,
    /// Host label and address of ready endpoints.
    endpoints: Vec<(String, IpAddr)>,
}

/// A Service as DNS sees it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Entry {
    addresses: Vec<IpAddr>,
    hosts: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Port, and the host labels behind it; none means the Service itself.
    services: Vec<(Port, Vec<String>)>,
    alias: Option<String>,
    reverse: Vec<(IpAddr, String)>,
}

impl Zone {
    /// An empty zone. `domain` is `cluster.local` or the like; `ranges` are the cluster's own addresses.
    pub fn new(domain: &str, ranges: Vec<Subnet>) -> Zone {
        let domain: Vec<String> = domain.trim_matches('.').split('.').map(str::to_ascii_lowercase).collect();
        let origin = name(&domain.join("."));
        Zone {
            domain,
            origin,
            ranges,
            services: HashMap::new(),
            slices: HashMap::new(),
            entries: HashMap::new(),
            namespaces: HashMap::new(),
            reverse: HashMap::new(),
            serial: 1,
        }
    }

    pub fn service(&mut self, service: &Service) {
        let Some(key) = key_of(service.metadata.namespace.as_deref(), service.metadata.name.as_deref())
        else {
            return;
        };
        let Some(facts) = ServiceFacts::of(service) else { return self.service_gone(&key.0, &key.1) };
        if self.services.get(&key) != Some(&facts) {
            self.services.insert(key.clone(), facts);
            self.compile(key);
        }
    }

    pub fn service_gone(&mut self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        if self.services.remove(&key).is_some() {
            self.compile(key);
        }
    }

    /// Forgets Services that are not in `present` (namespace, name).
    pub fn retain_services(&mut self, present: &HashSet<(String, String)>) {
        let gone: Vec<Key> = self.services.keys().filter(|key| !present.contains(key)).cloned().collect();
        for key in gone {
            self.service_gone(&key.0, &key.1);
        }
    }

    pub fn slice(&mut self, slice: &EndpointSlice) {
        let (Some(key), Some(name)) = (service_of(slice), slice.metadata.name.clone()) else { return };
        let facts = SliceFacts::of(slice);
        let slices = self.slices.entry(key.clone()).or_default();
        if slices.get(&name) != Some(&facts) {
            slices.insert(name, facts);
            self.compile(key);
        }
    }

    pub fn slice_gone(&mut self, slice: &EndpointSlice) {
        let (Some(key), Some(name)) = (service_of(slice), slice.metadata.name.as_ref()) else { return };
        if let Some(slices) = self.slices.get_mut(&key)
            && slices.remove(name).is_some()
        {
            if slices.is_empty() {
                self.slices.remove(&key);
            }
            self.compile(key);
        }
    }

    /// Forgets slices that are not in `present` (namespace, name of the slice).
    pub fn retain_slices(&mut self, present: &HashSet<(String, String)>) {
        let mut changed = Vec::new();
        for (key, slices) in &mut self.slices {
            let before = slices.len();
            slices.retain(|name, _| present.contains(&(key.0.clone(), name.clone())));
            if slices.len() != before {
                changed.push(key.clone());
            }
        }
        self.slices.retain(|_, slices| !slices.is_empty());
        for key in changed {
            self.compile(key);
        }
    }

    /// What the cluster says about `question`.
    pub fn answer(&self, question: &Name, wanted: RecordType) -> Answer {
        let labels: Vec<String> =
            question.iter().map(|label| String::from_utf8_lossy(label).to_ascii_lowercase()).collect();
        if let Some(address) = reverse_address(&labels) {
            return self.answer_reverse(question, address, wanted);
        }
        let Some(split) = labels.len().checked_sub(self.domain.len()) else { return Answer::NotOurs };
        let (inside, domain) = labels.split_at(split);
        if domain != self.domain {
            return Answer::NotOurs;
        }
        let inside: Vec<&str> = inside.iter().map(String::as_str).collect();
        match inside.as_slice() {
            [] => self.answer_apex(question, wanted),
            ["dns-version"] => match wanted {
                RecordType::TXT => records(question, [RData::TXT(TXT::new(vec![SPECIFICATION.to_owned()]))]),
                _ => Answer::NoData,
            },
            ["svc"] | ["pod"] => Answer::NoData,
            [namespace, "svc" | "pod"] => self.exists(self.namespaces.contains_key(*namespace)),
            [dashed, _namespace, "pod"] => match undashed(dashed) {
                Some(address) => addresses(question, [address], wanted),
                None => Answer::NoSuchName,
            },
            [rest @ .., service, namespace, "svc"] => {
                let key = ((*namespace).to_owned(), (*service).to_owned());
                match self.entries.get(&key) {
                    Some(entry) => self.answer_service(question, &key, entry, rest, wanted),
                    None => Answer::NoSuchName,
                }
            }
            _ => Answer::NoSuchName,
        }
    }

    /// For the authority section of negative answers.
    pub fn soa(&self) -> Record {
        let (primary, contact) = (self.within("ns.dns"), self.within("hostmaster"));
        let minimum = TTL_SECONDS;
        let soa = SOA::new(primary, contact, self.serial, 7200, 1800, 86_400, minimum);
        Record::from_rdata(self.origin.clone(), TTL_SECONDS, RData::SOA(soa))
    }

    fn exists(&self, exists: bool) -> Answer {
        if exists { Answer::NoData } else { Answer::NoSuchName }
    }

    fn answer_apex(&self, question: &Name, wanted: RecordType) -> Answer {
        match wanted {
            RecordType::SOA => Answer::Records { answers: vec![self.soa()], additionals: Vec::new() },
            RecordType::NS => records(question, [RData::NS(NS(self.within("ns.dns")))]),
            _ => Answer::NoData,
        }
    }

    fn answer_service(
        &self,
        question: &Name,
        key: &Key,
        entry: &Entry,
        rest: &[&str],
        wanted: RecordType,
    ) -> Answer {
        if let Some(alias) = &entry.alias {
            if !rest.is_empty() {
                return Answer::NoSuchName;
            }
            let target = name(alias);
            let data = RData::CNAME(hickory_proto::rr::rdata::CNAME(target.clone()));
            let cname = Box::new(Record::from_rdata(question.clone(), TTL_SECONDS, data));
            return Answer::Alias { cname, target };
        }
        match rest {
            [] if wanted == RecordType::SRV => self.srv(question, key, entry, |_| true),
            [] => addresses(question, entry.addresses.iter().copied(), wanted),
            [port, protocol] if port.starts_with('_') && protocol.starts_with('_') => {
                let (port, protocol) = (&port[1..], &protocol[1..]);
                let matches = |one: &Port| one.name == port && one.protocol == protocol;
                if !entry.services.iter().any(|(one, _)| matches(one)) {
                    return Answer::NoSuchName;
                }
                match wanted {
                    RecordType::SRV => self.srv(question, key, entry, matches),
                    _ => Answer::NoData,
                }
            }
            // What lies above an existing SRV name exists as well (RFC 8020).
            [protocol] if protocol.starts_with('_') => {
                let known = entry.services.iter().any(|(one, _)| one.protocol == protocol[1..]);
                self.exists(known)
            }
            [host] => match entry.hosts.get(*host) {
                Some(found) => addresses(question, found.iter().copied(), wanted),
                None => Answer::NoSuchName,
            },
            _ => Answer::NoSuchName,
        }
    }

    fn srv(&self, question: &Name, key: &Key, entry: &Entry, wants: impl Fn(&Port) -> bool) -> Answer {
        let service = format!("{}.{}.svc", key.1, key.0);
        let mut answers = Vec::new();
        let mut additionals = Vec::new();
        let mut mention = |target: &Name, address: IpAddr| {
            let record = Record::from_rdata(target.clone(), TTL_SECONDS, data_of(address));
            if !additionals.contains(&record) {
                additionals.push(record);
            }
        };
        for (port, hosts) in entry.services.iter().filter(|(port, _)| wants(port)) {
            let targets: Vec<Name> = match hosts.as_slice() {
                [] => {
                    let target = self.within(&service);
                    entry.addresses.iter().for_each(|address| mention(&target, *address));
                    vec![target]
                }
                hosts => hosts
                    .iter()
                    .map(|host| {
                        let target = self.within(&format!("{host}.{service}"));
                        entry.hosts.get(host).into_iter().flatten().for_each(|ip| mention(&target, *ip));
                        target
                    })
                    .collect(),
            };
            let weight = u16::try_from(100 / targets.len().max(1)).unwrap_or(1).max(1);
            for target in targets {
                let data = RData::SRV(SRV::new(0, weight, port.port, target));
                answers.push(Record::from_rdata(question.clone(), TTL_SECONDS, data));
            }
        }
        if answers.is_empty() { Answer::NoData } else { Answer::Records { answers, additionals } }
    }

    fn answer_reverse(&self, question: &Name, address: IpAddr, wanted: RecordType) -> Answer {
        match self.reverse.get(&address) {
            Some(names) if wanted == RecordType::PTR => {
                records(question, names.iter().map(|found| RData::PTR(PTR(self.within(found)))))
            }
            Some(_) => Answer::NoData,
            None if self.ranges.iter().any(|range| range.contains(address)) => Answer::NoSuchName,
            None => Answer::NotOurs,
        }
    }

    fn within(&self, relative: &str) -> Name {
        name(&format!("{relative}.{}", self.domain.join(".")))
    }

    /// Puts what `key` is now in place of what it was.
    fn compile(&mut self, key: Key) {
        let empty = BTreeMap::new();
        let slices = self.slices.get(&key).unwrap_or(&empty);
        let next = self.services.get(&key).map(|service| Entry::of(&key, service, slices.values()));
        let last = self.entries.remove(&key);
        for (address, host) in last.iter().flat_map(|entry| &entry.reverse) {
            if let Some(names) = self.reverse.get_mut(address) {
                names.remove(host);
                if names.is_empty() {
                    self.reverse.remove(address);
                }
            }
        }
        for (address, host) in next.iter().flat_map(|entry| &entry.reverse) {
            self.reverse.entry(*address).or_default().insert(host.clone());
        }
        match (&last, &next) {
            (None, Some(_)) => *self.namespaces.entry(key.0.clone()).or_default() += 1,
            (Some(_), None) => {
                if let Some(count) = self.namespaces.get_mut(&key.0) {
                    *count -= 1;
                    if *count == 0 {
                        self.namespaces.remove(&key.0);
                    }
                }
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        if let Some(entry) = next {
            self.entries.insert(key, entry);
        }
        self.serial = self.serial.wrapping_add(1).max(1);
    }
}

impl Entry {
    fn of<'a>(key: &Key, service: &ServiceFacts, slices: impl Iterator<Item = &'a SliceFacts>) -> Entry {
        if service.external_name.is_some() {
            return Entry { alias: service.external_name.clone(), ..Entry::default() };
        }
        let mut entry = Entry::default();
        let path = format!("{}.{}.svc", key.1, key.0);
        let headless = service.cluster_ips.is_empty();
        let mut behind: BTreeMap<Port, BTreeSet<String>> = BTreeMap::new();
        let mut endpoints = BTreeSet::new();
        for slice in slices {
            for (host, address) in &slice.endpoints {
                endpoints.insert(*address);
                entry.hosts.entry(host.clone()).or_default().insert(*address);
                entry.reverse.push((*address, format!("{host}.{path}")));
                for port in &slice.ports {
                    behind.entry(port.clone()).or_default().insert(host.clone());
                }
            }
        }
        if headless {
            entry.addresses = endpoints.into_iter().collect();
            entry.services =
                behind.into_iter().map(|(port, hosts)| (port, hosts.into_iter().collect())).collect();
        } else {
            entry.addresses = service.cluster_ips.clone();
            entry.services = service.ports.iter().map(|port| (port.clone(), Vec::new())).collect();
            entry.reverse.extend(service.cluster_ips.iter().map(|address| (*address, path.clone())));
        }
        entry
    }
}

impl ServiceFacts {
    fn of(service: &Service) -> Option<ServiceFacts> {
        let spec = service.spec.as_ref()?;
        let external = spec.type_.as_deref() == Some("ExternalName");
        let listed = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
        let mut cluster_ips: Vec<IpAddr> = listed.filter_map(|ip| ip.parse().ok()).collect();
        cluster_ips.sort();
        cluster_ips.dedup();
        let ports = spec
            .ports
            .iter()
            .flatten()
            .filter_map(|port| Port::of(port.name.as_deref(), port.protocol.as_deref(), Some(port.port)));
        Some(ServiceFacts {
            cluster_ips,
            external_name: spec.external_name.clone().filter(|name| external && !name.is_empty()),
            ports: ports.collect(),
        })
    }
}

impl SliceFacts {
    fn of(slice: &EndpointSlice) -> SliceFacts {
        let ports = slice.ports.iter().flatten();
        let ports =
            ports.filter_map(|port| Port::of(port.name.as_deref(), port.protocol.as_deref(), port.port));
        let mut endpoints = Vec::new();
        for endpoint in slice.endpoints.iter().flatten() {
            if endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(false) {
                continue;
            }
            for address in endpoint.addresses.iter().filter_map(|address| address.parse().ok()) {
                let host = endpoint.hostname.clone().filter(|host| !host.is_empty());
                endpoints.push((host.unwrap_or_else(|| dashed(address)).to_ascii_lowercase(), address));
            }
        }
        SliceFacts { ports: ports.collect(), endpoints }
    }
}

impl Port {
    fn of(name: Option<&str>, protocol: Option<&str>, port: Option<i32>) -> Option<Port> {
        Some(Port {
            name: name.unwrap_or_default().to_ascii_lowercase(),
            protocol: protocol.unwrap_or("TCP").to_ascii_lowercase(),
            port: u16::try_from(port?).ok()?,
        })
    }
}

fn key_of(namespace: Option<&str>, name: Option<&str>) -> Option<Key> {
    Some((namespace?.to_owned(), name?.to_owned()))
}

fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let service = slice.metadata.labels.as_ref()?.get("kubernetes.io/service-name")?;
    key_of(slice.metadata.namespace.as_deref(), Some(service))
}

fn addresses(question: &Name, all: impl IntoIterator<Item = IpAddr>, wanted: RecordType) -> Answer {
    let fits = |address: &IpAddr| match wanted {
        RecordType::A => address.is_ipv4(),
        RecordType::AAAA => address.is_ipv6(),
        RecordType::ANY => true,
        _ => false,
    };
    records(question, all.into_iter().filter(fits).map(data_of))
}

fn records(question: &Name, data: impl IntoIterator<Item = RData>) -> Answer {
    let record = |data| Record::from_rdata(question.clone(), TTL_SECONDS, data);
    let answers: Vec<Record> = data.into_iter().map(record).collect();
    if answers.is_empty() { Answer::NoData } else { Answer::Records { answers, additionals: Vec::new() } }
}

fn data_of(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    }
}

/// An absolute name. What cannot be one becomes the root, which as a target reads "not available".
fn name(text: &str) -> Name {
    let mut parsed = Name::from_ascii(text.trim_end_matches('.')).unwrap_or_else(|_| Name::root());
    parsed.set_fqdn(true);
    parsed
}

fn dashed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string().replace('.', "-"),
        // In full: a leading or trailing colon would make no label.
        IpAddr::V6(address) => address.segments().map(|segment| format!("{segment:x}")).join("-"),
    }
}

fn undashed(label: &str) -> Option<IpAddr> {
    let as_v4 = || label.replace('-', ".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    let as_v6 = || label.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    as_v4().or_else(as_v6)
}

/// The address a complete reverse name stands for.
fn reverse_address(labels: &[String]) -> Option<IpAddr> {
    let [numbers @ .., kind, arpa] = labels else { return None };
    if arpa != "arpa" {
        return None;
    }
    match (kind.as_str(), numbers.len()) {
        ("in-addr", 4) => {
            let mut octets = [0; 4];
            for (octet, label) in octets.iter_mut().rev().zip(numbers) {
                *octet = label.parse().ok()?;
            }
            Some(IpAddr::from(octets))
        }
        ("ip6", 32) => {
            let mut value: u128 = 0;
            for label in numbers.iter().rev() {
                let nibble = (label.len() == 1).then(|| u128::from_str_radix(label, 16).ok()).flatten()?;
                value = value << 4 | nibble;
            }
            Some(IpAddr::from(value.to_be_bytes()))
        }
        _ => None,
    }
}
