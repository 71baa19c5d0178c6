//! `pulselet simulate` as users run it.

use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::command::{Run, pulselet, pulselet_with_stdin};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 30
  containers:
  - name: app
    image: x
    startupProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 30}
    livenessProbe: {httpGet: {port: 80}, periodSeconds: 10, terminationGracePeriodSeconds: 5}
    readinessProbe: {httpGet: {port: 80}, periodSeconds: 1, periodMilliseconds: -500}
";
const DEADLOCK: &str = "
containers:
  app:
    lives:
    - {startsAfter: 42s, failsAt: 300s, handles: []}
    - {}
deleteAt: 400s
";

/// A directory with a pod, a scenario and whatever else a test needs.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().expect("a directory"));
        files.write("pod.yaml", POD);
        files.write("scenario.yaml", DEADLOCK);
        files
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("the file is written");
        path.display().to_string()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn simulate(&self, more: &[&str]) -> Run {
        let (pod, scenario) = (self.path("pod.yaml"), self.path("scenario.yaml"));
        let mut args = vec![
            "simulate",
            pod.to_str().expect("UTF-8"),
            "--scenario",
            scenario.to_str().expect("UTF-8"),
        ];
        args.extend(more);
        pulselet(&args)
    }
}

fn lines(run: &Run) -> Vec<Value> {
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    run.stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect()
}

fn times(lines: &[Value], kind: &str) -> Vec<f64> {
    let of_kind = lines
        .iter()
        .filter(|line| line["type"] == kind && line.get("container").is_some());
    of_kind
        .map(|line| line["t"].as_f64().expect("t is a number"))
        .collect()
}

#[test]
fn text_shows_what_happens_in_order() {
    let run = Files::new().simulate(&[]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    let expected = [
        "0:00:00.000  app  probe startup look failed x7 (does not count): connection refused",
        "0:00:50.000  app  started",
        "0:00:50.000  app  ready",
        "0:01:00.000  app  probe liveness ok x24, until 0:04:50.000",
        "0:05:00.000  app  probe liveness failed",
        "0:05:20.000  app  killing: liveness probe failed, grace period 5s (of the probe)",
        "0:05:20.000  app  signal SIGTERM",
        "0:05:25.000  app  grace period exceeded: SIGKILL",
        "0:05:25.000  app  exited with 137 (Error), 5s after the signal",
        "0:05:25.000  app  running, restart 1",
        "0:06:40.000  app  killing: pod deleted, grace period 30s (of the deletion)",
        "0:06:40.000  pod  deleted",
    ];
    let mut rest = run.stdout.as_str();
    for words in expected {
        let (_, after) = rest
            .split_once(words)
            .unwrap_or_else(|| panic!("no {words:?} in\n{rest}"));
        rest = after;
    }
    assert!(!run.stdout.contains('\x1b'), "no colour without a terminal");
}

#[test]
fn json_is_event_lines() {
    let lines = lines(&Files::new().simulate(&["-o", "json"]));
    assert_eq!(
        lines[0],
        serde_json::json!({"t": 0.0, "pod": "default/web", "type": "phase", "phase": "Pending"})
    );
    assert_eq!(times(&lines, "started"), [50.0, 325.0]);
    assert_eq!(times(&lines, "killing"), [320.0, 400.0]);
    assert_eq!(times(&lines, "graceExceeded"), [325.0]);
    let killing = lines
        .iter()
        .find(|line| line["type"] == "killing")
        .expect("a kill");
    assert_eq!(killing["reason"], "livenessProbe");
    assert_eq!(killing["graceFrom"], "probe");
    assert_eq!(killing["gracePeriodSeconds"], 5.0);
    assert!(
        lines
            .windows(2)
            .all(|pair| pair[0]["t"].as_f64() <= pair[1]["t"].as_f64())
    );
    assert_eq!(lines.last().expect("a line")["type"], "deleted");
}

#[test]
fn a_limit_is_inclusive_and_a_seed_changes_nothing_by_itself() {
    let files = Files::new();
    let until = lines(&files.simulate(&["-o", "json", "--for", "320s"]));
    assert_eq!(times(&until, "killing"), [320.0]);
    let before = lines(&files.simulate(&["-o", "json", "--for", "319.9s", "--seed", "7"]));
    assert_eq!(times(&before, "killing"), [0.0; 0]);
}

#[test]
fn drawings_stand_alone() {
    let files = Files::new();
    let svg = files.simulate(&["-o", "svg"]);
    assert_eq!((svg.code, svg.stderr.as_str()), (Some(0), ""));
    assert!(svg.stdout.contains("<svg xmlns=") && svg.stdout.ends_with("</svg>\n"));
    for words in [
        "kill: liveness failed 3x, grace 5s",
        "SIGKILL: grace exceeded",
        "restart 1",
        "look failed",
    ] {
        assert!(svg.stdout.contains(words), "{words}");
    }
    let html = files.simulate(&["-o", "html"]);
    assert_eq!((html.code, html.stderr.as_str()), (Some(0), ""));
    assert!(html.stdout.starts_with("<!DOCTYPE html>") && html.stdout.contains("<script>"));
    for page in [&svg.stdout, &html.stdout] {
        let elsewhere = page.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !elsewhere.contains("http") || !elsewhere.contains("src="),
            "it loads nothing"
        );
        assert!(!elsewhere.contains("href=") && !elsewhere.contains("@import"));
    }
}

