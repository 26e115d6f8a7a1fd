//! Many machines' calls in one transaction, with few statements: load and lock the tasks, ask the machine
//! in the order of arrival, save what became of them; then the claims.

use std::collections::{BTreeMap, HashMap};

use serde_json::json;

use super::db::{DbError, Kind, args};
use super::lane::{Hot, Tx};
use super::{claim, facts, rows};
use crate::store::plan::{self, Change, NewLease};
use crate::store::{
    Claimed, Completion, Line, SessionReport, Stepped, StoreError, TaskCall, TaskRecord, What, hex,
};

/// What a request is told when the batch is durable.
pub(crate) enum Outcome {
    Call(Result<Stepped, StoreError>),
    Claim(Option<Box<Claimed>>),
}

impl Outcome {
    /// Tells the requester.
    pub(super) fn tell(self, job: Hot) {
        // A requester that went away does not read the answer.
        match (self, job) {
            (Self::Call(outcome), Hot::Call(_, answer)) => drop(answer.send(outcome)),
            (Self::Claim(claimed), Hot::Claim(_, answer)) => {
                drop(answer.send(Ok(claimed.map(|claimed| *claimed))));
            }
            (Self::Call(_), Hot::Claim(_, answer)) => drop(answer.send(Err(StoreError::Busy))),
            (Self::Claim(_), Hot::Call(_, answer)) => drop(answer.send(Err(StoreError::Busy))),
        }
    }
}

/// Does all of `jobs`; one outcome each, in their order.
pub(super) async fn run(tx: &mut Tx, jobs: &[Hot]) -> Result<Vec<Outcome>, StoreError> {
    let calls: Vec<_> = jobs
        .iter()
        .filter_map(|job| match job {
            Hot::Call(call, _) => Some(call),
            Hot::Claim(..) => None,
        })
        .collect();
    let mut called = calls_run(tx, &calls).await?.into_iter();
    let claims: Vec<_> = jobs
        .iter()
        .filter_map(|job| match job {
            Hot::Claim(claim, _) => Some(claim),
            Hot::Call(..) => None,
        })
        .collect();
    let mut claimed = if claims.is_empty() {
        Vec::new()
    } else {
        let given = claim::run(tx, &claims).await?;
        facts::of(tx, given).await?
    }
    .into_iter();
    let outcomes = jobs.iter().map(|job| match job {
        Hot::Call(..) => Outcome::Call(called.next().unwrap_or(Err(StoreError::Busy))),
        Hot::Claim(..) => Outcome::Claim(claimed.next().flatten().map(Box::new)),
    });
    Ok(outcomes.collect())
}

/// Does calls on tasks, few statements for all; one outcome each, in their order.
pub(super) async fn calls_run(
    tx: &mut Tx,
    calls: &[&TaskCall],
) -> Result<Vec<Result<Stepped, StoreError>>, StoreError> {
    if calls.is_empty() {
        return Ok(Vec::new());
    }
    let mut ids: Vec<_> = calls.iter().map(|call| call.task_id.clone()).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut records: HashMap<String, TaskRecord> = rows::lock(&mut tx.conn, ids)
        .await?
        .into_iter()
        .map(|record| (record.id.clone(), record))
        .collect();
    let mut saves = Saves::default();
    let mut outcomes = Vec::with_capacity(calls.len());
    for (at, call) in calls.iter().enumerate() {
        let record =
            records.get_mut(&call.task_id).filter(|it| it.workspace_id == call.workspace_id);
        outcomes.push(match record {
            None => Err(StoreError::NotFound),
            Some(record) => one(tx, record, call, at, &mut saves),
        });
    }
    let touched: BTreeMap<_, _> = records.iter().filter(|(id, _)| saves.touched(id)).collect();
    rows::save(&mut tx.conn, touched.into_values()).await?;
    for (at, accepted) in saves.save(tx).await? {
        if let Some(Ok(stepped)) = outcomes.get_mut(at) {
            stepped.accepted += accepted;
        }
    }
    Ok(outcomes)
}

/// One call on one task, which `records` holds; `at` is its place in the batch.
fn one(
    tx: &mut Tx,
    record: &mut TaskRecord,
    call: &TaskCall,
    at: usize,
    saves: &mut Saves,
) -> Result<Stepped, StoreError> {
    let lease = match &call.what {
        What::Resume { runtimes, request } => {
            if let Some(stepped) = resumed_before(tx, record, runtimes, request.as_deref()) {
                return Ok(stepped);
            }
            Some(new_lease(tx, &record.id, record.machine.attempts)?)
        }
        What::Input(_) => None,
    };
    let policy = tx.shared.policy;
    let planned = plan::call(record, call.clone(), lease.as_ref(), tx.now, &policy)
        .map_err(StoreError::Refused)?;
    saves.take(tx, record, at, planned.changes);
    Ok(planned.stepped)
}

