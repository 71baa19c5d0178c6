//! A client's request for streams, and the answer to it.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, UPGRADE};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

use crate::negotiation::{SPDY, STREAM_PROTOCOL};

/// Bytes of a server's answer before the streams begin.
const MAX_ANSWER: usize = 16 * 1024;

/// Why a connection did not become one of streams.
#[derive(Debug, Error)]
pub enum RequestUpgradeError {
    #[error("the request cannot be made: {0}")]
    Request(#[from] http::Error),
    #[error("the request cannot be exchanged for an answer: {0}")]
    Exchange(#[from] hyper::Error),
    #[error("the server answers {answer}")]
    Refused { answer: String },
}

/// Asks a server to speak SPDY on a connection, for streams of the given protocol.
pub async fn request_upgrade<S>(
    stream: S,
    host: &str,
    path: &str,
    protocol: &'static str,
) -> Result<TokioIo<Upgraded>, RequestUpgradeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let request = Request::post(path)
        .header(HOST, host)
        .header(CONNECTION, HeaderValue::from_static("Upgrade"))
        .header(UPGRADE, HeaderValue::from_static(SPDY))
        .header(STREAM_PROTOCOL, HeaderValue::from_static(protocol))
        .header(CONTENT_LENGTH, 0)
        .body(Empty::<Bytes>::new())?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_ANSWER)
        .handshake(TokioIo::new(stream))
        .await?;
    // It ends by itself when the connection is handed over.
    let _exchange = AbortOnDropHandle::new(tokio::spawn(connection.with_upgrades()));
    let answer = sender.send_request(request).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(RequestUpgradeError::Refused {
            answer: format!("{:?} {}", answer.version(), answer.status()),
        });
    }
    Ok(TokioIo::new(hyper::upgrade::on(answer).await?))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;
    use crate::negotiation::{PORT_FORWARD, StreamPurpose, V4_CHANNEL, negotiate};
    use crate::protocol::StreamEvent;
    use crate::spdy::SpdyClient;

    /// Serves commands, each of which returns what it is sent.
    async fn serve(stream: DuplexStream) {
        let service = service_fn(async |request: Request<Incoming>| {
            let protocol = match negotiate(request.headers(), StreamPurpose::Command) {
                Ok(protocol) => protocol,
                Err(error) => {
                    let mut refusal = http::Response::new(Empty::<Bytes>::new());
                    *refusal.status_mut() = error.status();
                    return Ok::<_, Infallible>(refusal);
                }
            };
            let answer = protocol.answer().map(|()| Empty::new());
            tokio::spawn(async move {
                let upgraded = hyper::upgrade::on(request).await.unwrap();
                let mut connection = protocol.start(TokioIo::new(upgraded));
                let sender = connection.sender();
                while let Ok(event) = connection.next().await {
                    match event {
                        StreamEvent::Data { stream, bytes } => sender.data(stream, bytes).await.unwrap(),
                        StreamEvent::Ended { stream } => sender.end(stream).await.unwrap(),
                        StreamEvent::Opened { .. } | StreamEvent::Reset { .. } | StreamEvent::Closed => {}
                    }
                }
            });
            Ok(answer)
        });
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_request_becomes_a_connection_of_streams() {
        let (ours, theirs) = duplex(1024);
        tokio::spawn(serve(theirs));
        let upgraded = request_upgrade(ours, "localhost", "/exec/1", V4_CHANNEL).await;
        let mut client = SpdyClient::default();
        let stream = client.open(&[("streamtype", "stdin")]);
        let mut connection = client.start(upgraded.unwrap());
        let sender = connection.sender();
        let sent = vec![7; 200_000];
        let sending = tokio::spawn({
            let sent = sent.clone();
            async move {
                sender.data(stream, sent.into()).await.unwrap();
                sender.end(stream).await.unwrap();
            }
        });
        let mut received = Vec::new();
        loop {
            match connection.next().await.unwrap() {
                StreamEvent::Data { bytes, .. } => received.extend_from_slice(&bytes),
                StreamEvent::Ended { .. } => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(received, sent);
        sending.await.unwrap();
    }

    #[tokio::test]
    async fn a_refusal_carries_the_status() {
        let (ours, theirs) = duplex(1024);
        tokio::spawn(serve(theirs));
        let refused = request_upgrade(ours, "localhost", "/exec/1", PORT_FORWARD).await;
        let error = refused.unwrap_err().to_string();
        assert_eq!(error, "the server answers HTTP/1.1 403 Forbidden");
    }

    #[tokio::test]
    async fn an_answer_without_an_end_is_not_waited_for() {
        let (ours, mut theirs) = duplex(1024);
        let flood = tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(&mut theirs);
            let reading = async { while reader.read(&mut [0; 1024]).await.is_ok_and(|count| count > 0) {} };
            let writing = async {
                let mut written = writer.write_all(b"HTTP/1.1 101 Switching Protocols\r\n").await;
                while written.is_ok() {
                    written = writer.write_all(b"a: bbbbbbbbbbbbbbbb\r\n").await;
                }
            };
            tokio::join!(reading, writing);
        });
        let refused = request_upgrade(ours, "localhost", "/exec/1", V4_CHANNEL).await;
        assert!(matches!(refused, Err(RequestUpgradeError::Exchange(_))));
        flood.await.unwrap();
    }
}
