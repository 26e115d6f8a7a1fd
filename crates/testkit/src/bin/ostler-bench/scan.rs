//! Reads frames without reading JSON: the daemon writes `type` first, so a few bytes say what a frame is.
//! A frame that is none of those known is an error, so a change of the format cannot go unnoticed.

use crate::Fault;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// The sequence, and the whole body.
    Event(u64, &'a [u8]),
    /// Whether the command was accepted, and the body.
    Answer(bool, &'a [u8]),
    /// The sequence that the state is of.
    Snapshot(u64),
    Heartbeat(u64),
    Welcome,
}

const EVENT: &[u8] = br#"{"type":"event","event":{"sequenceNumber":"#;
const ANSWER: &[u8] = br#"{"type":"command_result","id":"#;
const SNAPSHOT: &[u8] = br#"{"type":"snapshot_chunk","sequence":"#;
const HEARTBEAT: &[u8] = br#"{"type":"heartbeat","sequence":"#;
const WELCOME: &[u8] = br#"{"type":"welcome","#;
const ACCEPTED: &[u8] = br#","ok":true,"#;
/// Where `ok` must be found in an answer.
const ANSWER_HEAD_BYTES: usize = 96;

/// Takes the frames of one connection apart.
#[derive(Default)]
pub(crate) struct Scanner {
    buffer: Vec<u8>,
    start: usize,
}

impl Scanner {
    /// Takes the next bytes of the connection.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, Fault> {
        let Some((header, rest)) =
            self.buffer.get(self.start..).and_then(|left| left.split_first_chunk::<4>())
        else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*header) as usize;
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        self.start += 4 + length;
        frame(body).map(Some)
    }
}

fn frame(body: &[u8]) -> Result<Frame<'_>, Fault> {
    if let Some(rest) = body.strip_prefix(EVENT) {
        return Ok(Frame::Event(number(rest), body));
    }
    if body.starts_with(ANSWER) {
        let head = body.get(..ANSWER_HEAD_BYTES.min(body.len())).unwrap_or_default();
        return Ok(Frame::Answer(memchr::memmem::find(head, ACCEPTED).is_some(), body));
    }
    if let Some(rest) = body.strip_prefix(SNAPSHOT) {
        return Ok(Frame::Snapshot(number(rest)));
    }
    if let Some(rest) = body.strip_prefix(HEARTBEAT) {
        return Ok(Frame::Heartbeat(number(rest)));
    }
    if body.starts_with(WELCOME) {
        return Ok(Frame::Welcome);
    }
    let head = body.get(..80.min(body.len())).unwrap_or_default();
    Err(format!("an unexpected frame: {}", String::from_utf8_lossy(head)).into())
}

fn number(digits: &[u8]) -> u64 {
    digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart_wherever_they_are_cut() {
        let bodies: [&[u8]; 3] = [
            br#"{"type":"event","event":{"sequenceNumber":17,"eventType":"task_changed"}}"#,
            br#"{"type":"command_result","id":"1","ok":true,"error":null}"#,
            br#"{"type":"command_result","id":"2","ok":false,"error":"no"}"#,
        ];
        let mut scanner = Scanner::default();
        let mut seen = Vec::new();
        for body in bodies {
            let length = u32::try_from(body.len()).unwrap();
            for byte in length.to_be_bytes().iter().chain(body) {
                scanner.push(&[*byte]);
                match scanner.next().unwrap() {
                    Some(Frame::Event(sequence, _)) => seen.push(sequence),
                    Some(Frame::Answer(ok, _)) => seen.push(u64::from(ok)),
                    _ => {}
                }
            }
        }
        assert_eq!(seen, [17, 1, 0]);
        scanner.push(b"\0\0\0\x04what");
        assert!(scanner.next().is_err());
    }
}
