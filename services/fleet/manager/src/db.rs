//! Every SQL statement of the manager.
//!
//! Statements are plain enough for SQLite and PostgreSQL. Rows are parsed into the model's types on the
//! way out; a row that does not parse is an error naming the row, never a guess.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base_clock::Timestamp;
use base_ids::{CellId, OrgId, Slug, TenantId};
use fleet_model::{ApiToken, Cluster, ClusterState, Organization, Role, server_name};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};
use sqlx::{FromRow, Row};

#[derive(Debug, thiserror::Error)]
pub enum DbError {
    #[error("{} cannot be opened as a database", path.display())]
    Open { path: PathBuf, source: sqlx::Error },
    #[error("{} is not a database of this version", path.display())]
    Migrate { path: PathBuf, source: sqlx::migrate::MigrateError },
    #[error("statement failed")]
    Sql(#[from] sqlx::Error),
    /// Something unique is there already, or what it refers to is not.
    #[error("conflicts with what is there")]
    Constraint,
}

/// Connections for reading. Writers queue for SQLite's one write lock anyway.
const MAX_CONNECTIONS: u32 = 8;

#[derive(Debug, Clone)]
pub struct Db {
    pool: SqlitePool,
}

/// The model's types belong to another crate; these carry sqlx's trait for them.
struct OrganizationRow(Organization);
struct ClusterRow(Cluster);

/// Clusters with their organisation's name; `$rest` is a literal.
macro_rules! select_clusters {
    ($rest:literal) => {
        concat!(
            "SELECT c.id, c.name, c.state, c.kubernetes_version, c.cell_id, c.created_ms, o.name AS organization
             FROM clusters c JOIN organizations o ON o.id = c.organization_id ",
            $rest
        )
    };
}

/// Tokens with their organisation's name; `$rest` is a literal.
macro_rules! select_tokens {
    ($rest:literal) => {
        concat!(
            "SELECT t.id, t.description, t.role, t.secret_hash, t.created_ms, t.expires_ms, o.name AS organization
             FROM api_tokens t LEFT JOIN organizations o ON o.id = t.organization_id ",
            $rest
        )
    };
}

/// A cell as it is stored.
#[derive(Debug, Clone)]
pub struct CellRow {
    pub id: CellId,
    pub name: Slug,
    pub rpc_address: SocketAddr,
    pub capacity: u32,
    pub clusters: u32,
}

/// A token with what authentication needs.
#[derive(Debug, Clone)]
pub struct TokenRow {
    pub token: ApiToken,
    pub secret_hash: String,
}

impl Db {
    pub async fn open(path: &Path) -> Result<Db, DbError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // A cluster that was acknowledged survives a power cut: WAL alone would not promise that.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePoolOptions::new()
            .max_connections(MAX_CONNECTIONS)
            .connect_with(options)
            .await
            .map_err(|source| DbError::Open { path: path.to_owned(), source })?;
        sqlx::migrate!("../../../migrations")
            .run(&pool)
            .await
            .map_err(|source| DbError::Migrate { path: path.to_owned(), source })?;
        Ok(Db { pool })
    }

    /// Waits for running statements and closes the file; SQLite then folds its log into it, so that
    /// the one file is the whole database.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    // ---- organisations ----

    pub async fn insert_organization(&self, organization: &Organization) -> Result<(), DbError> {
        sqlx::query("INSERT INTO organizations (id, name, created_ms) VALUES ($1, $2, $3)")
            .bind(organization.id.to_string())
            .bind(organization.name.as_str())
            .bind(organization.created_at.as_millisecond())
            .execute(&self.pool)
            .await
            .map_err(constraint)?;
        Ok(())
    }

    pub async fn organization(&self, name: &Slug) -> Result<Option<Organization>, DbError> {
        let row: Option<OrganizationRow> =
            sqlx::query_as("SELECT id, name, created_ms FROM organizations WHERE name = $1")
                .bind(name.as_str())
                .fetch_optional(&self.pool)
                .await?;
        Ok(row.map(|row| row.0))
    }

    /// By name, after `after`; only the one called `only`, if given.
    pub async fn organizations(
        &self,
        only: Option<&Slug>,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Organization>, DbError> {
        let rows: Vec<OrganizationRow> = sqlx::query_as(
            "SELECT id, name, created_ms FROM organizations
             WHERE name > $1 AND ($2 IS NULL OR name = $2) ORDER BY name LIMIT $3",
        )
        .bind(after)
        .bind(only.map(Slug::as_str))
        .bind(limit)
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(|row| row.0).collect())
    }

