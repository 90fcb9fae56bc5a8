//! Signing in and out, one's own password, taking up an invitation.

use axum::Json;
use axum::extract::Extension;
use axum::http::header::{CACHE_CONTROL, SET_COOKIE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use fleet_model::{AcceptInvitation, ChangePassword, CreateSession, Email, Identity, Problem, Session};

use super::access::COOKIE;
use super::body::Body;
use super::{Answer, Peer, Shared};
use crate::State;
use crate::auth::password::{self, PasswordError};
use crate::auth::{self, Caller, secret};
use crate::problem::Failure;

/// Unknown person and wrong password are told apart by nobody.
const WRONG: &str = "email address or password is wrong";
const NO_INVITATION: &str = "invitation; it may have expired or been used";

#[utoipa::path(post, path = "/api/v1/sessions", request_body = CreateSession, operation_id = "create_session",
    tag = "session", security(()),
    responses((status = 201, body = Session, description = "Signed in; the secret is also in a cookie."),
        (status = 401, body = Problem)))]
pub(super) async fn create(
    state: Shared,
    Extension(peer): Extension<Peer>,
    Body(request): Body<CreateSession>,
) -> Answer<Response> {
    let paid = state
        .throttle
        .take(&request.email, Some(peer.0.ip()), state.clock.monotonic())
        .map_err(Failure::TooMany)?;
    let known = match request.email.parse::<Email>() {
        Ok(email) => state.db.user_by_email(&email).await?,
        Err(_) => None,
    };
    let hash = known.as_ref().and_then(|row| row.password_hash.as_deref());
    let matches = state.passwords.matches(&request.password, hash).await?;
    let Some(row) = known.filter(|_| matches) else { return Err(Failure::WrongPassword(WRONG)) };
    state.throttle.give_back(&paid, state.clock.monotonic());
    signed_in(&state, row.user).await
}

#[utoipa::path(get, path = "/api/v1/session", operation_id = "get_session", tag = "session",
    responses((status = 200, body = Identity)))]
pub(super) async fn get(caller: Caller) -> Json<Identity> {
    Json(caller.identity())
}

#[utoipa::path(delete, path = "/api/v1/session", operation_id = "delete_session", tag = "session",
    responses((status = 204, description = "Signed out."),
        (status = 409, body = Problem, description = "An API token is no session.")))]
pub(super) async fn delete(state: Shared, caller: Caller) -> Answer<Response> {
    let Some(session) = caller.session() else {
        return Err(Failure::Conflict("this is an API token, not a session; delete the token".to_owned()));
    };
    state.db.delete_session(session).await?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    response.headers_mut().insert(SET_COOKIE, cookie("", 0)?);
    Ok(response)
}

