//! Node pools.

use base_clock::Timestamp;
use base_ids::{NodePoolId, OrgId, TenantId};
use fleet_model::labels::Labels;
use fleet_model::{NodePool, NodePoolRef, Operation, OperationKind, Taint};

use super::operations::{OperationRow, insert_operation};
use super::statement::Tx;
use super::{Db, DbError, Read, Row, json, sql};
use crate::lifecycle::plan;
use crate::lifecycle::reports::PoolRow;

/// Pools of one cluster at most. A pool is a kind of machine, and there are not so many kinds.
pub(crate) const MAX_POOLS: i64 = 64;

/// Pools with their cluster's name and what runs on them; `$rest` is a literal.
macro_rules! select_pools {
    ($rest:literal) => {
        sql(concat!(
            "SELECT p.id, p.name, p.size, p.provider, p.machine_type, p.labels, p.taints, p.deleting, p.settled,
                 p.machines, p.message, p.refused, p.created_ms, c.name AS cluster,
                 (SELECT MAX(running.id) FROM operations running
                  WHERE running.cluster_id = c.id AND running.state = 'running'
                      AND running.node_pool_id = p.id) AS operation
             FROM node_pools p JOIN clusters c ON c.id = p.cluster_id ",
            $rest
        ))
    };
}

impl Read for plan::Pool {
    fn read(row: &Row) -> Result<plan::Pool, sqlx::Error> {
        Ok(plan::Pool {
            size: row.count("size")?,
            deleting: row.flag("deleting")?,
            settled: row.flag("settled")?,
            machines: row.json("machines")?,
            message: row.text("message")?,
            refused: row.flag("refused")?,
        })
    }
}

impl Read for PoolRow {
    fn read(row: &Row) -> Result<PoolRow, sqlx::Error> {
        Ok(PoolRow { id: row.parsed("id")?, pool: plan::Pool::read(row)? })
    }
}

impl Read for NodePool {
    fn read(row: &Row) -> Result<NodePool, sqlx::Error> {
        let pool = plan::Pool::read(row)?;
        Ok(NodePool {
            id: row.parsed("id")?,
            cluster: row.parsed("cluster")?,
            name: row.parsed("name")?,
            size: pool.size,
            provider: row.text("provider")?,
            machine_type: row.text("machine_type")?,
            labels: row.json("labels")?,
            taints: row.json("taints")?,
            state: pool.state(),
            ready: pool.ready(),
            message: pool.why(),
            machines: pool.machines,
            created_at: row.time("created_ms")?,
            operation: row.maybe_parsed("operation")?,
        })
    }
}

/// A pool as a cell is told of it.
struct Wanted(fleet_rpc::NodePool);

impl Read for Wanted {
    fn read(row: &Row) -> Result<Wanted, sqlx::Error> {
        let labels: Labels = row.json("labels")?;
        let taints: Vec<Taint> = row.json("taints")?;
        let taint = |taint: Taint| fleet_rpc::Taint {
            key: taint.key,
            value: taint.value,
            effect: taint.effect.as_str().to_owned(),
        };
        Ok(Wanted(fleet_rpc::NodePool {
            id: row.text("id")?,
            name: row.text("name")?,
            size: row.count("size")?,
            machine_type: row.text("machine_type")?,
            labels: labels.into_iter().collect(),
            taints: taints.into_iter().map(taint).collect(),
            deleting: row.flag("deleting")?,
            provider: row.text("provider")?,
        }))
    }
}

/// What became of a change to a cluster's pools.
#[derive(Debug)]
pub(crate) enum PoolChange {
    Done,
    /// The cluster is being deleted or is gone.
    NoCluster,
    /// The pool is being deleted, by this operation.
    Deleting(Box<Operation>),
    /// The pool is gone.
    NoPool,
    TooMany,
    /// The pool is no longer what the change was made from.
    Overtaken,
}

impl Db {
    /// One cluster's pools by name, after `after`.
    pub(crate) async fn pools(
        &self,
        cluster: TenantId,
        after: &str,
        limit: i64,
    ) -> Result<Vec<NodePool>, DbError> {
        self.all(
            select_pools!("WHERE p.cluster_id = $1 AND p.name > $2 ORDER BY p.name LIMIT $3")
                .bind(cluster)
                .bind(after)
                .bind(limit),
        )
        .await
    }

