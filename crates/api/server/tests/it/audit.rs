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

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: Metadata, resources: [{group: '', resources: [secrets]}]}
- {level: RequestResponse, verbs: [create, patch], resources: [{group: '', resources: [configmaps]}]}
- {level: Request, verbs: [update], resources: [{group: '', resources: [configmaps]}]}
- {level: Metadata, verbs: [watch], omitStages: [ResponseStarted]}
- {level: Metadata, nonResourceURLs: [/version], omitStages: [ResponseComplete]}
- {level: Metadata, nonResourceURLs: [/livez]}
";

/// What a line is about, at which level and stage, and with which bodies.
fn summary(line: &Value) -> Value {
    json!([
        line["verb"],
        line["objectRef"]["resource"],
        line["level"],
        line["stage"],
        line["requestObject"]["data"],
        line["responseObject"]["data"]
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_says_what_is_recorded_and_with_which_bodies() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, policy) = (
        directory.path().join("audit.log"),
        directory.path().join("policy.yaml"),
    );
    std::fs::write(&policy, POLICY).expect("written");
    let server = TestServer::start_with(|config| {
        config.audit_log = Some(path.clone());
        config.audit_policy = Some(policy);
    });
    let mut admin = Client::admin(&server).await;
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "b"}});
    let (code, made) = admin.post(MAPS, &map).await;
    assert_eq!(
        (code, &made["data"]),
        (201, &json!({"a": "b"})),
        "the answer is whole"
    );
    assert_eq!(admin.get(&format!("{MAPS}/m")).await.0, 200);
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    assert_eq!(
        admin.post("/api/v1/namespaces/default/secrets", &secret).await.0,
        201
    );
    let changed = json!({"data": {"a": "c"}}).to_string();
    let answer = admin
        .send(
            Method::PATCH,
            &format!("{MAPS}/m"),
            "application/merge-patch+json",
            changed,
        )
        .await;
    assert_eq!(answer.status(), 200);
    let (_, patched) = crate::client::collect(answer).await;
    assert!(!patched.is_empty(), "the answer is sent, too");
    let put = admin.json(Method::PUT, &format!("{MAPS}/m"), Some(&map)).await;
    assert_eq!(put.0, 200);
    let broken = admin
        .send(Method::POST, MAPS, "application/json", "{".to_owned())
        .await;
    assert_eq!(crate::client::collect(broken).await.0, 400);
    assert_eq!(admin.get("/version").await.0, 200);
    assert_eq!(admin.get("/livez").await.0, 200);
    let mut events = Client::admin(&server)
        .await
        .watch(&format!("{MAPS}?watch=true&timeoutSeconds=1"))
        .await;
    while events.next().await.is_some() {}
    drop((events, admin));
    drop(server);

    let text = std::fs::read_to_string(&path).expect("the log is there");
    assert!(
        !text.contains("hunter2") && !text.contains("managedFields"),
        "{text}"
    );
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let seen: Vec<Value> = lines.iter().map(summary).collect();
    let (b, c) = (json!({"a": "b"}), json!({"a": "c"}));
    let done = "ResponseComplete";
    assert_eq!(
        seen,
        [
            json!(["create", "configmaps", "RequestResponse", done, b, b]),
            json!(["create", "secrets", "Metadata", done, null, null]),
            json!(["patch", "configmaps", "RequestResponse", done, c, c]),
            json!(["update", "configmaps", "Request", done, b, null]),
            json!(["create", "configmaps", "RequestResponse", done, null, null]),
            json!(["get", null, "Metadata", done, null, null]),
            json!(["watch", "configmaps", "Metadata", done, null, null]),
        ]
    );
    assert_eq!(lines[4]["annotations"]["pulselet/left-out"], "requestObject");
    assert_eq!(lines[4]["responseObject"]["code"], 400);
}
