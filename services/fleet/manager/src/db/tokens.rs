//! API tokens.

use base_ids::{OrgId, Slug};
use fleet_model::{ApiToken, Role};

use super::{Db, DbError, Read, Row, sql, undecodable};

/// A token with what authentication needs.
#[derive(Debug, Clone)]
pub(crate) struct TokenRow {
    pub(crate) token: ApiToken,
    pub(crate) secret_hash: String,
}

/// Tokens with their organisation's name; `$rest` is a literal.
macro_rules! select_tokens {
    ($rest:literal) => {
        sql(concat!(
            "SELECT t.id, t.description, t.role, t.secret_hash, t.created_ms, t.expires_ms, o.name AS organization
             FROM api_tokens t LEFT JOIN organizations o ON o.id = t.organization_id ",
            $rest
        ))
    };
}

impl Read for TokenRow {
    fn read(row: &Row) -> Result<TokenRow, sqlx::Error> {
        let role = row.text("role")?;
        Ok(TokenRow {
            token: ApiToken {
                id: row.text("id")?,
                description: row.text("description")?,
                role: Role::parse(&role).ok_or_else(|| undecodable("role", role))?,
                organization: row.maybe_parsed("organization")?,
                cluster: None,
                created_by: None,
                created_at: row.time("created_ms")?,
                expires_at: row.maybe_time("expires_ms")?,
            },
            secret_hash: row.text("secret_hash")?,
        })
    }
}

impl Db {
    pub(crate) async fn insert_token(
        &self,
        token: &ApiToken,
        organization: Option<OrgId>,
        secret_hash: &str,
    ) -> Result<(), DbError> {
        self.run(
            sql("INSERT INTO api_tokens (id, description, role, organization_id, secret_hash, created_ms, expires_ms)
                 VALUES ($1, $2, $3, $4, $5, $6, $7)")
            .bind(&token.id)
            .bind(&token.description)
            .bind(token.role.as_str())
            .bind(organization)
            .bind(secret_hash)
            .bind(token.created_at)
            .bind(token.expires_at),
        )
        .await?;
        Ok(())
    }

    pub(crate) async fn token(&self, id: &str) -> Result<Option<TokenRow>, DbError> {
        self.one(select_tokens!("WHERE t.id = $1").bind(id)).await
    }

    /// By id, after `after`; of one organisation, or of all.
    pub(crate) async fn tokens(
        &self,
        organization: Option<&Slug>,
        after: &str,
        limit: i64,
    ) -> Result<Vec<ApiToken>, DbError> {
        let rows: Vec<TokenRow> = self
            .all(
                select_tokens!("WHERE t.id > $1 AND ($2 IS NULL OR o.name = $2) ORDER BY t.id LIMIT $3")
                    .bind(after)
                    .bind(organization)
                    .bind(limit),
            )
            .await?;
        Ok(rows.into_iter().map(|row| row.token).collect())
    }

    /// False when there is no such token (of that organisation).
    pub(crate) async fn delete_token(&self, organization: Option<&Slug>, id: &str) -> Result<bool, DbError> {
        let gone = self
            .run(
                sql("DELETE FROM api_tokens WHERE id = $1
                     AND ($2 IS NULL OR organization_id = (SELECT id FROM organizations WHERE name = $2))")
                .bind(id)
                .bind(organization),
            )
            .await?;
        Ok(gone > 0)
    }
}
