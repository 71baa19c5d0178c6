//! `pulselet explain`.

use std::fs;

use serde_json::{Value, json};

use crate::command::{Run, pulselet, pulselet_with_stdin};

/// Explains a manifest in a file of its own.
fn explain(manifest: &str, flags: &[&str]) -> Run {
    let file = text_file(manifest);
    let mut args = vec!["explain", file.path().to_str().expect("the path is UTF-8")];
    args.extend(flags);
    pulselet(&args)
}

fn text_file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), text).expect("the text is written");
    file
}

fn json_lines(run: &Run) -> Vec<Value> {
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    run.stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect()
}

/// Explains with a configuration file; its path is shown as CONFIG.
fn explain_with_config(manifest: &str, config: &str, flags: &[&str]) -> Run {
    let file = text_file(config);
    let path = file.path().to_str().expect("the path is UTF-8");
    let mut args = vec!["--config", path];
    args.extend(flags);
    let mut run = explain(manifest, &args);
    run.stderr = run.stderr.replace(path, "CONFIG");
    run
}

/// One container of every role, every kind of probe and most kinds of advice.
const RICH: &str = "
apiVersion: v1
kind: Pod
metadata: {name: shop, namespace: store}
spec:
  terminationGracePeriodSeconds: 3600
  initContainers:
  - {name: migrate, image: shop:1}
  - name: proxy
    image: proxy:1
    restartPolicy: Always
    startupProbe: {tcpSocket: {port: 15000}, periodSeconds: 1, periodMilliseconds: -500, failureThreshold: 20}
  containers:
  - name: web
    image: shop:1
    lifecycle: {preStop: {sleep: {seconds: 20}}}
    livenessProbe:
      httpGet: {path: /healthz, port: 8080}
      initialDelaySeconds: 60
      terminationGracePeriodSeconds: 10
    readinessProbe: {httpGet: {path: /healthz, port: 8080}}
  - name: worker
    image: shop:1
    livenessProbe:
      exec: {command: [check]}
      periodSeconds: 2
      timeoutSeconds: 5
      initializationFailureThreshold: 60
";

