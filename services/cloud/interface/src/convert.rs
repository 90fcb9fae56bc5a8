//! Between the model and the wire. What comes from the wire is checked here: a provider behind [`serve`]
//! gets only well-formed requests, a caller behind [`Remote`] only well-formed answers.
//!
//! [`serve`]: crate::serve
//! [`Remote`]: crate::Remote

use std::net::IpAddr;
use std::str::FromStr;

use base_clock::Timestamp;
use base_ids::TenantId;

use crate::model::*;
use crate::{CloudError, proto};

/// Of a cluster's balancer: more than any cloud allows, and a bound on what a request can hold.
const MOST_LISTENERS: usize = 500;
const MOST_TAGS: usize = 64;
/// Longer words are shown to nobody in full.
const LONGEST_TEXT: usize = 256;

type Parsed<T> = Result<T, CloudError>;

fn parse<T: FromStr>(what: &str, given: &str) -> Parsed<T> {
    given.parse().map_err(|_| CloudError::Invalid(format!("{what} {given:?} is not understood")))
}

pub(crate) fn cluster(given: &str) -> Parsed<TenantId> {
    parse("cluster id", given)
}

fn tags(given: impl IntoIterator<Item = (String, String)>) -> Parsed<Tags> {
    let tags: Tags = given.into_iter().collect();
    let fine = tags.len() <= MOST_TAGS
        && tags.iter().all(|(key, value)| key.len() <= LONGEST_TEXT && value.len() <= LONGEST_TEXT);
    match fine {
        true => Ok(tags),
        false => Err(CloudError::Invalid("too many tags, or too long ones".to_owned())),
    }
}

/// A DNS label: it becomes a Node's name, a host name and part of paths.
fn label(given: String) -> Parsed<String> {
    let bytes = given.as_bytes();
    let fine = (1..=63).contains(&bytes.len())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        && bytes[0] != b'-'
        && bytes[bytes.len() - 1] != b'-';
    if fine { Ok(given) } else { Err(CloudError::Invalid(format!("{given:?} is not a DNS label"))) }
}

fn port(given: u32) -> Parsed<u16> {
    match u16::try_from(given) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(CloudError::Invalid(format!("{given} is not a port"))),
    }
}

/// `10.0.0.0/8`, `fd00::/8`.
pub(crate) fn cidr(given: &str) -> Parsed<()> {
    let fine = given.split_once('/').is_some_and(|(address, prefix)| {
        let most = match address.parse() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        prefix.parse::<u8>().is_ok_and(|prefix| prefix <= most)
    });
    if fine { Ok(()) } else { Err(CloudError::Invalid(format!("{given:?} is not a CIDR"))) }
}

fn moment(unix_ms: i64) -> Parsed<Timestamp> {
    Timestamp::from_millisecond(unix_ms)
        .map_err(|_| CloudError::Unavailable(format!("{unix_ms} is not a moment")))
}

impl From<Description> for proto::DescribeResponse {
    fn from(of: Description) -> proto::DescribeResponse {
        proto::DescribeResponse {
            name: of.name,
            capabilities: Some(proto::Capabilities {
                machines: of.capabilities.machines,
                load_balancers: of.capabilities.balancers,
                udp: of.capabilities.udp,
            }),
            machine_types: of
                .machine_types
                .into_iter()
                .map(|one| proto::MachineType {
                    name: one.name,
                    cpu_millis: one.cpu_millis,
                    memory_bytes: one.memory_bytes,
                })
                .collect(),
            address_pools: of.address_pools,
            region: of.region,
        }
    }
}

impl From<proto::DescribeResponse> for Description {
    fn from(of: proto::DescribeResponse) -> Description {
        let capabilities = of.capabilities.unwrap_or_default();
        Description {
            name: of.name,
            capabilities: Capabilities {
                machines: capabilities.machines,
                balancers: capabilities.load_balancers,
                udp: capabilities.udp,
            },
            machine_types: of
                .machine_types
                .into_iter()
                .map(|one| MachineType {
                    name: one.name,
                    cpu_millis: one.cpu_millis,
                    memory_bytes: one.memory_bytes,
                })
                .collect(),
            address_pools: of.address_pools,
            region: of.region,
        }
    }
}

