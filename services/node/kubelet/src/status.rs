//! A pod's status: phase, conditions and containers, in upstream's words.
//!
//! [`status`] is pure. It starts from the status in the document, because conditions of other writers
//! (the scheduler's, readiness gates') must survive and transitions keep their times.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::memory::Memory;
use crate::observed::{Exit, Observed, Seen, State};
use crate::plan::{Plan, is_started};
use crate::pod::{PodExt, RestartPolicy, Role};
use crate::qos::qos_class;

/// What a status needs to know beside the pod.
#[derive(Debug, Clone)]
pub struct Facts {
    pub host_ips: Vec<String>,
    pub now: Timestamp,
}

pub fn status(pod: &Pod, seen: &Observed, memory: &Memory, plan: &Plan, facts: &Facts) -> PodStatus {
    let old = pod.status.clone().unwrap_or_default();
    let roles = pod.roles();
    let sandbox = seen.sandboxes.first();
    let ready_sandbox = sandbox.filter(|one| one.ready && (pod.is_host_network() || !one.ips.is_empty()));
    let ips = match ready_sandbox {
        Some(_) if pod.is_host_network() => facts.host_ips.clone(),
        Some(one) => one.ips.clone(),
        // A pod that ended keeps the address it had.
        None => old.pod_ips.iter().flatten().map(|known| known.ip.clone()).collect(),
    };

    let initialised = is_initialised(&roles, seen, memory);
    let sides = Sides { pod, seen, memory, plan, initialised, old: &old };
    let of = |wanted: &[Role]| -> Vec<ContainerStatus> {
        let mine = roles.iter().filter(|(role, _)| wanted.contains(role));
        mine.map(|(role, container)| sides.container(*role, container)).collect()
    };
    let init_statuses = of(&[Role::Init, Role::Sidecar]);
    let main_statuses = of(&[Role::Main]);
    let ephemeral_statuses = of(&[Role::Ephemeral]);

    let phase = if pod.is_terminal() && seen.running().next().is_none() {
        old.phase.clone().unwrap_or_default()
    } else {
        phase(pod, &roles, &init_statuses, &main_statuses, memory, seen).to_owned()
    };
    let mut status = PodStatus {
        conditions: None,
        container_statuses: Some(main_statuses).filter(|list| !list.is_empty()),
        ephemeral_container_statuses: Some(ephemeral_statuses).filter(|list| !list.is_empty()),
        host_ip: facts.host_ips.first().cloned(),
        host_ips: Some(facts.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        init_container_statuses: Some(init_statuses).filter(|list| !list.is_empty()),
        message: memory.end.as_ref().map(|end| end.message.clone()).or(old.message.clone()),
        observed_generation: pod.metadata.generation,
        phase: Some(phase),
        pod_ip: ips.first().cloned(),
        pod_ips: Some(ips.iter().map(|ip| PodIP { ip: ip.clone() }).collect())
            .filter(|ips: &Vec<_>| !ips.is_empty()),
        qos_class: old.qos_class.clone().or_else(|| Some(qos_class(pod).to_owned())),
        reason: memory.end.as_ref().map(|end| end.reason.to_owned()).or(old.reason.clone()),
        start_time: old.start_time.clone().or_else(|| Some(Time(seconds(facts.now)))),
        ..old.clone()
    };
    status.conditions =
        Some(conditions(pod, &roles, &status, ready_sandbox.is_some(), initialised, facts.now));
    status
}

/// Every init container is through, every sidecar started.
fn is_initialised(roles: &[(Role, Container)], seen: &Observed, memory: &Memory) -> bool {
    let main_exists = roles.iter().any(|(role, one)| *role == Role::Main && seen.latest(&one.name).is_some());
    let through = |(role, one): &(Role, Container)| match role {
        Role::Init => seen.latest(&one.name).and_then(Seen::exit).is_some_and(|exit| exit.code == 0),
        Role::Sidecar => seen.latest(&one.name).is_some_and(|latest| is_started(one, latest, memory)),
        Role::Main | Role::Ephemeral => true,
    };
    main_exists || roles.iter().all(through)
}

struct Sides<'a> {
    pod: &'a Pod,
    seen: &'a Observed,
    memory: &'a Memory,
    plan: &'a Plan,
    initialised: bool,
    old: &'a PodStatus,
}

