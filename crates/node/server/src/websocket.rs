//! WebSocket (RFC 6455) on the side of the server: frames, and the two things Kubernetes carries in them.
//!
//! Messages are handed on piece by piece as they arrive, so their length does not matter. Extensions are not offered
//! and not accepted.

mod channels;
mod tunnel;

use bytes::Bytes;

pub(crate) use channels::{Channels, Closing};
pub(crate) use tunnel::Tunnel;

use crate::protocol::ProtocolError;

/// Bytes that a control frame carries at most.
const MAX_CONTROL: usize = 125;
/// Bytes of a frame's head at most: two, eight of length, four of mask.
const MAX_HEAD: usize = 14;
/// The status of an orderly end.
const NORMAL_CLOSURE: u16 = 1000;

/// A piece of what a client said.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    /// A piece of a message; `begins` for its first one, which may be empty.
    Part {
        bytes: Bytes,
        begins: bool,
    },
    /// The message is complete.
    MessageEnd,
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opcode {
    Continuation,
    /// Text or binary: Kubernetes makes no difference.
    Message,
    Close,
    Ping,
    Pong,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    opcode: Opcode,
    last: bool,
    mask: [u8; 4],
    left: u64,
    /// Bytes of the payload so far, for the mask.
    done: usize,
}

/// Takes frames apart and puts them together.
#[derive(Debug, Default)]
struct Framing {
    /// The head of the next frame, as far as it is there.
    head: Vec<u8>,
    frame: Option<Frame>,
    /// What a control frame carries.
    control: Vec<u8>,
    /// The last message is not complete.
    in_message: bool,
    closed: bool,
}

impl Framing {
    /// Takes bytes; pings are answered into the output.
    fn receive(
        &mut self,
        mut bytes: &[u8],
        output: &mut Vec<u8>,
        mut item: impl FnMut(Item) -> Result<(), ProtocolError>,
    ) -> Result<(), ProtocolError> {
        // After its goodbye a client has nothing to say.
        while !self.closed && !bytes.is_empty() {
            let Some(frame) = &mut self.frame else {
                bytes = self.read_head(bytes, &mut item)?;
                self.finish_frame(output, &mut item)?;
                continue;
            };
            let available = bytes.len().min(usize::try_from(frame.left).unwrap_or(usize::MAX));
            let (now, rest) = bytes.split_at(available);
            bytes = rest;
            let unmasked: Vec<u8> = now
                .iter()
                .enumerate()
                .map(|(at, byte)| byte ^ frame.mask[(frame.done + at) % 4])
                .collect();
            frame.done += available;
            frame.left -= available as u64;
            match frame.opcode {
                Opcode::Continuation | Opcode::Message => item(Item::Part {
                    bytes: unmasked.into(),
                    begins: false,
                })?,
                Opcode::Close | Opcode::Ping | Opcode::Pong => self.control.extend(unmasked),
            }
            self.finish_frame(output, &mut item)?;
        }
        Ok(())
    }

    /// Takes as much of a head as is there and returns the rest.
    fn read_head<'a>(
        &mut self,
        mut bytes: &'a [u8],
        item: &mut impl FnMut(Item) -> Result<(), ProtocolError>,
    ) -> Result<&'a [u8], ProtocolError> {
        while let Some((byte, rest)) = bytes.split_first() {
            bytes = rest;
            self.head.push(*byte);
            debug_assert!(self.head.len() <= MAX_HEAD);
            let Some(frame) = parse_head(&self.head)? else {
                continue;
            };
            self.head.clear();
            match (frame.opcode, self.in_message) {
                (Opcode::Continuation, false) | (Opcode::Message, true) => {
                    return Err(ProtocolError::Fragmentation);
                }
                (Opcode::Message, false) => {
                    self.in_message = true;
                    let bytes = Bytes::new();
                    item(Item::Part { bytes, begins: true })?;
                }
                (Opcode::Continuation, true) | (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => {}
            }
            self.frame = Some(frame);
            break;
        }
        Ok(bytes)
    }

    fn finish_frame(
        &mut self,
        output: &mut Vec<u8>,
        item: &mut impl FnMut(Item) -> Result<(), ProtocolError>,
    ) -> Result<(), ProtocolError> {
        let Some(frame) = self.frame.filter(|frame| frame.left == 0) else {
            return Ok(());
        };
        self.frame = None;
        let control = std::mem::take(&mut self.control);
        match frame.opcode {
            Opcode::Continuation | Opcode::Message if frame.last => {
                self.in_message = false;
                item(Item::MessageEnd)
            }
            Opcode::Continuation | Opcode::Message | Opcode::Pong => Ok(()),
            Opcode::Ping => {
                put_frame(output, 0xA, &[&control]);
                Ok(())
            }
            Opcode::Close => {
                self.closed = true;
                item(Item::Close)
            }
        }
    }
}

