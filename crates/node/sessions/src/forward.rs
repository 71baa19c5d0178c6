//! Connections to a pod's ports, several over one connection of a client.
//!
//! Over SPDY a client opens two streams for each connection, one for its data and one for what goes wrong, and says
//! with headers which belong together. Over channels the ports are known beforehand, and each has two channels.
//!
//! What must always hold: what a client sends waits in bounded queues, connections included, and all connections end
//! with the client.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pulselet_runtime::{DuplexStream, Runtime, SandboxId};
use pulselet_streaming::{
    NegotiatedProtocol, PORT, PeerLeft, REQUEST_ID, STREAM_TYPE, StreamConnection, StreamEvent,
    StreamHeaders, StreamId, StreamLayout, StreamSender,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Chunks that wait for a connection.
const INBOX: usize = 16;
/// Bytes read from a connection at a time.
const CHUNK: usize = 32 * 1024;

/// The pod that is connected to.
#[derive(Debug, Clone)]
pub struct ForwardTarget {
    pub runtime: Arc<dyn Runtime>,
    pub sandbox: SandboxId,
    /// For messages.
    pub pod: String,
}

/// The two streams of a connection.
#[derive(Debug, Clone, Copy)]
struct Pair {
    data: StreamId,
    error: StreamId,
}

/// A connection of which not both streams are there.
#[derive(Debug, Default)]
struct Half {
    data: Option<(StreamId, mpsc::Receiver<Bytes>)>,
    error: Option<StreamId>,
}

/// Which of the two a new stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Data,
    Error,
}

/// Serves a client until it leaves. `ports` are those that a client of channels has asked for; others name a port with
/// every stream.
pub async fn forward_ports(
    connection: StreamConnection,
    protocol: &NegotiatedProtocol,
    target: ForwardTarget,
    ports: &[u16],
) {
    match protocol.layout() {
        StreamLayout::Channels => channels(connection, target, ports).await,
        StreamLayout::Opened => streams(connection, target).await,
    }
}

/// Serves a client of SPDY until it leaves.
async fn streams(mut connection: StreamConnection, target: ForwardTarget) {
    let mut session = Session {
        sender: connection.sender(),
        target,
        halves: HashMap::new(),
        inboxes: HashMap::new(),
        connections: JoinSet::new(),
    };
    while let Ok(event) = connection.next().await {
        if session.take(event).await.is_err() {
            break;
        }
        while session.connections.try_join_next().is_some() {}
    }
    drop(session);
    connection.finish().await;
}

/// Serves a client of channels, which says beforehand which ports it wants.
async fn channels(mut connection: StreamConnection, target: ForwardTarget, ports: &[u16]) {
    let sender = connection.sender();
    let mut inboxes = HashMap::new();
    let mut connections = JoinSet::new();
    for (data, port) in (0..).step_by(2).zip(ports) {
        let pair = Pair {
            data,
            error: data + 1,
        };
        for channel in [pair.data, pair.error] {
            let bytes = Bytes::copy_from_slice(&port.to_le_bytes());
            if sender.data(channel, bytes).await.is_err() {
                return;
            }
        }
        let (inbox, incoming) = mpsc::channel(INBOX);
        inboxes.insert(data, inbox);
        connections.spawn(connect(target.clone(), *port, pair, sender.clone(), incoming));
    }
    drop(sender);
    loop {
        tokio::select! {
            event = connection.next() => match event {
                Ok(StreamEvent::Data { stream, bytes }) => deliver(&mut inboxes, stream, bytes).await,
                Ok(StreamEvent::Ended { stream } | StreamEvent::Reset { stream }) => drop(inboxes.remove(&stream)),
                Ok(StreamEvent::Opened { .. } | StreamEvent::Closed) => {}
                Err(PeerLeft) => break,
            },
            ended = connections.join_next() => if ended.is_none() {
                break;
            },
        }
    }
    drop(connections);
    connection.finish().await;
}

/// A connection that has ended takes no more.
async fn deliver(inboxes: &mut HashMap<StreamId, mpsc::Sender<Bytes>>, stream: StreamId, bytes: Bytes) {
    if let Some(inbox) = inboxes.get(&stream)
        && inbox.send(bytes).await.is_err()
    {
        inboxes.remove(&stream);
    }
}

struct Session {
    sender: StreamSender,
    target: ForwardTarget,
    /// By the request's id.
    halves: HashMap<String, Half>,
    /// By the stream of their data.
    inboxes: HashMap<StreamId, mpsc::Sender<Bytes>>,
    connections: JoinSet<()>,
}

impl Session {
    async fn take(&mut self, event: StreamEvent) -> Result<(), PeerLeft> {
        match event {
            StreamEvent::Opened { stream, headers } => self.opened(stream, &headers).await?,
            StreamEvent::Data { stream, bytes } => {
                if self.is_half(stream) {
                    return self.keep_for_later(stream, bytes).await;
                }
                deliver(&mut self.inboxes, stream, bytes).await;
            }
            StreamEvent::Ended { stream } => drop(self.inboxes.remove(&stream)),
            StreamEvent::Reset { stream } => {
                self.inboxes.remove(&stream);
                self.halves.retain(|_, half| {
                    let data = half.data.as_ref().map(|(data, _)| *data);
                    data != Some(stream) && half.error != Some(stream)
                });
            }
            StreamEvent::Closed => {}
        }
        Ok(())
    }

