//! A node under load: lateness, CPU and memory of many containers that are probed every second, and CPU per probe at a
//! steady 40 probes a second, status handling and state included. `cargo bench -p pulselet-agent`.
//!
//! Containers are scripted, probes are real requests. The server they ask is a process of its own, so that only the
//! agent's time is counted.

#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pulselet_agent::{DataDir, FULL_BACKLOG, Node, NodeHandle, NodeOptions, Origin};
use pulselet_engine::LineBody;
use pulselet_model::{GateSet, Profile, admit_create};
use pulselet_runtime_fake::{FakeRuntime, RuntimeFaults};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The argument that makes this program the server side.
const SERVE: &str = "--serve";
/// The argument that makes it one row: containers, probes of each, address of the server.
const MEASURE: &str = "--measure";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
/// Connections that wait for the server: more than the largest load has containers in one burst, so that the kernel
/// drops none. The usual 128 would turn a burst into time-outs.
const BACKLOG: i32 = 8_192;
/// A pod comes every so often: 250 a second, as fast as a large machine may start containers.
const PACE: Duration = Duration::from_millis(4);
/// How long a load is watched.
const WATCHED: Duration = Duration::from_secs(30);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == SERVE) {
        return serve();
    }
    if let Some(place) = arguments.iter().position(|argument| argument == MEASURE) {
        let number = |place: usize| arguments[place].parse().expect("a number");
        let address = arguments[place + 3].parse().expect("an address");
        let load = Load {
            containers: number(place + 1),
            probes: number(place + 2),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        return runtime.expect("a runtime").block_on(measure(load, address));
    }
    let (mut server, address) = start_server();
    println!(
        "{:>10} {:>6} {:>8} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "containers",
        "probes",
        "probes/s",
        "us per probe",
        "p50 ms",
        "p99 ms",
        "max ms",
        "idle MiB",
        "RSS MiB"
    );
    // Loads of one size differ by their probes alone: the difference of their memory is that of the workers.
    for (containers, probes) in [(1, 1), (40, 1), (1_000, 0), (1_000, 1), (5_000, 0), (5_000, 1)] {
        let program = std::env::current_exe().expect("this program");
        let arguments = [
            MEASURE.to_owned(),
            containers.to_string(),
            probes.to_string(),
            address.to_string(),
        ];
        let mut row = Command::new(program)
            .args(arguments)
            .spawn()
            .expect("a row begins");
        assert!(row.wait().expect("a row ends").success());
    }
    server.kill().expect("the server ends");
    server.wait().expect("the server ends");
}

/// What a row of the table measures, in a process of its own.
#[derive(Clone, Copy)]
struct Load {
    containers: usize,
    /// Probes of each container: none or one.
    probes: usize,
}

