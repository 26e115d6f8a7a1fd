//! Who is served at the socket: its owner and nobody else, root included.

use ostler_testkit::process::wait_until;
use serde_json::json;

use crate::rig::{PATIENCE, Rig, finish, finish_with_input};
use crate::user::{User, as_nobody, mode, set_mode};

/// A frame that any daemon answers.
fn hello() -> Vec<u8> {
    let hello =
        json!({"type": "hello", "hello": {"clientId": "c", "versions": [3], "resumeAfter": null}});
    let body = serde_json::to_vec(&hello).unwrap();
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
}

/// Tells whether a test that needs two users can go on.
fn has_two_users(test: &str) -> bool {
    // Not even with CI set a failure: becoming another user takes root, and who has it not can be given none by
    // installing something, as with a program that is missing.
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("{test}: skipped, only root can connect as another user");
    }
    is_root
}

const REFUSED: &str = "a connection of another user was closed";

/// R-10: also with folders and socket open to everybody, which the daemon makes sure they are not.
#[test]
fn r_10_another_user_is_closed_without_a_byte_and_the_owner_is_served() {
    if !has_two_users("r_10_another_user") {
        return;
    }
    let rig = Rig::serving();
    rig.detach("owners", &["lines", "1", "--stay"]);
    rig.printed("owners", "line 1");
    let (folder, runtime, socket) =
        (rig.scratch.path(), rig.scratch.runtime_dir(), rig.scratch.socket());
    assert_eq!((mode(&runtime), mode(&socket)), (0o700, 0o600), "shut without this test's doing");
    let agent = folder.join("agent");
    std::fs::copy(&rig.agent, &agent).unwrap();
    [folder, &runtime, &agent].iter().for_each(|path| set_mode(path, 0o755));
    set_mode(&socket, 0o666);
    let connect = || {
        let mut command = rig.scratch.command(&agent);
        command.arg("connect").arg(&socket).current_dir("/");
        command
    };
    let before = finish(&mut rig.ostler(["task", "list", "--json"])).stdout;
    for _ in 0..3 {
        let done = finish_with_input(as_nobody(&mut connect()), &hello());
        assert_eq!((done.code, done.stdout.as_str()), (Some(0), "answer: 0 bytes\n"), "{done:?}");
    }
    wait_until("the log says so", PATIENCE, || rig.daemon_log().matches(REFUSED).count() == 3);
    // The same bytes of the owner are answered.
    let done = finish_with_input(&mut connect(), &hello());
    assert!(done.stdout.contains(r#""type":"welcome""#), "{done:?}");
    assert_eq!(finish(&mut rig.ostler(["task", "list", "--json"])).stdout, before);
    assert_eq!(rig.daemon_log().matches(REFUSED).count(), 3);
    assert_eq!(finish(&mut rig.ostler(["run", "--", "true"])).code, Some(0));
    rig.cancel("owners");
    rig.assert_nothing_runs();
}

/// R-10: root could read everything, and is no exception.
#[test]
fn r_10_root_is_another_user_too() {
    if !has_two_users("r_10_root") {
        return;
    }
    let mut user = User::new();
    user.start_daemon();
    let rig = &user.rig;
    // The rig has looked whether the daemon serves.
    wait_until("that was refused", PATIENCE, || rig.daemon_log().contains(REFUSED));
    let mut connect = rig.scratch.command(&rig.agent);
    let done = finish_with_input(connect.arg("connect").arg(rig.scratch.socket()), &hello());
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "answer: 0 bytes\n"), "{done:?}");
    for args in [&["run", "--", "true"][..], &["task", "list"]] {
        let done = finish(&mut rig.ostler(args));
        assert_eq!((done.code, done.stdout.as_str()), (Some(3), ""), "{done:?}");
        assert!(done.stderr.contains("error:"), "{done:?}");
    }
    let done = finish(&mut user.ostler(&["task", "list", "--json"]));
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "[]\n"), "{done:?}");
    assert_eq!(finish(&mut user.ostler(&["run", "--", "true"])).code, Some(0));
}
