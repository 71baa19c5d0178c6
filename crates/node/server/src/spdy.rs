//! SPDY/3.1 on the side of the server, as Kubernetes' clients speak it.
//!
//! Clients open streams, the server answers each one at once and opens none. Kubernetes' own library knows no flow
//! control: it never grants a window and heeds none. So windows are granted as data arrive, for clients that wait for
//! them, and none is waited for; what keeps a fast sender in check is the connection itself, which is not read while
//! nobody takes what was read last.
//!
//! What must always hold: the streams of a connection, the length of a control frame and the size of its headers are
//! bounded, and every block of headers is decompressed, wanted or not, since the next one builds on it.

mod headers;

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::protocol::{Command, Event, Protocol, ProtocolError, StreamId};
use headers::{Deflater, Inflater};

const VERSION: u16 = 3;
/// Streams of a connection at a time; a forwarded connection takes two.
pub(crate) const MAX_STREAMS: usize = 1024;
/// Bytes of a control frame: far more than the headers of any client.
const MAX_CONTROL: usize = 64 * 1024;
/// Bytes of one data frame that is sent, far below the 16 MiB a frame may have.
const MAX_DATA: usize = 1024 * 1024;
/// Bytes of a frame's head.
const HEAD: usize = 8;
const FIN: u8 = 1;
/// A stream's number has 31 bits.
const NUMBER: u32 = 0x7FFF_FFFF;

