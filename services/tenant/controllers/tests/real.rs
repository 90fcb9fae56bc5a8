//! Controllers and scheduler on the real API server: its roles, admission, defaults and validation.
//!
//! A store in memory and hands that do a kubelet's part; everything else is what ships.

use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, Gvr, Object};
use base_clock::{SystemClock, rfc3339};
use base_ids::TenantId;
use base_net::tasks::Tasks;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use store_mvcc::Limits;
use store_raft::Group;
use tenant_apiserver::ControlPlane;
use tenant_auth::{ClusterPki, policy};
use tenant_client::{CreateOptions, DeleteOptions, ListOptions, Patch, Propagation, SharedApi, UserInfo};
use tenant_controllers::Controllers;
use tenant_registry::bootstrap;
use tenant_scheduler::Scheduler;
use tokio_util::sync::CancellationToken;

const PODS: Gvr = Gvr::core("pods");
const NODES: Gvr = Gvr::core("nodes");
const NAMESPACES: Gvr = Gvr::core("namespaces");
const DEPLOYMENTS: Gvr = Gvr::new("apps", "v1", "deployments");
const REPLICA_SETS: Gvr = Gvr::new("apps", "v1", "replicasets");
const STATEFUL_SETS: Gvr = Gvr::new("apps", "v1", "statefulsets");
const DAEMON_SETS: Gvr = Gvr::new("apps", "v1", "daemonsets");
const JOBS: Gvr = Gvr::new("batch", "v1", "jobs");
const SLICES: Gvr = Gvr::new("discovery.k8s.io", "v1", "endpointslices");
const LEASES: Gvr = Gvr::new("coordination.k8s.io", "v1", "leases");
const REQUESTS: Gvr = Gvr::new("certificates.k8s.io", "v1", "certificatesigningrequests");

struct Cluster {
    api: SharedApi,
    plane: Arc<ControlPlane>,
    stop: CancellationToken,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn start() -> Cluster {
    let _ = tracing_subscriber::fmt()
        .with_env_filter("tenant_controllers=debug,tenant_scheduler=debug")
        .with_test_writer()
        .try_init();
    let clock = SystemClock::shared();
    let pki = ClusterPki::generate().unwrap();
    let group = Group::in_memory(Limits::default());
    let first = bootstrap::command(&bootstrap::Options {
        now: clock.now(),
        keys: pki.to_entries(),
        client_ca_pem: pki.ca_pem().to_owned(),
        front_proxy_ca_pem: pki.front_proxy_ca().cert_pem().to_owned(),
        defaults: policy::default_objects(),
    })
    .unwrap();
    group.write(first).await.unwrap();
    let plane = ControlPlane::start(tenant_apiserver::Config {
        tenant: TenantId::generate(),
        group,
        pki: pki.clone(),
        clock: clock.clone(),
        dialer: None,
        egress: tenant_outbound::Egress::new(&tenant_outbound::EgressConfig::default()).unwrap(),
        mount: None,
        dns_names: Vec::new(),
        ip_addresses: Vec::new(),
        tasks: Tasks::new(),
    })
    .unwrap();
    let admin = UserInfo {
        name: "admin".to_owned(),
        groups: vec![UserInfo::MASTERS.to_owned(), UserInfo::AUTHENTICATED.to_owned()],
        ..UserInfo::default()
    };
    let stop = CancellationToken::new();
    let loops = plane.clone();
    let api_for = move |component: &str| loops.client(tenant_controllers::identity(component), None);
    let scheduler = tenant_scheduler::Config { holder: "cell-1".to_owned() };
    tokio::spawn(Scheduler::run(api_for("kube-scheduler"), clock.clone(), scheduler, stop.clone()));
    let config = tenant_controllers::Config::new("cell-1", pki.ca_pem());
    tokio::spawn(Controllers::run(api_for, clock, config, stop.clone()));
    Cluster { api: plane.client(admin, None), plane, stop }
}

impl Cluster {
    async fn create(&self, of: &Gvr, namespace: &str, value: Value) -> Arc<Object> {
        let options = CreateOptions {
            namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
            subresource: None,
        };
        let what = value.to_string();
        let answer = self.api.create(of, Document::from_value(value).unwrap(), options).await;
        answer.unwrap_or_else(|status| panic!("{status:?} for {what}"))
    }
    async fn read(&self, of: &Gvr, namespace: &str, name: &str) -> Value {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        match self.api.get(of, namespace, name).await {
            Ok(object) => object.to_document().unwrap().into_value(),
            Err(status) if status.is_not_found() => Value::Null,
            Err(status) => panic!("{status:?}"),
        }
    }
    async fn all(&self, of: &Gvr, namespace: &str) -> Vec<Value> {
        let options = ListOptions { namespace: Some(namespace.to_owned()), ..ListOptions::default() };
        let items = self.api.list(of, options).await.unwrap().items;
        items.iter().map(|object| object.to_document().unwrap().into_value()).collect()
    }
    /// A node that is Ready, and a kubelet that runs whatever is bound to it.
    async fn node(&self, name: &str) {
        self.create(&NODES, "", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))
            .await;
        let at = rfc3339(base_clock::Timestamp::now());
        let amounts = json!({"cpu": "8", "memory": "16Gi", "pods": "110"});
        let status = json!({"status": {"capacity": amounts, "allocatable": amounts,
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                "lastHeartbeatTime": at, "lastTransitionTime": at}]}});
        self.api.patch(&NODES, Some("status"), None, name, Patch::Merge(status)).await.unwrap();
        self.create(
            &LEASES,
            "kube-node-lease",
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {"holderIdentity": name}}),
        )
        .await;
        let (api, stop) = (self.api.clone(), self.stop.clone());
        tokio::spawn(async move {
            let mut last = 0u8;
            while !stop.is_cancelled() {
                for pod in api.list(&PODS, ListOptions::default()).await.unwrap().items {
                    run(&api, &pod, &mut last).await;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }
    async fn delete(&self, of: &Gvr, namespace: &str, name: &str, propagation: Propagation) {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        self.api.delete(of, namespace, name, options).await.unwrap();
    }
}

/// One look of a kubelet at one pod.
async fn run(api: &SharedApi, pod: &Object, last: &mut u8) {
    let namespace = pod.header.namespace.as_deref().unwrap();
    let value = pod.to_document().unwrap().into_value();
    if value["spec"]["nodeName"].is_null() {
        return;
    }
    let task = value["spec"]["containers"][0]["image"] == "task";
    let over = ["Succeeded", "Failed"].iter().any(|phase| value["status"]["phase"] == *phase);
    if pod.header.deleting_since.is_some() {
        if !over && !pod.header.finalizers.is_empty() {
            let status = json!({"status": {"phase": "Failed"}});
            let _ = api
                .patch(&PODS, Some("status"), Some(namespace), &pod.header.name, Patch::Merge(status))
                .await;
        }
        let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        let _ = api.delete(&PODS, Some(namespace), &pod.header.name, options).await;
        return;
    }
    if value["status"]["phase"] != "Pending" {
        return;
    }
    *last = last.wrapping_add(1);
    let at = rfc3339(base_clock::Timestamp::now());
    let ip = format!("10.244.0.{last}");
    let status = if task {
        json!({"phase": "Succeeded"})
    } else {
        json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "startTime": at,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at}]})
    };
    let patch = Patch::Strategic(json!({"status": status}));
    let answer = api.patch(&PODS, Some("status"), Some(namespace), &pod.header.name, patch).await;
    if let Err(status) = answer {
        println!("kubelet: {status}");
    }
}

