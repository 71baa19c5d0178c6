//! `pulselet check`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::command::{Run, pulselet, pulselet_with_stdin, repository};

const GOOD: &str = "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\"}]}}";

/// Checks a manifest in a file of its own; its path is shown as FILE.
fn check(manifest: &str, flags: &[&str]) -> Run {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pod.yaml");
    fs::write(&path, manifest).expect("the manifest is written");
    let path = path.to_str().expect("the path is UTF-8");
    let mut args = vec!["check", path];
    args.extend(flags);
    let mut run = pulselet(&args);
    run.stdout = run.stdout.replace(path, "FILE");
    run.stderr = run.stderr.replace(path, "FILE");
    run
}

fn json_lines(run: &Run) -> Vec<Value> {
    run.stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect()
}

#[test]
fn every_example_is_accepted_without_a_warning() {
    let examples = fs::read_dir(Path::new(repository()).join("examples")).unwrap();
    let files: Vec<String> = examples
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();
    assert!(files.len() >= 5);
    let mut args = vec!["check", "-o", "json"];
    args.extend(files.iter().map(String::as_str));
    let run = pulselet(&args);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    for line in json_lines(&run) {
        assert_eq!(line["code"], 201, "{line}");
        assert_eq!(line["warnings"], serde_json::json!([]), "{line}");
    }
}

#[test]
fn errors_show_place_field_line_and_a_summary() {
    let run = check(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: app\n    livenessProbe:\n      \
         exec: {command: [\"true\"]}\n      periodSeconds: -1\n",
        &[],
    );
    assert_eq!(run.code, Some(1));
    assert_eq!(
        run.stdout,
        "FILE:6:5: error: spec.containers[0].image: Required value\n  6 |   - name: app\n    |     ^\n\
         FILE:9:7: error: spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal \
         to 0\n  9 |       periodSeconds: -1\n    |       ^\n\
         FILE: Pod web: rejected\n1 object: 0 accepted, 1 rejected\n"
    );
}

#[test]
fn an_unknown_field_gets_a_suggestion() {
    let run = check(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: app\n    image: i\n    \
         readinessProbe: {periodSecond: 5}\n",
        &[],
    );
    assert_eq!(run.code, Some(1));
    assert!(
        run.stdout
            .contains("FILE:8:22: error: spec.containers[0].readinessProbe.periodSecond: unknown field")
    );
    assert!(run.stdout.contains("did you mean \"periodSeconds\"?"));
}

#[test]
fn json_has_a_line_per_object_and_goes_on_after_a_bad_one() {
    let stream = format!("{GOOD}\n{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"bogus\":1}}{GOOD}");
    let run = pulselet_with_stdin(&["check", "-o", "json", "-"], stream.as_bytes());
    assert_eq!(run.code, Some(1));
    let lines = json_lines(&run);
    let summary: Vec<(u64, u64)> = lines
        .iter()
        .map(|line| (line["document"].as_u64().unwrap(), line["code"].as_u64().unwrap()))
        .collect();
    assert_eq!(summary, [(0, 201), (1, 400), (2, 201)]);
    assert_eq!(lines[0]["file"], "-");
    assert_eq!(lines[0]["pod"]["spec"]["restartPolicy"], "Always");
    assert_eq!(lines[1]["causes"].as_array().unwrap().len(), 1);
    assert!(
        lines[1]["causes"][0]["message"]
            .as_str()
            .unwrap()
            .contains("line 2, column 33"),
        "{}",
        lines[1]
    );
}

#[test]
fn a_syntax_error_ends_the_stream() {
    let run = pulselet_with_stdin(
        &["check", "-o", "json", "-"],
        format!("{GOOD} {{]}} {GOOD}").as_bytes(),
    );
    let codes: Vec<u64> = json_lines(&run)
        .iter()
        .map(|line| line["code"].as_u64().unwrap())
        .collect();
    assert_eq!(codes, [201, 400]);
}

#[test]
fn a_list_gives_a_line_per_item() {
    let list =
        format!("{{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[{GOOD},{{\"kind\":\"Service\"}}]}}");
    let run = pulselet_with_stdin(&["check", "-o", "json", "-"], list.as_bytes());
    let items: Vec<(Value, Value)> = json_lines(&run)
        .iter()
        .map(|line| (line["item"].clone(), line["code"].clone()))
        .collect();
    assert_eq!(items, [(0.into(), 201.into()), (1.into(), 400.into())]);
}

#[test]
fn unusable_input_is_one_line_and_exits_with_two() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("binary"), [0x7f, b'E', b'L', b'F', 0, 255]).unwrap();
    fs::write(path("empty"), "# nothing here\n").unwrap();
    for (file, says) in [
        (path(""), "is a directory"),
        (path("missing"), "No such file"),
        (path("binary"), "is not text"),
        (path("empty"), "is empty"),
    ] {
        let run = pulselet(&["check", &file]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{file}");
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
        assert!(
            run.stderr.contains(says) && run.stderr.contains("expected Kubernetes manifests"),
            "{}",
            run.stderr
        );
    }
}

#[test]
fn the_profile_decides_about_fields_of_ours() {
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: app\n    image: i\n    \
                    readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1, periodMilliseconds: -500}\n";
    assert_eq!(check(manifest, &[]).code, Some(0));
    let strict = check(manifest, &["--profile", "kubernetes"]);
    assert_eq!(strict.code, Some(1));
    assert!(
        strict.stdout.contains("exists in the pulselet profile"),
        "{}",
        strict.stdout
    );
}

#[test]
fn a_gate_that_is_off_drops_its_field_with_a_warning() {
    let line = checked_without("SubSecondProbes", "examples/sub-second-readiness.yaml");
    assert_eq!(line["code"], 201);
    let warning = line["warnings"][0].as_str().unwrap();
    assert!(
        warning.contains("readinessProbe.periodMilliseconds") && warning.contains("SubSecondProbes"),
        "{warning}"
    );
    let probe = &line["pod"]["spec"]["containers"][0]["readinessProbe"];
    assert_eq!(probe["periodMilliseconds"], Value::Null);
}

#[test]
fn a_stop_signal_whose_gate_is_off_is_refused() {
    let line = checked_without("ContainerStopSignals", "examples/nginx-stop-signal.yaml");
    assert_eq!(line["code"], 422);
    let cause = &line["causes"][0];
    assert_eq!(cause["field"], "spec.containers[0].lifecycle.stopSignal");
    assert!(
        cause["message"]
            .as_str()
            .unwrap()
            .contains("ContainerStopSignals"),
        "{cause}"
    );
}

/// What `check` says about a file while a gate is off.
fn checked_without(gate: &str, file: &str) -> Value {
    let gates = format!("{gate}=false");
    let run = pulselet(&["check", "-o", "json", "--feature-gates", &gates, file]);
    json_lines(&run).remove(0)
}

#[test]
fn colour_is_used_only_where_it_is_asked_for() {
    let plain = check("kind: Pod\n", &[]);
    assert!(!plain.stdout.contains('\u{1b}'));
    let coloured = check("kind: Pod\n", &["--color", "always"]);
    assert!(coloured.stdout.contains('\u{1b}'));
}
