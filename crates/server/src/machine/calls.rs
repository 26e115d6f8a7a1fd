//! What the holder of a task says about it.

use axum::http::StatusCode;
use axum::response::Response;
use ostler_core::clock::Timestamp;
use ostler_core::lease::{self as machine, Failing, Input, LeaseHash, WaitingFor};
use ostler_proto::lease::{
    Appended, Await, Complete, Fail, LEASE_HEADER, Messages, Resume, Resumed, Session, Status,
    StreamStatus, Waiting,
};

use super::{Call, register};
use crate::http::{Fault, header_text, instant, json, parse_json};
use crate::secrets::hash_token;
use crate::store::{
    Completion, LeaseStore as _, Line, Payload, SessionReport, Stepped, TaskCall, Usage, What,
};
use crate::{delivery, text};

/// How far ahead a usage limit may park a task; what is later is taken for this.
const PARK_MAX: std::time::Duration = std::time::Duration::from_secs(31 * 24 * 3600);

impl Call {
    fn lease(&self) -> Option<LeaseHash> {
        header_text(&self.headers, LEASE_HEADER).map(|token| LeaseHash(hash_token(token)))
    }

    /// Reads the body with `parse` and does `call`. When the body is wrong, what would be refused of `like`, which
    /// is such a call, is refused first: nobody learns about bodies of tasks that are not theirs.
    async fn say<T>(
        mut self,
        like: machine::Call,
        parse: impl FnOnce(&[u8]) -> Result<T, Fault>,
        call: impl FnOnce(T) -> (machine::Call, Payload),
    ) -> Result<Stepped, Fault> {
        let body = std::mem::replace(&mut self.body, Ok(bytes::Bytes::new()));
        let lease = self.lease();
        match body.and_then(|body| parse(&body)) {
            Ok(parsed) => {
                let (call, with) = call(parsed);
                let what = What::Input(Input::Held { lease, call });
                self.step(what, with).await
            }
            Err(fault) => {
                let like = Input::Held { lease, call: like };
                self.app.store.task_check(self.identity.workspace_id, &self.task_id, like).await?;
                Err(fault)
            }
        }
    }

    async fn step(self, what: What, with: Payload) -> Result<Stepped, Fault> {
        let workspace_id = self.identity.workspace_id;
        let call = TaskCall { workspace_id, task_id: self.task_id, what, with };
        Ok(self.app.store.task_call(call).await?)
    }
}

fn stream_status(stepped: &Stepped) -> Response {
    let body = StreamStatus {
        status: stepped.answer.status.word().to_owned(),
        lease_expires_at: stepped.answer.expires_at.map(instant),
        cancel_requested: stepped.answer.cancel_requested,
    };
    json(StatusCode::OK, &body)
}

fn status(stepped: &Stepped) -> Response {
    let status = stepped.answer.status.word().to_owned();
    json(StatusCode::OK, &Status { status, decisions: Vec::new() })
}

/// The process runs.
pub(super) async fn start(call: Call) -> Result<Response, Fault> {
    let stepped = call
        .say(
            machine::Call::Start,
            |body| parse_json(body, None).map(drop),
            |()| (machine::Call::Start, Payload::None),
        )
        .await?;
    Ok(stream_status(&stepped))
}

/// Output.
pub(super) async fn messages(call: Call) -> Result<Response, Fault> {
    let opaque = call.opaque;
    let stepped = call.say(
        machine::Call::Messages { highest: 0 },
        |body| match Messages::read(body) {
            Some(sent) => Ok(sent),
            // Something is unusual: which field, if it is wrong?
            None => Ok(Messages::parse(&parse_json(body, opaque)?)?),
        },
        |sent| {
            let highest = sent.lines.iter().map(|line| line.seq).max().unwrap_or(0);
            let lines = sent.lines.into_iter().map(|line| Line {
                seq: line.seq,
                kind: line.kind,
                content: line.content,
                tool: line.tool,
                payload: line.payload,
            });
            (machine::Call::Messages { highest }, Payload::Lines(lines.collect()))
        },
    );
    let stepped = stepped.await?;
    let body = Appended {
        accepted: stepped.accepted,
        next_seq: stepped.next_seq,
        lease_expires_at: stepped.answer.expires_at.map(instant),
        cancel_requested: stepped.answer.cancel_requested,
    };
    Ok(json(StatusCode::ACCEPTED, &body))
}

fn report(session: Session) -> SessionReport {
    SessionReport { session_id: session.session_id, work_dir: session.work_dir }
}

/// The agent's session, as soon as it is known.
pub(super) async fn session(call: Call) -> Result<Response, Fault> {
    let stepped = call.say(
        machine::Call::Session,
        |body| Ok(Session::parse(&parse_json(body, None)?)?),
        |sent| (machine::Call::Session, Payload::Session(report(sent))),
    );
    Ok(stream_status(&stepped.await?))
}

