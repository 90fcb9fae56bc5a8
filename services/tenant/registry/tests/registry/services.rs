//! Services: what they get, keep and give back.

use crate::support::cluster;
use serde_json::{Value, json};
use tenant_client::{DeleteOptions, Patch};
use tenant_registry::ListOptions;

fn service(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    if spec.get("ports").is_none() && spec["type"] != "ExternalName" {
        spec["ports"] = json!([{"port": 80}]);
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn a_service_gets_an_address_of_its_own() {
    let cluster = cluster().await;
    let made = cluster.create("services", service("web", json!({"selector": {"app": "web"}}))).await.unwrap();
    let ip = made.get_str("spec.clusterIP").unwrap().to_owned();
    assert!(ip.starts_with("10.96."), "{ip}");
    assert_eq!(made.get("spec.clusterIPs"), Some(&json!([ip])));
    assert_eq!(made.get("spec.ipFamilies"), Some(&json!(["IPv4"])));
    assert_eq!(made.get_str("spec.internalTrafficPolicy"), Some("Cluster"));
    assert_eq!(made.get_array("spec.ports")[0], json!({"port": 80, "protocol": "TCP", "targetPort": 80}));
    let held = cluster.get("networking.k8s.io/v1/ipaddresses", &ip).await.unwrap();
    assert_eq!(held.get_str("spec.parentRef.name"), Some("web"));

    let taken = service("other", json!({"clusterIP": ip}));
    let status = cluster.create("services", taken).await.unwrap_err();
    assert_eq!(
        status.message,
        format!(
            "Service \"other\" is invalid: spec.clusterIPs: Invalid value: [\"{ip}\"]: failed to allocate IP {ip}: provided IP is already allocated"
        )
    );
    let outside =
        cluster.create("services", service("o", json!({"clusterIP": "192.168.1.1"}))).await.unwrap_err();
    assert!(outside.message.contains("the provided IP is not in the valid range"), "{outside}");

    // A PUT without the address keeps it; another address is refused.
    let mut again = made.clone();
    again.remove("spec.clusterIP");
    again.remove("spec.clusterIPs");
    again.set("spec.ports", json!([{"port": 81}]));
    let kept = cluster.update("services", again).await.unwrap();
    assert_eq!(kept.get_str("spec.clusterIP"), Some(&*ip));
    let moved = Patch::Merge(json!({"spec": {"clusterIP": "10.96.0.77", "clusterIPs": ["10.96.0.77"]}}));
    let status = cluster.patch("services", "default/web", moved).await.unwrap_err();
    assert!(status.message.contains("may not change once set"), "{status}");

    cluster.delete("services", "default/web", DeleteOptions::default()).await.unwrap();
    assert_eq!(cluster.get("networking.k8s.io/v1/ipaddresses", &ip).await.unwrap_err().code, 404);
}

#[tokio::test]
async fn services_of_every_sort() {
    let cluster = cluster().await;
    for (spec, path, wanted) in [
        (json!({"clusterIP": "None"}), "spec.clusterIP", json!("None")),
        (json!({"clusterIP": "None"}), "spec.ipFamilyPolicy", json!("RequireDualStack")),
        (json!({"clusterIP": "None", "selector": {"a": "b"}}), "spec.ipFamilies", json!(["IPv4"])),
        (json!({"type": "ExternalName", "externalName": "example.com"}), "spec.clusterIP", Value::Null),
        (
            json!({"sessionAffinity": "ClientIP"}),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            json!(10800),
        ),
        (json!({"type": "NodePort"}), "spec.externalTrafficPolicy", json!("Cluster")),
        (json!({"type": "LoadBalancer"}), "spec.allocateLoadBalancerNodePorts", json!(true)),
    ] {
        let made = cluster.create("services", service("s", spec.clone())).await.unwrap();
        assert_eq!(made.get(path).cloned().unwrap_or_default(), wanted, "{spec}");
        cluster.delete("services", "default/s", DeleteOptions::default()).await.unwrap();
    }
    for (spec, wanted) in [
        (json!({"type": "Gateway"}), "spec.type: Unsupported value: \"Gateway\""),
        (json!({"type": "ExternalName"}), "spec.externalName: Required value"),
        (
            json!({"ports": [{"port": 70000}]}),
            "spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (json!({"ports": [{"port": 1}, {"port": 2}]}), "spec.ports[0].name: Required value"),
        (json!({"ports": []}), "spec.ports: Required value"),
        (
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            "this cluster is not configured for dual-stack services",
        ),
        (
            json!({"ipFamilies": ["IPv6"]}),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 80}]}),
            "provided port is not in the valid range. The range of valid ports is 30000-32767",
        ),
    ] {
        let status = cluster.create("services", service("s", spec.clone())).await.unwrap_err();
        assert!(status.message.contains(wanted), "{spec}: {status}");
        assert_eq!(status.code, 422);
    }
}

