//! API tokens: `rs_<id>_<secret>`, of which only a hash of the secret is kept.

use base_clock::Timestamp;
use base_ids::{Slug, TenantId};
use fleet_model::{ApiToken, CreateToken, CreatedToken, Role};
use rand::RngCore;
use rand::rngs::OsRng;
use sha2::{Digest, Sha256};

use crate::State;
use crate::db::DbError;

/// Who is asking.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    role: Role,
    /// `None` for the provider.
    organization: Option<Slug>,
    /// The one cluster that a token is limited to.
    pub(crate) only: Option<TenantId>,
}

impl Caller {
    pub(crate) fn is_provider(&self) -> bool {
        self.role == Role::Provider
    }
    pub(crate) fn is_some_admin(&self) -> bool {
        self.role >= Role::Admin && self.only.is_none()
    }
    /// What this caller is in `organization`; `None`: it does not exist as far as they are concerned.
    pub(crate) fn role_in(&self, organization: &Slug) -> Option<Role> {
        (self.is_provider() || self.organization.as_ref() == Some(organization)).then_some(self.role)
    }
    /// The one organisation that this caller sees; `None` for all.
    pub(crate) fn organization(&self) -> Option<&Slug> {
        self.organization.as_ref()
    }
}

/// Makes a token. `organization_of` must exist; callers checked that `request` is within their own rights.
pub(crate) async fn create_token(
    state: &State,
    request: &CreateToken,
    organization: Option<base_ids::OrgId>,
) -> Result<CreatedToken, DbError> {
    let id = random_hex::<8>();
    let secret = random_hex::<32>();
    let now = state.clock.now();
    let token = ApiToken {
        id: id.clone(),
        description: request.description.clone(),
        role: request.role,
        organization: request.organization.clone(),
        cluster: None,
        created_by: None,
        created_at: now,
        expires_at: request.expires_in_seconds.map(|seconds| in_seconds(now, seconds)),
    };
    state.db.insert_token(&token, organization, &hash(&secret)).await?;
    Ok(CreatedToken { token, secret: format!("rs_{id}_{secret}") })
}

/// The caller behind a bearer token; `None` when it is unknown, altered or expired.
pub(crate) async fn find(state: &State, bearer: &str) -> Result<Option<Caller>, DbError> {
    let Some((id, secret)) = bearer.trim().strip_prefix("rs_").and_then(|rest| rest.split_once('_')) else {
        return Ok(None);
    };
    let Some(row) = state.db.token(id).await? else { return Ok(None) };
    // Comparing hashes leaks nothing useful: what differs early is the hash of a guess.
    let fine = row.secret_hash == hash(secret)
        && row.token.expires_at.is_none_or(|expires| state.clock.now() < expires);
    Ok(fine.then_some(Caller { role: row.token.role, organization: row.token.organization, only: None }))
}

fn in_seconds(now: Timestamp, seconds: u32) -> Timestamp {
    now.saturating_add(std::time::Duration::from_secs(u64::from(seconds))).unwrap_or(Timestamp::MAX)
}

fn hash(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

fn random_hex<const BYTES: usize>() -> String {
    let mut bytes = [0u8; BYTES];
    use rand::TryRngCore;
    OsRng.unwrap_err().fill_bytes(&mut bytes);
    hex::encode(bytes)
}
