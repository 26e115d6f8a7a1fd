//! The environment of an agent: an allowlist, large enough to work with.
//!
//! A variable gets through when its name is on the list below or among the agent's own, and is
//! neither ours nor a mark that another agent's session leaves. The submitting shell's values
//! count. When there are none (clients of the original send none), the daemon's do; beside a
//! shell's, the daemon's only fill in what no program can do without, so that no secret of the
//! daemon reaches a task that did not bring it. The places of the daemon itself are the daemon's own word:
//! an agent that calls `ostler` then reaches the daemon that runs it, or none.

use std::collections::BTreeMap;

use super::agent::Agent;

/// What no program can do without.
const IDENTITY: &[&str] = &["HOME", "LOGNAME", "PATH", "SHELL", "USER"];

/// Where the daemon is and keeps its runs; always the daemon's values.
const PLACES: &[&str] = &["HASKELL_AGENT_RUNTIME_DIR", "OSTLER_HOME"];

/// Let through for every agent; a trailing `*` means every name that begins so.
const ALLOWED: &[&str] = &[
    // Locale, time and terminal.
    "COLORTERM",
    "FORCE_COLOR",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "NO_COLOR",
    "TERM",
    "TERMINFO",
    "TERMINFO_DIRS",
    "TZ",
    "TZDIR",
    // The session of the user: folders, buses, agents, display.
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "GNUPGHOME",
    "GPG_TTY",
    "SSH_AGENT_PID",
    "SSH_ASKPASS",
    "SSH_AUTH_SOCK",
    "TMPDIR",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_*",
    // Proxies and certificates.
    "ALL_PROXY",
    "CURL_CA_BUNDLE",
    "FTP_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NIX_SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "NO_PROXY",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "all_proxy",
    "ftp_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    // Git and editors.
    "EDITOR",
    "GIT_ASKPASS",
    "GIT_AUTHOR_*",
    "GIT_COMMITTER_*",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_EDITOR",
    "GIT_PAGER",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_SSL_*",
    "LESS",
    "PAGER",
    "VISUAL",
    // Where tool chains live.
    "ANDROID_HOME",
    "CARGO_HOME",
    "CONDA_DEFAULT_ENV",
    "CONDA_PREFIX",
    "DENO_DIR",
    "GOMODCACHE",
    "GOPATH",
    "GOPRIVATE",
    "GOPROXY",
    "GOROOT",
    "JAVA_HOME",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "MANPATH",
    "NIX_PATH",
    "NIX_PROFILES",
    "NODE_PATH",
    "NVM_BIN",
    "NVM_DIR",
    "PIPX_HOME",
    "PKG_CONFIG_PATH",
    "PNPM_HOME",
    "PYENV_ROOT",
    "PYTHONPATH",
    "RBENV_ROOT",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "SDKMAN_DIR",
    "VIRTUAL_ENV",
    "VOLTA_HOME",
];

/// Never let through, whatever the lists say: ours but for the places, and what marks "you run inside a
/// session".
const FORBIDDEN: &[&str] = &[
    "OSTLER_*",
    "HASKELL_AGENT_*",
    "CLAUDECODE",
    "CLAUDECODE_*",
    "CLAUDE_CODE_CHILD_*",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_EXECPATH",
    "CLAUDE_CODE_MESSAGING_*",
    "CLAUDE_CODE_PARENT_*",
    "CLAUDE_CODE_SESSION_*",
    "CLAUDE_CODE_SSE_PORT",
    "CLAUDE_EFFORT",
    "CLAUDE_PID",
];

/// The environment for a run of `agent`, sorted by name.
pub fn environment_for(
    agent: &dyn Agent,
    submitted: impl IntoIterator<Item = (String, String)>,
    daemon: impl IntoIterator<Item = (String, String)>,
) -> Vec<(String, String)> {
    let mut submitted = submitted.into_iter().peekable();
    let from_shell = submitted.peek().is_some();
    let is_place = |name: &str| PLACES.contains(&name);
    let mut environment: BTreeMap<String, String> = daemon
        .into_iter()
        .filter(|(name, _)| !from_shell || is_place(name) || IDENTITY.contains(&name.as_str()))
        .collect();
    environment.extend(submitted.filter(|(name, _)| !is_place(name)));
    environment.into_iter().filter(|(name, value)| passes(agent, name, value)).collect()
}

