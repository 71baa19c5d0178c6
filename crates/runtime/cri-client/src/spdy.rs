//! The little of SPDY/3.1 that it takes to talk to a CRI server's streams, as the client.
//!
//! Servers of this protocol know no flow control: what holds a fast peer back is that nothing is read from its
//! connection. Headers are sent as uncompressed blocks of a zlib stream, which every reader of one takes; what a server
//! answers to them is not read.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Bytes of one frame that is taken; servers send 32 KiB at most.
const MAX_FRAME: usize = 1 << 20;
/// Bytes of a piece that is sent in one frame.
pub(crate) const PIECE: usize = 32 * 1024;

const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GO_AWAY: u16 = 7;
const FIN: u8 = 1;
/// An empty block: whoever reads a zlib stream hands out what came before it.
const FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// What a server sent that concerns us.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Data {
        stream: u32,
        fin: bool,
        bytes: Vec<u8>,
    },
    /// The server has given a stream up.
    Reset {
        stream: u32,
    },
    Ping {
        id: u32,
    },
    GoAway,
    Other,
}

/// The way in which streams are opened: their headers share one zlib stream.
#[derive(Debug, Default)]
pub(crate) struct Opener {
    opened: u32,
}

impl Opener {
    /// The frame that opens the next stream, and the stream's id. With `fin` nothing will be sent on it.
    pub(crate) fn open(&mut self, headers: &[(&str, &str)], fin: bool) -> (u32, Vec<u8>) {
        // Clients' streams have odd numbers.
        let stream = self.opened * 2 + 1;
        let mut payload = Vec::new();
        payload.extend_from_slice(&stream.to_be_bytes());
        // No associated stream, no priority, no slot.
        payload.extend_from_slice(&[0; 6]);
        if self.opened == 0 {
            payload.extend_from_slice(&[0x78, 0x01]);
        }
        self.opened += 1;
        let block = header_block(headers);
        let length = u16::try_from(block.len()).expect("our own headers are short");
        payload.push(0);
        payload.extend_from_slice(&length.to_le_bytes());
        payload.extend_from_slice(&(!length).to_le_bytes());
        payload.extend_from_slice(&block);
        payload.extend_from_slice(&FLUSH);
        (stream, control(SYN_STREAM, if fin { FIN } else { 0 }, &payload))
    }
}

fn header_block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    let number = |value: usize| {
        u32::try_from(value)
            .expect("our own headers are short")
            .to_be_bytes()
    };
    block.extend_from_slice(&number(headers.len()));
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        block.extend_from_slice(&number(text.len()));
        block.extend_from_slice(text.as_bytes());
    }
    block
}

fn control(kind: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(8 + payload.len());
    frame.extend_from_slice(&(0x8000 | VERSION).to_be_bytes());
    frame.extend_from_slice(&kind.to_be_bytes());
    frame.extend_from_slice(&length_word(flags, payload.len()));
    frame.extend_from_slice(payload);
    frame
}

fn length_word(flags: u8, length: usize) -> [u8; 4] {
    let length = u32::try_from(length).ok().filter(|length| *length < 1 << 24);
    let length = length.expect("frames are made of pieces");
    (u32::from(flags) << 24 | length).to_be_bytes()
}

/// A piece of a stream, of [`PIECE`] bytes at most; the last one with `fin`.
pub(crate) fn data(stream: u32, bytes: &[u8], fin: bool) -> Vec<u8> {
    let mut frame = Vec::with_capacity(8 + bytes.len());
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(&length_word(if fin { FIN } else { 0 }, bytes.len()));
    frame.extend_from_slice(bytes);
    frame
}

pub(crate) fn pong(id: u32) -> Vec<u8> {
    control(PING, 0, &id.to_be_bytes())
}

/// The next frame; none at the end of the connection.
pub(crate) async fn read(connection: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
    let mut head = [0; 8];
    match connection.read_exact(&mut head).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let flags = head[4];
    let length = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::other(format!("a frame of {length} bytes")));
    }
    let mut bytes = vec![0; length];
    connection.read_exact(&mut bytes).await?;
    if first & 0x8000_0000 == 0 {
        let fin = flags & FIN != 0;
        return Ok(Some(Frame::Data {
            stream: first,
            fin,
            bytes,
        }));
    }
    let word = bytes
        .first_chunk()
        .map(|word| u32::from_be_bytes(*word) & 0x7fff_ffff);
    Ok(Some(match (u16::from_be_bytes([head[2], head[3]]), word) {
        (RST_STREAM, Some(stream)) => Frame::Reset { stream },
        (PING, Some(id)) => Frame::Ping { id },
        (GO_AWAY, _) => Frame::GoAway,
        _ => Frame::Other,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn frames(mut bytes: &[u8]) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = read(&mut bytes).await.expect("frames") {
            frames.push(frame);
        }
        frames
    }

    #[tokio::test]
    async fn frames_read_back() {
        let bytes = [data(3, b"hello", false), data(5, b"", true), pong(2)].concat();
        let expected = [
            Frame::Data {
                stream: 3,
                fin: false,
                bytes: b"hello".into(),
            },
            Frame::Data {
                stream: 5,
                fin: true,
                bytes: Vec::new(),
            },
            Frame::Ping { id: 2 },
        ];
        assert_eq!(frames(&bytes).await, expected);
    }

    #[tokio::test]
    async fn a_frame_that_is_too_long_or_cut_off_is_an_error() {
        let mut long = data(1, b"", false);
        long[5] = 0xff;
        assert!(read(&mut long.as_slice()).await.is_err());
        let cut = &data(1, b"hello", false)[..10];
        assert!(read(&mut &*cut).await.is_err());
    }

    #[test]
    fn streams_have_odd_numbers_and_one_beginning() {
        let mut opener = Opener::default();
        let (first, bytes) = opener.open(&[("streamtype", "error")], true);
        let block = header_block(&[("streamtype", "error")]);
        assert_eq!((first, bytes[4]), (1, FIN));
        // The first has the beginning of a zlib stream; both have a block that is stored as it is.
        assert_eq!(bytes[18..21], [0x78, 0x01, 0]);
        assert_eq!(bytes[25..], [block.as_slice(), &FLUSH].concat());
        let (second, bytes) = opener.open(&[("streamtype", "error")], false);
        assert_eq!((second, bytes[4], bytes[18]), (3, 0, 0));
        assert_eq!(bytes[23..], [block.as_slice(), &FLUSH].concat());
    }
}
