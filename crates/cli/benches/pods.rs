//! Whole pods through the command, in built-in containers: from "the program answers" to Ready, from the manifest to
//! Ready, from the stop to the end, many pods at once, and what commands as probes cost the machine. That
//! last also at a containerd of the benchmark's own, where there is one. Needs root.
//!
//! Every number comes from the event lines, which carry the time of day, and from the containers' logs, which do too.

#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use pulselet_testing::containerd::{self, Containerd};

/// Runs of what is measured once per run.
const RUNS: usize = 15;
/// Runs of what takes seconds each.
const SLOW_RUNS: usize = 5;
/// Pods that come at once.
const MANY: usize = 40;
/// Containers whose probe is a command.
const COMMANDS: usize = 100;
/// The same at each of two runtimes; a containerd makes no more in a reasonable time.
const FEW: usize = 20;
/// How long the machine is watched.
const WATCHED: Duration = Duration::from_secs(20);
/// Ticks of the clock in which the kernel counts CPU time, a second.
const TICKS: f64 = 100.0;

fn main() {
    let soon = repeat(RUNS, || answer_to_ready("60ms", &json!({"periodSeconds": 10})));
    report("app up at 60 ms, answering to Ready", soon);
    let quick = json!({"periodSeconds": 1, "periodMilliseconds": -800});
    let late = repeat(SLOW_RUNS, || answer_to_ready("5s", &quick));
    report("app up at 5 s, probed every 200 ms, answering to Ready", late);
    // At any moment between two ticks, which lie on whole fifths of a second after the start.
    let spread = (0..RUNS).map(|run| answer_to_ready(&format!("{}ms", 1_000 + run * 200 / RUNS), &quick));
    report("app up at any moment, probed every 200 ms", spread.collect());
    let (ready, gone): (Vec<_>, Vec<_>) = (0..RUNS).map(|_| one_pod()).unzip();
    report("one pod, manifest to Ready", ready);
    report("one pod, stop to gone", gone);
    report(
        &format!("{MANY} pods at once, until all are ready"),
        repeat(SLOW_RUNS, many_pods),
    );
    let built_in = Place {
        name: "built in",
        runtime: "oci".to_owned(),
        image: "pulselet.local/host",
    };
    commands_as_probes(&built_in, COMMANDS);
    if !containerd::is_usable() {
        println!("containerd: not here");
        return;
    }
    let server = Containerd::start();
    let at_containerd = Place {
        name: "containerd",
        runtime: format!("unix://{}", server.socket().display()),
        image: containerd::IMAGE,
    };
    for place in [&built_in, &at_containerd] {
        let times = repeat(RUNS, || probed_by_command(place));
        report(
            &format!(
                "{}: one pod with a command as probe, manifest to Ready",
                place.name
            ),
            times,
        );
        commands_as_probes(place, FEW);
    }
}

/// Where containers are made.
struct Place {
    name: &'static str,
    runtime: String,
    image: &'static str,
}

impl Place {
    /// A program of the host's that does nothing, and goes at once.
    fn pod(&self, name: &str, probe: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "app", "image": self.image, "command": ["sleep", "1000"], "readinessProbe": probe,
                    "volumeMounts": [{"name": "usr", "mountPath": "/usr", "readOnly": true}],
                }],
                "volumes": [{"name": "usr", "hostPath": {"path": "/usr"}}],
            },
        })
    }
}

fn repeat(runs: usize, measure: impl Fn() -> Duration) -> Vec<Duration> {
    (0..runs).map(|_| measure()).collect()
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let ms = |time: &Duration| time.as_secs_f64() * 1e3;
    let (first, last) = (&times[0], &times[times.len() - 1]);
    let median = &times[times.len() / 2];
    println!(
        "{what}: median {:.0} ms, {:.0} to {:.0} ms in {} runs",
        ms(median),
        ms(first),
        ms(last),
        times.len()
    );
}

/// A `pulselet run` and its lines.
struct Run {
    child: Child,
    lines: Receiver<Value>,
    directory: tempfile::TempDir,
}

impl Run {
    fn start(runtime: &str, pods: &[Value]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("pods.json");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
        std::fs::write(&file, list.to_string()).expect("a manifest");
        let mut child = Command::new(env!("CARGO_BIN_EXE_pulselet"))
            .args(["run", "-o", "json", "--runtime", runtime, "--data-dir"])
            .arg(directory.path().join("data"))
            .arg(&file)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("pulselet runs");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        // Read all along, so that the command never waits for us.
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("event lines are JSON");
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            directory,
        }
    }

    /// Reads on to a line of the pods themselves.
    fn until(&self, kind: &str) -> Value {
        loop {
            let line = self.lines.recv().expect("a line of this kind comes");
            if line["type"] == kind && line.get("container").is_none() {
                return line;
            }
        }
    }

    fn interrupt(&self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process"), Signal::INT).expect("it is there");
    }

    fn end(mut self) {
        self.interrupt();
        self.child.wait().expect("it ends");
    }
}

