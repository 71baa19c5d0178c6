//! A SPDY client that is just enough, over a connection or within a WebSocket. Its headers use no dictionary, as
//! clients are free to do; those of the server are skipped.

use std::collections::HashMap;

use flate2::{Compress, Compression, FlushCompress};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::client::{Stream, upgrade};
use crate::websocket::{Message, WebSocket};
use crate::world::{PATIENCE, World};

enum Carrier {
    Plain(Stream),
    Tunnel(WebSocket),
}

pub(crate) struct Spdy {
    carrier: Carrier,
    zlib: Compress,
    next: u32,
    /// Read from the carrier and not taken apart yet.
    inbox: Vec<u8>,
    /// What came on each stream, and whether it has ended.
    pub(crate) streams: HashMap<u32, (Vec<u8>, bool)>,
    pub(crate) resets: Vec<u32>,
}

impl Spdy {
    pub(crate) async fn open(world: &World, path: &str, protocol: &str) -> Self {
        let headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "SPDY/3.1"),
            ("X-Stream-Protocol-Version", protocol),
        ];
        Self::over(Carrier::Plain(upgrade(world, "POST", path, &headers).await))
    }

    pub(crate) async fn tunnel(world: &World, path: &str) -> Self {
        Self::over(Carrier::Tunnel(
            WebSocket::open(world, path, "SPDY/3.1+portforward.k8s.io").await,
        ))
    }

    fn over(carrier: Carrier) -> Self {
        Self {
            carrier,
            zlib: Compress::new(Compression::default(), true),
            next: 1,
            inbox: Vec::new(),
            streams: HashMap::new(),
            resets: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        match &mut self.carrier {
            Carrier::Plain(stream) => stream.write_all(bytes).await.expect("it is sent"),
            Carrier::Tunnel(websocket) => websocket.send(bytes).await,
        }
    }

    /// Opens a stream.
    pub(crate) async fn stream(&mut self, headers: &[(&str, &str)]) -> u32 {
        let stream = self.next;
        self.next += 2;
        let mut block = Vec::new();
        let mut put = |number: usize, text: &str| {
            block.extend(u32::try_from(number).expect("it is small").to_be_bytes());
            block.extend_from_slice(text.as_bytes());
        };
        put(headers.len(), "");
        for (name, value) in headers {
            put(name.len(), name);
            put(value.len(), value);
        }
        let mut body = stream.to_be_bytes().to_vec();
        body.extend([0; 6]);
        let mut deflated = Vec::with_capacity(block.len() + 64);
        self.zlib
            .compress_vec(&block, &mut deflated, FlushCompress::Sync)
            .expect("it is compressed");
        body.extend(deflated);
        self.control(1, &body).await;
        self.streams.insert(stream, (Vec::new(), false));
        stream
    }

    async fn control(&mut self, kind: u8, body: &[u8]) {
        let mut frame = vec![0x80, 3, 0, kind, 0];
        frame.extend_from_slice(&u32::try_from(body.len()).expect("it is small").to_be_bytes()[1..]);
        frame.extend_from_slice(body);
        self.send(&frame).await;
    }

    pub(crate) async fn data(&mut self, stream: u32, bytes: &[u8], last: bool) {
        let mut frame = stream.to_be_bytes().to_vec();
        frame.push(u8::from(last));
        frame.extend_from_slice(&u32::try_from(bytes.len()).expect("it is small").to_be_bytes()[1..]);
        frame.extend_from_slice(bytes);
        self.send(&frame).await;
    }

    /// Listens until a stream has ended, and returns all that came on it.
    pub(crate) async fn until_ended(&mut self, stream: u32) -> String {
        let listening = async {
            while !self.streams.get(&stream).is_some_and(|(_, ended)| *ended) {
                self.listen().await;
            }
        };
        tokio::time::timeout(PATIENCE, listening).await.expect("it ends");
        String::from_utf8_lossy(&self.streams[&stream].0).into_owned()
    }

    /// Listens until a stream has brought something.
    pub(crate) async fn until_received(&mut self, stream: u32, expected: &str) {
        let listening = async {
            while self.streams[&stream].0 != expected.as_bytes() {
                self.listen().await;
            }
        };
        tokio::time::timeout(PATIENCE, listening).await.expect("it comes");
    }

    /// Takes one frame.
    pub(crate) async fn listen(&mut self) {
        let head: [u8; 8] = self.take(8).await.try_into().expect("eight bytes");
        let length = u32::from_be_bytes([0, head[5], head[6], head[7]]);
        let body = self.take(usize::try_from(length).expect("it fits")).await;
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"));
        if head[0] & 0x80 == 0 {
            let (bytes, ended) = self.streams.entry(number(&head)).or_default();
            bytes.extend(body);
            *ended |= head[4] & 1 != 0;
        } else if head[3] == 3 {
            self.resets.push(number(&body));
        }
    }

    async fn take(&mut self, count: usize) -> Vec<u8> {
        while self.inbox.len() < count {
            match &mut self.carrier {
                Carrier::Plain(stream) => {
                    let read = stream.read_buf(&mut self.inbox).await.expect("bytes");
                    assert!(read > 0, "the server has hung up");
                }
                Carrier::Tunnel(websocket) => match websocket.next().await {
                    Message::Data(bytes) => self.inbox.extend(bytes),
                    end @ (Message::Close | Message::Gone) => panic!("the server has left: {end:?}"),
                },
            }
        }
        self.inbox.drain(..count).collect()
    }
}
