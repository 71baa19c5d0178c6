//! Gates that are turned off and on again while pods use their fields: every cell of the tables, at the API and at the node,
//! for the life that runs, the next ones and a new pod.

use std::collections::BTreeSet;

use pulselet_engine::line::{GraceFrom, KillReason, Line, LineBody};
use pulselet_engine::time::Span;
use pulselet_model::{
    Gate, GateSet, Profile, admit_create, admit_local, decode_documents, decode_pod, hide_disabled,
};
use pulselet_sim::scenario::GateSkew;

use crate::stage::Stage;

/// The part whose gate is turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Api,
    Node,
}

/// The gate is off from `off` on, and on again from `on` on.
fn flipped(gate: Gate, part: Part, off: &str, on: &str) -> String {
    let part = match part {
        Part::Api => "api",
        Part::Node => "node",
    };
    format!("gates: [{{at: {off}, {part}: {{{gate}: false}}}}, {{at: {on}, {part}: {{{gate}: true}}}}]")
}

fn run(spec: &str, script: &str, flips: &str, limit: &str) -> Vec<Line> {
    let scenario = format!("containers: {{app: {{lives: [{script}]}}}}\n{flips}");
    Stage::new(spec, &scenario).lines(limit)
}

/// What a new pod does while the gate is off.
fn run_new(spec: &str, script: &str, gate: Gate, part: Part, limit: &str) -> Vec<Line> {
    let off = GateSet::ALL.with(gate, false);
    let gates = match part {
        Part::Api => GateSkew {
            api: off,
            node: GateSet::ALL,
        },
        Part::Node => GateSkew {
            api: GateSet::ALL,
            node: off,
        },
    };
    Stage::with_skew(
        spec,
        &format!("containers: {{app: {{lives: [{script}]}}}}"),
        gates,
    )
    .lines(limit)
}

/// In milliseconds.
fn time(line: &Line) -> u64 {
    line.at.as_micros() / 1000
}

/// When containers were killed, why, how long they had and who said so.
fn kills(lines: &[Line]) -> Vec<(u64, KillReason, Span, GraceFrom)> {
    let kill = |line: &Line| match line.body {
        LineBody::Killing {
            reason,
            grace_period_seconds,
            grace_from,
        } => Some((time(line), reason, grace_period_seconds, grace_from)),
        _ => None,
    };
    lines.iter().filter_map(kill).collect()
}

fn signals(lines: &[Line]) -> Vec<String> {
    let signal = |line: &Line| match line.body {
        LineBody::Signal { signal } => Some(signal.name().to_owned()),
        _ => None,
    };
    lines.iter().filter_map(signal).collect()
}

/// When counted probes were asked, which take no time.
fn ticks(lines: &[Line]) -> Vec<u64> {
    let tick = |line: &&Line| matches!(line.body, LineBody::Probe { look: false, .. });
    lines.iter().filter(tick).map(time).collect()
}

const PARTS: [Part; 2] = [Part::Api, Part::Node];

// ProbeTerminationGracePeriod: off, it is no longer used, at once; on, it counts at once. The same at both.

const GRACE: &str = "
terminationGracePeriodSeconds: 30
containers:
- name: app
  image: x
  livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 10, failureThreshold: 1, terminationGracePeriodSeconds: 3}";

#[test]
fn a_probes_grace_is_given_up_and_taken_up_at_once() {
    use GraceFrom::{Pod, Probe};
    // Every life fails 15 s after its start and leaves when it is told to.
    let script = "{failsAt: 15s}";
    for part in PARTS {
        let flips = flipped(Gate::ProbeTerminationGracePeriod, part, "25s", "75s");
        let kills = kills(&run(GRACE, script, &flips, "90s"));
        let graces: Vec<_> = kills.iter().map(|kill| (kill.0, kill.2, kill.3)).collect();
        let expected = [
            (20_000, Span::from_secs(3), Probe),
            // The life that ran when the gate was turned off, and the next one.
            (40_000, Span::from_secs(30), Pod),
            (60_000, Span::from_secs(30), Pod),
            // One that began while it was off, killed after it was turned on.
            (80_000, Span::from_secs(3), Probe),
        ];
        assert_eq!(graces, expected, "{part:?}");
    }
}