fn passes(agent: &dyn Agent, name: &str, value: &str) -> bool {
    // What no environment can hold was never a variable.
    let is_variable = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
    let lists = [IDENTITY, ALLOWED, agent.env_keys()];
    let is_forbidden = FORBIDDEN.iter().any(|pattern| matches(pattern, name));
    let is_listed = lists.into_iter().flatten().any(|pattern| matches(pattern, name));
    is_variable && (PLACES.contains(&name) || is_listed && !is_forbidden)
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find;

    fn pairs(text: &str) -> Vec<(String, String)> {
        text.split_whitespace()
            .map(|pair| pair.split_once('=').unwrap())
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    fn names(agent: &str, submitted: &str, daemon: &str) -> String {
        let environment = environment_for(find(agent).unwrap(), pairs(submitted), pairs(daemon));
        environment.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_shells_values_count_and_the_daemons_secrets_stay() {
        let daemon = "HOME=/d PATH=/d ANTHROPIC_API_KEY=d HTTP_PROXY=d AWS_SECRET_ACCESS_KEY=d";
        assert_eq!(
            names("claude", "PATH=/s LC_ALL=C ANTHROPIC_API_KEY=s FOO=1", daemon),
            "ANTHROPIC_API_KEY=s HOME=/d LC_ALL=C PATH=/s"
        );
        assert_eq!(names("claude", "PATH=/s", daemon), "HOME=/d PATH=/s");
        assert_eq!(names("command", "PATH=/s ANTHROPIC_API_KEY=s", daemon), "HOME=/d PATH=/s");
    }

    #[test]
    fn without_a_shell_the_daemons_allowed_values_count() {
        assert_eq!(
            names("claude", "", "HOME=/d ANTHROPIC_API_KEY=d https_proxy=p DATABASE_URL=d"),
            "ANTHROPIC_API_KEY=d HOME=/d https_proxy=p"
        );
    }

    #[test]
    fn marks_of_a_session_and_our_own_variables_never_get_through() {
        let nested = "CLAUDECODE=1 CLAUDE_CODE_ENTRYPOINT=cli CLAUDE_CODE_SSE_PORT=1 \
            CLAUDE_CODE_SESSION_ID=x OSTLER_RUN=m OSTLER_CONFIG=/o HASKELL_AGENT_CLI=/c";
        assert_eq!(
            names("claude", &format!("CLAUDE_CODE_USE_BEDROCK=1 {nested}"), nested),
            "CLAUDE_CODE_USE_BEDROCK=1"
        );
    }

    #[test]
    fn an_agent_is_told_where_the_daemon_that_runs_it_is() {
        let daemon = "HASKELL_AGENT_RUNTIME_DIR=/d/rt OSTLER_HOME=/d/o PATH=/d";
        let places = "HASKELL_AGENT_RUNTIME_DIR=/d/rt OSTLER_HOME=/d/o";
        assert_eq!(names("command", "", daemon), format!("{places} PATH=/d"));
        let shell = "HASKELL_AGENT_RUNTIME_DIR=/s/rt OSTLER_HOME=/s/o PATH=/s";
        assert_eq!(names("command", shell, daemon), format!("{places} PATH=/s"));
        assert_eq!(names("command", shell, "PATH=/d"), "PATH=/s", "never another's");
    }

    #[test]
    fn what_no_environment_can_hold_is_left_out() {
        let odd =
            vec![("LC_A=B".to_owned(), "x".to_owned()), ("LANG".to_owned(), "a\0b".to_owned())];
        assert_eq!(environment_for(find("command").unwrap(), odd, Vec::new()), []);
    }
}