    /// One organisation's pools, of one cluster if given.
    pub(crate) async fn pools_of(
        &self,
        organization: OrgId,
        only: Option<TenantId>,
        limit: i64,
    ) -> Result<Vec<NodePool>, DbError> {
        self.all(
            select_pools!(
                "WHERE c.organization_id = $1 AND ($2 IS NULL OR c.id = $2) ORDER BY c.name, p.name LIMIT $3"
            )
            .bind(organization)
            .bind(only)
            .bind(limit),
        )
        .await
    }

    pub(crate) async fn pool(
        &self,
        cluster: TenantId,
        pool: &NodePoolRef,
    ) -> Result<Option<NodePool>, DbError> {
        match pool {
            NodePoolRef::Id(id) => {
                self.one(select_pools!("WHERE p.cluster_id = $1 AND p.id = $2").bind(cluster).bind(*id)).await
            }
            NodePoolRef::Name(name) => {
                self.one(select_pools!("WHERE p.cluster_id = $1 AND p.name = $2").bind(cluster).bind(name))
                    .await
            }
        }
    }

    /// What decides about each pool of a cluster.
    pub(crate) async fn pool_rows(&self, cluster: TenantId) -> Result<Vec<PoolRow>, DbError> {
        self.all(select_pools!("WHERE p.cluster_id = $1 ORDER BY p.id").bind(cluster)).await
    }

    pub(crate) async fn pool_row(
        &self,
        cluster: TenantId,
        id: NodePoolId,
    ) -> Result<Option<PoolRow>, DbError> {
        self.one(select_pools!("WHERE p.cluster_id = $1 AND p.id = $2").bind(cluster).bind(id)).await
    }

    /// What a cell is told.
    pub(crate) async fn wanted_pools(&self, cluster: TenantId) -> Result<Vec<fleet_rpc::NodePool>, DbError> {
        let rows: Vec<Wanted> =
            self.all(select_pools!("WHERE p.cluster_id = $1 ORDER BY p.id").bind(cluster)).await?;
        Ok(rows.into_iter().map(|row| row.0).collect())
    }

    /// With the operation that makes its machines. [`DbError::Constraint`] when the name is taken.
    pub(crate) async fn insert_pool(
        &self,
        cluster: TenantId,
        pool: &NodePool,
        operation: &OperationRow,
    ) -> Result<PoolChange, DbError> {
        let mut tx = self.begin().await?;
        if !next_generation(&mut tx, cluster).await? {
            return Ok(PoolChange::NoCluster);
        }
        let others: Vec<PoolRow> =
            tx.all(select_pools!("WHERE p.cluster_id = $1 LIMIT $2").bind(cluster).bind(MAX_POOLS)).await?;
        if i64::try_from(others.len()).unwrap_or(i64::MAX) >= MAX_POOLS {
            return Ok(PoolChange::TooMany);
        }
        tx.run(
            sql("INSERT INTO node_pools
                     (id, cluster_id, name, size, provider, machine_type, labels, taints, created_ms)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)")
            .bind(pool.id)
            .bind(cluster)
            .bind(&pool.name)
            .bind(pool.size)
            .bind(&pool.provider)
            .bind(&pool.machine_type)
            .bind(json(&pool.labels))
            .bind(json(&pool.taints))
            .bind(pool.created_at),
        )
        .await?;
        insert_operation(&mut tx, operation).await?;
        tx.commit().await?;
        Ok(PoolChange::Done)
    }

