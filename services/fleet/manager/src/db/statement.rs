//! One SQL statement on either database.
//!
//! `sql("… $1 …").bind(value)` is a statement as data; [`Db::all`], [`Db::one`] and [`Db::run`] (and the
//! same of a [`Tx`]) run it. [`Read`] says how a [`Row`] becomes a value.
//!
//! The values are texts and 64-bit numbers, which both databases have and treat alike. Ids and names are
//! texts, moments are milliseconds, a yes or no is 1 or 0.

use std::fmt::Display;
use std::str::FromStr;

use base_clock::Timestamp;
use base_ids::{CellId, FleetId, NodePoolId, OperationId, OrgId, Slug, TenantId, UserId};
use fleet_model::Role;
use sqlx::postgres::{PgPool, PgRow};
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{Postgres, Sqlite};

use super::{Db, DbError};

#[derive(Debug, Clone)]
pub(super) enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// A statement with its values.
#[derive(Debug)]
pub(crate) struct Statement {
    text: &'static str,
    values: Vec<Value>,
}

#[derive(Debug)]
pub(crate) enum Value {
    Text(Option<String>),
    Number(Option<i64>),
}

/// `text` has `$1`, `$2` … where values go, in the order they are bound.
pub(crate) fn sql(text: &'static str) -> Statement {
    Statement { text, values: Vec::new() }
}

impl Statement {
    pub(crate) fn bind(mut self, value: impl Into<Value>) -> Statement {
        self.values.push(value.into());
        self
    }

    fn storable(&self) -> Result<(), DbError> {
        let nul = |value: &Value| matches!(value, Value::Text(Some(text)) if text.contains('\0'));
        if self.values.iter().any(nul) { Err(DbError::Nul) } else { Ok(()) }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(Some(text.to_owned()))
    }
}
impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(Some(text))
    }
}
impl From<&String> for Value {
    fn from(text: &String) -> Value {
        Value::Text(Some(text.clone()))
    }
}
impl From<&Slug> for Value {
    fn from(name: &Slug) -> Value {
        name.as_str().into()
    }
}
impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Number(Some(number))
    }
}
impl From<u32> for Value {
    fn from(number: u32) -> Value {
        Value::Number(Some(i64::from(number)))
    }
}
impl From<bool> for Value {
    fn from(yes: bool) -> Value {
        Value::Number(Some(i64::from(yes)))
    }
}
impl From<Timestamp> for Value {
    fn from(at: Timestamp) -> Value {
        Value::Number(Some(at.as_millisecond()))
    }
}

macro_rules! texts {
    ($($id:ty),*) => {$(
        impl From<$id> for Value {
            fn from(id: $id) -> Value {
                Value::Text(Some(id.to_string()))
            }
        }
        impl From<Option<$id>> for Value {
            fn from(id: Option<$id>) -> Value {
                Value::Text(id.map(|id| id.to_string()))
            }
        }
    )*};
}
texts!(FleetId, OrgId, TenantId, CellId, OperationId, UserId, NodePoolId);

macro_rules! optional {
    ($($inner:ty => $kind:ident),*) => {$(
        impl From<Option<$inner>> for Value {
            fn from(value: Option<$inner>) -> Value {
                match value.map(Value::from) {
                    Some(value) => value,
                    None => Value::$kind(None),
                }
            }
        }
    )*};
}
optional!(&str => Text, String => Text, &String => Text, &Slug => Text, i64 => Number, u32 => Number, Timestamp => Number);

/// One row of an answer.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl Row {
    pub(crate) fn maybe_text(&self, column: &str) -> Result<Option<String>, sqlx::Error> {
        use sqlx::Row as _;
        match self {
            Row::Sqlite(row) => row.try_get(column),
            Row::Postgres(row) => row.try_get(column),
        }
    }
    pub(crate) fn text(&self, column: &str) -> Result<String, sqlx::Error> {
        self.maybe_text(column)?.ok_or_else(|| undecodable(column, "is NULL"))
    }
    pub(crate) fn maybe_number(&self, column: &str) -> Result<Option<i64>, sqlx::Error> {
        use sqlx::Row as _;
        match self {
            Row::Sqlite(row) => row.try_get(column),
            Row::Postgres(row) => row.try_get(column),
        }
    }
    pub(crate) fn number(&self, column: &str) -> Result<i64, sqlx::Error> {
        self.maybe_number(column)?.ok_or_else(|| undecodable(column, "is NULL"))
    }
    pub(crate) fn count(&self, column: &str) -> Result<u32, sqlx::Error> {
        let number = self.number(column)?;
        u32::try_from(number).map_err(|_| undecodable(column, format!("{number} is no count")))
    }
    pub(crate) fn flag(&self, column: &str) -> Result<bool, sqlx::Error> {
        Ok(self.number(column)? != 0)
    }
    /// A text as one of our types.
    pub(crate) fn parsed<T: FromStr<Err: Display>>(&self, column: &str) -> Result<T, sqlx::Error> {
        self.text(column)?.parse().map_err(|error: T::Err| undecodable(column, error))
    }
    pub(crate) fn maybe_parsed<T: FromStr<Err: Display>>(
        &self,
        column: &str,
    ) -> Result<Option<T>, sqlx::Error> {
        let text = self.maybe_text(column)?;
        text.map(|text| text.parse().map_err(|error: T::Err| undecodable(column, error))).transpose()
    }
    pub(crate) fn maybe_role(&self, column: &str) -> Result<Option<Role>, sqlx::Error> {
        let text = self.maybe_text(column)?;
        text.map(|text| Role::parse(&text).ok_or_else(|| undecodable(column, text))).transpose()
    }
    /// A document in a text column.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(&self, column: &str) -> Result<T, sqlx::Error> {
        serde_json::from_str(&self.text(column)?).map_err(|error| undecodable(column, error))
    }
    pub(crate) fn time(&self, column: &str) -> Result<Timestamp, sqlx::Error> {
        Timestamp::from_millisecond(self.number(column)?).map_err(|error| undecodable(column, error))
    }
    pub(crate) fn maybe_time(&self, column: &str) -> Result<Option<Timestamp>, sqlx::Error> {
        let number = self.maybe_number(column)?;
        number
            .map(|number| Timestamp::from_millisecond(number).map_err(|error| undecodable(column, error)))
            .transpose()
    }
}