#[test]
fn a_kill_under_way_keeps_its_deadline() {
    let script = "{failsAt: 15s, handles: []}";
    for part in PARTS {
        let flips = flipped(Gate::ProbeTerminationGracePeriod, part, "21s", "60s");
        let lines = run(GRACE, script, &flips, "30s");
        let killed = lines
            .iter()
            .find(|line| matches!(line.body, LineBody::GraceExceeded { .. }));
        assert_eq!(killed.map(time), Some(23_000), "{part:?}");
        // And the other way round: one that had the pod's grace period is not cut short.
        let flips = flipped(Gate::ProbeTerminationGracePeriod, part, "5s", "21s");
        let lines = run(GRACE, script, &flips, "60s");
        let killed = lines
            .iter()
            .find(|line| matches!(line.body, LineBody::GraceExceeded { .. }));
        assert_eq!(killed.map(time), Some(50_000), "{part:?}");
    }
}

#[test]
fn a_new_pod_has_the_pods_grace() {
    for part in PARTS {
        let lines = run_new(
            GRACE,
            "{failsAt: 15s}",
            Gate::ProbeTerminationGracePeriod,
            part,
            "30s",
        );
        assert_eq!(
            kills(&lines),
            [(
                20_000,
                KillReason::LivenessProbe,
                Span::from_secs(30),
                GraceFrom::Pod
            )],
            "{part:?}"
        );
    }
}

// ContainerStopSignals: the node goes on with what it accepted; off at the node, the next life has none.

const SIGNAL: &str = "
os: {name: linux}
containers:
- name: app
  image: x
  lifecycle: {stopSignal: SIGUSR1}
  livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 10, failureThreshold: 1}";

#[test]
fn a_life_keeps_the_signal_it_was_made_with() {
    let script = "{failsAt: 15s}";
    let signals_with = |part| {
        let flips = flipped(Gate::ContainerStopSignals, part, "10s", "45s");
        signals(&run(SIGNAL, script, &flips, "90s"))
    };
    assert_eq!(
        signals_with(Part::Api),
        ["SIGUSR1", "SIGUSR1", "SIGUSR1", "SIGUSR1"]
    );
    // The first ran when the gate was turned off; the second and the third began while it was off.
    assert_eq!(
        signals_with(Part::Node),
        ["SIGUSR1", "SIGTERM", "SIGTERM", "SIGUSR1"]
    );
}

#[test]
fn a_new_pod_has_no_signal_while_the_gate_is_off_at_the_node() {
    let lines = run_new(
        SIGNAL,
        "{failsAt: 15s}",
        Gate::ContainerStopSignals,
        Part::Node,
        "30s",
    );
    assert_eq!(signals(&lines), ["SIGTERM"]);
    // The API refuses one; see `a_stop_signal_is_refused_while_its_gate_is_off` of the model.
}

// StartupProbeEnabled: the node goes on with what it accepted; off at the node, the next life has none.

const STARTUP: &str = "
containers:
- name: app
  image: x
  startupProbe: {tcpSocket: {port: 80}, periodSeconds: 10, failureThreshold: 30}
  livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 10, failureThreshold: 1}";

/// When containers became started.
fn starts(lines: &[Line]) -> Vec<u64> {
    let started = |line: &&Line| line.body == LineBody::Started;
    lines.iter().filter(started).map(time).collect()
}

