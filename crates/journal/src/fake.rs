//! A machine with a disk that loses what was not synced: for tests of whoever writes through
//! [`Disk`]. Unsynced sectors and names each survive a power cut or not, as a [`Loss`] says; a
//! failed sync forgets what it should have written; a fault can hit any single call.
//!
//! Clones are processes on the same machine; [`FakeDisk::fork`] is another machine with the same
//! state. Harsher than real file systems: names survive or vanish in any combination, and a synced
//! file may lose its name.

use crate::disk::{Disk, Facts, Kind, Lock};
use camino::Utf8Path;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SECTOR_BYTES: usize = 512;
const ENOSPC: i32 = 28;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;

/// What a power cut takes of everything unsynced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Nothing: only the processes died.
    Nothing,
    /// All of it.
    Everything,
    /// About half of the sectors and names, chosen by the seed.
    Some(u64),
}

/// When, within one call, the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before it has any effect.
    Before,
    /// A write has put down its first half, anything else nothing.
    Midway,
    /// It has happened, but nobody learnt of it.
    After,
}

/// What hits a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies: this and every later call of it fails.
    Kill(Moment),
    /// The call fails with this error number and has no effect; a failed sync also forgets what was
    /// to be written, as Linux does, so that a later sync succeeds without writing it.
    Error(i32),
}

#[derive(Debug, Clone)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
    kind: Kind,
    owned: bool,
}

#[derive(Debug, Clone)]
enum Change {
    Add(String, u64),
    Take(String),
    Move(String, String, u64),
}

#[derive(Debug, Clone, Default)]
struct Machine {
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    changes: Vec<Change>,
    dir_made: bool,
    next_inode: u64,
    free_bytes: Option<u64>,
    calls: u64,
    fault: Option<(u64, Fault)>,
    killed: bool,
    next_process: u64,
    locked_by: Option<u64>,
}

/// One process's view of the machine.
#[derive(Debug)]
pub struct FakeDisk {
    machine: Arc<Mutex<Machine>>,
    process: u64,
}

/// An open file of a [`FakeDisk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FakeFile(u64);

impl Default for FakeDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for FakeDisk {
    fn clone(&self) -> Self {
        let mut machine = self.machine();
        machine.next_process += 1;
        Self { machine: Arc::clone(&self.machine), process: machine.next_process }
    }
}

impl Drop for FakeDisk {
    fn drop(&mut self) {
        let mut machine = self.machine();
        if machine.locked_by == Some(self.process) {
            machine.locked_by = None;
        }
    }
}

impl FakeDisk {
    /// An empty machine.
    pub fn new() -> Self {
        Self { machine: Arc::default(), process: 0 }
    }

    /// Another machine in the same state, with no fault planned and nobody running.
    pub fn fork(&self) -> Self {
        let mut machine = self.machine().clone();
        machine.fault = None;
        machine.killed = false;
        machine.locked_by = None;
        Self { machine: Arc::new(Mutex::new(machine)), process: 0 }
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.machine().calls
    }

    /// `fault` hits call number `call` (the next is `calls() + 1`).
    pub fn plan(&self, call: u64, fault: Fault) {
        self.machine().fault = Some((call, fault));
    }

    /// How many more bytes files may grow by.
    pub fn set_free_bytes(&self, free_bytes: Option<u64>) {
        self.machine().free_bytes = free_bytes;
    }

    /// All processes die, the machine loses what `loss` says, and it is up again.
    pub fn power_cut(&self, loss: Loss) {
        let mut machine = self.machine();
        machine.fault = None;
        machine.killed = false;
        machine.locked_by = None;
        if loss != Loss::Nothing {
            machine.lose(loss);
        }
    }

    /// Every name and its bytes, as a process sees them.
    pub fn tree(&self) -> BTreeMap<String, Vec<u8>> {
        let machine = self.machine();
        let read = |id: &u64| machine.inodes.get(id).map(|inode| inode.now.clone());
        let names = machine.names.iter();
        names.map(|(name, id)| (name.clone(), read(id).unwrap_or_default())).collect()
    }

