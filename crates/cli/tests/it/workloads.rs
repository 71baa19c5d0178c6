//! `check`, `explain`, `simulate` and `run` with files that hold more than Pods.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::{Run, pulselet, pulselet_with_stdin};

/// Two probes, one of them with a field of Pulselet's own.
const POD_SPEC: &str = "{terminationGracePeriodSeconds: 10, restartPolicy: POLICY, containers: [{name: app, image: \"app:1\", \
                        readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1, periodMilliseconds: -500}}]}";

/// A template with a label.
fn template(policy: &str) -> String {
    let spec = POD_SPEC.replace("POLICY", policy);
    format!("{{metadata: {{labels: {{app: web}}}}, spec: {spec}}}")
}

/// Each kind with a template, in its smallest form.
fn workloads() -> Vec<(&'static str, String)> {
    let (always, never) = (template("Always"), template("Never"));
    let selector = "selector: {matchLabels: {app: web}}";
    let apps = |kind: &str, more: &str| {
        format!(
            "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: web}}\nspec:\n  {selector}{more}\n  template: {always}\n"
        )
    };
    vec![
        ("Deployment", apps("Deployment", "")),
        ("ReplicaSet", apps("ReplicaSet", "")),
        ("StatefulSet", apps("StatefulSet", "\n  serviceName: web")),
        ("DaemonSet", apps("DaemonSet", "")),
        (
            "Job",
            format!("apiVersion: batch/v1\nkind: Job\nmetadata: {{name: web}}\nspec:\n  template: {never}\n"),
        ),
        (
            "CronJob",
            format!(
                "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: web}}\nspec:\n  schedule: '0 3 * * *'\n  \
                 jobTemplate: {{spec: {{template: {never}}}}}\n"
            ),
        ),
        (
            "ReplicationController",
            format!(
                "apiVersion: v1\nkind: ReplicationController\nmetadata: {{name: web}}\nspec:\n  template: {always}\n"
            ),
        ),
        (
            "PodTemplate",
            format!("apiVersion: v1\nkind: PodTemplate\nmetadata: {{name: web}}\ntemplate: {always}\n"),
        ),
    ]
}

fn workload(kind: &str) -> String {
    let mut all = workloads().into_iter();
    all.find(|(name, _)| *name == kind)
        .expect("a kind with a template")
        .1
}

const INGRESS: &str =
    "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web}\nspec: {unread: true}\n";
const OTHERS: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {key: value}
";

/// Runs a command on a manifest in a file of its own; its path is shown as FILE.
fn on_file(command: &str, manifest: &str, flags: &[&str]) -> Run {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("manifest.yaml");
    fs::write(&path, manifest).expect("the manifest is written");
    let path = path.to_str().expect("the path is UTF-8");
    let mut args = vec![command, path];
    args.extend(flags);
    let mut run = pulselet(&args);
    run.stdout = run.stdout.replace(path, "FILE");
    run.stderr = run.stderr.replace(path, "FILE");
    run
}

fn json_lines(run: &Run) -> Vec<Value> {
    let lines = run.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect()
}

#[test]
fn check_accepts_every_kind_with_a_template() {
    for (kind, manifest) in workloads() {
        let run = on_file("check", &manifest, &["-o", "json"]);
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{}", run.stdout);
        let line = json_lines(&run).remove(0);
        assert_eq!(
            (&line["kind"], &line["code"]),
            (&json!(kind), &json!(201)),
            "{line}"
        );
        let object = &line["object"];
        let pointer = match kind {
            "CronJob" => "/spec/jobTemplate/spec/template",
            "PodTemplate" => "/template",
            _ => "/spec/template",
        };
        let spec = &object.pointer(pointer).expect("a template")["spec"];
        assert_eq!(spec["dnsPolicy"], "ClusterFirst", "defaults are filled in");
        assert_eq!(object["metadata"]["namespace"], "default");
        assert_eq!(object["metadata"]["uid"], Value::Null, "a stand-in does not stay");
        assert_eq!(line["pod"], Value::Null, "only a Pod has it");
    }
}

