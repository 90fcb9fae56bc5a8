//! From a pod to the runtime's words for its sandbox: names, DNS, ports, namespaces; and the hosts file.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use node_runtime::cri::security_profile::ProfileType;
use node_runtime::cri::{
    DnsConfig, Int64Value, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode,
    NamespaceOption, PodSandboxConfig, PodSandboxMetadata, PortMapping, Protocol, SecurityProfile,
};

use crate::observed::label;
use crate::pod::{PodExt, Role};

/// What sandboxes of a node have in common.
#[derive(Debug, Clone)]
pub struct Surroundings {
    pub logs: std::path::PathBuf,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// The text of the node's resolv.conf.
    pub resolv_conf: String,
}

/// glibc reads three servers and six search domains of old; upstream allows 32 domains in 2048 characters.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;

/// Longest host name that Linux takes (64 with the final NUL of old).
const MAX_HOSTNAME: usize = 63;

pub fn config(pod: &Pod, attempt: u32, cgroup: &str, around: &Surroundings) -> PodSandboxConfig {
    let mut labels: HashMap<String, String> = pod.metadata.labels.clone().into_iter().flatten().collect();
    labels.insert(label::POD_NAME.to_owned(), pod.name().to_owned());
    labels.insert(label::POD_NAMESPACE.to_owned(), pod.namespace().to_owned());
    labels.insert(label::POD_UID.to_owned(), pod.uid().to_owned());
    let mut annotations: HashMap<String, String> =
        pod.metadata.annotations.clone().into_iter().flatten().collect();
    annotations.insert("kubernetes.io/config.source".to_owned(), "api".to_owned());

    let spec = pod.spec.clone().unwrap_or_default();
    let security = spec.security_context.unwrap_or_default();
    let privileged = pod
        .roles()
        .iter()
        .any(|(_, one)| one.security_context.as_ref().and_then(|own| own.privileged).unwrap_or(false));
    let groups = security.supplemental_groups.unwrap_or_default().into_iter().chain(security.fs_group);
    let sysctls = security.sysctls.unwrap_or_default().into_iter().map(|one| (one.name, one.value));
    let number = |value: Option<i64>| value.map(|value| Int64Value { value });
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
            namespace: pod.namespace().to_owned(),
            attempt,
        }),
        hostname: if pod.is_host_network() { String::new() } else { hostname(pod, &around.cluster_domain) },
        log_directory: log_folder(&around.logs, pod).display().to_string(),
        dns_config: Some(dns(pod, around)),
        port_mappings: if pod.is_host_network() { Vec::new() } else { ports(pod) },
        labels,
        annotations,
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: cgroup.to_owned(),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(pod)),
                run_as_user: number(security.run_as_user),
                run_as_group: number(security.run_as_group).filter(|_| security.run_as_user.is_some()),
                supplemental_groups: groups.collect(),
                privileged,
                seccomp: Some(SecurityProfile {
                    profile_type: ProfileType::RuntimeDefault.into(),
                    localhost_ref: String::new(),
                }),
                ..LinuxSandboxSecurityContext::default()
            }),
            sysctls: sysctls.collect(),
        }),
    }
}

/// `<logs>/<namespace>_<name>_<uid>`: upstream's path, which log collectors parse.
pub fn log_folder(logs: &Path, pod: &Pod) -> std::path::PathBuf {
    logs.join(format!("{}_{}_{}", pod.namespace(), pod.name(), pod.uid()))
}

pub fn namespaces(pod: &Pod) -> NamespaceOption {
    let spec = pod.spec.as_ref();
    let flag =
        |get: fn(&k8s_openapi::api::core::v1::PodSpec) -> Option<bool>| spec.and_then(get).unwrap_or(false);
    let host_or = |host: bool, other: NamespaceMode| if host { NamespaceMode::Node } else { other };
    let pid =
        if flag(|spec| spec.share_process_namespace) { NamespaceMode::Pod } else { NamespaceMode::Container };
    NamespaceOption {
        network: host_or(flag(|spec| spec.host_network), NamespaceMode::Pod).into(),
        ipc: host_or(flag(|spec| spec.host_ipc), NamespaceMode::Pod).into(),
        pid: host_or(flag(|spec| spec.host_pid), pid).into(),
        target_id: String::new(),
    }
}

