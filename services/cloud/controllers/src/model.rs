//! What is wanted, what is seen, and how it stands.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api_machinery::Object;
use async_trait::async_trait;
use base_clock::Timestamp;
use base_ids::NodePoolId;
use cloud_interface::{Join, SharedCloud, Taint};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What the manager wants of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Of balancers, and of pools that name none; the cell's first one when empty.
    pub provider: String,
    pub pools: Vec<Pool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    pub id: NodePoolId,
    pub name: String,
    pub size: u32,
    /// The provider's default when empty.
    pub machine_type: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub deleting: bool,
    /// The cluster's when empty.
    pub provider: String,
}

/// The providers this cell knows, the default one first.
#[derive(Clone, Default)]
pub struct Providers(pub Vec<(String, SharedCloud)>);

impl Providers {
    /// By name; the default one for an empty name.
    pub fn get(&self, name: &str) -> Option<&(String, SharedCloud)> {
        match name {
            "" => self.0.first(),
            name => self.0.iter().find(|(one, _)| one == name),
        }
    }
    /// What a pool's or a cluster's wish for `name` comes to, when the cluster's own is `fallback`.
    pub(crate) fn choose(&self, name: &str, fallback: &str) -> Result<&(String, SharedCloud), String> {
        let wanted = if name.is_empty() { fallback } else { name };
        self.get(wanted).ok_or_else(|| match wanted {
            "" => "this cell has no cloud provider".to_owned(),
            name => format!("this cell has no cloud provider {name}"),
        })
    }
}

/// Lets machines into the cluster.
#[async_trait]
pub trait Joining: Send + Sync + 'static {
    /// Parameters with a fresh bootstrap token, good for the node `node` alone; labels and taints are the
    /// caller's to add.
    async fn join(&self, node: &str, description: &str) -> Result<Join, String>;

    /// Withdraws every token that was made for `node`: it has joined, or never will.
    async fn withdraw(&self, node: &str) -> Result<(), String>;
}

/// How a cluster stands at its providers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    pub pools: Vec<PoolStatus>,
    pub balancers: Vec<BalancerStatus>,
    pub draining: bool,
    /// Entries of the ledger: what exists, or may.
    pub left: usize,
    /// What stands in the way of draining.
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStatus {
    pub id: NodePoolId,
    pub machines: Vec<MachineStatus>,
    pub message: String,
    /// As described, no machine can be made.
    pub refused: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineStatus {
    /// Empty while the provider has not given one.
    pub id: String,
    pub name: String,
    pub step: Step,
    pub address: Option<IpAddr>,
    pub message: String,
}

/// Where a machine is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Wanted; the provider was not asked yet.
    Pending,
    Creating,
    /// It runs, and is no Ready node yet.
    Running,
    Joined,
    Deleting,
    Failed,
}

impl Step {
    pub fn as_str(self) -> &'static str {
        match self {
            Step::Pending => "pending",
            Step::Creating => "creating",
            Step::Running => "running",
            Step::Joined => "joined",
            Step::Deleting => "deleting",
            Step::Failed => "failed",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalancerStatus {
    pub id: String,
    /// `namespace/name`
    pub service: String,
    pub addresses: Vec<IpAddr>,
    pub hostname: Option<String>,
    pub message: String,
}

/// What matters of a Node here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeView {
    pub name: String,
    pub uid: String,
    pub ready: bool,
    pub unschedulable: bool,
    pub deleting: bool,
    pub provider_id: Option<String>,
    pub internal_ip: Option<IpAddr>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub created: Timestamp,
}

impl NodeView {
    pub(crate) fn of(object: &Object) -> NodeView {
        let spec = object.field("spec").unwrap_or_default();
        let status = object.field("status").unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let ready =
            items(&status["conditions"]).iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
        let internal_ip = items(&status["addresses"])
            .iter()
            .filter(|one| one["type"] == "InternalIP")
            .find_map(|one| one["address"].as_str()?.parse().ok());
        let taint = |one: &Value| Taint {
            key: text(&one["key"]),
            value: text(&one["value"]),
            effect: text(&one["effect"]),
        };
        NodeView {
            name: object.header.name.to_string(),
            uid: object.header.uid.to_string(),
            ready,
            unschedulable: spec["unschedulable"] == true,
            deleting: object.header.deleting_since.is_some(),
            provider_id: spec["providerID"].as_str().map(str::to_owned).filter(|id| !id.is_empty()),
            internal_ip,
            labels: object.header.labels.clone(),
            taints: items(&spec["taints"]).iter().map(taint).collect(),
            created: object.header.created,
        }
    }
}
