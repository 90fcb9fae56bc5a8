//! A pod's life, one look at a time.

use super::*;
use crate::backoff::Backoff;
use crate::memory::{End, Probed};
use serde_json::{Value, json};

/// The document, what the runtime has, and what the worker remembers.
struct World {
    pod: Pod,
    seen: Observed,
    memory: Memory,
    now: i64,
}

fn at(s: i64) -> Timestamp {
    Timestamp::from_second(s).unwrap()
}

/// A pod with a sandbox and volumes, at second 100, of which `spec` says the rest.
fn world(spec: Value) -> World {
    let pod = serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "blue", "uid": "u1" },
        "spec": spec,
    }));
    let sandbox =
        Sandbox { id: "s0".into(), attempt: 0, ready: true, created_ns: 1, ips: vec!["10.244.0.2".into()] };
    let memory = Memory { volumes: VolumesState::Ready { refresh_at: None }, ..Memory::default() };
    World {
        pod: pod.unwrap(),
        seen: Observed { sandboxes: vec![sandbox], containers: vec![] },
        memory,
        now: 100,
    }
}

fn one(policy: &str) -> Value {
    json!({ "restartPolicy": policy, "terminationGracePeriodSeconds": 30, "containers": [{ "name": "main", "image": "i" }] })
}

impl World {
    fn fresh(mut self) -> World {
        self.seen.sandboxes.clear();
        self.memory.volumes = VolumesState::Missing;
        self
    }
    fn mounted(mut self) -> World {
        self.memory.volumes = VolumesState::Ready { refresh_at: None };
        self
    }
    fn sandbox_died(mut self) -> World {
        self.seen.sandboxes[0].ready = false;
        self
    }
    fn has(mut self, name: &str, attempt: u32, state: State) -> World {
        let container = self.pod.roles().into_iter().find(|(_, one)| one.name == name).unwrap().1;
        let created_ns = self.seen.containers.len() as i64 + 10;
        self.seen.containers.insert(
            0,
            Seen {
                id: format!("{name}-{attempt}"),
                name: name.into(),
                sandbox: "s0".into(),
                attempt,
                mark: mark(&container),
                image: "i".into(),
                image_ref: "sha256:1".into(),
                created_ns,
                state,
            },
        );
        self
    }
    fn runs(self, name: &str, attempt: u32) -> World {
        self.has(name, attempt, State::Running { started: at(50) })
    }
    fn exited(self, name: &str, attempt: u32, code: i32, finished: i64) -> World {
        let exit = Exit {
            started: None,
            finished: at(finished),
            code,
            reason: "Error".into(),
            message: String::new(),
        };
        self.has(name, attempt, State::Exited(exit))
    }
    fn deleted(mut self, grace_s: i64) -> World {
        self.pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(100)));
        self.pod.metadata.deletion_grace_period_seconds = Some(grace_s);
        self
    }
    fn remembers(mut self, change: impl FnOnce(&mut Memory)) -> World {
        change(&mut self.memory);
        self
    }
    fn with_status(mut self, status: Value) -> World {
        self.pod.status = Some(serde_json::from_value(status).unwrap());
        self
    }
    /// What the status tells of lost containers is taken for seen.
    fn recalls(mut self) -> World {
        if let Some(told) = &self.pod.status {
            crate::recall::recall(&mut self.seen, told, at(self.now));
        }
        self
    }
    fn at(mut self, now: i64) -> World {
        self.now = now;
        self
    }

    /// The plan in one line: actions, then reasons for waiting, then when to look again.
    fn check(self, expected: &str) {
        let plan = plan(&self.pod, &self.seen, &self.memory, at(self.now));
        let mut line: Vec<String> = plan
            .actions
            .iter()
            .map(|action| match action {
                Action::MountVolumes => "mount".into(),
                Action::CreateSandbox { attempt } => format!("sandbox#{attempt}"),
                Action::StopSandbox { id } => format!("stop-sandbox {id}"),
                Action::RemoveSandbox { id } => format!("remove-sandbox {id}"),
                Action::Start { name, attempt, .. } => format!("start {name}#{attempt}"),
                Action::Stop { id, grace_s, .. } => format!("stop {id} {grace_s}s"),
                Action::Resize { id, .. } => format!("resize {id}"),
                Action::RemoveContainer { id } => format!("remove {id}"),
                Action::Release => "release".into(),
                Action::ConfirmDeletion => "confirm".into(),
            })
            .collect();
        line.extend(plan.waiting.iter().map(|(name, (reason, _))| format!("{name}:{reason}")));
        line.extend(plan.again_at.map(|again| format!("@{}", again.as_second())));
        assert_eq!(line.join(", "), expected);
    }
}

