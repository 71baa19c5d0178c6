//! Several streams over one connection, as Kubernetes' clients and servers speak them for exec, attach and port-forward.
//!
//! The server's side begins with a request that asks for an upgrade. [`negotiate`] finds the protocol, its
//! [`answer`](NegotiatedProtocol::answer) grants it, and the connection that is left becomes a [`StreamConnection`]:
//!
//! ```
//! # async fn example(headers: http::HeaderMap, upgraded: tokio::io::DuplexStream) -> Result<(), Box<dyn std::error::Error>> {
//! use pulselet_streaming::{StreamEvent, StreamPurpose, negotiate};
//!
//! let protocol = negotiate(&headers, StreamPurpose::Command)?;
//! let answer = protocol.answer();
//! // The answer is sent, and the connection is taken over from the HTTP server.
//! let mut connection = protocol.start(upgraded);
//! let sender = connection.sender();
//! while let Ok(event) = connection.next().await {
//!     if let StreamEvent::Data { stream, bytes } = event {
//!         sender.data(stream, bytes).await?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The client's side asks with [`request_upgrade`], opens the streams that it needs, and has the same connection:
//!
//! ```no_run
//! # async fn example(tcp: tokio::net::TcpStream) -> Result<(), Box<dyn std::error::Error>> {
//! use pulselet_streaming::{SpdyClient, STREAM_TYPE, V4_CHANNEL, request_upgrade};
//!
//! let upgraded = request_upgrade(tcp, "127.0.0.1:40001", "/exec/token", V4_CHANNEL).await?;
//! let mut client = SpdyClient::default();
//! let error = client.open(&[(STREAM_TYPE, "error")]);
//! let stdout = client.open(&[(STREAM_TYPE, "stdout")]);
//! let mut connection = client.start(upgraded);
//! # Ok(())
//! # }
//! ```
//!
//! | module | what it is for |
//! |---|---|
//! | `negotiation` | which protocol a client asks for, and the answer to it |
//! | `request` | the request of a client, and the answer to that |
//! | `protocol` | what the protocols have in common, without IO |
//! | `spdy` | SPDY/3.1: frames and compressed headers once, a session for either side on top |
//! | `websocket` | Kubernetes' channels in a WebSocket, and SPDY in a WebSocket; the frames are `tungstenite`'s |
//! | `connection` | the task that moves bytes between a connection and its protocol |
//!
//! What must always hold: streams, queues, buffers, headers and messages are bounded; what a peer sends never causes a
//! panic; a reader that stops reading stops its sender.
//!
//! Left to others: what the streams are connected to, and who may ask for them.

mod connection;
#[doc(hidden)]
pub mod fuzzing;
mod negotiation;
mod protocol;
mod request;
mod spdy;
mod websocket;

pub use connection::{ConnectionError, PeerLeft, StreamConnection, StreamSender};
pub use negotiation::{
    NegotiatedProtocol, NegotiationError, PORT, PORT_FORWARD, REQUEST_ID, STREAM_TYPE, StatusForm,
    StreamLayout, StreamPurpose, V4_CHANNEL, negotiate,
};
pub use protocol::{ProtocolError, StreamEvent, StreamHeaders, StreamId};
pub use request::{RequestUpgradeError, request_upgrade};
pub use spdy::SpdyClient;
