//! Carries out one step of a pod's plan.
//!
//! [`execute`] is true when the world changed and should be looked at again at once. Failures go into the worker's
//! memory with a time to try again, and into an event: they are part of what the next plan sees.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, Volume};
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use node_runtime::cri::Image;
use node_volumes::Sources;
use node_volumes::downward::Addresses;

use crate::backoff::{Backoff, MOUNTS};
use crate::container::{self, chain};
use crate::env::{self, Lookup};
use crate::events::Kind;
use crate::images::{self, Presence};
use crate::memory::{Hook, ImageState, Trouble, VolumesState};
use crate::observed::{Observed, Sandbox};
use crate::plan::Action;
use crate::pod::{PodExt, Role};
use crate::probing::{self, Question, Whom};
use crate::sandbox;
use crate::worker::Worker;

/// Content of volumes is looked at this often; upstream's order of magnitude.
const REFRESH_S: i64 = 60;

/// After a failure of sandboxes and starts.
const RETRY_S: i64 = 2;

/// What a container gets at least between its preStop hook and the kill.
const LEAST_GRACE_S: i64 = 2;

/// A hook may take this long; upstream has no bound but the pod's life.
const HOOK_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// A deletion that was confirmed and has no effect yet is confirmed again.
const CONFIRM_AGAIN_S: i64 = 5;

pub async fn execute(worker: &mut Worker, pod: &Arc<Pod>, seen: &Observed, action: &Action) -> bool {
    match action {
        Action::MountVolumes => mount_volumes(worker, pod).await,
        Action::CreateSandbox { attempt } => create_sandbox(worker, pod, *attempt).await,
        Action::StopSandbox { id } => {
            let stopped = worker.shared.cri.stop_pod_sandbox(id).await;
            logged(pod, "sandbox does not stop", stopped)
        }
        Action::RemoveSandbox { id } => {
            let removed = worker.shared.cri.remove_pod_sandbox(id).await;
            logged(pod, "old sandbox stays", removed)
        }
        Action::Start { name, role, attempt, after } => {
            start_container(worker, pod, seen, name, *role, *attempt, *after).await
        }
        Action::Stop { id, name, grace_s, why } => {
            stop_container(worker, pod, id, name, *grace_s, why);
            // The end is seen when it comes.
            false
        }
        Action::Resize { id, name } => resize(worker, pod, id, name).await,
        Action::RemoveContainer { id } => {
            let removed = worker.shared.cri.remove_container(id).await;
            logged(pod, "old container stays", removed)
        }
        Action::Release => release(worker, pod).await,
        Action::ConfirmDeletion => {
            confirm_deletion(worker, pod).await;
            false
        }
    }
}

/// `spec.containers{main}`: how events name a container.
pub fn field(pod: &Pod, name: &str) -> Option<String> {
    let roles = pod.roles();
    let (role, _) = roles.iter().find(|(_, container)| container.name == name)?;
    let list = match role {
        Role::Init | Role::Sidecar => "initContainers",
        Role::Main => "containers",
        Role::Ephemeral => "ephemeralContainers",
    };
    Some(format!("spec.{list}{{{name}}}"))
}

fn logged<E: std::error::Error>(pod: &Pod, what: &str, result: Result<(), E>) -> bool {
    if let Err(error) = &result {
        tracing::warn!(pod = pod.name(), namespace = pod.namespace(), error = chain(error), "{what}");
    }
    result.is_ok()
}

fn trouble(reason: &str, message: impl Into<String>, now: Timestamp, pause_s: i64) -> Trouble {
    let until = now + SignedDuration::from_secs(pause_s);
    Trouble { reason: reason.to_owned(), message: message.into(), at: now, until }
}

