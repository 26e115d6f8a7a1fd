//! What a suite needs of a store beside its operations: a hand that makes what people make, and eyes.

use ostler_core::lease::Priority;

use crate::delivery::Delivery;
use crate::store::memory::{CommentRow, MemoryStore, NewAgent};
use crate::store::sql::SqlStore;
use crate::store::sql::db::{Row, Value, args};
use crate::store::{LeaseStore, Line, SessionReport, TaskRecord, Usage};

/// A store under test.
pub(in crate::store::tests) trait Subject: LeaseStore {
    async fn workspace_create(&self, slug: &str) -> i64;
    async fn agent_create(&self, new: NewAgent) -> i64;
    async fn agent_pause(&self, id: i64, paused: bool);
    /// Name and whether it is archived.
    async fn agent(&self, id: i64) -> (String, bool);
    async fn issue_create(&self, workspace_id: i64, title: &str, priority: Priority) -> i64;
    async fn issue_move(&self, id: i64, status: &str);
    /// Status and time spent.
    async fn issue(&self, id: i64) -> (String, i64);
    async fn comment_create(&self, issue_id: i64, author: &str, body: &str);
    async fn comments(&self, issue_id: i64) -> Vec<CommentRow>;
    async fn task(&self, id: &str) -> TaskRecord;
    async fn lines(&self, task_id: &str) -> Vec<Line>;
    async fn deliveries(&self, issue_id: i64) -> Vec<Delivery>;
    async fn session(&self, agent_id: i64, issue_id: i64) -> Option<SessionReport>;
    async fn results(&self, task_id: &str) -> Vec<(String, Usage)>;
    async fn events(&self, workspace_id: i64) -> Vec<(String, String)>;
}

impl Subject for MemoryStore {
    async fn workspace_create(&self, slug: &str) -> i64 {
        self.workspace_create(slug)
    }
    async fn agent_create(&self, new: NewAgent) -> i64 {
        self.agent_create(new)
    }
    async fn agent_pause(&self, id: i64, paused: bool) {
        self.agent_pause(id, paused);
    }
    async fn agent(&self, id: i64) -> (String, bool) {
        let agent = self.agent(id).unwrap();
        (agent.name, agent.archived)
    }
    async fn issue_create(&self, workspace_id: i64, title: &str, priority: Priority) -> i64 {
        self.issue_create(workspace_id, title, priority)
    }
    async fn issue_move(&self, id: i64, status: &str) {
        self.issue_move(id, status);
    }
    async fn issue(&self, id: i64) -> (String, i64) {
        let issue = self.issue(id).unwrap();
        (issue.status, issue.spent_ms)
    }
    async fn comment_create(&self, issue_id: i64, author: &str, body: &str) {
        self.comment_create(issue_id, author, body);
    }
    async fn comments(&self, issue_id: i64) -> Vec<CommentRow> {
        self.comments(issue_id)
    }
    async fn task(&self, id: &str) -> TaskRecord {
        self.task(id).unwrap()
    }
    async fn lines(&self, task_id: &str) -> Vec<Line> {
        self.lines(task_id)
    }
    async fn deliveries(&self, issue_id: i64) -> Vec<Delivery> {
        self.deliveries(issue_id)
    }
    async fn session(&self, agent_id: i64, issue_id: i64) -> Option<SessionReport> {
        self.session(agent_id, issue_id)
    }
    async fn results(&self, task_id: &str) -> Vec<(String, Usage)> {
        self.results(task_id).into_iter().map(|row| (row.result, row.usage)).collect()
    }
    async fn events(&self, workspace_id: i64) -> Vec<(String, String)> {
        self.events(workspace_id)
    }
}

impl SqlStore {
    /// A statement that answers one number.
    async fn number(&self, sql: &'static str, args: Vec<Value>) -> i64 {
        self.write(move |tx| Box::pin(async move { Ok(tx.conn.number(sql, args).await?) }))
            .await
            .unwrap()
    }

    async fn read(&self, sql: &str, args: Vec<Value>) -> Vec<Row> {
        self.reader().await.unwrap().rows(sql, args).await.unwrap()
    }
}

impl Subject for SqlStore {
    async fn workspace_create(&self, slug: &str) -> i64 {
        let sql = "INSERT INTO workspaces (slug, name, context, prefix, last_issue, created_at) \
                   VALUES ($1, $1, '', $2, 0, 0) RETURNING id";
        self.number(sql, args![slug, slug.to_uppercase()]).await
    }

    async fn agent_create(&self, new: NewAgent) -> i64 {
        let sql = "INSERT INTO agents (workspace_id, name, description, provider, instructions, custom_args, \
                   runtime_id, concurrency, paused, created_at) \
                   VALUES ($1, $2, '', $3, '', '[]', $4, $5, 0, 0) RETURNING id";
        let NewAgent { workspace_id, name, provider, runtime_id, concurrency } = new;
        self.number(sql, args![workspace_id, name, provider, runtime_id, concurrency]).await
    }

    async fn agent_pause(&self, id: i64, paused: bool) {
        let sql = "UPDATE agents SET paused = $2 WHERE id = $1 RETURNING id";
        self.number(sql, args![id, paused]).await;
    }

    async fn agent(&self, id: i64) -> (String, bool) {
        let sql = "SELECT name, archived_at FROM agents WHERE id = $1";
        let mut rows = self.read(sql, args![id]).await;
        (rows[0].text().unwrap(), rows[0].opt_int().unwrap().is_some())
    }

