//! Into an empty database.

use std::collections::BTreeSet;
use std::io::{BufRead, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::{
    Column, ColumnKind, End, FORMAT, Head, META, META_KEY, Moved, Table, TableHead, TransferError,
};
use crate::secrets::Keyring;
use crate::store::sql::db::{Conn, DbError, Kind, Value, args};
use crate::store::sql::{SqlStore, migrate};

/// Bytes of one line: a row with its attachment.
const LINE_BYTES_MAX: u64 = 256 << 20;
/// Rows that one statement inserts.
const ROWS_MAX: usize = 500;
/// Bytes of lines that are read before what they say is inserted.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Reads all of it.
pub(crate) async fn import(store: &SqlStore, mut lines: Lines<'_>) -> Result<Moved, TransferError> {
    let mut conn = store.shared().connect_raw().await?;
    conn.begin().await?;
    let done = match fill(&mut conn, &mut lines).await {
        Ok(moved) => conn.commit().await.map(|()| moved).map_err(Into::into),
        Err(error) => {
            conn.rollback().await?;
            Err(error)
        }
    };
    if done.is_ok() {
        // Without it the first queries are planned for empty tables; they work, too.
        let _ = conn.execute("ANALYZE", args![]).await;
    }
    done
}

/// An export, behind its first line.
pub(crate) struct Lines<'i> {
    input: &'i mut (dyn BufRead + Send),
    number: u64,
    text: Vec<u8>,
}

impl Lines<'_> {
    /// The next line as JSON, and its bytes.
    fn next(&mut self) -> Result<Option<(Json, usize)>, TransferError> {
        self.text.clear();
        self.number += 1;
        let read = (&mut self.input).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut self.text);
        let bytes = read.map_err(|source| TransferError::Io { doing: "read", source })?;
        if bytes == 0 {
            return Ok(None);
        }
        if bytes as u64 > LINE_BYTES_MAX {
            return Err(self.fault(format!("it has more than {LINE_BYTES_MAX} bytes")));
        }
        let value = serde_json::from_slice(&self.text);
        // A line without its end is one that was cut.
        if self.text.last() != Some(&b'\n') {
            return Err(if self.number == 1 {
                TransferError::NotAnExport
            } else {
                TransferError::Cut
            });
        }
        match value {
            Ok(value) => Ok(Some((value, bytes))),
            Err(_) if self.number == 1 => Err(TransferError::NotAnExport),
            // What a line holds is somebody's secret, so the parser's words are not shown.
            Err(_) => Err(self.fault("it is no JSON")),
        }
    }

    fn fault(&self, fault: impl Into<String>) -> TransferError {
        TransferError::Line { line: self.number, fault: fault.into() }
    }
}

/// Reads the first line: an export of ours, with tables and a secret key as here.
pub(crate) fn check_head<'i>(
    input: &'i mut (dyn BufRead + Send),
    keyring: &Keyring,
) -> Result<Lines<'i>, TransferError> {
    let mut lines = Lines { input, number: 0, text: Vec::new() };
    let (head, _) = lines.next()?.ok_or(TransferError::NotAnExport)?;
    let head: Head = serde_json::from_value(head).map_err(|_| TransferError::NotAnExport)?;
    if head.ostler_server_export != FORMAT {
        return Err(TransferError::NotAnExport);
    }
    let (found, known) = (head.tables_version, migrate::newest());
    if found != known {
        return Err(TransferError::Version { found, known });
    }
    if head.key_fingerprint != keyring.fingerprint() {
        return Err(TransferError::OtherKey);
    }
    Ok(lines)
}

async fn fill(conn: &mut Conn, lines: &mut Lines<'_>) -> Result<Moved, TransferError> {
    let tables = super::tables(conn).await?;
    for table in tables.iter().filter(|table| table.name != META) {
        let sql = format!("SELECT 1 FROM {} LIMIT 1", table.name);
        if conn.row(&sql, args![]).await?.is_some() {
            return Err(TransferError::NotEmpty { table: table.name.clone() });
        }
    }
    let mut moved = Moved { tables: 0, rows: 0 };
    let mut seen = BTreeSet::new();
    let mut filling: Option<Filling> = None;
    while let Some((value, bytes)) = lines.next()? {
        match value {
            Json::Array(values) => {
                let table =
                    filling.as_mut().ok_or_else(|| lines.fault("a row before any table"))?;
                let row = table.row(values).map_err(|fault| lines.fault(fault))?;
                moved.rows += 1;
                table.add(conn, row, bytes).await.map_err(|error| refused(lines, error))?;
            }
            value if value.get("end_after_rows").is_some() => {
                if let Some(mut table) = filling.take() {
                    table.flush(conn).await.map_err(|error| refused(lines, error))?;
                }
                let end: End = serde_json::from_value(value).map_err(|_| TransferError::Cut)?;
                if end.end_after_rows != moved.rows {
                    return Err(lines.fault("it counts other rows than there are"));
                }
                return match lines.next()? {
                    None => Ok(moved),
                    Some(_) => Err(lines.fault("nothing may follow the last line")),
                };
            }
            value => {
                if let Some(mut table) = filling.take() {
                    table.flush(conn).await.map_err(|error| refused(lines, error))?;
                }
                let head: TableHead =
                    serde_json::from_value(value).map_err(|_| lines.fault("it is none of ours"))?;
                if !seen.insert(head.table.clone()) {
                    return Err(lines.fault("this table was there before"));
                }
                filling = Some(Filling::of(&tables, head).map_err(|fault| lines.fault(fault))?);
                moved.tables += 1;
            }
        }
    }
    Err(TransferError::Cut)
}

