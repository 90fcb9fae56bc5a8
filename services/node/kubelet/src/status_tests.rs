//! What the cluster is told of a pod.

use super::*;
use crate::observed::Sandbox;
use crate::plan::plan;
use crate::pod::mark;
use serde_json::{Value, json};

fn at(s: i64) -> Timestamp {
    Timestamp::from_second(s).unwrap()
}

struct Case {
    pod: Pod,
    seen: Observed,
    memory: Memory,
}

fn case(spec: Value) -> Case {
    let pod = json!({ "metadata": { "name": "web", "namespace": "blue", "uid": "u1", "generation": 3 }, "spec": spec });
    let sandbox =
        Sandbox { id: "s0".into(), attempt: 0, ready: true, created_ns: 1, ips: vec!["10.244.0.2".into()] };
    Case {
        pod: serde_json::from_value(pod).unwrap(),
        seen: Observed { sandboxes: vec![sandbox], containers: vec![] },
        memory: Memory {
            volumes: crate::memory::VolumesState::Ready { refresh_at: None },
            ..Memory::default()
        },
    }
}

impl Case {
    fn has(mut self, name: &str, attempt: u32, state: State) -> Case {
        let container = self.pod.roles().into_iter().find(|(_, one)| one.name == name).unwrap().1;
        self.seen.containers.insert(
            0,
            Seen {
                id: format!("{name}-{attempt}"),
                name: name.into(),
                sandbox: "s0".into(),
                attempt,
                mark: mark(&container),
                image: "roadstead.local/demo:1".into(),
                image_ref: "sha256:1".into(),
                created_ns: 10,
                state,
            },
        );
        self
    }
    fn runs(self, name: &str) -> Case {
        self.has(name, 0, State::Running { started: at(50) })
    }
    fn exited(self, name: &str, code: i32) -> Case {
        let exit = Exit {
            started: Some(at(50)),
            finished: at(90),
            code,
            reason: "Error".into(),
            message: "bye".into(),
        };
        self.has(name, 0, State::Exited(exit))
    }
    fn tell(&self) -> PodStatus {
        let plan = plan(&self.pod, &self.seen, &self.memory, at(100));
        let facts = Facts { host_ips: vec!["192.0.2.1".into()], now: at(100) };
        status(&self.pod, &self.seen, &self.memory, &plan, &facts)
    }

    /// `phase | conditions that are not True | name:state:ready`
    fn check(self, expected: &str) {
        let status = self.tell();
        let conditions = status.conditions.clone().unwrap_or_default();
        let not_true: Vec<String> =
            conditions.iter().filter(|one| one.status != "True").map(|one| one.type_.clone()).collect();
        let lists = [&status.init_container_statuses, &status.container_statuses];
        let containers: Vec<String> = lists
            .into_iter()
            .flatten()
            .flatten()
            .map(|one| {
                let state = one.state.clone().unwrap_or_default();
                let word = match (state.waiting, state.running, state.terminated) {
                    (Some(waiting), ..) => waiting.reason.unwrap_or_default(),
                    (_, Some(_), _) => "running".into(),
                    (.., Some(ended)) => format!("ended({})", ended.exit_code),
                    _ => "nothing".into(),
                };
                format!("{}:{word}:{}", one.name, one.ready)
            })
            .collect();
        let line = format!(
            "{} | {} | {}",
            status.phase.unwrap_or_default(),
            not_true.join(" "),
            containers.join(" ")
        );
        assert_eq!(line, expected);
    }
}

#[test]
fn phases_and_conditions_follow_the_containers() {
    let plain = |policy: &str| json!({ "restartPolicy": policy, "containers": [{ "name": "main" }] });
    let mut fresh = case(plain("Always"));
    fresh.seen.sandboxes.clear();
    fresh.check("Pending | PodReadyToStartContainers Ready ContainersReady | main:ContainerCreating:false");
    case(plain("Always")).check("Pending | Ready ContainersReady | main:ContainerCreating:false");
    case(plain("Always")).runs("main").check("Running |  | main:running:true");
    case(plain("Never")).exited("main", 0).check("Succeeded | Ready ContainersReady | main:ended(0):false");
    case(plain("Never")).exited("main", 2).check("Failed | Ready ContainersReady | main:ended(2):false");
    case(plain("OnFailure"))
        .exited("main", 0)
        .check("Succeeded | Ready ContainersReady | main:ended(0):false");

    case(plain("Always")).exited("main", 1).check("Running | Ready ContainersReady | main:ended(1):false");
    let mut crashing = case(plain("Always")).exited("main", 1);
    let failing = crate::backoff::Backoff::default().next(at(70)).next(at(80));
    crashing.memory.restarts.insert("main".into(), failing);
    crashing.check("Running | Ready ContainersReady | main:CrashLoopBackOff:false");

    let inits = json!({ "restartPolicy": "Never", "initContainers": [{ "name": "a" }], "containers": [{ "name": "main" }] });
    case(inits.clone())
        .runs("a")
        .check("Pending | Initialized Ready ContainersReady | a:running:false main:PodInitializing:false");
    case(inits.clone())
        .exited("a", 0)
        .check("Pending | Ready ContainersReady | a:ended(0):true main:ContainerCreating:false");
    case(inits.clone())
        .exited("a", 1)
        .check("Failed | Initialized Ready ContainersReady | a:ended(1):false main:PodInitializing:false");
    case(inits).exited("a", 0).runs("main").check("Running |  | a:ended(0):true main:running:true");
}

