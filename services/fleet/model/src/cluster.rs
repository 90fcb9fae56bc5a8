//! Clusters, and what people ask of one: kubeconfigs, join tokens, and the receipt at its end.

use base_ids::{CellId, OperationId, Slug, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::labels::{Labels, LabelsPatch, present};

/// Where a cluster is in its life. Moves are made by the manager's driver alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClusterState {
    /// Accepted; its cells may not have it yet.
    Creating,
    Ready,
    /// Being drained and removed; the name is free again when it is gone.
    Deleting,
}

impl ClusterState {
    pub fn as_str(self) -> &'static str {
        match self {
            ClusterState::Creating => "creating",
            ClusterState::Ready => "ready",
            ClusterState::Deleting => "deleting",
        }
    }
    pub fn parse(text: &str) -> Option<ClusterState> {
        [ClusterState::Creating, ClusterState::Ready, ClusterState::Deleting]
            .into_iter()
            .find(|state| state.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cluster {
    #[schema(value_type = String, format = "uuid")]
    pub id: TenantId,
    #[schema(value_type = String, pattern = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    pub organization: Slug,
    #[schema(value_type = String, pattern = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    pub name: Slug,
    pub state: ClusterState,
    pub kubernetes_version: String,
    /// Members of its Raft group, 1 or 3.
    #[serde(default = "one")]
    pub replicas: u8,
    /// The cells that host its replicas.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub cells: Vec<CellId>,
    /// Cloud provider of its load balancers, and of node pools that name none. Empty until its cell has said
    /// which ones it has: then its first.
    #[serde(default)]
    pub provider: String,
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    pub labels: Labels,
    /// TLS server name through the gateway.
    pub server_name: String,
    #[schema(value_type = String, format = "date-time")]
    pub created_at: Timestamp,
    /// The operation that is running on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub operation: Option<OperationId>,
}

pub(crate) fn one() -> u8 {
    1
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateCluster {
    #[schema(value_type = String, pattern = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    pub name: Slug,
    /// One of `/api/v1/versions`; the default one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// 1 or 3; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 3)]
    pub replicas: Option<u8>,
    /// Cloud provider of its load balancers, and of node pools that name none; the fleet's first when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub labels: Labels,
}

impl CreateCluster {
    /// With the defaults for everything else.
    pub fn named(name: Slug) -> CreateCluster {
        CreateCluster {
            name,
            kubernetes_version: None,
            replicas: None,
            provider: None,
            labels: Labels::new(),
        }
    }
}

/// A JSON merge patch (RFC 7396): what is absent stays, a label that is null goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateCluster {
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, pattern = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    pub name: Option<Slug>,
    #[serde(default, skip_serializing_if = "LabelsPatch::is_keep")]
    #[schema(value_type = Option<BTreeMap<String, Option<String>>>)]
    pub labels: LabelsPatch,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKubeconfig {
    /// Seconds until its certificate expires, at most a year; 28 days when absent.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number")]
    #[schema(minimum = 600, maximum = 31_536_000)]
    pub expires_in_seconds: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Kubeconfig {
    /// YAML, ready for `KUBECONFIG`.
    pub kubeconfig: String,
    /// When its certificate does. It ends earlier with whoever asked for it: a person who is removed or demoted, a
    /// token that is deleted.
    #[schema(value_type = String, format = "date-time")]
    pub expires_at: Timestamp,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateJoinToken {
    /// Seconds until it expires, at most 30 days; 24 hours when absent.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number")]
    #[schema(minimum = 1, maximum = 2_592_000)]
    pub expires_in_seconds: Option<u32>,
    /// What it is for; at most 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 200, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    pub description: Option<String>,
}

/// What a machine needs to join. The only time the token's secret is seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinToken {
    /// The six characters before the dot, by which it is listed and deleted.
    #[serde(default)]
    pub id: String,
    pub token: String,
    pub ca_cert_hash: String,
    /// `https://ip:port` of the gateway.
    pub server: String,
    pub tls_server_name: String,
    /// The whole command, ready to paste.
    pub command: String,
    #[serde(default)]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub expires_at: Option<Timestamp>,
}

/// A join token as it is listed: never with its secret. Those that people made with kubeadm are here too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinTokenInfo {
    pub id: String,
    pub description: String,
    #[serde(default)]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub expires_at: Option<Timestamp>,
}

/// A Kubernetes version that clusters can have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    pub version: String,
    /// What a cluster gets unless it asks for another one.
    pub default: bool,
}

/// The signed end of a cluster: what existed for it outside its own store, and when each was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Receipt {
    #[schema(value_type = String, format = "uuid")]
    pub cluster: TenantId,
    #[schema(value_type = String)]
    pub name: Slug,
    #[schema(value_type = String)]
    pub organization: Slug,
    #[schema(value_type = String, format = "date-time")]
    pub deleted_at: Timestamp,
    pub resources: Vec<ReceiptResource>,
    /// ES256 (RFC 7518: `r || s`, base64url) over the receipt without this field as canonical JSON
    /// (RFC 8785: sorted keys, no spaces). The key is at `/api/v1/receipt-key`.
    pub signature: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiptResource {
    /// `machine`, `load-balancer`, `replica`, `data-key`, …
    pub kind: String,
    pub id: String,
    /// What the cluster called it: a machine's name, `namespace/name` of a load balancer's Service.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The cloud provider that had it; empty for what the fleet itself kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    #[schema(value_type = String, format = "date-time")]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = "date-time")]
    pub deleted_at: Timestamp,
}
