//! What the cluster was told of containers that the runtime no longer has.
//!
//! A runtime may lose its containers: its folder was emptied, its machine came back without them. The pod's
//! status still says that they ran, and it is the only memory there is: without it, a pod that must run once
//! would run twice, and restarts would be counted from nought. [`recall`] puts such containers among the
//! observed ones, as ended; what follows from that is `plan`'s and `status`'s, as for any other end.
//!
//! Upstream's counterpart is `convertToAPIContainerStatuses` in `pkg/kubelet/kubelet_pods.go`.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};

use crate::observed::{Exit, Observed, Seen, State};

/// Why a container ended whose end nobody saw, in upstream's words.
const UNKNOWN: &str = "ContainerStatusUnknown";
const UNKNOWN_MESSAGE: &str = "The container could not be located when the pod was terminated";
const UNKNOWN_CODE: i32 = 137;

/// The scheme of container ids in a status.
pub const SCHEME: &str = "containerd://";

/// Adds to `seen` one ended container for each name that `told` has a container of and the runtime has not.
pub fn recall(seen: &mut Observed, told: &PodStatus, now: Timestamp) {
    let lists = [&told.init_container_statuses, &told.container_statuses, &told.ephemeral_container_statuses];
    for one in lists.into_iter().flatten().flatten() {
        if seen.latest(&one.name).is_none()
            && let Some(ended) = ended(one, now)
        {
            seen.containers.push(ended);
        }
    }
}

/// `None` for a container that, for all that was told, never ran.
fn ended(one: &ContainerStatus, now: Timestamp) -> Option<Seen> {
    let id = one.container_id.as_deref()?.strip_prefix(SCHEME)?.to_owned();
    let state = one.state.clone().unwrap_or_default();
    let exit = match (state.terminated, state.running) {
        (Some(ended), _) => known(ended, now),
        (None, Some(running)) => Exit {
            started: running.started_at.map(|at| at.0),
            finished: now,
            code: UNKNOWN_CODE,
            reason: UNKNOWN.to_owned(),
            message: UNKNOWN_MESSAGE.to_owned(),
        },
        // It waits for its next start.
        (None, None) => known(one.last_state.clone()?.terminated?, now),
    };
    Some(Seen {
        id,
        name: one.name.clone(),
        // None that can be run in.
        sandbox: String::new(),
        attempt: u32::try_from(one.restart_count).unwrap_or(0),
        mark: String::new(),
        image: one.image.clone(),
        image_ref: one.image_id.clone(),
        created_ns: 0,
        state: State::Exited(exit),
    })
}

fn known(ended: ContainerStateTerminated, now: Timestamp) -> Exit {
    Exit {
        started: ended.started_at.map(|at| at.0),
        finished: ended.finished_at.map_or(now, |at| at.0),
        code: ended.exit_code,
        reason: ended.reason.unwrap_or_default(),
        message: ended.message.unwrap_or_default(),
    }
}
