//! A daemon, as simple as one can be: it asks for work, says what its runs do, and says it again until
//! somebody answers. It knows only what it was told.

use std::collections::BTreeMap;

use ostler_core::lease::{Call, Failing, Refusal, WaitingFor};
use ostler_server::store::{Claim, Claimed, Completion, Line, Payload, Stepped};

use super::dice::Dice;

/// How long a daemon waits for an answer before it says the same again: micros.
const ANSWER_WAIT: i64 = 12_000_000;

/// What goes to the server.
#[derive(Clone)]
pub(crate) enum Request {
    Register,
    Claim(Claim),
    Call { task: String, token: String, call: Call, with: Payload },
    Resume { task: String, word: Option<String> },
}

/// What comes back.
#[derive(Clone)]
pub(crate) enum Answer {
    Registered(Vec<(String, String)>),
    Claimed(Option<Box<Claimed>>),
    Stepped(Result<Stepped, Refusal>),
}

/// How a run will end.
#[derive(Clone, Copy, PartialEq)]
enum Plan {
    Complete,
    Fail(Failing),
    /// It never says anything again.
    Vanish,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Starts,
    Works,
    Waits,
    Ends,
}

struct Run {
    task: String,
    token: String,
    stage: Stage,
    plan: Plan,
    /// Lines that are still to come.
    left: u64,
    /// It waits for a person when so many are left.
    waits_at: Option<u64>,
    made: u64,
    unanswered: Vec<Line>,
    cancelled: bool,
    resumes: u64,
}

struct Pending {
    /// Of which run; none for what the daemon itself asks.
    run: Option<u64>,
    request: Request,
    said_at: i64,
    /// It was said more than once.
    again: bool,
}

pub(crate) struct Daemon {
    pub(crate) name: String,
    pub(crate) awake: bool,
    /// Counts crashes: what was for another life is not heard.
    pub(crate) life: u64,
    /// Gives each claim a word of its own.
    words: bool,
    starts_soon: bool,
    slots: usize,
    runtimes: Vec<(String, String)>,
    numbers: u64,
    runs: BTreeMap<u64, Run>,
    /// By the number under which the answer is expected.
    pending: BTreeMap<u64, Pending>,
}

impl Daemon {
    pub(crate) fn new(name: String, dice: &mut Dice) -> Self {
        Self {
            name,
            awake: true,
            life: 0,
            words: dice.percent(60),
            starts_soon: dice.percent(30),
            slots: usize::try_from(dice.between(1, 3)).unwrap(),
            runtimes: Vec::new(),
            numbers: 0,
            runs: BTreeMap::new(),
            pending: BTreeMap::new(),
        }
    }

