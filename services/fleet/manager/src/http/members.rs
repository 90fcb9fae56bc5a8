//! Members of an organisation.

use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use base_ids::UserId;
use fleet_model::{CreateMember, Member, Page, Problem, Role, UpdateMember};

use super::access::InOrganization;
use super::body::Body;
use super::clusters::changed_meanwhile;
use super::extract::{PageQuery, page};
use super::{Answer, Shared};
use crate::auth::{later, secret};
use crate::db::{Changed, DbError, Invited, MAX_MEMBERS, NewInvitation};
use crate::problem::Failure;

/// An invitation that was not taken up by then is void.
const INVITATION_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

const LAST_ADMIN: &str = "this is the organization's last admin; make somebody else an admin first";

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/members", operation_id = "list_members",
    tag = "members", params(("organization" = String, Path), PageQuery),
    responses((status = 200, body = Page<Member>)))]
pub(super) async fn list(state: Shared, at: InOrganization, query: PageQuery) -> Answer<Json<Page<Member>>> {
    let limit = query.limit()?;
    let items = state.db.members(at.organization.id, query.after(), limit + 1).await?;
    Ok(page(items, limit, |item| item.user.email.to_string()))
}

#[utoipa::path(post, path = "/api/v1/organizations/{organization}/members", request_body = CreateMember,
    operation_id = "create_member", tag = "members", params(("organization" = String, Path)),
    responses((status = 201, body = Member,
            description = "Invited; hand them the invitation. Who was invited already gets a new one."),
        (status = 409, body = Problem, description = "They are a member, or there are too many.")))]
pub(super) async fn create(
    state: Shared,
    at: InOrganization,
    Body(request): Body<CreateMember>,
) -> Answer<(StatusCode, Json<Member>)> {
    within_organization(request.role)?;
    let fresh = secret::fresh(secret::INVITATION);
    let now = state.now();
    let invitation = NewInvitation {
        id: &fresh.id,
        secret_hash: &fresh.hash,
        expires_at: later(now, INVITATION_LIFETIME),
    };
    let organization = &at.organization;
    let taken = |why: String| Err(Failure::Conflict(why));
    match state.db.invite(organization.id, &request.email, request.role, &invitation, now).await {
        Ok(Invited::Done(member)) => {
            Ok((StatusCode::CREATED, Json(Member { invitation: Some(fresh.shown), ..*member })))
        }
        Ok(Invited::IsMember) => {
            taken(format!("{} is a member of {} already", request.email, organization.name))
        }
        Ok(Invited::TooMany) => taken(format!("an organization has at most {MAX_MEMBERS} members")),
        Err(DbError::Constraint) => Err(changed_meanwhile()),
        Err(error) => Err(error.into()),
    }
}

#[utoipa::path(patch, path = "/api/v1/organizations/{organization}/members/{user}", request_body = UpdateMember,
    operation_id = "update_member", tag = "members",
    params(("organization" = String, Path), ("user" = String, Path, format = "uuid")),
    responses((status = 200, body = Member),
        (status = 409, body = Problem, description = "The last admin stays one.")))]
pub(super) async fn update(
    state: Shared,
    at: InOrganization,
    Path((_organization, user)): Path<(String, String)>,
    Body(request): Body<UpdateMember>,
) -> Answer<Json<Member>> {
    within_organization(request.role)?;
    let user = user_id(&user)?;
    changed(state.db.set_role(at.organization.id, user, request.role, state.now()).await?)?;
    // Their kubeconfigs may be revoked by that, which clusters have to hear.
    state.nudge.notify_one();
    let member = state.db.member(at.organization.id, user).await?;
    member.map(Json).ok_or(Failure::NotFound("member"))
}

#[utoipa::path(delete, path = "/api/v1/organizations/{organization}/members/{user}",
    operation_id = "delete_member", tag = "members",
    params(("organization" = String, Path), ("user" = String, Path, format = "uuid")),
    responses((status = 204, description = "Gone, and with them the tokens they made here; kubeconfigs of both are refused."),
        (status = 409, body = Problem, description = "The last admin stays.")))]
pub(super) async fn delete(
    state: Shared,
    at: InOrganization,
    Path((_organization, user)): Path<(String, String)>,
) -> Answer<StatusCode> {
    changed(state.db.remove_member(at.organization.id, user_id(&user)?, state.now()).await?)?;
    state.nudge.notify_one();
    Ok(StatusCode::NO_CONTENT)
}

fn within_organization(role: Role) -> Answer<()> {
    match role {
        Role::Viewer | Role::Developer | Role::Admin => Ok(()),
        Role::Provider => {
            Err(Failure::field("/role", "a member is admin, developer or viewer; not provider"))
        }
    }
}

fn user_id(text: &str) -> Answer<UserId> {
    text.parse().map_err(|_| Failure::NotFound("member"))
}

fn changed(outcome: Changed) -> Answer<()> {
    match outcome {
        Changed::Done => Ok(()),
        Changed::Missing => Err(Failure::NotFound("member")),
        Changed::LastAdmin => Err(Failure::Conflict(LAST_ADMIN.to_owned())),
    }
}
