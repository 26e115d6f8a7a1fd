//! Tests of the endpoint. Those that need another user's files run as root only and say so.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;

use super::*;

const SOMEBODY_UID: u32 = 65_534;

struct Place {
    _root: tempfile::TempDir,
    dir: Utf8PathBuf,
}

impl Place {
    /// A path for a runtime directory that does not exist yet.
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(root.path()).unwrap().join("rt");
        Self { _root: root, dir }
    }

    fn with_dir(mode: u32) -> Self {
        let place = Self::new();
        fs::create_dir(&place.dir).unwrap();
        set_mode(&place.dir, mode);
        place
    }

    fn socket(&self) -> Utf8PathBuf {
        self.dir.join(SOCKET_NAME)
    }

    fn start(&self) -> Result<(UnixListener, Endpoint), EndpointError> {
        Claim::open(&self.dir, None)?.listen()
    }

    fn error(&self) -> EndpointError {
        self.start().unwrap_err()
    }
}

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn exists(path: impl AsRef<Path>) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root to make another user's file");
    }
    root
}

/// A socket file that nobody listens to any more.
fn stale_socket(path: &Utf8Path) {
    drop(UnixListener::bind(path).unwrap());
}

#[test]
fn r_08_r_09_an_absent_directory_is_made_and_all_is_owner_only() {
    let mut place = Place::new();
    place.dir = place.dir.join("deep/er");
    let (_listener, endpoint) = place.start().unwrap();
    assert_eq!(mode(&place.dir), 0o700);
    assert_eq!(mode(place.dir.parent().unwrap()), 0o700);
    assert_eq!(mode(endpoint.socket()), 0o600);
    assert_eq!(mode(place.dir.join(SOCKET_LOCK_NAME)), 0o600);
}

#[test]
fn r_08_r_09_whatever_the_modes_were_they_are_owner_only_after_startup() {
    for before in [0o755, 0o700, 0o500, 0o000, 0o2750] {
        let place = Place::with_dir(0o700);
        fs::write(place.dir.join(SOCKET_LOCK_NAME), "").unwrap();
        set_mode(place.dir.join(SOCKET_LOCK_NAME), 0o666);
        set_mode(&place.dir, before);
        let (_listener, _endpoint) = place.start().unwrap();
        assert_eq!(mode(&place.dir), 0o700, "{before:o}");
        assert_eq!(mode(place.dir.join(SOCKET_LOCK_NAME)), 0o600);
    }
}

#[test]
fn r_08_a_shared_directory_is_refused_and_keeps_its_mode() {
    for shared in [0o1777, 0o1700, 0o770, 0o775, 0o702, 0o777] {
        let place = Place::with_dir(shared);
        let error = place.error();
        assert!(
            matches!(error, EndpointError::Directory { fault: Fault::Shared { mode }, .. } if mode == shared),
            "{error}"
        );
        assert!(error.hint().contains("chmod 0700"), "{}", error.hint());
        assert_eq!(mode(&place.dir), shared);
        assert_eq!(fs::read_dir(&place.dir).unwrap().count(), 0);
    }
}

#[test]
fn r_08_home_and_root_are_refused_and_keep_their_mode() {
    let place = Place::with_dir(0o755);
    let link = place.dir.with_file_name("link-to-home");
    symlink(&place.dir, &link).unwrap();
    for home in [&place.dir, &link] {
        let error = Claim::open(&place.dir, Some(home)).unwrap_err();
        assert!(matches!(error, EndpointError::Directory { fault: Fault::Home, .. }), "{error}");
    }
    assert_eq!(mode(&place.dir), 0o755);
    let root_mode = mode("/");
    let error = Claim::open(Utf8Path::new("/"), None).unwrap_err();
    assert!(matches!(error, EndpointError::Directory { fault: Fault::Root, .. }), "{error}");
    assert_eq!(mode("/"), root_mode);
}

#[test]
fn r_11_a_linked_directory_is_refused_and_link_and_target_stay() {
    let place = Place::with_dir(0o755);
    let link = place.dir.with_file_name("link");
    let dangling = place.dir.with_file_name("dangling");
    symlink(&place.dir, &link).unwrap();
    symlink(place.dir.with_file_name("nowhere"), &dangling).unwrap();
    for path in [link.clone(), format!("{link}/").into(), format!("{link}/.").into(), dangling] {
        let error = Claim::open(&path, None).unwrap_err();
        assert!(
            matches!(error, EndpointError::Directory { fault: Fault::Link, .. }),
            "{path}: {error}"
        );
    }
    let error = Claim::open(&link.join("../link/.."), None).unwrap_err();
    assert!(matches!(error, EndpointError::Directory { fault: Fault::Unnamed, .. }), "{error}");
    assert_eq!(fs::read_link(&link).unwrap(), place.dir);
    assert_eq!(mode(&place.dir), 0o755);
    assert!(!exists(place.dir.with_file_name("nowhere")));
}

