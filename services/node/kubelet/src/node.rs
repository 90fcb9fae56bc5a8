//! The Node object: registered once, kept true, and shown to be alive by a Lease.
//!
//! The status is looked at every ten seconds (twice a second until the node is ready) and told when it changed,
//! or every five minutes; the Lease is renewed every ten seconds, whatever else happens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec,
    NodeStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use node_runtime::cri::{Image, RuntimeCondition};
use serde_json::json;
use tokio::sync::watch;

use crate::config::{Capacity, Config, KUBELET_VERSION};
use crate::container::chain;
use crate::events::Kind;
use crate::shared::Shared;
use crate::status::seconds;

const LOOK_EVERY: Duration = Duration::from_secs(10);
const LOOK_EVERY_UNTIL_READY: Duration = Duration::from_millis(500);
const TELL_AT_LEAST_EVERY: Duration = Duration::from_secs(300);
const RENEW_EVERY: Duration = Duration::from_secs(10);
const LEASE_S: i32 = 40;

/// A lease that was not taken is tried again soon: forty seconds of silence and the pods are moved away.
const RENEW_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Images named in the status, the largest; upstream's number.
const IMAGES_TOLD: usize = 50;

/// Names of one image in the status.
const NAMES_TOLD: usize = 5;

/// Below these the node takes no more pods; upstream's defaults.
const LEAST_MEMORY_BYTES: u64 = 100 << 20;
const LEAST_DISK_SHARE: u64 = 10;

