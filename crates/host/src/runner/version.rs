//! What version of an agent ran: asked once a file, remembered by inode and modification time.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ostler_agents::Agent;
use ostler_core::outcome::Exit;
use ostler_supervise::ProbeOutput;

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
        // A program that could not be started may say it the next time; one that was too slow is not waited for
        // at the end of every run.
        let version = answer.ok().as_ref().and_then(version_in)?;
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

/// What a program says of its version, which may be nothing; `None` when it did not come to an answer.
fn version_in(answer: &ProbeOutput) -> Option<Option<String>> {
    match answer.exit {
        _ if answer.timed_out => return Some(None),
        Some(Exit::Code(0)) => {}
        Some(Exit::Code(_)) => return Some(None),
        _ => return None,
    }
    let text = String::from_utf8_lossy(&answer.stdout);
    let line = text.lines().next().map(|line| line.trim().to_owned());
    Some(line.filter(|line| !line.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_what_a_program_said_itself_is_an_answer() {
        let answer = |exit, timed_out| {
            let stdout = b" 1.2.3 \nmore\n".to_vec();
            version_in(&ProbeOutput { exit, stdout, timed_out, ..ProbeOutput::default() })
        };
        assert_eq!(answer(Some(Exit::Code(0)), false), Some(Some("1.2.3".to_owned())));
        assert_eq!(answer(Some(Exit::Code(2)), false), Some(None), "it has none to give");
        assert_eq!(answer(Some(Exit::Signal(9)), true), Some(None), "it is too slow");
        assert_eq!(answer(Some(Exit::Signal(9)), false), None, "somebody killed it");
        assert_eq!(answer(None, true), Some(None));
    }

    #[tokio::test]
    async fn a_program_that_could_not_be_started_once_is_asked_again() {
        let scratch = tempfile::tempdir().unwrap();
        let program = scratch.path().join("claude");
        std::fs::write(&program, "#!/bin/sh\necho asked >> \"$0.asked\"\necho 1.2.3\n").unwrap();
        let may = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&program, mode).unwrap();
        };
        let agent = ostler_agents::find("claude").unwrap();
        let versions = Versions::default();
        may(0o600);
        assert_eq!(versions.of(agent, &program, &[]).await, None);
        may(0o700);
        // A program that was just written may be busy in somebody's fork: asked until it answers.
        let answers = async { while versions.of(agent, &program, &[]).await.is_none() {} };
        tokio::time::timeout(VERSION_DEADLINE * 4, answers).await.expect("an answer");
        for _ in 0..3 {
            assert_eq!(versions.of(agent, &program, &[]).await.as_deref(), Some("1.2.3"));
        }
        let asked = std::fs::read_to_string(scratch.path().join("claude.asked")).unwrap();
        assert_eq!(asked, "asked\n", "once it has said it, it is not asked again");
    }
}