#[test]
fn a_pod_comes_up_step_by_step() {
    world(one("Always")).fresh().check("mount");
    world(one("Always")).fresh().mounted().check("sandbox#0");
    world(one("Always")).check("start main#0");
    world(one("Always")).runs("main", 0).check("");
    world(one("Always")).has("main", 0, State::Created).check("remove main-0, start main#0");
}

#[test]
fn init_containers_go_first_and_sidecars_stay() {
    let spec = json!({
        "restartPolicy": "Always",
        "initContainers": [{ "name": "a" }, { "name": "side", "restartPolicy": "Always", "startupProbe": {} }, { "name": "b" }],
        "containers": [{ "name": "main" }, { "name": "other" }],
    });
    let w = || world(spec.clone());
    let started = |memory: &mut Memory| {
        memory.probes.insert("side-0".into(), Probed { startup: Some(true), ..Probed::default() });
    };
    w().check("start a#0");
    w().runs("a", 0).check("");
    w().exited("a", 0, 0, 90).check("start side#0");
    w().exited("a", 0, 0, 90).runs("side", 0).check("");
    w().exited("a", 0, 0, 90).runs("side", 0).remembers(started).check("start b#0");
    w().exited("a", 0, 0, 90).runs("side", 0).runs("b", 0).remembers(started).check("");
    w().exited("a", 0, 0, 90)
        .runs("side", 0)
        .exited("b", 0, 0, 95)
        .remembers(started)
        .check("start main#0, start other#0");
    // A failed init container is tried again, and with back-off.
    w().exited("a", 0, 1, 90).check("start a#1");
    w().exited("a", 0, 1, 99)
        .remembers(|memory| {
            memory.restarts.insert("a".into(), Backoff::default().next(at(80)));
        })
        .check("a:CrashLoopBackOff, @109");
    // Once the pod is up, a sidecar that ends comes back and init containers rest.
    w().exited("side", 0, 0, 90).runs("main", 0).runs("other", 0).check("start side#1");
    w().runs("side", 0).runs("main", 0).runs("other", 0).check("");
}

#[test]
fn ends_are_answered_as_the_policy_says() {
    for (policy, code, expected) in [
        ("Always", 0, "start main#1"),
        ("Always", 1, "start main#1"),
        ("OnFailure", 1, "start main#1"),
        ("OnFailure", 0, "stop-sandbox s0"),
        ("Never", 0, "stop-sandbox s0"),
        ("Never", 1, "stop-sandbox s0"),
    ] {
        world(one(policy)).exited("main", 0, code, 90).check(expected);
    }
    let backoff = Backoff::default().next(at(50));
    let crash = |w: World| {
        w.remembers(|memory| {
            memory.restarts.insert("main".into(), backoff);
        })
    };
    crash(world(one("Always")).exited("main", 1, 1, 95)).check("main:CrashLoopBackOff, @105");
    crash(world(one("Always")).exited("main", 1, 1, 95)).at(105).check("start main#2");
    let spec = json!({ "restartPolicy": "Never", "initContainers": [{ "name": "a" }], "containers": [{ "name": "main" }] });
    world(spec).exited("a", 0, 1, 90).check("stop-sandbox s0");
    world(one("Never")).exited("main", 0, 0, 90).sandbox_died().check("release");
    world(one("Never"))
        .exited("main", 0, 0, 90)
        .sandbox_died()
        .remembers(|memory| memory.released = true)
        .check("");
}

