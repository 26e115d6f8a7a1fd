//! Words about settings, the same for every program that is configured: keys that there are not, and what they
//! may have meant. Pure: who reads files and variables has them already.

use crate::suggest;

/// A key that there is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// The key, with its section; or a variable.
    pub key: String,
    /// What may have been meant.
    pub suggestion: Option<String>,
}

impl UnknownKey {
    /// Suggests a known key like it, else one with the same name in another section.
    pub fn of<'k>(key: &str, known: impl Iterator<Item = &'k str> + Clone) -> Self {
        let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let suggestion = suggest::nearest(key, known.clone())
            .or_else(|| known.clone().find(|known| last(known) == last(key)))
            .map(str::to_owned);
        Self { key: key.to_owned(), suggestion }
    }
}

/// The keys, to be read in a sentence.
pub fn names(keys: &[UnknownKey]) -> String {
    keys.iter().map(|key| key.key.as_str()).collect::<Vec<_>>().join(", ")
}

/// What to do about them.
pub fn hint(keys: &[UnknownKey]) -> String {
    let meant: Vec<String> = keys
        .iter()
        .filter_map(|key| Some((&key.key, key.suggestion.as_ref()?)))
        .map(|(key, suggestion)| format!("instead of {key} did you mean {suggestion}?"))
        .collect();
    if meant.is_empty() {
        return "remove them, or correct their names".to_owned();
    }
    meant.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_looked_for_nearby_and_then_in_other_sections() {
        let known = ["listen", "limits.claim", "limits.tasks"];
        let of = |key| UnknownKey::of(key, known.into_iter());
        let suggestion = |key| of(key).suggestion;
        assert_eq!(suggestion("lissen").as_deref(), Some("listen"));
        assert_eq!(suggestion("claim").as_deref(), Some("limits.claim"));
        assert_eq!(suggestion("colours.red"), None);
        let keys = [of("lissen"), of("colours.red")];
        assert_eq!(names(&keys), "lissen, colours.red");
        assert_eq!(hint(&keys), "instead of lissen did you mean listen?");
        assert_eq!(hint(&keys[1..]), "remove them, or correct their names");
    }
}
