//! Output: drained always, on disk at once, whole within its bounds, without the prompt.

use std::time::{Duration, Instant};

use ostler_core::outcome::Exit;
use ostler_supervise::rundir::{Gap, Item, OutputReader, Stream};
use ostler_supervise::{KeptBytes, Report, StopOrder};

use crate::rig::*;

#[tokio::test]
async fn r_74_both_streams_are_drained_side_by_side() {
    let rig = Rig::new();
    let script = "head -c 3000000 /dev/zero >&2; echo done; head -c 3000000 /dev/zero";
    let mut shim = rig.start(&rig.spec("sh", &["-c", script])).await;
    let end = ended(&mut shim).await;
    assert_eq!((end.exit, end.output_bytes), (Some(Exit::Code(0)), 6_000_005));
    assert_eq!(rig.output(Stream::Stderr).len(), 3_000_000);
    assert_eq!(rig.output(Stream::Stdout).len(), 3_000_005);
}

#[tokio::test]
async fn a_line_is_on_disk_within_milliseconds() {
    let rig = Rig::new();
    let mut shim = rig
        .start(&rig.spec(
            "sh",
            &["-c", "while read x; do :; done; echo one; sleep 0.4; echo two; sleep 60"],
        ))
        .await;
    output(&mut shim, 4).await;
    assert_eq!(rig.stdout(), "one\n");
    let mut reader = OutputReader::open(&rig.dir(), 4).unwrap();
    assert_eq!(reader.next_item().unwrap(), None, "nothing yet, and no error");
    output(&mut shim, 8).await;
    let Some(Item::Chunk(chunk)) = reader.next_item().unwrap() else { panic!("no chunk") };
    let written = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64 - chunk.at_micros;
    assert!(written < 100_000, "{written} µs from the pipe to here");
    assert_eq!((chunk.offset, chunk.next, chunk.bytes.as_slice()), (4, 8, &b"two\n"[..]));
    assert_eq!(reader.next_item().unwrap(), None);
    let mut inside = OutputReader::open(&rig.dir(), 5).unwrap();
    let Some(Item::Chunk(chunk)) = inside.next_item().unwrap() else { panic!("no chunk") };
    assert_eq!((chunk.offset, chunk.bytes.as_slice()), (5, &b"wo\n"[..]));
    shim.stop(StopOrder::Now).await.unwrap();
    ended(&mut shim).await;
}

#[tokio::test]
async fn invalid_utf8_nul_and_control_bytes_are_kept_as_they_are() {
    let rig = Rig::new();
    let mut shim = rig.start(&rig.play(&["bytes"])).await;
    assert_eq!(ended(&mut shim).await.exit, Some(Exit::Code(0)));
    assert_eq!(rig.output(Stream::Stdout), b"\xff\xfe\0\x1b[31m\n\xf0\x9f");
}

#[tokio::test]
async fn an_agent_that_closes_its_output_early_runs_on() {
    let rig = Rig::new();
    let mut shim = rig.start(&rig.play(&["close-stdout"])).await;
    let end = ended(&mut shim).await;
    assert_eq!((end.exit, end.stopped, end.killed), (Some(Exit::Code(7)), false, vec![]));
    assert_eq!(rig.stdout(), "early\n");
}

#[tokio::test]
async fn an_agent_that_says_nothing_and_one_that_dies_at_once() {
    let rig = Rig::new();
    let mut shim = rig.start(&rig.spec("true", &[])).await;
    let end = ended(&mut shim).await;
    assert_eq!((end.exit, end.output_bytes, end.output_end), (Some(Exit::Code(0)), 0, 0));
    assert_eq!(OutputReader::open(&rig.dir(), 0).unwrap().next_item().unwrap(), None);
    let rig = Rig::new();
    let mut shim = rig.start(&rig.spec("sh", &["-c", "kill -ABRT $$"])).await;
    assert_eq!(ended(&mut shim).await.exit, Some(Exit::Signal(6)));
}

fn status(pid: u32, file: &str, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let values = text.lines().filter(|line| line.starts_with(key));
    values.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum()
}

