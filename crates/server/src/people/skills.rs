//! Skills: documents with files, judged before they are kept.

use axum::response::Response;
use ostler_proto::lease::{Faults, Fields};

use super::call::{Call, created, data};
use super::form;
use crate::http::{Fault, no_content};
use crate::skill::{
    SKILL_FILE_BYTES_MAX, SKILL_FILES_MAX, SKILL_NAME_CHARS_MAX, SKILL_PATH_BYTES_MAX,
};
use crate::store::sql::people::skills::{self, File, Skill, SkillChange};

async fn one(call: &Call, id: i64) -> Result<Skill, Fault> {
    Ok(skills::show(&mut call.reader().await?, call.workspace(), id).await?)
}

/// `GET /skills`
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let found = skills::list(&mut call.reader().await?, call.workspace(), page).await?;
    Ok(call.list(page, found))
}

/// `GET /skills/{skill}`
pub(super) async fn show(call: Call) -> Result<Response, Fault> {
    Ok(data(&one(&call, call.id("skill")?).await?))
}

/// All files; null is none.
fn files(fields: &mut Fields<'_>) -> Option<Vec<File>> {
    if !fields.has("files") {
        return None;
    }
    let list = fields.opt_list("files", SKILL_FILES_MAX).unwrap_or_default();
    let read = |(at, value)| {
        let mut file = Fields::entry(value, "files", at);
        let path = file.text("path", SKILL_PATH_BYTES_MAX);
        if file.value("content").is_none() {
            file.fault("content", "is required");
        }
        let content = file.opt_text("content", SKILL_FILE_BYTES_MAX).unwrap_or_default();
        file.done(Some(File { path, content }))
    };
    let files: Vec<Result<Option<File>, Faults>> = list.iter().enumerate().map(read).collect();
    Some(files.into_iter().filter_map(|file| fields.take(file)).collect())
}

fn content(fields: &mut Fields<'_>) -> Option<String> {
    let sent =
        form::given(fields, "content").then(|| fields.opt_text("content", SKILL_FILE_BYTES_MAX));
    sent.flatten()
}

fn check(name: &str, content: &str, files: &[File]) -> Result<(), Fault> {
    let pairs: Vec<_> = files.iter().map(|it| (it.path.as_str(), it.content.as_str())).collect();
    crate::skill::check(name, content, &pairs)
        .map_err(|fault| Fault::field(&fault.field(), fault.to_string()))
}

/// `POST /skills`
pub(super) async fn create(call: Call) -> Result<Response, Fault> {
    let mut fields = call.fields();
    let name = fields.text("name", SKILL_NAME_CHARS_MAX);
    if fields.value("content").is_none() {
        fields.fault("content", "is required");
    }
    let content = fields.opt_text("content", SKILL_FILE_BYTES_MAX).unwrap_or_default();
    let files = files(&mut fields).unwrap_or_default();
    fields.done(())?;
    check(&name, &content, &files)?;
    let workspace_id = call.workspace();
    let id = call.write(move |tx| {
        Box::pin(async move { skills::create(tx, workspace_id, &name, &content, files).await })
    });
    let id = id.await?;
    Ok(created(&one(&call, id).await?))
}

/// `PATCH /skills/{skill}`: `files` are all of them.
pub(super) async fn update(call: Call) -> Result<Response, Fault> {
    let id = call.id("skill")?;
    let mut fields = call.fields();
    let name = form::given(&mut fields, "name").then(|| fields.text("name", SKILL_NAME_CHARS_MAX));
    let (content, files) = (content(&mut fields), files(&mut fields));
    fields.done(())?;
    let before = one(&call, id).await?;
    check(
        name.as_ref().unwrap_or(&before.name),
        content.as_ref().unwrap_or(&before.content),
        files.as_ref().unwrap_or(&before.files),
    )?;
    let (workspace_id, change) = (call.workspace(), SkillChange { name, content, files });
    call.write(move |tx| Box::pin(skills::change(tx, workspace_id, id, change))).await?;
    Ok(data(&one(&call, id).await?))
}

/// `DELETE /skills/{skill}`
pub(super) async fn remove(call: Call) -> Result<Response, Fault> {
    let (workspace_id, id) = (call.workspace(), call.id("skill")?);
    call.write(move |tx| Box::pin(skills::remove(tx, workspace_id, id))).await?;
    Ok(no_content())
}