#[test]
fn r_12_what_is_no_directory_is_refused() {
    let place = Place::new();
    fs::write(&place.dir, "mine").unwrap();
    let error = place.error();
    assert_eq!(
        error.to_string(),
        format!("{} cannot be the runtime directory: it is a regular file", place.dir)
    );
    assert!(error.hint().contains("HASKELL_AGENT_RUNTIME_DIR"));
    assert_eq!(fs::read_to_string(&place.dir).unwrap(), "mine");

    // Something above it is a file.
    let error = Claim::open(&place.dir.join("below"), None).unwrap_err();
    assert!(matches!(error, EndpointError::Io { .. }), "{error}");
}

#[test]
fn r_12_a_foreign_directory_is_refused() {
    if !is_root() {
        return;
    }
    let place = Place::with_dir(0o755);
    chown(&place.dir, Some(SOMEBODY_UID), None).unwrap();
    let error = place.error();
    assert!(
        matches!(error, EndpointError::Directory { fault: Fault::Owner { uid: SOMEBODY_UID }, .. }),
        "{error}"
    );
    assert_eq!(mode(&place.dir), 0o755);
}

#[test]
fn r_13_a_foreign_socket_is_refused_and_stays() {
    if !is_root() {
        return;
    }
    let place = Place::with_dir(0o700);
    stale_socket(&place.socket());
    chown(place.socket(), Some(SOMEBODY_UID), None).unwrap();
    let error = place.error();
    assert!(
        matches!(error, EndpointError::InTheWay { fault: Fault::Owner { uid: SOMEBODY_UID }, .. }),
        "{error}"
    );
    assert!(exists(place.socket()));
}

#[test]
fn r_14_another_file_at_the_endpoint_is_refused_and_stays() {
    let place = Place::with_dir(0o700);
    let socket = place.socket();
    let in_the_way = |what: &str| {
        let error = place.error();
        assert!(matches!(error, EndpointError::InTheWay { .. }), "{what}: {error}");
        assert!(error.to_string().contains(what), "{error}");
        assert!(exists(&socket));
    };
    fs::write(&socket, "text").unwrap();
    in_the_way("regular file");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "text");
    fs::remove_file(&socket).unwrap();

    fs::create_dir(&socket).unwrap();
    in_the_way("directory");
    fs::remove_dir(&socket).unwrap();

    symlink("/nowhere", &socket).unwrap();
    in_the_way("symbolic link");
    fs::remove_file(&socket).unwrap();

    let _datagram = UnixDatagram::bind(&socket).unwrap();
    in_the_way("socket of another type");
}

#[test]
fn r_15_a_live_daemon_without_our_lock_is_left_alone() {
    let place = Place::with_dir(0o755);
    let live = UnixListener::bind(place.socket()).unwrap();
    set_mode(place.socket(), 0o644);
    let error = place.error();
    assert!(matches!(error, EndpointError::Live { .. }), "{error}");
    let _client = UnixStream::connect(place.socket()).unwrap();
    live.accept().unwrap();
    assert_eq!(mode(place.socket()), 0o644, "its mode is its own business");
}

#[test]
fn r_15_a_live_daemon_with_a_full_backlog_is_alive_and_nobody_waits_for_it() {
    let place = Place::with_dir(0o700);
    let live = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    rustix::net::bind(&live, &SocketAddrUnix::new(place.socket().as_str()).unwrap()).unwrap();
    rustix::net::listen(&live, 0).unwrap();
    let _first = UnixStream::connect(place.socket()).unwrap();
    let error = place.error();
    assert!(matches!(error, EndpointError::Live { .. }), "{error}");
}

#[test]
fn r_16_a_stale_socket_is_replaced() {
    let place = Place::with_dir(0o700);
    stale_socket(&place.socket());
    let claim = Claim::open(&place.dir, None).unwrap();
    assert!(UnixStream::connect(place.socket()).is_err(), "a claim alone changes nothing");
    let (listener, _endpoint) = claim.listen().unwrap();
    let _client = UnixStream::connect(place.socket()).unwrap();
    listener.accept().unwrap();
}

