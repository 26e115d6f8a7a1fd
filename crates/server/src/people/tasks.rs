//! Tasks: what runs, what waits and why, what came of it; and what people decide about it.

use axum::response::Response;
use ostler_core::lease::{Decided, Decision, Input, State};

use super::call::{Call, data};
use super::form;
use crate::http::Fault;
use crate::store::sql::people::issues::number_of;
use crate::store::sql::people::tasks::{self, MESSAGES_MAX, TaskFilter};
use crate::store::{LeaseStore as _, Payload, TaskCall, What};

/// Lines of output when nobody said.
const MESSAGES: i64 = 200;
/// Characters of a note with a decision.
const NOTE_CHARS_MAX: usize = 4_000;

async fn detail(call: &Call, id: &str) -> Result<Response, Fault> {
    let mut conn = call.reader().await?;
    Ok(data(&tasks::show(&mut conn, call.workspace(), id, call.now()).await?))
}

/// `GET /tasks`
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let issue = match call.query("issue") {
        None => None,
        Some(identifier) => {
            let number = number_of(&call.identity.workspace_prefix, &identifier);
            Some(number.ok_or_else(|| Fault::field("issue", "is no issue of this workspace"))?)
        }
    };
    let filter = TaskFilter {
        states: call.query_words("state", &State::ALL.map(State::word))?,
        agent_id: call.query_int("agent_id", 1..=i64::MAX)?,
        issue,
    };
    let found = tasks::list(&mut call.reader().await?, call.workspace(), &filter, page).await?;
    Ok(call.list(page, found))
}

/// `GET /approvals`
pub(super) async fn approvals(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let found = tasks::approvals(&mut call.reader().await?, call.workspace(), page).await?;
    Ok(call.list(page, found))
}

/// `GET /tasks/{task}`
pub(super) async fn show(call: Call) -> Result<Response, Fault> {
    let id = call.ulid("task")?;
    detail(&call, &id).await
}

/// `GET /tasks/{task}/messages`
pub(super) async fn messages(call: Call) -> Result<Response, Fault> {
    let id = call.ulid("task")?;
    let after = call.query_int("after", 0..=i64::MAX)?.unwrap_or(0);
    let limit = call.query_int("limit", 1..=i64::MAX)?.unwrap_or(MESSAGES).min(MESSAGES_MAX);
    let mut conn = call.reader().await?;
    let found = tasks::messages(&mut conn, call.workspace(), &id, after, limit).await?;
    let last = found.items.last().map(|line| line.seq);
    let next = last.filter(|_| found.more).map(|last| call.link("after", last));
    Ok(call.listed(found.items, next))
}

async fn step(call: &Call, id: &str, input: Input) -> Result<Response, Fault> {
    let order = TaskCall {
        workspace_id: call.workspace(),
        task_id: id.to_owned(),
        what: What::Input(input),
        with: Payload::None,
    };
    call.app.store.task_call(order).await?;
    detail(call, id).await
}

/// `POST /tasks/{task}/cancel`
pub(super) async fn cancel(call: Call) -> Result<Response, Fault> {
    let id = call.ulid("task")?;
    step(&call, &id, Input::Cancel).await
}

/// `POST /tasks/{task}/retry`
pub(super) async fn retry(call: Call) -> Result<Response, Fault> {
    let id = call.ulid("task")?;
    let (workspace_id, retried) = (call.workspace(), id.clone());
    call.write(move |tx| Box::pin(async move { tasks::retry(tx, workspace_id, &retried).await }))
        .await?;
    detail(&call, &id).await
}

/// `POST /tasks/{task}/decision`
pub(super) async fn decide(call: Call) -> Result<Response, Fault> {
    let id = call.ulid("task")?;
    let mut fields = call.fields();
    let decided = form::opt_choice(&mut fields, "decision", &["approved", "denied"]);
    if !fields.has("decision") {
        fields.fault("decision", "is required");
    }
    let note = form::opt_long(&mut fields, "note", NOTE_CHARS_MAX).unwrap_or_default();
    let decided = fields.done(decided)?.and_then(|word| Decided::from_word(&word));
    let decided = decided.ok_or_else(|| Fault::field("decision", "is required"))?;
    step(&call, &id, Input::Decide(Decision { decided, note })).await
}
