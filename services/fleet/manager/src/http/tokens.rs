//! API tokens. Nobody makes one that may more, or lives longer, than themselves.

use axum::Json;
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use base_ids::Slug;
use fleet_model::{ApiToken, CreateToken, CreatedToken, Organization, Page, Problem, Role};
use serde::Deserialize;

use super::body::{Body, check_description};
use super::extract::{NewId, PageQuery, page};
use super::{Answer, Shared};
use crate::State;
use crate::auth::{self, Bounds, Caller};
use crate::db::{MAX_TOKENS, TokenScope};
use crate::problem::{Failure, Faults};

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OfOrganization {
    /// Only this organisation's.
    organization: Option<String>,
}

#[utoipa::path(get, path = "/api/v1/tokens", params(PageQuery, OfOrganization), operation_id = "list_tokens",
    tag = "tokens", responses((status = 200, body = Page<ApiToken>), (status = 404, body = Problem)))]
pub(super) async fn list(
    state: Shared,
    caller: Caller,
    query: PageQuery,
    of: Result<Query<OfOrganization>, axum::extract::rejection::QueryRejection>,
) -> Answer<Json<Page<ApiToken>>> {
    let limit = query.limit()?;
    let Query(of) = of.map_err(|error| Failure::Invalid(error.body_text()))?;
    let named = match &of.organization {
        Some(name) => Some(administered(&state, &caller, name).await?.name),
        None => None,
    };
    let mut scope = scope(&caller);
    scope.organization = named.as_ref().or(scope.organization);
    let items = state.db.tokens(scope, query.after(), limit + 1).await?;
    Ok(page(items, limit, |item| item.id.clone()))
}

#[utoipa::path(post, path = "/api/v1/tokens", request_body = CreateToken, operation_id = "create_token",
    tag = "tokens", responses((status = 201, body = CreatedToken), (status = 404, body = Problem)))]
pub(super) async fn create(
    state: Shared,
    caller: Caller,
    new: NewId,
    Body(request): Body<CreateToken>,
) -> Answer<(StatusCode, Json<CreatedToken>)> {
    let mut faults = Faults::default();
    faults.note("/description", check_description(&request.description));
    if request.expires_in_seconds == Some(0) {
        faults.note::<(), _>("/expires_in_seconds", Err("at least 1"));
    }
    faults.none()?;
    let organization = match (&request.role, &request.organization) {
        (Role::Provider, None) => {
            if !caller.is_provider() {
                return Err(Failure::Forbidden("only the provider makes provider tokens"));
            }
            None
        }
        (Role::Provider, Some(_)) => {
            let why = "a provider token belongs to no organization";
            return Err(Failure::Contradiction { field: "/organization", why });
        }
        (_, None) => {
            let why = "organization is required for this role";
            return Err(Failure::Contradiction { field: "/organization", why });
        }
        (_, Some(name)) => Some(administered(&state, &caller, name.as_str()).await?.id),
    };
    let cluster = match (&request.cluster, organization) {
        (None, _) => None,
        (Some(_), None) => {
            let why = "a provider token is not limited to a cluster";
            return Err(Failure::Contradiction { field: "/cluster", why });
        }
        (Some(_), Some(_)) if request.role == Role::Admin => {
            let why = "a token limited to a cluster is developer or viewer: an admin's rights are about the organization";
            return Err(Failure::Contradiction { field: "/role", why });
        }
        (Some(cluster), Some(organization)) => {
            let found = state.db.cluster(organization, cluster).await?;
            Some(found.ok_or(Failure::NotFound("cluster"))?.id)
        }
    };
    // One that is made again takes no further place.
    if let Some(organization) = organization
        && !new.again
        && state.db.token_count(organization).await? >= MAX_TOKENS
    {
        let why =
            format!("an organization has at most {MAX_TOKENS} API tokens; delete those that are not needed");
        return Err(Failure::Conflict(why));
    }
    let bounds = Bounds {
        id: new.id.simple().to_string(),
        organization,
        cluster,
        made_by: caller.person(),
        ends_at: caller.ends_at(),
    };
    let created = auth::create_token(&state, &request, bounds).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

#[utoipa::path(get, path = "/api/v1/tokens/{token}", params(("token" = String, Path)),
    operation_id = "get_token", tag = "tokens",
    responses((status = 200, body = ApiToken), (status = 404, body = Problem)))]
pub(super) async fn get(state: Shared, caller: Caller, Path(id): Path<String>) -> Answer<Json<ApiToken>> {
    let found = state.db.token_in(scope(&caller), &id).await?;
    found.map(Json).ok_or(Failure::NotFound("token"))
}

#[utoipa::path(delete, path = "/api/v1/tokens/{token}", params(("token" = String, Path)),
    operation_id = "delete_token", tag = "tokens", responses((status = 204), (status = 404, body = Problem)))]
pub(super) async fn delete(state: Shared, caller: Caller, Path(id): Path<String>) -> Answer<StatusCode> {
    if state.db.delete_token(scope(&caller), &id, state.now()).await? {
        // The kubeconfigs that it asked for are revoked by that, which clusters have to hear.
        state.nudge.notify_one();
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Failure::NotFound("token"))
    }
}

/// An organisation whose tokens this caller manages.
async fn administered(state: &State, caller: &Caller, name: &str) -> Answer<Organization> {
    let missing = || Failure::NotFound("organization");
    let name: Slug = name.parse().map_err(|_| missing())?;
    let role = caller.role_in(&name).ok_or_else(missing)?;
    if role < Role::Admin {
        return Err(Failure::Forbidden("only an admin of the organization manages its tokens"));
    }
    state.db.organization(&name).await?.ok_or_else(missing)
}

/// A token belongs to one organisation, a person to several; the provider sees all.
fn scope(caller: &Caller) -> TokenScope<'_> {
    if caller.is_provider() {
        return TokenScope::default();
    }
    match caller.user() {
        Some(user) => TokenScope { organization: None, admin: Some(user.id) },
        None => TokenScope {
            organization: caller.organizations().first().map(|(organization, _)| &organization.name),
            admin: None,
        },
    }
}