#[test]
fn what_fails_its_probes_or_changes_is_replaced() {
    let spec = json!({ "terminationGracePeriodSeconds": 30, "containers": [
        { "name": "main", "image": "i", "livenessProbe": { "terminationGracePeriodSeconds": 3 }, "startupProbe": {} } ] });
    let probed = |probed: Probed| {
        move |memory: &mut Memory| {
            memory.probes.insert("main-0".into(), probed);
        }
    };
    let w = || world(spec.clone()).runs("main", 0);
    w().remembers(probed(Probed { startup: Some(true), liveness: Some(true), readiness: Some(false) }))
        .check("");
    w().remembers(probed(Probed { liveness: Some(false), startup: Some(true), readiness: None }))
        .check("stop main-0 3s");
    w().remembers(probed(Probed { startup: Some(false), ..Probed::default() })).check("stop main-0 30s");
    w().remembers(|memory| {
        memory.hooks.insert("main-0".into(), Hook::Failed("no".into()));
    })
    .check("stop main-0 30s");
    // Once it is stopped its status says why, and then it is started again.
    let ended = |memory: &mut Memory| {
        memory.hooks.insert("main-0".into(), Hook::Failed("no".into()));
    };
    world(spec.clone()).exited("main", 0, 0, 99).remembers(ended).check("main:PostStartHookError, @101");
    world(spec.clone()).exited("main", 0, 0, 99).remembers(ended).at(101).check("start main#1");
    let mut changed = w();
    changed.pod.spec.as_mut().unwrap().containers[0].image = Some("j".into());
    changed.check("stop main-0 30s");
    let given = |memory: &mut Memory| {
        memory
            .given
            .insert("main-0".into(), serde_json::from_value(json!({ "limits": { "cpu": "1" } })).unwrap());
    };
    world(one("Always")).runs("main", 0).remembers(given).check("resize main-0");
    // A stop that is under way is not asked for twice, a faster one is.
    let stopping = |until: i64| {
        move |memory: &mut Memory| {
            memory.stopping.insert("main-0".into(), at(until));
        }
    };
    let dead = Probed { liveness: Some(false), startup: Some(true), readiness: None };
    w().remembers(probed(dead)).remembers(stopping(103)).check("");
    w().remembers(probed(dead)).remembers(stopping(130)).check("stop main-0 3s");
}

#[test]
fn a_deleted_pod_is_wound_down_in_order() {
    let spec = json!({ "terminationGracePeriodSeconds": 30,
        "initContainers": [{ "name": "s1", "restartPolicy": "Always" }, { "name": "s2", "restartPolicy": "Always" }],
        "containers": [{ "name": "main" }, { "name": "other" }] });
    let w = || world(spec.clone());
    let since = |memory: &mut Memory| memory.ending_since = Some(at(90));
    w().runs("s1", 0)
        .runs("s2", 0)
        .runs("main", 0)
        .runs("other", 0)
        .deleted(20)
        .check("stop other-0 20s, stop main-0 20s");
    w().runs("s1", 0)
        .runs("s2", 0)
        .exited("main", 0, 0, 95)
        .deleted(20)
        .remembers(since)
        .check("stop s2-0 10s");
    w().runs("s1", 0).exited("s2", 0, 0, 96).deleted(20).remembers(since).check("stop s1-0 10s");
    w().exited("main", 0, 0, 95).deleted(20).check("stop-sandbox s0");
    w().exited("main", 0, 0, 95).deleted(20).sandbox_died().check("release");
    w().deleted(20).sandbox_died().remembers(|memory| memory.released = true).check("confirm");
    w().fresh().deleted(0).check("release");
    let end = End { reason: "DeadlineExceeded", message: String::new() };
    w().runs("main", 0).remembers(|memory| memory.end = Some(end)).check("stop main-0 30s");
}

#[test]
fn a_sandbox_that_died_is_replaced_with_all_in_it() {
    world(one("Always")).runs("main", 0).sandbox_died().check("sandbox#1");
    let mut addressless = world(one("Always"));
    addressless.seen.sandboxes[0].ips.clear();
    addressless.check("stop-sandbox s0, sandbox#1");
    let mut renewed = world(one("Always")).exited("main", 0, 137, 90);
    renewed.seen.sandboxes.insert(
        0,
        Sandbox { id: "s1".into(), attempt: 1, ready: true, created_ns: 99, ips: vec!["x".into()] },
    );
    renewed.seen.sandboxes[1].ready = false;
    renewed.check("start main#1");
    world(one("Always"))
        .fresh()
        .mounted()
        .remembers(|memory| {
            memory.sandbox_trouble =
                Some(Trouble { reason: String::new(), message: String::new(), at: at(99), until: at(101) });
        })
        .check("@101");
}

