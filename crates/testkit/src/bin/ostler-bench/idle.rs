//! Row 7: what a daemon costs that has nothing to do, and what a shim costs.

use std::time::Duration;

use ostler_testkit::process::children_of;

use crate::proc::{context_switches, mib, private_bytes};
use crate::product::Product;
use crate::report::{Target, note, row};
use crate::wire::{Wire, submit_program};
use crate::{Fault, Options};

/// How long nothing happens while it is watched.
const IDLE: Duration = Duration::from_secs(10);
/// How long it may take to come to rest.
const SETTLE: Duration = Duration::from_secs(3);
/// How long the run lasts whose shim is looked at.
const RUN: Duration = Duration::from_secs(30);

/// The hidden command `wait`.
pub(crate) fn wait() -> Result<(), Fault> {
    std::thread::sleep(RUN);
    Ok(())
}

pub(crate) fn measure(options: &Options) -> Result<(), Fault> {
    let (product, wire) = Product::started(options, "idle")?;
    drop(wire);
    std::thread::sleep(SETTLE);
    let pid = product.pid();
    row("idle daemon: private memory", mib(private_bytes(pid)?), "MiB", Target::AtMost(8.0));
    let before = context_switches(pid)?;
    std::thread::sleep(IDLE);
    let woken = context_switches(pid)? - before;
    row("idle daemon: context switches in 10 s", woken as f64, "", Target::AtMost(0.0));
    let mut wire = Wire::connect(&product.socket())?;
    let this = std::env::current_exe()?;
    let this = this.to_str().ok_or("a path that is no UTF-8")?;
    wire.call(&submit_program("waiting", &[this, "wait"]))?;
    std::thread::sleep(SETTLE);
    let shims = children_of(i32::try_from(pid)?);
    // The other one waits ahead for a run.
    let shim = shims.iter().find(|shim| !children_of(shim.pid).is_empty());
    let shim = shim.ok_or("there is no shim")?;
    let shim_pid = u32::try_from(shim.pid)?;
    row("shim: private memory", mib(private_bytes(shim_pid)?), "MiB", Target::AtMost(2.0));
    let before = context_switches(shim_pid)?;
    std::thread::sleep(SETTLE);
    let woken = context_switches(shim_pid)? - before;
    note(&format!(
        "shim: {woken} context switches in {} s beside a silent agent",
        SETTLE.as_secs()
    ));
    note(&format!("daemon with one run and one client: {:.1} MiB", mib(private_bytes(pid)?)));
    Ok(())
}
