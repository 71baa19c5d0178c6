//! From a request to a connection: which protocol a client asks for, and the answer that grants it.

use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::{Response, StatusCode};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tungstenite::handshake::derive_accept_key;

use crate::connection::StreamConnection;
use crate::spdy::Spdy;
use crate::websocket::{Channels, Closing, Coding, Tunnel};

/// The protocol of commands that both SPDY and WebSocket have, the outcome of which is a `Status`.
pub const V4_CHANNEL: &str = "v4.channel.k8s.io";
/// The protocol of forwarded ports over SPDY.
pub const PORT_FORWARD: &str = "portforward.k8s.io";
/// The header by which a stream of SPDY says what it is for.
pub const STREAM_TYPE: &str = "streamtype";
/// The header by which a stream of SPDY names the pod's port.
pub const PORT: &str = "port";
/// The header that is the same for the two streams of a forwarded connection.
pub const REQUEST_ID: &str = "requestid";

/// The token of SPDY in a request for an upgrade.
pub(crate) const SPDY: &str = "SPDY/3.1";
/// The token of WebSocket there.
const WEBSOCKET: &str = "websocket";
pub(crate) const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const SEC_WEBSOCKET_ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");
const SEC_WEBSOCKET_KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const SEC_WEBSOCKET_PROTOCOL: HeaderName = HeaderName::from_static("sec-websocket-protocol");
const SEC_WEBSOCKET_VERSION: HeaderName = HeaderName::from_static("sec-websocket-version");

/// What the streams are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamPurpose {
    Command,
    PortForward,
}

/// Where the streams of a connection come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamLayout {
    /// They are numbered, and all there from the beginning.
    Channels,
    /// The client opens each of them.
    Opened,
}

/// In which form a client reads how its command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusForm {
    /// A `Status`; since v4.
    Json,
    /// The error's text, and nothing when there is none.
    Text,
}

/// How streams become bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Channels(Coding, Closing),
    Spdy,
    SpdyInWebSocket,
}

/// What client and server have agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NegotiatedProtocol {
    framing: Framing,
    form: StatusForm,
    resizes: bool,
    /// The protocol's name; `None` if the client named none.
    name: Option<HeaderValue>,
    /// The answer to the key of a WebSocket.
    accept: Option<HeaderValue>,
}

/// Why a request cannot be upgraded; worded as a kubelet does where clients see it.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NegotiationError {
    #[error("unable to upgrade: the request asks for neither WebSocket nor SPDY/3.1")]
    NotAsked,
    #[error("the WebSocket handshake is not one: it needs version 13 and a key")]
    Handshake,
    #[error("unable to negotiate protocol: client supports [{}], server accepts [{}]", theirs.join(" "), ours.join(" "))]
    NoCommonProtocol {
        theirs: Vec<String>,
        ours: Vec<&'static str>,
    },
}

impl NegotiationError {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotAsked | Self::Handshake => StatusCode::BAD_REQUEST,
            // As upstream has it for SPDY.
            Self::NoCommonProtocol { .. } => StatusCode::FORBIDDEN,
        }
    }
}

/// A protocol by the name clients know it under.
struct Known {
    name: &'static str,
    framing: Framing,
    form: StatusForm,
    resizes: bool,
}

const fn known(name: &'static str, framing: Framing, form: StatusForm, resizes: bool) -> Known {
    Known {
        name,
        framing,
        form,
        resizes,
    }
}

const BINARY: Framing = Framing::Channels(Coding::Binary, Closing::Never);
const BASE64: Framing = Framing::Channels(Coding::Base64, Closing::Never);
const CLOSABLE: Framing = Framing::Channels(Coding::Binary, Closing::ByChannel);

