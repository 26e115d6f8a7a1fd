//! The misbehaviours, one function each.
//!
//! A child is this program again with a mode that begins with `__`, because safe Rust has no `fork`.

use std::fs;
use std::io::{self, Read, Write, stdout};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process, setsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{Options, claude, complain};

/// The most chains of a fork storm.
const FORKERS_MAX: u64 = 8;
/// The most processes that all chains of one storm start together.
const STORM_PROCESSES_MAX: u64 = 4_000;
/// How long each process of a storm waits before it replaces itself.
const STORM_PACE_MS: u64 = 20;
/// How often a signal is looked for.
const POLL_MS: u64 = 5;
/// How much is written at once where volume matters.
const WRITE_BYTES: usize = 64 * 1024;

/// Does what the mode says.
pub(crate) fn play(options: &Options, args: &[String]) -> io::Result<ExitCode> {
    let number = |default: u64| match &options.argument {
        Some(text) => text.parse().map_err(io::Error::other),
        None => Ok(default),
    };
    let mut out = stdout().lock();
    match options.mode.as_str() {
        "ignore-term" => {
            let seen = ignore_term()?;
            say(&mut out, "ignoring TERM")?;
            loop {
                // Not woken by the signal: `sleep` goes on after it.
                sleep(Duration::from_millis(POLL_MS));
                if seen.swap(false, Ordering::Relaxed) {
                    // Whoever listens or not: it goes on.
                    let _ = say(&mut out, "ignored a signal");
                }
            }
        }
        "exit-on-term" => return exit_on_term(number(0)?),
        "fork-and-leave" => {
            let child = child(options, "__hold")?.spawn()?;
            say(&mut out, &format!("child pid={}", child.id()))?;
        }
        "double-fork-setsid" => {
            child(options, "__fork")?.spawn()?.wait()?;
            say(&mut out, "forked twice")?;
        }
        "spawn-tool" => {
            let mut tool = child(options, "__tool")?.spawn()?;
            say(&mut out, &format!("tool pid={}", tool.id()))?;
            tool.wait()?;
        }
        "fork-storm" => storm(options, &mut out)?,
        "close-stdout" => {
            say(&mut out, "closing")?;
            let null = fs::File::options().write(true).open("/dev/null")?;
            rustix::stdio::dup2_stdout(&null)?;
            rustix::stdio::dup2_stderr(&null)?;
            return stay();
        }
        "print-for-ever" => print_for_ever(&mut out, number(80)?)?,
        "print-nothing" => return stay(),
        "sleep" => sleep(Duration::from_secs(number(u64::MAX / 2)?)),
        "lines" => lines(&mut out, number(10)?)?,
        "invalid-utf8" => invalid_utf8(&mut out)?,
        "control-bytes" => {
            let bytes: Vec<u8> = (0..=255).filter(|byte| *byte != b'\n').collect();
            out.write_all(&[&bytes[..], b"\n"].concat())?;
        }
        "long-line" => long_line(&mut out, number(60 << 20)?)?,
        "die" => return die(options.argument.as_deref()),
        "exit" => {
            return Ok(ExitCode::from(u8::try_from(number(1)?).map_err(io::Error::other)?));
        }
        "print-env" => print_env(&mut out)?,
        "print-args" => print_args(&mut out, args)?,
        "read-stdin" => read_stdin(&mut out)?,
        "connect" => connect(&mut out, options.argument.as_deref().unwrap_or_default())?,
        "write-file" => {
            let name = options.argument.as_deref().unwrap_or("written.txt");
            fs::write(name, "written by the fake agent\n")?;
        }
        "result-and-stay" => {
            claude::success(&mut out, "All done.")?;
            return stay();
        }
        hidden => return play_child(hidden, options),
    }
    out.flush()?;
    if options.stay { stay() } else { Ok(ExitCode::SUCCESS) }
}

