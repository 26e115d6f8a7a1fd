//! Workspaces, and who belongs to them.

use serde::Serialize;
use serde_json::json;

use super::{At, at, invalid, tokens, update};
use crate::secrets::{Purpose, Secret};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, Row, Value, args};
use crate::store::sql::lane::Tx;

/// Characters of a slug.
const SLUG_CHARS_MAX: usize = 64;
/// Characters of an issue prefix.
const PREFIX_CHARS_MAX: usize = 6;
/// Bytes of an e-mail address.
const EMAIL_BYTES_MAX: usize = 254;

/// The lock of the first workspace: "ostfirst" as a number.
const FIRST_LOCK: i64 = 0x6f73_7466_6972_7374;

/// A slug: small letters, digits and dashes.
pub(crate) fn check_slug(slug: &str) -> Result<(), StoreError> {
    let good = !slug.is_empty()
        && slug.len() <= SLUG_CHARS_MAX
        && slug.chars().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '-')
        && !slug.starts_with('-');
    if good {
        return Ok(());
    }
    let fault = "must be small letters, digits and dashes, 64 at most".to_owned();
    Err(StoreError::Invalid { field: "slug", fault })
}

/// The prefix of a workspace's issues: `acme-industries` gives `ACME`.
fn prefix_of(slug: &str) -> String {
    let letters = slug.split('-').next().unwrap_or_default().chars();
    let prefix: String = letters.take(PREFIX_CHARS_MAX).collect();
    if prefix.is_empty() { "TASK".to_owned() } else { prefix.to_uppercase() }
}

/// The workspace with this slug, made if it is not there.
pub(crate) async fn ensure(tx: &mut Tx, slug: &str, name: &str) -> Result<i64, StoreError> {
    check_slug(slug)?;
    let sql = "INSERT INTO workspaces (slug, name, context, prefix, last_issue, created_at) \
               VALUES ($1, $2, '', $3, 0, $4) ON CONFLICT (slug) DO NOTHING";
    tx.conn.execute(sql, args![slug, name, prefix_of(slug), tx.now.as_micros()]).await?;
    Ok(tx.conn.number("SELECT id FROM workspaces WHERE slug = $1", args![slug]).await?)
}

/// The user with this address, made if it is not there.
pub(crate) async fn ensure_user(
    tx: &mut Tx,
    email: &str,
    name: Option<&str>,
) -> Result<i64, StoreError> {
    let email = email.to_lowercase();
    let good = email.len() <= EMAIL_BYTES_MAX
        && email.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty())
        && !email.chars().any(|it| it.is_control() || it.is_whitespace());
    if !good {
        return Err(invalid("email", "must be an e-mail address"));
    }
    let name = name.unwrap_or_else(|| email.split('@').next().unwrap_or(&email));
    let sql = "INSERT INTO users (email, name, created_at) VALUES ($1, $2, $3) \
               ON CONFLICT (email) DO NOTHING";
    tx.conn.execute(sql, args![&email, name, tx.now.as_micros()]).await?;
    Ok(tx.conn.number("SELECT id FROM users WHERE email = $1", args![&email]).await?)
}

/// The user with this address, made if it is not there, a member with this role unless it is one.
pub(crate) async fn ensure_member(
    tx: &mut Tx,
    workspace_id: i64,
    email: &str,
    role: &str,
) -> Result<i64, StoreError> {
    let id = ensure_user(tx, email, None).await?;
    let sql = "INSERT INTO members (workspace_id, user_id, role) VALUES ($1, $2, $3) \
               ON CONFLICT (workspace_id, user_id) DO NOTHING";
    tx.conn.execute(sql, args![workspace_id, id, role]).await?;
    Ok(id)
}

/// Whether the server has any workspace. On PostgreSQL others who ask wait until this transaction ends, so that of
/// several servers one makes the first.
pub(crate) async fn are_any(tx: &mut Tx) -> Result<bool, StoreError> {
    if tx.conn.is_postgres() {
        let lock = "SELECT 1 FROM pg_advisory_xact_lock($1)";
        tx.conn.rows(lock, args![FIRST_LOCK]).await?;
    }
    let any = tx.conn.row("SELECT 1 FROM workspaces LIMIT 1", args![]).await?;
    Ok(any.is_some())
}

/// The workspace with this slug.
pub(crate) async fn find(conn: &mut Conn, slug: &str) -> Result<i64, StoreError> {
    let row = conn.row("SELECT id FROM workspaces WHERE slug = $1", args![slug]).await?;
    Ok(row.ok_or(StoreError::NotFound)?.int()?)
}

/// A workspace in a list of the server's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct WorkspaceBrief {
    pub(crate) id: i64,
    pub(crate) slug: String,
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) created_at: At,
}

/// All workspaces of the server, by slug; for commands on the same machine.
pub(crate) async fn list(conn: &mut Conn) -> Result<Vec<WorkspaceBrief>, StoreError> {
    let sql = "SELECT id, slug, name, prefix, created_at FROM workspaces ORDER BY slug";
    let rows = conn.rows(sql, args![]).await?;
    let read = |mut row: Row| {
        Ok(WorkspaceBrief {
            id: row.int()?,
            slug: row.text()?,
            name: row.text()?,
            prefix: row.text()?,
            created_at: at(&mut row)?,
        })
    };
    rows.into_iter().map(read).collect()
}

