//! WebSocket (RFC 6455) on the side of the server, and the two things that Kubernetes carries in it.
//!
//! Frames and messages are `tungstenite`'s, which reads from and writes to memory here, so that a WebSocket is a
//! protocol without IO as the others are. Extensions are not offered and not accepted.

mod channels;
mod tunnel;

use std::io::{self, Read, Write};

use bytes::{Buf as _, Bytes, BytesMut};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tungstenite::{Error, Message, Utf8Bytes, WebSocket};

pub(crate) use channels::{Channels, Closing, Coding};
pub(crate) use tunnel::Tunnel;

use crate::protocol::ProtocolError;

/// Bytes of a message, and of each of its frames: what Kubernetes' own servers take.
const MAX_MESSAGE: usize = 32 * 1024 * 1024;
/// Bytes of the buffer that every connection has. A longer message gets one of its own.
const READ_BUFFER: usize = 4 * 1024;

/// What a client said.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    /// Text or binary: Kubernetes makes no difference.
    Message(Bytes),
    /// The client closes the WebSocket.
    Close,
}

/// Takes messages out of bytes and turns messages into bytes.
#[derive(Debug)]
struct Messages {
    socket: WebSocket<Memory>,
    /// The client has closed the WebSocket.
    closed: bool,
}

/// The connection as `tungstenite` sees it.
#[derive(Debug, Default)]
struct Memory {
    received: BytesMut,
    to_send: Vec<u8>,
}

impl Read for Memory {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.received.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = buffer.len().min(self.received.len());
        buffer[..count].copy_from_slice(&self.received[..count]);
        self.received.advance(count);
        Ok(count)
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to_send.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Default for Messages {
    fn default() -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(0)
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE));
        Self {
            socket: WebSocket::from_raw_socket(Memory::default(), Role::Server, Some(config)),
            closed: false,
        }
    }
}

impl Messages {
    /// Takes bytes; pings and a close frame are answered into the output.
    fn receive(
        &mut self,
        bytes: &[u8],
        output: &mut Vec<u8>,
        mut take: impl FnMut(Item) -> Result<(), ProtocolError>,
    ) -> Result<(), ProtocolError> {
        if !self.closed {
            self.socket.get_mut().received.extend_from_slice(bytes);
        }
        // Nothing may follow the close frame of a client.
        while !self.closed {
            match self.socket.read() {
                Ok(Message::Text(text)) => take(Item::Message(text.into()))?,
                Ok(Message::Binary(bytes)) => take(Item::Message(bytes))?,
                Ok(Message::Close(_)) => {
                    self.closed = true;
                    take(Item::Close)?;
                }
                // A ping is answered by the next read. Single frames are never handed out.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(Box::new(error).into()),
            }
        }
        // After a close frame this returns an error, which is not one here: the answer to it is written.
        let _ = self.socket.flush();
        output.append(&mut self.socket.get_mut().to_send);
        Ok(())
    }

    fn send_binary(&mut self, message: Bytes, output: &mut Vec<u8>) {
        self.send(Message::Binary(message), output);
    }

    fn send_text(&mut self, message: String, output: &mut Vec<u8>) {
        self.send(Message::Text(message.into()), output);
    }

    fn send_close(&mut self, output: &mut Vec<u8>) {
        let frame = CloseFrame {
            code: CloseCode::Normal,
            reason: Utf8Bytes::default(),
        };
        self.send(Message::Close(Some(frame)), output);
    }

