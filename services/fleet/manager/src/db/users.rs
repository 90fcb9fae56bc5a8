//! People and their sessions.

use std::time::Duration;

use base_clock::Timestamp;
use base_ids::UserId;
use fleet_model::{Email, Organization, Role, User};

use super::{Db, DbError, Read, Row, sql, undecodable};

/// A person with what signing in needs.
#[derive(Debug, Clone)]
pub(crate) struct UserRow {
    pub(crate) user: User,
    pub(crate) password_hash: Option<String>,
}

/// A session with its person.
#[derive(Debug, Clone)]
pub(crate) struct SessionRow {
    pub(crate) user: User,
    pub(crate) provider: bool,
    pub(crate) secret_hash: String,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Timestamp,
}

/// Sessions a person has at the same time; the one that would end first goes when another begins.
const MAX_SESSIONS: i64 = 20;

impl Read for User {
    fn read(row: &Row) -> Result<User, sqlx::Error> {
        Ok(User { id: row.parsed("user_id")?, email: row.parsed("email")?, name: row.text("user_name")? })
    }
}

impl Read for UserRow {
    fn read(row: &Row) -> Result<UserRow, sqlx::Error> {
        Ok(UserRow { user: User::read(row)?, password_hash: row.maybe_text("password_hash")? })
    }
}

impl Read for SessionRow {
    fn read(row: &Row) -> Result<SessionRow, sqlx::Error> {
        Ok(SessionRow {
            user: User::read(row)?,
            provider: row.flag("provider")?,
            secret_hash: row.text("secret_hash")?,
            created_at: row.time("created_ms")?,
            expires_at: row.time("expires_ms")?,
        })
    }
}

/// An organisation and what somebody is in it.
struct BelongingRow(Organization, Role);

impl Read for BelongingRow {
    fn read(row: &Row) -> Result<BelongingRow, sqlx::Error> {
        let role = row.maybe_role("role")?.ok_or_else(|| undecodable("role", "is NULL"))?;
        Ok(BelongingRow(Organization::read(row)?, role))
    }
}

/// How long a token is listed after it has expired, so that whoever wonders why a program stopped finds out.
const SHOWN_EXPIRED: Duration = Duration::from_secs(30 * 24 * 3600);

impl Db {
    /// [`DbError::Constraint`] when somebody has the address.
    pub(crate) async fn insert_user(
        &self,
        user: &User,
        password_hash: &str,
        provider: bool,
        now: Timestamp,
    ) -> Result<(), DbError> {
        self.run(
            sql("INSERT INTO users (id, email, name, password_hash, provider, created_ms)
                 VALUES ($1, $2, $3, $4, $5, $6)")
            .bind(user.id)
            .bind(user.email.as_str())
            .bind(&user.name)
            .bind(password_hash)
            .bind(provider)
            .bind(now),
        )
        .await?;
        Ok(())
    }

    pub(crate) async fn user_by_email(&self, email: &Email) -> Result<Option<UserRow>, DbError> {
        self.one(
            sql("SELECT id AS user_id, email, name AS user_name, password_hash FROM users WHERE email = $1")
                .bind(email.as_str()),
        )
        .await
    }

    pub(crate) async fn user(&self, id: UserId) -> Result<Option<UserRow>, DbError> {
        self.one(
            sql("SELECT id AS user_id, email, name AS user_name, password_hash FROM users WHERE id = $1")
                .bind(id),
        )
        .await
    }

    /// Ends all sessions but `kept`. False when the password is no longer the one of `old_hash`.
    pub(crate) async fn change_password(
        &self,
        id: UserId,
        old_hash: &str,
        new_hash: &str,
        kept: &str,
    ) -> Result<bool, DbError> {
        let mut tx = self.begin().await?;
        let changed = tx
            .run(
                sql("UPDATE users SET password_hash = $3 WHERE id = $1 AND password_hash = $2")
                    .bind(id)
                    .bind(old_hash)
                    .bind(new_hash),
            )
            .await?;
        tx.run(sql("DELETE FROM sessions WHERE user_id = $1 AND id <> $2").bind(id).bind(kept)).await?;
        tx.commit().await?;
        Ok(changed > 0)
    }

    /// What a person belongs to, by name.
    pub(crate) async fn organizations_of(&self, id: UserId) -> Result<Vec<(Organization, Role)>, DbError> {
        let rows: Vec<BelongingRow> = self
            .all(
                sql("SELECT o.id, o.name, o.created_ms, m.role
                     FROM members m JOIN organizations o ON o.id = m.organization_id
                     WHERE m.user_id = $1 AND m.invited = 0 ORDER BY o.name")
                .bind(id),
            )
            .await?;
        Ok(rows.into_iter().map(|BelongingRow(organization, role)| (organization, role)).collect())
    }

    pub(crate) async fn insert_session(
        &self,
        id: &str,
        user: UserId,
        secret_hash: &str,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Result<(), DbError> {
        let mut tx = self.begin().await?;
        tx.run(
            sql("DELETE FROM sessions WHERE user_id = $1 AND id NOT IN
                     (SELECT id FROM sessions WHERE user_id = $1 ORDER BY expires_ms DESC, id LIMIT $2)")
            .bind(user)
            .bind(MAX_SESSIONS - 1),
        )
        .await?;
        tx.run(
            sql("INSERT INTO sessions (id, user_id, secret_hash, created_ms, expires_ms)
                 VALUES ($1, $2, $3, $4, $5)")
            .bind(id)
            .bind(user)
            .bind(secret_hash)
            .bind(now)
            .bind(expires_at),
        )
        .await?;
        tx.commit().await
    }

    pub(crate) async fn session(&self, id: &str) -> Result<Option<SessionRow>, DbError> {
        self.one(
            sql("SELECT s.secret_hash, s.created_ms, s.expires_ms, u.id AS user_id, u.email,
                     u.name AS user_name, u.provider
                 FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.id = $1")
            .bind(id),
        )
        .await
    }

    pub(crate) async fn extend_session(&self, id: &str, expires_at: Timestamp) -> Result<(), DbError> {
        self.run(sql("UPDATE sessions SET expires_ms = $2 WHERE id = $1").bind(id).bind(expires_at)).await?;
        Ok(())
    }

    pub(crate) async fn delete_session(&self, id: &str) -> Result<(), DbError> {
        self.run(sql("DELETE FROM sessions WHERE id = $1").bind(id)).await?;
        Ok(())
    }

    /// Forgets what ended before `now`, first answers from before `answers`, and people who are nobody.
    pub(crate) async fn forget_ended(&self, now: Timestamp, answers: Timestamp) -> Result<u64, DbError> {
        let mut gone = self.run(sql("DELETE FROM sessions WHERE expires_ms <= $1").bind(now)).await?;
        gone += self.run(sql("DELETE FROM invitations WHERE expires_ms <= $1").bind(now)).await?;
        gone += self.run(sql("DELETE FROM idempotency WHERE created_ms <= $1").bind(answers)).await?;
        gone += self.forget_kubeconfigs(now).await?;
        let tokens = now - SHOWN_EXPIRED;
        gone += self.run(sql("DELETE FROM api_tokens WHERE expires_ms <= $1").bind(tokens)).await?;
        // Somebody who was invited, never came and was removed again is an address and nothing else.
        gone += self
            .run(sql("DELETE FROM users WHERE password_hash IS NULL
                     AND NOT EXISTS (SELECT 1 FROM members m WHERE m.user_id = users.id)"))
            .await?;
        Ok(gone)
    }
}
