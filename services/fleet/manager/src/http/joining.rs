//! What lets people and machines into a cluster: kubeconfigs and join tokens.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use base_clock::Timestamp;
use fleet_model::{
    Cluster, ClusterState, CreateJoinToken, CreateKubeconfig, JoinToken, JoinTokenInfo, Kubeconfig, Page,
    Problem, Role,
};
use fleet_rpc::{
    CreateJoinTokenRequest, DeleteJoinTokenRequest, IssueCredentialRequest, ListJoinTokensRequest,
};

use super::access::InCluster;
use super::body::{Body, BodyOrDefault, check_description};
use super::extract::{NewId, PageQuery, page};
use super::{Answer, Shared};
use crate::auth::{self, later};
use crate::problem::{Failure, Faults};
use crate::{State, replicas};

/// How long a kubeconfig's client certificate is valid, at least, unless something else is asked for, and at most.
/// Four weeks, so that one that got lost ends by itself; it is made anew with one call.
const SHORTEST_KUBECONFIG_SECONDS: u32 = 600;
const KUBECONFIG_SECONDS: u32 = 28 * 24 * 3600;
const LONGEST_KUBECONFIG_SECONDS: u32 = 365 * 24 * 3600;

/// How long a join token is valid: kubeadm's default, and what we give at most.
const JOIN_TOKEN_SECONDS: u32 = 24 * 3600;
const LONGEST_JOIN_TOKEN_SECONDS: u32 = 30 * 24 * 3600;

#[utoipa::path(post, path = "/api/v1/organizations/{organization}/clusters/{cluster}/kubeconfig", operation_id = "create_kubeconfig",
    description = "A client certificate for the caller: admins and developers are the cluster's administrators, viewers have the ClusterRole `view`. It is refused once the caller is removed, demoted or, being a token, deleted, and never outlives a token.",
    request_body(content = Option<CreateKubeconfig>),
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 200, body = Kubeconfig), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 403, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 413, body = Problem), (status = 415, body = Problem), (status = 422, body = Problem),
        (status = 503, body = Problem)))]
pub(super) async fn kubeconfig(
    state: Shared,
    at: InCluster,
    BodyOrDefault(request): BodyOrDefault<CreateKubeconfig>,
) -> Answer<Json<Kubeconfig>> {
    let seconds = request.expires_in_seconds.unwrap_or(KUBECONFIG_SECONDS);
    if !(SHORTEST_KUBECONFIG_SECONDS..=LONGEST_KUBECONFIG_SECONDS).contains(&seconds) {
        let why = format!("{SHORTEST_KUBECONFIG_SECONDS} to {LONGEST_KUBECONFIG_SECONDS}, not {seconds}");
        return Err(Failure::field("/expires_in_seconds", why));
    }
    serves(&at.cluster)?;
    let now = state.now();
    let asked = later(now, Duration::from_secs(u64::from(seconds)));
    let expires_at = at.caller.ends_at().map_or(asked, |end| asked.min(end));
    let user = at.caller.name();
    let issued_at = state.db.note_kubeconfig(at.organization.id, &user, now, expires_at).await?;
    // Whoever was removed between being let in and that note is in no revocation that knows of it.
    let role = auth::role_now(&state, &at.caller, &at.organization.name).await?;
    let role = role.ok_or(Failure::NotFound("organization"))?.min(at.role);
    let cluster = at.cluster;
    let request = IssueCredentialRequest {
        cluster_id: cluster.id.to_string(),
        user,
        groups: vec![certificate_group(role).to_owned()],
        // What is left of it is counted from when it says that it was issued.
        lifetime_seconds: u64::try_from(expires_at.as_second() - issued_at.as_second()).unwrap_or(0).max(1),
        issued_unix_ms: issued_at.as_millisecond(),
    };
    let issued = replicas::ask(&state, &cluster, |mut cell| {
        let request = request.clone();
        async move { cell.issue_credential(request).await }
    })
    .await?;
    let kubeconfig = render(&cluster, &gateway_url(&state), &issued);
    Ok(Json(Kubeconfig { kubeconfig, expires_at }))
}

