//! The first command of a cluster: what is there before anybody asks.
//!
//! All of it is one log entry. Objects that every cluster has alike are encoded once per process and put as
//! shared bodies, so that a new cluster costs their stamps only; its own (keys, CA bundles) are a handful.
//!
//! Not here: what controllers make (default ServiceAccounts, `kube-root-ca.crt`), RBAC's objects themselves
//! (`tenant_auth::policy`, passed in).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use api_kinds::{defaults, kinds};
use api_machinery::{Document, Gvr, Stamp};
use base_clock::rfc3339;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use store_mvcc::{Command, Expect, Key, Op};
use uuid::Uuid;

use crate::kinds::service_allocation::ip_address;
use crate::kinds::strategy;
use crate::registry::{key, key_name, stored_value};
use crate::strategy::Generation;

/// Where keys and certificates live; the API has no way to name it.
pub const KEYS: &str = "_keys";
pub const SERVICE_CIDR: &str = "10.96.0.0/16";
pub const KUBERNETES_IP: &str = "10.96.0.1";

/// What is this cluster's own.
pub struct Options {
    pub now: Timestamp,
    /// Name and content, for the internal collection of keys.
    pub keys: Vec<(&'static str, Bytes)>,
    /// For ConfigMap kube-system/extension-apiserver-authentication.
    pub client_ca_pem: String,
    pub front_proxy_ca_pem: String,
    /// Further objects that every cluster has alike: RBAC.
    pub defaults: Vec<(Gvr, Document)>,
}

#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("the table knows no resource {0}")]
    UnknownResource(Gvr),
}

/// The command that makes an empty key space a cluster.
pub fn command(options: &Options) -> Result<Command, BootstrapError> {
    let mut ops = Vec::new();
    for (name, content) in &options.keys {
        ops.push(Op::Put {
            key: Key::new(KEYS, *name),
            value: store_mvcc::Value { body: content.clone(), stamp: Bytes::new() },
            expect: Expect::Absent,
            expires_at_ms: None,
            shared: false,
        });
    }
    for template in shared(&options.defaults)?.iter() {
        let stamp =
            Stamp { uid: Uuid::new_v4(), created: options.now, api_version: template.api_version.clone() };
        ops.push(Op::Put {
            key: template.key.clone(),
            value: store_mvcc::Value { body: template.body.clone(), stamp: stamp.encode() },
            expect: Expect::Absent,
            expires_at_ms: None,
            shared: true,
        });
    }
    for (gvr, document) in own(options) {
        let resource = kinds().resource(&gvr).ok_or(BootstrapError::UnknownResource(gvr))?;
        ops.push(Op::Put {
            key: key(resource, document.namespace(), document.name()),
            value: stored_value(&document),
            expect: Expect::Absent,
            expires_at_ms: None,
            shared: false,
        });
    }
    Ok(Command { ops, fence: None, at_ms: options.now.as_millisecond() })
}

struct Template {
    key: Key,
    body: Bytes,
    api_version: String,
}

type Templates = Arc<Vec<Template>>;

/// Encoded once for each set of extra defaults; in practice there is one set, per emulated version one more.
const MAX_SETS: usize = 8;

fn shared(extra: &[(Gvr, Document)]) -> Result<Templates, BootstrapError> {
    static SETS: LazyLock<Mutex<HashMap<u64, Templates>>> = LazyLock::new(Mutex::default);
    let which = fingerprint(extra);
    if let Some(found) = SETS.lock().get(&which) {
        return Ok(found.clone());
    }
    let mut templates = Vec::new();
    for (gvr, document) in builtin().iter().chain(extra) {
        let resource = kinds().resource(gvr).ok_or_else(|| BootstrapError::UnknownResource(gvr.clone()))?;
        let mut document = document.clone();
        document.set("apiVersion", resource.storage.api_version());
        document.set("kind", resource.gvk.kind.to_string());
        defaults::apply(resource.message, &mut document);
        strategy(resource).defaults(&mut document);
        if strategy(resource).generation() != Generation::Never {
            document.set_generation(1);
        }
        let (body, _) = document.to_stored();
        let name = key_name(resource, document.namespace(), document.name());
        let key = Key::new(&*resource.collection, name);
        templates.push(Template { key, body, api_version: resource.storage.api_version() });
    }
    let templates = Arc::new(templates);
    let mut sets = SETS.lock();
    if sets.len() < MAX_SETS {
        sets.insert(which, templates.clone());
    }
    Ok(templates)
}

