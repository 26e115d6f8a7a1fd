//! Agents: made, changed, paused, archived. What is secret goes in and never comes out.

use axum::response::Response;
use ostler_proto::lease::Fields;

use super::call::{Call, created, data};
use super::form;
use crate::auth::Ability;
use crate::http::{Fault, no_content};
use crate::store::sql::people::agents::{self, Agent, AgentChange, CONCURRENCY_MAX, NewAgent};
use crate::text;

/// Characters of a name.
const NAME_CHARS_MAX: usize = 128;
/// Characters of a description.
const DESCRIPTION_CHARS_MAX: usize = 4_096;
/// Characters of a model.
const MODEL_CHARS_MAX: usize = 128;
/// Characters of an agent's instructions.
const INSTRUCTIONS_CHARS_MAX: usize = 100_000;
/// Arguments of one agent.
const ARGS_MAX: usize = 100;
/// Characters of one of them.
const ARG_CHARS_MAX: usize = 4_096;
/// Characters of a runtime's id.
const RUNTIME_CHARS_MAX: usize = 64;

async fn one(call: &Call, id: i64) -> Result<Agent, Fault> {
    let keyring = &call.app.store.shared().keyring;
    Ok(agents::show(&mut call.reader().await?, keyring, call.workspace(), id).await?)
}

/// `GET /agents`
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let archived = call.query_flag("archived")?;
    let keyring = &call.app.store.shared().keyring;
    let mut conn = call.reader().await?;
    let found = agents::list(&mut conn, keyring, call.workspace(), archived, page).await?;
    Ok(call.list(page, found))
}

/// `GET /agents/{agent}`
pub(super) async fn show(call: Call) -> Result<Response, Fault> {
    Ok(data(&one(&call, call.id("agent")?).await?))
}

/// Reads everything but name and provider, which are required only at first.
fn change(fields: &mut Fields<'_>) -> AgentChange {
    let arguments = fields.has("custom_args").then(|| {
        let sent = fields.opt_texts("custom_args", ARGS_MAX, ARG_CHARS_MAX).unwrap_or_default();
        sent.iter().map(|it| text::printable(it).into_owned()).collect()
    });
    AgentChange {
        name: None,
        provider: None,
        description: form::opt_long(fields, "description", DESCRIPTION_CHARS_MAX),
        model: form::nullable_line(fields, "model", MODEL_CHARS_MAX),
        instructions: form::opt_long(fields, "instructions", INSTRUCTIONS_CHARS_MAX),
        runtime_id: form::nullable_line(fields, "runtime_id", RUNTIME_CHARS_MAX),
        custom_args: arguments,
        concurrency: form::given(fields, "concurrency")
            .then(|| fields.int("concurrency", 1..=CONCURRENCY_MAX)),
        paused: form::given(fields, "paused").then(|| fields.opt_bool("paused")).flatten(),
        archived: form::given(fields, "archived").then(|| fields.opt_bool("archived")).flatten(),
        custom_env: form::opt_env(fields),
        mcp_config: form::opt_mcp(fields),
    }
}

fn check_secrets(call: &Call, change: &AgentChange) -> Result<(), Fault> {
    if change.custom_env.is_some() || change.mcp_config.is_some() {
        call.needs(Ability::Admin, "Setting an agent's environment or MCP servers")?;
    }
    Ok(())
}

/// `POST /agents`
pub(super) async fn create(call: Call) -> Result<Response, Fault> {
    let mut fields = call.fields();
    let name = form::line(&mut fields, "name", NAME_CHARS_MAX);
    let provider = form::provider(&mut fields);
    let mut sent = change(&mut fields);
    fields.done(())?;
    check_secrets(&call, &sent)?;
    let workspace_id = call.workspace();
    let concurrency = sent.concurrency.take().unwrap_or(1);
    let new = NewAgent { workspace_id, name, provider, concurrency };
    let id = call.write(move |tx| {
        Box::pin(async move {
            let id = agents::create(tx, new).await?;
            agents::change(tx, workspace_id, id, sent).await?;
            Ok(id)
        })
    });
    let id = id.await?;
    Ok(created(&one(&call, id).await?))
}

/// `PATCH /agents/{agent}`
pub(super) async fn update(call: Call) -> Result<Response, Fault> {
    let id = call.id("agent")?;
    let mut fields = call.fields();
    let name = form::opt_line(&mut fields, "name", NAME_CHARS_MAX);
    let provider = form::given(&mut fields, "provider").then(|| form::provider(&mut fields));
    let sent = AgentChange { name, provider, ..change(&mut fields) };
    fields.done(())?;
    check_secrets(&call, &sent)?;
    let workspace_id = call.workspace();
    call.write(move |tx| Box::pin(agents::change(tx, workspace_id, id, sent))).await?;
    Ok(data(&one(&call, id).await?))
}

/// `DELETE /agents/{agent}`: what it did stays, so it is archived.
pub(super) async fn archive(call: Call) -> Result<Response, Fault> {
    let (workspace_id, id) = (call.workspace(), call.id("agent")?);
    let change = AgentChange { archived: Some(true), ..AgentChange::default() };
    call.write(move |tx| Box::pin(agents::change(tx, workspace_id, id, change))).await?;
    Ok(no_content())
}

/// `PUT /agents/{agent}/skills/{skill}`
pub(super) async fn skill_attach(call: Call) -> Result<Response, Fault> {
    let (workspace_id, id, skill) = (call.workspace(), call.id("agent")?, call.id("skill")?);
    call.write(move |tx| Box::pin(agents::skill_attach(tx, workspace_id, id, skill))).await?;
    Ok(no_content())
}

/// `DELETE /agents/{agent}/skills/{skill}`
pub(super) async fn skill_detach(call: Call) -> Result<Response, Fault> {
    let (workspace_id, id, skill) = (call.workspace(), call.id("agent")?, call.id("skill")?);
    call.write(move |tx| Box::pin(agents::skill_detach(tx, workspace_id, id, skill))).await?;
    Ok(no_content())
}