/// Registers the node and tells its status until it has been taken once. Gives the node's uid.
pub async fn register(shared: &Shared) -> String {
    let nodes = Api::<Node>::all(shared.config.client.clone());
    loop {
        match try_register(&nodes, &shared.config).await {
            Ok(uid) => return uid,
            Err(error) => {
                tracing::warn!(error = chain(&error), "node is not registered yet, trying on");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn try_register(nodes: &Api<Node>, config: &Config) -> Result<String, kube::Error> {
    let name = &config.node_name;
    let labels = labels(config);
    if let Some(known) = nodes.get_opt(name).await? {
        let current = known.metadata.labels.clone().unwrap_or_default();
        if labels.iter().any(|(key, value)| current.get(key) != Some(value)) {
            let patch = json!({ "metadata": { "labels": labels } });
            nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        return Ok(known.metadata.uid.unwrap_or_default());
    }
    let node = Node {
        metadata: ObjectMeta { name: Some(name.clone()), labels: Some(labels), ..ObjectMeta::default() },
        spec: Some(NodeSpec {
            taints: Some(config.taints.clone()).filter(|taints| !taints.is_empty()),
            ..NodeSpec::default()
        }),
        ..Node::default()
    };
    match nodes.create(&PostParams::default(), &node).await {
        Ok(made) => Ok(made.metadata.uid.unwrap_or_default()),
        // Somebody was faster, which can only have been us before a restart.
        Err(kube::Error::Api(answer)) if answer.code == 409 => {
            Ok(nodes.get(name).await?.metadata.uid.unwrap_or_default())
        }
        Err(error) => Err(error),
    }
}

/// Keeps the status true, for ever. `ready` hears whether the node can take pods.
pub async fn keep_status(shared: Arc<Shared>, kubelet_port: u16, ready: watch::Sender<bool>) {
    let nodes = Api::<Node>::all(shared.config.client.clone());
    let mut told: Option<(NodeStatus, Duration)> = None;
    loop {
        let now = shared.config.clock.now();
        let mut status = look(&shared, kubelet_port, now).await;
        keep_transitions(&mut status, told.as_ref().map(|(status, _)| status));
        let is_ready = condition(&status, "Ready") == Some("True");
        let at = shared.config.clock.monotonic();
        let due = told.as_ref().is_none_or(|(old, since)| {
            at.saturating_sub(*since) >= TELL_AT_LEAST_EVERY
                || without_heartbeats(old) != without_heartbeats(&status)
        });
        if due {
            if told.is_none() {
                // A restarted kubelet must not move the times of conditions that did not change.
                if let Ok(known) = nodes.get(&shared.config.node_name).await {
                    keep_transitions(&mut status, known.status.as_ref());
                }
            }
            let patch = Patch::Strategic(json!({ "status": status }));
            match nodes.patch_status(&shared.config.node_name, &PatchParams::default(), &patch).await {
                Ok(_) => {
                    let was = told.as_ref().and_then(|(old, _)| condition(old, "Ready").map(str::to_owned));
                    if was.as_deref() != condition(&status, "Ready") {
                        let reason = if is_ready { "NodeReady" } else { "NodeNotReady" };
                        let message = format!("Node {} status is now: {reason}", shared.config.node_name);
                        shared.events.node(&shared.config.node_name, Kind::Normal, reason, message);
                    }
                    ready.send_replace(is_ready);
                    told = Some((status, at));
                }
                Err(kube::Error::Api(answer)) if answer.code == 404 => {
                    tracing::warn!("the Node object is gone, registering again");
                    register(&shared).await;
                    told = None;
                }
                Err(error) => tracing::warn!(error = chain(&error), "node status is not taken, trying on"),
            }
        }
        tokio::time::sleep(if is_ready && told.is_some() { LOOK_EVERY } else { LOOK_EVERY_UNTIL_READY })
            .await;
    }
}

/// Renews the node's Lease, for ever.
pub async fn keep_lease(shared: Arc<Shared>, node_uid: String) {
    let leases = Api::<Lease>::namespaced(shared.config.client.clone(), "kube-node-lease");
    let name = shared.config.node_name.clone();
    let mut exists = false;
    loop {
        let now = shared.config.clock.now();
        let renew_time = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
        let result = if exists {
            let patch = json!({ "spec": { "holderIdentity": name, "leaseDurationSeconds": LEASE_S, "renewTime": base_clock::rfc3339_micro(renew_time) } });
            leases.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
        } else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    namespace: Some("kube-node-lease".to_owned()),
                    owner_references: Some(vec![OwnerReference {
                        api_version: "v1".to_owned(),
                        kind: "Node".to_owned(),
                        name: name.clone(),
                        uid: node_uid.clone(),
                        ..OwnerReference::default()
                    }]),
                    ..ObjectMeta::default()
                },
                spec: Some(LeaseSpec {
                    holder_identity: Some(name.clone()),
                    lease_duration_seconds: Some(LEASE_S),
                    renew_time: Some(MicroTime(renew_time)),
                    ..LeaseSpec::default()
                }),
            };
            leases.create(&PostParams::default(), &lease).await.map(drop)
        };
        let pause = match result {
            Ok(()) => {
                exists = true;
                RENEW_EVERY
            }
            Err(kube::Error::Api(answer)) if answer.code == 409 && !exists => {
                exists = true;
                Duration::ZERO
            }
            Err(kube::Error::Api(answer)) if answer.code == 404 && exists => {
                exists = false;
                Duration::from_millis(100)
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "lease is not renewed, trying on");
                RENEW_AGAIN_AFTER
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// What is so at this moment.
async fn look(shared: &Shared, kubelet_port: u16, now: Timestamp) -> NodeStatus {
    let config = &shared.config;
    let (version, conditions, images) =
        tokio::join!(shared.cri.version(), shared.cri.status(), shared.cri.list_images());
    let runtime = version.map_or_else(
        |_| "containerd://unknown".to_owned(),
        |version| format!("{}://{}", version.runtime_name, version.runtime_version.trim_start_matches('v')),
    );
    let readiness = match conditions {
        Ok(conditions) => readiness(&conditions),
        Err(error) => Err(format!("container runtime is down: {error}")),
    };
    let machine = Machine::read(config);
    let mut addresses: Vec<NodeAddress> = config
        .node_ips
        .iter()
        .map(|ip| NodeAddress { type_: "InternalIP".to_owned(), address: ip.to_string() })
        .collect();
    addresses.push(NodeAddress { type_: "Hostname".to_owned(), address: config.node_name.clone() });
    NodeStatus {
        addresses: Some(addresses),
        allocatable: Some(resources(&config.capacity)),
        capacity: Some(resources(&config.capacity)),
        conditions: Some(node_conditions(&machine, readiness, now)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(kubelet_port) }),
        }),
        images: Some(image_list(images.unwrap_or_default())),
        node_info: Some(NodeSystemInfo {
            architecture: node_runtime::images::architecture().to_owned(),
            boot_id: machine.boot_id.clone(),
            container_runtime_version: runtime,
            kernel_version: machine.kernel.clone(),
            kube_proxy_version: String::new(),
            kubelet_version: KUBELET_VERSION.to_owned(),
            machine_id: machine.id.clone(),
            operating_system: "linux".to_owned(),
            os_image: machine.os_image.clone(),
            swap: None,
            system_uuid: machine.id.clone(),
        }),
        ..NodeStatus::default()
    }
}

/// Facts of the machine, and of this node on it.
struct Machine {
    id: String,
    boot_id: String,
    kernel: String,
    os_image: String,
    memory_available_bytes: u64,
    disk_free_percent: u64,
    pids_low: bool,
}

impl Machine {
    fn read(config: &Config) -> Machine {
        let line =
            |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        let os_release = line("/etc/os-release");
        let os_image =
            os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
        let available = line("/proc/meminfo").lines().find_map(|line| {
            line.strip_prefix("MemAvailable:")?.trim().split(' ').next()?.parse::<u64>().ok()
        });
        let disk = nix::sys::statvfs::statvfs(&config.root_dir);
        let disk_free_percent = disk.map_or(100, |fs| {
            let bytes = |blocks: u64| blocks.saturating_mul(fs.fragment_size());
            let offered = config.capacity.ephemeral_storage_bytes;
            free_percent(bytes(fs.blocks_available()), bytes(fs.blocks()), offered)
        });
        let tasks = line("/proc/loadavg")
            .split(' ')
            .nth(3)
            .and_then(|tasks| tasks.split('/').nth(1)?.parse::<u64>().ok());
        let limit = line("/proc/sys/kernel/pid_max").parse::<u64>().unwrap_or(u64::MAX);
        Machine {
            // Several nodes may share a machine, and each must have an id of its own that outlives a restart.
            id: uuid::Uuid::new_v5(
                &uuid::Uuid::NAMESPACE_OID,
                format!("{}/{}", line("/etc/machine-id"), config.node_name).as_bytes(),
            )
            .to_string(),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            kernel: line("/proc/sys/kernel/osrelease"),
            os_image: os_image.trim_matches('"').to_owned(),
            memory_available_bytes: available.map_or(u64::MAX, |kib| kib * 1024),
            disk_free_percent,
            pids_low: tasks.is_some_and(|tasks| tasks > limit / 10 * 9),
        }
    }
}

/// How much of what the node offers is free. A node that offers a part of its disk is not short of it while that
/// much is free, however full the rest is.
fn free_percent(available_bytes: u64, disk_bytes: u64, offered_bytes: u64) -> u64 {
    let offered_bytes = offered_bytes.min(disk_bytes).max(1);
    u64::try_from(u128::from(available_bytes) * 100 / u128::from(offered_bytes)).unwrap_or(u64::MAX)
}

/// Whether the runtime can take pods, or what it lacks.
fn readiness(conditions: &[RuntimeCondition]) -> Result<(), String> {
    let missing: Vec<String> = conditions
        .iter()
        .filter(|one| !one.status)
        .map(|one| {
            let what = if one.r#type == "NetworkReady" {
                "container runtime network not ready"
            } else {
                "container runtime not ready"
            };
            format!("{what}: {}=false reason:{} message:{}", one.r#type, one.reason, one.message)
        })
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) }
}

