//! What goes over the wire: codes, bodies, watches, and what is refused.

use http::Method;
use pulselet_model::{Gate, GateSet, Profile};
use pulselet_store::HistoryLimits;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::client::{Client, Credential, collect, connect_tls};
use crate::harness::TestServer;

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"v": value}}, "data": {"v": value}})
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "app", "image": "app",
        "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1, "periodMilliseconds": -500}}]}})
}

#[derive(Deserialize)]
struct Vector<'a> {
    id: String,
    code: u16,
    gates: std::collections::BTreeMap<String, bool>,
    #[serde(borrow)]
    pod: &'a RawValue,
    #[serde(default)]
    causes: Vec<Value>,
}

/// What a server would have to remember for the next connection of a client, it does not offer.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_clients_end_with_their_connections() {
    let server = TestServer::start();
    let (mut stream, _) = connect_tls(&server, Credential::Nothing, b"http/1.1").await;
    let request = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.expect("sends");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("reads");
    assert!(
        answer.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    assert_eq!(stream.get_ref().1.tls13_tickets_received(), 0);
}

/// Recorded answers of a v1.36.4 server to strict dry-run creates; ours are the same.
#[tokio::test(flavor = "multi_thread")]
async fn admission_answers_as_upstream_does() {
    let path = std::env::var("PULSELET_ADMISSION_VECTORS").unwrap_or_else(|_| {
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../model/tests/data/pod-admission.jsonl"
        )
        .to_owned()
    });
    let text = std::fs::read_to_string(path).expect("the vectors can be read");
    let vectors: Vec<Vector<'_>> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a vector"))
        .collect();
    for on in [true, false] {
        let server = TestServer::start_with(|config| {
            config.profile = Profile::Kubernetes;
            config.gates = GateSet::ALL.with(Gate::ContainerStopSignals, on);
        });
        let mut client = Client::admin(&server).await;
        let url = format!("{PODS}?dryRun=All&fieldValidation=Strict");
        for vector in vectors
            .iter()
            .filter(|vector| vector.gates["ContainerStopSignals"] == on)
        {
            let answer = client
                .send(
                    Method::POST,
                    &url,
                    "application/json",
                    vector.pod.get().to_owned(),
                )
                .await;
            let (code, body) = collect(answer).await;
            assert_eq!(
                code.as_u16(),
                vector.code,
                "{}: {}",
                vector.id,
                String::from_utf8_lossy(&body)
            );
            if vector.code == 422 {
                let status: Value = serde_json::from_slice(&body).expect("a Status");
                assert_eq!(status["details"]["causes"], json!(vector.causes), "{}", vector.id);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_do_what() {
    let server = TestServer::start();
    let mut anonymous = Client::connect(&server, Credential::Nothing).await;
    assert_eq!(anonymous.get("/livez").await.0, 200);
    assert_eq!(anonymous.get("/version").await.0, 200);
    for path in ["/api", "/openapi/v2", PODS, "/nothing"] {
        assert_eq!(anonymous.get(path).await.0, 403, "{path}");
    }
    let mut guessing = Client::connect(&server, Credential::Token("guess".to_owned())).await;
    let (code, status) = guessing.get(PODS).await;
    assert_eq!((code, &status["reason"]), (401, &json!("Unauthorized")));
    let tokens = std::fs::read_to_string(server.path().join("tokens.csv")).expect("tokens");
    let token = tokens.split(',').next().expect("a token").to_owned();
    let mut admin = Client::connect(&server, Credential::Token(token)).await;
    assert_eq!(admin.get(PODS).await.0, 200);
    // A certificate that nobody we know has signed is an unknown user, not a broken connection.
    let own = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).expect("a certificate");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let stranger = Credential::Certificate(vec![own.cert.der().clone()], key.into());
    let mut stranger = Client::connect(&server, stranger).await;
    assert_eq!(stranger.get("/livez").await.0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_looks_after_its_own_and_nothing_else() {
    let server = TestServer::start();
    let mut admin = Client::admin(&server).await;
    for (name, node, secret) in [("mine", "n1", "used"), ("other", "n2", "theirs")] {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = json!(node);
        pod["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": secret}}]);
        assert_eq!(admin.post(PODS, &pod).await.0, 201);
        let secret = json!({"metadata": {"name": secret}});
        assert_eq!(
            admin.post("/api/v1/namespaces/default/secrets", &secret).await.0,
            201
        );
    }
    let kubeconfig = server.path().join("node-n1.kubeconfig");
    let mut node = Client::connect(&server, Credential::Kubeconfig(kubeconfig)).await;
    let own = json!({"metadata": {"name": "n1"}});
    assert_eq!(node.post("/api/v1/nodes", &own).await.0, 201);
    assert_eq!(
        node.post("/api/v1/nodes", &json!({"metadata": {"name": "n2"}}))
            .await
            .0,
        403
    );
    let allowed = [
        format!("{PODS}/mine"),
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1".to_owned(),
        "/api/v1/namespaces/default/secrets/used".to_owned(),
        "/api/v1/nodes/n1".to_owned(),
    ];
    for path in allowed {
        assert_eq!(node.get(&path).await.0, 200, "{path}");
    }
    let refused = [
        format!("{PODS}/other"),
        "/api/v1/pods".to_owned(),
        "/api/v1/namespaces/default/secrets/theirs".to_owned(),
        "/api/v1/namespaces/default/secrets".to_owned(),
        "/api/v1/namespaces".to_owned(),
    ];
    for path in refused {
        let (code, status) = node.get(&path).await;
        assert_eq!(code, 403, "{path}");
        assert!(
            status["message"]
                .as_str()
                .unwrap_or_default()
                .contains("system:node:n1"),
            "{status}"
        );
    }
    let status = json!({"metadata": {"name": "mine"}, "status": {"phase": "Running"}});
    let (code, _) = node
        .json(Method::PUT, &format!("{PODS}/mine/status"), Some(&status))
        .await;
    assert_eq!(code, 200);
    let status = json!({"metadata": {"name": "other"}, "status": {"phase": "Failed"}});
    let (code, _) = node
        .json(Method::PUT, &format!("{PODS}/other/status"), Some(&status))
        .await;
    assert_eq!(code, 403);
    let lease = json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    assert_eq!(node.post(leases, &lease).await.0, 201);
    assert_eq!(
        node.json(Method::DELETE, &format!("{PODS}/other"), None).await.0,
        403
    );
}

/// CVE-2022-3162, CVE-2022-3294: a name in a path is taken for more than a name.
#[tokio::test(flavor = "multi_thread")]
async fn names_in_a_path_reach_nothing_else() {
    let server = TestServer::start();
    let mut admin = Client::admin(&server).await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "hidden"}});
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(admin.post(secrets, &secret).await.0, 201);
    let maps = "/api/v1/namespaces/default/configmaps";
    for path in [
        format!("{maps}/..%2Fsecrets%2Fs"),
        format!("{maps}/%2e%2e%2fsecrets%2fs"),
        format!("{maps}/../secrets/s"),
        format!("{maps}/x%2F..%2F..%2Fsecrets%2Fs"),
        "/api/v1/namespaces/default%2Fsecrets/configmaps/s".to_owned(),
        "/api/v1/namespaces/x/../default/secrets/s".to_owned(),
        "/api/v1/namespaces/%2e%2e/secrets/s".to_owned(),
        "/api/v1/namespaces//secrets/s".to_owned(),
        format!("{secrets}/s%00"),
    ] {
        let (code, answer) = admin.get(&path).await;
        assert!(matches!(code, 400 | 404), "{path}: {code} {answer}");
        assert!(answer["data"].is_null(), "{path}: {answer}");
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "../../x"}, "spec": {}});
    assert!(matches!(admin.post(PODS, &pod).await.0, 400 | 422));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_the_right_code_and_change_nothing() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    let (_, before) = client.get(MAPS).await;
    let huge = format!("{{\"data\":{{\"x\":\"{}\"}}}}", "y".repeat(4 << 20));
    let cases: [(Method, &str, &str, &str, u16); 14] = [
        (Method::POST, MAPS, "application/json", "{", 400),
        (Method::POST, MAPS, "application/json", "[]", 400),
        (Method::POST, MAPS, "application/json", "", 400),
        (
            Method::POST,
            MAPS,
            "application/json",
            "{\"kind\":\"Secret\"}",
            400,
        ),
        (
            Method::POST,
            MAPS,
            "application/json",
            "{\"data\":{\"x\":1}}",
            400,
        ),
        (
            Method::POST,
            MAPS,
            "application/json",
            "{\"metadata\":{\"name\":\"A\"}}",
            422,
        ),
        (Method::POST, MAPS, "text/plain", "{}", 415),
        (
            Method::POST,
            MAPS,
            "application/vnd.kubernetes.protobuf",
            "k8s\0\n",
            400,
        ),
        (Method::POST, MAPS, "application/json", &huge, 413),
        (
            Method::PATCH,
            "/api/v1/namespaces/default/configmaps/x",
            "application/json",
            "{}",
            415,
        ),
        (
            Method::PATCH,
            "/api/v1/namespaces/default/configmaps/x",
            "application/json-patch+json",
            "{}",
            400,
        ),
        (Method::PUT, MAPS, "application/json", "{}", 405),
        (Method::GET, "/api/v1/namespaces/default/deployments", "", "", 404),
        (
            Method::GET,
            "/api/v1/namespaces/default/configmaps?limit=x",
            "",
            "",
            400,
        ),
    ];
    for (method, path, content_type, body, expected) in cases {
        let mut client = Client::admin(&server).await;
        let shown = &body[..body.len().min(40)];
        let answer = client
            .send(method.clone(), path, content_type, body.to_owned())
            .await;
        let (code, body) = collect(answer).await;
        assert_eq!(code.as_u16(), expected, "{method} {path} {shown}");
        let status: Value = serde_json::from_slice(&body).expect("a Status");
        assert_eq!(status["kind"], "Status", "{method} {path}");
        assert_eq!(status["code"], expected);
    }
    let (_, after) = client.get(MAPS).await;
    assert_eq!(before, after);
}

