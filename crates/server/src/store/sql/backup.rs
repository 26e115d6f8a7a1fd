//! A copy of a SQLite database while servers and commands use it: one state of it, whole.
//!
//! The database is not migrated and its key is not asked for: what is copied is what is there. PostgreSQL has
//! tools of its own.

use camino::Utf8Path;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};

use super::{SQLITE_BUSY_WAIT_MAX, sqlite_file};
use crate::new_file::{NewFile, NewFileError};

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// Not one of SQLite.
    #[error("the database is no SQLite file")]
    NotSqlite,
    /// The file.
    #[error(transparent)]
    File(#[from] NewFileError),
    /// The database.
    #[error("the database cannot be copied")]
    Database(#[from] sqlx::Error),
}

/// Copies the database to a new file; its bytes.
pub async fn backup(url: &str, to: &Utf8Path) -> Result<u64, BackupError> {
    let from = sqlite_file(url).ok_or(BackupError::NotSqlite)?;
    let copy = NewFile::create(to)?;
    let options = SqliteConnectOptions::new().filename(from).create_if_missing(false);
    let mut conn: SqliteConnection = options.busy_timeout(SQLITE_BUSY_WAIT_MAX).connect().await?;
    // It reads one snapshot: who writes meanwhile is neither stopped nor seen.
    let copied = sqlx::query("VACUUM INTO $1").bind(copy.draft().as_str()).execute(&mut conn).await;
    // A connection that cannot be closed is closed by the end of the process.
    let _ = conn.close().await;
    copied?;
    Ok(copy.keep()?)
}
