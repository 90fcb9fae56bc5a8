//! Orders from the manager.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base_ids::{Slug, TenantId};
use base_net::tasks::Tasks;
use cloud_controllers::Pool;
use fleet_rpc::cell_server::{Cell, CellServer};
use fleet_rpc::{
    AssignClusterRequest, AssignClusterResponse, ClusterReport, CreateJoinTokenRequest,
    CreateJoinTokenResponse, DeleteJoinTokenRequest, DeleteJoinTokenResponse, DrainClusterRequest,
    DrainClusterResponse, HealthRequest, HealthResponse, IssueCredentialRequest, IssueCredentialResponse,
    IssueTokenRequest, IssueTokenResponse, LedCluster, ListJoinTokensRequest, ListJoinTokensResponse,
    RemoveClusterRequest, RemoveClusterResponse, ReportRequest, ReportResponse,
};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};
use x509_parser::prelude::FromDer;

use crate::assignments::{Replica, Revoked};
use crate::hosted::Hosted;
use crate::join_tokens;
use crate::peers::{KEEP_ALIVE, PeerService};
use crate::{Assignment, CellError, Config, HostError, Shared};

/// The common name that the fleet's CA gives to managers and to nobody else.
const MANAGER: &str = "manager";

/// No credential of a cluster lives longer.
const LONGEST_CREDENTIAL: Duration = base_net::pki::YEAR;

pub(crate) fn serve(
    listener: TcpListener,
    config: &Config,
    shared: Arc<Shared>,
    tasks: &Tasks,
) -> Result<(), CellError> {
    let identity = config.identity();
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&identity.cert_pem, &identity.key_pem))
        .client_ca_root(Certificate::from_pem(&config.ca_pem));
    let server = Server::builder()
        .tls_config(tls)?
        // One cell sends many clusters' messages through one stream.
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
        // What was asked by a cell or a manager whose machine vanished must not stay for ever.
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(PeerService::server(shared.clone()))
        .add_service(CellServer::with_interceptor(Orders(shared), managers_only));
    let stop = tasks.stopping();
    tasks.spawn(async move {
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        if let Err(error) = server.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await {
            tracing::error!(error = &error as &dyn std::error::Error, "gRPC for the manager ended");
        }
    });
    Ok(())
}

/// Other cells and gateways have certificates of the same CA; only a manager may give orders.
fn managers_only(request: Request<()>) -> Result<Request<()>, Status> {
    let certificates = request.peer_certs();
    let first = certificates.as_ref().and_then(|chain| chain.first());
    let name = first.and_then(|der| {
        let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
        let name = certificate.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
        Some(name)
    });
    if name.as_deref() == Some(MANAGER) {
        return Ok(request);
    }
    Err(Status::permission_denied("only the manager gives orders to a cell"))
}

struct Orders(Arc<Shared>);

impl Orders {
    fn hosted(&self, id: &str) -> Result<Arc<Hosted>, Status> {
        let id = cluster_id(id)?;
        self.0.cluster(id).ok_or_else(|| match self.0.damaged.read().get(&id) {
            Some(why) => Status::data_loss(why.clone()),
            None => Status::not_found("this cell does not serve that cluster"),
        })
    }
}

#[tonic::async_trait]
impl Cell for Orders {
    async fn assign_cluster(
        &self,
        request: Request<AssignClusterRequest>,
    ) -> Result<Response<AssignClusterResponse>, Status> {
        let assignment =
            request.into_inner().assignment.ok_or_else(|| Status::invalid_argument("no assignment"))?;
        let assignment = parse(assignment)?;
        let hosted = self.0.assign(assignment).await.map_err(refuse)?;
        Ok(Response::new(AssignClusterResponse { ca_pem: hosted.plane().pki().ca_pem().to_owned() }))
    }

    async fn remove_cluster(
        &self,
        request: Request<RemoveClusterRequest>,
    ) -> Result<Response<RemoveClusterResponse>, Status> {
        let id = cluster_id(&request.into_inner().cluster_id)?;
        self.0.remove(id).await.map_err(refuse)?;
        Ok(Response::new(RemoveClusterResponse {}))
    }

