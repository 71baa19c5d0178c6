//! What the audit log says of requests.

use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, Credential};
use crate::harness::TestServer;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread")]
async fn changes_and_refusals_are_recorded_and_reads_are_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit.log");
    let server = TestServer::start_with(|config| config.audit_log = Some(path.clone()));
    let mut admin = Client::admin(&server).await;
    let map = json!({"metadata": {"name": "m"}, "data": {"password": "hunter2"}});
    assert_eq!(admin.post(MAPS, &map).await.0, 201);
    assert_eq!(admin.get(MAPS).await.0, 200);
    let gone = admin.json(Method::DELETE, &format!("{MAPS}/gone"), None).await;
    assert_eq!(gone.0, 404);
    let mut nobody = Client::connect(&server, Credential::Nothing).await;
    assert_eq!(nobody.get(MAPS).await.0, 403);
    assert_eq!(nobody.get("/livez").await.0, 200);
    let mut liar = Client::connect(&server, Credential::Token("wrong".to_owned())).await;
    assert_eq!(liar.get(MAPS).await.0, 401);
    let kubeconfig = server.path().join("node-n1.kubeconfig");
    let mut node = Client::connect(&server, Credential::Kubeconfig(kubeconfig)).await;
    assert_eq!(node.get("/api/v1/namespaces/default/secrets/s").await.0, 403);
    drop(server);

    let text = std::fs::read_to_string(&path).expect("the log is there");
    assert!(!text.contains("hunter2"), "what is sent is not recorded: {text}");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let mut seen: Vec<Value> = Vec::new();
    for line in &lines {
        assert_eq!(line["level"], "Metadata");
        assert_eq!(line["sourceIPs"], json!(["127.0.0.1"]));
        let received = line["requestReceivedTimestamp"].as_str().unwrap_or_default();
        assert!(received.parse::<jiff::Timestamp>().is_ok(), "{line}");
        let latency = &line["annotations"]["apiserver.latency.k8s.io/total"];
        assert!(
            latency.as_str().is_some_and(|latency| latency.ends_with("ms")),
            "{line}"
        );
        let reference = &line["objectRef"];
        seen.push(json!([
            line["user"]["username"],
            line["verb"],
            reference["resource"],
            reference["name"],
            line["responseStatus"]["code"]
        ]));
    }
    assert_eq!(
        seen,
        [
            json!(["admin", "create", "configmaps", null, 201]),
            json!(["admin", "delete", "configmaps", "gone", 404]),
            json!(["system:anonymous", "list", "configmaps", null, 403]),
            json!([null, "list", "configmaps", null, 401]),
            json!(["system:node:n1", "get", "secrets", "s", 403]),
        ]
    );
    assert_eq!(lines[0]["objectRef"]["namespace"], "default");
    assert_eq!(
        lines[0]["user"]["groups"],
        json!(["system:masters", "system:authenticated"])
    );
}
