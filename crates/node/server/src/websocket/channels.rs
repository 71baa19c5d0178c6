//! Kubernetes' channels: the first byte of a message says which stream the rest belongs to.

use std::collections::VecDeque;

use super::{Framing, Item, put_close, put_message};
use crate::protocol::{Command, Event, Protocol, ProtocolError, StreamId};

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

/// The channels of a WebSocket. They are all open from the beginning.
#[derive(Debug)]
pub(crate) struct Channels {
    framing: Framing,
    closing: Closing,
    /// That of the message being read, once its first byte is there.
    channel: Option<u8>,
}

impl Channels {
    pub(crate) fn new(closing: Closing) -> Self {
        Self {
            framing: Framing::default(),
            closing,
            channel: None,
        }
    }
}

impl Protocol for Channels {
    fn receive(
        &mut self,
        bytes: &[u8],
        events: &mut VecDeque<Event>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        let (channel, closing) = (&mut self.channel, self.closing);
        self.framing.receive(bytes, output, |item| {
            match item {
                Item::Part { mut bytes, begins } => {
                    if begins {
                        *channel = None;
                    }
                    if channel.is_none() && !bytes.is_empty() {
                        *channel = Some(bytes.split_to(1)[0]);
                    }
                    match *channel {
                        Some(CLOSE_CHANNEL) if closing == Closing::ByChannel => {
                            let ended = bytes.first().map(|ended| StreamId::from(*ended));
                            events.extend(ended.map(|stream| Event::Ended { stream }));
                        }
                        Some(channel) if !bytes.is_empty() => events.push_back(Event::Data {
                            stream: channel.into(),
                            bytes,
                        }),
                        Some(_) | None => {}
                    }
                }
                Item::MessageEnd => {}
                Item::Close => events.push_back(Event::Closed),
            }
            Ok(())
        })
    }

    fn send(&mut self, command: Command, output: &mut Vec<u8>) {
        match command {
            Command::Data { stream, bytes } => match u8::try_from(stream) {
                Ok(channel) => put_message(output, &[&[channel], &bytes]),
                Err(_) => debug_assert!(false, "there is no channel {stream}"),
            },
            // A channel of the server ends with the connection.
            Command::End { .. } | Command::Reset { .. } => {}
            Command::Close => put_close(output),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::client_frame;
    use super::*;

    fn events(closing: Closing, bytes: &[u8], piece: usize) -> Vec<Event> {
        let mut channels = Channels::new(closing);
        let (mut events, mut output) = (VecDeque::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            channels.receive(piece, &mut events, &mut output).unwrap();
        }
        events.into()
    }

    fn data(stream: StreamId, bytes: &'static [u8]) -> Event {
        let bytes = bytes.into();
        Event::Data { stream, bytes }
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
        let ended = Event::Ended { stream: 0 };
        let expected = [data(0, b"in"), data(4, b"{"), data(4, b"}"), ended, Event::Closed];
        assert_eq!(events(Closing::ByChannel, &bytes, bytes.len()), expected);
        // An older client has no such channel, and nobody listens to it.
        assert_eq!(events(Closing::Never, &bytes, bytes.len())[3], data(255, b"\0"));
        // In single bytes the same, but for how data are cut.
        let single = events(Closing::ByChannel, &bytes, 1);
        assert_eq!(single.len(), 6);
        assert_eq!(single[0], data(0, b"i"));
        assert_eq!(single[4], Event::Ended { stream: 0 });
    }

    #[test]
    fn commands_become_messages() {
        let (mut channels, mut output) = (Channels::new(Closing::ByChannel), Vec::new());
        let bytes = "out".into();
        channels.send(Command::Data { stream: 1, bytes }, &mut output);
        channels.send(Command::End { stream: 1 }, &mut output);
        channels.send(Command::Close, &mut output);
        assert_eq!(output, b"\x82\x04\x01out\x88\x02\x03\xe8");
    }
}
