//! Exec and attach.

use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use crate::client::{ask, connect, get, upgrade};
use crate::spdy::Spdy;
use crate::websocket::{Message, WebSocket};
use crate::world::World;

const CAT: &str = "/exec/default/web/app?command=cat&input=1&output=1";
const EXIT: &str = "/exec/default/web/app?command=exit&command=3&output=1&error=1";

fn parse(status: &str) -> Value {
    serde_json::from_str(status).expect("a status")
}

#[tokio::test]
async fn a_websocket_client_types_ends_its_input_and_hears_the_outcome() {
    let world = World::new().await;
    let mut client = WebSocket::open(&world, CAT, "v5.channel.k8s.io").await;
    client.send(b"\0hello ").await;
    client.send(format!("\0{}", "x".repeat(100_000)).as_bytes()).await;
    client.send(b"\xff\0").await;
    let [_, output, error, status] = client.channels().await;
    assert_eq!(output, format!("hello {}", "x".repeat(100_000)));
    assert_eq!(error, "");
    assert_eq!(parse(&status)["status"], "Success");
    world.until_nothing_is_open().await;
}

#[tokio::test]
async fn the_exit_code_is_reported_in_every_protocol() {
    let world = World::new().await;
    for protocol in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
        let mut client = WebSocket::open(&world, EXIT, protocol).await;
        let [_, output, error, status] = client.channels().await;
        assert_eq!((output.as_str(), error.as_str()), ("out\n", "err\n"));
        let causes = &parse(&status)["details"]["causes"];
        assert_eq!(*causes, json!([{"reason": "ExitCode", "message": "3"}]));
    }
    for (protocol, json) in [
        ("v4.channel.k8s.io", true),
        ("v2.channel.k8s.io", false),
        ("channel.k8s.io", false),
    ] {
        let mut client = Spdy::open(&world, EXIT, protocol).await;
        let error = client.stream(&[("streamtype", "error")]).await;
        let stdout = client.stream(&[("streamtype", "stdout")]).await;
        let stderr = client.stream(&[("streamType", "stderr")]).await;
        assert_eq!(client.until_ended(stdout).await, "out\n");
        assert_eq!(client.until_ended(stderr).await, "err\n");
        let status = client.until_ended(error).await;
        if json {
            assert_eq!(parse(&status)["reason"], "NonZeroExitCode");
        } else {
            assert_eq!(
                status,
                "command terminated with non-zero exit code: exit status 3"
            );
        }
    }
    world.until_nothing_is_open().await;
}

#[tokio::test]
async fn a_spdy_client_types_and_ends_its_input() {
    let world = World::new().await;
    let mut client = Spdy::open(&world, CAT, "v4.channel.k8s.io").await;
    let error = client.stream(&[("streamtype", "error")]).await;
    let stdin = client.stream(&[("streamtype", "stdin")]).await;
    let stdout = client.stream(&[("streamtype", "stdout")]).await;
    // More than any window.
    let typed = "y".repeat(200_000);
    for piece in typed.as_bytes().chunks(30_000) {
        client.data(stdin, piece, false).await;
        client.listen().await;
    }
    client.data(stdin, b"", true).await;
    assert_eq!(client.until_ended(stdout).await, typed);
    assert_eq!(parse(&client.until_ended(error).await)["status"], "Success");
}

#[tokio::test]
async fn a_terminal_learns_its_size() {
    let world = World::new().await;
    let path = "/exec/default/web/app?command=size&input=1&output=1&error=1&tty=1";
    let mut client = WebSocket::open(&world, path, "v4.channel.k8s.io").await;
    client.send(b"\x04{\"Width\":80,\"Height\":24}").await;
    assert_eq!(client.next().await, Message::Data(b"\x0180x24\n".to_vec()));
    drop(client);

    let mut client = Spdy::open(&world, path, "v3.channel.k8s.io").await;
    for kind in ["error", "stdin"] {
        client.stream(&[("streamtype", kind)]).await;
    }
    let stdout = client.stream(&[("streamtype", "stdout")]).await;
    let resize = client.stream(&[("streamtype", "resize")]).await;
    client
        .data(resize, b"{\"Width\":100,\"Height\":50}\n", false)
        .await;
    client.until_received(stdout, "100x50\n").await;
    drop(client);
    world.until_nothing_is_open().await;
}

#[tokio::test]
async fn an_attached_client_shares_the_streams_and_hears_no_exit_code() {
    let world = World::new().await;
    let path = "/attach/default/web/app?input=1&output=1&error=1";
    let mut client = WebSocket::open(&world, path, "v5.channel.k8s.io").await;
    client.send(b"\0hello").await;
    assert_eq!(client.next().await, Message::Data(b"\x01hello".to_vec()));
    client.send(b"\xff\0").await;
    let [.., status] = client.channels().await;
    assert_eq!(parse(&status)["status"], "Success");
}

