//! The bytes of a chunk header; the module above documents them.

use super::Stream;

pub(crate) const HEADER_BYTES: usize = 24;
/// The longest payload of one chunk.
pub(crate) const CHUNK_BYTES_MAX: usize = 64 << 10;
const MAGIC: [u8; 3] = *b"OL\x01";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) stream: Stream,
    pub(crate) len: u32,
    pub(crate) at_micros: i64,
    pub(crate) offset: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let fields = MAGIC
            .into_iter()
            .chain([self.stream.code()])
            .chain(self.len.to_le_bytes())
            .chain(self.at_micros.to_le_bytes())
            .chain(self.offset.to_le_bytes());
        for (to, from) in bytes.iter_mut().zip(fields) {
            *to = from;
        }
        bytes
    }

    /// `None` for what is no header of ours.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<3>()?;
        let (stream, rest) = rest.split_first()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (at, rest) = rest.split_first_chunk::<8>()?;
        let (offset, _) = rest.split_first_chunk::<8>()?;
        let (len, offset) = (u32::from_le_bytes(*len), u64::from_le_bytes(*offset));
        let sound = *magic == MAGIC
            && len > 0
            && usize::try_from(len).is_ok_and(|len| len <= CHUNK_BYTES_MAX)
            && offset.checked_add(u64::from(len)).is_some();
        sound.then_some(Self {
            stream: Stream::from_code(*stream)?,
            len,
            at_micros: i64::from_le_bytes(*at),
            offset,
        })
    }
}

/// The file name of the segment that starts at `offset`.
pub(crate) fn segment_name(offset: u64) -> String {
    format!("{offset:020}.log")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written from the layout, so that a change of the code is noticed.
    #[test]
    fn a_header_has_the_documented_bytes() {
        let header = Header { stream: Stream::Stderr, len: 0x0102, at_micros: 3, offset: 0x0405 };
        let bytes = *b"OL\x01\x02\x02\x01\0\0\x03\0\0\0\0\0\0\0\x05\x04\0\0\0\0\0\0";
        assert_eq!(header.encode(), bytes);
        assert_eq!(Header::decode(&bytes), Some(header));
        assert_eq!(Header::decode(&[0; HEADER_BYTES]), None);
        let no_place = Header { offset: u64::MAX - 1, ..header };
        assert_eq!(Header::decode(&no_place.encode()), None, "its end has no offset");
    }
}
