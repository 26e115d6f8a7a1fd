//! `ostler server skill`: documents from files.

use std::process::ExitCode;

use camino::{Utf8Path, Utf8PathBuf};
use ostler_server::{Admin, AdminFault};
use serde_json::{Value, json};

use super::{Shown, list, text_of, with};
use crate::args::administer::{SkillArgs, SkillCommand};
use crate::context::Context;
use crate::error::{Code, Failure};
use crate::output;
use crate::table::Column;

/// The document of a skill in its folder.
const DOCUMENT: &str = "SKILL.md";
/// Files that are looked at in a skill's folder; a skill may have fewer.
const FILES_MAX: usize = 1_000;

pub(super) async fn perform(context: &Context, command: SkillCommand) -> Result<ExitCode, Failure> {
    const LIST: &[Column] =
        &[("ID", "/id"), ("FILES", "/files"), ("CHANGED", "/updated_at"), ("NAME", "/name")];
    match command {
        SkillCommand::Create { skill: SkillArgs { at, name }, path } => {
            let mut body = read(&path)?;
            if let Some(body) = body.as_object_mut() {
                body.insert("name".to_owned(), name.into());
            }
            super::call(context, &at, ("POST", "/skills"), &[], body).await
        }
        SkillCommand::Update { skill, path } => {
            let body = read(&path)?;
            one(context, &skill, ("PATCH", "/skills/{skill}"), None, body).await
        }
        SkillCommand::List(at) => list(context, &at, "/skills", &[], LIST).await,
        SkillCommand::Show(skill) => {
            one(context, &skill, ("GET", "/skills/{skill}"), None, Value::Null).await
        }
        SkillCommand::Remove(skill) => {
            one(context, &skill, ("DELETE", "/skills/{skill}"), None, Value::Null).await
        }
        SkillCommand::Attach { skill, agent } => {
            let call = ("PUT", "/agents/{agent}/skills/{skill}");
            one(context, &skill, call, Some(&agent), Value::Null).await
        }
        SkillCommand::Detach { skill, agent } => {
            let call = ("DELETE", "/agents/{agent}/skills/{skill}");
            one(context, &skill, call, Some(&agent), Value::Null).await
        }
    }
}

/// One call about a skill, and perhaps an agent, both by their names.
async fn one(
    context: &Context,
    SkillArgs { at, name }: &SkillArgs,
    (method, path): (&str, &str),
    agent: Option<&str>,
    body: Value,
) -> Result<ExitCode, Failure> {
    with(context, &at.at, async |admin| {
        let skill_id = find(&admin, &at.workspace, name).await?.to_string();
        let agent_id = match agent {
            Some(agent) => admin.agent_find(&at.workspace, agent).await?.to_string(),
            None => String::new(),
        };
        let params = [("skill", skill_id.as_str()), ("agent", agent_id.as_str())];
        let answer = admin.one(&at.workspace, method, path, &params, body).await?;
        Ok(if answer.is_null() {
            Shown::Done(format!("skill {name}: done"))
        } else {
            Shown::One(answer)
        })
    })
    .await
}

async fn find(admin: &Admin, workspace: &str, name: &str) -> Result<i64, AdminFault> {
    let skills = admin.list(workspace, "/skills", &[]).await?;
    let found = skills.iter().find(|skill| skill.get("name").and_then(Value::as_str) == Some(name));
    found.and_then(|skill| skill.get("id")?.as_i64()).ok_or_else(|| AdminFault {
        status: 404,
        message: format!("There is no skill {name:?} here."),
    })
}

/// Content and files, from a document or from its folder.
fn read(path: &Utf8Path) -> Result<Value, Failure> {
    if !path.is_dir() {
        return Ok(json!({ "content": text(path)?, "files": [] }));
    }
    let document = path.join(DOCUMENT);
    if !document.exists() {
        let heading = format!("{path} has no {DOCUMENT}");
        return Err(Failure::new(Code::Usage, heading)
            .hint("a skill's folder has its text there; other files may lie beside it"));
    }
    let content = text(&document)?;
    let mut files = Vec::new();
    let (found, hidden, links) = walk(path)?;
    for file in found {
        if file != document {
            let relative = file.strip_prefix(path).unwrap_or(&file);
            files.push(json!({ "path": relative, "content": text(&file)? }));
        }
    }
    if hidden > 0 {
        output::note(&format!("left out {hidden} files and folders whose names begin with `.`"));
    }
    if links > 0 {
        output::note(&format!("left out {links} links, which are not followed"));
    }
    Ok(json!({ "content": content, "files": files }))
}

fn text(file: &Utf8Path) -> Result<String, Failure> {
    text_of(file).map_err(|failure| failure.hint("a skill is made of text files, UTF-8"))
}

/// The regular files below a folder, in the order of their names, and how many entries were left out: names
/// that begin with a dot are of programs and people, `.git` and `.env` among them; and links, which are not followed.
fn walk(folder: &Utf8Path) -> Result<(Vec<Utf8PathBuf>, usize, usize), Failure> {
    let cannot =
        |error| Failure::new(Code::Usage, format!("{folder} cannot be read")).because(error);
    let (mut folders, mut files, mut hidden) = (vec![folder.to_owned()], Vec::new(), 0);
    let mut links = 0;
    while let Some(next) = folders.pop() {
        for entry in next.read_dir_utf8().map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let kind = entry.file_type().map_err(cannot)?;
            if entry.file_name().starts_with('.') {
                hidden += 1;
            } else if kind.is_dir() {
                folders.push(entry.path().to_owned());
            } else if kind.is_file() {
                files.push(entry.path().to_owned());
            } else {
                links += 1;
            }
            if files.len() + folders.len() > FILES_MAX {
                let heading = format!("{folder} has more than {FILES_MAX} files");
                return Err(Failure::new(Code::Usage, heading));
            }
        }
    }
    files.sort();
    Ok((files, hidden, links))
}
