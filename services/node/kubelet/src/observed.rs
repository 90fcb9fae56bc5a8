//! What the runtime says of one pod, in the words that plans are made of.
//!
//! [`look`] asks the runtime; the rest is plain data. Containers carry the pod, the restart count and more in
//! labels and annotations (upstream's names), so that a kubelet that was away recognises its containers.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use jiff::Timestamp;
use node_runtime::cri::{ContainerState, ContainerStatus, PodSandboxState};
use node_runtime::{Cri, CriError};

/// Labels and annotations by which containers are recognised.
pub mod label {
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    pub const CONTAINER: &str = "io.kubernetes.container.name";
    pub const HASH: &str = "io.kubernetes.container.hash";
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    pub const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    pub const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    pub const GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
}

/// How much of a termination message is kept, and how much log stands in for one.
const MESSAGE_BYTES: usize = 4096;
const MESSAGE_LOG_BYTES: usize = 2048;
const MESSAGE_LOG_LINES: usize = 80;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// Newest first.
    pub sandboxes: Vec<Sandbox>,
    /// Newest first.
    pub containers: Vec<Seen>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    pub id: String,
    pub attempt: u32,
    pub ready: bool,
    pub created_ns: i64,
    pub ips: Vec<String>,
}

/// One container of the pod, running or not.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    pub id: String,
    pub name: String,
    pub sandbox: String,
    /// How often the container was started before.
    pub attempt: u32,
    pub mark: String,
    pub image: String,
    pub image_ref: String,
    pub created_ns: i64,
    pub state: State,
}

#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// Made, and not started: a start that failed half-way, or was interrupted.
    Created,
    Running {
        started: Timestamp,
    },
    Exited(Exit),
    /// The runtime lost track of it.
    Unknown,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Exit {
    pub started: Option<Timestamp>,
    pub finished: Timestamp,
    pub code: i32,
    pub reason: String,
    pub message: String,
}

impl Observed {
    /// The newest container of that name, in whatever sandbox.
    pub fn latest(&self, name: &str) -> Option<&Seen> {
        self.containers.iter().find(|seen| seen.name == name)
    }
    /// All of that name, newest first.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Seen> {
        self.containers.iter().filter(move |seen| seen.name == name)
    }
    pub fn running(&self) -> impl Iterator<Item = &Seen> {
        self.containers.iter().filter(|seen| seen.is_running())
    }
}

impl Seen {
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }
    pub fn exit(&self) -> Option<&Exit> {
        match &self.state {
            State::Exited(exit) => Some(exit),
            State::Created | State::Running { .. } | State::Unknown => None,
        }
    }
}

/// Answers that cannot change any more: exited containers, by id. Bounded by what the pod still has.
pub type Exited = HashMap<String, Seen>;

/// Asks the runtime for everything of one pod.
pub async fn look(cri: &Cri, uid: &str, logs: &Path, exited: &mut Exited) -> Result<Observed, CriError> {
    let labels = HashMap::from([(label::POD_UID.to_owned(), uid.to_owned())]);
    let (sandboxes, containers) =
        tokio::try_join!(cri.list_pod_sandboxes(labels.clone()), cri.list_containers(labels))?;

    let mut observed = Observed::default();
    for sandbox in sandboxes {
        let ready = sandbox.state() == PodSandboxState::SandboxReady;
        let mut ips = Vec::new();
        if ready {
            match cri.pod_sandbox_status(&sandbox.id).await {
                Ok(status) => {
                    let network = status.network.unwrap_or_default();
                    ips.extend(Some(network.ip).filter(|ip| !ip.is_empty()));
                    ips.extend(network.additional_ips.into_iter().map(|more| more.ip));
                }
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            }
        }
        let attempt = sandbox.metadata.as_ref().map_or(0, |meta| meta.attempt);
        observed.sandboxes.push(Sandbox {
            id: sandbox.id,
            attempt,
            ready,
            created_ns: sandbox.created_at,
            ips,
        });
    }
    for container in containers {
        if let Some(known) = exited.get(&container.id) {
            observed.containers.push(known.clone());
            continue;
        }
        let status = match cri.container_status(&container.id).await {
            Ok(status) => status,
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error),
        };
        let seen = seen(&container.pod_sandbox_id, status, logs).await;
        if seen.exit().is_some() {
            exited.insert(seen.id.clone(), seen.clone());
        }
        observed.containers.push(seen);
    }
    observed.sandboxes.sort_by_key(|sandbox| std::cmp::Reverse((sandbox.created_ns, sandbox.attempt)));
    observed.containers.sort_by_key(|seen| std::cmp::Reverse((seen.created_ns, seen.attempt)));
    let kept: BTreeMap<&str, ()> = observed.containers.iter().map(|seen| (seen.id.as_str(), ())).collect();
    exited.retain(|id, _| kept.contains_key(id.as_str()));
    Ok(observed)
}

