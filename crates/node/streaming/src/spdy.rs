//! SPDY/3.1 as Kubernetes' clients and servers speak it, on either side of a connection.
//!
//! Clients open streams; a server answers each one at once and opens none. Kubernetes' own library knows no flow
//! control: it never grants a window and heeds none. So a server grants windows as data arrive, for clients that wait
//! for them, and neither side waits for one; what keeps a fast sender in check is the connection itself, which is not
//! read while nobody takes what was read last.
//!
//! What must always hold: the streams of a connection, the length of a control frame and the size of its headers are
//! bounded. A server decompresses every block of headers, wanted or not, since the next one builds on it; a client
//! wants none of its server's and decompresses none.

mod client;
mod frame;
mod headers;

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

pub use client::SpdyClient;

use crate::protocol::{Command, ProtocolError, Side, StreamEvent, StreamId, StreamProtocol};
use frame::{
    ControlType, FIN, Frame, FrameReader, NUMBER, ResetStatus, put_control, put_data, put_reset, word,
};
use headers::{Deflater, Inflater};

/// Streams of a connection at a time; a forwarded connection takes two.
const MAX_STREAMS: usize = 1024;
/// Bytes of one data frame that is sent, far below the 16 MiB a frame may have.
const MAX_DATA: usize = 1024 * 1024;

/// Which sides of a stream are open.
#[derive(Debug, Clone, Copy)]
struct Open {
    theirs: bool,
    ours: bool,
}

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Spdy {
    side: Side,
    reader: FrameReader,
    inflater: Inflater,
    deflater: Deflater,
    streams: HashMap<StreamId, Open>,
    /// The highest number that the client has used.
    newest: StreamId,
}

impl StreamProtocol for Spdy {
    fn side(&self) -> Side {
        self.side
    }

    fn receive(
        &mut self,
        mut bytes: &[u8],
        events: &mut VecDeque<StreamEvent>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        while let Some(frame) = self.reader.next(&mut bytes)? {
            match frame {
                Frame::Data { stream, bytes } => self.data(stream, bytes, events, output),
                Frame::LastData { stream } => self.ended(stream, events),
                Frame::Control { kind, last, payload } => {
                    self.control(kind, last, &payload, events, output)?;
                }
            }
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
                let last_of_the_peer = match self.side {
                    Side::Server => self.newest,
                    Side::Client => 0,
                };
                let body = [last_of_the_peer.to_be_bytes(), 0_u32.to_be_bytes()].concat();
                put_control(output, ControlType::GoAway, 0, &body);
            }
        }
    }
}

impl Spdy {
    pub(crate) fn server() -> Self {
        Self::new(Side::Server)
    }

    fn new(side: Side) -> Self {
        Self {
            side,
            reader: FrameReader::default(),
            inflater: Inflater::default(),
            deflater: Deflater::default(),
            streams: HashMap::new(),
            newest: 0,
        }
    }

    fn data(
        &mut self,
        stream: StreamId,
        bytes: &[u8],
        events: &mut VecDeque<StreamEvent>,
        output: &mut Vec<u8>,
    ) {
        // What comes on a stream that was given up meanwhile is not wanted.
        if !self.streams.get(&stream).is_some_and(|open| open.theirs) {
            return;
        }
        match self.side {
            Side::Server => {
                let granted = u32::try_from(bytes.len()).unwrap_or(NUMBER);
                let body = [stream.to_be_bytes(), granted.to_be_bytes()].concat();
                put_control(output, ControlType::WindowUpdate, 0, &body);
            }
            // Servers of this protocol wait for no window.
            Side::Client => {}
        }
        let bytes = Bytes::copy_from_slice(bytes);
        events.push_back(StreamEvent::Data { stream, bytes });
    }