/// Nobody reads the reports while 60 MiB pass: the agent is not slowed and the shim does not grow.
#[tokio::test]
async fn a_line_of_60_mib_survives_byte_for_byte_with_a_slow_reader_and_flat_memory() {
    let rig = Rig::new();
    let mut spec = rig.play(&["big-line", "60"]);
    spec.scrub = vec![b"a prompt that the agent never repeats, with \"quotes\" in it".to_vec()];
    let mut shim = rig.start(&spec).await;
    let pid = shim.identity().pid;
    let mut grown = 0;
    let exit = rig.dir().join("exit.json");
    eventually("the end without a reader", Duration::from_secs(120), || {
        if let Ok(rollup) = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
            let private = rollup.lines().filter(|line| line.starts_with("Private_Dirty"));
            let private: u64 = private
                .map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap())
                .sum();
            grown = grown.max(private);
        }
        exit.exists()
    });
    assert!(grown > 0 && grown < 4096, "{grown} KiB private");
    let end = ended(&mut shim).await;
    assert_eq!(
        (end.exit, end.output_bytes, end.truncated),
        (Some(Exit::Code(0)), (60 << 20) + 1, false)
    );
    assert_eq!((end.output_end, end.write_error), ((60 << 20) + 1, None));
    // Only the newest end was kept for the reader that did not read.
    let mut reader = OutputReader::open(&rig.dir(), 0).unwrap();
    let pattern: Vec<u8> = (0..=255_u8).filter(|byte| *byte != b'\n').collect();
    let (mut at, mut last) = (0_usize, 0);
    while let Some(item) = reader.next_item().unwrap() {
        let Item::Chunk(chunk) = item else { panic!("a gap") };
        assert_eq!(chunk.offset, at as u64);
        for byte in &chunk.bytes {
            if at < 60 << 20 {
                assert_eq!(*byte, pattern[at % 255], "at {at}");
            }
            at += 1;
            last = *byte;
        }
    }
    assert_eq!((at, last), ((60 << 20) + 1, b'\n'));
}

#[tokio::test]
async fn an_idle_shim_is_small() {
    let rig = Rig::new();
    let mut spec = rig.play(&["print-stay"]);
    // The longest prompt there is.
    let prompt: Vec<u8> = b"a long prompt ".iter().copied().cycle().take(512 << 10).collect();
    spec.scrub = vec![prompt.clone()];
    spec.stdin = ostler_supervise::Stdin::Bytes(prompt);
    let mut shim = rig.start(&spec).await;
    output(&mut shim, 7).await;
    let pid = shim.identity().pid;
    let private = status(pid, "smaps_rollup", "Private_Dirty");
    assert!(private < 2048, "{private} KiB private");
    assert_eq!(status(pid, "status", "Threads"), 1);
    shim.stop(StopOrder::Now).await.unwrap();
    ended(&mut shim).await;
}

#[tokio::test]
async fn r_81_the_prompt_never_reaches_the_disk() {
    let rig = Rig::new();
    let prompt = "please fix the \"bug\" in a/b\nand é";
    let script = r#"
        printf 'raw: please fix the "bug" in a/b\nand é.\n'
        printf 'please fix the \\"bu'; sleep 0.1; printf 'g\\" in a\\/b\\nand \\u00e9.\n'
        printf 'please fix the "bug" in a/b\nand é'"#;
    let mut spec = rig.spec("sh", &["-c", script]);
    spec.scrub = vec![prompt.as_bytes().to_vec()];
    let mut shim = rig.start(&spec).await;
    let end = ended(&mut shim).await;
    let shown = "raw: [task input redacted].\n[task input redacted].\n[task input redacted]";
    assert_eq!(rig.stdout(), shown);
    assert_eq!(end.output_end, shown.len() as u64);
    let log = std::fs::read(rig.dir().join("output/00000000000000000000.log")).unwrap();
    let log = String::from_utf8_lossy(&log);
    assert!(!log.contains("please") && !log.contains("and é"), "{log}");
}

#[tokio::test]
async fn r_75_a_stream_longer_than_allowed_ends_the_run() {
    let rig = Rig::new();
    let mut spec = rig.play(&["print-forever"]);
    spec.stream_bytes_max = Some(1 << 20);
    let mut shim = rig.start(&spec).await;
    let end = ended(&mut shim).await;
    assert!(end.overflow && !end.stopped && end.output_bytes > 1 << 20);
    assert_eq!(rig.alive(), Vec::<String>::new());
}