    /// The name, size and labels of `after`, if they are those of `before` still. `operation` is begun, and ends
    /// what else runs on the pool, when the size is another one. [`DbError::Constraint`] when the name is taken.
    pub(crate) async fn update_pool(
        &self,
        cluster: TenantId,
        before: &NodePool,
        after: &NodePool,
        operation: Option<&OperationRow>,
        now: Timestamp,
    ) -> Result<PoolChange, DbError> {
        let id = before.id;
        let mut tx = self.begin().await?;
        if !next_generation(&mut tx, cluster).await? {
            return Ok(PoolChange::NoCluster);
        }
        // What a provider refused is tried again after a change.
        let changed = tx
            .run(
                sql("UPDATE node_pools SET name = $6, size = $7, labels = $8, refused = 0
                     WHERE cluster_id = $1 AND id = $2 AND name = $3 AND size = $4 AND labels = $5
                         AND deleting = 0")
                .bind(cluster)
                .bind(id)
                .bind(&before.name)
                .bind(before.size)
                .bind(json(&before.labels))
                .bind(&after.name)
                .bind(after.size)
                .bind(json(&after.labels)),
            )
            .await?;
        if changed == 0 {
            drop(tx);
            return self.why_not(cluster, id).await;
        }
        if let Some(operation) = operation {
            let why = format!("superseded by a resize to {}", after.size);
            supersede(&mut tx, cluster, id, &why, now).await?;
            insert_operation(&mut tx, operation).await?;
        }
        tx.commit().await?;
        Ok(PoolChange::Done)
    }

    /// Begins the deletion of a pool. Whatever else runs on it ends.
    pub(crate) async fn delete_pool(
        &self,
        cluster: TenantId,
        id: NodePoolId,
        operation: &OperationRow,
        now: Timestamp,
    ) -> Result<PoolChange, DbError> {
        let mut tx = self.begin().await?;
        if !next_generation(&mut tx, cluster).await? {
            return Ok(PoolChange::NoCluster);
        }
        let begun = tx
            .run(
                sql("UPDATE node_pools SET deleting = 1 WHERE cluster_id = $1 AND id = $2 AND deleting = 0")
                    .bind(cluster)
                    .bind(id),
            )
            .await?;
        if begun == 0 {
            drop(tx);
            return self.why_not(cluster, id).await;
        }
        supersede(&mut tx, cluster, id, "the node pool is being deleted", now).await?;
        insert_operation(&mut tx, operation).await?;
        tx.commit().await?;
        Ok(PoolChange::Done)
    }

    /// Why a change of a pool touched no row.
    async fn why_not(&self, cluster: TenantId, id: NodePoolId) -> Result<PoolChange, DbError> {
        match self.pool_row(cluster, id).await? {
            None => Ok(PoolChange::NoPool),
            Some(row) if !row.pool.deleting => Ok(PoolChange::Overtaken),
            Some(_) => {
                let running =
                    self.running_operation(cluster, Some(id), OperationKind::NodePoolDelete).await?;
                Ok(running.map_or(PoolChange::NoPool, |found| PoolChange::Deleting(Box::new(found))))
            }
        }
    }

    /// What the cluster's leader said; false when the row is not what the report was compared with.
    pub(crate) async fn report_pool(&self, id: NodePoolId, now: &plan::Pool) -> Result<bool, DbError> {
        let changed = self
            .run(
                sql("UPDATE node_pools SET machines = $2, message = $3, refused = $4, settled = $5
                     WHERE id = $1 AND size = $6 AND deleting = $7")
                .bind(id)
                .bind(json(&now.machines))
                .bind(&now.message)
                .bind(now.refused)
                .bind(now.settled)
                .bind(now.size)
                .bind(now.deleting),
            )
            .await?;
        Ok(changed > 0)
    }

    /// Removes a deleted pool whose machines are gone, and ends its operation.
    pub(crate) async fn forget_pool(&self, id: NodePoolId, now: Timestamp) -> Result<bool, DbError> {
        let mut tx = self.begin().await?;
        tx.run(
            sql("UPDATE clusters SET generation = generation + 1
                 WHERE id = (SELECT cluster_id FROM node_pools WHERE id = $1)")
            .bind(id),
        )
        .await?;
        let gone = tx.run(sql("DELETE FROM node_pools WHERE id = $1 AND deleting = 1").bind(id)).await?;
        if gone == 0 {
            return Ok(false);
        }
        tx.run(
            sql("UPDATE operations SET state = 'succeeded', progress = 100, message = 'deleted', finished_ms = $2
                 WHERE node_pool_id = $1 AND state = 'running'")
            .bind(id)
            .bind(now),
        )
        .await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// Every change of pools is a change of the cluster's assignment; taking that row first also puts changes
/// of one cluster's pools in a line. False when the cluster is being deleted or gone.
async fn next_generation(tx: &mut Tx, cluster: TenantId) -> Result<bool, DbError> {
    let taken = tx
        .run(
            sql("UPDATE clusters SET generation = generation + 1 WHERE id = $1 AND state <> 'deleting'")
                .bind(cluster),
        )
        .await?;
    Ok(taken > 0)
}

/// Ends what runs on a pool.
async fn supersede(
    tx: &mut Tx,
    cluster: TenantId,
    pool: NodePoolId,
    why: &str,
    now: Timestamp,
) -> Result<(), DbError> {
    tx.run(
        sql("UPDATE operations SET state = 'cancelled', message = $3, finished_ms = $4
             WHERE cluster_id = $1 AND node_pool_id = $2 AND state = 'running'")
        .bind(cluster)
        .bind(pool)
        .bind(why)
        .bind(now),
    )
    .await?;
    Ok(())
}
