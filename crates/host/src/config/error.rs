//! Why a configuration is not used.

use camino::Utf8PathBuf;

use super::{CONFIG_BYTES_MAX, OutOfRange};

/// A key that there is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// The key, with its section.
    pub key: String,
    /// What may have been meant.
    pub suggestion: Option<String>,
}

/// Why a configuration is not used. Nothing of it is, then: half a configuration would be a surprise.
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
    /// No TOML, or a value of the wrong type.
    #[error("{path} is not a valid configuration")]
    Syntax {
        /// The file.
        path: Utf8PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// Keys that there are not.
    #[error("{path} has unknown keys: {}", keys.iter().map(|key| key.key.as_str()).collect::<Vec<_>>().join(", "))]
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
            Self::Io { .. } => {
                format!("check the file, or set {} to another one", crate::paths::CONFIG_FILE_ENV)
            }
            Self::Unknown { keys, .. } => unknown_hint(keys),
            Self::TooLong { .. }
            | Self::Syntax { .. }
            | Self::Range { .. }
            | Self::Order { .. }
            | Self::Value { .. } => "correct the file and start again".to_owned(),
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
