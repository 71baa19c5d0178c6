//! What the protocols of streams have in common, without IO: bytes in, events out; commands in, bytes out.
//!
//! A protocol is a value. It takes whatever bytes have arrived, in pieces of any size, and turns them into events; what
//! it has to say by itself (a pong, a reply to a new stream) it appends to the output at once. It never holds back more
//! than one small frame, and what a client sends never makes it panic.

use std::collections::VecDeque;

use bytes::Bytes;
use thiserror::Error;

/// A stream of a connection: a channel of a WebSocket, a stream of SPDY.
pub(crate) type StreamId = u32;

/// The headers a client opened a stream with; names are in lower case.
pub(crate) type Headers = Vec<(String, String)>;

/// What a client did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Opened {
        stream: StreamId,
        headers: Headers,
    },
    Data {
        stream: StreamId,
        bytes: Bytes,
    },
    /// It sends no more on this stream.
    Ended {
        stream: StreamId,
    },
    /// It has given the stream up, in both directions.
    Reset {
        stream: StreamId,
    },
    /// It is about to leave.
    Closed,
}

/// What a client is to be sent.
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
    /// Goodbye.
    Close,
}

/// The client does not keep to the protocol. Its connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum ProtocolError {
    #[error("a frame of the client is not masked")]
    Unmasked,
    #[error("a frame has reserved bits or an unknown opcode")]
    UnknownFrame,
    #[error("a control frame is fragmented or too long")]
    ControlFrame,
    #[error("a continuation without a message, or a message within another")]
    Fragmentation,
    #[error("the version of a frame is not 3")]
    Version,
    #[error("a frame is too short, too long or malformed")]
    Frame,
    #[error("headers cannot be decompressed, or are too many")]
    Headers,
    #[error("a stream has a number that it cannot have")]
    StreamNumber,
}

/// One connection's protocol, on the side of the server.
pub(crate) trait Protocol: Send + 'static {
    /// Takes bytes that have arrived.
    fn receive(
        &mut self,
        bytes: &[u8],
        events: &mut VecDeque<Event>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolError>;

    /// Turns a command into bytes.
    fn send(&mut self, command: Command, output: &mut Vec<u8>);
}
