//! Deployments and ReplicaSets against a cluster in memory.

mod support;

use std::time::Duration;

use api_machinery::{Reason, Status};
use serde_json::{Value, json};
use support::*;
use tenant_client::fake::until;
use tenant_client::{Api, DeleteOptions, Propagation};

fn is_rolled_out(cluster: &Cluster, name: &str, replicas: i64) -> bool {
    let deployment = cluster.read(&DEPLOYMENTS, name);
    let status = &deployment["status"];
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && ["replicas", "updatedReplicas", "availableReplicas", "readyReplicas"]
            .iter()
            .all(|field| status[*field] == replicas)
}
fn images(cluster: &Cluster) -> Vec<String> {
    let pods = cluster.api.all(&PODS).into_iter();
    let mut images: Vec<String> = pods
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .map(|pod| pod["spec"]["containers"][0]["image"].as_str().unwrap().to_owned())
        .collect();
    images.sort();
    images
}

#[tokio::test(start_paused = true)]
async fn a_deployment_is_rolled_out_updated_and_rolled_back() {
    let cluster = cluster();
    cluster.run_pods();
    cluster.api.put(&DEPLOYMENTS, deployment("web", "one", 3));
    until("rolled out", || is_rolled_out(&cluster, "web", 3)).await;
    assert_eq!(images(&cluster), ["one", "one", "one"]);
    let first = cluster.names(&REPLICA_SETS);
    assert_eq!(first.len(), 1);
    let set = cluster.read(&REPLICA_SETS, &first[0]);
    assert_eq!(set["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    assert_eq!(set["metadata"]["annotations"]["note"], "x");
    assert!(set["metadata"]["labels"]["pod-template-hash"].is_string());

    cluster.patch(&DEPLOYMENTS, "web", json!({"spec": {"template": template("web", "two")}})).await;
    until("updated", || is_rolled_out(&cluster, "web", 3) && images(&cluster) == ["two", "two", "two"]).await;
    assert_eq!(cluster.count(&REPLICA_SETS), 2);
    until("the revision is noted", || {
        cluster.read(&DEPLOYMENTS, "web")["metadata"]["annotations"]["deployment.kubernetes.io/revision"]
            == "2"
    })
    .await;

    // What `kubectl rollout undo` does.
    cluster.patch(&DEPLOYMENTS, "web", json!({"spec": {"template": template("web", "one")}})).await;
    until("rolled back", || is_rolled_out(&cluster, "web", 3) && images(&cluster) == ["one", "one", "one"])
        .await;
    assert_eq!(cluster.count(&REPLICA_SETS), 2, "the old ReplicaSet is used again");
    let set = cluster.read(&REPLICA_SETS, &first[0]);
    assert_eq!(set["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "3");
    assert_eq!(set["metadata"]["annotations"]["deployment.kubernetes.io/revision-history"], "1");
    until("it is available and done", || {
        let status = cluster.read(&DEPLOYMENTS, "web")["status"]["conditions"].clone();
        let reasons: Vec<&str> =
            status.as_array().unwrap().iter().filter_map(|one| one["reason"].as_str()).collect();
        reasons.contains(&"MinimumReplicasAvailable") && reasons.contains(&"NewReplicaSetAvailable")
    })
    .await;
    assert!(!cluster.events("ScalingReplicaSet").is_empty());
    assert!(cluster.events("SuccessfulCreate").len() >= 6);
}

#[tokio::test(start_paused = true)]
async fn exactly_the_wanted_number_of_pods_is_made() {
    let cluster = cluster();
    cluster.run_pods();
    cluster.api.put(&DEPLOYMENTS, deployment("web", "one", 50));
    until("rolled out", || is_rolled_out(&cluster, "web", 50)).await;
    let created = cluster.api.writes().iter().filter(|write| write.starts_with("create pods")).count();
    assert_eq!(created, 50, "no pod is made twice while the watch lags");
    cluster.patch(&DEPLOYMENTS, "web", json!({"spec": {"replicas": 7}})).await;
    until("scaled down", || is_rolled_out(&cluster, "web", 7) && cluster.count(&PODS) == 7).await;
    let deleted = cluster.api.writes().iter().filter(|write| write.starts_with("delete pods")).count();
    assert_eq!(deleted, 43);
}

#[tokio::test(start_paused = true)]
async fn a_broken_update_stops_and_keeps_serving() {
    let cluster = cluster();
    cluster.run_pods();
    let mut value = deployment("web", "one", 4);
    value["spec"]["progressDeadlineSeconds"] = json!(30);
    cluster.api.put(&DEPLOYMENTS, value);
    until("rolled out", || is_rolled_out(&cluster, "web", 4)).await;
    cluster.patch(&DEPLOYMENTS, "web", json!({"spec": {"template": template("web", "broken")}})).await;
    until("it gave up", || {
        let conditions = cluster.read(&DEPLOYMENTS, "web")["status"]["conditions"].clone();
        conditions
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["reason"] == "ProgressDeadlineExceeded"))
    })
    .await;
    let healthy = images(&cluster).iter().filter(|image| *image == "one").count();
    assert_eq!(healthy, 3, "at most a quarter may be missing");
}

#[tokio::test(start_paused = true)]
async fn recreate_never_runs_two_versions() {
    let cluster = cluster();
    cluster.run_pods();
    let mut value = deployment("web", "one", 3);
    value["spec"]["strategy"] = json!({"type": "Recreate"});
    cluster.api.put(&DEPLOYMENTS, value);
    until("rolled out", || is_rolled_out(&cluster, "web", 3)).await;
    cluster.patch(&DEPLOYMENTS, "web", json!({"spec": {"template": template("web", "two")}})).await;
    until("updated", || {
        let images = images(&cluster);
        assert!(!(images.contains(&"one".to_owned()) && images.contains(&"two".to_owned())), "{images:?}");
        is_rolled_out(&cluster, "web", 3) && images == ["two", "two", "two"]
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_deployment_scales_but_does_not_roll() {
    let cluster = cluster();
    cluster.run_pods();
    cluster.api.put(&DEPLOYMENTS, deployment("web", "one", 2));
    until("rolled out", || is_rolled_out(&cluster, "web", 2)).await;
    let patch = json!({"spec": {"paused": true, "replicas": 5, "template": template("web", "two")}});
    cluster.patch(&DEPLOYMENTS, "web", patch).await;
    until("scaled", || images(&cluster) == ["one"; 5]).await;
    cluster.patch(&DEPLOYMENTS, "web", json!({"spec": {"paused": false}})).await;
    until("rolled", || images(&cluster) == ["two"; 5]).await;
}

#[tokio::test(start_paused = true)]
async fn history_is_limited() {
    let cluster = cluster();
    cluster.run_pods();
    cluster.api.put(&DEPLOYMENTS, deployment("web", "v0", 1));
    for version in 0..5 {
        let image = format!("v{version}");
        cluster.patch(&DEPLOYMENTS, "web", json!({"spec": {"template": template("web", &image)}})).await;
        until("rolled out", || is_rolled_out(&cluster, "web", 1) && images(&cluster) == [image.clone()])
            .await;
    }
    until("old ReplicaSets are gone", || cluster.count(&REPLICA_SETS) == 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_set_adopts_lets_go_and_says_why_it_cannot() {
    let cluster = cluster();
    cluster.run_pods();
    cluster.api.put(
        &PODS,
        json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "orphan", "namespace": "d", "labels": {"app": "rs"}},
        "spec": {"containers": [{"name": "c", "image": "one"}]}, "status": {"phase": "Pending"}}),
    );
    let quota = || Status::failure(403, Reason::Forbidden, "exceeded quota");
    cluster.api.fail_next("create", "pods", quota());
    cluster.api.fail_next("create", "pods", quota());
    cluster.api.put(&REPLICA_SETS, json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": "rs", "namespace": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "rs"}}, "template": template("rs", "one")}}));
    until("the failure is told", || !cluster.events("FailedCreate").is_empty()).await;
    until("two pods, one adopted", || cluster.read(&REPLICA_SETS, "rs")["status"]["readyReplicas"] == 2)
        .await;
    assert_eq!(cluster.read(&PODS, "orphan")["metadata"]["ownerReferences"][0]["name"], "rs");
    assert_eq!(cluster.count(&PODS), 2);
    until("the failure is forgotten", || cluster.read(&REPLICA_SETS, "rs")["status"]["conditions"].is_null())
        .await;
    cluster.patch(&PODS, "orphan", json!({"metadata": {"labels": {"app": "other"}}})).await;
    until("it is let go and replaced", || {
        cluster.read(&PODS, "orphan")["metadata"]["ownerReferences"].is_null() && cluster.count(&PODS) == 3
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn deleting_takes_dependents_along_or_leaves_them() {
    for (propagation, left) in
        [(Propagation::Background, 0), (Propagation::Foreground, 0), (Propagation::Orphan, 2)]
    {
        let cluster = cluster();
        cluster.run_pods();
        cluster.api.put(&DEPLOYMENTS, deployment("web", "one", 2));
        until("rolled out", || is_rolled_out(&cluster, "web", 2)).await;
        let set = cluster.names(&REPLICA_SETS)[0].clone();
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        cluster.api.delete(&REPLICA_SETS, Some("d"), &set, options.clone()).await.unwrap();
        // The deployment makes another; delete it too.
        cluster.api.delete(&DEPLOYMENTS, Some("d"), "web", options.clone()).await.unwrap();
        until("the deployment is gone", || cluster.count(&DEPLOYMENTS) == 0).await;
        for set in cluster.names(&REPLICA_SETS) {
            let _ = cluster.api.delete(&REPLICA_SETS, Some("d"), &set, options.clone()).await;
        }
        until("ReplicaSets are gone", || cluster.count(&REPLICA_SETS) == 0).await;
        if left == 0 {
            until("pods are gone", || cluster.count(&PODS) == 0).await;
        } else {
            tokio::time::sleep(Duration::from_secs(30)).await;
            assert!(cluster.count(&PODS) >= left, "orphans stay");
            let owners: Vec<Value> =
                cluster.api.all(&PODS).iter().map(|pod| pod["metadata"]["ownerReferences"].clone()).collect();
            assert!(owners.iter().all(Value::is_null), "{owners:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_cluster_is_left_alone() {
    let cluster = cluster();
    let kubelet = cluster.run_pods();
    cluster.namespace("d");
    cluster.api.put(&DEPLOYMENTS, deployment("web", "one", 3));
    until("rolled out", || is_rolled_out(&cluster, "web", 3)).await;
    kubelet.cancel();
    tokio::time::sleep(Duration::from_secs(700)).await;
    cluster.api.forget_writes();
    tokio::time::sleep(Duration::from_secs(4 * 3600)).await;
    assert_eq!(cluster.api.writes(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn controllers_find_their_way_after_a_restart_and_a_lost_watch() {
    let cluster = cluster();
    cluster.run_pods();
    cluster.api.put(&DEPLOYMENTS, deployment("web", "one", 3));
    until("rolled out", || is_rolled_out(&cluster, "web", 3)).await;
    cluster.api.compact();
    let pod = cluster.names(&PODS)[0].clone();
    cluster.api.remove(&PODS, "d", &pod);
    until("the pod is replaced", || images(&cluster).len() == 3 && is_rolled_out(&cluster, "web", 3)).await;
    cluster.api.fail_next("list", "pods", Status::unavailable("no leader"));
    cluster.api.compact();
    let pod = cluster.names(&PODS)[0].clone();
    cluster.api.remove(&PODS, "d", &pod);
    until("it is replaced again", || images(&cluster).len() == 3 && is_rolled_out(&cluster, "web", 3)).await;
}
