//! One small face for both databases: a connection, its arguments and its rows.
//!
//! The SQL of this folder is written once, with `$1`, integers and texts, which SQLite and PostgreSQL both
//! take. Where they differ (locks, arrays), [`Conn::is_postgres`] decides. Owns: how values go in and come
//! out, and what becomes of a transaction whose work was given up.

#[cfg(debug_assertions)]
mod kill;
mod writes;

use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Postgres, Row as _, Sqlite};

/// Takes SQLite's write lock.
const BEGIN_SQLITE: &str = "BEGIN IMMEDIATE";

use self::writes::Statement;
pub(crate) use self::writes::Writes;

/// What can go wrong with a database.
pub(crate) type DbError = sqlx::Error;

/// An argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Vec<u8>),
    Ints(Vec<i64>),
    Texts(Vec<String>),
    /// A column of many rows; PostgreSQL only.
    Column(Column),
}

/// The values of one column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Column {
    Ints(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
}

impl From<Vec<i64>> for Value {
    fn from(values: Vec<i64>) -> Self {
        Self::Ints(values)
    }
}

impl From<Vec<String>> for Value {
    fn from(values: Vec<String>) -> Self {
        Self::Texts(values)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}

impl From<Option<i64>> for Value {
    fn from(value: Option<i64>) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Int(Some(i64::from(value)))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(Some(value.to_owned()))
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(Some(value))
    }
}

impl From<&String> for Value {
    fn from(value: &String) -> Self {
        Self::Text(Some(value.clone()))
    }
}

impl From<Option<String>> for Value {
    fn from(value: Option<String>) -> Self {
        Self::Text(value)
    }
}

impl From<Option<&str>> for Value {
    fn from(value: Option<&str>) -> Self {
        Self::Text(value.map(str::to_owned))
    }
}

/// The arguments of a statement, in order.
macro_rules! args {
    ($($value:expr),* $(,)?) => { vec![$($crate::store::sql::db::Value::from($value)),*] };
}
pub(crate) use args;

/// What a column holds; PostgreSQL must know it for arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Int,
    Text,
}

/// A connection of either kind. One that is dropped within a transaction is closed, which ends that.
pub(crate) struct Conn {
    kind: Pooled,
    in_transaction: bool,
    /// How long an answer is waited for.
    wait_max: Option<Duration>,
}

enum Pooled {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>),
}

impl Drop for Conn {
    fn drop(&mut self) {
        if self.in_transaction {
            self.close_on_drop();
        }
    }
}

/// A row of either kind, read from left to right.
pub(crate) struct Row {
    inner: Inner,
    column: usize,
}

enum Inner {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

macro_rules! take {
    ($name:ident, $type:ty) => {
        /// The next column.
        pub(crate) fn $name(&mut self) -> Result<$type, DbError> {
            let column = self.column;
            self.column += 1;
            match &self.inner {
                Inner::Sqlite(row) => row.try_get(column),
                Inner::Postgres(row) => row.try_get(column),
            }
        }
    };
}

impl Row {
    fn sqlite(row: SqliteRow) -> Self {
        Self { inner: Inner::Sqlite(row), column: 0 }
    }

    fn postgres(row: PgRow) -> Self {
        Self { inner: Inner::Postgres(row), column: 0 }
    }

    take!(int, i64);
    take!(opt_int, Option<i64>);
    take!(text, String);
    take!(opt_text, Option<String>);
    take!(bytes, Vec<u8>);

    /// The next column, which is 0 or 1.
    pub(crate) fn flag(&mut self) -> Result<bool, DbError> {
        Ok(self.int()? != 0)
    }
}

fn bind_sqlite(sql: &str, args: Vec<Value>) -> Query<'static, Sqlite, SqliteArguments> {
    let mut query = sqlx::query(AssertSqlSafe(sql.to_owned()));
    for arg in args {
        query = match arg {
            Value::Int(value) => query.bind(value),
            Value::Text(value) => query.bind(value),
            Value::Bytes(value) => query.bind(value),
            // For `IN (SELECT value FROM json_each($1))`.
            Value::Ints(values) => query.bind(serde_json::json!(values).to_string()),
            Value::Texts(values) => query.bind(serde_json::json!(values).to_string()),
            Value::Column(Column::Ints(values)) => {
                query.bind(serde_json::json!(values).to_string())
            }
            Value::Column(Column::Texts(values)) => {
                query.bind(serde_json::json!(values).to_string())
            }
        };
    }
    query
}

