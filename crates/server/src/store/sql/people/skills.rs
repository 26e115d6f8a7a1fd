//! Skills: documents that travel with a task.

use serde::Serialize;
use serde_json::json;

use super::{At, Page, Part, at, locking, part, update};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, DbError, Kind, Value, args};
use crate::store::sql::lane::Tx;

/// A skill in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct SkillBrief {
    pub(crate) id: i64,
    pub(crate) name: String,
    /// How many.
    pub(crate) files: i64,
    pub(crate) created_at: At,
    pub(crate) updated_at: At,
}

/// A skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Skill {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) content: String,
    pub(crate) files: Vec<File>,
    pub(crate) created_at: At,
    pub(crate) updated_at: At,
}

/// A further file of a skill. Its path was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) content: String,
}

/// What changes of a skill. The files are all of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct SkillChange {
    pub(crate) name: Option<String>,
    pub(crate) content: Option<String>,
    pub(crate) files: Option<Vec<File>>,
}

fn taken() -> StoreError {
    StoreError::Conflict("A skill of this workspace has that name.".to_owned())
}

/// Skills by name.
pub(crate) async fn list(
    conn: &mut Conn,
    workspace_id: i64,
    page: Page,
) -> Result<Part<SkillBrief>, StoreError> {
    let sql = "SELECT s.id, s.name, (SELECT count(*) FROM skill_files f WHERE f.skill_id = s.id), \
               s.created_at, s.updated_at FROM skills s WHERE s.workspace_id = $1 ORDER BY s.name, s.id";
    part(conn, sql, args![workspace_id], page, |row| {
        Ok(SkillBrief {
            id: row.int()?,
            name: row.text()?,
            files: row.int()?,
            created_at: at(row)?,
            updated_at: at(row)?,
        })
    })
    .await
}

/// One skill with its files.
pub(crate) async fn show(conn: &mut Conn, workspace_id: i64, id: i64) -> Result<Skill, StoreError> {
    let sql = "SELECT id, name, content, created_at, updated_at FROM skills \
               WHERE workspace_id = $1 AND id = $2";
    let row = conn.row(sql, args![workspace_id, id]).await?;
    let mut row = row.ok_or(StoreError::NotFound)?;
    let mut skill = Skill {
        id: row.int()?,
        name: row.text()?,
        content: row.text()?,
        files: Vec::new(),
        created_at: at(&mut row)?,
        updated_at: at(&mut row)?,
    };
    let sql = "SELECT path, content FROM skill_files WHERE skill_id = $1 ORDER BY path";
    for mut row in conn.rows(sql, args![id]).await? {
        skill.files.push(File { path: row.text()?, content: row.text()? });
    }
    Ok(skill)
}

/// Makes a skill; its id.
pub(crate) async fn create(
    tx: &mut Tx,
    workspace_id: i64,
    name: &str,
    content: &str,
    files: Vec<File>,
) -> Result<i64, StoreError> {
    let sql = "INSERT INTO skills (workspace_id, name, content, created_at, updated_at) \
               VALUES ($1, $2, $3, $4, $4) ON CONFLICT (workspace_id, name) DO NOTHING RETURNING id";
    let args = args![workspace_id, name, content, tx.now.as_micros()];
    let id = tx.conn.row(sql, args).await?.ok_or_else(taken)?.int()?;
    save_files(tx, id, files).await?;
    let data = json!({ "skill_id": id, "name": name });
    tx.event(workspace_id, "skill.created", &data).await?;
    Ok(id)
}

/// Changes a skill.
pub(crate) async fn change(
    tx: &mut Tx,
    workspace_id: i64,
    id: i64,
    change: SkillChange,
) -> Result<(), StoreError> {
    lock(tx, workspace_id, id).await?;
    if let Some(name) = &change.name {
        let sql = "SELECT 1 FROM skills WHERE workspace_id = $1 AND name = $2 AND id <> $3";
        if tx.conn.row(sql, args![workspace_id, name, id]).await?.is_some() {
            return Err(taken());
        }
    }
    let mut sets: Vec<(&'static str, Value)> = Vec::new();
    sets.extend(change.name.map(|it| ("name", Value::from(it))));
    sets.extend(change.content.map(|it| ("content", Value::from(it))));
    let mut fields = update(tx, "skills", id, sets, true).await?;
    if let Some(files) = change.files {
        tx.conn.execute("DELETE FROM skill_files WHERE skill_id = $1", args![id]).await?;
        save_files(tx, id, files).await?;
        let sql = "UPDATE skills SET updated_at = $2 WHERE id = $1";
        tx.conn.execute(sql, args![id, tx.now.as_micros()]).await?;
        fields.push("files");
    }
    if !fields.is_empty() {
        let data = json!({ "skill_id": id, "fields": fields });
        tx.event(workspace_id, "skill.changed", &data).await?;
    }
    Ok(())
}

/// Removes a skill, from its agents too.
pub(crate) async fn remove(tx: &mut Tx, workspace_id: i64, id: i64) -> Result<(), StoreError> {
    lock(tx, workspace_id, id).await?;
    tx.conn.execute("DELETE FROM skills WHERE id = $1", args![id]).await?;
    tx.event(workspace_id, "skill.removed", &json!({ "skill_id": id })).await?;
    Ok(())
}

async fn lock(tx: &mut Tx, workspace_id: i64, id: i64) -> Result<(), StoreError> {
    let sql =
        format!("SELECT 1 FROM skills WHERE workspace_id = $1 AND id = $2 {}", locking(&tx.conn));
    tx.conn.row(&sql, args![workspace_id, id]).await?.map(drop).ok_or(StoreError::NotFound)
}

async fn save_files(tx: &mut Tx, id: i64, files: Vec<File>) -> Result<(), DbError> {
    let columns = [("skill_id", Kind::Int), ("path", Kind::Text), ("content", Kind::Text)];
    let rows = files.into_iter().map(|file| args![id, file.path, file.content]).collect();
    tx.conn.insert_many("skill_files", &columns, rows, "").await.map(drop)
}
