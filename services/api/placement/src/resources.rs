//! NodeResourcesFit and NodeResourcesBalancedAllocation.

use std::collections::BTreeMap;

use api_machinery::Quantity;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::model::{NodeInfo, PodInfo};

/// Amounts of everything that is accounted for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    pub pods: i64,
    /// Extended resources and huge pages.
    pub others: BTreeMap<String, i64>,
}

/// What a container without requests counts as when nodes are scored (never when they are filtered).
const SCORED_MILLI_CPU: i64 = 100;
const SCORED_MEMORY: i64 = 200 * 1024 * 1024;

impl Resources {
    pub fn from_list(list: &BTreeMap<String, Text>) -> Resources {
        let mut resources = Resources::default();
        for (name, Text(text)) in list {
            // What cannot be read was refused by validation; counting it as nothing harms nobody.
            let Ok(quantity) = Quantity::parse(text) else { continue };
            match name.as_str() {
                "cpu" => resources.milli_cpu = quantity.milli(),
                "memory" => resources.memory = quantity.value(),
                "ephemeral-storage" => resources.ephemeral_storage = quantity.value(),
                "pods" => resources.pods = quantity.value(),
                _ => drop(resources.others.insert(name.clone(), quantity.value())),
            }
        }
        resources
    }

    pub fn add(&mut self, other: &Resources) {
        self.merge(other, i64::saturating_add);
    }
    pub fn subtract(&mut self, other: &Resources) {
        self.merge(other, i64::saturating_sub);
    }
    fn at_least(&mut self, other: &Resources) {
        self.merge(other, i64::max);
    }
    fn merge(&mut self, other: &Resources, with: fn(i64, i64) -> i64) {
        self.milli_cpu = with(self.milli_cpu, other.milli_cpu);
        self.memory = with(self.memory, other.memory);
        self.ephemeral_storage = with(self.ephemeral_storage, other.ephemeral_storage);
        self.pods = with(self.pods, other.pods);
        for (name, amount) in &other.others {
            let slot = self.others.entry(name.clone()).or_default();
            *slot = with(*slot, *amount);
        }
    }

    /// What a pod asks of a node: containers and sidecars together, or the hungriest moment of its start.
    pub fn requested_by(spec: &PodSpec) -> Resources {
        pod_requests(spec, requests_of)
    }
    /// The same for scoring, where a container that asks for nothing still counts for something.
    pub fn scored_for(spec: &PodSpec) -> Resources {
        pod_requests(spec, |container| {
            let mut requests = requests_of(container);
            if requests.milli_cpu == 0 {
                requests.milli_cpu = SCORED_MILLI_CPU;
            }
            if requests.memory == 0 {
                requests.memory = SCORED_MEMORY;
            }
            requests
        })
    }
}

fn requests_of(container: &Container) -> Resources {
    let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    requests.map(Resources::from_list).unwrap_or_default()
}

fn pod_requests(spec: &PodSpec, of: impl Fn(&Container) -> Resources) -> Resources {
    let mut total = Resources::default();
    for container in &spec.containers {
        total.add(&of(container));
    }
    let (mut sidecars, mut starting) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        let requests = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&requests);
            total.add(&requests);
            starting.at_least(&sidecars);
        } else {
            let mut moment = sidecars.clone();
            moment.add(&requests);
            starting.at_least(&moment);
        }
    }
    total.at_least(&starting);
    if let Some(whole) = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()) {
        let whole_pod = Resources::from_list(whole);
        // Requests of the pod as a whole take the place of its containers' for the resources they name.
        for name in whole.keys() {
            match name.as_str() {
                "cpu" => total.milli_cpu = whole_pod.milli_cpu,
                "memory" => total.memory = whole_pod.memory,
                _ => {
                    if let Some(amount) = whole_pod.others.get(name) {
                        total.others.insert(name.clone(), *amount);
                    }
                }
            }
        }
    }
    if let Some(overhead) = &spec.overhead {
        total.add(&Resources::from_list(overhead));
    }
    total
}

/// Everything the node has too little of; `true` beside it when even an empty node would.
pub(crate) fn filter(pod: &PodInfo, node: &NodeInfo) -> Result<(), Vec<(String, bool)>> {
    let (asked, have, used) = (&pod.requests, &node.allocatable, &node.requested);
    let mut lacking = Vec::new();
    if i64::try_from(node.pods.len()).unwrap_or(i64::MAX) + 1 > have.pods {
        lacking.push(("Too many pods".to_owned(), have.pods < 1));
    }
    let mut check = |name: &str, asked: i64, have: i64, used: i64| {
        if asked > 0 && asked > have.saturating_sub(used) {
            lacking.push((format!("Insufficient {name}"), asked > have));
        }
    };
    check("cpu", asked.milli_cpu, have.milli_cpu, used.milli_cpu);
    check("memory", asked.memory, have.memory, used.memory);
    check("ephemeral-storage", asked.ephemeral_storage, have.ephemeral_storage, used.ephemeral_storage);
    for (name, asked) in &asked.others {
        let of = |resources: &Resources| resources.others.get(name).copied().unwrap_or(0);
        check(name, *asked, of(have), of(used));
    }
    if lacking.is_empty() { Ok(()) } else { Err(lacking) }
}

