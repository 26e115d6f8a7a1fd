//! The server's administration: each command is one or two calls of `/api/v1` on the open database.

mod agent;
mod skill;
mod task;

use std::process::ExitCode;

use camino::Utf8Path;
use ostler_server::{Admin, AdminFault};
use serde_json::{Map, Value, json};

use super::Missing;
use crate::args::JsonFlag;
use crate::args::administer::{
    AbilityArg, AdministerCommand, AtArgs, InArgs, KindArg, RepositoryCommand, RoleArg,
    RuntimeCommand, TokenCommand, UserCommand, WorkspaceCommand,
};
use crate::context::Context;
use crate::error::{Code, Failure};
use crate::output;
use crate::table::{self, Column};
use crate::text_file;

/// The longest file of a context or of instructions.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// What is printed.
enum Shown {
    /// Records, each a row.
    List(Vec<Value>, &'static [Column]),
    /// One record.
    One(Value),
    /// Nothing but what was done.
    Done(String),
}

pub(super) async fn perform(
    context: &Context,
    command: AdministerCommand,
) -> Result<ExitCode, Failure> {
    match command {
        AdministerCommand::Workspace(command) => workspace(context, command).await,
        AdministerCommand::User(command) => user(context, command).await,
        AdministerCommand::Agent(command) => agent::perform(context, command).await,
        AdministerCommand::Skill(command) => skill::perform(context, command).await,
        AdministerCommand::Repository(command) => repository(context, command).await,
        AdministerCommand::Token(command) => token(context, command).await,
        AdministerCommand::Runtime(command) => runtime(context, command).await,
        AdministerCommand::Task(command) => task::perform(context, command).await,
    }
}

/// Opens the database, which is there, does it, closes the database, prints.
async fn with<T: Future<Output = Result<Shown, AdminFault>>>(
    context: &Context,
    at: &AtArgs,
    work: impl FnOnce(Admin) -> T,
) -> Result<ExitCode, Failure> {
    made_or(Missing::Refuse, context, at, work).await
}

async fn made_or<T: Future<Output = Result<Shown, AdminFault>>>(
    missing: Missing,
    context: &Context,
    at: &AtArgs,
    work: impl FnOnce(Admin) -> T,
) -> Result<ExitCode, Failure> {
    let admin = super::admin(context, &at.database, missing).await?;
    let done = work(admin.clone()).await;
    admin.close().await;
    print(done.map_err(failure)?, at.json)?;
    Ok(Code::Success.into())
}

fn failure(fault: AdminFault) -> Failure {
    let code = match fault.status {
        403 | 404 | 409 => Code::Refused,
        400 | 422 => Code::Usage,
        _ => Code::Failed,
    };
    let failure = Failure::new(code, fault.message);
    if fault.status == 404 { failure.hint("`list` shows what there is") } else { failure }
}

fn print(shown: Shown, json: JsonFlag) -> Result<(), Failure> {
    match shown {
        Shown::List(rows, _) if json.json => output::json_pretty(&rows),
        Shown::List(rows, columns) => table::rows(&rows, columns),
        Shown::One(record) if json.json => output::json_pretty(&record),
        Shown::One(record) => table::record(&record),
        Shown::Done(_) if json.json => output::json_pretty(&json!({})),
        Shown::Done(text) => output::line(&text),
    }
}

fn text_of(file: &Utf8Path) -> Result<String, Failure> {
    text_file::read(file, FILE_BYTES_MAX)
}

/// An object of what was said.
fn body<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    let said = fields.into_iter();
    said.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn nothing_to_change(flags: &str) -> Failure {
    Failure::new(Code::Usage, "there is nothing to change").hint(format!("give {flags}"))
}

async fn workspace(context: &Context, command: WorkspaceCommand) -> Result<ExitCode, Failure> {
    const LIST: &[Column] = &[("WORKSPACE", "/slug"), ("ISSUES", "/prefix"), ("NAME", "/name")];
    match command {
        WorkspaceCommand::Create { at, email, name } => {
            let slug = at.workspace;
            made_or(Missing::Make, context, &at.at, async |admin| {
                let made = admin.workspace_create(&slug, name.as_deref(), &email).await?;
                Ok(Shown::One(made))
            })
            .await
        }
        WorkspaceCommand::List(at) => {
            with(context, &at, async |admin| Ok(Shown::List(admin.workspaces().await?, LIST))).await
        }
        WorkspaceCommand::Show(at) => {
            call(context, &at, ("GET", "/workspace"), &[], Value::Null).await
        }
        WorkspaceCommand::Update { at, name, context_file } => {
            let text = context_file.as_deref().map(text_of).transpose()?;
            if name.is_none() && text.is_none() {
                return Err(nothing_to_change("--name or --context-file"));
            }
            let body = body([("name", name.map(Value::from)), ("context", text.map(Value::from))]);
            call(context, &at, ("PATCH", "/workspace"), &[], body.into()).await
        }
    }
}

/// One call that shows a record.
async fn call(
    context: &Context,
    at: &InArgs,
    (method, path): (&str, &str),
    params: &[(&str, &str)],
    body: Value,
) -> Result<ExitCode, Failure> {
    with(context, &at.at, async |admin| {
        Ok(Shown::One(admin.one(&at.workspace, method, path, params, body).await?))
    })
    .await
}

/// One call that shows a list.
async fn list(
    context: &Context,
    at: &InArgs,
    path: &str,
    query: &[(&str, &str)],
    columns: &'static [Column],
) -> Result<ExitCode, Failure> {
    with(context, &at.at, async |admin| {
        Ok(Shown::List(admin.list(&at.workspace, path, query).await?, columns))
    })
    .await
}

fn role(role: RoleArg) -> &'static str {
    match role {
        RoleArg::Member => "member",
        RoleArg::Admin => "admin",
    }
}

