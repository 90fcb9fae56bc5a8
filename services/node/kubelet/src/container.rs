//! From a container of a pod to the runtime's words for it: command, mounts, identity, limits.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, SeccompProfile};
use node_runtime::cri::security_profile::ProfileType;
use node_runtime::cri::{
    Capability, ContainerConfig, ContainerMetadata, Image, ImageSpec, Int64Value, KeyValue,
    LinuxContainerConfig, LinuxContainerSecurityContext, Mount, MountPropagation, NamespaceMode,
    SecurityProfile,
};
use node_volumes::Mounted;

use crate::env::expand;
use crate::observed::label;
use crate::pod::{PodExt, mark};
use crate::{qos, sandbox};

/// What one start of a container needs beside the pod's document.
pub struct Start<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub attempt: u32,
    pub image: &'a Image,
    pub environment: &'a BTreeMap<String, String>,
    pub mounted: &'a Mounted,
    /// The hosts file to show in the container.
    pub hosts_file: &'a Path,
    /// Where the container may leave its last words.
    pub message_file: PathBuf,
    pub seccomp_folder: PathBuf,
    /// The container whose processes an ephemeral one is to see.
    pub target_id: Option<String>,
    pub node_memory_bytes: u64,
}

/// Paths of /proc and /sys that tell a container about the machine, or let it change it; upstream's lists.
const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

pub const DEFAULT_MESSAGE_PATH: &str = "/dev/termination-log";

/// The container's configuration, or a sentence on why it can have none.
pub fn config(start: &Start<'_>) -> Result<ContainerConfig, String> {
    let Start { pod, container, attempt, .. } = *start;
    let value_of = |name: &str| start.environment.get(name).cloned();
    let expanded = |list: &Option<Vec<String>>| -> Vec<String> {
        list.iter().flatten().map(|word| expand(word, &value_of)).collect()
    };
    let message_path = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
    let message_path = message_path.unwrap_or(DEFAULT_MESSAGE_PATH);
    let message_policy = container.termination_message_policy.as_deref().unwrap_or("File");
    let labels = [
        (label::POD_NAME, pod.name()),
        (label::POD_NAMESPACE, pod.namespace()),
        (label::POD_UID, pod.uid()),
        (label::CONTAINER, container.name.as_str()),
    ];
    let annotations = [
        (label::HASH, mark(container)),
        (label::RESTART_COUNT, attempt.to_string()),
        (label::MESSAGE_PATH, message_path.to_owned()),
        (label::MESSAGE_POLICY, message_policy.to_owned()),
        (label::GRACE, pod.grace_s().to_string()),
    ];
    let environment = start.environment.iter();
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt }),
        image: Some(ImageSpec {
            image: start.image.id.clone(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..ImageSpec::default()
        }),
        command: expanded(&container.command),
        args: expanded(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: environment
            .map(|(key, value)| KeyValue { key: key.clone(), value: value.clone().into_bytes() })
            .collect(),
        mounts: mounts(start, message_path)?,
        devices: Vec::new(),
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        annotations: annotations
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect::<HashMap<_, _>>(),
        log_path: log_path(&container.name, attempt),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(LinuxContainerConfig {
            resources: Some(qos::container_resources(pod, container, start.node_memory_bytes)),
            security_context: Some(security(start)?),
        }),
    })
}

/// Below the pod's log folder.
pub fn log_path(container: &str, attempt: u32) -> String {
    format!("{container}/{attempt}.log")
}

fn mounts(start: &Start<'_>, message_path: &str) -> Result<Vec<Mount>, String> {
    let mut mounts = Vec::new();
    let value_of = |name: &str| start.environment.get(name).cloned();
    for (index, wanted) in start.container.volume_mounts.iter().flatten().enumerate() {
        let sub_path = match wanted.sub_path_expr.as_deref().filter(|expr| !expr.is_empty()) {
            Some(expr) => expand(expr, &value_of),
            None => wanted.sub_path.clone().unwrap_or_default(),
        };
        let source = start.mounted.path(&wanted.name, &sub_path, &start.container.name, index);
        let source = source.map_err(|error| chain(&error))?;
        let propagation = match wanted.mount_propagation.as_deref() {
            Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
            Some("Bidirectional") => MountPropagation::PropagationBidirectional,
            _ => MountPropagation::PropagationPrivate,
        };
        mounts.push(Mount {
            // A path without a root is meant from the container's.
            container_path: if wanted.mount_path.starts_with('/') {
                wanted.mount_path.clone()
            } else {
                format!("/{}", wanted.mount_path)
            },
            host_path: source.display().to_string(),
            readonly: wanted.read_only.unwrap_or(false),
            selinux_relabel: false,
            propagation: propagation.into(),
        });
    }
    let taken = |path: &str| mounts.iter().any(|mount| mount.container_path.trim_end_matches('/') == path);
    let mut managed = Vec::new();
    for (path, source) in [("/etc/hosts", start.hosts_file), (message_path, start.message_file.as_path())] {
        if !taken(path) {
            managed.push(Mount {
                container_path: path.to_owned(),
                host_path: source.display().to_string(),
                ..Mount::default()
            });
        }
    }
    mounts.extend(managed);
    Ok(mounts)
}

