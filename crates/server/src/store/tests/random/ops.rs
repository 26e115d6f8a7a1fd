//! What may happen in a random sequence.

use proptest::prelude::*;

/// Operations of one sequence.
const OPS_MAX: usize = 70;
/// Calls that arrive together.
const TOGETHER_MAX: usize = 6;

/// Which token is shown.
#[derive(Debug, Clone)]
pub(super) enum Token {
    /// The newest that was given for the task.
    Newest,
    /// One of those before.
    Before(usize),
    /// The newest of any task.
    OfAny,
    /// None.
    Nothing,
}

/// What a machine says.
#[derive(Debug, Clone)]
pub(super) enum Say {
    Start,
    /// Numbers, and what is in them.
    Lines(Vec<(u64, u8)>),
    Session(Option<u8>, Option<u8>),
    Complete {
        comment: bool,
        session: Option<u8>,
        cost: Option<i64>,
        /// Kind, key, and whether the rest is told.
        deliveries: Vec<(bool, u8, bool)>,
    },
    Fail {
        retryable: bool,
        handed_back: bool,
        park: Option<i64>,
    },
    CancelAck,
    Await,
}

/// A call for a task.
#[derive(Debug, Clone)]
pub(super) struct Said {
    pub(super) task: usize,
    /// With the other workspace's token.
    pub(super) foreign: bool,
    pub(super) token: Token,
    pub(super) say: Say,
}

#[derive(Debug, Clone)]
pub(super) enum PersonSays {
    Cancel,
    Retry,
    Approve,
    Deny,
}

/// One step. Workspaces, machines, agents, issues and tasks are numbers, taken modulo what there is.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Register {
        workspace: usize,
        machine: usize,
        providers: Vec<&'static str>,
        actors: Option<Vec<(u8, u8)>>,
    },
    Seen {
        workspace: usize,
        machine: usize,
        ago: i64,
    },
    Queue {
        workspace: usize,
        issue: usize,
        agent: usize,
    },
    Claim {
        workspace: usize,
        machine: usize,
        word: Option<u8>,
        starts_soon: bool,
    },
    Say(Said),
    /// Calls for one task that share a commit.
    Together(Vec<Said>),
    Resume {
        task: usize,
        machine: usize,
        word: Option<u8>,
    },
    Person {
        task: usize,
        says: PersonSays,
    },
    Pause {
        workspace: usize,
        agent: usize,
        paused: bool,
    },
    Move {
        workspace: usize,
        issue: usize,
        status: &'static str,
    },
    Comment {
        workspace: usize,
        issue: usize,
    },
    Unpark,
    Sweep {
        take_leases: bool,
        bring_back: bool,
    },
    Pass(i64),
}

fn any_say() -> impl Strategy<Value = Say> {
    let lines = prop::collection::vec((1u64..9, 0u8..3), 1..6);
    let deliveries = prop::collection::vec((any::<bool>(), 0u8..3, any::<bool>()), 0..3);
    let half = || prop::option::of(0u8..3);
    prop_oneof![
        4 => Just(Say::Start),
        6 => lines.prop_map(Say::Lines),
        1 => (half(), half()).prop_map(|(id, dir)| Say::Session(id, dir)),
        3 => (any::<bool>(), half(), prop::option::of(-5i64..5), deliveries).prop_map(
            |(comment, session, cost, deliveries)| Say::Complete { comment, session, cost, deliveries }
        ),
        3 => (prop::bool::weighted(0.8), prop::bool::weighted(0.2), prop::option::weighted(0.3, -50i64..200))
            .prop_map(|(retryable, handed_back, park)| Say::Fail { retryable, handed_back, park }),
        1 => Just(Say::CancelAck),
        2 => Just(Say::Await),
    ]
}

fn any_token() -> impl Strategy<Value = Token> {
    prop_oneof![
        14 => Just(Token::Newest),
        2 => (1usize..3).prop_map(Token::Before),
        1 => Just(Token::OfAny),
        1 => Just(Token::Nothing),
    ]
}

