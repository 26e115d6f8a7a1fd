//! Splitting bytes into lines: on LF only, whatever the cuts between the pieces.
//!
//! Two splitters. [`Pieces`] is for text that people read: UTF-8 is decoded as it comes, and a long
//! line goes out in pieces, so that it never waits in memory. [`Whole`] is for lines that are
//! parsed: it keeps a line until its end, and drops one that is too long.

/// Text lines are cut into pieces of at most this many bytes, never inside a character.
pub const PIECE_BYTES_MAX: usize = 4_096;
/// A line to be parsed that is longer than this is dropped and counted.
pub const LINE_BYTES_MAX: usize = 8 * 1_024 * 1_024;
/// A line buffer that grew beyond this is given back after its line.
const BUFFER_KEPT_BYTES_MAX: usize = 65_536;
/// Bytes of an unfinished UTF-8 sequence.
const SEQUENCE_BYTES_MAX: usize = 4;

/// Lines of text in pieces of at most [`PIECE_BYTES_MAX`]; invalid UTF-8 is replaced.
#[derive(Default)]
pub(crate) struct Pieces {
    /// The beginning of a character whose end has not come.
    unfinished: Vec<u8>,
    line: String,
}

impl Pieces {
    /// Takes the next bytes and hands on what is complete.
    pub(crate) fn push(&mut self, bytes: &[u8], emit: &mut dyn FnMut(String)) {
        let mut rest = bytes;
        // A character that was cut: one byte after the other, until it is whole or broken.
        while !self.unfinished.is_empty() {
            let Some((first, tail)) = rest.split_first() else {
                return;
            };
            self.unfinished.push(*first);
            rest = tail;
            let sequence = std::mem::take(&mut self.unfinished);
            self.decode(&sequence, emit);
        }
        self.decode(rest, emit);
    }

    /// The end of the stream: what is left is a line.
    pub(crate) fn finish(&mut self, emit: &mut dyn FnMut(String)) {
        if !std::mem::take(&mut self.unfinished).is_empty() {
            self.text("\u{fffd}", emit);
        }
        if !self.line.is_empty() {
            emit(std::mem::take(&mut self.line));
        }
    }

    fn decode(&mut self, bytes: &[u8], emit: &mut dyn FnMut(String)) {
        let mut rest = bytes;
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => return self.text(text, emit),
                Err(error) => {
                    let (valid, broken) = rest.split_at(error.valid_up_to());
                    self.text(std::str::from_utf8(valid).unwrap_or_default(), emit);
                    let Some(length) = error.error_len() else {
                        debug_assert!(broken.len() < SEQUENCE_BYTES_MAX);
                        self.unfinished.extend_from_slice(broken);
                        return;
                    };
                    self.text("\u{fffd}", emit);
                    rest = broken.get(length..).unwrap_or_default();
                }
            }
        }
    }

    fn text(&mut self, text: &str, emit: &mut dyn FnMut(String)) {
        for part in text.split_inclusive('\n') {
            let (content, ended) = match part.strip_suffix('\n') {
                Some(content) => (content, true),
                None => (part, false),
            };
            self.content(content, emit);
            if ended {
                emit(std::mem::take(&mut self.line));
            }
        }
    }

    /// Adds to the line; every time it is full it goes out. A full line waits for the next
    /// character, so that one of exactly the maximum is followed by no empty piece.
    fn content(&mut self, content: &str, emit: &mut dyn FnMut(String)) {
        let mut rest = content;
        while self.line.len() + rest.len() > PIECE_BYTES_MAX {
            let room = rest.floor_char_boundary(PIECE_BYTES_MAX - self.line.len());
            let (fits, more) = rest.split_at(room);
            self.line.push_str(fits);
            emit(std::mem::take(&mut self.line));
            rest = more;
        }
        self.line.push_str(rest);
    }
}

/// What [`Whole`] found.
pub(crate) enum Found<'a> {
    /// A line, without its LF.
    Line(&'a [u8]),
    /// A line of this length was too long, and dropped.
    Overlong(u64),
}

/// Whole lines of at most [`LINE_BYTES_MAX`].
#[derive(Default)]
pub(crate) struct Whole {
    buffer: Vec<u8>,
    /// How much of a line that is too long has gone by.
    dropped: Option<u64>,
}

