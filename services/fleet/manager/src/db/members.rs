//! Who belongs to which organisation, and invitations to.

use base_clock::Timestamp;
use base_ids::{OrgId, UserId};
use fleet_model::{Email, Member, Role, User};

use super::revocations::revoke_person;
use super::{Count, Db, DbError, Read, Row, Tx, sql, undecodable};

/// How a change of a member ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changed {
    Done,
    Missing,
    /// Somebody has to be left who can let others in.
    LastAdmin,
}

/// How an invitation ended.
#[derive(Debug)]
pub(crate) enum Invited {
    Done(Box<Member>),
    /// They belong to the organisation already.
    IsMember,
    TooMany,
}

/// Members of one organisation at most, those who were only invited among them. Far more than work on its
/// clusters; without a bound, one admin could fill the database with addresses.
pub(crate) const MAX_MEMBERS: i64 = 1000;

/// An invitation with what accepting needs.
#[derive(Debug, Clone)]
pub(crate) struct InvitationRow {
    pub(crate) user: User,
    pub(crate) password_hash: Option<String>,
    pub(crate) secret_hash: String,
    pub(crate) expires_at: Timestamp,
}

/// An invitation to be written.
pub(crate) struct NewInvitation<'a> {
    pub(crate) id: &'a str,
    pub(crate) secret_hash: &'a str,
    pub(crate) expires_at: Timestamp,
}

macro_rules! select_members {
    ($rest:literal) => {
        sql(concat!(
            "SELECT u.id AS user_id, u.email, u.name AS user_name, m.role, m.invited, m.created_ms
             FROM members m JOIN users u ON u.id = m.user_id ",
            $rest
        ))
    };
}

impl Read for Member {
    fn read(row: &Row) -> Result<Member, sqlx::Error> {
        let invited = row.flag("invited")?;
        let mut user = User::read(row)?;
        if invited {
            // Whether the person has an account, and what they are called there, is not ours to tell yet.
            user.name = String::new();
        }
        Ok(Member {
            user,
            role: row.maybe_role("role")?.ok_or_else(|| undecodable("role", "is NULL"))?,
            invited,
            created_at: row.time("created_ms")?,
            invitation: None,
        })
    }
}

impl Read for InvitationRow {
    fn read(row: &Row) -> Result<InvitationRow, sqlx::Error> {
        Ok(InvitationRow {
            user: User::read(row)?,
            password_hash: row.maybe_text("password_hash")?,
            secret_hash: row.text("secret_hash")?,
            expires_at: row.time("expires_ms")?,
        })
    }
}

