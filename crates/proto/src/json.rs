//! Strictness that JSON parsers leave out, duplicate keys and depth; and leniency that they leave out: [`mend`].
//!
//! [`check`] looks at structure only and trusts nothing: on text that is not JSON its answer means
//! nothing, so callers parse the text too. Neither recurses, and their memory is bounded by the text.

use std::borrow::Cow;

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
    let mut keys: Vec<Cow<'_, str>> = Vec::new();
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
fn close_object(keys: &mut Vec<Cow<'_, str>>, from: usize) -> Result<(), Problem> {
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
fn unescape(quoted: &str) -> Cow<'_, str> {
    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match inner {
        Some(inner) if !inner.contains('\\') => inner.into(),
        _ => serde_json::from_str::<String>(quoted).map_or_else(|_| quoted.into(), Into::into),
    }
}

/// A key that `serde_json` takes for an order: it reads the text behind it as JSON once more, whatever its depth.
const ORDER: &str = "$serde_json::private::RawValue";
/// What stands for that key.
const NO_ORDER: &str = "\"$serde_json::private::RawValue_\"";

/// The text without keys that the parser would take for orders, however they are written: they get another name.
pub fn disarm(text: &str) -> Cow<'_, str> {
    // Hardly any text needs a closer look.
    if !text.contains("RawValue") && !text.contains("\\u") {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut mended = Mended { text, out: String::new(), copied: 0 };
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        if byte != b'"' {
            continue;
        }
        at = string_end(bytes, at);
        // Each character takes six bytes at most.
        let may_be = (ORDER.len() + 2..=6 * ORDER.len() + 2).contains(&(at - start));
        if may_be && unescape(text.get(start..at).unwrap_or_default()) == ORDER {
            mended.put(start..at, NO_ORDER);
        }
    }
    mended.done()
}

/// How deep what [`mend`] leaves may nest: less than parsers take, also inside what shows it.
pub const NESTED_MAX: usize = 120;
/// What stands for a value that is nested too deeply.
const TOO_DEEP: &str = "\"… (nested too deeply)\"";
/// What stands for half a character.
const REPLACEMENT: &str = "\\ufffd";
/// Bytes of a number that is certainly within the range of a float when it has no exponent.
const PLAIN_NUMBER_BYTES_MAX: usize = 300;

/// The text with what is JSON by its grammar but no value that we can hold made into one that we can: escapes that
/// are half a character, numbers beyond a float's range (which become strings), and values nested deeper than
/// `depth_max`. Whatever else is wrong stays so.
pub fn mend(text: &str, depth_max: usize) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut mended = Mended { text, out: String::new(), copied: 0 };
    let (mut depth, mut at) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'"' => {
                at = string_end(bytes, at);
                halves(bytes, start..at, &mut mended);
            }
            b'{' | b'[' if depth == depth_max => {
                at = value_end(bytes, start);
                mended.put(start..at, TOO_DEEP);
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'-' | b'0'..=b'9' => {
                at = number_end(bytes, start);
                let number = text.get(start..at).unwrap_or_default();
                if is_beyond(number) {
                    mended.put(start..at, &format!("\"{number}\""));
                }
            }
            _ => {}
        }
    }
    mended.done()
}

/// A text with some places replaced.
struct Mended<'t> {
    text: &'t str,
    out: String,
    /// Bytes of the text that are in `out`, as they were or replaced.
    copied: usize,
}

impl<'t> Mended<'t> {
    fn put(&mut self, place: std::ops::Range<usize>, instead: &str) {
        self.out.push_str(self.text.get(self.copied..place.start).unwrap_or_default());
        self.out.push_str(instead);
        self.copied = place.end;
    }

    fn done(mut self) -> Cow<'t, str> {
        if self.copied == 0 {
            return Cow::Borrowed(self.text);
        }
        self.out.push_str(self.text.get(self.copied..).unwrap_or_default());
        Cow::Owned(self.out)
    }
}