#[test]
fn check_accepts_the_other_kinds_of_files() {
    let run = on_file("check", OTHERS, &["-o", "json"]);
    assert_eq!(run.code, Some(0), "{}", run.stdout);
    for line in json_lines(&run) {
        assert_eq!(line["code"], 201, "{line}");
        assert_eq!(line["object"]["kind"], line["kind"], "{line}");
    }
    let bad = on_file("check", &OTHERS.replace("name: shop", "name: sh.op"), &[]);
    assert_eq!(bad.code, Some(1));
    assert!(
        bad.stdout.contains("FILE:18:12: error: metadata.name"),
        "{}",
        bad.stdout
    );
}

#[test]
fn a_pod_is_in_its_line_as_pod_and_as_object() {
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {}\n",
        POD_SPEC.replace("POLICY", "Always")
    );
    let line = json_lines(&on_file("check", &pod, &["-o", "json"])).remove(0);
    assert_eq!(line["pod"], line["object"]);
    assert_eq!(line["object"]["kind"], "Pod");
}

#[test]
fn errors_inside_a_template_have_their_place() {
    let bad = workload("Deployment").replace("periodSeconds: 1", "periodSeconds: -1");
    let typo = workload("CronJob").replace("tcpSocket", "tcpSockets");
    let run = on_file("check", &format!("{bad}---\n{typo}"), &[]);
    assert_eq!(run.code, Some(1));
    for expected in [
        "FILE:6:192: error: spec.template.spec.containers[0].readinessProbe.periodSeconds: Invalid value: -1",
        "error: spec.jobTemplate.spec.template.spec.containers[0].readinessProbe.tcpSockets: unknown field",
        "hint: did you mean \"tcpSocket\"?",
        "FILE: Deployment web: rejected",
        "2 objects: 0 accepted, 2 rejected",
    ] {
        assert!(
            run.stdout.contains(expected),
            "no {expected:?} in\n{}",
            run.stdout
        );
    }
    let lines = json_lines(&on_file("check", &bad, &["-o", "json"]));
    assert_eq!(lines[0]["code"], 422);
    assert_eq!(
        lines[0]["causes"][0]["field"],
        "spec.template.spec.containers[0].readinessProbe.periodSeconds"
    );
}

#[test]
fn a_list_has_a_line_per_item_of_any_kind() {
    let items = [
        json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"},
               "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}),
        json!({"apiVersion": "example.com/v1", "kind": "Cake"}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}),
    ];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let run = pulselet_with_stdin(&["check", "-o", "json", "-"], list.as_bytes());
    assert_eq!(run.code, Some(0));
    let lines: Vec<Value> = json_lines(&run)
        .iter()
        .map(|line| {
            json!([
                line["file"],
                line["item"],
                line["kind"],
                line["code"],
                line["skipped"]
            ])
        })
        .collect();
    let expected = json!([
        ["-", 0, "PodTemplate", 201, null],
        ["-", 1, "Cake", 0, true],
        ["-", 2, "ConfigMap", 201, null]
    ]);
    assert_eq!(json!(lines), expected);
}