async fn seen(sandbox: &str, status: ContainerStatus, logs: &Path) -> Seen {
    let meta = status.metadata.clone().unwrap_or_default();
    let note = |key: &str| status.annotations.get(key).cloned().unwrap_or_default();
    let state = match status.state() {
        ContainerState::ContainerCreated => State::Created,
        ContainerState::ContainerRunning => State::Running { started: moment(status.started_at) },
        ContainerState::ContainerUnknown => State::Unknown,
        ContainerState::ContainerExited => {
            let (reason, code) = (status.reason.clone(), status.exit_code);
            let reason = if !reason.is_empty() {
                reason
            } else if code == 0 {
                "Completed".into()
            } else {
                "Error".into()
            };
            State::Exited(Exit {
                started: (status.started_at > 0).then(|| moment(status.started_at)),
                finished: moment(status.finished_at),
                code,
                reason,
                message: last_words(&status, logs).await,
            })
        }
    };
    Seen {
        name: status.labels.get(label::CONTAINER).cloned().unwrap_or(meta.name),
        sandbox: sandbox.to_owned(),
        attempt: note(label::RESTART_COUNT).parse().unwrap_or(meta.attempt),
        mark: note(label::HASH),
        image: status.image.clone().map(|image| image.image).unwrap_or_default(),
        image_ref: status.image_ref.clone(),
        created_ns: status.created_at,
        state,
        id: status.id,
    }
}

/// The termination message: the file that the container wrote, or the end of its log if it may stand in.
async fn last_words(status: &ContainerStatus, logs: &Path) -> String {
    let path = status.annotations.get(label::MESSAGE_PATH).map(String::as_str).unwrap_or_default();
    let mount = status.mounts.iter().find(|mount| !path.is_empty() && mount.container_path == path);
    if let Some(mount) = mount {
        let said = read_start(Path::new(&mount.host_path), MESSAGE_BYTES).await;
        if !said.is_empty() {
            return said;
        }
    }
    let fallback = status.annotations.get(label::MESSAGE_POLICY).map(String::as_str);
    if status.exit_code != 0
        && fallback == Some("FallbackToLogsOnError")
        && Path::new(&status.log_path).starts_with(logs)
    {
        return crate::logs::tail(Path::new(&status.log_path), MESSAGE_LOG_LINES, MESSAGE_LOG_BYTES).await;
    }
    status.message.clone()
}

async fn read_start(path: &Path, limit: usize) -> String {
    use tokio::io::AsyncReadExt;
    let mut bytes = Vec::new();
    if let Ok(file) = tokio::fs::File::open(path).await {
        // A message that cannot be read is one that wasn't written.
        let _ = file.take(limit as u64).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// CRI's nanoseconds since 1970, cut to whole seconds, which is all that the API can say.
pub fn moment(ns: i64) -> Timestamp {
    Timestamp::from_second(ns.div_euclid(1_000_000_000)).unwrap_or(Timestamp::UNIX_EPOCH)
}
