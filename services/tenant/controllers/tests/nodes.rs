//! Nodes, their certificates and bootstrap tokens, against a cluster in memory.

mod support;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use support::*;
use tenant_client::fake::until;
use tenant_client::{Api, Patch};
use tenant_controllers::{SignError, SignProfile, Signer};

fn node(cluster: &Cluster, name: &str) {
    cluster.api.put(&NODES, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-30T21:00:00Z"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}]}}));
    renew(cluster, name);
}
fn renew(cluster: &Cluster, name: &str) {
    cluster.api.put(
        &LEASES,
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {"holderIdentity": name}}),
    );
}
async fn ready(cluster: &Cluster, name: &str) {
    let patch = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-30T22:00:00Z"}]}});
    cluster.api.patch(&NODES, Some("status"), None, name, Patch::Merge(patch)).await.unwrap();
    renew(cluster, name);
}
/// Lets time pass while these nodes keep renewing.
async fn pass(cluster: &Cluster, seconds: u64, alive: &[&str]) {
    for _ in 0..seconds / 10 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        alive.iter().for_each(|name| renew(cluster, name));
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
}
fn pod(cluster: &Cluster, name: &str, node: &str, seconds: Value) {
    cluster.api.put(&PODS, json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "d"},
        "spec": {"nodeName": node, "tolerations": [
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}));
}
fn ready_of(cluster: &Cluster, name: &str) -> String {
    let node = cluster.api.read(&NODES, "", name).unwrap();
    node["status"]["conditions"][0]["status"].as_str().unwrap_or_default().to_owned()
}
fn taints(cluster: &Cluster, name: &str) -> Vec<String> {
    let node = cluster.api.read(&NODES, "", name).unwrap();
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints
        .iter()
        .map(|one| format!("{}:{}", one["key"].as_str().unwrap(), one["effect"].as_str().unwrap()))
        .collect()
}
fn is_deleting(cluster: &Cluster, pod: &str) -> bool {
    let pod = cluster.read(&PODS, pod);
    pod.is_null() || !pod["metadata"]["deletionTimestamp"].is_null()
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_reported_and_its_pods_move_after_their_time() {
    let cluster = cluster();
    ["n1", "n2", "n3"].iter().for_each(|name| node(&cluster, name));
    pod(&cluster, "soon", "n3", json!(100));
    pod(&cluster, "never", "n3", json!(null));
    pod(&cluster, "elsewhere", "n1", json!(0));
    pass(&cluster, 30, &["n1", "n2"]).await;
    assert_eq!(ready_of(&cluster, "n3"), "True", "within its grace");
    pass(&cluster, 20, &["n1", "n2"]).await;
    assert_eq!(ready_of(&cluster, "n3"), "Unknown");
    assert_eq!(ready_of(&cluster, "n1"), "True");
    let unreachable =
        ["node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"];
    assert_eq!(taints(&cluster, "n3"), unreachable);
    assert_eq!(
        cluster.read(&PODS, "soon")["status"]["conditions"][0]["status"],
        "False",
        "it leaves the endpoints"
    );
    assert!(!is_deleting(&cluster, "soon"));
    pass(&cluster, 120, &["n1", "n2"]).await;
    assert!(is_deleting(&cluster, "soon"));
    assert!(!is_deleting(&cluster, "never"));
    assert!(!is_deleting(&cluster, "elsewhere"));
    ready(&cluster, "n3").await;
    until("it is welcome again", || taints(&cluster, "n3").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_driven_away_when_most_fall_silent() {
    let cluster = cluster();
    let names = ["n1", "n2", "n3", "n4", "n5"];
    names.iter().for_each(|name| node(&cluster, name));
    pod(&cluster, "p", "n3", json!(0));
    pass(&cluster, 600, &["n1", "n2"]).await;
    assert_eq!(ready_of(&cluster, "n3"), "Unknown", "it is reported");
    assert_eq!(taints(&cluster, "n3"), ["node.kubernetes.io/unreachable:NoSchedule"]);
    assert!(!is_deleting(&cluster, "p"));
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_gives_everyone_a_fresh_grace() {
    let mut cluster = cluster();
    ["n1", "n2", "n3"].iter().for_each(|name| node(&cluster, name));
    pass(&cluster, 30, &["n1", "n2"]).await;
    cluster.stop.cancel();
    cluster.stop = Default::default();
    let shared: tenant_client::SharedApi = Arc::new(cluster.api.clone());
    tokio::spawn(tenant_controllers::Controllers::run(
        move |_| shared.clone(),
        cluster.clock.clone(),
        config(),
        cluster.stop.clone(),
    ));
    pass(&cluster, 30, &["n1", "n2"]).await;
    assert_eq!(ready_of(&cluster, "n3"), "True", "60 s silent, but 30 s to this leader");
    pass(&cluster, 20, &["n1", "n2"]).await;
    assert_eq!(ready_of(&cluster, "n3"), "Unknown");
}

#[tokio::test(start_paused = true)]
async fn every_node_gets_addresses_of_its_own() {
    let cluster = cluster();
    for at in 0..20 {
        node(&cluster, &format!("n{at}"));
    }
    let ranges = || {
        let nodes = cluster.api.all(&NODES).into_iter();
        let mut ranges: Vec<String> =
            nodes.filter_map(|node| Some(node["spec"]["podCIDR"].as_str()?.to_owned())).collect();
        ranges.sort();
        ranges.dedup();
        ranges
    };
    until("all have different ones", || ranges().len() == 20).await;
    assert!(ranges().contains(&"10.244.19.0/24".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_node_that_is_gone_are_removed() {
    let cluster = cluster();
    node(&cluster, "n1");
    pod(&cluster, "p", "n1", json!(null));
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.api.remove(&NODES, "", "n1");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!cluster.read(&PODS, "p").is_null(), "the node may come back");
    until("the pod is gone", || cluster.read(&PODS, "p").is_null()).await;
}

struct Stamp;
impl Signer for Stamp {
    fn sign(&self, request_pem: &str, profile: &SignProfile) -> Result<String, SignError> {
        if request_pem.contains("CERTIFICATE REQUEST") {
            Ok(format!("signed for {} with {}", profile.signer_name, profile.usages.join("+")))
        } else {
            Err(SignError::BadRequest("not a request".to_owned()))
        }
    }
}

fn request(cluster: &Cluster, name: &str, signer: &str, user: &str, groups: &[&str], pem: &str, usage: &str) {
    cluster.api.put(
        &REQUESTS,
        json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name}, "spec": {"request": BASE64.encode(pem), "signerName": signer,
            "username": user, "groups": groups, "usages": ["digital signature", usage]}}),
    );
}
fn pem(sans: &[&str]) -> String {
    let mut params =
        rcgen::CertificateParams::new(sans.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n1");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap()
}

#[tokio::test(start_paused = true)]
async fn nodes_get_their_certificates_and_old_requests_go() {
    let mut config = config();
    config.signer = Some(Arc::new(Stamp));
    let cluster = cluster_with(config);
    let read = |name: &str| cluster.api.read(&REQUESTS, "", name).unwrap_or_default()["status"].clone();
    let client = "kubernetes.io/kube-apiserver-client-kubelet";
    let serving = "kubernetes.io/kubelet-serving";
    cluster.api.grant("system:bootstrappers", "nodeclient");
    request(
        &cluster,
        "boot",
        client,
        "system:bootstrap:abcdef",
        &["system:bootstrappers"],
        &pem(&[]),
        "client auth",
    );
    request(&cluster, "eve", client, "eve", &[], &pem(&[]), "client auth");
    // Neither the right for somebody else's certificate, nor the name that one's own would have.
    request(&cluster, "late", client, "later", &["late"], &pem(&[]), "client auth");
    cluster.api.grant("late", "selfnodeclient");
    request(
        &cluster,
        "serve",
        serving,
        "system:node:n1",
        &["system:nodes"],
        &pem(&["n1", "10.0.0.1"]),
        "server auth",
    );
    until("signed", || {
        let certificate = read("boot")["certificate"].as_str().map(|text| BASE64.decode(text).unwrap());
        certificate == Some(format!("signed for {client} with digital signature+client auth").into_bytes())
    })
    .await;
    assert_eq!(read("boot")["conditions"][0]["reason"], "AutoApproved");
    assert!(read("eve").is_null() && read("late").is_null());
    cluster.api.grant("late", "nodeclient");
    until("its binding came", || read("late")["certificate"].is_string()).await;
    assert!(read("serve").is_null(), "there is no such node yet");
    node(&cluster, "n1");
    until("the node has said who it is", || read("serve")["certificate"].is_string()).await;
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}});
    request(&cluster, "bad", "kubernetes.io/kube-apiserver-client", "admin", &[], "nonsense", "client auth");
    cluster.api.patch(&REQUESTS, Some("approval"), None, "bad", Patch::Merge(approved)).await.unwrap();
    until("the bad one has failed", || {
        read("bad")["conditions"].as_array().is_some_and(|all| all.iter().any(|one| one["type"] == "Failed"))
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3700)).await;
    assert_eq!(cluster.names(&REQUESTS), ["eve"], "answered ones are gone, the other still waits");
    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    assert_eq!(cluster.count(&REQUESTS), 0);
}

#[tokio::test(start_paused = true)]
async fn cluster_info_is_signed_by_each_token_until_it_expires() {
    let mut config = config();
    config.cluster_info = Some("apiVersion: v1\nkind: Config\n".to_owned());
    let cluster = cluster_with(config);
    cluster.namespace("kube-public");
    let at = base_clock::rfc3339(cluster.clock.now() + Duration::from_secs(600));
    let data = json!({"token-id": BASE64.encode("abcdef"), "token-secret": BASE64.encode("0123456789abcdef"),
        "usage-bootstrap-signing": BASE64.encode("true"), "expiration": BASE64.encode(at)});
    cluster.api.put(
        &SECRETS,
        json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"}, "data": data}),
    );
    let info =
        || cluster.api.read(&CONFIG_MAPS, "kube-public", "cluster-info").unwrap_or_default()["data"].clone();
    until("signed", || info()["jws-kubeconfig-abcdef"].as_str().is_some_and(|text| text.contains("..")))
        .await;
    tokio::time::sleep(Duration::from_secs(620)).await;
    assert!(info()["jws-kubeconfig-abcdef"].is_null());
    assert!(info()["kubeconfig"].is_string());
    assert_eq!(cluster.count(&SECRETS), 0, "the token is gone");
}
