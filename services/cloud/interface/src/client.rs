//! A provider in another process.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use base_ids::TenantId;
use base_net::pki::Issued;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::model::*;
use crate::proto::provider_client::ProviderClient;
use crate::{CloudError, proto};

/// A provider's certificate names this.
pub const TLS_NAME: &str = "cloud";

pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// For a call as a whole. Clouds take seconds for some; what takes longer goes on in the background there
/// and shows in a list.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A list of a cluster with a thousand machines is well below this.
const LARGEST_ANSWER_BYTES: usize = 16 << 20;

/// Asks over gRPC. It connects when first asked and again when that broke; clones share the connection.
#[derive(Debug, Clone)]
pub struct Remote {
    client: ProviderClient<Channel>,
}

impl Remote {
    /// Does not connect yet. `identity` is shown to the provider, whose certificate `ca_pem` must have
    /// signed for [`TLS_NAME`].
    pub fn new(
        address: SocketAddr,
        ca_pem: &str,
        identity: &Issued,
    ) -> Result<Remote, tonic::transport::Error> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(ca_pem))
            .identity(Identity::from_pem(&identity.cert_pem, &identity.key_pem))
            .domain_name(TLS_NAME);
        let channel = Endpoint::from_shared(format!("https://{address}"))?
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(CALL_TIMEOUT)
            .tls_config(tls)?
            .connect_lazy();
        let client = ProviderClient::new(channel).max_decoding_message_size(LARGEST_ANSWER_BYTES);
        Ok(Remote { client })
    }
}

/// An answer that lacks what was asked for, or is not well formed: a broken provider. It may have acted.
fn broken(error: CloudError) -> CloudError {
    CloudError::Unavailable(format!("the provider's answer is not understood: {error}"))
}
fn nothing() -> CloudError {
    CloudError::Unavailable("the provider's answer is empty".to_owned())
}

#[async_trait]
impl Cloud for Remote {
    async fn describe(&self) -> Result<Description, CloudError> {
        Ok(self.client.clone().describe(proto::DescribeRequest {}).await?.into_inner().into())
    }

    async fn create_machine(&self, spec: &MachineSpec) -> Result<Machine, CloudError> {
        let answer = self.client.clone().create_machine(proto::CreateMachineRequest::from(spec)).await?;
        answer.into_inner().machine.ok_or_else(nothing)?.try_into().map_err(broken)
    }

    async fn list_machines(&self, cluster: TenantId) -> Result<Vec<Machine>, CloudError> {
        let request = proto::ListMachinesRequest { cluster_id: cluster.to_string() };
        let answer = self.client.clone().list_machines(request).await?.into_inner();
        answer.machines.into_iter().map(|one| one.try_into().map_err(broken)).collect()
    }

    async fn delete_machine(&self, cluster: TenantId, id: &str) -> Result<(), CloudError> {
        let request = proto::DeleteMachineRequest { cluster_id: cluster.to_string(), id: id.to_owned() };
        self.client.clone().delete_machine(request).await?;
        Ok(())
    }

    async fn ensure_balancer(&self, spec: &BalancerSpec) -> Result<Balancer, CloudError> {
        let request = proto::EnsureLoadBalancerRequest::from(spec);
        let answer = self.client.clone().ensure_load_balancer(request).await?;
        answer.into_inner().load_balancer.ok_or_else(nothing)?.try_into().map_err(broken)
    }

    async fn list_balancers(&self, cluster: TenantId) -> Result<Vec<Balancer>, CloudError> {
        let request = proto::ListLoadBalancersRequest { cluster_id: cluster.to_string() };
        let answer = self.client.clone().list_load_balancers(request).await?.into_inner();
        answer.load_balancers.into_iter().map(|one| one.try_into().map_err(broken)).collect()
    }

    async fn delete_balancer(&self, cluster: TenantId, id: &str) -> Result<(), CloudError> {
        let request = proto::DeleteLoadBalancerRequest { cluster_id: cluster.to_string(), id: id.to_owned() };
        self.client.clone().delete_load_balancer(request).await?;
        Ok(())
    }
}
