//! The verbs of a kubectl of 2021. It wants the schema as protobuf, which is not served, so it validates nothing and
//! explains nothing.

use std::ffi::OsString;

use serde_json::json;

use super::cluster::{Cluster, pod, shell};

/// Where it is. In CI it must be there.
fn old_kubectl() -> Option<OsString> {
    let program = std::env::var_os("PULSELET_OLD_KUBECTL");
    pulselet_testing::requires("kubectl 1.20 (PULSELET_OLD_KUBECTL)", program.is_some()).then_some(program)?
}

#[test]
fn a_kubectl_of_2021_has_its_verbs() {
    let Some(program) = old_kubectl() else {
        return;
    };
    let Some(cluster) = Cluster::serve(&[]) else {
        return;
    };
    cluster.until_node_ready();
    let kubectl = |args: &[&str]| {
        let output = cluster.command_of(&program).args(args).output();
        let output = output.expect("kubectl runs");
        assert!(output.status.success(), "kubectl {args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let file = cluster.path("web.json");
    let path = file.to_str().expect("a plain path");
    let write = |label: &str| {
        let mut web = pod("web", &shell("echo hello; exec sleep 1000000"));
        web["apiVersion"] = json!("v1");
        web["kind"] = json!("Pod");
        web["metadata"]["labels"] = json!({"app": label});
        std::fs::write(&file, web.to_string()).expect("a manifest");
    };
    assert!(kubectl(&["version", "--short"]).contains("Client Version: v1.20"));
    assert!(kubectl(&["api-resources"]).contains("configmaps"));
    write("one");
    assert_eq!(
        kubectl(&["apply", "--validate=false", "-f", path]),
        "pod/web created\n"
    );
    assert_eq!(
        kubectl(&["apply", "--validate=false", "-f", path]),
        "pod/web unchanged\n"
    );
    write("two");
    assert_eq!(
        kubectl(&["apply", "--validate=false", "-f", path]),
        "pod/web configured\n"
    );
    kubectl(&[
        "apply",
        "--server-side",
        "--force-conflicts",
        "--validate=false",
        "-f",
        path,
    ]);
    kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=120s"]);
    for selection in [
        ["get", "pods", "-l", "app=two"],
        ["get", "pods", "-A", "--field-selector=metadata.name=web"],
        ["get", "pods", "-o", "wide"],
        ["get", "pods", "-o", "yaml"],
        ["describe", "pod", "web", "--show-events=true"],
    ] {
        assert!(kubectl(&selection).contains("web"), "{selection:?}");
    }
    assert!(kubectl(&["get", "events"]).contains("Started"));
    assert_eq!(kubectl(&["logs", "web"]), "hello\n");
    assert_eq!(kubectl(&["exec", "web", "--", "echo", "inside"]), "inside\n");
    kubectl(&["label", "pod", "web", "a=label"]);
    kubectl(&["annotate", "pod", "web", "an=annotation"]);
    let operation = r#"[{"op": "add", "path": "/metadata/labels/b", "value": "json"}]"#;
    kubectl(&["patch", "pod", "web", "--type=json", "-p", operation]);
    kubectl(&[
        "patch",
        "pod",
        "web",
        "--type=merge",
        "-p",
        r#"{"metadata": {"labels": {"c": "merge"}}}"#,
    ]);
    kubectl(&[
        "patch",
        "pod",
        "web",
        "-p",
        r#"{"metadata": {"labels": {"d": "strategic"}}}"#,
    ]);
    let labels = kubectl(&["get", "pod", "web", "-o", "jsonpath={.metadata.labels}"]);
    for value in ["two", "label", "json", "merge", "strategic"] {
        assert!(labels.contains(value), "{value} in {labels}");
    }
    kubectl(&["create", "configmap", "settings", "--from-literal=colour=blue"]);
    kubectl(&[
        "run",
        "other",
        "--image=none",
        "--command",
        "--",
        "sleep",
        "1000000",
    ]);
    kubectl(&["delete", "pod", "other", "--now"]);
    kubectl(&["delete", "pod", "-l", "app=two", "--grace-period=1"]);
    assert_eq!(kubectl(&["get", "pods", "-o", "name"]), "");
}
