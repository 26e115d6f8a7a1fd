//! The shim's protocol, version 1, frozen: a new daemon meets old shims.
//!
//! One stream socket, the shim's standard input. Every frame is a four-byte big-endian length, one
//! byte of kind, then fields: one byte of tag, a four-byte big-endian length, the bytes. Numbers are
//! eight bytes, big-endian. A field whose tag is unknown is skipped, a frame whose kind is unknown is
//! ignored; anything that must not be ignored gets a new version. The first frame (`PREPARE`) carries
//! the version, and a shim that does not speak it answers `SPAWN_FAILED` and exits.
//!
//! | to the shim | | to the daemon | |
//! |---|---|---|---|
//! | 1 `PREPARE` | the specification | 65 `STARTED` | pid, start time, instant |
//! | 2 `START` | execute it now | 66 `SPAWN_FAILED` | kind, message; final |
//! | 3 `STOP` | order 0 plan, 1 now | 67 `OUTPUT` | end of the log, only the newest |
//! | | | 68 `LEADER_EXITED` | code or signal |
//! | | | 69 `ENDED`, 70 `KILL_FAILED`, 71 `EMPTY` | `exit.json` |
//!
//! The end of the socket tells the shim that the daemon is gone: it ends the run by itself.

use std::io;

/// The one version there is.
pub(crate) const VERSION: u64 = 1;
/// The longest frame; a specification with the longest prompt and a large environment fits.
pub(crate) const FRAME_BYTES_MAX: usize = 16 << 20;

pub(crate) const PREPARE: u8 = 1;
pub(crate) const START: u8 = 2;
pub(crate) const STOP: u8 = 3;
pub(crate) const STARTED: u8 = 65;
pub(crate) const SPAWN_FAILED: u8 = 66;
pub(crate) const OUTPUT: u8 = 67;
pub(crate) const LEADER_EXITED: u8 = 68;
pub(crate) const ENDED: u8 = 69;
pub(crate) const KILL_FAILED: u8 = 70;
pub(crate) const EMPTY: u8 = 71;

/// The tags of fields; a number is never used again for another meaning.
pub(crate) mod tag {
    pub(crate) const VERSION: u8 = 1;
    pub(crate) const RUN_DIR: u8 = 2;
    pub(crate) const MARKER: u8 = 3;
    pub(crate) const PROGRAM: u8 = 4;
    pub(crate) const ARG: u8 = 5;
    pub(crate) const ENV_KEY: u8 = 6;
    pub(crate) const ENV_VALUE: u8 = 7;
    pub(crate) const CWD: u8 = 8;
    pub(crate) const STDIN: u8 = 9;
    pub(crate) const SCRUB: u8 = 10;
    /// The tag of the field, not the bound itself.
    pub(crate) const STREAM_BYTES_MAX: u8 = 11;
    pub(crate) const KEPT_HEAD: u8 = 12;
    pub(crate) const KEPT_TOTAL: u8 = 13;
    pub(crate) const STOP_SIGNAL: u8 = 14;
    pub(crate) const STOP_GRACE_MS: u8 = 15;
    pub(crate) const DRAIN_MS: u8 = 16;
    pub(crate) const KEEP: u8 = 17;
    pub(crate) const GRACE_AFTER_DAEMON_MS: u8 = 18;
    pub(crate) const ORDER: u8 = 32;
    pub(crate) const PID: u8 = 64;
    pub(crate) const START_TIME: u8 = 65;
    pub(crate) const AT_MICROS: u8 = 66;
    pub(crate) const KIND: u8 = 67;
    pub(crate) const MESSAGE: u8 = 68;
    pub(crate) const END: u8 = 69;
    pub(crate) const EXIT_CODE: u8 = 70;
    pub(crate) const EXIT_SIGNAL: u8 = 71;
    pub(crate) const EXIT_JSON: u8 = 72;
}

/// How a run is to be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopOrder {
    /// By the plan of its specification.
    Plan,
    /// By KILL at once.
    Now,
}

impl StopOrder {
    pub(crate) fn encode(self) -> io::Result<Vec<u8>> {
        let mut out = Encoder::new(STOP);
        out.number(tag::ORDER, u64::from(self == Self::Now));
        out.finish()
    }

    /// Anything that is not "by plan" is taken as "at once".
    pub(crate) fn decode(body: &[u8]) -> io::Result<Self> {
        let mut order = Self::Plan;
        for field in Fields::new(body) {
            let (tag, bytes) = field?;
            if tag == tag::ORDER && number(bytes)? != 0 {
                order = Self::Now;
            }
        }
        Ok(order)
    }
}

/// Why a program was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnErrorKind {
    /// There is no such program.
    NotFound,
    /// It is there and cannot be executed.
    NotExecutable,
    /// The directory is missing, no directory, or not accessible.
    BadCwd,
    /// The run directory cannot be used.
    Storage,
    /// Shim and daemon do not understand one another.
    Protocol,
    /// Anything else: no process to be had, an argument too long.
    Other,
}

