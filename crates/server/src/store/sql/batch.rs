//! Many machines' calls in one transaction, with few statements: load and lock the tasks, ask the machine
//! in the order of arrival, save what became of them; then the claims.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ostler_core::lease::Input;

use super::ahead::Candidates;
use super::db::{DbError, Kind, Value, Writes, args};
use super::delivered::{self, Delivered};
use super::lane::{Hot, Tx};
use super::{claim, facts, rows};
use crate::board::Hints;
use crate::store::plan::{self, Change, NewLease};
use crate::store::{
    Claim, Claimed, Line, SessionReport, Stepped, StoreError, TaskCall, TaskRecord, What, hex,
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
    let (calls, claims) = by_kind(jobs);
    let calls: Vec<_> = calls.into_iter().map(|(_, call)| call).collect();
    let mut called = calls_run(tx, &calls).await?.into_iter();
    let claims: Vec<_> = claims.into_iter().map(|(_, claim)| claim).collect();
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

/// Jobs of one kind, each with its place.
type Places<'j, T> = Vec<(usize, &'j T)>;

fn by_kind(jobs: &[Hot]) -> (Places<'_, TaskCall>, Places<'_, Claim>) {
    let (mut calls, mut claims) = (Vec::new(), Vec::new());
    for (at, job) in jobs.iter().enumerate() {
        match job {
            Hot::Call(call, _) => calls.push((at, call)),
            Hot::Claim(claim, _) => claims.push((at, claim)),
        }
    }
    (calls, claims)
}

/// Does calls on tasks, few statements for all; one outcome each, in their order.
pub(crate) async fn calls_run(
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
    let touched: Vec<_> = touched.into_values().collect();
    for (at, accepted) in saves.save(tx, &touched).await? {
        if let Some(Ok(stepped)) = outcomes.get_mut(at) {
            stepped.accepted += accepted;
        }
    }
    hint_decided(tx, calls, &outcomes, &records).await?;
    Ok(outcomes)
}

/// What can be done with one statement, without reading and locking the tasks first.
pub(crate) struct Guess {
    /// By job; those that have none are not part of it.
    pub(super) outcomes: Vec<Option<Outcome>>,
    pub(crate) writes: Writes<'static>,
    /// The tasks as they will be when it is written.
    pub(super) tasks: Vec<TaskRecord>,
    /// What is left for the next claims then.
    pub(super) left: Option<Candidates>,
}

/// What becomes of jobs if nobody else changes the same tasks and agents meanwhile.
///
/// Only what is written is believed: whatever is refused, or needs more than one statement, is left for [`run`],
/// together with everything else that is said about the same task.
pub(crate) async fn guess(tx: &mut Tx, jobs: &[Hot]) -> Result<Option<Guess>, StoreError> {
    let mut outcomes: Vec<Option<Outcome>> = jobs.iter().map(|_| None).collect();
    let (calls, claims) = by_kind(jobs);
    let (mut tasks, mut saves) = guess_calls(tx, &calls, &mut outcomes);
    let mut left = None;
    if !claims.is_empty() {
        let guessed = claim::guess(tx, &claims, &mut saves).await?;
        left = guessed.left;
        tasks.extend(guessed.tasks);
        for (place, claimed) in guessed.claimed {
            if let Some(outcome) = outcomes.get_mut(place) {
                *outcome = Some(Outcome::Claim(claimed.map(Box::new)));
            }
        }
    }
    if outcomes.iter().all(Option::is_none) {
        return Ok(None);
    }
    // In the order in which they are locked everywhere.
    tasks.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    let writes = saves.writes(tx, &tasks.iter().collect::<Vec<_>>(), Vec::new());
    Ok(Some(Guess { outcomes, writes, tasks: saved(tasks), left }))
}

/// The tasks that calls change, and what else they save.
fn guess_calls(
    tx: &mut Tx,
    calls: &[(usize, &TaskCall)],
    outcomes: &mut [Option<Outcome>],
) -> (Vec<TaskRecord>, Saves) {
    let shared = Arc::clone(&tx.shared);
    let mut known = shared.known.find(calls.iter().map(|(_, call)| call.task_id.as_str()));
    loop {
        tx.hints = Hints::default();
        let mut records = known.clone();
        match guess_known(tx, calls, &mut records) {
            Ok((stepped, saves)) => {
                for (at, stepped) in stepped {
                    if let Some(outcome) = outcomes.get_mut(at) {
                        *outcome = Some(Outcome::Call(Ok(stepped)));
                    }
                }
                let tasks = records.into_values().filter(|task| saves.touched(&task.id));
                return (tasks.collect(), saves);
            }
            Err(task_id) => known.remove(&task_id),
        };
    }
}

