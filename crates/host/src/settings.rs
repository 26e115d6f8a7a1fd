//! What a daemon is started with: the numbers of runtime.md, each with its default, and how the
//! configuration sets them.

use std::time::Duration;

use camino::Utf8PathBuf;
use ostler_core::task::TaskBounds;
use ostler_journal::{Options, SEGMENT_FILES_MAX};

use crate::config::Config;
use crate::engine::reserve::{COMMON_RESERVE_BYTES, RUNNING_END_RESERVE_BYTES};
use crate::paths::{Environment, Paths};
use crate::runner::RunnerSettings;
use crate::tail::TailBounds;

const MIB: u64 = 1024 * 1024;

/// The archive's files may grow to this, and to `SEGMENT_FILES_MAX` segments; near either the oldest tasks
/// are forgotten. Its own bounds (tasks, days) come first where tasks are small.
pub(crate) const ARCHIVE_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;

/// Segments that hold the events kept for clients, at most: segments are made larger for it. The rest of the
/// journal's files is for what no snapshot covers yet, and for smaller segments of an earlier configuration.
const EVENT_SEGMENTS_MAX: u64 = SEGMENT_FILES_MAX as u64 / 4;

/// What is kept of events for clients.
#[derive(Debug, Clone, Copy)]
pub struct FeedBounds {
    /// Events that a cursor may lie back.
    pub events_max: u64,
    /// Their bytes.
    pub events_bytes_max: usize,
    /// Bytes kept beyond that for clients that are connected and behind.
    pub backlog_bytes_max: usize,
}

/// What the archive keeps.
#[derive(Debug, Clone, Copy)]
pub struct ArchiveBounds {
    /// Tasks.
    pub tasks_max: u64,
    /// Days.
    pub days_max: u64,
}

/// Numbers of the wire (runtime.md, "Frames").
#[derive(Debug, Clone, Copy)]
pub struct WireSettings {
    /// The largest frame, both ways.
    pub frame_bytes_max: usize,
    /// How long one frame may take to be read or written.
    pub frame_deadline: Duration,
    /// How long a client may say nothing at all.
    pub silent_client: Duration,
    /// How often a client gets a heartbeat.
    pub heartbeat: Duration,
    /// Commands that wait; one more is refused at once.
    pub command_queue_max: usize,
}

/// What a daemon is started with. [`Settings::new`] has the documented defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where socket, lock, journal and archive are.
    pub runtime_dir: Utf8PathBuf,
    /// The owner's home directory, which may not be the runtime directory itself.
    pub home: Option<Utf8PathBuf>,
    /// Bounds of the task machine.
    pub tasks: TaskBounds,
    /// Files of the task journal.
    pub journal: Options,
    /// Files of the archive.
    pub archive_journal: Options,
    /// What the archive keeps.
    pub archive: ArchiveBounds,
    /// What is kept for clients.
    pub feed: FeedBounds,
    /// The wire.
    pub wire: WireSettings,
    /// The log tail of a task.
    pub tail: TailBounds,
}

impl Settings {
    /// The documented defaults, for a runtime directory.
    pub fn new(runtime_dir: Utf8PathBuf) -> Self {
        Self::with(&Config::default(), runtime_dir)
    }

    /// What the configuration says, at the places the environment names.
    pub fn from_config(config: &Config, paths: &Paths) -> Self {
        Self { home: paths.home.clone(), ..Self::with(config, paths.runtime_dir.clone()) }
    }

    fn with(config: &Config, runtime_dir: Utf8PathBuf) -> Self {
        let segment_bytes = config
            .journal
            .segment_bytes
            .max(reserve_bytes(config.tasks.live_max))
            .max(events_segment_bytes(config.journal.events_bytes_max));
        let journal = Options {
            segment_bytes,
            snapshot_bytes_max: config.journal.snapshot_bytes_max,
            events_keep: config.journal.events_max,
            events_bytes_keep: config.journal.events_bytes_max,
            // Room for what is kept, for what a snapshot has not covered yet, and to go on.
            total_bytes_max: (config.journal.events_bytes_max + 8 * segment_bytes)
                .max(Options::default().total_bytes_max),
            ..Options::default()
        };
        Self {
            runtime_dir,
            home: None,
            tasks: TaskBounds {
                live_tasks_max: to_usize(config.tasks.live_max),
                limit_default: u8::try_from(config.tasks.limit)
                    .unwrap_or(ostler_core::task::LIMIT_MAX),
                timeout_default: Duration::from_secs(config.tasks.timeout_seconds),
            },
            archive_journal: Options { total_bytes_max: ARCHIVE_BYTES_MAX, ..journal.clone() },
            journal,
            archive: ArchiveBounds {
                tasks_max: config.archive.tasks_max,
                days_max: config.archive.days_max,
            },
            feed: FeedBounds {
                events_max: config.journal.events_max,
                events_bytes_max: to_usize(config.journal.events_bytes_max),
                backlog_bytes_max: to_usize(config.wire.live_backlog_bytes_max),
            },
            wire: WireSettings {
                frame_bytes_max: to_usize(config.wire.frame_bytes_max),
                frame_deadline: Duration::from_secs(config.wire.frame_deadline_seconds),
                silent_client: Duration::from_secs(config.wire.silent_client_seconds),
                heartbeat: Duration::from_secs(config.wire.heartbeat_seconds),
                command_queue_max: to_usize(config.wire.command_queue_max),
            },
            tail: TailBounds {
                lines_max: to_usize(config.tasks.log_lines_max),
                chars_max: to_usize(config.tasks.log_chars_max),
            },
        }
    }
}