#[test]
fn probes_and_gates_decide_on_readiness() {
    let spec = json!({ "containers": [{ "name": "main", "readinessProbe": {} }] });
    case(spec.clone()).runs("main").check("Running | Ready ContainersReady | main:running:false");
    let mut probed = case(spec).runs("main");
    probed
        .memory
        .probes
        .insert("main-0".into(), crate::memory::Probed { readiness: Some(true), ..Default::default() });
    probed.check("Running |  | main:running:true");

    let gated = json!({ "readinessGates": [{ "conditionType": "example.org/up" }], "containers": [{ "name": "main" }] });
    case(gated.clone()).runs("main").check("Running | Ready | main:running:true");
    let mut open = case(gated).runs("main");
    open.pod.status = Some(
        serde_json::from_value(json!({ "conditions": [{ "type": "example.org/up", "status": "True" }] }))
            .unwrap(),
    );
    open.check("Running |  | main:running:true");
}

#[test]
fn a_deleted_pod_ends_in_a_final_phase() {
    for (policy, code, phase) in
        [("Always", 0, "Succeeded"), ("Always", 137, "Failed"), ("Never", 0, "Succeeded")]
    {
        let mut ended =
            case(json!({ "restartPolicy": policy, "containers": [{ "name": "main" }] })).exited("main", code);
        ended.pod.metadata.deletion_timestamp = Some(Time(at(80)));
        ended.seen.sandboxes[0].ready = false;
        assert_eq!(ended.tell().phase.as_deref(), Some(phase), "{policy} {code}");
    }
}

#[test]
fn details_are_what_upstream_says() {
    let spec = json!({ "containers": [{ "name": "main", "image": "roadstead.local/demo:1", "resources": { "requests": { "cpu": "100m" } } }] });
    let status =
        case(spec.clone()).exited("main", 1).has("main", 1, State::Running { started: at(95) }).tell();
    let found = serde_json::to_value(&status).unwrap();
    for (path, expected) in [
        ("/podIP", json!("10.244.0.2")),
        ("/podIPs/0/ip", json!("10.244.0.2")),
        ("/hostIP", json!("192.0.2.1")),
        ("/qosClass", json!("Burstable")),
        ("/observedGeneration", json!(3)),
        ("/conditions/0/observedGeneration", json!(3)),
        ("/startTime", json!("1970-01-01T00:01:40Z")),
        ("/containerStatuses/0/restartCount", json!(1)),
        ("/containerStatuses/0/containerID", json!("containerd://main-1")),
        ("/containerStatuses/0/image", json!("roadstead.local/demo:1")),
        ("/containerStatuses/0/imageID", json!("sha256:1")),
        ("/containerStatuses/0/started", json!(true)),
        ("/containerStatuses/0/lastState/terminated/exitCode", json!(1)),
        ("/containerStatuses/0/lastState/terminated/message", json!("bye")),
        ("/containerStatuses/0/state/running/startedAt", json!("1970-01-01T00:01:35Z")),
    ] {
        assert_eq!(found.pointer(path), Some(&expected), "{path}");
    }
    // A condition keeps the moment it changed, and others' conditions are left alone.
    let mut again = case(spec).runs("main");
    again.pod.status = Some(
        serde_json::from_value(json!({ "conditions": [
        { "type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z" },
        { "type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:05Z" },
        { "type": "DisruptionTarget", "status": "True" },
    ] }))
        .unwrap(),
    );
    let conditions = again.tell().conditions.unwrap();
    let moment = |kind: &str| {
        conditions.iter().find(|one| one.type_ == kind).and_then(|one| one.last_transition_time.clone())
    };
    assert_eq!(moment("Ready"), Some(Time(at(7))));
    assert_eq!(moment("PodScheduled"), Some(Time(at(5))));
    assert_eq!(moment("ContainersReady"), Some(Time(at(100))));
    assert!(conditions.iter().any(|one| one.type_ == "DisruptionTarget"));
}

#[test]
fn a_lost_container_ended_for_an_unknown_reason() {
    let told = json!({ "phase": "Running", "containerStatuses": [{
        "name": "main", "image": "i", "imageID": "sha256:1", "ready": true, "restartCount": 2,
        "containerID": "containerd://c2", "state": { "running": { "startedAt": "2026-11-30T21:00:00Z" } },
        "lastState": {},
    }]});
    for (policy, phase) in [("Never", "Failed"), ("Always", "Running")] {
        let mut case =
            case(json!({ "restartPolicy": policy, "containers": [{ "name": "main", "image": "i" }] }));
        case.pod.status = Some(serde_json::from_value(told.clone()).unwrap());
        crate::recall::recall(&mut case.seen, case.pod.status.as_ref().unwrap(), at(100));
        let status = case.tell();
        let main = &status.container_statuses.as_ref().unwrap()[0];
        let ended = main.state.as_ref().unwrap().terminated.as_ref().expect("an end");
        assert_eq!((ended.exit_code, ended.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
        assert_eq!((status.phase.as_deref(), main.restart_count), (Some(phase), 2), "{policy}");
        // The next look, at what was just told, finds the same.
        let mut again = Observed { sandboxes: case.seen.sandboxes.clone(), containers: vec![] };
        crate::recall::recall(&mut again, &status, at(200));
        assert_eq!(again.containers[0].exit().map(|exit| exit.finished), Some(at(100)), "{policy}");
    }
}
