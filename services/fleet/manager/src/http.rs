//! The REST API.
//!
//! Each handler is: who asks, do they see it, may they, do it. The OpenAPI document at `/openapi.json` is
//! derived from the handlers' own annotations.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequestParts, Path, Query, Request, State as Extract};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base_ids::{OrgId, Slug, TenantId};
use base_net::tasks::Tasks;
use fleet_model::placement::{Candidate, place};
use fleet_model::{
    ApiToken, CellInfo, Cluster, ClusterState, CreateCluster, CreateOrganization, CreateToken, CreatedToken,
    DEFAULT_VERSION, JoinToken, Kubeconfig, Organization, Page, Problem, Role, server_name,
};
use fleet_rpc::{CreateJoinTokenRequest, IssueCredentialRequest, ReportRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use utoipa::OpenApi;

use crate::auth::{self, Caller};
use crate::db::DbError;
use crate::problem::Failure;
use crate::{ManagerError, State, driver, routing};

/// Every request body of this API is a few fields.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// Rows per page when the caller names no limit, and at most.
const PAGE: i64 = 100;
const MAX_PAGE: i64 = 500;

/// How long a kubeconfig's client certificate is valid: what kubeadm's admin.conf has.
const KUBECONFIG_SECONDS: u64 = 365 * 24 * 3600;

/// How long a join token is valid: kubeadm's default.
const JOIN_TOKEN_SECONDS: u64 = 24 * 3600;

/// A client that has not finished its TLS handshake by then is let go.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client may take over a request's head, and stay without one between two.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections open at the same time: people and their tools, not machines by the thousand.
const MAX_CONNECTIONS: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    route: String,
    code: u16,
}

/// What `/metrics` shows.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: base_telemetry::Registry,
    requests: Family<RequestLabels, Counter>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = base_telemetry::Registry::default();
        let requests = Family::<RequestLabels, Counter>::default();
        registry.register("roadstead_manager_requests", "Requests to the REST API", requests.clone());
        Metrics { registry, requests }
    }
}

type Answer<T> = Result<T, Failure>;
type Shared = Extract<Arc<State>>;

/// Binds the REST listener and serves it until `tasks` is stopped.
pub(crate) async fn serve(state: Arc<State>, tasks: &Tasks) -> Result<SocketAddr, ManagerError> {
    let address = state.config.listen;
    let tls = base_net::tls::server(&state.config.https, None, &["h2", "http/1.1"])?;
    let acceptor = TlsAcceptor::from(tls);
    let listener =
        TcpListener::bind(address).await.map_err(|cause| ManagerError::Listen { address, cause })?;
    let bound = listener.local_addr().map_err(|cause| ManagerError::Listen { address, cause })?;
    let app = router(state);
    let group = tasks.clone();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    tasks.spawn(async move {
        loop {
            // The slot comes first: a full manager leaves newcomers in the kernel's backlog.
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (acceptor, app) = (acceptor.clone(), app.clone());
            group.spawn(async move {
                let _slot = slot;
                // Without it, small answers would wait for the peer's delayed acknowledgement.
                let _ = stream.set_nodelay(true);
                let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await
                else {
                    return;
                };
                let service = TowerToHyperService::new(app);
                let mut server = auto::Builder::new(TokioExecutor::new());
                server.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT);
                server
                    .http2()
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(100)
                    .max_header_list_size(64 * 1024)
                    .keep_alive_interval(HEADERS_TIMEOUT)
                    .keep_alive_timeout(HEADERS_TIMEOUT);
                if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                    tracing::debug!(error, "connection ended");
                }
            });
        }
    });
    Ok(bound)
}

fn router(state: Arc<State>) -> Router {
    let org = "/api/v1/organizations/{organization}";
    Router::new()
        .route("/api/v1/organizations", get(list_organizations).post(create_organization))
        .route(org, get(get_organization).delete(delete_organization))
        .route(&format!("{org}/clusters"), get(list_clusters).post(create_cluster))
        .route(&format!("{org}/clusters/{{cluster}}"), get(get_cluster).delete(delete_cluster))
        .route(&format!("{org}/clusters/{{cluster}}/kubeconfig"), post(create_kubeconfig))
        .route(&format!("{org}/clusters/{{cluster}}/join-tokens"), post(create_join_token))
        .route("/api/v1/tokens", get(list_tokens).post(create_token))
        .route("/api/v1/tokens/{token}", axum::routing::delete(delete_token))
        .route("/api/v1/cells", get(list_cells))
        .route("/openapi.json", get(|| async { Json(Document::openapi()) }))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(|| async { Failure::NotFound("path") })
        .method_not_allowed_fallback(|| async { Failure::MethodNotAllowed })
        .layer(middleware::from_fn(whole_body))
        .layer(middleware::from_fn_with_state(state.clone(), observe))
        .with_state(state)
}

