//! Gates turned off and on again, one at a time, at an API and a node that are processes of their own: what becomes of the
//! life that runs, of the next one, and of those after the gate came back. Kills and signals are read from the node's
//! history, not from fields.

use serde_json::{Value, json};

use super::cluster::{Cluster, NO_EVICTION, pod};

/// The part whose gate is turned off.
#[derive(Clone, Copy)]
enum Part {
    Api,
    Node,
}

/// A cluster, and the one pod and gate that a test is about.
struct Bench {
    cluster: Cluster,
    gate: &'static str,
    part: Part,
}

impl Bench {
    /// A pod `app` whose container ends at a signal, or with 1 once the file `leave` is there. Each life removes the files of
    /// the one before. `None` if there is no kubectl.
    fn new(gate: &'static str, part: Part, fields: impl Fn(&Bench) -> Value) -> Option<Self> {
        let cluster = Cluster::apart(&[], &[])?;
        std::fs::write(
            cluster.path("node.yaml"),
            format!("crashLoopBackOff: {{initial: 1s, max: 1s}}\n{NO_EVICTION}"),
        )
        .expect("a file");
        let mut bench = Self { cluster, gate, part };
        bench.set(true);
        let directory = bench.cluster.path("");
        let script = format!(
            "cd {}; rm -f sick leave; trap 'exit 0' TERM USR1; while :; do [ -e leave ] && exit 1; sleep 0.05; done",
            directory.display()
        );
        let mut container = fields(&bench);
        container["command"] = json!(["sh", "-c", script]);
        let mut pod = pod("app", &container);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(50);
        bench.cluster.apply(&pod);
        bench.until_running(0);
        Some(bench)
    }

    /// Turns the gate on or off; both parts are killed and come back.
    fn set(&mut self, on: bool) {
        let gate = format!("{}={on}", self.gate);
        let config = self.cluster.path("node.yaml").display().to_string();
        let flags = ["--feature-gates", &gate];
        let (api, node) = match self.part {
            Part::Api => (&flags[..], &["--config", &config][..]),
            Part::Node => (&[][..], &["--config", &config, "--feature-gates", &gate][..]),
        };
        self.cluster.restart_with(api, node);
        self.cluster.until_node_ready();
    }

    /// A probe that fails while a file is there.
    fn unless(&self, file: &str) -> Value {
        let path = self.cluster.path(file);
        json!({"exec": {"command": ["test", "!", "-e", path]}, "periodSeconds": 1, "failureThreshold": 1})
    }

    fn touch(&self, file: &str) {
        std::fs::write(self.cluster.path(file), "").expect("a file");
    }

    fn until_running(&self, restarts: u64) -> Value {
        self.cluster.until_pod("app", |pod| {
            let status = status(pod);
            status["state"]["running"].is_object() && status["restartCount"] == restarts
        })
    }

    /// What the history has of one type, in order.
    fn told(&self, kind: &str) -> Vec<Value> {
        let text = self.cluster.pulselet(&["history", "app", "-o", "json"]);
        let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        lines.filter(|line: &Value| line["type"] == kind).collect()
    }

    /// Lets liveness kill the life number `restarts`, and returns the kill and the signal it was sent.
    fn sicken(&self, restarts: u64) -> (Value, Value) {
        let before = self.told("signal").len();
        self.touch("sick");
        self.until_running(restarts + 1);
        let last = |kind| self.told(kind).pop().expect("it is in the history");
        assert_eq!(self.told("signal").len(), before + 1, "one life, one signal");
        (last("killing"), last("signal"))
    }

    /// Lets the life number `restarts` leave by itself.
    fn leave(&self, restarts: u64) {
        self.touch("leave");
        self.until_running(restarts + 1);
    }

