//! Killed after every single disk call of a long scenario, with several patterns of loss; and every
//! single call failing once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use ostler_journal::fake::{FakeDisk, Fault, Loss, Moment};
use ostler_journal::{AppendError, Journal, Opened, Options, SnapshotError, Visit};
use std::collections::HashSet;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const LOSSES: [Loss; 6] =
    [Loss::Nothing, Loss::Everything, Loss::Some(1), Loss::Some(2), Loss::Some(3), Loss::Some(4)];
const MOMENTS: [Moment; 3] = [Moment::Before, Moment::Midway, Moment::After];

fn small() -> Options {
    Options {
        segment_bytes: 4096,
        record_bytes_max: 2000,
        snapshot_bytes_max: 10_000,
        total_bytes_max: 4096 * 64,
        events_keep: 20,
        events_bytes_keep: 6000,
    }
}

/// What a client of the journal knows.
#[derive(Debug, Clone, Default)]
struct Model {
    /// Acknowledged, record 1 first.
    acknowledged: Vec<Vec<u8>>,
    /// Submitted in one call and not answered.
    in_flight: Vec<Vec<u8>>,
    /// The snapshot that was acknowledged, and one that was not answered.
    snapshot: Option<u64>,
    snapshot_in_flight: Option<u64>,
    /// Records below this may be gone.
    floor: u64,
    /// Makes each payload unique, also when a number is used again after a loss.
    made: u64,
    random: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self { floor: 1, random: seed, ..Self::default() }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (self.random >> 33) % bound
    }

    fn payload(&mut self) -> Vec<u8> {
        self.made += 1;
        // Mostly small, some empty, some over several sectors, some full of zeros.
        let bytes = match self.below(10) {
            0 => 0,
            1..=6 => self.below(200),
            7 | 8 => self.below(900),
            _ => self.below(1900),
        };
        let mut payload = format!("{}:", self.made).into_bytes();
        let fill = if self.below(8) == 0 { 0 } else { b'a' + (self.made % 26) as u8 };
        payload.resize(payload.len() + bytes as usize, fill);
        payload.truncate(2000);
        payload
    }

    fn last(&self) -> u64 {
        self.acknowledged.len() as u64
    }

    fn state(&self, sequence: u64) -> Vec<u8> {
        let mut state = format!("state {sequence} ").into_bytes();
        state.resize(30 + (sequence as usize * 97) % 3000, b's');
        state
    }

    fn append(&mut self, journal: &mut Journal<FakeDisk>) -> Result<(), AppendError> {
        let count = 1 + self.below(5);
        let mut batch: Vec<Vec<u8>> = (0..count).map(|_| self.payload()).collect();
        while batch.iter().map(|p| p.len() + 4).sum::<usize>() > 3900 {
            batch.pop();
        }
        let refs: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
        self.in_flight.clone_from(&batch);
        let result = journal.append(&refs);
        if let Ok(last) = &result {
            self.acknowledged.append(&mut self.in_flight);
            assert_eq!(*last, self.last(), "records are numbered in order");
        } else if !journal.is_poisoned() {
            self.in_flight.clear();
        }
        result.map(drop)
    }

    fn snapshot(&mut self, journal: &mut Journal<FakeDisk>) -> Result<(), SnapshotError> {
        let sequence = self.last();
        self.snapshot_in_flight = Some(sequence);
        let floor = self.floor;
        self.floor = floor.max((sequence + 1).saturating_sub(small().events_keep));
        let bytes: u64 = journal.segments().iter().map(|s| s.used_bytes).sum();
        if bytes >= small().events_bytes_keep {
            // By bytes less than `events_keep` may be kept, but never less than a segment.
            self.floor = floor.max(journal.segments().last().unwrap().first_sequence);
        }
        journal.install_snapshot(&self.state(sequence))?;
        self.snapshot = Some(sequence);
        self.snapshot_in_flight = None;
        Ok(())
    }

    /// Opens, and holds what is there against what must be there.
    fn open(&mut self, disk: &FakeDisk) -> Result<Opened<FakeDisk>, ostler_journal::OpenError> {
        let mut snapshot = None;
        let mut seen = Vec::new();
        let opened = Journal::open(disk.clone(), "/j".into(), small(), &mut |visit| {
            match visit {
                Visit::Snapshot { sequence, payload } => {
                    snapshot = Some((sequence, payload.to_vec()))
                }
                Visit::Entry(entry) => seen.push((entry.sequence, entry.payload.to_vec())),
            }
            Ok(())
        })?;
        let (first, last) = (opened.first_sequence, opened.last_sequence);
        let whole = self.last() + self.in_flight.len() as u64;
        assert!(
            last == self.last() || last == whole,
            "{last}: all or nothing of the append in flight"
        );
        if last == whole {
            self.acknowledged.append(&mut self.in_flight);
        }
        self.in_flight.clear();
        assert!(first <= self.floor, "{first}: records from {} are kept", self.floor);
        let expected: Vec<_> = (first..=last)
            .map(|sequence| (sequence, self.acknowledged[sequence as usize - 1].clone()))
            .collect();
        assert!(seen == expected, "records {first} to {last} as submitted");
        let at = snapshot.as_ref().map(|(sequence, _)| *sequence);
        assert!(at == self.snapshot || at == self.snapshot_in_flight, "snapshot {at:?}");
        self.snapshot = at;
        self.snapshot_in_flight = None;
        if let Some((sequence, state)) = snapshot {
            assert!(state == self.state(sequence), "the snapshot is whole");
            assert!(first <= sequence + 1);
        }
        Ok(opened)
    }
}

