//! What a hostile tenant, pod or node tries, over real TLS and HTTP: each row is a way round a check.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base_net::pki::Issued;
use serde_json::{Value, json};
use support::{Answer, Cluster, cluster, cluster_with};
use tenant_client::{NodeDialer, Stream};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn identity(cluster: &Cluster, user: &str, groups: &[&str]) -> Issued {
    cluster.pki.issue_client(user, groups, Duration::from_secs(3600)).unwrap()
}

/// A user with these rules in the namespace `default`.
async fn user_with(cluster: &Cluster, name: &str, rules: Value) -> Issued {
    let group = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"metadata": {"name": name}, "rules": rules});
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}]});
    for (resource, object) in [("roles", role), ("rolebindings", binding)] {
        let made = cluster.admin_send("POST", &format!("{group}/{resource}"), object).await;
        assert_eq!(made.code, 201, "{}", made.text());
    }
    identity(cluster, name, &[])
}

async fn make(cluster: &Cluster, path: &str, object: Value) {
    let made = cluster.admin_send("POST", path, object).await;
    assert_eq!(made.code, 201, "{path}: {}", made.text());
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod =
        json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "web"}]}});
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    pod
}

async fn with_default_account() -> Cluster {
    with_account(cluster().await).await
}

async fn with_account(cluster: Cluster) -> Cluster {
    let path = "/api/v1/namespaces/default/serviceaccounts";
    make(&cluster, path, json!({"metadata": {"name": "default"}})).await;
    cluster
}

fn refused(answer: &Answer, code: u16, wanted: &str, row: &str) {
    assert_eq!(answer.code, code, "{row}: {}", answer.text());
    assert!(answer.text().contains(wanted), "{row}: {}", answer.text());
}

#[tokio::test]
async fn rights_to_change_are_no_rights_to_create() {
    let cluster = cluster().await;
    make(&cluster, MAPS, json!({"metadata": {"name": "here"}})).await;
    let rules = json!([
        {"apiGroups": [""], "resources": ["configmaps", "serviceaccounts"], "verbs": ["patch", "update"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["create"]},
    ]);
    let user = user_with(&cluster, "changer", rules).await;
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    for (method, path, kind, body, code, wanted) in [
        ("PATCH", format!("{MAPS}/new?fieldManager=m"), APPLY, map("new"), 403, "cannot create resource"),
        ("PATCH", format!("{MAPS}/here?fieldManager=m"), APPLY, map("here"), 200, ""),
        ("PUT", leases.to_owned(), JSON, lease, 403, "cannot create resource"),
        // Allowed to create what is called "mine", whatever the body then says it is called.
        ("POST", format!("{MAPS}/mine"), JSON, map("other"), 405, ""),
        ("POST", MAPS.to_owned(), JSON, map("mine"), 403, "cannot create resource"),
        ("PUT", MAPS.to_owned(), JSON, map("here"), 405, ""),
        ("PATCH", MAPS.to_owned(), MERGE, map("here"), 405, ""),
        // Names in the URL are the names acted on, however they are written.
        ("PUT", format!("{MAPS}/here"), JSON, map("other"), 400, "does not match the name on the URL"),
    ] {
        let answer =
            cluster.send(Some(&user), method, &path, &[("content-type", kind)], body.to_string()).await;
        refused(&answer, code, wanted, &format!("{method} {path}"));
    }
}

#[tokio::test]
async fn running_things_in_a_pod_is_no_reading() {
    let cluster = with_default_account().await;
    make(&cluster, PODS, pod("web", json!({}))).await;
    let verbs = |verbs: Value| json!([{"apiGroups": [""], "resources": ["pods/exec", "pods/attach", "pods/portforward"], "verbs": verbs}]);
    let reader = user_with(&cluster, "reader", verbs(json!(["get"]))).await;
    let both = user_with(&cluster, "both", verbs(json!(["get", "create"]))).await;
    for how in ["exec?command=id&stdout=1", "attach?stdout=1", "portforward?ports=80"] {
        let headers = [("connection", "Upgrade"), ("upgrade", "websocket")];
        let path = format!("{PODS}/web/{how}");
        let answer = cluster.send(Some(&reader), "GET", &path, &headers, "").await;
        refused(&answer, 403, "cannot create resource", &path);
        // Who may is told what is the matter with the pod.
        let answer = cluster.send(Some(&both), "GET", &path, &headers, "").await;
        refused(&answer, 400, "does not have a host assigned", &path);
    }
}

#[tokio::test]
async fn rules_that_multiply_are_refused_before_they_do() {
    let cluster = cluster().await;
    let rules =
        json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["create"]}]);
    let user = user_with(&cluster, "author", rules).await;
    let many: Vec<String> = (0..2000).map(|n| format!("x{n}")).collect();
    let role = |rule: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": [rule]});
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    // Sixteen million millions of combinations in 80 KiB.
    let bomb = role(json!({"apiGroups": many, "resources": many, "resourceNames": many, "verbs": many}));
    for (body, code, wanted) in [
        (bomb, 403, "can not be compared"),
        (
            role(json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]})),
            403,
            "not currently held",
        ),
        (
            role(
                json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["create"]}),
            ),
            201,
            "",
        ),
    ] {
        let sent = cluster.send(Some(&user), "POST", path, &[("content-type", JSON)], body.to_string());
        let answer = tokio::time::timeout(Duration::from_secs(20), sent).await.expect("an answer in time");
        refused(&answer, code, wanted, "role");
    }
}

