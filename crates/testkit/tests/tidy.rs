//! The workspace is in shape: file heads, bounds, crate arrows, and the table of requirements and tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use ostler_testkit::claude::CLAUDE_VERSION;
use ostler_testkit::postgres::VERSION_MIN;
use ostler_testkit::tidy;

#[test]
fn every_source_opens_with_its_purpose() {
    let sources = tidy::sources();
    assert!(sources.len() > 20, "the scan found only {} files", sources.len());
    let headless = tidy::without_head(&sources);
    assert!(headless.is_empty(), "no //! at the head of: {headless:#?}");
}

#[test]
fn every_bound_says_what_it_bounds() {
    let bounds = tidy::bounds(&tidy::sources());
    assert!(!bounds.is_empty());
    let silent: Vec<_> = bounds.iter().filter(|bound| bound.doc.is_empty()).collect();
    assert!(silent.is_empty(), "without a doc comment: {silent:#?}");
}

#[test]
fn crates_know_only_whom_they_may() {
    let wrong = tidy::wrong_arrows(&tidy::metadata());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_requirements_table_names_the_tests_there_are() {
    let table = fs::read_to_string(tidy::root().join(tidy::REQUIREMENTS)).unwrap();
    let named = tidy::named(&tidy::sources());
    let required = tidy::required(&table);
    let unknown: Vec<_> = named.iter().filter(|(number, _)| !required.contains(number)).collect();
    assert!(
        unknown.is_empty(),
        "tests name requirements that the table does not have: {unknown:#?}"
    );
    let of = |letter: char| -> Vec<_> {
        required.iter().filter(|number| number.starts_with(letter)).collect()
    };
    assert_eq!((of('R').len(), of('F').len()), (91, 117));
    for letter in ['R', 'F'] {
        assert!(of(letter).is_sorted_by(|a, b| a < b), "in order, each once");
    }
    let rendered = tidy::render_requirements(&table, &named);
    let stale: Vec<_> =
        table.lines().zip(rendered.lines()).filter(|(is, should)| is != should).collect();
    assert!(
        rendered == table,
        "run: cargo run -p ostler-testkit --bin tidy -- requirements\n{stale:#?}"
    );
}

#[test]
fn the_installed_and_the_tested_claude_are_one_version() {
    let script = fs::read_to_string(tidy::root().join(".ci/install-claude")).unwrap();
    assert!(script.contains(&format!("\nversion={CLAUDE_VERSION} ")));
}

#[test]
fn the_installed_postgresql_is_new_enough_for_the_tests() {
    let script = fs::read_to_string(tidy::root().join(".ci/install-postgresql")).unwrap();
    assert!(script.contains(&format!("\nversion_min={VERSION_MIN} ")));
}
