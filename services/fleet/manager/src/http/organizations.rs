//! Organisations.

use axum::Json;
use axum::http::StatusCode;
use base_ids::OrgId;
use fleet_model::{CreateOrganization, Organization, Page, Problem};

use super::access::InOrganization;
use super::body::Body;
use super::extract::{NewId, PageQuery, page};
use super::{Answer, Shared};
use crate::auth::Caller;
use crate::db::DbError;
use crate::problem::Failure;

#[utoipa::path(get, path = "/api/v1/organizations", params(PageQuery), operation_id = "list_organizations",
    responses((status = 200, body = Page<Organization>), (status = 401, body = Problem)))]
pub(super) async fn list(
    state: Shared,
    caller: Caller,
    query: PageQuery,
) -> Answer<Json<Page<Organization>>> {
    let limit = query.limit()?;
    let items = if caller.is_provider() {
        state.db.organizations(query.after(), limit + 1).await?
    } else {
        let theirs = caller.organizations().iter().map(|(organization, _)| organization.clone());
        let after = theirs.filter(|organization| organization.name.as_str() > query.after());
        after.take(usize::try_from(limit + 1).unwrap_or(usize::MAX)).collect()
    };
    Ok(page(items, limit, |item| item.name.to_string()))
}

#[utoipa::path(post, path = "/api/v1/organizations", request_body = CreateOrganization,
    operation_id = "create_organization",
    responses((status = 201, body = Organization), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 415, body = Problem)))]
pub(super) async fn create(
    state: Shared,
    new: NewId,
    Body(request): Body<CreateOrganization>,
) -> Answer<(StatusCode, Json<Organization>)> {
    let organization =
        Organization { id: OrgId::from_uuid(new.id), name: request.name, created_at: state.now() };
    match state.db.insert_organization(&organization).await {
        Ok(()) => Ok((StatusCode::CREATED, Json(organization))),
        Err(DbError::Constraint) => {
            let there = state.db.organization(&organization.name).await?;
            if let Some(ours) = there.filter(|there| there.id == organization.id) {
                return Ok((StatusCode::CREATED, Json(ours)));
            }
            Err(Failure::Conflict(format!("an organization named {} exists", organization.name)))
        }
        Err(error) => Err(error.into()),
    }
}

#[utoipa::path(get, path = "/api/v1/organizations/{organization}", params(("organization" = String, Path)),
    operation_id = "get_organization",
    responses((status = 200, body = Organization), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn get(at: InOrganization) -> Json<Organization> {
    Json(at.organization)
}

#[utoipa::path(delete, path = "/api/v1/organizations/{organization}", params(("organization" = String, Path)),
    operation_id = "delete_organization",
    responses((status = 204), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn delete(state: Shared, at: InOrganization) -> Answer<StatusCode> {
    match state.db.delete_organization(at.organization.id).await {
        Ok(true) => Ok(StatusCode::NO_CONTENT),
        Ok(false) => Err(Failure::NotFound("organization")),
        Err(DbError::Constraint) => {
            Err(Failure::Conflict("the organization still has clusters; delete them first".to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}
