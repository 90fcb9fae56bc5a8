//! Clusters.

use base_clock::Timestamp;
use base_ids::{CellId, OrgId, TenantId};
use fleet_model::{
    Cluster, ClusterRef, ClusterState, Operation, OperationKind, OperationState, Receipt, ReceiptResource,
    server_name,
};

use super::operations::{OperationRow, insert_operation};
use super::{Db, DbError, Read, Row, json, sql, undecodable};
use crate::lifecycle::plan::ClusterRow;

/// Clusters with their organisation's name and what runs on them; `$rest` is a literal.
macro_rules! select_clusters {
    ($rest:literal) => {
        sql(concat!(
            "SELECT c.id, c.name, c.state, c.kubernetes_version, c.created_ms, c.labels, c.provider,
                 c.generation, c.assigned_generation, c.drained, c.organization_id, o.name AS organization,
                 (SELECT cell_id FROM cluster_replicas r WHERE r.cluster_id = c.id AND r.number = 1) AS cell_1,
                 (SELECT cell_id FROM cluster_replicas r WHERE r.cluster_id = c.id AND r.number = 2) AS cell_2,
                 (SELECT cell_id FROM cluster_replicas r WHERE r.cluster_id = c.id AND r.number = 3) AS cell_3,
                 (SELECT MAX(running.id) FROM operations running
                  WHERE running.cluster_id = c.id AND running.state = 'running'
                      AND running.node_pool_id IS NULL) AS operation
             FROM clusters c JOIN organizations o ON o.id = c.organization_id ",
            $rest
        ))
    };
}

impl Read for Cluster {
    fn read(row: &Row) -> Result<Cluster, sqlx::Error> {
        let id: TenantId = row.parsed("id")?;
        let state = row.text("state")?;
        let mut cells = Vec::new();
        // Up to three columns instead of an aggregate, for which the databases have different words.
        for column in ["cell_1", "cell_2", "cell_3"] {
            if row.maybe_text(column)?.is_some() {
                cells.push(row.parsed(column)?);
            }
        }
        Ok(Cluster {
            id,
            organization: row.parsed("organization")?,
            name: row.parsed("name")?,
            state: ClusterState::parse(&state).ok_or_else(|| undecodable("state", state))?,
            kubernetes_version: row.text("kubernetes_version")?,
            replicas: u8::try_from(cells.len()).unwrap_or(u8::MAX),
            cells,
            provider: row.text("provider")?,
            labels: row.json("labels")?,
            operation: row.maybe_parsed("operation")?,
            server_name: server_name(&id),
            created_at: row.time("created_ms")?,
        })
    }
}

impl Read for ClusterRow {
    fn read(row: &Row) -> Result<ClusterRow, sqlx::Error> {
        let drained = row.maybe_text("drained")?;
        let drained: Option<Vec<ReceiptResource>> = drained
            .map(|text| serde_json::from_str(&text).map_err(|error| undecodable("drained", error)))
            .transpose()?;
        Ok(ClusterRow {
            cluster: Cluster::read(row)?,
            organization_id: row.parsed("organization_id")?,
            generation: row.number("generation")?,
            assigned_generation: row.number("assigned_generation")?,
            drained,
        })
    }
}

struct IdRow(TenantId);

impl Read for IdRow {
    fn read(row: &Row) -> Result<IdRow, sqlx::Error> {
        Ok(IdRow(row.parsed("id")?))
    }
}

struct OnCell(TenantId, CellId);

impl Read for OnCell {
    fn read(row: &Row) -> Result<OnCell, sqlx::Error> {
        Ok(OnCell(row.parsed("id")?, row.parsed("cell_id")?))
    }
}

/// What became of a wish to delete.
#[derive(Debug)]
pub(crate) enum Deletion {
    Begun,
    /// It is being deleted already, by this operation.
    Running(Box<Operation>),
    /// It is gone.
    Gone,
}