/// The head and the newest stay, the middle is a gap, the disk holds no more than allowed.
#[tokio::test]
async fn r_75_the_middle_of_a_long_output_is_dropped_with_a_visible_gap() {
    let rig = Rig::new();
    let mut spec =
        rig.spec("sh", &["-c", "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"]);
    spec.kept = KeptBytes { head: 16 << 10, total: 64 << 10 };
    let mut shim = rig.start(&spec).await;
    let end = ended(&mut shim).await;
    assert!(end.truncated && end.write_error.is_none(), "{end:?}");
    let on_disk: u64 = std::fs::read_dir(rig.dir().join("output"))
        .unwrap()
        .map(|e| e.unwrap().metadata().unwrap().len())
        .sum();
    assert!(on_disk <= 64 << 10, "{on_disk}");
    let mut reader = OutputReader::open(&rig.dir(), 0).unwrap();
    let (mut gaps, mut head, mut tail, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0);
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            Item::Gap(gap) => {
                assert_eq!(gap.offset, at);
                at = gap.next;
                gaps.push(gap);
            }
            Item::Chunk(chunk) => {
                assert_eq!(chunk.offset, at);
                at = chunk.next;
                if gaps.is_empty() { head.extend(chunk.bytes) } else { tail.extend(chunk.bytes) }
            }
        }
    }
    assert_eq!((gaps.len(), at), (1, end.output_end));
    assert_eq!(head.len() as u64 + gaps[0].dropped_bytes() + tail.len() as u64, end.output_bytes);
    assert!(head.starts_with(b"line 0\nline 1\n") && head.len() >= 16 << 10);
    // The bound counts the frames too, and a line that is read alone is less than its frame.
    assert!(tail.ends_with(b"line 19999\n") && tail.len() > 1 << 10, "{}", tail.len());
    // In the middle of the gap.
    let from = gaps[0].offset + 10;
    let mut reader = OutputReader::open(&rig.dir(), from).unwrap();
    assert_eq!(
        reader.next_item().unwrap(),
        Some(Item::Gap(Gap { offset: from, next: gaps[0].next }))
    );
}

/// A full disk: the pipes are drained all the same, and the record says so.
#[tokio::test]
async fn a_full_disk_stops_no_run() {
    let rig = Rig::new();
    let mount = rig.root().join("small");
    std::fs::create_dir(&mount).unwrap();
    let tmpfs = ["-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", mount.as_str()];
    let mounted = std::process::Command::new("mount").args(tmpfs).status();
    if !mounted.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "CI can mount a small file system");
        eprintln!("skipped: no small file system can be mounted here");
        return;
    }
    let mut spec = rig.spec("sh", &["-c", "head -c 5000000 /dev/zero; echo end >&2; exit 4"]);
    spec.run_dir = mount.join("run");
    std::fs::create_dir(&spec.run_dir).unwrap();
    let mut shim = rig.start(&spec).await;
    let end = ended(&mut shim).await;
    let exit = ostler_supervise::rundir::read_exit(&spec.run_dir).unwrap();
    std::process::Command::new("umount").arg("-l").arg(&mount).status().unwrap();
    assert_eq!((end.exit, end.output_bytes), (Some(Exit::Code(4)), 5_000_004));
    assert!(end.truncated && end.write_error.as_ref().unwrap().contains("No space"), "{end:?}");
    assert_eq!(exit.expect("there was space kept for it").exit(), Some(Exit::Code(4)));
}

/// Reports of output are coalesced; none of the others is lost however late they are read.
#[tokio::test]
async fn a_daemon_that_reads_late_misses_nothing() {
    let rig = Rig::new();
    let mut shim = rig
        .start(&rig.spec("sh", &["-c", "i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); done"]))
        .await;
    eventually("it has ended", DEADLINE, || rig.dir().join("exit.json").exists());
    let mut reports = Vec::new();
    loop {
        let report = next(&mut shim).await;
        let last = matches!(report, Report::Ended(_));
        reports.push(report);
        if last {
            break;
        }
    }
    assert!(matches!(reports[0], Report::Started { .. }));
    let ends: Vec<u64> = reports
        .iter()
        .filter_map(|report| if let Report::Output { end } = report { Some(*end) } else { None })
        .collect();
    assert!(ends.is_sorted() && ends.len() < 100, "{}", ends.len());
    assert!(reports.contains(&Report::LeaderExited(Exit::Code(0))));
    let Some(Report::Ended(end)) = reports.last() else { panic!() };
    assert_eq!(ends.last(), Some(&end.output_end));
}

#[tokio::test]
async fn pipes_held_by_an_outsider_do_not_hold_the_end() {
    let rig = Rig::new();
    let began = Instant::now();
    let mut spec = rig.play(&["leave"]);
    spec.drain_ms = 100;
    spec.keep = vec!["supervise-fixture".into()];
    let mut shim = rig.start(&spec).await;
    let end = ended(&mut shim).await;
    assert_eq!((end.exit, end.kept.len()), (Some(Exit::Code(0)), 1));
    assert!(began.elapsed() < Duration::from_secs(5));
}
