//! Tests of the log tail.

use proptest::prelude::*;

use super::*;

fn tail(lines_max: usize, chars_max: usize) -> Tail {
    Tail::new(TailBounds { lines_max, chars_max }, None)
}

fn lines(view: impl Iterator<Item = impl AsRef<str>>) -> Vec<String> {
    view.map(|line| line.as_ref().to_owned()).collect()
}

#[test]
fn r_75_the_tail_keeps_500_lines_and_256_000_characters() {
    let mut tail = Tail::new(TailBounds::default(), None);
    (1..=600).for_each(|n| tail.push(&format!("line {n}")));
    let view = lines(tail.view(u64::MAX));
    assert_eq!(view.len(), 500);
    assert_eq!((view[0].as_str(), view[499].as_str()), ("line 101", "line 600"));
    assert_eq!(tail.lines_total(), 600);

    // Characters, not bytes.
    (0..500).for_each(|_| tail.push(&"é".repeat(1_000)));
    let view = lines(tail.view(u64::MAX));
    assert_eq!(view.len(), 256);
    assert_eq!(tail.chars, 256_000);
}

#[test]
fn a_view_ends_at_its_position() {
    let mut tail = tail(3, 1_000);
    ["a", "b", "c", "d"].iter().for_each(|line| tail.push(line));
    assert_eq!(lines(tail.view(4)), ["b", "c", "d"]);
    assert_eq!(lines(tail.view(3)), ["b", "c"]);
    assert_eq!(lines(tail.view(1)), [""; 0], "it is no longer kept");
    assert_eq!(lines(tail.view(0)), [""; 0]);
}

#[test]
fn r_77_a_gap_is_marked_once() {
    let mut tail = tail(500, 256_000);
    tail.push("before");
    tail.mark_dropped();
    tail.mark_dropped();
    tail.push("after");
    assert_eq!(lines(tail.view(9)), ["before", DROP_MARK, "after"]);
    assert_eq!(tail.lines_total(), 3);
}

#[test]
fn r_81_what_is_pushed_is_redacted_and_hides_the_prompt() {
    let input = Arc::new(Input::new("count the words of the README"));
    let mut tail = Tail::new(TailBounds::default(), Some(input));
    tail.push("> count the words of the README");
    tail.push("GITHUB_TOKEN=ghp_1");
    tail.push(r#"{"password":"x"}"#);
    let expected = ["> [task input redacted]", "[REDACTED]", r#"{"password":"[REDACTED]"}"#];
    assert_eq!(lines(tail.view(9)), expected);
}

/// Pushes a long line in pieces, as a reader cuts it.
fn push_long(tail: &mut Tail, line: &str) {
    let mut rest = line;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES_MAX));
        tail.push(piece);
        rest = after;
    }
}

#[test]
fn a_secret_that_goes_over_a_cut_is_hidden_on_both_sides() {
    for secret in ["token=SECRET", r#""api_key": "SECRET""#, r#""secret":["SECRET"]"#] {
        for before_cut in 0..=secret.len() {
            let padding =
                "é".repeat(PIECE_BYTES_MAX)[..(PIECE_BYTES_MAX - before_cut) / 2 * 2].to_owned();
            let odd = if before_cut % 2 == 0 { "" } else { "x" };
            let mut tail = tail(500, 256_000);
            push_long(&mut tail, &format!("{padding}{odd}{secret} and more"));
            tail.push("next line");
            let view = lines(tail.view(9));
            assert_eq!(view.last().unwrap(), "next line", "{before_cut}: what follows is shown");
            let shown = view.concat();
            let leaked = shown.chars().filter(|c| "SCRT".contains(*c)).count();
            let marks = shown.matches(REDACTED).count() * "RCT".len();
            // A part in front of the cut, when what makes it a secret comes only behind it, is shown.
            assert!(leaked - marks == 0, "{before_cut}: {:?}", &view[1..]);
        }
    }
}

#[test]
fn a_secret_that_ends_before_the_cut_hides_nothing_behind_it() {
    let mut tail = tail(500, 256_000);
    let secret = r#""token":"x"}"#;
    push_long(
        &mut tail,
        &format!("{}{secret} and more", "x".repeat(PIECE_BYTES_MAX - secret.len())),
    );
    assert_eq!(lines(tail.view(9)).last().unwrap(), " and more");
}

#[test]
fn a_restored_tail_is_the_one_that_was_stored() {
    let mut old = tail(3, 1_000);
    ["a", "b", "c", "d"].iter().for_each(|line| old.push(line));
    old.settle();
    let new = Tail::restore(old.bounds, old.lines_total(), lines(old.view(u64::MAX)));
    assert_eq!(lines(new.view(3)), ["b", "c"]);
    assert_eq!(new.lines_total(), 4);
}

#[test]
fn the_newest_lines_that_fit_are_taken() {
    let mut tail = tail(500, 256_000);
    ["one", "t\"wo", "\u{1}"].iter().for_each(|line| tail.push(line));
    let json = r#"["one","t\"wo","\u0001"]"#;
    assert_eq!(tail.json_bytes(9), json.len());
    assert_eq!(tail.view_within(9, json.len()).len(), 3);
    assert_eq!(lines(tail.view_within(9, json.len() - 1)), ["t\"wo", "\u{1}"]);
    assert_eq!(lines(tail.view_within(1, 7)), ["one"]);
    assert_eq!(tail.view_within(9, 1).len(), 0);
    assert_eq!(Tail::default().json_bytes(9), 2);
}

#[test]
fn an_empty_tail_takes_no_memory_of_its_own() {
    assert_eq!(Tail::default().lines.capacity(), 0);
    assert!(size_of::<Tail>() <= 88, "{}", size_of::<Tail>());
}

proptest! {
    #[test]
    fn the_size_of_a_line_is_what_json_takes(line in "\\PC{0,20}|[\\x00-\\x7f]{0,20}") {
        prop_assert_eq!(json_str_bytes(&line), serde_json::to_string(&line).unwrap().len());
    }

    #[test]
    fn bounds_and_positions_hold_whatever_is_pushed(
        pushed in prop::collection::vec("[a-cé]{0,12}", 0..40),
        lines_max in 0_usize..10,
        chars_max in 0_usize..60,
        upto in 0_u64..50,
        json_bytes_max in 0_usize..200,
    ) {
        let mut tail = tail(lines_max, chars_max);
        pushed.iter().for_each(|line| tail.push(line));
        let kept = lines(tail.view(u64::MAX));
        prop_assert!(kept.len() <= lines_max);
        prop_assert!(kept.iter().map(|line| line.chars().count()).sum::<usize>() <= chars_max);
        prop_assert!(pushed.ends_with(&kept));
        prop_assert_eq!(tail.lines_total(), pushed.len() as u64);
        let first = pushed.len() - kept.len();
        let upto_index = usize::try_from(upto).unwrap().clamp(first, pushed.len());
        prop_assert_eq!(lines(tail.view(upto)), &pushed[first..upto_index]);
        let fit = lines(tail.view_within(upto, json_bytes_max));
        prop_assert!(fit.is_empty() || serde_json::to_string(&fit).unwrap().len() <= json_bytes_max);
        prop_assert!(lines(tail.view(upto)).ends_with(&fit));
        prop_assert_eq!(tail.json_bytes(upto), serde_json::to_string(&lines(tail.view(upto))).unwrap().len());
    }
}
