//! Who has kubeconfigs, and whose are to be refused.
//!
//! A kubeconfig is written down before it is issued, and both that and a revocation take the organisation's lock: so
//! either the revocation knows of it, or whoever has it issued sees that they may not any more.

use base_clock::Timestamp;
use base_ids::{OrgId, UserId};

use super::members::lock;
use super::{Count, Db, DbError, Read, Row, Tx, sql};

/// Revocations that clusters of one organisation hear of at most: their cells keep them in memory. Past it the older
/// half becomes one about everybody, who then need a new kubeconfig: rather that than one who is not refused.
const MAX_REVOCATIONS: i64 = 500;

/// What was issued to `user` until `before_ms` is refused; to everybody when it is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RevocationRow {
    pub(crate) user: String,
    pub(crate) before_ms: i64,
    expires_ms: i64,
}

impl Read for RevocationRow {
    fn read(row: &Row) -> Result<RevocationRow, sqlx::Error> {
        Ok(RevocationRow {
            user: row.text("user_name")?,
            before_ms: row.number("before_ms")?,
            expires_ms: row.number("expires_ms")?,
        })
    }
}

impl Db {
    /// Notes that `user` is about to get a kubeconfig. When it is to say that it was issued: after everything of
    /// theirs that is refused. What is noted is that moment, so that the next revocation covers it.
    pub(crate) async fn note_kubeconfig(
        &self,
        organization: OrgId,
        user: &str,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Result<Timestamp, DbError> {
        let mut tx = self.begin().await?;
        lock(&mut tx, organization).await?;
        let refused: Vec<RevocationRow> = tx
            .all(
                sql("SELECT user_name, before_ms, expires_ms FROM revocations
                     WHERE organization_id = $1 AND (user_name = $2 OR user_name = '')")
                .bind(organization)
                .bind(user),
            )
            .await?;
        let issued_at = after(now, refused.iter().map(|row| row.before_ms).max());
        tx.run(
            sql("INSERT INTO kubeconfigs (organization_id, user_name, issued_ms, expires_ms)
                 VALUES ($1, $2, $3, $4) ON CONFLICT (organization_id, user_name) DO UPDATE SET
                     issued_ms = CASE WHEN excluded.issued_ms > kubeconfigs.issued_ms
                         THEN excluded.issued_ms ELSE kubeconfigs.issued_ms END,
                     expires_ms = CASE WHEN excluded.expires_ms > kubeconfigs.expires_ms
                         THEN excluded.expires_ms ELSE kubeconfigs.expires_ms END")
            .bind(organization)
            .bind(user)
            .bind(issued_at)
            .bind(expires_at),
        )
        .await?;
        tx.commit().await?;
        Ok(issued_at)
    }

    /// Whose are refused in the clusters of `organization`.
    pub(crate) async fn revocations(&self, organization: OrgId) -> Result<Vec<RevocationRow>, DbError> {
        self.all(
            sql("SELECT user_name, before_ms, expires_ms FROM revocations
                 WHERE organization_id = $1 ORDER BY user_name")
            .bind(organization),
        )
        .await
    }

    /// Forgets what has expired by `now`.
    pub(super) async fn forget_kubeconfigs(&self, now: Timestamp) -> Result<u64, DbError> {
        let gone = self.run(sql("DELETE FROM kubeconfigs WHERE expires_ms <= $1").bind(now)).await?;
        Ok(gone + self.run(sql("DELETE FROM revocations WHERE expires_ms <= $1").bind(now)).await?)
    }
}

/// When something that is issued now says it was: certificates know seconds only, so one that follows a revocation
/// within the same second says the next one.
fn after(now: Timestamp, refused_until_ms: Option<i64>) -> Timestamp {
    match refused_until_ms {
        Some(until_ms) if now.as_second() * 1000 <= until_ms => {
            Timestamp::from_second(until_ms.div_euclid(1000) + 1).unwrap_or(now)
        }
        _ => now,
    }
}

/// Refuses what a person of this organisation and the tokens that they made in it were issued. The organisation is
/// locked.
pub(super) async fn revoke_person(
    tx: &mut Tx,
    organization: OrgId,
    user: UserId,
    now: Timestamp,
) -> Result<(), DbError> {
    let new = tx
        .run(
            sql("INSERT INTO revocations (organization_id, user_name, before_ms, expires_ms)
                 SELECT k.organization_id, k.user_name,
                     CASE WHEN k.issued_ms > $3 THEN k.issued_ms ELSE $3 END, k.expires_ms
                 FROM kubeconfigs k WHERE k.organization_id = $1 AND k.expires_ms > $3 AND (
                     k.user_name IN (SELECT email FROM users WHERE id = $2)
                     OR k.user_name IN (SELECT 'token:' || t.id FROM api_tokens t
                         WHERE t.organization_id = $1 AND t.created_by = $2))
                 ON CONFLICT (organization_id, user_name)
                     DO UPDATE SET before_ms = excluded.before_ms, expires_ms = excluded.expires_ms")
            .bind(organization)
            .bind(user)
            .bind(now),
        )
        .await?;
    if new > 0 { tell_clusters(tx, organization).await } else { Ok(()) }
}

/// Refuses what an API token was issued in this organisation, which is locked.
pub(super) async fn revoke_token(
    tx: &mut Tx,
    organization: OrgId,
    token: &str,
    now: Timestamp,
) -> Result<(), DbError> {
    let new = tx
        .run(
            sql("INSERT INTO revocations (organization_id, user_name, before_ms, expires_ms)
                 SELECT k.organization_id, k.user_name,
                     CASE WHEN k.issued_ms > $3 THEN k.issued_ms ELSE $3 END, k.expires_ms
                 FROM kubeconfigs k
                 WHERE k.organization_id = $1 AND k.user_name = 'token:' || $2 AND k.expires_ms > $3
                 ON CONFLICT (organization_id, user_name)
                     DO UPDATE SET before_ms = excluded.before_ms, expires_ms = excluded.expires_ms")
            .bind(organization)
            .bind(token)
            .bind(now),
        )
        .await?;
    if new > 0 { tell_clusters(tx, organization).await } else { Ok(()) }
}

async fn tell_clusters(tx: &mut Tx, organization: OrgId) -> Result<(), DbError> {
    let count = sql("SELECT COUNT(*) AS n FROM revocations WHERE organization_id = $1").bind(organization);
    let count: Option<Count> = tx.one(count).await?;
    if count.is_some_and(|count| count.0 > MAX_REVOCATIONS) {
        merge_older_half(tx, organization).await?;
    }
    tx.run(
        sql("UPDATE clusters SET generation = generation + 1
             WHERE organization_id = $1 AND state <> 'deleting'")
        .bind(organization),
    )
    .await?;
    Ok(())
}

async fn merge_older_half(tx: &mut Tx, organization: OrgId) -> Result<(), DbError> {
    let older: Vec<RevocationRow> = tx
        .all(
            sql("SELECT user_name, before_ms, expires_ms FROM revocations
                 WHERE organization_id = $1 ORDER BY before_ms LIMIT $2")
            .bind(organization)
            .bind(MAX_REVOCATIONS / 2),
        )
        .await?;
    let (Some(before_ms), Some(expires_ms)) =
        (older.iter().map(|row| row.before_ms).max(), older.iter().map(|row| row.expires_ms).max())
    else {
        return Ok(());
    };
    tx.run(
        sql("DELETE FROM revocations WHERE organization_id = $1 AND (before_ms <= $2 OR user_name = '')")
            .bind(organization)
            .bind(before_ms),
    )
    .await?;
    tx.run(
        sql("INSERT INTO revocations (organization_id, user_name, before_ms, expires_ms)
             VALUES ($1, '', $2, $3)")
        .bind(organization)
        .bind(before_ms)
        .bind(expires_ms),
    )
    .await?;
    Ok(())
}