#[tokio::test]
async fn node_ports_are_held_by_one_service() {
    let cluster = cluster().await;
    let fixed = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]});
    cluster.create("services", service("a", fixed.clone())).await.unwrap();
    let status = cluster.create("services", service("b", fixed.clone())).await.unwrap_err();
    assert!(
        status
            .message
            .contains("spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated")
    );
    let free = cluster.create("services", service("c", json!({"type": "NodePort"}))).await.unwrap();
    let port = free.get_array("spec.ports")[0]["nodePort"].as_i64().unwrap();
    assert!((30000..=32767).contains(&port) && port != 30080);
    // Becoming a ClusterIP Service gives the port back.
    let back = Patch::Strategic(json!({"spec": {"type": "ClusterIP"}}));
    let back = cluster.patch("services", "default/a", back).await.unwrap();
    assert_eq!(back.get_array("spec.ports")[0].get("nodePort"), None);
    assert_eq!(back.get("spec.externalTrafficPolicy"), None);
    cluster.create("services", service("b", fixed)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_shares_an_address_however_many_ask_at_once() {
    let cluster = std::sync::Arc::new(cluster().await);
    let mut asking = tokio::task::JoinSet::new();
    for at in 0..60 {
        let cluster = cluster.clone();
        asking.spawn(async move {
            cluster.create("services", service(&format!("s{at}"), json!({"type": "NodePort"}))).await.unwrap()
        });
    }
    let made = asking.join_all().await;
    let ips: std::collections::HashSet<_> =
        made.iter().map(|one| one.get_str("spec.clusterIP").unwrap().to_owned()).collect();
    let ports: std::collections::HashSet<_> =
        made.iter().map(|one| one.get_array("spec.ports")[0]["nodePort"].as_i64().unwrap()).collect();
    assert_eq!((ips.len(), ports.len()), (60, 60));
    let held = cluster.list("networking.k8s.io/v1/ipaddresses", None, &ListOptions::default()).await.unwrap();
    assert_eq!(held.items.len(), 61, "theirs and that of the Service kubernetes");
}

#[tokio::test]
async fn a_new_cluster_has_what_every_cluster_has() {
    let cluster = cluster().await;
    for (of, name) in [
        ("namespaces", "default"),
        ("namespaces", "kube-system"),
        ("namespaces", "kube-public"),
        ("namespaces", "kube-node-lease"),
        ("services", "default/kubernetes"),
        ("endpoints", "default/kubernetes"),
        ("discovery.k8s.io/v1/endpointslices", "default/kubernetes"),
        ("configmaps", "kube-system/extension-apiserver-authentication"),
        ("networking.k8s.io/v1/servicecidrs", "kubernetes"),
        ("networking.k8s.io/v1/ipaddresses", "10.96.0.1"),
        ("scheduling.k8s.io/v1/priorityclasses", "system-node-critical"),
        ("flowcontrol.apiserver.k8s.io/v1/flowschemas", "catch-all"),
        ("flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations", "exempt"),
    ] {
        let found = cluster.get(of, name).await.unwrap();
        // What bootstrap writes must pass as if a client had written it.
        let mut again = found.clone();
        again.set("metadata.labels.touched", "yes");
        cluster.update(of, again).await.unwrap_or_else(|status| panic!("{of} {name}: {status}"));
    }
}

#[tokio::test]
async fn a_cluster_begins_with_one_small_command() {
    use tenant_registry::bootstrap::{Options, command};
    let options = || Options {
        now: "2026-11-30T21:00:00Z".parse().unwrap(),
        keys: vec![("ca.crt", bytes::Bytes::from_static(b"x"))],
        client_ca_pem: "ca".to_owned(),
        front_proxy_ca_pem: "front".to_owned(),
        defaults: Vec::new(),
    };
    let (first, second) = (command(&options()).unwrap(), command(&options()).unwrap());
    let shared = |command: &store_mvcc::Command| {
        let bodies = command.ops.iter().filter_map(|op| match op {
            store_mvcc::Op::Put { value, shared: true, .. } => Some(value.body.clone()),
            _ => None,
        });
        bodies.collect::<Vec<_>>()
    };
    let (one, two) = (shared(&first), shared(&second));
    assert!(one.len() > 20);
    // The very same bytes, not equal ones: encoded once per process.
    assert!(one.iter().zip(&two).all(|(a, b)| a.as_ptr() == b.as_ptr()));
    let began = std::time::Instant::now();
    for _ in 0..100 {
        command(&options()).unwrap();
    }
    let each = began.elapsed() / 100;
    // A few milliseconds are promised for a cluster; an unoptimised build under load gets some slack.
    assert!(each < std::time::Duration::from_millis(50), "{each:?}");
}
