//! One pod's worker: look, plan, act, tell; and again.
//!
//! Every wake-up (a changed document, a container that ended, a probe's verdict, a timer) leads to the same loop.
//! What takes long (pulls, hooks, graceful stops) runs beside it and leaves its result in [`Memory`].
//! Acting is in [`crate::execute`], deciding in [`crate::plan`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::events::Kind;
use crate::memory::{End, Hook, Memory};
use crate::observed::{Exited, Observed, look};
use crate::plan::{self, Action, Plan, is_started};
use crate::pod::{PodExt, Role};
use crate::probing::{self, ProbeKind, Whom};
use crate::recall::{SCHEME, recall};
use crate::shared::Shared;
use crate::status::{Facts, status};
use crate::status_writer::StatusWriter;

/// The longest a worker sleeps: whatever was missed is found then.
const RESYNC: Duration = Duration::from_secs(60);

/// Pause after a round that got nowhere, so that a runtime that is away is not hammered.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

/// What the cluster wants of this pod.
#[derive(Debug, Clone)]
pub struct Desired {
    pub pod: Arc<Pod>,
    /// The document no longer exists.
    pub gone: bool,
}

/// What a worker last saw, for the kubelet's server.
#[derive(Debug, Clone, Default)]
pub struct View {
    pub seen: Observed,
    pub status: PodStatus,
}

/// How others reach a worker.
pub struct Handle {
    pub desired: watch::Sender<Desired>,
    pub nudge: Arc<Notify>,
    pub view: watch::Receiver<View>,
}

pub struct Worker {
    pub shared: Arc<Shared>,
    pub memory: Arc<Mutex<Memory>>,
    pub nudge: Arc<Notify>,
    pub status: StatusWriter,
    pub deletion_asked: Option<Timestamp>,
    desired: watch::Receiver<Desired>,
    view: watch::Sender<View>,
    exited: Exited,
    probers: HashMap<(String, ProbeKind), AbortHandle>,
    adopted: bool,
}

impl Worker {
    /// A worker for a new pod, and the handle to reach it. [`Worker::run`] ends when nothing is left of the pod.
    pub fn new(shared: Arc<Shared>, pod: Arc<Pod>) -> (Worker, Handle) {
        let (desired_to, desired) = watch::channel(Desired { pod, gone: false });
        let (view, view_from) = watch::channel(View::default());
        let nudge = Arc::new(Notify::new());
        let worker = Worker {
            status: StatusWriter::start(&shared),
            memory: Arc::default(),
            nudge: nudge.clone(),
            deletion_asked: None,
            desired,
            view,
            exited: Exited::new(),
            probers: HashMap::new(),
            adopted: false,
            shared,
        };
        (worker, Handle { desired: desired_to, nudge, view: view_from })
    }

    pub async fn run(mut self) {
        loop {
            let Desired { pod, gone } = self.desired.borrow_and_update().clone();
            let pod = if gone { removed(&pod) } else { pod };
            let again = match self.round(&pod, gone).await {
                Round::Progress => continue,
                Round::Finished => break,
                Round::Wait(again) => again,
            };
            tokio::select! {
                changed = self.desired.changed() => {
                    if changed.is_err() {
                        break;
                    }
                }
                () = self.nudge.notified() => {}
                () = tokio::time::sleep(again) => {}
            }
        }
    }

    async fn round(&mut self, pod: &Arc<Pod>, gone: bool) -> Round {
        let seen = look(&self.shared.cri, pod.uid(), &self.shared.around.logs, &mut self.exited).await;
        let mut seen = match seen {
            Ok(seen) => seen,
            Err(error) => {
                tracing::warn!(pod = pod.name(), namespace = pod.namespace(), %error, "runtime does not answer");
                return Round::Wait(AFTER_FAILURE);
            }
        };
        let now = self.shared.config.clock.now();
        // What the API server has may lag behind what it was told.
        if let Some(told) = self.status.last().or(pod.status.as_ref()) {
            recall(&mut seen, told, now);
        }
        let plan = {
            let mut memory = self.memory.lock();
            if !std::mem::replace(&mut self.adopted, true) {
                adopt(pod, &seen, &mut memory);
            }
            forget_gone(&seen, &mut memory);
            end_if_late(pod, &mut memory, now);
            if pod.is_deleted() || memory.end.is_some() {
                memory.ending_since.get_or_insert(now);
            }
            plan::plan(pod, &seen, &memory, now)
        };
        self.keep_probing(pod, &seen);
        self.tell(pod, &seen, &plan, now, gone);

        if gone && plan.actions == [Action::ConfirmDeletion] {
            return if self.remove_traces(pod, &seen).await {
                Round::Finished
            } else {
                Round::Wait(AFTER_FAILURE)
            };
        }
        let mut progress = false;
        for action in &plan.actions {
            tracing::debug!(pod = pod.name(), namespace = pod.namespace(), ?action, "next step");
            let done = crate::execute::execute(self, pod, &seen, action).await;
            progress |= done;
            // What comes after a step that failed was planned for a world where it didn't.
            if !done {
                break;
            }
        }
        if progress {
            return Round::Progress;
        }
        let timer = plan.again_at.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        let limit = if plan.actions.is_empty() { RESYNC } else { AFTER_FAILURE };
        Round::Wait(timer.map_or(limit, |timer| timer.min(limit)).max(Duration::from_millis(10)))
    }

