//! How many containers a node can probe as fast as the floors allow: http, tcp and grpc every 200 ms, commands every 500 ms, in
//! built-in containers, their number rising until lateness or CPU breaks. Beside them are pods that are probed once a second, to
//! see whether those suffer. Needs root and an idle machine; takes about a quarter of an hour.
//!
//! In real use a probe is that fast only until its first success, so a node carries many more pods than the numbers here, as long
//! as they do not all start at once. `--write` puts table and curves into docs/.

#[path = "floors/figures.rs"]
mod figures;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use figures::{Point, Series, markdown, percentile, svg};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Containers with a fast probe.
const STEPS: [u32; 6] = [10, 40, 160, 320, 640, 1280];
/// Containers of one pod: it is probes that are measured, not how many networks a machine can have.
const PER_POD: u32 = 5;
/// The first port in a pod; each of its containers has one.
const PORT: u32 = 8080;
/// Containers beside them that are probed once a second.
const STEADY: u32 = 10;
/// How long the machine is watched for one number.
const WATCHED: Duration = Duration::from_secs(8);
/// After the last pod is ready, before the watching begins.
const SETTLES: Duration = Duration::from_secs(2);
/// How long pods may take to become ready; a node that cannot is at its end.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long a node may take to probe fast again after the starts, which may have been more than it could do in time.
const RECOVERS: Duration = Duration::from_secs(45);
/// Ticks of the clock in which the kernel counts CPU time, a second.
const TICKS: f64 = 100.0;

fn main() {
    // Cargo passes `--bench`.
    let write = std::env::args().any(|argument| argument == "--write");
    let handlers = [
        ("http, 200 ms", "httpGet", 200),
        ("tcp, 200 ms", "tcpSocket", 200),
        ("grpc, 200 ms", "grpc", 200),
        ("exec, 500 ms", "exec", 500),
    ];
    let series: Vec<Series> = handlers
        .into_iter()
        .map(|(name, handler, period)| measure(name, handler, period))
        .collect();
    let cores =
        std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
    let table = markdown(&series, cores);
    println!("{table}");
    if write {
        publish(&series, &table);
    }
}

fn measure(name: &'static str, handler: &str, period_ms: u32) -> Series {
    let mut series = Series {
        name,
        points: Vec::new(),
        unready: None,
    };
    for containers in STEPS {
        let Some(point) = measure_once(containers, handler, period_ms) else {
            println!("{name}: {containers} containers were not ready within {PATIENCE:?}");
            series.unready = Some(containers);
            break;
        };
        println!("{name}: {point:?}");
        series.points.push(point);
        if !point.holds() {
            break;
        }
    }
    series
}

/// `None` if the pods do not become ready.
fn measure_once(containers: u32, handler: &str, period_ms: u32) -> Option<Point> {
    let node = Node::start(containers, handler, period_ms);
    if !node.wait_until_ready(containers + STEADY) {
        node.end();
        return None;
    }
    node.wait_until_fast();
    std::thread::sleep(SETTLES);
    let (before, began) = (node.sample(), Instant::now());
    std::thread::sleep(WATCHED);
    let after = node.sample();
    let watched = began.elapsed().as_secs_f64();
    node.end();
    let probes = (after.fast - before.fast).max(1.0);
    let steady = after.steady - before.steady;
    let late: Vec<(f64, f64)> = after
        .late
        .iter()
        .map(|(bound, count)| (bound.0, count - before.late.get(bound).unwrap_or(&0.0)))
        .collect();
    let machine = (after.machine_busy - before.machine_busy) / TICKS;
    let whole = (after.machine_all - before.machine_all) / TICKS;
    // One tick may fall to either side of the window.
    let share = |made: f64, of: u32, period: f64| {
        let wanted = f64::from(of) * watched / period;
        ((made + f64::from(of)) / wanted).min(1.0)
    };
    Some(Point {
        containers,
        agent_us_per_probe: (after.agent - before.agent) / TICKS * 1e6 / (probes + steady),
        machine_us_per_probe: machine * 1e6 / (probes + steady),
        busy: machine / whole.max(f64::MIN_POSITIVE),
        late_p50: percentile(&late, 0.5),
        late_p99: percentile(&late, 0.99),
        made: share(probes, containers, f64::from(period_ms) / 1e3),
        kept: share(steady, STEADY, 1.0),
    })
}