/// Does all calls on these tasks, or tells the task that must be read first.
fn guess_known(
    tx: &mut Tx,
    calls: &[(usize, &TaskCall)],
    records: &mut HashMap<String, TaskRecord>,
) -> Result<(Vec<(usize, Stepped)>, Saves), String> {
    let mut saves = Saves::default();
    let mut all = Vec::with_capacity(calls.len());
    for (at, call) in calls {
        let Some(record) = records.get_mut(&call.task_id) else { continue };
        let is_plain = record.workspace_id == call.workspace_id
            && matches!(call.what, What::Input(Input::Held { .. }));
        let stepped = is_plain.then(|| one(tx, record, call, *at, &mut saves)).and_then(Result::ok);
        let stepped = stepped.filter(|_| saves.is_plain());
        all.push((*at, stepped.ok_or_else(|| record.id.clone())?));
    }
    Ok((all, saves))
}

/// The tasks as they are stored after they were saved.
pub(super) fn saved(tasks: impl IntoIterator<Item = TaskRecord>) -> Vec<TaskRecord> {
    let next = |task: TaskRecord| TaskRecord { version: task.version + 1, ..task };
    tasks.into_iter().map(next).collect()
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
    let before = record.clone();
    let planned = plan::call(record, call.clone(), lease.as_ref(), tx.now, &policy)
        .map_err(StoreError::Refused)?;
    saves.take(tx, &before, record, at, planned.changes);
    Ok(planned.stepped)
}

/// A lease nobody had before.
pub(super) fn new_lease(tx: &Tx, task_id: &str, attempt: u32) -> Result<NewLease, StoreError> {
    let nonce = crate::secrets::nonce().map_err(|_| StoreError::Busy)?;
    let token = tx.shared.keyring.lease_token(task_id, attempt, &nonce);
    let hash = ostler_core::lease::LeaseHash(crate::secrets::hash_token(&token));
    Ok(NewLease { hash, nonce: hex(&nonce), token })
}

/// Lines of a call that could have been there.
struct OldLines {
    /// The place of the call.
    call: usize,
    task_id: String,
    lines: Vec<Line>,
    /// What those that follow the workspace are told; nothing when later ones came with them.
    tells: Option<(i64, serde_json::Value)>,
}

/// Saves those that were not there; how many.
async fn save_old(tx: &mut Tx, old: OldLines) -> Result<u64, DbError> {
    let at = tx.now.as_micros();
    let sizes: HashMap<_, _> = old.lines.iter().map(|line| (line.seq, line.bytes())).collect();
    let rows = old.lines.into_iter().map(|line| line_row(old.task_id.clone(), line, at)).collect();
    let tail = "ON CONFLICT (task_id, seq) DO NOTHING RETURNING seq";
    let stored = tx.conn.insert_many("messages", &LINE_COLUMNS, rows, tail).await?;
    let (mut count, mut bytes) = (0, 0);
    for mut row in stored {
        let seq = u64::try_from(row.int()?).unwrap_or(0);
        (count, bytes) = (count + 1, bytes + sizes.get(&seq).copied().unwrap_or(0));
    }
    let saved = tx.saved.iter_mut().rev().find(|task| task.id == old.task_id);
    let (1.., Some(task)) = (count, saved) else { return Ok(count) };
    plan::stored(task, bytes);
    let sql = "UPDATE tasks SET line_bytes = line_bytes + $2, pruned = 0 WHERE id = $1";
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    tx.conn.execute(sql, args![&old.task_id, bytes]).await?;
    if let Some((workspace_id, output)) = old.tells {
        tx.event(workspace_id, plan::OUTPUT, &output).await?;
    }
    Ok(count)
}

/// What a batch saves beside the tasks, by table.
#[derive(Default)]
pub(super) struct Saves {
    touched: Vec<String>,
    /// What changed of the tasks.
    groups: rows::Groups,
    lines: Vec<(String, Line)>,
    old_lines: Vec<OldLines>,
    sessions: BTreeMap<(i64, i64), SessionReport>,
    delivered: Vec<Delivered>,
    events: Vec<(i64, String, String)>,
    /// Agents whose tasks are given away: how often that was done before, and their limit.
    claimed: BTreeMap<i64, (i64, i64)>,
}

impl Saves {
    fn touched(&self, id: &str) -> bool {
        self.touched.iter().any(|touched| touched == id)
    }

