//! What has to happen next to one pod.
//!
//! [`plan`] compares the document with what the runtime says and what the worker remembers. It does no I/O and
//! reads no clock, so a pod's whole life can be replayed in a test. The worker carries actions out in order and
//! looks again; a plan without actions means: wait until `again_at` or until something changes.
//!
//! Order of thought: is the pod ending? is its sandbox there? are its init containers through? then its mains.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::memory::{Hook, ImageState, Memory, Trouble, VolumesState};
use crate::observed::{Exit, Observed, Sandbox, Seen, State};
use crate::pod::{PodExt, RestartPolicy, Role, mark};

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make the volumes, or bring their content up to date.
    MountVolumes,
    CreateSandbox {
        attempt: u32,
    },
    /// Ends all in it and gives its address back.
    StopSandbox {
        id: String,
    },
    RemoveSandbox {
        id: String,
    },
    Start {
        name: String,
        role: Role,
        attempt: u32,
        after: Option<Timestamp>,
    },
    Stop {
        id: String,
        name: String,
        grace_s: i64,
        why: String,
    },
    /// Gives a running container the resources that its document now says.
    Resize {
        id: String,
        name: String,
    },
    RemoveContainer {
        id: String,
    },
    /// Everything has ended: volumes and cgroups go.
    Release,
    /// The last word to the API server: the document may go.
    ConfirmDeletion,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub again_at: Option<Timestamp>,
    /// Why a container is not running, where the status must say more than "not yet".
    pub waiting: BTreeMap<String, (String, String)>,
}

impl Plan {
    fn again(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |before| before.min(at)));
    }
}

/// Dead containers kept per name beside the newest: the one that `kubectl logs --previous` reads.
const KEPT_DEAD: usize = 1;

/// How long a failure has its moment in the status before the back-off, or the next try, takes its place.
const ERROR_SHOWN: SignedDuration = SignedDuration::from_secs(2);

pub fn plan(pod: &Pod, seen: &Observed, memory: &Memory, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let roles = pod.roles();
    if pod.is_deleted() || memory.end.is_some() || is_over(pod, &roles, seen) {
        wind_down(&mut plan, pod, &roles, seen, memory, now);
        return plan;
    }
    if let Some(deadline) = deadline(pod) {
        plan.again(deadline);
    }
    if !volumes(&mut plan, memory, now) {
        return plan;
    }
    let Some(sandbox) = sandbox(&mut plan, pod, seen, memory, now) else { return plan };
    containers(&mut plan, pod, &roles, sandbox, seen, memory, now);
    collect_garbage(&mut plan, &roles, sandbox, seen);
    plan
}

/// When the pod's active time is up.
pub fn deadline(pod: &Pod) -> Option<Timestamp> {
    let limit = pod.spec.as_ref()?.active_deadline_seconds?;
    let started = pod.status.as_ref()?.start_time.as_ref()?.0;
    started.checked_add(SignedDuration::from_secs(limit)).ok()
}

/// No container will run again, for a pod that nobody deleted.
pub fn is_over(pod: &Pod, roles: &[(Role, Container)], seen: &Observed) -> bool {
    if pod.is_terminal() {
        return true;
    }
    let policy = pod.restart_policy();
    let ended_for_good = |container: &Container| {
        seen.latest(&container.name).and_then(Seen::exit).is_some_and(|exit| !restarts(policy, exit))
    };
    let of =
        |wanted: Role| roles.iter().filter(move |(role, _)| *role == wanted).map(|(_, container)| container);
    let failed_init = policy == RestartPolicy::Never
        && of(Role::Init)
            .any(|init| seen.latest(&init.name).and_then(Seen::exit).is_some_and(|exit| exit.code != 0));
    let mut mains = of(Role::Main).peekable();
    failed_init || (mains.peek().is_some() && mains.all(ended_for_good))
}

/// Whether the policy starts a main container again after this end.
pub fn restarts(policy: RestartPolicy, exit: &Exit) -> bool {
    match policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit.code != 0,
        RestartPolicy::Never => false,
    }
}

