//! Namespaces, what they are given, and endpoints, against a cluster in memory.

mod support;

use serde_json::{Value, json};
use support::*;
use tenant_client::fake::until;
use tenant_client::{Api, DeleteOptions};

#[tokio::test(start_paused = true)]
async fn every_namespace_gets_an_account_and_the_root_certificate() {
    let cluster = cluster();
    cluster.namespace("d");
    until("both are there", || {
        !cluster.read(&ACCOUNTS, "default").is_null()
            && !cluster.read(&CONFIG_MAPS, "kube-root-ca.crt").is_null()
    })
    .await;
    cluster.api.remove(&ACCOUNTS, "d", "default");
    cluster.patch(&CONFIG_MAPS, "kube-root-ca.crt", json!({"data": {"ca.crt": "mine"}})).await;
    until("both are mended", || {
        let data = cluster.read(&CONFIG_MAPS, "kube-root-ca.crt")["data"]["ca.crt"].clone();
        !cluster.read(&ACCOUNTS, "default").is_null() && data == "-----BEGIN CERTIFICATE-----\n"
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_when_it_is_empty_pods_first() {
    let cluster = cluster();
    cluster.namespace("d");
    let finalizer = |on: bool| if on { json!(["example.com/hold"]) } else { json!(null) };
    cluster.api.put(
        &PODS,
        json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "d", "finalizers": finalizer(true)}, "spec": {}}),
    );
    cluster.api.put(
        &SECRETS,
        json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "s", "namespace": "d"}}),
    );
    until("furnished", || !cluster.read(&ACCOUNTS, "default").is_null()).await;
    cluster.api.delete(&NAMESPACES, None, "d", DeleteOptions::default()).await.unwrap();
    let condition = |kind: &str| {
        let conditions =
            cluster.api.read(&NAMESPACES, "", "d").unwrap_or_default()["status"]["conditions"].clone();
        let conditions = conditions.as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["type"] == kind).unwrap_or_default()
    };
    until("it says what it waits for", || condition("NamespaceFinalizersRemaining")["status"] == "True")
        .await;
    assert_eq!(
        condition("NamespaceContentRemaining")["message"],
        "Some resources are remaining: pods has 1 resource instances"
    );
    assert!(!cluster.read(&SECRETS, "s").is_null(), "nothing else goes before the pods");
    cluster.patch(&PODS, "p", json!({"metadata": {"finalizers": finalizer(false)}})).await;
    until("it is gone", || cluster.api.read(&NAMESPACES, "", "d").is_none()).await;
    assert!(cluster.read(&SECRETS, "s").is_null());
    assert!(cluster.read(&ACCOUNTS, "default").is_null(), "and its account was not made anew");
}

fn service(headless: bool, publish: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "d", "labels": {"team": "a"}},
        "spec": {"selector": {"app": "web"}, "clusterIP": if headless { "None" } else { "10.96.0.7" },
            "publishNotReadyAddresses": publish,
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}]}})
}

fn pod(name: &str, ip: &str, ready: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "d", "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "hostname": name, "subdomain": "web",
            "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}})
}

#[tokio::test(start_paused = true)]
async fn the_service_of_the_api_comes_back() {
    let cluster = cluster();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
    cluster.api.put(&NAMESPACES, namespace);
    for of in [&SERVICES, &ENDPOINTS, &SLICES] {
        let there = || cluster.api.all(of).iter().any(|one| one["metadata"]["name"] == "kubernetes");
        until("there without being asked for", there).await;
        cluster.api.delete(of, Some("default"), "kubernetes", DeleteOptions::default()).await.unwrap();
        until("there again", there).await;
    }
    let service = cluster.api.all(&SERVICES)[0].clone();
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
    assert_eq!(service["spec"]["ports"][0]["targetPort"], 6443);
}