impl Whole {
    /// Takes the next bytes and hands on every line they complete.
    pub(crate) fn push(&mut self, bytes: &[u8], emit: &mut dyn FnMut(Found<'_>)) {
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, more) = rest.split_at(end);
            self.add_end(line, emit);
            rest = more.get(1..).unwrap_or_default();
        }
        self.add(rest);
    }

    /// The end of the stream: what is left is a line.
    pub(crate) fn finish(&mut self, emit: &mut dyn FnMut(Found<'_>)) {
        if self.dropped.is_some() || !self.buffer.is_empty() {
            self.add_end(&[], emit);
        }
    }

    fn add_end(&mut self, end: &[u8], emit: &mut dyn FnMut(Found<'_>)) {
        // The usual case: the whole line lies in the piece, and nothing is copied.
        if self.buffer.is_empty() && self.dropped.is_none() && end.len() <= LINE_BYTES_MAX {
            return emit(Found::Line(end));
        }
        self.add(end);
        match self.dropped.take() {
            Some(bytes) => emit(Found::Overlong(bytes)),
            None => emit(Found::Line(&self.buffer)),
        }
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT_BYTES_MAX);
    }

    fn add(&mut self, bytes: &[u8]) {
        let length = bytes.len() as u64;
        if let Some(dropped) = &mut self.dropped {
            *dropped = dropped.saturating_add(length);
        } else if self.buffer.len() + bytes.len() > LINE_BYTES_MAX {
            self.dropped = Some(self.buffer.len() as u64 + length);
            self.buffer = Vec::new();
        } else {
            self.buffer.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(cuts: &[&[u8]]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut splitter = Pieces::default();
        for cut in cuts {
            splitter.push(cut, &mut |line| lines.push(line));
        }
        splitter.finish(&mut |line| lines.push(line));
        lines
    }

    #[test]
    fn r_74_lines_end_at_lf_only() {
        assert_eq!(
            pieces(&["a\r\nb\u{2028}c\u{85}\n\nd".as_bytes()]),
            ["a\r", "b\u{2028}c\u{85}", "", "d"]
        );
        assert_eq!(pieces(&[b"a\n"]), ["a"]);
        assert_eq!(pieces(&[b""]), Vec::<String>::new());
    }

    #[test]
    fn r_75_a_long_line_is_cut_into_pieces_of_4096_bytes() {
        let exact = "x".repeat(PIECE_BYTES_MAX);
        assert_eq!(pieces(&[exact.as_bytes(), b"\n", b"y\n"]), [exact.as_str(), "y"]);
        assert_eq!(pieces(&[exact.as_bytes(), b"y\n"]), [exact.as_str(), "y"]);
        let lines = pieces(&["é".repeat(5_000).as_bytes()]);
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [4_096, 4_096, 1_808]);
        // 4,095 bytes and a character of three: it moves to the next piece as a whole.
        let lines = pieces(&[format!("{}€z", "x".repeat(4_095)).as_bytes()]);
        assert_eq!(lines, ["x".repeat(4_095), "€z".to_owned()]);
    }

    #[test]
    fn r_74_invalid_utf8_is_replaced_as_a_whole_conversion_would() {
        let bytes = b"a\xff\xfe\x00b\xe2\x82\n\xf0\x9f\x98\x80\xe2";
        let whole = String::from_utf8_lossy(bytes);
        assert_eq!(pieces(&[bytes]), whole.split('\n').collect::<Vec<_>>());
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(pieces(&single), pieces(&[bytes]));
    }

    #[test]
    fn r_75_an_overlong_line_is_dropped_counted_and_takes_no_memory() {
        let mut splitter = Whole::default();
        let mut found = Vec::new();
        let chunk = vec![b'x'; 65_536];
        for _ in 0..960 {
            splitter.push(&chunk, &mut |_| panic!("the line has not ended"));
            assert!(splitter.buffer.capacity() <= 2 * LINE_BYTES_MAX);
        }
        assert_eq!(splitter.buffer.capacity(), 0);
        splitter.push(b"yz\nnext\n", &mut |line| {
            found.push(match line {
                Found::Line(line) => String::from_utf8_lossy(line).into_owned(),
                Found::Overlong(bytes) => format!("overlong {bytes}"),
            });
        });
        assert_eq!(found, ["overlong 62914562", "next"]);
    }

    #[test]
    fn a_line_of_exactly_the_maximum_is_kept() {
        let mut splitter = Whole::default();
        let mut lengths = Vec::new();
        let mut emit = |found: Found<'_>| {
            lengths.push(match found {
                Found::Line(line) => line.len() as i64,
                Found::Overlong(bytes) => -i64::try_from(bytes).unwrap(),
            });
        };
        for length in [LINE_BYTES_MAX, LINE_BYTES_MAX + 1] {
            let line = vec![b'x'; length];
            splitter.push(&line, &mut emit);
            splitter.push(b"\n", &mut emit);
            splitter.push(&[line, b"\n".to_vec()].concat(), &mut emit);
        }
        let max = LINE_BYTES_MAX as i64;
        assert_eq!(lengths, [max, max, -max - 1, -max - 1]);
    }
}
