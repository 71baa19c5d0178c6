//! SPDY within a WebSocket: its bytes are the messages', wherever these begin and end.

use std::collections::VecDeque;

use super::{Framing, Item, put_close, put_message};
use crate::protocol::{Command, Event, Protocol, ProtocolError};
use crate::spdy::Spdy;

#[derive(Debug, Default)]
pub(crate) struct Tunnel {
    framing: Framing,
    inner: Spdy,
}

impl Protocol for Tunnel {
    fn receive(
        &mut self,
        bytes: &[u8],
        events: &mut VecDeque<Event>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        let mut answer = Vec::new();
        let inner = &mut self.inner;
        self.framing.receive(bytes, output, |item| match item {
            Item::Part { bytes, .. } => inner.receive(&bytes, events, &mut answer),
            Item::MessageEnd => Ok(()),
            Item::Close => {
                events.push_back(Event::Closed);
                Ok(())
            }
        })?;
        if !answer.is_empty() {
            put_message(output, &[&answer]);
        }
        Ok(())
    }

    fn send(&mut self, command: Command, output: &mut Vec<u8>) {
        let last = command == Command::Close;
        let mut bytes = Vec::new();
        self.inner.send(command, &mut bytes);
        if !bytes.is_empty() {
            put_message(output, &[&bytes]);
        }
        if last {
            put_close(output);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::client_frame;
    use super::*;

    #[test]
    fn frames_of_one_protocol_cross_those_of_the_other() {
        let mut tunnel = Tunnel::default();
        let (mut events, mut output) = (VecDeque::new(), Vec::new());
        // A ping, cut into two messages.
        let ping = b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x07";
        for piece in ping.chunks(5) {
            let frame = client_frame(0x82, piece);
            tunnel.receive(&frame, &mut events, &mut output).unwrap();
        }
        assert_eq!(output, [b"\x82\x0c".as_slice(), ping].concat());
        assert!(events.is_empty());
        tunnel
            .receive(&client_frame(0x88, b""), &mut events, &mut output)
            .unwrap();
        assert_eq!(events, [Event::Closed]);
    }
}
