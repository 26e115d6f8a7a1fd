//! One daemon for one directory.

use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Barrier};

use ostler_host::StartError;

use super::raw::Raw;
use super::rig::{Rig, Server};

fn told(error: &StartError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

///
#[test]
fn r_15_a_second_daemon_is_refused_and_the_first_goes_on() {
    let rig = Rig::new();
    let mut raw = rig.client();
    raw.submit("t").unwrap();
    let inode = std::fs::metadata(rig.socket()).unwrap().ino();
    for _ in 0..3 {
        let error = Server::start(rig.settings(), rig.runner.clone()).err().expect("refused");
        let text = told(&error);
        assert!(text.contains(rig.runtime_dir().to_str().unwrap()), "it names the path: {text}");
    }
    assert_eq!(std::fs::metadata(rig.socket()).unwrap().ino(), inode);
    raw.submit("u").unwrap();
    assert_eq!(rig.client().list().len(), 2);
}

/// on nothing, on what an orderly end left, and on what a kill left.
#[test]
fn r_17_of_several_starts_at_once_exactly_one_serves() {
    const STARTS: usize = 8;
    let rig = Rig::stopped(|_| {});
    for round in 0..6 {
        let barrier = Arc::new(Barrier::new(STARTS));
        let starts: Vec<_> = (0..STARTS)
            .map(|_| {
                let (barrier, settings, runner) =
                    (barrier.clone(), rig.settings(), rig.runner.clone());
                std::thread::spawn(move || {
                    barrier.wait();
                    Server::start(settings, runner)
                })
            })
            .collect();
        let ended: Vec<_> = starts.into_iter().map(|start| start.join().unwrap()).collect();
        let mut servers: Vec<_> = Vec::new();
        for result in ended {
            match result {
                Ok(server) => servers.push(server),
                Err(error) => {
                    let text = told(&error);
                    assert!(text.contains(rig.runtime_dir().to_str().unwrap()), "{text}");
                }
            }
        }
        assert_eq!(servers.len(), 1, "round {round}");
        let (mut raw, _) = Raw::hello(&rig.socket(), None);
        raw.submit(&format!("t{round}")).unwrap();
        assert_eq!(raw.list().len(), round + 1);
        servers.pop().unwrap().stop();
        if round % 2 == 1 {
            // What a kill leaves: a socket that nobody listens to.
            drop(std::os::unix::net::UnixListener::bind(rig.socket()).unwrap());
        }
    }
}

/// a socket that somebody else has put there stays.
#[test]
fn r_18_only_its_own_socket_is_removed() {
    let mut rig = Rig::new();
    std::fs::remove_file(rig.socket()).unwrap();
    let other = std::os::unix::net::UnixListener::bind(rig.socket()).unwrap();
    rig.stop();
    assert!(rig.socket().exists());
    drop(other);
}

/// everything the daemon writes lies in its directory.
#[test]
fn r_04_the_journal_lies_beside_the_socket() {
    let mut rig = Rig::new();
    rig.client().submit("t").unwrap();
    rig.kill();
    let names: Vec<_> = super::commands::files(&rig.runtime_dir()).into_keys().collect();
    let journal = rig.runtime_dir().join("journal/segment-");
    assert!(names.iter().any(|name| name.starts_with(journal.to_str().unwrap())), "{names:?}");
    let entries = std::fs::read_dir(rig.folder()).unwrap().count();
    assert_eq!(entries, 1, "nothing beside the runtime directory");
}