fn security(start: &Start<'_>) -> Result<LinuxContainerSecurityContext, String> {
    let pod = start.pod.spec.as_ref().and_then(|spec| spec.security_context.clone()).unwrap_or_default();
    let own = start.container.security_context.clone().unwrap_or_default();
    let privileged = own.privileged.unwrap_or(false);
    let user = own.run_as_user.or(pod.run_as_user);
    let group = own.run_as_group.or(pod.run_as_group);
    if own.run_as_non_root.or(pod.run_as_non_root).unwrap_or(false) {
        must_not_be_root(start, user)?;
    }
    let mut namespaces = sandbox::namespaces(start.pod);
    if let Some(target) = &start.target_id {
        namespaces.pid = NamespaceMode::Target.into();
        namespaces.target_id = target.clone();
    }
    let capabilities = own.capabilities.unwrap_or_default();
    let groups = pod.supplemental_groups.unwrap_or_default().into_iter().chain(pod.fs_group);
    let unmasked = privileged || own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |list: &[&str]| {
        if unmasked { Vec::new() } else { list.iter().map(|path| (*path).to_owned()).collect() }
    };
    let number = |value: Option<i64>| value.map(|value| Int64Value { value });
    Ok(LinuxContainerSecurityContext {
        capabilities: Some(Capability {
            add_capabilities: capabilities.add.unwrap_or_default(),
            drop_capabilities: capabilities.drop.unwrap_or_default(),
        }),
        privileged,
        namespace_options: Some(namespaces),
        run_as_user: number(user),
        // A group without a user is refused by the runtime when the image names its user; then uid 0 is meant.
        run_as_group: number(group),
        run_as_username: if user.is_none() && group.is_some() {
            start.image.username.clone()
        } else {
            String::new()
        },
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: groups.collect(),
        no_new_privs: own.allow_privilege_escalation == Some(false) && !privileged,
        masked_paths: paths(MASKED),
        readonly_paths: paths(READ_ONLY),
        seccomp: Some(seccomp(
            own.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref()),
            privileged,
            &start.seccomp_folder,
        )),
        apparmor: None,
    })
    .map(|mut context| {
        if context.run_as_user.is_none()
            && context.run_as_group.is_some()
            && context.run_as_username.is_empty()
        {
            context.run_as_user = Some(Int64Value { value: start.image.uid.map_or(0, |uid| uid.value) });
        }
        context
    })
}

fn must_not_be_root(start: &Start<'_>, user: Option<i64>) -> Result<(), String> {
    let whom = format!(
        "(pod: \"{}_{}({})\", container: {})",
        start.pod.name(),
        start.pod.namespace(),
        start.pod.uid(),
        start.container.name
    );
    match (user, start.image.uid, start.image.username.as_str()) {
        (Some(0), _, _) => Err(format!("container's runAsUser breaks non-root policy {whom}")),
        (Some(_), _, _) => Ok(()),
        (None, Some(uid), _) if uid.value == 0 => {
            Err(format!("container has runAsNonRoot and image will run as root {whom}"))
        }
        (None, Some(_), _) => Ok(()),
        (None, None, "") => Err(format!("container has runAsNonRoot and image will run as root {whom}")),
        (None, None, name) => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root {whom}"
        )),
    }
}

fn seccomp(wanted: Option<&SeccompProfile>, privileged: bool, folder: &Path) -> SecurityProfile {
    let plain =
        |kind: ProfileType| SecurityProfile { profile_type: kind.into(), localhost_ref: String::new() };
    match wanted {
        _ if privileged => plain(ProfileType::Unconfined),
        Some(profile) if profile.type_ == "RuntimeDefault" => plain(ProfileType::RuntimeDefault),
        Some(profile) if profile.type_ == "Localhost" => SecurityProfile {
            profile_type: ProfileType::Localhost.into(),
            localhost_ref: folder
                .join(profile.localhost_profile.as_deref().unwrap_or_default())
                .display()
                .to_string(),
        },
        _ => plain(ProfileType::Unconfined),
    }
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line += &format!(": {cause}");
        source = cause.source();
    }
    line
}
