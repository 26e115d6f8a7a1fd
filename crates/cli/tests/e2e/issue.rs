//! `ostler issue` as a client: where its token comes from and goes, how it finds the server, what it says.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use ostler_testkit::process::wait_until;

use crate::administer::{acme, issue};
use crate::rig::{PATIENCE, Rig, Running, finish};
use crate::server::{http, serve, stop};

#[test]
fn the_client_takes_its_token_from_where_nobody_else_reads_it() {
    let rig = Rig::new();
    let token = acme(&rig);
    let (server, url) = serve(&rig, &[]);
    let list = || rig.ostler(["issue", "list"]);
    let without = finish(&mut list());
    assert!(without.code == Some(2) && without.stderr.contains("OSTLER_TOKEN"), "{without:?}");
    let file = rig.scratch.path().join("config/ostler/token");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, format!("{token}\n")).unwrap();
    let set_mode =
        |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o644);
    let open = finish(&mut list());
    assert!(open.code == Some(2) && open.stderr.contains("chmod 600"), "{open:?}");
    set_mode(0o600);
    assert_eq!(finish(&mut list()).code, Some(0));
    let wrong = issue(&rig, "fat_wrong", &["list"]);
    assert!(wrong.code == Some(4) && !wrong.stderr.contains("fat_wrong"), "{wrong:?}");
    let clear = issue(&rig, &token, &["list", "--server", "http://192.0.2.1:4180"]);
    assert!(clear.code == Some(2) && clear.stderr.contains("in clear"), "{clear:?}");
    // An id is one part of the path, whatever is in it.
    let climbs = issue(&rig, &token, &["show", "../agents"]);
    assert_eq!(climbs.code, Some(4), "{climbs:?}");
    assert_eq!(
        http(&url, "GET", "/api/v1/me", &[("Authorization", &format!("Bearer {token}"))], "").0,
        200
    );
    stop(server);
    let gone = issue(&rig, &token, &["list", "--server", &url]);
    assert!(gone.code == Some(3) && gone.stderr.contains("hint: "), "{gone:?}");
}

/// In clear it goes to this machine only, whatever the environment says of proxies.
#[test]
fn a_token_in_clear_goes_to_no_proxy() {
    let rig = Rig::new();
    let token = acme(&rig);
    let (server, _) = serve(&rig, &[]);
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let mut list = rig.ostler(["issue", "list"]);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        list.env(name, &address);
    }
    let mut list = Running::start(list.env("OSTLER_TOKEN", &token));
    let mut met = None;
    wait_until("it ends", PATIENCE, || {
        met = met.take().or_else(|| proxy.accept().ok());
        met.is_some() || list.child.try_wait().unwrap().is_some()
    });
    // Closing the connection lets a client that uses it end.
    let is_met = met.take().is_some();
    let done = list.finish();
    assert!(!is_met, "the proxy was asked: {done:?}");
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(proxy.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    stop(server);
}

/// What is said on the command line wins, here as everywhere.
#[test]
fn a_token_file_that_is_named_wins_over_the_environment() {
    let rig = Rig::new();
    let token = acme(&rig);
    let (server, _) = serve(&rig, &[]);
    let write = |name: &str, token: &str| {
        let file = rig.scratch.path().join(name);
        std::fs::write(&file, token).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let (good, bad) = (write("good", &token), write("bad", "fat_wrong"));
    for (flag, variable, file_variable, works) in [
        (Some(&good), Some("fat_wrong"), None, true),
        (Some(&bad), Some(token.as_str()), None, false),
        (None, Some(token.as_str()), Some(&bad), true),
        (None, None, Some(&good), true),
    ] {
        let mut list = rig.ostler(["issue", "list"]);
        list.args(flag.iter().flat_map(|file| ["--token-file", file.as_str()]));
        list.envs(variable.map(|token| ("OSTLER_TOKEN", token)));
        list.envs(file_variable.map(|file| ("OSTLER_TOKEN_FILE", file)));
        let done = finish(&mut list);
        assert_eq!(done.code, Some(if works { 0 } else { 4 }), "{flag:?} {variable:?}: {done:?}");
    }
    stop(server);
}

#[test]
fn a_refusal_says_what_was_meant_and_when_to_ask_again() {
    let rig = Rig::new();
    let token = acme(&rig);
    let (server, _) = serve(&rig, &[]);
    assert_eq!(issue(&rig, &token, &["create", "One", "--assign", "Freya"]).code, Some(0));
    for (name, hint) in [("Fraya", "did you mean \"Freya\"?"), ("Somebody", "there are: Freya")] {
        let done = issue(&rig, &token, &["create", "Two", "--assign", name]);
        assert!(done.code == Some(4) && done.stderr.contains(hint), "{done:?}");
    }
    assert_eq!(issue(&rig, &token, &["assign", "ACME-1", "--user", "me"]).code, Some(0));
    for command in
        [&["show", "ACME-99"][..], &["comment", "ACME-99", "x"], &["assign", "ACME-99", "--nobody"]]
    {
        let done = issue(&rig, &token, command);
        assert!(done.code == Some(4) && done.stderr.contains("no issue ACME-99"), "{done:?}");
    }
    let listed = issue(&rig, &token, &["list", "--assignee", "Boss@example.com"]);
    assert!(listed.code == Some(0) && listed.stdout.contains("ACME-1"), "{listed:?}");
    stop(server);
    let mut limited = rig.ostler(["server", "--listen", "127.0.0.1:0"]);
    let server = Running::start(limited.env("OSTLER_SERVER_THROTTLE_API", "1"));
    server.says("listening on");
    assert_eq!(issue(&rig, &token, &["list"]).code, Some(0));
    let done = issue(&rig, &token, &["list"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("hint: ask again in "), "{done:?}");
    stop(server);
}

#[test]
fn a_certificate_that_is_not_trusted_is_told_from_a_server_that_is_not_there() {
    let rig = Rig::new();
    let token = acme(&rig);
    let tls = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/tests/tls");
    let (cert, key) = (tls.join("cert.pem"), tls.join("key.pem"));
    let files = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let (server, url) = serve(&rig, &files);
    let done = issue(&rig, &token, &["list", "--server", &url]);
    assert_eq!(done.code, Some(3), "{done:?}");
    assert!(done.stderr.contains("SSL_CERT_FILE"), "{done:?}");
    assert!(!done.stderr.contains("is it running"), "{done:?}");
    let mut list = rig.ostler(["issue", "list", "--server", &url]);
    let done = finish(list.env("OSTLER_TOKEN", &token).env("SSL_CERT_FILE", &cert));
    assert_eq!(done.code, Some(0), "{done:?}");
    stop(server);
}
