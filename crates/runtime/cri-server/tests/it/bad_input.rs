//! Clients that send nonsense, too much or half of it get the right code, and the server goes on.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use pulselet_cri_wire::v1;
use pulselet_runtime_fake::{ExecAnswer, LifeScript};
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::world::{PATIENCE, World, container, sandbox};

/// The server still answers.
async fn is_well(world: &World) {
    let version = world.client().version(v1::VersionRequest::default()).await;
    version.expect("still answers");
}

#[tokio::test]
async fn requests_without_sense_are_refused_by_name() {
    let world = World::new().await;
    let (pod, id) = world.run("web").await;
    let mut client = world.client();
    let refused = |status: Status, code: Code, text: &str| {
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(text), "{status:?}");
    };
    let nothing = client.run_pod_sandbox(v1::RunPodSandboxRequest::default()).await;
    refused(
        nothing.expect_err("is nothing"),
        Code::InvalidArgument,
        "config is missing",
    );
    let handler = v1::RunPodSandboxRequest {
        config: Some(sandbox("other")),
        runtime_handler: "kata".into(),
    };
    let handler = client.run_pod_sandbox(handler).await;
    refused(handler.expect_err("is unknown"), Code::InvalidArgument, "kata");
    let twice = v1::RunPodSandboxRequest {
        config: Some(sandbox("web")),
        ..v1::RunPodSandboxRequest::default()
    };
    let twice = client.run_pod_sandbox(twice).await;
    refused(
        twice.expect_err("is there"),
        Code::AlreadyExists,
        "exists already",
    );
    let nowhere = v1::CreateContainerRequest {
        pod_sandbox_id: "none".into(),
        config: Some(container("web")),
        sandbox_config: None,
    };
    let nowhere = client.create_container(nowhere).await;
    refused(nowhere.expect_err("has no sandbox"), Code::NotFound, "sandbox");
    let no_image = v1::CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(v1::ContainerConfig {
            image: Some(v1::ImageSpec {
                image: "registry.example/none:1".into(),
                ..v1::ImageSpec::default()
            }),
            ..container("other")
        }),
        sandbox_config: None,
    };
    let no_image = client.create_container(no_image).await;
    refused(
        no_image.expect_err("has no image"),
        Code::NotFound,
        "pull it first",
    );
    let negative = v1::StopContainerRequest {
        container_id: id.clone(),
        timeout: -1,
    };
    let negative = client.stop_container(negative).await;
    refused(
        negative.expect_err("is negative"),
        Code::InvalidArgument,
        "timeout",
    );
    let checkpoint = v1::CheckpointContainerRequest {
        container_id: id.clone(),
        ..v1::CheckpointContainerRequest::default()
    };
    let checkpoint = client.checkpoint_container(checkpoint).await;
    refused(
        checkpoint.expect_err("is not done"),
        Code::Unimplemented,
        "checkpoints",
    );
    let streamless = v1::ExecRequest {
        container_id: id,
        cmd: vec!["sh".into()],
        ..v1::ExecRequest::default()
    };
    let streamless = client.exec(streamless).await;
    refused(
        streamless.expect_err("has no streams"),
        Code::InvalidArgument,
        "at least one",
    );
    let port = v1::PortForwardRequest {
        pod_sandbox_id: pod,
        port: vec![0],
    };
    let port = client.port_forward(port).await;
    refused(port.expect_err("is no port"), Code::InvalidArgument, "port");
    is_well(&world).await;
}

#[tokio::test]
async fn a_message_that_is_too_large_exhausts_the_room() {
    let world = World::new().await;
    let mut config = sandbox("large");
    config.annotations.insert("large".into(), "x".repeat(17 << 20));
    let request = v1::RunPodSandboxRequest {
        config: Some(config),
        ..v1::RunPodSandboxRequest::default()
    };
    let refused = world.client().run_pod_sandbox(request).await;
    assert_eq!(refused.expect_err("is too large").code(), Code::ResourceExhausted);
    is_well(&world).await;
}

/// Sends bytes as the body of a call and returns the code of the answer.
async fn call_with(world: &World, path: &str, body: &'static [u8], is_whole: bool) -> Option<String> {
    let stream = tokio::net::UnixStream::connect(world.socket())
        .await
        .expect("connects");
    let (sender, connection) = h2::client::handshake(stream).await.expect("speaks HTTP/2");
    let connection = tokio::spawn(connection);
    let request = http::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a request");
    let mut sender = sender.ready().await.expect("is ready");
    let (answer, mut stream) = sender.send_request(request, false).expect("sends");
    stream
        .send_data(bytes::Bytes::from_static(body), is_whole)
        .expect("sends");
    if !is_whole {
        stream.send_reset(h2::Reason::CANCEL);
        drop(answer);
        connection.abort();
        return None;
    }
    let answer = tokio::time::timeout(PATIENCE, answer).await.expect("answers");
    let answer = answer.expect("answers");
    let status = answer.headers().get("grpc-status")?.to_str().ok()?.to_owned();
    connection.abort();
    Some(status)
}

