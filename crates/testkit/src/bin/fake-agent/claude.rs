//! A fake of Claude Code in print mode: its stream of JSON lines without a model.
//!
//! The lines have the shape of the real program's, cut down to what a reader may rely on. The prompt comes
//! as an argument or on stdin; its words say what happens: `fail:STATUS` (an API error: `subtype` still says
//! success), `retry` (a retry notice before the answer), `denied` (a permission denial, and success all the
//! same), `give-up` (an error without a known cause: after `denied`, that it could not do without), `garbage` (lines that are no JSON, and unknown types), `sleep:SECONDS`, `write-file:NAME`,
//! `spawn-tool`, `never-end` (no closing statement, and stays), `no-result` (no closing statement, exit 0),
//! `result-and-stay`, `ignore-term`, `exit:N` (after the closing statement), `env`, `die`. A session to resume
//! whose id begins with `unknown` does not exist.
//!
//! Deliberately absent: stream-json input, MCP, hooks.

use std::fs;
use std::io::{self, Read, Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use crate::{behaviour, complain};

/// How long it lives at most.
const LIFE_S_MAX: u64 = 120;
/// The version it claims to be.
const VERSION: &str = "2.1.332";
/// Options that take a value; the others known here are flags.
const VALUED: &[&str] = &[
    "--output-format",
    "--input-format",
    "--model",
    "--effort",
    "--permission-mode",
    "--resume",
    "--session-id",
    "--allowedTools",
    "--disallowedTools",
    "--max-turns",
    "--max-budget-usd",
    "--append-system-prompt",
    "--mcp-config",
    "--settings",
];

/// How it was called.
#[derive(Debug, Default)]
struct Call {
    prompt: Option<String>,
    options: Vec<(String, String)>,
    flags: Vec<String>,
}

impl Call {
    fn option(&self, name: &str) -> Option<&str> {
        let found = self.options.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag == name)
    }

    fn bypasses(&self) -> bool {
        self.flag("--dangerously-skip-permissions")
            || self.option("--permission-mode") == Some("bypassPermissions")
    }
}

/// Plays it.
pub(crate) fn play(args: &[String]) -> io::Result<ExitCode> {
    crate::end_after(LIFE_S_MAX);
    let call = parse(args);
    let mut out = stdout().lock();
    if call.flag("--version") {
        writeln!(out, "{VERSION} (Claude Code)")?;
        return Ok(ExitCode::SUCCESS);
    }
    if call.option("--output-format") != Some("stream-json") || !call.flag("--verbose") {
        return Ok(complain("claude: only --output-format stream-json --verbose is played"));
    }
    let is_sandbox = std::env::var_os("IS_SANDBOX").is_some();
    if call.bypasses() && rustix::process::geteuid().is_root() && !is_sandbox {
        writeln!(
            io::stderr(),
            "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons"
        )?;
        return Ok(ExitCode::FAILURE);
    }
    let prompt = match &call.prompt {
        Some(prompt) => prompt.clone(),
        None => {
            let mut prompt = String::new();
            io::stdin().read_to_string(&mut prompt)?;
            prompt
        }
    };
    Stream::new(&call, &mut out)?.run(&prompt)
}

/// A whole successful run, as the real program prints it.
pub(crate) fn success(out: &mut impl Write, text: &str) -> io::Result<()> {
    let mut stream = Stream::new(&Call::default(), out)?;
    stream.init()?;
    stream.say(text)?;
    stream.result(json!({"subtype": "success", "is_error": false, "result": text, "terminal_reason": "completed"}))
}

fn parse(args: &[String]) -> Call {
    let mut call = Call::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.split_once('=') {
            Some((name, value)) if VALUED.contains(&name) => {
                call.options.push((name.to_owned(), value.to_owned()));
            }
            _ if VALUED.contains(&arg.as_str()) => {
                let value = args.next().cloned().unwrap_or_default();
                call.options.push((arg.clone(), value));
            }
            _ if arg.starts_with('-') => call.flags.push(arg.clone()),
            _ => call.prompt = Some(arg.clone()),
        }
    }
    call
}