    async fn issue_credential(
        &self,
        request: Request<IssueCredentialRequest>,
    ) -> Result<Response<IssueCredentialResponse>, Status> {
        let request = request.into_inner();
        let hosted = self.hosted(&request.cluster_id)?;
        let lifetime = Duration::from_secs(request.lifetime_seconds).min(LONGEST_CREDENTIAL);
        let pki = hosted.plane().pki();
        let groups: Vec<&str> = request.groups.iter().map(String::as_str).collect();
        let issued = pki
            .issue_client_at(&request.user, &groups, issued_at(request.issued_unix_ms), lifetime)
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(IssueCredentialResponse {
            ca_pem: pki.ca_pem().to_owned(),
            cert_pem: issued.cert_pem,
            key_pem: issued.key_pem,
        }))
    }

    async fn create_join_token(
        &self,
        request: Request<CreateJoinTokenRequest>,
    ) -> Result<Response<CreateJoinTokenResponse>, Status> {
        let request = request.into_inner();
        let hosted = self.hosted(&request.cluster_id)?;
        let lifetime = Duration::from_secs(request.lifetime_seconds);
        let now = self.0.clock.now();
        let made = join_tokens::create_for(&hosted, now, lifetime, &request.description, &request.request_id)
            .await?;
        Ok(Response::new(made))
    }

    async fn list_join_tokens(
        &self,
        request: Request<ListJoinTokensRequest>,
    ) -> Result<Response<ListJoinTokensResponse>, Status> {
        let hosted = self.hosted(&request.into_inner().cluster_id)?;
        Ok(Response::new(ListJoinTokensResponse { tokens: join_tokens::list(&hosted).await? }))
    }

    async fn delete_join_token(
        &self,
        request: Request<DeleteJoinTokenRequest>,
    ) -> Result<Response<DeleteJoinTokenResponse>, Status> {
        let request = request.into_inner();
        let hosted = self.hosted(&request.cluster_id)?;
        let found = join_tokens::delete(&hosted, &request.id).await?;
        Ok(Response::new(DeleteJoinTokenResponse { found }))
    }

    async fn issue_token(
        &self,
        request: Request<IssueTokenRequest>,
    ) -> Result<Response<IssueTokenResponse>, Status> {
        let request = request.into_inner();
        let hosted = self.hosted(&request.cluster_id)?;
        let pki = hosted.plane().pki();
        let seconds = i64::try_from(request.lifetime_seconds).unwrap_or(i64::MAX);
        let now = self.0.clock.now();
        let (token, ends) =
            tenant_auth::issue_person_token(pki.issuer(), &request.user, &request.groups, now, seconds)
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Response::new(IssueTokenResponse {
            token,
            ca_pem: pki.ca_pem().to_owned(),
            expires_at_seconds: ends.as_second(),
        }))
    }

    async fn drain_cluster(
        &self,
        request: Request<DrainClusterRequest>,
    ) -> Result<Response<DrainClusterResponse>, Status> {
        let hosted = self.hosted(&request.into_inner().cluster_id)?;
        let Some(term) = *hosted.group().leadership().borrow() else {
            return Err(Status::failed_precondition("another replica leads this cluster"));
        };
        let drained = hosted.seat().drain(hosted.group(), &self.0.clock, term).await;
        drained.map(Response::new).map_err(|error| Status::unavailable(error.to_string()))
    }

    async fn health(&self, _: Request<HealthRequest>) -> Result<Response<HealthResponse>, Status> {
        let clusters = self.0.clusters.read();
        let leads = clusters.iter().filter_map(|(id, hosted)| {
            let term = (*hosted.group().leadership().borrow())?;
            // One that is alone has nothing to prefer.
            (hosted.group().cells().len() > 1)
                .then(|| LedCluster { cluster_id: id.to_string(), term: term.0 })
        });
        Ok(Response::new(HealthResponse { leads: leads.collect() }))
    }

    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        let only: HashSet<String> = request.into_inner().cluster_ids.into_iter().collect();
        let clusters = self.0.clusters.read();
        let asked = clusters.iter().filter(|(id, _)| only.is_empty() || only.contains(&id.to_string()));
        let reports = asked.map(|(id, hosted)| {
            let usage = hosted.group().space().usage();
            let leader = hosted.group().leader();
            ClusterReport {
                cluster_id: id.to_string(),
                serving: hosted.group().leadership().borrow().is_some(),
                revision: hosted.group().space().revision().0,
                store_bytes: usage.bytes,
                store_keys: usage.keys,
                generation: hosted.assignment().generation,
                leader_cell_id: leader.map(|(cell, _)| cell.to_string()).unwrap_or_default(),
                leader_term: leader.map(|(_, term)| term.0).unwrap_or_default(),
                cloud: hosted.group().leadership().borrow().map(|_| hosted.seat().report()),
                problem: String::new(),
            }
        });
        let damaged = self.0.damaged.read();
        let problems = damaged.iter().map(|(id, why)| ClusterReport {
            cluster_id: id.to_string(),
            problem: why.clone(),
            ..ClusterReport::default()
        });
        let problems = problems.filter(|one| only.is_empty() || only.contains(&one.cluster_id));
        Ok(Response::new(ReportResponse {
            clusters: reports.chain(problems).collect(),
            providers: self.0.clouds.report(),
        }))
    }
}