#[tokio::test]
async fn a_node_reaches_nothing_by_inventing_pods() {
    let cluster = with_default_account().await;
    let node = identity(&cluster, "system:node:n1", &["system:nodes"]);
    make(&cluster, "/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    make(&cluster, "/api/v1/namespaces/default/secrets", json!({"metadata": {"name": "root"}})).await;
    make(&cluster, PODS, pod("unbound", json!({}))).await;
    let uid =
        cluster.admin_send("GET", "/api/v1/nodes/n1", Value::Null).await.json()["metadata"]["uid"].clone();
    let mirror = |name: &str, spec: Value| {
        let mut pod = pod(name, spec);
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "abc"});
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": true}]);
        pod["spec"]["nodeName"] = "n1".into();
        pod
    };
    let container = |extra: Value| {
        let mut container = json!({"name": "c", "image": "web"});
        for (field, value) in extra.as_object().unwrap() {
            container[field] = value.clone();
        }
        json!({"containers": [container]})
    };
    let volume = |source: Value| {
        let mut volume = json!({"name": "v"});
        for (field, value) in source.as_object().unwrap() {
            volume[field] = value.clone();
        }
        json!({"volumes": [volume]})
    };
    for (what, spec) in [
        ("secrets", volume(json!({"secret": {"secretName": "root"}}))),
        ("configmaps", volume(json!({"configMap": {"name": "m"}}))),
        ("persistentvolumeclaims", volume(json!({"persistentVolumeClaim": {"claimName": "c"}}))),
        ("secrets", volume(json!({"projected": {"sources": [{"secret": {"name": "root"}}]}}))),
        ("secrets", volume(json!({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "root"}}}))),
        ("secrets", container(json!({"envFrom": [{"secretRef": {"name": "root"}}]}))),
        ("configmaps", container(json!({"envFrom": [{"configMapRef": {"name": "m"}}]}))),
        (
            "secrets",
            container(
                json!({"env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "root", "key": "k"}}}]}),
            ),
        ),
        ("secrets", json!({"imagePullSecrets": [{"name": "root"}]})),
        ("serviceaccounts", json!({"serviceAccountName": "default"})),
    ] {
        let body = mirror("fake", spec).to_string();
        let answer = cluster.send(Some(&node), "POST", PODS, &[("content-type", JSON)], body.clone()).await;
        refused(&answer, 403, &format!("can not create pods that reference {what}"), &body);
    }
    // An honest one stays what it is.
    let body = mirror("static", json!({})).to_string();
    let answer = cluster.send(Some(&node), "POST", PODS, &[("content-type", JSON)], body).await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    let secret = "/api/v1/namespaces/default/secrets/root";
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"},
        "spec": {"driver": "d.example.com", "nodeName": "n2", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "unbound"}});
    let unmirrored = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": null}}});
    for (method, path, kind, body, code, wanted) in [
        (
            "PATCH",
            format!("{PODS}/static/status"),
            MERGE,
            unmirrored,
            422,
            "may not remove or update mirror pod annotation",
        ),
        ("GET", secret.to_owned(), JSON, Value::Null, 403, "no relationship found"),
        ("POST", format!("{PODS}/unbound/eviction"), JSON, eviction, 403, "can only evict pods"),
        ("DELETE", format!("{PODS}/unbound"), JSON, Value::Null, 403, "can only delete pods"),
        ("POST", "/apis/resource.k8s.io/v1/resourceslices".to_owned(), JSON, slice, 403, "same NodeName"),
        ("PATCH", "/api/v1/nodes/n2/status".to_owned(), MERGE, json!({}), 404, ""),
    ] {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = cluster.send(Some(&node), method, &path, &[("content-type", kind)], body).await;
        refused(&answer, code, wanted, &format!("{method} {path}"));
    }
}

/// Connects to nothing; what got this far was let through.
struct Anywhere;

