//! The kinds that are kept for others: as a v1.36.4 server fills them in, in JSON and in protobuf.

use http::Method;
use http_body_util::BodyExt;
use pulselet_model::{GateSet, Profile};
use serde_json::{Value, json};

use crate::client::{Client, Credential, collect};
use crate::harness::TestServer;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn deployment(name: &str) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "i"}]}}}})
}

fn service(name: &str, spec: Value) -> Value {
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}});
    service["spec"] = spec;
    service
}

/// What differs from one answer to the next. Finalizers that a controller of upstream would take off are not set here,
/// because nobody might.
fn scrub(mut answer: Value) -> Value {
    let uid = answer["metadata"]["uid"].clone();
    for field in [
        "uid",
        "creationTimestamp",
        "managedFields",
        "resourceVersion",
        "finalizers",
    ] {
        answer["metadata"]
            .as_object_mut()
            .map(|metadata| metadata.remove(field));
    }
    if let Some(status) = answer.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("lastPhaseTransitionTime");
    }
    let text = answer.to_string();
    let text = uid
        .as_str()
        .map_or_else(|| text.clone(), |uid| text.replace(uid, "UID"));
    serde_json::from_str(&text).expect("still JSON")
}

/// Recorded answers of a v1.36.4 server to strict dry-run creates; ours are the same.
#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_filled_in_and_refused_as_upstream_does() {
    let text = include_str!("../data/kinds.jsonl");
    let server = TestServer::start_with(|config| {
        config.profile = Profile::Kubernetes;
        config.gates = GateSet::ALL;
        config.service_range = "10.96.0.0/16".parse().expect("a range");
    });
    let mut client = Client::admin(&server).await;
    let mut wrong = Vec::new();
    for (line, text) in text.lines().enumerate() {
        let vector: Value = serde_json::from_str(text).expect("a vector");
        let path = vector["path"].as_str().expect("a path");
        let url = format!("{path}?dryRun=All&fieldManager=t&fieldValidation=Strict");
        let (code, answer) = client.post(&url, &vector["body"]).await;
        let expected = &vector["answer"];
        let found = if code == 201 {
            scrub(answer)
        } else {
            json!({"message": answer["message"], "reason": answer["reason"]})
        };
        if json!(code) != vector["code"] || found != *expected {
            wrong.push(format!("line {}: {code} {found}\nexpected {expected}", line + 1));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_has_a_service_and_services_get_addresses_of_their_own() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    let (_, own) = client.get(&format!("{SERVICES}/kubernetes")).await;
    assert_eq!(own["spec"]["clusterIP"], "10.43.0.1");
    assert_eq!(own["spec"]["ports"][0]["targetPort"], server.address.port());
    let (_, slice) = client
        .get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")
        .await;
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["127.0.0.1"]));
    let (_, first) = client
        .post(SERVICES, &service("a", json!({"ports": [{"port": 80}]})))
        .await;
    let (_, second) = client
        .post(
            SERVICES,
            &service("b", json!({"type": "NodePort", "ports": [{"port": 80}]})),
        )
        .await;
    assert_eq!(first["spec"]["clusterIP"], "10.43.0.2");
    assert_eq!(second["spec"]["clusterIP"], "10.43.0.3");
    assert_eq!(second["spec"]["ports"][0]["nodePort"], 30_000);
    for taken in [
        json!({"clusterIP": "10.43.0.2", "ports": [{"port": 80}]}),
        json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_000}]}),
    ] {
        let (code, status) = client.post(SERVICES, &service("c", taken)).await;
        assert_eq!(code, 422, "{status}");
        let message = status["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains("already allocated"), "{message}");
    }
    // An update that leaves them out keeps them; one that changes the address is refused.
    let kept = service("b", json!({"type": "NodePort", "ports": [{"port": 80}]}));
    let (_, kept) = client
        .json(Method::PUT, &format!("{SERVICES}/b"), Some(&kept))
        .await;
    assert_eq!(kept["spec"], second["spec"]);
    let moved = service("b", json!({"clusterIP": "10.43.0.9", "ports": [{"port": 80}]}));
    let (code, _) = client
        .json(Method::PUT, &format!("{SERVICES}/b"), Some(&moved))
        .await;
    assert_eq!(code, 422);
    // A deleted service's address is free again.
    client.json(Method::DELETE, &format!("{SERVICES}/a"), None).await;
    let (_, third) = client
        .post(SERVICES, &service("d", json!({"ports": [{"port": 80}]})))
        .await;
    assert_eq!(third["spec"]["clusterIP"], "10.43.0.2");
    // The service stays what it is over a restart, and leads to the new port.
    let server = TestServer::start_in(server.stop(), |_| {});
    let mut client = Client::admin(&server).await;
    let (_, again) = client.get(&format!("{SERVICES}/kubernetes")).await;
    assert_eq!(again["metadata"]["uid"], own["metadata"]["uid"]);
    assert_eq!(again["spec"]["ports"][0]["targetPort"], server.address.port());
}

