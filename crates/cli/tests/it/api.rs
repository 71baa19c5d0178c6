//! `pulselet api` as a process: what it prints, and what is left of its data when it is killed.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::command::pulselet;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A running server; killed, not asked to end, when dropped.
struct Api {
    child: Child,
    address: SocketAddr,
    kubeconfig: PathBuf,
}

impl Api {
    fn start(data_dir: &Path) -> Self {
        Self::start_with(data_dir, &[])
    }

    fn start_with(data_dir: &Path, flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pulselet"))
            .args(["api", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data_dir)
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("pulselet starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("the first line");
        let (address, kubeconfig) = line
            .trim()
            .strip_prefix("API at https://")
            .and_then(|rest| rest.split_once(", kubeconfig: "))
            .expect("the line says where the API and the kubeconfig are");
        Self {
            child,
            address: address.parse().expect("an address"),
            kubeconfig: PathBuf::from(kubeconfig),
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("the server can be killed");
        self.child.wait().expect("the server ends");
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection as the administrator, by token.
struct Client {
    sender: SendRequest<Full<Bytes>>,
    token: String,
}

impl Client {
    async fn connect(address: SocketAddr, data_dir: &Path) -> Option<Self> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(data_dir.join("pki/ca.crt")).expect("the authority");
        roots.add(authority).expect("a root");
        let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("protocols")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tokens = std::fs::read_to_string(data_dir.join("tokens.csv")).expect("tokens");
        let token = tokens.split(',').next().expect("a token").to_owned();
        let stream = TcpStream::connect(address).await.ok()?;
        let name = ServerName::from(address.ip());
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .ok()?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .ok()?;
        tokio::spawn(connection);
        Some(Self { sender, token })
    }

    /// None when the server is gone.
    async fn send(&mut self, method: Method, path: &str, body: String) -> Option<(StatusCode, Incoming)> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {}", self.token))
            .body(Full::new(Bytes::from(body)))
            .expect("a request");
        self.sender.ready().await.ok()?;
        let answer = self.sender.send_request(request).await.ok()?;
        Some((answer.status(), answer.into_body()))
    }

    async fn json(&mut self, method: Method, path: &str, body: String) -> Option<(StatusCode, Value)> {
        let (code, body) = self.send(method, path, body).await?;
        let bytes = body.collect().await.ok()?.to_bytes();
        serde_json::from_slice(&bytes).ok().map(|value| (code, value))
    }
}

/// Revision and name of an object.
fn version_of(object: &Value) -> (u64, String) {
    let text = |field: &str| object["metadata"][field].as_str().expect("metadata").to_owned();
    (text("resourceVersion").parse().expect("a number"), text("name"))
}

/// Creates objects until the server is gone, and reports each that was acknowledged.
async fn write_until_killed(
    address: SocketAddr,
    data_dir: PathBuf,
    counter: Arc<AtomicU64>,
    acknowledged: mpsc::UnboundedSender<(u64, String)>,
) {
    let Some(mut client) = Client::connect(address, &data_dir).await else {
        return;
    };
    loop {
        let name = format!("m{:06}", counter.fetch_add(1, Ordering::Relaxed));
        let body = json!({"metadata": {"name": name}, "data": {"x": "y".repeat(500)}});
        match client.json(Method::POST, MAPS, body.to_string()).await {
            Some((code, object)) => {
                assert_eq!(code, StatusCode::CREATED, "{object}");
                if acknowledged.send(version_of(&object)).is_err() {
                    return;
                }
            }
            None => return,
        }
    }
}

/// Watches from a revision until `upto` was seen or the server is gone. Adds what it saw.
async fn watch(address: SocketAddr, data_dir: &Path, seen: &mut Vec<(u64, String)>, start: u64, upto: u64) {
    let from = seen.last().map_or(start, |(revision, _)| *revision);
    if from >= upto {
        // It had seen everything before the server was killed.
        return;
    }
    if from >= upto {
        return;
    }
    let Some(mut client) = Client::connect(address, data_dir).await else {
        return;
    };
    let path = format!("{MAPS}?watch=1&resourceVersion={from}");
    let Some((code, mut body)) = client.send(Method::GET, &path, String::new()).await else {
        return;
    };
    assert_eq!(code, StatusCode::OK);
    let mut read = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        read.extend_from_slice(&frame.into_data().unwrap_or_default());
        while let Some(end) = read.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = read.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).expect("an event");
            assert_eq!(event["type"], "ADDED", "{event}");
            seen.push(version_of(&event["object"]));
        }
        if seen.last().is_some_and(|(revision, _)| *revision >= upto) {
            return;
        }
    }
}

