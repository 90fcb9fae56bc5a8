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

struct RouteRow(TenantId, String);

impl Read for RouteRow {
    fn read(row: &Row) -> Result<RouteRow, sqlx::Error> {
        Ok(RouteRow(row.parsed("id")?, row.text("api_address")?))
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
                     api_address = excluded.api_address, capacity = excluded.capacity",
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
                 (SELECT COUNT(*) FROM clusters WHERE clusters.cell_id = cells.id) AS clusters
             FROM cells ORDER BY name"))
            .await
    }

    pub(crate) async fn cell(&self, id: CellId) -> Result<Option<CellRow>, DbError> {
        Ok(self.cells().await?.into_iter().find(|cell| cell.id == id))
    }

    /// Cluster and its cell's client address, of every cluster that clients may reach.
    pub(crate) async fn routes(&self) -> Result<Vec<(TenantId, String)>, DbError> {
        let rows: Vec<RouteRow> = self
            .all(sql("SELECT c.id, cells.api_address FROM clusters c JOIN cells ON cells.id = c.cell_id
                 WHERE c.state <> 'deleting'"))
            .await?;
        Ok(rows.into_iter().map(|RouteRow(id, address)| (id, address)).collect())
    }
}
