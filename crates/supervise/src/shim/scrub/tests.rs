//! The scrubber: every spelling, every cut.

use proptest::prelude::*;

use super::*;

fn scrub(secret: &str, pieces: &[&[u8]]) -> Vec<u8> {
    let mut scrubber = Scrubber::new(Secrets::new(&[secret.as_bytes().to_vec()]));
    let mut out = Vec::new();
    for piece in pieces {
        scrubber.push(piece, &mut |bytes| out.extend_from_slice(bytes));
    }
    scrubber.finish(&mut |bytes| out.extend_from_slice(bytes));
    out
}

/// Whole, cut at every single place, and byte by byte: always the same.
fn check(secret: &str, text: &str, wanted: &str) {
    let text = text.as_bytes();
    for cut in 0..=text.len() {
        let (one, two) = text.split_at(cut);
        assert_eq!(String::from_utf8_lossy(&scrub(secret, &[one, two])), wanted, "cut at {cut}");
    }
    let bytes: Vec<&[u8]> = text.chunks(1).collect();
    assert_eq!(String::from_utf8_lossy(&scrub(secret, &bytes)), wanted, "byte by byte");
}

const PROMPT: &str = "fix the \"bug\" in a/b\\c\nand é😀 too";

#[test]
fn r_81_the_prompt_is_replaced_raw_and_in_every_json_spelling() {
    check(PROMPT, &format!("a {PROMPT} b"), "a [task input redacted] b");
    for spelling in [
        r#"fix the \"bug\" in a/b\\c\nand é😀 too"#,
        r#"fix the \"bug\" in a\/b\\c\nand \u00e9\ud83d\ude00 too"#,
        r#"fix the \u0022bug\u0022 in a\u002fb\u005Cc\u000Aand \u00E9\uD83D\uDE00 too"#,
        r#"\u0066ix the \"bug\" in a/b\\c\nand \u00e9😀 to\u006f"#,
    ] {
        check(PROMPT, &format!(r#"{{"p":"{spelling}"}}"#), r#"{"p":"[task input redacted]"}"#);
    }
}

#[test]
fn r_81_twice_in_a_row_overlapping_and_after_a_false_start() {
    let p = "abcabcabcabcabcabd";
    check(p, &format!("{p}{p}"), "[task input redacted][task input redacted]");
    check(p, &format!("abcabc{p}abc"), "abcabc[task input redacted]abc");
    check(p, r"abcabc\u0061bcabcabcabcabcabdx", "abcabc[task input redacted]x");
    check(p, &p[..17], &p[..17]);
}

#[test]
fn r_81_short_prompts_only_as_a_whole_line_or_string() {
    check(
        "say hi",
        "say hi\nI say hi\nsay hi!\nsay hi",
        "[task input redacted]\nI say hi\nsay hi!\n[task input redacted]",
    );
    check(
        "say hi",
        r#"{"a":"say hi","b":"say hi you"}"#,
        r#"{"a":"[task input redacted]","b":"say hi you"}"#,
    );
    check("a\"b", r#"["a\"b","xa\"b"]"#, r#"["[task input redacted]","xa\"b"]"#);
    check(" a\r\n", "banana\na\r\na", "banana\n[task input redacted]\r\n[task input redacted]");
    check("é", r#"["\u00e9"]"#, r#"["[task input redacted]"]"#);
    check("", "untouched", "untouched");
    check(" \n ", "un touched", "un touched");
}

#[test]
fn text_that_is_no_json_passes_unchanged() {
    let text = "\\ \\u12 \\ud83d \\ud83d\\u0041 \\x \\\\\" fix the \\";
    check(PROMPT, text, text);
}

#[test]
fn only_a_possible_beginning_is_held_back() {
    let mut scrubber = Scrubber::new(Secrets::new(&[PROMPT.into()]));
    let mut out = Vec::new();
    scrubber.push(b"a line\nand fix the", &mut |bytes| out.extend_from_slice(bytes));
    assert_eq!(out, b"a line\nand ");
    scrubber.push(b" house\n", &mut |bytes| out.extend_from_slice(bytes));
    assert_eq!(out, b"a line\nand fix the house\n");
}

#[test]
fn r_81_a_long_prompt_goes_whole_and_a_cut_copy_as_far_as_it_goes() {
    let prompt: String = (0..3_000).map(|n| format!("line {n} \"é\"\n")).collect();
    let prompt = prompt.trim();
    let escaped = serde_json::to_string(prompt).unwrap();
    let text = format!("<{prompt}> {escaped} <{}> <{}>", &prompt[..20_000], &prompt[..100]);
    let wanted = format!(
        "<[task input redacted]> \"[task input redacted]\" <[task input redacted]> <{}>",
        &prompt[..100]
    );
    for size in [1, 7, 4_096, text.len()] {
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
        assert_eq!(String::from_utf8_lossy(&scrub(prompt, &pieces)), wanted, "in pieces of {size}");
    }
    let mut scrubber = Scrubber::new(Secrets::new(&[prompt.as_bytes().to_vec()]));
    scrubber.push(&prompt.as_bytes()[..30_000], &mut |_| {});
    assert_eq!(scrubber.held.len(), 0, "what is swallowed is not held");
}

#[test]
fn several_secrets_are_looked_for_together() {
    let secrets =
        Secrets::new(&[b"the first of the secrets".to_vec(), b"second of the secrets".to_vec()]);
    let mut scrubber = Scrubber::new(secrets);
    let mut out = Vec::new();
    let text = b"the second of the secrets, the first of the secrets.";
    scrubber.push(text, &mut |bytes| out.extend_from_slice(bytes));
    scrubber.finish(&mut |bytes| out.extend_from_slice(bytes));
    assert_eq!(out, b"the [task input redacted], [task input redacted].");
}

/// An agent that writes the worst there is costs linear time: quadratic would take minutes.
#[test]
fn the_worst_output_takes_linear_time() {
    let secret = "a".repeat(BEGINNING_BYTES_MAX - 1) + "b";
    let text = ("a".repeat(BEGINNING_BYTES_MAX - 2) + "c").repeat(75);
    assert_eq!(scrub(&secret, &[text.as_bytes()]).len(), text.len());
    let escaped = ("\\u0061".repeat(BEGINNING_BYTES_MAX - 2) + "c").repeat(20);
    assert_eq!(scrub(&secret, &[escaped.as_bytes()]).len(), escaped.len());
}

fn spell(prompt: &str, choices: &[u8]) -> String {
    let mut spelled = String::new();
    for (index, c) in prompt.chars().enumerate() {
        let choice = choices[index % choices.len()];
        match (c, choice % 3) {
            ('"' | '\\', 0 | 1) => spelled.extend(['\\', c]),
            ('\n', 0 | 1) => spelled.push_str("\\n"),
            (_, 0 | 1) => spelled.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    spelled.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    spelled
}

proptest! {
    #[test]
    fn r_81_however_it_is_spelled_and_cut_it_is_gone(
        prompt in "[ab\"\\\\\né😀]{16,24}x",
        choices in proptest::collection::vec(any::<u8>(), 1..8),
        cuts in proptest::collection::vec(1_usize..9, 1..30),
        noise in "[ab\"\né]{0,20}",
    ) {
        let prompt = prompt.trim();
        prop_assume!(prompt.chars().count() >= WHOLE_CHARS);
        let text = format!("{noise}\n\"{}\"{noise}", spell(prompt, &choices));
        let (mut pieces, mut rest) = (Vec::new(), text.as_bytes());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break; }
            let (piece, more) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = more;
        }
        let wanted = format!("{noise}\n\"[task input redacted]\"{noise}");
        prop_assert_eq!(String::from_utf8(scrub(prompt, &pieces)).unwrap(), wanted);
    }

    #[test]
    fn what_is_no_secret_passes_whole(text in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(scrub("a prompt that is in no random text", &[&text]), text);
    }
}
