//! Identifiers: strings that were checked once, at the edge, and are trusted afterwards.

use std::fmt;
use std::sync::Arc;

/// The longest task, session or approval id, in characters (runtime.md, "Commands").
pub const ID_CHARS_MAX: usize = 256;

/// Why a string is no identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Nothing is left after trimming.
    #[error("must not be empty")]
    Empty,
    /// More than [`ID_CHARS_MAX`] characters.
    #[error("must have at most {ID_CHARS_MAX} characters")]
    TooLong,
    /// A control character inside.
    #[error("must not contain control characters")]
    ControlCharacter,
}

fn checked(text: &str) -> Result<Arc<str>, IdError> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(IdError::Empty);
    }
    if trimmed.chars().count() > ID_CHARS_MAX {
        return Err(IdError::TooLong);
    }
    if trimmed.chars().any(char::is_control) {
        return Err(IdError::ControlCharacter);
    }
    Ok(Arc::from(trimmed))
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text` (trimmed: 1 to [`ID_CHARS_MAX`] characters, none of them a control
            /// character).
            pub fn new(text: &str) -> Result<Self, IdError> {
                checked(text).map(Self)
            }

            /// The text of the identifier.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &self.0)
            }
        }
    };
}

id!(
    /// A client's name for a task; unique as long as the archive remembers it.
    TaskId
);
id!(
    /// A conversation that several tasks may continue, one after another.
    SessionId
);

/// One execution of a task: the task and which attempt it is, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId {
    /// The task that runs.
    pub task: TaskId,
    /// Which of its runs this is.
    pub attempt: u32,
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.task, self.attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_52_ids_have_1_to_256_characters_without_controls() {
        assert_eq!(TaskId::new(&"é".repeat(256)).unwrap().as_str().chars().count(), 256);
        assert_eq!(TaskId::new(&"é".repeat(257)), Err(IdError::TooLong));
        assert_eq!(TaskId::new(" \t "), Err(IdError::Empty));
        assert_eq!(TaskId::new("a\u{0}b"), Err(IdError::ControlCharacter));
        assert_eq!(SessionId::new("  a b  ").unwrap().as_str(), "a b");
    }
}