impl SpawnErrorKind {
    const ALL: [Self; 6] = [
        Self::NotFound,
        Self::NotExecutable,
        Self::BadCwd,
        Self::Storage,
        Self::Protocol,
        Self::Other,
    ];

    /// The name on the wire and in `exit.json`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::NotExecutable => "not_executable",
            Self::BadCwd => "bad_cwd",
            Self::Storage => "storage",
            Self::Protocol => "protocol",
            Self::Other => "other",
        }
    }

    /// The kind of that name; an unknown one is [`Self::Other`].
    pub(crate) fn parse(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).unwrap_or(Self::Other)
    }
}

pub(crate) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed shim frame: {what}"))
}

pub(crate) fn text(bytes: &[u8]) -> io::Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| malformed("text is no UTF-8"))
}

pub(crate) fn number(bytes: &[u8]) -> io::Result<u64> {
    let bytes: [u8; 8] = bytes.try_into().map_err(|_| malformed("a number has eight bytes"))?;
    Ok(u64::from_be_bytes(bytes))
}

/// Builds one frame.
pub(crate) struct Encoder(Vec<u8>);

impl Encoder {
    pub(crate) fn new(kind: u8) -> Self {
        Self(vec![0, 0, 0, 0, kind])
    }

    pub(crate) fn bytes(&mut self, tag: u8, bytes: &[u8]) {
        self.0.push(tag);
        // Too long for the length is too long for the frame, which `finish` refuses.
        self.0.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn number(&mut self, tag: u8, number: u64) {
        self.bytes(tag, &number.to_be_bytes());
    }

    pub(crate) fn finish(mut self) -> io::Result<Vec<u8>> {
        let len = self.0.len() - 4;
        if len > FRAME_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a shim frame has at most {FRAME_BYTES_MAX} bytes, this one {len}"),
            ));
        }
        let header = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
        for (to, from) in self.0.iter_mut().zip(header) {
            *to = from;
        }
        Ok(self.0)
    }
}

/// The fields of a frame's body.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self(body)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = io::Result<(u8, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.0);
        if rest.is_empty() {
            return None;
        }
        let parsed = rest.split_first().and_then(|(tag, rest)| {
            let (len, rest) = rest.split_first_chunk::<4>()?;
            let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
            let (bytes, rest) = rest.split_at_checked(len)?;
            self.0 = rest;
            Some((*tag, bytes))
        });
        Some(parsed.ok_or_else(|| malformed("a field is cut short")))
    }
}

/// The version a `PREPARE` body begins with.
pub(crate) fn version(body: &[u8]) -> io::Result<u64> {
    match Fields::new(body).next() {
        Some(Ok((tag::VERSION, bytes))) => number(bytes),
        _ => Err(malformed("no version")),
    }
}

/// The first frame of `buffer`, once it is whole: kind, body and how many bytes it took.
pub(crate) fn split(buffer: &[u8]) -> io::Result<Option<(u8, &[u8], usize)>> {
    let Some((header, rest)) = buffer.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let len = usize::try_from(u32::from_be_bytes(*header)).unwrap_or(usize::MAX);
    if len == 0 || len > FRAME_BYTES_MAX {
        return Err(malformed("bad length"));
    }
    let Some((kind, body)) = rest.get(..len).and_then(<[u8]>::split_first) else {
        return Ok(None);
    };
    Ok(Some((*kind, body, len + 4)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frozen: an old shim understands exactly these bytes.
    #[test]
    fn version_1_is_frozen_byte_for_byte() {
        assert_eq!(
            StopOrder::Now.encode().unwrap(),
            b"\0\0\0\x0e\x03\x20\0\0\0\x08\0\0\0\0\0\0\0\x01"
        );
        let spec = crate::RunSpec::new("/r".into(), "m".into(), "p".into(), "/c".into());
        let frame = spec.encode().unwrap();
        assert!(frame[4..].starts_with(
            b"\x01\x01\0\0\0\x08\0\0\0\0\0\0\0\x01\x02\0\0\0\x02/r\x03\0\0\0\x01m\x04\0\0\0\x01p\x08\0\0\0\x02/c"
        ));
    }

    #[test]
    fn cut_and_absurd_frames_are_refused_and_unknown_fields_skipped() {
        assert!(split(b"\0\0").unwrap().is_none());
        assert!(split(b"\0\0\0\x05\x01abc").unwrap().is_none());
        assert!(split(b"\0\0\0\0").is_err());
        assert!(split(b"\xff\xff\xff\xff").is_err());
        assert!(Fields::new(b"\x01\0\0\0\x09abc").next().unwrap().is_err());
        assert!(Fields::new(b"\x01\0").next().unwrap().is_err());
        let mut out = Encoder::new(STOP);
        out.bytes(200, b"from the future");
        out.number(tag::ORDER, 1);
        let frame = out.finish().unwrap();
        let (_, body, _) = split(&frame).unwrap().unwrap();
        assert_eq!(StopOrder::decode(body).unwrap(), StopOrder::Now);
        assert!(StopOrder::decode(b"\x20\0\0\0\x01\x01").is_err());
    }
}
