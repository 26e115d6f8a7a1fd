//! Sections of numbers: one line a setting, with its default and the range it may have.

use std::ops::RangeInclusive;

/// A number outside of its range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfRange {
    /// The setting, as `section.name`.
    pub key: String,
    /// What the file says.
    pub value: u64,
    /// What it may say.
    pub range: RangeInclusive<u64>,
}

impl std::fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { key, value, range } = self;
        write!(f, "{key} is {value}, and must be from {} to {}", range.start(), range.end())
    }
}

/// Makes a struct of numbers with its defaults, its keys and the check of its ranges.
macro_rules! section {
    (
        $(#[$doc:meta])*
        $name:ident {
            $( $(#[$field_doc:meta])* $field:ident = $default:expr, $range:expr; )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            $( $(#[$field_doc])* pub $field: u64, )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )* }
            }
        }

        impl $name {
            /// The names of the settings, in order.
            pub(super) const KEYS: &[&str] = &[ $( stringify!($field), )* ];

            /// Adds what is outside of its range.
            pub(super) fn check(&self, section: &str, wrong: &mut Vec<$crate::config::OutOfRange>) {
                $(
                    let (value, range) = (self.$field, $range);
                    if !range.contains(&value) {
                        let key = format!("{section}.{}", stringify!($field));
                        wrong.push($crate::config::OutOfRange { key, value, range });
                    }
                )*
            }
        }
    };
}

pub(super) use section;