#[test]
fn other_kinds_are_skipped_with_one_warning_each() {
    let old = "apiVersion: apps/v1beta1\nkind: Deployment\nmetadata: {name: old}\n";
    let manifest = format!("{INGRESS}---\n{old}---\n{}", workload("Deployment"));
    let run = on_file("check", &manifest, &[]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    assert_eq!(
        run.stdout,
        "FILE:2:7: warning: kind \"Ingress\" of apiVersion \"networking.k8s.io/v1\" is skipped: Pulselet does not read it\n\
         FILE: Ingress web: skipped\n\
         FILE:6:13: warning: Deployment of apiVersion \"apps/v1beta1\" is skipped: the served version is apps/v1\n\
         FILE: Deployment old: skipped\n\
         FILE: Deployment web: accepted\n\
         3 objects: 1 accepted, 0 rejected, 2 skipped\n"
    );
    let line = json_lines(&on_file("check", INGRESS, &["-o", "json"])).remove(0);
    assert_eq!(
        (&line["code"], &line["skipped"]),
        (&json!(0), &json!(true)),
        "{line}"
    );
    assert_eq!(line["warnings"].as_array().map(Vec::len), Some(1), "{line}");
}

#[test]
fn strict_makes_skipping_an_error() {
    let manifest = format!("{INGRESS}---\n{}", workload("Job"));
    let run = on_file("check", &manifest, &["--strict"]);
    assert_eq!(run.code, Some(1));
    assert!(
        run.stdout.starts_with("FILE:2:7: error: kind \"Ingress\""),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("1 accepted, 0 rejected, 1 skipped"));
    let lines = json_lines(&on_file("check", &manifest, &["--strict", "-o", "json"]));
    assert_eq!(
        (&lines[0]["code"], &lines[0]["skipped"]),
        (&json!(0), &json!(true))
    );
    assert_eq!(lines[1]["code"], 201);
}

#[test]
fn an_object_without_a_type_is_not_skipped() {
    for manifest in [
        "kind: Ingress\n",
        "apiVersion: example.com/v1\n",
        "apiVersion: v1\nkind: ''\n",
        "apiVersion: v2\nkind: Pod\n",
    ] {
        let run = on_file("check", manifest, &["-o", "json"]);
        assert_eq!(run.code, Some(1), "{manifest}");
        assert_eq!(json_lines(&run)[0]["code"], 400, "{manifest}");
    }
}

#[test]
fn almost_empty_workloads_are_rejected_with_every_error() {
    for (kind, manifest) in workloads() {
        let version = manifest.lines().next().expect("a first line");
        for rest in [
            "",
            "metadata: null\nspec: null\n",
            "metadata: {name: a}\nspec: {}\n",
        ] {
            let rest = if kind == "PodTemplate" {
                rest.replace("spec", "template")
            } else {
                rest.to_owned()
            };
            let run = on_file(
                "check",
                &format!("{version}\nkind: {kind}\n{rest}"),
                &["-o", "json"],
            );
            assert_eq!(run.code, Some(1), "{kind}: {run:?}");
            let line = json_lines(&run).remove(0);
            assert_eq!(line["code"], 422, "{kind}: {line}");
        }
    }
}

#[test]
fn a_gate_that_is_off_drops_fields_of_templates() {
    for (kind, path) in [
        ("DaemonSet", "spec.template.spec"),
        ("CronJob", "spec.jobTemplate.spec.template.spec"),
        ("PodTemplate", "template.spec"),
    ] {
        let run = on_file(
            "check",
            &workload(kind),
            &["--feature-gates", "SubSecondProbes=false"],
        );
        assert_eq!(run.code, Some(0), "{}", run.stdout);
        let field = format!("{path}.containers[0].readinessProbe.periodMilliseconds");
        let expected = format!("warning: {field}: dropped because the feature gate SubSecondProbes is off");
        assert!(run.stdout.contains(&expected), "{}", run.stdout);
        assert!(run.stdout.ends_with("1 accepted, 0 rejected, 1 warning\n"));
    }
}

#[test]
fn the_kubernetes_profile_has_no_fields_of_ours_in_templates() {
    let manifest = workload("Deployment");
    let strict = on_file("check", &manifest, &["--profile", "kubernetes"]);
    assert_eq!(strict.code, Some(1));
    for expected in [
        "spec.template.spec.containers[0].readinessProbe.periodMilliseconds",
        "exists in the pulselet profile",
    ] {
        assert!(strict.stdout.contains(expected), "{}", strict.stdout);
    }
    let plain = manifest.replace(", periodMilliseconds: -500", "");
    assert_eq!(
        on_file("check", &plain, &["--profile", "kubernetes"]).code,
        Some(0)
    );
}

#[test]
fn a_job_without_a_name_is_accepted_with_a_prefix() {
    let manifest = workload("Job").replace("name: web}", "generateName: web-}");
    let line = json_lines(&on_file("check", &manifest, &["-o", "json"])).remove(0);
    assert_eq!(line["code"], 201, "{line}");
    assert_eq!(line["object"]["metadata"]["name"], Value::Null);
}

#[test]
fn explain_reads_the_template() {
    let manifest =
        workload("Deployment").replace("metadata: {name: web}", "metadata: {name: web, namespace: shop}");
    let run = on_file("explain", &format!("{manifest}---\n{OTHERS}---\n{INGRESS}"), &[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    insta::assert_snapshot!(run.stdout, @r"
    deployment/web in namespace shop

    container app
      readiness probe: tcpSocket every 0.5 s until it succeeds, then every 1 s, timeout 1 s, 3 failures
        a container that stops answering is unready after 2 s to 4 s
        option: against a server that accepts and hangs it asks every 1 s, not every 0.5 s: an attempt that hangs holds up the next; timeoutSeconds: 1, timeoutMilliseconds: -500 keeps the period
      on deletion it is gone after 10 s at the latest (stop signal SIGTERM, unless the image names another)
    ");
    assert_eq!(run.stderr.matches("warning: ").count(), 1, "{}", run.stderr);
    assert!(run.stderr.contains("kind \"Ingress\""));
}

#[test]
fn explain_names_the_owner_in_every_line() {
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {}\n",
        POD_SPEC.replace("POLICY", "Always")
    );
    for (kind, manifest) in workloads() {
        let run = on_file("explain", &format!("{manifest}---\n{pod}"), &["-o", "json"]);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        let lines = json_lines(&run);
        let workload = format!("{}/web", kind.to_lowercase());
        assert_eq!(
            (&lines[0]["workload"], &lines[0]["periodMs"]),
            (&json!(workload), &json!(500))
        );
        assert_eq!(lines[0]["pod"], Value::Null);
        assert_eq!(lines[1]["pod"], "default/web");
        assert_eq!(lines[1]["workload"], Value::Null);
    }
}

#[test]
fn explain_shows_why_no_node_runs_a_template() {
    let manifest = workload("Deployment").replace("containers:", "os: {name: windows}, containers:");
    let run = on_file("explain", &manifest, &[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let expected = "no node runs it: spec.template.spec.os.name: ";
    assert!(run.stdout.contains(expected), "{}", run.stdout);
}

#[test]
fn simulate_runs_one_pod_of_a_job() {
    let directory = TempDir::new().expect("a directory");
    let scenario = directory.path().join("scenario.yaml");
    fs::write(
        &scenario,
        "containers: {app: {lives: [{exitsAt: 3s, exitCode: 0}]}}\n",
    )
    .expect("the scenario is written");
    let scenario = scenario.to_str().expect("the path is UTF-8");
    let manifest = format!("{}---\n{OTHERS}", workload("Job"));
    let run = on_file("simulate", &manifest, &["--scenario", scenario, "-o", "json"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    let lines = json_lines(&run);
    assert!(lines.iter().all(|line| line["pod"] == "default/web"));
    let last = lines.last().expect("a line");
    assert_eq!(
        (&last["t"], &last["phase"]),
        (&json!(3.0), &json!("Succeeded")),
        "{last}"
    );
}

#[test]
fn a_simulation_takes_one_pod_or_workload() {
    let two = format!("{}---\n{}", workload("Job"), workload("Deployment"));
    let run = on_file("simulate", &two, &[]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    assert!(
        run.stderr.contains("more than one Pod or workload"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_file_with_nothing_to_run_is_an_error() {
    for command in ["explain", "simulate", "run"] {
        let run = on_file(command, &format!("{OTHERS}---\n{INGRESS}"), &[]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{command}");
        assert!(
            run.stderr.contains(
                "FILE:30:7: warning: kind \"Ingress\" of apiVersion \"networking.k8s.io/v1\" is skipped"
            ),
            "{command}: {}",
            run.stderr
        );
        assert!(
            run.stderr.contains("nothing to run") || run.stderr.contains("hold no Pod"),
            "{command}: {}",
            run.stderr
        );
        assert!(run.stderr.contains("hint: "), "{command}: {}", run.stderr);
    }
    assert_eq!(on_file("check", OTHERS, &[]).code, Some(0));
}

#[test]
fn run_rejects_workloads_and_names_the_way() {
    let run = on_file("run", &workload("Deployment"), &[]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    for expected in [
        "FILE:2:7: error: kind \"Deployment\" is not supported",
        "pulselet serve",
    ] {
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
}