impl Sides<'_> {
    fn container(&self, role: Role, container: &Container) -> ContainerStatus {
        let name = &container.name;
        let latest = self.seen.latest(name);
        let previous_exit = self.seen.all(name).skip(1).find_map(|one| one.exit().map(|exit| (one, exit)));
        let waiting = self.plan.waiting.get(name);
        let old = self.old_status(name);

        let (state, last) = match latest.map(|one| (one, &one.state)) {
            Some((_, State::Running { started })) => (running(*started), previous_exit),
            Some((one, State::Exited(exit))) if waiting.is_none() => (terminated(one, exit), previous_exit),
            Some((one, State::Exited(exit))) => (self.waiting(role, waiting), Some((one, exit))),
            Some((_, State::Created | State::Unknown)) | None => (self.waiting(role, waiting), previous_exit),
        };
        // What the runtime no longer knows, the document still does.
        let last_state = match last {
            Some((one, exit)) => Some(terminated(one, exit)),
            None => old.and_then(|old| old.last_state.clone()).filter(|state| state.terminated.is_some()),
        };
        // A pod that ended long ago may have lost its containers: its last word stands.
        if let Some(old) = old.filter(|_| latest.is_none() && self.pod.is_terminal()) {
            return old.clone();
        }
        let started = latest.is_some_and(|one| is_started(container, one, self.memory));
        let ready = match role {
            Role::Init => latest.and_then(Seen::exit).is_some_and(|exit| exit.code == 0),
            Role::Ephemeral => false,
            Role::Main | Role::Sidecar => {
                let probed =
                    latest.and_then(|one| self.memory.probes.get(&one.id)).copied().unwrap_or_default();
                started && (container.readiness_probe.is_none() || probed.readiness == Some(true))
            }
        };
        ContainerStatus {
            allocated_resources: container.resources.as_ref().and_then(|set| set.requests.clone()),
            container_id: latest
                .filter(|one| one.state != State::Created)
                .map(|one| format!("containerd://{}", one.id)),
            image: latest
                .map(|one| one.image.clone())
                .filter(|image| !image.is_empty() && !image.starts_with("sha256:"))
                .unwrap_or_else(|| container.image.clone().unwrap_or_default()),
            image_id: latest.map(|one| one.image_ref.clone()).unwrap_or_default(),
            last_state: Some(last_state.unwrap_or_default()),
            name: name.clone(),
            ready,
            resources: container
                .resources
                .clone()
                .filter(|set| set.limits.is_some() || set.requests.is_some()),
            restart_count: latest.map_or_else(
                || old.map_or(0, |old| old.restart_count),
                |one| i32::try_from(one.attempt).unwrap_or(i32::MAX),
            ),
            started: Some(if role == Role::Init { latest.is_some_and(Seen::is_running) } else { started }),
            state: Some(state),
            ..ContainerStatus::default()
        }
    }

    fn old_status(&self, name: &str) -> Option<&ContainerStatus> {
        let all = [
            &self.old.init_container_statuses,
            &self.old.container_statuses,
            &self.old.ephemeral_container_statuses,
        ];
        all.into_iter().flatten().flatten().find(|one| one.name == name)
    }

    fn waiting(&self, role: Role, why: Option<&(String, String)>) -> ContainerState {
        let has_inits =
            self.pod.spec().is_some_and(|spec| spec.init_containers.iter().flatten().next().is_some());
        let default = match role {
            Role::Init | Role::Sidecar => "PodInitializing",
            Role::Main if has_inits && !self.initialised => "PodInitializing",
            Role::Main | Role::Ephemeral => "ContainerCreating",
        };
        let (reason, message) = match why {
            Some((reason, message)) => {
                (reason.clone(), Some(message.clone()).filter(|text| !text.is_empty()))
            }
            None => (default.to_owned(), None),
        };
        ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some(reason), message }),
            ..Default::default()
        }
    }
}

fn running(started: Timestamp) -> ContainerState {
    ContainerState {
        running: Some(ContainerStateRunning { started_at: Some(Time(started)) }),
        ..Default::default()
    }
}

fn terminated(one: &Seen, exit: &Exit) -> ContainerState {
    let terminated = ContainerStateTerminated {
        container_id: Some(format!("containerd://{}", one.id)),
        exit_code: exit.code,
        finished_at: Some(Time(exit.finished)),
        message: Some(exit.message.clone()).filter(|text| !text.is_empty()),
        reason: Some(exit.reason.clone()),
        signal: None,
        started_at: exit.started.map(Time),
    };
    ContainerState { terminated: Some(terminated), ..Default::default() }
}