async fn list(address: SocketAddr, data_dir: &Path) -> (u64, Vec<(u64, String)>) {
    let mut client = Client::connect(address, data_dir)
        .await
        .expect("the server is there");
    let (code, list) = client
        .json(Method::GET, MAPS, String::new())
        .await
        .expect("a list");
    assert_eq!(code, StatusCode::OK);
    let revision = list["metadata"]["resourceVersion"].as_str().expect("a revision");
    let mut items: Vec<(u64, String)> = list["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(version_of)
        // Every namespace has it; nobody here wrote it.
        .filter(|(_, name)| name != "kube-root-ca.crt")
        .collect();
    items.sort();
    (revision.parse().expect("a number"), items)
}

/// Killed in the middle of a storm of writes, again and again: every acknowledged write is there, revisions only grow,
/// and a watch that resumes has seen each change once, in order.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    const ROUNDS: usize = 4;
    const WRITERS: usize = 8;
    const WRITES_A_ROUND: usize = 150;
    let directory = TempDir::new().expect("a directory");
    let data_dir = directory.path().join("data");
    let counter = Arc::new(AtomicU64::new(0));
    let (mut acknowledged, mut seen) = (Vec::new(), Vec::new());
    let (mut start, mut newest) = (None, 0);
    for round in 0..ROUNDS {
        let mut api = Api::start(&data_dir);
        let (revision, _) = list(api.address, &data_dir).await;
        assert!(
            revision >= newest,
            "round {round}: revisions went back from {newest} to {revision}"
        );
        let start = *start.get_or_insert(revision);
        let (report, mut reports) = mpsc::unbounded_channel();
        for _ in 0..WRITERS {
            let task = write_until_killed(
                api.address,
                data_dir.clone(),
                Arc::clone(&counter),
                report.clone(),
            );
            tokio::spawn(task);
        }
        drop(report);
        let (address, data) = (api.address, data_dir.clone());
        let watching = tokio::spawn(async move {
            let mut seen = seen;
            watch(address, &data, &mut seen, start, u64::MAX).await;
            seen
        });
        for _ in 0..WRITES_A_ROUND {
            acknowledged.push(reports.recv().await.expect("the writers write"));
        }
        api.kill();
        while let Some(late) = reports.recv().await {
            acknowledged.push(late);
        }
        seen = watching.await.expect("the watch ends with the server");
        newest = acknowledged
            .iter()
            .map(|(revision, _)| *revision)
            .max()
            .unwrap_or(newest);
    }
    let api = Api::start(&data_dir);
    let (revision, stored) = list(api.address, &data_dir).await;
    assert!(revision >= newest);
    for write in &acknowledged {
        assert!(
            stored.binary_search(write).is_ok(),
            "{write:?} was acknowledged and is lost"
        );
    }
    let last = stored.last().expect("objects").0;
    watch(api.address, &data_dir, &mut seen, start.expect("rounds"), last).await;
    assert_eq!(seen, stored, "left: the watch, right: the list");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_per_data_directory() {
    use std::os::unix::fs::PermissionsExt;
    let directory = TempDir::new().expect("a directory");
    let data_dir = directory.path().join("data");
    let api = Api::start(&data_dir);
    for private in [
        &api.kubeconfig,
        &data_dir.join("tokens.csv"),
        &data_dir.join("pki/ca.key"),
    ] {
        let mode = std::fs::metadata(private).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", private.display());
    }
    let path = data_dir.to_str().expect("a plain path").to_owned();
    let second = tokio::task::spawn_blocking(move || {
        pulselet(&["api", "--listen", "127.0.0.1:0", "--data-dir", &path])
    });
    let second = second.await.expect("it ends");
    assert_eq!(second.code, Some(3), "{second:?}");
    assert!(second.stderr.contains("hint: stop that server"), "{second:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_in_etcd_outlive_a_server_that_is_killed() {
    let Some(etcd) = pulselet_testing::etcd::EtcdCluster::start(1) else {
        return;
    };
    let directory = TempDir::new().expect("a directory");
    let (data, store) = (directory.path(), etcd.url());
    let flags = ["--store", store.as_str(), "--etcd-prefix", "/here"];
    let mut api = Api::start_with(data, &flags);
    let mut client = Client::connect(api.address, data).await.expect("a connection");
    let map = json!({"metadata": {"name": "kept"}}).to_string();
    let made = client.json(Method::POST, MAPS, map).await.expect("an answer");
    assert_eq!(made.0, StatusCode::CREATED);
    assert!(!data.join("api.db").exists(), "nothing is kept beside");
    api.kill();
    let again = Api::start_with(data, &flags);
    let mut client = Client::connect(again.address, data).await.expect("a connection");
    let path = format!("{MAPS}/kept");
    let read = client
        .json(Method::GET, &path, String::new())
        .await
        .expect("an answer");
    assert_eq!(read, (StatusCode::OK, made.1));
    drop(again);
    // Below another prefix nothing is known of what this directory's server has seen.
    let path = data.to_str().expect("a plain path");
    let other = [
        "api",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        path,
        "--store",
        store.as_str(),
    ];
    let refused = pulselet(&other);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("etcd.identity"), "{refused:?}");
}

#[test]
fn flags_about_etcd_need_each_other() {
    let store = "etcd://127.0.0.1:2379";
    for (flags, expected) in [
        (&["--etcd-cafile", "ca.crt"][..], "--store"),
        (&["--store", store, "--etcd-certfile", "a.crt"], "--etcd-cafile"),
        (
            &[
                "--store",
                store,
                "--etcd-cafile",
                "ca.crt",
                "--etcd-keyfile",
                "a.key",
            ],
            "--etcd-certfile",
        ),
        (&["--store", "sqlite://here"], "etcd://10.0.0.1:2379"),
        (&["--store", "etcd://127.0.0.1"], "etcd://10.0.0.1:2379"),
        (
            &["--store", store, "--etcd-prefix", "here"],
            "begins with a slash",
        ),
        (&["--audit-policy-file", "policy.yaml"], "--audit-log"),
    ] {
        let arguments: Vec<&str> = ["api"].iter().chain(flags).copied().collect();
        let refused = pulselet(&arguments);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(expected), "{expected}: {refused:?}");
    }
}
