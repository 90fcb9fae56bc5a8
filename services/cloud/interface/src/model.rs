//! The words of a cloud: machines, load balancers, and the trait.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use base_clock::Timestamp;
use base_ids::TenantId;
use serde::{Deserialize, Serialize};

use crate::CloudError;

pub type Tags = BTreeMap<String, String>;
pub type SharedCloud = Arc<dyn Cloud>;

/// A provider. Every call may be repeated; see `proto/cloud/v1/cloud.proto` for what each promises.
#[async_trait]
pub trait Cloud: Send + Sync + 'static {
    async fn describe(&self) -> Result<Description, CloudError>;

    /// The machine of this cluster and client token, made now or before.
    async fn create_machine(&self, spec: &MachineSpec) -> Result<Machine, CloudError>;
    /// All machines of the cluster of which anything is left.
    async fn list_machines(&self, cluster: TenantId) -> Result<Vec<Machine>, CloudError>;
    /// Begins to delete it. Fine when it is absent, or another cluster's: then nothing happens.
    async fn delete_machine(&self, cluster: TenantId, id: &str) -> Result<(), CloudError>;

    /// The balancer of this cluster and client token, made or changed to be as described.
    async fn ensure_balancer(&self, spec: &BalancerSpec) -> Result<Balancer, CloudError>;
    async fn list_balancers(&self, cluster: TenantId) -> Result<Vec<Balancer>, CloudError>;
    async fn delete_balancer(&self, cluster: TenantId, id: &str) -> Result<(), CloudError>;
}

/// What a provider is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// `local`, `aws`: also the scheme of its provider ids.
    pub name: String,
    pub capabilities: Capabilities,
    /// The first one is the default.
    pub machine_types: Vec<MachineType>,
    /// CIDRs that balancers get addresses from.
    pub address_pools: Vec<String>,
    pub region: String,
}

impl Description {
    /// The type asked for, or the default when none was.
    pub fn machine_type(&self, wanted: &str) -> Option<&MachineType> {
        match wanted {
            "" => self.machine_types.first(),
            name => self.machine_types.iter().find(|one| one.name == name),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    pub machines: bool,
    pub balancers: bool,
    pub udp: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineType {
    pub name: String,
    pub cpu_millis: u32,
    pub memory_bytes: u64,
}

/// What the caller calls something before it exists: 1 to 64 of `a-z A-Z 0-9 -`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClientToken(String);

impl ClientToken {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl FromStr for ClientToken {
    type Err = CloudError;
    fn from_str(given: &str) -> Result<ClientToken, CloudError> {
        let fine = (1..=64).contains(&given.len())
            && given.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        match fine {
            true => Ok(ClientToken(given.to_owned())),
            false => Err(CloudError::Invalid(format!("client token {given:?} is not 1 to 64 of a-zA-Z0-9-"))),
        }
    }
}
impl TryFrom<String> for ClientToken {
    type Error = CloudError;
    fn try_from(given: String) -> Result<ClientToken, CloudError> {
        given.parse()
    }
}
impl From<ClientToken> for String {
    fn from(token: ClientToken) -> String {
        token.0
    }
}
impl fmt::Display for ClientToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A machine to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineSpec {
    pub cluster: TenantId,
    pub client_token: ClientToken,
    /// A DNS label: the name of the Node it becomes.
    pub name: String,
    /// Empty: the provider's default.
    pub machine_type: String,
    pub join: Join,
    pub tags: Tags,
}

/// What a machine needs to become a node.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Join {
    /// The API server, or gateways before it; a provider takes one that its machines can reach.
    pub servers: Vec<SocketAddr>,
    pub tls_server_name: String,
    /// `abcdef.0123456789abcdef`
    pub token: String,
    pub ca_cert_hashes: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The id of a token is public, its secret is not.
        let id = self.token.split('.').next().unwrap_or_default();
        f.debug_struct("Join")
            .field("servers", &self.servers)
            .field("token_id", &id)
            .field("labels", &self.labels)
            .field("taints", &self.taints)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taint {
    pub key: String,
    #[serde(default)]
    pub value: String,
    pub effect: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Unique within the provider.
    pub id: String,
    pub cluster: TenantId,
    pub client_token: ClientToken,
    pub name: String,
    pub machine_type: String,
    /// For `spec.providerID` of its Node.
    pub provider_id: String,
    pub state: MachineState,
    pub addresses: Vec<IpAddr>,
    /// Empty where there are none.
    pub zone: String,
    pub region: String,
    /// Why it failed, or what it waits for.
    pub message: String,
    pub created_at: Timestamp,
    pub tags: Tags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineState {
    Pending,
    Running,
    Deleting,
    /// Will never run (again); to be deleted.
    Failed,
}

/// A load balancer as it is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerSpec {
    pub cluster: TenantId,
    pub client_token: ClientToken,
    /// For people: `default/web`.
    pub name: String,
    pub listeners: Vec<Listener>,
    pub targets: Vec<Target>,
    /// CIDRs that may connect; everybody when empty.
    pub source_ranges: Vec<String>,
    pub health_check: HealthCheck,
    pub tags: Tags,
    /// Given when it is free and the provider can; [`CloudError::Invalid`] otherwise.
    pub wanted_address: Option<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Listener {
    pub port: u16,
    pub protocol: Protocol,
    /// Where targets listen for it.
    pub node_port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    Tcp,
    Udp,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Target {
    /// The Node's name.
    pub name: String,
    pub address: IpAddr,
    /// `None` for nodes that came by themselves.
    pub machine_id: Option<String>,
}

/// How a balancer finds out which targets can take traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCheck {
    pub port: u16,
    /// A GET that must answer 200; a TCP connection when `None`.
    pub http_path: Option<String>,
    pub interval_ms: u32,
    pub timeout_ms: u32,
    pub unhealthy_after: u32,
    pub healthy_after: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balancer {
    pub id: String,
    pub cluster: TenantId,
    pub client_token: ClientToken,
    pub name: String,
    pub state: BalancerState,
    pub addresses: Vec<IpAddr>,
    pub hostname: Option<String>,
    pub message: String,
    pub created_at: Timestamp,
    pub tags: Tags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BalancerState {
    Pending,
    Active,
    Deleting,
    Failed,
}
