//! What goes over the wire, and what comes of servers that are old, slow, away or no servers at all.

use std::path::Path;
use std::time::Duration;

use prost::Message as _;
use pulselet_cri_client::{ConnectError, CriOpenError, CriOptions, CriRuntime};
use pulselet_cri_wire::v1;
use pulselet_runtime::{
    ContainerFilter, ContainerStatus, Error, EventKind, ExecOutcome, ExecRequest, Runtime, Signal,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio::time::timeout;

use crate::server::{OldServer, Server};
use crate::world::{container, event, eventually, open, sandbox};

#[test]
fn stop_signals_are_in_the_fields_of_the_interface() {
    let config = v1::ContainerConfig {
        stop_signal: v1::Signal::Sigusr1.into(),
        ..v1::ContainerConfig::default()
    };
    // Field 18 and field 19, each a number of two bytes for the field and one for the signal.
    assert_eq!(config.encode_to_vec(), [0x90, 0x01, 29]);
    let status = v1::ContainerStatus::decode(&[0x98, 0x01, 65][..]).expect("a status");
    assert_eq!(status.stop_signal(), v1::Signal::Sigrtmax);
    assert!(v1::ContainerConfig::default().encode_to_vec().is_empty());
}

async fn only_container(runtime: &CriRuntime) -> Option<ContainerStatus> {
    let mut all = runtime.list_containers(&ContainerFilter::default()).await.ok()?;
    all.pop()
}

#[tokio::test]
async fn a_server_that_knows_stop_signals_is_given_and_tells_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("cri.sock");
    let server = Server::default();
    let _listening = server.listen(&socket);
    let runtime = open(socket, &directory.path().join("root")).await;
    assert!(!runtime.version().await.expect("known").features.stop_signal);
    let pod = runtime
        .run_sandbox(&sandbox(directory.path()))
        .await
        .expect("a sandbox");
    let mut config = container(directory.path(), "true");
    config.stop_signal = "SIGRTMIN+3".parse().ok();
    let app = runtime.create_container(&pod, &config).await.expect("created");
    assert_eq!(server.container().stop_signal(), v1::Signal::Sigrtminplus3);
    let status = runtime.container_status(&app).await.expect("known");
    assert_eq!(status.stop_signal.map(Signal::name), Some("SIGRTMIN+3"));
    assert_eq!((status.sandbox, status.pod), (pod, config.pod));
    let version = runtime.version().await.expect("known");
    assert_eq!(
        (version.version.as_str(), version.features.stop_signal),
        ("1.2.3", true)
    );
    assert_eq!(
        runtime.signal_masks(&app).await.expect("asked"),
        None,
        "it does not run"
    );
    runtime.start_container(&app).await.expect("started");
    let masks = runtime.signal_masks(&app).await.expect("asked");
    assert!(masks.is_some(), "the process is in the verbose status");
    runtime
        .stop_container(&app, Duration::from_millis(1500))
        .await
        .expect("stopped");
    assert_eq!(server.stops(), [2]);
}

#[tokio::test]
async fn a_late_effect_is_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("cri.sock");
    let server = Server::default();
    let _listening = server.listen(&socket);
    let runtime = open(socket, &directory.path().join("root")).await;
    let pod = runtime
        .run_sandbox(&sandbox(directory.path()))
        .await
        .expect("a sandbox");
    let config = container(directory.path(), "true");
    server.hang(true);
    let waited = timeout(
        Duration::from_millis(200),
        runtime.create_container(&pod, &config),
    )
    .await;
    assert!(waited.is_err(), "{waited:?}");
    assert!(only_container(&runtime).await.is_none());
    server.hang(false);
    let found = eventually("container", async || only_container(&runtime).await).await;
    assert_eq!((found.name, found.sandbox), (config.name, pod));
}

#[tokio::test]
async fn a_command_is_not_waited_for_longer_than_its_timeout() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("cri.sock");
    let server = Server::default();
    let _listening = server.listen(&socket);
    let runtime = open(socket, &directory.path().join("root")).await;
    server.hang(true);
    let request = ExecRequest {
        command: vec!["true".into()],
        timeout: Some(Duration::from_millis(300)),
        output_limit: 10,
    };
    let id = pulselet_runtime::ContainerId::new("c0");
    let output = runtime.exec_sync(&id, &request).await.expect("it is no error");
    assert_eq!(output.outcome, ExecOutcome::TimedOut);
}

#[tokio::test]
async fn a_server_that_comes_back_is_looked_at_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("cri.sock");
    let server = Server::default();
    let listening = server.listen(&socket);
    let runtime = open(socket.clone(), &directory.path().join("root")).await;
    // Before anything happens: what was told earlier is not told again.
    let mut events = runtime.events();
    let pod = runtime
        .run_sandbox(&sandbox(directory.path()))
        .await
        .expect("a sandbox");
    let app = runtime
        .create_container(&pod, &container(directory.path(), "true"))
        .await
        .expect("created");
    runtime.start_container(&app).await.expect("started");
    event(&mut events, &app, EventKind::Started).await;
    drop(listening);
    std::fs::remove_file(&socket).expect("removed");
    eventually("end of the answers", async || {
        let away = runtime.list_containers(&ContainerFilter::default()).await;
        matches!(away, Err(Error::Unavailable { .. })).then_some(())
    })
    .await;
    server.end_all();
    let _listening = server.listen(&socket);
    event(&mut events, &app, EventKind::Stopped).await;
}

async fn refused(socket: &Path, root: &Path) -> ConnectError {
    let options = CriOptions {
        socket: socket.to_owned(),
        root: root.to_owned(),
    };
    match CriRuntime::open(options).await {
        Err(CriOpenError::Connect(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_no_server_is_told_apart_and_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().join("root");
    let path = |name: &str| directory.path().join(name);
    assert!(matches!(
        refused(&path("none"), &root).await,
        ConnectError::Missing { .. }
    ));
    std::fs::write(path("file"), "").expect("written");
    assert!(matches!(
        refused(&path("file"), &root).await,
        ConnectError::NotASocket { .. }
    ));
    drop(UnixListener::bind(path("left")).expect("bound"));
    assert!(matches!(
        refused(&path("left"), &root).await,
        ConnectError::NobodyListens { .. }
    ));
    let long = path(&"l".repeat(120));
    std::fs::rename(path("left"), &long).expect("renamed");
    assert!(matches!(
        refused(&long, &root).await,
        ConnectError::TooLong { .. }
    ));
    let _old = OldServer::listen(&path("old"));
    let error = refused(&path("old"), &root).await;
    assert!(
        matches!(&error, ConnectError::TooOld { name, .. } if name == "old"),
        "{error}"
    );
    assert!(error.hint().contains("containerd 1.6"));
    assert!(!root.exists());
}

#[tokio::test]
async fn a_server_of_something_else_is_told_apart() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("http");
    let listener = UnixListener::bind(&path).expect("bound");
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                .await;
        }
    });
    let error = refused(&path, &directory.path().join("root")).await;
    assert!(matches!(error, ConnectError::NotCri { .. }), "{error}");
    serving.abort();
}