const WEBSOCKET_COMMANDS: &[Known] = &[
    known("v5.channel.k8s.io", CLOSABLE, StatusForm::Json, true),
    known(V4_CHANNEL, BINARY, StatusForm::Json, true),
    known("v4.base64.channel.k8s.io", BASE64, StatusForm::Json, true),
    known("channel.k8s.io", BINARY, StatusForm::Text, true),
    known("base64.channel.k8s.io", BASE64, StatusForm::Text, true),
    known("", BINARY, StatusForm::Text, true),
];
const WEBSOCKET_FORWARDS: &[Known] = &[
    known(
        "SPDY/3.1+portforward.k8s.io",
        Framing::SpdyInWebSocket,
        StatusForm::Text,
        false,
    ),
    known(V4_CHANNEL, BINARY, StatusForm::Text, false),
    known("v4.base64.channel.k8s.io", BASE64, StatusForm::Text, false),
    known("", BINARY, StatusForm::Text, false),
];
const SPDY_COMMANDS: &[Known] = &[
    known(V4_CHANNEL, Framing::Spdy, StatusForm::Json, true),
    known("v3.channel.k8s.io", Framing::Spdy, StatusForm::Text, true),
    known("v2.channel.k8s.io", Framing::Spdy, StatusForm::Text, false),
    known("channel.k8s.io", Framing::Spdy, StatusForm::Text, false),
    known("", Framing::Spdy, StatusForm::Text, false),
];
const SPDY_FORWARDS: &[Known] = &[
    known(PORT_FORWARD, Framing::Spdy, StatusForm::Text, false),
    known("", Framing::Spdy, StatusForm::Text, false),
];

/// Finds out what a client wants to speak.
pub fn negotiate(
    headers: &HeaderMap,
    purpose: StreamPurpose,
) -> Result<NegotiatedProtocol, NegotiationError> {
    let asks_for = |protocol: &str| {
        tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"))
            && tokens(headers, &UPGRADE).any(|token| token.eq_ignore_ascii_case(protocol))
    };
    if asks_for(WEBSOCKET) {
        let version = headers.get(SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes);
        let key = headers.get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
        let (Some(b"13"), Some(key)) = (version, key) else {
            return Err(NegotiationError::Handshake);
        };
        let ours = match purpose {
            StreamPurpose::Command => WEBSOCKET_COMMANDS,
            StreamPurpose::PortForward => WEBSOCKET_FORWARDS,
        };
        let mut protocol = agree(headers, &SEC_WEBSOCKET_PROTOCOL, ours)?;
        protocol.accept = HeaderValue::from_str(&derive_accept_key(key)).ok();
        return Ok(protocol);
    }
    if asks_for(SPDY) {
        let ours = match purpose {
            StreamPurpose::Command => SPDY_COMMANDS,
            StreamPurpose::PortForward => SPDY_FORWARDS,
        };
        return agree(headers, &STREAM_PROTOCOL, ours);
    }
    Err(NegotiationError::NotAsked)
}

/// The first protocol of the client that the server knows.
fn agree(
    headers: &HeaderMap,
    header: &HeaderName,
    ours: &[Known],
) -> Result<NegotiatedProtocol, NegotiationError> {
    let theirs: Vec<&str> = tokens(headers, header).collect();
    let asked: &[&str] = if theirs.is_empty() { &[""] } else { &theirs };
    let found = asked
        .iter()
        .find_map(|name| ours.iter().find(|known| known.name == *name));
    let Some(known) = found else {
        return Err(NegotiationError::NoCommonProtocol {
            theirs: theirs.into_iter().map(str::to_owned).collect(),
            ours: ours
                .iter()
                .map(|known| known.name)
                .filter(|name| !name.is_empty())
                .collect(),
        });
    };
    Ok(NegotiatedProtocol {
        framing: known.framing,
        form: known.form,
        resizes: known.resizes,
        name: (!known.name.is_empty()).then(|| HeaderValue::from_static(known.name)),
        accept: None,
    })
}