/// The modes of children.
fn play_child(mode: &str, options: &Options) -> io::Result<ExitCode> {
    if options.ignore_term {
        ignore_term()?;
    }
    match mode {
        "__hold" => stay(),
        "__tool" => {
            setsid()?;
            stay()
        }
        "__fork" => {
            setsid()?;
            child(options, "__tool")?.spawn()?;
            Ok(ExitCode::SUCCESS)
        }
        "__storm" => {
            setsid()?;
            let (left, pace_ms) = two_numbers(options, (0, 0));
            if left == 0 {
                // The cap is reached: what survives until here stays to be found.
                return stay();
            }
            sleep(Duration::from_millis(pace_ms));
            let next = format!("{} {pace_ms}", left - 1);
            child(options, "__storm")?.arg(next).spawn()?;
            Ok(ExitCode::SUCCESS)
        }
        _ => Ok(complain(&format!("unknown mode {mode}"))),
    }
}

/// This program again, with the options that children share.
fn child(options: &Options, mode: &str) -> io::Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(mode).args(["--life", &options.life_s.to_string()]);
    for (set, flag) in [
        (options.ignore_term, "--ignore-term"),
        (options.detached, "--detached"),
        (options.empty_env, "--empty-env"),
    ] {
        command.args(set.then_some(flag));
    }
    if let Some(token) = &options.token {
        command.args(["--token", token]);
    }
    if options.detached {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    if let Some(pipe) = &options.alive {
        // The children of the child inherit it from there.
        command.stdin(pipe.try_clone()?);
    }
    if options.empty_env {
        command.env_clear();
    }
    Ok(command)
}

fn say(out: &mut impl Write, line: &str) -> io::Result<()> {
    writeln!(out, "{line}")?;
    out.flush()
}

/// Until killed (or until the life of the process is over).
pub(crate) fn stay() -> io::Result<ExitCode> {
    loop {
        sleep(Duration::from_secs(3_600));
    }
}

/// From now on TERM, INT and HUP only set the flag.
pub(crate) fn ignore_term() -> io::Result<Arc<AtomicBool>> {
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ignored))?;
    }
    Ok(ignored)
}

fn exit_on_term(status: u64) -> io::Result<ExitCode> {
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGTERM, Arc::clone(&asked))?;
    say(&mut stdout(), "waiting for TERM")?;
    while !asked.load(Ordering::Relaxed) {
        // Not woken by the signal: `sleep` goes on after it.
        sleep(Duration::from_millis(POLL_MS));
    }
    say(&mut stdout(), "got TERM")?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}

/// Each process of a chain starts the next one in a new session and goes, so that it is gone soon after it
/// was seen; without a pace a scan of all processes hardly ever sees one of them alive.
fn storm(options: &Options, out: &mut impl Write) -> io::Result<()> {
    let (forkers, pace_ms) = two_numbers(options, (FORKERS_MAX, STORM_PACE_MS));
    let forkers = forkers.clamp(1, FORKERS_MAX);
    let each = format!("{} {pace_ms}", STORM_PROCESSES_MAX / forkers);
    for _ in 0..forkers {
        child(options, "__storm")?.arg(&each).spawn()?;
    }
    say(out, &format!("storm of {forkers}"))
}

fn two_numbers(options: &Options, default: (u64, u64)) -> (u64, u64) {
    let words = options.argument.as_deref().unwrap_or_default();
    let mut numbers = words.split(' ').map(str::parse);
    let mut next = |default| numbers.next().and_then(Result::ok).unwrap_or(default);
    (next(default.0), next(default.1))
}

fn print_for_ever(out: &mut impl Write, line_bytes: u64) -> io::Result<()> {
    let width = usize::try_from(line_bytes).unwrap_or(80).clamp(21, WRITE_BYTES);
    for n in 0_u64.. {
        writeln!(out, "{n:0>width$}", width = width - 1)?;
    }
    Ok(())
}

