//! Operations: what was begun, how far it is, how it ended.

use base_clock::Timestamp;
use base_ids::{NodePoolId, OperationId, OrgId, TenantId};
use fleet_model::{Operation, OperationKind, OperationState};

use super::statement::Tx;
use super::{Db, DbError, Read, Row, sql, undecodable};
use crate::lifecycle::plan::{Progress, Running};

/// An operation with what only the database knows.
#[derive(Debug, Clone)]
pub(crate) struct OperationRow {
    pub(crate) operation: Operation,
    pub(crate) organization_id: OrgId,
    pub(crate) cluster_id: TenantId,
    pub(crate) node_pool: Option<NodePoolId>,
    pub(crate) size_before: Option<u32>,
}

/// Operations with their organisation's name; `$rest` is a literal.
macro_rules! select_operations {
    ($rest:literal) => {
        sql(concat!(
            "SELECT x.id, x.kind, x.cluster_id, x.node_pool_id, x.target, x.state, x.progress, x.message,
                 x.size_before, x.created_ms, x.finished_ms, x.organization_id, o.name AS organization
             FROM operations x JOIN organizations o ON o.id = x.organization_id ",
            $rest
        ))
    };
}

impl Read for Operation {
    fn read(row: &Row) -> Result<Operation, sqlx::Error> {
        let (kind, state) = (row.text("kind")?, row.text("state")?);
        Ok(Operation {
            id: row.parsed("id")?,
            kind: OperationKind::parse(&kind).ok_or_else(|| undecodable("kind", kind))?,
            organization: row.parsed("organization")?,
            cluster: row.maybe_text("cluster_id")?,
            target: row.text("target")?,
            state: OperationState::parse(&state).ok_or_else(|| undecodable("state", state))?,
            progress: progress(row)?,
            message: row.text("message")?,
            created_at: row.time("created_ms")?,
            finished_at: row.maybe_time("finished_ms")?,
        })
    }
}

impl Read for OperationRow {
    fn read(row: &Row) -> Result<OperationRow, sqlx::Error> {
        Ok(OperationRow {
            operation: Operation::read(row)?,
            organization_id: row.parsed("organization_id")?,
            cluster_id: row.parsed("cluster_id")?,
            node_pool: row.maybe_parsed("node_pool_id")?,
            size_before: match row.maybe_number("size_before")? {
                Some(_) => Some(row.count("size_before")?),
                None => None,
            },
        })
    }
}

struct RunningRow(Running, TenantId);

impl Read for RunningRow {
    fn read(row: &Row) -> Result<RunningRow, sqlx::Error> {
        let kind = row.text("kind")?;
        let running = Running {
            id: row.parsed("id")?,
            kind: OperationKind::parse(&kind).ok_or_else(|| undecodable("kind", kind))?,
            node_pool: row.maybe_parsed("node_pool_id")?,
            progress: progress(row)?,
            message: row.text("message")?,
        };
        Ok(RunningRow(running, row.parsed("cluster_id")?))
    }
}

fn progress(row: &Row) -> Result<u8, sqlx::Error> {
    let percent = row.count("progress")?;
    u8::try_from(percent).map_err(|_| undecodable("progress", percent))
}

/// That there is a row is all there is to know.
struct Any;

impl Read for Any {
    fn read(_: &Row) -> Result<Any, sqlx::Error> {
        Ok(Any)
    }
}

pub(super) async fn insert_operation(tx: &mut Tx, new: &OperationRow) -> Result<(), DbError> {
    let operation = &new.operation;
    tx.run(
        sql("INSERT INTO operations (id, organization_id, cluster_id, node_pool_id, kind, target, state,
                 progress, message, size_before, created_ms)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)")
        .bind(operation.id)
        .bind(new.organization_id)
        .bind(new.cluster_id)
        .bind(new.node_pool)
        .bind(operation.kind.as_str())
        .bind(&operation.target)
        .bind(operation.state.as_str())
        .bind(u32::from(operation.progress))
        .bind(&operation.message)
        .bind(new.size_before)
        .bind(operation.created_at),
    )
    .await?;
    Ok(())
}

