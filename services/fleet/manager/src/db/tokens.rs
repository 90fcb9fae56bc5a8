//! API tokens.

use base_clock::Timestamp;
use base_ids::{OrgId, Slug, TenantId, UserId};
use fleet_model::{ApiToken, Organization, Role};

use super::members::lock;
use super::revocations::revoke_token;
use super::{Count, Db, DbError, Read, Row, sql, undecodable};

/// A token with what authentication needs.
#[derive(Debug, Clone)]
pub(crate) struct TokenRow {
    pub(crate) token: ApiToken,
    pub(crate) organization: Option<Organization>,
    pub(crate) secret_hash: String,
    pub(crate) made_by: Option<UserId>,
    /// What its maker is now, where the token is.
    maker: Option<Role>,
}

impl TokenRow {
    /// A token never may more than who made it: not after they were demoted, nothing after they left.
    pub(crate) fn role_now(&self) -> Option<Role> {
        match self.made_by {
            None => Some(self.token.role),
            Some(_) => self.maker.map(|maker| maker.min(self.token.role)),
        }
    }
}

/// Tokens of one organisation at most, expired ones among them. Programs are fewer; without a bound, one admin
/// could fill the database. Counted before one is made rather than with it: a few too many do no harm.
pub(crate) const MAX_TOKENS: i64 = 1000;

pub(crate) struct NewToken<'a> {
    pub(crate) id: &'a str,
    pub(crate) description: &'a str,
    pub(crate) role: Role,
    pub(crate) organization: Option<OrgId>,
    pub(crate) cluster: Option<TenantId>,
    pub(crate) made_by: Option<UserId>,
    pub(crate) secret_hash: &'a str,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
}

/// Whose tokens somebody manages.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokenScope<'a> {
    /// Of this organisation only.
    pub(crate) organization: Option<&'a Slug>,
    /// Of organisations that this person is admin of only.
    pub(crate) admin: Option<UserId>,
}

/// Tokens with their organisation and their maker; `$rest` is a literal.
macro_rules! select_tokens {
    ($rest:literal) => {
        sql(concat!(
            "SELECT t.id, t.description, t.role, t.secret_hash, t.created_ms, t.expires_ms, t.cluster_id,
                 t.created_by, o.id AS organization_id, o.name AS organization, o.created_ms AS organization_ms,
                 u.email AS maker_email, u.provider AS maker_provider, m.role AS maker_role
             FROM api_tokens t
             LEFT JOIN organizations o ON o.id = t.organization_id
             LEFT JOIN users u ON u.id = t.created_by
             LEFT JOIN members m ON m.user_id = t.created_by AND m.organization_id = t.organization_id
                 AND m.invited = 0 ",
            $rest
        ))
    };
}

impl Read for TokenRow {
    fn read(row: &Row) -> Result<TokenRow, sqlx::Error> {
        let organization = match row.maybe_parsed("organization_id")? {
            Some(id) => Some(Organization {
                id,
                name: row.parsed("organization")?,
                created_at: row.time("organization_ms")?,
            }),
            None => None,
        };
        let maker = match row.maybe_number("maker_provider")? {
            Some(1) => Some(Role::Provider),
            _ => row.maybe_role("maker_role")?,
        };
        Ok(TokenRow {
            token: ApiToken {
                id: row.text("id")?,
                description: row.text("description")?,
                role: row.maybe_role("role")?.ok_or_else(|| undecodable("role", "is NULL"))?,
                organization: organization.as_ref().map(|organization| organization.name.clone()),
                cluster: row.maybe_parsed("cluster_id")?,
                created_by: row.maybe_parsed("maker_email")?,
                created_at: row.time("created_ms")?,
                expires_at: row.maybe_time("expires_ms")?,
            },
            organization,
            secret_hash: row.text("secret_hash")?,
            made_by: row.maybe_parsed("created_by")?,
            maker,
        })
    }
}

struct IdRow(OrgId);

impl Read for IdRow {
    fn read(row: &Row) -> Result<IdRow, sqlx::Error> {
        Ok(IdRow(row.parsed("id")?))
    }
}