async fn measure(load: Load, target: SocketAddr) {
    let directory = tempfile::tempdir().expect("a directory");
    let fake = FakeRuntime::new(RuntimeFaults::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let metrics = listener.local_addr().expect("an address");
    let data_dir = DataDir::claim(directory.path()).expect("the directory is free");
    let mut options = NodeOptions::new(data_dir, Arc::new(fake));
    options.metrics = Some(listener);
    let mut lines = options.lines.subscribe(FULL_BACKLOG);
    let node = Node::start(options).await.expect("the node starts");
    let idle = resident_kib();
    // Read all along: lines that nobody reads are dropped in the end.
    let all_ready = tokio::spawn(async move {
        let mut ready = 0;
        while ready < load.containers {
            let line = lines.next().await.expect("the node is there");
            ready += usize::from(line.line.container.is_none() && line.line.body == LineBody::Ready);
        }
    });
    // A probe's grid begins with its container: pods that come all at once would be probed all at once ever after.
    let mut pace = tokio::time::interval(PACE);
    for number in 0..load.containers {
        pace.tick().await;
        add(&node, number, load, target).await;
    }
    all_ready.await.expect("a task that ends");
    // The moments after the start belong to it.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = (Lateness::read(metrics).await, cpu(), Instant::now());
    tokio::time::sleep(WATCHED).await;
    let seconds = before.2.elapsed().as_secs_f64();
    let spent = cpu() - before.1;
    let lateness = Lateness::read(metrics).await.since(&before.0);
    println!(
        "{:>10} {:>6} {:>8.0} {:>12.1} {:>9} {:>9} {:>9} {:>9.1} {:>9.1}",
        load.containers,
        load.probes,
        lateness.count as f64 / seconds,
        spent * 1e6 / lateness.count as f64,
        lateness.at_most(0.5),
        lateness.at_most(0.99),
        lateness.at_most(1.0),
        idle as f64 / 1024.0,
        resident_kib() as f64 / 1024.0,
    );
    node.shutdown(pulselet_agent::Shutdown::KillPods).await;
}

async fn add(node: &NodeHandle, number: usize, load: Load, target: SocketAddr) {
    let probe = json!({
        "httpGet": {"port": target.port(), "path": "/healthz"}, "periodSeconds": 1, "timeoutSeconds": 1,
    });
    let probe = (load.probes > 0).then_some(probe);
    let pod = json!({
        "metadata": {"name": format!("pod-{number}")},
        "spec": {"containers": [{"name": "app", "image": "app:1", "livenessProbe": probe}]},
    });
    let pod = serde_json::from_value(pod).expect("a pod");
    let admitted = admit_create(pod, Profile::Pulselet, GateSet::ALL).expect("a valid pod");
    let added = node.add_pod(admitted.pod, Origin::Run).await;
    added.expect("the node is there").expect("the pod is taken");
}

/// The histogram of how late probes began.
#[derive(Default)]
struct Lateness {
    count: u64,
    /// Upper bounds in seconds, and how many were at most that late.
    buckets: Vec<(f64, u64)>,
}

impl Lateness {
    async fn read(address: SocketAddr) -> Self {
        let mut stream = tokio::net::TcpStream::connect(address)
            .await
            .expect("a connection");
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("an answer");
        let mut lateness = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("pulselet_probe_lateness_seconds_bucket{le=\"") {
                let (bound, count) = rest.split_once("\"} ").expect("a bucket");
                let bound = bound.parse().unwrap_or(f64::INFINITY);
                lateness.buckets.push((bound, count.parse().expect("a number")));
            } else if let Some(count) = line.strip_prefix("pulselet_probe_lateness_seconds_count ") {
                lateness.count = count.parse().expect("a number");
            }
        }
        lateness
    }

    fn since(mut self, before: &Self) -> Self {
        self.count -= before.count;
        for ((_, count), (_, earlier)) in self.buckets.iter_mut().zip(&before.buckets) {
            *count -= earlier;
        }
        self
    }

    /// The bound of the bucket that holds this part of all, in milliseconds.
    fn at_most(&self, part: f64) -> String {
        let wanted = self.count as f64 * part;
        let bucket = self.buckets.iter().find(|(_, count)| *count as f64 >= wanted);
        bucket.map_or("none".to_owned(), |(bound, _)| format!("<{:.2}", bound * 1e3))
    }
}

/// Seconds of CPU this process has used.
fn cpu() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|rest| rest.trim().split(' ').next());
    number.and_then(|number| number.parse().ok()).expect("a number")
}

fn start_server() -> (Child, SocketAddr) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .arg(SERVE)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("its output");
    BufReader::new(stdout).read_line(&mut line).expect("its address");
    (child, line.trim().parse().expect("an address"))
}

/// Answers every request on a few threads.
fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    rustix::net::listen(&listener, BACKLOG).expect("a longer queue");
    println!("{}", listener.local_addr().expect("an address"));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let listener = listener.try_clone().expect("a descriptor");
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                for stream in listener.incoming() {
                    let Ok(mut stream) = stream else { continue };
                    let _ = stream.read(&mut buffer).and_then(|_| stream.write_all(RESPONSE));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("a thread that goes on");
    }
}