async fn mount_volumes(worker: &mut Worker, pod: &Arc<Pod>) -> bool {
    let shared = worker.shared.clone();
    let now = shared.config.clock.now();
    let result = shared.volumes.set_up(pod, &*shared.cluster, now).await;
    let refresh_at = has_content(pod).then(|| now + SignedDuration::from_secs(REFRESH_S));
    let mut memory = worker.memory.lock();
    let was_ready = matches!(memory.volumes, VolumesState::Ready { .. });
    match result {
        Ok(_) => {
            memory.volumes = VolumesState::Ready { refresh_at };
            // A refresh changes nothing that plans look at.
            !was_ready
        }
        Err(errors) => {
            for error in &errors.0 {
                shared.events.pod(pod, None, Kind::Warning, "FailedMount", node_volumes::whole(error));
            }
            let backoff = match &memory.volumes {
                VolumesState::Failed { backoff, .. } => backoff.next(now),
                _ => Backoff::of(MOUNTS).next(now),
            };
            memory.volumes = match was_ready {
                true => VolumesState::Ready { refresh_at },
                false => {
                    let until = now + backoff.pause();
                    let (reason, message) = ("FailedMount".to_owned(), errors.to_string());
                    VolumesState::Failed { trouble: Trouble { reason, message, at: now, until }, backoff }
                }
            };
            false
        }
    }
}

/// The pod has a volume whose content can change.
fn has_content(pod: &Pod) -> bool {
    let changes = |volume: &Volume| volume.empty_dir.is_none() && volume.host_path.is_none();
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).any(changes)
}

async fn create_sandbox(worker: &mut Worker, pod: &Arc<Pod>, attempt: u32) -> bool {
    let shared = worker.shared.clone();
    let result = async {
        shared.cgroups.make(pod).map_err(|error| format!("failed to make the pod's cgroup: {error}"))?;
        let logs = sandbox::log_folder(&shared.around.logs, pod);
        tokio::fs::create_dir_all(&logs).await.map_err(|error| format!("{}: {error}", logs.display()))?;
        let config = sandbox::config(pod, attempt, &shared.cgroups.pod_path(pod), &shared.around);
        let created = shared.cri.run_pod_sandbox(config).await;
        created.map_err(|error| format!("Failed to create pod sandbox: {}", error.message))
    };
    match result.await {
        Ok(_) => {
            worker.memory.lock().sandbox_trouble = None;
            true
        }
        Err(message) => {
            shared.events.pod(pod, None, Kind::Warning, "FailedCreatePodSandBox", message.clone());
            let now = shared.config.clock.now();
            worker.memory.lock().sandbox_trouble =
                Some(trouble("FailedCreatePodSandBox", message, now, RETRY_S));
            false
        }
    }
}

async fn start_container(
    worker: &mut Worker,
    pod: &Arc<Pod>,
    seen: &Observed,
    name: &str,
    role: Role,
    attempt: u32,
    after: Option<Timestamp>,
) -> bool {
    let Some((_, container)) = pod.roles().into_iter().find(|(_, one)| one.name == name) else {
        return false;
    };
    let Some(sandbox) = seen.sandboxes.first() else { return false };
    let shared = worker.shared.clone();
    let now = shared.config.clock.now();

    let just_pulled = worker.pulled(name, &container, attempt);
    let image = match images::presence(&shared.cri, &container, just_pulled).await {
        Ok(Presence::Here(image)) => image,
        Ok(Presence::MustPull) => {
            pull(worker, pod, &container, attempt);
            return true;
        }
        Ok(Presence::Refused(reason, message)) => {
            let event = if reason == "InvalidImageName" { "InspectFailed" } else { reason };
            shared.events.pod(pod, field(pod, name), Kind::Warning, event, message.clone());
            image_failed(worker, name, reason, message, now);
            return true;
        }
        Err(error) => {
            worker
                .memory
                .lock()
                .failed_starts
                .insert(name.to_owned(), trouble("ImageInspectError", error.message, now, RETRY_S));
            return true;
        }
    };
    if !just_pulled {
        let message = format!(
            "Container image \"{}\" already present on machine",
            container.image.as_deref().unwrap_or_default()
        );
        shared.events.pod(pod, field(pod, name), Kind::Normal, "Pulled", message);
    }
    if let Some(failed) = after {
        let mut memory = worker.memory.lock();
        let backoff = memory.restarts.entry(name.to_owned()).or_default();
        *backoff = backoff.next(failed);
    }
    match create_and_start(worker, pod, seen, sandbox, &container, role, attempt, &image).await {
        Ok(id) => {
            let mut memory = worker.memory.lock();
            memory.failed_starts.remove(name);
            memory.images.remove(name);
            memory.given.insert(id.clone(), container.resources.clone().unwrap_or_default());
            drop(memory);
            post_start(worker, pod, sandbox, &container, id);
        }
        Err((reason, message)) => {
            shared.events.pod(pod, field(pod, name), Kind::Warning, "Failed", format!("Error: {message}"));
            worker
                .memory
                .lock()
                .failed_starts
                .insert(name.to_owned(), trouble(reason, message, now, RETRY_S));
        }
    }
    true
}