impl Db {
    /// One that has the id already gets the new secret: an id is given out again only to whoever asked
    /// for the token and never saw its secret.
    pub(crate) async fn put_token(&self, new: &NewToken<'_>) -> Result<(), DbError> {
        self.run(
            sql("INSERT INTO api_tokens (id, description, role, organization_id, cluster_id, created_by,
                     secret_hash, created_ms, expires_ms)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
                 ON CONFLICT (id) DO UPDATE SET secret_hash = excluded.secret_hash")
            .bind(new.id)
            .bind(new.description)
            .bind(new.role.as_str())
            .bind(new.organization)
            .bind(new.cluster)
            .bind(new.made_by)
            .bind(new.secret_hash)
            .bind(new.created_at)
            .bind(new.expires_at),
        )
        .await?;
        Ok(())
    }

    pub(crate) async fn token(&self, id: &str) -> Result<Option<TokenRow>, DbError> {
        self.one(select_tokens!("WHERE t.id = $1").bind(id)).await
    }

    pub(crate) async fn token_count(&self, organization: OrgId) -> Result<i64, DbError> {
        let count = sql("SELECT COUNT(*) AS n FROM api_tokens WHERE organization_id = $1").bind(organization);
        let count: Option<Count> = self.one(count).await?;
        Ok(count.map_or(0, |count| count.0))
    }

    /// One of those in this scope.
    pub(crate) async fn token_in(
        &self,
        scope: TokenScope<'_>,
        id: &str,
    ) -> Result<Option<ApiToken>, DbError> {
        let row: Option<TokenRow> = self
            .one(
                select_tokens!(
                    "WHERE t.id = $1 AND ($2 IS NULL OR o.name = $2)
                     AND ($3 IS NULL OR EXISTS (SELECT 1 FROM members a WHERE a.organization_id = t.organization_id
                         AND a.user_id = $3 AND a.role = 'admin' AND a.invited = 0))"
                )
                .bind(id)
                .bind(scope.organization)
                .bind(scope.admin),
            )
            .await?;
        Ok(row.map(|row| row.token))
    }

    /// By id, after `after`.
    pub(crate) async fn tokens(
        &self,
        scope: TokenScope<'_>,
        after: &str,
        limit: i64,
    ) -> Result<Vec<ApiToken>, DbError> {
        let rows: Vec<TokenRow> = self
            .all(
                select_tokens!(
                    "WHERE t.id > $1 AND ($2 IS NULL OR o.name = $2)
                     AND ($3 IS NULL OR EXISTS (SELECT 1 FROM members a WHERE a.organization_id = t.organization_id
                         AND a.user_id = $3 AND a.role = 'admin' AND a.invited = 0))
                     ORDER BY t.id LIMIT $4"
                )
                .bind(after)
                .bind(scope.organization)
                .bind(scope.admin)
                .bind(limit),
            )
            .await?;
        Ok(rows.into_iter().map(|row| row.token).collect())
    }

    /// With the kubeconfigs that it asked for. False when there is no such token in this scope.
    pub(crate) async fn delete_token(
        &self,
        scope: TokenScope<'_>,
        id: &str,
        now: Timestamp,
    ) -> Result<bool, DbError> {
        let mut tx = self.begin().await?;
        // Of one organisation mostly; the provider's may have been in any, in the same order for whoever locks several.
        let organizations: Vec<IdRow> = tx
            .all(
                sql("SELECT organization_id AS id FROM kubeconfigs WHERE user_name = 'token:' || $1
                     UNION SELECT organization_id AS id FROM api_tokens
                         WHERE id = $1 AND organization_id IS NOT NULL
                     ORDER BY id")
                .bind(id),
            )
            .await?;
        for IdRow(organization) in &organizations {
            lock(&mut tx, *organization).await?;
            revoke_token(&mut tx, *organization, id, now).await?;
        }
        let gone = tx
            .run(
                sql("DELETE FROM api_tokens WHERE id = $1
                     AND ($2 IS NULL OR organization_id = (SELECT id FROM organizations WHERE name = $2))
                     AND ($3 IS NULL OR EXISTS (SELECT 1 FROM members a
                         WHERE a.organization_id = api_tokens.organization_id
                         AND a.user_id = $3 AND a.role = 'admin' AND a.invited = 0))")
                .bind(id)
                .bind(scope.organization)
                .bind(scope.admin),
            )
            .await?;
        // Nothing was this caller's to delete: nor to revoke.
        if gone == 0 {
            return Ok(false);
        }
        tx.commit().await?;
        Ok(true)
    }
}
