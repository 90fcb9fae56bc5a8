//! Whose database this is.

use base_ids::FleetId;

use super::{Db, DbError, Read, Row, sql};

struct IdRow(FleetId);

impl Read for IdRow {
    fn read(row: &Row) -> Result<IdRow, sqlx::Error> {
        Ok(IdRow(row.parsed("id")?))
    }
}

impl Db {
    pub(crate) async fn fleet(&self) -> Result<Option<FleetId>, DbError> {
        let row: Option<IdRow> = self.one(sql("SELECT id FROM fleet")).await?;
        Ok(row.map(|row| row.0))
    }

    /// Makes the database `fresh`'s unless it is somebody's; whose it is then.
    pub(crate) async fn fleet_or(&self, fresh: FleetId) -> Result<FleetId, DbError> {
        let insert = sql("INSERT INTO fleet (slot, id) VALUES (1, $1) ON CONFLICT (slot) DO NOTHING");
        self.run(insert.bind(fresh)).await?;
        self.fleet().await?.ok_or(DbError::Constraint)
    }
}