    /// Tells the cluster and the server what this look found.
    fn tell(&mut self, pod: &Arc<Pod>, seen: &Observed, plan: &Plan, now: Timestamp, gone: bool) {
        let facts = Facts { host_ips: self.shared.host_ips(), now };
        // What the API server has may lag behind what it was told.
        let mut latest = (**pod).clone();
        if let Some(told) = self.status.last() {
            merge_told(&mut latest, told);
        }
        let status = status(&latest, seen, &self.memory.lock(), plan, &facts);
        if !gone {
            self.status.set(pod.clone(), status.clone());
        }
        self.view.send_replace(View { seen: seen.clone(), status });
    }

    /// Starts and ends probes, so that exactly the running containers are asked.
    fn keep_probing(&mut self, pod: &Arc<Pod>, seen: &Observed) {
        let memory = self.memory.lock().clone();
        let ending = pod.is_deleted() || memory.end.is_some();
        let ip = seen.sandboxes.first().and_then(|sandbox| sandbox.ips.first().cloned());
        let ip = if pod.is_host_network() { self.shared.host_ips().first().cloned() } else { ip };
        let mut wanted = HashMap::new();
        for (role, container) in pod.roles() {
            let Some(one) = seen.latest(&container.name).filter(|one| one.is_running()) else { continue };
            if !matches!(role, Role::Main | Role::Sidecar) {
                continue;
            }
            let stopping = ending || memory.stopping.contains_key(&one.id);
            let started = is_started(&container, one, &memory);
            let probed = memory.probes.get(&one.id).copied().unwrap_or_default();
            for (kind, probe, due) in [
                (ProbeKind::Startup, &container.startup_probe, !stopping && probed.startup.is_none()),
                (
                    ProbeKind::Liveness,
                    &container.liveness_probe,
                    !stopping && started && probed.liveness != Some(false),
                ),
                (ProbeKind::Readiness, &container.readiness_probe, started),
            ] {
                if let (Some(probe), true) = (probe, due) {
                    wanted.insert((one.id.clone(), kind), (container.clone(), probe.clone()));
                }
            }
        }
        self.probers.retain(|key, prober| {
            let keep = wanted.contains_key(key) && !prober.is_finished();
            if !keep {
                prober.abort();
            }
            keep
        });
        for ((id, kind), (container, probe)) in wanted {
            if self.probers.contains_key(&(id.clone(), kind)) {
                continue;
            }
            let whom = Whom {
                cri: self.shared.cri.clone(),
                container_id: id.clone(),
                container: container.clone(),
                ip: ip.clone().unwrap_or_default(),
            };
            let handle = self.spawn_prober(pod.clone(), whom, kind, probe);
            self.probers.insert((id, kind), handle);
        }
    }

    fn spawn_prober(
        &self,
        pod: Arc<Pod>,
        whom: Whom,
        kind: ProbeKind,
        probe: k8s_openapi::api::core::v1::Probe,
    ) -> AbortHandle {
        let (memory, nudge, id) = (self.memory.clone(), self.nudge.clone(), whom.container_id.clone());
        let tell = move |verdict: bool| {
            let mut memory = memory.lock();
            let probed = memory.probes.entry(id.clone()).or_default();
            match kind {
                ProbeKind::Startup => probed.startup = Some(verdict),
                ProbeKind::Liveness => probed.liveness = Some(verdict),
                ProbeKind::Readiness => probed.readiness = Some(verdict),
            }
            nudge.notify_one();
        };
        let shared = self.shared.clone();
        let field = crate::execute::field(&pod, &whom.container.name);
        let fail = move |reason: &str| {
            let message = format!("{} probe failed: {reason}", kind.name());
            shared.events.pod(&pod, field.clone(), Kind::Warning, "Unhealthy", message);
        };
        tokio::spawn(probing::run(whom, kind, probe, tell, fail)).abort_handle()
    }