    /// False when it is not there. [`DbError::Constraint`] while it has clusters.
    pub async fn delete_organization(&self, id: OrgId) -> Result<bool, DbError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query("DELETE FROM api_tokens WHERE organization_id = $1")
            .bind(id.to_string())
            .execute(&mut *transaction)
            .await?;
        let done = sqlx::query("DELETE FROM organizations WHERE id = $1")
            .bind(id.to_string())
            .execute(&mut *transaction)
            .await
            .map_err(constraint)?;
        transaction.commit().await?;
        Ok(done.rows_affected() > 0)
    }

    // ---- cells ----

    pub async fn upsert_cell(
        &self,
        id: CellId,
        name: &Slug,
        rpc_address: SocketAddr,
        api_address: SocketAddr,
        capacity: u32,
    ) -> Result<(), DbError> {
        sqlx::query(
            "INSERT INTO cells (id, name, rpc_address, api_address, capacity) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (id) DO UPDATE SET name = excluded.name, rpc_address = excluded.rpc_address,
                 api_address = excluded.api_address, capacity = excluded.capacity",
        )
        .bind(id.to_string())
        .bind(name.as_str())
        .bind(rpc_address.to_string())
        .bind(api_address.to_string())
        .bind(i64::from(capacity))
        .execute(&self.pool)
        .await
        .map_err(constraint)?;
        Ok(())
    }

    pub async fn cells(&self) -> Result<Vec<CellRow>, DbError> {
        Ok(sqlx::query_as(
            "SELECT id, name, rpc_address, capacity,
                 (SELECT COUNT(*) FROM clusters WHERE clusters.cell_id = cells.id) AS clusters
             FROM cells ORDER BY name",
        )
        .fetch_all(&self.pool)
        .await?)
    }

    pub async fn cell(&self, id: CellId) -> Result<Option<CellRow>, DbError> {
        Ok(self.cells().await?.into_iter().find(|cell| cell.id == id))
    }

    // ---- clusters ----

    pub async fn insert_cluster(&self, organization: OrgId, cluster: &Cluster) -> Result<(), DbError> {
        sqlx::query(
            "INSERT INTO clusters (id, organization_id, name, state, kubernetes_version, cell_id, created_ms)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(cluster.id.to_string())
        .bind(organization.to_string())
        .bind(cluster.name.as_str())
        .bind(cluster.state.as_str())
        .bind(&cluster.kubernetes_version)
        .bind(cluster.cell.to_string())
        .bind(cluster.created_at.as_millisecond())
        .execute(&self.pool)
        .await
        .map_err(constraint)?;
        Ok(())
    }

    pub async fn cluster(&self, organization: &Slug, name: &Slug) -> Result<Option<Cluster>, DbError> {
        let row: Option<ClusterRow> = sqlx::query_as(select_clusters!("WHERE o.name = $1 AND c.name = $2"))
            .bind(organization.as_str())
            .bind(name.as_str())
            .fetch_optional(&self.pool)
            .await?;
        Ok(row.map(|row| row.0))
    }

    /// One organisation's clusters by name, after `after`.
    pub async fn clusters(
        &self,
        organization: &Slug,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Cluster>, DbError> {
        let rows: Vec<ClusterRow> =
            sqlx::query_as(select_clusters!("WHERE o.name = $1 AND c.name > $2 ORDER BY c.name LIMIT $3"))
                .bind(organization.as_str())
                .bind(after)
                .bind(limit)
                .fetch_all(&self.pool)
                .await?;
        Ok(rows.into_iter().map(|row| row.0).collect())
    }

    /// Ids of one cell's clusters, whatever their state.
    pub async fn clusters_of_cell(&self, cell: CellId) -> Result<Vec<TenantId>, DbError> {
        let rows = sqlx::query("SELECT id FROM clusters WHERE cell_id = $1")
            .bind(cell.to_string())
            .fetch_all(&self.pool)
            .await?;
        Ok(rows.iter().map(|row| parsed(row, "id")).collect::<Result<_, _>>()?)
    }

    /// Clusters that are not where they should be, oldest first.
    pub async fn unfinished_clusters(&self, limit: i64) -> Result<Vec<Cluster>, DbError> {
        let rows: Vec<ClusterRow> =
            sqlx::query_as(select_clusters!("WHERE c.state <> 'ready' ORDER BY c.created_ms LIMIT $1"))
                .bind(limit)
                .fetch_all(&self.pool)
                .await?;
        Ok(rows.into_iter().map(|row| row.0).collect())
    }

    /// Moves a cluster from one state to another; false when it is in neither or gone.
    pub async fn move_cluster(
        &self,
        id: TenantId,
        from: ClusterState,
        to: ClusterState,
    ) -> Result<bool, DbError> {
        let done = sqlx::query("UPDATE clusters SET state = $3 WHERE id = $1 AND state IN ($2, $3)")
            .bind(id.to_string())
            .bind(from.as_str())
            .bind(to.as_str())
            .execute(&self.pool)
            .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Forgets a cluster that its cell no longer has.
    pub async fn delete_cluster(&self, id: TenantId) -> Result<(), DbError> {
        sqlx::query("DELETE FROM clusters WHERE id = $1 AND state = 'deleting'")
            .bind(id.to_string())
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Cluster and its cell's client address, of every cluster that clients may reach.
    pub async fn routes(&self) -> Result<Vec<(TenantId, String)>, DbError> {
        let rows = sqlx::query(
            "SELECT c.id, cells.api_address FROM clusters c JOIN cells ON cells.id = c.cell_id
             WHERE c.state <> 'deleting'",
        )
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(|row| Ok((parsed(row, "id")?, row.try_get("api_address")?))).collect()
    }

    // ---- tokens ----

    pub async fn insert_token(
        &self,
        token: &ApiToken,
        organization: Option<OrgId>,
        secret_hash: &str,
    ) -> Result<(), DbError> {
        sqlx::query(
            "INSERT INTO api_tokens (id, description, role, organization_id, secret_hash, created_ms, expires_ms)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(&token.id)
        .bind(&token.description)
        .bind(token.role.as_str())
        .bind(organization.map(|id| id.to_string()))
        .bind(secret_hash)
        .bind(token.created_at.as_millisecond())
        .bind(token.expires_at.map(|at| at.as_millisecond()))
        .execute(&self.pool)
        .await
        .map_err(constraint)?;
        Ok(())
    }

    pub async fn token(&self, id: &str) -> Result<Option<TokenRow>, DbError> {
        Ok(sqlx::query_as(select_tokens!("WHERE t.id = $1")).bind(id).fetch_optional(&self.pool).await?)
    }

    /// By id, after `after`; of one organisation, or of all.
    pub async fn tokens(
        &self,
        organization: Option<&Slug>,
        after: &str,
        limit: i64,
    ) -> Result<Vec<ApiToken>, DbError> {
        let rows: Vec<TokenRow> = sqlx::query_as(select_tokens!(
            "WHERE t.id > $1 AND ($2 IS NULL OR o.name = $2) ORDER BY t.id LIMIT $3"
        ))
        .bind(after)
        .bind(organization.map(Slug::as_str))
        .bind(limit)
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(|row| row.token).collect())
    }

    /// False when there is no such token (of that organisation).
    pub async fn delete_token(&self, organization: Option<&Slug>, id: &str) -> Result<bool, DbError> {
        let done = sqlx::query(
            "DELETE FROM api_tokens WHERE id = $1
             AND ($2 IS NULL OR organization_id = (SELECT id FROM organizations WHERE name = $2))",
        )
        .bind(id)
        .bind(organization.map(Slug::as_str))
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected() > 0)
    }
}

fn constraint(error: sqlx::Error) -> DbError {
    match &error {
        sqlx::Error::Database(inner) if inner.is_unique_violation() || inner.is_foreign_key_violation() => {
            DbError::Constraint
        }
        _ => DbError::Sql(error),
    }
}

/// A text column as one of our types.
fn parsed<T: std::str::FromStr>(row: &SqliteRow, column: &str) -> Result<T, sqlx::Error>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let text: String = row.try_get(column)?;
    text.parse().map_err(|source| undecodable(column, source))
}

fn time(row: &SqliteRow, column: &str) -> Result<Timestamp, sqlx::Error> {
    Timestamp::from_millisecond(row.try_get(column)?).map_err(|source| undecodable(column, source))
}

fn undecodable(column: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source: source.into() }
}

