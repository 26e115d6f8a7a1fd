//! How much later an agent runs than a bare child would. Measured, not judged: a busy machine says
//! anything. `cargo nextest run -p ostler-supervise --run-ignored only --no-capture speed`

use ostler_supervise::rundir::RunDir;
use ostler_supervise::{IdleShim, RunSpec, new_marker};

use crate::rig::*;

const RUNS: usize = 60;

fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

fn micros(mut nanos: Vec<u64>, percentile: usize) -> u64 {
    nanos.sort_unstable();
    nanos[(nanos.len() - 1) * percentile / 100] / 1_000
}

#[tokio::test]
#[ignore = "a measurement"]
async fn from_the_command_to_the_exec_of_the_agent() {
    let (mut bare, mut shimmed) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let began = now();
        let output = std::process::Command::new(fixture()).arg("clock").output().unwrap();
        bare.push(String::from_utf8(output.stdout).unwrap().trim().parse::<u64>().unwrap() - began);
    }
    let rig = Rig::new();
    for run in 0..RUNS {
        let marker = new_marker().unwrap();
        let began = now();
        let shim = IdleShim::spawn(&fixture(), &marker).unwrap();
        let dir = RunDir::create(rig.root(), &format!("run{run}")).unwrap();
        let mut spec = RunSpec::new(dir.path().to_owned(), marker, fixture().into(), "/".into());
        spec.args = vec!["clock".into()];
        let mut shim = shim.prepare(&spec).unwrap();
        shim.start().await.unwrap();
        let end = ended(&mut shim).await;
        let log = std::fs::read(dir.path().join("output/00000000000000000000.log")).unwrap();
        let clock = String::from_utf8_lossy(&log[24..]).trim().parse::<u64>().unwrap();
        assert!(end.output_bytes > 0);
        shimmed.push(clock - began);
    }
    for percentile in [50, 99] {
        let (bare, shimmed) =
            (micros(bare.clone(), percentile), micros(shimmed.clone(), percentile));
        eprintln!("p{percentile}: bare {bare} µs, through a shim {shimmed} µs");
    }
}