#[tokio::test]
async fn what_is_no_message_is_no_reason_to_stop() {
    let world = World::new().await;
    let version = "/runtime.v1.RuntimeService/Version";
    // A frame that says five bytes and has five that are no message.
    let broken = b"\0\0\0\0\x05\xff\xff\xff\xff\xff";
    let internal = (Code::Internal as i32).to_string();
    assert_eq!(call_with(&world, version, broken, true).await, Some(internal));
    let unimplemented = (Code::Unimplemented as i32).to_string();
    for path in [
        "/runtime.v1.RuntimeService/Nothing",
        "/runtime.v1alpha2.RuntimeService/Version",
        "/",
    ] {
        let code = call_with(&world, path, b"\0\0\0\0\0", true).await;
        assert_eq!(code, Some(unimplemented.clone()), "{path}");
    }
    // Half a message, and then the client is gone.
    assert_eq!(call_with(&world, version, b"\0\0\0\0\x05\x01", false).await, None);
    is_well(&world).await;
}

#[tokio::test]
async fn who_does_not_speak_the_protocol_is_let_go() {
    let world = World::new().await;
    let socket = world.socket();
    let spoken = tokio::task::spawn_blocking(move || {
        let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("sets");
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("writes");
        let mut answer = Vec::new();
        // The server may close before all was read: that is an answer too.
        let _ = stream.read_to_end(&mut answer);
    });
    tokio::time::timeout(PATIENCE, spoken)
        .await
        .expect("ends")
        .expect("ends");
    is_well(&world).await;
}

#[tokio::test]
async fn an_address_for_streams_is_good_for_one_use() {
    let world = World::new().await;
    let (pod, _) = world.run("web").await;
    let request = v1::PortForwardRequest {
        pod_sandbox_id: pod,
        port: Vec::new(),
    };
    let url = world
        .client()
        .port_forward(request)
        .await
        .expect("offers")
        .into_inner()
        .url;
    let rest = url.strip_prefix("http://").expect("is http").to_owned();
    let (host, path) = rest.split_once('/').expect("has a path");
    let ask = async |path: &str| {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(host).await.expect("connects");
        let text = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(text.as_bytes()).await.expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("reads");
        answer
    };
    let asked = ask(path).await;
    assert!(
        asked.starts_with("HTTP/1.1 400"),
        "it asks for no streams: {asked}"
    );
    let again = ask(path).await;
    assert!(
        again.starts_with("HTTP/1.1 404") && again.contains("one use"),
        "{again}"
    );
    let guessed = ask("exec/0").await;
    assert!(guessed.starts_with("HTTP/1.1 404"), "{guessed}");
}

/// Addresses that may wait to be used, and as many commands.
const MANY: usize = 1000;

#[tokio::test]
async fn a_thousand_commands_at_once_are_all_answered() {
    let world = World::new().await;
    let (_, id) = world.run("web").await;
    let client = world.client();
    let mut calls = JoinSet::new();
    for _ in 0..MANY {
        let (mut client, container_id) = (client.clone(), id.clone());
        calls.spawn(async move {
            let request = v1::ExecSyncRequest {
                container_id,
                cmd: vec!["true".into()],
                timeout: 0,
            };
            client
                .exec_sync(request)
                .await
                .map(|answer| answer.into_inner().exit_code)
        });
    }
    let answers = tokio::time::timeout(PATIENCE, calls.join_all())
        .await
        .expect("ends");
    let answered = answers.iter().filter(|answer| matches!(answer, Ok(0))).count();
    assert_eq!(answered, MANY);
    assert_eq!(world.runtime.open_streams(), 0);
}

#[tokio::test]
async fn addresses_that_nobody_uses_are_bounded() {
    let world = World::new().await;
    let (pod, _) = world.run("web").await;
    let mut client = world.client();
    let mut ask = async || {
        let request = v1::PortForwardRequest {
            pod_sandbox_id: pod.clone(),
            port: Vec::new(),
        };
        client.port_forward(request).await
    };
    for _ in 0..MANY {
        ask().await.expect("offers");
    }
    let refused = ask().await.expect_err("one more is too many");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("try again"), "{refused:?}");
    is_well(&world).await;
}

/// Connections that the kernel has at the server's socket, with the one that listens.
fn connections(world: &World) -> usize {
    let socket = world.socket().display().to_string();
    let all = std::fs::read_to_string("/proc/net/unix").expect("reads");
    all.lines().filter(|line| line.ends_with(&socket)).count()
}

#[tokio::test]
async fn clients_that_leave_in_the_middle_leave_nothing() {
    let world = World::new().await;
    let hangs = LifeScript {
        exec: vec![(Duration::ZERO, ExecAnswer::Hangs)],
        ..LifeScript::default()
    };
    world.runtime.script("web", [hangs]);
    let (_, container_id) = world.run("web").await;
    let version = "/runtime.v1.RuntimeService/Version";
    for _ in 0..50 {
        // Half a message; a call that is under way; events that nobody reads.
        assert_eq!(call_with(&world, version, b"\0\0\0\0\x05\x01", false).await, None);
        let mut client = world.client();
        let events = client.get_container_events(v1::GetEventsRequest {}).await;
        let request = v1::ExecSyncRequest {
            container_id: container_id.clone(),
            cmd: vec!["sleep".into()],
            timeout: 0,
        };
        let hung = tokio::time::timeout(Duration::from_millis(1), client.exec_sync(request)).await;
        assert!(hung.is_err(), "the command does not end by itself");
        drop(events.expect("follows"));
    }
    let gone = async {
        while connections(&world) > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone)
        .await
        .expect("no connection of a client that left is kept");
    is_well(&world).await;
}