/// The same resume once more, whose answer was lost: the same lease.
fn resumed_before(
    tx: &Tx,
    record: &TaskRecord,
    runtimes: &[String],
    request: Option<&str>,
) -> Option<Stepped> {
    request?;
    let lease = record.machine.lease?;
    let same = record.lease_request.as_deref() == request
        && record.runtime_id.as_ref().is_some_and(|ran_on| runtimes.contains(ran_on));
    let token = lease_token(tx, record).filter(|_| same)?;
    Some(Stepped {
        answer: ostler_core::lease::Answer {
            status: record.machine.state,
            expires_at: Some(lease.expires_at),
            cancel_requested: record.machine.cancel_requested,
            repeated: true,
        },
        accepted: 0,
        next_seq: 0,
        waiting_since: None,
        lease_token: Some(token),
    })
}

/// A lease nobody had before.
pub(super) fn new_lease(tx: &Tx, task_id: &str, attempt: u32) -> Result<NewLease, StoreError> {
    let nonce = crate::secrets::nonce().map_err(|_| StoreError::Busy)?;
    let token = tx.shared.keyring.lease_token(task_id, attempt, &nonce);
    let hash = ostler_core::lease::LeaseHash(crate::secrets::hash_token(&token));
    Ok(NewLease { hash, nonce: hex(&nonce), token })
}

