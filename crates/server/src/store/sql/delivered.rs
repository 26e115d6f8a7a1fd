//! What completed runs bring: results, time, the agents' words, deliveries. Few statements for a whole batch.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::db::{DbError, Kind, Writes, args};
use super::lane::Tx;
use crate::delivery;
use crate::store::Completion;

/// A run that ended well.
pub(super) struct Delivered {
    pub(super) workspace_id: i64,
    pub(super) issue_id: i64,
    pub(super) issue_number: i64,
    pub(super) agent_id: i64,
    pub(super) task_id: String,
    pub(super) worked_ms: i64,
    pub(super) completion: Completion,
}

/// An event to be recorded: workspace, type, data.
pub(super) type Event = (i64, String, String);

fn event(it: &Delivered, kind: &str, more: &Json) -> Event {
    let mut data = json!({ "issue_number": it.issue_number, "task_id": it.task_id });
    if let (Some(data), Some(more)) = (data.as_object_mut(), more.as_object()) {
        data.extend(more.clone());
    }
    (it.workspace_id, kind.to_owned(), data.to_string())
}

/// Puts them in the order in which issues are locked, so that two servers do not wait for each other.
pub(super) fn sort(all: &mut [Delivered]) {
    all.sort_by(|a, b| (a.issue_id, &a.task_id).cmp(&(b.issue_id, &b.task_id)));
}

/// Saves results, time and words with `writes`; the events that tell of it.
pub(super) fn save(writes: &mut Writes<'_>, all: &[Delivered], now: i64) -> Vec<Event> {
    if all.is_empty() {
        return Vec::new();
    }
    save_results(writes, all, now);
    save_time(writes, all, now);
    save_comments(writes, all, now)
}

/// Saves what runs delivered, and moves their issues; the events that tell of it.
pub(super) async fn save_all_deliveries(
    tx: &mut Tx,
    all: &[Delivered],
) -> Result<Vec<Event>, DbError> {
    let mut events = Vec::new();
    for it in all {
        events.extend(save_deliveries(tx, it).await?);
    }
    events.extend(move_to_review(tx, all).await?);
    Ok(events)
}

fn save_results(writes: &mut Writes<'_>, all: &[Delivered], now: i64) {
    let columns = [
        ("task_id", Kind::Text),
        ("workspace_id", Kind::Int),
        ("issue_id", Kind::Int),
        ("agent_id", Kind::Int),
        ("result", Kind::Text),
        ("input_tokens", Kind::Int),
        ("output_tokens", Kind::Int),
        ("cached_tokens", Kind::Int),
        ("cache_write_tokens", Kind::Int),
        ("cost_micros", Kind::Int),
        ("ended_at", Kind::Int),
    ];
    let rows = all.iter().map(|it| {
        let usage = it.completion.usage.unwrap_or_default();
        args![
            &it.task_id,
            it.workspace_id,
            it.issue_id,
            it.agent_id,
            &it.completion.result,
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_tokens,
            usage.cache_write_tokens,
            usage.cost_micros,
            now
        ]
    });
    writes.insert("results", &columns, rows.collect(), "");
}

fn save_time(writes: &mut Writes<'_>, all: &[Delivered], now: i64) {
    let columns = [
        ("workspace_id", Kind::Int),
        ("issue_id", Kind::Int),
        ("author_type", Kind::Text),
        ("author_id", Kind::Int),
        ("task_id", Kind::Text),
        ("spent_ms", Kind::Int),
        ("note", Kind::Text),
        ("created_at", Kind::Int),
    ];
    let row = |it: &Delivered| {
        args![
            it.workspace_id,
            it.issue_id,
            "agent",
            it.agent_id,
            &it.task_id,
            it.worked_ms,
            "",
            now
        ]
    };
    writes.insert("time_entries", &columns, all.iter().map(row).collect(), "");
    let mut spent: BTreeMap<i64, i64> = BTreeMap::new();
    for it in all {
        *spent.entry(it.issue_id).or_default() += it.worked_ms;
    }
    let columns = [("id", Kind::Int), ("spent_ms", Kind::Int), ("updated_at", Kind::Int)];
    let sets = "spent_ms = issues.spent_ms + v.column2, updated_at = v.column3";
    let rows = spent.into_iter().map(|(id, worked_ms)| args![id, worked_ms, now]).collect();
    writes.update_with("issues", &columns, sets, rows);
}

fn save_comments(writes: &mut Writes<'_>, all: &[Delivered], now: i64) -> Vec<Event> {
    let columns = [
        ("workspace_id", Kind::Int),
        ("issue_id", Kind::Int),
        ("author_type", Kind::Text),
        ("author_id", Kind::Int),
        ("task_id", Kind::Text),
        ("body", Kind::Text),
        ("created_at", Kind::Int),
    ];
    let rows = all.iter().filter_map(|it| {
        let body = it.completion.comment.as_ref()?;
        Some(args![it.workspace_id, it.issue_id, "agent", it.agent_id, &it.task_id, body, now])
    });
    writes.insert("comments", &columns, rows.collect(), "");
    let told = all.iter().filter(|it| it.completion.comment.is_some());
    told.map(|it| event(it, "comment.created", &json!({}))).collect()
}

/// One by one: they are few, and two of one batch may be the same.
async fn save_deliveries(tx: &mut Tx, it: &Delivered) -> Result<Vec<Event>, DbError> {
    let mut events = Vec::new();
    for delivery in &it.completion.deliveries {
        let sql = "INSERT INTO deliveries (workspace_id, issue_id, task_id, type, identity, url, reference, \
                   title, state, created_at, updated_at) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10) \
                   ON CONFLICT (issue_id, identity) DO UPDATE SET task_id = excluded.task_id, \
                   type = CASE WHEN deliveries.type = 'pull_request' THEN deliveries.type ELSE excluded.type END, \
                   url = excluded.url, \
                   reference = COALESCE(excluded.reference, deliveries.reference), \
                   title = COALESCE(excluded.title, deliveries.title), \
                   state = COALESCE(excluded.state, deliveries.state), updated_at = excluded.updated_at";
        let args = args![
            it.workspace_id,
            it.issue_id,
            &it.task_id,
            delivery.kind.word(),
            &delivery.key,
            delivery.url.clone(),
            delivery.reference.clone(),
            delivery.title.clone(),
            delivery.state.map(|state| state.word()),
            tx.now.as_micros()
        ];
        tx.conn.execute(sql, args).await?;
        events.push(event(it, "delivery.recorded", &json!({ "type": delivery.kind.word() })));
    }
    Ok(events)
}

/// A pull request moves its issue to review, from a status before it.
async fn move_to_review(tx: &mut Tx, all: &[Delivered]) -> Result<Vec<Event>, DbError> {
    let delivers = |it: &&Delivered| delivery::has_pull_request(&it.completion.deliveries);
    let ids: Vec<i64> = all.iter().filter(delivers).map(|it| it.issue_id).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let (any, before) = (tx.conn.any("id", 1), tx.conn.any("status", 3));
    let sql = format!(
        "UPDATE issues SET status = 'in_review', updated_at = $2 WHERE {any} AND {before} RETURNING id"
    );
    let from = delivery::REVIEW_FROM.map(str::to_owned).to_vec();
    let mut events = Vec::new();
    for mut row in tx.conn.rows(&sql, args![ids, tx.now.as_micros(), from]).await? {
        let id = row.int()?;
        if let Some(it) = all.iter().find(|it| it.issue_id == id) {
            events.push(event(it, "issue.changed", &json!({ "status": "in_review" })));
        }
    }
    Ok(events)
}
