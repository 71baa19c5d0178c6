//! Frames of SPDY/3.1, which are the same in both directions: taking them apart and putting them together.
//!
//! Data are handed on as they arrive, so the length of their frame does not matter. A control frame is collected, and
//! its length is bounded.

use crate::protocol::{ProtocolError, StreamId};

const VERSION: u16 = 3;
/// Bytes of a control frame: far more than the headers of any client.
const MAX_CONTROL: usize = 64 * 1024;
/// Bytes of a frame's head.
const HEAD: usize = 8;
/// The flag of a sender's last frame on a stream.
pub(super) const FIN: u8 = 1;
/// A stream's number has 31 bits.
pub(super) const NUMBER: u32 = 0x7FFF_FFFF;

/// Why a stream is reset.
#[derive(Debug, Clone, Copy)]
pub(super) enum ResetStatus {
    RefusedStream = 3,
    Cancel = 5,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ControlType {
    SynStream = 1,
    SynReply = 2,
    RstStream = 3,
    Settings = 4,
    Ping = 6,
    GoAway = 7,
    Headers = 8,
    WindowUpdate = 9,
}

impl ControlType {
    /// `None` for types that nobody knows, which are skipped.
    fn of(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::SynStream,
            2 => Self::SynReply,
            3 => Self::RstStream,
            4 => Self::Settings,
            6 => Self::Ping,
            7 => Self::GoAway,
            8 => Self::Headers,
            9 => Self::WindowUpdate,
            _ => return None,
        })
    }
}

/// A frame, or the piece of one that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// A piece of data, never empty.
    Data { stream: StreamId, bytes: &'a [u8] },
    /// The last frame of data on its stream is complete.
    LastData { stream: StreamId },
    Control {
        kind: ControlType,
        last: bool,
        payload: Vec<u8>,
    },
}

/// What of the next frame is there.
#[derive(Debug)]
enum Reading {
    Head(Vec<u8>),
    Data {
        stream: StreamId,
        last: bool,
        left: usize,
    },
    Control {
        kind: Option<ControlType>,
        last: bool,
        length: usize,
        payload: Vec<u8>,
    },
}

impl Reading {
    fn start() -> Self {
        Self::Head(Vec::with_capacity(HEAD))
    }
}

/// Takes frames apart.
#[derive(Debug)]
pub(super) struct FrameReader {
    reading: Reading,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self {
            reading: Reading::start(),
        }
    }
}

impl FrameReader {
    /// Takes the next frame, or what there is of it, off the front of the bytes; `None` if that takes more of them.
    pub(super) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Frame<'a>>, ProtocolError> {
        loop {
            match &mut self.reading {
                Reading::Head(head) => {
                    head.extend_from_slice(take(bytes, HEAD - head.len()));
                    match head.first_chunk::<HEAD>() {
                        Some(head) => self.reading = parse_head(*head)?,
                        None => return Ok(None),
                    }
                }
                Reading::Data {
                    stream,
                    last,
                    left: 0,
                } => {
                    let ended = last.then_some(Frame::LastData { stream: *stream });
                    self.reading = Reading::start();
                    if ended.is_some() {
                        return Ok(ended);
                    }
                }
                Reading::Data { stream, left, .. } => {
                    let piece = take(bytes, *left);
                    *left -= piece.len();
                    let (stream, bytes) = (*stream, piece);
                    return Ok((!bytes.is_empty()).then_some(Frame::Data { stream, bytes }));
                }
                Reading::Control {
                    kind,
                    last,
                    length,
                    payload,
                } => {
                    payload.extend_from_slice(take(bytes, *length - payload.len()));
                    if payload.len() < *length {
                        return Ok(None);
                    }
                    let (kind, last, payload) = (*kind, *last, std::mem::take(payload));
                    self.reading = Reading::start();
                    if let Some(kind) = kind {
                        return Ok(Some(Frame::Control { kind, last, payload }));
                    }
                }
            }
        }
    }
}

/// Takes up to `most` bytes off the front.
fn take<'a>(bytes: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(bytes.len().min(most));
    *bytes = rest;
    taken
}