fn bind_postgres(sql: &str, args: Vec<Value>) -> Query<'static, Postgres, PgArguments> {
    let mut query = sqlx::query(AssertSqlSafe(sql.to_owned()));
    for arg in args {
        query = match arg {
            Value::Int(value) => query.bind(value),
            Value::Text(value) => query.bind(value),
            Value::Bytes(value) => query.bind(value),
            Value::Ints(values) => query.bind(values),
            Value::Texts(values) => query.bind(values),
            Value::Column(Column::Ints(values)) => query.bind(values),
            Value::Column(Column::Texts(values)) => query.bind(values),
        };
    }
    query
}

/// Before and after each statement.
fn moment() {
    #[cfg(debug_assertions)]
    kill::moment();
}

impl Conn {
    pub(crate) fn sqlite(conn: PoolConnection<Sqlite>) -> Self {
        Self { kind: Pooled::Sqlite(conn), in_transaction: false, wait_max: None }
    }

    pub(crate) fn postgres(conn: PoolConnection<Postgres>) -> Self {
        Self { kind: Pooled::Postgres(conn), in_transaction: false, wait_max: None }
    }

    /// The same connection, whose rows are waited for no longer than this. (A lane has a bound for all it does.)
    pub(crate) fn bounded(mut self, wait_max: Duration) -> Self {
        self.wait_max = Some(wait_max);
        self
    }

