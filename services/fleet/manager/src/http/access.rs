//! Lets a request in, or not: [`admit`] stands before every handler.
//!
//! It finds out who asks, finds what the path names, compares the caller's role with the route's
//! [`Need`], and leaves what it found for the handler. Nothing else in this crate decides about access.

use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams, Request, State as Extract};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base_ids::{Slug, TenantId};
use fleet_model::{Cluster, Organization, Role};

use super::Answer;
use super::routes::Need;
use crate::State;
use crate::auth::{self, Caller};
use crate::problem::Failure;

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
    mut request: Request,
    next: Next,
) -> Response {
    let params: Vec<(String, String)> = match &params {
        Ok(params) => params.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        // Bytes that are no text name nothing.
        Err(_) if need == Need::Nothing => return Failure::NotFound("path").into_response(),
        Err(_) => Vec::new(),
    };
    let param = |name: &str| params.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value);
    let found = decide(&state, need, request.headers(), param("organization"), param("cluster")).await;
    match found {
        Ok(Found::Anybody) => {}
        Ok(Found::Caller(caller)) => {
            request.extensions_mut().insert(caller);
        }
        Ok(Found::Organization(found)) => {
            request.extensions_mut().insert(found.caller.clone());
            request.extensions_mut().insert(*found);
        }
        Ok(Found::Cluster(found)) => {
            request.extensions_mut().insert(found.caller.clone());
            request.extensions_mut().insert(*found);
        }
        Err(failure) => return failure.into_response(),
    }
    next.run(request).await
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
    headers: &HeaderMap,
    organization: &str,
    cluster: &str,
) -> Answer<Found> {
    if need == Need::Nothing {
        return Ok(Found::Anybody);
    }
    let caller = authenticate(state, headers).await?;
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

/// Who sent these headers.
async fn authenticate(state: &State, headers: &HeaderMap) -> Answer<Caller> {
    let header = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // RFC 9110: the scheme's case does not matter.
    let (_, bearer) = header
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .ok_or(Failure::Unauthorized)?;
    auth::find(state, bearer).await?.ok_or(Failure::Unauthorized)
}

/// The organisation and the caller's role in it, if it exists and they have one.
async fn visible(state: &State, caller: &Caller, name: &str) -> Answer<(Organization, Role)> {
    let missing = || Failure::NotFound("organization");
    // A name that cannot exist does not: the same answer, whatever is wrong with it.
    let name: Slug = name.parse().map_err(|_| missing())?;
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