    /// Everything in its memory is gone.
    pub(crate) fn crash(&mut self) {
        self.life += 1;
        self.runtimes.clear();
        self.runs.clear();
        self.pending.clear();
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Does what is to be done now: what it says, each with the number under which the answer is expected. It
    /// says one thing at a time for each run, and for itself.
    pub(crate) fn tick(
        &mut self,
        workspace_id: i64,
        dice: &mut Dice,
        now: i64,
    ) -> Vec<(u64, Request)> {
        let mut out = Vec::new();
        for (number, pending) in &mut self.pending {
            if now - pending.said_at >= ANSWER_WAIT {
                (pending.said_at, pending.again) = (now, true);
                out.push((*number, pending.request.clone()));
            }
        }
        let idle = |daemon: &Self, run| daemon.pending.values().all(|pending| pending.run != run);
        if idle(self, None) {
            if self.runtimes.is_empty() {
                out.push(self.say(None, Request::Register, now));
                return out;
            }
            if self.runs.len() < self.slots {
                let word = format!("{}/{}/{}", self.name, self.life, self.numbers);
                let claim = Claim {
                    workspace_id,
                    runtimes: self.runtimes.clone(),
                    request: self.words.then_some(word),
                    repeats_only: false,
                    starts_soon: self.starts_soon,
                };
                out.push(self.say(None, Request::Claim(claim), now));
            }
        }
        let runs: Vec<u64> = self.runs.keys().copied().collect();
        for run in runs {
            if idle(self, Some(run))
                && let Some(request) = self.proceed(run, dice)
            {
                out.push(self.say(Some(run), request, now));
            }
        }
        out
    }

    fn say(&mut self, run: Option<u64>, request: Request, now: i64) -> (u64, Request) {
        let number = self.number();
        let pending = Pending { run, request: request.clone(), said_at: now, again: false };
        self.pending.insert(number, pending);
        (number, request)
    }

    /// What a run says next.
    fn proceed(&mut self, number: u64, dice: &mut Dice) -> Option<Request> {
        let name = format!("{}/{}/{number}", self.name, self.life);
        let words = self.words;
        let run = self.runs.get_mut(&number)?;
        let (call, with) = match run.stage {
            Stage::Starts => (Call::Start, Payload::None),
            Stage::Works if run.cancelled => {
                run.stage = Stage::Ends;
                (Call::CancelAck, Payload::None)
            }
            Stage::Works if run.waits_at == Some(run.left) && run.unanswered.is_empty() => {
                (Call::Await { what: WaitingFor::Input, summary: "?".to_owned() }, Payload::None)
            }
            Stage::Works if run.left > 0 || !run.unanswered.is_empty() => {
                for _ in 0..dice.between(1, 3).min(i64::try_from(run.left).unwrap()) {
                    if run.waits_at == Some(run.left) {
                        break;
                    }
                    run.left -= 1;
                    run.made += 1;
                    run.unanswered.push(Line {
                        seq: run.made,
                        kind: "assistant".to_owned(),
                        content: Some(format!("{name}:{}", run.made)),
                        tool: None,
                        payload: None,
                    });
                }
                let highest = run.made;
                (Call::Messages { highest }, Payload::Lines(run.unanswered.clone()))
            }
            Stage::Works => {
                run.stage = Stage::Ends;
                match run.plan {
                    Plan::Complete => {
                        let result = "{}".to_owned();
                        let it = Completion { result, ..Completion::default() };
                        (Call::Complete, Payload::Completion(Box::new(it)))
                    }
                    Plan::Fail(failing) => (Call::Fail(failing), Payload::Failure("no".to_owned())),
                    Plan::Vanish => {
                        self.runs.remove(&number);
                        return None;
                    }
                }
            }
            Stage::Waits if dice.percent(90) => return None,
            Stage::Waits => {
                run.resumes += 1;
                let word = words.then(|| format!("{name}/{}", run.resumes));
                return Some(Request::Resume { task: run.task.clone(), word });
            }
            Stage::Ends => return None,
        };
        Some(Request::Call { task: run.task.clone(), token: run.token.clone(), call, with })
    }

    /// Hears an answer to what it said under this number.
    pub(crate) fn hear(&mut self, number: u64, answer: Answer, dice: &mut Dice) {
        // An answer nobody waits for: it came twice.
        let Some(pending) = self.pending.remove(&number) else { return };
        let run = pending.run.unwrap_or(0);
        match (answer, &pending.request) {
            (Answer::Registered(runtimes), Request::Register) => self.runtimes = runtimes,
            (Answer::Claimed(Some(claimed)), Request::Claim(_)) => self.begin(*claimed, dice),
            (Answer::Claimed(None), Request::Claim(_)) => {}
            (Answer::Stepped(answer), Request::Call { call, .. }) => {
                self.told(run, call, pending.again, answer);
            }
            (Answer::Stepped(answer), Request::Resume { .. }) => self.resumed(run, answer),
            _ => panic!("an answer to something else"),
        }
    }

    fn begin(&mut self, claimed: Claimed, dice: &mut Dice) {
        let failing = Failing {
            retryable: dice.percent(70),
            handed_back: dice.percent(20),
            not_before: dice.percent(20).then(|| {
                let since = claimed.task.created_at.as_micros();
                let after = since + dice.between(0, 3_000) * 1_000_000;
                ostler_core::clock::Timestamp::from_micros(after)
            }),
        };
        let plan = match dice.between(0, 9) {
            0..=6 => Plan::Complete,
            7..=8 => Plan::Fail(failing),
            _ => Plan::Vanish,
        };
        let left = u64::try_from(dice.between(0, 20)).unwrap();
        let waits_at = dice.percent(15).then_some(left / 2);
        let number = self.number();
        let run = Run {
            task: claimed.task.id,
            token: claimed.lease_token,
            stage: Stage::Starts,
            plan,
            left,
            waits_at,
            made: 0,
            unanswered: Vec::new(),
            cancelled: false,
            resumes: 0,
        };
        self.runs.insert(number, run);
    }

    fn told(&mut self, number: u64, call: &Call, again: bool, answer: Result<Stepped, Refusal>) {
        let Some(run) = self.runs.get_mut(&number) else { return };
        match answer {
            Ok(stepped) => {
                run.cancelled |= stepped.answer.cancel_requested;
                match call {
                    Call::Start => run.stage = Stage::Works,
                    Call::Messages { .. } => run.unanswered.clear(),
                    Call::Await { .. } => (run.stage, run.waits_at) = (Stage::Waits, None),
                    _ => _ = self.runs.remove(&number),
                }
            }
            // Said twice: it waits already, and a waiting task has no lease.
            Err(Refusal::LeaseLost) if again && matches!(call, Call::Await { .. }) => {
                (run.stage, run.waits_at) = (Stage::Waits, None);
            }
            Err(_) => _ = self.runs.remove(&number),
        }
    }

    fn resumed(&mut self, number: u64, answer: Result<Stepped, Refusal>) {
        let Some(run) = self.runs.get_mut(&number) else { return };
        match answer {
            Ok(Stepped { lease_token: Some(token), answer, .. }) => {
                (run.token, run.stage) = (token, Stage::Works);
                run.cancelled |= answer.cancel_requested;
            }
            _ => _ = self.runs.remove(&number),
        }
    }
}