/// None as long as the head is not complete.
fn parse_head(head: &[u8]) -> Result<Option<Frame>, ProtocolError> {
    let &[first, second, ref rest @ ..] = head else {
        return Ok(None);
    };
    let opcode = match first & 0x7F {
        0x0 => Opcode::Continuation,
        0x1 | 0x2 => Opcode::Message,
        0x8 => Opcode::Close,
        0x9 => Opcode::Ping,
        0xA => Opcode::Pong,
        _ => return Err(ProtocolError::UnknownFrame),
    };
    if second & 0x80 == 0 {
        return Err(ProtocolError::Unmasked);
    }
    let (last, short) = (first & 0x80 != 0, second & 0x7F);
    let is_control = matches!(opcode, Opcode::Close | Opcode::Ping | Opcode::Pong);
    if is_control && (!last || usize::from(short) > MAX_CONTROL) {
        return Err(ProtocolError::ControlFrame);
    }
    let (left, rest) = match short {
        126 => match rest.split_first_chunk::<2>() {
            Some((length, rest)) => (u64::from(u16::from_be_bytes(*length)), rest),
            None => return Ok(None),
        },
        127 => match rest.split_first_chunk::<8>() {
            Some((length, rest)) => (u64::from_be_bytes(*length), rest),
            None => return Ok(None),
        },
        short => (u64::from(short), rest),
    };
    if left > i64::MAX as u64 {
        return Err(ProtocolError::Frame);
    }
    Ok(rest.first_chunk::<4>().map(|mask| Frame {
        opcode,
        last,
        mask: *mask,
        left,
        done: 0,
    }))
}

/// Appends a whole message.
fn put_message(output: &mut Vec<u8>, parts: &[&[u8]]) {
    put_frame(output, 0x2, parts);
}

fn put_close(output: &mut Vec<u8>) {
    put_frame(output, 0x8, &[&NORMAL_CLOSURE.to_be_bytes()]);
}

fn put_frame(output: &mut Vec<u8>, opcode: u8, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    output.push(0x80 | opcode);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short), _) if short < 126 => output.push(short),
        (_, Ok(medium)) => {
            output.push(126);
            output.extend(medium.to_be_bytes());
        }
        _ => {
            output.push(127);
            output.extend((length as u64).to_be_bytes());
        }
    }
    for part in parts {
        output.extend_from_slice(part);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A frame as a client sends it.
    pub(crate) fn client_frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        put_frame(&mut frame, first & 0xF, &[payload]);
        frame[0] = first;
        frame[1] |= 0x80;
        let mask = [1, 2, 3, 250];
        let at = frame.len() - payload.len();
        frame.splice(at..at, mask);
        for (index, byte) in frame[at + 4..].iter_mut().enumerate() {
            *byte ^= mask[index % 4];
        }
        frame
    }

    /// The messages in the bytes, whatever pieces these come in, and what is answered.
    fn messages(bytes: &[u8], piece: usize) -> Result<(Vec<Vec<u8>>, Vec<u8>), ProtocolError> {
        let (mut framing, mut output) = (Framing::default(), Vec::new());
        let (mut current, mut all) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            framing.receive(piece, &mut output, |item| {
                match item {
                    Item::Part { bytes, begins } => {
                        assert!(!begins || current.is_empty());
                        current.extend_from_slice(&bytes);
                    }
                    Item::MessageEnd => all.push(std::mem::take(&mut current)),
                    Item::Close => all.push(b"closed".to_vec()),
                }
                Ok(())
            })?;
        }
        Ok((all, output))
    }

    #[test]
    fn messages_are_joined_and_pings_within_them_answered() {
        let long = vec![7; 70_000];
        let bytes = [
            client_frame(0x02, b"one "),
            client_frame(0x89, b"hello"),
            client_frame(0x80, b"message"),
            client_frame(0x81, b""),
            client_frame(0x82, &long),
            client_frame(0x8A, b"whatever"),
            client_frame(0x88, b"\x03\xe8"),
            b"ignored".to_vec(),
        ]
        .concat();
        for piece in [1, 3, 1000, bytes.len()] {
            let (messages, output) = messages(&bytes, piece).unwrap();
            assert_eq!(messages[0], b"one message");
            assert_eq!(messages[1], b"");
            assert_eq!(messages[2], long);
            assert_eq!(messages[3], b"closed");
            assert_eq!(output, b"\x8a\x05hello");
        }
    }

    #[test]
    fn what_is_not_allowed_is_refused() {
        let refused = |bytes: &[u8]| messages(bytes, 1).unwrap_err();
        assert_eq!(refused(b"\x82\x01x"), ProtocolError::Unmasked);
        assert_eq!(refused(&client_frame(0xC2, b"x")), ProtocolError::UnknownFrame);
        assert_eq!(refused(&client_frame(0x83, b"x")), ProtocolError::UnknownFrame);
        assert_eq!(refused(&client_frame(0x09, b"x")), ProtocolError::ControlFrame);
        assert_eq!(
            refused(&client_frame(0x89, &[0; 126])),
            ProtocolError::ControlFrame
        );
        assert_eq!(refused(&client_frame(0x80, b"x")), ProtocolError::Fragmentation);
        let twice = [client_frame(0x02, b"x"), client_frame(0x82, b"x")].concat();
        assert_eq!(refused(&twice), ProtocolError::Fragmentation);
        assert_eq!(
            refused(b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"),
            ProtocolError::Frame
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived_and_cause_no_more_output_than_they_are(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            piece in 1_usize..64,
        ) {
            if let Ok((_, output)) = messages(&bytes, piece) {
                prop_assert!(output.len() <= bytes.len());
            }
        }
    }
}