/// The token of the lease a task has, made again.
pub(super) fn lease_token(tx: &Tx, record: &TaskRecord) -> Option<String> {
    let nonce = record.lease_nonce.as_deref()?;
    let lease = record.machine.lease?;
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(nonce.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    // The attempt that a resume's lease was made in is the task's as well.
    let token = tx.shared.keyring.lease_token(&record.id, record.machine.attempts, &bytes);
    (crate::secrets::hash_token(&token) == lease.hash.0).then_some(token)
}

/// What a batch saves beside the tasks, by table.
#[derive(Default)]
pub(super) struct Saves {
    touched: Vec<String>,
    lines: Vec<(String, Line)>,
    /// With the place of the call.
    old_lines: Vec<(usize, String, Vec<Line>)>,
    sessions: BTreeMap<(i64, i64), SessionReport>,
    delivered: Vec<Delivered>,
    events: Vec<(i64, String, String)>,
}

struct Delivered {
    workspace_id: i64,
    issue_id: i64,
    issue_number: i64,
    agent_id: i64,
    task_id: String,
    worked_ms: i64,
    completion: Completion,
}

impl Saves {
    fn touched(&self, id: &str) -> bool {
        self.touched.iter().any(|touched| touched == id)
    }

    pub(super) fn take(
        &mut self,
        tx: &mut Tx,
        record: &TaskRecord,
        at: usize,
        changes: Vec<Change>,
    ) {
        self.touched.push(record.id.clone());
        for change in changes {
            match change {
                Change::NewLines(lines) => {
                    self.lines.extend(lines.into_iter().map(|line| (record.id.clone(), line)));
                }
                Change::OldLines(lines) => {
                    self.old_lines.push((at, record.id.clone(), lines));
                }
                Change::Session(report) => self.session(record, report),
                Change::Delivered { completion, worked_ms } => self.delivered.push(Delivered {
                    workspace_id: record.workspace_id,
                    issue_id: record.issue_id,
                    issue_number: record.issue_number,
                    agent_id: record.agent_id,
                    task_id: record.id.clone(),
                    worked_ms,
                    completion: *completion,
                }),
                Change::Event { kind, data } => {
                    self.events.push((record.workspace_id, kind.to_owned(), data));
                }
                Change::Queued => tx.hints.queued(record.workspace_id, record.agent_id),
                Change::Freed => tx.hints.freed(record.workspace_id, record.agent_id),
            }
        }
    }

    /// What a report leaves out stays as it was.
    fn session(&mut self, record: &TaskRecord, report: SessionReport) {
        if report == SessionReport::default() {
            return;
        }
        let kept = self.sessions.entry((record.agent_id, record.issue_id)).or_default();
        kept.session_id = report.session_id.or(kept.session_id.take());
        kept.work_dir = report.work_dir.or(kept.work_dir.take());
    }

    /// Saves all of it; the lines that were new among those which could have been there, by call.
    pub(super) async fn save(mut self, tx: &mut Tx) -> Result<Vec<(usize, u64)>, DbError> {
        let accepted = self.save_lines(tx).await?;
        self.save_sessions(tx).await?;
        for delivered in std::mem::take(&mut self.delivered) {
            self.save_delivered(tx, delivered).await?;
        }
        if !self.events.is_empty() {
            tx.events(std::mem::take(&mut self.events)).await?;
        }
        Ok(accepted)
    }

    async fn save_lines(&mut self, tx: &mut Tx) -> Result<Vec<(usize, u64)>, DbError> {
        let columns = [
            ("task_id", Kind::Text),
            ("seq", Kind::Int),
            ("type", Kind::Text),
            ("content", Kind::Text),
            ("tool", Kind::Text),
            ("payload", Kind::Text),
            ("at", Kind::Int),
        ];
        let at = tx.now.as_micros();
        let row = |task_id: String, line: Line| {
            let seq = i64::try_from(line.seq).unwrap_or(i64::MAX);
            args![task_id, seq, line.kind, line.content, line.tool, line.payload, at]
        };
        let new = std::mem::take(&mut self.lines);
        let new = new.into_iter().map(|(task_id, line)| row(task_id, line)).collect();
        tx.conn.insert_many("messages", &columns, new, "").await?;
        let mut accepted = Vec::new();
        // Rare: what was sent before, or a gap that is filled. One call after the other, to count each.
        for (at, task_id, lines) in std::mem::take(&mut self.old_lines) {
            let rows = lines.into_iter().map(|line| row(task_id.clone(), line)).collect();
            let tail = "ON CONFLICT (task_id, seq) DO NOTHING RETURNING seq";
            let stored = tx.conn.insert_many("messages", &columns, rows, tail).await?;
            accepted.push((at, stored.len() as u64));
        }
        Ok(accepted)
    }

    async fn save_sessions(&mut self, tx: &mut Tx) -> Result<(), DbError> {
        let columns = [
            ("agent_id", Kind::Int),
            ("issue_id", Kind::Int),
            ("session_id", Kind::Text),
            ("work_dir", Kind::Text),
        ];
        let rows = std::mem::take(&mut self.sessions)
            .into_iter()
            .map(|((agent, issue), it)| args![agent, issue, it.session_id, it.work_dir])
            .collect();
        let tail = "ON CONFLICT (agent_id, issue_id) DO UPDATE SET \
                    session_id = COALESCE(excluded.session_id, sessions.session_id), \
                    work_dir = COALESCE(excluded.work_dir, sessions.work_dir)";
        tx.conn.insert_many("sessions", &columns, rows, tail).await.map(drop)
    }

    async fn save_delivered(&mut self, tx: &mut Tx, it: Delivered) -> Result<(), DbError> {
        let now = tx.now.as_micros();
        let usage = it.completion.usage.unwrap_or_default();
        let sql = "INSERT INTO results (task_id, workspace_id, issue_id, agent_id, result, input_tokens, \
                   output_tokens, cached_tokens, cache_write_tokens, cost_micros, ended_at) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let args = args![
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
        ];
        tx.conn.execute(sql, args).await?;
        let sql = "INSERT INTO time_entries (workspace_id, issue_id, author_type, author_id, task_id, spent_ms, \
                   note, created_at) VALUES ($1, $2, 'agent', $3, $4, $5, '', $6)";
        let args = args![it.workspace_id, it.issue_id, it.agent_id, &it.task_id, it.worked_ms, now];
        tx.conn.execute(sql, args).await?;
        if let Some(body) = &it.completion.comment {
            let sql = "INSERT INTO comments (workspace_id, issue_id, author_type, author_id, task_id, body, \
                       created_at) VALUES ($1, $2, 'agent', $3, $4, $5, $6) RETURNING id";
            let args = args![it.workspace_id, it.issue_id, it.agent_id, &it.task_id, body, now];
            let id = tx.conn.number(sql, args).await?;
            self.event(&it, "comment.created", &json!({ "comment_id": id }));
        }
        self.save_deliveries(tx, &it).await?;
        let spent = "UPDATE issues SET spent_ms = spent_ms + $2, updated_at = $3 WHERE id = $1";
        tx.conn.execute(spent, args![it.issue_id, it.worked_ms, now]).await?;
        Ok(())
    }

    async fn save_deliveries(&mut self, tx: &mut Tx, it: &Delivered) -> Result<(), DbError> {
        let now = tx.now.as_micros();
        for delivery in &it.completion.deliveries {
            let sql = "INSERT INTO deliveries (workspace_id, issue_id, task_id, type, identity, url, reference, \
                       title, state, created_at, updated_at) \
                       VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10) \
                       ON CONFLICT (issue_id, identity) DO UPDATE SET task_id = excluded.task_id, \
                       type = excluded.type, url = excluded.url, \
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
                now
            ];
            tx.conn.execute(sql, args).await?;
            self.event(it, "delivery.recorded", &json!({ "type": delivery.kind.word() }));
        }
        if it.completion.deliveries.iter().any(|it| it.kind == crate::delivery::Kind::PullRequest) {
            let sql = "UPDATE issues SET status = 'in_review', updated_at = $2 \
                       WHERE id = $1 AND status IN ('backlog', 'todo', 'in_progress')";
            if tx.conn.execute(sql, args![it.issue_id, now]).await? > 0 {
                self.event(it, "issue.changed", &json!({ "status": "in_review" }));
            }
        }
        Ok(())
    }

    fn event(&mut self, it: &Delivered, kind: &str, more: &serde_json::Value) {
        let mut data = json!({ "issue_number": it.issue_number, "task_id": it.task_id });
        if let (Some(data), Some(more)) = (data.as_object_mut(), more.as_object()) {
            data.extend(more.clone());
        }
        self.events.push((it.workspace_id, kind.to_owned(), data.to_string()));
    }
}
