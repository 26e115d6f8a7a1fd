//! What the server must keep to itself: the key it seals secrets with, lease tokens, credentials.
//!
//! Owns: the [`Keyring`] and where its master key comes from, the making and hashing of tokens. Subkeys are
//! derived from the one master key with HKDF-SHA256, a label each, so that what one is used for says nothing
//! about another. Absent on purpose: where tokens and sealed values are stored, and who may use them.

mod key_file;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use ring::aead::{self, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::{digest, hkdf, hmac};

use crate::hex::{hex, unhex};

/// Length of the master key in bytes.
const MASTER_BYTES: usize = 32;
/// What a sealed value begins with. Another format gets another mark, and the old one stays readable.
const SEALED_V1: &str = "s1.";
/// Characters of a token after its prefix: 62^32 is more than 190 bits.
const TOKEN_CHARS: usize = 32;
/// How much of a token is kept in clear and shown in lists.
pub const TOKEN_PREFIX_CHARS: usize = 12;
/// The letters of a token.
const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// The system gave no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes")]
pub struct NoRandomness;

/// Why there is no master key. Never shows anything of a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyFault {
    /// The text is neither hex nor base64 of 32 bytes.
    #[error(
        "the secret key is not 32 bytes as base64 or hex; make one with `openssl rand -hex 32`"
    )]
    Text,
    /// The key file holds something else than a key.
    #[error(
        "the key file {} does not hold 32 bytes as base64 or hex; put the right key back, or move the file \
         away to get a new key (what was sealed with the old one is lost then)", file.display()
    )]
    Content {
        /// Which file.
        file: PathBuf,
    },
    /// Somebody else can read the key file, or owns it.
    #[error("the key file {} is open to others; run `chmod 600` and `chown` on it", file.display())]
    Shared {
        /// Which file.
        file: PathBuf,
    },
    /// The path names a link, a directory, a pipe …
    #[error("the key file {} is not a regular file; links are not followed", file.display())]
    NotAFile {
        /// Which file.
        file: PathBuf,
    },
    /// The file could not be read or made.
    #[error("cannot {doing} the key file {}", file.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// Which file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No random bytes for a new key.
    #[error(transparent)]
    Random(#[from] NoRandomness),
    /// The library refused to derive a key.
    #[error("cannot derive the server's keys")]
    Derive,
}

/// Why a sealed value cannot be opened. Never shows anything of the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenFault {
    /// It is not something this version sealed.
    #[error("a sealed value has an unknown format; was it written by a newer server?")]
    Format,
    /// It was sealed with another key or for another purpose, or it was changed.
    #[error(
        "a sealed value does not open with this key; is OSTLER_SECRET_KEY or the key file the right one?"
    )]
    Key,
}

/// What a value is sealed for, and whose it is: it opens as nothing else and for nobody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The environment of this agent.
    AgentEnv(i64),
    /// The MCP servers of this agent.
    AgentMcp(i64),
    /// The key of this workspace's GitHub App.
    GithubKey(i64),
    #[cfg(test)]
    Other(&'static str),
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AgentEnv(id) => write!(f, "agent_env:{id}"),
            Self::AgentMcp(id) => write!(f, "agent_mcp:{id}"),
            Self::GithubKey(id) => write!(f, "github_key:{id}"),
            #[cfg(test)]
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// The keys of one server. All servers of one database have the same; see [`Keyring::fingerprint`].
pub struct Keyring {
    sealing: LessSafeKey,
    leases: hmac::Key,
    fingerprint: String,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring([keys redacted])")
    }
}

