//! The manager's database: SQLite or PostgreSQL, with the same statements.
//!
//! [`statement`] runs SQL on either; the other modules hold every statement, by what they are about.
//! Rows are parsed into the model's types on the way out; a row that does not parse is an error naming
//! the column, never a guess.
//!
//! Not here: decisions. A method is a statement or a short transaction, and says what it found.

mod cells;
mod clusters;
mod fleet;
mod idempotency;
mod members;
mod operations;
mod organizations;
mod pools;
mod receipts;
mod revocations;
mod statement;
mod tokens;
mod users;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

pub(crate) use cells::{CellRow, RouteRow};
pub(crate) use clusters::Deletion;
pub(crate) use idempotency::KeptKey;
pub(crate) use members::{Changed, Invited, MAX_MEMBERS, NewInvitation};
pub(crate) use operations::OperationRow;
pub(crate) use pools::{MAX_POOLS, PoolChange};
pub(crate) use revocations::RevocationRow;
pub(crate) use statement::{Count, Read, Row, Statement, Tx, sql, undecodable};
pub(crate) use tokens::{MAX_TOKENS, NewToken, TokenRow, TokenScope};

#[derive(Debug, thiserror::Error)]
pub enum DbError {
    #[error("{place} cannot be opened as a database")]
    Open { place: Place, source: sqlx::Error },
    #[error("{place} is not a database of this version")]
    Migrate { place: Place, source: sqlx::migrate::MigrateError },
    #[error("statement failed")]
    Sql(#[source] sqlx::Error),
    /// Somebody else was at the same rows, or the server is away; the same again may work.
    #[error("the database is busy or away")]
    Busy(#[source] sqlx::Error),
    /// No room for another row; only its operator can help.
    #[error("the database's disk is full")]
    Full(#[source] sqlx::Error),
    /// Something unique is there already, or what it refers to is not.
    #[error("conflicts with what is there")]
    Constraint,
    /// PostgreSQL cannot store it in a text.
    #[error("a value has a NUL character in it")]
    Nul,
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> DbError {
        match &error {
            sqlx::Error::Database(inner)
                if inner.is_unique_violation() || inner.is_foreign_key_violation() =>
            {
                DbError::Constraint
            }
            // PostgreSQL: serialization failure, deadlock, shutting down, starting, too many connections.
            // SQLite: its write lock was not free in time.
            sqlx::Error::Database(inner)
                if matches!(
                    inner.code().as_deref(),
                    Some("40001" | "40P01" | "57P01" | "57P02" | "57P03" | "53300" | "5" | "517" | "6")
                ) =>
            {
                DbError::Busy(error)
            }
            // PostgreSQL: disk full. SQLite: full, and the files beside it that could not grow.
            sqlx::Error::Database(inner)
                if matches!(inner.code().as_deref(), Some("53100" | "13" | "778" | "4874")) =>
            {
                DbError::Full(error)
            }
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => DbError::Busy(error),
            _ => DbError::Sql(error),
        }
    }
}

/// Where a database is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file, made when absent.
    Sqlite(PathBuf),
    /// `postgres://user:password@host:port/database`.
    Postgres(String),
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no database: sqlite:PATH or postgres://USER:PASSWORD@HOST:PORT/NAME")]
pub struct ParsePlaceError(String);

impl FromStr for Place {
    type Err = ParsePlaceError;
    fn from_str(text: &str) -> Result<Place, ParsePlaceError> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return match PgConnectOptions::from_str(text) {
                Ok(_) => Ok(Place::Postgres(text.to_owned())),
                // Not with the text: it may hold a password.
                Err(_) => Err(ParsePlaceError("postgres://…".to_owned())),
            };
        }
        match text.strip_prefix("sqlite:") {
            Some(path) if !path.is_empty() => Ok(Place::Sqlite(PathBuf::from(path))),
            _ => Err(ParsePlaceError(text.split('@').next().unwrap_or_default().to_owned())),
        }
    }
}

/// Never shows a password.
impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Sqlite(path) => path.display().fmt(f),
            Place::Postgres(url) => match PgConnectOptions::from_str(url) {
                Ok(options) => write!(
                    f,
                    "PostgreSQL {} on {}:{}",
                    options.get_database().unwrap_or_default(),
                    options.get_host(),
                    options.get_port()
                ),
                Err(_) => f.write_str("PostgreSQL"),
            },
        }
    }
}

