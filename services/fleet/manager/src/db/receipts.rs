//! Receipts of deleted clusters, and the key that signs them.
//!
//! Not here: writing a receipt, which is one step with forgetting its cluster (`Db::finish_cluster`).

use base_ids::{OrgId, TenantId};
use fleet_model::Receipt;

use super::{Db, DbError, Read, Row, sql};

struct Document(Receipt);

impl Read for Document {
    fn read(row: &Row) -> Result<Document, sqlx::Error> {
        Ok(Document(row.json("document")?))
    }
}

struct Pem(String);

impl Read for Pem {
    fn read(row: &Row) -> Result<Pem, sqlx::Error> {
        Ok(Pem(row.text("pem")?))
    }
}

impl Db {
    /// By the cluster's id, after `after`.
    pub(crate) async fn receipts(
        &self,
        organization: OrgId,
        only: Option<TenantId>,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Receipt>, DbError> {
        let rows: Vec<Document> = self
            .all(
                sql("SELECT document FROM receipts
                     WHERE organization_id = $1 AND ($2 IS NULL OR cluster_id = $2) AND cluster_id > $3
                     ORDER BY cluster_id LIMIT $4")
                .bind(organization)
                .bind(only)
                .bind(after)
                .bind(limit),
            )
            .await?;
        Ok(rows.into_iter().map(|row| row.0).collect())
    }

    /// The manager's own key called `name`, as text; `fresh` becomes it if there was none.
    pub(crate) async fn key_or(&self, name: &str, fresh: &str) -> Result<String, DbError> {
        self.run(
            sql("INSERT INTO manager_keys (name, pem) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING")
                .bind(name)
                .bind(fresh),
        )
        .await?;
        let stored: Option<Pem> =
            self.one(sql("SELECT pem FROM manager_keys WHERE name = $1").bind(name)).await?;
        // A key that is not written down must sign nothing: nobody could check it later.
        Ok(stored.ok_or(DbError::Constraint)?.0)
    }
}
