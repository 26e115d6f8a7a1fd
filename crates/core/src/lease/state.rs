//! What the machine remembers of a task.

use std::time::Duration;

use crate::clock::Timestamp;

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Nobody has it; it can be claimed once `not_before` has passed.
    Queued,
    /// Claimed, under a lease; the process does not run yet.
    Dispatched,
    /// The process runs, under a lease.
    Running,
    /// The run waits for a person; no lease.
    Waiting,
    /// Ended well.
    Completed,
    /// Ended badly, or its attempts are used up.
    Failed,
    /// A person cancelled it.
    Canceled,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Dispatched,
        Self::Running,
        Self::Waiting,
        Self::Completed,
        Self::Failed,
        Self::Canceled,
    ];

    /// The word of the lease wire, and of the database.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Dispatched => "dispatched",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }

    /// The state with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }

    /// A machine holds it, under a lease; it takes one of its agent's places.
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Dispatched | Self::Running)
    }

    /// Nothing more becomes of it unless a person retries it.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Canceled)
    }
}

/// The hash of a lease token. The token itself goes to its holder and is kept nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseHash(pub [u8; 32]);

/// What a holder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Of the token that each call must show.
    pub hash: LeaseHash,
    /// From here on the sweeper may take the task.
    pub expires_at: Timestamp,
    /// The holder promised to start until then, or lose it without an attempt.
    pub start_by: Option<Timestamp>,
}

/// How a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// `complete`.
    Complete,
    /// `fail`.
    Fail,
    /// `cancel-ack`.
    CancelAck,
    /// The sweeper took it.
    Expired,
}

impl End {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Complete, Self::Fail, Self::CancelAck, Self::Expired];

    /// The word in the database.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Fail => "fail",
            Self::CancelAck => "cancel_ack",
            Self::Expired => "expired",
        }
    }

    /// The end with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.word() == word)
    }
}

/// The last lease that ended, so that its end can be told again when the answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Of that lease's token.
    pub hash: LeaseHash,
    /// What ended it.
    pub end: End,
    /// What the task became; the answer.
    pub became: State,
}

/// What a waiting run needs of a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitingFor {
    /// To allow something the agent wants to do.
    Approval,
    /// An answer.
    Input,
}

impl WaitingFor {
    /// The word of the lease wire.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Input => "input",
        }
    }

    /// The need with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Approval, Self::Input].into_iter().find(|need| need.word() == word)
    }
}

/// What a person decided about a waiting run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decided {
    /// Go on.
    Approved,
    /// Do not.
    Denied,
}

impl Decided {
    /// The word of both wires.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Denied => "denied",
        }
    }

    /// The decision with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Approved, Self::Denied].into_iter().find(|decided| decided.word() == word)
    }
}

/// A decision with its note; it waits for the machine to resume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What.
    pub decided: Decided,
    /// What the person wrote with it.
    pub note: String,
}

/// What a waiting run waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// What it needs.
    pub what: WaitingFor,
    /// In the agent's words.
    pub summary: String,
    /// Since when.
    pub since: Timestamp,
    /// The answer, until the machine has resumed.
    pub decision: Option<Decision>,
}

/// A fleet task, as far as the machine cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Where it is.
    pub state: State,
    /// Claims that counted.
    pub attempts: u32,
    /// Claims that were given back and did not count.
    pub hand_backs: u32,
    /// Claims that ended in a usage limit and did not count.
    pub parks: u32,
    /// Not to be claimed before; `Queued` only.
    pub not_before: Option<Timestamp>,
    /// A person wants it to end; the holder learns it from its next answer.
    pub cancel_requested: bool,
    /// `Dispatched` and `Running` only, and always then.
    pub lease: Option<Lease>,
    /// The lease before.
    pub ended: Option<Ended>,
    /// The work of this attempt before the last pause.
    pub worked: Duration,
    /// Since when it works now; with a lease only.
    pub working_since: Option<Timestamp>,
    /// `Waiting` only, and always then.
    pub waits: Option<Waits>,
    /// The highest line that is stored, counted through all attempts.
    pub lines: u64,
    /// `lines` when this attempt began: its first line is number `lines_before + 1`.
    pub lines_before: u64,
}

impl Task {
    /// A task that was just queued.
    pub const fn new() -> Self {
        Self {
            state: State::Queued,
            attempts: 0,
            hand_backs: 0,
            parks: 0,
            not_before: None,
            cancel_requested: false,
            lease: None,
            ended: None,
            worked: Duration::ZERO,
            working_since: None,
            waits: None,
            lines: 0,
            lines_before: 0,
        }
    }

    /// May be claimed at `now`.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.state == State::Queued && self.not_before.is_none_or(|at| at <= now)
    }
}

impl Default for Task {
    fn default() -> Self {
        Self::new()
    }
}

/// The numbers of the rules. A server sets them once; tests shorten them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long a lease lasts from each renewal.
    pub lease: Duration,
    /// How long a holder that promised to start quickly may take.
    pub start_within: Duration,
    /// Attempts until a task has failed.
    pub attempts_max: u32,
    /// Hand-backs that do not count as attempts; those beyond do.
    pub hand_backs_max: u32,
    /// Usage limits that do not count as attempts; those beyond do.
    pub parks_max: u32,
}

/// How much longer than one that begins now a lease may last: clocks of servers differ a little. What lasts longer
/// was given by a clock that has been set back since, as was a sign of life that lies further ahead.
pub const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(5);

impl Policy {
    /// The last moment at which a lease ends that was given or renewed until now.
    pub fn lease_end_max(&self, now: Timestamp) -> Timestamp {
        now.after(self.lease).after(CLOCKS_DIFFER_MAX)
    }

    /// The protocol's numbers.
    pub const DEFAULT: Self = Self {
        lease: Duration::from_secs(300),
        start_within: Duration::from_secs(60),
        attempts_max: 3,
        hand_backs_max: 10,
        parks_max: 100,
    };
}

impl Default for Policy {
    fn default() -> Self {
        Self::DEFAULT
    }
}
