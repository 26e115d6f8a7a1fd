//! `ostler server`: the fleet server in the foreground, and its administration on the same machine.

mod administer;
mod copy;
mod greeting;
mod init;
mod serve;

use std::os::unix::fs::DirBuilderExt as _;
use std::process::ExitCode;

use camino::{Utf8Path, Utf8PathBuf};
use ostler_server::config::{Config, ConfigError};
use ostler_server::secrets::{KeyFault, Keyring};
use ostler_server::store::StoreError;
use ostler_server::{Admin, OpenError};

use crate::args::server::{DatabaseArgs, ServerArgs, ServerCommand};
use crate::context::{Context, block_on};
use crate::error::{Code, Failure};
use crate::text_file;

/// The variable with the secret key.
const KEY_ENV: &str = "OSTLER_SECRET_KEY";
/// The variable with the database.
const DATABASE_ENV: &str = "OSTLER_SERVER_DATABASE";
/// The file with the secret key, beside the database.
const KEY_FILE: &str = "secret.key";
/// The file with the settings, beside the daemon's.
const CONFIG_FILE: &str = "server.toml";

pub(crate) fn perform(context: &Context, args: ServerArgs) -> Result<ExitCode, Failure> {
    ostler_server::use_ring();
    match args.command {
        None => serve::perform(context, args.serve),
        Some(ServerCommand::Init { workspace, email, database, json }) => {
            block_on(init::perform(context, &database, &workspace, &email, json))
        }
        Some(ServerCommand::Backup { file, database, json }) => {
            block_on(copy::backup(context, &database, &file, json))
        }
        Some(ServerCommand::Export { file, database }) => {
            block_on(copy::export(context, &database, &file))
        }
        Some(ServerCommand::Import { file, database, json }) => {
            block_on(copy::import(context, &database, &file, json))
        }
        Some(ServerCommand::Administer(command)) => block_on(administer::perform(context, command)),
    }
}

/// The server's own folder.
fn folder(context: &Context) -> Utf8PathBuf {
    context.paths.state_dir.join("server")
}

/// What file, environment and `--database` say.
fn config(context: &Context, args: &DatabaseArgs) -> Result<Config, Failure> {
    said(context, args, |_| true)
}

/// Where the database is, for a command: other variables are the server's own affair.
fn database(context: &Context, args: &DatabaseArgs) -> Result<String, Failure> {
    Ok(said(context, args, |name| name == DATABASE_ENV)?.settings.database)
}

fn said(
    context: &Context,
    args: &DatabaseArgs,
    is_wanted: fn(&str) -> bool,
) -> Result<Config, Failure> {
    let database = format!("sqlite:{}", folder(context).join("ostler.db"));
    let mut config = Config::new(database);
    let beside = context.paths.config_file.with_file_name(CONFIG_FILE);
    let file = args.config.as_deref().unwrap_or(&beside);
    let other = "--config FILE names another";
    let text = text_file::configuration(file, args.config.is_some(), other)?;
    config.take_file(&text, file).map_err(config_failure)?;
    let env: Vec<_> = context.text_env().filter(|(name, _)| is_wanted(name)).collect();
    let env = env.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    config.take_env(env).map_err(config_failure)?;
    if let Some(database) = &args.database {
        config.settings.database.clone_from(database);
    }
    Ok(config)
}

fn config_failure(error: ConfigError) -> Failure {
    let hint = error.hint();
    Failure::new(Code::Usage, "the server's settings cannot be used").because(error).hint(hint)
}

/// What may come into being that was not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// A database with its secret key.
    Make,
    /// Nothing: a name that was mistyped would become a database.
    Refuse,
}

/// What to do where the right secret key is missing.
const KEY_HINT: &str = "set OSTLER_SECRET_KEY to the key that the database was made with, or put its secret.key \
     beside the database";

