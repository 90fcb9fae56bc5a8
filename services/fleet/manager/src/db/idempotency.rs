//! First answers, kept by caller and key.

use base_clock::Timestamp;

use super::{Count, Db, DbError, Read, Row, sql};

/// A request that carried a key.
#[derive(Debug, Clone)]
pub(crate) struct KeptRow {
    pub(crate) request_hash: String,
    pub(crate) resource_id: String,
    /// Status and sealed answer, once there is one.
    pub(crate) answer: Option<(u16, String)>,
    pub(crate) lease: Timestamp,
    pub(crate) created_at: Timestamp,
}

impl Read for KeptRow {
    fn read(row: &Row) -> Result<KeptRow, sqlx::Error> {
        let status = row.maybe_number("status")?.and_then(|status| u16::try_from(status).ok());
        Ok(KeptRow {
            request_hash: row.text("request_hash")?,
            resource_id: row.text("resource_id")?,
            answer: status.zip(row.maybe_text("answer")?),
            lease: row.time("lease_ms")?,
            created_at: row.time("created_ms")?,
        })
    }
}

/// Names a row.
#[derive(Debug, Clone)]
pub(crate) struct KeptKey {
    pub(crate) caller: String,
    pub(crate) key: String,
}

impl Db {
    /// False when the caller used the key before.
    pub(crate) async fn keep(
        &self,
        at: &KeptKey,
        request_hash: &str,
        resource_id: &str,
        now: Timestamp,
        lease: Timestamp,
    ) -> Result<bool, DbError> {
        let made = self
            .run(
                sql("INSERT INTO idempotency
                         (caller, key, request_hash, resource_id, status, answer, lease_ms, created_ms)
                     VALUES ($1, $2, $3, $4, NULL, NULL, $5, $6) ON CONFLICT (caller, key) DO NOTHING")
                .bind(&at.caller)
                .bind(&at.key)
                .bind(request_hash)
                .bind(resource_id)
                .bind(lease)
                .bind(now),
            )
            .await?;
        Ok(made > 0)
    }

    pub(crate) async fn kept(&self, at: &KeptKey) -> Result<Option<KeptRow>, DbError> {
        self.one(
            sql("SELECT request_hash, resource_id, status, answer, lease_ms, created_ms FROM idempotency
                 WHERE caller = $1 AND key = $2")
            .bind(&at.caller)
            .bind(&at.key),
        )
        .await
    }

    /// How many keys a caller has.
    pub(crate) async fn kept_count(&self, caller: &str) -> Result<i64, DbError> {
        let count: Option<Count> =
            self.one(sql("SELECT COUNT(*) AS n FROM idempotency WHERE caller = $1").bind(caller)).await?;
        Ok(count.map_or(0, |count| count.0))
    }

    /// Moves a lease on. False when somebody else did, or there is an answer.
    pub(crate) async fn take_lease(
        &self,
        at: &KeptKey,
        seen: Timestamp,
        lease: Timestamp,
    ) -> Result<bool, DbError> {
        let taken = self
            .run(
                sql("UPDATE idempotency SET lease_ms = $4
                     WHERE caller = $1 AND key = $2 AND lease_ms = $3 AND status IS NULL")
                .bind(&at.caller)
                .bind(&at.key)
                .bind(seen)
                .bind(lease),
            )
            .await?;
        Ok(taken > 0)
    }

    pub(crate) async fn keep_answer(&self, at: &KeptKey, status: u16, answer: &str) -> Result<(), DbError> {
        self.run(
            sql("UPDATE idempotency SET status = $3, answer = $4 WHERE caller = $1 AND key = $2")
                .bind(&at.caller)
                .bind(&at.key)
                .bind(u32::from(status))
                .bind(answer),
        )
        .await?;
        Ok(())
    }

    /// As if the key had never been used.
    pub(crate) async fn forget(&self, at: &KeptKey, created_at: Timestamp) -> Result<(), DbError> {
        self.run(
            sql("DELETE FROM idempotency WHERE caller = $1 AND key = $2 AND created_ms = $3")
                .bind(&at.caller)
                .bind(&at.key)
                .bind(created_at),
        )
        .await?;
        Ok(())
    }
}