    /// Puts a durable file there, replacing what was.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        self.put_kind(name, bytes, Kind::File, true);
    }

    /// Puts something of any kind and owner there.
    pub fn put_kind(&self, name: &str, bytes: Vec<u8>, kind: Kind, owned: bool) {
        let mut machine = self.machine();
        machine.dir_made = true;
        let id = machine.add_inode(kind, owned);
        if let Some(inode) = machine.inodes.get_mut(&id) {
            inode.durable.clone_from(&bytes);
            inode.now = bytes;
        }
        machine.names.insert(name.to_owned(), id);
        machine.durable_names.insert(name.to_owned(), id);
    }

    /// Takes a name away durably.
    pub fn take(&self, name: &str) {
        let mut machine = self.machine();
        machine.names.remove(name);
        machine.durable_names.remove(name);
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one call under the planned fault. `midway` is what a write does when cut in two.
    fn call<T>(
        &self,
        midway: impl FnOnce(&mut Machine),
        run: impl FnOnce(&mut Machine) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut machine = self.machine();
        if machine.killed {
            return Err(killed());
        }
        machine.calls += 1;
        let hit = machine.fault.filter(|(call, _)| *call == machine.calls);
        match hit.map(|(_, fault)| fault) {
            None => run(&mut machine),
            Some(Fault::Error(number)) => {
                midway(&mut machine);
                Err(io::Error::from_raw_os_error(number))
            }
            Some(Fault::Kill(moment)) => {
                match moment {
                    Moment::Before => {}
                    Moment::Midway => midway(&mut machine),
                    Moment::After => drop(run(&mut machine)),
                }
                machine.killed = true;
                Err(killed())
            }
        }
    }
}

fn killed() -> io::Error {
    io::Error::other("the process was killed")
}

fn error<T>(number: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(number))
}

impl Machine {
    fn add_inode(&mut self, kind: Kind, owned: bool) -> u64 {
        self.next_inode += 1;
        let inode =
            Inode { now: Vec::new(), durable: Vec::new(), dirty: BTreeSet::new(), kind, owned };
        self.inodes.insert(self.next_inode, inode);
        self.next_inode
    }

    fn named(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().map_or_else(|| error(ENOENT), Ok)
    }

    fn facts(&self, id: u64) -> io::Result<Facts> {
        let inode = self.inodes.get(&id).map_or_else(|| error(ENOENT), Ok)?;
        Ok(Facts {
            kind: inode.kind,
            owned: inode.owned,
            private: true,
            bytes: inode.now.len() as u64,
        })
    }

    fn write(&mut self, id: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let inode = self.inodes.get_mut(&id).map_or_else(|| error(ENOENT), Ok)?;
        let grown = (start + bytes.len()).saturating_sub(inode.now.len()) as u64;
        let fits = match &mut self.free_bytes {
            Some(free) if *free < grown => {
                let fits = bytes.len().saturating_sub(usize::try_from(grown - *free).unwrap_or(0));
                *free = 0;
                fits
            }
            Some(free) => {
                *free -= grown;
                bytes.len()
            }
            None => bytes.len(),
        };
        inode.set(start, bytes.get(..fits).unwrap_or_default());
        if fits < bytes.len() { error(ENOSPC) } else { Ok(()) }
    }

    /// The bytes of a file nobody can name any more are free again.
    fn release(&mut self, id: u64) {
        let named = self.names.values().any(|other| *other == id);
        if let (false, Some(free), Some(inode)) =
            (named, &mut self.free_bytes, self.inodes.get(&id))
        {
            *free += inode.now.len() as u64;
        }
    }

    fn lose(&mut self, loss: Loss) {
        for (id, inode) in &mut self.inodes {
            for sector in std::mem::take(&mut inode.dirty) {
                if survives(loss, *id, sector as u64) {
                    inode.flush(sector);
                }
            }
            inode.now.clone_from(&inode.durable);
        }
        for (place, change) in std::mem::take(&mut self.changes).into_iter().enumerate() {
            if survives(loss, u64::MAX, place as u64) {
                change.apply(&mut self.durable_names);
            }
        }
        self.names.clone_from(&self.durable_names);
    }
}

impl Inode {
    fn set(&mut self, start: usize, bytes: &[u8]) {
        let end = start + bytes.len();
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        if let Some(place) = self.now.get_mut(start..end) {
            place.copy_from_slice(bytes);
        }
        self.dirty.extend(start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
    }

    fn flush(&mut self, sector: usize) {
        let start = sector * SECTOR_BYTES;
        let end = (start + SECTOR_BYTES).min(self.now.len());
        if self.durable.len() < end {
            self.durable.resize(end, 0);
        }
        if let (Some(to), Some(from)) = (self.durable.get_mut(start..end), self.now.get(start..end))
        {
            to.copy_from_slice(from);
        }
    }
}

impl Change {
    fn apply(self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Add(name, id) => drop(names.insert(name, id)),
            Self::Take(name) => drop(names.remove(&name)),
            Self::Move(from, to, id) => {
                names.remove(&from);
                names.insert(to, id);
            }
        }
    }
}

