//! `ostler issue`: a team's issues, from any machine with a token.

use std::process::ExitCode;

use camino::Utf8Path;
use ostler_core::suggest;
use ostler_server::text::{MARKDOWN_BYTES_MAX, html_to_markdown, markdown_to_html};
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::args::JsonFlag;
use crate::args::issue::{AssigneeArgs, ClientArgs, CreateArgs, IssueCommand};
use crate::context::{Context, block_on};
use crate::error::{Code, Failure};
use crate::fleet_client::Fleet;
use crate::output::{self, PLAIN};
use crate::table::{self, Column};
use crate::text_file;

/// Comments that are shown with an issue.
const COMMENTS_MAX: usize = 1_000;
/// Deliveries that are shown with an issue.
const DELIVERIES_MAX: usize = 1_000;
/// Names that a hint shows.
const NAMES_SHOWN_MAX: usize = 10;
/// Agents and members that are looked through for a name.
const NAMES_MAX: usize = 10_000;

const LIST: &[Column] = &[
    ("ISSUE", "/id"),
    ("STATUS", "/status"),
    ("PRIORITY", "/priority"),
    ("ASSIGNEE", "/assignee/name"),
    ("TITLE", "/title"),
];

pub(crate) fn perform(context: &Context, command: IssueCommand) -> Result<ExitCode, Failure> {
    block_on(async {
        match command {
            IssueCommand::List { status, assignee, limit, client } => {
                list(context, status.as_deref(), assignee.as_deref(), limit.into(), &client).await
            }
            IssueCommand::Show { issue, client } => show(context, &issue, &client).await,
            IssueCommand::Assign { issue, to, client } => {
                assign(context, &issue, &to, &client).await
            }
            IssueCommand::Comment { issue, text, client } => {
                comment(context, &issue, &text, &client).await
            }
            IssueCommand::Create(create) => self::create(context, create).await,
        }
    })
}

/// The HTML of a text that is sent whole or not at all.
fn html(markdown: &str) -> Result<String, Failure> {
    if markdown.len() > MARKDOWN_BYTES_MAX {
        let message = format!("the text has more than {MARKDOWN_BYTES_MAX} bytes");
        return Err(Failure::new(Code::Usage, message)
            .hint("shorten it, or attach it to a comment as a file"));
    }
    Ok(markdown_to_html(markdown))
}

async fn create(context: &Context, create: CreateArgs) -> Result<ExitCode, Failure> {
    let CreateArgs { title, description, description_file, criteria, priority, assign, client } =
        create;
    let fleet = Fleet::of(context, &client)?;
    let description = match description_file {
        Some(file) => Some(text_file::read(&file, MARKDOWN_BYTES_MAX as u64)?),
        None => description,
    };
    let mut body = Map::new();
    body.insert("title".to_owned(), title.into());
    if let Some(text) = description {
        body.insert("description".to_owned(), html(&text)?.into());
    }
    if !criteria.is_empty() {
        body.insert("acceptance_criteria".to_owned(), criteria.into());
    }
    if let Some(priority) = priority {
        body.insert("priority".to_owned(), priority.into());
    }
    if let Some(name) = assign {
        body.insert("assignee_type".to_owned(), "agent".into());
        body.insert("assignee_id".to_owned(), agent(&fleet, &name).await?.into());
    }
    let made = fleet.call(Method::POST, &["issues"], Some(&body.into())).await?;
    tell(&made, client.json)
}

/// An issue that was made or changed.
fn tell(issue: &Value, json: JsonFlag) -> Result<ExitCode, Failure> {
    if json.json {
        output::json_pretty(issue)?;
    } else {
        let text = |name: &str| {
            output::safe(issue.get(name).and_then(Value::as_str).unwrap_or_default()).into_owned()
        };
        let assignee = issue.pointer("/assignee/name").and_then(Value::as_str);
        let assignee =
            assignee.map_or_else(String::new, |name| format!(" · {}", output::safe(name)));
        output::line(&format!("{} {}{assignee} · {}", text("id"), text("status"), text("title")))?;
    }
    Ok(Code::Success.into())
}

async fn list(
    context: &Context,
    status: Option<&str>,
    assignee: Option<&str>,
    limit: usize,
    client: &ClientArgs,
) -> Result<ExitCode, Failure> {
    let fleet = Fleet::of(context, client)?;
    let assignee = match assignee {
        None => None,
        Some(word @ ("me" | "none")) => Some(word.to_owned()),
        Some(email) if email.contains('@') => Some(format!("user:{}", user(&fleet, email).await?)),
        Some(name) => Some(format!("agent:{}", agent(&fleet, name).await?)),
    };
    let mut query = Vec::new();
    query.extend(status.map(|status| ("status", status)));
    query.extend(assignee.as_deref().map(|assignee| ("assignee", assignee)));
    let issues = fleet.list(&["issues"], &query, limit).await?;
    if client.json.json {
        output::json_pretty(&issues)?;
    } else {
        table::rows(&issues, LIST)?;
    }
    Ok(Code::Success.into())
}