    /// Waits until this many further failures of a probe were counted, which its event tells.
    fn outlive(&self, failures: u64, probe: &str) {
        let count = || {
            let text = self.cluster.kubectl(&["get", "events", "-o", "json"]);
            let events: Value = serde_json::from_str(&text).expect("JSON");
            let events = events["items"].as_array().expect("a list");
            let unhealthy = events.iter().filter(|event| {
                event["reason"] == "Unhealthy"
                    && event["message"].as_str().is_some_and(|it| it.starts_with(probe))
            });
            unhealthy
                .map(|event| event["count"].as_u64().unwrap_or(1))
                .sum::<u64>()
        };
        let before = count();
        self.cluster.until("counted failures", || {
            (count() >= before + failures).then_some(())
        });
    }
}

fn status(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

fn with(mut value: Value, fields: &Value) -> Value {
    let fields = fields.as_object().expect("fields").clone();
    value.as_object_mut().expect("an object").extend(fields);
    value
}

/// Where the grace periods of four kills came from: of the life that ran when the gate was turned off, of the next one, of
/// the one that ran when it was turned on, and of the one after that.
fn graces(part: Part) -> Option<Vec<Value>> {
    let mut bench = Bench::new("ProbeTerminationGracePeriod", part, |bench| {
        let liveness = with(bench.unless("sick"), &json!({"terminationGracePeriodSeconds": 5}));
        json!({"livenessProbe": liveness})
    })?;
    bench.set(false);
    let mut seen = Vec::new();
    for restarts in 0..2 {
        seen.push(bench.sicken(restarts).0["graceFrom"].clone());
    }
    bench.set(true);
    for restarts in 2..4 {
        seen.push(bench.sicken(restarts).0["graceFrom"].clone());
    }
    Some(seen)
}

#[test]
fn a_probes_grace_follows_the_apis_gate_at_once() {
    if let Some(seen) = graces(Part::Api) {
        assert_eq!(seen, ["pod", "pod", "probe", "probe"]);
    }
}

#[test]
fn a_probes_grace_follows_the_nodes_gate_at_once() {
    if let Some(seen) = graces(Part::Node) {
        assert_eq!(seen, ["pod", "pod", "probe", "probe"]);
    }
}

/// The signals that those four lives were sent.
fn signals(part: Part) -> Option<Vec<Value>> {
    let mut bench = Bench::new(
        "ContainerStopSignals",
        part,
        |bench| json!({"livenessProbe": bench.unless("sick"), "lifecycle": {"stopSignal": "SIGUSR1"}}),
    )?;
    bench.set(false);
    let mut seen = Vec::new();
    for restarts in 0..2 {
        seen.push(bench.sicken(restarts).1["signal"].clone());
    }
    bench.set(true);
    for restarts in 2..4 {
        seen.push(bench.sicken(restarts).1["signal"].clone());
    }
    Some(seen)
}

#[test]
fn a_signal_stays_when_the_apis_gate_is_turned_off() {
    if let Some(seen) = signals(Part::Api) {
        assert_eq!(seen, ["SIGUSR1"; 4]);
    }
}

#[test]
fn the_next_life_has_no_signal_when_the_nodes_gate_is_turned_off() {
    if let Some(seen) = signals(Part::Node) {
        assert_eq!(seen, ["SIGUSR1", "SIGTERM", "SIGTERM", "SIGUSR1"]);
    }
}

/// A slow starter: its startup probe waits for ever, and liveness would kill it.
fn slow_starter(part: Part) -> Option<Bench> {
    Bench::new("StartupProbeEnabled", part, |bench| {
        let never = with(bench.unless("node.yaml"), &json!({"failureThreshold": 100_000}));
        json!({"startupProbe": never, "livenessProbe": bench.unless("node.yaml")})
    })
}

#[test]
fn a_slow_starter_survives_when_the_apis_gate_is_turned_off() {
    let Some(mut bench) = slow_starter(Part::Api) else {
        return;
    };
    bench.set(false);
    bench.outlive(2, "Startup");
    bench.leave(0);
    bench.outlive(2, "Startup");
    assert_eq!(status(&bench.until_running(1))["started"], false);
    assert_eq!(bench.told("killing"), Vec::<Value>::new());
}

#[test]
fn a_slow_starter_survives_its_life_when_the_nodes_gate_is_turned_off() {
    let Some(mut bench) = slow_starter(Part::Node) else {
        return;
    };
    bench.set(false);
    bench.outlive(2, "Startup");
    assert_eq!(bench.told("killing"), Vec::<Value>::new(), "it keeps its probe");
    bench.touch("leave");
    bench.cluster.until("the kill of the next life", || {
        let kills = bench.told("killing");
        let last = kills.last()?;
        assert_eq!(last["reason"], "livenessProbe");
        Some(())
    });
    bench.set(true);
    let waits = |pod: &Value| status(pod)["started"] == false && status(pod)["state"]["running"].is_object();
    bench.cluster.until_pod("app", waits);
    bench.outlive(2, "Startup");
}

/// Never up: with its initial threshold it lives, without it dies at the first failure.
fn never_up(part: Part) -> Option<Bench> {
    Bench::new("ProbeInitializationFailureThreshold", part, |bench| {
        let patient = json!({"initializationFailureThreshold": 100_000});
        json!({"livenessProbe": with(bench.unless("node.yaml"), &patient)})
    })
}

#[test]
fn an_initial_threshold_stays_when_the_apis_gate_is_turned_off() {
    let Some(mut bench) = never_up(Part::Api) else {
        return;
    };
    bench.set(false);
    bench.outlive(2, "Liveness");
    bench.leave(0);
    bench.outlive(2, "Liveness");
    assert_eq!(bench.told("killing"), Vec::<Value>::new());
}

#[test]
fn the_next_life_has_no_initial_threshold_when_the_nodes_gate_is_turned_off() {
    let Some(mut bench) = never_up(Part::Node) else {
        return;
    };
    bench.set(false);
    bench.outlive(2, "Liveness");
    assert_eq!(
        bench.told("killing"),
        Vec::<Value>::new(),
        "it keeps its threshold"
    );
    bench.touch("leave");
    bench
        .cluster
        .until("the kill of the next life", || bench.told("killing").pop());
    bench.set(true);
    // The life that runs then may still have none; the one after it lives.
    bench.cluster.until("a life that is spared", || {
        let before = bench.cluster.get_pod("app");
        bench.outlive(3, "Liveness");
        let after = bench.cluster.get_pod("app");
        (status(&before)["containerID"] == status(&after)["containerID"]).then_some(())
    });
}

/// The seconds between two readiness probes, on average over four.
fn pace(bench: &Bench) -> f64 {
    let log = bench.cluster.path("asked");
    let asked = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.parse().ok())
            .collect::<Vec<f64>>()
    };
    // The first one after a restart of the agent comes at a random moment.
    let first = asked().len() + 1;
    let times = bench.cluster.until("five more probes", || {
        let times = asked();
        (times.len() > first + 4).then_some(times)
    });
    (times[first + 4] - times[first]) / 4.0
}

