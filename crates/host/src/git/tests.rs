//! Tests with real repositories.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

struct Scratch {
    root: tempfile::TempDir,
}

impl Scratch {
    /// A repository with one commit of `file` ("one\ntwo\n").
    fn new() -> Self {
        let scratch = Self::unborn();
        scratch.write("file", "one\ntwo\n");
        scratch.commit();
        scratch
    }

    fn unborn() -> Self {
        let scratch = Self { root: tempfile::tempdir().unwrap() };
        scratch.git(&["init", "-q", "-b", "main"]);
        scratch
    }

    fn path(&self) -> &Utf8Path {
        Utf8Path::from_path(self.root.path()).unwrap()
    }

    fn env(&self) -> Vec<(OsString, OsString)> {
        let path = std::env::var_os("PATH").unwrap();
        vec![("PATH".into(), path), ("HOME".into(), self.root.path().into())]
    }

    fn git_in(&self, dir: &Utf8Path, args: &[&str]) -> String {
        let output = std::process::Command::new("git")
            .args(["-c", "user.name=u", "-c", "user.email=u@example.org"])
            .args(args)
            .current_dir(dir)
            .env_clear()
            .envs(self.env())
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn git(&self, args: &[&str]) -> String {
        self.git_in(self.path(), args)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    fn commit(&self) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", "c"]);
    }

    /// Reads the head as before a run, with everything written so far in the past.
    fn head(&self) -> Head {
        let written = clock_gettime(ClockId::Realtime);
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let head = head(self.path()).unwrap();
            if head.read_at > (written.tv_sec, written.tv_nsec) {
                return head;
            }
            assert!(Instant::now() < deadline, "the clock stands still");
            std::thread::yield_now();
        }
    }

    async fn since(&self, head: &Head) -> Change {
        change_since(head, &self.env()).await.unwrap()
    }
}

fn id(head: &Head) -> Option<String> {
    id_of(Some(head.commit.clone()))
}

#[test]
fn the_head_is_what_git_says_loose_packed_detached_and_from_below() {
    let scratch = Scratch::new();
    let commit = scratch.git(&["rev-parse", "HEAD"]);
    let same = |path: &Utf8Path| assert_eq!(id(&head(path).unwrap()).as_ref(), Some(&commit));
    same(scratch.path());
    fs::create_dir_all(scratch.path().join("a/b")).unwrap();
    same(&scratch.path().join("a/b"));
    scratch.git(&["pack-refs", "--all"]);
    assert!(!scratch.path().join(".git/refs/heads/main").exists());
    same(scratch.path());
    scratch.git(&["checkout", "-q", "--detach"]);
    same(scratch.path());
    scratch.git(&["checkout", "-q", "-b", "feature/x"]);
    scratch.git(&["tag", "feature/xy"]);
    scratch.git(&["pack-refs", "--all"]);
    same(scratch.path());
}

#[test]
fn a_worktree_has_a_head_of_its_own() {
    let scratch = Scratch::new();
    let main = scratch.git(&["rev-parse", "HEAD"]);
    let tree = scratch.path().join("tree");
    scratch.git(&["worktree", "add", "-q", "-b", "side", tree.as_str()]);
    scratch.git_in(&tree, &["commit", "-q", "--allow-empty", "-m", "c"]);
    let side = scratch.git_in(&tree, &["rev-parse", "HEAD"]);
    assert_ne!(main, side);
    assert_eq!(id(&head(&tree).unwrap()), Some(side.clone()));
    assert_eq!(id(&head(scratch.path()).unwrap()), Some(main));
    scratch.git(&["pack-refs", "--all"]);
    assert_eq!(id(&head(&tree).unwrap()), Some(side));
}

#[test]
fn what_is_no_readable_repository_has_no_head() {
    let empty = tempfile::tempdir().unwrap();
    let dir = Utf8Path::from_path(empty.path()).unwrap();
    let no_head = || assert!(head(dir).is_none());
    no_head();
    assert!(head(&dir.join("missing")).is_none());
    fs::create_dir(dir.join(".git")).unwrap();
    no_head();
    for hostile in ["ref: ../../etc/passwd", "ref: refs/../../x", "ref: HEAD", "garbage", ""] {
        fs::write(dir.join(".git/HEAD"), hostile).unwrap();
        no_head();
    }
    fs::write(dir.join(".git/HEAD"), "ref: refs/heads/a").unwrap();
    fs::create_dir_all(dir.join(".git/refs/heads")).unwrap();
    fs::write(dir.join(".git/refs/heads/a"), "ref: refs/heads/a").unwrap();
    no_head();
    fs::write(dir.join(".git/refs/heads/a"), "x".repeat(10_000)).unwrap();
    assert_eq!(id(&head(dir).unwrap()), None, "unreadable counts as absent");
    fs::remove_file(dir.join(".git/HEAD")).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let fifo = dir.join(".git/HEAD");
    rustix::fs::mknodat(rustix::fs::CWD, fifo.as_str(), rustix::fs::FileType::Fifo, mode, 0)
        .unwrap();
    no_head();
}

#[tokio::test]
async fn commits_edits_and_new_files_are_all_counted() {
    let scratch = Scratch::new();
    let before = scratch.head();
    scratch.write("committed", "a\nb\nc\n");
    scratch.commit();
    scratch.write("file", "one\n2\n");
    scratch.write("new\nname", "untracked\n");
    scratch.write("binary", "\0\u{1}\n");
    scratch.write(".gitignore", "ignored\n");
    scratch.write("ignored", "x\n");
    scratch.git(&["add", "binary"]);
    let change = scratch.since(&before).await;
    let git = change.git;
    assert_eq!((git.changed_files, git.insertions, git.deletions), (5, 4, 1));
    assert_eq!(git.head_before, id(&before));
    assert_eq!(git.head_after, Some(scratch.git(&["rev-parse", "HEAD"])));
    assert!(change.is_visible);
}

