//! Entry points for fuzzing: plain functions over arbitrary bytes. They panic when a promise is
//! broken: no panic inside, what was read can be written and read, a reader always gets on.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use camino::{Utf8Path, Utf8PathBuf};

use crate::client;
use crate::protocol::{self, StopOrder};
use crate::rundir::format::{CHUNK_BYTES_MAX, segment_name};
use crate::rundir::{Chunk, Gap, Item, OUTPUT_DIR, OutputReader};
use crate::shim::scrub::{REDACTED, Scrubber, Secrets, WHOLE_CHARS};
use crate::spec::RunSpec;

/// `data` is what comes over the control socket, in either direction.
pub fn fuzz_frames(data: &[u8]) {
    let mut rest = data;
    while let Ok(Some((kind, body, used))) = protocol::split(rest) {
        let _report = client::decode(kind, body);
        let _order = StopOrder::decode(body);
        if let Ok(spec) = RunSpec::decode(body) {
            let frame = spec.encode().unwrap_or_default();
            let again = match protocol::split(&frame) {
                Ok(Some((_, body, _))) => RunSpec::decode(body).ok(),
                _ => None,
            };
            assert!(again.as_ref() == Some(&spec), "what was read cannot be written and read");
        }
        rest = rest.get(used..).unwrap_or_default();
    }
}

/// `data` is an output log: one byte says where the reader starts, one where the second segment
/// starts (0: there is none) and one how many 256ths of the rest are the first.
pub fn fuzz_output(data: &[u8]) {
    let [from, second, share, log @ ..] = data else { return };
    let (from, second) = (u64::from(*from), u64::from(*second));
    let cut = if second == 0 { log.len() } else { log.len() * usize::from(*share) / 256 };
    let (one, two) = log.split_at(cut);
    let segments: &[(u64, &[u8])] =
        if second == 0 { &[(0, one)] } else { &[(0, one), (second, two)] };
    let Some(dir) = log_of(segments) else { return };
    let whole = read(dir, 0, log.len());
    let later = read(dir, from, log.len());
    // Two segments that overlap say different things of the same place.
    if second == 0 {
        let wanted: Vec<Item> = whole.into_iter().filter_map(|item| after(item, from)).collect();
        assert_eq!(later, wanted, "read from {from}");
    }
}

/// `data` is a secret and what an agent writes: one byte for the secret's length, one for the length
/// of the pieces, the secret, the output.
pub fn fuzz_scrub(data: &[u8]) {
    let [len, piece, rest @ ..] = data else { return };
    let (secret, text) = rest.split_at(usize::from(*len).min(rest.len()));
    let whole = scrub(secret, text, text.len());
    assert!(whole == scrub(secret, text, usize::from(*piece)), "a cut shows");
    let contains = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|at| at == part);
    if !contains(&whole, REDACTED) {
        assert!(whole == text, "output was changed and nothing is said of it");
    }
    let secret = secret.trim_ascii();
    let chars = std::str::from_utf8(secret).map_or(secret.len(), |text| text.chars().count());
    // What is shorter is looked for in some places only; the mark may be a piece of a strange secret.
    if chars < WHOLE_CHARS || secret.contains(&b'[') || secret.contains(&b']') {
        return;
    }
    assert!(contains(REDACTED, secret) || !contains(&whole, secret), "the secret came through");
}

fn scrub(secret: &[u8], text: &[u8], piece: usize) -> Vec<u8> {
    let mut scrubber = Scrubber::new(Secrets::new(&[secret.to_vec()]));
    let mut out = Vec::new();
    for piece in text.chunks(piece.max(1)) {
        scrubber.push(piece, &mut |bytes| out.extend_from_slice(bytes));
    }
    scrubber.finish(&mut |bytes| out.extend_from_slice(bytes));
    out
}

/// A run directory of this process with that log.
fn log_of(segments: &[(u64, &[u8])]) -> Option<&'static Utf8Path> {
    static DIR: OnceLock<Option<Utf8PathBuf>> = OnceLock::new();
    let made = || {
        let name: PathBuf = format!("ostler-fuzz-{}", std::process::id()).into();
        let dir = Utf8PathBuf::from_path_buf(std::env::temp_dir().join(name)).ok()?;
        fs::create_dir_all(dir.join(OUTPUT_DIR)).ok()?;
        Some(dir)
    };
    let dir = DIR.get_or_init(made).as_deref()?;
    for entry in fs::read_dir(dir.join(OUTPUT_DIR)).ok()? {
        fs::remove_file(entry.ok()?.path()).ok()?;
    }
    for (start, bytes) in segments {
        fs::write(dir.join(OUTPUT_DIR).join(segment_name(*start)), bytes).ok()?;
    }
    Some(dir)
}

/// Everything from `from`, each item where the one before it ended.
fn read(dir: &Utf8Path, from: u64, len: usize) -> Vec<Item> {
    let mut items = Vec::new();
    let Ok(mut reader) = OutputReader::open(dir, from) else { return items };
    let mut position = from;
    while let Ok(Some(item)) = reader.next_item() {
        let (offset, next) = match &item {
            Item::Chunk(chunk) => {
                assert!(chunk.bytes.len() <= CHUNK_BYTES_MAX);
                assert_eq!(chunk.next - chunk.offset, chunk.bytes.len() as u64);
                (chunk.offset, chunk.next)
            }
            Item::Gap(gap) => (gap.offset, gap.next),
        };
        assert!(offset == position && next > offset, "{position}: {offset}..{next}");
        position = next;
        assert_eq!(reader.position(), position);
        items.push(item);
        assert!(items.len() <= len, "more items than bytes");
    }
    items
}

/// What of `item` lies at or after `from`.
fn after(item: Item, from: u64) -> Option<Item> {
    match item {
        Item::Chunk(chunk) if chunk.next > from => {
            let offset = chunk.offset.max(from);
            let skip = usize::try_from(offset - chunk.offset).ok()?;
            let bytes = chunk.bytes.get(skip..)?.to_vec();
            Some(Item::Chunk(Chunk { offset, bytes, ..chunk }))
        }
        Item::Gap(Gap { offset, next }) if next > from => {
            Some(Item::Gap(Gap { offset: offset.max(from), next }))
        }
        _ => None,
    }
}