/// The secret key: from the environment, else from the file beside the database. It is made only where a
/// database is made: what was sealed before is not opened by a new one.
async fn keyring(context: &Context, database: &str, missing: Missing) -> Result<Keyring, Failure> {
    let database_file = database_file(database);
    if database_file.is_none() && !is_postgres(database) {
        return Err(open_failure(OpenError::Url, database));
    }
    let failure =
        |error: KeyFault| Failure::new(Code::Failed, "there is no secret key").because(error);
    if let Some(text) = context.env.get_os(KEY_ENV) {
        let text = text.to_str().ok_or(KeyFault::Text).map_err(failure)?;
        let keyring = Keyring::from_text(text).map_err(failure)?;
        if let (Missing::Make, Some(file)) = (missing, &database_file) {
            make_folder(&folder_of(file))?;
        }
        return Ok(keyring);
    }
    let folder = database_file.as_deref().map_or_else(|| folder(context), folder_of);
    let file = folder.join(KEY_FILE);
    if file.symlink_metadata().is_err() {
        let is_made = missing == Missing::Make
            && match &database_file {
                Some(file) => is_new(file),
                None => {
                    let used = ostler_server::has_tables(database).await;
                    !used.map_err(|error| open_failure(error, database))?
                }
            };
        if !is_made {
            let heading = format!("the database's secret key is not there: {file}");
            return Err(Failure::new(Code::Usage, heading).hint(KEY_HINT));
        }
    }
    make_folder(&folder)?;
    Keyring::from_file(file.as_std_path()).map_err(failure)
}

fn is_postgres(database: &str) -> bool {
    database.starts_with("postgres:") || database.starts_with("postgresql:")
}

/// The file of a SQLite database.
fn database_file(database: &str) -> Option<Utf8PathBuf> {
    let file = database.strip_prefix("sqlite:")?;
    let file = file.strip_prefix("//").unwrap_or(file);
    (!file.is_empty()).then(|| Utf8PathBuf::from(file))
}

fn folder_of(file: &Utf8Path) -> Utf8PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_str().is_empty() => folder.to_owned(),
        _ => Utf8PathBuf::from("."),
    }
}

/// Whether a SQLite file is not there, or nothing is in it.
fn is_new(file: &Utf8Path) -> bool {
    match file.metadata() {
        Ok(facts) => facts.len() == 0,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// That a command has a database to work on.
fn check_there(database: &str) -> Result<(), Failure> {
    match database_file(database).filter(|file| is_new(file)) {
        None => Ok(()),
        Some(file) => Err(Failure::new(Code::Usage, format!("there is no database {file}")).hint(
            "`ostler server init` makes one; --database or OSTLER_SERVER_DATABASE names another",
        )),
    }
}

/// Owner-only, where it is not there.
fn make_folder(folder: &Utf8Path) -> Result<(), Failure> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        Failure::new(Code::Failed, format!("{folder} could not be made")).because(error)
    })
}

/// Opens the database for a command.
async fn admin(context: &Context, args: &DatabaseArgs, missing: Missing) -> Result<Admin, Failure> {
    let database = database(context, args)?;
    if missing == Missing::Refuse {
        check_there(&database)?;
    }
    let keyring = keyring(context, &database, missing).await?;
    Admin::open(&database, keyring).await.map_err(|error| open_failure(error, &database))
}

fn open_failure(error: OpenError, database: &str) -> Failure {
    let hint = open_hint(&error, database);
    let failure = Failure::new(Code::Failed, "the database cannot be used").because(error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn open_hint(error: &OpenError, database: &str) -> Option<&'static str> {
    match error {
        OpenError::Url if is_postgres(database) => {
            Some("for a password with @ or /, write %40 or %2F")
        }
        OpenError::Newer { .. } => Some("use the newer Ostler, or restore the backup from before"),
        OpenError::OtherKey => Some(KEY_HINT),
        OpenError::Connect { is_missing: true, .. } => {
            Some("make it first, empty: `createdb` with its name")
        }
        error if error.is_foreign() => {
            Some("the database must be the server's alone: name an empty one")
        }
        OpenError::Connect { .. } => Some(
            "is it running there? --database or OSTLER_SERVER_DATABASE names another; `psql URL` tries the same",
        ),
        OpenError::Url | OpenError::Open(_) | OpenError::Migrate(_) => None,
    }
}

/// What the store did not do.
fn store_failure(error: StoreError) -> Failure {
    match error {
        StoreError::NotFound => Failure::new(Code::Refused, "there is no such thing")
            .hint("the `list` commands show what there is"),
        StoreError::Conflict(message) => Failure::new(Code::Refused, message),
        StoreError::Invalid { field, fault } => {
            // Of fields of a record; the option has another name.
            let field = if field == "slug" { "--workspace" } else { field };
            Failure::new(Code::Usage, format!("{field} {fault}"))
        }
        error @ StoreError::Refused(_) => Failure::new(Code::Refused, error.to_string()),
        error => Failure::new(Code::Failed, "the database refused").because(error),
    }
}
