//! A fake of the original's `agent-cli`, written from the description of how the runtime daemon calls it.
//!
//! Arguments, strictly in this order: `--prompt P --save-session --no-yolo [--resume SESSION] --cwd DIR
//! [--provider P] [--model M] [--effort E] [--worktree]`. Anything else is refused with status 64, a missing
//! `--no-yolo` first of all. It prints a first and a last line; the words of the prompt say what happens
//! between them:
//!
//! `exit:N`, `sleep:SECONDS`, `lines:N`, `stderr:N` (lines there), `long-line:BYTES`, `echo-args`, `echo-prompt`,
//! `env`, `read-stdin`, `write-file:NAME`, `ignore-term`, `spawn-tool`, `die`, `die:SIGNAL`, `never-end`.
//!
//! Deliberately absent: a model, and any check of the provider.

use std::fs;
use std::io::{self, Write, stderr, stdout};
use std::process::ExitCode;
use std::slice::Iter;
use std::time::Duration;

use crate::{behaviour, complain};

/// How long it lives at most.
const LIFE_S_MAX: u64 = 120;

#[derive(Debug, Default)]
struct Call {
    prompt: String,
    resume: Option<String>,
    cwd: String,
    provider: Option<String>,
    model: Option<String>,
    effort: Option<String>,
    worktree: bool,
}

/// Plays it.
pub(crate) fn play(args: &[String]) -> io::Result<ExitCode> {
    crate::end_after(LIFE_S_MAX);
    let call = match parse(args) {
        Ok(call) => call,
        Err(reason) => return Ok(complain(&format!("agent-cli: {reason}"))),
    };
    std::env::set_current_dir(&call.cwd)?;
    let mut out = stdout().lock();
    writeln!(out, "agent-cli: session {}", call.resume.as_deref().unwrap_or("fresh"))?;
    out.flush()?;
    for word in call.prompt.split_whitespace() {
        if let Some(status) = obey(word, &call, args, &mut out)? {
            return Ok(status);
        }
    }
    writeln!(out, "agent-cli: done")?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Does what one word of the prompt says; a status ends the run.
fn obey(
    word: &str,
    call: &Call,
    args: &[String],
    out: &mut impl Write,
) -> io::Result<Option<ExitCode>> {
    let (name, argument) = word.split_once(':').unwrap_or((word, ""));
    let number = || argument.parse::<u64>().map_err(io::Error::other);
    match name {
        "exit" => {
            let status = u8::try_from(number()?).map_err(io::Error::other)?;
            return Ok(Some(ExitCode::from(status)));
        }
        "sleep" => std::thread::sleep(Duration::from_secs(number()?)),
        "lines" => behaviour::lines(out, number()?)?,
        "stderr" => behaviour::lines(&mut stderr().lock(), number()?)?,
        "long-line" => behaviour::long_line(out, number()?)?,
        "echo-args" => behaviour::print_args(out, args)?,
        "echo-prompt" => writeln!(out, "{}", call.prompt)?,
        "env" => behaviour::print_env(out)?,
        "read-stdin" => behaviour::read_stdin(out)?,
        "write-file" => fs::write(argument, "written by the fake agent\n")?,
        "ignore-term" => drop(behaviour::ignore_term()?),
        "spawn-tool" => {
            let pid = behaviour::start_tool(LIFE_S_MAX)?;
            writeln!(out, "tool pid={}", pid.as_raw_pid())?;
        }
        "die" => return behaviour::die((!argument.is_empty()).then_some(argument)).map(Some),
        "never-end" => return behaviour::stay().map(Some),
        _ => {}
    }
    out.flush()?;
    Ok(None)
}

fn parse(args: &[String]) -> Result<Call, String> {
    if !args.iter().any(|arg| arg == "--no-yolo") {
        return Err("--no-yolo is missing".to_owned());
    }
    let mut args = args.iter();
    let mut call = Call { prompt: required(&mut args, "--prompt")?, ..Call::default() };
    flag(&mut args, "--save-session")?;
    flag(&mut args, "--no-yolo")?;
    call.resume = optional(&mut args, "--resume")?;
    call.cwd = required(&mut args, "--cwd")?;
    call.provider = optional(&mut args, "--provider")?;
    call.model = optional(&mut args, "--model")?;
    call.effort = optional(&mut args, "--effort")?;
    let worktree = args.as_slice().first().is_some_and(|arg| arg == "--worktree");
    if worktree {
        args.next();
    }
    call.worktree = worktree;
    match args.next() {
        Some(extra) => Err(format!("unexpected argument {extra:?}")),
        None if call.provider.is_some() != call.model.is_some() => {
            Err("--provider and --model come together".to_owned())
        }
        None if call.worktree && call.resume.is_some() => {
            Err("--worktree needs a fresh session".to_owned())
        }
        None => Ok(call),
    }
}

fn flag(args: &mut Iter<'_, String>, name: &str) -> Result<(), String> {
    match args.next() {
        Some(arg) if arg == name => Ok(()),
        other => Err(format!("expected {name}, got {other:?}")),
    }
}

fn required(args: &mut Iter<'_, String>, name: &str) -> Result<String, String> {
    flag(args, name)?;
    let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
    Ok(value.clone())
}

fn optional(args: &mut Iter<'_, String>, name: &str) -> Result<Option<String>, String> {
    if args.as_slice().first().is_some_and(|arg| arg == name) {
        return required(args, name).map(Some);
    }
    Ok(None)
}
