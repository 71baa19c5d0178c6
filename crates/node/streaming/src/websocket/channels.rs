//! Kubernetes' channels: the beginning of a message says which stream the rest belongs to.

use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut as _, Bytes, BytesMut};

use super::{Item, Messages};
use crate::protocol::{Command, ProtocolError, Side, StreamEvent, StreamId, StreamProtocol};

/// In v5: the message's second byte is a channel that ends.
const CLOSE_CHANNEL: u8 = 255;

/// Whether a client can end a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// v5.channel.k8s.io
    ByChannel,
    /// All that came before: only the connection ends.
    Never,
}

/// How a message is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    /// The channel's number as a byte, and the data.
    Binary,
    /// The character that is as many after `0`, and the data as base64; for clients that can only send text.
    Base64,
}

/// The channels of a WebSocket. They are all open from the beginning.
#[derive(Debug)]
pub(crate) struct Channels {
    messages: Messages,
    coding: Coding,
    closing: Closing,
}

impl Channels {
    pub(crate) fn new(coding: Coding, closing: Closing) -> Self {
        Self {
            messages: Messages::default(),
            coding,
            closing,
        }
    }
}

impl StreamProtocol for Channels {
    fn side(&self) -> Side {
        Side::Server
    }

    fn receive(
        &mut self,
        bytes: &[u8],
        events: &mut VecDeque<StreamEvent>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        let (coding, closing) = (self.coding, self.closing);
        self.messages.receive(bytes, output, |item| {
            match item {
                Item::Message(message) => events.extend(event(&message, coding, closing)?),
                Item::Close => events.push_back(StreamEvent::Closed),
            }
            Ok(())
        })
    }

    fn send(&mut self, command: Command, output: &mut Vec<u8>) {
        match command {
            Command::Data { stream, bytes } => match u8::try_from(stream) {
                Ok(channel) => self.put(channel, &bytes, output),
                Err(_) => debug_assert!(false, "there is no channel {stream}"),
            },
            // A channel of the server ends with the connection.
            Command::End { .. } | Command::Reset { .. } => {}
            Command::Close => self.messages.send_close(output),
        }
    }
}

impl Channels {
    fn put(&mut self, channel: u8, bytes: &[u8], output: &mut Vec<u8>) {
        match self.coding {
            Coding::Binary => {
                let mut message = BytesMut::with_capacity(bytes.len() + 1);
                message.put_u8(channel);
                message.extend_from_slice(bytes);
                self.messages.send_binary(message.freeze(), output);
            }
            Coding::Base64 => {
                let mut message = String::new();
                message.extend(char::from_u32(u32::from(b'0') + u32::from(channel)));
                STANDARD.encode_string(bytes, &mut message);
                self.messages.send_text(message, output);
            }
        }
    }
}

/// What a message says; `None` if that is nothing.
fn event(message: &Bytes, coding: Coding, closing: Closing) -> Result<Option<StreamEvent>, ProtocolError> {
    if message.is_empty() {
        return Ok(None);
    }
    let (channel, bytes) = match coding {
        Coding::Binary => (message[0], message.slice(1..)),
        Coding::Base64 => decode(message).ok_or(ProtocolError::Base64)?,
    };
    if channel == CLOSE_CHANNEL && closing == Closing::ByChannel {
        let ended = bytes.first().map(|ended| StreamId::from(*ended));
        return Ok(ended.map(|stream| StreamEvent::Ended { stream }));
    }
    let stream = channel.into();
    Ok((!bytes.is_empty()).then_some(StreamEvent::Data { stream, bytes }))
}

fn decode(message: &[u8]) -> Option<(u8, Bytes)> {
    let mut text = std::str::from_utf8(message).ok()?.chars();
    let channel = u32::from(text.next()?).checked_sub(u32::from(b'0'))?;
    let bytes = STANDARD.decode(text.as_str()).ok()?;
    Some((u8::try_from(channel).ok()?, bytes.into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::client_frame;
    use super::*;

    fn events(
        channels: &mut Channels,
        bytes: &[u8],
        piece: usize,
    ) -> Result<Vec<StreamEvent>, ProtocolError> {
        let (mut events, mut output) = (VecDeque::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            channels.receive(piece, &mut events, &mut output)?;
        }
        Ok(events.into())
    }

    fn data(stream: StreamId, bytes: &'static [u8]) -> StreamEvent {
        let bytes = bytes.into();
        StreamEvent::Data { stream, bytes }
    }

    #[test]
    fn the_first_byte_is_the_channel() {
        let bytes = [
            client_frame(0x82, b"\x00in"),
            client_frame(0x82, b""),
            client_frame(0x82, b"\x04"),
            client_frame(0x01, b"\x04{"),
            client_frame(0x80, b"}"),
            client_frame(0x82, b"\xff\x00"),
            client_frame(0x88, b""),
        ]
        .concat();
        let ended = StreamEvent::Ended { stream: 0 };
        let expected = [data(0, b"in"), data(4, b"{}"), ended, StreamEvent::Closed];
        for piece in [1, 5, bytes.len()] {
            let mut new = Channels::new(Coding::Binary, Closing::ByChannel);
            assert_eq!(events(&mut new, &bytes, piece).unwrap(), expected);
        }
        // An older client has no such channel, and what comes on it is ignored later.
        let mut old = Channels::new(Coding::Binary, Closing::Never);
        assert_eq!(
            events(&mut old, &bytes, bytes.len()).unwrap()[2],
            data(255, b"\0")
        );
    }

    #[test]
    fn commands_become_messages() {
        let sent = |coding| {
            let (mut channels, mut output) = (Channels::new(coding, Closing::Never), Vec::new());
            let bytes = "out".into();
            channels.send(Command::Data { stream: 1, bytes }, &mut output);
            channels.send(Command::End { stream: 1 }, &mut output);
            channels.send(Command::Close, &mut output);
            output
        };
        assert_eq!(sent(Coding::Binary), b"\x82\x04\x01out\x88\x02\x03\xe8");
        assert_eq!(sent(Coding::Base64), b"\x81\x051b3V0\x88\x02\x03\xe8");
    }

    #[test]
    fn text_names_its_channel_by_a_digit() {
        let decoded = |message: &'static str| {
            let bytes = client_frame(0x81, message.as_bytes());
            events(&mut Channels::new(Coding::Base64, Closing::Never), &bytes, 3)
        };
        assert_eq!(decoded("0aW4=").unwrap(), [data(0, b"in")]);
        assert_eq!(decoded("4").unwrap(), []);
        assert_eq!(decoded("").unwrap(), []);
        for bad in ["0aW4", "0 aW4=", "!aW4=", "\u{1F600}aW4="] {
            assert!(matches!(decoded(bad), Err(ProtocolError::Base64)), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_message_is_survived_and_every_channel_reads_back(
            message in proptest::collection::vec(any::<u8>(), 1..200),
            channel in any::<u8>(),
        ) {
            for coding in [Coding::Binary, Coding::Base64] {
                let _ = event(&message.clone().into(), coding, Closing::ByChannel);
            }
            let mut text = String::new();
            text.extend(char::from_u32(u32::from(b'0') + u32::from(channel)));
            STANDARD.encode_string(&message, &mut text);
            prop_assert_eq!(decode(text.as_bytes()), Some((channel, message.into())));
        }
    }
}
