//! A WebSocket client that is just enough.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::client::{Stream, upgrade};
use crate::world::{PATIENCE, World};

const MASK: [u8; 4] = [3, 1, 4, 1];

pub(crate) struct WebSocket(pub(crate) Stream);

/// What the server said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Data(Vec<u8>),
    Close,
    /// It hung up without a word.
    Gone,
}

impl WebSocket {
    pub(crate) async fn open(world: &World, path: &str, protocol: &str) -> Self {
        let headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("Sec-WebSocket-Protocol", protocol),
        ];
        Self(upgrade(world, "GET", path, &headers).await)
    }

    pub(crate) async fn send(&mut self, message: &[u8]) {
        self.frame(0x82, message).await;
    }

    pub(crate) async fn frame(&mut self, first: u8, payload: &[u8]) {
        let mut frame = vec![first];
        match u16::try_from(payload.len()) {
            Ok(length) if length < 126 => frame.push(0x80 | u8::try_from(length).expect("it is small")),
            Ok(length) => {
                frame.push(0x80 | 0x7E);
                frame.extend(length.to_be_bytes());
            }
            Err(_) => {
                frame.push(0x80 | 0x7F);
                frame.extend((payload.len() as u64).to_be_bytes());
            }
        }
        frame.extend(MASK);
        frame.extend(
            payload
                .iter()
                .zip(MASK.into_iter().cycle())
                .map(|(byte, mask)| byte ^ mask),
        );
        self.0.write_all(&frame).await.expect("it is sent");
    }

    pub(crate) async fn next(&mut self) -> Message {
        tokio::time::timeout(PATIENCE, self.read())
            .await
            .expect("the server says something")
    }

    async fn read(&mut self) -> Message {
        let Ok(first) = self.0.read_u8().await else {
            return Message::Gone;
        };
        let length = match self.0.read_u8().await.expect("a length") {
            126 => u64::from(self.0.read_u16().await.expect("a length")),
            127 => self.0.read_u64().await.expect("a length"),
            short => u64::from(short),
        };
        let mut payload = vec![0; usize::try_from(length).expect("it fits")];
        self.0.read_exact(&mut payload).await.expect("a payload");
        match first & 0xF {
            0x8 => Message::Close,
            _ => Message::Data(payload),
        }
    }

    /// Everything until the goodbye, joined by channel.
    pub(crate) async fn channels(&mut self) -> [String; 4] {
        let mut received: [Vec<u8>; 4] = Default::default();
        while let Message::Data(message) = self.next().await {
            let (channel, data) = message.split_first().expect("a channel");
            received[usize::from(*channel)].extend_from_slice(data);
        }
        received.map(|bytes| String::from_utf8(bytes).expect("text"))
    }
}
