//! What a pod's worker remembers between two looks, beside what the runtime can tell.
//!
//! Losing it (a restart of the kubelet) costs back-off and nothing else.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::backoff::Backoff;

#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// Restarts, by container name.
    pub restarts: BTreeMap<String, Backoff>,
    /// Images that are on their way or failed to come, by container name.
    pub images: BTreeMap<String, ImageState>,
    /// Starts that failed, by container name.
    pub failed_starts: BTreeMap<String, Trouble>,
    /// Probe results, by container id.
    pub probes: HashMap<String, Probed>,
    /// postStart hooks, by container id; one that failed is remembered beyond its container's end.
    pub hooks: HashMap<String, Hook>,
    /// The resources that running containers were given, by container id; what is not here is taken for right.
    pub given: HashMap<String, ResourceRequirements>,
    /// Containers being stopped: id and by when they are gone.
    pub stopping: HashMap<String, Timestamp>,
    /// The pod's volumes stand.
    pub volumes: VolumesState,
    pub sandbox_trouble: Option<Trouble>,
    /// The pod is over for a reason of the node's.
    pub end: Option<End>,
    /// When the pod's end began.
    pub ending_since: Option<Timestamp>,
    /// The sandbox is down and the volumes are gone: nothing is left but the document.
    pub released: bool,
}

/// Something that did not work, and when to try again.
#[derive(Debug, Clone, PartialEq)]
pub struct Trouble {
    pub reason: String,
    pub message: String,
    pub at: Timestamp,
    pub until: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ImageState {
    Pulling,
    /// It came, for this start of this image.
    Pulled {
        attempt: u32,
        image: String,
    },
    Failed {
        trouble: Trouble,
        backoff: Backoff,
    },
}

#[derive(Debug, Clone, PartialEq, Default)]
pub enum VolumesState {
    #[default]
    Missing,
    /// When their content should be looked at again, if it can change.
    Ready {
        refresh_at: Option<Timestamp>,
    },
    Failed {
        trouble: Trouble,
        backoff: Backoff,
    },
}

/// What the probes of one container last said; `None`: nothing yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Probed {
    pub startup: Option<bool>,
    pub liveness: Option<bool>,
    pub readiness: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hook {
    Running,
    Done,
    Failed(String),
}

/// Why the node ended a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub reason: &'static str,
    pub message: String,
}