#[tokio::test]
async fn what_cannot_be_run_is_said_on_the_stream_for_errors() {
    let world = World::new().await;
    let path = "/exec/default/web/app?command=nonsense&output=1";
    let mut client = WebSocket::open(&world, path, "v5.channel.k8s.io").await;
    let [.., status] = client.channels().await;
    let status = parse(&status);
    assert_eq!(status["reason"], "InternalError");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("Internal error occurred: error executing command in container: "),
        "{message}"
    );
}

#[tokio::test]
async fn who_leaves_takes_the_command_along() {
    let world = World::new().await;
    let waiting = WebSocket::open(&world, CAT, "v4.channel.k8s.io").await;
    // Reads nothing of what is written without end.
    let flood = "/exec/default/web/app?command=flood&output=1";
    let mut flooded = WebSocket::open(&world, flood, "v4.channel.k8s.io").await;
    flooded.next().await;
    crate::world::eventually("both run", async || world.runtime.open_streams() == 2).await;
    drop((waiting, flooded));
    world.until_nothing_is_open().await;
}

#[tokio::test]
async fn hostile_bytes_cost_the_client_its_connection_and_nobody_else() {
    let world = World::new().await;
    for noise in [&[0xFF; 4096][..], b"GET / HTTP/1.1\r\n\r\n", &[0x80; 100]] {
        let mut client = WebSocket::open(&world, CAT, "v4.channel.k8s.io").await;
        // The server may be gone before all is sent.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut client.0, noise).await;
        assert_eq!(client.next().await, Message::Gone);
        let mut client = Spdy::open(&world, CAT, "v4.channel.k8s.io").await;
        client.stream(&[("streamtype", "error")]).await;
        client.send(noise).await;
    }
    let headers = [
        ("Connection", "Upgrade"),
        ("Upgrade", "SPDY/3.1"),
        ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
    ];
    // Control frames of a version nobody speaks.
    let mut stream = upgrade(&world, "POST", CAT, &headers).await;
    tokio::io::AsyncWriteExt::write_all(&mut stream, &[0x80, 9, 0, 1, 0, 0, 0, 0])
        .await
        .unwrap();
    assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0);
    world.until_nothing_is_open().await;
    assert_eq!(get(&world, "/healthz").await.code, 200);
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused() {
    let world = World::new().await;
    for (path, code, text) in [
        (
            "/exec/default/web/app?command=cat&output=1",
            400,
            "unable to upgrade",
        ),
        ("/exec/default/web/app?command=cat", 400, "at least 1 of stdin"),
        ("/exec/default/web/app?output=1", 400, "command"),
        (
            "/exec/default/web/nope?command=cat&output=1",
            500,
            "container not found (\"nope\")",
        ),
        (
            "/exec/default/nope/app?command=cat&output=1",
            404,
            "does not exist",
        ),
        ("/portForward/default/nope", 404, "does not exist"),
        ("/exec", 404, "not found"),
        ("/nope", 404, "there is"),
    ] {
        let answer = get(&world, path).await;
        assert_eq!(answer.code, code, "{path}");
        let body = answer.body().await;
        assert!(body.contains(text), "{path}: {body}");
    }
    let headers = [
        ("Connection", "Upgrade"),
        ("Upgrade", "SPDY/3.1"),
        ("X-Stream-Protocol-Version", "v9.channel.k8s.io"),
    ];
    let stream = connect(&world, Some(world.administrator())).await.unwrap();
    assert_eq!(ask(stream, "POST", CAT, &headers).await.code, 403);
}

#[tokio::test]
async fn stopping_the_endpoint_ends_its_sessions() {
    let world = World::new().await;
    let mut client = WebSocket::open(&world, CAT, "v5.channel.k8s.io").await;
    client.send(b"\0x").await;
    client.next().await;
    let World { server, runtime, .. } = world;
    server.stop().await;
    assert_eq!(client.next().await, Message::Gone);
    crate::world::eventually("the command has ended", async || runtime.open_streams() == 0).await;
}

#[tokio::test]
async fn a_goodbye_is_returned() {
    let world = World::new().await;
    let mut client = WebSocket::open(&world, CAT, "v5.channel.k8s.io").await;
    client.frame(0x88, b"\x03\xe8").await;
    assert_eq!(client.next().await, Message::Close);
    world.until_nothing_is_open().await;
}
