//! Node pools: machines that a cluster's controllers make and remove.

use base_ids::{NodePoolId, OperationId, Slug};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::FieldProblem;
use crate::labels::{Labels, LabelsPatch, check_key, check_value, present};

/// Machines that one pool has at most.
pub const MAX_POOL_SIZE: u32 = 1000;

/// Taints that one pool's nodes have at most; a node with more is a mistake, not a wish.
const MAX_TAINTS: usize = 64;

/// How a pool stands; derived from its row and from what its cluster's controllers last reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodePoolState {
    /// New; machines are being made.
    Provisioning,
    /// As many machines as wanted, all of them Ready nodes.
    Ready,
    /// More or fewer machines than wanted.
    Resizing,
    Deleting,
    /// A machine cannot be had; the message says why. It is tried again.
    Failed,
}

impl NodePoolState {
    pub fn as_str(self) -> &'static str {
        match self {
            NodePoolState::Provisioning => "provisioning",
            NodePoolState::Ready => "ready",
            NodePoolState::Resizing => "resizing",
            NodePoolState::Deleting => "deleting",
            NodePoolState::Failed => "failed",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MachineState {
    /// Wanted; the provider was not asked yet.
    Pending,
    Creating,
    /// It runs and has not joined yet.
    Running,
    /// Its node is Ready.
    Joined,
    Deleting,
    Failed,
}

impl MachineState {
    const ALL: [MachineState; 6] = [
        MachineState::Pending,
        MachineState::Creating,
        MachineState::Running,
        MachineState::Joined,
        MachineState::Deleting,
        MachineState::Failed,
    ];
    pub fn as_str(self) -> &'static str {
        match self {
            MachineState::Pending => "pending",
            MachineState::Creating => "creating",
            MachineState::Running => "running",
            MachineState::Joined => "joined",
            MachineState::Deleting => "deleting",
            MachineState::Failed => "failed",
        }
    }
    pub fn parse(text: &str) -> Option<MachineState> {
        MachineState::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Machine {
    /// The provider's; empty while it has none.
    pub id: String,
    /// The node's name.
    pub name: String,
    pub state: MachineState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl TaintEffect {
    pub fn as_str(self) -> &'static str {
        match self {
            TaintEffect::NoSchedule => "NoSchedule",
            TaintEffect::PreferNoSchedule => "PreferNoSchedule",
            TaintEffect::NoExecute => "NoExecute",
        }
    }
    pub fn parse(text: &str) -> Option<TaintEffect> {
        [TaintEffect::NoSchedule, TaintEffect::PreferNoSchedule, TaintEffect::NoExecute]
            .into_iter()
            .find(|effect| effect.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Taint {
    pub key: String,
    #[serde(default)]
    pub value: String,
    pub effect: TaintEffect,
}

impl std::str::FromStr for Taint {
    type Err = String;
    /// `key=value:Effect` or `key:Effect`, as `kubectl taint` takes them.
    fn from_str(text: &str) -> Result<Taint, String> {
        let form = || format!("{text:?} is no taint; one is key=value:NoSchedule or key:NoExecute");
        let (rest, effect) = text.rsplit_once(':').ok_or_else(form)?;
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        let effect = TaintEffect::parse(effect).ok_or_else(form)?;
        let taint = Taint { key: key.to_owned(), value: value.to_owned(), effect };
        check_taint(&taint).map_err(|problem| problem.detail)?;
        Ok(taint)
    }
}

fn check_taint(taint: &Taint) -> Result<(), FieldProblem> {
    check_key(&taint.key).map_err(|why| FieldProblem::new("/key", format!("taint: {why}")))?;
    check_value(&taint.value)
        .map_err(|why| FieldProblem::new("/value", format!("taint {:?}: {why}", taint.key)))
}

/// What Kubernetes would refuse on a node: malformed keys or values, one key and effect twice, too many. The
/// fields are relative to the list.
pub fn check_taints(taints: &[Taint]) -> Vec<FieldProblem> {
    if taints.len() > MAX_TAINTS {
        return vec![FieldProblem::new("", format!("{} taints; at most {MAX_TAINTS}", taints.len()))];
    }
    let fault = |nth: usize, taint: &Taint| {
        check_taint(taint)?;
        if taints[..nth].iter().any(|other| other.key == taint.key && other.effect == taint.effect) {
            let (key, effect) = (&taint.key, taint.effect.as_str());
            return Err(FieldProblem::new("", format!("taint {key:?} is there twice with effect {effect}")));
        }
        Ok(())
    };
    taints
        .iter()
        .enumerate()
        .filter_map(|(nth, taint)| Some(fault(nth, taint).err()?.below(&format!("/{nth}"))))
        .collect()
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodePool {
    #[schema(value_type = String, format = "uuid")]
    pub id: NodePoolId,
    /// Name of its cluster.
    #[schema(value_type = String)]
    pub cluster: Slug,
    #[schema(value_type = String, pattern = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    pub name: Slug,
    /// Machines wanted.
    #[schema(maximum = 1000)]
    pub size: u32,
    pub provider: String,
    /// The provider's default when empty.
    pub machine_type: String,
    #[schema(value_type = BTreeMap<String, String>)]
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub state: NodePoolState,
    pub machines: Vec<Machine>,
    /// Machines whose nodes are Ready.
    pub ready: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[schema(value_type = String, format = "date-time")]
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub operation: Option<OperationId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateNodePool {
    #[schema(value_type = String, pattern = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    pub name: Slug,
    #[schema(maximum = 1000)]
    pub size: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub labels: Labels,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::objects")]
    pub taints: Vec<Taint>,
    /// The cluster's provider when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
}

/// A JSON merge patch (RFC 7396): what is absent stays, a label that is null goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateNodePool {
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, pattern = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    pub name: Option<Slug>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, nullable = false, maximum = 1000)]
    pub size: Option<u32>,
    #[serde(default, skip_serializing_if = "LabelsPatch::is_keep")]
    #[schema(value_type = Option<BTreeMap<String, Option<String>>>)]
    pub labels: LabelsPatch,
}

/// A kind of machine that a provider offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MachineType {
    pub name: String,
    pub provider: String,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    /// What a pool gets unless it asks for another one.
    #[serde(default)]
    pub default: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_what_kubernetes_takes() {
        let twice = [("a", "NoSchedule"), ("a", "NoSchedule")];
        for (taints, wanted) in [
            (&[("gpu", "NoSchedule"), ("gpu", "NoExecute")][..], "fine"),
            (&twice[..], "/1: taint \"a\" is there twice with effect NoSchedule"),
        ] {
            let taints: Vec<Taint> =
                taints.iter().map(|(key, effect)| format!("{key}=1:{effect}").parse().unwrap()).collect();
            let said = check_taints(&taints).first().map_or_else(|| "fine".to_owned(), ToString::to_string);
            assert_eq!(said, wanted);
        }
        for (text, fine) in [
            ("gpu=nvidia:NoSchedule", true),
            ("example.com/gpu:NoExecute", true),
            ("gpu:nosuch", false),
            ("gpu", false),
            ("a b=1:NoSchedule", false),
            ("gpu=-x:NoSchedule", false),
        ] {
            assert_eq!(text.parse::<Taint>().is_ok(), fine, "{text}");
        }
    }
}
