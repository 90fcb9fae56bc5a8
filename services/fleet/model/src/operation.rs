//! Operations: long-running changes with progress; and the events by which pages stay live.

use base_ids::{OperationId, Slug};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Cluster, NodePool};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum OperationKind {
    #[serde(rename = "cluster.create")]
    ClusterCreate,
    #[serde(rename = "cluster.delete")]
    ClusterDelete,
    #[serde(rename = "nodepool.create")]
    NodePoolCreate,
    #[serde(rename = "nodepool.resize")]
    NodePoolResize,
    #[serde(rename = "nodepool.delete")]
    NodePoolDelete,
}

impl OperationKind {
    const ALL: [OperationKind; 5] = [
        OperationKind::ClusterCreate,
        OperationKind::ClusterDelete,
        OperationKind::NodePoolCreate,
        OperationKind::NodePoolResize,
        OperationKind::NodePoolDelete,
    ];
    pub fn as_str(self) -> &'static str {
        match self {
            OperationKind::ClusterCreate => "cluster.create",
            OperationKind::ClusterDelete => "cluster.delete",
            OperationKind::NodePoolCreate => "nodepool.create",
            OperationKind::NodePoolResize => "nodepool.resize",
            OperationKind::NodePoolDelete => "nodepool.delete",
        }
    }
    pub fn parse(text: &str) -> Option<OperationKind> {
        OperationKind::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OperationState {
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

impl OperationState {
    const ALL: [OperationState; 4] = [
        OperationState::Running,
        OperationState::Succeeded,
        OperationState::Failed,
        OperationState::Cancelled,
    ];
    pub fn as_str(self) -> &'static str {
        match self {
            OperationState::Running => "running",
            OperationState::Succeeded => "succeeded",
            OperationState::Failed => "failed",
            OperationState::Cancelled => "cancelled",
        }
    }
    pub fn parse(text: &str) -> Option<OperationState> {
        OperationState::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    #[schema(value_type = String, format = "uuid")]
    pub id: OperationId,
    pub kind: OperationKind,
    #[schema(value_type = String)]
    pub organization: Slug,
    /// Id of the cluster it is about, which may be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Name of what it changes: a cluster or a node pool.
    pub target: String,
    pub state: OperationState,
    /// Percent.
    #[schema(maximum = 100)]
    pub progress: u8,
    /// What is being done, or why it ended.
    pub message: String,
    #[schema(value_type = String, format = "date-time")]
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub finished_at: Option<Timestamp>,
}

impl Operation {
    pub fn is_running(&self) -> bool {
        self.state == OperationState::Running
    }
}

/// One message of an organisation's event stream: the name after `event:` and what `data:` holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Cluster(Cluster),
    NodePool(NodePool),
    Operation(Operation),
    Deleted(Gone),
    /// The present state was sent; changes follow.
    Synced,
}

/// What a `deleted` event says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gone {
    /// `cluster`, `nodepool` or `operation`.
    pub kind: String,
    pub id: String,
}

impl Event {
    /// What stands after `event:`.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Cluster(_) => "cluster",
            Event::NodePool(_) => "nodepool",
            Event::Operation(_) => "operation",
            Event::Deleted(_) => "deleted",
            Event::Synced => "synced",
        }
    }
}