/// A workspace with its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Workspace {
    pub(crate) slug: String,
    pub(crate) name: String,
    /// Of its issues' identifiers.
    pub(crate) prefix: String,
    /// What every agent in it is told.
    pub(crate) context: String,
    pub(crate) github_app: Option<GithubApp>,
    pub(crate) created_at: At,
}

/// The GitHub App that lends credentials to runs. Its key is shown nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct GithubApp {
    pub(crate) app_id: String,
    pub(crate) installation_id: Option<String>,
    pub(crate) base_url: String,
}

/// A GitHub App as it is set.
#[derive(Clone)]
pub(crate) struct NewGithubApp {
    pub(crate) app_id: String,
    pub(crate) installation_id: Option<String>,
    pub(crate) base_url: String,
    /// PEM; the one that is there stays when nobody gave another.
    pub(crate) private_key: Option<Secret>,
}

/// What changes of a workspace.
#[derive(Clone, Default)]
pub(crate) struct WorkspaceChange {
    pub(crate) name: Option<String>,
    pub(crate) context: Option<String>,
    pub(crate) github_app: Option<Option<NewGithubApp>>,
}

/// A workspace with its settings.
pub(crate) async fn show(conn: &mut Conn, id: i64) -> Result<Workspace, StoreError> {
    let sql = "SELECT w.slug, w.name, w.prefix, w.context, w.created_at, g.app_id, g.installation_id, \
               g.base_url FROM workspaces w LEFT JOIN github_apps g ON g.workspace_id = w.id WHERE w.id = $1";
    let mut row = conn.row(sql, args![id]).await?.ok_or(StoreError::NotFound)?;
    let (slug, name, prefix, context) = (row.text()?, row.text()?, row.text()?, row.text()?);
    let created_at = at(&mut row)?;
    let (app_id, installation_id) = (row.opt_text()?, row.opt_text()?);
    let base_url = row.opt_text()?.unwrap_or_default();
    let github_app = app_id.map(|app_id| GithubApp { app_id, installation_id, base_url });
    Ok(Workspace { slug, name, prefix, context, github_app, created_at })
}

/// Changes a workspace's settings.
pub(crate) async fn change(
    tx: &mut Tx,
    id: i64,
    change: WorkspaceChange,
) -> Result<(), StoreError> {
    let mut sets: Vec<(&'static str, Value)> = Vec::new();
    let renamed = change.name.is_some();
    sets.extend(change.name.map(|it| ("name", Value::from(it))));
    sets.extend(change.context.map(|it| ("context", Value::from(it))));
    let mut fields = update(tx, "workspaces", id, sets, false).await?;
    if let Some(app) = change.github_app {
        fields.push("github_app");
        match app {
            Some(app) => set_github_app(tx, id, app).await?,
            None => {
                let sql = "DELETE FROM github_apps WHERE workspace_id = $1";
                tx.conn.execute(sql, args![id]).await?;
            }
        }
    }
    if fields.is_empty() {
        return Ok(());
    }
    if renamed {
        // Servers remember the name with each token.
        tokens::forget(tx).await?;
    }
    tx.event(id, "workspace.changed", &json!({ "fields": fields })).await?;
    Ok(())
}

async fn set_github_app(tx: &mut Tx, id: i64, app: NewGithubApp) -> Result<(), StoreError> {
    let sealed = match &app.private_key {
        Some(key) => {
            let sealed = tx.shared.keyring.seal(Purpose::GithubKey(id), key.expose().as_bytes());
            Some(sealed.map_err(|_| StoreError::Busy)?)
        }
        None => {
            check_key_stays(tx, id, &app).await?;
            None
        }
    };
    let sql = "INSERT INTO github_apps (workspace_id, app_id, installation_id, base_url, sealed_key) \
               VALUES ($1, $2, $3, $4, $5) ON CONFLICT (workspace_id) DO UPDATE SET \
               app_id = excluded.app_id, installation_id = excluded.installation_id, \
               base_url = excluded.base_url, sealed_key = excluded.sealed_key";
    let stays = "UPDATE github_apps SET app_id = $2, installation_id = $3, base_url = $4 \
                 WHERE workspace_id = $1";
    let mut args = args![id, app.app_id, app.installation_id, app.base_url];
    let sql = match sealed {
        Some(sealed) => {
            args.push(Value::from(sealed));
            sql
        }
        None => stays,
    };
    tx.conn.execute(sql, args).await?;
    Ok(())
}

/// A key that is there stays for the App and the address that it was given for: who may set the address must not
/// get proofs of being an App whose key it does not know.
async fn check_key_stays(tx: &mut Tx, id: i64, app: &NewGithubApp) -> Result<(), StoreError> {
    let sql = format!(
        "SELECT app_id, base_url FROM github_apps WHERE workspace_id = $1 {}",
        super::locking(&tx.conn)
    );
    let Some(mut row) = tx.conn.row(&sql, args![id]).await? else {
        return Err(invalid("github_app.private_key", "is required"));
    };
    if (row.text()?, row.text()?) != (app.app_id.clone(), app.base_url.clone()) {
        let fault = "is required with another app_id or base_url";
        return Err(invalid("github_app.private_key", fault));
    }
    Ok(())
}