/// Takes in the whole body before anything is decided: an answer that leaves a body unread resets the
/// stream, and clients then show the reset instead of the answer.
async fn whole_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match axum::body::to_bytes(body, MAX_BODY_BYTES).await {
        Ok(bytes) => next.run(Request::from_parts(parts, bytes.into())).await,
        Err(_) => Failure::TooLarge.into_response(),
    }
}

/// Counts and logs every request under its route, never under its path: paths carry names.
async fn observe(state: Shared, request: Request, next: Next) -> Response {
    // A method is any word a client likes; each would stay in memory as a series of its own.
    let method = match request.method().as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS") => known.to_owned(),
        _ => "other".to_owned(),
    };
    let route = request
        .extensions()
        .get::<axum::extract::MatchedPath>()
        .map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let response = next.run(request).await;
    let code = response.status().as_u16();
    tracing::debug!(%method, %route, code, "request");
    state.metrics.requests.get_or_create(&RequestLabels { method, route, code }).inc();
    response
}

async fn ready(state: Shared) -> Answer<&'static str> {
    state.db.cells().await.map_err(|error| Failure::Unavailable(error.to_string()))?;
    Ok("ok")
}

/// For the provider alone: it counts across organisations.
async fn metrics(state: Shared, caller: Caller) -> Answer<Response> {
    provider_only(&caller)?;
    let text = base_telemetry::encode(&state.metrics.registry);
    Ok(([(header::CONTENT_TYPE, base_telemetry::METRICS_CONTENT_TYPE)], text).into_response())
}

// ---- who asks ----

impl FromRequestParts<Arc<State>> for Caller {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, state: &Arc<State>) -> Result<Caller, Failure> {
        let header = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        // RFC 9110: the scheme's case does not matter.
        let (_, bearer) = header
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .ok_or(Failure::Unauthorized)?;
        auth::find(state, bearer).await?.ok_or(Failure::Unauthorized)
    }
}

fn provider_only(caller: &Caller) -> Answer<()> {
    // To everybody else the fleet itself does not exist.
    if caller.role == Role::Provider { Ok(()) } else { Err(Failure::NotFound("path")) }
}

fn writers_only(caller: &Caller) -> Answer<()> {
    if caller.may_write() { Ok(()) } else { Err(Failure::Forbidden("this token may only read")) }
}

/// The organisation, if it exists and this caller sees it.
async fn organization_for(state: &State, caller: &Caller, name: &str) -> Answer<Organization> {
    let missing = || Failure::NotFound("organization");
    // A name that cannot exist does not: the same answer, whatever is wrong with it.
    let name: Slug = name.parse().map_err(|_| missing())?;
    if !caller.sees(&name) {
        return Err(missing());
    }
    state.db.organization(&name).await?.ok_or_else(missing)
}

async fn cluster_for(state: &State, caller: &Caller, org: &str, name: &str) -> Answer<Cluster> {
    let organization = organization_for(state, caller, org).await?;
    let missing = || Failure::NotFound("cluster");
    let name: Slug = name.parse().map_err(|_| missing())?;
    state.db.cluster(&organization.name, &name).await?.ok_or_else(missing)
}

