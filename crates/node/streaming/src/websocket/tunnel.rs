//! SPDY within a WebSocket: its bytes are the messages', wherever these begin and end.

use std::collections::VecDeque;

use super::{Item, Messages};
use crate::protocol::{Command, ProtocolError, Side, StreamEvent, StreamProtocol};
use crate::spdy::Spdy;

#[derive(Debug)]
pub(crate) struct Tunnel {
    messages: Messages,
    inner: Spdy,
}

impl Default for Tunnel {
    fn default() -> Self {
        Self {
            messages: Messages::default(),
            inner: Spdy::server(),
        }
    }
}

impl StreamProtocol for Tunnel {
    fn side(&self) -> Side {
        Side::Server
    }

    fn receive(
        &mut self,
        bytes: &[u8],
        events: &mut VecDeque<StreamEvent>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        let mut answer = Vec::new();
        let inner = &mut self.inner;
        self.messages.receive(bytes, output, |item| match item {
            Item::Message(bytes) => inner.receive(&bytes, events, &mut answer),
            Item::Close => {
                events.push_back(StreamEvent::Closed);
                Ok(())
            }
        })?;
        if !answer.is_empty() {
            self.messages.send_binary(answer.into(), output);
        }
        Ok(())
    }

    fn send(&mut self, command: Command, output: &mut Vec<u8>) {
        let last = command == Command::Close;
        let mut bytes = Vec::new();
        self.inner.send(command, &mut bytes);
        if !bytes.is_empty() {
            self.messages.send_binary(bytes.into(), output);
        }
        if last {
            self.messages.send_close(output);
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
        assert_eq!(events, [StreamEvent::Closed]);
    }
}