macro_rules! until {
    ($what:literal, $holds:expr) => {
        let mut tries = 0;
        while !$holds {
            tries += 1;
            assert!(tries < 400, "waited in vain: {}", $what);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
}

fn template(app: &str, image: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": image,
        "ports": [{"name": "http", "containerPort": 8080}], "resources": {"requests": {"cpu": "100m"}}}]}})
}
fn workload(kind: &str, name: &str, rest: Value) -> Value {
    let mut value = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template(name, "one")}});
    rest.as_object().unwrap().iter().for_each(|(key, field)| value["spec"][key] = field.clone());
    value
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_comes_to_life() {
    let cluster = start().await;
    cluster.node("n1").await;
    until!("addresses for pods", cluster.read(&NODES, "", "n1").await["spec"]["podCIDR"] == "10.244.0.0/24");
    until!(
        "the default account",
        !cluster.read(&Gvr::core("serviceaccounts"), "default", "default").await.is_null()
    );
    until!(
        "the root certificate",
        !cluster.read(&Gvr::core("configmaps"), "default", "kube-root-ca.crt").await.is_null()
    );

    cluster
        .create(
            &Gvr::core("services"),
            "default",
            json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}}),
        )
        .await;
    cluster.create(&DEPLOYMENTS, "default", workload("Deployment", "web", json!({"replicas": 3}))).await;
    let available = |status: &Value, count: i64| {
        status["availableReplicas"] == count
            && status["updatedReplicas"] == count
            && status["replicas"] == count
    };
    until!("three available", available(&cluster.read(&DEPLOYMENTS, "default", "web").await["status"], 3));
    let endpoints = |slices: Vec<Value>| -> usize {
        let ours =
            slices.iter().filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "web");
        ours.map(|slice| slice["endpoints"].as_array().map_or(0, Vec::len)).sum()
    };
    until!("three endpoints", endpoints(cluster.all(&SLICES, "default").await) == 3);
    until!(
        "the revision",
        cluster.read(&DEPLOYMENTS, "default", "web").await["metadata"]["annotations"]["deployment.kubernetes.io/revision"]
            == "1"
    );

    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}});
    cluster.api.patch(&DEPLOYMENTS, None, Some("default"), "web", Patch::Strategic(patch)).await.unwrap();
    until!("rolled out", {
        let pods = cluster.all(&PODS, "default").await;
        pods.len() == 3 && pods.iter().all(|pod| pod["spec"]["containers"][0]["image"] == "two")
    });
    assert_eq!(cluster.all(&REPLICA_SETS, "default").await.len(), 2);

    cluster.create(&JOBS, "default", json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "sum", "namespace": "default"},
        "spec": {"completions": 2, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "task"}]}}}})).await;
    cluster
        .create(
            &STATEFUL_SETS,
            "default",
            workload("StatefulSet", "db", json!({"replicas": 2, "serviceName": "db"})),
        )
        .await;
    cluster.create(&DAEMON_SETS, "default", workload("DaemonSet", "ds", json!({}))).await;
    until!("the Job is complete", cluster.read(&JOBS, "default", "sum").await["status"]["succeeded"] == 2);
    until!(
        "the StatefulSet is ready",
        cluster.read(&STATEFUL_SETS, "default", "db").await["status"]["readyReplicas"] == 2
    );
    until!(
        "the DaemonSet is ready",
        cluster.read(&DAEMON_SETS, "default", "ds").await["status"]["numberReady"] == 1
    );
    until!("the Job is told to be", {
        let conditions = cluster.read(&JOBS, "default", "sum").await["status"]["conditions"].clone();
        conditions.as_array().is_some_and(|all| all.iter().any(|one| one["type"] == "Complete"))
    });

    cluster.delete(&DEPLOYMENTS, "default", "web", Propagation::Background).await;
    cluster.delete(&STATEFUL_SETS, "default", "db", Propagation::Foreground).await;
    cluster.delete(&DAEMON_SETS, "default", "ds", Propagation::Foreground).await;
    cluster.delete(&JOBS, "default", "sum", Propagation::Background).await;
    until!("their pods are gone", cluster.all(&PODS, "default").await.is_empty());
    until!("and their sets", cluster.all(&REPLICA_SETS, "default").await.is_empty());
    until!("and those that waited", cluster.read(&STATEFUL_SETS, "default", "db").await.is_null());
    for lease in ["kube-scheduler", "kube-controller-manager"] {
        assert_eq!(cluster.read(&LEASES, "kube-system", lease).await["spec"]["holderIdentity"], "cell-1");
    }
    let reasons: Vec<Value> = cluster
        .all(&Gvr::core("events"), "default")
        .await
        .iter()
        .map(|event| event["reason"].clone())
        .collect();
    for reason in ["ScalingReplicaSet", "SuccessfulCreate", "Scheduled"] {
        assert!(reasons.contains(&json!(reason)), "{reason} in {reasons:?}");
    }
    // Nothing is left to do, so nothing is written: an idle tenant must be able to doze.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let revision = || cluster.plane.registry().group().space().revision();
    let before = revision();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(revision(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_goes_with_all_that_is_in_it() {
    let cluster = start().await;
    cluster.node("n1").await;
    cluster
        .create(
            &NAMESPACES,
            "",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "busy"}}),
        )
        .await;
    until!("the account", !cluster.read(&Gvr::core("serviceaccounts"), "busy", "default").await.is_null());
    let mut value = workload("Deployment", "web", json!({"replicas": 2}));
    value["metadata"]["namespace"] = json!("busy");
    cluster.create(&DEPLOYMENTS, "busy", value).await;
    until!("pods", cluster.all(&PODS, "busy").await.len() == 2);
    cluster.delete(&NAMESPACES, "", "busy", Propagation::Background).await;
    until!("it is gone", cluster.read(&NAMESPACES, "", "busy").await.is_null());
    assert!(cluster.all(&PODS, "busy").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joining_node_is_approved() {
    let cluster = start().await;
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n1");
    let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let token = UserInfo {
        name: "system:bootstrap:abcdef".to_owned(),
        groups: [
            "system:bootstrappers",
            "system:bootstrappers:kubeadm:default-node-token",
            "system:authenticated",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..UserInfo::default()
    };
    let joining = cluster.plane.client(token, None);
    let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "csr-1"}, "spec": {"request": BASE64.encode(pem),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["digital signature", "client auth"]}});
    let made =
        joining.create(&REQUESTS, Document::from_value(request).unwrap(), CreateOptions::default()).await;
    made.unwrap_or_else(|status| panic!("{status:?}"));
    until!("approved", {
        let conditions = cluster.read(&REQUESTS, "", "csr-1").await["status"]["conditions"].clone();
        conditions[0]["type"] == "Approved"
    });
}
