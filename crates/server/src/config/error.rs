//! Why settings are not used.

use std::net::SocketAddr;

use camino::Utf8PathBuf;

use super::CONFIG_BYTES_MAX;

/// A key that there is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// The key, with its section.
    pub key: String,
    /// What may have been meant.
    pub suggestion: Option<String>,
}

/// Why settings are not used. Nothing of them is, then. No value is shown of a key that may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path} cannot be read")]
    Io {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no configuration by its size.
    #[error("{path} has more than {CONFIG_BYTES_MAX} bytes")]
    TooLong {
        /// The file.
        path: Utf8PathBuf,
    },
    /// No TOML.
    #[error("{path} is not a valid configuration")]
    Syntax {
        /// The file.
        path: Utf8PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// Keys that there are not.
    #[error("{place} has unknown keys: {}", names(keys))]
    Unknown {
        /// The file, or the environment.
        place: String,
        /// All of them.
        keys: Vec<UnknownKey>,
    },
    /// Values that are not possible.
    #[error("{place}: {}", faults.join("; "))]
    Values {
        /// The file, or the environment.
        place: String,
        /// All of them, each with its key.
        faults: Vec<String>,
    },
    /// A certificate without key, or the other way round.
    #[error("{missing} is missing: TLS needs a certificate and its key")]
    HalfTls {
        /// What nobody said.
        missing: &'static str,
    },
    /// Everybody on the network could read tokens.
    #[error("{address} can be reached from other machines, and tokens would travel in clear")]
    Exposed {
        /// Where it should have listened.
        address: SocketAddr,
    },
}

fn names(keys: &[UnknownKey]) -> String {
    keys.iter().map(|key| key.key.as_str()).collect::<Vec<_>>().join(", ")
}

impl ConfigError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Io { .. } => "check the file, or name another one".to_owned(),
            Self::Unknown { keys, .. } => unknown_hint(keys),
            Self::TooLong { .. } | Self::Syntax { .. } | Self::Values { .. } => {
                "correct it and start again".to_owned()
            }
            Self::HalfTls { .. } => "give both --tls-cert and --tls-key, or neither".to_owned(),
            Self::Exposed { .. } => {
                "give --tls-cert and --tls-key; or, when a proxy does TLS, say \
                                     which: --behind-proxy IP; or listen on 127.0.0.1"
                    .to_owned()
            }
        }
    }
}

fn unknown_hint(keys: &[UnknownKey]) -> String {
    let meant: Vec<String> = keys
        .iter()
        .filter_map(|key| Some((&key.key, key.suggestion.as_ref()?)))
        .map(|(key, suggestion)| format!("instead of {key} did you mean {suggestion}?"))
        .collect();
    match meant.is_empty() {
        true => "remove them, or correct their names".to_owned(),
        false => meant.join(" "),
    }
}