fn parse_head(head: [u8; HEAD]) -> Result<Reading, ProtocolError> {
    let first = word(&head, 0)?;
    // 24 bits always fit.
    let length = (word(&head, 4)? & 0x00FF_FFFF) as usize;
    let last = head[4] & FIN != 0;
    if first & !NUMBER == 0 {
        return Ok(Reading::Data {
            stream: first,
            last,
            left: length,
        });
    }
    if u16::from_be_bytes([head[0] & 0x7F, head[1]]) != VERSION {
        return Err(ProtocolError::Version);
    }
    if length > MAX_CONTROL {
        return Err(ProtocolError::Frame);
    }
    Ok(Reading::Control {
        kind: ControlType::of(u16::from_be_bytes([head[2], head[3]])),
        last,
        length,
        payload: Vec::new(),
    })
}

/// The number at a place of a payload.
pub(super) fn word(payload: &[u8], at: usize) -> Result<u32, ProtocolError> {
    let bytes = payload.get(at..).and_then(|rest| rest.first_chunk());
    bytes
        .map(|bytes| u32::from_be_bytes(*bytes))
        .ok_or(ProtocolError::Frame)
}

pub(super) fn put_control(output: &mut Vec<u8>, kind: ControlType, flags: u8, body: &[u8]) {
    output.extend((0x8000 | VERSION).to_be_bytes());
    output.extend((kind as u16).to_be_bytes());
    put_body(output, flags, body);
}

pub(super) fn put_data(output: &mut Vec<u8>, stream: StreamId, flags: u8, bytes: &[u8]) {
    output.extend(stream.to_be_bytes());
    put_body(output, flags, bytes);
}

fn put_body(output: &mut Vec<u8>, flags: u8, body: &[u8]) {
    debug_assert!(body.len() < 1 << 24);
    let length = body.len().to_be_bytes();
    output.push(flags);
    output.extend_from_slice(&length[length.len() - 3..]);
    output.extend_from_slice(body);
}

pub(super) fn put_reset(output: &mut Vec<u8>, stream: StreamId, status: ResetStatus) {
    let body = [stream.to_be_bytes(), (status as u32).to_be_bytes()].concat();
    put_control(output, ControlType::RstStream, 0, &body);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The frames in the bytes, which come in pieces of the given size; data are joined again.
    fn frames(bytes: &[u8], piece: usize) -> Result<Vec<String>, ProtocolError> {
        let mut reader = FrameReader::default();
        let mut all: Vec<String> = Vec::new();
        let mut data = Vec::new();
        for mut piece in bytes.chunks(piece) {
            while let Some(frame) = reader.next(&mut piece)? {
                match frame {
                    Frame::Data { bytes, .. } => data.extend_from_slice(bytes),
                    Frame::LastData { .. } | Frame::Control { .. } => all.push(format!("{frame:?}")),
                }
            }
            assert!(piece.is_empty());
        }
        all.push(String::from_utf8_lossy(&data).into_owned());
        Ok(all)
    }

    #[test]
    fn frames_are_the_same_in_pieces_of_any_size() {
        let mut bytes = Vec::new();
        put_data(&mut bytes, 3, 0, b"hello ");
        put_control(&mut bytes, ControlType::Ping, 0, &[0, 0, 0, 2]);
        bytes.extend(b"\x80\x03\0\x63\0\0\0\x01x");
        put_data(&mut bytes, 3, FIN, b"world");
        put_data(&mut bytes, 5, FIN, b"");
        let whole = frames(&bytes, bytes.len()).unwrap();
        let expected = [
            "Control { kind: Ping, last: false, payload: [0, 0, 0, 2] }",
            "LastData { stream: 3 }",
            "LastData { stream: 5 }",
            "hello world",
        ];
        assert_eq!(whole, expected);
        for piece in 1..12 {
            assert_eq!(frames(&bytes, piece).unwrap(), whole);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived_and_no_more_is_kept_than_a_control_frame(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            piece in 1_usize..64,
        ) {
            let _ = frames(&bytes, piece);
            let mut reader = FrameReader::default();
            // A control frame of the greatest length, and one that is longer.
            for (length, fits) in [(MAX_CONTROL, true), (MAX_CONTROL + 1, false)] {
                let mut head = b"\x80\x03\0\x04".to_vec();
                head.extend(u32::try_from(length).unwrap().to_be_bytes());
                head.extend_from_slice(&bytes);
                let taken = reader.next(&mut head.as_slice());
                prop_assert_eq!(taken.is_ok(), fits);
                reader = FrameReader::default();
            }
        }
    }
}