/// Connections at the same time. Writers queue for SQLite's one write lock anyway, and a PostgreSQL of
/// a hundred connections is shared by several managers.
const MAX_CONNECTIONS: u32 = 8;

/// A request waits so long for a connection; the answer then is "try again".
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[derive(Debug, Clone)]
pub(crate) struct Db {
    pool: statement::Pool,
}

impl Db {
    /// Opens it and brings its tables up to date.
    pub(crate) async fn open(place: &Place) -> Result<Db, DbError> {
        let open = |source| DbError::Open { place: place.clone(), source };
        let migrate = |source| DbError::Migrate { place: place.clone(), source };
        let migrator = sqlx::migrate!("../../../migrations");
        let pool = match place {
            Place::Sqlite(path) => {
                // Hashes of passwords and the key that signs receipts. SQLite gives its log the same mode.
                for file in [path.clone(), beside(path, "-wal"), beside(path, "-shm")] {
                    if file == *path || file.exists() {
                        base_files::private_file(&file).map_err(|cause| open(sqlx::Error::Io(cause)))?;
                    }
                }
                let options = SqliteConnectOptions::new()
                    .filename(path)
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    // A cluster that was acknowledged survives a power cut: WAL alone would not promise that.
                    .synchronous(SqliteSynchronous::Full)
                    .foreign_keys(true)
                    .busy_timeout(ACQUIRE_TIMEOUT);
                let pool = SqlitePoolOptions::new()
                    .max_connections(MAX_CONNECTIONS)
                    .acquire_timeout(ACQUIRE_TIMEOUT)
                    .connect_with(options)
                    .await
                    .map_err(open)?;
                migrator.run(&pool).await.map_err(migrate)?;
                statement::Pool::Sqlite(pool)
            }
            Place::Postgres(url) => {
                let options = PgConnectOptions::from_str(url).map_err(open)?.application_name("roadstead");
                let pool = PgPoolOptions::new()
                    .max_connections(MAX_CONNECTIONS)
                    .acquire_timeout(ACQUIRE_TIMEOUT)
                    .connect_with(options)
                    .await
                    .map_err(open)?;
                migrator.run(&pool).await.map_err(migrate)?;
                statement::Pool::Postgres(pool)
            }
        };
        Ok(Db { pool })
    }

    /// Waits for running statements and closes the connections; SQLite then folds its log into its file,
    /// so that the one file is the whole database.
    pub(crate) async fn close(&self) {
        match &self.pool {
            statement::Pool::Sqlite(pool) => pool.close().await,
            statement::Pool::Postgres(pool) => pool.close().await,
        }
    }
}

/// A document for a text column. Maps with text keys and lists of ours always serialize.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn a_full_disk_is_told_from_a_mistake() {
        let pool = sqlx::sqlite::SqlitePoolOptions::new()
            .max_connections(1)
            .connect("sqlite::memory:")
            .await
            .unwrap();
        let run = async |statement: &'static str| {
            sqlx::query(statement).execute(&pool).await.map_err(DbError::from)
        };
        run("create table t (b blob unique)").await.unwrap();
        run("pragma max_page_count = 4").await.unwrap();
        run("insert into t values ('x')").await.unwrap();
        assert!(matches!(run("insert into t values (zeroblob(1000000))").await, Err(DbError::Full(_))));
        assert!(matches!(run("insert into t values ('x')").await, Err(DbError::Constraint)));
        assert!(matches!(run("insert into nowhere values ('x')").await, Err(DbError::Sql(_))));
    }

    #[tokio::test]
    async fn nobody_else_reads_the_rows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manager.db");
        // As an earlier release left it.
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let db = Db::open(&Place::Sqlite(path.clone())).await.unwrap();
        for file in [path.clone(), beside(&path, "-wal"), beside(&path, "-shm")] {
            let mode = std::fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", file.display());
        }
        db.close().await;
    }
}