    /// PostgreSQL, not SQLite.
    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.kind, Pooled::Postgres(_))
    }

    /// All rows.
    pub(crate) async fn rows(&mut self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>, DbError> {
        let Some(wait_max) = self.wait_max else { return self.all_rows(sql, args).await };
        match tokio::time::timeout(wait_max, self.all_rows(sql, args)).await {
            Ok(rows) => rows,
            Err(_) => {
                // What was asked may still be answered, to whoever has it next.
                self.close_on_drop();
                Err(DbError::Io(std::io::ErrorKind::TimedOut.into()))
            }
        }
    }

    async fn all_rows(&mut self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>, DbError> {
        moment();
        let rows: Vec<Row> = match &mut self.kind {
            Pooled::Sqlite(conn) => {
                let rows = bind_sqlite(sql, args).fetch_all(&mut **conn).await?;
                rows.into_iter().map(Row::sqlite).collect()
            }
            Pooled::Postgres(conn) => {
                let rows = bind_postgres(sql, args).fetch_all(&mut **conn).await?;
                rows.into_iter().map(Row::postgres).collect()
            }
        };
        moment();
        Ok(rows)
    }

    /// Each row as it comes, so that there may be more of them than memory has room for.
    pub(crate) async fn each<E: From<DbError>>(
        &mut self,
        sql: &str,
        mut take: impl FnMut(Row) -> Result<(), E>,
    ) -> Result<(), E> {
        match &mut self.kind {
            Pooled::Sqlite(conn) => {
                let mut rows = bind_sqlite(sql, Vec::new()).fetch(&mut **conn);
                while let Some(row) = rows.try_next().await? {
                    take(Row::sqlite(row))?;
                }
            }
            Pooled::Postgres(conn) => {
                let mut rows = bind_postgres(sql, Vec::new()).fetch(&mut **conn);
                while let Some(row) = rows.try_next().await? {
                    take(Row::postgres(row))?;
                }
            }
        }
        Ok(())
    }

    /// The first row, if there is one.
    pub(crate) async fn row(
        &mut self,
        sql: &str,
        args: Vec<Value>,
    ) -> Result<Option<Row>, DbError> {
        Ok(self.rows(sql, args).await?.into_iter().next())
    }

    /// The one number that a statement answers (an `INSERT … RETURNING id`, a count).
    pub(crate) async fn number(&mut self, sql: &str, args: Vec<Value>) -> Result<i64, DbError> {
        self.row(sql, args).await?.ok_or(sqlx::Error::RowNotFound)?.int()
    }

    /// How many rows it changed.
    pub(crate) async fn execute(&mut self, sql: &str, args: Vec<Value>) -> Result<u64, DbError> {
        moment();
        let changed = match &mut self.kind {
            Pooled::Sqlite(conn) => {
                bind_sqlite(sql, args).execute(&mut **conn).await?.rows_affected()
            }
            Pooled::Postgres(conn) => {
                bind_postgres(sql, args).execute(&mut **conn).await?.rows_affected()
            }
        };
        moment();
        Ok(changed)
    }

    /// Begins a transaction that will write. SQLite takes the write lock now: a transaction that began
    /// reading could not wait for it later.
    pub(crate) async fn begin(&mut self) -> Result<(), DbError> {
        self.in_transaction = true;
        let begin = if self.is_postgres() { "BEGIN" } else { BEGIN_SQLITE };
        self.execute(begin, Vec::new()).await.map(drop)
    }

    /// Ends it; what it did is durable. After an error it may still be open: drop the connection.
    pub(crate) async fn commit(&mut self) -> Result<(), DbError> {
        self.execute("COMMIT", Vec::new()).await?;
        self.in_transaction = false;
        Ok(())
    }

    /// Ends it; it did nothing. After an error it may still be open: drop the connection.
    pub(crate) async fn rollback(&mut self) -> Result<(), DbError> {
        self.execute("ROLLBACK", Vec::new()).await?;
        self.in_transaction = false;
        Ok(())
    }

    /// Closes the connection when it is dropped, instead of giving it back.
    pub(crate) fn close_on_drop(&mut self) {
        match &mut self.kind {
            Pooled::Sqlite(conn) => conn.close_on_drop(),
            Pooled::Postgres(conn) => conn.close_on_drop(),
        }
    }

    /// `column = any of the argument`, for a list in argument `$n`.
    pub(crate) fn any(&self, column: &str, n: usize) -> String {
        if self.is_postgres() {
            format!("{column} = ANY(${n})")
        } else {
            format!("{column} IN (SELECT value FROM json_each(${n}))")
        }
    }

    /// Inserts rows. `tail` follows them (`ON CONFLICT …`, `RETURNING …`); what it returns is returned.
    pub(crate) async fn insert_many(
        &mut self,
        table: &str,
        columns: &[(&str, Kind)],
        rows: Vec<Vec<Value>>,
        tail: &str,
    ) -> Result<Vec<Row>, DbError> {
        let mut writes = Writes::default();
        writes.insert(table, columns, rows, tail);
        self.write(writes).await
    }

    /// Writes all of it within a transaction that was begun: on PostgreSQL as one statement, whose text depends
    /// on the tables only; on SQLite as statements that are sent together. Returns what they return.
    pub(crate) async fn write(&mut self, writes: Writes<'_>) -> Result<Vec<Row>, DbError> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let statement = writes.statement(self.is_postgres());
        self.send(statement).await
    }

    /// Writes all of it in a transaction of its own, with one message to the database and back. On an error
    /// nothing was written, unless the connection broke: then nobody knows.
    pub(crate) async fn write_alone(&mut self, writes: Writes<'_>) -> Result<(), DbError> {
        if writes.is_empty() {
            return Ok(());
        }
        let mut statement = writes.statement(self.is_postgres());
        if self.is_postgres() {
            return self.send(statement).await.map(drop);
        }
        self.in_transaction = true;
        statement.text = format!("{BEGIN_SQLITE}; {}; COMMIT", statement.text);
        let sent = self.send(statement).await;
        match sent {
            Ok(_) => self.in_transaction = false,
            // It stopped at the statement that failed.
            Err(_) => self.rollback().await.unwrap_or(()),
        }
        sent.map(drop)
    }

    async fn send(&mut self, statement: Statement) -> Result<Vec<Row>, DbError> {
        let Statement { text, args, is_kept } = statement;
        match &mut self.kind {
            Pooled::Sqlite(conn) => {
                moment();
                let query = bind_sqlite(&text, args).persistent(is_kept);
                let rows = query.fetch_all(&mut **conn).await?;
                moment();
                Ok(rows.into_iter().map(Row::sqlite).collect())
            }
            Pooled::Postgres(_) => self.rows(&text, args).await,
        }
    }
}
