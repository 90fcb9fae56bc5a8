//! Who is asking: API tokens and sessions become a [`Caller`].
//!
//! Not here: what a caller needs for a route (`http/routes.rs`, `http/access.rs`).

pub(crate) mod password;
pub(crate) mod secret;
pub(crate) mod throttle;

use std::time::Duration;

use base_clock::Timestamp;
use base_ids::{OrgId, Slug, TenantId, UserId};
use fleet_model::{
    ApiToken, CreateToken, CreatedToken, Hidden, Identity, Membership, Organization, Role, Session, User,
};
use sha2::{Digest, Sha256};

use crate::State;
use crate::db::{DbError, NewToken, TokenRow};

/// A session that is not used for this long ends.
const IDLE: Duration = Duration::from_secs(12 * 3600);

/// However much it is used.
pub(crate) const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// A session's end is written down again when it would move by at least this much: not at every request.
const STEP: Duration = Duration::from_secs(5 * 60);

/// Who is asking, as they were found when the request came in.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    who: Who,
    provider: bool,
    /// By name. Empty for the provider, who is everything everywhere.
    organizations: Vec<(Organization, Role)>,
    /// The one cluster that a token is limited to.
    pub(crate) only: Option<TenantId>,
    /// What they showed; see [`Caller::sealing_key`] and [`role_now`].
    shown: Hidden,
}

#[derive(Debug, Clone)]
enum Who {
    Person { user: User, session: String },
    Token { token: Box<ApiToken>, made_by: Option<UserId> },
}

impl Caller {
    pub(crate) fn is_provider(&self) -> bool {
        self.provider
    }

    pub(crate) fn is_some_admin(&self) -> bool {
        self.only.is_none()
            && (self.provider || self.organizations.iter().any(|(_, role)| *role >= Role::Admin))
    }

    /// What this caller is in `organization`; `None`: it does not exist as far as they are concerned.
    pub(crate) fn role_in(&self, organization: &Slug) -> Option<Role> {
        if self.provider {
            return Some(Role::Provider);
        }
        self.membership(organization).map(|(_, role)| *role)
    }

    /// The organisation, when they belong to it.
    pub(crate) fn membership(&self, organization: &Slug) -> Option<&(Organization, Role)> {
        self.organizations.iter().find(|(one, _)| one.name == *organization)
    }

    /// What they belong to, by name.
    pub(crate) fn organizations(&self) -> &[(Organization, Role)] {
        &self.organizations
    }

    /// The person who signed in; `None` for a token.
    pub(crate) fn user(&self) -> Option<&User> {
        match &self.who {
            Who::Person { user, .. } => Some(user),
            Who::Token { .. } => None,
        }
    }

    /// The person's session.
    pub(crate) fn session(&self) -> Option<&str> {
        match &self.who {
            Who::Person { session, .. } => Some(session),
            Who::Token { .. } => None,
        }
    }

    /// The person whose rights these are in the end: who signed in, or who made the token.
    pub(crate) fn person(&self) -> Option<UserId> {
        match &self.who {
            Who::Person { user, .. } => Some(user.id),
            Who::Token { made_by, .. } => *made_by,
        }
    }

    /// When this caller's token ends, if it is one that does.
    pub(crate) fn ends_at(&self) -> Option<Timestamp> {
        match &self.who {
            Who::Person { .. } => None,
            Who::Token { token, .. } => token.expires_at,
        }
    }

    /// What clusters and their audit logs call them: an email address, or `token:<id>`.
    pub(crate) fn name(&self) -> String {
        match &self.who {
            Who::Person { user, .. } => user.email.to_string(),
            Who::Token { token, .. } => format!("token:{}", token.id),
        }
    }

    /// Tells callers apart where their own things are kept.
    pub(crate) fn key(&self) -> String {
        match &self.who {
            Who::Person { session, .. } => format!("session:{session}"),
            Who::Token { token, .. } => format!("token:{}", token.id),
        }
    }

    /// Seals what only this caller may read again. The database has but a hash of what it is made of.
    pub(crate) fn sealing_key(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"roadstead: answers of this caller\0");
        hash.update(self.shown.expose().as_bytes());
        hash.finalize().into()
    }

    pub(crate) fn identity(&self) -> Identity {
        let membership = |(organization, role): &(Organization, Role)| Membership {
            organization: organization.name.clone(),
            role: *role,
        };
        let (user, token) = match &self.who {
            Who::Person { user, .. } => (Some(user.clone()), None),
            Who::Token { token, .. } => (None, Some((**token).clone())),
        };
        let memberships = self.organizations.iter().map(membership).collect();
        Identity { user, token, provider: self.provider, memberships }
    }
}

