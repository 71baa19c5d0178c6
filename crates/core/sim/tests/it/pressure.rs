//! A node that is late: probes below one second give way first, and nothing else does.

use pulselet_engine::line::{Line, LineBody, LineOutcome};
use pulselet_engine::plan::{ProbeKind, SubSecondPolicy};
use pulselet_engine::time::Time;
use pulselet_sim::scenario::Load;

use crate::stage::{Stage, first};

/// Never up, so that its readiness probe stays fast; the liveness probe asks another port.
const FAST: &str = "
containers:
- name: app
  image: x
  readinessProbe: {httpGet: {port: 80}, periodSeconds: 1, periodMilliseconds: -500, failureThreshold: 1000}
  livenessProbe: {tcpSocket: {port: 81}, periodSeconds: 1, failureThreshold: 2}";
const NEVER_READY: &str = "
containers: {app: {lives: [{probes: {readiness: {startsAfter: 10h}}}]}}
load: [{from: 20s, to: 25s, lateness: 300ms}]";

/// The line that begins with this reason.
fn told(lines: &[Line], reason: &str) -> Option<f64> {
    first(
        lines,
        |body| matches!(body, LineBody::Warning { message } if message.starts_with(reason)),
    )
}

/// When counted probes of a kind ended, in milliseconds, from one moment up to another.
fn ticks(lines: &[Line], of: ProbeKind, from: u64, to: u64) -> Vec<u64> {
    let millis = |line: &Line| line.at.since(Time::ZERO).as_micros() / 1_000;
    let is_tick = |line: &&Line| matches!(line.body, LineBody::Probe { kind, look: false, .. } if kind == of);
    let times = lines.iter().filter(is_tick).map(millis);
    times.filter(|at| (from..to).contains(at)).collect()
}

#[test]
fn half_seconds_become_whole_ones_while_the_node_is_late() {
    let lines = Stage::new(FAST, NEVER_READY).lines("80s");
    // The probe whose turn was at 20 s began at 20.3 s; the last late one, of 24 s, has left the window at 34.4 s.
    assert_eq!(told(&lines, "ProbesStretched"), Some(20.3));
    assert_eq!(told(&lines, "ProbesRecovered"), Some(64.4));
    assert_eq!(
        ticks(&lines, ProbeKind::Readiness, 18_000, 20_000),
        [18_000, 18_500, 19_000, 19_500]
    );
    let stretched = ticks(&lines, ProbeKind::Readiness, 20_400, 25_000);
    assert!(
        stretched.windows(2).all(|pair| pair[1] - pair[0] == 1_000),
        "{stretched:?}"
    );
    let after = ticks(&lines, ProbeKind::Readiness, 30_000, 64_000);
    assert_eq!(after.len(), 34, "every second until it recovers");
    let fast = ticks(&lines, ProbeKind::Readiness, 66_000, 80_000);
    assert_eq!(fast.len(), 28, "and every half second then");
}

#[test]
fn whole_seconds_and_counts_are_never_touched() {
    let lines = Stage::new(FAST, NEVER_READY).lines("80s");
    let liveness = ticks(&lines, ProbeKind::Liveness, 0, 80_000);
    assert_eq!(liveness.len(), 79, "one each second, late or not");
    let failed = |line: &Line| {
        matches!(
            line.body,
            LineBody::Probe {
                kind: ProbeKind::Liveness,
                outcome: LineOutcome::Failure,
                ..
            } | LineBody::Killing { .. }
        )
    };
    assert!(!lines.iter().any(failed), "nothing healthy dies");
    let runs = lines.iter().filter_map(|line| match line.body {
        LineBody::Probe {
            kind: ProbeKind::Readiness,
            counted: true,
            run,
            ..
        } => Some(run),
        _ => None,
    });
    let runs: Vec<u32> = runs.collect();
    let all: Vec<u32> = (1..=u32::try_from(runs.len()).expect("few")).collect();
    assert_eq!(runs, all, "every failure counts, and once");
}

#[test]
fn a_pod_without_fast_probes_is_told_nothing() {
    let spec = "
containers:
- {name: app, image: x, livenessProbe: {tcpSocket: {port: 81}, periodSeconds: 1}}";
    let lines = Stage::new(spec, "load: [{from: 20s, to: 25s, lateness: 300ms}]").lines("80s");
    assert_eq!(told(&lines, "Probes"), None);
    assert_eq!(ticks(&lines, ProbeKind::Liveness, 0, 80_000).len(), 79);
}

#[test]
fn every_policy_gives_way() {
    let mut stage = Stage::new(FAST, "load: [{from: 20s, to: 25s, lateness: 300ms}]");
    stage.settings.sub_second_policy = SubSecondPolicy::Always;
    let lines = stage.lines("80s");
    assert_eq!(ticks(&lines, ProbeKind::Readiness, 10_000, 12_000).len(), 4);
    assert_eq!(ticks(&lines, ProbeKind::Readiness, 40_000, 42_000).len(), 2);
    assert_eq!(ticks(&lines, ProbeKind::Readiness, 70_000, 72_000).len(), 4);
}

#[test]
fn a_lateness_of_a_hundred_milliseconds_is_borne() {
    let stage = Stage::new(FAST, NEVER_READY);
    let bearable = stage.with(|scenario| {
        for Load { lateness, .. } in &mut scenario.load {
            *lateness = pulselet_engine::Span::from_millis(100);
        }
    });
    assert_eq!(told(&bearable.lines("80s"), "Probes"), None);
}

#[test]
fn a_new_life_and_a_new_agent_begin_stretched() {
    let scenario = "
containers: {app: {lives: [{exitsAt: 22s, probes: {readiness: {startsAfter: 10h}}}]}}
agent: {restartsAt: [24s]}
load: [{from: 20s, to: 26s, lateness: 300ms}]";
    let lines = Stage::new(FAST, scenario).lines("80s");
    let next_life = ticks(&lines, ProbeKind::Readiness, 27_000, 43_000);
    assert!(
        next_life.windows(2).all(|pair| pair[1] - pair[0] == 1_000),
        "{next_life:?}"
    );
    let stretched = lines.iter().filter(
        |line| matches!(&line.body, LineBody::Warning { message } if message.starts_with("ProbesStretched")),
    );
    assert_eq!(stretched.count(), 1, "the new agent goes on with it");
}
