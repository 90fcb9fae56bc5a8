//! Jobs, DaemonSets and StatefulSets against a cluster in memory.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::*;
use tenant_client::Api;
use tenant_client::DeleteOptions;
use tenant_client::fake::until;

fn job(name: &str, image: &str, spec: Value) -> Value {
    let mut template = template(name, image);
    template["spec"]["restartPolicy"] = json!("Never");
    let mut value = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "d"},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template, "backoffLimit": 6, "parallelism": 1}});
    for (key, field) in spec.as_object().unwrap() {
        value["spec"][key] = field.clone();
    }
    value
}
fn has(cluster: &Cluster, of: &api_machinery::Gvr, name: &str, condition: &str) -> bool {
    let conditions = cluster.read(of, name)["status"]["conditions"].clone();
    conditions
        .as_array()
        .is_some_and(|all| all.iter().any(|one| one["type"] == condition && one["status"] == "True"))
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_to_its_end_and_counts_each_pod_once() {
    let cluster = cluster();
    cluster.run_pods();
    cluster.api.put(&JOBS, job("many", "task", json!({"completions": 7, "parallelism": 3})));
    until("complete", || has(&cluster, &JOBS, "many", "Complete")).await;
    let status = cluster.read(&JOBS, "many")["status"].clone();
    assert_eq!((&status["succeeded"], &status["failed"]), (&json!(7), &Value::Null), "{status}");
    assert!(status["completionTime"].is_string() && status["startTime"].is_string());
    assert_eq!(status["uncountedTerminatedPods"], json!({}));
    assert_eq!(cluster.count(&PODS), 7);
    assert!(cluster.api.all(&PODS).iter().all(|pod| pod["metadata"]["finalizers"].is_null()));
    let created = cluster.api.writes().iter().filter(|write| write.starts_with("create pods")).count();
    assert_eq!(created, 7);
}

#[tokio::test(start_paused = true)]
async fn an_indexed_job_runs_each_index() {
    let cluster = cluster();
    cluster.run_pods();
    cluster.api.put(
        &JOBS,
        job("idx", "task", json!({"completions": 4, "parallelism": 2, "completionMode": "Indexed"})),
    );
    until("complete", || has(&cluster, &JOBS, "idx", "Complete")).await;
    assert_eq!(cluster.read(&JOBS, "idx")["status"]["completedIndexes"], "0-3");
    let pod = cluster.api.all(&PODS)[0].clone();
    assert!(pod["spec"]["hostname"].as_str().unwrap().starts_with("idx-"));
    assert_eq!(pod["spec"]["containers"][0]["env"][0]["name"], "JOB_COMPLETION_INDEX");
}

#[tokio::test(start_paused = true)]
async fn a_failing_job_gives_up_after_its_backoff() {
    let cluster = cluster();
    cluster.api.put(&JOBS, job("bad", "task", json!({"completions": 1, "backoffLimit": 2})));
    let started = tokio::time::Instant::now();
    for _ in 0..3 {
        let running = || cluster.api.all(&PODS).into_iter().find(|pod| pod["status"]["phase"] == "Pending");
        until("a pod runs", || running().is_some()).await;
        let mut pod = running().unwrap();
        pod["status"]["phase"] = json!("Failed");
        cluster.api.put(&PODS, pod);
    }
    until("given up", || has(&cluster, &JOBS, "bad", "Failed")).await;
    assert!(started.elapsed() >= Duration::from_secs(30), "10 s, then 20 s");
    assert_eq!(cluster.read(&JOBS, "bad")["status"]["failed"], 3);
    assert_eq!(cluster.events("BackoffLimitExceeded").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_is_suspended_resumed_and_cut_off() {
    let cluster = cluster();
    cluster.run_pods();
    cluster.api.put(
        &JOBS,
        job(
            "slow",
            "server",
            json!({"completions": 2, "parallelism": 2, "suspend": true, "activeDeadlineSeconds": 30}),
        ),
    );
    until("suspended", || has(&cluster, &JOBS, "slow", "Suspended")).await;
    assert_eq!(cluster.count(&PODS), 0);
    cluster.patch(&JOBS, "slow", json!({"spec": {"suspend": false}})).await;
    until("running", || cluster.read(&JOBS, "slow")["status"]["ready"] == 2).await;
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert!(!has(&cluster, &JOBS, "slow", "Failed"));
    until("too late", || has(&cluster, &JOBS, "slow", "FailureTarget")).await;
    until("its pods are gone", || cluster.count(&PODS) == 0).await;
    until("failed", || has(&cluster, &JOBS, "slow", "Failed")).await;
}

fn node(cluster: &Cluster, name: &str, taint: Option<&str>) {
    let taints: Vec<Value> =
        taint.into_iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
    cluster.api.put(
        &NODES,
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {"taints": taints}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
    );
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_has_one_pod_on_each_fitting_node() {
    let cluster = cluster();
    cluster.run_pods();
    node(&cluster, "n1", None);
    node(&cluster, "n2", None);
    node(&cluster, "n3", Some("gpu"));
    cluster.api.put(
        &DAEMON_SETS,
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "ds", "namespace": "d"},
        "spec": {"selector": {"matchLabels": {"app": "ds"}}, "template": template("ds", "one"),
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}}}),
    );
    let status = || cluster.read(&DAEMON_SETS, "ds")["status"].clone();
    until("two pods", || status()["numberAvailable"] == 2 && status()["desiredNumberScheduled"] == 2).await;
    node(&cluster, "n4", None);
    until("three pods", || status()["numberAvailable"] == 3).await;
    cluster.patch(&DAEMON_SETS, "ds", json!({"spec": {"template": template("ds", "two")}})).await;
    let images = || -> Vec<Value> {
        cluster.api.all(&PODS).iter().map(|pod| pod["spec"]["containers"][0]["image"].clone()).collect()
    };
    until("updated", || images() == ["two", "two", "two"] && status()["numberAvailable"] == 3).await;
    until("and told", || status()["updatedNumberScheduled"] == 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_grows_updates_and_shrinks_in_order() {
    let cluster = cluster();
    cluster.run_pods();
    cluster.api.put(&STATEFUL_SETS, json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "d"},
        "spec": {"replicas": 3, "serviceName": "db", "podManagementPolicy": "OrderedReady",
            "selector": {"matchLabels": {"app": "db"}}, "template": template("db", "one"),
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]}}));
    let status = || cluster.read(&STATEFUL_SETS, "db")["status"].clone();
    until("three", || status()["readyReplicas"] == 3 && status()["currentReplicas"] == 3).await;
    let order = |verb: &str| -> Vec<String> {
        let writes = cluster.api.writes().into_iter();
        writes.filter_map(|write| Some(write.strip_prefix(&format!("{verb} pods d/"))?.to_owned())).collect()
    };
    assert_eq!(order("create"), ["db-0", "db-1", "db-2"]);
    let claims = api_machinery::Gvr::core("persistentvolumeclaims");
    assert_eq!(cluster.names(&claims), ["data-db-0", "data-db-1", "data-db-2"]);
    let pod = cluster.read(&PODS, "db-1");
    assert_eq!((&pod["spec"]["hostname"], &pod["spec"]["subdomain"]), (&json!("db-1"), &json!("db")));
    cluster
        .patch(
            &STATEFUL_SETS,
            "db",
            json!({"spec": {"template": template("db", "two"),
        "updateStrategy": {"rollingUpdate": {"partition": 1}}}}),
        )
        .await;
    until("two updated", || status()["updatedReplicas"] == 2 && status()["readyReplicas"] == 3).await;
    assert_eq!(order("delete"), ["db-2", "db-1"]);
    assert_eq!(cluster.read(&PODS, "db-0")["spec"]["containers"][0]["image"], "one");
    cluster
        .patch(&STATEFUL_SETS, "db", json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}))
        .await;
    until("all updated", || {
        status()["updatedReplicas"] == 3
            && status()["readyReplicas"] == 3
            && status()["currentRevision"] == status()["updateRevision"]
    })
    .await;
    cluster.patch(&STATEFUL_SETS, "db", json!({"spec": {"replicas": 1}})).await;
    until("one left", || cluster.names(&PODS) == ["db-0"] && status()["replicas"] == 1).await;
    assert_eq!(order("delete"), ["db-2", "db-1", "db-0", "db-2", "db-1"]);
    cluster.api.delete(&PODS, Some("d"), "db-0", DeleteOptions::default()).await.unwrap();
    until("it comes back", || status()["readyReplicas"] == 1 && cluster.names(&PODS) == ["db-0"]).await;
}