/// A JSON body, with what is wrong with it in the answer.
struct Body<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> axum::extract::FromRequest<S> for Body<T> {
    type Rejection = Failure;
    async fn from_request(request: Request, state: &S) -> Result<Body<T>, Failure> {
        let kind = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        if kind.split(';').next().unwrap_or_default().trim() != "application/json" {
            return Err(Failure::UnsupportedMediaType);
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|_| Failure::TooLarge)?;
        serde_json::from_slice(&bytes).map(Body).map_err(|error| Failure::Invalid(error.to_string()))
    }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
struct PageQuery {
    /// Items per page, 1 to 500.
    limit: Option<i64>,
    /// `continue` of the page before.
    #[serde(rename = "continue")]
    after: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for PageQuery {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<PageQuery, Failure> {
        let Query(query) =
            Query::try_from_uri(&parts.uri).map_err(|error| Failure::Invalid(error.body_text()))?;
        Ok(query)
    }
}

impl PageQuery {
    fn limit(&self) -> Answer<i64> {
        match self.limit {
            None => Ok(PAGE),
            Some(limit) if (1..=MAX_PAGE).contains(&limit) => Ok(limit),
            Some(limit) => Err(Failure::Invalid(format!("limit is 1 to {MAX_PAGE}, not {limit}"))),
        }
    }
    fn after(&self) -> &str {
        self.after.as_deref().unwrap_or_default()
    }
}

/// `items` was asked for with one more than `limit`, to know whether there is a next page.
fn page<T>(mut items: Vec<T>, limit: i64, key: impl Fn(&T) -> String) -> Json<Page<T>> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let next = (items.len() > limit).then(|| {
        items.truncate(limit);
        items.last().map(&key).unwrap_or_default()
    });
    Json(Page { items, next })
}

// ---- organisations ----

#[utoipa::path(get, path = "/api/v1/organizations", params(PageQuery),
    responses((status = 200, body = Page<Organization>), (status = 401, body = Problem)))]
async fn list_organizations(
    state: Shared,
    caller: Caller,
    query: PageQuery,
) -> Answer<Json<Page<Organization>>> {
    let limit = query.limit()?;
    let only = if caller.role == Role::Provider { None } else { caller.organization.as_ref() };
    let items = state.db.organizations(only, query.after(), limit + 1).await?;
    Ok(page(items, limit, |item| item.name.to_string()))
}

#[utoipa::path(post, path = "/api/v1/organizations", request_body = CreateOrganization,
    responses((status = 201, body = Organization), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 415, body = Problem)))]
async fn create_organization(
    state: Shared,
    caller: Caller,
    Body(request): Body<CreateOrganization>,
) -> Answer<(StatusCode, Json<Organization>)> {
    provider_only(&caller)?;
    let organization =
        Organization { id: OrgId::generate(), name: request.name, created_at: state.clock.now() };
    match state.db.insert_organization(&organization).await {
        Ok(()) => Ok((StatusCode::CREATED, Json(organization))),
        Err(DbError::Constraint) => {
            Err(Failure::Conflict(format!("an organization named {} exists", organization.name)))
        }
        Err(error) => Err(error.into()),
    }
}

#[utoipa::path(get, path = "/api/v1/organizations/{organization}", params(("organization" = String, Path)),
    responses((status = 200, body = Organization), (status = 401, body = Problem), (status = 404, body = Problem)))]
async fn get_organization(
    state: Shared,
    caller: Caller,
    Path(name): Path<String>,
) -> Answer<Json<Organization>> {
    organization_for(&state, &caller, &name).await.map(Json)
}

#[utoipa::path(delete, path = "/api/v1/organizations/{organization}", params(("organization" = String, Path)),
    responses((status = 204), (status = 401, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem)))]
async fn delete_organization(state: Shared, caller: Caller, Path(name): Path<String>) -> Answer<StatusCode> {
    let organization = organization_for(&state, &caller, &name).await?;
    if caller.role != Role::Provider {
        return Err(Failure::Forbidden("only the provider deletes organizations"));
    }
    match state.db.delete_organization(organization.id).await {
        Ok(true) => Ok(StatusCode::NO_CONTENT),
        Ok(false) => Err(Failure::NotFound("organization")),
        Err(DbError::Constraint) => {
            Err(Failure::Conflict("the organization still has clusters; delete them first".to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

// ---- clusters ----

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/clusters",
    params(("organization" = String, Path), PageQuery),
    responses((status = 200, body = Page<Cluster>), (status = 401, body = Problem), (status = 404, body = Problem)))]
async fn list_clusters(
    state: Shared,
    caller: Caller,
    Path(org): Path<String>,
    query: PageQuery,
) -> Answer<Json<Page<Cluster>>> {
    let organization = organization_for(&state, &caller, &org).await?;
    let limit = query.limit()?;
    let items = state.db.clusters(&organization.name, query.after(), limit + 1).await?;
    Ok(page(items, limit, |item| item.name.to_string()))
}

#[utoipa::path(post, path = "/api/v1/organizations/{organization}/clusters", request_body = CreateCluster,
    params(("organization" = String, Path)),
    responses((status = 201, description = "It serves requests.", body = Cluster),
        (status = 202, description = "Accepted; its cell does not answer yet.", body = Cluster),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 415, body = Problem),
        (status = 503, body = Problem)))]