/// The id of the container, or a reason for its waiting with a message.
#[allow(clippy::too_many_arguments)] // All that a start is made of.
async fn create_and_start(
    worker: &Worker,
    pod: &Arc<Pod>,
    seen: &Observed,
    sandbox: &Sandbox,
    container: &Container,
    role: Role,
    attempt: u32,
    image: &Image,
) -> Result<String, (&'static str, String)> {
    let shared = &worker.shared;
    let config_error = |message: String| ("CreateContainerConfigError", message);
    let ips = if pod.is_host_network() { shared.host_ips() } else { sandbox.ips.clone() };
    let environment = environment(worker, pod, container, &ips).await.map_err(config_error)?;
    let now = shared.config.clock.now();
    let mounted = shared
        .volumes
        .set_up(pod, &*shared.cluster, now)
        .await
        .map_err(|error| config_error(chain(&error)))?;
    let folder = shared.volumes.pod_folder(pod.uid());
    let hosts_file = folder.join("etc-hosts");
    let message_file = folder
        .join("containers")
        .join(&container.name)
        .join(format!("{attempt}-{:08x}", rand::random::<u32>()));
    let files = async {
        let node_hosts = if pod.is_host_network() {
            tokio::fs::read_to_string("/etc/hosts").await.unwrap_or_default()
        } else {
            String::new()
        };
        let hosts = sandbox::hosts(pod, &ips, &node_hosts, &shared.around.cluster_domain);
        tokio::fs::create_dir_all(&folder).await?;
        // Written in place: containers that run already have this very file mounted.
        tokio::fs::write(&hosts_file, hosts).await?;
        if let Some(parent) = message_file.parent() {
            tokio::fs::create_dir_all(parent).await?;
        }
        tokio::fs::write(&message_file, b"").await?;
        // Whatever user the container runs as may leave a message.
        use std::os::unix::fs::PermissionsExt;
        tokio::fs::set_permissions(&message_file, std::fs::Permissions::from_mode(0o666)).await?;
        let logs = sandbox::log_folder(&shared.around.logs, pod).join(&container.name);
        tokio::fs::create_dir_all(logs).await
    };
    files.await.map_err(|error: std::io::Error| config_error(error.to_string()))?;

    let target = pod.spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
    let target = target.filter(|one| role == Role::Ephemeral && one.name == container.name);
    let target = target.filter_map(|one| one.target_container_name.as_deref()).next();
    let start = container::Start {
        pod,
        container,
        attempt,
        image,
        environment: &environment,
        mounted: &mounted,
        hosts_file: &hosts_file,
        message_file,
        seccomp_folder: shared.config.root_dir.join("seccomp"),
        target_id: target.and_then(|name| seen.latest(name)).map(|one| one.id.clone()),
        node_memory_bytes: shared.config.capacity.memory_bytes,
    };
    let config = container::config(&start).map_err(config_error)?;
    let sandbox_config = sandbox::config(pod, sandbox.attempt, &shared.cgroups.pod_path(pod), &shared.around);
    let id = shared.cri.create_container(&sandbox.id, config, sandbox_config).await;
    let id = id.map_err(|error| ("CreateContainerError", error.message))?;
    let about = field(pod, &container.name);
    shared.events.pod(
        pod,
        about.clone(),
        Kind::Normal,
        "Created",
        format!("Container created: {}", container.name),
    );
    shared.cri.start_container(&id).await.map_err(|error| ("RunContainerError", error.message))?;
    shared.events.pod(pod, about, Kind::Normal, "Started", format!("Container started: {}", container.name));
    Ok(id)
}