impl Keyring {
    /// From the master key.
    pub fn new(master: &[u8; MASTER_BYTES]) -> Result<Self, KeyFault> {
        let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, b"ostler server keys v1").extract(master);
        let sealing: UnboundKey =
            prk.expand(&[b"seal"], &CHACHA20_POLY1305).map_err(|_| KeyFault::Derive)?.into();
        let leases: hmac::Key =
            prk.expand(&[b"lease"], hmac::HMAC_SHA256).map_err(|_| KeyFault::Derive)?.into();
        let check: hmac::Key =
            prk.expand(&[b"check"], hmac::HMAC_SHA256).map_err(|_| KeyFault::Derive)?.into();
        let check = hmac::sign(&check, b"fingerprint");
        let fingerprint = hex(check.as_ref().get(..16).unwrap_or_default());
        Ok(Self { sealing: LessSafeKey::new(sealing), leases, fingerprint })
    }

    /// From the text of `OSTLER_SECRET_KEY`: 32 bytes as hex or as base64 of either alphabet.
    pub fn from_text(text: &str) -> Result<Self, KeyFault> {
        Self::new(&decode_master(text).ok_or(KeyFault::Text)?)
    }

    /// From a file that only this user can read. Where there is none a new key is made, on disk for good
    /// before this returns; of several servers that start at once all get the same key.
    pub fn from_file(file: &Path) -> Result<Self, KeyFault> {
        Self::new(&key_file::load_or_create(file)?)
    }

    /// The value in a form that may be stored. The purpose says what it is and whose: a row's sealed value does
    /// not open in another row.
    pub(crate) fn seal(&self, purpose: Purpose, plain: &[u8]) -> Result<String, SealFault> {
        let nonce = random::<NONCE_LEN>()?;
        let mut sealed = plain.to_vec();
        let aad = Aad::from(associated(purpose));
        self.sealing
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed)
            .map_err(|_| SealFault::TooLong)?;
        let mut bytes = nonce.to_vec();
        bytes.append(&mut sealed);
        Ok(format!("{SEALED_V1}{}", URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// What was sealed for this purpose.
    pub(crate) fn open(&self, purpose: Purpose, sealed: &str) -> Result<Vec<u8>, OpenFault> {
        let text = sealed.strip_prefix(SEALED_V1).ok_or(OpenFault::Format)?;
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| OpenFault::Format)?;
        let (nonce, rest) = bytes.split_first_chunk::<NONCE_LEN>().ok_or(OpenFault::Format)?;
        if rest.len() < aead::MAX_TAG_LEN {
            return Err(OpenFault::Format);
        }
        let mut rest = rest.to_vec();
        let aad = Aad::from(associated(purpose));
        let plain = self
            .sealing
            .open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut rest)
            .map_err(|_| OpenFault::Key)?;
        Ok(plain.to_vec())
    }

    /// The token of a lease (F-059): who knows neither key nor token cannot guess it, and the same claim
    /// asked again gets the same one. `nonce` is new with each claim and stored with the lease.
    pub fn lease_token(&self, task_id: &str, attempt: u32, nonce: &[u8; 16]) -> String {
        let mut context = hmac::Context::with_key(&self.leases);
        // The parts of fixed length come first, so that no two inputs run together.
        context.update(nonce);
        context.update(&attempt.to_be_bytes());
        context.update(task_id.as_bytes());
        hex(context.sign().as_ref())
    }

    /// A value that may be stored in the database, by which a server notices that it was started with another
    /// key than the database was made with. It says nothing about the key.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// Why a value cannot be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealFault {
    /// No random bytes.
    #[error(transparent)]
    Random(#[from] NoRandomness),
    /// Longer than the cipher takes.
    #[error("the value is too long to seal")]
    TooLong,
}

/// Text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps it.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret([redacted])")
    }
}

/// What is stored of a token (F-005). A plain hash is enough: nobody guesses 190 random bits.
pub fn hash_token(token: &str) -> [u8; 32] {
    let digest = digest::digest(&digest::SHA256, token.as_bytes());
    let mut hash = [0; 32];
    hash.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
    hash
}

/// A new credential: the prefix (`fdt_` for a machine, `fat_` for a person) and 32 random characters.
pub fn new_token(prefix: &str) -> Result<String, NoRandomness> {
    let mut token = prefix.to_owned();
    let until = token.len() + TOKEN_CHARS;
    while token.len() < until {
        let letters = random::<64>()?.into_iter().filter_map(letter);
        token.extend(letters.take(until - token.len()));
    }
    Ok(token)
}

/// The letter for a random byte, or none for the few bytes that would make some letters likelier.
fn letter(byte: u8) -> Option<char> {
    // 248 is the largest multiple of 62 in a byte.
    let index = (byte < 248).then(|| usize::from(byte) % LETTERS.len())?;
    LETTERS.get(index).copied().map(char::from)
}

/// The part of a token that is kept in clear.
pub fn token_prefix(token: &str) -> String {
    token.chars().take(TOKEN_PREFIX_CHARS).collect()
}

/// A fresh nonce for [`Keyring::lease_token`].
pub fn nonce() -> Result<[u8; 16], NoRandomness> {
    random()
}

fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// Format and purpose are authenticated with the value.
fn associated(purpose: Purpose) -> Vec<u8> {
    format!("{SEALED_V1}{purpose}").into_bytes()
}

/// The 32 bytes that the text stands for.
fn decode_master(text: &str) -> Option<[u8; MASTER_BYTES]> {
    let text = text.trim();
    if text.len() == 2 * MASTER_BYTES {
        return unhex(text);
    }
    let text = text.trim_end_matches('=');
    let bytes = STANDARD_NO_PAD.decode(text).or_else(|_| URL_SAFE_NO_PAD.decode(text)).ok()?;
    bytes.try_into().ok()
}