#[test]
fn text_shows_the_timing_and_what_to_improve() {
    let run = pulselet_with_stdin(&["explain", "-"], RICH.as_bytes());
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(run.stdout, @r#"
    pod store/shop

    init container migrate
      runs to completion before the next container begins
      on deletion it is gone after 3600 s at the latest (stop signal SIGTERM, unless the image names another)

    sidecar proxy
      startup probe: tcpSocket every 0.5 s, timeout 1 s, 20 failures
        a container that is not up 10 s after its start is killed
        that is decided 10 s to 20.5 s after its start
        it is gone 3620.5 s after its start at the latest (the pod's grace period of 3600 s)
        advice: a container that never comes up is gone after 3620.5 s at the latest; with terminationGracePeriodSeconds: 60 on the startup probe after 80.5 s
        option: against a server that accepts and hangs it asks every 1 s, not every 0.5 s: an attempt that hangs holds up the next; timeoutSeconds: 1, timeoutMilliseconds: -500 keeps the period
      on deletion it is gone after 3602 s at the latest (stop signal SIGTERM, unless the image names another)

    container web
      liveness probe: httpGet every 10 s, timeout 1 s, 3 failures, from 60 s after the start
        a container that is not up 90 s after its start is killed
        a deadlock is noticed after 20 s to 31 s, and the container killed
        it is gone 43 s after the deadlock began at the latest (the probe's grace period of 10 s)
        advice: for the first 60 s of every life a deadlock goes unnoticed; in place of the initial delay, a startupProbe with periodSeconds: 10 and failureThreshold: 9 gives the start 90 s, and liveness begins as soon as it is up
        advice: it asks the same as the readiness probe and gives up no later (after 31 s at most), so a container is killed when it should only lose its traffic; failureThreshold: 6 would leave it 30 s to recover
        advice: preStop sleeps 20 s, but a kill by this probe allows 10 s in all: the hook is cut off and 2 s are left for the stop signal
      readiness probe: httpGet every 10 s, timeout 1 s, 3 failures
        a container that stops answering is unready after 20 s to 31 s
        option: periodSeconds: 1, periodMilliseconds: -500 would notice readiness up to 9.5 s sooner; with failureThreshold: 30 it gives up as late as now
      on deletion it is gone after 3600 s at the latest (stop signal SIGTERM, unless the image names another)

    container worker
      liveness probe: exec every 2 s, timeout 5 s, 3 failures (60 until the first success)
        a container that is not up 120 s after its start is killed
        a deadlock is noticed after 4 s to 20 s, and the container killed
        it is gone 3620 s after the deadlock began at the latest (the pod's grace period of 3600 s)
        advice: a probe may take 5 s but the next is due after 2 s: those that hang hold up the others, and the decision can take 20 s; with timeoutSeconds: 2 it takes 8 s at most
        advice: a wedged container is gone after 3620 s at the latest; with terminationGracePeriodSeconds: 60 on the liveness probe after 80 s
      on deletion it is gone after 3600 s at the latest (stop signal SIGTERM, unless the image names another)
    "#);
}

#[test]
fn json_has_a_line_per_container_and_probe() {
    let lines = json_lines(&explain(RICH, &["-o", "json"]));
    let subjects: Vec<_> = lines
        .iter()
        .map(|line| (line["container"].clone(), line["kind"].clone()))
        .collect();
    assert_eq!(
        json!(subjects),
        json!([
            ["proxy", "startup"],
            ["web", "liveness"],
            ["web", "readiness"],
            ["worker", "liveness"]
        ])
    );
    let mut worker = lines[3].clone();
    worker.as_object_mut().expect("an object").remove("advice");
    assert_eq!(
        worker,
        json!({
            "pod": "store/shop", "container": "worker", "kind": "liveness", "periodMs": 2000, "periodAfterMs": 2000, "timeoutMs": 5000,
            "stopSignal": "SIGTERM", "startupBudgetSeconds": 120.0, "detectMinSeconds": 4.0, "detectMaxSeconds": 20.0,
            "goneBySeconds": 3620.0,
        })
    );
    assert_eq!(lines[2]["startupBudgetSeconds"], Value::Null);
    assert_eq!(lines[2]["goneBySeconds"], Value::Null, "readiness kills nothing");
    assert!(lines.iter().all(|line| line["advice"].is_array()));
}

#[test]
fn gates_of_the_flag_win_over_the_file() {
    let manifest = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/sub-second-readiness.yaml"
    ))
    .expect("the example is there");
    let period = |run: &Run| json_lines(run)[0]["periodMs"].clone();
    let off = "featureGates: {SubSecondProbes: false}\n";
    assert_eq!(period(&explain(&manifest, &["-o", "json"])), 500);
    assert_eq!(
        period(&explain_with_config(&manifest, off, &["-o", "json"])),
        1000
    );
    let flags = ["-o", "json", "--feature-gates", "SubSecondProbes=true"];
    assert_eq!(period(&explain_with_config(&manifest, off, &flags)), 500);
    let always = explain_with_config(&manifest, "subSecondPolicy: always\n", &["-o", "json"]);
    assert_eq!(json_lines(&always)[0]["periodAfterMs"], 500);
}

#[test]
fn a_bad_configuration_is_refused_with_its_place() {
    let run = explain_with_config(RICH, "looks: true\nlook: false\n", &[]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    assert!(
        run.stderr
            .contains("CONFIG: line 2, column 1: unknown field `look`"),
        "{}",
        run.stderr
    );
    let gate = explain_with_config(RICH, "featureGates: {Nope: true}\n", &[]);
    assert_eq!(gate.code, Some(2));
    assert!(
        gate.stderr.contains("StartupProbeEnabled"),
        "it lists the known gates: {}",
        gate.stderr
    );
}

#[test]
fn a_rejected_manifest_is_a_no_and_does_not_hide_the_next() {
    let bad = RICH.replace("periodSeconds: 2", "periodSeconds: -2");
    let run = explain(&format!("{bad}---{RICH}"), &[]);
    assert_eq!(run.code, Some(1));
    assert!(
        run.stderr
            .contains("spec.containers[1].livenessProbe.periodSeconds"),
        "{}",
        run.stderr
    );
    assert_eq!(run.stdout.matches("pod store/shop").count(), 1);
}

#[test]
fn a_file_that_cannot_be_read_is_a_usage_error() {
    for args in [
        &["explain", "no-such-file.yaml"][..],
        &["explain"],
        &["explain", "-", "--config", "nothing.yaml"],
    ] {
        let run = pulselet(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{args:?}");
    }
}