async fn environment(
    worker: &Worker,
    pod: &Pod,
    container: &Container,
    ips: &[String],
) -> Result<BTreeMap<String, String>, String> {
    let shared = &worker.shared;
    let mut lookup = Lookup {
        services: env::services(pod, &shared.cluster.services().await),
        addresses: Addresses { host_ips: shared.host_ips(), pod_ips: ips.to_vec() },
        allocatable: shared.cluster.allocatable(),
        ..Lookup::default()
    };
    let (maps, secrets) = env::references(container);
    for name in maps {
        let found = shared.cluster.config_map_now(pod.namespace(), &name).await?;
        lookup.config_maps.insert(name, found.map(|found| (*found).clone()));
    }
    for name in secrets {
        let found = shared.cluster.secret_now(pod.namespace(), &name).await?;
        lookup.secrets.insert(name, found.map(|found| (*found).clone()));
    }
    env::environment(pod, container, &lookup)
}

/// Starts a pull beside the worker.
fn pull(worker: &mut Worker, pod: &Arc<Pod>, container: &Container, attempt: u32) {
    let (name, image) = (container.name.clone(), container.image.clone().unwrap_or_default());
    let backoff = match worker.memory.lock().images.insert(name.clone(), ImageState::Pulling) {
        Some(ImageState::Failed { backoff, .. }) => backoff,
        Some(ImageState::Pulling | ImageState::Pulled { .. }) | None => Backoff::default(),
    };
    let (shared, memory, nudge, pod) =
        (worker.shared.clone(), worker.memory.clone(), worker.nudge.clone(), pod.clone());
    worker.shared.tasks.clone().spawn(async move {
        let Ok(_permit) = shared.pulls.acquire().await else { return };
        let about = field(&pod, &name);
        shared.events.pod(&pod, about.clone(), Kind::Normal, "Pulling", format!("Pulling image \"{image}\""));
        let started = shared.config.clock.monotonic();
        let result = images::pull(&shared.cri, &shared.cluster, &pod, &image).await;
        let took_ms = (shared.config.clock.monotonic() - started).as_millis();
        let now = shared.config.clock.now();
        let state = match result {
            Ok(_) => {
                let message = format!("Successfully pulled image \"{image}\" in {took_ms}ms");
                shared.events.pod(&pod, about, Kind::Normal, "Pulled", message);
                ImageState::Pulled { attempt, image }
            }
            Err(message) => {
                let failed = format!("Failed to pull image \"{image}\": {message}");
                shared.events.pod(&pod, about.clone(), Kind::Warning, "Failed", failed.clone());
                shared.events.pod(&pod, about.clone(), Kind::Warning, "Failed", "Error: ErrImagePull");
                shared.events.pod(
                    &pod,
                    about,
                    Kind::Normal,
                    "BackOff",
                    format!("Back-off pulling image \"{image}\""),
                );
                let backoff = backoff.next(now);
                let trouble = trouble("ErrImagePull", message, now, backoff.pause().as_secs());
                ImageState::Failed { trouble, backoff }
            }
        };
        memory.lock().images.insert(name, state);
        nudge.notify_one();
    });
}

fn image_failed(worker: &Worker, name: &str, reason: &str, message: String, now: Timestamp) {
    let mut memory = worker.memory.lock();
    let backoff = match memory.images.get(name) {
        Some(ImageState::Failed { backoff, .. }) => backoff.next(now),
        _ => Backoff::default().next(now),
    };
    let trouble = trouble(reason, message, now, backoff.pause().as_secs());
    memory.images.insert(name.to_owned(), ImageState::Failed { trouble, backoff });
}

