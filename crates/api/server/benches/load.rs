//! A server under load: creates, gets, status writes and lists of 5,000 Pods, large and misspelled Pods, and the time from a
//! write to its event at 500 watches.
//!
//! Server and clients share the machine, over TLS on the loopback interface. Memory is that of the process before any
//! client connects, and after.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use pulselet_apiserver::{Config, Server};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsConnector;

const PODS: &str = "/api/v1/namespaces/default/pods";
const OBJECTS: usize = 5000;
/// Connections that create and read at the same time.
const CLIENTS: usize = 16;
const WATCHES: usize = 500;
/// Changes whose way to every watch is timed.
const CHANGES: usize = 40;

/// Bytes of the Pod whose unknown fields are timed, and how many it has.
const LARGE_POD: usize = 256 * 1024;
const UNKNOWN_FIELDS: usize = 60;
const DRY_RUNS: usize = 20;
/// Clients that send large Pods at the same time, the bytes of one, and for how long.
const CROWD: usize = 8;
const CROWD_POD: usize = 2 * 1024 * 1024;
const CROWD_TIME: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Target {
    address: std::net::SocketAddr,
    connector: TlsConnector,
    token: Arc<str>,
}

struct Client {
    sender: SendRequest<Full<Bytes>>,
    token: Arc<str>,
}

impl Target {
    async fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).await.expect("a connection");
        stream.set_nodelay(true).expect("an option");
        let name = ServerName::from(self.address.ip());
        let stream = self.connector.connect(name, stream).await.expect("a handshake");
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .expect("http");
        tokio::spawn(connection);
        Client {
            sender,
            token: Arc::clone(&self.token),
        }
    }
}

impl Client {
    async fn send(&mut self, method: Method, path: &str, body: String) -> Incoming {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {}", self.token))
            .body(Full::new(Bytes::from(body)))
            .expect("a request");
        self.sender.ready().await.expect("an open connection");
        let answer = self.sender.send_request(request).await.expect("an answer");
        let (code, body) = (answer.status(), answer.into_body());
        if !code.is_success() {
            let text = body.collect().await.expect("a whole answer").to_bytes();
            panic!("{code}: {}", String::from_utf8_lossy(&text));
        }
        body
    }

    async fn read(&mut self, method: Method, path: &str, body: String) -> Bytes {
        let body = self.send(method, path, body).await;
        body.collect().await.expect("a whole answer").to_bytes()
    }
}

fn pod(index: usize) -> Value {
    json!({"metadata": {"name": format!("web-{index:05}"), "labels": {"app": "web"}}, "spec": {"containers": [
        {"name": "app", "image": "registry.example/app:1", "ports": [{"containerPort": 8080}],
         "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
         "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 5},
         "livenessProbe": {"httpGet": {"path": "/live", "port": 8080}}},
        {"name": "side", "image": "registry.example/side:1"}]}})
}

/// Resident memory of this process in MiB.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("VmRSS");
    let kib: f64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|number| number.parse().ok())
        .expect("a number");
    kib / 1024.0
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