/// Mostly one of the newest tasks.
fn any_task() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0usize..3, 1 => 0usize..12]
}

fn any_said() -> impl Strategy<Value = Said> {
    (any_task(), prop::bool::weighted(0.03), any_token(), any_say())
        .prop_map(|(task, foreign, token, say)| Said { task, foreign, token, say })
}

fn any_word() -> impl Strategy<Value = Option<u8>> {
    prop::option::weighted(0.4, 0u8..2)
}

fn any_op() -> impl Strategy<Value = Op> {
    // Mostly the first workspace and machine.
    let few = || prop_oneof![4 => Just(0usize), 1 => Just(1usize)];
    let providers = prop::sample::subsequence(vec!["claude_code", "codex", "huskarl"], 1..=3);
    let actors = prop::option::of(prop::collection::vec((0u8..3, 0u8..3), 0..3));
    let statuses = vec!["backlog", "todo", "in_progress", "in_review", "on_hold", "done"];
    let says = prop_oneof![
        3 => Just(PersonSays::Cancel),
        2 => Just(PersonSays::Retry),
        1 => Just(PersonSays::Approve),
        1 => Just(PersonSays::Deny),
    ];
    let together = (any_task(), prop::collection::vec(any_said(), 2..TOGETHER_MAX)).prop_map(
        |(task, calls)| Op::Together(calls.into_iter().map(|it| Said { task, ..it }).collect()),
    );
    prop_oneof![
        3 => (few(), few(), providers, actors).prop_map(|(workspace, machine, providers, actors)| {
            Op::Register { workspace, machine, providers, actors }
        }),
        1 => (few(), few(), -100i64..100)
            .prop_map(|(workspace, machine, ago)| Op::Seen { workspace, machine, ago }),
        6 => (few(), 0usize..4, 0usize..4)
            .prop_map(|(workspace, issue, agent)| Op::Queue { workspace, issue, agent }),
        10 => (few(), few(), any_word(), any::<bool>()).prop_map(
            |(workspace, machine, word, starts_soon)| Op::Claim { workspace, machine, word, starts_soon }
        ),
        18 => any_said().prop_map(Op::Say),
        4 => together,
        3 => (any_task(), few(), any_word())
            .prop_map(|(task, machine, word)| Op::Resume { task, machine, word }),
        3 => (any_task(), says).prop_map(|(task, says)| Op::Person { task, says }),
        1 => (few(), 0usize..3, prop::bool::weighted(0.3))
            .prop_map(|(workspace, agent, paused)| Op::Pause { workspace, agent, paused }),
        1 => (few(), 0usize..3, prop::sample::select(statuses))
            .prop_map(|(workspace, issue, status)| Op::Move { workspace, issue, status }),
        1 => (few(), 0usize..3).prop_map(|(workspace, issue)| Op::Comment { workspace, issue }),
        2 => Just(Op::Unpark),
        3 => (prop::bool::weighted(0.9), prop::bool::weighted(0.8)).prop_map(|(take_leases, bring_back)| {
            Op::Sweep { take_leases, bring_back }
        }),
        4 => prop_oneof![4 => 0i64..70, 2 => 100i64..400, 1 => -300i64..0].prop_map(Op::Pass),
    ]
}

pub(super) fn any_ops() -> impl Strategy<Value = Vec<Op>> {
    let first = Op::Register {
        workspace: 0,
        machine: 0,
        providers: vec!["claude_code", "codex", "huskarl"],
        actors: Some(vec![(0, 0)]),
    };
    let queue = Op::Queue { workspace: 0, issue: 0, agent: 0 };
    prop::collection::vec(any_op(), 1..OPS_MAX).prop_map(move |mut ops| {
        ops.splice(0..0, [first.clone(), queue.clone()]);
        ops
    })
}