fn post_start(worker: &Worker, pod: &Arc<Pod>, sandbox: &Sandbox, container: &Container, id: String) {
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
    let Some(question) = hook.and_then(Question::of_hook) else { return };
    worker.memory.lock().hooks.insert(id.clone(), Hook::Running);
    let whom = whom(worker, pod, sandbox.ips.first().cloned(), container, &id);
    let (shared, memory, nudge, pod) =
        (worker.shared.clone(), worker.memory.clone(), worker.nudge.clone(), pod.clone());
    worker.shared.tasks.clone().spawn(async move {
        let outcome = match probing::ask(&whom, &question, HOOK_TIMEOUT).await {
            Ok(()) => Hook::Done,
            Err(reason) => {
                let about = field(&pod, &whom.container.name);
                // What the hook said is for the pod's status alone: it may hold secrets, and more people read
                // events.
                shared.events.pod(&pod, about, Kind::Warning, "FailedPostStartHook", "PostStartHook failed");
                Hook::Failed(hook_failed(&pod, &whom.container.name, &question, &reason))
            }
        };
        memory.lock().hooks.insert(id, outcome);
        nudge.notify_one();
    });
}

/// Upstream's words for a container's status.
fn hook_failed(pod: &Pod, container: &str, question: &Question, reason: &str) -> String {
    let (kind, what) = match question {
        Question::Exec(exec) => ("Exec", format!("[{}]", exec.command.clone().unwrap_or_default().join(" "))),
        Question::Http(http) => ("HTTP", http.path.clone().unwrap_or_default()),
        Question::Sleep(pause) => ("Sleep", pause.as_secs().to_string()),
        Question::Tcp(_) => ("TCP", String::new()),
        Question::Grpc(_) => ("gRPC", String::new()),
    };
    format!(
        "{kind} lifecycle hook ({what}) for Container \"{container}\" in Pod \"{}_{}({})\" failed - error: {}",
        pod.name(),
        pod.namespace(),
        pod.uid(),
        reason.trim_end(),
    )
}

fn whom(worker: &Worker, pod: &Pod, ip: Option<String>, container: &Container, id: &str) -> Whom {
    let ip = if pod.is_host_network() { worker.shared.host_ips().first().cloned() } else { ip };
    Whom {
        cri: worker.shared.cri.clone(),
        container_id: id.to_owned(),
        container: container.clone(),
        ip: ip.unwrap_or_default(),
    }
}

/// Starts a graceful stop beside the worker.
fn stop_container(worker: &Worker, pod: &Arc<Pod>, id: &str, name: &str, grace_s: i64, why: &str) {
    let shared = worker.shared.clone();
    let now = shared.config.clock.now();
    let gone_by = now + SignedDuration::from_secs(grace_s.clamp(0, i64::from(i32::MAX)));
    let first = worker.memory.lock().stopping.insert(id.to_owned(), gone_by).is_none();
    if first {
        shared.events.pod(pod, field(pod, name), Kind::Normal, "Killing", why);
    }
    let container =
        pod.roles().into_iter().map(|(_, one)| one).find(|one| one.name == name).unwrap_or_default();
    let hook = container
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref())
        .and_then(Question::of_hook);
    let view_ip = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
    let whom = whom(worker, pod, view_ip, &container, id);
    let (memory, nudge, pod, id) = (worker.memory.clone(), worker.nudge.clone(), pod.clone(), id.to_owned());
    worker.shared.tasks.clone().spawn(async move {
        let started = shared.config.clock.monotonic();
        // A shorter second stop comes while the hook of the first may still run: it is not run twice.
        if let Some(question) = hook.filter(|_| first && grace_s > 0) {
            let grace = Duration::from_secs(grace_s.unsigned_abs());
            let outcome = tokio::time::timeout(grace, probing::ask(&whom, &question, grace)).await;
            let reason = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(reason)) => Some(reason),
                Err(_) => Some(format!("not through within {grace_s} s")),
            };
            if let Some(reason) = reason {
                let about = field(&pod, &whom.container.name);
                shared.events.pod(&pod, about, Kind::Warning, "FailedPreStopHook", "PreStopHook failed");
                tracing::debug!(pod = pod.name(), container = whom.container.name, reason, "preStop hook failed");
            }
        }
        let used_s = i64::try_from((shared.config.clock.monotonic() - started).as_secs()).unwrap_or(i64::MAX);
        let left_s = if grace_s == 0 { 0 } else { (grace_s - used_s).max(LEAST_GRACE_S.min(grace_s)) };
        if let Err(error) = shared.cri.stop_container(&id, left_s).await {
            tracing::warn!(pod = pod.name(), container = whom.container.name, %error, "container does not stop, trying again");
            tokio::time::sleep(Duration::from_secs(2)).await;
            memory.lock().stopping.remove(&id);
        }
        nudge.notify_one();
    });
}