/// LeastAllocated over CPU and memory: how much stays free, 0 to 100.
pub(crate) fn least_allocated(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let free = |capacity: i64, used: i64, asked: i64| {
        let wanted = used.saturating_add(asked);
        if capacity <= 0 || wanted > capacity {
            0
        } else {
            i64::try_from(i128::from(capacity - wanted) * 100 / i128::from(capacity)).unwrap_or(0)
        }
    };
    let (have, used, asked) = (&node.allocatable, &node.scored, &pod.scored);
    (free(have.milli_cpu, used.milli_cpu, asked.milli_cpu) + free(have.memory, used.memory, asked.memory)) / 2
}

/// BalancedAllocation: 100 when CPU and memory are used in the same proportion.
pub(crate) fn balanced(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let (have, used, asked) = (&node.allocatable, &node.requested, &pod.requests);
    let share = |capacity: i64, used: i64, asked: i64| {
        if capacity <= 0 { 1.0 } else { ((used + asked) as f64 / capacity as f64).min(1.0) }
    };
    let cpu = share(have.milli_cpu, used.milli_cpu, asked.milli_cpu);
    let memory = share(have.memory, used.memory, asked.memory);
    // The standard deviation of two values is half their distance.
    ((1.0 - (cpu - memory).abs() / 2.0) * 100.0) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{node, pod};
    use serde_json::json;

    #[test]
    fn what_does_not_fit_is_named() {
        let node =
            || node("n", json!({"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "2", "x.io/gpu": "1"}}));
        for (requests, used, wanted) in [
            (json!({}), json!({"cpu": "1"}), ""),
            (json!({"cpu": "1"}), json!({}), ""),
            (json!({"cpu": "1"}), json!({"cpu": "1m"}), "Insufficient cpu"),
            (json!({"cpu": "2", "memory": "2Gi"}), json!({}), "Insufficient cpu! Insufficient memory!"),
            (json!({"x.io/gpu": "1"}), json!({"x.io/gpu": "1"}), "Insufficient x.io/gpu"),
            (json!({"y.io/gpu": "1"}), json!({}), "Insufficient y.io/gpu!"),
        ] {
            let mut node = node();
            let asks = |requests: &serde_json::Value| {
                pod("p", json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}))
            };
            node.add(asks(&used).into());
            let got = filter(&asks(&requests), &node).err().unwrap_or_default();
            let got: Vec<String> =
                got.into_iter().map(|(why, never)| if never { format!("{why}!") } else { why }).collect();
            assert_eq!(got.join(" "), wanted, "{requests} beside {used}");
        }
    }

    #[test]
    fn a_pod_asks_for_its_hungriest_moment() {
        for (spec, wanted) in [
            (json!({"containers": [cpu("1", ""), cpu("2", "")]}), 3000),
            (json!({"containers": [cpu("1", "")], "initContainers": [cpu("5", "")]}), 5000),
            (
                json!({"containers": [cpu("1", "")], "initContainers": [cpu("1", "Always"), cpu("3", "")]}),
                4000,
            ),
            (
                json!({"containers": [cpu("4", "")], "initContainers": [cpu("1", "Always"), cpu("3", "")]}),
                5000,
            ),
            (json!({"containers": [cpu("1", "")], "overhead": {"cpu": "250m"}}), 1250),
            (json!({"containers": [cpu("1", "")], "resources": {"requests": {"cpu": "3"}}}), 3000),
        ] {
            assert_eq!(pod("p", spec.clone()).requests.milli_cpu, wanted, "{spec}");
        }
    }
    fn cpu(amount: &str, restart: &str) -> serde_json::Value {
        let mut container = json!({"name": "c", "resources": {"requests": {"cpu": amount}}});
        if !restart.is_empty() {
            container["restartPolicy"] = json!(restart);
        }
        container
    }

    #[test]
    fn emptier_and_more_even_nodes_score_higher() {
        let empty = node("n", json!({"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}));
        let mut busy = empty.clone();
        let big =
            json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]});
        busy.add(pod("q", big.clone()).into());
        let asks = pod("p", big);
        assert!(least_allocated(&asks, &empty) > least_allocated(&asks, &busy));
        assert!(balanced(&asks, &empty) > balanced(&asks, &busy));
    }
}
