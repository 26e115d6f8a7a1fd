//! The real Claude Code in tests: where it is, and its environment.
//!
//! It is proprietary and never part of this repository; `.ci/install-claude` puts the pinned version
//! into a cache folder outside the checkout. Deliberately absent: installing anything from a test.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::model::ModelEndpoint;
use crate::real::{self, Program};

/// The version that tests run against; `.ci/install-claude` installs the same (held by a tidy test).
pub const CLAUDE_VERSION: &str = "2.1.332";

/// The real CLI: `OSTLER_TEST_CLAUDE`, else what `.ci/install-claude` installed.
pub fn find_claude() -> Option<PathBuf> {
    let named = std::env::var_os("OSTLER_TEST_CLAUDE").map(PathBuf::from);
    named.or_else(installed).filter(|path| path.is_file())
}

fn installed() -> Option<PathBuf> {
    let cache = match std::env::var_os("OSTLER_TEST_CACHE") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".cache/ostler-test"),
    };
    Some(cache.join(format!(
        "claude-{CLAUDE_VERSION}/node_modules/@anthropic-ai/claude-code-linux-x64/claude"
    )))
}

/// The environment that points Claude Code at `endpoint`, keeps all its files below `home`, and makes
/// it give up after one retry. To be added to a `PATH`.
pub fn claude_env(endpoint: &ModelEndpoint, home: &Path) -> Vec<(OsString, OsString)> {
    let config = home.join(".claude").into_os_string();
    let mut pairs: Vec<(&str, OsString)> = vec![
        ("HOME", home.into()),
        ("CLAUDE_CONFIG_DIR", config),
        ("ANTHROPIC_BASE_URL", endpoint.url().into()),
        ("ANTHROPIC_API_KEY", "test-key".into()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".into()),
        ("DISABLE_AUTOUPDATER", "1".into()),
        ("DISABLE_TELEMETRY", "1".into()),
        ("DISABLE_ERROR_REPORTING", "1".into()),
        ("CLAUDE_CODE_MAX_RETRIES", "1".into()),
    ];
    if rustix::process::geteuid().is_root() {
        // It refuses to bypass permissions as root unless it is told that it runs in a sandbox.
        pairs.push(("IS_SANDBOX", "1".into()));
    }
    pairs.into_iter().map(|(key, value)| (key.into(), value)).collect()
}

/// [`real::require_or_skip`] for Claude Code.
#[track_caller]
pub fn require_or_skip<T>(name: &str, found: Option<T>) -> Option<T> {
    real::require_or_skip(name, Program::Claude, found)
}