#[test]
fn r_17_of_several_starts_at_once_one_serves_and_the_others_name_the_lock() {
    let place = Place::with_dir(0o700);
    stale_socket(&place.socket());
    let barrier = std::sync::Barrier::new(8);
    let results: Vec<_> = std::thread::scope(|scope| {
        let start = || {
            barrier.wait();
            place.start()
        };
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    let lock = place.dir.join(SOCKET_LOCK_NAME);
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        assert!(matches!(error, EndpointError::Held { path } if *path == lock), "{error}");
        assert!(error.to_string().contains(lock.as_str()));
    }
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    UnixStream::connect(place.socket()).unwrap();
}

#[test]
fn r_17_the_lock_is_flock_2_and_is_free_again_after_the_end() {
    let place = Place::with_dir(0o700);
    let held = fs::File::create(place.dir.join(SOCKET_LOCK_NAME)).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(matches!(place.error(), EndpointError::Held { .. }));
    drop(held);
    drop(place.start().unwrap());
    drop(place.start().unwrap());
}

#[test]
fn r_17_a_lock_file_that_is_not_ours_is_refused_and_nobody_waits() {
    let place = Place::with_dir(0o700);
    let lock = place.dir.join(SOCKET_LOCK_NAME);
    let target = place.dir.join("target");
    let refused = |what: &str| {
        let error = place.error();
        assert!(matches!(error, EndpointError::LockFile { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    fs::write(&target, "").unwrap();
    set_mode(&target, 0o644);
    symlink(&target, &lock).unwrap();
    refused("symbolic link");
    assert_eq!(mode(&target), 0o644);
    fs::remove_file(&lock).unwrap();

    fs::create_dir(&lock).unwrap();
    refused("directory");
    fs::remove_dir(&lock).unwrap();

    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, lock.as_str(), fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    refused("named pipe");
}

#[test]
fn r_18_the_socket_is_removed_at_exit_only_if_it_is_the_one_made() {
    let place = Place::with_dir(0o700);
    let (listener, endpoint) = place.start().unwrap();
    drop(listener);
    drop(endpoint);
    assert!(!exists(place.socket()));
    assert!(exists(place.dir.join(SOCKET_LOCK_NAME)), "removing the lock would let two in");

    // Somebody removed ours and put another there, with the listener already gone: the inode number
    // must not have become free.
    let (listener, endpoint) = place.start().unwrap();
    drop(listener);
    fs::remove_file(place.socket()).unwrap();
    let other = UnixListener::bind(place.socket()).unwrap();
    drop(endpoint);
    let _client = UnixStream::connect(place.socket()).unwrap();
    other.accept().unwrap();
}

#[test]
fn r_18_an_early_removal_says_whether_it_was_ours_and_keeps_the_lock() {
    let place = Place::new();
    let (_listener, endpoint) = place.start().unwrap();
    assert!(endpoint.remove_socket().unwrap());
    assert!(!endpoint.remove_socket().unwrap());
    assert!(matches!(place.error(), EndpointError::Held { .. }));
}

#[test]
fn a_socket_path_that_is_too_long_is_refused_before_anything_is_made() {
    let mut place = Place::new();
    let spare = SOCKET_PATH_BYTES_MAX - place.socket().as_str().len();
    let fits = place.dir.join("d".repeat(spare - 1));
    place.dir = place.dir.join("d".repeat(spare));
    let error = place.error();
    assert!(matches!(error, EndpointError::PathTooLong { .. }), "{error}");
    assert!(error.to_string().contains("108 bytes, at most 107"), "{error}");
    assert!(error.hint().contains("HASKELL_AGENT_RUNTIME_DIR"));
    assert!(!exists(place.dir.parent().unwrap()));
    place.dir = fits;
    place.start().unwrap();
}

#[test]
fn r_10_only_the_same_user_passes() {
    let (ours, _other) = UnixStream::pair().unwrap();
    assert!(is_same_user(&ours));
    if !is_root() {
        return;
    }
    // Linux keeps user ids by thread: this one is somebody else for as long as it lives.
    let foreign = std::thread::spawn(|| {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(SOMEBODY_UID)).unwrap();
        UnixStream::pair().unwrap()
    });
    let (foreign, _other) = foreign.join().unwrap();
    assert!(!is_same_user(&foreign));
}

#[test]
fn r_10_something_that_is_no_socket_does_not_pass() {
    assert!(!is_same_user(&fs::File::open("/dev/null").unwrap()));
}

#[test]
fn the_state_directory_is_locked_the_same_way() {
    let place = Place::new();
    let held = lock_state_dir(&place.dir, None).unwrap();
    assert_eq!(held.path(), place.dir);
    assert_eq!(mode(&place.dir), 0o700);
    assert_eq!(mode(place.dir.join(STATE_LOCK_NAME)), 0o600);
    let error = lock_state_dir(&place.dir, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("another daemon holds the lock {}/ostler.lock", place.dir)
    );
    drop(held);
    lock_state_dir(&place.dir, None).unwrap();

    let shared = Place::with_dir(0o777);
    let error = lock_state_dir(&shared.dir, None).unwrap_err();
    assert!(error.hint().contains("OSTLER_HOME"), "{}", error.hint());
}

#[test]
fn a_full_or_read_only_file_system_is_named_in_the_hint() {
    for (errno, words) in [
        (Errno::ROFS, "read-only"),
        (Errno::NOSPC, "full"),
        (Errno::DQUOT, "full"),
        (Errno::ACCESS, "may not"),
        (Errno::NOLCK, "local one"),
        (Errno::IO, "check the file system"),
    ] {
        let error = EndpointError::io(Role::Runtime, "bind", Utf8Path::new("/x"), errno);
        assert_eq!(error.to_string(), "cannot bind /x");
        assert!(std::error::Error::source(&error).is_some());
        assert!(error.hint().contains(words), "{}", error.hint());
        assert!(error.hint().contains("HASKELL_AGENT_RUNTIME_DIR"));
    }
}