#[utoipa::path(put, path = "/api/v1/session/password", request_body = ChangePassword,
    operation_id = "change_password", tag = "session",
    responses((status = 204, description = "Changed; all other sessions of this person have ended."),
        (status = 403, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn change_password(
    state: Shared,
    Extension(peer): Extension<Peer>,
    caller: Caller,
    Body(request): Body<ChangePassword>,
) -> Answer<StatusCode> {
    let (Some(user), Some(session)) = (caller.user(), caller.session()) else {
        return Err(Failure::Forbidden("an API token has no password"));
    };
    password::check(&request.new).map_err(|error| Failure::field("/new", error.to_string()))?;
    // Whoever finds an open session must not be able to try passwords on it, either.
    let paid = state
        .throttle
        .take(user.email.as_str(), Some(peer.0.ip()), state.clock.monotonic())
        .map_err(Failure::TooMany)?;
    let hash = state.db.user(user.id).await?.and_then(|row| row.password_hash);
    if !state.passwords.matches(&request.current, hash.as_deref()).await? {
        return Err(Failure::Forbidden("the current password is another one"));
    }
    state.throttle.give_back(&paid, state.clock.monotonic());
    let fresh = state.passwords.hash(&request.new).await?;
    if !state.db.change_password(user.id, &hash.unwrap_or_default(), &fresh, session).await? {
        return Err(Failure::Conflict("the password was changed at the same time".to_owned()));
    }
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(post, path = "/api/v1/invitations/accept", request_body = AcceptInvitation,
    operation_id = "accept_invitation", tag = "session", security(()),
    responses((status = 201, body = Session, description = "A member, and signed in."),
        (status = 401, body = Problem), (status = 404, body = Problem),
        (status = 422, body = Problem, description = "A new account needs a name.")))]
pub(super) async fn accept(
    state: Shared,
    Extension(peer): Extension<Peer>,
    Body(request): Body<AcceptInvitation>,
) -> Answer<Response> {
    let missing = || Failure::NotFound(NO_INVITATION);
    let (id, secret) = secret::split(secret::INVITATION, request.invitation.expose()).ok_or_else(missing)?;
    let row = state.db.invitation(id).await?.ok_or_else(missing)?;
    if row.secret_hash != secret::hash(secret) || row.expires_at <= state.now() {
        return Err(missing());
    }
    let mut user = row.user;
    let accepted = match row.password_hash {
        // An account is whoever knows its password. Else an organisation that was first to invite an
        // address, and took the invitation up itself, would be let into every other one.
        Some(hash) => {
            let paid = state
                .throttle
                .take(user.email.as_str(), Some(peer.0.ip()), state.clock.monotonic())
                .map_err(Failure::TooMany)?;
            if !state.passwords.matches(&request.password, Some(&hash)).await? {
                return Err(Failure::WrongPassword("this person has an account already; give its password"));
            }
            state.throttle.give_back(&paid, state.clock.monotonic());
            state.db.accept(id, user.id, None).await?
        }
        None => {
            let name = person_name(&request.name)?;
            password::check(&request.password)
                .map_err(|error| Failure::field("/password", error.to_string()))?;
            let hash = state.passwords.hash(&request.password).await?;
            let accepted = state.db.accept(id, user.id, Some((&name, &hash))).await?;
            user.name = name;
            accepted
        }
    };
    if !accepted {
        return Err(missing());
    }
    signed_in(&state, user).await
}

async fn signed_in(state: &State, user: fleet_model::User) -> Answer<Response> {
    let session = auth::start_session(state, user).await?;
    let cookie = cookie(&session.secret, auth::LONGEST.as_secs())?;
    let mut response = (StatusCode::CREATED, Json(session)).into_response();
    response.headers_mut().insert(SET_COOKIE, cookie);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// `__Host-`: from this very host, over TLS, for all paths; browsers refuse anything else under the name.
fn cookie(secret: &str, max_age_seconds: u64) -> Answer<HeaderValue> {
    let text =
        format!("{COOKIE}={secret}; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={max_age_seconds}");
    HeaderValue::try_from(text).map_err(|error| Failure::Internal(Box::new(error)))
}

/// What people may be called: anything that can be shown in a line and does not reorder it.
fn person_name(name: &str) -> Answer<String> {
    let name = name.trim();
    if name.is_empty() {
        return Err(Failure::Contradiction { field: "/name", why: "a new account needs a name" });
    }
    let reorders =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let fine = (1..=100).contains(&name.chars().count())
        && !name.chars().any(|c| c.is_control() || reorders(c) || matches!(c, '\u{2028}' | '\u{2029}'));
    if fine {
        return Ok(name.to_owned());
    }
    Err(Failure::field("/name", "1 to 100 characters, none of them control characters"))
}

impl From<PasswordError> for Failure {
    fn from(error: PasswordError) -> Failure {
        match error {
            PasswordError::Busy => Failure::Unavailable(error.to_string()),
            PasswordError::Length => Failure::Invalid(error.to_string()),
            PasswordError::Hash(_) => Failure::Internal(Box::new(error)),
        }
    }
}
