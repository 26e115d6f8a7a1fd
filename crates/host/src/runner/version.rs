//! What version of an agent ran: asked once a file, remembered by inode and modification time.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ostler_agents::Agent;

/// How long `--version` may take (field reports: one that never returned blocked a whole daemon).
const VERSION_DEADLINE: Duration = Duration::from_secs(5);

/// Bytes of its answer that are read.
const VERSION_BYTES_MAX: usize = 4_096;

/// Programs that are remembered.
const PROGRAMS_MAX: usize = 256;

/// Device, inode and modification time: another file, or the same after an update, is asked again.
type FileKey = (u64, u64, i64, i64);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Versions {
    known: Mutex<HashMap<FileKey, Option<String>>>,
}

impl Versions {
    /// The first line of the program's own answer; `None` when it has none to give.
    pub(super) async fn of(
        &self,
        agent: &dyn Agent,
        program: &Path,
        env: &[(OsString, OsString)],
    ) -> Option<String> {
        let args = agent.version_args()?;
        let file = program.to_owned();
        let meta = tokio::task::spawn_blocking(move || file.metadata()).await.ok()?.ok()?;
        let key = (meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec());
        if let Some(known) = self.known().get(&key) {
            return known.clone();
        }
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let answer = ostler_supervise::probe(
            program.as_os_str(),
            &args,
            Path::new("/"),
            env,
            VERSION_DEADLINE,
            VERSION_BYTES_MAX,
        )
        .await;
        let version = answer.ok().filter(|answer| answer.is_success()).and_then(|answer| {
            let text = String::from_utf8_lossy(&answer.stdout);
            text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
        });
        let mut known = self.known();
        if known.len() < PROGRAMS_MAX {
            known.insert(key, version.clone());
        }
        version
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<FileKey, Option<String>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