/// The lines of one run.
struct Stream<'a, W> {
    out: &'a mut W,
    session: String,
    model: String,
    permission_mode: String,
    denials: Vec<Value>,
}

impl<'a, W: Write> Stream<'a, W> {
    fn new(call: &Call, out: &'a mut W) -> io::Result<Self> {
        let given = call.option("--resume").or(call.option("--session-id"));
        let mode = if call.bypasses() { "bypassPermissions" } else { "default" };
        Ok(Self {
            out,
            session: given.map_or_else(uuid, |id| Ok(id.to_owned()))?,
            model: call.option("--model").unwrap_or("fake-model").to_owned(),
            permission_mode: call.option("--permission-mode").unwrap_or(mode).to_owned(),
            denials: Vec::new(),
        })
    }

    fn run(&mut self, prompt: &str) -> io::Result<ExitCode> {
        if self.session.starts_with("unknown") {
            let message = format!("No conversation found with session ID: {}", self.session);
            writeln!(io::stderr(), "{message}")?;
            self.result(
                json!({"subtype": "error_during_execution", "is_error": true, "errors": [message]}),
            )?;
            return Ok(ExitCode::FAILURE);
        }
        self.init()?;
        let mut status = 0;
        for word in prompt.split_whitespace() {
            let (name, argument) = word.split_once(':').unwrap_or((word, ""));
            match name {
                "exit" => status = argument.parse().map_err(io::Error::other)?,
                "no-result" => return Ok(ExitCode::SUCCESS),
                "never-end" => {
                    self.say("I will think about it.")?;
                    return behaviour::stay();
                }
                "fail" => return self.fail(argument),
                "give-up" => return self.give_up(),
                "die" => return behaviour::die(None),
                _ => self.obey(name, argument)?,
            }
        }
        let text = "All done.";
        self.say(text)?;
        self.result(json!({"subtype": "success", "is_error": false, "api_error_status": null, "result": text,
                           "terminal_reason": "completed"}))?;
        if prompt.split_whitespace().any(|word| word == "result-and-stay") {
            return behaviour::stay();
        }
        Ok(ExitCode::from(status))
    }

    /// What a word of the prompt says, where the run goes on after it.
    fn obey(&mut self, name: &str, argument: &str) -> io::Result<()> {
        match name {
            "retry" => self.retry("500", "unknown"),
            "denied" => self.denied(),
            "garbage" => self.out.write_all(
                b"not json\n\xff\xfe\n{\"type\":\"never_heard_of\",\"n\":1}\n{\"type\":\n",
            ),
            "sleep" => {
                let seconds = argument.parse().map_err(io::Error::other)?;
                std::thread::sleep(Duration::from_secs(seconds));
                Ok(())
            }
            "write-file" => {
                fs::write(argument, "written by the fake agent\n")?;
                self.tool(&format!("echo written > {argument}"), "")
            }
            "spawn-tool" => {
                let pid = behaviour::start_tool(LIFE_S_MAX)?.as_raw_pid();
                self.say(&format!("tool pid={pid}"))
            }
            "env" => {
                let mut lines = Vec::new();
                behaviour::print_env(&mut lines)?;
                self.tool("env", &String::from_utf8_lossy(&lines))
            }
            "ignore-term" => behaviour::ignore_term().map(drop),
            _ => Ok(()),
        }
    }

    fn line(&mut self, mut line: Value) -> io::Result<()> {
        if let Some(fields) = line.as_object_mut() {
            fields.insert("session_id".into(), self.session.clone().into());
            fields.insert("uuid".into(), uuid()?.into());
        }
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }

