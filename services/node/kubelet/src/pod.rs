//! Words for pods: what the rest of this crate asks a pod document.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

/// How a container of a pod behaves, which follows from the list it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Runs to its end before the next one starts.
    Init,
    /// An init container that stays: `restartPolicy: Always`.
    Sidecar,
    Main,
    /// Added to a running pod for debugging, never restarted.
    Ephemeral,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// What a pod of which nothing is said gets before SIGKILL.
pub const DEFAULT_GRACE_S: i64 = 30;

/// Questions to a pod; missing fields read as their defaults, since the API server filled them in.
pub trait PodExt {
    fn name(&self) -> &str;
    fn namespace(&self) -> &str;
    fn uid(&self) -> &str;
    /// All containers with their roles: inits in order, then mains, then ephemeral ones.
    fn roles(&self) -> Vec<(Role, Container)>;
    fn restart_policy(&self) -> RestartPolicy;
    fn is_deleted(&self) -> bool;
    /// Seconds between the stop signal and the kill, as the deletion or else the spec says.
    fn grace_s(&self) -> i64;
    fn is_host_network(&self) -> bool;
    /// Succeeded or Failed, as the API server last heard.
    fn is_terminal(&self) -> bool;
    fn spec(&self) -> Option<&PodSpec>;
}

impl PodExt for Pod {
    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
    fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }
    fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
    fn roles(&self) -> Vec<(Role, Container)> {
        let Some(spec) = &self.spec else { return Vec::new() };
        let inits = spec.init_containers.iter().flatten().map(|init| {
            let stays = init.restart_policy.as_deref() == Some("Always");
            (if stays { Role::Sidecar } else { Role::Init }, init.clone())
        });
        let mains = spec.containers.iter().map(|main| (Role::Main, main.clone()));
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|one| {
            let container = Container {
                args: one.args.clone(),
                command: one.command.clone(),
                env: one.env.clone(),
                env_from: one.env_from.clone(),
                image: one.image.clone(),
                image_pull_policy: one.image_pull_policy.clone(),
                name: one.name.clone(),
                resources: one.resources.clone(),
                security_context: one.security_context.clone(),
                stdin: one.stdin,
                stdin_once: one.stdin_once,
                termination_message_path: one.termination_message_path.clone(),
                termination_message_policy: one.termination_message_policy.clone(),
                tty: one.tty,
                volume_mounts: one.volume_mounts.clone(),
                working_dir: one.working_dir.clone(),
                ..Container::default()
            };
            (Role::Ephemeral, container)
        });
        inits.chain(mains).chain(ephemeral).collect()
    }
    fn restart_policy(&self) -> RestartPolicy {
        match self.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) {
            Some("Never") => RestartPolicy::Never,
            Some("OnFailure") => RestartPolicy::OnFailure,
            _ => RestartPolicy::Always,
        }
    }
    fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
    fn grace_s(&self) -> i64 {
        let spec = self.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        let deletion = self.metadata.deletion_grace_period_seconds.filter(|_| self.is_deleted());
        deletion.or(spec).unwrap_or(DEFAULT_GRACE_S).max(0)
    }
    fn is_host_network(&self) -> bool {
        self.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false)
    }
    fn is_terminal(&self) -> bool {
        let phase = self.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }
    fn spec(&self) -> Option<&PodSpec> {
        self.spec.as_ref()
    }
}

/// What makes a container another one: a running container whose mark differs is replaced.
///
/// Name and image alone, as upstream since resources can change in place. FNV-1a, because the mark is kept
/// in an annotation and must be the same in every build.
pub fn mark(container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let bytes = container.name.bytes().chain([0]).chain(image.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:x}")
}
