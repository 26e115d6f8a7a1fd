//! Who calls: tokens, remembered for as long as nobody revokes one.
//!
//! A token that was looked up once is not looked up again until a token anywhere is revoked: each revocation
//! counts up a number in the database, which every server reads once a second. A server that could not read it for
//! some seconds trusts nothing it remembers. Different tokens that are not accepted are counted by address; one that
//! was accepted before is not, and one that is sent again is not either, or a machine with a bad token would lock out
//! its neighbours (F-111).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use ostler_core::clock::Timestamp;

use crate::app::App;
use crate::http::{Fault, bearer};
use crate::secrets::hash_token;
use crate::store::StoreError;
use crate::store::sql::SqlStore;
use crate::store::sql::people::tokens;

/// Tokens that are remembered; when there are more all are forgotten and looked up again.
const REMEMBERED_MAX: usize = 100_000;
/// How often a server asks whether a token was revoked.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long a server believes what it remembers without an answer to that. With [`ASK_EVERY`] and a request
/// that is on its way, a revoked token stops within 5 s.
const BELIEVED_MAX: Duration = Duration::from_secs(3);
const _: () = assert!(ASK_EVERY.as_millis() + BELIEVED_MAX.as_millis() < 5_000);

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

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        [Self::Daemon, Self::Api].into_iter().find(|it| it.word() == word)
    }

    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Daemon => "fdt_",
            Self::Api => "fat_",
        }
    }
}

/// What a token must be good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ability {
    /// Looking.
    Read,
    /// Changing what the team works on.
    Write,
    /// Tokens, members, settings.
    Admin,
}

impl Ability {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    /// The word in tokens.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }

    /// The ability of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.word() == word)
    }
}

/// Whose token it is and what it may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) token_id: i64,
    pub(crate) kind: TokenKind,
    pub(crate) abilities: Vec<Ability>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) workspace_id: i64,
    pub(crate) workspace_slug: String,
    pub(crate) workspace_name: String,
    pub(crate) workspace_prefix: String,
    pub(crate) user_id: i64,
    pub(crate) user_name: String,
}

impl Identity {
    pub(crate) fn may(&self, ability: Ability) -> bool {
        self.abilities.contains(&ability)
    }

    fn is_valid(&self, kind: TokenKind, now: Timestamp) -> bool {
        self.kind == kind && self.expires_at.is_none_or(|at| at > now.as_micros())
    }
}

struct Remembered {
    identity: Arc<Identity>,
    /// When it was looked up.
    generation: u64,
}

struct Known {
    /// By the token's hash. Those of earlier generations were accepted once, and are looked up again.
    identities: HashMap<[u8; 32], Remembered>,
    /// Counted up when a token was revoked.
    generation: u64,
    /// How many revocations the database has seen.
    number: Option<String>,
    asked: Option<Instant>,
}

/// The tokens that this server has seen.
pub(crate) struct Tokens {
    known: Mutex<Known>,
}