/// What somebody is in a cluster that they come into with a certificate. Administrators are so by a binding that the
/// cluster's owner can take away, which the group of masters that the proxy uses would not be.
fn certificate_group(role: Role) -> &'static str {
    match role {
        Role::Viewer => "roadstead:viewers",
        Role::Developer | Role::Admin | Role::Provider => "kubeadm:cluster-admins",
    }
}

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/clusters/{cluster}/join-tokens", operation_id = "list_join_tokens",
    params(("organization" = String, Path), ("cluster" = String, Path), PageQuery),
    responses((status = 200, body = Page<JoinTokenInfo>), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 403, body = Problem), (status = 404, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn list(
    state: Shared,
    at: InCluster,
    query: PageQuery,
) -> Answer<Json<Page<JoinTokenInfo>>> {
    let limit = query.limit()?;
    serves(&at.cluster)?;
    let request = ListJoinTokensRequest { cluster_id: at.cluster.id.to_string() };
    let found = replicas::ask(&state, &at.cluster, |mut cell| {
        let request = request.clone();
        async move { cell.list_join_tokens(request).await }
    })
    .await?;
    let items: Vec<JoinTokenInfo> = found
        .tokens
        .into_iter()
        .filter(|token| token.id.as_str() > query.after())
        .take(usize::try_from(limit + 1).unwrap_or(usize::MAX))
        .map(|token| JoinTokenInfo {
            expires_at: (token.expires_at_seconds != 0)
                .then(|| Timestamp::from_second(token.expires_at_seconds).unwrap_or(Timestamp::MAX)),
            id: token.id,
            description: token.description,
        })
        .collect();
    Ok(page(items, limit, |item| item.id.clone()))
}

#[utoipa::path(post, path = "/api/v1/organizations/{organization}/clusters/{cluster}/join-tokens", operation_id = "create_join_token",
    request_body = CreateJoinToken,
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 201, body = JoinToken), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 403, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 413, body = Problem), (status = 415, body = Problem), (status = 422, body = Problem),
        (status = 503, body = Problem)))]
pub(super) async fn create(
    state: Shared,
    at: InCluster,
    new: NewId,
    Body(request): Body<CreateJoinToken>,
) -> Answer<(StatusCode, Json<JoinToken>)> {
    let cluster = at.cluster;
    let seconds = request.expires_in_seconds.unwrap_or(JOIN_TOKEN_SECONDS);
    let description = request.description.unwrap_or_default();
    let mut faults = Faults::default();
    if !(1..=LONGEST_JOIN_TOKEN_SECONDS).contains(&seconds) {
        let why = format!("1 to {LONGEST_JOIN_TOKEN_SECONDS}, not {seconds}");
        faults.note::<(), _>("/expires_in_seconds", Err(why));
    }
    faults.note("/description", check_description(&description));
    faults.none()?;
    serves(&cluster)?;
    let request = CreateJoinTokenRequest {
        cluster_id: cluster.id.to_string(),
        lifetime_seconds: u64::from(seconds),
        description,
        // Asked again, of another cell or after a crash, it is the same token with another secret.
        request_id: new.id.to_string(),
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
    let now = state.now();
    let token = JoinToken {
        id: made.token.split('.').next().unwrap_or_default().to_owned(),
        token: made.token,
        ca_cert_hash: made.ca_cert_hash,
        server,
        tls_server_name: cluster.server_name,
        command,
        expires_at: now.saturating_add(Duration::from_secs(u64::from(seconds))).ok(),
    };
    Ok((StatusCode::CREATED, Json(token)))
}

#[utoipa::path(delete, path = "/api/v1/organizations/{organization}/clusters/{cluster}/join-tokens/{token}", operation_id = "delete_join_token",
    params(("organization" = String, Path), ("cluster" = String, Path), ("token" = String, Path)),
    responses((status = 204), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn delete(
    state: Shared,
    at: InCluster,
    Path(path): Path<(String, String, String)>,
) -> Answer<StatusCode> {
    let id = path.2;
    serves(&at.cluster)?;
    let request = DeleteJoinTokenRequest { cluster_id: at.cluster.id.to_string(), id };
    let answer = replicas::ask(&state, &at.cluster, |mut cell| {
        let request = request.clone();
        async move { cell.delete_join_token(request).await }
    })
    .await?;
    if answer.found { Ok(StatusCode::NO_CONTENT) } else { Err(Failure::NotFound("join token")) }
}

/// Fails unless the cluster's cells have it and keep it.
pub(super) fn serves(cluster: &Cluster) -> Answer<()> {
    if cluster.state == ClusterState::Deleting {
        return Err(Failure::Conflict("the cluster is being deleted".to_owned()));
    }
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
fn render(cluster: &Cluster, server: &str, issued: &fleet_rpc::IssueCredentialResponse) -> String {
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
