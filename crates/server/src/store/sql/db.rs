//! One small face for both databases: a connection, its arguments and its rows.
//!
//! The SQL of this folder is written once, with `$1`, integers and texts, which SQLite and PostgreSQL both
//! take. Where they differ (locks, arrays), [`Conn::is_postgres`] decides. Owns: how values go in and come
//! out, and how many rows go in one statement.

use futures_util::TryStreamExt as _;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Postgres, Row as _, Sqlite};

/// Parameters of one SQLite statement; what does not fit goes in the next statement.
const PARAMETERS_MAX: usize = 16_000;

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

/// A connection of either kind.
pub(crate) enum Conn {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>),
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

impl Conn {
    /// PostgreSQL, not SQLite.
    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    /// All rows.
    pub(crate) async fn rows(&mut self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>, DbError> {
        match self {
            Self::Sqlite(conn) => {
                let rows = bind_sqlite(sql, args).fetch_all(&mut **conn).await?;
                Ok(rows
                    .into_iter()
                    .map(|row| Row { inner: Inner::Sqlite(row), column: 0 })
                    .collect())
            }
            Self::Postgres(conn) => {
                let rows = bind_postgres(sql, args).fetch_all(&mut **conn).await?;
                Ok(rows
                    .into_iter()
                    .map(|row| Row { inner: Inner::Postgres(row), column: 0 })
                    .collect())
            }
        }
    }

    /// Each row as it comes, so that there may be more of them than memory has room for.
    pub(crate) async fn each<E: From<DbError>>(
        &mut self,
        sql: &str,
        mut take: impl FnMut(Row) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Sqlite(conn) => {
                let mut rows = bind_sqlite(sql, Vec::new()).fetch(&mut **conn);
                while let Some(row) = rows.try_next().await? {
                    take(Row { inner: Inner::Sqlite(row), column: 0 })?;
                }
            }
            Self::Postgres(conn) => {
                let mut rows = bind_postgres(sql, Vec::new()).fetch(&mut **conn);
                while let Some(row) = rows.try_next().await? {
                    take(Row { inner: Inner::Postgres(row), column: 0 })?;
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
        match self {
            Self::Sqlite(conn) => {
                Ok(bind_sqlite(sql, args).execute(&mut **conn).await?.rows_affected())
            }
            Self::Postgres(conn) => {
                Ok(bind_postgres(sql, args).execute(&mut **conn).await?.rows_affected())
            }
        }
    }

    /// Begins a transaction that will write. SQLite takes the write lock now: a transaction that began
    /// reading could not wait for it later.
    pub(crate) async fn begin(&mut self) -> Result<(), DbError> {
        let begin = if self.is_postgres() { "BEGIN" } else { "BEGIN IMMEDIATE" };
        self.execute(begin, Vec::new()).await.map(drop)
    }

    /// Ends it; what it did is durable.
    pub(crate) async fn commit(&mut self) -> Result<(), DbError> {
        self.execute("COMMIT", Vec::new()).await.map(drop)
    }

    /// Closes the connection instead of giving it back: what it had begun ends with it.
    pub(crate) fn discard(self) {
        match self {
            Self::Sqlite(mut conn) => conn.close_on_drop(),
            Self::Postgres(mut conn) => conn.close_on_drop(),
        }
    }

    /// Ends it; it did nothing. A connection that cannot even do this must be closed.
    pub(crate) async fn rollback(&mut self) -> Result<(), DbError> {
        self.execute("ROLLBACK", Vec::new()).await.map(drop)
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

    /// Writes all of it: on PostgreSQL as one statement, whose text depends on the tables only; on SQLite as
    /// statements that are sent together. Returns what the last one returns.
    pub(crate) async fn write(&mut self, writes: Writes<'_>) -> Result<Vec<Row>, DbError> {
        if writes.0.is_empty() {
            return Ok(Vec::new());
        }
        let mut args = Vec::new();
        let sql = if self.is_postgres() {
            postgres_text(writes, &mut args)
        } else {
            sqlite_text(writes, &mut args)
        };
        match self {
            // The text depends on the number of rows: kept prepared, it would push others out.
            Self::Sqlite(conn) => {
                let rows = bind_sqlite(&sql, args).persistent(false).fetch_all(&mut **conn).await?;
                Ok(rows.into_iter().map(Row::sqlite).collect())
            }
            Self::Postgres(_) => self.rows(&sql, args).await,
        }
    }
}

/// Rows to be written, table by table. No row is written twice.
#[derive(Default)]
pub(crate) struct Writes<'a>(Vec<Write<'a>>);

struct Write<'a> {
    table: &'a str,
    columns: Vec<(&'a str, Kind)>,
    rows: Vec<Vec<Value>>,
    what: What<'a>,
}

enum What<'a> {
    /// With what follows the rows.
    Insert(&'a str),
    /// With what is set; each row is found by its first column.
    Update(String),
}

impl<'a> Writes<'a> {
    fn push(
        &mut self,
        table: &'a str,
        columns: &[(&'a str, Kind)],
        rows: Vec<Vec<Value>>,
        what: What<'a>,
    ) {
        if !rows.is_empty() {
            self.0.push(Write { table, columns: columns.to_vec(), rows, what });
        }
    }

    /// Inserts rows; `tail` follows them.
    pub(crate) fn insert(
        &mut self,
        table: &'a str,
        columns: &[(&'a str, Kind)],
        rows: Vec<Vec<Value>>,
        tail: &'a str,
    ) {
        self.push(table, columns, rows, What::Insert(tail));
    }

    /// Sets `columns` of many rows, each found by the first column.
    pub(crate) fn update(
        &mut self,
        table: &'a str,
        columns: &[(&'a str, Kind)],
        rows: Vec<Vec<Value>>,
    ) {
        let set = |(at, (name, _)): (usize, &(&str, Kind))| format!("{name} = v.column{}", at + 1);
        let sets: Vec<_> = columns.iter().enumerate().skip(1).map(set).collect();
        self.push(table, columns, rows, What::Update(sets.join(", ")));
    }

    /// Does `sets`, in which `v.column2` is a row's second value, to many rows, each found by the first.
    pub(crate) fn update_with(
        &mut self,
        table: &'a str,
        columns: &[(&'a str, Kind)],
        sets: &str,
        rows: Vec<Vec<Value>>,
    ) {
        self.push(table, columns, rows, What::Update(sets.to_owned()));
    }
}

impl Write<'_> {
    /// The statement, with rows from `source`: a table expression with columns `column1`, …
    fn text(&self, source: &str) -> String {
        let table = self.table;
        let key = self.columns.first().map_or("id", |(name, _)| name);
        match &self.what {
            What::Insert(tail) => {
                let names: Vec<_> = self.columns.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                // The WHERE keeps `ON CONFLICT` from being read as a join's condition.
                format!("INSERT INTO {table} ({names}) SELECT * FROM {source} WHERE true {tail}")
            }
            What::Update(sets) => {
                format!("UPDATE {table} SET {sets} FROM {source} WHERE {table}.{key} = v.column1")
            }
        }
    }
}

fn postgres_text(writes: Writes<'_>, args: &mut Vec<Value>) -> String {
    let mut texts = Vec::new();
    for mut write in writes.0 {
        let names: Vec<_> = (1..=write.columns.len()).map(|at| format!("column{at}")).collect();
        let rows = std::mem::take(&mut write.rows);
        let (arrays, values) = transpose(&write.columns, rows, args.len());
        args.extend(values);
        texts.push(write.text(&format!("unnest({arrays}) AS v({})", names.join(", "))));
    }
    let last = texts.pop().unwrap_or_default();
    if texts.is_empty() {
        return last;
    }
    let with: Vec<_> =
        texts.iter().enumerate().map(|(at, text)| format!("w{at} AS ({text})")).collect();
    format!("WITH {} {last}", with.join(", "))
}

fn sqlite_text(writes: Writes<'_>, args: &mut Vec<Value>) -> String {
    let mut texts = Vec::new();
    for mut write in writes.0 {
        let chunk = (PARAMETERS_MAX / write.columns.len().max(1)).max(1);
        let mut rows = std::mem::take(&mut write.rows).into_iter().peekable();
        while rows.peek().is_some() {
            let some: Vec<_> = rows.by_ref().take(chunk).collect();
            let values = placeholders(some.len(), write.columns.len(), args.len());
            texts.push(write.text(&format!("(VALUES {values}) AS v")));
            args.extend(some.into_iter().flatten());
        }
    }
    texts.join("; ")
}

/// `($1, $2), ($3, $4)`, the first number after `before`.
fn placeholders(rows: usize, columns: usize, before: usize) -> String {
    let mut text = String::new();
    for row in 0..rows {
        text.push_str(if row == 0 { "(" } else { ", (" });
        for column in 1..=columns {
            if column > 1 {
                text.push_str(", ");
            }
            text.push('$');
            text.push_str(&(before + row * columns + column).to_string());
        }
        text.push(')');
    }
    text
}

/// One array a column, and `$1::bigint[], $2::text[]`.
fn transpose(
    columns: &[(&str, Kind)],
    rows: Vec<Vec<Value>>,
    before: usize,
) -> (String, Vec<Value>) {
    let mut arrays: Vec<Column> = columns
        .iter()
        .map(|(_, kind)| match kind {
            Kind::Int => Column::Ints(Vec::with_capacity(rows.len())),
            Kind::Text => Column::Texts(Vec::with_capacity(rows.len())),
        })
        .collect();
    for row in rows {
        for (array, value) in arrays.iter_mut().zip(row) {
            match (array, value) {
                (Column::Ints(values), Value::Int(value)) => values.push(value),
                (Column::Texts(values), Value::Text(value)) => values.push(value),
                (Column::Ints(values), _) => values.push(None),
                (Column::Texts(values), _) => values.push(None),
            }
        }
    }
    let text: Vec<_> = columns
        .iter()
        .enumerate()
        .map(|(at, (_, kind))| match kind {
            Kind::Int => format!("${}::bigint[]", before + at + 1),
            Kind::Text => format!("${}::text[]", before + at + 1),
        })
        .collect();
    (text.join(", "), arrays.into_iter().map(Value::Column).collect())
}