    /// Whether it carries the data of a connection that lacks its other stream.
    fn is_half(&self, stream: StreamId) -> bool {
        let mut waiting = self.halves.values().filter_map(|half| half.data.as_ref());
        waiting.any(|(data, _)| *data == stream)
    }

    /// Nobody takes the data of half a connection, so room for them must not be waited for.
    async fn keep_for_later(&mut self, stream: StreamId, bytes: Bytes) -> Result<(), PeerLeft> {
        let inbox = self.inboxes.get(&stream);
        if inbox.is_none_or(|inbox| inbox.try_send(bytes).is_ok()) {
            return Ok(());
        }
        self.inboxes.remove(&stream);
        self.sender.reset(stream).await
    }

    /// Takes a new stream, and connects when it is the second of its connection.
    async fn opened(&mut self, stream: StreamId, headers: &StreamHeaders) -> Result<(), PeerLeft> {
        let Some((side, port, request)) = describe(stream, headers) else {
            return self.sender.reset(stream).await;
        };
        let half = self.halves.entry(request.clone()).or_default();
        match side {
            Side::Data if half.data.is_none() => {
                let (inbox, incoming) = mpsc::channel(INBOX);
                self.inboxes.insert(stream, inbox);
                half.data = Some((stream, incoming));
            }
            Side::Error if half.error.is_none() => half.error = Some(stream),
            Side::Data | Side::Error => return self.sender.reset(stream).await,
        }
        if let Half {
            data: Some(_),
            error: Some(error),
        } = *half
            && let Some(Half {
                data: Some((data, incoming)),
                ..
            }) = self.halves.remove(&request)
        {
            let pair = Pair { data, error };
            let connection = connect(self.target.clone(), port, pair, self.sender.clone(), incoming);
            self.connections.spawn(connection);
        }
        Ok(())
    }
}

/// What the headers say: side, port and request.
fn describe(stream: StreamId, headers: &StreamHeaders) -> Option<(Side, u16, String)> {
    let header = |wanted: &str| {
        let mut all = headers.iter();
        all.find(|(name, _)| name == wanted)
            .map(|(_, value)| value.as_str())
    };
    let side = match header(STREAM_TYPE)? {
        "data" => Side::Data,
        "error" => Side::Error,
        _ => return None,
    };
    let port = header(PORT)?.parse().ok().filter(|port| *port > 0)?;
    let request = match (header(REQUEST_ID), side) {
        (Some(request), _) => request.to_owned(),
        // The oldest clients name no request, and open the error's stream just before that of the data.
        (None, Side::Error) => stream.to_string(),
        (None, Side::Data) => stream.checked_sub(2)?.to_string(),
    };
    Some((side, port, request))
}

/// One connection, from its beginning to its end.
async fn connect(
    target: ForwardTarget,
    port: u16,
    pair: Pair,
    sender: StreamSender,
    incoming: mpsc::Receiver<Bytes>,
) {
    let connected = target.runtime.port_forward(&target.sandbox, port).await;
    let ended = match connected {
        Ok(stream) => exchange(stream, pair, &sender, incoming).await,
        Err(error) => {
            let text = format!("error forwarding port {port} to pod {}: {error}", target.pod);
            let sent = sender.data(pair.error, text.into()).await;
            sent.and(end(pair, &sender).await)
        }
    };
    if ended == Err(PeerLeft) {
        tracing::debug!(port, "a client left a forwarded connection");
    }
}

/// Nothing more comes from the pod. Clients wait for the end of both streams before they close their own side.
async fn end(pair: Pair, sender: &StreamSender) -> Result<(), PeerLeft> {
    sender.end(pair.error).await?;
    sender.end(pair.data).await
}

/// Passes bytes both ways until both sides have ended.
async fn exchange(
    stream: DuplexStream,
    pair: Pair,
    sender: &StreamSender,
    mut incoming: mpsc::Receiver<Bytes>,
) -> Result<(), PeerLeft> {
    let (mut from, mut to) = tokio::io::split(stream);
    let upwards = async {
        while let Some(bytes) = incoming.recv().await {
            if to.write_all(&bytes).await.is_err() || to.flush().await.is_err() {
                break;
            }
        }
        incoming.close();
        // Nothing to be done about a connection that is gone already.
        let _ = to.shutdown().await;
    };
    let downwards = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(CHUNK);
            let count = from.read_buf(&mut buffer).await.unwrap_or(0);
            if count == 0 {
                return end(pair, sender).await;
            }
            sender.data(pair.data, buffer.split().freeze()).await?;
        }
    };
    tokio::join!(upwards, downwards).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_what_belongs_together() {
        let described = |stream, headers: &[(&str, &str)]| {
            let headers = headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            describe(stream, &headers.collect())
        };
        let new = [("streamtype", "data"), ("port", "80"), ("requestid", "7")];
        assert_eq!(described(3, &new), Some((Side::Data, 80, "7".to_owned())));
        let old = described(3, &[("streamtype", "data"), ("port", "80")]);
        assert_eq!(old, Some((Side::Data, 80, "1".to_owned())));
        let error = described(1, &[("streamtype", "error"), ("port", "80")]);
        assert_eq!(error, Some((Side::Error, 80, "1".to_owned())));
        for bad in ["0", "65536", "-1", ""] {
            assert_eq!(described(1, &[("streamtype", "error"), ("port", bad)]), None);
        }
        assert_eq!(described(1, &[("streamtype", "stdin"), ("port", "80")]), None);
        assert_eq!(described(1, &[("streamtype", "error")]), None);
    }
}