impl FromRow<'_, SqliteRow> for OrganizationRow {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(OrganizationRow(Organization {
            id: parsed(row, "id")?,
            name: parsed(row, "name")?,
            created_at: time(row, "created_ms")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for CellRow {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        let count = |column: &str| -> Result<u32, sqlx::Error> {
            u32::try_from(row.try_get::<i64, _>(column)?).map_err(|source| undecodable(column, source))
        };
        Ok(CellRow {
            id: parsed(row, "id")?,
            name: parsed(row, "name")?,
            rpc_address: parsed(row, "rpc_address")?,
            capacity: count("capacity")?,
            clusters: count("clusters")?,
        })
    }
}

impl FromRow<'_, SqliteRow> for ClusterRow {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        let id: TenantId = parsed(row, "id")?;
        let state: String = row.try_get("state")?;
        Ok(ClusterRow(Cluster {
            id,
            organization: parsed(row, "organization")?,
            name: parsed(row, "name")?,
            state: ClusterState::parse(&state).ok_or_else(|| undecodable("state", state))?,
            kubernetes_version: row.try_get("kubernetes_version")?,
            cell: parsed(row, "cell_id")?,
            server_name: server_name(&id),
            created_at: time(row, "created_ms")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for TokenRow {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        let role: String = row.try_get("role")?;
        let organization: Option<String> = row.try_get("organization")?;
        let organization = organization
            .map(|name| name.parse::<Slug>())
            .transpose()
            .map_err(|source| undecodable("organization", source))?;
        let expires: Option<i64> = row.try_get("expires_ms")?;
        Ok(TokenRow {
            token: ApiToken {
                id: row.try_get("id")?,
                description: row.try_get("description")?,
                role: Role::parse(&role).ok_or_else(|| undecodable("role", role))?,
                organization,
                created_at: time(row, "created_ms")?,
                expires_at: expires
                    .map(Timestamp::from_millisecond)
                    .transpose()
                    .map_err(|source| undecodable("expires_ms", source))?,
            },
            secret_hash: row.try_get("secret_hash")?,
        })
    }
}
