//! Who calls: tokens, remembered for as long as nobody revokes one.
//!
//! A token that was looked up once is not looked up again until a token anywhere is revoked: each revocation
//! counts up a number in the database, which every server reads once a second. A server that could not read it for
//! some seconds trusts nothing it remembers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::secrets::hash_token;
use crate::store::StoreError;
use crate::store::hex;
use crate::store::sql::SqlStore;
use crate::store::sql::db::args;

/// Tokens that are remembered; when there are more all are forgotten and looked up again.
const REMEMBERED_MAX: usize = 100_000;
/// How often a server asks whether a token was revoked.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long a server believes what it remembers without an answer to that. With [`ASK_EVERY`] and a request
/// that is on its way, a revoked token stops within 5 s.
const BELIEVED_MAX: Duration = Duration::from_secs(3);

/// What a token may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A machine's: `/api/daemon`.
    Daemon,
    /// A person's or a program's: `/api/v1`.
    Api,
}

impl TokenKind {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Daemon => "daemon",
            Self::Api => "api",
        }
    }

    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Daemon => "fdt_",
            Self::Api => "fat_",
        }
    }
}

/// Whose token it is and what it may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) token_id: i64,
    pub(crate) kind: TokenKind,
    pub(crate) abilities: Vec<String>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) workspace_id: i64,
    pub(crate) workspace_slug: String,
    pub(crate) workspace_name: String,
    pub(crate) workspace_prefix: String,
    pub(crate) user_id: i64,
    pub(crate) user_name: String,
}

impl Identity {
    pub(crate) fn may(&self, ability: &str) -> bool {
        self.abilities.iter().any(|own| own == ability)
    }
}

struct Known {
    /// By the token's hash.
    identities: HashMap<[u8; 32], Arc<Identity>>,
    /// How many revocations there were.
    number: Option<String>,
    asked: Option<Instant>,
}

/// The tokens that this server has seen.
pub(crate) struct Tokens {
    known: Mutex<Known>,
}

impl Tokens {
    pub(crate) fn new() -> Self {
        let known = Known { identities: HashMap::new(), number: None, asked: None };
        Self { known: Mutex::new(known) }
    }

    /// Whose token this is. It must be of this kind, of now, and not revoked.
    pub(crate) async fn identify(
        &self,
        store: &SqlStore,
        token: Option<&str>,
        kind: TokenKind,
    ) -> Result<Option<Arc<Identity>>, StoreError> {
        let Some(token) = token.filter(|token| token.starts_with(kind.prefix())) else {
            return Ok(None);
        };
        // The hash is looked up, not the token: how long a comparison takes says nothing about a token.
        let hash = hash_token(token);
        let identity = match self.remembered(&hash) {
            Some(identity) => identity,
            None => match look_up(store, &hash).await? {
                Some(identity) => self.remember(hash, identity),
                None => return Ok(None),
            },
        };
        let now = store.now().as_micros();
        let valid = identity.kind == kind && identity.expires_at.is_none_or(|at| at > now);
        Ok(Some(identity).filter(|_| valid))
    }

    fn remembered(&self, hash: &[u8; 32]) -> Option<Arc<Identity>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.asked.filter(|asked| asked.elapsed() < BELIEVED_MAX)?;
        known.identities.get(hash).cloned()
    }

    fn remember(&self, hash: [u8; 32], identity: Identity) -> Arc<Identity> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.identities.len() >= REMEMBERED_MAX {
            known.identities.clear();
        }
        let identity = Arc::new(identity);
        known.identities.insert(hash, Arc::clone(&identity));
        identity
    }

    /// Forgets all of them: one was revoked.
    pub(crate) fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).identities.clear();
    }

    /// Asks whether a token was revoked, and forgets all of them if so.
    pub(crate) async fn ask(&self, store: &SqlStore) -> Result<(), StoreError> {
        let asked = Instant::now();
        let mut conn = store.reader().await?;
        let row = conn.row("SELECT value FROM meta WHERE name = 'tokens'", args![]).await?;
        let number = match row {
            Some(mut row) => Some(row.text()?),
            None => None,
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.number != number {
            known.identities.clear();
            known.number = number;
        }
        known.asked = Some(asked);
        Ok(())
    }
}

async fn look_up(store: &SqlStore, hash: &[u8; 32]) -> Result<Option<Identity>, StoreError> {
    let sql = "SELECT t.id, t.kind, t.abilities, t.expires_at, t.workspace_id, w.slug, w.name, w.prefix, \
               t.user_id, u.name FROM tokens t JOIN workspaces w ON w.id = t.workspace_id \
               JOIN users u ON u.id = t.user_id WHERE t.hash = $1 AND t.revoked_at IS NULL";
    let Some(mut row) = store.reader().await?.row(sql, args![hex(hash)]).await? else {
        return Ok(None);
    };
    let token_id = row.int()?;
    let kind = if row.text()? == "daemon" { TokenKind::Daemon } else { TokenKind::Api };
    Ok(Some(Identity {
        token_id,
        kind,
        abilities: row.text()?.split(',').map(str::to_owned).collect(),
        expires_at: row.opt_int()?,
        workspace_id: row.int()?,
        workspace_slug: row.text()?,
        workspace_name: row.text()?,
        workspace_prefix: row.text()?,
        user_id: row.int()?,
        user_name: row.text()?,
    }))
}