impl Db {
    /// With the operation that creates it.
    pub(crate) async fn insert_cluster(
        &self,
        organization: OrgId,
        cluster: &Cluster,
        operation: &OperationRow,
    ) -> Result<(), DbError> {
        let mut tx = self.begin().await?;
        tx.run(
            sql("INSERT INTO clusters
                     (id, organization_id, name, state, kubernetes_version, cell_id, created_ms, labels,
                      provider)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)")
            .bind(cluster.id)
            .bind(organization)
            .bind(&cluster.name)
            .bind(cluster.state.as_str())
            .bind(&cluster.kubernetes_version)
            .bind(cluster.cells.first().copied())
            .bind(cluster.created_at)
            .bind(json(&cluster.labels))
            .bind(&cluster.provider),
        )
        .await?;
        for (number, cell) in (1_i64..).zip(&cluster.cells) {
            tx.run(
                sql("INSERT INTO cluster_replicas (cluster_id, number, cell_id) VALUES ($1, $2, $3)")
                    .bind(cluster.id)
                    .bind(number)
                    .bind(*cell),
            )
            .await?;
        }
        insert_operation(&mut tx, operation).await?;
        tx.commit().await
    }

    /// By name or by id; of this organisation in any case.
    pub(crate) async fn cluster(
        &self,
        organization: OrgId,
        name_or_id: &str,
    ) -> Result<Option<Cluster>, DbError> {
        match name_or_id.parse() {
            Ok(ClusterRef::Id(id)) => {
                let statement = select_clusters!("WHERE c.organization_id = $1 AND c.id = $2");
                self.one(statement.bind(organization).bind(id)).await
            }
            Ok(ClusterRef::Name(name)) => {
                let statement = select_clusters!("WHERE c.organization_id = $1 AND c.name = $2");
                self.one(statement.bind(organization).bind(&name)).await
            }
            // What cannot exist does not.
            Err(_) => Ok(None),
        }
    }

    pub(crate) async fn cluster_row(&self, id: TenantId) -> Result<Option<ClusterRow>, DbError> {
        self.one(select_clusters!("WHERE c.id = $1").bind(id)).await
    }

