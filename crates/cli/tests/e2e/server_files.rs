//! Which files the server and its commands make, share and leave alone: database, secret key, `server/url`.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;

use crate::rig::{Rig, Running, finish};
use crate::server::{folder, serve, stop};

fn url(rig: &Rig) -> Option<String> {
    std::fs::read_to_string(folder(rig).join("url")).ok()
}

#[test]
fn two_servers_do_not_serve_one_sqlite_file_at_a_time() {
    let rig = Rig::new();
    let (server, first_url) = serve(&rig, &[]);
    let second = finish(&mut rig.ostler(["server", "--listen", "127.0.0.1:0"]));
    assert_eq!(second.code, Some(1), "{second:?}");
    let file = folder(&rig).join("ostler.db");
    let said = format!("another server serves {}", file.display());
    assert!(second.stderr.contains(&said), "{second:?}");
    assert!(second.stderr.contains("hint: stop it first"), "{second:?}");
    assert_eq!(url(&rig).as_deref().map(str::trim), Some(first_url.as_str()));
    // Who is killed holds nothing.
    server.signal(Signal::KILL);
    server.finish();
    let (server, next_url) = serve(&rig, &[]);
    assert_ne!(next_url, first_url);
    stop(server);
}

/// Two servers of one home, each with a database of its own.
#[test]
fn the_file_with_the_url_is_the_first_servers_while_it_lives() {
    let rig = Rig::new();
    let (first, first_url) = serve(&rig, &[]);
    let database = format!("sqlite:{}", rig.scratch.path().join("other.db").display());
    let start = || {
        let args = ["server", "--listen", "127.0.0.1:0", "--database", &database];
        let server = Running::start(&mut rig.ostler(args));
        server.says("listening on http");
        server
    };
    let second = start();
    assert_eq!(url(&rig).as_deref().map(str::trim), Some(first_url.as_str()));
    let second = stop(second);
    assert!(second.stderr.contains("stays with the server that was here first"), "{second:?}");
    assert_eq!(url(&rig).as_deref().map(str::trim), Some(first_url.as_str()));
    stop(first);
    assert_eq!(url(&rig), None);
    let alone = start();
    assert!(url(&rig).is_some_and(|url| url.trim() != first_url));
    stop(alone);
    assert_eq!(url(&rig), None);
}

#[test]
fn a_command_makes_no_database_from_a_name_that_was_mistyped() {
    let rig = Rig::new();
    let elsewhere = rig.scratch.path().join("elsewhere");
    let database = format!("sqlite:{}", elsewhere.join("typo.db").display());
    let copy = rig.scratch.path().join("copy");
    let copy = copy.to_str().unwrap();
    for words in [
        &["task", "list", "--workspace", "acme"][..],
        &["workspace", "list"],
        &["token", "revoke", "1", "--workspace", "acme"],
        &["export", copy],
        &["backup", copy],
    ] {
        let mut command = rig.ostler(["server"]);
        let done = finish(command.args(words).args(["--database", &database]));
        assert_eq!(done.code, Some(2), "{words:?}: {done:?}");
        assert!(done.stderr.contains("there is no database"), "{words:?}: {done:?}");
        assert!(done.stderr.contains("hint: `ostler server init`"), "{words:?}: {done:?}");
        assert!(!elsewhere.exists() && !folder(&rig).exists(), "{words:?} made something");
    }
    let bare = elsewhere.join("x.db");
    let bare = bare.to_str().unwrap();
    let done = finish(&mut rig.ostler(["server", "workspace", "list", "--database", bare]));
    assert!(done.stderr.contains("write sqlite:<file>"), "{done:?}");
    assert!(!done.stderr.contains("password") && !folder(&rig).exists(), "{done:?}");
    let make = ["server", "workspace", "create", "--workspace", "a", "--email", "a@b.c"];
    let done = finish(rig.ostler(make).args(["--database", &database]));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(elsewhere.join("typo.db").exists() && elsewhere.join("secret.key").exists());
}

#[test]
fn a_postgresql_that_does_not_answer_is_told_with_its_place_and_without_the_password() {
    let rig = Rig::new();
    let database = "postgres://somebody:hunter2@127.0.0.1:1/ostler";
    let key = "22".repeat(32);
    let done =
        finish(rig.ostler(["server", "--database", database]).env("OSTLER_SECRET_KEY", &key));
    assert_eq!(done.code, Some(1), "{done:?}");
    let told = "cannot connect to PostgreSQL at 127.0.0.1:1: Connection refused";
    assert!(done.stderr.contains(told) && done.stderr.contains("hint: is it running"), "{done:?}");
    assert!(!done.stderr.contains("hunter2") && !done.stderr.contains("somebody"), "{done:?}");
}

/// A restored database whose key was forgotten: a new key would seal beside what it cannot open.
#[test]
fn no_secret_key_is_made_beside_a_database_that_is_there() {
    let rig = Rig::new();
    crate::administer::acme(&rig);
    let key = folder(&rig).join("secret.key");
    let bytes = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    for words in [
        &["--listen", "127.0.0.1:0"][..],
        &["init", "--workspace", "acme", "--email", "a@b.c"],
        &["workspace", "list"],
    ] {
        let done = finish(rig.ostler(["server"]).args(words));
        assert_eq!(done.code, Some(2), "{words:?}: {done:?}");
        assert!(done.stderr.contains(key.to_str().unwrap()), "{words:?}: {done:?}");
        assert!(done.stderr.contains("hint: set OSTLER_SECRET_KEY"), "{words:?}: {done:?}");
        assert!(!key.exists(), "{words:?}");
    }
    let text = String::from_utf8(bytes).unwrap();
    let list = ["server", "workspace", "list"];
    let done = finish(rig.ostler(list).env("OSTLER_SECRET_KEY", text.trim()));
    assert_eq!(done.code, Some(0), "{done:?}");
}

/// The greeting's commands are run as they are printed.
#[test]
fn what_the_first_start_tells_to_do_next_works_for_a_database_of_ones_own() {
    let rig = Rig::new();
    let folder = rig.scratch.path().join("own folder");
    std::fs::create_dir(&folder).unwrap();
    let database = format!("sqlite:{}", folder.join("o.db").display());
    let config = folder.join("server.toml");
    std::fs::write(&config, "[limits]\nclaim = 7\n").unwrap();
    let flags = ["--database", &database, "--config", config.to_str().unwrap()];
    let (server, _) = serve(&rig, &flags);
    server.prints("ostler issue create");
    let shown = stop(server).stdout;
    let token_file = rig.scratch.path().join("config/ostler/token");
    assert!(shown.contains(token_file.to_str().unwrap()), "{shown}");
    assert!(!shown.contains("On other machines"), "{shown}");
    assert!(shown.contains("in another terminal with the same OSTLER_HOME:"), "{shown}");
    let token = shown.lines().find(|line| line.trim().starts_with("fat_")).unwrap().trim();
    std::fs::create_dir_all(token_file.parent().unwrap()).unwrap();
    std::fs::write(&token_file, token).unwrap();
    std::fs::set_permissions(&token_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let (server, _) = serve(&rig, &flags);
    let steps: Vec<_> =
        shown.lines().map(str::trim).filter(|it| it.starts_with("ostler ")).collect();
    assert_eq!(steps.len(), 3, "{shown}");
    for step in steps {
        let mut shell = rig.scratch.command("sh");
        let done = finish(shell.args(["-c", step]));
        assert_eq!(done.code, Some(0), "{step}: {done:?}");
    }
    stop(server);
}
