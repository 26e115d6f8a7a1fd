//! Why a configuration is not used.

use camino::Utf8PathBuf;
use ostler_core::settings::{self, UnknownKey};

use super::OutOfRange;

/// Why a configuration is not used. Nothing of it is, then: half a configuration would be a surprise.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No TOML, or a value of the wrong type.
    #[error("{path} is not a valid configuration")]
    Syntax {
        /// The file.
        path: Utf8PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// Keys that there are not.
    #[error("{path} has unknown keys: {}", settings::names(keys))]
    Unknown {
        /// The file.
        path: Utf8PathBuf,
        /// All of them.
        keys: Vec<UnknownKey>,
    },
    /// Numbers outside of their ranges.
    #[error("{path}: {}", wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Range {
        /// The file.
        path: Utf8PathBuf,
        /// All of them.
        wrong: Vec<OutOfRange>,
    },
    /// Two numbers that do not go together.
    #[error("{path}: {small_key} must be below {large_key}")]
    Order {
        /// The file.
        path: Utf8PathBuf,
        /// The one that must be smaller.
        small_key: &'static str,
        /// The one that must be larger.
        large_key: &'static str,
    },
    /// A value that is not possible.
    #[error("{path}: {key}: {message}")]
    Value {
        /// The file.
        path: Utf8PathBuf,
        /// The setting.
        key: String,
        /// Why not.
        message: String,
    },
}

impl ConfigError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { keys, .. } => settings::hint(keys),
            Self::Syntax { .. } | Self::Range { .. } | Self::Order { .. } | Self::Value { .. } => {
                "correct the file and start again".to_owned()
            }
        }
    }
}