/// The long scenario. Ends early when the disk stops answering.
fn scenario(disk: &FakeDisk, model: &mut Model) -> Option<()> {
    for _ in 0..3 {
        let mut journal = model.open(disk).ok()?.journal;
        for step in 0..22 {
            match step {
                5 | 12 => drop(journal.ensure_room().ok()?),
                8 | 17 => model.snapshot(&mut journal).ok()?,
                10 => {
                    // Staged in two pieces, synced once.
                    let batch = [model.payload(), model.payload()];
                    model.in_flight = batch.to_vec();
                    journal.write(&[&batch[0]]).ok()?;
                    journal.write(&[&batch[1]]).ok()?;
                    journal.sync().ok()?;
                    model.acknowledged.append(&mut model.in_flight);
                }
                _ => model.append(&mut journal).ok()?,
            }
        }
    }
    Some(())
}

fn calls_of_scenario() -> u64 {
    let disk = FakeDisk::new();
    scenario(&disk, &mut Model::new(7)).unwrap();
    disk.calls()
}

/// After a crash: opens, loses power (what a start has shown stays), goes on, loses power again.
fn goes_on(disk: &FakeDisk, model: &mut Model) {
    drop(model.open(disk).unwrap());
    disk.power_cut(Loss::Everything);
    let mut journal = model.open(disk).unwrap().journal;
    model.append(&mut journal).unwrap();
    model.append(&mut journal).unwrap();
    drop(journal);
    disk.power_cut(Loss::Everything);
    let mut journal = model.open(disk).unwrap().journal;
    model.snapshot(&mut journal).unwrap();
    model.append(&mut journal).unwrap();
    drop(journal);
    disk.power_cut(Loss::Everything);
    drop(model.open(disk).unwrap());
}

#[test]
fn r_79_r_85_killed_after_every_disk_call_nothing_acknowledged_is_lost() {
    let calls = calls_of_scenario();
    assert!(calls > 300, "a long scenario, {calls} calls");
    let mut states = HashSet::new();
    let (mut crashes, mut nested) = (0, 0);
    for call in 1..=calls {
        for moment in MOMENTS {
            let disk = FakeDisk::new();
            let mut model = Model::new(7);
            disk.plan(call, Fault::Kill(moment));
            assert!(scenario(&disk, &mut model).is_none());
            for loss in LOSSES {
                let crashed = disk.fork();
                crashed.power_cut(loss);
                if !states.insert((crashed.tree(), model.last(), model.in_flight.len())) {
                    continue;
                }
                crashes += 1;
                nested += killed_again(&crashed, &model);
                goes_on(&crashed, &mut model.clone());
            }
        }
    }
    println!("{calls} calls, {crashes} states, {nested} killed starts");
    assert!(crashes > 400 && nested > 1000, "{crashes} states, {nested} nested");
}

/// The start after the crash is itself killed after every call, if it has anything to mend.
fn killed_again(crashed: &FakeDisk, model: &Model) -> u64 {
    let trial = crashed.fork();
    let before = trial.calls();
    let mends = !model.clone().open(&trial).unwrap().warnings.is_empty();
    let calls = trial.calls() - before;
    if !mends {
        return 0;
    }
    for call in 1..=calls {
        let (moment, loss) = match call % 2 {
            0 => (Moment::Midway, Loss::Some(call)),
            _ => (Moment::After, Loss::Everything),
        };
        let disk = crashed.fork();
        let mut model = model.clone();
        disk.plan(disk.calls() + call, Fault::Kill(moment));
        assert!(model.clone().open(&disk).is_err());
        disk.power_cut(loss);
        goes_on(&disk, &mut model);
    }
    calls
}

#[test]
fn every_disk_call_failing_once_never_loses_or_repeats() {
    let calls = calls_of_scenario();
    for number in [EIO, ENOSPC] {
        for call in 1..=calls {
            let disk = FakeDisk::new();
            let mut model = Model::new(7);
            disk.plan(call, Fault::Error(number));
            // A process that fails is started again, without a power cut: its pages stay in memory.
            while scenario_until_error(&disk, &mut model) {
                goes_on(&disk.fork(), &mut model.clone());
            }
            for loss in [Loss::Nothing, Loss::Everything, Loss::Some(call)] {
                let crashed = disk.fork();
                crashed.power_cut(loss);
                goes_on(&crashed, &mut model.clone());
            }
        }
    }
}

/// Runs the scenario; on an error asserts the journal's word about it and returns true.
fn scenario_until_error(disk: &FakeDisk, model: &mut Model) -> bool {
    let Ok(opened) = model.open(disk) else {
        return true;
    };
    let mut journal = opened.journal;
    for step in 0..80 {
        let poisoned = match step % 11 {
            3 => journal.ensure_room().is_err_and(|error| matches!(error, AppendError::Io { .. })),
            8 => model.snapshot(&mut journal).is_err_and(|error| error.is_poisoning()),
            _ => model
                .append(&mut journal)
                .is_err_and(|error| !matches!(error, AppendError::Full(_))),
        };
        assert_eq!(poisoned, journal.is_poisoned());
        if poisoned {
            refuses_everything(&mut journal);
            return true;
        }
    }
    false
}

fn refuses_everything(journal: &mut Journal<FakeDisk>) {
    assert!(matches!(journal.append(&[b"x"]), Err(AppendError::Poisoned)));
    assert!(matches!(journal.write(&[b"x"]), Err(AppendError::Poisoned)));
    assert!(matches!(journal.sync(), Err(AppendError::Poisoned)));
    assert!(matches!(journal.ensure_room(), Err(AppendError::Poisoned)));
    assert!(journal.install_snapshot(b"x").is_err_and(|error| error.is_poisoning()));
}