/// The caller behind what was shown; `None` when it is unknown, altered, ended or expired.
pub(crate) async fn find(state: &State, shown: &str) -> Result<Option<Caller>, DbError> {
    if let Some((id, secret)) = secret::split(secret::SESSION, shown) {
        return find_session(state, shown, id, secret).await;
    }
    match secret::split(secret::TOKEN, shown) {
        Some((id, secret)) => find_token(state, shown, id, secret).await,
        None => Ok(None),
    }
}

/// Whoever follows an answer that goes on for long is asked for again this often.
pub(crate) const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// What `caller` is in an organisation by now; `None` when they belong to it no more, or ended.
pub(crate) async fn role_now(
    state: &State,
    caller: &Caller,
    organization: &Slug,
) -> Result<Option<Role>, DbError> {
    let again = find(state, caller.shown.expose()).await?;
    Ok(again.and_then(|caller| caller.role_in(organization)))
}

async fn find_session(state: &State, shown: &str, id: &str, secret: &str) -> Result<Option<Caller>, DbError> {
    let now = state.now();
    let Some(row) = state.db.session(id).await? else { return Ok(None) };
    if row.secret_hash != secret::hash(secret) || row.expires_at <= now {
        return Ok(None);
    }
    let expires_at = later(now, IDLE).min(later(row.created_at, LONGEST));
    if row.expires_at.saturating_add(STEP).is_ok_and(|due| due <= expires_at) {
        state.db.extend_session(id, expires_at).await?;
    }
    let organizations = state.db.organizations_of(row.user.id).await?;
    Ok(Some(Caller {
        provider: row.provider,
        organizations: if row.provider { Vec::new() } else { organizations },
        only: None,
        who: Who::Person { user: row.user, session: id.to_owned() },
        shown: Hidden::new(shown.trim()),
    }))
}

async fn find_token(state: &State, shown: &str, id: &str, secret: &str) -> Result<Option<Caller>, DbError> {
    let Some(row) = state.db.token(id).await? else { return Ok(None) };
    let ended = row.token.expires_at.is_some_and(|expires| expires <= state.now());
    if row.secret_hash != secret::hash(secret) || ended {
        return Ok(None);
    }
    let Some(role) = row.role_now() else { return Ok(None) };
    let TokenRow { token, organization, made_by, .. } = row;
    let organizations = match (role, organization) {
        (Role::Provider, _) => Vec::new(),
        (_, Some(organization)) => vec![(organization, role)],
        (_, None) => return Ok(None),
    };
    Ok(Some(Caller {
        provider: role == Role::Provider,
        organizations,
        only: token.cluster,
        who: Who::Token { token: Box::new(token), made_by },
        shown: Hidden::new(shown.trim()),
    }))
}

/// What a new token is bound to. Whoever asks for one has been found to have these rights.
pub(crate) struct Bounds {
    pub(crate) id: String,
    pub(crate) organization: Option<OrgId>,
    pub(crate) cluster: Option<TenantId>,
    pub(crate) made_by: Option<UserId>,
    /// It ends by then in any case.
    pub(crate) ends_at: Option<Timestamp>,
}

/// Makes a token; one that has the id already gets a new secret.
pub(crate) async fn create_token(
    state: &State,
    request: &CreateToken,
    bounds: Bounds,
) -> Result<CreatedToken, DbError> {
    let fresh = secret::with_id(secret::TOKEN, bounds.id);
    let now = state.now();
    let asked = request.expires_in_seconds.map(|seconds| later(now, Duration::from_secs(seconds.into())));
    let new = NewToken {
        id: &fresh.id,
        description: &request.description,
        role: request.role,
        organization: bounds.organization,
        cluster: bounds.cluster,
        made_by: bounds.made_by,
        secret_hash: &fresh.hash,
        created_at: now,
        expires_at: match (asked, bounds.ends_at) {
            (Some(asked), Some(end)) => Some(asked.min(end)),
            (asked, end) => asked.or(end),
        },
    };
    state.db.put_token(&new).await?;
    let row = state.db.token(&fresh.id).await?.ok_or(DbError::Constraint)?;
    Ok(CreatedToken { token: row.token, secret: fresh.shown })
}

/// Signs `user` in; the password was found right.
pub(crate) async fn start_session(state: &State, user: User) -> Result<Session, DbError> {
    let fresh = secret::fresh(secret::SESSION);
    let now = state.now();
    let expires_at = later(now, IDLE);
    state.db.insert_session(&fresh.id, user.id, &fresh.hash, now, expires_at).await?;
    Ok(Session { id: fresh.id, secret: fresh.shown, expires_at, user })
}

pub(crate) fn later(now: Timestamp, by: Duration) -> Timestamp {
    now.saturating_add(by).unwrap_or(Timestamp::MAX)
}