    /// One organisation's clusters by name, after `after`; only the one with the id `only`, if given.
    pub(crate) async fn clusters(
        &self,
        organization: OrgId,
        only: Option<TenantId>,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Cluster>, DbError> {
        self.all(
            select_clusters!(
                "WHERE c.organization_id = $1 AND c.name > $2 AND ($3 IS NULL OR c.id = $3)
                 ORDER BY c.name LIMIT $4"
            )
            .bind(organization)
            .bind(after)
            .bind(only)
            .bind(limit),
        )
        .await
    }

    /// Ids of one cell's clusters, whatever their state.
    pub(crate) async fn clusters_of_cell(&self, cell: CellId) -> Result<Vec<TenantId>, DbError> {
        let rows: Vec<IdRow> = self
            .all(sql("SELECT cluster_id AS id FROM cluster_replicas WHERE cell_id = $1").bind(cell))
            .await?;
        Ok(rows.into_iter().map(|row| row.0).collect())
    }

    /// Has its cells told again what they have confirmed once: one of them has lost it. They make nothing for it.
    pub(crate) async fn assign_again(&self, id: TenantId) -> Result<(), DbError> {
        let again = sql("UPDATE clusters SET generation = generation + 1
             WHERE id = $1 AND state = 'ready' AND assigned_generation = generation");
        self.run(again.bind(id)).await.map(drop)
    }

    /// Clusters that are not where they should be, oldest first.
    pub(crate) async fn unfinished_clusters(&self, limit: i64) -> Result<Vec<TenantId>, DbError> {
        let rows: Vec<IdRow> = self
            .all(
                sql("SELECT id FROM clusters WHERE state <> 'ready' OR assigned_generation < generation
                     ORDER BY id LIMIT $1")
                .bind(limit),
            )
            .await?;
        Ok(rows.into_iter().map(|row| row.0).collect())
    }

    /// Clusters that have node pools, with the cells to ask about them.
    pub(crate) async fn clusters_with_pools(&self) -> Result<Vec<(TenantId, CellId)>, DbError> {
        let rows: Vec<OnCell> = self
            .all(sql("SELECT r.cluster_id AS id, r.cell_id FROM cluster_replicas r
                 WHERE EXISTS (SELECT 1 FROM node_pools p WHERE p.cluster_id = r.cluster_id)
                 ORDER BY r.cluster_id, r.number"))
            .await?;
        Ok(rows.into_iter().map(|OnCell(cluster, cell)| (cluster, cell)).collect())
    }

    /// The name and labels of `after`, if they are those of `before` still; false when they are not, or when it
    /// is being deleted. Its cells have to hear of it.
    pub(crate) async fn update_cluster(&self, before: &Cluster, after: &Cluster) -> Result<bool, DbError> {
        let changed = self
            .run(
                sql("UPDATE clusters SET name = $4, labels = $5, generation = generation + 1
                     WHERE id = $1 AND name = $2 AND labels = $3 AND state <> 'deleting'")
                .bind(before.id)
                .bind(&before.name)
                .bind(json(&before.labels))
                .bind(&after.name)
                .bind(json(&after.labels)),
            )
            .await?;
        Ok(changed > 0)
    }

    /// Its cells have confirmed `generation`; true when it became ready by that.
    pub(crate) async fn assigned(
        &self,
        id: TenantId,
        generation: i64,
        now: Timestamp,
    ) -> Result<bool, DbError> {
        let mut tx = self.begin().await?;
        tx.run(
            sql("UPDATE clusters SET assigned_generation = $2 WHERE id = $1 AND assigned_generation < $2")
                .bind(id)
                .bind(generation),
        )
        .await?;
        let became = tx
            .run(sql("UPDATE clusters SET state = 'ready' WHERE id = $1 AND state = 'creating'").bind(id))
            .await?;
        if became > 0 {
            tx.run(
                sql("UPDATE operations SET state = $3, progress = 100, message = 'it serves requests', finished_ms = $4
                     WHERE cluster_id = $1 AND kind = $2 AND state = 'running'")
                .bind(id)
                .bind(OperationKind::ClusterCreate.as_str())
                .bind(OperationState::Succeeded.as_str())
                .bind(now),
            )
            .await?;
        }
        tx.commit().await?;
        Ok(became > 0)
    }

    /// Begins the deletion. Whatever else runs on the cluster ends.
    pub(crate) async fn delete_cluster(
        &self,
        id: TenantId,
        operation: &OperationRow,
        now: Timestamp,
    ) -> Result<Deletion, DbError> {
        let mut tx = self.begin().await?;
        let begun = tx
            .run(sql("UPDATE clusters SET state = 'deleting' WHERE id = $1 AND state <> 'deleting'").bind(id))
            .await?;
        if begun == 0 {
            drop(tx);
            let running = self.running_operation(id, None, OperationKind::ClusterDelete).await?;
            return Ok(running.map_or(Deletion::Gone, |found| Deletion::Running(Box::new(found))));
        }
        tx.run(
            sql("UPDATE operations SET state = 'cancelled', message = 'the cluster is being deleted', finished_ms = $2
                 WHERE cluster_id = $1 AND state = 'running'")
            .bind(id)
            .bind(now),
        )
        .await?;
        insert_operation(&mut tx, operation).await?;
        tx.commit().await?;
        Ok(Deletion::Begun)
    }

    /// Nothing of it is left outside its store, whose end may begin.
    pub(crate) async fn set_drained(
        &self,
        id: TenantId,
        resources: &[ReceiptResource],
    ) -> Result<(), DbError> {
        self.run(
            sql("UPDATE clusters SET drained = $2 WHERE id = $1 AND state = 'deleting' AND drained IS NULL")
                .bind(id)
                .bind(json(&resources)),
        )
        .await?;
        Ok(())
    }

    /// Forgets a cluster that no cell has any more, and keeps its receipt: both or neither. What another
    /// manager has finished stays as it is.
    pub(crate) async fn finish_cluster(&self, row: &ClusterRow, receipt: &Receipt) -> Result<(), DbError> {
        let id = row.cluster.id;
        let mut tx = self.begin().await?;
        // Takes the row's lock first, as every other writer does.
        let there = tx
            .run(sql("UPDATE clusters SET state = 'deleting' WHERE id = $1 AND state = 'deleting'").bind(id))
            .await?;
        if there == 0 {
            return Ok(());
        }
        tx.run(sql("DELETE FROM node_pools WHERE cluster_id = $1").bind(id)).await?;
        tx.run(
            sql("INSERT INTO receipts (cluster_id, organization_id, document, deleted_ms)
                 VALUES ($1, $2, $3, $4) ON CONFLICT (cluster_id) DO NOTHING")
            .bind(id)
            .bind(row.organization_id)
            .bind(json(receipt))
            .bind(receipt.deleted_at),
        )
        .await?;
        tx.run(
            sql("UPDATE operations SET state = 'succeeded', progress = 100, message = 'deleted', finished_ms = $2
                 WHERE cluster_id = $1 AND state = 'running'")
            .bind(id)
            .bind(receipt.deleted_at),
        )
        .await?;
        tx.run(sql("DELETE FROM clusters WHERE id = $1").bind(id)).await?;
        tx.commit().await
    }
}
