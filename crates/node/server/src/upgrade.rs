//! From a request to a connection: which protocol is spoken, and the answer that says so.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use hyper::{Response, StatusCode};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use thiserror::Error;

use crate::body::{Body, empty};
use crate::link::Link;
use crate::spdy::Spdy;
use crate::status::StatusForm;
use crate::websocket::{Channels, Closing, Tunnel};

const SEC_WEBSOCKET_ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");
const SEC_WEBSOCKET_KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const SEC_WEBSOCKET_PROTOCOL: HeaderName = HeaderName::from_static("sec-websocket-protocol");
const SEC_WEBSOCKET_VERSION: HeaderName = HeaderName::from_static("sec-websocket-version");
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// What RFC 6455 has a server append to the client's key.
const WEBSOCKET_GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// What the streams are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Command,
    PortForward,
}

/// How a connection is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speech {
    Channels(Closing),
    Spdy,
    /// SPDY in a WebSocket.
    Tunnel,
}

/// What client and server have agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub(crate) speech: Speech,
    /// The form of a command's outcome.
    pub(crate) form: StatusForm,
    /// Whether a terminal's size is sent.
    pub(crate) resizes: bool,
    /// The protocol's name as the client wrote it; none if it named none.
    name: Option<HeaderValue>,
    /// The answer to the key of a WebSocket.
    accept: Option<HeaderValue>,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum UpgradeError {
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

impl UpgradeError {
    pub(crate) fn status(&self) -> StatusCode {
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
    speech: Speech,
    form: StatusForm,
    resizes: bool,
}

const fn known(name: &'static str, speech: Speech, form: StatusForm, resizes: bool) -> Known {
    Known {
        name,
        speech,
        form,
        resizes,
    }
}

const OLD: Speech = Speech::Channels(Closing::Never);

const WEBSOCKET_COMMANDS: &[Known] = &[
    known(
        "v5.channel.k8s.io",
        Speech::Channels(Closing::ByChannel),
        StatusForm::Json,
        true,
    ),
    known("v4.channel.k8s.io", OLD, StatusForm::Json, true),
    known("channel.k8s.io", OLD, StatusForm::Text, true),
    known("", OLD, StatusForm::Text, true),
];
const WEBSOCKET_FORWARDS: &[Known] = &[
    known(
        "SPDY/3.1+portforward.k8s.io",
        Speech::Tunnel,
        StatusForm::Text,
        false,
    ),
    known("v4.channel.k8s.io", OLD, StatusForm::Text, false),
    known("", OLD, StatusForm::Text, false),
];
const SPDY_COMMANDS: &[Known] = &[
    known("v4.channel.k8s.io", Speech::Spdy, StatusForm::Json, true),
    known("v3.channel.k8s.io", Speech::Spdy, StatusForm::Text, true),
    known("v2.channel.k8s.io", Speech::Spdy, StatusForm::Text, false),
    known("channel.k8s.io", Speech::Spdy, StatusForm::Text, false),
    known("", Speech::Spdy, StatusForm::Text, false),
];
const SPDY_FORWARDS: &[Known] = &[
    known("portforward.k8s.io", Speech::Spdy, StatusForm::Text, false),
    known("", Speech::Spdy, StatusForm::Text, false),
];

/// Finds out what a client wants to speak.
pub(crate) fn negotiate(headers: &HeaderMap, purpose: Purpose) -> Result<Agreement, UpgradeError> {
    let asks_for = |protocol: &str| {
        tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"))
            && tokens(headers, &UPGRADE).any(|token| token.eq_ignore_ascii_case(protocol))
    };
    if asks_for("websocket") {
        let version = headers.get(SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes);
        let key = headers.get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
        let (Some(b"13"), Some(key)) = (version, key) else {
            return Err(UpgradeError::Handshake);
        };
        let ours = match purpose {
            Purpose::Command => WEBSOCKET_COMMANDS,
            Purpose::PortForward => WEBSOCKET_FORWARDS,
        };
        let mut agreement = agree(headers, &SEC_WEBSOCKET_PROTOCOL, ours)?;
        agreement.accept = HeaderValue::from_str(&accept(key)).ok();
        return Ok(agreement);
    }
    if asks_for("SPDY/3.1") {
        let ours = match purpose {
            Purpose::Command => SPDY_COMMANDS,
            Purpose::PortForward => SPDY_FORWARDS,
        };
        return agree(headers, &STREAM_PROTOCOL, ours);
    }
    Err(UpgradeError::NotAsked)
}

/// The first protocol of the client that the server knows.
fn agree(headers: &HeaderMap, header: &HeaderName, ours: &[Known]) -> Result<Agreement, UpgradeError> {
    let theirs: Vec<&str> = tokens(headers, header).collect();
    let asked: &[&str] = if theirs.is_empty() { &[""] } else { &theirs };
    let found = asked
        .iter()
        .find_map(|name| ours.iter().find(|known| known.name == *name));
    let Some(known) = found else {
        return Err(UpgradeError::NoCommonProtocol {
            theirs: theirs.into_iter().map(str::to_owned).collect(),
            ours: ours
                .iter()
                .map(|known| known.name)
                .filter(|name| !name.is_empty())
                .collect(),
        });
    };
    Ok(Agreement {
        speech: known.speech,
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

fn accept(key: &[u8]) -> String {
    let joined = [key, WEBSOCKET_GUID.as_bytes()].concat();
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &joined))
}

impl Agreement {
    /// The answer after which the connection is the protocol's.
    pub(crate) fn answer(&self) -> Response<Body> {
        let mut answer = Response::new(empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        let (upgrade, protocol) = match self.speech {
            Speech::Channels(_) | Speech::Tunnel => ("websocket", SEC_WEBSOCKET_PROTOCOL),
            Speech::Spdy => ("SPDY/3.1", STREAM_PROTOCOL),
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

    /// Begins to speak.
    pub(crate) fn begin<S>(&self, stream: S) -> Link
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
    {
        match self.speech {
            Speech::Channels(closing) => Link::start(stream, Channels::new(closing)),
            Speech::Spdy => Link::start(stream, Spdy::default()),
            Speech::Tunnel => Link::start(stream, Tunnel::default()),
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

    const WEBSOCKET: [(&str, &str); 4] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        // The key of RFC 6455's example.
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    #[test]
    fn a_websocket_is_agreed_on_by_the_clients_order() {
        let mut pairs = WEBSOCKET.to_vec();
        pairs.push((
            "sec-websocket-protocol",
            "v9.channel.k8s.io, v4.channel.k8s.io,v5.channel.k8s.io",
        ));
        let agreement = negotiate(&headers(&pairs), Purpose::Command).unwrap();
        assert_eq!(agreement.speech, Speech::Channels(Closing::Never));
        assert_eq!(agreement.form, StatusForm::Json);
        let answer = agreement.answer();
        assert_eq!(answer.headers()["sec-websocket-protocol"], "v4.channel.k8s.io");
        assert_eq!(
            answer.headers()["sec-websocket-accept"],
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        let plain = negotiate(&headers(&WEBSOCKET), Purpose::PortForward).unwrap();
        assert!(!plain.answer().headers().contains_key("sec-websocket-protocol"));
    }

    #[test]
    fn spdy_names_its_protocols_in_a_header_of_its_own() {
        let pairs = [
            ("connection", "Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v5.channel.k8s.io"),
            ("x-stream-protocol-version", "v3.channel.k8s.io"),
        ];
        let agreement = negotiate(&headers(&pairs), Purpose::Command).unwrap();
        assert_eq!(
            (agreement.speech, agreement.form),
            (Speech::Spdy, StatusForm::Text)
        );
        let answer = agreement.answer();
        assert_eq!(answer.headers()["x-stream-protocol-version"], "v3.channel.k8s.io");
        let refused = negotiate(&headers(&pairs), Purpose::PortForward).unwrap_err();
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    }

    #[test]
    fn other_requests_are_refused() {
        let refused = |pairs: &[_]| negotiate(&headers(pairs), Purpose::Command).unwrap_err();
        assert_eq!(refused(&[]), UpgradeError::NotAsked);
        assert_eq!(refused(&[("upgrade", "websocket")]), UpgradeError::NotAsked);
        assert_eq!(
            refused(&[("connection", "upgrade"), ("upgrade", "h2c")]),
            UpgradeError::NotAsked
        );
        assert_eq!(refused(&WEBSOCKET[..3]), UpgradeError::Handshake);
    }
}
