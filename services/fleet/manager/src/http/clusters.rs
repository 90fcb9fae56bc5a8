//! Clusters: rows changed first, their cells driven after.

use std::net::SocketAddr;

use axum::Json;
use axum::http::StatusCode;
use base_ids::TenantId;
use fleet_model::placement::{Candidate, PlacementError, place};
use fleet_model::{
    Cluster, ClusterState, CreateCluster, DEFAULT_VERSION, JoinToken, Kubeconfig, Page, Problem, server_name,
};
use fleet_rpc::{CreateJoinTokenRequest, IssueCredentialRequest};

use super::access::{InCluster, InOrganization};
use super::extract::{Body, PageQuery, page};
use super::{Answer, Shared};
use crate::db::DbError;
use crate::problem::Failure;
use crate::{State, driver, replicas, routing};

/// How long a kubeconfig's client certificate is valid: what kubeadm's admin.conf has.
const KUBECONFIG_SECONDS: u64 = 365 * 24 * 3600;

/// How long a join token is valid: kubeadm's default.
const JOIN_TOKEN_SECONDS: u64 = 24 * 3600;

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/clusters", operation_id = "list_clusters",
    params(("organization" = String, Path), PageQuery),
    responses((status = 200, body = Page<Cluster>), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn list(state: Shared, at: InOrganization, query: PageQuery) -> Answer<Json<Page<Cluster>>> {
    let limit = query.limit()?;
    let items = state.db.clusters(at.organization.id, at.only(), query.after(), limit + 1).await?;
    Ok(page(items, limit, |item| item.name.to_string()))
}

#[utoipa::path(post, path = "/api/v1/organizations/{organization}/clusters", operation_id = "create_cluster", request_body = CreateCluster,
    params(("organization" = String, Path)),
    responses((status = 201, description = "It serves requests.", body = Cluster),
        (status = 202, description = "Accepted; its cell does not answer yet.", body = Cluster),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 415, body = Problem),
        (status = 503, body = Problem)))]
pub(super) async fn create(
    state: Shared,
    at: InOrganization,
    Body(request): Body<CreateCluster>,
) -> Answer<(StatusCode, Json<Cluster>)> {
    let version = request.kubernetes_version.unwrap_or_else(|| DEFAULT_VERSION.to_owned());
    if version != DEFAULT_VERSION {
        return Err(Failure::Invalid(format!(
            "kubernetes_version {version:?} is not offered; {DEFAULT_VERSION} is"
        )));
    }
    let candidates: Vec<Candidate> = state
        .db
        .cells()
        .await?
        .into_iter()
        .map(|cell| Candidate {
            id: cell.id,
            reachable: state.observed.is_reachable(cell.id),
            clusters: cell.clusters,
            capacity: cell.capacity,
        })
        .collect();
    let wanted = request.replicas.unwrap_or(1);
    if !matches!(wanted, 1 | 3) {
        return Err(Failure::Invalid(format!("replicas is {wanted}; a cluster has 1 or 3")));
    }
    let cells = place(&candidates, wanted).map_err(|error| match error {
        PlacementError::TooFewCells { .. } => Failure::Conflict(error.to_string()),
        PlacementError::NoCells | PlacementError::NoRoom { .. } => Failure::Unavailable(error.to_string()),
    })?;
    let id = TenantId::generate();
    let mut cluster = Cluster {
        id,
        organization: at.organization.name.clone(),
        name: request.name,
        state: ClusterState::Creating,
        kubernetes_version: version,
        replicas: wanted,
        cells,
        labels: request.labels,
        operation: None,
        server_name: server_name(&id),
        created_at: state.clock.now(),
    };
    match state.db.insert_cluster(at.organization.id, &cluster).await {
        Ok(()) => {}
        Err(DbError::Constraint) => {
            return Err(Failure::Conflict(format!(
                "organization {} has a cluster named {}",
                cluster.organization, cluster.name
            )));
        }
        Err(error) => return Err(error.into()),
    }
    match driver::drive(&state, &cluster).await {
        Ok(()) => {
            cluster.state = ClusterState::Ready;
            Ok((StatusCode::CREATED, Json(cluster)))
        }
        Err(error) => {
            tracing::warn!(tenant = %cluster.id, error = &error as &dyn std::error::Error, "cluster not created yet");
            state.nudge.notify_one();
            Ok((StatusCode::ACCEPTED, Json(cluster)))
        }
    }
}

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/clusters/{cluster}", operation_id = "get_cluster",
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 200, body = Cluster), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn get(at: InCluster) -> Answer<Json<Cluster>> {
    Ok(Json(at.cluster))
}