    fn control(
        &mut self,
        kind: ControlType,
        last: bool,
        payload: &[u8],
        events: &mut VecDeque<StreamEvent>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        let number = || word(payload, 0).map(|number| number & NUMBER);
        match (kind, self.side) {
            (ControlType::SynStream, Side::Server) => self.opened(last, payload, events, output)?,
            // A server opens no streams, so there is nothing to reply to.
            (ControlType::SynReply, Side::Server) => return Err(ProtocolError::StreamNumber),
            (ControlType::Headers, Side::Server) => {
                let stream = number()?;
                self.inflater.headers(&payload[4..])?;
                if last {
                    self.ended(stream, events);
                }
            }
            (ControlType::SynReply | ControlType::Headers, Side::Client) => {
                let stream = number()?;
                if last {
                    self.ended(stream, events);
                }
            }
            (ControlType::RstStream, _) => {
                let stream = number()?;
                if self.streams.remove(&stream).is_some() {
                    events.push_back(StreamEvent::Reset { stream });
                }
            }
            (ControlType::Ping, side) => {
                let number = word(payload, 0)?;
                let is_the_peers = match side {
                    Side::Server => !number.is_multiple_of(2),
                    Side::Client => number.is_multiple_of(2),
                };
                if is_the_peers {
                    put_control(output, ControlType::Ping, 0, &payload[..4]);
                }
            }
            (ControlType::GoAway, _) => events.push_back(StreamEvent::Closed),
            (ControlType::SynStream, Side::Client)
            | (ControlType::Settings | ControlType::WindowUpdate, _) => {}
        }
        Ok(())
    }

    /// A new stream: number, associated stream, priority, slot, headers.
    fn opened(
        &mut self,
        last: bool,
        payload: &[u8],
        events: &mut VecDeque<StreamEvent>,
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
        put_control(output, ControlType::SynReply, 0, &body);
        events.push_back(StreamEvent::Opened { stream, headers });
        if last {
            self.ended(stream, events);
        }
        Ok(())
    }

    /// The peer sends no more on a stream.
    fn ended(&mut self, stream: StreamId, events: &mut VecDeque<StreamEvent>) {
        if let Some(open) = self.streams.get_mut(&stream).filter(|open| open.theirs) {
            open.theirs = false;
            events.push_back(StreamEvent::Ended { stream });
            self.forget_if_over(stream);
        }
    }

