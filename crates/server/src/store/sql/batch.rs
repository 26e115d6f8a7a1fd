//! Many machines' calls in one transaction, with few statements: load and lock the tasks, ask the machine
//! in the order of arrival, save what became of them; then the claims.

use std::collections::{BTreeMap, HashMap};

use ostler_core::lease::Input;

use super::db::{DbError, Kind, Value, Writes, args};
use super::delivered::{self, Delivered};
use super::lane::{Hot, Tx};
use super::{claim, facts, rows};
use crate::store::plan::{self, Change, NewLease};
use crate::store::{
    Claimed, Line, SessionReport, Stepped, StoreError, TaskCall, TaskRecord, What, hex,
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
    for (at, accepted) in saves.save(tx, touched.into_values()).await? {
        if let Some(Ok(stepped)) = outcomes.get_mut(at) {
            stepped.accepted += accepted;
        }
    }
    hint_decided(tx, calls, &outcomes, &records).await?;
    Ok(outcomes)
}

/// Machines whose waiting runs a person decided about, or cancelled, learn it with their next answer.
async fn hint_decided(
    tx: &mut Tx,
    calls: &[&TaskCall],
    outcomes: &[Result<Stepped, StoreError>],
    records: &HashMap<String, TaskRecord>,
) -> Result<(), StoreError> {
    let decided =
        |call: &TaskCall| matches!(call.what, What::Input(Input::Decide(_) | Input::Cancel));
    let runtimes: Vec<String> = calls
        .iter()
        .zip(outcomes)
        .filter(|(call, outcome)| decided(call) && outcome.is_ok())
        .filter_map(|(call, _)| records.get(&call.task_id)?.runtime_id.clone())
        .collect();
    if runtimes.is_empty() {
        return Ok(());
    }
    let sql =
        format!("SELECT workspace_id, daemon_id FROM runtimes WHERE {}", tx.conn.any("id", 1));
    for mut row in tx.conn.rows(&sql, args![runtimes]).await? {
        let workspace_id = row.int()?;
        tx.hints.machine(workspace_id, &row.text()?);
    }
    Ok(())
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
            let request = request.as_deref();
            let before = plan::resumed_before(record, runtimes, request, &tx.shared.keyring);
            if let Some(stepped) = before {
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

/// A lease nobody had before.
pub(super) fn new_lease(tx: &Tx, task_id: &str, attempt: u32) -> Result<NewLease, StoreError> {
    let nonce = crate::secrets::nonce().map_err(|_| StoreError::Busy)?;
    let token = tx.shared.keyring.lease_token(task_id, attempt, &nonce);
    let hash = ostler_core::lease::LeaseHash(crate::secrets::hash_token(&token));
    Ok(NewLease { hash, nonce: hex(&nonce), token })
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

    /// Saves all of it and these tasks; the lines that were new among those which could have been there, by call.
    pub(super) async fn save<'a>(
        mut self,
        tx: &mut Tx,
        tasks: impl Iterator<Item = &'a TaskRecord>,
    ) -> Result<Vec<(usize, u64)>, DbError> {
        let mut writes = Writes::default();
        rows::save(&mut writes, tasks);
        let at = tx.now.as_micros();
        let new = std::mem::take(&mut self.lines);
        let new = new.into_iter().map(|(task_id, line)| line_row(task_id, line, at)).collect();
        writes.insert("messages", &LINE_COLUMNS, new, "");
        self.save_sessions(&mut writes);
        let delivered = std::mem::take(&mut self.delivered);
        self.events.extend(delivered::save(tx, &mut writes, delivered).await?);
        tx.write_events(&mut writes, std::mem::take(&mut self.events));
        tx.conn.write(writes).await?;
        let mut accepted = Vec::new();
        // Rare: what was sent before, or a gap that is filled. One call after the other, to count each.
        for (call, task_id, lines) in std::mem::take(&mut self.old_lines) {
            let rows = lines.into_iter().map(|line| line_row(task_id.clone(), line, at)).collect();
            let tail = "ON CONFLICT (task_id, seq) DO NOTHING RETURNING seq";
            let stored = tx.conn.insert_many("messages", &LINE_COLUMNS, rows, tail).await?;
            accepted.push((call, stored.len() as u64));
        }
        Ok(accepted)
    }

    fn save_sessions(&mut self, writes: &mut Writes) {
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
        writes.insert("sessions", &columns, rows, tail);
    }
}

const LINE_COLUMNS: [(&str, Kind); 7] = [
    ("task_id", Kind::Text),
    ("seq", Kind::Int),
    ("type", Kind::Text),
    ("content", Kind::Text),
    ("tool", Kind::Text),
    ("payload", Kind::Text),
    ("at", Kind::Int),
];

fn line_row(task_id: String, line: Line, at: i64) -> Vec<Value> {
    let seq = i64::try_from(line.seq).unwrap_or(i64::MAX);
    args![task_id, seq, line.kind, line.content, line.tool, line.payload, at]
}
