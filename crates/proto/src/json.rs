//! Strictness that JSON parsers leave out: duplicate keys and depth.
//!
//! [`check`] looks at structure only and trusts nothing: on text that is not JSON its answer means
//! nothing, so callers parse the text too. It does not recurse, and its memory is bounded by the text.

/// How deep arrays and objects may nest.
pub const DEPTH_MAX: usize = 128;

/// What [`check`] can object to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// An object has the same key twice (compared after unescaping).
    DuplicateKey,
    /// Nested deeper than [`DEPTH_MAX`].
    TooDeep,
}

/// One open array or object.
struct Level {
    /// Where the object's keys start in the shared list; `None` for an array.
    keys_from: Option<usize>,
}

/// Looks for duplicate keys and too much depth in `text`. The value of the top-level key `opaque` is
/// left unseen.
pub fn check(text: &str, opaque: Option<&str>) -> Result<(), Problem> {
    let bytes = text.as_bytes();
    let mut levels: Vec<Level> = Vec::new();
    let mut keys: Vec<std::borrow::Cow<'_, str>> = Vec::new();
    let mut key_is_next = false;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'"' => {
                at = string_end(bytes, at);
                if std::mem::take(&mut key_is_next) {
                    let key = unescape(text.get(start..at).unwrap_or_default());
                    if levels.len() == 1 && opaque == Some(&*key) {
                        at = value_end(bytes, at);
                    }
                    keys.push(key);
                }
            }
            b'{' | b'[' => {
                if levels.len() == DEPTH_MAX {
                    return Err(Problem::TooDeep);
                }
                key_is_next = byte == b'{';
                levels.push(Level { keys_from: key_is_next.then_some(keys.len()) });
            }
            b'}' | b']' => {
                key_is_next = false;
                if let Some(from) = levels.pop().and_then(|level| level.keys_from) {
                    close_object(&mut keys, from)?;
                }
            }
            b',' => key_is_next = levels.last().is_some_and(|level| level.keys_from.is_some()),
            _ => {}
        }
    }
    Ok(())
}

/// Compares the keys of an object that ends, and forgets them.
fn close_object(keys: &mut Vec<std::borrow::Cow<'_, str>>, from: usize) -> Result<(), Problem> {
    if let Some(own) = keys.get_mut(from..) {
        own.sort_unstable();
        if own.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err(Problem::DuplicateKey);
        }
    }
    keys.truncate(from);
    Ok(())
}

/// The index after the closing quote of a string whose text starts at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The index of the `,` or closing bracket that ends the value starting at or after `at`.
fn value_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at = string_end(bytes, at + 1);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth > 0 => depth -= 1,
            b'}' | b']' => return at,
            b',' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

/// The key that the literal `quoted` spells; one that spells none stands for itself.
fn unescape(quoted: &str) -> std::borrow::Cow<'_, str> {
    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match inner {
        Some(inner) if !inner.contains('\\') => inner.into(),
        _ => serde_json::from_str::<String>(quoted).map_or_else(|_| quoted.into(), Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_keys_are_found_at_every_level_and_spelling() {
        for text in [
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"b":{"x":[{"k":1,"k":2}]}}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"é":1,"\u00e9":2}"#,
            r#"{"a\"":1,"a\u0022":2}"#,
            r#"{"a":{"b":1},"c":[],"a":3}"#,
            r#"{"":1,"":2}"#,
        ] {
            assert_eq!(check(text, None), Err(Problem::DuplicateKey), "{text}");
        }
        for text in [
            r#"{"a":{"a":{"a":1}},"b":["a","a"]}"#,
            r#"[{"a":1},{"a":1}]"#,
            r#"{"a":"a","b":"a"}"#,
            r#"{"a":"{\"a\":1,\"a\":1}"}"#,
            r#"{"x":{"a":1,"b":2},"a":3,"b":4}"#,
        ] {
            assert_eq!(check(text, None), Ok(()), "{text}");
        }
    }

    #[test]
    fn depth_128_passes_and_129_does_not() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(check(&nested(128), None), Ok(()));
        assert_eq!(check(&nested(129), None), Err(Problem::TooDeep));
        assert_eq!(check(&format!("\"{}\"", nested(500)), None), Ok(()));
    }

    #[test]
    fn the_opaque_value_is_not_looked_at_and_what_follows_is() {
        let deep = "[".repeat(1000) + &"]".repeat(1000);
        let inner = format!(r#"{{"a":1,"a":"}}]","d":{deep}}}"#);
        let ok = format!(r#"{{"id":"x","command":{inner},"b":1}}"#);
        assert_eq!(check(&ok, Some("command")), Ok(()));
        let again = format!(r#"{{"b":2,"command":{inner},"b":1}}"#);
        assert_eq!(check(&again, Some("command")), Err(Problem::DuplicateKey));
        let twice = r#"{"command":1,"command":2}"#;
        assert_eq!(check(twice, Some("command")), Err(Problem::DuplicateKey));
        let below = r#"{"x":{"command":{"a":1,"a":1}}}"#;
        assert_eq!(check(below, Some("command")), Err(Problem::DuplicateKey));
    }
}