/// Mains first and together, then sidecars one by one from the last, then the sandbox, then all the rest.
fn wind_down(
    plan: &mut Plan,
    pod: &Pod,
    roles: &[(Role, Container)],
    seen: &Observed,
    memory: &Memory,
    now: Timestamp,
) {
    let role_of =
        |name: &str| roles.iter().find(|(_, one)| one.name == name).map_or(Role::Main, |(role, _)| *role);
    let mut running: Vec<&Seen> = seen.running().collect();
    if running.iter().any(|one| role_of(&one.name) != Role::Sidecar) {
        running.retain(|one| role_of(&one.name) != Role::Sidecar);
    } else {
        let place = |one: &&Seen| roles.iter().position(|(_, container)| container.name == one.name);
        running.sort_by_key(place);
        running = running.pop().into_iter().collect();
    }
    let grace_s = pod.grace_s();
    let since = memory.ending_since.unwrap_or(now);
    for one in &running {
        // Sidecars have what the mains left of the grace.
        let used_s = now.duration_since(since).as_secs();
        let grace_s = if role_of(&one.name) == Role::Sidecar { (grace_s - used_s).max(0) } else { grace_s };
        let why = format!("Stopping container {}", one.name);
        stop(plan, one, grace_s, why, memory, now);
    }
    if !running.is_empty() {
        return;
    }
    let ready: Vec<_> = seen.sandboxes.iter().filter(|sandbox| sandbox.ready).collect();
    if !ready.is_empty() {
        plan.actions.extend(ready.into_iter().map(|sandbox| Action::StopSandbox { id: sandbox.id.clone() }));
    } else if !memory.released {
        plan.actions.push(Action::Release);
    } else if pod.is_deleted() {
        // The containers are kept until the document goes, since their ends are in the last status.
        plan.actions.push(Action::ConfirmDeletion);
    }
}

/// True when the volumes stand.
fn volumes(plan: &mut Plan, memory: &Memory, now: Timestamp) -> bool {
    match &memory.volumes {
        VolumesState::Missing => plan.actions.push(Action::MountVolumes),
        VolumesState::Failed { trouble, .. } if now < trouble.until => {
            plan.again(trouble.until);
            return false;
        }
        VolumesState::Failed { .. } => {
            plan.actions.push(Action::MountVolumes);
            return false;
        }
        VolumesState::Ready { refresh_at: Some(at) } if *at <= now => plan.actions.push(Action::MountVolumes),
        VolumesState::Ready { refresh_at: Some(at) } => plan.again(*at),
        VolumesState::Ready { refresh_at: None } => {}
    }
    memory.volumes != VolumesState::Missing
}

/// The sandbox to run in, if it is there; else what leads to one.
fn sandbox<'a>(
    plan: &mut Plan,
    pod: &Pod,
    seen: &'a Observed,
    memory: &Memory,
    now: Timestamp,
) -> Option<&'a Sandbox> {
    let newest = seen.sandboxes.first();
    let usable = |sandbox: &&Sandbox| sandbox.ready && (pod.is_host_network() || !sandbox.ips.is_empty());
    let leftovers = seen
        .sandboxes
        .iter()
        .filter(|sandbox| sandbox.ready)
        .skip(usize::from(newest.filter(usable).is_some()));
    plan.actions.extend(leftovers.map(|sandbox| Action::StopSandbox { id: sandbox.id.clone() }));
    if let Some(sandbox) = newest.filter(usable) {
        return Some(sandbox);
    }
    if let Some(trouble) = memory.sandbox_trouble.as_ref().filter(|trouble| now < trouble.until) {
        plan.again(trouble.until);
        return None;
    }
    plan.actions.push(Action::CreateSandbox { attempt: newest.map_or(0, |sandbox| sandbox.attempt + 1) });
    None
}

fn containers(
    plan: &mut Plan,
    pod: &Pod,
    roles: &[(Role, Container)],
    sandbox: &Sandbox,
    seen: &Observed,
    memory: &Memory,
    now: Timestamp,
) {
    let here = |name: &str| seen.latest(name).filter(|one| one.sandbox == sandbox.id);
    let initialised = roles.iter().any(|(role, main)| *role == Role::Main && here(&main.name).is_some());
    for (role, container) in roles {
        let latest = here(&container.name);
        match role {
            Role::Init if initialised => continue,
            Role::Init => match latest.map(|one| &one.state) {
                Some(State::Exited(exit)) if exit.code == 0 => continue,
                Some(State::Running { .. }) => return,
                _ => {
                    start(plan, pod, *role, container, sandbox, seen, memory, now);
                    return;
                }
            },
            Role::Sidecar | Role::Main => {
                let running = latest.filter(|one| one.is_running());
                match running {
                    Some(one) => {
                        keep_or_stop(plan, pod, container, one, memory, now);
                        let in_the_way = match memory.hooks.get(&one.id) {
                            // The next container starts when the hook is through, as upstream promises.
                            Some(Hook::Running) => true,
                            _ => {
                                *role == Role::Sidecar && !initialised && !is_started(container, one, memory)
                            }
                        };
                        if in_the_way {
                            return;
                        }
                    }
                    None => {
                        start(plan, pod, *role, container, sandbox, seen, memory, now);
                        // Started means running, seen and through its startup probe: look again first.
                        if *role == Role::Sidecar && !initialised {
                            return;
                        }
                    }
                }
            }
            Role::Ephemeral if seen.latest(&container.name).is_none() => {
                start(plan, pod, *role, container, sandbox, seen, memory, now);
            }
            Role::Ephemeral => {}
        }
    }
}