async fn resize(worker: &Worker, pod: &Arc<Pod>, id: &str, name: &str) -> bool {
    let Some((_, container)) = pod.roles().into_iter().find(|(_, one)| one.name == name) else {
        return false;
    };
    let shared = &worker.shared;
    let mut wanted = crate::qos::container_resources(pod, &container, shared.config.capacity.memory_bytes);
    // Fixed when the process began, and refused by runtimes afterwards.
    wanted.oom_score_adj = 0;
    let pod_level = shared.cgroups.make(pod);
    let resized = shared.cri.update_container_resources(id, wanted).await;
    // Growing needs the pod's cgroup first, shrinking the container's: whichever was refused is asked again.
    let pod_level = pod_level.or_else(|_| shared.cgroups.make(pod));
    if !logged(pod, "container keeps its resources for now", resized)
        || !logged(pod, "the pod's cgroup keeps its limits for now", pod_level)
    {
        return false;
    }
    worker.memory.lock().given.insert(id.to_owned(), container.resources.unwrap_or_default());
    true
}

async fn release(worker: &mut Worker, pod: &Arc<Pod>) -> bool {
    let shared = worker.shared.clone();
    let released = tokio::task::spawn_blocking({
        let (shared, pod) = (shared.clone(), pod.clone());
        move || {
            shared.volumes.tear_down(pod.uid())?;
            shared.cgroups.remove(&pod)
        }
    });
    let done = match released.await {
        Ok(result) => logged(pod, "volumes or cgroup stay for now", result),
        Err(error) => logged(pod, "release broke off", Err::<(), _>(error)),
    };
    let mut memory = worker.memory.lock();
    memory.released = done;
    memory.volumes = VolumesState::Missing;
    done
}

/// Tells the API server the pod's last status, and then that the document may go.
async fn confirm_deletion(worker: &mut Worker, pod: &Arc<Pod>) {
    let now = worker.shared.config.clock.now();
    let asked = worker.deletion_asked;
    if asked.is_some_and(|asked| now < asked + SignedDuration::from_secs(CONFIRM_AGAIN_S)) {
        return;
    }
    if !worker.status.flush(Duration::from_secs(5)).await {
        return;
    }
    worker.deletion_asked = Some(now);
    let pods = Api::<Pod>::namespaced(worker.shared.config.client.clone(), pod.namespace());
    let only_this = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
    let how = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(only_this),
        ..DeleteParams::default()
    };
    match pods.delete(pod.name(), &how).await {
        Ok(_) => {}
        Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => {}
        Err(error) => {
            tracing::warn!(
                pod = pod.name(),
                namespace = pod.namespace(),
                error = chain(&error),
                "deletion is not confirmed yet"
            );
        }
    }
}

impl Worker {
    /// The image was pulled for exactly this start.
    fn pulled(&self, name: &str, container: &Container, attempt: u32) -> bool {
        let memory = self.memory.lock();
        let this = |state: &ImageState| match state {
            ImageState::Pulled { attempt: of, image } => {
                *of == attempt && container.image.as_ref() == Some(image)
            }
            ImageState::Pulling | ImageState::Failed { .. } => false,
        };
        memory.images.get(name).is_some_and(this)
    }
}
