//! Figures: `/stats/summary` for autoscalers and `kubectl top`, and Prometheus text.

use std::collections::BTreeMap;
use std::fmt::Write;

use node_runtime::CriError;
use node_runtime::cri::{ContainerStats, UInt64Value};
use serde_json::{Value, json};

use crate::observed::label;
use crate::pod::PodExt;
use crate::pods::Pods;
use crate::shared::Shared;

/// The document that metrics-server of old and the conformance suite read.
pub async fn summary(shared: &Shared, pods: &Pods) -> Result<Value, CriError> {
    let now = base_clock::rfc3339(shared.config.clock.now());
    let stats = shared.cri.list_container_stats().await?;
    let mut by_pod: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let (mut cpu_total, mut memory_total) = (0, 0);
    for one in &stats {
        let Some((uid, name)) = owner(one) else { continue };
        cpu_total += nanoseconds(one);
        memory_total += working_set(one);
        by_pod.entry(uid).or_default().push(json!({
            "name": name,
            "startTime": now,
            "cpu": { "time": now, "usageCoreNanoSeconds": nanoseconds(one) },
            "memory": { "time": now, "workingSetBytes": working_set(one), "usageBytes": working_set(one) },
            "rootfs": { "time": now, "usedBytes": one.writable_layer.as_ref().map_or(0, |layer| value(layer.used_bytes)) },
        }));
    }
    let mut documents = Vec::new();
    for (pod, _) in pods.all() {
        let containers = by_pod.remove(pod.uid()).unwrap_or_default();
        let sum = |path: &str| containers.iter().filter_map(|one| one.pointer(path)?.as_u64()).sum::<u64>();
        documents.push(json!({
            "podRef": { "name": pod.name(), "namespace": pod.namespace(), "uid": pod.uid() },
            "startTime": now,
            "cpu": { "time": now, "usageCoreNanoSeconds": sum("/cpu/usageCoreNanoSeconds") },
            "memory": { "time": now, "workingSetBytes": sum("/memory/workingSetBytes") },
            "containers": containers,
        }));
    }
    let disk = nix::sys::statvfs::statvfs(&shared.config.root_dir);
    let fs = disk.map_or(json!({ "time": now }), |fs| {
        let (size, free) = (fs.blocks() * fs.fragment_size(), fs.blocks_available() * fs.fragment_size());
        json!({ "time": now, "capacityBytes": size, "availableBytes": free, "usedBytes": size.saturating_sub(free) })
    });
    Ok(json!({
        "node": {
            "nodeName": shared.config.node_name,
            "startTime": now,
            // The pods' sum: the machine may carry other nodes.
            "cpu": { "time": now, "usageCoreNanoSeconds": cpu_total },
            "memory": {
                "time": now,
                "workingSetBytes": memory_total,
                "availableBytes": shared.config.capacity.memory_bytes.saturating_sub(memory_total),
            },
            "fs": fs,
        },
        "pods": documents,
    }))
}

/// What upstream's `/metrics/resource` has.
pub async fn resource_metrics(shared: &Shared) -> Result<String, CriError> {
    let stats = shared.cri.list_container_stats().await?;
    let mut cpu = String::from("# TYPE container_cpu_usage_seconds_total counter\n");
    let mut memory = String::from("# TYPE container_memory_working_set_bytes gauge\n");
    for one in &stats {
        let Some(attributes) = &one.attributes else { continue };
        let name = |key: &str| attributes.labels.get(key).cloned().unwrap_or_default();
        let labels = format!(
            "container=\"{}\",namespace=\"{}\",pod=\"{}\"",
            name(label::CONTAINER),
            name(label::POD_NAMESPACE),
            name(label::POD_NAME)
        );
        let ns = nanoseconds(one);
        // Writing to a String does not fail.
        let _ = writeln!(
            cpu,
            "container_cpu_usage_seconds_total{{{labels}}} {}.{:09}",
            ns / 1_000_000_000,
            ns % 1_000_000_000
        );
        let _ = writeln!(memory, "container_memory_working_set_bytes{{{labels}}} {}", working_set(one));
    }
    Ok(cpu + &memory)
}

/// The kubelet's own figures.
pub fn metrics(pods: &Pods) -> String {
    let all = pods.all();
    let running: usize = all.iter().map(|(_, view)| view.seen.running().count()).sum();
    let active =
        all.iter().filter(|(_, view)| view.seen.sandboxes.iter().any(|sandbox| sandbox.ready)).count();
    format!(
        "# TYPE kubelet_desired_pods gauge\nkubelet_desired_pods {}\n\
         # TYPE kubelet_running_pods gauge\nkubelet_running_pods {active}\n\
         # TYPE kubelet_running_containers gauge\nkubelet_running_containers{{container_state=\"running\"}} {running}\n",
        all.len()
    )
}

fn owner(stats: &ContainerStats) -> Option<(String, String)> {
    let labels = &stats.attributes.as_ref()?.labels;
    Some((labels.get(label::POD_UID)?.clone(), labels.get(label::CONTAINER)?.clone()))
}

fn nanoseconds(stats: &ContainerStats) -> u64 {
    stats.cpu.as_ref().map_or(0, |cpu| value(cpu.usage_core_nano_seconds))
}

fn working_set(stats: &ContainerStats) -> u64 {
    stats.memory.as_ref().map_or(0, |memory| value(memory.working_set_bytes))
}

fn value(number: Option<UInt64Value>) -> u64 {
    number.map_or(0, |number| number.value)
}