/// Running, its postStart hook through and its startup probe, if it has one, content.
pub fn is_started(container: &Container, seen: &Seen, memory: &Memory) -> bool {
    let probed = memory.probes.get(&seen.id).copied().unwrap_or_default();
    let hook_is_through = !matches!(memory.hooks.get(&seen.id), Some(Hook::Running | Hook::Failed(_)));
    seen.is_running()
        && hook_is_through
        && (container.startup_probe.is_none() || probed.startup == Some(true))
}

fn keep_or_stop(
    plan: &mut Plan,
    pod: &Pod,
    container: &Container,
    one: &Seen,
    memory: &Memory,
    now: Timestamp,
) {
    let name = &container.name;
    let probed = memory.probes.get(&one.id).copied().unwrap_or_default();
    let own_grace = |probe: &Option<k8s_openapi::api::core::v1::Probe>| {
        probe
            .as_ref()
            .and_then(|probe| probe.termination_grace_period_seconds)
            .unwrap_or_else(|| pod.grace_s())
    };
    if let Some(Hook::Failed(_)) = memory.hooks.get(&one.id) {
        stop(plan, one, pod.grace_s(), "FailedPostStartHook".to_owned(), memory, now);
    } else if one.mark != mark(container) {
        let why = format!("Container {name} definition changed, will be restarted");
        stop(plan, one, pod.grace_s(), why, memory, now);
    } else if probed.startup == Some(false) {
        let why = format!("Container {name} failed startup probe, will be restarted");
        stop(plan, one, own_grace(&container.startup_probe), why, memory, now);
    } else if probed.liveness == Some(false) {
        let why = format!("Container {name} failed liveness probe, will be restarted");
        stop(plan, one, own_grace(&container.liveness_probe), why, memory, now);
    } else if memory
        .given
        .get(&one.id)
        .is_some_and(|given| *given != container.resources.clone().unwrap_or_default())
    {
        plan.actions.push(Action::Resize { id: one.id.clone(), name: name.clone() });
    }
}

/// Stops a container, unless that is under way and would not be faster the second time.
fn stop(plan: &mut Plan, one: &Seen, grace_s: i64, why: String, memory: &Memory, now: Timestamp) {
    let gone_by = now + SignedDuration::from_secs(grace_s.min(i64::from(i32::MAX)));
    let under_way = memory.stopping.get(&one.id);
    if under_way.is_none_or(|earlier| gone_by + SignedDuration::from_secs(1) < *earlier) {
        plan.actions.push(Action::Stop { id: one.id.clone(), name: one.name.clone(), grace_s, why });
    }
}