    async fn issue_create(&self, workspace_id: i64, title: &str, priority: Priority) -> i64 {
        let number =
            "UPDATE workspaces SET last_issue = last_issue + 1 WHERE id = $1 RETURNING last_issue";
        let number = self.number(number, args![workspace_id]).await;
        let sql = "INSERT INTO issues (workspace_id, number, title, description, acceptance_criteria, \
                   status, priority, type, spent_ms, created_at, updated_at) \
                   VALUES ($1, $2, $3, '', '[]', 'todo', $4, 'task', 0, 0, 0) RETURNING id";
        self.number(sql, args![workspace_id, number, title, priority.word()]).await
    }

    async fn issue_move(&self, id: i64, status: &str) {
        let sql = "UPDATE issues SET status = $2 WHERE id = $1 RETURNING id";
        self.number(sql, args![id, status]).await;
    }

    async fn issue(&self, id: i64) -> (String, i64) {
        let mut rows =
            self.read("SELECT status, spent_ms FROM issues WHERE id = $1", args![id]).await;
        (rows[0].text().unwrap(), rows[0].int().unwrap())
    }

    async fn comment_create(&self, issue_id: i64, author: &str, body: &str) {
        let user = "INSERT INTO users (email, name, created_at) VALUES ($1, $1, 0) \
                    ON CONFLICT (email) DO UPDATE SET name = excluded.name RETURNING id";
        let user = self.number(user, args![author]).await;
        let sql = "INSERT INTO comments (workspace_id, issue_id, author_type, author_id, body, created_at) \
                   SELECT workspace_id, id, 'user', $2, $3, $4 FROM issues WHERE id = $1 RETURNING id";
        self.number(sql, args![issue_id, user, body, self.now().as_micros()]).await;
    }

    async fn comments(&self, issue_id: i64) -> Vec<CommentRow> {
        let sql = "SELECT COALESCE(a.name, u.name), c.author_type, c.created_at, c.body FROM comments c \
                   LEFT JOIN agents a ON c.author_type = 'agent' AND a.id = c.author_id \
                   LEFT JOIN users u ON c.author_type = 'user' AND u.id = c.author_id \
                   WHERE c.issue_id = $1 ORDER BY c.id";
        let mut rows = self.read(sql, args![issue_id]).await;
        let comment = |row: &mut Row| CommentRow {
            issue_id,
            author: row.text().unwrap(),
            is_agent: row.text().unwrap() == "agent",
            posted_at: ostler_core::clock::Timestamp::from_micros(row.int().unwrap()),
            body: row.text().unwrap(),
        };
        rows.iter_mut().map(comment).collect()
    }

    async fn task(&self, id: &str) -> TaskRecord {
        let mut rows = self.read("SELECT workspace_id FROM tasks WHERE id = $1", args![id]).await;
        self.task(rows[0].int().unwrap(), id).await.unwrap()
    }

    async fn lines(&self, task_id: &str) -> Vec<Line> {
        let sql = "SELECT seq, type, content, tool, payload FROM messages WHERE task_id = $1 ORDER BY seq";
        let mut rows = self.read(sql, args![task_id]).await;
        let line = |row: &mut Row| Line {
            seq: row.int().unwrap().try_into().unwrap(),
            kind: row.text().unwrap(),
            content: row.opt_text().unwrap(),
            tool: row.opt_text().unwrap(),
            payload: row.opt_text().unwrap(),
        };
        rows.iter_mut().map(line).collect()
    }

    async fn deliveries(&self, issue_id: i64) -> Vec<Delivery> {
        let sql = "SELECT type, identity, url, reference, title, state FROM deliveries \
                   WHERE issue_id = $1 ORDER BY identity";
        let mut rows = self.read(sql, args![issue_id]).await;
        let delivery = |row: &mut Row| {
            let (kind, key) = (row.text().unwrap(), row.text().unwrap());
            super::world::delivery(
                &kind,
                &key,
                row.opt_text().unwrap().as_deref(),
                row.opt_text().unwrap().as_deref(),
                row.opt_text().unwrap().as_deref(),
                row.opt_text().unwrap().as_deref(),
            )
        };
        rows.iter_mut().map(delivery).collect()
    }

    async fn session(&self, agent_id: i64, issue_id: i64) -> Option<SessionReport> {
        let sql = "SELECT session_id, work_dir FROM sessions WHERE agent_id = $1 AND issue_id = $2";
        let row = self.read(sql, args![agent_id, issue_id]).await.into_iter().next();
        row.map(|mut row| SessionReport {
            session_id: row.opt_text().unwrap(),
            work_dir: row.opt_text().unwrap(),
        })
    }

    async fn results(&self, task_id: &str) -> Vec<(String, Usage)> {
        let sql = "SELECT result, input_tokens, output_tokens, cached_tokens, cache_write_tokens, \
                   cost_micros FROM results WHERE task_id = $1 ORDER BY id";
        let mut rows = self.read(sql, args![task_id]).await;
        let result = |row: &mut Row| {
            let result = row.text().unwrap();
            let usage = Usage {
                input_tokens: row.opt_int().unwrap(),
                output_tokens: row.opt_int().unwrap(),
                cached_tokens: row.opt_int().unwrap(),
                cache_write_tokens: row.opt_int().unwrap(),
                cost_micros: row.opt_int().unwrap(),
            };
            (result, usage)
        };
        rows.iter_mut().map(result).collect()
    }

    async fn events(&self, workspace_id: i64) -> Vec<(String, String)> {
        let sql = "SELECT type, data FROM events WHERE workspace_id = $1 ORDER BY tx, id";
        let mut rows = self.read(sql, args![workspace_id]).await;
        rows.iter_mut().map(|row| (row.text().unwrap(), row.text().unwrap())).collect()
    }
}