#[tokio::test(start_paused = true)]
async fn endpoints_follow_their_pods() {
    let cluster = cluster();
    cluster.api.put(&SERVICES, service(false, false));
    until("an empty slice", || cluster.count(&SLICES) == 1 && !cluster.read(&ENDPOINTS, "web").is_null())
        .await;
    cluster.api.put(&PODS, pod("a", "10.244.0.1", true));
    cluster.api.put(&PODS, pod("b", "10.244.0.2", false));
    let endpoints = || {
        let slices = cluster.api.all(&SLICES).into_iter();
        let all = slices.flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default());
        let mut all: Vec<String> = all
            .map(|one| {
                let is = |field: &str| one["conditions"][field] == true;
                let flags = format!(
                    "{}{}{}",
                    u8::from(is("ready")),
                    u8::from(is("serving")),
                    u8::from(is("terminating"))
                );
                format!(
                    "{} {flags} {}",
                    one["addresses"][0].as_str().unwrap(),
                    one["hostname"].as_str().unwrap_or("-")
                )
            })
            .collect();
        all.sort();
        all
    };
    until("both in slices", || endpoints() == ["10.244.0.1 110 a", "10.244.0.2 000 b"]).await;
    let slice = cluster.api.all(&SLICES)[0].clone();
    assert_eq!(slice["ports"], json!([{"name": "http", "port": 8080, "protocol": "TCP"}]));
    assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "web");
    assert_eq!(slice["metadata"]["labels"]["team"], "a");
    assert_eq!(slice["metadata"]["ownerReferences"][0]["kind"], "Service");
    until("both in Endpoints", || {
        let subset = cluster.read(&ENDPOINTS, "web")["subsets"][0].clone();
        subset["addresses"][0]["ip"] == "10.244.0.1" && subset["notReadyAddresses"][0]["ip"] == "10.244.0.2"
    })
    .await;
    cluster.api.put(&PODS, pod("b", "10.244.0.2", true));
    until("ready", || endpoints() == ["10.244.0.1 110 a", "10.244.0.2 110 b"]).await;
    cluster.api.delete(&PODS, Some("d"), "a", DeleteOptions::default()).await.unwrap();
    until("terminating", || endpoints() == ["10.244.0.1 011 a", "10.244.0.2 110 b"]).await;
    until("no longer in Endpoints", || {
        cluster.read(&ENDPOINTS, "web")["subsets"][0]["addresses"]
            .as_array()
            .is_some_and(|all| all.len() == 1)
    })
    .await;
    cluster.api.remove(&PODS, "d", "a");
    until("gone", || endpoints() == ["10.244.0.2 110 b"]).await;
    cluster.api.remove(&SERVICES, "d", "web");
    until("all gone", || cluster.count(&SLICES) == 0 && cluster.count(&ENDPOINTS) == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_headless_service_may_publish_unready_pods_and_slices_fill_up() {
    let cluster = cluster();
    for at in 0..150 {
        cluster.api.put(&PODS, pod(&format!("p{at}"), &format!("10.244.0.{at}"), false));
    }
    cluster.api.put(&SERVICES, service(true, true));
    until("two slices", || {
        let mut sizes: Vec<usize> = cluster
            .api
            .all(&SLICES)
            .iter()
            .map(|one| one["endpoints"].as_array().map_or(0, Vec::len))
            .collect();
        sizes.sort();
        sizes == [50, 100]
    })
    .await;
    let slices = cluster.api.all(&SLICES);
    assert!(slices.iter().all(|slice| slice["metadata"]["labels"]["service.kubernetes.io/headless"] == ""));
    assert!(slices[0]["endpoints"].as_array().unwrap().iter().all(|one| one["conditions"]["ready"] == true));
    cluster.api.forget_writes();
    cluster.api.put(&PODS, pod("p7", "10.244.0.7", true));
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let writes = cluster.api.writes();
    let slices = writes.iter().filter(|write| write.contains("endpointslices")).count();
    assert_eq!(slices, 1, "one pod's change rewrites one slice: {writes:?}");
}
