//! The names of a journal's files.

/// The lock of the one writer.
pub(crate) const LOCK: &str = "journal.lock";
/// A segment being allocated.
pub(crate) const SEGMENT_TEMP: &str = "segment.tmp";
/// A snapshot being written.
pub(crate) const SNAPSHOT_TEMP: &str = "snapshot.tmp";
const DIGITS: usize = 20;

/// What a name in the directory says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Lock,
    Temp,
    Segment(u64),
    Snapshot(u64),
    /// Looks like one of ours, is none.
    Malformed,
    Unknown,
}

pub(crate) fn segment_name(number: u64) -> String {
    format!("segment-{number:020}.log")
}

pub(crate) fn snapshot_name(sequence: u64) -> String {
    format!("snapshot-{sequence:020}.snap")
}

pub(crate) fn parse(name: &str) -> Name {
    let numbered = |prefix: &str, suffix: &str| {
        let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
        let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
        if plain { digits.parse().ok() } else { None }
    };
    match name {
        LOCK => Name::Lock,
        SEGMENT_TEMP | SNAPSHOT_TEMP => Name::Temp,
        _ => match (numbered("segment-", ".log"), numbered("snapshot-", ".snap")) {
            (Some(number), _) => Name::Segment(number),
            (_, Some(sequence)) => Name::Snapshot(sequence),
            _ if name.starts_with("segment-") || name.starts_with("snapshot-") => Name::Malformed,
            _ => Name::Unknown,
        },
    }
}