#[utoipa::path(delete, path = "/api/v1/organizations/{organization}/clusters/{cluster}", operation_id = "delete_cluster",
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 204, description = "It and its data are gone."),
        (status = 202, description = "Its cell does not answer; it will be deleted when it does."),
        (status = 401, body = Problem), (status = 403, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn delete(state: Shared, at: InCluster) -> Answer<StatusCode> {
    let mut cluster = at.cluster;
    if !state.db.move_cluster(cluster.id, cluster.state, ClusterState::Deleting).await? {
        return Err(Failure::NotFound("cluster"));
    }
    cluster.state = ClusterState::Deleting;
    // Clients are turned away first, so that nobody writes to what is being removed.
    routing::publish(&state).await?;
    match driver::drive(&state, &cluster).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) => {
            tracing::warn!(tenant = %cluster.id, error = &error as &dyn std::error::Error, "cluster not deleted yet");
            state.nudge.notify_one();
            Ok(StatusCode::ACCEPTED)
        }
    }
}

#[utoipa::path(post, path = "/api/v1/organizations/{organization}/clusters/{cluster}/kubeconfig", operation_id = "create_kubeconfig",
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 200, body = Kubeconfig), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn create_kubeconfig(state: Shared, at: InCluster) -> Answer<Json<Kubeconfig>> {
    let cluster = at.cluster;
    serves(&cluster)?;
    let request = IssueCredentialRequest {
        cluster_id: cluster.id.to_string(),
        user: format!("roadstead:{}:admin", cluster.organization),
        groups: vec!["kubeadm:cluster-admins".to_owned()],
        lifetime_seconds: KUBECONFIG_SECONDS,
    };
    let issued = replicas::ask(&state, &cluster, |mut cell| {
        let request = request.clone();
        async move { cell.issue_credential(request).await }
    })
    .await?;
    let kubeconfig = kubeconfig(&cluster, &gateway_url(&state), &issued);
    Ok(Json(Kubeconfig { kubeconfig }))
}

#[utoipa::path(post, path = "/api/v1/organizations/{organization}/clusters/{cluster}/join-tokens", operation_id = "create_join_token",
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 200, body = JoinToken), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn create_join_token(state: Shared, at: InCluster) -> Answer<Json<JoinToken>> {
    let cluster = at.cluster;
    serves(&cluster)?;
    let request = CreateJoinTokenRequest {
        cluster_id: cluster.id.to_string(),
        lifetime_seconds: JOIN_TOKEN_SECONDS,
        description: String::new(),
    };
    let made = replicas::ask(&state, &cluster, |mut cell| {
        let request = request.clone();
        async move { cell.create_join_token(request).await }
    })
    .await?;
    let server = gateway_url_for_machines(&state);
    let command = format!(
        "roadstead node join --server {server} --tls-server-name {} --token {} --discovery-token-ca-cert-hash {}",
        cluster.server_name, made.token, made.ca_cert_hash
    );
    let id = made.token.split('.').next().unwrap_or_default().to_owned();
    Ok(Json(JoinToken {
        id,
        expires_at: None,
        token: made.token,
        ca_cert_hash: made.ca_cert_hash,
        server,
        tls_server_name: cluster.server_name,
        command,
    }))
}

fn serves(cluster: &Cluster) -> Answer<()> {
    if cluster.state != ClusterState::Ready {
        return Err(Failure::Unavailable(format!("the cluster is {}", cluster.state.as_str())));
    }
    Ok(())
}

fn gateway_url(state: &State) -> String {
    url(state.config.gateway_addresses.first())
}

/// Another machine's loopback leads to itself, so any other address of the gateway is the better one.
fn gateway_url_for_machines(state: &State) -> String {
    let addresses = &state.config.gateway_addresses;
    url(addresses.iter().find(|address| !address.ip().is_loopback()).or(addresses.first()))
}

fn url(address: Option<&SocketAddr>) -> String {
    address.map(|address| format!("https://{address}")).unwrap_or_default()
}

/// The server is an address and the name goes into `tls-server-name`, since names under localhost do not
/// resolve everywhere.
fn kubeconfig(cluster: &Cluster, server: &str, issued: &fleet_rpc::IssueCredentialResponse) -> String {
    use base64::Engine;
    let encode = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
    let name = format!("{}-{}", cluster.organization, cluster.name);
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: {name}\nclusters:\n- name: {name}\n  cluster:\n    \
         server: {server}\n    tls-server-name: {}\n    certificate-authority-data: {}\ncontexts:\n- name: {name}\n  \
         context:\n    cluster: {name}\n    user: {name}\nusers:\n- name: {name}\n  user:\n    \
         client-certificate-data: {}\n    client-key-data: {}\n",
        cluster.server_name,
        encode(&issued.ca_pem),
        encode(&issued.cert_pem),
        encode(&issued.key_pem),
    )
}