#[test]
fn what_a_start_needs_is_waited_for() {
    let trouble = |reason: &str, at_s: i64, until: i64| Trouble {
        reason: reason.into(),
        message: "m".into(),
        at: at(at_s),
        until: at(until),
    };
    let image = |trouble: Trouble| {
        move |memory: &mut Memory| {
            drop(
                memory
                    .images
                    .insert("main".into(), ImageState::Failed { trouble, backoff: Backoff::default() }),
            );
        }
    };
    world(one("Always"))
        .remembers(|memory| {
            memory.images.insert("main".into(), ImageState::Pulling);
        })
        .check("");
    world(one("Always")).remembers(image(trouble("ErrImagePull", 99, 110))).check("main:ErrImagePull, @101");
    world(one("Always"))
        .remembers(image(trouble("ErrImagePull", 95, 110)))
        .check("main:ImagePullBackOff, @110");
    world(one("Always")).remembers(image(trouble("ErrImagePull", 95, 100))).check("start main#0");
    world(one("Always"))
        .remembers(image(trouble("ErrImageNeverPull", 95, 110)))
        .check("main:ErrImageNeverPull, @101");
    let failed = trouble("CreateContainerConfigError", 99, 101);
    world(one("Always"))
        .remembers(|memory| {
            memory.failed_starts.insert("main".into(), failed.clone());
        })
        .check("main:CreateContainerConfigError, @101");
    let backoff = crate::backoff::Backoff::of(crate::backoff::MOUNTS);
    let volumes = VolumesState::Failed { trouble: trouble("FailedMount", 99, 101), backoff };
    world(one("Always")).fresh().remembers(|memory| memory.volumes = volumes.clone()).check("@101");
    world(one("Always")).fresh().remembers(|memory| memory.volumes = volumes.clone()).at(101).check("mount");
    world(one("Always"))
        .runs("main", 0)
        .remembers(|memory| memory.volumes = VolumesState::Ready { refresh_at: Some(at(100)) })
        .check("mount");
    world(one("Always"))
        .runs("main", 0)
        .remembers(|memory| memory.volumes = VolumesState::Ready { refresh_at: Some(at(160)) })
        .check("@160");
    // The next container waits for a hook.
    let spec = json!({ "containers": [{ "name": "main" }, { "name": "other" }] });
    world(spec)
        .runs("main", 0)
        .remembers(|memory| {
            memory.hooks.insert("main-0".into(), Hook::Running);
        })
        .check("");
}

#[test]
fn old_containers_go_and_counts_go_on() {
    world(one("Always"))
        .exited("main", 0, 1, 10)
        .exited("main", 1, 1, 20)
        .exited("main", 2, 1, 30)
        .runs("main", 3)
        .check("remove main-1, remove main-0");
    // A node that was swept empty counts on from what the API server knows.
    let status = json!({ "containerStatuses": [{ "name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 4, "containerID": "containerd://x" }] });
    world(one("Always")).with_status(status).check("start main#5");
    let deadline = json!({ "activeDeadlineSeconds": 60, "containers": [{ "name": "main" }] });
    world(deadline).runs("main", 0).with_status(json!({ "startTime": "1970-01-01T00:01:00Z" })).check("@120");
}

#[test]
fn what_the_runtime_forgot_the_status_remembers() {
    let told = |state: Value, last: Value| {
        json!({ "containerStatuses": [{
            "name": "main", "image": "i", "imageID": "sha256:1", "ready": true, "restartCount": 2,
            "containerID": "containerd://c2", "state": state, "lastState": last,
        }]})
    };
    let ran = json!({ "running": { "startedAt": "2026-11-30T21:00:00Z" } });
    let ended =
        |code: i32| json!({ "terminated": { "exitCode": code, "finishedAt": "1970-01-01T00:01:30Z" } });
    let waits = json!({ "waiting": { "reason": "ContainerCreating" } });
    let lost = |policy: &str, status: Value| world(one(policy)).with_status(status).recalls();
    // One that must not run again has ended, whatever its end was.
    for state in [ran.clone(), ended(0), ended(1)] {
        lost("Never", told(state, json!({}))).check("stop-sandbox s0");
    }
    lost("OnFailure", told(ended(0), json!({}))).check("stop-sandbox s0");
    // The others count on.
    lost("Always", told(ran.clone(), json!({}))).check("start main#3");
    lost("Always", told(ended(0), json!({}))).check("start main#3");
    lost("OnFailure", told(ran, json!({}))).check("start main#3");
    lost("Always", told(waits.clone(), ended(1))).check("start main#3");
    // One that never got so far begins.
    let fresh = json!({ "containerStatuses": [{
        "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": waits,
    }]});
    lost("Never", fresh).check("start main#0");
    // One that the runtime has is the runtime's to tell of.
    let status = told(json!({ "running": {} }), json!({}));
    world(one("Never")).runs("main", 2).with_status(status).recalls().check("");
    // Nobody knows whether it ran: no second time.
    world(one("Never")).has("main", 0, State::Unknown).check("stop main-0 0s");
    world(one("Always")).has("main", 0, State::Unknown).check("remove main-0, start main#1");
}
