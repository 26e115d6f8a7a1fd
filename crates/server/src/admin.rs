//! Administration on the same machine: the database is opened directly, beside a server or without one.

mod people;

use std::fmt;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::auth::{Ability, TokenKind, Tokens};
use crate::board::Board;
use crate::machines::Machines;
use crate::new_file::NewFile;
use crate::secrets::Keyring;
use crate::server::system_clock;
use crate::settings::Settings;
use crate::store::StoreError;
use crate::store::sql::people::{members, tokens, workspaces};
use crate::store::sql::transfer::{self, Moved, TransferError};
use crate::store::sql::{OpenError, Opening, SqlStore, sqlite_file};

pub use people::AdminFault;

/// Days that a token of `init` lives.
const TOKEN_DAYS: u32 = 365;
/// An open database. A clone is the same one.
#[derive(Clone)]
pub struct Admin {
    app: Arc<App>,
}

/// What `init` made.
#[derive(Clone, PartialEq, Eq, serde::Serialize)]
pub struct Initialised {
    /// The workspace's slug.
    pub workspace: String,
    /// A token for people and programs, with every ability.
    pub api_token: String,
    /// A token for machines.
    pub daemon_token: String,
}

impl fmt::Debug for Initialised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initialised").field("workspace", &self.workspace).finish_non_exhaustive()
    }
}

/// What the first start of a server made.
#[derive(Clone, PartialEq, Eq)]
pub struct FirstStart {
    /// The workspace's slug.
    pub workspace: String,
    /// The administrator.
    pub email: String,
    /// The administrator's token, which is known only now.
    pub token: String,
    /// Days that it lives.
    pub days: u32,
}

impl Admin {
    /// Opens the database, makes it if it is a file that is not there.
    pub async fn open(database: &str, keyring: Keyring) -> Result<Self, OpenError> {
        let settings = Settings::new(database.to_owned());
        let opening = Opening {
            url: database,
            database_wait: settings.database_wait,
            keyring,
            policy: settings.policy,
            clock: system_clock(),
            // A server that runs beside looks for itself every second or two.
            on_hints: Arc::new(|_| {}),
        };
        let store = SqlStore::open(opening).await?;
        let parts = (Arc::new(Board::new()), Arc::new(Tokens::new()), Arc::new(Machines::new()));
        Ok(Self { app: Arc::new(App::new(settings, store, parts, CancellationToken::new())) })
    }

    /// Within a server.
    pub(crate) fn of(app: Arc<App>) -> Self {
        Self { app }
    }

    /// Makes workspace and administrator if they are not there, and fresh tokens. A plain member becomes an
    /// administrator.
    pub async fn init(&self, slug: &str, email: &str) -> Result<Initialised, StoreError> {
        let (slug, email) = (slug.to_owned(), email.to_owned());
        self.app
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let workspace_id = workspaces::ensure(tx, &slug, &slug).await?;
                    let user_id =
                        workspaces::ensure_member(tx, workspace_id, &email, "admin").await?;
                    // Who was a plain member before is none with a token that may do everything.
                    if !members::is_admin(&mut tx.conn, workspace_id, user_id).await? {
                        members::set_role(tx, workspace_id, user_id, "admin").await?;
                    }
                    let new = |kind, abilities: &[Ability]| tokens::NewToken {
                        workspace_id,
                        user_id,
                        kind,
                        name: "init".to_owned(),
                        abilities: abilities.to_vec(),
                        days: Some(TOKEN_DAYS),
                    };
                    let api = new(TokenKind::Api, &Ability::ALL);
                    let api_token = tokens::create(tx, api).await?;
                    let daemon_token = tokens::create(tx, new(TokenKind::Daemon, &[])).await?;
                    Ok(Initialised { workspace: slug, api_token, daemon_token })
                })
            })
            .await
    }

    /// Makes a workspace and an administrator with a token where there is no workspace at all. Of several
    /// servers that start at once one does.
    pub async fn first_start(
        &self,
        slug: &str,
        email: &str,
    ) -> Result<Option<FirstStart>, StoreError> {
        let (slug, email) = (slug.to_owned(), email.to_owned());
        self.app
            .store
            .write(move |tx| {
                Box::pin(async move {
                    if workspaces::are_any(tx).await? {
                        return Ok(None);
                    }
                    let workspace_id = workspaces::ensure(tx, &slug, &slug).await?;
                    let user_id =
                        workspaces::ensure_member(tx, workspace_id, &email, "admin").await?;
                    let new = tokens::NewToken {
                        workspace_id,
                        user_id,
                        kind: TokenKind::Api,
                        name: "first start".to_owned(),
                        abilities: Ability::ALL.to_vec(),
                        days: Some(TOKEN_DAYS),
                    };
                    let token = tokens::create(tx, new).await?;
                    Ok(Some(FirstStart { workspace: slug, email, token, days: TOKEN_DAYS }))
                })
            })
            .await
    }

    /// Writes all of it as lines of JSON: one state, while servers go on.
    pub async fn export(
        &self,
        out: &mut (dyn std::io::Write + Send),
    ) -> Result<Moved, TransferError> {
        transfer::export(&self.app.store, out).await
    }

    /// Fills an empty database from an [export](Self::export), in one transaction. What is no export, or
    /// needs another key, is refused before the database is opened. A file that is not there is made whole, or not
    /// at all.
    pub async fn import(
        database: &str,
        keyring: Keyring,
        input: &mut (dyn std::io::BufRead + Send),
    ) -> Result<Moved, TransferError> {
        let input = transfer::check_head(input, &keyring)?;
        let file = sqlite_file(database).map(Utf8Path::new);
        let Some(file) = file.filter(|file| file.symlink_metadata().is_err()) else {
            return Self::fill(database, keyring, input).await;
        };
        let new = NewFile::create_with_folder(file)?;
        let moved = Self::fill(&format!("sqlite:{}", new.draft()), keyring, input).await;
        // What stays in the log, as on a full disk, is not in the file.
        let beside = ["-wal", "-shm"].map(|end| Utf8PathBuf::from(format!("{}{end}", new.draft())));
        let is_whole = beside.iter().all(|file| file.symlink_metadata().is_err());
        for file in beside {
            // Mostly there is none.
            let _ = std::fs::remove_file(file);
        }
        let moved = moved?;
        if !is_whole {
            return Err(TransferError::Unfinished);
        }
        new.keep()?;
        Ok(moved)
    }

    async fn fill(
        database: &str,
        keyring: Keyring,
        input: transfer::Lines<'_>,
    ) -> Result<Moved, TransferError> {
        let admin = Self::open(database, keyring).await?;
        let moved = transfer::import(&admin.app.store, input).await;
        admin.close().await;
        moved
    }

    /// Closes the database.
    pub async fn close(self) {
        self.app.store.close().await;
    }
}