impl From<Taint> for proto::Taint {
    fn from(of: Taint) -> proto::Taint {
        proto::Taint { key: of.key, value: of.value, effect: of.effect }
    }
}
impl From<proto::Taint> for Taint {
    fn from(of: proto::Taint) -> Taint {
        Taint { key: of.key, value: of.value, effect: of.effect }
    }
}

impl From<&MachineSpec> for proto::CreateMachineRequest {
    fn from(of: &MachineSpec) -> proto::CreateMachineRequest {
        let join = of.join.clone();
        proto::CreateMachineRequest {
            cluster_id: of.cluster.to_string(),
            client_token: of.client_token.to_string(),
            name: of.name.clone(),
            machine_type: of.machine_type.clone(),
            join: Some(proto::Join {
                servers: join.servers.iter().map(ToString::to_string).collect(),
                tls_server_name: join.tls_server_name,
                token: join.token,
                ca_cert_hashes: join.ca_cert_hashes,
                labels: join.labels.into_iter().collect(),
                taints: join.taints.into_iter().map(Into::into).collect(),
            }),
            tags: of.tags.clone().into_iter().collect(),
        }
    }
}

impl TryFrom<proto::CreateMachineRequest> for MachineSpec {
    type Error = CloudError;
    fn try_from(of: proto::CreateMachineRequest) -> Parsed<MachineSpec> {
        let join = of.join.ok_or_else(|| CloudError::Invalid("no join parameters".to_owned()))?;
        let servers: Parsed<Vec<_>> = join.servers.iter().map(|one| parse("server", one)).collect();
        Ok(MachineSpec {
            cluster: cluster(&of.cluster_id)?,
            client_token: of.client_token.parse()?,
            name: label(of.name)?,
            machine_type: of.machine_type,
            join: Join {
                servers: servers?,
                tls_server_name: join.tls_server_name,
                token: join.token,
                ca_cert_hashes: join.ca_cert_hashes,
                labels: join.labels.into_iter().collect(),
                taints: join.taints.into_iter().map(Into::into).collect(),
            },
            tags: tags(of.tags)?,
        })
    }
}

impl From<Machine> for proto::Machine {
    fn from(of: Machine) -> proto::Machine {
        proto::Machine {
            id: of.id,
            cluster_id: of.cluster.to_string(),
            client_token: of.client_token.to_string(),
            name: of.name,
            machine_type: of.machine_type,
            provider_id: of.provider_id,
            state: match of.state {
                MachineState::Pending => proto::MachineState::Pending,
                MachineState::Running => proto::MachineState::Running,
                MachineState::Deleting => proto::MachineState::Deleting,
                MachineState::Failed => proto::MachineState::Failed,
            }
            .into(),
            addresses: of.addresses.iter().map(ToString::to_string).collect(),
            zone: of.zone,
            region: of.region,
            message: of.message,
            created_unix_ms: of.created_at.as_millisecond(),
            tags: of.tags.into_iter().collect(),
        }
    }
}

impl TryFrom<proto::Machine> for Machine {
    type Error = CloudError;
    fn try_from(of: proto::Machine) -> Parsed<Machine> {
        let state = match of.state() {
            proto::MachineState::Running => MachineState::Running,
            proto::MachineState::Deleting => MachineState::Deleting,
            proto::MachineState::Failed => MachineState::Failed,
            // A newer provider's word for something on the way.
            proto::MachineState::Pending | proto::MachineState::Unspecified => MachineState::Pending,
        };
        let addresses: Parsed<Vec<_>> = of.addresses.iter().map(|one| parse("address", one)).collect();
        Ok(Machine {
            id: of.id,
            cluster: cluster(&of.cluster_id)?,
            client_token: of.client_token.parse()?,
            name: of.name,
            machine_type: of.machine_type,
            provider_id: of.provider_id,
            state,
            addresses: addresses?,
            zone: of.zone,
            region: of.region,
            message: of.message,
            created_at: moment(of.created_unix_ms)?,
            tags: of.tags.into_iter().collect(),
        })
    }
}

