//! Out of a database.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;

use super::{
    ColumnKind, End, FORMAT, Head, META, META_KEY, Moved, Table, TableHead, TransferError,
};
use crate::store::sql::db::{Conn, DbError, Kind, Row, args};
use crate::store::sql::{SqlStore, migrate};

/// Writes all of it.
pub(crate) async fn export(
    store: &SqlStore,
    out: &mut (dyn Write + Send),
) -> Result<Moved, TransferError> {
    let mut conn = store.shared().connect_raw().await?;
    let begin = if conn.is_postgres() {
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    } else {
        "BEGIN"
    };
    conn.execute(begin, args![]).await?;
    let done = tables(store, &mut conn, out).await;
    // It has only read.
    let _ = conn.rollback().await;
    done
}

async fn tables(
    store: &SqlStore,
    conn: &mut Conn,
    out: &mut (dyn Write + Send),
) -> Result<Moved, TransferError> {
    let head = Head {
        ostler_server_export: FORMAT,
        tables_version: migrate::newest(),
        key_fingerprint: store.shared().keyring.fingerprint().to_owned(),
        exported_at: crate::http::instant(store.now()),
    };
    line(out, &head)?;
    let mut moved = Moved { tables: 0, rows: 0 };
    for table in super::tables(conn).await? {
        let columns = table.columns.iter().map(|column| column.name.clone()).collect();
        let last_id = if table.gives_ids { Some(last_id(conn, &table.name).await?) } else { None };
        line(out, &TableHead { table: table.name.clone(), columns, last_id })?;
        moved.rows += rows(conn, &table, out).await?;
        moved.tables += 1;
    }
    line(out, &End { end_after_rows: moved.rows })?;
    out.flush().map_err(write_fault)?;
    Ok(moved)
}

async fn rows(
    conn: &mut Conn,
    table: &Table,
    out: &mut (dyn Write + Send),
) -> Result<u64, TransferError> {
    let names = |only_keys: bool| {
        let columns = table.columns.iter().filter(|column| !only_keys || column.is_key);
        columns.map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let condition =
        if table.name == META { format!("WHERE name <> '{META_KEY}'") } else { String::new() };
    let (all, keys) = (names(false), names(true));
    let sql = format!("SELECT {all} FROM {} {condition} ORDER BY {keys}", table.name);
    let mut count = 0;
    conn.each(&sql, |mut row| {
        count += 1;
        let values = table.columns.iter().map(|column| value(&mut row, column.kind));
        line(out, &values.collect::<Result<Vec<_>, _>>()?)
    })
    .await?;
    Ok(count)
}

fn value(row: &mut Row, kind: ColumnKind) -> Result<Value, DbError> {
    Ok(match kind {
        ColumnKind::Plain(Kind::Int) => row.opt_int()?.into(),
        ColumnKind::Plain(Kind::Text) => row.opt_text()?.into(),
        ColumnKind::Bytes => STANDARD.encode(row.bytes()?).into(),
    })
}

/// The highest id that was ever given: what is removed must not come again with the number of another.
async fn last_id(conn: &mut Conn, table: &str) -> Result<i64, DbError> {
    if !conn.is_postgres() {
        let row = conn.row("SELECT seq FROM sqlite_sequence WHERE name = $1", args![table]).await?;
        return row.map_or(Ok(0), |mut row| row.int());
    }
    let sql = "SELECT pg_get_serial_sequence($1, 'id')";
    let sequence = conn.row(sql, args![table]).await?.ok_or(DbError::RowNotFound)?.text()?;
    let sql = format!("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}");
    conn.number(&sql, args![]).await
}

fn line(out: &mut (dyn Write + Send), value: &impl Serialize) -> Result<(), TransferError> {
    let written = serde_json::to_writer(&mut *out, value).map_err(std::io::Error::from);
    written.and_then(|()| out.write_all(b"\n")).map_err(write_fault)
}

fn write_fault(source: std::io::Error) -> TransferError {
    TransferError::Io { doing: "write", source }
}