async fn create_cluster(
    state: Shared,
    caller: Caller,
    Path(org): Path<String>,
    Body(request): Body<CreateCluster>,
) -> Answer<(StatusCode, Json<Cluster>)> {
    let organization = organization_for(&state, &caller, &org).await?;
    writers_only(&caller)?;
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
            reachable: true,
            clusters: cell.clusters,
            capacity: cell.capacity,
        })
        .collect();
    let cell = place(&candidates).map_err(|error| Failure::Unavailable(error.to_string()))?;
    let id = TenantId::generate();
    let mut cluster = Cluster {
        id,
        organization: organization.name.clone(),
        name: request.name,
        state: ClusterState::Creating,
        kubernetes_version: version,
        cell,
        server_name: server_name(&id),
        created_at: state.clock.now(),
    };
    match state.db.insert_cluster(organization.id, &cluster).await {
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

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/clusters/{cluster}",
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 200, body = Cluster), (status = 401, body = Problem), (status = 404, body = Problem)))]
async fn get_cluster(
    state: Shared,
    caller: Caller,
    Path((org, name)): Path<(String, String)>,
) -> Answer<Json<Cluster>> {
    cluster_for(&state, &caller, &org, &name).await.map(Json)
}

#[utoipa::path(delete, path = "/api/v1/organizations/{organization}/clusters/{cluster}",
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 204, description = "It and its data are gone."),
        (status = 202, description = "Its cell does not answer; it will be deleted when it does."),
        (status = 401, body = Problem), (status = 403, body = Problem), (status = 404, body = Problem)))]
async fn delete_cluster(
    state: Shared,
    caller: Caller,
    Path((org, name)): Path<(String, String)>,
) -> Answer<StatusCode> {
    let mut cluster = cluster_for(&state, &caller, &org, &name).await?;
    writers_only(&caller)?;
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

#[utoipa::path(post, path = "/api/v1/organizations/{organization}/clusters/{cluster}/kubeconfig",
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 200, body = Kubeconfig), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem)))]
async fn create_kubeconfig(
    state: Shared,
    caller: Caller,
    Path((org, name)): Path<(String, String)>,
) -> Answer<Json<Kubeconfig>> {
    let cluster = cluster_for(&state, &caller, &org, &name).await?;
    writers_only(&caller)?;
    let mut cell = cell_of(&state, &cluster).await?;
    let issued = cell
        .issue_credential(IssueCredentialRequest {
            cluster_id: cluster.id.to_string(),
            user: format!("roadstead:{}:admin", cluster.organization),
            groups: vec!["kubeadm:cluster-admins".to_owned()],
            lifetime_seconds: KUBECONFIG_SECONDS,
        })
        .await
        .map_err(driver::DriveError::Cell)?
        .into_inner();
    let kubeconfig = kubeconfig(&cluster, &gateway_url(&state), &issued);
    Ok(Json(Kubeconfig { kubeconfig }))
}

#[utoipa::path(post, path = "/api/v1/organizations/{organization}/clusters/{cluster}/join-tokens",
    params(("organization" = String, Path), ("cluster" = String, Path)),
    responses((status = 200, body = JoinToken), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem)))]
async fn create_join_token(
    state: Shared,
    caller: Caller,
    Path((org, name)): Path<(String, String)>,
) -> Answer<Json<JoinToken>> {
    let cluster = cluster_for(&state, &caller, &org, &name).await?;
    writers_only(&caller)?;
    let mut cell = cell_of(&state, &cluster).await?;
    let made = cell
        .create_join_token(CreateJoinTokenRequest {
            cluster_id: cluster.id.to_string(),
            lifetime_seconds: JOIN_TOKEN_SECONDS,
        })
        .await
        .map_err(driver::DriveError::Cell)?
        .into_inner();
    let server = gateway_url_for_machines(&state);
    let command = format!(
        "roadstead node join --server {server} --tls-server-name {} --token {} --discovery-token-ca-cert-hash {}",
        cluster.server_name, made.token, made.ca_cert_hash
    );
    Ok(Json(JoinToken {
        token: made.token,
        ca_cert_hash: made.ca_cert_hash,
        server,
        tls_server_name: cluster.server_name,
        command,
    }))
}

