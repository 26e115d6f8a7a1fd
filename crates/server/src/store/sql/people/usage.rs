//! What runs used, summed exactly: in integer micro-dollars and tokens, by issue, agent, project or day.
//!
//! A database's sum of large integers may overflow; the parts above and below a thousand millions are summed
//! apart and joined here.

use serde::Serialize;

use super::{Filter, IssueBrief, Named, Page, Part, named, part};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, DbError, Row, args};

/// Where a number is cut in two for summing.
const CUT: i128 = 1_000_000_000;
/// Microseconds of a day.
const DAY_US: i64 = 24 * 3600 * 1_000_000;

/// What runs used; a counter is null when no run said anything of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) input_tokens: Option<i128>,
    pub(crate) output_tokens: Option<i128>,
    pub(crate) cached_tokens: Option<i128>,
    pub(crate) cache_write_tokens: Option<i128>,
    /// Millionths of a dollar.
    pub(crate) cost_micros: Option<i128>,
}

/// By what is summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Issue,
    Agent,
    Project,
    Day,
}

impl By {
    /// All of them, by their words.
    pub(crate) const ALL: [(&'static str, Self); 4] = [
        ("issue", Self::Issue),
        ("agent", Self::Agent),
        ("project", Self::Project),
        ("day", Self::Day),
    ];
}

/// A sum. Of the first four one is there, as asked; a project may be null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sum {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) issue: Option<IssueBrief>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agent: Option<Named>,
    /// Issues without a project are summed too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<Option<Named>>,
    /// `2026-07-31`, in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) day: Option<String>,
    /// Completed runs.
    pub(crate) runs: i64,
    /// Those that reported a cost.
    pub(crate) runs_with_cost: i64,
    #[serde(flatten)]
    pub(crate) usage: Usage,
}

const COUNTERS: [&str; 5] =
    ["input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "cost_micros"];

/// Two columns a counter.
fn sums() -> String {
    let sums = COUNTERS.iter().flat_map(|name| {
        [
            format!("CAST(SUM(x.{name} / {CUT}) AS BIGINT)"),
            format!("CAST(SUM(x.{name} % {CUT}) AS BIGINT)"),
        ]
    });
    sums.collect::<Vec<_>>().join(", ")
}

fn read(row: &mut Row) -> Result<Usage, DbError> {
    let mut sum = || -> Result<Option<i128>, DbError> {
        let (high, low) = (row.opt_int()?, row.opt_int()?);
        Ok(high.zip(low).map(|(high, low)| i128::from(high) * CUT + i128::from(low)))
    };
    Ok(Usage {
        input_tokens: sum()?,
        output_tokens: sum()?,
        cached_tokens: sum()?,
        cache_write_tokens: sum()?,
        cost_micros: sum()?,
    })
}

/// What a task used, in all its completions.
pub(super) async fn of_task(conn: &mut Conn, task_id: &str) -> Result<Option<Usage>, StoreError> {
    let sql = format!("SELECT {} FROM results x WHERE x.task_id = $1", sums());
    let Some(mut row) = conn.row(&sql, args![task_id]).await? else { return Ok(None) };
    let usage = read(&mut row)?;
    let silent = Usage {
        input_tokens: None,
        output_tokens: None,
        cached_tokens: None,
        cache_write_tokens: None,
        cost_micros: None,
    };
    Ok(Some(usage).filter(|usage| *usage != silent))
}

/// Sums of the runs that ended from `from` on and before `until` (microseconds), the newest or first by
/// name first.
pub(crate) async fn list(
    conn: &mut Conn,
    workspace_id: i64,
    by: By,
    (from, until): (Option<i64>, Option<i64>),
    page: Page,
) -> Result<Part<Sum>, StoreError> {
    let day = format!("x.ended_at / {DAY_US}");
    let (columns, joins, group, order) = match by {
        By::Issue => (
            "w.prefix, i.number, i.title",
            "JOIN issues i ON i.id = x.issue_id JOIN workspaces w ON w.id = x.workspace_id",
            "w.prefix, i.number, i.title",
            "i.number DESC",
        ),
        By::Agent => {
            ("a.id, a.name", "JOIN agents a ON a.id = x.agent_id", "a.id, a.name", "a.name, a.id")
        }
        By::Project => (
            "p.id, p.name",
            "JOIN issues i ON i.id = x.issue_id LEFT JOIN projects p ON p.id = i.project_id",
            "p.id, p.name",
            "p.name, p.id",
        ),
        By::Day => (day.as_str(), "", day.as_str(), "1 DESC"),
    };
    let sql = format!(
        "SELECT {columns}, count(*), count(x.cost_micros), {} FROM results x {joins} \
         WHERE x.workspace_id = $1",
        sums()
    );
    let mut query = Filter::new(&sql, args![workspace_id]);
    query.compare("x.ended_at", ">=", from);
    query.compare("x.ended_at", "<", until);
    query.sql.push_str(&format!(" GROUP BY {group} ORDER BY {order}"));
    part(conn, &query.sql, query.args, page, |row| sum(row, by)).await
}

fn sum(row: &mut Row, by: By) -> Result<Sum, DbError> {
    let (mut issue, mut agent, mut project, mut day) = (None, None, None, None);
    match by {
        By::Issue => {
            let (prefix, number) = (row.text()?, row.int()?);
            issue = Some(IssueBrief { id: format!("{prefix}-{number}"), title: row.text()? });
        }
        By::Agent => agent = named(row)?,
        By::Project => project = Some(named(row)?),
        By::Day => {
            let start = jiff::Timestamp::from_microsecond(row.int()?.saturating_mul(DAY_US));
            day = Some(start.map(|at| at.strftime("%Y-%m-%d").to_string()).unwrap_or_default());
        }
    }
    let (runs, runs_with_cost) = (row.int()?, row.int()?);
    Ok(Sum { issue, agent, project, day, runs, runs_with_cost, usage: read(row)? })
}