#[tokio::test(flavor = "multi_thread")]
async fn gates_requests_and_watches_are_metrics_of_the_api() {
    let gates = GateSet::ALL.with(Gate::ContainerStopSignals, false);
    let server = TestServer::start_with(|config| config.gates = gates);
    let mut client = Client::admin(&server).await;
    client.post(MAPS, &map("a", "1")).await;
    let mut events = Client::admin(&server)
        .await
        .watch(&format!("{MAPS}?watch=1"))
        .await;
    events.next_named().await;
    let answer = client.send(Method::GET, "/metrics", "", "").await;
    let (code, text) = collect(answer).await;
    let text = String::from_utf8(text.to_vec()).expect("UTF-8");
    assert_eq!(code, 200);
    for line in [
        r#"kubernetes_feature_enabled{name="ContainerStopSignals",stage="ALPHA"} 0"#,
        r#"kubernetes_feature_enabled{name="ProbeTerminationGracePeriod",stage=""} 1"#,
        r#"apiserver_request_total{verb="POST",group="",version="v1",resource="configmaps",subresource="",code="201"} 1"#,
        r#"apiserver_longrunning_requests{verb="WATCH",group="",version="v1",resource="configmaps",subresource=""} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    let nobody = Client::connect(&server, Credential::Nothing).await;
    let (code, _) = { nobody }.get("/metrics").await;
    assert!(code == 401 || code == 403, "{code}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_starts_with_what_is_there_and_follows_a_selector() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    client.post(MAPS, &map("a", "1")).await;
    client.post(MAPS, &map("b", "2")).await;
    let path = format!(
        "{MAPS}?watch=1&labelSelector=v%3D1&allowWatchBookmarks=true&sendInitialEvents=true\
                        &resourceVersionMatch=NotOlderThan"
    );
    let mut events = Client::admin(&server).await.watch(&path).await;
    assert_eq!(events.next_named().await, ("ADDED".to_owned(), "a".to_owned()));
    let bookmark = events.next().await.expect("a bookmark");
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(
        bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    // b begins to match, a ceases to, b changes, b goes.
    for (name, value) in [("b", "1"), ("a", "2"), ("b", "1")] {
        let mut object = map(name, value);
        object["data"]["x"] = json!(format!("{name}{value}{}", rand_text()));
        client
            .json(Method::PUT, &format!("{MAPS}/{name}"), Some(&object))
            .await;
    }
    client.json(Method::DELETE, &format!("{MAPS}/b"), None).await;
    for (kind, name) in [
        ("ADDED", "b"),
        ("DELETED", "a"),
        ("MODIFIED", "b"),
        ("DELETED", "b"),
    ] {
        assert_eq!(events.next_named().await, (kind.to_owned(), name.to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_many_objects_begins_with_all_of_them() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    // The config map that every namespace has is not what this is about.
    client
        .json(Method::DELETE, &format!("{MAPS}/kube-root-ca.crt"), None)
        .await;
    for index in 0..600 {
        assert_eq!(client.post(MAPS, &map(&format!("m{index:03}"), "1")).await.0, 201);
    }
    let mut events = Client::admin(&server)
        .await
        .watch(&format!("{MAPS}?watch=1"))
        .await;
    for index in 0..600 {
        assert_eq!(
            events.next_named().await,
            ("ADDED".to_owned(), format!("m{index:03}"))
        );
        // A change while the watch is still at the beginning comes after it.
        if index == 0 {
            client.post(MAPS, &map("m599x", "1")).await;
        }
    }
    assert_eq!(
        events.next_named().await,
        ("ADDED".to_owned(), "m599x".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_sent_in_parts_is_one_document() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    let (text, path) = ("x".repeat(30_000), "/api/v1/namespaces/kube-public/configmaps");
    client
        .json(Method::DELETE, &format!("{path}/kube-root-ca.crt"), None)
        .await;
    let mut expected = Vec::new();
    // None, one part, and several that end within and at the end of the list.
    for count in 0..6 {
        let (code, list) = client.get(path).await;
        assert_eq!((code, &list["kind"]), (200, &json!("ConfigMapList")), "{count}");
        let items = list["items"].as_array().expect("items");
        let names: Vec<&str> = items
            .iter()
            .filter(|item| {
                item["data"]["text"] == json!(text) && item["metadata"]["resourceVersion"].is_string()
            })
            .map(|item| item["metadata"]["name"].as_str().expect("a name"))
            .collect();
        assert_eq!(names, expected);
        let name = format!("m{count}");
        let map = json!({"metadata": {"name": name}, "data": {"text": text}});
        assert_eq!(client.post(path, &map).await.0, 201);
        expected.push(name);
    }
}

fn rand_text() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    COUNTER.fetch_add(1, Ordering::Relaxed).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_resumes_over_a_restart_and_an_old_one_is_refused() {
    let short = HistoryLimits {
        changes: 64,
        bytes: 1 << 20,
    };
    let server = TestServer::start_with(|config| config.history = short);
    let mut client = Client::admin(&server).await;
    let (_, first) = client.post(MAPS, &map("first", "1")).await;
    let version = first["metadata"]["resourceVersion"]
        .as_str()
        .expect("a version")
        .to_owned();
    for index in 0..10 {
        client.post(MAPS, &map(&format!("m{index}"), "1")).await;
    }
    drop(client);
    let directory = server.stop();
    let server = TestServer::start_in(directory, |config| config.history = short);
    let path = format!("{MAPS}?watch=1&resourceVersion={version}");
    let mut events = Client::admin(&server).await.watch(&path).await;
    for index in 0..10 {
        assert_eq!(
            events.next_named().await,
            ("ADDED".to_owned(), format!("m{index}"))
        );
    }
    let mut client = Client::admin(&server).await;
    let (_, first) = client.get(&format!("{MAPS}?limit=4")).await;
    let token = first["metadata"]["continue"]
        .as_str()
        .expect("a token")
        .to_owned();
    for index in 0..200 {
        client.post(MAPS, &map(&format!("n{index}"), "1")).await;
    }
    let (code, expired) = client.get(&format!("{MAPS}?limit=4&continue={token}")).await;
    assert_eq!((code, &expired["reason"]), (410, &json!("Expired")));
    let rest = expired["metadata"]["continue"]
        .as_str()
        .expect("a token for the rest");
    let (_, second) = client.get(&format!("{MAPS}?limit=4&continue={rest}")).await;
    assert_ne!(
        second["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let names = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().expect("items").iter();
        items.map(|item| item["metadata"]["name"].to_string()).collect()
    };
    assert!(names(&first).last() < names(&second).first(), "{first} {second}");
    let mut old = Client::admin(&server).await.watch(&path).await;
    let gone = old.next().await.expect("an event");
    assert_eq!(
        (&gone["type"], &gone["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert!(old.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_hides_its_field_and_the_store_keeps_it() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    assert_eq!(client.post(PODS, &pod("web")).await.0, 201);
    drop(client);
    let off = GateSet::ALL.with(Gate::SubSecondProbes, false);
    let directory = server.stop();
    let server = TestServer::start_in(directory, |config| config.gates = off);
    let mut client = Client::admin(&server).await;
    let probe = |pod: &Value| pod["spec"]["containers"][0]["readinessProbe"].clone();
    let (_, shown) = client.get(&format!("{PODS}/web")).await;
    assert!(probe(&shown).get("periodMilliseconds").is_none(), "{shown}");
    let (_, list) = client.get(PODS).await;
    assert!(probe(&list["items"][0]).get("periodMilliseconds").is_none());
    let mut labelled = shown.clone();
    labelled["metadata"]["labels"] = json!({"x": "y"});
    let (code, _) = client
        .json(Method::PUT, &format!("{PODS}/web"), Some(&labelled))
        .await;
    assert_eq!(code, 200);
    let (code, dropped) = client.post(PODS, &pod("new")).await;
    assert_eq!(code, 201);
    assert!(probe(&dropped).get("periodMilliseconds").is_none());
    drop(client);
    let server = TestServer::start_in(server.stop(), |_| {});
    let mut client = Client::admin(&server).await;
    let (_, back) = client.get(&format!("{PODS}/web")).await;
    assert_eq!(probe(&back)["periodMilliseconds"], -500);
    assert_eq!(back["metadata"]["labels"], json!({"x": "y"}));
    let (_, new) = client.get(&format!("{PODS}/new")).await;
    assert!(probe(&new).get("periodMilliseconds").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_show_one_state_and_tokens_cannot_be_forged() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    // The config map that every namespace has is not what this is about.
    client
        .json(Method::DELETE, &format!("{MAPS}/kube-root-ca.crt"), None)
        .await;
    for index in 0..5 {
        client.post(MAPS, &map(&format!("m{index}"), "1")).await;
    }
    let (_, page) = client.get(&format!("{MAPS}?limit=2")).await;
    assert_eq!(page["metadata"]["remainingItemCount"], 3);
    let token = page["metadata"]["continue"].as_str().expect("a token").to_owned();
    client.json(Method::DELETE, &format!("{MAPS}/m3"), None).await;
    client.post(MAPS, &map("m9", "1")).await;
    let (_, next) = client.get(&format!("{MAPS}?limit=1&continue={token}")).await;
    assert_eq!(next["metadata"]["remainingItemCount"], 2);
    let (_, rest) = client.get(&format!("{MAPS}?continue={token}")).await;
    let names: Vec<&Value> = rest["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| &item["metadata"]["name"])
        .collect();
    assert_eq!(names, ["m2", "m3", "m4"]);
    let (code, _) = client
        .get(&format!("/api/v1/namespaces/default/secrets?continue={token}"))
        .await;
    assert_eq!(code, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn binding_and_eviction() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    client.post(PODS, &pod("web")).await;
    let binding = json!({"metadata": {"name": "web"}, "target": {"kind": "Node", "name": "n1"}});
    let path = format!("{PODS}/web/binding");
    assert_eq!(client.post(&path, &binding).await.0, 201);
    let (code, status) = client.post(&path, &binding).await;
    assert_eq!(code, 409, "{status}");
    let (_, bound) = client.get(&format!("{PODS}/web")).await;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"},
        "deleteOptions": {"gracePeriodSeconds": 7}});
    assert_eq!(
        client.post(&format!("{PODS}/web/eviction"), &eviction).await.0,
        201
    );
    let (_, ending) = client.get(&format!("{PODS}/web")).await;
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_be_asked_is_said_to_be() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    let mut bound = pod("web");
    bound["spec"]["nodeName"] = json!("n1");
    client.post(PODS, &bound).await;
    let log = format!("{PODS}/web/log");
    let (code, status) = client.get(&log).await;
    assert_eq!(code, 404, "{status}");
    assert_eq!(status["message"], "nodes \"n1\" not found");
    // A port that nobody listens on: it was somebody's a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }});
    assert_eq!(client.post("/api/v1/nodes", &node).await.0, 201);
    let (code, status) = client.get(&log).await;
    assert_eq!(code, 503, "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("error dialing backend: dial tcp 127.0.0.1:"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reports_about_a_namespace_may_annotate_it() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    let path = "/api/v1/namespaces/default/status";
    let condition = json!({"type": "Told", "status": "True"});
    let told = json!({"metadata": {"annotations": {"by": "test"}}, "status": {"conditions": [condition]}});
    let answer = client
        .send(
            Method::PATCH,
            path,
            "application/merge-patch+json",
            told.to_string(),
        )
        .await;
    assert_eq!(collect(answer).await.0, 200);
    let (_, namespace) = client.get("/api/v1/namespaces/default").await;
    assert_eq!(namespace["metadata"]["annotations"], json!({"by": "test"}));
    assert_eq!(namespace["status"]["conditions"][0]["type"], "Told");
    assert_eq!(namespace["status"]["phase"], "Active");
}