/// The shipped runner's half of the configuration. `shim_program` is this binary.
pub fn runner_settings(
    config: &Config,
    paths: &Paths,
    env: &Environment,
    shim_program: std::path::PathBuf,
) -> RunnerSettings {
    let text = |(key, value): (&std::ffi::OsStr, &std::ffi::OsStr)| {
        Some((key.to_str()?.to_owned(), value.to_str()?.to_owned()))
    };
    // Said in any case: an agent that calls `ostler` may have another HOME than this daemon.
    let places = [
        (crate::paths::RUNTIME_DIR_ENV.to_owned(), paths.runtime_dir.to_string()),
        (crate::paths::STATE_DIR_ENV.to_owned(), paths.state_dir.to_string()),
    ];
    let programs = config
        .agents
        .iter()
        .filter_map(|(id, agent)| Some((id.clone(), agent.program.clone()?.into_std_path_buf())));
    let silence = config
        .agents
        .iter()
        .filter_map(|(id, agent)| Some((id.clone(), Duration::from_secs(agent.silence_seconds?))));
    RunnerSettings {
        runs_dir: paths.runs_dir(),
        shim_program,
        agent_cli: env
            .get_os(crate::paths::AGENT_CLI_ENV)
            .filter(|value| !value.is_empty())
            .map(Into::into),
        default_agent: config.default_agent.clone(),
        programs: programs.collect(),
        env: env.iter().filter_map(text).chain(places).collect(),
        keep: config.keep.clone(),
        silence: silence.collect(),
        terminal_grace: Duration::from_secs(config.runs.statement_grace_seconds),
        kept: ostler_supervise::KeptBytes {
            head: config.runs.run_head_bytes_max,
            total: config.runs.run_bytes_max,
        },
        runs_bytes_max: config.runs.bytes_max,
        runs_days_max: config.runs.days_max,
    }
}

/// A segment that holds the ends of as many common tasks as may be unfinished, and some admissions: that is
/// the reserve of a full disk.
fn reserve_bytes(live_tasks_max: u64) -> u64 {
    let running = u64::from(ostler_core::task::LIMIT_MAX);
    let ends = live_tasks_max * COMMON_RESERVE_BYTES + running * RUNNING_END_RESERVE_BYTES;
    (ends + 2 * MIB).next_multiple_of(MIB)
}

/// A segment so large that few enough of them hold the events.
fn events_segment_bytes(events_bytes_max: u64) -> u64 {
    events_bytes_max.div_ceil(EVENT_SEGMENTS_MAX).next_multiple_of(MIB)
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_configuration_lets_the_journal_outgrow_its_number_of_files() {
        for events_bytes_max in [MIB, 16 * MIB, 1_000 * MIB, 4_096 * MIB] {
            for (segment_bytes, live_max) in [(8 * MIB, 1), (8 * MIB, 10_000), (64 * MIB, 1_000)] {
                let mut config = Config::default();
                config.journal.events_bytes_max = events_bytes_max;
                config.journal.segment_bytes = segment_bytes;
                config.tasks.live_max = live_max;
                let Settings { journal, .. } = Settings::with(&config, "/rt".into());
                let files = journal.total_bytes_max / journal.segment_bytes;
                assert!(files <= SEGMENT_FILES_MAX as u64 / 2, "{files}");
                assert!(journal.segment_bytes <= ostler_journal::SEGMENT_BYTES_MAX);
                assert!(journal.segment_bytes >= segment_bytes);
            }
        }
    }
}