/// A coin for each sector and name, the same for the same seed.
fn survives(loss: Loss, file: u64, place: u64) -> bool {
    let seed = match loss {
        Loss::Nothing => return true,
        Loss::Everything => return false,
        Loss::Some(seed) => seed,
    };
    let mut mixed = seed ^ file.rotate_left(24) ^ place.rotate_left(48);
    for _ in 0..3 {
        mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    mixed >> 63 == 1
}

impl Disk for FakeDisk {
    type File = FakeFile;

    fn enter(&mut self, _dir: &Utf8Path) -> io::Result<Facts> {
        self.call(
            |_| {},
            |machine| match machine.dir_made {
                false => error(ENOENT),
                true => Ok(Facts { kind: Kind::Dir, owned: true, private: true, bytes: 0 }),
            },
        )
    }

    fn make_dir(&mut self, _dir: &Utf8Path) -> io::Result<()> {
        self.call(
            |_| {},
            |machine| {
                machine.dir_made = true;
                Ok(())
            },
        )
    }

    fn lock(&mut self, name: &str) -> io::Result<Lock> {
        let process = self.process;
        self.call(
            |_| {},
            |machine| {
                if machine.locked_by.is_some() {
                    return Ok(Lock::Held);
                }
                machine.locked_by = Some(process);
                if !machine.names.contains_key(name) {
                    let id = machine.add_inode(Kind::File, true);
                    machine.names.insert(name.to_owned(), id);
                    machine.changes.push(Change::Add(name.to_owned(), id));
                }
                Ok(Lock::Taken)
            },
        )
    }

    fn unlock(&mut self, _name: &str) {
        let mut machine = self.machine();
        if machine.locked_by == Some(self.process) {
            machine.locked_by = None;
        }
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        self.call(|_| {}, |machine| Ok(machine.names.keys().cloned().collect()))
    }

    fn facts(&mut self, name: &str) -> io::Result<Facts> {
        self.call(|_| {}, |machine| machine.named(name).and_then(|id| machine.facts(id)))
    }

    fn open(&mut self, name: &str, _write: bool) -> io::Result<(FakeFile, Facts)> {
        self.call(
            |_| {},
            |machine| {
                let id = machine.named(name)?;
                Ok((FakeFile(id), machine.facts(id)?))
            },
        )
    }

    fn create(&mut self, name: &str) -> io::Result<FakeFile> {
        self.call(
            |_| {},
            |machine| {
                if machine.names.contains_key(name) {
                    return error(EEXIST);
                }
                let id = machine.add_inode(Kind::File, true);
                machine.names.insert(name.to_owned(), id);
                machine.changes.push(Change::Add(name.to_owned(), id));
                Ok(FakeFile(id))
            },
        )
    }

    fn read_at(&mut self, file: &FakeFile, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.call(
            |_| {},
            |machine| {
                let start = usize::try_from(offset).map_err(io::Error::other)?;
                let inode = machine.inodes.get(&file.0);
                let found = inode.and_then(|inode| inode.now.get(start..start + buffer.len()));
                let found = found.ok_or(io::ErrorKind::UnexpectedEof)?;
                buffer.copy_from_slice(found);
                Ok(())
            },
        )
    }

    fn write_at(&mut self, file: &FakeFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let half = bytes.get(..bytes.len() / 2).unwrap_or_default();
        self.call(
            |machine| drop(machine.write(file.0, offset, half)),
            |machine| machine.write(file.0, offset, bytes),
        )
    }

    fn sync(&mut self, file: &FakeFile) -> io::Result<()> {
        // A failed (or killed midway) sync: half of the sectors arrive, and all count as clean.
        let forget = |machine: &mut Machine| {
            if let Some(inode) = machine.inodes.get_mut(&file.0) {
                for sector in std::mem::take(&mut inode.dirty) {
                    if sector % 2 == 1 {
                        inode.flush(sector);
                    }
                }
            }
        };
        self.call(forget, |machine| {
            let inode = machine.inodes.get_mut(&file.0).map_or_else(|| error(ENOENT), Ok)?;
            for sector in std::mem::take(&mut inode.dirty) {
                inode.flush(sector);
            }
            Ok(())
        })
    }

    fn make_private(&mut self, _name: Option<&str>) -> io::Result<()> {
        self.call(|_| {}, |_| Ok(()))
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.call(
            |_| {},
            |machine| {
                let id = machine.named(from)?;
                machine.names.remove(from);
                let replaced = machine.names.insert(to.to_owned(), id);
                if let Some(replaced) = replaced {
                    machine.release(replaced);
                }
                let change = Change::Move(from.to_owned(), to.to_owned(), id);
                machine.changes.push(change);
                Ok(())
            },
        )
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.call(
            |_| {},
            |machine| {
                let id = machine.named(name)?;
                machine.names.remove(name);
                machine.release(id);
                machine.changes.push(Change::Take(name.to_owned()));
                Ok(())
            },
        )
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        self.call(
            |_| {},
            |machine| {
                machine.durable_names.clone_from(&machine.names);
                machine.changes.clear();
                Ok(())
            },
        )
    }
}
