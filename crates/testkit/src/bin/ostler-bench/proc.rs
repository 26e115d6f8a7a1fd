//! What `/proc` says about a process: private memory and context switches.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often memory is looked at while something runs.
const SAMPLE_MS: u64 = 10;

/// Bytes that only this process has.
pub(crate) fn private_bytes(pid: u32) -> io::Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let kib = rollup
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
    Ok(kib.sum::<u64>() * 1024)
}

/// Times that any of its threads was taken off a processor, willingly or not.
pub(crate) fn context_switches(pid: u32) -> io::Result<u64> {
    let mut switches = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        switches += status
            .lines()
            .filter(|line| line.contains("voluntary_ctxt_switches"))
            .filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok())
            .sum::<u64>();
    }
    Ok(switches)
}

/// How long all threads of a process ran on a processor, and how long they waited for one.
pub(crate) fn processor_time(pid: u32) -> io::Result<(Duration, Duration)> {
    let (mut ran, mut waited) = (0, 0);
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = fs::read_to_string(thread?.path().join("schedstat"))?;
        let mut nanos = stat.split_ascii_whitespace().filter_map(|text| text.parse::<u64>().ok());
        ran += nanos.next().unwrap_or(0);
        waited += nanos.next().unwrap_or(0);
    }
    Ok((Duration::from_nanos(ran), Duration::from_nanos(waited)))
}

/// Watches a process's private memory for its peak.
pub(crate) struct Peak {
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Peak {
    pub(crate) fn watch(pid: u32) -> Self {
        let (stop, bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, peak) = (Arc::clone(&stop), Arc::clone(&bytes));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Ok(now) = private_bytes(pid) {
                    peak.fetch_max(now, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(SAMPLE_MS));
            }
        });
        Self { stop, bytes, thread: Some(thread) }
    }

    pub(crate) fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.bytes.load(Ordering::Relaxed)
    }
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}