/// The pod's host name, with the cluster's domain when it asks for that.
pub fn hostname(pod: &Pod, cluster_domain: &str) -> String {
    let spec = pod.spec.clone().unwrap_or_default();
    if let Some(name) = spec.hostname_override.filter(|name| !name.is_empty()) {
        return name;
    }
    let short = spec.hostname.filter(|name| !name.is_empty()).unwrap_or_else(|| pod.name().to_owned());
    let short: String = short.chars().take(MAX_HOSTNAME).collect();
    let short = short.trim_end_matches(['-', '.']).to_owned();
    match spec.subdomain.filter(|name| !name.is_empty()) {
        Some(subdomain) if spec.set_hostname_as_fqdn.unwrap_or(false) => {
            format!("{short}.{subdomain}.{}.svc.{cluster_domain}", pod.namespace())
        }
        _ => short,
    }
}

/// The text of /etc/hosts in the pod's containers.
pub fn hosts(pod: &Pod, ips: &[String], node_hosts: &str, cluster_domain: &str) -> String {
    let spec = pod.spec.clone().unwrap_or_default();
    let mut text = if pod.is_host_network() {
        format!("# Kubernetes-managed hosts file (host network).\n{node_hosts}")
    } else {
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n"
            .to_owned()
    };
    if !pod.is_host_network() {
        let full = hostname(pod, cluster_domain);
        let short = full.split('.').next().unwrap_or(&full).to_owned();
        for ip in ips {
            match spec.subdomain.as_deref().filter(|name| !name.is_empty()) {
                Some(subdomain) => {
                    text += &format!(
                        "{ip}\t{short}.{subdomain}.{}.svc.{cluster_domain}\t{short}\n",
                        pod.namespace()
                    );
                }
                None => text += &format!("{ip}\t{short}\n"),
            }
        }
    }
    let aliases = spec.host_aliases.unwrap_or_default();
    if !aliases.is_empty() {
        text += "\n# Entries added by HostAliases.\n";
        for alias in aliases {
            text += &format!("{}\t{}\n", alias.ip, alias.hostnames.unwrap_or_default().join("\t"));
        }
    }
    text
}

fn dns(pod: &Pod, around: &Surroundings) -> DnsConfig {
    let spec = pod.spec.clone().unwrap_or_default();
    let node = parse_resolv_conf(&around.resolv_conf);
    let policy = match spec.dns_policy.as_deref() {
        Some("ClusterFirst") | None if pod.is_host_network() => "Default",
        Some(policy) => policy,
        None => "ClusterFirst",
    };
    let mut config = match policy {
        "None" => DnsConfig::default(),
        // Without a cluster DNS the node's resolver is better than none.
        "ClusterFirst" | "ClusterFirstWithHostNet" if !around.cluster_dns.is_empty() => {
            let domain = &around.cluster_domain;
            let own = [format!("{}.svc.{domain}", pod.namespace()), format!("svc.{domain}"), domain.clone()];
            DnsConfig {
                servers: around.cluster_dns.iter().map(IpAddr::to_string).collect(),
                searches: own.into_iter().chain(node.searches).collect(),
                options: vec!["ndots:5".to_owned()],
            }
        }
        _ => node,
    };
    if let Some(wanted) = spec.dns_config {
        config.servers.extend(wanted.nameservers.into_iter().flatten());
        config.searches.extend(wanted.searches.into_iter().flatten());
        let mut options: BTreeMap<String, Option<String>> = BTreeMap::new();
        for option in std::mem::take(&mut config.options) {
            let (name, value) =
                option.split_once(':').map_or((option.as_str(), None), |(name, value)| (name, Some(value)));
            options.insert(name.to_owned(), value.map(str::to_owned));
        }
        let named = wanted.options.into_iter().flatten().filter_map(|one| Some((one.name?, one.value)));
        options.extend(named.map(|(name, value)| (name, value.filter(|value| !value.is_empty()))));
        let print = |(name, value): (String, Option<String>)| {
            value.map_or(name.clone(), |value| format!("{name}:{value}"))
        };
        config.options = options.into_iter().map(print).collect();
    }
    let mut known = std::collections::BTreeSet::new();
    config.servers.retain(|server| known.insert(server.clone()));
    known.clear();
    config.searches.retain(|search| known.insert(search.clone()));
    config.servers.truncate(MAX_SERVERS);
    config.searches.truncate(MAX_SEARCHES);
    config
}