/// Runs one request per object from all clients; returns requests per second and the sorted times of each.
async fn storm(target: &Target, request: fn(usize) -> (Method, String, String)) -> (f64, Vec<Duration>) {
    let started = Instant::now();
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let target = target.clone();
            tokio::spawn(async move {
                let mut connection = target.connect().await;
                let mut times = Vec::new();
                for index in (client..OBJECTS).step_by(CLIENTS) {
                    let (method, path, body) = request(index);
                    let sent = Instant::now();
                    connection.read(method, &path, body).await;
                    times.push(sent.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("a client ends"));
    }
    let rate = f64::from(u32::try_from(OBJECTS).expect("few")) / started.elapsed().as_secs_f64();
    times.sort();
    (rate, times)
}

fn report(what: &str, rate: f64, times: &[Duration]) {
    println!(
        "{what}: {rate:.0}/s, p50 {:?}, p99 {:?}",
        percentile(times, 50),
        percentile(times, 99)
    );
}

/// The times from sending a write to the arrival of its event, over all watches.
async fn watch_latency(target: &Target) -> Vec<Duration> {
    let (arrivals, mut arrived) = mpsc::unbounded_channel();
    let mut client = target.connect().await;
    let list = client
        .read(Method::GET, &format!("{PODS}?limit=1"), String::new())
        .await;
    let list: Value = serde_json::from_slice(&list).expect("a list");
    let revision = list["metadata"]["resourceVersion"]
        .as_str()
        .expect("a revision")
        .to_owned();
    for _ in 0..WATCHES {
        let mut watcher = target.connect().await;
        let path = format!("{PODS}?watch=1&resourceVersion={revision}");
        let mut events = watcher.send(Method::GET, &path, String::new()).await;
        let arrivals = arrivals.clone();
        tokio::spawn(async move {
            let _watcher = watcher;
            while let Some(Ok(frame)) = events.frame().await {
                let at = Instant::now();
                let data = frame.into_data().unwrap_or_default();
                let lines = data.split(|byte| *byte == b'\n').count() - 1;
                for _ in 0..lines {
                    if arrivals.send(at).is_err() {
                        return;
                    }
                }
            }
        });
    }
    let mut times = Vec::new();
    for change in 0..CHANGES {
        let patch = json!([{"op": "add", "path": "/metadata/labels/n", "value": change.to_string()}]);
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(format!("{PODS}/web-00000"))
            .header("host", "localhost")
            .header("content-type", "application/json-patch+json")
            .header("authorization", format!("Bearer {}", client.token))
            .body(Full::new(Bytes::from(patch.to_string())))
            .expect("a request");
        let sent = Instant::now();
        client.sender.ready().await.expect("an open connection");
        let answer = client.sender.send_request(request).await.expect("an answer");
        assert!(answer.status().is_success());
        answer.into_body().collect().await.expect("a whole answer");
        for _ in 0..WATCHES {
            let at = arrived.recv().await.expect("the watches go on");
            times.push(at.saturating_duration_since(sent));
        }
    }
    times.sort();
    times
}

/// A Pod of about this many bytes.
fn large_pod(name: &str, bytes: usize) -> Value {
    let mut pod = pod(0);
    pod["metadata"]["name"] = json!(name);
    let variable = json!({"name": "V", "value": "x".repeat(64)});
    let count = bytes / variable.to_string().len();
    pod["spec"]["containers"][0]["env"] = vec![variable; count].into();
    pod
}

/// The median time of dry runs that create a Pod.
async fn dry_run_time(client: &mut Client, pod: &Value) -> Duration {
    let path = format!("{PODS}?dryRun=All&fieldValidation=Warn");
    let mut times = Vec::new();
    for _ in 0..DRY_RUNS {
        let sent = Instant::now();
        client.read(Method::POST, &path, pod.to_string()).await;
        times.push(sent.elapsed());
    }
    times.sort();
    percentile(&times, 50)
}

/// How much longer a large Pod takes with unknown fields than without.
async fn unknown_fields(target: &Target) {
    let mut client = target.connect().await;
    let known = large_pod("known", LARGE_POD);
    let mut unknown = known.clone();
    let container = unknown["spec"]["containers"][0]
        .as_object_mut()
        .expect("a container");
    container.extend((0..UNKNOWN_FIELDS).map(|index| (format!("unknown{index}"), json!(index))));
    let without = dry_run_time(&mut client, &known).await;
    let with = dry_run_time(&mut client, &unknown).await;
    let ratio = with.as_secs_f64() / without.as_secs_f64();
    println!("{UNKNOWN_FIELDS} unknown fields: {with:?} and {without:?} without, {ratio:.2} times");
}

/// The times of `GET /version` while other clients send large Pods.
async fn version_in_a_crowd(target: &Target) -> Vec<Duration> {
    let senders: Vec<_> = (0..CROWD)
        .map(|index| {
            let target = target.clone();
            tokio::spawn(async move {
                let body = large_pod(&format!("crowd-{index}"), CROWD_POD).to_string();
                let mut client = target.connect().await;
                loop {
                    let path = format!("{PODS}?dryRun=All");
                    client.read(Method::POST, &path, body.clone()).await;
                }
            })
        })
        .collect();
    let mut client = target.connect().await;
    let mut times = Vec::new();
    let started = Instant::now();
    while started.elapsed() < CROWD_TIME {
        let sent = Instant::now();
        client.read(Method::GET, "/version", String::new()).await;
        times.push(sent.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    senders.iter().for_each(tokio::task::JoinHandle::abort);
    times.sort();
    times
}

#[tokio::main]
async fn main() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let server = Server::bind(Config::new(([127, 0, 0, 1], 0).into(), directory.path()))
        .await
        .expect("the server starts");
    let mut roots = rustls::RootCertStore::empty();
    let authority =
        CertificateDer::from_pem_file(directory.path().join("pki/ca.crt")).expect("the authority");
    roots.add(authority).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("protocols")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tokens = std::fs::read_to_string(directory.path().join("tokens.csv")).expect("tokens");
    let target = Target {
        address: server.address(),
        connector: TlsConnector::from(Arc::new(config)),
        token: tokens.split(',').next().expect("a token").into(),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    println!("idle: {:.1} MiB resident", resident_mib());
    let (rate, times) = storm(&target, |index| {
        (Method::POST, PODS.to_owned(), pod(index).to_string())
    })
    .await;
    report("create", rate, &times);
    let (rate, times) = storm(&target, |index| {
        (Method::GET, format!("{PODS}/web-{index:05}"), String::new())
    })
    .await;
    report("get", rate, &times);
    let (rate, times) = storm(&target, |index| {
        let path = format!("{PODS}/web-{index:05}/status");
        let mut whole = pod(index);
        whole["status"] = json!({"phase": "Running"});
        (Method::PUT, path, whole.to_string())
    })
    .await;
    report("status write", rate, &times);
    unknown_fields(&target).await;
    let times = version_in_a_crowd(&target).await;
    println!(
        "GET /version while {CROWD} clients send Pods of 2 MB: p50 {:?}, p99 {:?}, longest {:?}",
        percentile(&times, 50),
        percentile(&times, 99),
        percentile(&times, 100)
    );
    let mut client = target.connect().await;
    for round in 0..3 {
        let sent = Instant::now();
        let list = client.read(Method::GET, PODS, String::new()).await;
        let mib = list.len() / (1024 * 1024);
        println!("list {round} of {OBJECTS} pods: {:?}, {mib} MiB", sent.elapsed());
    }
    let times = watch_latency(&target).await;
    println!(
        "write to event at {WATCHES} watches: p50 {:?}, p99 {:?}",
        percentile(&times, 50),
        percentile(&times, 99)
    );
    println!("at the end: {:.1} MiB resident, clients included", resident_mib());
    let _ = stop.send(());
    drop(client);
    running.await.expect("the server ends");
}
