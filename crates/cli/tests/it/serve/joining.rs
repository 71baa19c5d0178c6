//! A node that joins with a bootstrap kubeconfig, and projected tokens of service accounts.

use serde_json::json;

use super::cluster::{Cluster, pod, shell};

#[test]
fn a_node_has_its_certificates_signed_and_serves_with_them() {
    let Some(mut cluster) = Cluster::bootstrapped() else {
        return;
    };
    let node = cluster.until_node_ready();
    let kept = cluster.data().join("node-client.pem");
    let first = std::fs::read_to_string(&kept).expect("the certificate is kept");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&kept).expect("a file").permissions());
    assert_eq!(mode & 0o777, 0o600);
    // What it serves with waits for somebody, who sees who asks.
    let request = cluster.until("a request", || {
        let table = cluster.kubectl(&["get", "csr", "--no-headers"]);
        let line = table
            .lines()
            .find(|line| line.contains("kubelet-serving"))?
            .to_owned();
        assert!(line.contains(&format!("system:node:{node}")), "{line}");
        line.split_whitespace().next().map(str::to_owned)
    });
    cluster.kubectl(&["certificate", "approve", &request]);
    let serving = cluster.data().join("node-serving.pem");
    cluster.until("a certificate to serve with", || serving.exists().then_some(()));
    // From now on the API insists on it.
    cluster.apply(&pod("web", &shell("echo hello; exec sleep 1000000")));
    cluster.until_ready("web");
    cluster.until("its log", || {
        let log = cluster.try_kubectl(&["logs", "web"], "").ok()?;
        (log == "hello\n").then_some(())
    });
    // A restart asks for nothing that is there, without the bootstrap kubeconfig's counting any more.
    cluster.terminate();
    cluster.start();
    cluster.until_node_ready();
    assert_eq!(std::fs::read_to_string(&kept).expect("the certificate"), first);
}

#[test]
fn a_node_joins_with_a_bootstrap_token() {
    let Some(cluster) = Cluster::bootstrapped_by_token() else {
        return;
    };
    let node = cluster.until_node_ready();
    let requests = cluster.kubectl(&["get", "csr", "--no-headers"]);
    assert!(requests.contains("system:bootstrap:abcdef"), "{requests}");
    let kept = std::fs::read_to_string(cluster.data().join("node.kubeconfig")).expect("a kubeconfig");
    assert!(
        kept.contains(&format!("system:node:{node}")) && !kept.contains("0123456789abcdef"),
        "{kept}"
    );
}

#[test]
fn a_pod_has_a_token_that_the_api_knows() {
    let Some(cluster) = Cluster::serve(&[]) else {
        return;
    };
    cluster.until_node_ready();
    cluster.kubectl(&["create", "serviceaccount", "robot"]);
    let mut web = pod("web", &shell("exec sleep 1000000"));
    web["spec"]["serviceAccountName"] = json!("robot");
    web["spec"]["volumes"] = json!([{"name": "tokens", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 3600}}]}}]);
    cluster.apply(&web);
    let token = cluster.until("the token", || {
        let pods = cluster.data().join("pods");
        find(&pods, "token")
    });
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": token.trim(), "audiences": ["vault"]}});
    let answer = cluster.try_kubectl(&["create", "-o", "json", "-f", "-"], &review.to_string());
    let answer: serde_json::Value = serde_json::from_str(&answer.expect("it is answered")).expect("JSON");
    assert_eq!(
        answer["status"]["user"]["username"], "system:serviceaccount:default:robot",
        "{answer}"
    );
    let pod_name = &answer["status"]["user"]["extra"]["authentication.kubernetes.io/pod-name"];
    assert_eq!(pod_name, &json!(["web"]));
}

/// The contents of a file of this name anywhere below a directory.
fn find(directory: &std::path::Path, name: &str) -> Option<String> {
    let entries = std::fs::read_dir(directory).ok()?;
    entries.filter_map(Result::ok).find_map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return find(&path, name);
        }
        (entry.file_name() == name).then(|| std::fs::read_to_string(&path).ok())?
    })
}