fn parse_resolv_conf(text: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                config.searches = words.filter(|word| *word != ".").map(str::to_owned).collect()
            }
            Some("options") => config.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    config
}

fn ports(pod: &Pod) -> Vec<PortMapping> {
    let mut mappings = Vec::new();
    for (_, container) in pod.roles().iter().filter(|(role, _)| matches!(role, Role::Main | Role::Sidecar)) {
        for port in container.ports.iter().flatten() {
            let Some(host_port) = port.host_port.filter(|port| *port > 0) else { continue };
            let protocol = match port.protocol.as_deref() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                _ => Protocol::Tcp,
            };
            mappings.push(PortMapping {
                protocol: protocol.into(),
                container_port: port.container_port,
                host_port,
                host_ip: port.host_ip.clone().unwrap_or_default(),
            });
        }
    }
    mappings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([{ "name": "main" }]);
        serde_json::from_value(
            json!({ "metadata": { "name": "web", "namespace": "blue", "uid": "u1" }, "spec": spec }),
        )
        .unwrap()
    }

    fn around() -> Surroundings {
        Surroundings {
            logs: "/logs".into(),
            cluster_dns: vec!["10.96.0.10".parse().unwrap()],
            cluster_domain: "cluster.local".into(),
            resolv_conf: "# old\nnameserver 192.0.2.1\nsearch example.org\noptions ndots:2 timeout:1\n"
                .into(),
        }
    }

    #[test]
    fn dns_follows_the_policy() {
        let cluster = "10.96.0.10|blue.svc.cluster.local svc.cluster.local cluster.local example.org|ndots:5";
        let node = "192.0.2.1|example.org|ndots:2 timeout:1";
        for (spec, expected) in [
            (json!({}), cluster),
            (json!({ "dnsPolicy": "ClusterFirst" }), cluster),
            (json!({ "dnsPolicy": "ClusterFirst", "hostNetwork": true }), node),
            (json!({ "dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true }), cluster),
            (json!({ "dnsPolicy": "Default" }), node),
            (
                json!({ "dnsPolicy": "None", "dnsConfig": { "nameservers": ["1.1.1.1"], "searches": ["a"],
                     "options": [{ "name": "ndots", "value": "1" }, { "name": "edns0" }] } }),
                "1.1.1.1|a|edns0 ndots:1",
            ),
            (
                json!({ "dnsConfig": { "nameservers": ["10.96.0.10", "1.1.1.1"], "options": [{ "name": "ndots", "value": "3" }] } }),
                "10.96.0.10 1.1.1.1|blue.svc.cluster.local svc.cluster.local cluster.local example.org|ndots:3",
            ),
        ] {
            let found = dns(&pod(spec.clone()), &around());
            let line = [found.servers, found.searches, found.options].map(|list| list.join(" ")).join("|");
            assert_eq!(line, expected, "{spec}");
        }
    }

    #[test]
    fn a_pod_knows_its_own_name() {
        for (spec, name, line) in [
            (json!({}), "web", "10.244.0.9\tweb"),
            (json!({ "hostname": "h" }), "h", "10.244.0.9\th"),
            (json!({ "hostname": "h", "subdomain": "s" }), "h", "10.244.0.9\th.s.blue.svc.cluster.local\th"),
            (
                json!({ "hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true }),
                "h.s.blue.svc.cluster.local",
                "10.244.0.9\th.s.blue.svc.cluster.local\th",
            ),
            (
                json!({ "hostAliases": [{ "ip": "1.2.3.4", "hostnames": ["a", "b"] }] }),
                "web",
                "1.2.3.4\ta\tb",
            ),
        ] {
            let pod = pod(spec.clone());
            assert_eq!(hostname(&pod, "cluster.local"), name, "{spec}");
            let hosts = hosts(&pod, &["10.244.0.9".to_owned()], "", "cluster.local");
            assert!(hosts.lines().any(|have| have == line), "{spec}: {hosts}");
        }
    }
}
