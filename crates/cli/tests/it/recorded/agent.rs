//! Runs the recorded pods with the built-in runtime and gathers what it can see of them from outside.
//!
//! Logs and events go with their pod: logs are kept open from the moment they appear, events are asked for all the time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pulselet_agent::control::ControlClient;
use pulselet_agent::{EventRow, Layout};
use pulselet_runtime::log::LogEntry;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Life, Milestone, Recorded};
use crate::command::load_shell_image;

pub(super) const NAMESPACE: &str = "diff";
const WORKLOAD: &str = include_str!("../../data/recorded-workload.sh");
/// How often logs and deletions are looked at. A log is there for longer, if only by the time a pod takes to go.
const LOOK: Duration = Duration::from_millis(20);
/// Looks between two questions for events.
const LOOKS_PER_QUESTION: u32 = 10;
/// How much later than recorded a pod is deleted at most, when it has not come as far as the recorded one.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longer than the longest recording, a late deletion and a loaded machine take together.
const FOREVER: Duration = Duration::from_mins(3);
/// How long pods may take to end after a failed test has asked for it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The recorded pod with our workload in it.
fn pod_of(recorded: &Recorded) -> Value {
    let mut spec = recorded.spec.clone();
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            container["command"] = json!(["/bin/sh", "-c", WORKLOAD]);
            // Upstream takes its time before a hook; here the hook waits until the workload can be signalled.
            if let Some(command) = container.pointer_mut("/lifecycle/postStart/exec/command/2") {
                let hook = command.as_str().expect("a shell's command");
                *command = json!(format!("until [ -e /tmp/begun ]; do sleep 0.01; done; {hook}"));
            }
        }
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": recorded.name, "namespace": NAMESPACE},
        "spec": spec,
    })
}

/// A log, open since it appeared.
struct Log {
    file: File,
    read: Vec<u8>,
}

impl Log {
    fn milestones(&self) -> Vec<Milestone> {
        let entries = self.read.split(|byte| *byte == b'\n').filter_map(LogEntry::parse);
        entries
            .filter_map(|entry| Milestone::new(seconds(entry.at), &String::from_utf8_lossy(entry.text)))
            .collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of this century fit")]
fn seconds(at: Timestamp) -> f64 {
    at.as_microsecond() as f64 / 1e6
}

/// What was seen of all pods.
#[derive(Default)]
pub(super) struct Seen {
    logs: BTreeMap<String, BTreeMap<Life, Log>>,
    events: BTreeMap<String, Vec<EventRow>>,
    /// When deletions were asked for, in seconds of the clock.
    deleted: BTreeMap<String, f64>,
    lines: Vec<Value>,
}

impl Seen {
    pub(super) fn logs(&self, pod: &str) -> BTreeMap<Life, Vec<Milestone>> {
        let logs = self.logs.get(pod).into_iter().flatten();
        logs.map(|(life, log)| (life.clone(), log.milestones())).collect()
    }

    /// The last that were seen; those of the pod's very end may not be among them.
    pub(super) fn events(&self, pod: &str) -> &[EventRow] {
        self.events.get(pod).map_or(&[], Vec::as_slice)
    }

    pub(super) fn lines(&self, pod: &str) -> impl Iterator<Item = &Value> {
        let label = format!("{NAMESPACE}/{pod}");
        self.lines.iter().filter(move |line| line["pod"] == *label)
    }

    /// Seconds from the deletion until the pod was gone.
    pub(super) fn stopping(&self, pod: &str) -> Option<f64> {
        let gone = self.lines(pod).find(|line| line["type"] == "deleted")?;
        let gone: Timestamp = gone["time"].as_str()?.parse().ok()?;
        Some(seconds(gone) - self.deleted.get(pod)?)
    }

    /// Whether the pod has logged all that the recorded one had before its deletion.
    fn has_caught_up(&self, recorded: &Recorded) -> bool {
        let ours = self.logs(&recorded.name);
        let own = |milestone: &&Milestone| milestone.t < recorded.deleted_at && !milestone.is_of_the_end();
        recorded
            .logs
            .iter()
            .all(|(life, theirs)| theirs.iter().filter(own).count() <= ours.get(life).map_or(0, Vec::len))
    }
}

/// The agent, in a data directory of its own. Should a test fail, its pods end with it.
pub(super) struct Agent {
    child: Child,
    directory: TempDir,
    executor: tokio::runtime::Runtime,
    stops: Vec<Child>,
    seen: Seen,
}

impl Agent {
    /// Loads the images and starts to run the pods; none where there is nothing to make images of.
    pub(super) fn start(pods: &[Recorded]) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, signal) in [
            ("docker.io/library/busybox:1.35", None),
            ("lab.local/stopusr2:1", Some("SIGUSR2")),
        ] {
            if !load_shell_image(directory.path(), name, signal) {
                return None;
            }
        }
        let items: Vec<Value> = pods.iter().map(pod_of).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        fs::write(directory.path().join("pods.json"), list.to_string()).expect("writes");
        let file = |name| File::create(directory.path().join(name)).expect("a file");
        let child = command(directory.path(), &["run", "-o", "json"])
            .arg(directory.path().join("pods.json"))
            .stdout(file("lines.json"))
            .stderr(file("remarks.txt"))
            .spawn()
            .expect("pulselet starts");
        Some(Self {
            child,
            directory,
            executor: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("an executor"),
            stops: Vec::new(),
            seen: Seen::default(),
        })
    }