/// The run ended well.
pub(super) async fn complete(call: Call) -> Result<Response, Fault> {
    let opaque = call.opaque;
    let task_id = call.task_id.clone();
    let (mut left_out, mut dropped) = (Vec::new(), Vec::new());
    let stepped = call.say(
        machine::Call::Complete,
        |body| {
            let text = std::str::from_utf8(body).unwrap_or_default();
            Ok(Complete::parse(&parse_json(body, opaque)?, text)?)
        },
        |sent| {
            let accepted = delivery::accept(&sent.artifacts);
            (left_out, dropped) = (sent.left_out, accepted.dropped);
            let completion = Completion {
                result: sent.result,
                comment: sent.summary.as_deref().map(text::markdown_to_html),
                session: report(sent.session),
                usage: sent.usage.map(|it| Usage {
                    input_tokens: it.input_tokens,
                    output_tokens: it.output_tokens,
                    cached_tokens: it.cached_tokens,
                    cache_write_tokens: it.cache_write_tokens,
                    cost_micros: it.cost_micros,
                }),
                deliveries: accepted.deliveries,
            };
            (machine::Call::Complete, Payload::Completion(Box::new(completion)))
        },
    );
    let stepped = stepped.await?;
    // Of a completion that was told before all of this was said before.
    if !stepped.answer.repeated {
        for what in left_out {
            tracing::warn!(task_id, what, "a part of a completion was left out");
        }
        for (at, reason) in dropped {
            tracing::warn!(task_id, at, %reason, "an artifact was left out");
        }
    }
    Ok(status(&stepped))
}

/// The run ended badly.
pub(super) async fn fail(call: Call) -> Result<Response, Fault> {
    let now = call.app.store.now();
    let task_id = call.task_id.clone();
    let mut is_unread = false;
    let like = Failing { retryable: false, handed_back: false, not_before: None };
    let stepped = call.say(
        machine::Call::Fail(like),
        |body| Ok(Fail::parse(&parse_json(body, None)?)?),
        |sent| {
            let text = sent.not_before.filter(|_| sent.retryable);
            let not_before = text.as_deref().and_then(|text| not_before(text, now));
            is_unread = text.is_some() && not_before.is_none();
            let (retryable, handed_back) = (sent.retryable, sent.handed_back);
            let failing = Failing { retryable, handed_back, not_before };
            (machine::Call::Fail(failing), Payload::Failure(sent.error))
        },
    );
    let stepped = stepped.await?;
    if is_unread && !stepped.answer.repeated {
        tracing::warn!(
            task_id,
            "not_before of a failure is no instant; the task waits for nothing"
        );
    }
    Ok(status(&stepped))
}

/// The instant that a failure names, no further ahead than a task may be parked.
fn not_before(text: &str, now: Timestamp) -> Option<Timestamp> {
    let at = text.parse::<jiff::Timestamp>().ok()?;
    Some(Timestamp::from_micros(at.as_microsecond()).min(now.after(PARK_MAX)))
}

/// The process was stopped.
pub(super) async fn cancel_ack(call: Call) -> Result<Response, Fault> {
    let stepped = call
        .say(
            machine::Call::CancelAck,
            |body| parse_json(body, None).map(drop),
            |()| (machine::Call::CancelAck, Payload::None),
        )
        .await?;
    Ok(status(&stepped))
}

/// The run waits for a person.
pub(super) async fn wait(call: Call) -> Result<Response, Fault> {
    let like = machine::Call::Await { what: WaitingFor::Input, summary: String::new() };
    let stepped = call.say(
        like,
        |body| {
            let sent = Await::parse(&parse_json(body, None)?)?;
            let what = WaitingFor::from_word(&sent.waiting_for);
            let what =
                what.ok_or_else(|| Fault::field("waiting_for", "must be approval or input"))?;
            Ok((what, sent.summary))
        },
        |(what, summary)| (machine::Call::Await { what, summary }, Payload::None),
    );
    let stepped = stepped.await?;
    let body = Waiting {
        status: stepped.answer.status.word().to_owned(),
        waiting_since: stepped.waiting_since.map(instant),
    };
    Ok(json(StatusCode::OK, &body))
}

/// The run goes on: the machine is the proof, not a lease.
pub(super) async fn resume(mut call: Call) -> Result<Response, Fault> {
    let body = std::mem::replace(&mut call.body, Ok(bytes::Bytes::new()));
    let sent = match body.and_then(|body| Ok(Resume::parse(&parse_json(&body, None)?)?)) {
        Ok(sent) => sent,
        Err(fault) => {
            let like = Input::Resume { same_machine: true, lease: LeaseHash(hash_token("")) };
            call.app.store.task_check(call.identity.workspace_id, &call.task_id, like).await?;
            return Err(fault);
        }
    };
    let workspace_id = call.identity.workspace_id;
    let known = match call.app.machine(workspace_id, &sent.daemon_id).await {
        Ok(known) => known.runtimes,
        // A machine nobody knows runs nothing: the task's own refusal says so.
        Err(crate::store::StoreError::NotFound) => Vec::new(),
        Err(error) => return Err(register::unregistered(error)),
    };
    let app = std::sync::Arc::clone(&call.app);
    let runtimes = known.into_iter().map(|(id, _)| id).collect();
    let what = What::Resume { runtimes, request: sent.request_id };
    let stepped = call.step(what, Payload::None).await?;
    app.machines.forget(workspace_id, &sent.daemon_id);
    let body = Resumed {
        status: stepped.answer.status.word().to_owned(),
        lease_token: stepped.lease_token.unwrap_or_default(),
        lease_expires_at: stepped.answer.expires_at.map(instant),
        cancel_requested: stepped.answer.cancel_requested,
    };
    Ok(json(StatusCode::OK, &body))
}