#[test]
fn a_slow_starter_keeps_its_startup_probe() {
    // Each life needs 45 s to start and leaves after 100 s.
    let script = "{startsAfter: 45s, exitsAt: 100s, exitCode: 1}";
    let flips = flipped(Gate::StartupProbeEnabled, Part::Api, "5s", "300s");
    let lines = run(STARTUP, script, &flips, "170s");
    assert_eq!(kills(&lines), [], "liveness kills no slow starter");
    assert_eq!(starts(&lines), [50_000, 150_000]);

    let flips = flipped(Gate::StartupProbeEnabled, Part::Node, "5s", "105s");
    let lines = run(STARTUP, script, &flips, "200s");
    // The first life keeps it. The next has none: it is started when it runs, and liveness ends it.
    assert_eq!(starts(&lines)[..2], [50_000, 100_000]);
    assert_eq!(kills(&lines)[0].0, 110_000);
    assert_eq!(kills(&lines)[0].1, KillReason::LivenessProbe);
    // On again at 105 s: what has started stays started, and the life after that has the probe.
    assert_eq!(kills(&lines).len(), 1);
    assert_eq!(starts(&lines)[2], 160_000);
}

#[test]
fn a_new_pod_has_no_startup_probe_while_the_gate_is_off() {
    for part in PARTS {
        let lines = run_new(
            STARTUP,
            "{startsAfter: 45s}",
            Gate::StartupProbeEnabled,
            part,
            "15s",
        );
        assert_eq!(starts(&lines)[0], 0, "{part:?}");
        assert_eq!(kills(&lines)[0].0, 10_000, "{part:?}");
    }
}

// ProbeInitializationFailureThreshold: as startup probes.

const INITIALIZATION: &str = "
containers:
- name: app
  image: x
  livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 10, failureThreshold: 1, initializationFailureThreshold: 20}";

#[test]
fn a_life_keeps_its_initial_threshold() {
    let script = "{startsAfter: 45s, exitsAt: 100s, exitCode: 1}";
    let gate = Gate::ProbeInitializationFailureThreshold;
    let lines = run(
        INITIALIZATION,
        script,
        &flipped(gate, Part::Api, "5s", "300s"),
        "190s",
    );
    assert_eq!(kills(&lines), []);
    let lines = run(
        INITIALIZATION,
        script,
        &flipped(gate, Part::Node, "5s", "105s"),
        "190s",
    );
    // The first life keeps it; the second has none and is killed at its first failure, also after the gate was turned on.
    let times: Vec<u64> = kills(&lines).iter().map(|kill| kill.0).collect();
    assert_eq!(times, [110_000], "the third has it again");
}

#[test]
fn a_new_pod_has_no_initial_threshold_while_the_gate_is_off() {
    for part in PARTS {
        let gate = Gate::ProbeInitializationFailureThreshold;
        let lines = run_new(INITIALIZATION, "{startsAfter: 45s}", gate, part, "15s");
        assert_eq!(kills(&lines)[0].0, 10_000, "{part:?}");
    }
}

// SubSecondProbes: the node goes on with what it accepted; off at the node, offsets are ignored from the next tick on.

const FAST: &str = "
containers:
- name: app
  image: x
  readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1, periodMilliseconds: -500}";

#[test]
fn offsets_follow_the_nodes_gate_from_the_next_tick_on() {
    let script = "{startsAfter: 1h}";
    let gate = Gate::SubSecondProbes;
    let lines = run(FAST, script, &flipped(gate, Part::Api, "1200ms", "3300ms"), "4s");
    assert_eq!(
        ticks(&lines),
        [500, 1_000, 1_500, 2_000, 2_500, 3_000, 3_500, 4_000]
    );
    let lines = run(
        FAST,
        script,
        &flipped(gate, Part::Node, "1200ms", "3300ms"),
        "4600ms",
    );
    // The grid restarts at the last tick each time.
    assert_eq!(ticks(&lines), [500, 1_000, 2_000, 3_000, 3_500, 4_000, 4_500]);
}