/// The error of a row that does not hold what it should.
pub(crate) fn undecodable(column: &str, why: impl Display) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source: why.to_string().into() }
}

/// A value that a row can be read as.
pub(crate) trait Read: Sized {
    fn read(row: &Row) -> Result<Self, sqlx::Error>;
}

/// The column `n` of a `SELECT COUNT(*) AS n`.
pub(crate) struct Count(pub(crate) i64);

impl Read for Count {
    fn read(row: &Row) -> Result<Count, sqlx::Error> {
        Ok(Count(row.number("n")?))
    }
}

/// sqlx's own statement; the two databases' types differ, the text does not.
macro_rules! ready {
    ($statement:expr) => {{
        let statement = $statement;
        statement.storable()?;
        let mut query = sqlx::query(statement.text);
        for value in statement.values {
            query = match value {
                Value::Text(text) => query.bind(text),
                Value::Number(number) => query.bind(number),
            };
        }
        query
    }};
}

macro_rules! all {
    ($statement:expr, $on:expr, $row:path) => {{
        let rows = ready!($statement).fetch_all($on).await?;
        Ok(rows.into_iter().map(|row| T::read(&$row(row))).collect::<Result<_, _>>()?)
    }};
}
macro_rules! one {
    ($statement:expr, $on:expr, $row:path) => {{
        let row = ready!($statement).fetch_optional($on).await?;
        Ok(row.map(|row| T::read(&$row(row))).transpose()?)
    }};
}
macro_rules! run {
    ($statement:expr, $on:expr) => {
        Ok(ready!($statement).execute($on).await?.rows_affected())
    };
}

impl Db {
    /// Every row.
    pub(crate) async fn all<T: Read>(&self, statement: Statement) -> Result<Vec<T>, DbError> {
        match &self.pool {
            Pool::Sqlite(pool) => all!(statement, pool, Row::Sqlite),
            Pool::Postgres(pool) => all!(statement, pool, Row::Postgres),
        }
    }
    /// The first row, if there is one.
    pub(crate) async fn one<T: Read>(&self, statement: Statement) -> Result<Option<T>, DbError> {
        match &self.pool {
            Pool::Sqlite(pool) => one!(statement, pool, Row::Sqlite),
            Pool::Postgres(pool) => one!(statement, pool, Row::Postgres),
        }
    }
    /// How many rows it touched.
    pub(crate) async fn run(&self, statement: Statement) -> Result<u64, DbError> {
        match &self.pool {
            Pool::Sqlite(pool) => run!(statement, pool),
            Pool::Postgres(pool) => run!(statement, pool),
        }
    }
    /// A transaction that writes. Dropped, it is undone.
    ///
    /// On SQLite it is alone from its beginning. On PostgreSQL each statement sees what others committed
    /// before it, so whoever decides on what it reads first locks the row that the decision is about, with
    /// an `UPDATE` that changes nothing: both databases know that, and only one knows `FOR UPDATE`.
    pub(crate) async fn begin(&self) -> Result<Tx, DbError> {
        Ok(match &self.pool {
            Pool::Sqlite(pool) => Tx::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?),
            Pool::Postgres(pool) => Tx::Postgres(pool.begin().await?),
        })
    }
}

/// See [`Db::begin`].
pub(crate) enum Tx {
    Sqlite(sqlx::Transaction<'static, Sqlite>),
    Postgres(sqlx::Transaction<'static, Postgres>),
}

impl Tx {
    /// Every row.
    pub(crate) async fn all<T: Read>(&mut self, statement: Statement) -> Result<Vec<T>, DbError> {
        match self {
            Tx::Sqlite(tx) => all!(statement, &mut **tx, Row::Sqlite),
            Tx::Postgres(tx) => all!(statement, &mut **tx, Row::Postgres),
        }
    }
    /// The first row, if there is one.
    pub(crate) async fn one<T: Read>(&mut self, statement: Statement) -> Result<Option<T>, DbError> {
        match self {
            Tx::Sqlite(tx) => one!(statement, &mut **tx, Row::Sqlite),
            Tx::Postgres(tx) => one!(statement, &mut **tx, Row::Postgres),
        }
    }
    /// How many rows it touched.
    pub(crate) async fn run(&mut self, statement: Statement) -> Result<u64, DbError> {
        match self {
            Tx::Sqlite(tx) => run!(statement, &mut **tx),
            Tx::Postgres(tx) => run!(statement, &mut **tx),
        }
    }
    pub(crate) async fn commit(self) -> Result<(), DbError> {
        match self {
            Tx::Sqlite(tx) => tx.commit().await?,
            Tx::Postgres(tx) => tx.commit().await?,
        }
        Ok(())
    }
}
