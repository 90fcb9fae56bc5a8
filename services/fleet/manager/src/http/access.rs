//! Lets a request in, or not: [`admit`] stands before every handler.
//!
//! It finds out who asks, finds what the path names, compares the caller's role with the route's
//! [`Need`], and leaves what it found for the handler. Nothing else in this crate decides about access.

use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams, Request, State as Extract};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base_ids::{Slug, TenantId};
use fleet_model::{Cluster, Organization, Role};

use super::Answer;
use super::routes::Need;
use crate::State;
use crate::auth::{self, Caller};
use crate::problem::Failure;

/// Where browsers keep the session's secret.
pub(super) const COOKIE: &str = "__Host-roadstead";

/// A caller in an organisation that exists and that they see.
#[derive(Debug, Clone)]
pub(crate) struct InOrganization {
    pub(crate) caller: Caller,
    pub(crate) organization: Organization,
    /// What they are in it.
    pub(crate) role: Role,
}

impl InOrganization {
    /// The one cluster that the caller is limited to, if they are: show nothing of others.
    pub(crate) fn only(&self) -> Option<TenantId> {
        self.caller.only
    }
}

/// A caller at a cluster that exists and that they see.
#[derive(Debug, Clone)]
pub(crate) struct InCluster {
    pub(crate) caller: Caller,
    pub(crate) organization: Organization,
    pub(crate) role: Role,
    pub(crate) cluster: Cluster,
}

/// Puts what was found into the request, or answers instead of the handler.
pub(super) async fn admit(
    Extract((state, need)): Extract<(Arc<State>, Need)>,
    params: Result<RawPathParams, axum::extract::rejection::RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let params: Vec<(String, String)> = match &params {
        Ok(params) => params.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        // Bytes that are no text name nothing.
        Err(_) if need == Need::Nothing => return Failure::NotFound("path").into_response(),
        Err(_) => Vec::new(),
    };
    let param = |name: &str| params.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value);
    let (mut parts, body) = request.into_parts();
    let found = decide(&state, need, &parts, param("organization"), param("cluster")).await;
    match found {
        Ok(Found::Anybody) => {}
        Ok(Found::Caller(caller)) => {
            parts.extensions.insert(caller);
        }
        Ok(Found::Organization(found)) => {
            parts.extensions.insert(found.caller.clone());
            parts.extensions.insert(*found);
        }
        Ok(Found::Cluster(found)) => {
            parts.extensions.insert(found.caller.clone());
            parts.extensions.insert(*found);
        }
        Err(failure) => return failure.into_response(),
    }
    next.run(Request::from_parts(parts, body)).await
}

enum Found {
    Anybody,
    Caller(Caller),
    Organization(Box<InOrganization>),
    Cluster(Box<InCluster>),
}

async fn decide(
    state: &State,
    need: Need,
    request: &Parts,
    organization: &str,
    cluster: &str,
) -> Answer<Found> {
    if need == Need::Nothing {
        return Ok(Found::Anybody);
    }
    let caller = authenticate(state, &request.method, &request.uri, &request.headers).await?;
    match need {
        Need::Nothing => Ok(Found::Anybody),
        Need::SignedIn => Ok(Found::Caller(caller)),
        Need::Provider if caller.is_provider() => Ok(Found::Caller(caller)),
        Need::Provider => Err(Failure::NotFound("path")),
        Need::SomeAdmin if caller.is_some_admin() => Ok(Found::Caller(caller)),
        Need::SomeAdmin => Err(Failure::Forbidden("only admins of an organization manage tokens")),
        Need::Organization(least) | Need::Filtered(least) => {
            let (organization, role) = visible(state, &caller, organization).await?;
            if caller.only.is_some() && !matches!(need, Need::Filtered(_)) {
                return Err(Failure::Forbidden("this token is limited to one cluster"));
            }
            at_least(role, least)?;
            Ok(Found::Organization(Box::new(InOrganization { caller, organization, role })))
        }
        Need::Cluster(least) => {
            let (organization, role) = visible(state, &caller, organization).await?;
            let found = state.db.cluster(organization.id, cluster).await?;
            let cluster = found
                .filter(|cluster| caller.only.is_none_or(|only| only == cluster.id))
                .ok_or(Failure::NotFound("cluster"))?;
            at_least(role, least)?;
            Ok(Found::Cluster(Box::new(InCluster { caller, organization, role, cluster })))
        }
    }
}

/// Who sent this: a bearer token or session, else the session of the cookie.
async fn authenticate(state: &State, method: &Method, uri: &Uri, headers: &HeaderMap) -> Answer<Caller> {
    if let Some(header) = headers.get(header::AUTHORIZATION) {
        // RFC 9110: the scheme's case does not matter.
        let (_, bearer) = header
            .to_str()
            .ok()
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .ok_or(Failure::Unauthorized)?;
        return auth::find(state, bearer).await?.ok_or(Failure::Unauthorized);
    }
    let cookie = cookie(headers).ok_or(Failure::Unauthorized)?;
    let caller = auth::find(state, cookie).await?;
    // A token is for programs; in a cookie somebody put it there.
    let caller = caller.filter(|caller| caller.session().is_some()).ok_or(Failure::Unauthorized)?;
    if !method.is_safe() && !is_same_origin(uri, headers) {
        return Err(Failure::Forbidden(
            "with a cookie, changes are taken from this server's own pages only; programs send a token",
        ));
    }
    Ok(caller)
}

/// The cookie's value, if it was sent once: two of them would be two people.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter_map(|(name, value)| (name == COOKIE).then_some(value));
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// Whether a page of this very server made the browser send this. Browsers say so in one of two headers
/// that no page can set; one that says otherwise decides.
fn is_same_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => site == "same-origin",
        (None, Some(origin)) => {
            // HTTP/2 names the host in the request line.
            let host = uri.authority().map(|authority| authority.as_str()).or_else(|| text("host"));
            host.is_some_and(|host| origin == format!("https://{host}"))
        }
        (None, None) => false,
    }
}

/// The organisation and the caller's role in it, if it exists and they have one.
async fn visible(state: &State, caller: &Caller, name: &str) -> Answer<(Organization, Role)> {
    let missing = || Failure::NotFound("organization");
    // A name that cannot exist does not: the same answer, whatever is wrong with it.
    let name: Slug = name.parse().map_err(|_| missing())?;
    if let Some((organization, role)) = caller.membership(&name) {
        return Ok((organization.clone(), *role));
    }
    let role = caller.role_in(&name).ok_or_else(missing)?;
    let organization = state.db.organization(&name).await?.ok_or_else(missing)?;
    Ok((organization, role))
}

fn at_least(role: Role, least: Role) -> Answer<()> {
    if role >= least {
        return Ok(());
    }
    Err(Failure::Forbidden(match least {
        Role::Provider => "only the provider may do this",
        Role::Admin => "only an admin of the organization may do this",
        Role::Developer | Role::Viewer => "this role may only read",
    }))
}

/// What `admit` left; its absence is a mistake in the table of routes, not of the caller.
fn left<T: Clone + Send + Sync + 'static>(parts: &Parts) -> Answer<T> {
    parts
        .extensions
        .get::<T>()
        .cloned()
        .ok_or_else(|| Failure::Internal("the route's need does not find what its handler takes".into()))
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Caller> {
        left(parts)
    }
}
impl<S: Send + Sync> FromRequestParts<S> for InOrganization {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<InOrganization> {
        left(parts)
    }
}
impl<S: Send + Sync> FromRequestParts<S> for InCluster {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<InCluster> {
        left(parts)
    }
}
