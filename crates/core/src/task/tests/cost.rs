//! The cost of a step does not grow with the live tasks.
//!
//! Shown by structure: the machine keeps everything in B-trees, whose look-ups cost O(log n), and
//! every place that goes through more than one element is in a table here together with its bound.
//! No timing: the benches measure.

use super::kit::*;
use crate::task::*;

/// Every function of the machine that repeats something, and what bounds it.
const REPEATS: [(&str, &str); 15] = [
    ("start_ready", "the limit, at most LIMIT_MAX"),
    ("recover", "all unfinished, once after a restore"),
    ("shutdown", "all unfinished, once in a daemon's life"),
    ("tick", "the runs, at most LIMIT_MAX"),
    ("ended", "the cancels of a run, at most CANCELS_PER_RUN_MAX"),
    ("make_room", "one; more only after a restore with a smaller bound, once for each task"),
    ("restore", "all, once"),
    ("iter", "all, for whoever lists them; the steps do not"),
    ("next_deadline", "the runs, at most LIMIT_MAX"),
    ("waits_for", "the one element before"),
    ("running_orders", "the runs, at most LIMIT_MAX"),
    ("unfinished_orders", "all; `recover` and `shutdown` only"),
    ("enter_session", "the first two of a session"),
    ("due", "two times"),
    ("parse", "constant tables"),
];

const SOURCES: [&str; 5] = [
    include_str!("../end.rs"),
    include_str!("../line.rs"),
    include_str!("../state.rs"),
    include_str!("../step.rs"),
    include_str!("../../task.rs"),
];

const REPEATING: [&str; 10] = [
    "for ",
    "while ",
    "loop ",
    "iter()",
    "into_iter()",
    ".values",
    ".keys",
    ".range(",
    ".retain(",
    "unfinished_orders()",
];

fn function_named_in(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let is_definition = ["fn ", "pub fn ", "pub(super) fn ", "pub const fn ", "const fn "]
        .iter()
        .any(|start| code.starts_with(start));
    let name = code.split("fn ").nth(1)?;
    is_definition.then(|| name.split(['(', '<']).next().unwrap())
}

#[test]
fn every_repetition_in_a_step_has_a_bound_that_is_not_the_live_tasks() {
    let mut found = std::collections::BTreeSet::new();
    for source in SOURCES {
        let mut function = "";
        for line in source.lines().filter(|line| !line.trim_start().starts_with("//")) {
            function = function_named_in(line).unwrap_or(function);
            let is_impl = line.starts_with("impl ");
            if !is_impl && REPEATING.iter().any(|word| line.contains(word)) {
                found.insert(function);
            }
        }
    }
    let known: std::collections::BTreeSet<&str> = REPEATS.iter().map(|(name, _)| *name).collect();
    assert_eq!(found, known, "put a new repetition into the table with its bound");
}

/// The effects of one submission, one end and one retry among `live` others, half of them queued.
fn effects_among(live: usize) -> Vec<usize> {
    let mut machine = Machine::new();
    for number in 0..live / 2 {
        machine.submit(spec(&format!("settled-{number}")));
        machine.ended(&format!("settled-{number}"), completed());
    }
    for number in 0..live / 2 {
        let session = format!("session-{}", number % 3);
        machine.submit(in_session(&format!("active-{number}"), &session));
    }
    machine.set_limit(3);
    vec![
        machine.submit(spec("x")).len(),
        machine.output("active-1", 10).len(),
        machine.ended("active-1", failed(crate::outcome::FailureClass::ExitStatus)).len(),
        machine.retry("active-1").len(),
        machine.cancel("active-4").len(),
        machine.step(Input::Tick).len(),
        machine.set_limit(32).len(),
    ]
}

#[test]
fn a_step_does_as_much_among_a_thousand_tasks_as_among_ten() {
    assert_eq!(effects_among(10), effects_among(LIVE_TASKS_MAX - 2));
}
