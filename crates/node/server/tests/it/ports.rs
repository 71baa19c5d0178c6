//! Port-forward.

use crate::spdy::Spdy;
use crate::websocket::{Message, WebSocket};
use crate::world::World;

const FORWARD: &str = "/portForward/default/web";

async fn connection(client: &mut Spdy, port: &str, request: &str) -> (u32, u32) {
    let headers = |kind| [("streamtype", kind), ("port", port), ("requestid", request)];
    let error = client.stream(&headers("error")).await;
    client.data(error, b"", true).await;
    (error, client.stream(&headers("data")).await)
}

async fn several_connections(mut client: Spdy, world: &World) {
    let (error, first) = connection(&mut client, "80", "0").await;
    let (_, second) = connection(&mut client, "81", "1").await;
    client.data(second, b"two", false).await;
    client.data(first, b"one", false).await;
    client.until_received(first, "one").await;
    client.until_received(second, "two").await;
    // The first ends, the second goes on.
    client.data(first, b"!", true).await;
    assert_eq!(client.until_ended(first).await, "one!");
    assert_eq!(client.until_ended(error).await, "");
    client.data(second, "x".repeat(100_000).as_bytes(), false).await;
    client
        .until_received(second, &format!("two{}", "x".repeat(100_000)))
        .await;

    let (error, closed) = connection(&mut client, "1", "2").await;
    let text = client.until_ended(error).await;
    assert!(text.starts_with("error forwarding port 1 to pod web: "), "{text}");
    client.until_ended(closed).await;
    drop(client);
    world.until_nothing_is_open().await;
}

#[tokio::test]
async fn several_connections_share_one_of_spdy() {
    let world = World::new().await;
    let client = Spdy::open(&world, FORWARD, "portforward.k8s.io").await;
    several_connections(client, &world).await;
}

#[tokio::test]
async fn several_connections_share_one_within_a_websocket() {
    let world = World::new().await;
    let client = Spdy::tunnel(&world, FORWARD).await;
    several_connections(client, &world).await;
}

#[tokio::test]
async fn old_websocket_clients_name_their_ports_beforehand() {
    let world = World::new().await;
    let path = format!("{FORWARD}?port=80,1");
    let mut client = WebSocket::open(&world, &path, "v4.channel.k8s.io").await;
    let mut received = Vec::new();
    for _ in 0..5 {
        match client.next().await {
            Message::Data(message) => received.push(message),
            end @ (Message::Close | Message::Gone) => panic!("{end:?}"),
        }
    }
    for (channel, port) in [(0, 80), (1, 80), (2, 1), (3, 1)] {
        assert!(received.contains(&vec![channel, port, 0]), "{received:?}");
    }
    let complaint = received.last().unwrap();
    assert!(
        complaint.starts_with(b"\x03error forwarding port 1"),
        "{complaint:?}"
    );
    client.send(b"\0hello").await;
    assert_eq!(client.next().await, Message::Data(b"\0hello".to_vec()));
    drop(client);
    world.until_nothing_is_open().await;
}

/// A pod's side that ends first: the client sees it before it has ended its own side.
#[tokio::test]
async fn the_end_of_the_pods_side_does_not_wait_for_the_clients() {
    let world = World::new().await;
    let mut client = Spdy::open(&world, FORWARD, "portforward.k8s.io").await;
    let (error, data) = connection(&mut client, "2", "0").await;
    assert_eq!(client.until_ended(data).await, "bye");
    assert_eq!(client.until_ended(error).await, "");
    client.data(data, b"", true).await;
    world.until_nothing_is_open().await;
}

#[tokio::test]
async fn streams_that_say_nothing_sensible_are_reset() {
    let world = World::new().await;
    let mut client = Spdy::open(&world, FORWARD, "portforward.k8s.io").await;
    let nonsense = client.stream(&[("streamtype", "data"), ("port", "0")]).await;
    let (_, good) = connection(&mut client, "80", "0").await;
    let twice = [("streamtype", "data"), ("port", "80"), ("requestid", "9")];
    client.stream(&twice).await;
    let second = client.stream(&twice).await;
    client.data(good, b"x", true).await;
    assert_eq!(client.until_ended(good).await, "x");
    while client.resets.len() < 2 {
        client.listen().await;
    }
    assert_eq!(client.resets, [nonsense, second]);
}