fn node_conditions(machine: &Machine, readiness: Result<(), String>, now: Timestamp) -> Vec<NodeCondition> {
    let pressure = |kind: &str, is: bool, what: &str| {
        let (reason, message) = if is { ("Has", "has") } else { ("HasNo", "has no") };
        let word = match kind {
            "MemoryPressure" if !is => (
                "KubeletHasSufficientMemory".to_owned(),
                "kubelet has sufficient memory available".to_owned(),
            ),
            "DiskPressure" if !is => {
                ("KubeletHasNoDiskPressure".to_owned(), "kubelet has no disk pressure".to_owned())
            }
            "PIDPressure" if !is => {
                ("KubeletHasSufficientPID".to_owned(), "kubelet has sufficient PID available".to_owned())
            }
            _ => (format!("Kubelet{reason}{what}"), format!("kubelet {message} {what}")),
        };
        (kind.to_owned(), if is { "True" } else { "False" }, word.0, word.1)
    };
    let ready = match readiness {
        Ok(()) => (
            "Ready".to_owned(),
            "True",
            "KubeletReady".to_owned(),
            "kubelet is posting ready status".to_owned(),
        ),
        Err(message) => ("Ready".to_owned(), "False", "KubeletNotReady".to_owned(), message),
    };
    let rows = [
        pressure("MemoryPressure", machine.memory_available_bytes < LEAST_MEMORY_BYTES, "InsufficientMemory"),
        pressure("DiskPressure", machine.disk_free_percent < LEAST_DISK_SHARE, "DiskPressure"),
        pressure("PIDPressure", machine.pids_low, "InsufficientPID"),
        ready,
    ];
    let at = Time(seconds(now));
    rows.into_iter()
        .map(|(kind, status, reason, message)| NodeCondition {
            last_heartbeat_time: Some(at.clone()),
            last_transition_time: Some(at.clone()),
            message: Some(message),
            reason: Some(reason),
            status: status.to_owned(),
            type_: kind,
        })
        .collect()
}

