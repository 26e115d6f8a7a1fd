//! SQL from outside, to fill a database faster than requests could.

use std::path::Path;
use std::process::Command;

use crate::Fault;

/// Runs SQL with `psql`.
pub(crate) fn postgres(url: &str, text: &str) -> Result<String, Fault> {
    let mut command = Command::new("psql");
    command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", text, url]);
    output(command)
}

/// Runs SQL with Python's SQLite.
pub(crate) fn sqlite(file: &Path, text: &str) -> Result<String, Fault> {
    let program = "import sqlite3, sys\n\
                   db = sqlite3.connect(sys.argv[1], timeout=60)\n\
                   for statement in sys.argv[2].split(';'):\n    db.execute(statement)\n\
                   db.commit()\n";
    let mut command = Command::new("python3");
    command.arg("-c").arg(program).arg(file).arg(text);
    output(command)
}

fn output(mut command: Command) -> Result<String, Fault> {
    let done = command.output()?;
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned().into());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Numbers from 1 to `count` as table `n(i)`, for both databases.
pub(crate) fn numbers(count: u64) -> String {
    format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) ")
}

/// `count` agents that may hold `concurrency` tasks each, called `<name>-<i>`.
pub(crate) fn agents(name: &str, count: u64, provider: &str, concurrency: u64) -> String {
    numbers(count)
        + &format!(
            "INSERT INTO agents (workspace_id, name, description, provider, instructions, custom_args, concurrency, \
             paused, created_at) SELECT w.id, '{name}-' || i, '', '{provider}', '', '[]', {concurrency}, 0, 0 \
             FROM n, workspaces w"
        )
}

/// `count` issues, numbered from 1.
pub(crate) fn issues(count: u64) -> String {
    numbers(count)
        + "INSERT INTO issues (workspace_id, number, title, description, acceptance_criteria, status, priority, type, \
           spent_ms, created_at, updated_at) SELECT w.id, i, 'Bench', '<p>Do it.</p>', '[]', 'todo', 'none', 'task', \
           0, 0, 0 FROM n, workspaces w"
}

/// `count` queued tasks, one an issue, dealt to the agents whose names begin with `<name>-`.
pub(crate) fn tasks(name: &str, count: u64) -> String {
    format!(
        "INSERT INTO tasks (id, workspace_id, issue_id, agent_id, state, rank, place, attempts, hand_backs, parks, \
         cancel_requested, worked_us, lines, lines_before, line_bytes, pruned, created_at) \
         SELECT '{name}' || s.number, s.workspace_id, s.id, a.id, 'queued', s.number, 'queue', \
         0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM issues AS s \
         JOIN (SELECT id, row_number() OVER (ORDER BY id) - 1 AS at, count(*) OVER () AS many FROM agents \
         WHERE name LIKE '{name}-%') AS a ON a.at = s.number % a.many WHERE s.number <= {count}"
    )
}

/// `count` finished tasks of the agent `<name>-1`, spread over `issues` issues.
pub(crate) fn finished(name: &str, count: u64, issues: u64) -> String {
    numbers(count)
        + &format!(
            "INSERT INTO tasks (id, workspace_id, issue_id, agent_id, state, rank, place, attempts, hand_backs, parks, \
             cancel_requested, worked_us, lines, lines_before, line_bytes, pruned, created_at, ended_at) \
             SELECT 'finished' || i, s.workspace_id, s.id, a.id, 'completed', i, 'ended', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 \
             FROM n JOIN issues AS s ON s.number = 1 + n.i % {issues} JOIN agents AS a ON a.name = '{name}-1'"
        )
}
