//! Every route of the REST API, and what a caller needs to take it: the one place where access is decided.
//!
//! [`all`] is the table. The router is built from it, so a route that is not here does not exist, and
//! `admit` (in `access`) stands before every handler. The golden file `tests/authorization.txt` is made
//! from it as well: a new route changes the file.
//!
//! A handler takes what was found while admitting: [`Caller`](crate::auth::Caller), [`InOrganization`] or
//! [`InCluster`]; it never looks up an organisation or a cluster from the path itself.
//!
//! [`InOrganization`]: super::access::InOrganization
//! [`InCluster`]: super::access::InCluster

use std::sync::Arc;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};
use fleet_model::Role;

use super::{
    clusters, events, fleet, joining, members, operations, organizations, pools, proxy, session, tokens,
};
use crate::State;

/// What a caller needs. Who lacks it hears 401 when not signed in, 404 for what they may not know of,
/// and 403 for what they may know of but not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: anybody may.
    Nothing,
    /// To be signed in.
    SignedIn,
    /// To be the provider. To everybody else the fleet itself does not exist.
    Provider,
    /// To be admin of at least one organisation.
    SomeAdmin,
    /// At least this role in `{organization}`. A token limited to one cluster has none there.
    Organization(Role),
    /// The same, but the handler shows a token that is limited to one cluster what belongs to that one
    /// ([`super::access::InOrganization::only`]).
    Filtered(Role),
    /// At least this role in the organisation of `{cluster}`, which is a name or an id.
    Cluster(Role),
}

/// A row of the table.
pub(crate) struct Route {
    /// `None`: every method.
    pub(crate) method: Option<Method>,
    pub(crate) path: &'static str,
    pub(crate) need: Need,
    pub(super) handler: MethodRouter<Arc<State>>,
}

/// A path whose request bodies are passed on as they come, rather than taken in whole first.
pub(super) fn is_streamed(path: &str) -> bool {
    path.ends_with("/proxy/{*path}")
}