    /// Deletes each pod when the recorded one was, and returns when all are gone.
    pub(super) fn play(mut self, pods: &[Recorded]) -> (Seen, ExitStatus, String) {
        let begin = Instant::now();
        let mut looks = 0_u32;
        let status = loop {
            self.look_at_logs();
            if looks.is_multiple_of(LOOKS_PER_QUESTION) {
                self.ask_for_events();
            }
            looks += 1;
            self.delete_due(pods, begin.elapsed());
            if let Some(status) = self.child.try_wait().expect("it is a child") {
                break status;
            }
            assert!(begin.elapsed() < FOREVER, "pods are left: {}", self.remarks());
            std::thread::sleep(LOOK);
        };
        // Logs that were open stay readable when their pods are gone.
        self.read_logs();
        for mut stop in std::mem::take(&mut self.stops) {
            assert!(stop.wait().expect("it is a child").success(), "a stop failed");
        }
        let lines = fs::read_to_string(self.directory.path().join("lines.json")).expect("text");
        let lines = lines
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        let mut seen = std::mem::take(&mut self.seen);
        seen.lines = lines.collect();
        (seen, status, self.remarks())
    }

    fn remarks(&self) -> String {
        fs::read_to_string(self.directory.path().join("remarks.txt")).unwrap_or_default()
    }

    fn look_at_logs(&mut self) {
        for pod in entries(&self.directory.path().join("logs")) {
            let name = pod.file_name().expect("a name").to_string_lossy().into_owned();
            let name = name.split('_').nth(1).expect("namespace_name_uid").to_owned();
            for container in entries(&pod) {
                for log in entries(&container) {
                    self.open_log(&name, &container, &log);
                }
            }
        }
        self.read_logs();
    }

    fn open_log(&mut self, pod: &str, container: &Path, log: &Path) {
        let attempt = log
            .file_stem()
            .and_then(|stem| stem.to_str()?.parse::<u32>().ok());
        let Some(attempt) = attempt else { return };
        let life = Life {
            container: container
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned(),
            number: attempt + 1,
        };
        let logs = self.seen.logs.entry(pod.to_owned()).or_default();
        // It may have gone since it was listed.
        if !logs.contains_key(&life)
            && let Ok(file) = File::open(log)
        {
            logs.insert(
                life,
                Log {
                    file,
                    read: Vec::new(),
                },
            );
        }
    }

    fn read_logs(&mut self) {
        for log in self.seen.logs.values_mut().flat_map(BTreeMap::values_mut) {
            log.file.read_to_end(&mut log.read).expect("reads");
        }
    }

    fn ask_for_events(&mut self) {
        let client = ControlClient::new(Layout::new(self.directory.path()).socket());
        let ask = async {
            // Before the agent listens and after it has gone there is nothing to see.
            for pod in client.pods().await.unwrap_or_default() {
                let mut events = client.events(&pod.uid).await.unwrap_or_default();
                if self.seen.deleted.contains_key(&pod.name) {
                    // What readiness sees of a container that was told to stop is not compared.
                    let known = self.seen.events(&pod.name);
                    events.retain(|event| {
                        event.reason != "Unhealthy"
                            || known.iter().any(|other| other.message == event.message)
                    });
                }
                if !events.is_empty() {
                    self.seen.events.insert(pod.name, events);
                }
            }
        };
        self.executor.block_on(ask);
    }

    fn delete_due(&mut self, pods: &[Recorded], elapsed: Duration) {
        let left = |pod: &&Recorded| !self.seen.deleted.contains_key(&pod.name);
        let due: BTreeSet<&String> = pods
            .iter()
            .filter(left)
            .filter(|pod| {
                let late = elapsed.saturating_sub(Duration::from_secs_f64(pod.deleted_at));
                !late.is_zero() && (late > PATIENCE || self.seen.has_caught_up(pod))
            })
            .map(|pod| &pod.name)
            .collect();
        for name in due {
            let stop = command(self.directory.path(), &["stop"])
                .arg(format!("{NAMESPACE}/{name}"))
                .spawn()
                .expect("pulselet starts");
            self.stops.push(stop);
            self.seen.deleted.insert(name.clone(), seconds(Timestamp::now()));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let mut begin = Instant::now();
        let mut asked = 0;
        while let Ok(None) = self.child.try_wait() {
            if asked == 0 || begin.elapsed() > LEAVE_TIMEOUT {
                // Once ends the pods, twice kills them, three times leaves them.
                let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
                asked += 1;
                begin = Instant::now();
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn command(data_dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pulselet"));
    command
        .args(args)
        .arg("--data-dir")
        .arg(data_dir)
        .stdin(Stdio::null());
    command
}

/// What is in a directory; nothing if it is not there.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}
