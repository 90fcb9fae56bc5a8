//! Organisations, clusters and cells as data, and the decisions made about them.
//!
//! The REST API's types are here too, so that manager, CLI and tests speak the same ones.
//! [`placement`] chooses cells and does no I/O.
//!
//! Not here: SQL, HTTP, gRPC.

mod cluster;
pub mod identity;
pub mod labels;
mod operation;
pub mod placement;
mod pool;
mod problem;
mod reference;

pub use cluster::{
    Cluster, ClusterState, CreateCluster, CreateJoinToken, CreateKubeconfig, JoinToken, JoinTokenInfo,
    Kubeconfig, Receipt, ReceiptResource, UpdateCluster, Version,
};
pub use operation::{Event, Gone, Operation, OperationKind, OperationState};
pub use pool::{
    CreateNodePool, MAX_POOL_SIZE, Machine, MachineState, MachineType, NodePool, NodePoolState, Taint,
    TaintEffect, UpdateNodePool, check_taints,
};
pub use problem::{FieldProblem, Problem, pointer_step};
pub use reference::{ClusterRef, NodePoolRef, looks_like_id};

pub use identity::{
    AcceptInvitation, ChangePassword, CreateMember, CreateSession, Email, Hidden, Identity, Member,
    Membership, Session, UpdateMember, User,
};

use base_ids::{CellId, OrgId, Slug, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The Kubernetes version that clusters get unless they say otherwise.
pub const DEFAULT_VERSION: &str = "v1.36.0";

/// Server names of clusters are below this domain. Clients never resolve it: kubeconfigs name the
/// gateway's address and set `tls-server-name`, since names under localhost do not resolve everywhere.
pub const CLUSTER_DOMAIN: &str = "roadstead.local";

/// The TLS server name of a cluster.
pub fn server_name(cluster: &TenantId) -> String {
    format!("{}.{CLUSTER_DOMAIN}", cluster.dns_label())
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Organization {
    #[schema(value_type = String, format = "uuid")]
    pub id: OrgId,
    #[schema(value_type = String, pattern = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    pub name: Slug,
    #[schema(value_type = String, format = "date-time")]
    pub created_at: Timestamp,
}

/// What an API token may do.
///
/// In the order of what they may, so that `>=` is "at least".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reading in one organisation.
    Viewer,
    /// Its clusters, node pools, kubeconfigs and join tokens; not its members and tokens.
    Developer,
    /// Everything in one organisation.
    Admin,
    /// Everything in every organisation, and the fleet itself. For the provider's operators.
    Provider,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Provider => "provider",
            Role::Admin => "admin",
            Role::Developer => "developer",
            Role::Viewer => "viewer",
        }
    }
    pub fn parse(text: &str) -> Option<Role> {
        [Role::Viewer, Role::Developer, Role::Admin, Role::Provider]
            .into_iter()
            .find(|role| role.as_str() == text)
    }
}

/// A token as it is listed: never with its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiToken {
    pub id: String,
    pub description: String,
    pub role: Role,
    /// `None` for the provider's own.
    #[schema(value_type = Option<String>)]
    pub organization: Option<Slug>,
    /// The one cluster that it is limited to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub cluster: Option<TenantId>,
    /// Who made it, or made the token that made it: it never may more than they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub created_by: Option<Email>,
    #[schema(value_type = String, format = "date-time")]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>, format = "date-time")]
    pub expires_at: Option<Timestamp>,
}

// ---- requests and answers of the REST API ----

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateOrganization {
    #[schema(value_type = String, pattern = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    pub name: Slug,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    #[schema(max_length = 200, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    pub description: String,
    pub role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    pub organization: Option<Slug>,
    /// Name or id of the one cluster that it is limited to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Seconds until it expires; `None` never.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "whole_number")]
    #[schema(minimum = 1)]
    pub expires_in_seconds: Option<u32>,
}

/// A number without a fraction. JSON Schema counts `2.0` as an integer, and some programs print it so.
pub(crate) fn whole_number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let Some(number) = Option::<f64>::deserialize(from)? else { return Ok(None) };
    if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) {
        return Ok(Some(number as u32));
    }
    Err(serde::de::Error::custom(format!("{number} is not a whole number from 0 to {}", u32::MAX)))
}

/// A list of objects. Serde would take a list of a struct's values for the struct, which no description of this API
/// says.
pub(crate) fn objects<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    let all = Vec::<ObjectOnly<T>>::deserialize(from)?;
    Ok(all.into_iter().map(|one| one.0).collect())
}

struct ObjectOnly<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ObjectOnly<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<ObjectOnly<T>, D::Error> {
        from.deserialize_map(ObjectVisitor(std::marker::PhantomData)).map(ObjectOnly)
    }
}

struct ObjectVisitor<T>(std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for ObjectVisitor<T> {
    type Value = T;
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(serde::de::value::MapAccessDeserializer::new(map))
    }
}

/// The only time a token's secret is seen.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    #[serde(flatten)]
    pub token: ApiToken,
    pub secret: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Give it back as `?continue=` for the next page.
    #[serde(default, rename = "continue", skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CellInfo {
    #[schema(value_type = String, format = "uuid")]
    pub id: CellId,
    #[schema(value_type = String, pattern = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    pub name: Slug,
    pub clusters: u32,
    /// The cell answered when last asked.
    pub reachable: bool,
}
