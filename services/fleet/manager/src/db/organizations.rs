//! Organisations.

use base_ids::{OrgId, Slug};
use fleet_model::Organization;

use super::{Db, DbError, Read, Row, sql};

impl Read for Organization {
    fn read(row: &Row) -> Result<Organization, sqlx::Error> {
        Ok(Organization {
            id: row.parsed("id")?,
            name: row.parsed("name")?,
            created_at: row.time("created_ms")?,
        })
    }
}

impl Db {
    pub(crate) async fn insert_organization(&self, organization: &Organization) -> Result<(), DbError> {
        self.run(
            sql("INSERT INTO organizations (id, name, created_ms) VALUES ($1, $2, $3)")
                .bind(organization.id)
                .bind(&organization.name)
                .bind(organization.created_at),
        )
        .await?;
        Ok(())
    }

    pub(crate) async fn organization(&self, name: &Slug) -> Result<Option<Organization>, DbError> {
        self.one(sql("SELECT id, name, created_ms FROM organizations WHERE name = $1").bind(name)).await
    }

    /// All of them by name, after `after`.
    pub(crate) async fn organizations(&self, after: &str, limit: i64) -> Result<Vec<Organization>, DbError> {
        self.all(
            sql("SELECT id, name, created_ms FROM organizations WHERE name > $1 ORDER BY name LIMIT $2")
                .bind(after)
                .bind(limit),
        )
        .await
    }

    /// Itself, its members and tokens. False when it is not there. [`DbError::Constraint`] while it has clusters.
    pub(crate) async fn delete_organization(&self, id: OrgId) -> Result<bool, DbError> {
        let mut tx = self.begin().await?;
        for belongings in [
            "DELETE FROM api_tokens WHERE organization_id = $1",
            "DELETE FROM invitations WHERE organization_id = $1",
            "DELETE FROM members WHERE organization_id = $1",
        ] {
            tx.run(sql(belongings).bind(id)).await?;
        }
        let gone = tx.run(sql("DELETE FROM organizations WHERE id = $1").bind(id)).await?;
        tx.commit().await?;
        Ok(gone > 0)
    }
}
