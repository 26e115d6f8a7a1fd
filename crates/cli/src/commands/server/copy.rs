//! `ostler server backup`, `export` and `import`.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::process::ExitCode;

use camino::Utf8Path;
use ostler_server::new_file::{NewFile, NewFileError};
use ostler_server::{Admin, BackupError, Moved, TransferError};

use super::Missing;
use crate::args::JsonFlag;
use crate::args::server::DatabaseArgs;
use crate::context::Context;
use crate::error::{Code, Failure};
use crate::output;

/// Bytes that wait to be written, or were read ahead.
const BUFFER_BYTES: usize = 256 * 1024;

pub(super) async fn backup(
    context: &Context,
    database: &DatabaseArgs,
    file: &Utf8Path,
    json: JsonFlag,
) -> Result<ExitCode, Failure> {
    let url = super::database(context, database)?;
    super::check_there(&url)?;
    let bytes = ostler_server::backup(&url, file).await.map_err(|error| {
        let hint = match &error {
            BackupError::NotSqlite => Some("PostgreSQL has pg_dump and its own archives"),
            BackupError::File(NewFileError::Exists { .. }) => Some("name another file"),
            _ => None,
        };
        failed("there is no backup", error, hint)
    })?;
    if json.json {
        output::json_line(&serde_json::json!({ "file": file, "bytes": bytes }))?;
    } else {
        output::line(&format!("{file}: {bytes} bytes"))?;
        output::note(
            "keep the secret key too: without it what is sealed in the backup stays closed",
        );
    }
    Ok(Code::Success.into())
}

pub(super) async fn export(
    context: &Context,
    database: &DatabaseArgs,
    file: &Utf8Path,
) -> Result<ExitCode, Failure> {
    let admin = super::admin(context, database, Missing::Refuse).await?;
    let done = if file == "-" {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, std::io::stdout());
        admin.export(&mut out).await.map_err(|error| transfer_failure(error, ""))
    } else {
        export_to(&admin, file).await
    };
    admin.close().await;
    let Moved { tables, rows } = done?;
    output::note(&format!("exported {rows} rows of {tables} tables"));
    Ok(Code::Success.into())
}

async fn export_to(admin: &Admin, file: &Utf8Path) -> Result<Moved, Failure> {
    let file_failure = |error: NewFileError| failed("there is no export", error, None);
    let new = NewFile::create(file).map_err(file_failure)?;
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, new.file());
    let moved = admin.export(&mut out).await.map_err(|error| transfer_failure(error, ""))?;
    out.flush()?;
    drop(out);
    new.keep().map_err(file_failure)?;
    Ok(moved)
}

pub(super) async fn import(
    context: &Context,
    database: &DatabaseArgs,
    file: &Utf8Path,
    json: JsonFlag,
) -> Result<ExitCode, Failure> {
    // Before the database: what cannot be read makes none.
    let opened = if file == "-" {
        None
    } else {
        let opened = File::open(file).map_err(|error| {
            Failure::new(Code::Failed, format!("{file} cannot be read")).because(error)
        })?;
        Some(opened)
    };
    let database = super::database(context, database)?;
    let keyring = super::keyring(context, &database, Missing::Refuse).await?;
    let moved = match opened {
        Some(file) => {
            let mut input = BufReader::with_capacity(BUFFER_BYTES, file);
            Admin::import(&database, keyring, &mut input).await
        }
        None => {
            let mut input = BufReader::with_capacity(BUFFER_BYTES, std::io::stdin());
            Admin::import(&database, keyring, &mut input).await
        }
    };
    let moved = moved.map_err(|error| transfer_failure(error, &database))?;
    if json.json {
        output::json_line(&moved)?;
    } else {
        output::line(&format!("imported {} rows of {} tables", moved.rows, moved.tables))?;
    }
    Ok(Code::Success.into())
}

fn transfer_failure(error: TransferError, database: &str) -> Failure {
    let hint = match &error {
        TransferError::OtherKey => Some(super::KEY_HINT),
        TransferError::Open(error) => super::open_hint(error, database),
        TransferError::NotEmpty { .. } => Some("an import fills a new database only: name another"),
        TransferError::Version { .. } => {
            Some("export and import with the same Ostler; upgrade before or after")
        }
        TransferError::Cut => Some("copy the export again, whole"),
        TransferError::NotAnExport => Some("make one with `ostler server export FILE`"),
        _ => None,
    };
    failed("the server was not moved", error, hint)
}

fn failed(
    heading: &str,
    error: impl std::error::Error + Send + Sync + 'static,
    hint: Option<&str>,
) -> Failure {
    let failure = Failure::new(Code::Failed, heading).because(error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
