//! Cells, and where gateways find clusters on them.

use std::net::SocketAddr;

use base_ids::{CellId, Slug, TenantId};

use super::{Db, DbError, Read, Row, sql};

/// A cell as it is stored.
#[derive(Debug, Clone)]
pub(crate) struct CellRow {
    pub(crate) id: CellId,
    pub(crate) name: Slug,
    pub(crate) rpc_address: SocketAddr,
    pub(crate) capacity: u32,
    pub(crate) clusters: u32,
}

impl Read for CellRow {
    fn read(row: &Row) -> Result<CellRow, sqlx::Error> {
        Ok(CellRow {
            id: row.parsed("id")?,
            name: row.parsed("name")?,
            rpc_address: row.parsed("rpc_address")?,
            capacity: row.count("capacity")?,
            clusters: row.count("clusters")?,
        })
    }
}

/// One replica that clients may reach.
#[derive(Debug, Clone)]
pub(crate) struct RouteRow {
    pub(crate) cluster: TenantId,
    pub(crate) cell: CellId,
    pub(crate) api_address: String,
}

impl Read for RouteRow {
    fn read(row: &Row) -> Result<RouteRow, sqlx::Error> {
        Ok(RouteRow {
            cluster: row.parsed("cluster_id")?,
            cell: row.parsed("cell_id")?,
            api_address: row.text("api_address")?,
        })
    }
}

impl Db {
    pub(crate) async fn upsert_cell(
        &self,
        id: CellId,
        name: &Slug,
        rpc_address: SocketAddr,
        api_address: SocketAddr,
        capacity: u32,
    ) -> Result<(), DbError> {
        self.run(
            sql(
                "INSERT INTO cells (id, name, rpc_address, api_address, capacity) VALUES ($1, $2, $3, $4, $5)
                 ON CONFLICT (id) DO UPDATE SET name = excluded.name, rpc_address = excluded.rpc_address,
                     api_address = excluded.api_address, capacity = excluded.capacity
                 -- What is the same is not written again, which also works where there is no room.
                 WHERE cells.name <> excluded.name OR cells.rpc_address <> excluded.rpc_address
                     OR cells.api_address <> excluded.api_address OR cells.capacity <> excluded.capacity",
            )
            .bind(id)
            .bind(name)
            .bind(rpc_address.to_string())
            .bind(api_address.to_string())
            .bind(capacity),
        )
        .await?;
        Ok(())
    }

    pub(crate) async fn cells(&self) -> Result<Vec<CellRow>, DbError> {
        self.all(sql("SELECT id, name, rpc_address, capacity,
                 (SELECT COUNT(*) FROM cluster_replicas r WHERE r.cell_id = cells.id) AS clusters
             FROM cells ORDER BY name"))
            .await
    }

    pub(crate) async fn cell(&self, id: CellId) -> Result<Option<CellRow>, DbError> {
        Ok(self.cells().await?.into_iter().find(|cell| cell.id == id))
    }

    /// Every replica of every cluster that clients may reach, a cluster's replicas in order.
    pub(crate) async fn routes(&self) -> Result<Vec<RouteRow>, DbError> {
        self.all(sql("SELECT r.cluster_id, r.cell_id, cells.api_address
             FROM cluster_replicas r
                 JOIN clusters c ON c.id = r.cluster_id
                 JOIN cells ON cells.id = r.cell_id
             WHERE c.state <> 'deleting' ORDER BY r.cluster_id, r.number"))
            .await
    }
}
