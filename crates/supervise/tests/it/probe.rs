//! Helper commands.

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

use ostler_core::outcome::Exit;
use ostler_supervise::{ProbeOutput, probe};

use crate::rig::*;

async fn sh(script: &str, deadline: Duration, max: usize) -> ProbeOutput {
    let args = ["-c".into(), script.into()];
    let env = [("PATH".into(), std::env::var_os("PATH").unwrap())];
    probe(OsStr::new("sh"), &args, Path::new("/"), &env, deadline, max).await.unwrap()
}

#[tokio::test]
async fn a_probe_says_what_the_command_said() {
    let out =
        sh("echo out; echo err >&2; cat; pwd; echo ${HOME-none}; exit 3", DEADLINE, 100).await;
    assert_eq!((out.exit, out.timed_out, out.truncated), (Some(Exit::Code(3)), false, false));
    assert_eq!(
        (out.stdout.as_slice(), out.stderr.as_slice()),
        (&b"out\n/\nnone\n"[..], &b"err\n"[..])
    );
    let missing = probe(OsStr::new("/no/such"), &[], Path::new("/"), &[], DEADLINE, 1).await;
    assert_eq!(missing.unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn b2_15_a_probe_that_hangs_is_ended_with_its_group() {
    let rig = Rig::new();
    let began = Instant::now();
    let out = sh(
        &format!("echo 1; sh -c 'sleep 60; : {}'; echo 2", rig.token),
        Duration::from_millis(300),
        100,
    )
    .await;
    assert!(out.timed_out && !out.is_success());
    assert_eq!(out.stdout, b"1\n");
    assert!(began.elapsed() < Duration::from_secs(5));
    eventually("the group is gone", DEADLINE, || rig.alive().is_empty());
}

#[tokio::test]
async fn a_probe_does_not_wait_for_who_holds_its_pipes() {
    let rig = Rig::new();
    let began = Instant::now();
    let out = sh(&format!("echo v1; sh -c 'sleep 60; : {}' &", rig.token), DEADLINE, 100).await;
    assert!(out.is_success() && out.stdout == b"v1\n");
    assert!(began.elapsed() < Duration::from_secs(5));
    eventually("the group is gone", DEADLINE, || rig.alive().is_empty());
}

#[tokio::test]
async fn a_probe_keeps_the_beginning_of_a_long_output() {
    let out = sh("yes | head -c 1000000", DEADLINE, 4).await;
    assert!(out.truncated && out.is_success());
    assert_eq!(out.stdout, b"y\ny\n");
}
