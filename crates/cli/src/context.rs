//! What every command needs first: the environment and the places that follow from it.

use std::time::Duration;

use ostler_host::paths::{Environment, Paths};

use crate::error::{Code, Failure};

/// The surroundings of one command.
pub(crate) struct Context {
    pub(crate) env: Environment,
    pub(crate) paths: Paths,
}

impl Context {
    /// Reads the environment.
    pub(crate) fn of_process() -> Result<Self, Failure> {
        let env = Environment::of_process();
        let paths = Paths::from_env(&env).map_err(|error| {
            let hint = error.hint();
            Failure::new(Code::Usage, "the environment does not say where Ostler lives")
                .because(error)
                .hint(hint)
        })?;
        Ok(Self { env, paths })
    }

    /// The environment as text; what is no UTF-8 cannot travel in JSON and is left out.
    pub(crate) fn text_env(&self) -> impl Iterator<Item = (String, String)> {
        self.env
            .iter()
            .filter_map(|(key, value)| Some((key.to_str()?.to_owned(), value.to_str()?.to_owned())))
    }
}

/// How long a thread that asked the disk for something is kept for the next question; then an idle daemon has
/// none.
const THREADS_KEPT: Duration = Duration::from_secs(1);

/// Runs a future to its end on one thread; the daemon and its clients need no more.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    run(tokio::runtime::Builder::new_current_thread(), work)
}

/// The same on a thread for each core: a server has many clients.
pub(crate) fn block_on_cores<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(cores);
    run(builder, work)
}

fn run<T>(
    mut builder: tokio::runtime::Builder,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let runtime =
        builder.enable_all().thread_keep_alive(THREADS_KEPT).build().map_err(|error| {
            Failure::new(Code::Failed, "the runtime could not be started").because(error)
        })?;
    let result = runtime.block_on(work);
    // A thread that asks a dead mount never comes back; nobody waits for it.
    runtime.shutdown_background();
    result
}