    /// The last traces of a pod whose document is gone. False: try again.
    async fn remove_traces(&mut self, pod: &Pod, seen: &Observed) -> bool {
        for sandbox in &seen.sandboxes {
            if let Err(error) = self.shared.cri.remove_pod_sandbox(&sandbox.id).await {
                tracing::warn!(pod = pod.name(), %error, "sandbox stays for now");
                return false;
            }
        }
        // Containers whose sandbox went before them.
        for one in &seen.containers {
            if let Err(error) = self.shared.cri.remove_container(&one.id).await {
                tracing::debug!(pod = pod.name(), %error, "container is already gone");
            }
        }
        self.shared.cluster.forget_pod(pod.uid());
        let logs = crate::sandbox::log_folder(&self.shared.around.logs, pod);
        let (volumes, uid) = (self.shared.volumes.clone(), pod.uid().to_owned());
        let removed = tokio::task::spawn_blocking(move || {
            volumes.remove(&uid)?;
            match std::fs::remove_dir_all(&logs) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        });
        match removed.await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(pod = pod.name(), %error, "the pod's folder stays for now");
                false
            }
            Err(error) => {
                tracing::warn!(pod = pod.name(), %error, "removing the pod's folder broke off");
                false
            }
        }
    }
}

enum Round {
    /// Something was done: look again at once.
    Progress,
    Wait(Duration),
    Finished,
}

impl Drop for Worker {
    fn drop(&mut self) {
        for prober in self.probers.values() {
            prober.abort();
        }
    }
}

/// A pod whose document vanished is one that is being deleted, whatever its last version said.
fn removed(pod: &Arc<Pod>) -> Arc<Pod> {
    if pod.is_deleted() {
        return pod.clone();
    }
    let mut pod = (**pod).clone();
    let some_time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
    pod.metadata.deletion_timestamp = Some(pod.metadata.creation_timestamp.clone().unwrap_or(some_time));
    Arc::new(pod)
}

/// What the cluster was told about running containers still holds after a restart of the kubelet: a pod must not
/// turn unready only because nobody has asked it yet.
fn adopt(pod: &Pod, seen: &Observed, memory: &mut Memory) {
    for (_, container) in pod.roles() {
        let running = seen.latest(&container.name).filter(|one| one.is_running());
        if let Some(one) = running {
            memory.given.insert(one.id.clone(), container.resources.unwrap_or_default());
        }
    }
    let Some(status) = &pod.status else { return };
    let told = [&status.init_container_statuses, &status.container_statuses].into_iter().flatten().flatten();
    for one in told {
        let id = one.container_id.as_deref().and_then(|id| id.strip_prefix(SCHEME)).unwrap_or_default();
        if seen.running().any(|running| running.id == id) {
            let probed = memory.probes.entry(id.to_owned()).or_default();
            probed.startup = one.started.filter(|started| *started);
            probed.readiness = Some(one.ready).filter(|ready| *ready);
        }
    }
}

/// Memory of containers ends with them.
fn forget_gone(seen: &Observed, memory: &mut Memory) {
    let running: std::collections::HashSet<&str> = seen.running().map(|one| one.id.as_str()).collect();
    memory.probes.retain(|id, _| running.contains(id.as_str()));
    let known = |id: &str| seen.containers.iter().any(|one| one.id == id);
    memory.hooks.retain(|id, hook| match hook {
        Hook::Failed(_) => known(id),
        Hook::Running | Hook::Done => running.contains(id.as_str()),
    });
    memory.stopping.retain(|id, _| running.contains(id.as_str()));
    memory.given.retain(|id, _| running.contains(id.as_str()));
}

fn end_if_late(pod: &Pod, memory: &mut Memory, now: Timestamp) {
    let late = plan::deadline(pod).is_some_and(|deadline| deadline <= now);
    if late && memory.end.is_none() && !pod.is_terminal() {
        let message = "Pod was active on the node longer than the specified deadline".to_owned();
        memory.end = Some(End { reason: "DeadlineExceeded", message });
    }
}

/// Puts what the API server was last told over what it last said, where the kubelet has the last word.
fn merge_told(pod: &mut Pod, told: &PodStatus) {
    let status = pod.status.get_or_insert_default();
    let theirs = status.conditions.take().unwrap_or_default();
    let ours = told.conditions.clone().unwrap_or_default();
    let is_ours = |kind: &str| {
        matches!(
            kind,
            "PodReadyToStartContainers" | "Initialized" | "Ready" | "ContainersReady" | "PodScheduled"
        )
    };
    let mut conditions: Vec<_> = theirs.into_iter().filter(|one| !is_ours(&one.type_)).collect();
    conditions.extend(ours.into_iter().filter(|one| is_ours(&one.type_)));
    status.conditions = Some(conditions);
    status.phase = told.phase.clone();
    status.start_time = told.start_time.clone();
    status.pod_ips = told.pod_ips.clone();
    status.init_container_statuses = told.init_container_statuses.clone();
    status.container_statuses = told.container_statuses.clone();
    status.ephemeral_container_statuses = told.ephemeral_container_statuses.clone();
}
