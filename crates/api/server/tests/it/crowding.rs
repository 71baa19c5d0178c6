//! Callers who want the server for themselves do not get it.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream;
use http::{Method, Request};
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::client::{Client, Credential, connect_tls};
use crate::harness::TestServer;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
/// Far longer than anything here takes, also on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Requests of nobody whose bodies never come: all that the server has room for, reading and writing.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_requests_of_nobody_take_no_room() {
    let server = TestServer::start();
    let mut admin = Client::admin(&server).await;
    let kubeconfig = server.path().join("node-n1.kubeconfig");
    let mut node = Client::connect(&server, Credential::Kubeconfig(kubeconfig)).await;
    let mut crowd = Vec::new();
    for method in [Method::POST, Method::GET, Method::GET] {
        let (stream, _) = connect_tls(&server, Credential::Nothing, b"h2").await;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .expect("http");
        tokio::spawn(connection);
        for _ in 0..200 {
            let body = StreamBody::new(stream::pending::<Result<Frame<Bytes>, std::io::Error>>());
            let request = Request::builder()
                .method(method.clone())
                .uri(format!("https://{}{MAPS}", server.address))
                .body(body)
                .expect("a request");
            let mut sender = sender.clone();
            crowd.push(tokio::spawn(async move {
                let answer = sender.send_request(request).await.expect("an answer");
                answer.status().as_u16()
            }));
        }
    }
    let answers = tokio::time::timeout(PATIENCE, join_all(crowd)).await;
    let lease = json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}});
    let renewed = node.json(Method::PUT, LEASE, Some(&lease)).await.0;
    let read = admin.get(MAPS).await.0;
    assert_eq!(
        (read, renewed),
        (200, 201),
        "the administrator and the node are served"
    );
    let answers = answers.expect("nobody waits for a body");
    for answer in answers {
        assert_eq!(answer.expect("no panic"), 403);
    }
}

/// One connection sends the head of a request and no body. The answer comes, and the connection ends.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_refused_before_the_body_is_read() {
    let server = TestServer::start();
    let (mut stream, _) = connect_tls(&server, Credential::Nothing, b"http/1.1").await;
    let head = format!("POST {MAPS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("it is sent");
    let mut answer = Vec::new();
    let mut bytes = [0; 1024];
    let reading = async {
        while !answer.ends_with(b"}") {
            let count = stream.read(&mut bytes).await.expect("an answer");
            assert_ne!(count, 0, "the answer is whole");
            answer.extend_from_slice(&bytes[..count]);
        }
    };
    tokio::time::timeout(PATIENCE, reading)
        .await
        .expect("an answer without a body");
    assert!(
        answer.starts_with(b"HTTP/1.1 403 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}