#[test]
fn what_never_ends_stops_after_a_day_and_says_so() {
    let pod = POD
        .replace("    startupProbe", "    #")
        .replace("    livenessProbe", "    #");
    let pod = pod.replace("    readinessProbe", "    #");
    let run = pulselet_with_stdin(&["simulate", "-"], pod.as_bytes());
    assert_eq!(run.code, Some(0));
    assert!(run.stderr.contains("24 simulated hours"), "{}", run.stderr);
    let limited = pulselet_with_stdin(&["simulate", "-", "--for", "1h"], pod.as_bytes());
    assert_eq!((limited.code, limited.stderr.as_str()), (Some(0), ""));
}

#[test]
fn settings_and_gates_of_the_node_count() {
    let files = Files::new();
    let off = lines(&files.simulate(&[
        "-o",
        "json",
        "--feature-gates",
        "ProbeTerminationGracePeriod=false",
    ]));
    assert_eq!(times(&off, "graceExceeded"), [350.0], "the pod's grace is used");
    let config = files.write(
        "config.yaml",
        "featureGates: {StartupProbe: false}\nlooks: false\n",
    );
    let unstarted = lines(&files.simulate(&["-o", "json", "--config", &config, "--for", "1s"]));
    assert_eq!(times(&unstarted, "started"), [0.0]);
    let wins = [
        "-o",
        "json",
        "--config",
        &config,
        "--feature-gates",
        "StartupProbe=true",
        "--for",
        "1s",
    ];
    assert_eq!(
        times(&lines(&files.simulate(&wins)), "started"),
        [0.0; 0],
        "flags win"
    );
}

#[test]
fn a_bad_scenario_is_named_by_line_and_column() {
    let files = Files::new();
    for (text, place, words) in [
        ("containers:\n  web: {}\n", "2, column 3", "no container \"web\""),
        (
            "containers:\n  app:\n    lives: [{startsAfter: -1s}]\n",
            "3, column 27",
            "negative",
        ),
        (
            "containers:\n  app:\n    lives: [{failsAt: 9s, recoversAt: 3s}]\n",
            "3, column 39",
            "not after failsAt",
        ),
        ("deletAt: 3s\n", "1, column 1", "deletAt"),
    ] {
        files.write("scenario.yaml", text);
        let run = files.simulate(&["-o", "json"]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{text}");
        assert!(
            run.stderr.contains(place) && run.stderr.contains(words),
            "{}",
            run.stderr
        );
    }
}

#[test]
fn exactly_one_pod_is_taken() {
    let two = format!("{POD}---{POD}");
    let run = pulselet_with_stdin(&["simulate", "-"], two.as_bytes());
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    assert!(run.stderr.contains("more than one"), "{}", run.stderr);
    let none = pulselet_with_stdin(&["simulate", "-"], b"");
    assert_eq!((none.code, none.stdout.as_str()), (Some(2), ""));
    let invalid = pulselet_with_stdin(
        &["simulate", "-"],
        POD.replace("name: app", "name: A!").as_bytes(),
    );
    assert_eq!((invalid.code, invalid.stdout.as_str()), (Some(1), ""));
    assert!(
        invalid.stderr.contains("spec.containers[0].name"),
        "{}",
        invalid.stderr
    );
}

#[test]
fn a_pod_that_a_node_refuses_fails_at_once() {
    let files = Files::new();
    files.write("scenario.yaml", "{}\n");
    let sysctl = "  securityContext: {sysctls: [{name: kernel.msgmax, value: \"1\"}]}\n";
    for (field, line, path) in [
        (
            "  os: {name: windows}\n",
            "pod  warning: the pod asks for windows, and this node runs linux",
            "spec.os.name",
        ),
        (
            sysctl,
            "pod  warning: forbidden sysctl: \"kernel.msgmax\" not allowlisted",
            "spec.securityContext.sysctls[0].name",
        ),
    ] {
        let pod = files.write("pod.yaml", &format!("{POD}{field}"));
        let run = files.simulate(&[]);
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
        let (_, after) = run
            .stdout
            .split_once(line)
            .unwrap_or_else(|| panic!("no {line:?} in\n{}", run.stdout));
        assert!(after.contains("0:00:00.000  pod  Failed"), "{}", run.stdout);
        assert!(!run.stdout.contains("app"), "nothing is started: {}", run.stdout);
        let explained = pulselet(&["explain", &pod]);
        assert!(
            explained.stdout.contains(&format!("no node runs it: {path}: ")),
            "{}",
            explained.stdout
        );
    }
}

#[test]
fn usage_errors() {
    for args in [
        &["simulate"][..],
        &["simulate", "examples/slow-starter.yaml", "--for", "-1s"],
        &["simulate", "examples/slow-starter.yaml", "--for", "soon"],
        &["simulate", "examples/slow-starter.yaml", "-o", "png"],
        &[
            "simulate",
            "examples/slow-starter.yaml",
            "--scenario",
            "nowhere.yaml",
        ],
        &[
            "simulate",
            "examples/slow-starter.yaml",
            "--config",
            "nowhere.yaml",
        ],
    ] {
        let run = pulselet(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(run.stderr.contains("error"), "{args:?}");
    }
}
