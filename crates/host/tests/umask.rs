//! R-09 under unusual umasks. A file of its own, with one test: a umask belongs to the whole process.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::os::unix::fs::MetadataExt as _;

use camino::Utf8Path;
use ostler_host::endpoint::Claim;
use rustix::fs::{Mode, inotify};

#[test]
fn r_09_modes_are_exact_under_any_umask() {
    for umask in [0o000, 0o022, 0o077, 0o777, 0o177] {
        let root = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(root.path()).unwrap().join("new/rt");
        let before = rustix::process::umask(Mode::from_raw_mode(umask));
        let started = Claim::open(&dir, None).and_then(Claim::listen);
        rustix::process::umask(before);
        let (_listener, endpoint) = started.unwrap();
        let mode = |path: &Utf8Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&dir), 0o700, "{umask:o}");
        assert_eq!(mode(dir.parent().unwrap()), 0o700, "{umask:o}");
        assert_eq!(mode(endpoint.socket()), 0o600, "{umask:o}");
        assert_eq!(mode(&dir.join("daemon.sock.lock")), 0o600, "{umask:o}");
    }
    r_09_the_socket_is_never_looser_not_even_for_a_moment();
}

/// The mode is right when the file appears, so that it need not be changed: the kernel would tell.
fn r_09_the_socket_is_never_looser_not_even_for_a_moment() {
    let root = tempfile::tempdir().unwrap();
    let dir = Utf8Path::from_path(root.path()).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let before = rustix::process::umask(Mode::empty());
    let claim = Claim::open(dir, None).unwrap();
    let wanted = inotify::WatchFlags::ATTRIB | inotify::WatchFlags::CREATE;
    inotify::add_watch(&watch, dir.as_str(), wanted).unwrap();
    let started = claim.listen();
    rustix::process::umask(before);
    let (_listener, _endpoint) = started.unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = reader.next() {
        seen.push(event.events());
    }
    assert_eq!(seen, [inotify::ReadFlags::CREATE]);
}