    fn init(&mut self) -> io::Result<()> {
        let cwd = std::env::current_dir()?.to_string_lossy().into_owned();
        self.line(json!({"type": "system", "subtype": "init", "cwd": cwd, "tools": ["Bash", "Edit", "Read", "Write"],
            "mcp_servers": [], "model": self.model, "permissionMode": self.permission_mode,
            "apiKeySource": "ANTHROPIC_API_KEY", "claude_code_version": VERSION}))
    }

    fn assistant(&mut self, block: Value) -> io::Result<()> {
        let id = format!("msg_{}", uuid()?);
        self.line(json!({"type": "assistant", "parent_tool_use_id": null, "message": {"id": id, "type": "message",
            "role": "assistant", "model": self.model, "content": [block], "stop_reason": null,
            "usage": {"input_tokens": 11, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 5,
                      "output_tokens": 1}}}))
    }

    fn say(&mut self, text: &str) -> io::Result<()> {
        self.assistant(json!({"type": "text", "text": text}))
    }

    fn tool(&mut self, command: &str, output: &str) -> io::Result<()> {
        let id = format!("toolu_{}", uuid()?);
        self.assistant(
            json!({"type": "tool_use", "id": id, "name": "Bash", "input": {"command": command}}),
        )?;
        self.line(json!({"type": "user", "parent_tool_use_id": null, "message": {"role": "user", "content": [
            {"tool_use_id": id, "type": "tool_result", "content": output, "is_error": false}]}}))
    }

    fn denied(&mut self) -> io::Result<()> {
        let id = format!("toolu_{}", uuid()?);
        let input = json!({"command": "touch denied.txt"});
        self.assistant(json!({"type": "tool_use", "id": id, "name": "Bash", "input": input}))?;
        self.line(json!({"type": "system", "subtype": "permission_denied", "tool_name": "Bash", "tool_use_id": id}))?;
        self.denials.push(json!({"tool_name": "Bash", "tool_use_id": id, "tool_input": input}));
        self.line(json!({"type": "user", "parent_tool_use_id": null, "message": {"role": "user", "content": [
            {"tool_use_id": id, "type": "tool_result", "content": "permission denied", "is_error": true}]}}))
    }

    fn retry(&mut self, status: &str, error: &str) -> io::Result<()> {
        let status: u16 = status.parse().map_err(io::Error::other)?;
        self.line(json!({"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 1,
            "retry_delay_ms": 500, "error_status": status, "error": error}))
    }

    fn fail(&mut self, status: &str) -> io::Result<ExitCode> {
        let (error, text) = match status {
            "401" => ("authentication_failed", "Invalid API key · Fix external API key"),
            "429" => ("rate_limit", "API Error: 429 rate limited"),
            _ => ("unknown", "API Error: the server failed"),
        };
        self.retry(status, error)?;
        self.say(text)?;
        let status: u16 = status.parse().map_err(io::Error::other)?;
        self.result(json!({"subtype": "success", "is_error": true, "api_error_status": status, "result": text,
                           "terminal_reason": "api_error"}))?;
        Ok(ExitCode::FAILURE)
    }

    fn give_up(&mut self) -> io::Result<ExitCode> {
        self.result(json!({"subtype": "error_during_execution", "is_error": true, "errors": []}))?;
        Ok(ExitCode::FAILURE)
    }

    /// The closing statement. Its `type` is not its first key, as in the real program.
    fn result(&mut self, fields: Value) -> io::Result<()> {
        let mut line = json!({"duration_api_ms": 57, "total_cost_usd": 0.0023184,
            "usage": {"input_tokens": 304, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 12,
                      "output_tokens": 55},
            "modelUsage": {}, "permission_denials": self.denials, "num_turns": 1, "type": "result", "duration_ms": 649});
        if let (Some(line), Value::Object(fields)) = (line.as_object_mut(), fields) {
            line.extend(fields);
        }
        self.line(line)
    }
}

fn uuid() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim_end().to_owned())
}