impl Db {
    /// One organisation's operations, newest first, before the id `before` (empty: from the newest); of
    /// one cluster and in one state, if given.
    pub(crate) async fn operations(
        &self,
        organization: OrgId,
        only: Option<TenantId>,
        state: Option<OperationState>,
        before: &str,
        limit: i64,
    ) -> Result<Vec<Operation>, DbError> {
        self.all(
            select_operations!(
                "WHERE x.organization_id = $1 AND ($2 IS NULL OR x.cluster_id = $2)
                     AND ($3 IS NULL OR x.state = $3) AND ($4 = '' OR x.id < $4)
                 ORDER BY x.id DESC LIMIT $5"
            )
            .bind(organization)
            .bind(only)
            .bind(state.map(OperationState::as_str))
            .bind(before)
            .bind(limit),
        )
        .await
    }

    pub(crate) async fn operation(
        &self,
        organization: OrgId,
        id: OperationId,
    ) -> Result<Option<OperationRow>, DbError> {
        self.one(select_operations!("WHERE x.organization_id = $1 AND x.id = $2").bind(organization).bind(id))
            .await
    }

    /// The newest running operation of one kind on a cluster, or on one of its pools.
    pub(super) async fn running_operation(
        &self,
        cluster: TenantId,
        pool: Option<NodePoolId>,
        kind: OperationKind,
    ) -> Result<Option<Operation>, DbError> {
        self.one(
            select_operations!(
                "WHERE x.cluster_id = $1 AND ($2 IS NULL OR x.node_pool_id = $2) AND x.kind = $3
                     AND x.state = 'running' ORDER BY x.id DESC LIMIT 1"
            )
            .bind(cluster)
            .bind(pool)
            .bind(kind.as_str()),
        )
        .await
    }

    /// Running operations on pools, with their clusters.
    pub(crate) async fn running_pool_operations(&self) -> Result<Vec<(Running, TenantId)>, DbError> {
        let rows: Vec<RunningRow> = self
            .all(sql("SELECT id, kind, cluster_id, node_pool_id, progress, message FROM operations
                 WHERE state = 'running' AND node_pool_id IS NOT NULL ORDER BY id"))
            .await?;
        Ok(rows.into_iter().map(|RunningRow(running, cluster)| (running, cluster)).collect())
    }

    pub(crate) async fn any_operation_runs(&self) -> Result<bool, DbError> {
        let found: Option<Any> =
            self.one(sql("SELECT id FROM operations WHERE state = 'running' LIMIT 1")).await?;
        Ok(found.is_some())
    }

    /// Moves one operation; false when it has ended already.
    pub(crate) async fn progress(
        &self,
        id: OperationId,
        to: &Progress,
        now: Timestamp,
    ) -> Result<bool, DbError> {
        let ended = (to.state != OperationState::Running).then_some(now);
        let moved = self
            .run(
                sql("UPDATE operations SET state = $2, progress = $3, message = $4, finished_ms = $5
                     WHERE id = $1 AND state = 'running'")
                .bind(id)
                .bind(to.state.as_str())
                .bind(u32::from(to.percent))
                .bind(&to.message)
                .bind(ended),
            )
            .await?;
        Ok(moved > 0)
    }

    /// Ends an operation that somebody took back, or says who did when that ended it already.
    pub(crate) async fn cancelled(
        &self,
        id: OperationId,
        to: &Progress,
        now: Timestamp,
    ) -> Result<(), DbError> {
        self.run(
            sql("UPDATE operations SET state = 'cancelled', progress = $2, message = $3, finished_ms = $4
                 WHERE id = $1 AND state IN ('running', 'cancelled')")
            .bind(id)
            .bind(u32::from(to.percent))
            .bind(&to.message)
            .bind(now),
        )
        .await?;
        Ok(())
    }

    /// Says how far the running operation of one kind on a cluster is.
    pub(crate) async fn progress_of(
        &self,
        cluster: TenantId,
        kind: OperationKind,
        to: &Progress,
    ) -> Result<(), DbError> {
        self.run(
            sql("UPDATE operations SET progress = $3, message = $4
                 WHERE cluster_id = $1 AND kind = $2 AND state = 'running'")
            .bind(cluster)
            .bind(kind.as_str())
            .bind(u32::from(to.percent))
            .bind(&to.message),
        )
        .await?;
        Ok(())
    }

    /// Forgets what ended before `before`.
    pub(crate) async fn forget_operations(&self, before: Timestamp) -> Result<(), DbError> {
        self.run(sql("DELETE FROM operations WHERE state <> 'running' AND finished_ms < $1").bind(before))
            .await?;
        Ok(())
    }
}
