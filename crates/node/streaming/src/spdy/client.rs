//! The side that opens streams.

use tokio::io::{AsyncRead, AsyncWrite};

use super::frame::{ControlType, FIN, put_control};
use super::{Open, Spdy};
use crate::connection::StreamConnection;
use crate::protocol::{Side, StreamId};

/// A client of SPDY that opens its streams before anything else is sent.
#[derive(Debug)]
pub struct SpdyClient {
    spdy: Spdy,
    /// The frames that open the streams.
    opening: Vec<u8>,
}

impl Default for SpdyClient {
    fn default() -> Self {
        Self {
            spdy: Spdy::new(Side::Client),
            opening: Vec::new(),
        }
    }
}

impl SpdyClient {
    /// Opens a stream in both directions.
    pub fn open(&mut self, headers: &[(&str, &str)]) -> StreamId {
        self.open_stream(headers, true)
    }

    /// Opens a stream on which only the server will send.
    pub fn open_to_read(&mut self, headers: &[(&str, &str)]) -> StreamId {
        self.open_stream(headers, false)
    }

    fn open_stream(&mut self, headers: &[(&str, &str)], ours: bool) -> StreamId {
        // Clients' streams have odd numbers.
        let stream = match self.spdy.newest {
            0 => 1,
            newest => newest + 2,
        };
        self.spdy.newest = stream;
        self.spdy.streams.insert(stream, Open { theirs: true, ours });
        let mut body = stream.to_be_bytes().to_vec();
        // No associated stream, no priority, no slot.
        body.extend([0; 6]);
        body.extend(self.spdy.deflater.headers(headers));
        let flags = if ours { 0 } else { FIN };
        put_control(&mut self.opening, ControlType::SynStream, flags, &body);
        stream
    }

    /// Sends what opens the streams, and whatever follows.
    pub fn start<S>(self, stream: S) -> StreamConnection
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        StreamConnection::start(stream, self.spdy, self.opening)
    }

    #[cfg(test)]
    pub(super) fn into_parts(self) -> (Spdy, Vec<u8>) {
        (self.spdy, self.opening)
    }
}
