//! Who may ask what.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::client::{ask, connect};
use crate::world::{Authority, Identity, World};

async fn code(world: &World, identity: Option<Identity>, path: &str) -> u16 {
    let stream = connect(world, identity).await.expect("a connection");
    ask(stream, "GET", path, &[]).await.code
}

#[tokio::test]
async fn api_servers_and_administrators_may_ask_and_others_may_not() {
    let world = World::new().await;
    let api = || Some(world.authority.client("kube-apiserver-kubelet-client", "x"));
    let node = || Some(world.authority.client("system:node:n2", "system:nodes"));
    assert_eq!(code(&world, Some(world.administrator()), "/pods").await, 200);
    assert_eq!(code(&world, api(), "/pods").await, 200);
    assert_eq!(code(&world, node(), "/pods").await, 403);
    assert_eq!(code(&world, None, "/pods").await, 401);
    assert_eq!(
        code(&world, None, "/exec/default/web/app?command=cat&output=1").await,
        401
    );
    assert_eq!(code(&world, None, "/healthz").await, 200);
    assert_eq!(code(&world, node(), "/healthz").await, 200);
}

#[tokio::test]
async fn the_api_says_what_others_may_ask() {
    let world = World::new().await;
    let with_token = async |token: &str, method: &str, path: &str| {
        let stream = connect(&world, None).await.expect("a connection");
        let header = format!("Bearer {token}");
        ask(
            stream,
            method,
            path,
            &[("authorization", &header), ("connection", "close")],
        )
        .await
        .code
    };
    assert_eq!(with_token("known", "GET", "/metrics").await, 200);
    assert_eq!(with_token("known", "GET", "/pods").await, 403);
    assert_eq!(with_token("known", "POST", "/metrics").await, 403);
    assert_eq!(with_token("unknown", "GET", "/metrics").await, 401);
    let reader = || Some(world.authority.client("reader", "team"));
    assert_eq!(code(&world, reader(), "/pods").await, 200);
    assert_eq!(code(&world, reader(), "/metrics").await, 403);
}

#[tokio::test]
async fn a_certificate_of_somebody_else_is_not_even_listened_to() {
    let world = World::new().await;
    let stranger = Authority::new().client("admin", "system:masters");
    // With TLS 1.3 the client sees it only when it reads.
    if let Ok(mut stream) = connect(&world, Some(stranger)).await {
        let _ = stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: n1\r\n\r\n")
            .await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    }
}
