//! Real programs in tests: what happens without one, and how those that ran are counted.
//!
//! A test that needs a program which is not there is skipped with a printed reason at home and fails when
//! `CI` is set. Deliberately absent: installing anything from a test.

use std::fs;
use std::path::PathBuf;

/// A program that is not part of this repository and that some tests run for real.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Claude Code.
    Claude,
    /// A PostgreSQL server with its tools.
    PostgreSql,
}

impl Program {
    /// What people call it.
    const fn name(self) -> &'static str {
        match self {
            Self::Claude => "Claude Code",
            Self::PostgreSql => "PostgreSQL",
        }
    }

    /// The script that installs it, and the folder its tests are counted in: `.ci/install-KEY`.
    const fn key(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::PostgreSql => "postgresql",
        }
    }
}

/// Passes `found` on, and counts the test as run. Without it the test `name` is skipped with a printed
/// reason, or fails when `CI` is set.
///
/// ```no_run
/// # use ostler_testkit::{claude::find_claude, real::{Program, require_or_skip}};
/// let Some(claude) = require_or_skip("claude_success", Program::Claude, find_claude()) else {
///     return;
/// };
/// ```
#[track_caller]
pub fn require_or_skip<T>(name: &str, program: Program, found: Option<T>) -> Option<T> {
    let (what, key) = (program.name(), program.key());
    if found.is_some() {
        count(name, program);
    } else if std::env::var_os("CI").is_some() {
        panic!("{name}: the real program ({what}) is missing; run .ci/install-{key} first");
    } else {
        eprintln!(
            "{name}: skipped, the real program ({what}) is not installed (.ci/install-{key} does it)"
        );
    }
    found
}

/// One file per test that ran against a real program, in a folder for each program, so that `.ci/run` can say
/// how many did.
fn count(name: &str, program: Program) {
    let Some(folder) = std::env::var_os("OSTLER_TEST_REAL_COUNT_DIR") else {
        return;
    };
    let folder = PathBuf::from(folder).join(program.key());
    fs::create_dir_all(&folder).expect("the folder that counts tests");
    fs::write(folder.join(name.replace('/', "-")), "").expect("a file that counts this test");
}
