//! What people administrate: workspaces, members, tokens, agents, skills, projects, issues. One file a noun.
//!
//! Each function is one transaction's work or one read. They check what the database could not (that things
//! belong to one workspace); who may call them is decided before. Records are spelled as `/api/v1` answers
//! them, so that commands on the same machine print the same.

pub(crate) mod agents;
pub(crate) mod attachments;
pub(crate) mod comments;
pub(crate) mod deliveries;
pub(crate) mod issues;
pub(crate) mod members;
pub(crate) mod projects;
pub(crate) mod repositories;
pub(crate) mod runtimes;
pub(crate) mod skills;
pub(crate) mod tasks;
pub(crate) mod time;
pub(crate) mod tokens;
pub(crate) mod usage;
pub(crate) mod why;
pub(crate) mod workspaces;

use ostler_core::clock::Timestamp;
use serde::{Serialize, Serializer};

use super::db::{Conn, DbError, Row, Value, args};
use super::lane::Tx;
use crate::store::StoreError;

/// An instant of a record; the wires' spelling is RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At(pub(crate) i64);

impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&crate::http::instant(Timestamp::from_micros(self.0)))
    }
}

/// A thing that is named beside another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Named {
    pub(crate) id: i64,
    pub(crate) name: String,
}

/// A person or an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Actor {
    /// `user` or `agent`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) id: i64,
    pub(crate) name: String,
}

/// An issue that is named beside another thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct IssueBrief {
    /// `ACM-231`
    pub(crate) id: String,
    pub(crate) title: String,
}

/// Which part of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    /// From 1.
    pub(crate) number: i64,
    pub(crate) size: i64,
}

impl Page {
    /// The highest page: what lies beyond is found by filters.
    pub(crate) const NUMBER_MAX: i64 = 1_000_000;
    /// Entries of a page.
    pub(crate) const SIZE_MAX: i64 = 100;

    /// One row more than fits, to know whether there is more.
    fn limit(self) -> String {
        let offset = (self.number - 1).saturating_mul(self.size);
        format!("LIMIT {} OFFSET {offset}", self.size + 1)
    }
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part<T> {
    pub(crate) items: Vec<T>,
    /// There is another page.
    pub(crate) more: bool,
}

/// Reads one page; `sql` has no LIMIT yet.
async fn part<T>(
    conn: &mut Conn,
    sql: &str,
    args: Vec<Value>,
    page: Page,
    read: impl Fn(&mut Row) -> Result<T, DbError>,
) -> Result<Part<T>, StoreError> {
    let sql = format!("{sql} {}", page.limit());
    let mut rows = conn.rows(&sql, args).await?;
    let size = usize::try_from(page.size).unwrap_or(0);
    let more = rows.len() > size;
    rows.truncate(size);
    let items = rows.iter_mut().map(read).collect::<Result<_, _>>()?;
    Ok(Part { items, more })
}

/// Conditions that grow, with their arguments.
struct Filter {
    sql: String,
    args: Vec<Value>,
}

impl Filter {
    fn new(sql: &str, args: Vec<Value>) -> Self {
        Self { sql: sql.to_owned(), args }
    }

    /// `column = value`, when there is a value.
    fn and(&mut self, column: &str, value: Option<impl Into<Value>>) {
        self.compare(column, "=", value);
    }

    fn compare(&mut self, column: &str, operator: &str, value: Option<impl Into<Value>>) {
        let Some(value) = value else { return };
        self.args.push(value.into());
        self.sql.push_str(&format!(" AND {column} {operator} ${}", self.args.len()));
    }

    /// The column is one of these, when there are any.
    fn any(&mut self, conn: &Conn, column: &str, values: &[String]) {
        if !values.is_empty() {
            self.args.push(Value::from(values.to_vec()));
            self.sql.push_str(&format!(" AND {}", conn.any(column, self.args.len())));
        }
    }
}

/// Rows that are locked until the transaction ends; SQLite locks everything anyway.
fn locking(conn: &Conn) -> &'static str {
    if conn.is_postgres() { "FOR NO KEY UPDATE" } else { "" }
}

fn invalid(field: &'static str, fault: impl Into<String>) -> StoreError {
    StoreError::Invalid { field, fault: fault.into() }
}

/// Columns that belong together, read as one when the first is there.
fn named(row: &mut Row) -> Result<Option<Named>, DbError> {
    let (id, name) = (row.opt_int()?, row.opt_text()?);
    Ok(id.map(|id| Named { id, name: name.unwrap_or_default() }))
}

fn actor(row: &mut Row) -> Result<Option<Actor>, DbError> {
    let (kind, id, name) = (row.opt_text()?, row.opt_int()?, row.opt_text()?);
    Ok(kind.zip(id).map(|(kind, id)| Actor { kind, id, name: name.unwrap_or_default() }))
}

fn opt_at(row: &mut Row) -> Result<Option<At>, DbError> {
    Ok(row.opt_int()?.map(At))
}

fn at(row: &mut Row) -> Result<At, DbError> {
    row.int().map(At)
}

/// Milliseconds of work as people read them: whole minutes, at least one when there was any.
fn minutes(ms: i64) -> i64 {
    if ms <= 0 { 0 } else { ((ms + 30_000) / 60_000).max(1) }
}

/// Sets columns of the row with this id; their names. Nothing is done when there are none.
async fn update(
    tx: &mut Tx,
    table: &str,
    id: i64,
    sets: Vec<(&'static str, Value)>,
    dated: bool,
) -> Result<Vec<&'static str>, StoreError> {
    if sets.is_empty() {
        return Ok(Vec::new());
    }
    let mut args = args![id];
    let (mut text, mut names) = (Vec::new(), Vec::new());
    for (name, value) in sets {
        args.push(value);
        text.push(format!("{name} = ${}", args.len()));
        names.push(name);
    }
    if dated {
        args.push(Value::from(tx.now.as_micros()));
        text.push(format!("updated_at = ${}", args.len()));
    }
    let sql = format!("UPDATE {table} SET {} WHERE id = $1", text.join(", "));
    tx.conn.execute(&sql, args).await?;
    Ok(names)
}
