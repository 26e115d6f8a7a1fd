//! What `/api/v1` can do, for whoever administrates on the same machine: the same endpoints with the same
//! checks and answers, as an administrator of the workspace, without a token. What concerns no one workspace
//! is here.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::Admin;
use crate::auth::Identity;
use crate::http::Fault;
use crate::people;
use crate::store::StoreError;
use crate::store::sql::people::{agents, members, workspaces};

/// Entries of one list; the rest is not shown.
const LIST_MAX: usize = 10_000;

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct AdminFault {
    /// As HTTP says it: 404, 409, 422, …
    pub status: u16,
    /// For a person.
    pub message: String,
}

impl From<Fault> for AdminFault {
    fn from(fault: Fault) -> Self {
        Self { status: fault.status.as_u16(), message: fault.body.message }
    }
}

impl From<StoreError> for AdminFault {
    fn from(error: StoreError) -> Self {
        Fault::from(error).into()
    }
}

impl Admin {
    /// All workspaces.
    pub async fn workspaces(&self) -> Result<Vec<Value>, AdminFault> {
        let found = workspaces::list(&mut self.app.store.reader().await?).await?;
        Ok(found.iter().map(|it| json!(it)).collect())
    }

    /// Makes a workspace with an administrator, who may be a user already; the workspace.
    pub async fn workspace_create(
        &self,
        slug: &str,
        name: Option<&str>,
        email: &str,
    ) -> Result<Value, AdminFault> {
        let (new, email) = (slug.to_owned(), email.to_owned());
        let name = crate::text::plain_line(name.unwrap_or(slug), 128);
        let made = self.app.store.write(move |tx| {
            Box::pin(async move {
                match workspaces::find(&mut tx.conn, &new).await {
                    Ok(_) => {
                        let message = "A workspace has that name.".to_owned();
                        return Err(StoreError::Conflict(message));
                    }
                    Err(StoreError::NotFound) => {}
                    Err(error) => return Err(error),
                }
                let id = workspaces::ensure(tx, &new, &name).await?;
                workspaces::ensure_member(tx, id, &email, "admin").await
            })
        });
        made.await?;
        self.one(slug, "GET", "/workspace", &[], Value::Null).await
    }

    /// The agent of that name; its id.
    pub async fn agent_find(&self, workspace: &str, name: &str) -> Result<i64, AdminFault> {
        let mut conn = self.app.store.reader().await?;
        let workspace_id = find_workspace(&mut conn, workspace).await?;
        agents::find(&mut conn, workspace_id, name)
            .await
            .map_err(|error| named(error, "agent", name))
    }

    /// The member with that address; the user's id.
    pub async fn user_find(&self, workspace: &str, email: &str) -> Result<i64, AdminFault> {
        let mut conn = self.app.store.reader().await?;
        let workspace_id = find_workspace(&mut conn, workspace).await?;
        match members::find(&mut conn, workspace_id, email).await {
            Ok(member) => Ok(member.id),
            Err(error) => Err(named(error, "member", email)),
        }
    }

    /// One call of `/api/v1`: what its answer has as `data`.
    pub async fn one(
        &self,
        workspace: &str,
        method: &str,
        path: &str,
        params: &[(&str, &str)],
        body: Value,
    ) -> Result<Value, AdminFault> {
        let identity = self.identity(workspace).await?;
        let mut answer = self.answer(&identity, (method, path), params, "", body).await?;
        Ok(answer.get_mut("data").map(Value::take).unwrap_or_default())
    }

    /// All pages of a list of `/api/v1`, up to a bound.
    pub async fn list(
        &self,
        workspace: &str,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<Vec<Value>, AdminFault> {
        let identity = self.identity(workspace).await?;
        let mut all = Vec::new();
        for page in 1.. {
            let mut pairs = url::form_urlencoded::Serializer::new(String::new());
            pairs.extend_pairs(query).append_pair("per_page", "100");
            let query = pairs.append_pair("page", &page.to_string()).finish();
            let mut answer =
                self.answer(&identity, ("GET", path), &[], &query, Value::Null).await?;
            if let Some(Value::Array(entries)) = answer.get_mut("data") {
                all.append(entries);
            }
            let is_last = answer.pointer("/links/next").is_none_or(Value::is_null);
            if is_last || all.len() >= LIST_MAX {
                break;
            }
        }
        Ok(all)
    }

    /// A task's lines of output above a number, a bounded number of them.
    pub async fn messages(
        &self,
        workspace: &str,
        task: &str,
        after: i64,
    ) -> Result<Vec<Value>, AdminFault> {
        let identity = self.identity(workspace).await?;
        let (call, query) = (("GET", "/tasks/{task}/messages"), format!("after={after}"));
        let mut answer =
            self.answer(&identity, call, &[("task", task)], &query, Value::Null).await?;
        match answer.get_mut("data").map(Value::take) {
            Some(Value::Array(lines)) => Ok(lines),
            _ => Ok(Vec::new()),
        }
    }

    async fn answer(
        &self,
        identity: &Arc<Identity>,
        (method, path): (&str, &str),
        params: &[(&str, &str)],
        query: &str,
        body: Value,
    ) -> Result<Value, AdminFault> {
        let params = params.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let (app, identity) = (Arc::clone(&self.app), Arc::clone(identity));
        let path = format!("/api/v1{path}");
        let call = (method, path.as_str());
        let answer = people::locally(app, identity, call, params.collect(), query, body).await?;
        let bytes = answer.into_body().collect().await.map(|body| body.to_bytes());
        Ok(serde_json::from_slice(&bytes.unwrap_or_default()).unwrap_or_default())
    }

    /// An administrator of the workspace, with every ability.
    async fn identity(&self, workspace: &str) -> Result<Arc<Identity>, AdminFault> {
        let mut conn = self.app.store.reader().await?;
        let workspace_id = find_workspace(&mut conn, workspace).await?;
        let found = members::first_admin(&mut conn, workspace_id).await?;
        let admin = found.ok_or_else(|| AdminFault {
            status: 409,
            message: format!("The workspace {workspace} has no administrator."),
        })?;
        Ok(Arc::new(admin))
    }
}

async fn find_workspace(
    conn: &mut crate::store::sql::db::Conn,
    slug: &str,
) -> Result<i64, AdminFault> {
    workspaces::find(conn, slug).await.map_err(|error| named(error, "workspace", slug))
}

/// Says what was not found.
fn named(error: StoreError, what: &str, name: &str) -> AdminFault {
    match error {
        StoreError::NotFound => {
            AdminFault { status: 404, message: format!("There is no {what} {name:?} here.") }
        }
        error => error.into(),
    }
}