/// Replaces the escapes of a literal that are half a character.
fn halves(bytes: &[u8], literal: std::ops::Range<usize>, mended: &mut Mended<'_>) {
    let unit = |at: usize| {
        let digits = bytes.get(at..at + 6).and_then(|escape| escape.strip_prefix(b"\\u"))?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut at = literal.start + 1;
    while at < literal.end {
        if bytes.get(at) != Some(&b'\\') {
            at += 1;
            continue;
        }
        match unit(at) {
            Some(0xd800..=0xdbff) if matches!(unit(at + 6), Some(0xdc00..=0xdfff)) => at += 12,
            Some(0xd800..=0xdfff) => {
                mended.put(at..at + 6, REPLACEMENT);
                at += 6;
            }
            _ => at += 2,
        }
    }
}

/// The index after the number that starts at `at`.
fn number_end(bytes: &[u8], at: usize) -> usize {
    let of_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| of_number(byte)).count()
}

/// The number has no place among floats.
fn is_beyond(number: &str) -> bool {
    (number.contains(['e', 'E']) || number.len() > PLAIN_NUMBER_BYTES_MAX)
        && number.parse::<f64>().is_ok_and(f64::is_infinite)
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

    #[test]
    fn what_cannot_be_held_is_mended_and_everything_else_is_left() {
        for (text, expected) in [
            (r#"{"a":"\ud800"}"#, r#"{"a":"\ufffd"}"#),
            (
                r#"["\udfff\ud800x","\ud83e\udd80","\\ud800"]"#,
                r#"["\ufffd\ufffdx","\ud83e\udd80","\\ud800"]"#,
            ),
            (r#"{"\uDBFF":1,"b":["\ud800\u0041"]}"#, r#"{"\ufffd":1,"b":["\ufffd\u0041"]}"#),
            (
                r#"[1e400,-1E999,1e-400,12.5e3,"1e400"]"#,
                r#"["1e400","-1E999",1e-400,12.5e3,"1e400"]"#,
            ),
        ] {
            assert_eq!(mend(text, NESTED_MAX), expected);
            assert!(serde_json::from_str::<serde_json::Value>(expected).is_ok(), "{expected}");
        }
        let long = "9".repeat(400);
        assert_eq!(mend(&long, NESTED_MAX), format!("\"{long}\""));
        for text in [
            "",
            "\"",
            "\"\\",
            "\"\\u",
            "\"\\ud8",
            "{",
            "nul",
            "-",
            "\u{e9}\"\\\u{e9}",
            "]]",
            "\"\\ud800",
        ] {
            let mended = mend(text, 1);
            assert!(mended == text || mended == "\"\\ufffd", "{text}: {mended}");
        }
    }

    #[test]
    fn what_is_nested_too_deeply_is_cut_where_it_begins() {
        let cut = mend(r#"{"a":[[1,"]"],2, {"b":"}"} ],"c":3}"#, 2);
        assert_eq!(cut, format!(r#"{{"a":[{TOO_DEEP},2, {TOO_DEEP}],"c":3}}"#));
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        let cut = mend(&deep, NESTED_MAX);
        assert!(serde_json::from_str::<serde_json::Value>(&cut).is_ok());
        let just = format!("{}{}", "[".repeat(NESTED_MAX), "]".repeat(NESTED_MAX));
        assert!(matches!(mend(&just, NESTED_MAX), Cow::Borrowed(_)));
    }

    #[test]
    fn what_the_parser_takes_for_an_order_is_a_key_like_others() {
        let escaped = ORDER.replace('R', "\\u0052").replace('$', "\\u0024");
        for key in [ORDER, escaped.as_str()] {
            let text = format!(r#"{{"a":[{{"{key}":"[[1]]"}}],"b":"x"}}"#);
            let told: serde_json::Value = serde_json::from_str(&disarm(&text)).unwrap();
            assert_eq!(told["a"][0]["$serde_json::private::RawValue_"], "[[1]]", "{text}");
            let obeyed: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(obeyed["a"][0][0][0], 1, "the parser has another order by now");
        }
        for text in [r#"{"RawValue":"\u0041"}"#, r#"{"a":"\"#, ""] {
            assert_eq!(disarm(text), text);
        }
    }
}
