//! A whole server as lines of JSON, out of one database and into another, of either kind.
//!
//! The first line says what it is; then each table: a line with its name, its columns and its highest id, and
//! its rows, an array a line; the last line says how many rows there are, so that a file that was cut is
//! noticed. Bytes are base64. Which tables and columns there are is asked of the database, so that none is
//! forgotten. What is sealed stays sealed: the other server needs the same secret key. Reading is one
//! snapshot, writing one transaction, and neither keeps more than some rows in memory.

mod export;
mod import;

use serde::{Deserialize, Serialize};

use super::db::{Conn, DbError, Kind, args};
use super::migrate;
use crate::new_file::NewFileError;

pub(crate) use export::export;
pub(crate) use import::{Lines, check_head, import};

/// The format's version.
const FORMAT: u32 = 1;
/// Where servers note what they agree on; the one table that is not empty in a new database.
const META: &str = "meta";
/// Rows of [`META`] that belong to the database and not to the server.
const META_KEY: &str = "key";
/// Columns that belong to the database: a transaction's number means nothing elsewhere.
const OWN_COLUMNS: [(&str, &str); 1] = [("events", "tx")];

/// Why a server was not moved. An import has changed nothing, then.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The database.
    #[error("the database refused")]
    Database(#[from] sqlx::Error),
    /// The database cannot be opened.
    #[error("the database cannot be used")]
    Open(#[from] super::OpenError),
    /// The file.
    #[error("cannot {doing} the export")]
    Io {
        /// Read or write.
        doing: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The new database.
    #[error("there is no new database")]
    File(#[from] NewFileError),
    /// SQLite could not write all of it into its file.
    #[error("the database could not be written whole (is the disk full?)")]
    Unfinished,
    /// Something else.
    #[error("this is no export of an Ostler server")]
    NotAnExport,
    /// Made by another Ostler.
    #[error("the export has version {found} of the tables, and this program has {known}")]
    Version {
        /// The export's.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// Its secrets would stay closed.
    #[error("the export was made with another secret key, and what is sealed in it would not open")]
    OtherKey,
    /// Somebody has begun to use it.
    #[error("the database is not empty: {table} has rows")]
    NotEmpty {
        /// The first such table.
        table: String,
    },
    /// A line that does not fit.
    #[error("line {line} of the export: {fault}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        fault: String,
    },
    /// The end is missing.
    #[error("the export was cut: its last line is missing")]
    Cut,
}

/// What was moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Tables.
    pub tables: u64,
    /// Their rows.
    pub rows: u64,
}

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    ostler_server_export: u32,
    tables_version: i64,
    /// Says which secret key it needs and nothing about it.
    key_fingerprint: String,
    exported_at: String,
}

/// The line before a table's rows.
#[derive(Debug, Serialize, Deserialize)]
struct TableHead {
    table: String,
    columns: Vec<String>,
    /// The highest id that was ever given, for tables that give ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_id: Option<i64>,
}

/// The last line.
#[derive(Debug, Serialize, Deserialize)]
struct End {
    end_after_rows: u64,
}

/// A table as it is in a database.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Table {
    name: String,
    columns: Vec<Column>,
    /// Has a column `id` that the database counts up.
    gives_ids: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Column {
    name: String,
    kind: ColumnKind,
    is_key: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnKind {
    Plain(Kind),
    Bytes,
}

/// All tables, each after those it refers to.
async fn tables(conn: &mut Conn) -> Result<Vec<Table>, DbError> {
    let mut tables = Vec::new();
    for name in migrate::tables() {
        let columns = columns(conn, name).await?;
        // A later step may have removed it.
        if columns.is_empty() {
            continue;
        }
        let keys: Vec<_> = columns.iter().filter(|column| column.is_key).collect();
        let gives_ids = matches!(keys.as_slice(), [key] if key.name == "id"
            && key.kind == ColumnKind::Plain(Kind::Int));
        tables.push(Table { name: name.to_owned(), columns, gives_ids });
    }
    Ok(tables)
}

async fn columns(conn: &mut Conn, table: &str) -> Result<Vec<Column>, DbError> {
    let sql = if conn.is_postgres() {
        "SELECT CAST(a.attname AS TEXT), UPPER(format_type(a.atttypid, NULL)), \
         CAST(CASE WHEN a.attnum = ANY(k.indkey) THEN 1 ELSE 0 END AS BIGINT) FROM pg_attribute a \
         LEFT JOIN pg_index k ON k.indrelid = a.attrelid AND k.indisprimary \
         WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
    } else {
        "SELECT name, UPPER(type), pk FROM pragma_table_info($1) ORDER BY cid"
    };
    let mut columns = Vec::new();
    for mut row in conn.rows(sql, args![table]).await? {
        let (name, kind, is_key) = (row.text()?, row.text()?, row.int()? > 0);
        if OWN_COLUMNS.contains(&(table, name.as_str())) {
            continue;
        }
        let kind = match kind.as_str() {
            "INTEGER" | "BIGINT" => ColumnKind::Plain(Kind::Int),
            "TEXT" => ColumnKind::Plain(Kind::Text),
            "BLOB" | "BYTEA" => ColumnKind::Bytes,
            other => {
                let fault = format!("{table}.{name} has the type {other}, which is none of ours");
                return Err(DbError::Decode(fault.into()));
            }
        };
        columns.push(Column { name, kind, is_key });
    }
    Ok(columns)
}