fn fingerprint(extra: &[(Gvr, Document)]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    for (gvr, document) in extra {
        gvr.hash(&mut hasher);
        hash_value(
            &document.0.iter().map(|(key, value)| (key.as_str(), value)).collect::<Vec<_>>(),
            &mut hasher,
        );
    }
    hasher.finish()
}

fn hash_value(members: &[(&str, &Value)], hasher: &mut std::hash::DefaultHasher) {
    use std::hash::Hash;
    for (key, value) in members {
        key.hash(hasher);
        match value {
            Value::Null => 0u8.hash(hasher),
            Value::Bool(flag) => flag.hash(hasher),
            Value::Number(number) => number.hash(hasher),
            Value::String(text) => text.hash(hasher),
            Value::Array(items) => {
                items.len().hash(hasher);
                hash_value(&items.iter().map(|item| ("", item)).collect::<Vec<_>>(), hasher);
            }
            Value::Object(members) => {
                members.len().hash(hasher);
                hash_value(
                    &members.iter().map(|(key, value)| (key.as_str(), value)).collect::<Vec<_>>(),
                    hasher,
                );
            }
        }
    }
}

fn document(value: Value) -> Document {
    Document::from_value(value).unwrap_or_default()
}

// ---- what every cluster has alike ----

fn builtin() -> Vec<(Gvr, Document)> {
    let mut all = Vec::new();
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        let value = json!({"metadata": {"name": name},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        all.push((Gvr::core("namespaces"), document(value)));
    }
    for (name, value, text) in [
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
    ] {
        let value = json!({"metadata": {"name": name}, "value": value, "description": text});
        all.push((Gvr::new("scheduling.k8s.io", "v1", "priorityclasses"), document(value)));
    }
    all.extend(priority_levels());
    all.extend(flow_schemas());
    all.extend(api_services());
    all
}

/// What is served here, as `kubectl get apiservices` lists it. Priorities are upstream's
/// (`pkg/controlplane/apiserver/aggregator.go`).
fn api_services() -> Vec<(Gvr, Document)> {
    let of = Gvr::new("apiregistration.k8s.io", "v1", "apiservices");
    let mut all = Vec::new();
    for (group, versions) in kinds().groups() {
        let minimum = match group {
            "" => 18_000,
            "apps" => 17_800,
            "events.k8s.io" => 17_750,
            "authentication.k8s.io" => 17_700,
            "authorization.k8s.io" => 17_600,
            "autoscaling" => 17_500,
            "batch" => 17_400,
            "certificates.k8s.io" => 17_300,
            "networking.k8s.io" => 17_200,
            "policy" => 17_100,
            "rbac.authorization.k8s.io" => 17_000,
            "storage.k8s.io" => 16_800,
            "apiextensions.k8s.io" | "admissionregistration.k8s.io" => 16_700,
            "scheduling.k8s.io" => 16_600,
            "coordination.k8s.io" => 16_500,
            "node.k8s.io" => 16_300,
            "discovery.k8s.io" => 16_200,
            "flowcontrol.apiserver.k8s.io" => 16_100,
            "resource.k8s.io" => 15_900,
            // The aggregator itself is no APIService.
            _ => continue,
        };
        for version in versions {
            let own = match (group, version) {
                ("", _) => 1,
                ("autoscaling", "v2") => 30,
                ("flowcontrol.apiserver.k8s.io", "v1") => 21,
                _ => 15,
            };
            let value = json!({
                "metadata": {"name": format!("{version}.{group}"),
                    "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"}},
                "spec": {"group": group, "version": version, "groupPriorityMinimum": minimum, "versionPriority": own},
                "status": {"conditions": [{"type": "Available", "status": "True", "reason": "Local",
                    "message": "Local APIServices are always available"}]},
            });
            all.push((of.clone(), document(value)));
        }
    }
    all
}

