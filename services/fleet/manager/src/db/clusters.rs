//! Clusters.

use base_ids::{CellId, OrgId, Slug, TenantId};
use fleet_model::{Cluster, ClusterState, server_name};

use super::{Db, DbError, Read, Row, sql, undecodable};

/// Clusters with their organisation's name; `$rest` is a literal.
macro_rules! select_clusters {
    ($rest:literal) => {
        sql(concat!(
            "SELECT c.id, c.name, c.state, c.kubernetes_version, c.created_ms, o.name AS organization,
                 (SELECT cell_id FROM cluster_replicas r WHERE r.cluster_id = c.id AND r.number = 1) AS cell_1,
                 (SELECT cell_id FROM cluster_replicas r WHERE r.cluster_id = c.id AND r.number = 2) AS cell_2,
                 (SELECT cell_id FROM cluster_replicas r WHERE r.cluster_id = c.id AND r.number = 3) AS cell_3
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
            labels: fleet_model::labels::Labels::new(),
            operation: None,
            server_name: server_name(&id),
            created_at: row.time("created_ms")?,
        })
    }
}

struct IdRow(TenantId);

impl Read for IdRow {
    fn read(row: &Row) -> Result<IdRow, sqlx::Error> {
        Ok(IdRow(row.parsed("id")?))
    }
}

impl Db {
    pub(crate) async fn insert_cluster(&self, organization: OrgId, cluster: &Cluster) -> Result<(), DbError> {
        let mut tx = self.begin().await?;
        tx.run(
            sql("INSERT INTO clusters
                     (id, organization_id, name, state, kubernetes_version, cell_id, created_ms)
                 VALUES ($1, $2, $3, $4, $5, $6, $7)")
            .bind(cluster.id)
            .bind(organization)
            .bind(&cluster.name)
            .bind(cluster.state.as_str())
            .bind(&cluster.kubernetes_version)
            .bind(cluster.cells.first().copied())
            .bind(cluster.created_at),
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
        tx.commit().await
    }

    /// By name or by id; of this organisation in any case.
    pub(crate) async fn cluster(
        &self,
        organization: OrgId,
        name_or_id: &str,
    ) -> Result<Option<Cluster>, DbError> {
        // No name is an id: names are shorter than a UUID's text or, with dashes and all, could be one; the
        // id is then looked at first, and only this organisation's clusters are looked at in any case.
        if let Ok(id) = name_or_id.parse::<TenantId>() {
            let found = self
                .one(
                    select_clusters!("WHERE c.organization_id = $1 AND c.id = $2")
                        .bind(organization)
                        .bind(id),
                )
                .await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        let Ok(name) = name_or_id.parse::<Slug>() else { return Ok(None) };
        self.one(
            select_clusters!("WHERE c.organization_id = $1 AND c.name = $2").bind(organization).bind(&name),
        )
        .await
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

    /// Clusters that are not where they should be, oldest first.
    pub(crate) async fn unfinished_clusters(&self, limit: i64) -> Result<Vec<Cluster>, DbError> {
        self.all(select_clusters!("WHERE c.state <> 'ready' ORDER BY c.created_ms LIMIT $1").bind(limit))
            .await
    }

    /// Moves a cluster from one state to another; false when it is in neither or gone.
    pub(crate) async fn move_cluster(
        &self,
        id: TenantId,
        from: ClusterState,
        to: ClusterState,
    ) -> Result<bool, DbError> {
        let moved = self
            .run(
                sql("UPDATE clusters SET state = $3 WHERE id = $1 AND state IN ($2, $3)")
                    .bind(id)
                    .bind(from.as_str())
                    .bind(to.as_str()),
            )
            .await?;
        Ok(moved > 0)
    }

    /// Forgets a cluster that its cell no longer has.
    pub(crate) async fn delete_cluster(&self, id: TenantId) -> Result<(), DbError> {
        self.run(sql("DELETE FROM clusters WHERE id = $1 AND state = 'deleting'").bind(id)).await?;
        Ok(())
    }
}
