//! The scheduler against a cluster in memory.

use std::sync::Arc;

use api_machinery::{Gvr, Reason, Status};
use serde_json::{Value, json};
use tenant_client::fake::{FakeApi, TokioClock, until};
use tenant_scheduler::{Config, Scheduler};
use tokio_util::sync::CancellationToken;

const PODS: Gvr = Gvr::core("pods");
const NODES: Gvr = Gvr::core("nodes");
const EVENTS: Gvr = Gvr::core("events");

fn start() -> (FakeApi, CancellationToken) {
    let clock = TokioClock::shared();
    let api = FakeApi::new(clock.clone());
    let stop = CancellationToken::new();
    let config = Config { holder: "cell-1".to_owned() };
    tokio::spawn(Scheduler::run(Arc::new(api.clone()), clock, config, stop.clone()));
    (api, stop)
}
fn node(api: &FakeApi, name: &str, cpu: &str) {
    api.put(
        &NODES,
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}}),
    );
}
fn pod(api: &FakeApi, name: &str, cpu: &str, priority: i32) {
    api.put(
        &PODS,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "d"},
        "spec": {"priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Pending"}}),
    );
}
fn node_of(api: &FakeApi, name: &str) -> String {
    let pod = api.read(&PODS, "d", name).unwrap_or(Value::Null);
    pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()
}
fn reasons(api: &FakeApi) -> Vec<String> {
    let events = api.all(&EVENTS).into_iter();
    let mut reasons: Vec<String> =
        events.filter_map(|event| Some(event["reason"].as_str()?.to_owned())).collect();
    reasons.sort();
    reasons.dedup();
    reasons
}

#[tokio::test(start_paused = true)]
async fn pods_are_bound_and_told() {
    let (api, _stop) = start();
    node(&api, "n1", "4");
    for at in 0..4 {
        pod(&api, &format!("p{at}"), "1", 0);
    }
    until("four pods are bound", || (0..4).all(|at| node_of(&api, &format!("p{at}")) == "n1")).await;
    pod(&api, "late", "1", 0);
    until("the fifth is told", || {
        let pod = api.read(&PODS, "d", "late").unwrap();
        pod["status"]["conditions"][0]["message"] == "0/1 nodes are available: 1 Insufficient cpu."
    })
    .await;
    until("events are written", || reasons(&api) == ["FailedScheduling", "Scheduled"]).await;
    node(&api, "n2", "1");
    until("a new node is used", || node_of(&api, "late") == "n2").await;
    let lease = Gvr::new("coordination.k8s.io", "v1", "leases");
    until("the Lease says who leads", || {
        api.read(&lease, "kube-system", "kube-scheduler")
            .is_some_and(|lease| lease["spec"]["holderIdentity"] == "cell-1")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_room_and_gets_it() {
    let (api, _stop) = start();
    node(&api, "n1", "1");
    pod(&api, "a", "1", 0);
    until("the first is bound", || node_of(&api, "a") == "n1").await;
    pod(&api, "b", "1", 0);
    until("the second waits", || reasons(&api).contains(&"FailedScheduling".to_owned())).await;
    api.remove(&PODS, "d", "a");
    until("it gets the room", || node_of(&api, "b") == "n1").await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_binding_is_tried_again() {
    let (api, _stop) = start();
    api.fail_next("bind", "pods", Status::failure(500, Reason::InternalError, "not now"));
    node(&api, "n1", "1");
    pod(&api, "a", "1", 0);
    until("it is bound in the end", || node_of(&api, "a") == "n1").await;
}

#[tokio::test(start_paused = true)]
async fn an_important_pod_takes_the_place_of_a_lesser_one() {
    let (api, _stop) = start();
    node(&api, "n1", "1");
    pod(&api, "lesser", "1", 0);
    until("the lesser is bound", || node_of(&api, "lesser") == "n1").await;
    pod(&api, "greater", "1", 1000);
    until("the lesser is deleted", || {
        let lesser = api.read(&PODS, "d", "lesser").unwrap();
        !lesser["metadata"]["deletionTimestamp"].is_null()
    })
    .await;
    assert_eq!(api.read(&PODS, "d", "greater").unwrap()["status"]["nominatedNodeName"], "n1");
    api.remove(&PODS, "d", "lesser");
    until("the greater is bound", || node_of(&api, "greater") == "n1").await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_watch_costs_time_not_truth() {
    let (api, _stop) = start();
    node(&api, "n1", "2");
    pod(&api, "a", "1", 0);
    until("bound", || node_of(&api, "a") == "n1").await;
    api.fail_next("watch", "pods", Status::expired("compacted"));
    api.compact();
    pod(&api, "b", "1", 0);
    until("bound after a relist", || node_of(&api, "b") == "n1").await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_scheduler_writes_nothing() {
    let (api, _stop) = start();
    node(&api, "n1", "2");
    pod(&api, "a", "1", 0);
    until("bound", || node_of(&api, "a") == "n1").await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    api.forget_writes();
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
    assert_eq!(api.writes(), Vec::<String>::new());
}