/// The database's own words, and about where.
fn refused(lines: &Lines<'_>, error: DbError) -> TransferError {
    match &error {
        DbError::Database(refusal) => {
            lines.fault(format!("the database refused it or one before it ({})", refusal.message()))
        }
        _ => error.into(),
    }
}

/// A table that is being filled.
struct Filling {
    table: Table,
    /// In the file's order.
    columns: Vec<Column>,
    last_id: Option<i64>,
    rows: Vec<Vec<Value>>,
    bytes: usize,
}

impl Filling {
    fn of(tables: &[Table], head: TableHead) -> Result<Self, String> {
        // Names go into statements: only those the database itself has.
        let table = tables.iter().find(|table| table.name == head.table);
        let table = table.ok_or("there is no such table")?.clone();
        let find = |name: &String| table.columns.iter().find(|column| &column.name == name);
        let columns: Option<Vec<_>> = head.columns.iter().map(|name| find(name).cloned()).collect();
        let columns = columns.ok_or("the table has other columns")?;
        let names: BTreeSet<_> = columns.iter().map(|column| &column.name).collect();
        if names.len() != table.columns.len() || columns.len() != names.len() {
            return Err("the table has other columns".to_owned());
        }
        let last_id = head.last_id.filter(|_| table.gives_ids);
        Ok(Self { table, columns, last_id, rows: Vec::new(), bytes: 0 })
    }

    fn row(&self, values: Vec<Json>) -> Result<Vec<Value>, String> {
        if values.len() != self.columns.len() {
            return Err("it has more or fewer values than the table has columns".to_owned());
        }
        let pairs = self.columns.iter().zip(values);
        pairs
            .map(|(column, value)| {
                let fault = || format!("{}.{} has another type", self.table.name, column.name);
                convert(column.kind, value).ok_or_else(fault)
            })
            .collect()
    }

    async fn add(&mut self, conn: &mut Conn, row: Vec<Value>, bytes: usize) -> Result<(), DbError> {
        self.rows.push(row);
        self.bytes += bytes;
        if self.rows.len() >= ROWS_MAX || self.bytes >= BATCH_BYTES_MAX {
            self.insert(conn).await?;
        }
        Ok(())
    }

    async fn insert(&mut self, conn: &mut Conn) -> Result<(), DbError> {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows);
        let plain: Option<Vec<_>> = self
            .columns
            .iter()
            .map(|column| match column.kind {
                ColumnKind::Plain(kind) => Some((column.name.as_str(), kind)),
                ColumnKind::Bytes => None,
            })
            .collect();
        if let Some(columns) = plain {
            let is_meta = self.table.name == META;
            let tail = if is_meta {
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
            } else {
                ""
            };
            let is_key = |row: &Vec<Value>| row.first() == Some(&Value::from(META_KEY));
            let rows = rows.into_iter().filter(|row| !(is_meta && is_key(row))).collect();
            return conn.insert_many(&self.table.name, &columns, rows, tail).await.map(drop);
        }
        let names: Vec<_> = self.columns.iter().map(|column| column.name.as_str()).collect();
        let places: Vec<_> = (1..=names.len()).map(|at| format!("${at}")).collect();
        let (names, places) = (names.join(", "), places.join(", "));
        let sql = format!("INSERT INTO {} ({names}) VALUES ({places})", self.table.name);
        for row in rows {
            conn.execute(&sql, row).await?;
        }
        Ok(())
    }

    /// Inserts the rest, and makes the database go on counting ids where the other one stopped.
    async fn flush(&mut self, conn: &mut Conn) -> Result<(), DbError> {
        self.insert(conn).await?;
        let Some(last_id) = self.last_id.filter(|last_id| *last_id > 0) else { return Ok(()) };
        let table = &self.table.name;
        if conn.is_postgres() {
            let sql = format!(
                "SELECT setval(pg_get_serial_sequence($1, 'id'), \
                 GREATEST($2, (SELECT COALESCE(MAX(id), 0) FROM {table})))"
            );
            return conn.number(&sql, args![table, last_id]).await.map(drop);
        }
        let update = "UPDATE sqlite_sequence SET seq = MAX(seq, $2) WHERE name = $1";
        if conn.execute(update, args![table, last_id]).await? == 0 {
            let insert = "INSERT INTO sqlite_sequence (name, seq) VALUES ($1, $2)";
            conn.execute(insert, args![table, last_id]).await?;
        }
        Ok(())
    }
}

fn convert(kind: ColumnKind, value: Json) -> Option<Value> {
    Some(match (kind, value) {
        (ColumnKind::Plain(Kind::Int), Json::Null) => Value::Int(None),
        (ColumnKind::Plain(Kind::Int), value) => Value::Int(Some(value.as_i64()?)),
        (ColumnKind::Plain(Kind::Text), Json::Null) => Value::Text(None),
        (ColumnKind::Plain(Kind::Text), Json::String(text)) => Value::Text(Some(text)),
        (ColumnKind::Bytes, Json::String(text)) => Value::Bytes(STANDARD.decode(text).ok()?),
        _ => return None,
    })
}