/// When a certificate says that it was issued: the manager's moment, as long as the certificate is valid by our clock.
fn issued_at(unix_ms: i64) -> SystemTime {
    let now = SystemTime::now();
    match u64::try_from(unix_ms) {
        Ok(0) | Err(_) => now,
        Ok(unix_ms) => {
            let given = SystemTime::UNIX_EPOCH + Duration::from_millis(unix_ms);
            given.clamp(now - base_net::pki::BACKDATE, now + base_net::pki::BACKDATE)
        }
    }
}

fn parse(given: fleet_rpc::Assignment) -> Result<Assignment, Status> {
    let invalid = |error: &dyn std::fmt::Display| Status::invalid_argument(error.to_string());
    let replica = |given: &fleet_rpc::Replica| -> Result<Replica, Status> {
        Ok(Replica {
            cell: given.cell_id.parse().map_err(|error: base_ids::ParseIdError| invalid(&error))?,
            address: given.cell_address.parse().map_err(|error| invalid(&error))?,
        })
    };
    Ok(Assignment {
        cluster: cluster_id(&given.cluster_id)?,
        name: given.name.parse().map_err(|error| invalid(&error))?,
        organization: given.organization.parse().map_err(|error| invalid(&error))?,
        kubernetes_version: given.kubernetes_version,
        server_name: given.server_name,
        gateway_addresses: given
            .gateway_addresses
            .iter()
            .map(|address| address.parse().map_err(|error| invalid(&error)))
            .collect::<Result<_, _>>()?,
        generation: given.generation,
        replicas: given.replicas.iter().map(replica).collect::<Result<_, _>>()?,
        founding: given.founding,
        revocations: given
            .revocations
            .into_iter()
            .map(|one| Revoked { user: one.user, before_ms: one.before_unix_ms })
            .collect(),
        provider: given.provider,
        node_pools: given.node_pools.into_iter().map(pool).collect::<Result<_, _>>()?,
    })
}

fn pool(given: fleet_rpc::NodePool) -> Result<Pool, Status> {
    let invalid = |error: base_ids::ParseIdError| Status::invalid_argument(error.to_string());
    // It becomes part of machines' names.
    let name: Slug = given.name.parse().map_err(invalid)?;
    let taint =
        |one: fleet_rpc::Taint| cloud_interface::Taint { key: one.key, value: one.value, effect: one.effect };
    Ok(Pool {
        id: given.id.parse().map_err(invalid)?,
        name: name.to_string(),
        size: given.size,
        machine_type: given.machine_type,
        labels: given.labels.into_iter().collect(),
        taints: given.taints.into_iter().map(taint).collect(),
        deleting: given.deleting,
        provider: given.provider,
    })
}

fn cluster_id(text: &str) -> Result<TenantId, Status> {
    text.parse().map_err(|error: base_ids::ParseIdError| Status::invalid_argument(error.to_string()))
}

fn refuse(error: HostError) -> Status {
    tracing::error!(error = &error as &dyn std::error::Error, "order not carried out");
    // The manager's operators read this far from the cell's log.
    if error.is_damage() {
        return Status::data_loss(format!("{}; {}", error.in_full(), HostError::ADVICE));
    }
    if error.is_full() {
        return Status::resource_exhausted(error.in_full());
    }
    Status::unavailable(error.in_full())
}