    fn forget_if_over(&mut self, stream: StreamId) {
        let open = self.streams.get(&stream);
        if open.is_some_and(|open| !open.theirs && !open.ours) {
            self.streams.remove(&stream);
        }
    }
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
        put_control(&mut output, ControlType::SynStream, flags, &body);
        output
    }

    fn run(bytes: &[u8], piece: usize) -> Result<(Vec<StreamEvent>, Vec<u8>), ProtocolError> {
        let mut spdy = Spdy::server();
        let (mut events, mut output) = (VecDeque::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            spdy.receive(piece, &mut events, &mut output)?;
        }
        Ok((events.into(), output))
    }

    fn opened(stream: StreamId, name: &str, value: &str) -> StreamEvent {
        let headers = vec![(name.to_owned(), value.to_owned())];
        StreamEvent::Opened { stream, headers }
    }

    #[test]
    fn streams_open_carry_data_and_end() {
        let mut deflater = Deflater::default();
        let mut bytes = open(&mut deflater, 1, &[("streamtype", "error")], FIN);
        bytes.extend(open(&mut deflater, 3, &[("streamtype", "stdin")], 0));
        put_data(&mut bytes, 3, 0, b"typed");
        put_control(&mut bytes, ControlType::Settings, 0, &[0; 4]);
        put_data(&mut bytes, 3, FIN, b"");
        put_data(&mut bytes, 3, 0, b"too late");
        put_data(&mut bytes, 99, 0, b"nobody's");
        put_reset(&mut bytes, 1, ResetStatus::Cancel);
        let (events, output) = run(&bytes, bytes.len()).unwrap();
        let data = StreamEvent::Data {
            stream: 3,
            bytes: "typed".into(),
        };
        let expected = [
            opened(1, "streamtype", "error"),
            StreamEvent::Ended { stream: 1 },
            opened(3, "streamtype", "stdin"),
            data,
            StreamEvent::Ended { stream: 3 },
            StreamEvent::Reset { stream: 1 },
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
        let mut spdy = Spdy::server();
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
        let refused = |bytes: &[u8]| format!("{:?}", run(bytes, 5).unwrap_err());
        assert_eq!(refused(b"\x80\x02\0\x01\0\0\0\0"), "Version");
        assert_eq!(refused(b"\x80\x03\0\x01\0\xff\xff\xff"), "Frame");
        assert_eq!(refused(b"\x80\x03\0\x06\0\0\0\x02\0\0"), "Frame");
        assert_eq!(
            refused(b"\x80\x03\0\x01\0\0\0\x0c\0\0\0\x01\0\0\0\0\0\0ab"),
            "Headers"
        );
        let even = open(&mut Deflater::default(), 2, &[], 0);
        assert_eq!(refused(&even), "StreamNumber");
        let mut deflater = Deflater::default();
        let twice = [open(&mut deflater, 1, &[], 0), open(&mut deflater, 1, &[], 0)].concat();
        assert_eq!(refused(&twice), "StreamNumber");
    }

    #[test]
    fn a_client_gets_events_of_its_streams_and_no_others() {
        let mut client = SpdyClient::default();
        let first = client.open_to_read(&[("streamtype", "error")]);
        let second = client.open(&[("streamtype", "data")]);
        let (mut client, opening) = client.into_parts();
        let (mut server, mut server_events, mut replies) = (Spdy::server(), VecDeque::new(), Vec::new());
        server
            .receive(&opening, &mut server_events, &mut replies)
            .unwrap();
        let expected = [
            opened(first, "streamtype", "error"),
            StreamEvent::Ended { stream: first },
            opened(second, "streamtype", "data"),
        ];
        assert_eq!(server_events, expected);
        put_data(&mut replies, first, FIN, b"no");
        put_control(&mut replies, ControlType::Ping, 0, &[0, 0, 0, 2]);
        // The client's own, come back.
        put_control(&mut replies, ControlType::Ping, 0, &[0, 0, 0, 3]);
        // Headers that are none, on a stream that the server opens and on one that it ends.
        put_control(&mut replies, ControlType::SynStream, 0, &[0xFF; 12]);
        put_control(&mut replies, ControlType::Headers, FIN, &[0, 0, 0, 3, 0xFF]);
        let (mut events, mut output) = (VecDeque::new(), Vec::new());
        client.receive(&replies, &mut events, &mut output).unwrap();
        let data = StreamEvent::Data {
            stream: first,
            bytes: "no".into(),
        };
        let ended = |stream| StreamEvent::Ended { stream };
        assert_eq!(events, [data, ended(first), ended(second)]);
        assert_eq!(output, b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x02");
        // Both sides of the first have ended, the second is still open on this side.
        let sent = |client: &mut Spdy, stream| {
            let (mut output, bytes) = (Vec::new(), "x".into());
            client.send(Command::Data { stream, bytes }, &mut output);
            output.len()
        };
        assert_eq!((sent(&mut client, first), sent(&mut client, second)), (0, 9));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived_and_answered_by_few(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            types in proptest::collection::vec(0_u8..12, 0..8),
            piece in 1_usize..64,
        ) {
            // Frames whose heads are good and whose bodies are not.
            let mut framed = Vec::new();
            for (kind, body) in types.iter().zip(bytes.chunks(40)) {
                framed.extend([0x80, 3, 0, *kind, 0, 0, 0, u8::try_from(body.len()).unwrap()]);
                framed.extend_from_slice(body);
            }
            let mut good = open(&mut Deflater::default(), 1, &[("streamtype", "data")], 0);
            put_data(&mut good, 1, 0, &bytes);
            for hostile in [&bytes, &framed, &good] {
                for side in [Side::Server, Side::Client] {
                    let output = hostile_peer(side, hostile, piece);
                    // A window's grant, for each piece of data that arrives.
                    prop_assert!(output <= 16 * hostile.len());
                }
            }
        }
    }

    /// Takes bytes until they are refused; returns how much is answered.
    fn hostile_peer(side: Side, bytes: &[u8], piece: usize) -> usize {
        let mut spdy = match side {
            Side::Server => Spdy::server(),
            Side::Client => {
                let mut client = SpdyClient::default();
                client.open(&[("streamtype", "data")]);
                client.into_parts().0
            }
        };
        let (mut events, mut output) = (VecDeque::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            if spdy.receive(piece, &mut events, &mut output).is_err() {
                break;
            }
        }
        output.len()
    }
}