#[async_trait]
impl NodeDialer for Anywhere {
    async fn dial(&self, node: &str, address: SocketAddr) -> std::io::Result<Box<dyn Stream>> {
        Err(std::io::Error::other(format!("{node} was asked for {address}")))
    }
    fn connected(&self) -> Vec<String> {
        vec!["n1".to_owned()]
    }
}

#[tokio::test]
async fn proxies_go_to_pods_and_nowhere_else() {
    let cluster = with_account(cluster_with(Some(Arc::new(Anywhere))).await).await;
    make(&cluster, PODS, pod("web", json!({"nodeName": "n1"}))).await;
    for (ip, code, wanted) in [
        ("127.0.0.1", 400, "address not allowed"),
        ("169.254.169.254", 400, "address not allowed"),
        ("0.0.0.0", 400, "address not allowed"),
        ("::1", 400, "address not allowed"),
        ("fe80::1", 400, "address not allowed"),
        ("10.244.0.9", 503, "n1 was asked for 10.244.0.9:80"),
    ] {
        let status = json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
        let patched = cluster.admin_send("PATCH", &format!("{PODS}/web/status"), status).await;
        assert_eq!(patched.code, 200, "{ip}: {}", patched.text());
        let answer = cluster.admin_send("GET", &format!("{PODS}/web/proxy/"), Value::Null).await;
        refused(&answer, code, wanted, ip);
    }
    // The same of a node's address, which whoever may write its status chooses.
    make(&cluster, "/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    for (ip, wanted) in [
        ("127.0.0.1", "dial tcp 127.0.0.1:10250: address not allowed"),
        ("169.254.169.254", "dial tcp 169.254.169.254:10250: address not allowed"),
        ("::ffff:127.0.0.1", "dial tcp [::ffff:127.0.0.1]:10250: address not allowed"),
        ("10.0.0.7", "n1 was asked for 10.0.0.7:10250"),
    ] {
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": ip}]}});
        let patched = cluster.admin_send("PATCH", "/api/v1/nodes/n1/status", status).await;
        assert_eq!(patched.code, 200, "{ip}: {}", patched.text());
        let answer = cluster.admin_send("GET", "/api/v1/nodes/n1/proxy/metrics", Value::Null).await;
        refused(&answer, 503, wanted, ip);
    }
    // And of endpoints that are written by hand.
    let service = json!({"metadata": {"name": "hand"}, "spec": {"ports": [{"port": 80}]}});
    make(&cluster, "/api/v1/namespaces/default/services", service).await;
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    for (at, ip, code, wanted) in [
        (1, "10.0.0.9", 503, "n1 was asked for 10.0.0.9:80"),
        (2, "10.244.0.77", 503, "n1 was asked for 10.244.0.77:80"),
    ] {
        let slice = json!({"metadata": {"name": format!("hand-{at}"), "labels": {"kubernetes.io/service-name": "hand"}},
            "addressType": "IPv4", "ports": [{"name": "", "port": 80}], "endpoints": [{"addresses": [ip]}]});
        make(&cluster, slices, slice).await;
        let answer =
            cluster.admin_send("GET", "/api/v1/namespaces/default/services/hand/proxy/", Value::Null).await;
        refused(&answer, code, wanted, ip);
        let gone = cluster.admin_send("DELETE", &format!("{slices}/hand-{at}"), Value::Null).await;
        assert_eq!(gone.code, 200, "{}", gone.text());
    }
    // A node called like us would be trusted with our own certificate.
    for name in ["kubernetes", "localhost"] {
        make(&cluster, "/api/v1/nodes", json!({"metadata": {"name": name}})).await;
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.96.0.1"}]}});
        let patched = cluster.admin_send("PATCH", &format!("/api/v1/nodes/{name}/status"), status).await;
        assert_eq!(patched.code, 200, "{}", patched.text());
        let answer =
            cluster.admin_send("GET", &format!("/api/v1/nodes/{name}:443/proxy/api"), Value::Null).await;
        refused(&answer, 503, "is the API server's own", name);
    }
    // What kubelets are shown opens nothing here.
    let shown = identity(&cluster, "kube-apiserver-kubelet-client", &[]);
    let answer = cluster.send(Some(&shown), "GET", "/api/v1/secrets", &[], "").await;
    assert_eq!(answer.code, 403, "{}", answer.text());
}

#[tokio::test]
async fn nobody_is_certified_into_the_masters() {
    use base64::Engine;
    let cluster = cluster().await;
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let profile = base_net::pki::Profile {
        common_name: "eve".to_owned(),
        organizations: vec!["system:masters".to_owned()],
        ..base_net::pki::Profile::default()
    };
    let (request, _) = base_net::pki::request(&profile).unwrap();
    let request = base64::engine::general_purpose::STANDARD.encode(request);
    for (signer, code, wanted) in [
        ("kubernetes.io/kube-apiserver-client", 403, "system:masters group is not allowed"),
        ("kubernetes.io/legacy-unknown", 422, "legacy-unknown is not allowed via this API version"),
    ] {
        let asked = json!({"metadata": {"name": "eve"}, "spec": {"request": request, "signerName": signer,
            "usages": ["client auth", "digital signature"]}});
        refused(&cluster.admin_send("POST", path, asked).await, code, wanted, signer);
    }
}