impl Tokens {
    pub(crate) fn new() -> Self {
        let known = Known { identities: HashMap::new(), generation: 0, number: None, asked: None };
        Self { known: Mutex::new(known) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Known) -> T) -> T {
        work(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
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
        let (remembered, generation) = self.remembered(&hash);
        let identity = match remembered {
            Some(identity) => identity,
            None => {
                let found = tokens::look_up(&mut store.reader().await?, &hash).await?;
                match self.remember(hash, found, generation) {
                    Some(identity) => identity,
                    None => return Ok(None),
                }
            }
        };
        let valid = identity.is_valid(kind, store.now());
        Ok(Some(identity).filter(|_| valid))
    }

    /// What is remembered of a token and can be believed, and the generation that a look of now belongs to.
    fn remembered(&self, hash: &[u8; 32]) -> (Option<Arc<Identity>>, u64) {
        self.with(|known| {
            let generation = known.generation;
            let trusted = known.asked.is_some_and(|asked| asked.elapsed() < BELIEVED_MAX);
            let found = known.identities.get(hash).filter(|it| it.generation == generation);
            (found.filter(|_| trusted).map(|it| Arc::clone(&it.identity)), generation)
        })
    }

    /// Remembers what was found in this generation. When a token was revoked during the look it is not believed
    /// the next time: the look may have been before the revocation.
    fn remember(
        &self,
        hash: [u8; 32],
        found: Option<Identity>,
        generation: u64,
    ) -> Option<Arc<Identity>> {
        self.with(|known| {
            let Some(identity) = found.map(Arc::new) else {
                known.identities.remove(&hash);
                return None;
            };
            if known.identities.len() >= REMEMBERED_MAX {
                known.identities.clear();
            }
            let remembered = Remembered { identity: Arc::clone(&identity), generation };
            known.identities.insert(hash, remembered);
            Some(identity)
        })
    }

    /// Whether the token was accepted before, and may be still.
    fn was_accepted(&self, hash: &[u8; 32], kind: TokenKind, now: Timestamp) -> bool {
        self.with(|known| {
            known.identities.get(hash).is_some_and(|it| it.identity.is_valid(kind, now))
        })
    }

    /// Looks all of them up again: one was revoked.
    pub(crate) fn forget(&self) {
        self.with(|known| known.generation += 1);
    }

    /// Asks whether a token was revoked, and looks all of them up again if so.
    pub(crate) async fn ask(&self, store: &SqlStore) -> Result<(), StoreError> {
        let asked = Instant::now();
        let number = tokens::revocations(&mut store.reader().await?).await?;
        self.with(|known| {
            if known.number != number {
                known.generation += 1;
                known.number = number;
            }
            known.asked = Some(asked);
        });
        Ok(())
    }
}

impl App {
    /// Who calls, or why nobody is let in: the first question of every endpoint.
    pub(crate) async fn identify(
        &self,
        headers: &HeaderMap,
        address: Option<IpAddr>,
        kind: TokenKind,
    ) -> Result<Arc<Identity>, Fault> {
        let token = bearer(headers);
        // No token at all is one of the wrong ones.
        let hash = hash_token(token.unwrap_or_default());
        if !self.tokens.was_accepted(&hash, kind, self.store.now())
            && let Some(standing) = address.and_then(|address| self.rates.guesses(address, hash))
        {
            return Err(Fault::too_many(standing));
        }
        if let Some(identity) = self.tokens.identify(&self.store, token, kind).await? {
            return Ok(identity);
        }
        if let Some(address) = address {
            self.rates.guessed(address, hash);
        }
        Err(Fault::unauthorized())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            token_id: 1,
            kind: TokenKind::Daemon,
            abilities: Vec::new(),
            expires_at: Some(1_000),
            workspace_id: 1,
            workspace_slug: "acme".to_owned(),
            workspace_name: "Acme".to_owned(),
            workspace_prefix: "ACME".to_owned(),
            user_id: 1,
            user_name: "admin".to_owned(),
        }
    }

    #[test]
    fn f_003_what_was_looked_up_before_a_revocation_is_not_believed_after_it() {
        let tokens = Tokens::new();
        tokens.with(|known| known.asked = Some(Instant::now()));
        let hash = hash_token("fdt_x");
        let believed = || tokens.remembered(&hash).0.is_some();
        // The look reads, the token is revoked and the server hears of it, and only then the look comes back.
        let (_, generation) = tokens.remembered(&hash);
        tokens.forget();
        tokens.remember(hash, Some(identity()), generation);
        assert!(!believed());
        let (_, generation) = tokens.remembered(&hash);
        tokens.remember(hash, Some(identity()), generation);
        assert!(believed());
        // Nobody could ask for a while.
        let long_ago = Instant::now().checked_sub(BELIEVED_MAX);
        tokens.with(|known| known.asked = long_ago);
        assert!(!believed());
    }

    #[test]
    fn f_111_a_token_is_no_guess_while_it_may_still_be_accepted() {
        let tokens = Tokens::new();
        let hash = hash_token("fdt_x");
        let no_guess = |kind, now| tokens.was_accepted(&hash, kind, Timestamp::from_micros(now));
        assert!(!no_guess(TokenKind::Daemon, 0));
        tokens.remember(hash, Some(identity()), 0);
        assert!(no_guess(TokenKind::Daemon, 999));
        tokens.forget();
        assert!(no_guess(TokenKind::Daemon, 999));
        assert!(!no_guess(TokenKind::Daemon, 1_000), "it expired");
        assert!(!no_guess(TokenKind::Api, 999), "it is of another kind");
        tokens.remember(hash, None, 1);
        assert!(!no_guess(TokenKind::Daemon, 999), "it was revoked");
    }
}
