//! Row 5: a task that prints 60 MiB while ten clients watch its events and ten `ostler task logs` follow it.

use std::io::{BufWriter, Read, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::JoinHandle;
use std::time::Instant;

use serde_json::Value;

use crate::proc::{Peak, mib, private_bytes};
use crate::product::Product;
use crate::report::{Target, note, row};
use crate::wire::{Wire, submit_program};
use crate::{Fault, Options};

/// What the task prints.
const BYTES: u64 = 60 * 1024 * 1024;
const FOLLOWERS: usize = 10;
const TASK: &str = "sixty";

/// The hidden command `print`: lines of growing and shrinking length, so that no reader's buffer fits them.
pub(crate) fn print(bytes: &str) -> Result<(), Fault> {
    let mut left = usize::try_from(bytes.parse::<u64>()?)?;
    let mut out = BufWriter::with_capacity(64 * 1024, std::io::stdout().lock());
    let mut n: u64 = 0;
    while left > 0 {
        let line = line(n);
        let part = line.get(..left.min(line.len())).unwrap_or_default();
        out.write_all(part)?;
        left -= part.len();
        n += 1;
    }
    Ok(out.flush()?)
}

fn line(n: u64) -> Vec<u8> {
    let mut line = format!("{n} ").into_bytes();
    let length = 20 + usize::try_from(n * 7 % 150).unwrap_or(0);
    line.extend((0..length).map(|at| b'a' + u8::try_from(at % 26).unwrap_or(0)));
    line.push(b'\n');
    line
}

/// Length and a checksum that knows the order of bytes.
#[derive(Default, PartialEq, Eq, Clone, Copy, Debug)]
struct Digest {
    bytes: u64,
    sum: u64,
}

impl Digest {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        for byte in bytes {
            self.sum = (self.sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn expected() -> Self {
        let mut digest = Self::default();
        let mut n = 0;
        while digest.bytes < BYTES {
            let line = line(n);
            let left = usize::try_from(BYTES - digest.bytes).unwrap_or(usize::MAX);
            digest.push(line.get(..left.min(line.len())).unwrap_or_default());
            n += 1;
        }
        digest
    }
}

pub(crate) fn measure(options: &Options) -> Result<(), Fault> {
    let (product, mut wire) = Product::started(options, "output")?;
    let expected = Digest::expected();
    let before = private_bytes(product.pid())?;
    let watchers: Vec<_> = (0..FOLLOWERS).map(|_| watch(product.socket())).collect();
    let peak = Peak::watch(product.pid());
    let this = std::env::current_exe()?;
    let this = this.to_str().ok_or("a path that is no UTF-8")?;
    let begin = Instant::now();
    wire.call(&submit_program(TASK, &[this, "print", &BYTES.to_string()]))?;
    let followers: Result<Vec<_>, Fault> = (0..FOLLOWERS).map(|_| follow(&product)).collect();
    let end = wire.until_settled(TASK)?;
    let settled = begin.elapsed();
    let complete = followers?.into_iter().filter_map(|it| it.join().ok()?.ok());
    let complete = complete.filter(|digest| *digest == expected).count();
    let followed = begin.elapsed();
    let mut saw = 0;
    for watcher in watchers {
        let last = watcher.join().map_err(|_| "a watcher panicked")??;
        saw += usize::from(last == end);
    }
    let peak = peak.end();
    row("60 MiB, 10 followers: complete followers", complete as f64, "", Target::AtLeast(10.0));
    row("60 MiB, 10 clients: saw every event and the end", saw as f64, "", Target::AtLeast(10.0));
    row("60 MiB: daemon's private memory, peak", mib(peak), "MiB", Target::AtMost(48.0));
    note(&format!(
        "settled after {:.2} s, last follower after {:.2} s; private memory before {:.1} MiB, after {:.1} MiB; receipt says {} bytes",
        settled.as_secs_f64(),
        followed.as_secs_f64(),
        mib(before),
        mib(private_bytes(product.pid())?),
        end["receipt"]["output_bytes"]
    ));
    Ok(())
}

/// `ostler task logs -f --raw`, read to its end.
fn follow(product: &Product) -> Result<JoinHandle<Result<Digest, Fault>>, Fault> {
    let mut child = product
        .command()
        .args(["task", "logs", "-f", "--raw", TASK])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdout = child.stdout.take().ok_or("no stdout")?;
    Ok(std::thread::spawn(move || {
        let mut digest = Digest::default();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = stdout.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            digest.push(buffer.get(..count).unwrap_or_default());
        }
        let status = child.wait()?;
        if status.success() {
            Ok(digest)
        } else {
            Err(format!("a follower ended with {status}").into())
        }
    }))
}

/// A client that reads every event until the task has ended; the last payload.
fn watch(socket: PathBuf) -> JoinHandle<Result<Value, Fault>> {
    std::thread::spawn(move || {
        let mut wire = Wire::connect(&socket)?;
        let mut last = None;
        loop {
            let message = wire.message()?;
            if message["type"] != "event" {
                continue;
            }
            let event = &message["event"];
            let sequence = event["sequenceNumber"].as_u64();
            if last.is_some() && sequence != last.map(|last: u64| last + 1) {
                return Err(format!("event {sequence:?} after {last:?}").into());
            }
            last = sequence;
            let payload = &event["payload"];
            let running = payload["status"] == "TaskQueued" || payload["status"] == "TaskRunning";
            if payload["taskId"] == TASK && !running {
                return Ok(payload.clone());
            }
        }
    })
}
