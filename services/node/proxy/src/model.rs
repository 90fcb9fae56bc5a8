//! Services and EndpointSlices, reduced to what decides about packets.

use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use node_network::Subnet;

/// Says which Service a slice belongs to.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Services another proxy takes care of.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Headless by label.
const HEADLESS: &str = "service.kubernetes.io/headless";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    pub namespace: String,
    pub name: String,
}

impl ServiceKey {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> ServiceKey {
        ServiceKey { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// As nftables writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }
    /// `None` for what this proxy does not know; absent means TCP.
    fn parse(given: Option<&str>) -> Option<Protocol> {
        match given {
            None | Some("TCP" | "") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(_) => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceModel {
    pub cluster_ips: Vec<IpAddr>,
    /// externalIPs and the balancer's addresses that are delivered to nodes as they are.
    pub external_ips: Vec<IpAddr>,
    pub load_balancer_ips: Vec<IpAddr>,
    /// Who may reach the balancer's addresses; empty is everybody.
    pub source_ranges: Vec<Subnet>,
    pub ports: Vec<ServicePort>,
    /// internalTrafficPolicy: Local
    pub internal_local: bool,
    /// externalTrafficPolicy: Local
    pub external_local: bool,
    /// healthCheckNodePort: where balancers ask whether this node has endpoints.
    pub health_port: Option<u16>,
    /// sessionAffinity: ClientIP
    pub affinity_seconds: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
}

impl ServiceModel {
    /// `None` for Services that have no address of their own or are not for this proxy.
    pub fn of(service: &Service) -> Option<ServiceModel> {
        let spec = service.spec.as_ref()?;
        let labels = service.metadata.labels.as_ref();
        let labelled = |label: &str| labels.is_some_and(|labels| labels.contains_key(label));
        if spec.type_.as_deref() == Some("ExternalName") || labelled(PROXY_NAME) || labelled(HEADLESS) {
            return None;
        }
        let listed = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
        let mut cluster_ips: Vec<IpAddr> = listed.filter_map(|ip| ip.parse().ok()).collect();
        cluster_ips.sort();
        cluster_ips.dedup();
        if cluster_ips.is_empty() {
            return None;
        }
        let ports = spec.ports.iter().flatten().filter_map(|port| {
            Some(ServicePort {
                name: port.name.clone().unwrap_or_default(),
                protocol: Protocol::parse(port.protocol.as_deref())?,
                port: u16::try_from(port.port).ok()?,
                node_port: port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0),
            })
        });
        let ingress = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let ingress = ingress.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
        let load_balancer_ips = ingress
            .filter(|ingress| ingress.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"))
            .filter_map(|ingress| ingress.ip.as_ref()?.parse().ok());
        let affinity = (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
            let client_ip =
                spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
            client_ip.and_then(|client_ip| client_ip.timeout_seconds).unwrap_or(10_800)
        });
        Some(ServiceModel {
            cluster_ips,
            external_ips: spec.external_ips.iter().flatten().filter_map(|ip| ip.parse().ok()).collect(),
            load_balancer_ips: load_balancer_ips.collect(),
            source_ranges: spec
                .load_balancer_source_ranges
                .iter()
                .flatten()
                .filter_map(|range| range.trim().parse().ok())
                .collect(),
            ports: ports.collect(),
            internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            external_local: spec.external_traffic_policy.as_deref() == Some("Local"),
            health_port: spec
                .health_check_node_port
                .and_then(|port| u16::try_from(port).ok())
                .filter(|port| *port != 0 && spec.external_traffic_policy.as_deref() == Some("Local")),
            affinity_seconds: affinity.and_then(|seconds| u32::try_from(seconds).ok()),
        })
    }
}

/// One EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceModel {
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<EndpointModel>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlicePort {
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointModel {
    pub address: IpAddr,
    pub local: bool,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
}

impl SliceModel {
    /// The Service a slice belongs to, and what is in it as seen from `node`.
    pub fn of(slice: &EndpointSlice, node: &str) -> Option<(ServiceKey, SliceModel)> {
        let key = SliceModel::service_of(slice)?;
        let ports = slice.ports.iter().flatten().filter_map(|port| {
            Some(SlicePort {
                name: port.name.clone().unwrap_or_default(),
                protocol: Protocol::parse(port.protocol.as_deref())?,
                port: u16::try_from(port.port?).ok()?,
            })
        });
        let mut endpoints = Vec::new();
        for endpoint in slice.endpoints.iter().flatten() {
            let conditions = endpoint.conditions.as_ref();
            let ready = conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
            let serving = conditions.and_then(|conditions| conditions.serving).unwrap_or(ready);
            let terminating = conditions.and_then(|conditions| conditions.terminating).unwrap_or(false);
            // The first address is the endpoint; the others mean nothing (KEP-752).
            let Some(address) = endpoint.addresses.first().and_then(|address| address.parse().ok()) else {
                continue; // FQDN slices have no addresses
            };
            let local = endpoint.node_name.as_deref() == Some(node);
            endpoints.push(EndpointModel { address, local, ready, serving, terminating });
        }
        Some((key, SliceModel { ports: ports.collect(), endpoints }))
    }

    pub fn service_of(slice: &EndpointSlice) -> Option<ServiceKey> {
        let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
        Some(ServiceKey::new(slice.metadata.namespace.clone()?, name.clone()))
    }
}