#[tokio::test(flavor = "multi_thread")]
async fn status_generation_and_scale_have_their_own_ways() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    let (code, made) = client.post(DEPLOYMENTS, &deployment("web")).await;
    assert_eq!((code, &made["metadata"]["generation"]), (201, &json!(1)));
    let path = format!("{DEPLOYMENTS}/web");
    let status = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web",
        "annotations": {"deployment.kubernetes.io/revision": "1"}},
        "spec": {"replicas": 9}, "status": {"replicas": 1, "observedGeneration": 1}});
    let (_, told) = client
        .json(Method::PUT, &format!("{path}/status"), Some(&status))
        .await;
    assert_eq!(
        told["spec"]["replicas"], 1,
        "a status changes nothing else: {told}"
    );
    assert_eq!(told["status"]["observedGeneration"], 1);
    assert_eq!(
        told["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "1"
    );
    assert_eq!(told["metadata"]["generation"], 1);
    let (_, scale) = client.get(&format!("{path}/scale")).await;
    assert_eq!(scale["status"], json!({"replicas": 1, "selector": "app=web"}));
    let answer = client
        .send(
            Method::PATCH,
            &format!("{path}/scale"),
            "application/merge-patch+json",
            r#"{"spec": {"replicas": 3}}"#,
        )
        .await;
    assert_eq!(collect(answer).await.0, 200);
    let (_, grown) = client.get(&path).await;
    assert_eq!(
        (&grown["spec"]["replicas"], &grown["metadata"]["generation"]),
        (&json!(3), &json!(2))
    );
    assert_eq!(grown["status"]["replicas"], 1);
    let mut moved = deployment("web");
    moved["spec"]["selector"]["matchLabels"] = json!({"app": "other"});
    moved["spec"]["template"]["metadata"]["labels"] = json!({"app": "other"});
    let (code, refused) = client.json(Method::PUT, &path, Some(&moved)).await;
    assert_eq!(code, 422);
    assert!(
        refused["message"]
            .as_str()
            .unwrap_or_default()
            .contains("field is immutable"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_makes_what_nobody_acts_on_is_told_so() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    let answer = client
        .send(
            Method::POST,
            DEPLOYMENTS,
            "application/json",
            deployment("web").to_string(),
        )
        .await;
    let warning = answer
        .headers()
        .get("warning")
        .expect("a warning")
        .to_str()
        .expect("text")
        .to_owned();
    assert!(warning.contains("kube-controller-manager"), "{warning}");
    collect(answer).await;
    let (_, events) = client
        .get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dweb")
        .await;
    assert_eq!(events["items"][0]["reason"], "NobodyActs", "{events}");
    // Somebody who watches deployments acts on them.
    let watcher = Client::admin(&server).await;
    let mut events = watcher.watch("/apis/apps/v1/deployments?watch=true").await;
    assert_eq!(events.next_named().await.1, "web");
    let answer = client
        .send(
            Method::POST,
            DEPLOYMENTS,
            "application/json",
            deployment("two").to_string(),
        )
        .await;
    assert!(answer.headers().get("warning").is_none());
    collect(answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn protobuf_is_spoken_in_bodies_answers_lists_and_watches() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    client.accept = PROTOBUF;
    // What the server writes in protobuf it reads in protobuf.
    let answer = client
        .send(
            Method::POST,
            &format!("{DEPLOYMENTS}?dryRun=All"),
            "application/json",
            deployment("web").to_string(),
        )
        .await;
    assert_eq!(answer.headers()["content-type"], PROTOBUF);
    let (code, body) = collect(answer).await;
    assert_eq!(code, 201);
    assert!(body.starts_with(b"k8s\0"));
    let answer = client.send(Method::POST, DEPLOYMENTS, PROTOBUF, body).await;
    let (code, body) = collect(answer).await;
    assert_eq!(code, 201, "{}", String::from_utf8_lossy(&body));
    client.accept = "";
    let (_, read) = client.get(&format!("{DEPLOYMENTS}/web")).await;
    assert_eq!(read["spec"]["strategy"]["rollingUpdate"]["maxSurge"], "25%");
    client.accept = PROTOBUF;
    let answer = client.send(Method::GET, DEPLOYMENTS, "", "").await;
    let (_, list) = collect(answer).await;
    assert!(list.windows(14).any(|part| part == b"DeploymentList"));
    // Events are messages with their length before them.
    let mut watcher = Client::connect(&server, Credential::Kubeconfig(server.kubeconfig.clone())).await;
    watcher.accept = PROTOBUF;
    let path = format!("{DEPLOYMENTS}?watch=true&timeoutSeconds=20");
    let answer = watcher.send(Method::GET, &path, "", "").await;
    assert_eq!(
        answer.headers()["content-type"],
        "application/vnd.kubernetes.protobuf;stream=watch"
    );
    let mut stream = answer.into_body();
    let first = stream
        .frame()
        .await
        .expect("an event")
        .expect("whole")
        .into_data()
        .expect("data");
    let length = u32::from_be_bytes(first[..4].try_into().expect("a length"));
    assert_eq!(usize::try_from(length).expect("small") + 4, first.len());
    assert_eq!(&first[6..11], b"ADDED");
    // A table is for people.
    client.accept = "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1";
    assert_eq!(client.send(Method::GET, DEPLOYMENTS, "", "").await.status(), 406);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_reads_what_it_needs_and_writes_its_own_alone() {
    let server = TestServer::start();
    let kubeconfig = server.path().join("node-n1.kubeconfig");
    let mut node = Client::connect(&server, Credential::Kubeconfig(kubeconfig)).await;
    for path in [
        "/api/v1/services",
        "/apis/node.k8s.io/v1/runtimeclasses",
        "/apis/storage.k8s.io/v1/csidrivers",
    ] {
        assert_eq!(node.get(path).await.0, 200, "{path}");
    }
    for path in [
        DEPLOYMENTS,
        "/api/v1/persistentvolumes",
        "/apis/storage.k8s.io/v1/csinodes",
    ] {
        assert_eq!(node.get(path).await.0, 403, "{path}");
    }
    let csi = |name: &str| json!({"metadata": {"name": name}, "spec": {"drivers": []}});
    let nodes = "/apis/storage.k8s.io/v1/csinodes";
    assert_eq!(node.post(nodes, &csi("n1")).await.0, 201);
    assert_eq!(node.post(nodes, &csi("n2")).await.0, 403);
    assert_eq!(node.get(&format!("{nodes}/n1")).await.0, 200);
    assert_eq!(
        node.post(SERVICES, &service("x", json!({"ports": [{"port": 1}]})))
            .await
            .0,
        403
    );
}

#[test]
fn kubectl_makes_shows_explains_applies_and_deletes_them() {
    let server = TestServer::start();
    let Some(made) = server.kubectl(&["create", "deployment", "web", "--image=app", "--replicas=2"]) else {
        return;
    };
    assert!(
        made.stderr.contains("nobody acts on this Deployment"),
        "{}",
        made.stderr
    );
    made.success();
    let run = |arguments: &[&str]| server.kubectl(arguments).expect("kubectl was there").success();
    let shown = run(&["get", "deployments", "-o", "wide"]);
    assert!(shown.contains("0/2") && shown.contains("app=web"), "{shown}");
    run(&["scale", "deployment/web", "--replicas=5"]);
    assert!(run(&["get", "deploy", "web"]).contains("0/5"));
    run(&["set", "image", "deployment/web", "app=app:2"]);
    run(&["expose", "deployment", "web", "--port=80", "--name=front"]);
    let services = run(&["get", "services"]);
    assert!(
        services.contains("kubernetes") && services.contains("front"),
        "{services}"
    );
    assert!(run(&["explain", "deployment.spec.strategy"]).contains("rollingUpdate"));
    let manifest = serde_json::to_string(&deployment("applied")).expect("JSON");
    for _ in 0..2 {
        let apply = ["apply", "--server-side", "-f", "-"];
        server
            .kubectl_with(&server.kubeconfig, &apply, &manifest)
            .expect("kubectl was there")
            .success();
    }
    run(&["create", "job", "once", "--image=app"]);
    run(&[
        "create",
        "cronjob",
        "often",
        "--image=app",
        "--schedule=* * * * *",
    ]);
    let all = run(&["get", "all"]);
    for name in [
        "deployment.apps/web",
        "job.batch/once",
        "cronjob.batch/often",
        "service/kubernetes",
    ] {
        assert!(all.contains(name), "{name} is not in {all}");
    }
    run(&["delete", "deployment", "web", "--cascade=foreground"]);
    run(&["delete", "deployments,jobs,cronjobs", "--all"]);
    assert!(!run(&["get", "all"]).contains("deployment"));
}