#[test]
fn a_probe_that_has_succeeded_stays_slow_when_the_gate_comes_on() {
    let flips = flipped(Gate::SubSecondProbes, Part::Node, "1200ms", "3300ms");
    let lines = run(FAST, "{startsAfter: 700ms}", &flips, "6s");
    assert_eq!(ticks(&lines), [500, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000]);
}

#[test]
fn a_timeout_follows_the_nodes_gate_too() {
    let spec = "
containers:
- name: app
  image: x
  readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 2, timeoutMilliseconds: -500}";
    let flips = flipped(Gate::SubSecondProbes, Part::Node, "3s", "5s");
    let lines = run(spec, "{probeLatency: 10s}", &flips, "8s");
    assert_eq!(ticks(&lines), [2_500, 5_000, 6_500]);
}

#[test]
fn a_new_pod_has_no_offsets_while_the_gate_is_off() {
    for part in PARTS {
        let lines = run_new(FAST, "{startsAfter: 1h}", Gate::SubSecondProbes, part, "3s");
        assert_eq!(ticks(&lines), [1_000, 2_000, 3_000], "{part:?}");
    }
}

/// A static pod passes no API: it is kept whole whatever the node's gates are, and only its mirror loses the fields.
#[test]
fn a_static_pod_sees_the_nodes_gates_and_its_mirror_the_apis() {
    for (gate, spec) in [
        (Gate::ProbeTerminationGracePeriod, GRACE),
        (Gate::ContainerStopSignals, SIGNAL),
        (Gate::StartupProbeEnabled, STARTUP),
        (Gate::ProbeInitializationFailureThreshold, INITIALIZATION),
        (Gate::SubSecondProbes, FAST),
    ] {
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  {}\n",
            spec.replace('\n', "\n  ")
        );
        let document = decode_documents(manifest.as_bytes())
            .next()
            .expect("one")
            .expect("it parses");
        let pod = decode_pod(&document, Profile::Pulselet).pod.expect("a pod");
        let off = GateSet::ALL.with(gate, false);
        let whole = admit_local(pod.clone(), Profile::Pulselet, GateSet::ALL)
            .expect("admitted")
            .pod;
        let kept = admit_local(pod, Profile::Pulselet, off).expect("admitted").pod;
        assert_eq!(kept, whole, "{gate}: off and on again it is the same pod");
        let mut mirror = kept;
        mirror.metadata.annotations =
            Some([("kubernetes.io/config.mirror".to_owned(), "u".to_owned())].into());
        mirror.spec.node_name = "here".to_owned();
        let shown = admit_create(mirror.clone(), Profile::Pulselet, off)
            .expect("a mirror is admitted")
            .pod;
        assert_eq!(shown.spec, hide_disabled(&mirror, off).spec, "{gate}");
        assert_ne!(shown.spec, mirror.spec, "{gate}");
    }
}

/// Nothing of a pod that opts into nothing changes, not a byte, whatever is turned off and on while it runs.
#[test]
fn a_pod_without_the_fields_does_not_notice_flips() {
    let spec = "
terminationGracePeriodSeconds: 7
containers:
- name: app
  image: x
  livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 3, failureThreshold: 2}
  readinessProbe: {httpGet: {port: 80}, periodSeconds: 2}";
    let script = "{startsAfter: 1500ms, failsAt: 20s, stopsIn: 2s}, {listensAfter: 100ms, startsAfter: 4s}";
    let undisturbed = run(spec, script, "", "60s");
    let mut seen = BTreeSet::new();
    for gate in Gate::ALL {
        for part in PARTS {
            for (off, on) in [("0s", "30s"), ("1s", "23s"), ("21s", "26s")] {
                let lines = run(spec, script, &flipped(gate, part, off, on), "60s");
                assert_eq!(lines, undisturbed, "{gate} {part:?} {off} {on}");
                seen.insert((gate, off));
            }
        }
    }
    assert_eq!(seen.len(), Gate::ALL.len() * 3);
}
