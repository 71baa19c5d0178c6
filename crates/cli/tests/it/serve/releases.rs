//! What people type, with a kubectl of a given release. The one on the machine goes through all other tests.

use std::ffi::OsStr;

use serde_json::json;

use super::cluster::{Cluster, pod, shell};

#[test]
fn kubectl_1_32_has_its_verbs() {
    let program = std::env::var_os("PULSELET_KUBECTL_1_32");
    if !pulselet_testing::requires("kubectl 1.32 (PULSELET_KUBECTL_1_32)", program.is_some()) {
        return;
    }
    if let (Some(program), Some(cluster)) = (program, Cluster::serve(&[])) {
        go_through_verbs(&cluster, &program);
    }
}

fn go_through_verbs(cluster: &Cluster, program: &OsStr) {
    cluster.until_node_ready();
    let kubectl = |args: &[&str]| {
        let output = cluster.command_of(program).args(args).output();
        let output = output.expect("kubectl runs");
        assert!(output.status.success(), "kubectl {args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(kubectl(&["version"]).contains("Server Version: v1.36"));
    assert!(kubectl(&["api-resources"]).contains("endpointslices"));
    assert!(kubectl(&["explain", "pod.spec.containers.livenessProbe"]).contains("periodSeconds"));
    let mut web = pod("web", &shell("echo hello; exec sleep 1000000"));
    web["apiVersion"] = json!("v1");
    web["kind"] = json!("Pod");
    web["metadata"]["labels"] = json!({"app": "web"});
    let file = cluster.path("web.json");
    std::fs::write(&file, web.to_string()).expect("a manifest");
    let path = file.to_str().expect("a plain path");
    assert_eq!(kubectl(&["apply", "-f", path]), "pod/web created\n");
    assert!(kubectl(&["diff", "-f", path]).is_empty());
    kubectl(&["apply", "--server-side", "--force-conflicts", "-f", path]);
    kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=120s"]);
    assert_eq!(kubectl(&["logs", "web"]), "hello\n");
    assert_eq!(kubectl(&["exec", "web", "--", "echo", "inside"]), "inside\n");
    let annotation = r#"{"metadata": {"annotations": {"a": "b"}}}"#;
    kubectl(&["patch", "pod", "web", "-p", annotation]);
    kubectl(&["label", "pod", "web", "c=d"]);
    assert!(kubectl(&["get", "pods", "-l", "c=d", "-o", "wide"]).contains("Running"));
    assert!(kubectl(&["describe", "pod", "web"]).contains("Started"));
    assert!(kubectl(&["events", "--for", "pod/web"]).contains("Scheduled"));
    kubectl(&["expose", "pod", "web", "--port=80"]);
    cluster.until("endpoints", || {
        kubectl(&["get", "endpointslices", "-l", "kubernetes.io/service-name=web"])
            .contains("127.0.0.1")
            .then_some(())
    });
    assert!(kubectl(&["describe", "service", "web"]).contains("127.0.0.1"));
    kubectl(&["create", "configmap", "settings", "--from-literal=key=value"]);
    assert!(kubectl(&["get", "configmap", "settings", "-o", "jsonpath={.data.key}"]).contains("value"));
    assert_eq!(kubectl(&["auth", "can-i", "create", "pods"]), "yes\n");
    kubectl(&["delete", "service/web", "pod/web", "--timeout=120s"]);
}