pub(crate) fn lines(out: &mut impl Write, count: u64) -> io::Result<()> {
    let mut out = io::BufWriter::with_capacity(WRITE_BYTES, out);
    for n in 1..=count {
        writeln!(out, "line {n}")?;
    }
    out.flush()
}

/// A lone continuation byte, an overlong form, a surrogate, a cut character, and a good character whose
/// bytes arrive one by one.
fn invalid_utf8(out: &mut impl Write) -> io::Result<()> {
    for bytes in
        [&b"a\x80b\n"[..], b"\xc0\xaf\n", b"\xed\xa0\x80\n", b"\xff\xfe\0c\n", b"cut \xf0\x9f\n"]
    {
        out.write_all(bytes)?;
        out.flush()?;
    }
    for byte in "whole \u{1f600}\n".bytes() {
        out.write_all(&[byte])?;
        out.flush()?;
        sleep(Duration::from_millis(2));
    }
    Ok(())
}

pub(crate) fn long_line(out: &mut impl Write, bytes: u64) -> io::Result<()> {
    let letters: Vec<u8> = (b'a'..=b'z').cycle().take(WRITE_BYTES / 26 * 26).collect();
    let whole = u64::try_from(letters.len()).unwrap_or(1);
    for _ in 0..bytes / whole {
        out.write_all(&letters)?;
    }
    let rest = usize::try_from(bytes % whole).unwrap_or(0);
    out.write_all(letters.get(..rest).unwrap_or_default())?;
    out.write_all(b"\n")?;
    out.flush()
}

pub(crate) fn die(signal: Option<&str>) -> io::Result<ExitCode> {
    let signal = match signal {
        None | Some("KILL") => Signal::KILL,
        Some("TERM") => Signal::TERM,
        Some("SEGV") => Signal::SEGV,
        Some("ABRT") => Signal::ABORT,
        Some(other) => return Ok(complain(&format!("unknown signal {other}"))),
    };
    kill_process(getpid(), signal)?;
    // The first SEGV meets the runtime's own handler, which steps aside for the second.
    kill_process(getpid(), signal)?;
    stay()
}

pub(crate) fn print_env(out: &mut impl Write) -> io::Result<()> {
    let mut lines: Vec<String> = std::env::vars_os()
        .map(|(key, value)| format!("{}={}", key.to_string_lossy(), value.to_string_lossy()))
        .collect();
    lines.sort();
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    out.flush()
}

pub(crate) fn print_args(out: &mut impl Write, args: &[String]) -> io::Result<()> {
    for arg in args {
        writeln!(out, "{}", serde_json::Value::from(arg.as_str()))?;
    }
    out.flush()
}

pub(crate) fn read_stdin(out: &mut impl Write) -> io::Result<()> {
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    writeln!(out, "stdin: {} bytes", bytes.len())?;
    out.write_all(&bytes)?;
    out.flush()
}

/// What becomes of a connection: whoever is closed at once may neither send nor read to an end.
fn connect(out: &mut impl Write, socket: &str) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    let (mut sent, mut came) = (Vec::new(), Vec::new());
    io::stdin().read_to_end(&mut sent)?;
    let closed = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
    };
    let sending = stream.write_all(&sent).and_then(|()| stream.shutdown(Shutdown::Write));
    let ended = sending.and_then(|()| stream.read_to_end(&mut came).map(drop));
    ended.or_else(|error| if closed(&error) { Ok(()) } else { Err(error) })?;
    writeln!(out, "answer: {} bytes", came.len())?;
    out.write_all(&came)?;
    out.flush()
}

/// A shell tool as the real CLIs run them: a child in a session of its own that holds the pipes.
pub(crate) fn start_tool(life_s: u64) -> io::Result<Pid> {
    let options = Options { life_s, ..Options::default() };
    let tool = child(&options, "__tool")?.spawn()?;
    Ok(Pid::from_child(&tool))
}