/// The table.
pub(crate) fn all() -> Vec<Route> {
    use Need::{Cluster, Filtered, Nothing, Organization, Provider, SignedIn, SomeAdmin};
    use Role::{Admin, Developer, Viewer};
    const ORG: &str = "/api/v1/organizations/{organization}";
    const MEMBERS: &str = "/api/v1/organizations/{organization}/members";
    const MEMBER: &str = "/api/v1/organizations/{organization}/members/{user}";
    const CLUSTERS: &str = "/api/v1/organizations/{organization}/clusters";
    const CLUSTER: &str = "/api/v1/organizations/{organization}/clusters/{cluster}";
    const KUBECONFIG: &str = "/api/v1/organizations/{organization}/clusters/{cluster}/kubeconfig";
    const JOIN_TOKENS: &str = "/api/v1/organizations/{organization}/clusters/{cluster}/join-tokens";
    const JOIN_TOKEN: &str = "/api/v1/organizations/{organization}/clusters/{cluster}/join-tokens/{token}";
    const NODE_POOLS: &str = "/api/v1/organizations/{organization}/clusters/{cluster}/nodepools";
    const NODE_POOL: &str = "/api/v1/organizations/{organization}/clusters/{cluster}/nodepools/{nodepool}";
    const PROXY: &str = "/api/v1/organizations/{organization}/clusters/{cluster}/proxy/{*path}";
    const OPERATIONS: &str = "/api/v1/organizations/{organization}/operations";
    const OPERATION: &str = "/api/v1/organizations/{organization}/operations/{operation}";
    const CANCEL: &str = "/api/v1/organizations/{organization}/operations/{operation}/cancel";
    const RECEIPTS: &str = "/api/v1/organizations/{organization}/receipts";
    const RECEIPT: &str = "/api/v1/organizations/{organization}/receipts/{receipt}";
    const EVENTS: &str = "/api/v1/organizations/{organization}/events";
    const GET: Method = Method::GET;
    const POST: Method = Method::POST;
    const PUT: Method = Method::PUT;
    const PATCH: Method = Method::PATCH;
    const DELETE: Method = Method::DELETE;
    vec![
        route(POST, "/api/v1/sessions", Nothing, session::create),
        route(GET, "/api/v1/session", SignedIn, session::get),
        route(DELETE, "/api/v1/session", SignedIn, session::delete),
        route(PUT, "/api/v1/session/password", SignedIn, session::change_password),
        route(POST, "/api/v1/invitations/accept", Nothing, session::accept),
        route(GET, "/api/v1/organizations", SignedIn, organizations::list),
        route(POST, "/api/v1/organizations", Provider, organizations::create),
        route(GET, ORG, Filtered(Viewer), organizations::get),
        route(DELETE, ORG, Organization(Role::Provider), organizations::delete),
        route(GET, MEMBERS, Organization(Admin), members::list),
        route(POST, MEMBERS, Organization(Admin), members::create),
        route(PATCH, MEMBER, Organization(Admin), members::update),
        route(DELETE, MEMBER, Organization(Admin), members::delete),
        route(GET, CLUSTERS, Filtered(Viewer), clusters::list),
        route(POST, CLUSTERS, Organization(Developer), clusters::create),
        route(GET, CLUSTER, Cluster(Viewer), clusters::get),
        route(PATCH, CLUSTER, Cluster(Developer), clusters::update),
        route(DELETE, CLUSTER, Cluster(Developer), clusters::delete),
        route(POST, KUBECONFIG, Cluster(Viewer), joining::kubeconfig),
        route(GET, JOIN_TOKENS, Cluster(Developer), joining::list),
        route(POST, JOIN_TOKENS, Cluster(Developer), joining::create),
        route(DELETE, JOIN_TOKEN, Cluster(Developer), joining::delete),
        route(GET, NODE_POOLS, Cluster(Viewer), pools::list),
        route(POST, NODE_POOLS, Cluster(Developer), pools::create),
        route(GET, NODE_POOL, Cluster(Viewer), pools::get),
        route(PATCH, NODE_POOL, Cluster(Developer), pools::update),
        route(DELETE, NODE_POOL, Cluster(Developer), pools::delete),
        route_any(PROXY, Cluster(Viewer), proxy::forward),
        route(GET, OPERATIONS, Filtered(Viewer), operations::list),
        route(GET, OPERATION, Filtered(Viewer), operations::get),
        route(POST, CANCEL, Filtered(Developer), operations::cancel),
        route(GET, RECEIPTS, Filtered(Viewer), operations::receipts),
        route(GET, RECEIPT, Filtered(Viewer), operations::receipt),
        route(GET, EVENTS, Filtered(Viewer), events::watch),
        route(GET, "/api/v1/versions", SignedIn, operations::versions),
        route(GET, "/api/v1/machine-types", SignedIn, operations::machine_types),
        route(GET, "/api/v1/receipt-key", Nothing, operations::receipt_key),
        route(GET, "/api/v1/tokens", SomeAdmin, tokens::list),
        route(POST, "/api/v1/tokens", SomeAdmin, tokens::create),
        route(GET, "/api/v1/tokens/{token}", SomeAdmin, tokens::get),
        route(DELETE, "/api/v1/tokens/{token}", SomeAdmin, tokens::delete),
        route(GET, "/api/v1/cells", Provider, fleet::cells),
        route(GET, "/openapi.json", Nothing, fleet::openapi),
        route(GET, "/healthz", Nothing, fleet::healthy),
        route(GET, "/readyz", Nothing, fleet::ready),
        route(GET, "/metrics", Provider, fleet::metrics),
    ]
}

fn route<H, T>(method: Method, path: &'static str, need: Need, handler: H) -> Route
where
    H: Handler<T, Arc<State>>,
    T: 'static,
{
    // A GET answers HEAD too, as axum's own `get` does.
    let filter = match method {
        Method::GET => MethodFilter::GET.or(MethodFilter::HEAD),
        Method::POST => MethodFilter::POST,
        Method::PUT => MethodFilter::PUT,
        Method::PATCH => MethodFilter::PATCH,
        _ => MethodFilter::DELETE,
    };
    Route { method: Some(method), path, need, handler: on(filter, handler) }
}

/// Every method that clients of a cluster use. Named one by one: layers go on routes, and what answers any
/// word at all is none.
fn route_any<H, T>(path: &'static str, need: Need, handler: H) -> Route
where
    H: Handler<T, Arc<State>>,
    T: 'static,
{
    let all = MethodFilter::GET
        .or(MethodFilter::HEAD)
        .or(MethodFilter::POST)
        .or(MethodFilter::PUT)
        .or(MethodFilter::PATCH)
        .or(MethodFilter::DELETE)
        .or(MethodFilter::OPTIONS);
    Route { method: None, path, need, handler: on(all, handler) }
}