async fn cell_of(
    state: &State,
    cluster: &Cluster,
) -> Answer<fleet_rpc::cell_client::CellClient<tonic::transport::Channel>> {
    if cluster.state != ClusterState::Ready {
        return Err(Failure::Unavailable(format!("the cluster is {}", cluster.state.as_str())));
    }
    let cell = state.db.cell(cluster.cell).await?.ok_or(driver::DriveError::NoCell)?;
    Ok(state.cells.client(&cell).map_err(driver::DriveError::Channel)?)
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

// ---- tokens ----

#[utoipa::path(get, path = "/api/v1/tokens", params(PageQuery),
    responses((status = 200, body = Page<ApiToken>), (status = 401, body = Problem)))]
async fn list_tokens(state: Shared, caller: Caller, query: PageQuery) -> Answer<Json<Page<ApiToken>>> {
    let limit = query.limit()?;
    let items = state.db.tokens(scope(&caller), query.after(), limit + 1).await?;
    Ok(page(items, limit, |item| item.id.clone()))
}

#[utoipa::path(post, path = "/api/v1/tokens", request_body = CreateToken,
    responses((status = 201, body = CreatedToken), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 403, body = Problem), (status = 404, body = Problem), (status = 415, body = Problem)))]
async fn create_token(
    state: Shared,
    caller: Caller,
    Body(request): Body<CreateToken>,
) -> Answer<(StatusCode, Json<CreatedToken>)> {
    writers_only(&caller)?;
    if request.description.chars().count() > 200 || request.description.chars().any(char::is_control) {
        return Err(Failure::Invalid(
            "description is at most 200 characters, none of them control characters".to_owned(),
        ));
    }
    let organization = match (&request.role, &request.organization) {
        (Role::Provider, None) => {
            if caller.role != Role::Provider {
                return Err(Failure::Forbidden("only the provider makes provider tokens"));
            }
            None
        }
        (Role::Provider, Some(_)) => {
            return Err(Failure::Invalid("a provider token belongs to no organization".to_owned()));
        }
        (_, None) => return Err(Failure::Invalid("organization is required for this role".to_owned())),
        (_, Some(name)) => Some(organization_for(&state, &caller, name.as_str()).await?.id),
    };
    let created = auth::create_token(&state, &request, organization).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

#[utoipa::path(delete, path = "/api/v1/tokens/{token}", params(("token" = String, Path)),
    responses((status = 204), (status = 401, body = Problem), (status = 403, body = Problem), (status = 404, body = Problem)))]
async fn delete_token(state: Shared, caller: Caller, Path(id): Path<String>) -> Answer<StatusCode> {
    writers_only(&caller)?;
    if state.db.delete_token(scope(&caller), &id).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Failure::NotFound("token"))
    }
}

fn scope(caller: &Caller) -> Option<&Slug> {
    if caller.role == Role::Provider { None } else { caller.organization.as_ref() }
}

// ---- cells ----

#[utoipa::path(get, path = "/api/v1/cells",
    responses((status = 200, body = Page<CellInfo>), (status = 401, body = Problem), (status = 404, body = Problem)))]
async fn list_cells(state: Shared, caller: Caller) -> Answer<Json<Page<CellInfo>>> {
    provider_only(&caller)?;
    let mut items = Vec::new();
    for cell in state.db.cells().await? {
        let reachable = match state.cells.client(&cell) {
            Ok(mut client) => client.report(ReportRequest {}).await.is_ok(),
            Err(_) => false,
        };
        items.push(CellInfo { id: cell.id, name: cell.name, clusters: cell.clusters, reachable });
    }
    Ok(Json(Page { items, next: None }))
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Roadstead", description = "Organisations and their hosted Kubernetes clusters."),
    paths(
        list_organizations, create_organization, get_organization, delete_organization, list_clusters,
        create_cluster, get_cluster, delete_cluster, create_kubeconfig, create_join_token, list_tokens,
        create_token, delete_token, list_cells
    ),
    modifiers(&BearerAuth)
)]
struct Document;

struct BearerAuth;

impl utoipa::Modify for BearerAuth {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
        let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        document.components.get_or_insert_default().add_security_scheme("token", scheme);
        document.security = Some(vec![SecurityRequirement::new("token", [] as [&str; 0])]);
    }
}