/// Why a stream is reset.
#[derive(Debug, Clone, Copy)]
enum ResetStatus {
    RefusedStream = 3,
    Cancel = 5,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ControlType {
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
    /// None for types that nobody knows, which are skipped.
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

/// Which sides of a stream are open.
#[derive(Debug, Clone, Copy)]
struct Open {
    theirs: bool,
    ours: bool,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Spdy {
    reading: Reading,
    inflater: Inflater,
    deflater: Deflater,
    streams: HashMap<StreamId, Open>,
    /// The highest number a client has used.
    newest: StreamId,
}

impl Default for Spdy {
    fn default() -> Self {
        Self {
            reading: Reading::Head(Vec::with_capacity(HEAD)),
            inflater: Inflater::default(),
            deflater: Deflater::default(),
            streams: HashMap::new(),
            newest: 0,
        }
    }
}

impl Protocol for Spdy {
    fn receive(
        &mut self,
        mut bytes: &[u8],
        events: &mut VecDeque<Event>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        while !bytes.is_empty() {
            let take = match &mut self.reading {
                Reading::Head(head) => {
                    let take = bytes.len().min(HEAD - head.len());
                    head.extend_from_slice(&bytes[..take]);
                    take
                }
                Reading::Data { stream, left, .. } => {
                    let take = bytes.len().min(*left);
                    *left -= take;
                    let stream = *stream;
                    self.data(stream, &bytes[..take], events, output);
                    take
                }
                Reading::Control { length, payload, .. } => {
                    let take = bytes.len().min(*length - payload.len());
                    payload.extend_from_slice(&bytes[..take]);
                    take
                }
            };
            bytes = &bytes[take..];
            self.advance(events, output)?;
        }
        Ok(())
    }

    fn send(&mut self, command: Command, output: &mut Vec<u8>) {
        match command {
            Command::Data { stream, bytes } => {
                if self.streams.get(&stream).is_some_and(|open| open.ours) {
                    for piece in bytes.chunks(MAX_DATA) {
                        put_data(output, stream, 0, piece);
                    }
                }
            }
            Command::End { stream } => {
                if let Some(open) = self.streams.get_mut(&stream).filter(|open| open.ours) {
                    open.ours = false;
                    put_data(output, stream, FIN, &[]);
                    self.forget_if_over(stream);
                }
            }
            Command::Reset { stream } => {
                if self.streams.remove(&stream).is_some() {
                    put_reset(output, stream, ResetStatus::Cancel);
                }
            }
            Command::Close => {
                let body = [self.newest.to_be_bytes(), 0_u32.to_be_bytes()].concat();
                put_control(output, ControlType::GoAway, &body);
            }
        }
    }
}

impl Spdy {
    /// Goes on to the next frame as often as one is complete.
    fn advance(&mut self, events: &mut VecDeque<Event>, output: &mut Vec<u8>) -> Result<(), ProtocolError> {
        loop {
            let next = match &mut self.reading {
                Reading::Head(head) => match head.first_chunk::<HEAD>() {
                    Some(head) => parse_head(*head)?,
                    None => return Ok(()),
                },
                Reading::Data {
                    stream,
                    last,
                    left: 0,
                } => {
                    let (stream, last) = (*stream, *last);
                    if last {
                        self.ended(stream, events);
                    }
                    Reading::Head(Vec::with_capacity(HEAD))
                }
                Reading::Control {
                    kind,
                    last,
                    length,
                    payload,
                } if payload.len() == *length => {
                    let (kind, last, payload) = (*kind, *last, std::mem::take(payload));
                    if let Some(kind) = kind {
                        self.control(kind, last, &payload, events, output)?;
                    }
                    Reading::Head(Vec::with_capacity(HEAD))
                }
                Reading::Data { .. } | Reading::Control { .. } => return Ok(()),
            };
            self.reading = next;
        }
    }

    fn data(&mut self, stream: StreamId, bytes: &[u8], events: &mut VecDeque<Event>, output: &mut Vec<u8>) {
        // What comes on a stream that was given up meanwhile is not wanted.
        if bytes.is_empty() || !self.streams.get(&stream).is_some_and(|open| open.theirs) {
            return;
        }
        let granted = u32::try_from(bytes.len()).unwrap_or(NUMBER);
        let body = [stream.to_be_bytes(), granted.to_be_bytes()].concat();
        put_control(output, ControlType::WindowUpdate, &body);
        let bytes = Bytes::copy_from_slice(bytes);
        events.push_back(Event::Data { stream, bytes });
    }

    fn control(
        &mut self,
        kind: ControlType,
        last: bool,
        payload: &[u8],
        events: &mut VecDeque<Event>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        let number = || word(payload, 0).map(|number| number & NUMBER);
        match kind {
            ControlType::SynStream => self.opened(last, payload, events, output)?,
            ControlType::RstStream => {
                let stream = number()?;
                if self.streams.remove(&stream).is_some() {
                    events.push_back(Event::Reset { stream });
                }
            }
            ControlType::Headers => {
                let stream = number()?;
                self.inflater.headers(&payload[4..])?;
                if last {
                    self.ended(stream, events);
                }
            }
            ControlType::Ping => {
                // Odd numbers are the client's.
                if word(payload, 0)? % 2 == 1 {
                    put_control(output, ControlType::Ping, &payload[..4]);
                }
            }
            ControlType::GoAway => events.push_back(Event::Closed),
            // The server opens no streams, so there is nothing to reply to.
            ControlType::SynReply => return Err(ProtocolError::StreamNumber),
            ControlType::Settings | ControlType::WindowUpdate => {}
        }
        Ok(())
    }

    /// A new stream: number, associated stream, priority, slot, headers.
    fn opened(
        &mut self,
        last: bool,
        payload: &[u8],
        events: &mut VecDeque<Event>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        let stream = word(payload, 0)? & NUMBER;
        let block = payload.get(10..).ok_or(ProtocolError::Frame)?;
        let headers = self.inflater.headers(block)?;
        if stream.is_multiple_of(2) || stream <= self.newest {
            return Err(ProtocolError::StreamNumber);
        }
        self.newest = stream;
        if self.streams.len() >= MAX_STREAMS {
            put_reset(output, stream, ResetStatus::RefusedStream);
            return Ok(());
        }
        let open = Open {
            theirs: true,
            ours: true,
        };
        self.streams.insert(stream, open);
        let mut body = stream.to_be_bytes().to_vec();
        body.extend(self.deflater.headers(&[]));
        put_control(output, ControlType::SynReply, &body);
        events.push_back(Event::Opened { stream, headers });
        if last {
            self.ended(stream, events);
        }
        Ok(())
    }

    /// The client sends no more on a stream.
    fn ended(&mut self, stream: StreamId, events: &mut VecDeque<Event>) {
        if let Some(open) = self.streams.get_mut(&stream).filter(|open| open.theirs) {
            open.theirs = false;
            events.push_back(Event::Ended { stream });
            self.forget_if_over(stream);
        }
    }

    fn forget_if_over(&mut self, stream: StreamId) {
        if self
            .streams
            .get(&stream)
            .is_some_and(|open| !open.theirs && !open.ours)
        {
            self.streams.remove(&stream);
        }
    }
}

fn word(payload: &[u8], at: usize) -> Result<u32, ProtocolError> {
    let bytes = payload.get(at..).and_then(|rest| rest.first_chunk());
    bytes
        .map(|bytes| u32::from_be_bytes(*bytes))
        .ok_or(ProtocolError::Frame)
}

fn parse_head(head: [u8; HEAD]) -> Result<Reading, ProtocolError> {
    let first = word(&head, 0)?;
    let flags_and_length = word(&head, 4)?;
    // 24 bits always fit.
    let length = (flags_and_length & 0x00FF_FFFF) as usize;
    let last = head[4] & FIN != 0;
    if first & !NUMBER == 0 {
        let left = length;
        return Ok(Reading::Data {
            stream: first,
            last,
            left,
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

fn put_control(output: &mut Vec<u8>, kind: ControlType, body: &[u8]) {
    output.extend((0x8000 | VERSION).to_be_bytes());
    output.extend((kind as u16).to_be_bytes());
    put_length(output, 0, body);
}

fn put_data(output: &mut Vec<u8>, stream: StreamId, flags: u8, bytes: &[u8]) {
    output.extend(stream.to_be_bytes());
    put_length(output, flags, bytes);
}

fn put_length(output: &mut Vec<u8>, flags: u8, body: &[u8]) {
    debug_assert!(body.len() < 1 << 24);
    let length = body.len().to_be_bytes();
    output.push(flags);
    output.extend_from_slice(&length[length.len() - 3..]);
    output.extend_from_slice(body);
}

fn put_reset(output: &mut Vec<u8>, stream: StreamId, status: ResetStatus) {
    let body = [stream.to_be_bytes(), (status as u32).to_be_bytes()].concat();
    put_control(output, ControlType::RstStream, &body);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a client sends to open a stream.
    fn open(deflater: &mut Deflater, stream: StreamId, headers: &[(&str, &str)], flags: u8) -> Vec<u8> {
        let mut body = stream.to_be_bytes().to_vec();
        body.extend([0; 6]);
        body.extend(deflater.headers(headers));
        let mut output = Vec::new();
        put_control(&mut output, ControlType::SynStream, &body);
        output[4] = flags;
        output
    }

    fn run(bytes: &[u8], piece: usize) -> Result<(Vec<Event>, Vec<u8>), ProtocolError> {
        let mut spdy = Spdy::default();
        let (mut events, mut output) = (VecDeque::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            spdy.receive(piece, &mut events, &mut output)?;
        }
        Ok((events.into(), output))
    }

    fn opened(stream: StreamId, name: &str, value: &str) -> Event {
        let headers = vec![(name.to_owned(), value.to_owned())];
        Event::Opened { stream, headers }
    }

    #[test]
    fn streams_open_carry_data_and_end() {
        let mut deflater = Deflater::default();
        let mut bytes = open(&mut deflater, 1, &[("streamtype", "error")], FIN);
        bytes.extend(open(&mut deflater, 3, &[("streamtype", "stdin")], 0));
        put_data(&mut bytes, 3, 0, b"typed");
        put_control(&mut bytes, ControlType::Settings, &[0; 4]);
        put_data(&mut bytes, 3, FIN, b"");
        put_data(&mut bytes, 3, 0, b"too late");
        put_data(&mut bytes, 99, 0, b"nobody's");
        put_reset(&mut bytes, 1, ResetStatus::Cancel);
        let (events, output) = run(&bytes, bytes.len()).unwrap();
        let data = Event::Data {
            stream: 3,
            bytes: "typed".into(),
        };
        let expected = [
            opened(1, "streamtype", "error"),
            Event::Ended { stream: 1 },
            opened(3, "streamtype", "stdin"),
            data,
            Event::Ended { stream: 3 },
            Event::Reset { stream: 1 },
        ];
        assert_eq!(events, expected);
        assert_eq!(&output[..4], b"\x80\x03\x00\x02");
        assert!(output.ends_with(b"\x80\x03\x00\x09\0\0\0\x08\0\0\0\x03\0\0\0\x05"));
        for piece in [1, 7] {
            let (events, _) = run(&bytes, piece).unwrap();
            assert_eq!(events.first(), expected.first());
            assert_eq!(events.last(), expected.last());
        }
    }

    #[test]
    fn what_is_sent_respects_who_has_ended() {
        let mut spdy = Spdy::default();
        let (mut events, mut output) = (VecDeque::new(), Vec::new());
        let bytes = open(&mut Deflater::default(), 1, &[], 0);
        spdy.receive(&bytes, &mut events, &mut output).unwrap();
        output.clear();
        let data = |bytes: &'static str| Command::Data {
            stream: 1,
            bytes: bytes.into(),
        };
        spdy.send(data("out"), &mut output);
        spdy.send(Command::End { stream: 1 }, &mut output);
        spdy.send(data("more"), &mut output);
        spdy.send(Command::End { stream: 1 }, &mut output);
        assert_eq!(output, b"\0\0\0\x01\0\0\0\x03out\0\0\0\x01\x01\0\0\0");
        output.clear();
        spdy.send(Command::Reset { stream: 1 }, &mut output);
        spdy.send(Command::Close, &mut output);
        let expected =
            b"\x80\x03\0\x03\0\0\0\x08\0\0\0\x01\0\0\0\x05\x80\x03\0\x07\0\0\0\x08\0\0\0\x01\0\0\0\0";
        assert_eq!(output, expected);
    }

    #[test]
    fn streams_are_bounded() {
        let mut deflater = Deflater::default();
        let mut bytes = Vec::new();
        for number in 0..=MAX_STREAMS {
            let stream = StreamId::try_from(2 * number + 1).unwrap();
            bytes.extend(open(&mut deflater, stream, &[("a", "b")], 0));
        }
        let (events, output) = run(&bytes, bytes.len()).unwrap();
        assert_eq!(events.len(), MAX_STREAMS);
        assert!(output.ends_with(&3_u32.to_be_bytes()));
    }

    #[test]
    fn what_is_not_allowed_is_refused() {
        let refused = |bytes: &[u8]| run(bytes, 5).unwrap_err();
        assert_eq!(refused(b"\x80\x02\0\x01\0\0\0\0"), ProtocolError::Version);
        assert_eq!(refused(b"\x80\x03\0\x01\0\xff\xff\xff"), ProtocolError::Frame);
        assert_eq!(refused(b"\x80\x03\0\x06\0\0\0\x02\0\0"), ProtocolError::Frame);
        assert_eq!(
            refused(b"\x80\x03\0\x01\0\0\0\x0c\0\0\0\x01\0\0\0\0\0\0ab"),
            ProtocolError::Headers
        );
        let even = open(&mut Deflater::default(), 2, &[], 0);
        assert_eq!(refused(&even), ProtocolError::StreamNumber);
        let mut deflater = Deflater::default();
        let twice = [open(&mut deflater, 1, &[], 0), open(&mut deflater, 1, &[], 0)].concat();
        assert_eq!(refused(&twice), ProtocolError::StreamNumber);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            types in proptest::collection::vec(0_u8..12, 0..8),
            piece in 1_usize..64,
        ) {
            let _ = run(&bytes, piece);
            // Frames whose heads are good and whose bodies are not.
            let mut framed = Vec::new();
            for (kind, body) in types.iter().zip(bytes.chunks(40)) {
                framed.extend([0x80, 3, 0, *kind, 0, 0, 0, u8::try_from(body.len()).unwrap()]);
                framed.extend_from_slice(body);
            }
            let _ = run(&framed, piece);
        }
    }
}
