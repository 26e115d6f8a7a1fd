//! "Did you mean …?" for a word that is unknown, a configuration's key for example.

/// The longest word that is compared; the work grows with the square of it.
const WORD_CHARS_MAX: usize = 64;

/// The known word that is most like `word`, when one is like enough: a third of it may differ.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (word.chars().count() / 3).max(1);
    if word.chars().count() > WORD_CHARS_MAX {
        return None;
    }
    known
        .map(|candidate| (strsim::osa_distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_and_a_far_one_is_not() {
        let known = ["heartbeat_seconds", "limit", "events_max", "events_bytes_max"];
        let nearest = |word| nearest(word, known.into_iter());
        assert_eq!(nearest("hartbeat_second"), Some("heartbeat_seconds"));
        assert_eq!(nearest("limits"), Some("limit"));
        assert_eq!(nearest("event_max"), Some("events_max"));
        assert_eq!(nearest("limti"), Some("limit"), "two letters in the wrong order are one fault");
        assert_eq!(nearest("colour"), None);
        assert_eq!(nearest(""), None);
        assert_eq!(nearest(&"limit".repeat(1000)), None);
    }
}