fn time(line: &Value) -> Timestamp {
    let text = line["time"].as_str().expect("lines of a run have a time");
    text.parse().expect("a time")
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

fn pod(name: &str, start_after: &str, probe: &Value) -> Value {
    let command = ["pulselet", "demo", "--port", "8080", "--start-after", start_after];
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{
            "name": "app", "image": "pulselet.local/host", "command": command, "readinessProbe": probe,
        }]},
    })
}

fn http(timing: &Value) -> Value {
    let mut probe = timing.clone();
    probe["httpGet"] = json!({"port": 8080, "path": "/ready"});
    probe
}

fn answer_to_ready(start_after: &str, timing: &Value) -> Duration {
    let run = Run::start("oci", &[pod("web", start_after, &http(timing))]);
    let ready = time(&run.until("ready"));
    let up = said(run.directory.path(), "up");
    run.end();
    between(up, ready)
}

/// When a container wrote a line into its log.
fn said(directory: &Path, words: &str) -> Timestamp {
    let log = find_log(directory).expect("the container has a log");
    let text = std::fs::read_to_string(log).expect("a readable log");
    let line = text
        .lines()
        .find(|line| line.ends_with(words))
        .expect("it said so");
    line.split(' ')
        .next()
        .and_then(|time| time.parse().ok())
        .expect("a time first")
}

fn find_log(directory: &Path) -> Option<PathBuf> {
    std::fs::read_dir(directory).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            Some(path)
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find_log(&path)
        } else {
            None
        }
    })
}

/// Manifest to Ready and stop to gone, of a program that is up and gone at once.
fn one_pod() -> (Duration, Duration) {
    let mut run = Run::start("oci", &[pod("web", "0s", &http(&json!({})))]);
    let accepted = time(&run.until("phase"));
    let ready = time(&run.until("ready"));
    let stopped = Timestamp::now();
    run.interrupt();
    let gone = time(&run.until("deleted"));
    run.child.wait().expect("it ends");
    (between(accepted, ready), between(stopped, gone))
}

fn many_pods() -> Duration {
    let pods: Vec<_> = (0..MANY)
        .map(|n| pod(&format!("web-{n}"), "0s", &http(&json!({}))))
        .collect();
    let run = Run::start("oci", &pods);
    let accepted = time(&run.until("phase"));
    let last = (0..MANY).map(|_| time(&run.until("ready"))).max();
    run.end();
    between(accepted, last.expect("some pods"))
}

fn probed_by_command(place: &Place) -> Duration {
    let probe = json!({"exec": {"command": ["true"]}});
    let run = Run::start(&place.runtime, &[place.pod("web", &probe)]);
    let accepted = time(&run.until("phase"));
    let ready = time(&run.until("ready"));
    run.end();
    between(accepted, ready)
}

/// What the whole machine does while containers are asked by commands, beside the same containers unasked.
fn commands_as_probes(place: &Place, count: usize) {
    let asked = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let (with, without) = (
        machine_load(place, count, &asked),
        machine_load(place, count, &Value::Null),
    );
    let each = (with - without) * 1e3 / (count as f64);
    println!(
        "{}: {count} containers with a command every second: {:.1} % of a core in all ({:.1} % unprobed), {each:.2} ms a command",
        place.name,
        with * 100.0,
        without * 100.0
    );
}

/// Cores in use.
fn machine_load(place: &Place, count: usize, probe: &Value) -> f64 {
    let pods: Vec<_> = (0..count)
        .map(|n| place.pod(&format!("web-{n}"), probe))
        .collect();
    let run = Run::start(&place.runtime, &pods);
    for _ in 0..count {
        run.until("ready");
    }
    let (before, began) = (machine_time(), Instant::now());
    std::thread::sleep(WATCHED);
    let load = (machine_time() - before) / began.elapsed().as_secs_f64();
    run.end();
    load
}

/// Seconds of CPU that the machine has used for anything.
fn machine_time() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").expect("proc is mounted");
    let numbers = text
        .lines()
        .next()
        .expect("a first line")
        .split_whitespace()
        .skip(1);
    let numbers: Vec<f64> = numbers.filter_map(|number| number.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq
    (numbers[0] + numbers[1] + numbers[2] + numbers[5] + numbers[6]) / TICKS
}
