//! A provider behind gRPC.

use base_net::pki::Issued;
use base_net::tasks::Tasks;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::proto::provider_server::{Provider, ProviderServer};
use crate::{SharedCloud, convert, proto};

/// Calls of one connection that are worked on at a time; a cell with thousands of clusters has one
/// connection, and clouds throttle far below this.
const CALLS_AT_ONCE: usize = 64;

/// The common name that the fleet's CA gives to cells and to nobody else.
const CALLER: &str = "cell";

/// Serves `cloud` to whoever shows a cell's certificate of `ca_pem`, until `tasks` is stopped.
pub fn serve(
    listener: TcpListener,
    identity: &Issued,
    ca_pem: &str,
    cloud: SharedCloud,
    tasks: &Tasks,
) -> Result<(), tonic::transport::Error> {
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&identity.cert_pem, &identity.key_pem))
        .client_ca_root(Certificate::from_pem(ca_pem));
    let server = Server::builder()
        .tls_config(tls)?
        .concurrency_limit_per_connection(CALLS_AT_ONCE)
        .add_service(ProviderServer::with_interceptor(Service(cloud), cells_only));
    let stop = tasks.stopping();
    tasks.spawn_to_end(async move {
        let incoming = TcpListenerStream::new(listener);
        let until = async move { stop.cancelled().await };
        if let Err(error) = server.serve_with_incoming_shutdown(incoming, until).await {
            tracing::error!(error = &error as &dyn std::error::Error, "the provider's gRPC server ended");
        }
    });
    Ok(())
}

/// Managers and gateways have certificates of the same CA; what is asked here costs money, and only a
/// cell's loops keep books of it.
fn cells_only(request: Request<()>) -> Result<Request<()>, Status> {
    let certificates = request.peer_certs();
    let name = certificates.as_ref().and_then(|chain| chain.first()).and_then(|der| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        Some(certificate.subject().iter_common_name().next()?.as_str().ok()?.to_owned())
    });
    match name.as_deref() == Some(CALLER) {
        true => Ok(request),
        false => Err(Status::unauthenticated("only cells ask a cloud provider")),
    }
}

struct Service(SharedCloud);

#[tonic::async_trait]
impl Provider for Service {
    async fn describe(
        &self,
        _: Request<proto::DescribeRequest>,
    ) -> Result<Response<proto::DescribeResponse>, Status> {
        Ok(Response::new(self.0.describe().await?.into()))
    }

    async fn create_machine(
        &self,
        request: Request<proto::CreateMachineRequest>,
    ) -> Result<Response<proto::CreateMachineResponse>, Status> {
        let spec = request.into_inner().try_into()?;
        let machine = self.0.create_machine(&spec).await?;
        Ok(Response::new(proto::CreateMachineResponse { machine: Some(machine.into()) }))
    }

    async fn list_machines(
        &self,
        request: Request<proto::ListMachinesRequest>,
    ) -> Result<Response<proto::ListMachinesResponse>, Status> {
        let cluster = convert::cluster(&request.into_inner().cluster_id)?;
        let machines = self.0.list_machines(cluster).await?.into_iter().map(Into::into).collect();
        Ok(Response::new(proto::ListMachinesResponse { machines }))
    }

    async fn delete_machine(
        &self,
        request: Request<proto::DeleteMachineRequest>,
    ) -> Result<Response<proto::DeleteMachineResponse>, Status> {
        let request = request.into_inner();
        self.0.delete_machine(convert::cluster(&request.cluster_id)?, &request.id).await?;
        Ok(Response::new(proto::DeleteMachineResponse {}))
    }

    async fn ensure_load_balancer(
        &self,
        request: Request<proto::EnsureLoadBalancerRequest>,
    ) -> Result<Response<proto::EnsureLoadBalancerResponse>, Status> {
        let spec = request.into_inner().try_into()?;
        let balancer = self.0.ensure_balancer(&spec).await?;
        Ok(Response::new(proto::EnsureLoadBalancerResponse { load_balancer: Some(balancer.into()) }))
    }

    async fn list_load_balancers(
        &self,
        request: Request<proto::ListLoadBalancersRequest>,
    ) -> Result<Response<proto::ListLoadBalancersResponse>, Status> {
        let cluster = convert::cluster(&request.into_inner().cluster_id)?;
        let load_balancers = self.0.list_balancers(cluster).await?.into_iter().map(Into::into).collect();
        Ok(Response::new(proto::ListLoadBalancersResponse { load_balancers }))
    }

    async fn delete_load_balancer(
        &self,
        request: Request<proto::DeleteLoadBalancerRequest>,
    ) -> Result<Response<proto::DeleteLoadBalancerResponse>, Status> {
        let request = request.into_inner();
        self.0.delete_balancer(convert::cluster(&request.cluster_id)?, &request.id).await?;
        Ok(Response::new(proto::DeleteLoadBalancerResponse {}))
    }
}