fn condition<'a>(status: &'a NodeStatus, kind: &str) -> Option<&'a str> {
    status.conditions.iter().flatten().find(|one| one.type_ == kind).map(|one| one.status.as_str())
}

fn keep_transitions(status: &mut NodeStatus, old: Option<&NodeStatus>) {
    for one in status.conditions.iter_mut().flatten() {
        let before =
            old.and_then(|old| old.conditions.iter().flatten().find(|before| before.type_ == one.type_));
        if let Some(before) = before.filter(|before| before.status == one.status) {
            one.last_transition_time = before.last_transition_time.clone();
        }
    }
}

fn without_heartbeats(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    for one in status.conditions.iter_mut().flatten() {
        one.last_heartbeat_time = None;
        one.last_transition_time = None;
    }
    status
}

fn resources(capacity: &Capacity) -> BTreeMap<String, Quantity> {
    let cpu = match capacity.cpu_millis % 1000 {
        0 => (capacity.cpu_millis / 1000).to_string(),
        _ => format!("{}m", capacity.cpu_millis),
    };
    let rows = [
        ("cpu", cpu),
        ("memory", format!("{}Ki", capacity.memory_bytes / 1024)),
        ("ephemeral-storage", format!("{}Ki", capacity.ephemeral_storage_bytes / 1024)),
        ("pods", capacity.pods.to_string()),
        ("hugepages-1Gi", "0".to_owned()),
        ("hugepages-2Mi", "0".to_owned()),
    ];
    rows.into_iter().map(|(name, value)| (name.to_owned(), Quantity(value))).collect()
}

/// What a container's limit is when it set none, and the sum that pods may ask for.
pub fn allocatable(capacity: &Capacity) -> BTreeMap<String, Quantity> {
    resources(capacity)
}

fn image_list(mut images: Vec<Image>) -> Vec<ContainerImage> {
    images.sort_by_key(|image| std::cmp::Reverse((image.size, image.id.clone())));
    let named = images.into_iter().map(|image| {
        let names = image.repo_digests.into_iter().chain(image.repo_tags).take(NAMES_TOLD);
        ContainerImage { names: Some(names.collect()), size_bytes: i64::try_from(image.size).ok() }
    });
    named.take(IMAGES_TOLD).collect()
}

fn labels(config: &Config) -> BTreeMap<String, String> {
    let arch = node_runtime::images::architecture();
    let own = [
        ("kubernetes.io/hostname", config.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ];
    let mut labels = config.labels.clone();
    labels.extend(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_when_its_runtime_is() {
        let condition = |kind: &str, status| RuntimeCondition {
            r#type: kind.into(),
            status,
            reason: "NetworkPluginNotReady".into(),
            message: "cni plugin not initialized".into(),
        };
        for (conditions, expected) in [
            (vec![condition("RuntimeReady", true), condition("NetworkReady", true)], Ok(())),
            (
                vec![condition("RuntimeReady", true), condition("NetworkReady", false)],
                Err("container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
                     message:cni plugin not initialized"
                    .to_owned()),
            ),
        ] {
            assert_eq!(readiness(&conditions), expected);
        }
    }

    #[test]
    fn disk_is_short_by_what_the_node_offers() {
        const GIB: u64 = 1 << 30;
        for (available, disk, offered, percent) in [
            (20 * GIB, 250 * GIB, 250 * GIB, 8),
            // More than the disk is no promise.
            (20 * GIB, 250 * GIB, 500 * GIB, 8),
            (20 * GIB, 250 * GIB, 20 * GIB, 100),
            (GIB, 250 * GIB, 20 * GIB, 5),
            (0, 0, 0, 0),
        ] {
            assert_eq!(free_percent(available, disk, offered), percent, "{available} of {disk}, {offered}");
        }
    }

    #[test]
    fn capacity_is_told_in_quantities() {
        let capacity =
            Capacity { cpu_millis: 1500, memory_bytes: 2 << 30, ephemeral_storage_bytes: 1 << 30, pods: 110 };
        let told = resources(&capacity);
        for (name, value) in
            [("cpu", "1500m"), ("memory", "2097152Ki"), ("ephemeral-storage", "1048576Ki"), ("pods", "110")]
        {
            assert_eq!(told[name].0, value);
        }
    }
}
