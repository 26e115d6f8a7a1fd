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
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many characters must be inserted, removed or replaced to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (above, from) in a.chars().enumerate() {
        let mut diagonal = above;
        let mut left = above + 1;
        let mut next = vec![left];
        for (cell, to) in row.iter().skip(1).zip(&b) {
            left = (left + 1).min(cell + 1).min(diagonal + usize::from(from != *to));
            diagonal = *cell;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
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
        assert_eq!(nearest("colour"), None);
        assert_eq!(nearest(""), None);
        assert_eq!(nearest(&"limit".repeat(1000)), None);
    }

    #[test]
    fn distances_are_those_of_levenshtein() {
        for (a, b, expected) in
            [("", "", 0), ("kitten", "sitting", 3), ("abc", "", 3), ("", "ab", 2), ("é", "e", 1)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }
}