    /// What became of a task, by the call at this place.
    pub(super) fn take(
        &mut self,
        tx: &mut Tx,
        before: &TaskRecord,
        record: &TaskRecord,
        at: usize,
        changes: Vec<Change>,
    ) {
        self.touched.push(record.id.clone());
        self.groups = self.groups.and(rows::Groups::between(before, record));
        let has_new = changes.iter().any(|it| matches!(it, Change::NewLines(_)));
        for change in changes {
            match change {
                Change::NewLines(lines) => {
                    self.lines.extend(lines.into_iter().map(|line| (record.id.clone(), line)));
                }
                Change::OldLines(lines) => {
                    let tells = (!has_new).then(|| (record.workspace_id, plan::output(record)));
                    let task_id = record.id.clone();
                    self.old_lines.push(OldLines { call: at, task_id, lines, tells });
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

    /// One of the agent's places is filled, if these are still its claims and its limit.
    pub(super) fn claimed(&mut self, agent_id: i64, claims: i64, concurrency: i64) {
        self.claimed.insert(agent_id, (claims, concurrency));
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
    pub(super) async fn save(
        mut self,
        tx: &mut Tx,
        tasks: &[&TaskRecord],
    ) -> Result<Vec<(usize, u64)>, DbError> {
        delivered::sort(&mut self.delivered);
        let deliveries = delivered::save_all_deliveries(tx, &self.delivered).await?;
        let old_lines = std::mem::take(&mut self.old_lines);
        let writes = self.writes(tx, tasks, deliveries);
        tx.conn.write(writes).await?;
        tx.saved.extend(saved(tasks.iter().map(|task| (*task).clone())));
        let mut accepted = Vec::new();
        // Rare: what was sent before, or a gap that is filled. One call after the other, to count each.
        for old in old_lines {
            accepted.push((old.call, save_old(tx, old).await?));
        }
        Ok(accepted)
    }

    /// One statement can write all of it.
    fn is_plain(&self) -> bool {
        let delivers = |it: &Delivered| !it.completion.deliveries.is_empty();
        self.old_lines.is_empty() && !self.delivered.iter().any(delivers)
    }

    /// What one statement writes, with these tasks.
    fn writes(
        mut self,
        tx: &mut Tx,
        tasks: &[&TaskRecord],
        deliveries: Vec<delivered::Event>,
    ) -> Writes<'static> {
        delivered::sort(&mut self.delivered);
        let mut writes = Writes::default();
        rows::save(&mut writes, tasks, self.groups);
        let at = tx.now.as_micros();
        let new = self.lines.into_iter().map(|(task_id, line)| line_row(task_id, line, at));
        writes.insert("messages", &LINE_COLUMNS, new.collect(), "");
        save_sessions(&mut writes, self.sessions);
        if !self.claimed.is_empty() {
            // F-032: a claim waits for no other.
            writes.wait_for_nobody();
        }
        save_claimed(&mut writes, self.claimed);
        let mut events = self.events;
        events.extend(delivered::save(&mut writes, &self.delivered, at));
        events.extend(deliveries);
        tx.write_events(&mut writes, events);
        writes
    }
}

fn save_sessions(writes: &mut Writes<'_>, sessions: BTreeMap<(i64, i64), SessionReport>) {
    let columns = [
        ("agent_id", Kind::Int),
        ("issue_id", Kind::Int),
        ("session_id", Kind::Text),
        ("work_dir", Kind::Text),
    ];
    let rows = sessions
        .into_iter()
        .map(|((agent, issue), it)| args![agent, issue, it.session_id, it.work_dir])
        .collect();
    let tail = "ON CONFLICT (agent_id, issue_id) DO UPDATE SET \
                session_id = COALESCE(excluded.session_id, sessions.session_id), \
                work_dir = COALESCE(excluded.work_dir, sessions.work_dir)";
    writes.insert("sessions", &columns, rows, tail);
}

/// Counts claims of agents that are still as they were when their room was counted.
fn save_claimed(writes: &mut Writes<'_>, claimed: BTreeMap<i64, (i64, i64)>) {
    let columns = [("id", Kind::Int), ("claims", Kind::Int), ("concurrency", Kind::Int)];
    let rows = claimed.into_iter().map(|(id, (claims, limit))| args![id, claims, limit]).collect();
    let condition = "agents.claims = v.column2 AND agents.concurrency = v.column3 \
                     AND agents.paused = 0 AND agents.archived_at IS NULL";
    let sets = "claims = agents.claims + 1";
    writes.update_guarded("agents", &columns, sets.to_owned(), condition.to_owned(), rows);
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
