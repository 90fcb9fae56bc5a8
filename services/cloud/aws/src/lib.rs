//! Machines from EC2 and load balancers from NLB, behind the interface every provider has.
//!
//! [`Aws`] is the provider; `main.rs` serves it. `machines` maps machines to instances, `balancers` maps a
//! balancer to a security group, an NLB, target groups and listeners, `user_data` writes what an instance
//! runs at its first boot, `names` is how things are called in the account and how they are found again:
//! everything carries the cluster and the client token as tags, so an account is its own record and this
//! process keeps no state.
//!
//! Not here: when to make or delete anything (`cloud-controllers`), and the networks themselves: subnets,
//! security groups of machines and the image are the operator's and come in by [`Config`].

mod balancers;
mod config;
mod errors;
mod locks;
mod machines;
mod names;
mod user_data;

use std::time::Duration;

use async_trait::async_trait;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use base_clock::SharedClock;
use base_ids::TenantId;
use cloud_interface::{
    Balancer, BalancerSpec, Capabilities, Cloud, CloudError, Description, Machine, MachineSpec,
};

pub use config::{Config, NodeBinary, Scheme};

use errors::Explain;
use locks::Locks;

/// One try of one request; AWS answers within a second or two when it is well.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// All tries of one request: below what a cell waits for a call that makes several.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(25);
/// Tries per request, with the SDK's jittered back-off between them. The controllers try again by
/// themselves, so this only has to ride out a blink.
const ATTEMPTS: u32 = 4;

/// The provider. Clones are handles.
#[derive(Clone)]
pub struct Aws {
    ec2: aws_sdk_ec2::Client,
    elb: aws_sdk_elasticloadbalancingv2::Client,
    config: std::sync::Arc<Config>,
    description: std::sync::Arc<Description>,
    /// The network of the configured subnets.
    vpc_id: String,
    clock: SharedClock,
    locks: Locks,
}

impl Aws {
    /// Reads the machine types and the network once, which also proves credentials, region and subnets.
    pub async fn connect(config: Config, clock: SharedClock) -> Result<Aws, CloudError> {
        config.check().map_err(CloudError::Invalid)?;
        let sdk = sdk_config(&config).await;
        let (ec2, elb) = (aws_sdk_ec2::Client::new(&sdk), aws_sdk_elasticloadbalancingv2::Client::new(&sdk));
        let description = Description {
            name: "aws".to_owned(),
            capabilities: Capabilities { machines: true, balancers: true, udp: true },
            machine_types: machines::types(&ec2, &config.machine_types).await?,
            address_pools: Vec::new(),
            region: config.region.clone(),
        };
        let subnets = ec2
            .describe_subnets()
            .set_subnet_ids(Some(config.subnet_ids.clone()))
            .send()
            .await
            .explain("the configured subnets")?;
        let mut networks: Vec<String> =
            subnets.subnets().iter().filter_map(|one| one.vpc_id().map(ToOwned::to_owned)).collect();
        networks.sort();
        networks.dedup();
        let [vpc_id] = &networks[..] else {
            return Err(CloudError::Invalid(format!(
                "the subnets are in {} networks, not in one",
                networks.len()
            )));
        };
        Ok(Aws {
            vpc_id: vpc_id.clone(),
            ec2,
            elb,
            config: config.into(),
            description: description.into(),
            clock,
            locks: Locks::default(),
        })
    }
}

/// How the SDK's clients reach the cloud that `config` names.
pub async fn sdk_config(config: &Config) -> SdkConfig {
    let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::AwsLc)).build_https();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(config.region.clone()))
        .http_client(http.clone())
        .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(Duration::from_secs(3))
                .operation_attempt_timeout(ATTEMPT_TIMEOUT)
                .operation_timeout(OPERATION_TIMEOUT)
                .build(),
        );
    if let Some(url) = &config.endpoint_url {
        loader = loader.endpoint_url(url);
    }
    if let Some(path) = &config.credentials_file {
        let file = ProfileFileCredentialsProvider::builder()
            .configure(&ProviderConfig::empty().with_http_client(http))
            .profile_files(EnvConfigFiles::builder().with_file(EnvConfigFileKind::Credentials, path).build())
            .build();
        loader = loader.credentials_provider(file);
    }
    loader.load().await
}

#[async_trait]
impl Cloud for Aws {
    async fn describe(&self) -> Result<Description, CloudError> {
        Ok(Description::clone(&self.description))
    }
    async fn create_machine(&self, spec: &MachineSpec) -> Result<Machine, CloudError> {
        let _one_at_a_time = self.locks.lock(spec.cluster, spec.client_token.as_str()).await;
        self.create_instance(spec).await
    }
    async fn list_machines(&self, cluster: TenantId) -> Result<Vec<Machine>, CloudError> {
        self.instances(cluster).await
    }
    async fn delete_machine(&self, cluster: TenantId, id: &str) -> Result<(), CloudError> {
        self.terminate_instance(cluster, id).await
    }
    async fn ensure_balancer(&self, spec: &BalancerSpec) -> Result<Balancer, CloudError> {
        let _one_at_a_time = self.locks.lock(spec.cluster, spec.client_token.as_str()).await;
        self.ensure_nlb(spec).await
    }
    async fn list_balancers(&self, cluster: TenantId) -> Result<Vec<Balancer>, CloudError> {
        self.nlbs(cluster).await
    }
    async fn delete_balancer(&self, cluster: TenantId, id: &str) -> Result<(), CloudError> {
        self.delete_nlb(cluster, id).await
    }
}
