//! What is kept while in use, rings of owners, and mirrored Endpoints, against a cluster in memory.

mod support;

use api_machinery::Gvr;
use serde_json::{Value, json};
use support::*;
use tenant_client::fake::until;
use tenant_client::{Api, DeleteOptions, Propagation};

const CLAIMS: Gvr = Gvr::core("persistentvolumeclaims");
const VOLUMES: Gvr = Gvr::core("persistentvolumes");
const ATTRIBUTES: Gvr = Gvr::new("storage.k8s.io", "v1", "volumeattributesclasses");

fn user(node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d"},
        "spec": {"nodeName": node, "containers": [{"name": "c"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]}})
}

#[tokio::test(start_paused = true)]
async fn what_is_in_use_stays_until_it_is_not() {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "x", "namespace": "d", "finalizers": ["kubernetes.io/pvc-protection"]},
        "spec": {"volumeAttributesClassName": "x"}});
    let volume = |phase: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": "x", "finalizers": ["kubernetes.io/pv-protection"]}, "status": {"phase": phase}})
    };
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
        "metadata": {"name": "x", "finalizers": ["kubernetes.io/vac-protection"]}, "driverName": "d"});
    // What is deleted, what is there besides, and whether it may go.
    for (of, namespace, object, besides, goes) in [
        (&CLAIMS, Some("d"), &claim, None, true),
        (&CLAIMS, Some("d"), &claim, Some((&PODS, user(""))), true),
        (&CLAIMS, Some("d"), &claim, Some((&PODS, user("n1"))), false),
        (&VOLUMES, None, &volume("Available"), None, true),
        (&VOLUMES, None, &volume("Bound"), None, false),
        (&ATTRIBUTES, None, &class, None, true),
        (&ATTRIBUTES, None, &class, Some((&CLAIMS, claim.clone())), false),
    ] {
        let cluster = cluster();
        cluster.namespace("d");
        cluster.api.put(&NODES, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
        let what = format!("{of:?} beside {besides:?}");
        if let Some((of, object)) = &besides {
            cluster.api.put(of, object.clone());
        }
        cluster.api.put(of, object.clone());
        cluster.api.delete(of, namespace, "x", DeleteOptions::default()).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        let left = cluster.api.read(of, namespace.unwrap_or_default(), "x");
        assert_eq!(left.is_none(), goes, "{what}: {left:?}");
        let Some((user_of, _)) = besides.filter(|_| !goes) else { continue };
        let name = if *user_of == PODS { "p" } else { "x" };
        cluster.api.remove(user_of, "d", name);
        until("nobody uses it", || cluster.api.read(of, namespace.unwrap_or_default(), "x").is_none()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_class_is_protected_from_the_start() {
    let cluster = cluster();
    cluster.api.put(
        &ATTRIBUTES,
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
            "metadata": {"name": "x"}, "driverName": "d"}),
    );
    until("protected", || {
        let class = cluster.api.read(&ATTRIBUTES, "", "x").unwrap_or_default();
        class["metadata"]["finalizers"] == json!(["kubernetes.io/vac-protection"])
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn owners_in_a_ring_block_nobody() {
    let cluster = cluster();
    cluster.namespace("d");
    let uid = |name: &str| format!("00000000-0000-0000-0000-00000000000{name}");
    for (name, owner) in [("1", "3"), ("2", "1"), ("3", "2")] {
        cluster.api.put(
            &CONFIG_MAPS,
            json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": "d", "uid": uid(name), "ownerReferences": [{
                    "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid(owner),
                    "controller": true, "blockOwnerDeletion": true}]}}),
        );
    }
    let foreground = DeleteOptions { propagation: Some(Propagation::Foreground), ..DeleteOptions::default() };
    cluster.api.delete(&CONFIG_MAPS, Some("d"), "1", foreground).await.unwrap();
    until("all are gone", || {
        ["1", "2", "3"].iter().all(|name| cluster.api.read(&CONFIG_MAPS, "d", name).is_none())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn hand_made_endpoints_are_mirrored() {
    let cluster = cluster();
    cluster.namespace("d");
    cluster.api.put(
        &SERVICES,
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "d"},
            "spec": {"clusterIP": "10.96.0.7", "ports": [{"name": "http", "port": 80}]}}),
    );
    let made = |ip: &str, labels: Value| {
        json!({"apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"name": "web", "namespace": "d", "labels": labels},
            "subsets": [{"ports": [{"port": 80, "protocol": "TCP"}], "addresses": [{"ip": ip}],
                "notReadyAddresses": [{"ip": "fd00::1"}]}]})
    };
    let seen = || {
        let slices = cluster.api.all(&SLICES);
        let mut seen: Vec<String> = slices
            .iter()
            .map(|slice| {
                let endpoint = &slice["endpoints"][0];
                format!(
                    "{} {}:{} {}",
                    slice["addressType"],
                    endpoint["addresses"][0],
                    slice["ports"][0]["port"],
                    endpoint["conditions"]["ready"]
                )
                .replace('"', "")
            })
            .collect();
        seen.sort();
        seen
    };
    cluster.api.put(&ENDPOINTS, made("10.1.2.3", json!({})));
    until("mirrored", || seen() == ["IPv4 10.1.2.3:80 true", "IPv6 fd00::1:80 false"]).await;
    cluster.api.put(&ENDPOINTS, made("10.2.3.4", json!({})));
    until("updated", || seen() == ["IPv4 10.2.3.4:80 true", "IPv6 fd00::1:80 false"]).await;
    cluster.api.put(&ENDPOINTS, made("10.2.3.4", json!({"endpointslice.kubernetes.io/skip-mirror": "true"})));
    until("not wanted", || seen().is_empty()).await;
    cluster.api.put(&ENDPOINTS, made("10.2.3.4", json!({})));
    until("again", || seen().len() == 2).await;
    cluster.api.remove(&ENDPOINTS, "d", "web");
    until("gone", || seen().is_empty()).await;
}