impl From<&BalancerSpec> for proto::EnsureLoadBalancerRequest {
    fn from(of: &BalancerSpec) -> proto::EnsureLoadBalancerRequest {
        proto::EnsureLoadBalancerRequest {
            cluster_id: of.cluster.to_string(),
            client_token: of.client_token.to_string(),
            name: of.name.clone(),
            listeners: of
                .listeners
                .iter()
                .map(|one| proto::Listener {
                    port: one.port.into(),
                    protocol: match one.protocol {
                        Protocol::Tcp => proto::Protocol::Tcp,
                        Protocol::Udp => proto::Protocol::Udp,
                    }
                    .into(),
                    node_port: one.node_port.into(),
                })
                .collect(),
            targets: of
                .targets
                .iter()
                .map(|one| proto::Target {
                    name: one.name.clone(),
                    address: one.address.to_string(),
                    machine_id: one.machine_id.clone().unwrap_or_default(),
                })
                .collect(),
            source_ranges: of.source_ranges.clone(),
            health_check: Some(proto::HealthCheck {
                port: of.health_check.port.into(),
                http_path: of.health_check.http_path.clone().unwrap_or_default(),
                interval_ms: of.health_check.interval_ms,
                timeout_ms: of.health_check.timeout_ms,
                unhealthy_after: of.health_check.unhealthy_after,
                healthy_after: of.health_check.healthy_after,
            }),
            tags: of.tags.clone().into_iter().collect(),
            wanted_address: of.wanted_address.map(|one| one.to_string()).unwrap_or_default(),
        }
    }
}

impl TryFrom<proto::EnsureLoadBalancerRequest> for BalancerSpec {
    type Error = CloudError;
    fn try_from(of: proto::EnsureLoadBalancerRequest) -> Parsed<BalancerSpec> {
        let invalid = |why: &str| CloudError::Invalid(why.to_owned());
        let check = of.health_check.ok_or_else(|| invalid("no health check"))?;
        if of.listeners.is_empty() || of.listeners.len() > MOST_LISTENERS {
            return Err(invalid("a balancer has 1 to 500 listeners"));
        }
        let mut listeners = Vec::new();
        for one in &of.listeners {
            let protocol = match one.protocol() {
                proto::Protocol::Tcp => Protocol::Tcp,
                proto::Protocol::Udp => Protocol::Udp,
                proto::Protocol::Unspecified => return Err(invalid("a listener's protocol is TCP or UDP")),
            };
            let listener = Listener { port: port(one.port)?, protocol, node_port: port(one.node_port)? };
            let taken = |other: &Listener| (other.port, other.protocol) == (listener.port, protocol);
            if listeners.iter().any(taken) {
                return Err(CloudError::Invalid(format!("two listeners on port {}", one.port)));
            }
            listeners.push(listener);
        }
        let target = |one: proto::Target| {
            Ok(Target {
                address: parse("target address", &one.address)?,
                name: one.name,
                machine_id: Some(one.machine_id).filter(|id| !id.is_empty()),
            })
        };
        let targets: Parsed<Vec<_>> = of.targets.into_iter().map(target).collect();
        of.source_ranges.iter().try_for_each(|range| cidr(range))?;
        if check.interval_ms == 0 || check.timeout_ms == 0 {
            return Err(invalid("a health check's times are above zero"));
        }
        if check.http_path.bytes().any(|byte| byte <= b' ' || byte == 127) {
            return Err(invalid("a health check's path has no spaces"));
        }
        let wanted = Some(&of.wanted_address).filter(|text| !text.is_empty());
        Ok(BalancerSpec {
            cluster: cluster(&of.cluster_id)?,
            client_token: of.client_token.parse()?,
            name: of.name,
            listeners,
            targets: targets?,
            source_ranges: of.source_ranges,
            health_check: HealthCheck {
                port: port(check.port)?,
                http_path: Some(check.http_path).filter(|path| !path.is_empty()),
                interval_ms: check.interval_ms,
                timeout_ms: check.timeout_ms,
                unhealthy_after: check.unhealthy_after.max(1),
                healthy_after: check.healthy_after.max(1),
            },
            tags: tags(of.tags)?,
            wanted_address: wanted.map(|text| parse("wanted address", text)).transpose()?,
        })
    }
}