#[tokio::test]
async fn a_tree_that_was_dirty_before_is_no_effect() {
    let scratch = Scratch::new();
    scratch.write("gone", "x\n");
    scratch.commit();
    scratch.write("file", "dirty\n");
    scratch.write("untracked", "x\n");
    fs::remove_file(scratch.path().join("gone")).unwrap();
    let before = scratch.head();
    let change = scratch.since(&before).await;
    assert_eq!(change.git.changed_files, 3);
    assert!(!change.is_visible);

    // Its content alone, with its old time put back.
    let old = fs::metadata(scratch.path().join("file")).unwrap().modified().unwrap();
    scratch.write("file", "dirtier\n");
    fs::File::options()
        .write(true)
        .open(scratch.path().join("file"))
        .unwrap()
        .set_modified(old)
        .unwrap();
    assert!(scratch.since(&before).await.is_visible);
}

#[tokio::test]
async fn each_kind_of_effect_is_visible_and_none_is_not() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path().join("dir")).unwrap();
    scratch.write("dir/below", "x\n");
    scratch.commit();
    let commit = scratch.git(&["rev-parse", "HEAD"]);

    let before = scratch.head();
    assert!(!scratch.since(&before).await.is_visible);
    let git = scratch.since(&before).await.git;
    assert_eq!((git.changed_files, git.head_after), (0, Some(commit.clone())));

    fs::remove_dir_all(scratch.path().join("dir")).unwrap();
    assert!(scratch.since(&before).await.is_visible, "deleted");

    let before = scratch.head();
    assert!(!scratch.since(&before).await.is_visible, "deleted before");
    scratch.write("new", "x\n");
    assert!(scratch.since(&before).await.is_visible, "untracked");

    scratch.commit();
    let before = scratch.head();
    scratch.git(&["commit", "-q", "--allow-empty", "-m", "c"]);
    assert!(scratch.since(&before).await.is_visible, "head moved");

    let before = scratch.head();
    scratch.git(&["checkout", "-q", "-b", "other"]);
    scratch.git(&["commit", "-q", "--allow-empty", "-m", "c"]);
    scratch.git(&["checkout", "-q", "main"]);
    let change = scratch.since(&before).await;
    assert_eq!(change.git.head_before, change.git.head_after);
    assert!(change.is_visible, "committed elsewhere");
}

#[tokio::test]
async fn a_branch_without_commit_differs_from_nothing() {
    let scratch = Scratch::unborn();
    let before = scratch.head();
    assert_eq!(id(&before), None);
    scratch.write("first", "a\nb\n");
    scratch.commit();
    let git = scratch.since(&before).await.git;
    assert_eq!((git.head_before, git.changed_files, git.insertions), (None, 1, 2));
    assert!(git.head_after.is_some());
}

#[tokio::test]
async fn the_repository_runs_nothing_and_stays_as_it_is() {
    let scratch = Scratch::new();
    scratch.write("same", "x\n");
    scratch.commit();
    let witness = scratch.path().join("witness");
    let script = format!("touch {witness}; exit 1");
    for key in ["core.fsmonitor", "diff.external", "diff.x.textconv", "core.pager"] {
        scratch.git(&["config", key, &script]);
    }
    fs::write(scratch.path().join(".git/info/attributes"), "* diff=x\n").unwrap();
    scratch.write("file", "changed\n");
    // Another time and the same content: git would like to note that in its index.
    let later = std::time::SystemTime::now() + Duration::from_secs(60);
    let same = fs::File::options().write(true).open(scratch.path().join("same")).unwrap();
    same.set_modified(later).unwrap();
    let before = scratch.head();
    let files = |dir: &Path| -> BTreeSet<(PathBuf, i64)> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| (entry.path(), entry.metadata().unwrap().ctime_nsec())).collect()
    };
    let git_dir = scratch.root.path().join(".git");
    let (state, mut env) = (files(&git_dir), scratch.env());
    env.push(("GIT_EXTERNAL_DIFF".into(), script.into()));
    env.push(("GIT_DIR".into(), "/nowhere".into()));
    let change = change_since(&before, &env).await.unwrap();
    assert_eq!(change.git.changed_files, 1);
    assert!(!witness.exists());
    assert_eq!(files(&git_dir), state);
}

#[tokio::test]
async fn without_git_or_repository_there_is_no_answer() {
    let scratch = Scratch::new();
    let before = scratch.head();
    let nowhere = [("PATH".into(), "/nowhere".into())];
    assert_eq!(change_since(&before, &nowhere).await, None);
    fs::remove_dir_all(scratch.path().join(".git")).unwrap();
    assert_eq!(change_since(&before, &scratch.env()).await, None);
}

#[test]
fn a_record_that_was_cut_off_does_not_count() {
    let output = b"1\t2\ta\tb\0-\t-\tbin\0" as &[u8];
    let stat = parse_numstat(output);
    assert_eq!((stat.insertions, stat.deletions), (1, 2));
    assert_eq!(stat.paths, ["a\tb", "bin"]);
    assert_eq!(parse_numstat(&output[..output.len() - 1]).paths, ["a\tb"]);
    assert_eq!(parse_numstat(b"1\t2\0\0x\0"), NumStat::default());
}

proptest! {
    #[test]
    fn any_output_is_read_without_panic(output in prop::collection::vec(any::<u8>(), 0..200)) {
        let stat = parse_numstat(&output);
        prop_assert!(stat.paths.len() <= output.len());
    }
}
