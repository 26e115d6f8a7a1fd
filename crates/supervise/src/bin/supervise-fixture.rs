//! Test helper: with `__shim` it is a shim, else it plays a daemon or an agent that misbehaves. The
//! last argument is a token by which the tests find every process of theirs. Never shipped.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use camino::Utf8PathBuf;
use ostler_supervise::{IdleShim, RunSpec, SHIM_ARG, ShimHooks, new_marker, shim_main_with};

/// A storm ends by itself after so many generations of each forker.
const GENERATIONS_MAX: u32 = 60;
/// Chains of processes that fork at once.
const FORKERS_MAX: u32 = 8;
/// Nothing here outlives a forgotten test for long.
const SLEEP: Duration = Duration::from_secs(120);
/// A shim that was started by this name soon reports what it cannot kill.
const IMPATIENT: &str = "impatient-shim";
const IMPATIENT_MS: u64 = 500;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mode = args.first().map(String::as_str).unwrap_or_default();
    if mode == SHIM_ARG {
        let hooks = ShimHooks { immortal, ..ShimHooks::NONE };
        let is_impatient = std::env::args().next().is_some_and(|own| own.ends_with(IMPATIENT));
        return shim_main_with(match is_impatient {
            true => ShimHooks { kill_failed_ms: IMPATIENT_MS, ..hooks },
            false => hooks,
        });
    }
    match play(mode, args.get(1..).unwrap_or_default()) {
        Ok(code) => code,
        Err(_) => ExitCode::from(64),
    }
}

/// The test makes a process immortal by naming it so, until its file is gone.
fn immortal(pid: i32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    words.get(1).is_some_and(|mode| mode == "immortal")
        && words.get(2).is_some_and(|file| PathBuf::from(&**file).exists())
}

fn play(mode: &str, args: &[String]) -> io::Result<ExitCode> {
    let first = args.first().cloned().unwrap_or_default();
    let token = args.last().cloned().unwrap_or_default();
    let number = first.parse::<u32>().unwrap_or(0);
    match mode {
        "sleep" | "immortal" => std::thread::sleep(SLEEP),
        "ignore-term" => {
            ignore_term()?;
            say("ready\n")?;
            std::thread::sleep(SLEEP);
        }
        "setsid-sleep" => {
            rustix::process::setsid()?;
            std::thread::sleep(SLEEP);
        }
        "setsid-stubborn" => {
            rustix::process::setsid()?;
            ignore_term()?;
            say("ready\n")?;
            std::thread::sleep(SLEEP);
        }
        // Starts a stubborn tool in its own session, and stays, as agent CLIs do.
        "tool" => {
            me(&["setsid-stubborn", &token]).spawn()?;
            std::thread::sleep(SLEEP);
        }
        "leave" => {
            me(&["sleep", &token]).process_group(0).spawn()?;
            say("result\n")?;
        }
        "double-fork" => {
            me(&["double-fork-2", &token]).spawn()?.wait()?;
            say("result\n")?;
        }
        "double-fork-2" => {
            rustix::process::setsid()?;
            me(&["setsid-sleep", &token]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        }
        "empty-env" => {
            me(&["setsid-sleep", &token]).env_clear().spawn()?;
            say("ready\n")?;
            std::thread::sleep(SLEEP);
        }
        // Its child carries nothing, and this parent, which does, is gone.
        "orphan-without-env" => {
            me(&["orphan-without-env-2", &token]).env_clear().spawn()?.wait()?;
            say("ready\n")?;
            std::thread::sleep(SLEEP);
        }
        "orphan-without-env-2" => {
            me(&["setsid-sleep", &token]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        }
        "storm8" => {
            ignore_term()?;
            for _ in 0..FORKERS_MAX {
                me(&["forker", "0", &token]).spawn()?;
            }
            say("ready\n")?;
            std::thread::sleep(SLEEP);
        }
        "forker" => {
            let _ = rustix::process::setsid();
            ignore_term()?;
            if number < GENERATIONS_MAX {
                me(&["forker", &(number + 1).to_string(), &token]).spawn()?;
            } else {
                std::thread::sleep(SLEEP);
            }
        }
        "print-forever" => loop {
            say("more and more and more and more and more and more and more and more\n")?;
        },
        "big-line" => big_line(number)?,
        "bytes" => io::stdout().write_all(b"\xff\xfe\0\x1b[31m\n\xf0\x9f")?,
        "print-stay" => {
            say("result\n")?;
            std::thread::sleep(SLEEP);
        }
        "close-stdout" => {
            say("early\n")?;
            let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
            rustix::stdio::dup2_stdout(&null)?;
            rustix::stdio::dup2_stderr(&null)?;
            std::thread::sleep(Duration::from_millis(300));
            return Ok(ExitCode::from(7));
        }
        "clock" => {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            say(&format!("{}{:09}\n", now.tv_sec, now.tv_nsec))?;
        }
        "signals" => {
            let status = std::fs::read_to_string("/proc/self/status")?;
            for line in status.lines().filter(|line| line.starts_with("Sig")) {
                say(&format!("{line}\n"))?;
            }
        }
        "fds" => {
            for entry in std::fs::read_dir("/proc/self/fd")? {
                let target = std::fs::read_link(entry?.path()).unwrap_or_default();
                say(&format!("{}\n", target.display()))?;
            }
        }
        "keep" | "keep-and-stay" => {
            let exe = std::env::current_exe()?;
            Command::new(exe).arg0("/opt/kept-server").args(["setsid-sleep", &token]).spawn()?;
            me(&["setsid-sleep", &token]).spawn()?;
            say("result\n")?;
            if mode == "keep-and-stay" {
                std::thread::sleep(SLEEP);
            }
        }
        "daemon" => return daemon(args),
        _ => return Ok(ExitCode::from(64)),
    }
    Ok(ExitCode::SUCCESS)
}

fn me(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_default());
    command.args(args);
    command
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn ignore_term() -> io::Result<()> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [1, 2, 15] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(())
}

/// One line of that many MiB: every byte but LF, so that NUL and control bytes are in it.
fn big_line(mebibytes: u32) -> io::Result<()> {
    let pattern: Vec<u8> = (0..=255_u8).filter(|byte| *byte != b'\n').collect();
    let block: Vec<u8> = pattern.iter().copied().cycle().take(255 * 257).collect();
    let mut left = u64::from(mebibytes) << 20;
    let mut out = io::stdout().lock();
    while left > 0 {
        let len = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        out.write_all(block.get(..len).unwrap_or_default())?;
        left -= len as u64;
    }
    out.write_all(b"\n")?;
    out.flush()
}

/// `daemon RUNDIR AGENT-MODE TOKEN`: runs that agent and does nothing more until it is killed.
fn daemon(args: &[String]) -> io::Result<ExitCode> {
    let [dir, mode, token] = args else {
        return Ok(ExitCode::from(64));
    };
    let exe = std::env::current_exe()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let marker = new_marker()?;
        let shim = IdleShim::spawn(&exe, &marker)?;
        let mut spec =
            RunSpec::new(Utf8PathBuf::from(dir), marker, exe.into_os_string(), "/".into());
        spec.args = vec![mode.into(), token.into()];
        let mut shim = shim.prepare(&spec)?;
        shim.start().await?;
        loop {
            if let ostler_supervise::Report::Output { .. } = shim.report().await {
                say("running\n")?;
            }
        }
    })
}