const FLOW: &str = "flowcontrol.apiserver.k8s.io";
const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

struct Level {
    name: &'static str,
    shares: i64,
    lendable_percent: i64,
    /// Queues and hand size, where requests wait rather than be rejected.
    queues: Option<(i64, i64)>,
}

const fn level(name: &'static str, shares: i64, lendable_percent: i64, queues: Option<(i64, i64)>) -> Level {
    Level { name, shares, lendable_percent, queues }
}

const LEVELS: [Level; 7] = [
    level("catch-all", 5, 0, None),
    level("system", 30, 33, Some((64, 6))),
    level("node-high", 40, 25, Some((64, 6))),
    level("leader-election", 10, 0, Some((16, 4))),
    level("workload-high", 40, 50, Some((128, 6))),
    level("workload-low", 100, 90, Some((128, 6))),
    level("global-default", 20, 50, Some((128, 6))),
];

fn priority_levels() -> Vec<(Gvr, Document)> {
    let gvr = Gvr::new(FLOW, "v1", "prioritylevelconfigurations");
    let metadata = |name: &str| json!({"name": name, "annotations": {AUTO_UPDATE: "true"}});
    let exempt = json!({"metadata": metadata("exempt"), "spec": {"type": "Exempt",
        "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}, "status": {}});
    let mut all = vec![(gvr.clone(), document(exempt))];
    for Level { name, shares, lendable_percent: lendable, queues } in LEVELS {
        let response = match queues {
            None => json!({"type": "Reject"}),
            Some((queues, hand)) => json!({"type": "Queue",
                "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 50}}),
        };
        let limited = json!({"nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response});
        let level = json!({"metadata": metadata(name), "spec": {"type": "Limited", "limited": limited}, "status": {}});
        all.push((gvr.clone(), document(level)));
    }
    all
}

fn flow_schemas() -> Vec<(Gvr, Document)> {
    let gvr = Gvr::new(FLOW, "v1", "flowschemas");
    let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
    let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
    let system_accounts =
        || json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "kube-system"}});
    let everybody = || vec![group("system:unauthenticated"), group("system:authenticated")];
    let rule = |verbs: Value, api_group: &str, resources: Value, cluster: bool| {
        let mut rule =
            json!({"verbs": verbs, "apiGroups": [api_group], "resources": resources, "namespaces": ["*"]});
        if cluster {
            rule["clusterScope"] = true.into();
        }
        rule
    };
    let everything = |subjects: Vec<Value>| {
        json!({"subjects": subjects, "resourceRules": [rule(json!(["*"]), "*", json!(["*"]), true)],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]})
    };
    let probes = json!({"subjects": everybody(),
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]});
    let election = json!({
        "subjects": [user("system:kube-controller-manager"), user("system:kube-scheduler"), system_accounts()],
        "resourceRules": [rule(json!(["get", "create", "update"]), "coordination.k8s.io", json!(["leases"]), false)]});
    let heartbeats = json!({"subjects": [group("system:nodes")], "resourceRules": [
        rule(json!(["*"]), "", json!(["nodes", "nodes/status"]), true),
        rule(json!(["*"]), "coordination.k8s.io", json!(["leases"]), false)]});
    let (by_user, by_namespace) = (Some("ByUser"), Some("ByNamespace"));
    let rows: Vec<(&str, &str, i64, Option<&str>, Value)> = vec![
        ("exempt", "exempt", 1, None, everything(vec![group("system:masters")])),
        ("probes", "exempt", 2, None, probes),
        ("system-leader-election", "leader-election", 100, by_user, election),
        ("system-node-high", "node-high", 400, by_user, heartbeats),
        ("system-nodes", "system", 500, by_user, everything(vec![group("system:nodes")])),
        (
            "kube-controller-manager",
            "workload-high",
            800,
            by_namespace,
            everything(vec![user("system:kube-controller-manager")]),
        ),
        (
            "kube-scheduler",
            "workload-high",
            800,
            by_namespace,
            everything(vec![user("system:kube-scheduler")]),
        ),
        (
            "kube-system-service-accounts",
            "workload-high",
            900,
            by_namespace,
            everything(vec![system_accounts()]),
        ),
        (
            "service-accounts",
            "workload-low",
            9000,
            by_user,
            everything(vec![group("system:serviceaccounts")]),
        ),
        ("global-default", "global-default", 9900, by_user, everything(everybody())),
        ("catch-all", "catch-all", 10_000, by_user, everything(everybody())),
    ];
    let schema = |(name, level, precedence, method, rule): (&str, &str, i64, Option<&str>, Value)| {
        let mut schema = json!({"metadata": {"name": name, "annotations": {AUTO_UPDATE: "true"}},
            "spec": {"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": [rule]},
            "status": {}});
        if let Some(method) = method {
            schema["spec"]["distinguisherMethod"] = json!({"type": method});
        }
        (gvr.clone(), document(schema))
    };
    rows.into_iter().map(schema).collect()
}

// ---- what is this cluster's own ----

fn own(options: &Options) -> Vec<(Gvr, Document)> {
    let now = rfc3339(options.now);
    let stamped = |value: Value| {
        let mut document = document(value);
        document.set("metadata.uid", Uuid::new_v4().to_string());
        document.set("metadata.creationTimestamp", now.as_str());
        document
    };
    let mut all = Vec::new();
    let ranges = stamped(json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes", "generation": 1},
        "spec": {"cidrs": [SERVICE_CIDR]},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now,
            "reason": "", "message": "Kubernetes Service CIDR is ready"}]}}));
    all.push((Gvr::new("networking.k8s.io", "v1", "servicecidrs"), ranges));
    if let Ok(ip) = KUBERNETES_IP.parse::<IpAddr>() {
        let address = ip_address(ip, "default", "kubernetes", options.now);
        all.push((Gvr::new("networking.k8s.io", "v1", "ipaddresses"), address));
    }
    all.push((
        Gvr::core("services"),
        stamped(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {"clusterIP": KUBERNETES_IP, "clusterIPs": [KUBERNETES_IP], "type": "ClusterIP",
                "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                "sessionAffinity": "None",
                "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]},
            "status": {"loadBalancer": {}}})),
    ));
    all.push((
        Gvr::core("endpoints"),
        stamped(json!({"apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{"addresses": [{"ip": API_ADDRESS}],
                "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}]}]})),
    ));
    all.push((
        Gvr::new("discovery.k8s.io", "v1", "endpointslices"),
        stamped(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "kubernetes", "namespace": "default", "generation": 1,
                "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [API_ADDRESS], "conditions": {"ready": true}}],
            "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}]})),
    ));
    all.push((
        Gvr::core("configmaps"),
        stamped(json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
            "data": {
                "client-ca-file": options.client_ca_pem,
                "requestheader-allowed-names": "[\"front-proxy-client\"]",
                "requestheader-client-ca-file": options.front_proxy_ca_pem,
                "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
                "requestheader-group-headers": "[\"X-Remote-Group\"]",
                "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
                "requestheader-username-headers": "[\"X-Remote-User\"]"}})),
    ));
    all
}

/// Where the Service `kubernetes` ends. Nodes carry it over their tunnels and never dial it (DESIGN §7), so it
/// is an address that is nobody's by standard (RFC 5737).
const API_ADDRESS: &str = "192.0.2.1";