#[tokio::test]
async fn urls_reach_what_they_name() {
    let cluster = cluster().await;
    make(&cluster, MAPS, json!({"metadata": {"name": "here"}})).await;
    let reader = user_with(
        &cluster,
        "named",
        json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["here"], "verbs": ["list", "get", "watch"]}]),
    )
    .await;
    for (who, path, code) in [
        // Keys of the cluster live in a collection that no URL names.
        ("admin", "/api/v1/_keys", 404),
        ("admin", "/api/v1/_keys/ca.key", 404),
        ("admin", "/apis/_keys/v1/ca.key", 404),
        ("admin", "/apis//v1/_keys/ca.key", 404),
        ("admin", "/api/v1/namespaces/_keys/ca.key", 404),
        ("admin", "/api/v1/namespaces/default/configmaps/..%2F..%2F_keys%2Fca.key", 404),
        ("admin", "/api/v1/namespaces/default/..%2F_keys/ca.key", 404),
        ("admin", "/api/v1/nodes/..%2F_keys%2Fca.key", 404),
        // No namespace is not every namespace.
        ("admin", "/api/v1/namespaces//configmaps/default%2Fhere", 404),
        ("admin", "/api/v1/configmaps/default%2Fhere", 404),
        ("admin", "/api/v1/namespaces/default%2Fhere/configmaps/", 200),
        ("named", "/api/v1/namespaces/default/configmaps/here", 200),
        ("named", "/api/v1/namespaces/default/configmaps/%68ere", 200),
        ("named", "/api/v1/namespaces/default/configmaps", 403),
        ("named", "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name%3Dhere", 200),
        ("named", "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name!%3Dhere", 403),
        (
            "named",
            "/api/v1/namespaces/default/configmaps?fieldSelector=&fieldSelector=metadata.name%3Dhere",
            403,
        ),
        ("named", "/api/v1/configmaps?fieldSelector=metadata.name%3Dhere", 403),
        ("named", "/api/v1/watch/namespaces/default/configmaps/here?timeoutSeconds=1", 200),
        ("named", "/api/v1/watch/namespaces/default/configmaps/other?timeoutSeconds=1", 403),
        ("named", "/api/v1/watch/namespaces/default/configmaps?timeoutSeconds=1", 403),
    ] {
        let identity = if who == "admin" { cluster.admin() } else { reader.clone() };
        let answer = cluster.send(Some(&identity), "GET", path, &[], "").await;
        assert_eq!(answer.code, code, "{who} {path}: {}", answer.text());
        assert!(!answer.text().contains("PRIVATE KEY"), "{path}");
        if path.ends_with("configmaps/") {
            assert_eq!(answer.json()["items"], json!([]), "{path}");
        }
    }
    // A number no clock can hold is a long time, not a panic.
    for seconds in ["9223372036854775807", "99999999999999999"] {
        let path = format!("{MAPS}?watch=1&timeoutSeconds={seconds}");
        let response = cluster.open(Some(&cluster.admin()), "GET", &path, &[], "").await;
        assert_eq!(response.status(), 200, "{seconds}");
    }
}

#[tokio::test]
async fn large_bodies_wait_for_room_and_small_ones_do_not() {
    use tokio::io::AsyncWriteExt;
    let cluster = cluster().await;
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: kubernetes\r\ncontent-type: {JSON}\r\ncontent-length: 3145728\r\n\r\n"
    );
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut stream = cluster.connect(Some(&cluster.admin())).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        held.push(stream);
    }
    let big = json!({"metadata": {"name": "big"}, "data": {"x": "x".repeat(100 * 1024)}});
    // Until the eight are all known to the server, another may still find room.
    let mut waited = false;
    for _ in 0..50 {
        let path = format!("{MAPS}?dryRun=All");
        let sent = cluster.admin_send("POST", &path, big.clone());
        match tokio::time::timeout(Duration::from_millis(500), sent).await {
            Ok(answer) => assert_eq!(answer.code, 201, "{}", answer.text()),
            Err(_) => {
                waited = true;
                break;
            }
        }
    }
    assert!(waited, "a ninth large body did not wait");
    make(&cluster, MAPS, json!({"metadata": {"name": "small"}})).await;
    drop(held);
    make(&cluster, MAPS, big).await;
}