fn phase(
    pod: &Pod,
    roles: &[(Role, Container)],
    inits: &[ContainerStatus],
    mains: &[ContainerStatus],
    memory: &Memory,
    seen: &Observed,
) -> &'static str {
    let policy = pod.restart_policy();
    let ending = pod.is_deleted() || memory.end.is_some();
    let role_of = |name: &str| roles.iter().find(|(_, one)| one.name == name).map(|(role, _)| *role);
    let code = |one: &ContainerStatus| one.state.as_ref()?.terminated.as_ref().map(|ended| ended.exit_code);
    let nothing_runs = seen.running().next().is_none();
    if memory.end.is_some() && nothing_runs {
        return "Failed";
    }
    let main_exists = mains.iter().any(|one| one.container_id.is_some() || one.restart_count > 0);
    let plain_inits = inits.iter().filter(|one| role_of(&one.name) == Some(Role::Init));
    for init in plain_inits.filter(|_| !main_exists) {
        match code(init) {
            Some(0) => {}
            Some(_) if policy == RestartPolicy::Never || (ending && nothing_runs) => return "Failed",
            _ if ending && nothing_runs => return "Failed",
            _ => return "Pending",
        }
    }
    let (mut waiting, mut running, mut stopped, mut succeeded) = (0, 0, 0, 0);
    for main in mains {
        let state = main.state.clone().unwrap_or_default();
        if state.running.is_some() {
            running += 1;
        } else if let Some(ended) = state.terminated {
            stopped += 1;
            succeeded += usize::from(ended.exit_code == 0);
        } else if main.last_state.as_ref().is_some_and(|last| last.terminated.is_some()) {
            stopped += 1;
        } else {
            waiting += 1;
        }
    }
    if waiting > 0 {
        // A pod that was deleted before it ran will not.
        return if ending && nothing_runs { "Failed" } else { "Pending" };
    }
    match (running, stopped) {
        (1.., _) => "Running",
        (0, 1..) if policy == RestartPolicy::Always && !(ending && nothing_runs) => "Running",
        (0, 1..) if stopped == succeeded => "Succeeded",
        (0, 1..) if policy == RestartPolicy::Never || (ending && nothing_runs) => "Failed",
        (0, 1..) => "Running",
        _ => "Pending",
    }
}

fn conditions(
    pod: &Pod,
    roles: &[(Role, Container)],
    status: &PodStatus,
    sandbox_ready: bool,
    initialised: bool,
    now: Timestamp,
) -> Vec<PodCondition> {
    let phase = status.phase.as_deref().unwrap_or_default();
    let all = |list: &Option<Vec<ContainerStatus>>| list.clone().unwrap_or_default();
    let sidecar = |one: &ContainerStatus| {
        roles.iter().any(|(role, container)| *role == Role::Sidecar && container.name == one.name)
    };
    let inits = all(&status.init_container_statuses);
    let unready: Vec<String> = inits
        .iter()
        .filter(|one| sidecar(one))
        .chain(&all(&status.container_statuses))
        .filter(|one| !one.ready)
        .map(|one| one.name.clone())
        .collect();
    let incomplete: Vec<String> = inits
        .iter()
        .filter(|one| if sidecar(one) { one.started != Some(true) } else { !one.ready })
        .map(|one| one.name.clone())
        .collect();

    let yes = || ("True", None, None);
    let no = |reason: &str, message: Option<String>| ("False", Some(reason.to_owned()), message);
    let containers_ready = match phase {
        "Succeeded" => no("PodCompleted", None),
        "Failed" => no("PodFailed", None),
        _ if unready.is_empty() => yes(),
        _ => {
            no("ContainersNotReady", Some(format!("containers with unready status: [{}]", unready.join(" "))))
        }
    };
    let gates = pod.spec().and_then(|spec| spec.readiness_gates.as_deref()).unwrap_or_default();
    let open = |gate: &str| {
        pod.status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .any(|one| one.type_ == gate && one.status == "True")
    };
    let closed: Vec<String> = gates
        .iter()
        .filter(|gate| !open(&gate.condition_type))
        .map(|gate| {
            format!(
                "corresponding condition of pod readiness gate \"{}\" does not exist.",
                gate.condition_type
            )
        })
        .collect();
    let ready = if containers_ready.0 == "True" && !closed.is_empty() {
        no("ReadinessGatesNotReady", Some(closed.join(", ")))
    } else {
        containers_ready.clone()
    };
    let initialised = match phase {
        "Succeeded" => ("True", Some("PodCompleted".to_owned()), None),
        _ if initialised => yes(),
        _ => no(
            "ContainersNotInitialized",
            Some(format!("containers with incomplete status: [{}]", incomplete.join(" "))),
        ),
    };
    let sandbox = if sandbox_ready { yes() } else { ("False", None, None) };

    let mut conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let mut set = |kind: &str, (value, reason, message): (&str, Option<String>, Option<String>)| {
        let old = conditions.iter().position(|one| one.type_ == kind);
        let same = old.map(|at| &conditions[at]).filter(|one| one.status == value);
        let since = same.and_then(|one| one.last_transition_time.clone()).unwrap_or(Time(seconds(now)));
        let fresh = PodCondition {
            last_probe_time: None,
            last_transition_time: Some(since),
            message,
            observed_generation: pod.metadata.generation,
            reason,
            status: value.to_owned(),
            type_: kind.to_owned(),
        };
        match old {
            Some(at) => conditions[at] = fresh,
            None => conditions.push(fresh),
        }
    };
    set("PodReadyToStartContainers", sandbox);
    set("Initialized", initialised);
    set("Ready", ready);
    set("ContainersReady", containers_ready);
    set("PodScheduled", yes());
    conditions
}

/// The API's times have no fractions.
pub fn seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