impl Db {
    /// By email address, after `after`.
    pub(crate) async fn members(
        &self,
        organization: OrgId,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Member>, DbError> {
        self.all(
            select_members!("WHERE m.organization_id = $1 AND u.email > $2 ORDER BY u.email LIMIT $3")
                .bind(organization)
                .bind(after)
                .bind(limit),
        )
        .await
    }

    pub(crate) async fn member(&self, organization: OrgId, user: UserId) -> Result<Option<Member>, DbError> {
        self.one(
            select_members!("WHERE m.organization_id = $1 AND m.user_id = $2").bind(organization).bind(user),
        )
        .await
    }

    /// Invites a person, who may be new; an invitation that they have already is replaced.
    /// [`DbError::Constraint`] when the organisation is gone, or the person goes just now.
    pub(crate) async fn invite(
        &self,
        organization: OrgId,
        email: &Email,
        role: Role,
        invitation: &NewInvitation<'_>,
        now: Timestamp,
    ) -> Result<Invited, DbError> {
        let mut tx = self.begin().await?;
        lock(&mut tx, organization).await?;
        tx.run(
            sql("INSERT INTO users (id, email, name, password_hash, provider, created_ms)
                 VALUES ($1, $2, '', NULL, 0, $3) ON CONFLICT (email) DO NOTHING")
            .bind(UserId::generate())
            .bind(email.as_str())
            .bind(now),
        )
        .await?;
        let user: User = tx
            .one(
                sql("SELECT id AS user_id, email, name AS user_name FROM users WHERE email = $1")
                    .bind(email.as_str()),
            )
            .await?
            .ok_or(DbError::Constraint)?;
        let known: Option<Member> = tx
            .one(
                select_members!("WHERE m.organization_id = $1 AND m.user_id = $2")
                    .bind(organization)
                    .bind(user.id),
            )
            .await?;
        match known {
            Some(member) if !member.invited => return Ok(Invited::IsMember),
            Some(_) => {}
            None => {
                let count =
                    sql("SELECT COUNT(*) AS n FROM members WHERE organization_id = $1").bind(organization);
                let count: Option<Count> = tx.one(count).await?;
                if count.is_some_and(|count| count.0 >= MAX_MEMBERS) {
                    return Ok(Invited::TooMany);
                }
            }
        }
        tx.run(
            sql("INSERT INTO members (organization_id, user_id, role, invited, created_ms)
                 VALUES ($1, $2, $3, 1, $4) ON CONFLICT (organization_id, user_id) DO UPDATE SET role = excluded.role")
            .bind(organization)
            .bind(user.id)
            .bind(role.as_str())
            .bind(now),
        )
        .await?;
        tx.run(forget_invitation(organization, user.id)).await?;
        tx.run(
            sql("INSERT INTO invitations (id, organization_id, user_id, secret_hash, expires_ms)
                 VALUES ($1, $2, $3, $4, $5)")
            .bind(invitation.id)
            .bind(organization)
            .bind(user.id)
            .bind(invitation.secret_hash)
            .bind(invitation.expires_at),
        )
        .await?;
        let member = tx
            .one(
                select_members!("WHERE m.organization_id = $1 AND m.user_id = $2")
                    .bind(organization)
                    .bind(user.id),
            )
            .await?
            .ok_or(DbError::Constraint)?;
        tx.commit().await?;
        Ok(Invited::Done(Box::new(member)))
    }

    pub(crate) async fn invitation(&self, id: &str) -> Result<Option<InvitationRow>, DbError> {
        self.one(
            sql("SELECT i.secret_hash, i.expires_ms, u.id AS user_id, u.email, u.name AS user_name,
                     u.password_hash
                 FROM invitations i JOIN users u ON u.id = i.user_id WHERE i.id = $1")
            .bind(id),
        )
        .await
    }

    /// Uses the invitation up. `account` is name and password hash of somebody who had none; somebody who
    /// has an account has shown its password. False when it was used or the account was made meanwhile.
    pub(crate) async fn accept(
        &self,
        id: &str,
        user: UserId,
        account: Option<(&str, &str)>,
    ) -> Result<bool, DbError> {
        let mut tx = self.begin().await?;
        let joined = tx
            .run(
                sql("UPDATE members SET invited = 0 WHERE user_id = $2 AND invited = 1 AND organization_id =
                         (SELECT organization_id FROM invitations WHERE id = $1 AND user_id = $2)")
                .bind(id)
                .bind(user),
            )
            .await?;
        let used = tx.run(sql("DELETE FROM invitations WHERE id = $1").bind(id)).await?;
        let mut account_fits = 1;
        if let Some((name, hash)) = account {
            account_fits = tx
                .run(
                    sql("UPDATE users SET name = $2, password_hash = $3
                         WHERE id = $1 AND password_hash IS NULL")
                    .bind(user)
                    .bind(name)
                    .bind(hash),
                )
                .await?;
        }
        if joined == 0 || used == 0 || account_fits == 0 {
            return Ok(false);
        }
        tx.commit().await?;
        Ok(true)
    }

    /// Whoever may less than before has to have a new kubeconfig issued.
    pub(crate) async fn set_role(
        &self,
        organization: OrgId,
        user: UserId,
        role: Role,
        now: Timestamp,
    ) -> Result<Changed, DbError> {
        let mut tx = self.begin().await?;
        lock(&mut tx, organization).await?;
        if role < Role::Admin && is_last_admin(&mut tx, organization, user).await? {
            return Ok(Changed::LastAdmin);
        }
        let before: Option<Member> = tx
            .one(
                select_members!("WHERE m.organization_id = $1 AND m.user_id = $2")
                    .bind(organization)
                    .bind(user),
            )
            .await?;
        if before.is_some_and(|before| role < before.role) {
            revoke_person(&mut tx, organization, user, now).await?;
        }
        let changed = tx
            .run(
                sql("UPDATE members SET role = $3 WHERE organization_id = $1 AND user_id = $2")
                    .bind(organization)
                    .bind(user)
                    .bind(role.as_str()),
            )
            .await?;
        tx.commit().await?;
        Ok(if changed > 0 { Changed::Done } else { Changed::Missing })
    }

    /// With what they could still get in by: an invitation, tokens that they made, kubeconfigs.
    pub(crate) async fn remove_member(
        &self,
        organization: OrgId,
        user: UserId,
        now: Timestamp,
    ) -> Result<Changed, DbError> {
        let mut tx = self.begin().await?;
        lock(&mut tx, organization).await?;
        if is_last_admin(&mut tx, organization, user).await? {
            return Ok(Changed::LastAdmin);
        }
        tx.run(forget_invitation(organization, user)).await?;
        // While their tokens are still there to be found.
        revoke_person(&mut tx, organization, user, now).await?;
        tx.run(
            sql("DELETE FROM api_tokens WHERE organization_id = $1 AND created_by = $2")
                .bind(organization)
                .bind(user),
        )
        .await?;
        let gone = tx
            .run(
                sql("DELETE FROM members WHERE organization_id = $1 AND user_id = $2")
                    .bind(organization)
                    .bind(user),
            )
            .await?;
        tx.commit().await?;
        Ok(if gone > 0 { Changed::Done } else { Changed::Missing })
    }
}

/// See [`Db::begin`]: changes of one organisation's members come one after the other.
pub(super) async fn lock(tx: &mut Tx, organization: OrgId) -> Result<(), DbError> {
    let there = tx.run(sql("UPDATE organizations SET name = name WHERE id = $1").bind(organization)).await?;
    if there == 0 { Err(DbError::Constraint) } else { Ok(()) }
}

/// Whether `user` is an admin and nobody else is. Those who were only invited don't count.
async fn is_last_admin(tx: &mut Tx, organization: OrgId, user: UserId) -> Result<bool, DbError> {
    let count = "SELECT COUNT(*) AS n FROM members
         WHERE organization_id = $1 AND role = 'admin' AND invited = 0 AND user_id = $2";
    let others = "SELECT COUNT(*) AS n FROM members
         WHERE organization_id = $1 AND role = 'admin' AND invited = 0 AND user_id <> $2";
    let is_admin: Option<Count> = tx.one(sql(count).bind(organization).bind(user)).await?;
    let others: Option<Count> = tx.one(sql(others).bind(organization).bind(user)).await?;
    Ok(is_admin.is_some_and(|one| one.0 > 0) && others.is_none_or(|others| others.0 == 0))
}

fn forget_invitation(organization: OrgId, user: UserId) -> super::Statement {
    sql("DELETE FROM invitations WHERE organization_id = $1 AND user_id = $2").bind(organization).bind(user)
}