/// The parts of a header that are separated by commas, in one line or several.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let texts = headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    texts
        .flat_map(|text| text.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

impl NegotiatedProtocol {
    pub fn layout(&self) -> StreamLayout {
        match self.framing {
            Framing::Channels(..) => StreamLayout::Channels,
            Framing::Spdy | Framing::SpdyInWebSocket => StreamLayout::Opened,
        }
    }

    /// The form of a command's outcome.
    pub fn status_form(&self) -> StatusForm {
        self.form
    }

    /// Whether the client sends its terminal's size.
    pub fn sends_terminal_size(&self) -> bool {
        self.resizes
    }

    /// The answer after which the connection is the protocol's.
    pub fn answer(&self) -> Response<()> {
        let mut answer = Response::new(());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        let (upgrade, protocol) = match self.framing {
            Framing::Channels(..) | Framing::SpdyInWebSocket => (WEBSOCKET, SEC_WEBSOCKET_PROTOCOL),
            Framing::Spdy => (SPDY, STREAM_PROTOCOL),
        };
        headers.insert(UPGRADE, HeaderValue::from_static(upgrade));
        if let Some(name) = &self.name {
            headers.insert(protocol, name.clone());
        }
        if let Some(accept) = &self.accept {
            headers.insert(SEC_WEBSOCKET_ACCEPT, accept.clone());
        }
        answer
    }

    /// Begins to speak the protocol on the connection that the request came by.
    pub fn start<S>(&self, stream: S) -> StreamConnection
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        match self.framing {
            Framing::Channels(coding, closing) => {
                StreamConnection::start(stream, Channels::new(coding, closing), Vec::new())
            }
            Framing::Spdy => StreamConnection::start(stream, Spdy::server(), Vec::new()),
            Framing::SpdyInWebSocket => StreamConnection::start(stream, Tunnel::default(), Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    const HANDSHAKE: [(&str, &str); 4] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        // The key of RFC 6455's example.
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    #[test]
    fn a_websocket_is_agreed_on_by_the_clients_order() {
        let mut pairs = HANDSHAKE.to_vec();
        pairs.push((
            "sec-websocket-protocol",
            "v9.channel.k8s.io, v4.channel.k8s.io,v5.channel.k8s.io",
        ));
        let protocol = negotiate(&headers(&pairs), StreamPurpose::Command).unwrap();
        assert_eq!(protocol.framing, BINARY);
        assert_eq!(protocol.form, StatusForm::Json);
        let answer = protocol.answer();
        assert_eq!(answer.headers()["sec-websocket-protocol"], "v4.channel.k8s.io");
        assert_eq!(
            answer.headers()["sec-websocket-accept"],
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        let plain = negotiate(&headers(&HANDSHAKE), StreamPurpose::PortForward).unwrap();
        assert!(!plain.answer().headers().contains_key("sec-websocket-protocol"));
    }

    #[test]
    fn clients_of_text_get_base64() {
        for (name, form) in [
            ("v4.base64.channel.k8s.io", StatusForm::Json),
            ("base64.channel.k8s.io", StatusForm::Text),
        ] {
            let mut pairs = HANDSHAKE.to_vec();
            pairs.push(("sec-websocket-protocol", name));
            let protocol = negotiate(&headers(&pairs), StreamPurpose::Command).unwrap();
            assert_eq!((protocol.framing, protocol.form), (BASE64, form));
            assert_eq!(protocol.layout(), StreamLayout::Channels);
        }
    }

    #[test]
    fn spdy_names_its_protocols_in_a_header_of_its_own() {
        let pairs = [
            ("connection", "Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v5.channel.k8s.io"),
            ("x-stream-protocol-version", "v3.channel.k8s.io"),
        ];
        let protocol = negotiate(&headers(&pairs), StreamPurpose::Command).unwrap();
        assert_eq!(
            (protocol.framing, protocol.form),
            (Framing::Spdy, StatusForm::Text)
        );
        let answer = protocol.answer();
        assert_eq!(answer.headers()["x-stream-protocol-version"], "v3.channel.k8s.io");
        let refused = negotiate(&headers(&pairs), StreamPurpose::PortForward).unwrap_err();
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    }

    #[test]
    fn other_requests_are_refused() {
        let refused = |pairs: &[_]| negotiate(&headers(pairs), StreamPurpose::Command).unwrap_err();
        assert_eq!(refused(&[]), NegotiationError::NotAsked);
        assert_eq!(refused(&[("upgrade", "websocket")]), NegotiationError::NotAsked);
        assert_eq!(
            refused(&[("connection", "upgrade"), ("upgrade", "h2c")]),
            NegotiationError::NotAsked
        );
        assert_eq!(refused(&HANDSHAKE[..3]), NegotiationError::Handshake);
    }
}