#[allow(clippy::too_many_arguments)] // The whole question, asked in one place.
fn start(
    plan: &mut Plan,
    pod: &Pod,
    role: Role,
    container: &Container,
    sandbox: &Sandbox,
    seen: &Observed,
    memory: &Memory,
    now: Timestamp,
) {
    let name = &container.name;
    let latest = seen.latest(name);
    if let Some(one) = latest.filter(|one| one.state == State::Unknown)
        && role == Role::Main
        && pod.restart_policy() == RestartPolicy::Never
    {
        // It may have run. Told to stop, the runtime makes up its mind that it has ended.
        stop(plan, one, 0, format!("Container {name} was lost track of"), memory, now);
        return;
    }
    if let Some(one) = latest.filter(|one| matches!(one.state, State::Created | State::Unknown)) {
        plan.actions.push(Action::RemoveContainer { id: one.id.clone() });
    }
    let exit = latest.and_then(Seen::exit);
    // Init containers run again in a new sandbox whatever their end was; a sidecar always does.
    let in_this_sandbox = latest.is_some_and(|one| one.sandbox == sandbox.id);
    let again = match (role, exit) {
        (_, None) | (Role::Sidecar, Some(_)) => true,
        (Role::Init, Some(exit)) => {
            !in_this_sandbox || (exit.code != 0 && pod.restart_policy() != RestartPolicy::Never)
        }
        (Role::Main, Some(exit)) => restarts(pod.restart_policy(), exit),
        (Role::Ephemeral, Some(_)) => false,
    };
    if !again {
        return;
    }
    if let Some(exit) = exit.filter(|_| in_this_sandbox) {
        let backoff = memory.restarts.get(name).copied().unwrap_or_default();
        if let Some(until) = backoff.wait_until(exit.finished, now) {
            plan.again(until);
            let pause = human(backoff.pause());
            let message = format!(
                "back-off {pause} restarting failed container={name} pod={}_{}({})",
                pod.name(),
                pod.namespace(),
                pod.uid()
            );
            plan.waiting.insert(name.clone(), ("CrashLoopBackOff".to_owned(), message));
            return;
        }
    }
    if let (Some(one), Some(exit)) = (latest, exit)
        && let Some(Hook::Failed(message)) = memory.hooks.get(&one.id)
        && now < exit.finished + ERROR_SHOWN
    {
        plan.waiting.insert(name.clone(), ("PostStartHookError".to_owned(), message.clone()));
        plan.again(exit.finished + ERROR_SHOWN);
        return;
    }
    match memory.images.get(name) {
        Some(ImageState::Pulling) => return,
        Some(ImageState::Failed { trouble, .. }) if now < trouble.until => {
            let shown_until = trouble.at + ERROR_SHOWN;
            if trouble.reason == "ErrImagePull" && now >= shown_until {
                let image = container.image.as_deref().unwrap_or_default();
                let message =
                    format!("Back-off pulling image \"{image}\": {}: {}", trouble.reason, trouble.message);
                plan.waiting.insert(name.clone(), ("ImagePullBackOff".to_owned(), message));
                plan.again(trouble.until);
            } else {
                plan.waiting.insert(name.clone(), (trouble.reason.clone(), trouble.message.clone()));
                plan.again(trouble.until.min(shown_until.max(now + SignedDuration::from_secs(1))));
            }
            return;
        }
        _ => {}
    }
    if let Some(Trouble { reason, message, until, .. }) =
        memory.failed_starts.get(name).filter(|one| now < one.until)
    {
        plan.waiting.insert(name.clone(), (reason.clone(), message.clone()));
        plan.again(*until);
        return;
    }
    let attempt = match latest {
        // It never ran: the number is still free.
        Some(one) if one.state == State::Created => one.attempt,
        Some(one) => one.attempt + 1,
        None => attempts_told(pod, name),
    };
    let after = exit.map(|exit| exit.finished);
    plan.actions.push(Action::Start { name: name.clone(), role, attempt, after });
}

/// Starts that the API server knows of and the runtime doesn't: a node that was swept empty counts on.
fn attempts_told(pod: &Pod, name: &str) -> u32 {
    let Some(status) = &pod.status else { return 0 };
    let all =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let told = all.into_iter().flatten().flatten().find(|one| one.name == name);
    told.filter(|one| one.container_id.is_some() || one.restart_count > 0)
        .map_or(0, |one| u32::try_from(one.restart_count).unwrap_or(0) + 1)
}

fn collect_garbage(plan: &mut Plan, roles: &[(Role, Container)], sandbox: &Sandbox, seen: &Observed) {
    for (_, container) in roles {
        let older = seen.all(&container.name).skip(1 + KEPT_DEAD).filter(|one| !one.is_running());
        plan.actions.extend(older.map(|one| Action::RemoveContainer { id: one.id.clone() }));
    }
    let empty = |old: &&Sandbox| {
        !old.ready && old.id != sandbox.id && !seen.containers.iter().any(|one| one.sandbox == old.id)
    };
    let old = seen.sandboxes.iter().filter(empty);
    plan.actions.extend(old.map(|old| Action::RemoveSandbox { id: old.id.clone() }));
}

/// `10s`, `1m20s`, `5m0s`: as Go prints durations.
fn human(duration: SignedDuration) -> String {
    let s = duration.as_secs();
    if s < 60 { format!("{s}s") } else { format!("{}m{}s", s / 60, s % 60) }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