/// A bound of a histogram, in order.
#[derive(Clone, Copy)]
struct Bound(f64);

impl PartialEq for Bound {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Bound {}

impl PartialOrd for Bound {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bound {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Counters at one moment.
struct Sample {
    fast: f64,
    steady: f64,
    late: BTreeMap<Bound, f64>,
    /// Ticks.
    agent: f64,
    machine_busy: f64,
    machine_all: f64,
}

struct Node {
    child: Child,
    metrics: String,
    _directory: tempfile::TempDir,
}

impl Node {
    fn start(containers: u32, handler: &str, period_ms: u32) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let fast = |port: u32| {
            let mut probe = match handler {
                "exec" => json!({"exec": {"command": ["true"]}}),
                _ => json!({handler: {"port": port}}),
            };
            probe["periodSeconds"] = json!(1);
            probe["periodMilliseconds"] = json!(i64::from(period_ms) - 1000);
            json!({"readinessProbe": probe})
        };
        let mut pods: Vec<Value> = (0..containers)
            .step_by(PER_POD as usize)
            .map(|first| {
                let ports = PORT..PORT + PER_POD.min(containers - first);
                pod(&format!("fast-{first}"), ports.map(|port| (port, fast(port))))
            })
            .collect();
        pods.extend((0..STEADY).map(|number| {
            let probe = json!({"livenessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1}});
            pod(&format!("steady-{number}"), [(PORT, probe)])
        }));
        let file = directory.path().join("pods.json");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
        std::fs::write(&file, list.to_string()).expect("a manifest");
        let config = directory.path().join("node.yaml");
        std::fs::write(&config, "subSecondPolicy: always\n").expect("a configuration");
        let metrics = free_address();
        let child = Command::new(env!("CARGO_BIN_EXE_pulselet"))
            .args(["run", "--runtime", "oci", "--metrics", &metrics, "--data-dir"])
            .arg(directory.path().join("data"))
            .arg("--config")
            .arg(config)
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pulselet runs");
        Self {
            child,
            metrics,
            _directory: directory,
        }
    }

    /// Whether every container had its first success in time; the steady ones have it after a second.
    fn wait_until_ready(&self, containers: u32) -> bool {
        let wanted = format!("pulselet_container_time_to_first_success_seconds_count {containers}");
        self.wait_for(&wanted, PATIENCE)
    }

    /// Starts may have been too much for it; if probes stay stretched, the measurement shows it.
    fn wait_until_fast(&self) {
        self.wait_for("pulselet_probes_stretched 0", RECOVERS);
    }

    fn wait_for(&self, metric: &str, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if self.page().lines().any(|line| line == metric) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        false
    }

    /// The text of `/metrics`; empty while the node does not answer.
    fn page(&self) -> String {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(&self.metrics)?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().unwrap_or_default()
    }

    fn sample(&self) -> Sample {
        let page = self.page();
        let sum = |kind: &str| -> f64 {
            let name = format!("prober_probe_total{{probe_type=\"{kind}\"");
            let lines = page.lines().filter(|line| line.starts_with(&name));
            lines.filter_map(value).sum()
        };
        let late = page.lines().filter_map(|line| {
            let rest = line.strip_prefix("pulselet_probe_lateness_seconds_bucket{le=\"")?;
            let bound = rest.split('"').next()?;
            let bound = if bound == "+Inf" {
                f64::INFINITY
            } else {
                bound.parse().ok()?
            };
            Some((Bound(bound), value(line)?))
        });
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
        let ticks = |place: usize| fields[place].parse::<f64>().expect("a number");
        let machine = std::fs::read_to_string("/proc/stat").expect("the kernel counts");
        let times: Vec<f64> = machine
            .lines()
            .next()
            .expect("all cores")
            .split_whitespace()
            .skip(1)
            .take(8)
            .map(|field| field.parse().expect("a number"))
            .collect();
        let all: f64 = times.iter().sum();
        Sample {
            fast: sum("Readiness"),
            steady: sum("Liveness"),
            late: late.collect(),
            agent: ticks(11) + ticks(12),
            // Idle and waiting for disks are the fourth and the fifth.
            machine_busy: all - times[3] - times[4],
            machine_all: all,
        }
    }

    fn end(mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process"), Signal::INT).expect("it is there");
        self.child.wait().expect("it ends");
    }
}

/// The number at the end of a line of metrics.
fn value(line: &str) -> Option<f64> {
    line.rsplit(' ').next()?.parse().ok()
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

/// A pod with a container per port.
fn pod(name: &str, probes: impl IntoIterator<Item = (u32, Value)>) -> Value {
    let containers = probes.into_iter().map(|(port, probe)| {
        let mut container = json!({
            "name": format!("app-{port}"),
            "image": "pulselet.local/host",
            "command": ["pulselet", "demo", "--port", port.to_string()],
        });
        let fields = probe.as_object().expect("a probe").clone();
        container.as_object_mut().expect("an object").extend(fields);
        container
    });
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": containers.collect::<Vec<_>>()},
    })
}

/// Between these lines of docs/BENCHMARKS.md is what was measured last.
const BEGIN: &str = "<!-- floors: measured by scripts/bench floors --write -->\n";
const END: &str = "<!-- floors: end -->\n";

fn publish(series: &[Series], table: &str) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let curves = |value: fn(&Point) -> f64| -> Vec<(String, Vec<(f64, f64)>)> {
        let curve = |one: &Series| {
            let points = one.points.iter();
            let points = points.map(|point| (f64::from(point.containers), value(point)));
            (one.name.to_owned(), points.collect())
        };
        series.iter().map(curve).collect()
    };
    let mut lateness = curves(|point| point.late_p99 * 1e3);
    for (name, _) in &mut lateness {
        name.push_str(", p99");
    }
    let mut median = curves(|point| point.late_p50 * 1e3);
    for (name, _) in &mut median {
        name.push_str(", p50");
    }
    for (file, title, unit, curves) in [
        (
            "floors-cpu.svg",
            "CPU of the machine per probe, by containers",
            "us",
            curves(|point| point.machine_us_per_probe),
        ),
        (
            "floors-lateness-p99.svg",
            "Lateness of probes, by containers",
            "ms",
            lateness,
        ),
        (
            "floors-lateness-p50.svg",
            "Lateness of probes, by containers",
            "ms",
            median,
        ),
        (
            "floors-interference.svg",
            "One-second probes beside them that were made",
            "%",
            curves(|point| point.kept * 100.0),
        ),
    ] {
        std::fs::write(docs.join("pictures").join(file), svg(title, unit, &curves)).expect("a picture");
    }
    let page = docs.join("BENCHMARKS.md");
    let text = std::fs::read_to_string(&page).expect("the page");
    let (before, rest) = text.split_once(BEGIN).expect("the page says where");
    let (_, after) = rest.split_once(END).expect("the page says up to where");
    let pictures = ["cpu", "lateness-p50", "lateness-p99", "interference"]
        .map(|name| format!("![{name}](pictures/floors-{name}.svg)\n"))
        .concat();
    let new = format!("{before}{BEGIN}\n{table}\n{pictures}\n{END}{after}");
    std::fs::write(page, new).expect("the page is written");
}
