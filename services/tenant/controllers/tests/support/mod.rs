//! A cluster in memory with all controllers running, and hands to poke it with.
#![allow(dead_code)]

use std::sync::Arc;

use api_machinery::Gvr;
use base_clock::SharedClock;
use serde_json::{Value, json};
use tenant_client::fake::{FakeApi, TokioClock};
use tenant_client::{Api, ListOptions, Patch, SharedApi};
use tenant_controllers::{Config, Controllers};
use tokio_util::sync::CancellationToken;

pub const PODS: Gvr = Gvr::core("pods");
pub const NODES: Gvr = Gvr::core("nodes");
pub const NAMESPACES: Gvr = Gvr::core("namespaces");
pub const SERVICES: Gvr = Gvr::core("services");
pub const ENDPOINTS: Gvr = Gvr::core("endpoints");
pub const CONFIG_MAPS: Gvr = Gvr::core("configmaps");
pub const ACCOUNTS: Gvr = Gvr::core("serviceaccounts");
pub const SECRETS: Gvr = Gvr::core("secrets");
pub const EVENTS: Gvr = Gvr::core("events");
pub const DEPLOYMENTS: Gvr = Gvr::new("apps", "v1", "deployments");
pub const REPLICA_SETS: Gvr = Gvr::new("apps", "v1", "replicasets");
pub const STATEFUL_SETS: Gvr = Gvr::new("apps", "v1", "statefulsets");
pub const DAEMON_SETS: Gvr = Gvr::new("apps", "v1", "daemonsets");
pub const JOBS: Gvr = Gvr::new("batch", "v1", "jobs");
pub const CRON_JOBS: Gvr = Gvr::new("batch", "v1", "cronjobs");
pub const SLICES: Gvr = Gvr::new("discovery.k8s.io", "v1", "endpointslices");
pub const LEASES: Gvr = Gvr::new("coordination.k8s.io", "v1", "leases");
pub const REQUESTS: Gvr = Gvr::new("certificates.k8s.io", "v1", "certificatesigningrequests");
pub const BUDGETS: Gvr = Gvr::new("policy", "v1", "poddisruptionbudgets");
pub const QUOTAS: Gvr = Gvr::core("resourcequotas");

pub struct Cluster {
    pub api: FakeApi,
    pub clock: SharedClock,
    pub stop: CancellationToken,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub fn config() -> Config {
    Config::new("cell-1", "-----BEGIN CERTIFICATE-----\n")
}

pub fn cluster() -> Cluster {
    cluster_with(config())
}

pub fn cluster_with(config: Config) -> Cluster {
    let clock = TokioClock::shared();
    let api = FakeApi::new(clock.clone());
    let stop = CancellationToken::new();
    let shared: SharedApi = Arc::new(api.clone());
    tokio::spawn(Controllers::run(move |_| shared.clone(), clock.clone(), config, stop.clone()));
    Cluster { api, clock, stop }
}

impl Cluster {
    /// Runs every pod that appears, as a kubelet would: Running, Ready, with an address. Pods that are being
    /// deleted go away.
    /// Ends with the cluster, or when the token is cancelled.
    pub fn run_pods(&self) -> CancellationToken {
        let (api, stop) = (self.api.clone(), self.stop.child_token());
        let handle = stop.clone();
        tokio::spawn(async move {
            let mut last = 0u8;
            while !stop.is_cancelled() {
                let pods =
                    api.list(&PODS, ListOptions::default()).await.map(|list| list.items).unwrap_or_default();
                for pod in pods {
                    let header = &pod.header;
                    let namespace = header.namespace.as_deref().unwrap_or_default();
                    if header.deleting_since.is_some() {
                        if header.finalizers.is_empty() {
                            api.remove(&PODS, namespace, &header.name);
                        }
                        continue;
                    }
                    let mut value = pod.to_document().unwrap().into_value();
                    let image =
                        value["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned();
                    if value["status"]["phase"] != "Pending" || image == "broken" {
                        continue;
                    }
                    last = last.wrapping_add(1);
                    let at = base_clock::rfc3339(header.created);
                    let ip = format!("10.244.0.{last}");
                    value["status"] = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at}]});
                    if image == "task" {
                        value["status"] = json!({"phase": "Succeeded"});
                    }
                    let patch = Patch::Merge(json!({"status": value["status"]}));
                    let _ = api.patch(&PODS, Some("status"), Some(namespace), &header.name, patch).await;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        });
        handle
    }
    pub fn namespace(&self, name: &str) {
        self.api.put(
            &NAMESPACES,
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}),
        );
    }
    pub fn read(&self, of: &Gvr, name: &str) -> Value {
        self.api.read(of, "d", name).unwrap_or(Value::Null)
    }
    pub fn names(&self, of: &Gvr) -> Vec<String> {
        let names = self.api.all(of).into_iter();
        names.filter_map(|object| Some(object["metadata"]["name"].as_str()?.to_owned())).collect()
    }
    pub fn count(&self, of: &Gvr) -> usize {
        self.api.all(of).len()
    }
    pub async fn patch(&self, of: &Gvr, name: &str, patch: Value) {
        self.api.patch(of, None, Some("d"), name, Patch::Merge(patch)).await.unwrap();
    }
    pub fn events(&self, reason: &str) -> Vec<String> {
        let events = self.api.all(&EVENTS).into_iter().filter(|event| event["reason"] == reason);
        let mut texts: Vec<String> =
            events.filter_map(|event| Some(event["message"].as_str()?.to_owned())).collect();
        texts.sort();
        texts
    }
}

pub fn deployment(name: &str, image: &str, replicas: i64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "d", "annotations": {"note": "x"}},
        "spec": {
            "replicas": replicas, "revisionHistoryLimit": 2, "progressDeadlineSeconds": 600,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": template(name, image),
        },
    })
}

pub fn template(app: &str, image: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}, "creationTimestamp": null},
        "spec": {"containers": [{"name": "c", "image": image, "ports": [{"name": "http", "containerPort": 8080}]}]}})
}
