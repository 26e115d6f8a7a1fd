//! Why settings are not used.

use std::net::SocketAddr;

use camino::Utf8PathBuf;
use ostler_core::settings::{self, UnknownKey};

/// Why settings are not used. Nothing of them is, then. No value is shown of a key that may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No TOML.
    #[error("{path} is not a valid configuration")]
    Syntax {
        /// The file.
        path: Utf8PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// Keys that there are not.
    #[error("{place} has unknown keys: {}", settings::names(keys))]
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

impl ConfigError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { keys, .. } => settings::hint(keys),
            Self::Syntax { .. } | Self::Values { .. } => "correct it and start again".to_owned(),
            Self::HalfTls { .. } => "give both --tls-cert and --tls-key, or neither".to_owned(),
            Self::Exposed { .. } => {
                "give --tls-cert and --tls-key; or, when a proxy does TLS, say \
                                     which: --behind-proxy IP; or listen on 127.0.0.1"
                    .to_owned()
            }
        }
    }
}
