//! Random command sequences against the task machine and a deliberately simple model.
//!
//! `model` says the same rules again with one list and scans; `watch` knows no rules but what must be
//! true of any sequence of effects. Both judge every step. A restart hands the journaled tasks to a
//! new machine, as the daemon does. `PROPTEST_CASES` sets how many sequences there are (256).

#![cfg(test)]

mod model;
mod ops;
mod watch;

use std::time::Duration;

use ostler_core::clock::{BootTime, Now, Timestamp};
use ostler_core::id::RunId;
use ostler_core::task::{Input, RequestId, Task, TaskBounds, TaskState, TaskStatus, step};
use proptest::prelude::*;

use model::Model;
use ops::{Op, task_id};
use watch::Watch;

/// Steps of one sequence.
const OPS_MAX: usize = 80;

struct World {
    bounds: TaskBounds,
    state: TaskState,
    model: Model,
    watch: Watch,
    now: Now,
    requests: u64,
}

impl World {
    fn new(bounds: TaskBounds) -> Self {
        let now = Now {
            wall: Timestamp::from_micros(1_000_000_000),
            boot: BootTime::from_duration(Duration::from_secs(50)),
        };
        Self {
            bounds,
            state: TaskState::new(bounds),
            model: Model::new(bounds),
            watch: Watch::default(),
            now,
            requests: 0,
        }
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    fn apply(&mut self, op: Op) {
        let input = match op {
            Op::Submit { spec, forgotten } => {
                let known_elsewhere = !forgotten && self.watch.archived.contains(&spec.id);
                Input::Submit { request: self.request(), spec, known_elsewhere }
            }
            Op::Cancel(task) => Input::Cancel { request: self.request(), task },
            Op::Retry(task) => Input::Retry { request: self.request(), task },
            Op::SetLimit(limit) => Input::SetLimit { request: self.request(), limit },
            Op::Output { pick, lines } => {
                let Some(run) = self.pick_run(pick) else {
                    return;
                };
                Input::Output { run, log_lines: lines }
            }
            Op::End { pick, end } => {
                let Some(run) = self.pick_run(pick) else {
                    return;
                };
                Input::Ended { run, end }
            }
            Op::Stale { task, attempt, end } => {
                let run = RunId { task, attempt };
                // By chance it may be the current one; both must then take it as such.
                Input::Ended { run, end }
            }
            Op::Tick => Input::Tick,
            Op::Pass { boot, wall_micros } => {
                self.now.boot = self.now.boot.after(boot);
                let wall = self.now.wall.as_micros() + wall_micros;
                self.now.wall = Timestamp::from_micros(wall);
                return;
            }
            Op::WaitForDeadline => {
                let Some(due) = self.state.next_deadline() else {
                    return;
                };
                self.now.boot = self.now.boot.max(due);
                Input::Tick
            }
            Op::Recover => Input::Recover,
            Op::Shutdown => Input::Shutdown,
            Op::Restart { then } => {
                self.restart();
                if !then {
                    return;
                }
                Input::Recover
            }
        };
        self.step(input);
    }

    /// A current run, if there is one.
    fn pick_run(&self, pick: usize) -> Option<RunId> {
        let running: Vec<&Task> =
            self.state.iter().filter(|task| task.status == TaskStatus::Running).collect();
        let task = running.get(pick % running.len().max(1))?;
        Some(RunId { task: task.spec.id.clone(), attempt: task.attempt })
    }

    fn restart(&mut self) {
        let tasks: Vec<Task> = self.watch.journal.values().cloned().collect();
        let limit = self.watch.limit.unwrap_or(self.bounds.limit_default);
        self.state = TaskState::restore(self.bounds, limit, tasks.clone());
        self.model = Model::restore(self.bounds, limit, tasks);
        self.watch.restart();
    }

    fn step(&mut self, input: Input) {
        let before = self.state.clone();
        let mut again = before.clone();
        let effects = step(&mut self.state, input.clone(), self.now);
        // Pure: the same state, input and time give the same again.
        assert_eq!(step(&mut again, input.clone(), self.now), effects);
        assert_eq!(again, self.state);

        let expected = self.model.step(input.clone(), self.now);
        assert_eq!(effects, expected, "effects of {input:?}");
        self.compare_state();
        self.watch.step(&input, &effects, &before, &self.state);
    }

    fn compare_state(&self) {
        let tasks: Vec<&Task> = self.state.iter().collect();
        let model: Vec<&Task> = self.model.entries.iter().map(|entry| &entry.task).collect();
        assert_eq!(tasks, model);
        let count = |status| model.iter().filter(|task| task.status == status).count();
        assert_eq!(self.state.len(), model.len());
        assert_eq!(self.state.is_empty(), model.is_empty());
        assert_eq!(self.state.running(), count(TaskStatus::Running));
        assert_eq!(self.state.queued(), count(TaskStatus::Queued));
        assert_eq!(self.state.unfinished(), self.state.running() + self.state.queued());
        assert_eq!(self.state.limit(), self.model.limit);
        assert_eq!(self.state.next_deadline(), self.model.next_deadline());
        for number in 0..ops::TASKS {
            let id = task_id(number);
            assert_eq!(self.state.get(&id), self.model.get(&id));
            assert_eq!(self.state.waits_for(&id), self.model.waits_for(&id));
        }
    }

    /// Lets all runs end and shows that nobody is left without an answer.
    fn finish(&mut self) {
        // A restored machine that has not had its first input yet.
        self.step(Input::Recover);
        while let Some(run) = self.pick_run(0) {
            self.step(Input::Ended { run, end: ops::completed() });
        }
        self.watch.finish();
        assert_eq!(self.state.unfinished(), 0);
    }
}

proptest! {
    #[test]
    fn r_51_to_r_67_r_73_r_80_the_machine_does_what_the_simple_model_does(
        live_tasks_max in 2usize..8,
        limit_default in 1u8..5,
        ops in prop::collection::vec(ops::any_op(), 1..OPS_MAX),
    ) {
        let timeout_default = Duration::from_secs(40);
        let mut world = World::new(TaskBounds { live_tasks_max, limit_default, timeout_default });
        for op in ops {
            world.apply(op);
        }
        world.finish();
    }
}

/// The random sequences are worth something only if they reach the interesting places.
#[test]
fn the_random_sequences_reach_every_effect_status_and_refusal() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..150 {
        let strategy = prop::collection::vec(ops::any_op(), 1..OPS_MAX);
        let ops = strategy.new_tree(&mut runner).unwrap().current();
        let bounds = TaskBounds {
            live_tasks_max: 4,
            limit_default: 2,
            timeout_default: Duration::from_secs(40),
        };
        let mut world = World::new(bounds);
        for op in ops {
            world.apply(op);
        }
        world.finish();
        seen.extend(world.watch.seen);
    }
    for place in watch::PLACES {
        assert!(seen.contains(place), "never reached: {place}");
    }
}