    fn send(&mut self, message: Message, output: &mut Vec<u8>) {
        // Memory takes everything, so this fails for one reason only: a close frame was sent before.
        let _ = self.socket.send(message);
        output.append(&mut self.socket.get_mut().to_send);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tungstenite::error::{CapacityError, ProtocolError as Violation};

    use super::*;

    /// A frame as a client sends it.
    pub(super) fn client_frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first];
        match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
            (Ok(short), _) if short < 126 => frame.push(0x80 | short),
            (_, Ok(medium)) => {
                frame.push(0xFE);
                frame.extend(medium.to_be_bytes());
            }
            _ => {
                frame.push(0xFF);
                frame.extend((payload.len() as u64).to_be_bytes());
            }
        }
        let mask = [1, 2, 3, 250];
        frame.extend(mask);
        frame.extend(
            payload
                .iter()
                .zip(mask.iter().cycle())
                .map(|(byte, mask)| byte ^ mask),
        );
        frame
    }

    /// The messages in the bytes, whatever pieces these come in, and what is answered.
    fn messages(bytes: &[u8], piece: usize) -> Result<(Vec<Bytes>, Vec<u8>), ProtocolError> {
        let (mut messages, mut output) = (Messages::default(), Vec::new());
        let mut all = Vec::new();
        for piece in bytes.chunks(piece) {
            messages.receive(piece, &mut output, |item| {
                all.push(match item {
                    Item::Message(bytes) => bytes,
                    Item::Close => "closed".into(),
                });
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
            client_frame(0x89, b"again"),
            client_frame(0x88, b"\x03\xe8"),
            b"ignored".to_vec(),
        ]
        .concat();
        for piece in [1, 3, 1000, bytes.len()] {
            let (messages, output) = messages(&bytes, piece).unwrap();
            assert_eq!(
                messages,
                [
                    "one message".into(),
                    Bytes::new(),
                    long.clone().into(),
                    "closed".into()
                ]
            );
            assert_eq!(output, b"\x8a\x05hello\x8a\x05again\x88\x02\x03\xe8");
        }
    }

    #[test]
    fn nothing_follows_a_close_frame() {
        let (mut messages, mut output) = (Messages::default(), Vec::new());
        messages.send_close(&mut output);
        messages.send_binary("late".into(), &mut output);
        messages.send_close(&mut output);
        assert_eq!(output, b"\x88\x02\x03\xe8");
    }

    #[test]
    fn what_is_not_allowed_is_refused() {
        let refused = |bytes: &[u8]| match messages(bytes, 1) {
            Err(ProtocolError::WebSocket(error)) => match *error {
                Error::Protocol(violation) => violation,
                other => panic!("{other}"),
            },
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(b"\x82\x01x"), Violation::UnmaskedFrameFromClient);
        assert_eq!(refused(&client_frame(0xC2, b"x")), Violation::NonZeroReservedBits);
        assert_eq!(refused(&client_frame(0x83, b"x")), Violation::InvalidOpcode(3));
        assert_eq!(
            refused(&client_frame(0x09, b"x")),
            Violation::FragmentedControlFrame
        );
        assert_eq!(
            refused(&client_frame(0x89, &[0; 126])),
            Violation::ControlFrameTooBig
        );
        assert_eq!(
            refused(&client_frame(0x80, b"x")),
            Violation::UnexpectedContinueFrame
        );
        let twice = [client_frame(0x02, b"x"), client_frame(0x82, b"x")].concat();
        assert!(matches!(refused(&twice), Violation::ExpectedFragment(_)));
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_by_its_head() {
        let too_long = |bytes: &[u8]| match messages(bytes, bytes.len()) {
            Err(ProtocolError::WebSocket(error)) => {
                matches!(*error, Error::Capacity(CapacityError::MessageTooLong { .. }))
            }
            _ => false,
        };
        let head = |first: u8, length: usize| {
            let mut head = vec![first, 0xFF];
            head.extend((length as u64).to_be_bytes());
            head.extend([0; 4]);
            head
        };
        assert!(!too_long(&head(0x82, MAX_MESSAGE)));
        assert!(too_long(&head(0x82, MAX_MESSAGE + 1)));
        assert!(too_long(&head(0x82, usize::MAX)));
        // Nor does it come in parts.
        let mut parts = head(0x02, MAX_MESSAGE);
        parts.resize(parts.len() + MAX_MESSAGE, 0);
        parts.extend(client_frame(0x00, b"x"));
        assert!(too_long(&parts));
    }

    /// Bytes of the longest close frame: a close that makes no sense is answered by one that gives the reason.
    const MAX_CLOSE: usize = 2 + 125;

    proptest! {
        #[test]
        fn any_bytes_are_survived_and_cause_no_more_output_than_they_are_and_a_goodbye(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            opcodes in proptest::collection::vec(0_u8..16, 0..8),
            piece in 1_usize..64,
        ) {
            if let Ok((_, output)) = messages(&bytes, piece) {
                prop_assert!(output.len() <= bytes.len() + MAX_CLOSE);
            }
            // Frames whose heads are good and whose payloads are not.
            let framed: Vec<u8> = opcodes
                .iter()
                .zip(bytes.chunks(70))
                .flat_map(|(opcode, payload)| client_frame(0x80 | opcode, payload))
                .collect();
            if let Ok((_, output)) = messages(&framed, piece) {
                prop_assert!(output.len() <= framed.len() + MAX_CLOSE);
            }
        }
    }
}
