//! What the protocols of streams have in common, without IO: bytes in, events out; commands in, bytes out.
//!
//! A protocol is a value. It takes whatever bytes have arrived, in pieces of any size, and turns them into events; its
//! own replies (a pong, the reply to a new stream) are appended to the output at once. What it holds back is bounded,
//! and what a peer sends never makes it panic.

use std::collections::VecDeque;

use bytes::Bytes;
use thiserror::Error;

/// A stream of a connection: a channel of a WebSocket, a stream of SPDY.
pub type StreamId = u32;

/// The headers that a stream was opened with; names are in lower case.
pub type StreamHeaders = Vec<(String, String)>;

/// What the peer did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEvent {
    /// A client opened a stream; clients do not get this event.
    Opened {
        stream: StreamId,
        headers: StreamHeaders,
    },
    Data {
        stream: StreamId,
        bytes: Bytes,
    },
    /// The peer sends no more on this stream.
    Ended {
        stream: StreamId,
    },
    /// The peer has given the stream up, in both directions.
    Reset {
        stream: StreamId,
    },
    /// The peer is about to leave.
    Closed,
}

/// What the peer is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    Data {
        stream: StreamId,
        bytes: Bytes,
    },
    /// Nothing more comes on this stream.
    End {
        stream: StreamId,
    },
    Reset {
        stream: StreamId,
    },
    /// Nothing more comes on any stream.
    Close,
}

/// The peer does not keep to the protocol. Its connection is closed.
#[derive(Debug, Error)]
pub enum ProtocolError {
    #[error("the WebSocket cannot be read: {0}")]
    WebSocket(#[from] Box<tungstenite::Error>),
    #[error("a message of a base64 protocol is not a channel and base64")]
    Base64,
    #[error("the version of a SPDY frame is not 3")]
    Version,
    #[error("a SPDY frame is too short or too long")]
    Frame,
    #[error("SPDY headers cannot be decompressed, or are too many")]
    Headers,
    #[error("a SPDY stream has a number that it cannot have")]
    StreamNumber,
}

/// Which end of a connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Client,
}

/// One connection's protocol.
pub(crate) trait StreamProtocol: Send + 'static {
    fn side(&self) -> Side;

    /// Takes bytes that have arrived.
    fn receive(
        &mut self,
        bytes: &[u8],
        events: &mut VecDeque<StreamEvent>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolError>;

    /// Turns a command into bytes.
    fn send(&mut self, command: Command, output: &mut Vec<u8>);
}
