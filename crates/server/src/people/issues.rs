//! Issues: listed, written, changed, assigned.

use axum::response::Response;
use ostler_proto::lease::Fields;

use super::call::{Call, created, data};
use super::form;
use crate::http::Fault;
use crate::store::sql::people::issues::{
    self, Assignee, Issue, IssueChange, IssueFilter, NewIssue, STATUSES,
};
use crate::store::sql::people::{deliveries, issues as store};
use crate::text;

/// Characters of a title.
const TITLE_CHARS_MAX: usize = 500;
/// Acceptance criteria of one issue.
const CRITERIA_MAX: usize = 100;
/// Characters of one of them.
const CRITERION_CHARS_MAX: usize = 2_000;
/// Characters of a type.
const TYPE_CHARS_MAX: usize = 32;
/// Minutes of an estimate.
const ESTIMATE_MAX: i64 = 1_000_000;

async fn one(call: &Call, number: i64) -> Result<Issue, Fault> {
    Ok(store::show(&mut call.reader().await?, call.workspace(), number).await?)
}

/// `GET /issues`
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let filter = IssueFilter {
        assignee: assignee_filter(&call)?,
        project_id: call.query_int("project_id", 1..=i64::MAX)?,
        statuses: call.query_words("status", &STATUSES)?,
    };
    let found = issues::list(&mut call.reader().await?, call.workspace(), &filter, page).await?;
    Ok(call.list(page, found))
}

/// `user:3`, `agent:7`, `me` or `none`.
fn assignee_filter(call: &Call) -> Result<Option<Assignee>, Fault> {
    let Some(text) = call.query("assignee") else { return Ok(None) };
    let found = match text.split_once(':') {
        Some(("user", id)) => id.parse().ok().map(Assignee::User),
        Some(("agent", id)) => id.parse().ok().map(Assignee::Agent),
        None if text == "me" => Some(Assignee::User(call.identity.user_id)),
        None if text == "none" => Some(Assignee::Nobody),
        _ => None,
    };
    let fault = || Fault::field("assignee", "must be user:<id>, agent:<id>, me or none");
    found.map(Some).ok_or_else(fault)
}

/// `GET /issues/{issue}`
pub(super) async fn show(call: Call) -> Result<Response, Fault> {
    Ok(data(&one(&call, call.issue()?).await?))
}

fn assignee(fields: &mut Fields<'_>) -> Option<Assignee> {
    if !fields.has("assignee_type") && !fields.has("assignee_id") {
        return None;
    }
    if fields.value("assignee_type").is_none() && fields.value("assignee_id").is_none() {
        return Some(Assignee::Nobody);
    }
    if fields.value("assignee_type").is_none() {
        fields.fault("assignee_type", "is required with assignee_id");
        return None;
    }
    let kind = form::opt_choice(fields, "assignee_type", &["user", "agent"])?;
    let id = fields.int("assignee_id", 1..=i64::MAX);
    Some(if kind == "agent" { Assignee::Agent(id) } else { Assignee::User(id) })
}

/// Reads everything but the title, which is required only at first.
fn change(fields: &mut Fields<'_>) -> IssueChange {
    let criteria = fields.has("acceptance_criteria").then(|| {
        let sent = fields.opt_texts("acceptance_criteria", CRITERIA_MAX, CRITERION_CHARS_MAX);
        let lines = sent.unwrap_or_default().into_iter();
        lines.map(|it| text::plain_line(&it, CRITERION_CHARS_MAX)).filter(|it| !it.is_empty())
    });
    IssueChange {
        title: None,
        description: form::opt_html(fields, "description"),
        acceptance_criteria: criteria.map(Iterator::collect),
        status: form::opt_choice(fields, "status", &STATUSES),
        priority: form::opt_priority(fields),
        kind: form::opt_line(fields, "type", TYPE_CHARS_MAX),
        estimate_minutes: form::nullable_int(fields, "estimate_minutes", 0..=ESTIMATE_MAX),
        project_id: form::nullable_int(fields, "project_id", 1..=i64::MAX),
        assignee: assignee(fields),
    }
}

/// `POST /issues`
pub(super) async fn create(call: Call) -> Result<Response, Fault> {
    let mut fields = call.fields();
    let title = form::line(&mut fields, "title", TITLE_CHARS_MAX);
    let sent = change(&mut fields);
    fields.done(())?;
    let workspace_id = call.workspace();
    let new = NewIssue {
        workspace_id,
        title,
        description: sent.description.unwrap_or_default(),
        acceptance_criteria: sent.acceptance_criteria.unwrap_or_default(),
        priority: sent.priority.unwrap_or_default().word().to_owned(),
        status: sent.status,
        kind: sent.kind,
        estimate_minutes: sent.estimate_minutes.flatten(),
        project_id: sent.project_id.flatten(),
    };
    let assigned = IssueChange { assignee: sent.assignee, ..IssueChange::default() };
    let number = call.write(move |tx| {
        Box::pin(async move {
            let (_, number) = issues::create(tx, new).await?;
            if assigned.assignee.is_some_and(|it| it != Assignee::Nobody) {
                issues::change(tx, workspace_id, number, assigned).await?;
            }
            Ok(number)
        })
    });
    let number = number.await?;
    Ok(created(&one(&call, number).await?))
}

/// `PATCH /issues/{issue}`
pub(super) async fn update(call: Call) -> Result<Response, Fault> {
    let number = call.issue()?;
    let mut fields = call.fields();
    let title = form::opt_line(&mut fields, "title", TITLE_CHARS_MAX);
    let sent = IssueChange { title, ..change(&mut fields) };
    fields.done(())?;
    let workspace_id = call.workspace();
    call.write(move |tx| Box::pin(issues::change(tx, workspace_id, number, sent))).await?;
    Ok(data(&one(&call, number).await?))
}

/// `GET /issues/{issue}/deliveries`
pub(super) async fn deliveries(call: Call) -> Result<Response, Fault> {
    let (number, page) = (call.issue()?, call.page()?);
    let found = deliveries::list(&mut call.reader().await?, call.workspace(), number, page).await?;
    Ok(call.list(page, found))
}
