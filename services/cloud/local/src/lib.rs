//! The provider `local`: machines and load balancers on the machine it runs on.
//!
//! A machine is a node in namespaces of its own (`node-local`), a balancer an L4 proxy in this process with
//! an address from a loopback pool. What there is, is on disk: [`Local::start`] finds it again after this
//! process was ended in any way, takes away what the kernel still holds of it, and starts it anew.
//! `machines` and `balancers` keep the books, `proxy` carries the traffic.
//!
//! Not here: gRPC (`cloud_interface::serve`), the bridge that machines hang on (`roadstead up` makes it),
//! what a machine does once it runs (`node-agent`).

mod balancers;
mod machines;
mod proxy;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use async_trait::async_trait;
use base_clock::SharedClock;
use base_ids::TenantId;
use base_net::tasks::Tasks;
use cloud_interface::{
    Balancer, BalancerSpec, Capabilities, Cloud, CloudError, Description, Machine, MachineSpec, MachineType,
};
use node_network::{RunId, Subnet};
use serde::{Deserialize, Serialize};

use balancers::Balancers;
use machines::Machines;

/// Scheme of its provider ids.
pub const NAME: &str = "local";
pub(crate) const REGION: &str = "local";
pub(crate) const ZONE: &str = "local-1";

/// Numbers of the bridge's nodes that are machines of ours; those below are whoever made the bridge's.
const FIRST_NUMBER: u8 = 20;

/// The file of `roadstead cloud-local --config FILE`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// gRPC, for cells.
    pub listen: SocketAddr,
    /// Listen elsewhere when somebody has taken the port meanwhile; whoever started the provider learns where.
    #[serde(default)]
    pub any_port_if_taken: bool,
    pub data_dir: PathBuf,
    pub ca_pem: String,
    pub cert_pem: String,
    pub key_pem: String,
    /// The folder after which the bridge is named; machines are refused without.
    #[serde(default)]
    pub bridge_of: Option<PathBuf>,
    /// Where machines reach their cluster.
    pub gateway: SocketAddr,
    #[serde(default = "default_machines_max")]
    pub machines_max: u8,
    #[serde(default = "default_machine_types")]
    pub machine_types: Vec<MachineType>,
    /// Where balancers get their addresses: all of 127.0.0.0/8 answers on Linux.
    #[serde(default = "default_balancer_pool")]
    pub balancer_pool: Subnet,
}

/// Machines of two cores and a laptop's memory take less; this is for whoever leaves a loop running.
pub fn default_machines_max() -> u8 {
    16
}
pub fn default_machine_types() -> Vec<MachineType> {
    let of = |name: &str, cpu_millis, memory_bytes| MachineType {
        name: name.to_owned(),
        cpu_millis,
        memory_bytes,
    };
    vec![of("small", 1000, 2 << 30), of("medium", 2000, 4 << 30), of("large", 4000, 8 << 30)]
}
pub fn default_balancer_pool() -> Subnet {
    let base = std::net::IpAddr::from([127, 77, 0, 0]);
    Subnet::new(base, 16).unwrap_or_else(|| unreachable!("a prefix of 16 fits IPv4"))
}

/// A /24 of the default pool for the run that keeps its data in `folder`: runs beside one another on a
/// machine must not want the same addresses, and a restart wants those it had.
pub fn pool_of(folder: &std::path::Path) -> Subnet {
    let pool = default_balancer_pool();
    let turn = usize::from_str_radix(RunId::of(folder).as_str(), 16).unwrap_or(0) % 256;
    pool.parts(24).nth(turn).unwrap_or(pool)
}

/// The provider. Clones are handles.
#[derive(Clone)]
pub struct Local {
    description: Arc<Description>,
    machines: Option<Arc<Machines>>,
    balancers: Arc<Balancers>,
}

impl Local {
    /// Everything that was there is there again when it returns, or is being started. `binary` is the
    /// program whose `node run` a machine runs.
    pub async fn start(config: &Config, binary: PathBuf, clock: SharedClock, tasks: &Tasks) -> Result<Local> {
        base_files::private_dir(&config.data_dir)?;
        let balancers =
            Balancers::open(&config.data_dir.join("balancers"), config.balancer_pool, clock.clone(), tasks)
                .await?;
        let machines = match &config.bridge_of {
            Some(folder) => {
                node_local::check()?;
                let settings = machines::Settings {
                    dir: config.data_dir.join("machines"),
                    gateway: config.gateway,
                    types: config.machine_types.clone(),
                    most: config.machines_max,
                    binary,
                };
                let opened = Machines::open(settings, &RunId::of(folder), clock, tasks).await;
                Some(opened.context("machines")?)
            }
            None => None,
        };
        let description = Description {
            name: NAME.to_owned(),
            capabilities: Capabilities { machines: machines.is_some(), balancers: true, udp: true },
            machine_types: config.machine_types.clone(),
            address_pools: vec![config.balancer_pool.to_string()],
            region: REGION.to_owned(),
        };
        Ok(Local { description: Arc::new(description), machines, balancers })
    }

    fn machines(&self) -> Result<&Arc<Machines>, CloudError> {
        let without = || {
            CloudError::Unsupported(
                "machines need root and containerd, which this provider was started without".to_owned(),
            )
        };
        self.machines.as_ref().ok_or_else(without)
    }

    /// Ends machines and balancers in order, so that the next start finds nothing to sweep.
    pub async fn stop(&self) {
        if let Some(machines) = &self.machines {
            machines.stop().await;
        }
        self.balancers.stop().await;
    }
}

#[async_trait]
impl Cloud for Local {
    async fn describe(&self) -> Result<Description, CloudError> {
        Ok((*self.description).clone())
    }
    async fn create_machine(&self, spec: &MachineSpec) -> Result<Machine, CloudError> {
        self.machines()?.create(spec)
    }
    async fn list_machines(&self, cluster: TenantId) -> Result<Vec<Machine>, CloudError> {
        Ok(self.machines.as_ref().map(|machines| machines.list(cluster)).unwrap_or_default())
    }
    async fn delete_machine(&self, cluster: TenantId, id: &str) -> Result<(), CloudError> {
        match &self.machines {
            Some(machines) => machines.delete(cluster, id),
            None => Ok(()),
        }
    }
    async fn ensure_balancer(&self, spec: &BalancerSpec) -> Result<Balancer, CloudError> {
        self.balancers.ensure(spec).await
    }
    async fn list_balancers(&self, cluster: TenantId) -> Result<Vec<Balancer>, CloudError> {
        Ok(self.balancers.list(cluster).await)
    }
    async fn delete_balancer(&self, cluster: TenantId, id: &str) -> Result<(), CloudError> {
        self.balancers.delete(cluster, id).await
    }
}

/// Short, safe in paths and names, and the same for the same thing: a crash between the two halves of
/// making something cannot make it twice.
pub(crate) fn id_of(kind: &str, cluster: TenantId, token: &cloud_interface::ClientToken) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(format!("{cluster}/{token}").as_bytes());
    format!("{kind}-{}", hex::encode(&digest[..6]))
}
