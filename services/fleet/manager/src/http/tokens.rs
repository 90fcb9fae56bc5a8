//! API tokens.

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use fleet_model::{ApiToken, CreateToken, CreatedToken, Page, Problem, Role};

use super::extract::{Body, PageQuery, page};
use super::{Answer, Shared};
use crate::auth::{self, Caller};
use crate::problem::Failure;

#[utoipa::path(get, path = "/api/v1/tokens", params(PageQuery), operation_id = "list_tokens",
    responses((status = 200, body = Page<ApiToken>), (status = 401, body = Problem), (status = 403, body = Problem)))]
pub(super) async fn list(state: Shared, caller: Caller, query: PageQuery) -> Answer<Json<Page<ApiToken>>> {
    let limit = query.limit()?;
    let items = state.db.tokens(caller.organization(), query.after(), limit + 1).await?;
    Ok(page(items, limit, |item| item.id.clone()))
}

#[utoipa::path(post, path = "/api/v1/tokens", request_body = CreateToken, operation_id = "create_token",
    responses((status = 201, body = CreatedToken), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 403, body = Problem), (status = 404, body = Problem), (status = 415, body = Problem)))]
pub(super) async fn create(
    state: Shared,
    caller: Caller,
    Body(request): Body<CreateToken>,
) -> Answer<(StatusCode, Json<CreatedToken>)> {
    if request.description.chars().count() > 200 || request.description.chars().any(char::is_control) {
        return Err(Failure::Invalid(
            "description is at most 200 characters, none of them control characters".to_owned(),
        ));
    }
    let organization = match (&request.role, &request.organization) {
        (Role::Provider, None) => {
            if !caller.is_provider() {
                return Err(Failure::Forbidden("only the provider makes provider tokens"));
            }
            None
        }
        (Role::Provider, Some(_)) => {
            return Err(Failure::Invalid("a provider token belongs to no organization".to_owned()));
        }
        (_, None) => return Err(Failure::Invalid("organization is required for this role".to_owned())),
        (_, Some(name)) => {
            let missing = || Failure::NotFound("organization");
            caller.role_in(name).ok_or_else(missing)?;
            Some(state.db.organization(name).await?.ok_or_else(missing)?.id)
        }
    };
    let created = auth::create_token(&state, &request, organization).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

#[utoipa::path(delete, path = "/api/v1/tokens/{token}", params(("token" = String, Path)),
    operation_id = "delete_token",
    responses((status = 204), (status = 401, body = Problem), (status = 403, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn delete(state: Shared, caller: Caller, Path(id): Path<String>) -> Answer<StatusCode> {
    if state.db.delete_token(caller.organization(), &id).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Failure::NotFound("token"))
    }
}