async fn user(context: &Context, command: UserCommand) -> Result<ExitCode, Failure> {
    const LIST: &[Column] =
        &[("ID", "/id"), ("ROLE", "/role"), ("E-MAIL", "/email"), ("NAME", "/name")];
    match command {
        UserCommand::Create { at, email, name, role: wanted } => {
            let body = body([
                ("email", Some(email.into())),
                ("name", name.map(Value::from)),
                ("role", Some(role(wanted).into())),
            ]);
            call(context, &at, ("POST", "/members"), &[], body.into()).await
        }
        UserCommand::List(at) => list(context, &at, "/members", &[], LIST).await,
        UserCommand::Update { at, email, role: wanted } => {
            with(context, &at.at, async |admin| {
                let id = admin.user_find(&at.workspace, &email).await?.to_string();
                let (path, body) = ("/members/{user}", json!({ "role": role(wanted) }));
                let params = [("user", id.as_str())];
                Ok(Shown::One(admin.one(&at.workspace, "PATCH", path, &params, body).await?))
            })
            .await
        }
        UserCommand::Remove { at, email } => {
            with(context, &at.at, async |admin| {
                let id = admin.user_find(&at.workspace, &email).await?.to_string();
                let (path, params) = ("/members/{user}", [("user", id.as_str())]);
                admin.one(&at.workspace, "DELETE", path, &params, Value::Null).await?;
                Ok(Shown::Done(format!("{email} removed from {}", at.workspace)))
            })
            .await
        }
    }
}

async fn repository(context: &Context, command: RepositoryCommand) -> Result<ExitCode, Failure> {
    const LIST: &[Column] = &[("ID", "/id"), ("NAME", "/name"), ("URL", "/url")];
    match command {
        RepositoryCommand::Add { at, url } => {
            call(context, &at, ("POST", "/repositories"), &[], json!({ "url": url })).await
        }
        RepositoryCommand::List(at) => list(context, &at, "/repositories", &[], LIST).await,
        RepositoryCommand::Remove { at, id } => {
            let id = id.to_string();
            with(context, &at.at, async |admin| {
                let (path, params) = ("/repositories/{repository}", [("repository", id.as_str())]);
                admin.one(&at.workspace, "DELETE", path, &params, Value::Null).await?;
                Ok(Shown::Done(format!("repository {id} removed")))
            })
            .await
        }
    }
}

async fn token(context: &Context, command: TokenCommand) -> Result<ExitCode, Failure> {
    const LIST: &[Column] = &[
        ("ID", "/id"),
        ("BEGINS", "/prefix"),
        ("KIND", "/kind"),
        ("USER", "/user/name"),
        ("EXPIRES", "/expires_at"),
        ("REVOKED", "/revoked_at"),
        ("NAME", "/name"),
    ];
    match command {
        TokenCommand::Create { at, user, name, days, kind, abilities } => {
            let abilities: Vec<_> = abilities
                .into_iter()
                .map(|ability| match ability {
                    AbilityArg::Read => "read",
                    AbilityArg::Write => "write",
                    AbilityArg::Admin => "admin",
                })
                .collect();
            let kind = if kind == KindArg::Daemon { "daemon" } else { "api" };
            let done = with(context, &at.at, async |admin| {
                let user_id = admin.user_find(&at.workspace, &user).await?;
                let abilities = (!abilities.is_empty()).then(|| json!(abilities));
                let body = body([
                    ("name", Some(name.into())),
                    ("kind", Some(kind.into())),
                    ("days", Some(days.into())),
                    ("user_id", Some(user_id.into())),
                    ("abilities", abilities),
                ]);
                Ok(Shown::One(admin.one(&at.workspace, "POST", "/tokens", &[], body.into()).await?))
            })
            .await?;
            output::note("the token is shown this once: keep it in a safe place");
            Ok(done)
        }
        TokenCommand::List(at) => list(context, &at, "/tokens", &[], LIST).await,
        TokenCommand::Revoke { at, id } => {
            let id = id.to_string();
            with(context, &at.at, async |admin| {
                let params = [("token", id.as_str())];
                let path = "/tokens/{token}";
                admin.one(&at.workspace, "DELETE", path, &params, Value::Null).await?;
                Ok(Shown::Done(format!("token {id} revoked")))
            })
            .await
        }
    }
}

async fn runtime(context: &Context, command: RuntimeCommand) -> Result<ExitCode, Failure> {
    const LIST: &[Column] = &[
        ("ID", "/id"),
        ("PROVIDER", "/provider"),
        ("STATUS", "/status"),
        ("SEEN", "/last_seen"),
        ("VERSION", "/version"),
        ("MACHINE", "/name"),
    ];
    match command {
        RuntimeCommand::List(at) => list(context, &at, "/runtimes", &[], LIST).await,
        RuntimeCommand::Show { at, id } => {
            let params = [("runtime", id.as_str())];
            call(context, &at, ("GET", "/runtimes/{runtime}"), &params, Value::Null).await
        }
    }
}