impl From<Balancer> for proto::LoadBalancer {
    fn from(of: Balancer) -> proto::LoadBalancer {
        proto::LoadBalancer {
            id: of.id,
            cluster_id: of.cluster.to_string(),
            client_token: of.client_token.to_string(),
            name: of.name,
            state: match of.state {
                BalancerState::Pending => proto::LoadBalancerState::Pending,
                BalancerState::Active => proto::LoadBalancerState::Active,
                BalancerState::Deleting => proto::LoadBalancerState::Deleting,
                BalancerState::Failed => proto::LoadBalancerState::Failed,
            }
            .into(),
            addresses: of.addresses.iter().map(ToString::to_string).collect(),
            hostname: of.hostname.unwrap_or_default(),
            message: of.message,
            created_unix_ms: of.created_at.as_millisecond(),
            tags: of.tags.into_iter().collect(),
        }
    }
}

impl TryFrom<proto::LoadBalancer> for Balancer {
    type Error = CloudError;
    fn try_from(of: proto::LoadBalancer) -> Parsed<Balancer> {
        use proto::LoadBalancerState as Wire;
        let state = match of.state() {
            Wire::Active => BalancerState::Active,
            Wire::Deleting => BalancerState::Deleting,
            Wire::Failed => BalancerState::Failed,
            Wire::Pending | Wire::Unspecified => BalancerState::Pending,
        };
        let addresses: Parsed<Vec<_>> = of.addresses.iter().map(|one| parse("address", one)).collect();
        Ok(Balancer {
            id: of.id,
            cluster: cluster(&of.cluster_id)?,
            client_token: of.client_token.parse()?,
            name: of.name,
            state,
            addresses: addresses?,
            hostname: Some(of.hostname).filter(|name| !name.is_empty()),
            message: of.message,
            created_at: moment(of.created_unix_ms)?,
            tags: of.tags.into_iter().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balancer() -> proto::EnsureLoadBalancerRequest {
        proto::EnsureLoadBalancerRequest {
            cluster_id: TenantId::generate().to_string(),
            client_token: "a-1".to_owned(),
            listeners: vec![proto::Listener { port: 80, protocol: 1, node_port: 30080 }],
            health_check: Some(proto::HealthCheck {
                port: 30080,
                interval_ms: 1000,
                timeout_ms: 500,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn what_is_not_well_formed_never_reaches_a_provider() {
        type Change = fn(&mut proto::EnsureLoadBalancerRequest);
        let rows: &[(&str, Change, bool)] = &[
            ("as it is", |_| {}, true),
            ("a source range", |one| one.source_ranges.push("10.0.0.0/8".to_owned()), true),
            ("an IPv6 range", |one| one.source_ranges.push("fd00::/128".to_owned()), true),
            ("no cluster", |one| one.cluster_id.clear(), false),
            ("a path for a token", |one| one.client_token = "../x".to_owned(), false),
            ("no listener", |one| one.listeners.clear(), false),
            ("port 0", |one| one.listeners[0].port = 0, false),
            ("port 65536", |one| one.listeners[0].node_port = 65_536, false),
            ("no protocol", |one| one.listeners[0].protocol = 0, false),
            ("one port twice", |one| one.listeners.push(one.listeners[0]), false),
            ("an address for a range", |one| one.source_ranges.push("10.0.0.1".to_owned()), false),
            ("a prefix too long", |one| one.source_ranges.push("10.0.0.0/33".to_owned()), false),
            ("no check", |one| one.health_check = None, false),
            (
                "a check that splits requests",
                |one| one.health_check.as_mut().unwrap().http_path = "/ x\r\n".to_owned(),
                false,
            ),
            ("a name for an address", |one| one.wanted_address = "localhost".to_owned(), false),
        ];
        for (what, change, fine) in rows {
            let mut request = balancer();
            change(&mut request);
            let parsed = BalancerSpec::try_from(request.clone());
            assert_eq!(parsed.is_ok(), *fine, "{what}: {parsed:?}");
            if let Ok(spec) = parsed {
                assert_eq!(BalancerSpec::try_from(proto::EnsureLoadBalancerRequest::from(&spec)), Ok(spec));
            }
        }
    }

    #[test]
    fn machines_have_names_that_are_safe_in_paths() {
        for (name, fine) in [("pool-a-1", true), ("1a", true), ("", false), ("..", false), ("A", false)] {
            let request = proto::CreateMachineRequest {
                cluster_id: TenantId::generate().to_string(),
                client_token: "t".to_owned(),
                name: name.to_owned(),
                join: Some(proto::Join::default()),
                ..Default::default()
            };
            assert_eq!(MachineSpec::try_from(request).is_ok(), fine, "{name:?}");
        }
    }
}
