//! What a pod's resources mean: QoS class, cgroup figures, OOM score.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use node_runtime::cri::LinuxContainerResources;
use node_volumes::quantity;

use crate::pod::{PodExt, Role};

/// The kernel's scheduling period that quotas are counted in.
const CPU_PERIOD_US: i64 = 100_000;
/// The kernel refuses less.
const CPU_QUOTA_MIN_US: i64 = 1000;
const CPU_SHARES_MIN: i64 = 2;
const CPU_SHARES_MAX: i64 = 262_144;

type Resources = BTreeMap<String, Quantity>;

/// `Guaranteed`, `Burstable` or `BestEffort`, by the containers' cpu and memory.
pub fn qos_class(pod: &Pod) -> &'static str {
    let roles = pod.roles();
    let mut any = false;
    let mut guaranteed = true;
    for (_, container) in roles.iter().filter(|(role, _)| *role != Role::Ephemeral) {
        for resource in ["cpu", "memory"] {
            let request = positive(requests(container), resource);
            let limit = positive(limits(container), resource);
            any |= request.is_some() || limit.is_some();
            // A limit without a request is a request as well.
            guaranteed &= limit.is_some() && request.is_none_or(|request| Some(request) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// What the runtime is told of one container.
pub fn container_resources(
    pod: &Pod,
    container: &Container,
    node_memory_bytes: u64,
) -> LinuxContainerResources {
    let cpu_request = positive(requests(container), "cpu").or(positive(limits(container), "cpu"));
    let cpu_limit = positive(limits(container), "cpu");
    let memory_limit = positive(limits(container), "memory").map_or(0, whole);
    LinuxContainerResources {
        cpu_period: cpu_limit.map_or(0, |_| CPU_PERIOD_US),
        cpu_quota: cpu_limit.map_or(0, quota),
        cpu_shares: shares(cpu_request.unwrap_or(0)),
        memory_limit_in_bytes: memory_limit,
        oom_score_adj: oom_score_adj(pod, container, node_memory_bytes),
        ..LinuxContainerResources::default()
    }
}

/// What a pod's own cgroup is held to; `None`: not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodLimits {
    pub cpu_shares: i64,
    pub cpu_quota_us: Option<i64>,
    pub cpu_period_us: i64,
    pub memory_bytes: Option<i64>,
}

/// Sums over the containers. A limit holds for the pod only when every container has one.
pub fn pod_limits(pod: &Pod) -> PodLimits {
    let roles = pod.roles();
    let total = |kind: fn(&Container) -> Option<&Resources>, resource: &str| -> (i64, bool) {
        let value = |container: &Container| positive(kind(container), resource);
        let (mut running, mut largest_init, mut all_have) = (0_i64, 0_i64, true);
        for (role, container) in &roles {
            let own = value(container).unwrap_or(0);
            match role {
                Role::Main | Role::Sidecar => {
                    running = running.saturating_add(own);
                    all_have &= own > 0;
                }
                Role::Init => {
                    largest_init = largest_init.max(own);
                    all_have &= own > 0;
                }
                Role::Ephemeral => {}
            }
        }
        (running.max(largest_init), all_have)
    };
    let (cpu_request, _) = total(|one| requests(one).or(limits(one)), "cpu");
    let (cpu_limit, cpu_limited) = total(limits, "cpu");
    let (memory_limit, memory_limited) = total(limits, "memory");
    PodLimits {
        cpu_shares: shares(cpu_request),
        cpu_quota_us: (cpu_limited && cpu_limit > 0).then(|| quota(cpu_limit)),
        cpu_period_us: CPU_PERIOD_US,
        memory_bytes: (memory_limited && memory_limit > 0).then(|| whole(memory_limit)),
    }
}

/// cpu.shares to cpu.weight: both ends of one scale map to both ends of the other.
pub fn weight(shares: i64) -> i64 {
    1 + ((shares - CPU_SHARES_MIN) * 9999) / (CPU_SHARES_MAX - CPU_SHARES_MIN)
}

fn shares(cpu_milli: i64) -> i64 {
    (cpu_milli.saturating_mul(1024) / 1000).clamp(CPU_SHARES_MIN, CPU_SHARES_MAX)
}

fn quota(cpu_milli: i64) -> i64 {
    (cpu_milli.saturating_mul(CPU_PERIOD_US) / 1000).max(CPU_QUOTA_MIN_US)
}

fn oom_score_adj(pod: &Pod, container: &Container, node_memory_bytes: u64) -> i64 {
    match qos_class(pod) {
        "Guaranteed" => -997,
        "BestEffort" => 1000,
        _ => {
            let request = positive(requests(container), "memory").map_or(0, whole);
            let capacity = i64::try_from(node_memory_bytes).unwrap_or(i64::MAX).max(1);
            let share = i128::from(request) * 1000 / i128::from(capacity);
            (1000 - i64::try_from(share).unwrap_or(1000)).clamp(3, 999)
        }
    }
}

fn requests(container: &Container) -> Option<&Resources> {
    container.resources.as_ref()?.requests.as_ref()
}

fn limits(container: &Container) -> Option<&Resources> {
    container.resources.as_ref()?.limits.as_ref()
}

/// Thousandths of a resource, if there is some of it.
fn positive(resources: Option<&Resources>, name: &str) -> Option<i64> {
    resources?.get(name).and_then(quantity::milli).filter(|milli| *milli > 0)
}

fn whole(milli: i64) -> i64 {
    if milli == i64::MAX { i64::MAX } else { milli / 1000 + i64::from(milli % 1000 != 0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(containers: serde_json::Value) -> Pod {
        serde_json::from_value(json!({ "spec": { "containers": containers } })).unwrap()
    }

    #[test]
    fn classes_follow_requests_and_limits() {
        let full = json!({ "limits": { "cpu": "1", "memory": "64Mi" } });
        for (resources, class, oom) in [
            (json!({}), "BestEffort", 1000),
            (json!({ "requests": { "cpu": "0" } }), "BestEffort", 1000),
            (full.clone(), "Guaranteed", -997),
            (json!({ "limits": { "cpu": "1" } }), "Burstable", 999),
            (json!({ "requests": { "memory": "512Mi" } }), "Burstable", 500),
            (
                json!({ "limits": { "cpu": "1", "memory": "64Mi" }, "requests": { "cpu": "500m" } }),
                "Burstable",
                999,
            ),
        ] {
            let pod = pod(json!([{ "name": "main", "resources": resources }]));
            assert_eq!(qos_class(&pod), class, "{resources}");
            let container = &pod.spec.as_ref().unwrap().containers[0];
            assert_eq!(container_resources(&pod, container, 1 << 30).oom_score_adj, oom, "{resources}");
        }
        assert_eq!(
            qos_class(&pod(json!([{ "name": "a", "resources": full }, { "name": "b" }]))),
            "Burstable"
        );
    }

    #[test]
    fn figures_are_what_the_kernel_counts_in() {
        for (resources, shares, quota_us, memory) in [
            (json!({}), 2, 0, 0),
            (json!({ "requests": { "cpu": "250m" } }), 256, 0, 0),
            (json!({ "limits": { "cpu": "500m", "memory": "1Mi" } }), 512, 50_000, 1 << 20),
            (json!({ "limits": { "cpu": "1m" } }), 2, 1000, 0),
        ] {
            let pod = pod(json!([{ "name": "main", "resources": resources }]));
            let told = container_resources(&pod, &pod.spec.as_ref().unwrap().containers[0], 1 << 30);
            assert_eq!(
                (told.cpu_shares, told.cpu_quota, told.memory_limit_in_bytes),
                (shares, quota_us, memory)
            );
            let limits = pod_limits(&pod);
            assert_eq!(
                (limits.cpu_shares, limits.cpu_quota_us.unwrap_or(0)),
                (shares, quota_us),
                "{resources}"
            );
        }
        assert_eq!((weight(2), weight(1024), weight(262_144)), (1, 39, 10_000));
    }
}