/// Asked every two seconds with its offset and every second without. It is never ready.
fn offset(part: Part) -> Option<Bench> {
    Bench::new("SubSecondProbes", part, |bench| {
        let log = bench.cluster.path("asked");
        let ask = format!("date +%s.%N >> {}; false", log.display());
        json!({"readinessProbe": {
            "exec": {"command": ["sh", "-c", ask]}, "periodSeconds": 1, "periodMilliseconds": 999,
        }})
    })
}

/// Nearly two seconds, and never below: a grid does not hurry.
const WITH_OFFSET: f64 = 1.9;

#[test]
fn offsets_stay_when_the_apis_gate_is_turned_off() {
    let Some(mut bench) = offset(Part::Api) else {
        return;
    };
    bench.set(false);
    let seconds = pace(&bench);
    assert!(seconds >= WITH_OFFSET, "every {seconds} s");
}

#[test]
fn offsets_follow_the_nodes_gate() {
    let Some(mut bench) = offset(Part::Node) else {
        return;
    };
    bench.set(false);
    let seconds = pace(&bench);
    assert!(seconds < WITH_OFFSET, "every {seconds} s");
    bench.set(true);
    let seconds = pace(&bench);
    assert!(seconds >= WITH_OFFSET, "every {seconds} s");
}