async fn show(context: &Context, issue: &str, client: &ClientArgs) -> Result<ExitCode, Failure> {
    let fleet = Fleet::of(context, client)?;
    let mut found = fleet.call(Method::GET, &["issues", issue], None).await?;
    let comments = fleet.list(&["issues", issue, "comments"], &[], COMMENTS_MAX).await?;
    let deliveries = fleet.list(&["issues", issue, "deliveries"], &[], DELIVERIES_MAX).await?;
    if client.json.json {
        if let Some(found) = found.as_object_mut() {
            found.insert("deliveries".to_owned(), deliveries.into());
            found.insert("comments".to_owned(), comments.into());
        }
        output::json_pretty(&found)?;
        return Ok(Code::Success.into());
    }
    let take = |found: &mut Value| {
        let html = found.get_mut("description").map(Value::take);
        html.as_ref().and_then(Value::as_str).map(html_to_markdown).unwrap_or_default()
    };
    let description = take(&mut found);
    table::record(&found)?;
    text(&description)?;
    if !deliveries.is_empty() {
        output::line(&format!("\n\x1b[1mhanded back{PLAIN}"))?;
    }
    for delivery in &deliveries {
        let of = |name: &str| delivery.get(name).and_then(Value::as_str).unwrap_or_default();
        let words = [of("type"), of("state"), of("title"), of("reference"), of("url")];
        let words = words.map(|word| output::safe(word).into_owned());
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        output::line(&words.join("  "))?;
    }
    for comment in &comments {
        let of = |pointer: &str| {
            output::safe(comment.pointer(pointer).and_then(Value::as_str).unwrap_or_default())
        };
        output::line(&format!("\n\x1b[1m{}{PLAIN}  {}", of("/author/name"), of("/created_at")))?;
        text(&html_to_markdown(comment.get("body").and_then(Value::as_str).unwrap_or_default()))?;
    }
    Ok(Code::Success.into())
}

fn text(markdown: &str) -> Result<(), Failure> {
    if markdown.is_empty() {
        return Ok(());
    }
    output::line("")?;
    markdown.lines().try_for_each(|line| output::line(&output::safe(line)))
}

async fn assign(
    context: &Context,
    issue: &str,
    to: &AssigneeArgs,
    client: &ClientArgs,
) -> Result<ExitCode, Failure> {
    let fleet = Fleet::of(context, client)?;
    let (kind, id) = match (&to.agent, &to.user) {
        (Some(name), _) => (json!("agent"), json!(agent(&fleet, name).await?)),
        (None, Some(email)) => (json!("user"), json!(user(&fleet, email).await?)),
        (None, None) => (Value::Null, Value::Null),
    };
    let body = json!({ "assignee_type": kind, "assignee_id": id });
    let changed = fleet.call(Method::PATCH, &["issues", issue], Some(&body)).await?;
    tell(&changed, client.json)
}

async fn comment(
    context: &Context,
    issue: &str,
    said: &str,
    client: &ClientArgs,
) -> Result<ExitCode, Failure> {
    let fleet = Fleet::of(context, client)?;
    let said = if said == "-" {
        text_file::read(Utf8Path::new("-"), MARKDOWN_BYTES_MAX as u64)?
    } else {
        said.to_owned()
    };
    let body = json!({ "body": html(&said)? });
    let made = fleet.call(Method::POST, &["issues", issue, "comments"], Some(&body)).await?;
    if client.json.json {
        output::json_pretty(&made)?;
    } else {
        output::line(&format!("{} commented", output::safe(issue)))?;
    }
    Ok(Code::Success.into())
}

async fn agent(fleet: &Fleet, name: &str) -> Result<i64, Failure> {
    let agents = fleet.list(&["agents"], &[], NAMES_MAX).await?;
    find("agent", &agents, "name", name)
}

async fn user(fleet: &Fleet, email: &str) -> Result<i64, Failure> {
    if email == "me" {
        let me = fleet.me().await?;
        let id = me.pointer("/user/id").and_then(Value::as_i64);
        return id.ok_or_else(|| Failure::new(Code::Failed, "the server does not say who you are"));
    }
    let members = fleet.list(&["members"], &[], NAMES_MAX).await?;
    find("member", &members, "email", &email.to_lowercase())
}

/// The id of the record whose `field` is that.
fn find(what: &str, records: &[Value], field: &str, wanted: &str) -> Result<i64, Failure> {
    let word = |record: &Value| record.get(field).and_then(Value::as_str).map(str::to_owned);
    let found = records.iter().find(|record| word(record).as_deref() == Some(wanted));
    if let Some(id) = found.and_then(|it| it.get("id")?.as_i64()) {
        return Ok(id);
    }
    let known: Vec<_> = records.iter().filter_map(word).collect();
    let failure = Failure::new(Code::Refused, format!("there is no {what} {wanted:?}"));
    Err(match suggest::nearest(wanted, known.iter().map(String::as_str)) {
        Some(meant) => failure.hint(format!("did you mean {meant:?}?")),
        None if known.is_empty() => failure.hint(format!("this workspace has no {what} yet")),
        None => {
            let some: Vec<_> =
                known.iter().take(NAMES_SHOWN_MAX).map(|it| output::safe(it)).collect();
            let more = if known.len() > some.len() { ", …" } else { "" };
            failure.hint(format!("there are: {}{more}", some.join(", ")))
        }
    })
}
