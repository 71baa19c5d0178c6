//! Who somebody is, what they may do, and the tokens of service accounts.

use std::path::PathBuf;

use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, Credential};
use crate::harness::TestServer;

const PODS: &str = "/api/v1/namespaces/default/pods";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const CAN_I: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const CAN_THEY: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// Runs kubectl, or ends the test where there is none.
macro_rules! kubectl {
    ($server:expr, $kubeconfig:expr, $($argument:expr),+ $(,)?) => {
        match $server.kubectl_with($kubeconfig, &[$($argument),+], "") {
            Some(answer) => answer,
            None => return,
        }
    };
}

/// A kubeconfig for somebody with a token.
fn kubeconfig_with_token(server: &TestServer, name: &str, token: &str) -> PathBuf {
    let admin = std::fs::read_to_string(&server.kubeconfig).expect("a kubeconfig");
    let (head, _) = admin.split_once("users:").expect("the users come last");
    let path = server.path().join(format!("{name}.kubeconfig"));
    let user = format!("users:\n- name: admin\n  user:\n    token: {token}\n");
    std::fs::write(&path, head.to_owned() + &user).expect("it is written");
    path
}

async fn token_of(client: &mut Client, account: &str, spec: &Value) -> (u16, Value) {
    client
        .post(&format!("{ACCOUNTS}/{account}/token"), &json!({"spec": spec}))
        .await
}

async fn with_token(server: &TestServer, answer: &Value) -> Client {
    let token = answer["status"]["token"].as_str().expect("a token").to_owned();
    Client::connect(server, Credential::Token(token)).await
}

fn pod(name: &str, node: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "nodeName": node, "serviceAccountName": "robot",
        "containers": [{"name": "app", "image": "app"}],
        "volumes": [{"name": "t", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "audience": "vault"}}]}}]}})
}

#[test]
fn kubectl_asks_who_it_is_and_what_it_may() {
    let server = TestServer::start();
    let admin = server.kubeconfig.clone();
    let whoami = kubectl!(server, &admin, "auth", "whoami", "-o", "json").success();
    let whoami: Value = serde_json::from_str(&whoami).expect("JSON");
    assert_eq!(whoami["status"]["userInfo"]["username"], "admin");
    assert_eq!(whoami["status"]["userInfo"]["groups"][0], "system:masters");
    assert_eq!(
        kubectl!(server, &admin, "auth", "can-i", "delete", "pods").success(),
        "yes\n"
    );
    assert!(
        kubectl!(server, &admin, "auth", "can-i", "--list")
            .success()
            .contains("*.*")
    );
    let refused = kubectl!(server, &admin, "auth", "can-i", "delete", "pods", "--as=bob");
    assert_eq!(
        (refused.ok, refused.stdout.as_str()),
        (false, "no\n"),
        "{}",
        refused.stderr
    );
    let forbidden = kubectl!(server, &admin, "get", "pods", "--as=bob", "--as-group=team").failure();
    assert!(
        forbidden.contains("User \"bob\" cannot list resource \"pods\""),
        "{forbidden}"
    );
    let listed = kubectl!(server, &admin, "auth", "can-i", "--list", "--as=bob").success();
    assert!(
        listed.contains("selfsubjectaccessreviews") && !listed.contains("*.*"),
        "{listed}"
    );
    if let Some(old) = std::env::var_os("PULSELET_OLD_KUBECTL") {
        let mut command = std::process::Command::new(old);
        command.env("HOME", server.path()).env("KUBECONFIG", &admin);
        let output = command
            .args(["auth", "can-i", "get", "pods"])
            .output()
            .expect("kubectl runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "yes\n");
    }
}

#[test]
fn kubectl_makes_a_token_and_uses_it() {
    let server = TestServer::start();
    let admin = server.kubeconfig.clone();
    kubectl!(server, &admin, "create", "serviceaccount", "robot").success();
    let token = kubectl!(server, &admin, "create", "token", "robot", "--duration=20m").success();
    let robot = kubeconfig_with_token(&server, "robot", token.trim());
    let whoami = kubectl!(server, &robot, "auth", "whoami", "-o", "json").success();
    let whoami: Value = serde_json::from_str(&whoami).expect("JSON");
    let user = &whoami["status"]["userInfo"];
    assert_eq!(user["username"], "system:serviceaccount:default:robot");
    assert_eq!(user["groups"][1], "system:serviceaccounts:default");
    let forbidden = kubectl!(server, &robot, "get", "pods").failure();
    assert!(forbidden.contains("Forbidden"), "{forbidden}");
    let short = kubectl!(server, &admin, "create", "token", "robot", "--duration=1m").failure();
    assert!(short.contains("less than 10 minutes"), "{short}");
    kubectl!(server, &admin, "delete", "serviceaccount", "robot").success();
    let gone = kubectl!(server, &robot, "auth", "whoami").failure();
    assert!(
        gone.contains("Unauthorized") || gone.contains("logged in"),
        "{gone}"
    );
}

#[test]
fn kubectl_reads_documents_that_are_no_objects() {
    let server = TestServer::start();
    let admin = server.kubeconfig.clone();
    let raw = |path: &str| server.kubectl_with(&admin, &["get", "--raw", path], "");
    let Some(verbose) = raw("/readyz?verbose") else {
        return;
    };
    assert_eq!(
        verbose.success(),
        "[+]ping ok\n[+]store ok\n[+]store-writes ok\nreadyz check passed\n"
    );
    let without = raw("/livez?verbose&exclude=store").unwrap().success();
    assert_eq!(without, "[+]ping ok\n[+]store excluded: ok\nlivez check passed\n");
    assert_eq!(raw("/livez/store").unwrap().success(), "ok");
    assert!(!raw("/livez/nonsense").unwrap().ok);
    assert!(
        raw("/metrics")
            .unwrap()
            .success()
            .contains("apiserver_request_total")
    );
    let info = server.kubectl(&["cluster-info"]).unwrap().success();
    assert!(info.contains("is running at"), "{info}");
    let discovery: Value =
        serde_json::from_str(&raw("/.well-known/openid-configuration").unwrap().success()).expect("JSON");
    let keys = discovery["jwks_uri"].as_str().expect("an address");
    assert!(keys.ends_with("/openid/v1/jwks"));
    let keys: Value = serde_json::from_str(&raw("/openid/v1/jwks").unwrap().success()).expect("JSON");
    assert_eq!(
        (&keys["keys"][0]["alg"], &keys["keys"][0]["kty"]),
        (&json!("ES256"), &json!("EC"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_counts_for_its_audience_and_as_long_as_what_it_is_bound_to() {
    let server = TestServer::start();
    let mut admin = Client::admin(&server).await;
    admin
        .post(ACCOUNTS, &json!({"metadata": {"name": "robot"}}))
        .await;
    assert_eq!(admin.post(PODS, &pod("web", "")).await.0, 201);
    let (_, stored) = admin.get(&format!("{PODS}/web")).await;
    let uid = &stored["metadata"]["uid"];
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid});
    let (code, answer) = token_of(&mut admin, "robot", &json!({"boundObjectRef": bound})).await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(answer["spec"]["expirationSeconds"], 3600);
    let mut robot = with_token(&server, &answer).await;
    let (code, me) = robot.post(WHOAMI, &json!({})).await;
    assert_eq!(code, 201, "{me}");
    assert_eq!(
        me["status"]["userInfo"]["extra"]["authentication.kubernetes.io/pod-name"],
        json!(["web"])
    );
    // For somebody else only.
    let (_, other) = token_of(&mut admin, "robot", &json!({"audiences": ["vault"]})).await;
    assert_eq!(
        with_token(&server, &other).await.post(WHOAMI, &json!({})).await.0,
        401
    );
    let review =
        |audiences: Value| json!({"spec": {"token": other["status"]["token"], "audiences": audiences}});
    let (_, reviewed) = admin.post(TOKEN_REVIEWS, &review(json!(["vault", "x"]))).await;
    assert_eq!(reviewed["status"]["authenticated"], true, "{reviewed}");
    assert_eq!(reviewed["status"]["audiences"], json!(["vault"]));
    let (_, reviewed) = admin.post(TOKEN_REVIEWS, &review(json!([]))).await;
    assert!(
        reviewed["status"]["error"]
            .as_str()
            .expect("an error")
            .contains("audiences"),
        "{reviewed}"
    );
    for (wrong, code) in [
        (
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "x"}}),
            409,
        ),
        (
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "none"}}),
            404,
        ),
        (
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": "ConfigMap", "name": "web"}}),
            400,
        ),
        (json!({"expirationSeconds": 10}), 422),
    ] {
        assert_eq!(token_of(&mut admin, "robot", &wrong).await.0, code, "{wrong}");
    }
    assert_eq!(
        token_of(&mut admin, "default", &json!({"boundObjectRef": bound}))
            .await
            .0,
        400
    );
    // The pod goes, and so does its token.
    assert_eq!(
        admin.json(Method::DELETE, &format!("{PODS}/web"), None).await.0,
        200
    );
    assert_eq!(robot.post(WHOAMI, &json!({})).await.0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_outlive_the_server_and_strangers_make_none() {
    let server = TestServer::start();
    let mut admin = Client::admin(&server).await;
    let (_, answer) = token_of(&mut admin, "default", &json!({})).await;
    let key = server.path().join("pki/sa.key");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&key).expect("a key").permissions());
    assert_eq!(mode & 0o777, 0o600);
    let server = TestServer::start_in(server.stop(), |_| {});
    assert_eq!(
        with_token(&server, &answer)
            .await
            .post(WHOAMI, &json!({}))
            .await
            .0,
        201
    );
    let token = answer["status"]["token"].as_str().expect("a token");
    let (rest, _) = token.rsplit_once('.').expect("a signature");
    for forged in [format!("{rest}.AAAA"), rest.to_owned()] {
        let mut stranger = Client::connect(&server, Credential::Token(forged)).await;
        assert_eq!(stranger.post(WHOAMI, &json!({})).await.0, 401);
    }
    let mut nobody = Client::connect(&server, Credential::Nothing).await;
    assert_eq!(nobody.post(WHOAMI, &json!({})).await.0, 403);
    assert_eq!(token_of(&mut nobody, "default", &json!({})).await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_tokens_for_its_own_pods_and_asks_about_callers() {
    let server = TestServer::start();
    let mut admin = Client::admin(&server).await;
    admin
        .post(ACCOUNTS, &json!({"metadata": {"name": "robot"}}))
        .await;
    for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
        assert_eq!(admin.post(PODS, &pod(name, node)).await.0, 201);
    }
    let kubeconfig = server.path().join("node-n1.kubeconfig");
    let mut node = Client::connect(&server, Credential::Kubeconfig(kubeconfig)).await;
    let bound = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name});
    for (spec, code) in [
        (json!({"boundObjectRef": bound("mine")}), 201),
        (
            json!({"boundObjectRef": bound("mine"), "audiences": ["vault"]}),
            201,
        ),
        (
            json!({"boundObjectRef": bound("mine"), "audiences": ["bank"]}),
            403,
        ),
        (json!({"boundObjectRef": bound("theirs")}), 403),
        (json!({}), 403),
    ] {
        assert_eq!(token_of(&mut node, "robot", &spec).await.0, code, "{spec}");
    }
    assert_eq!(
        token_of(&mut node, "default", &json!({"boundObjectRef": bound("mine")}))
            .await
            .0,
        403
    );
    let asked = json!({"spec": {"user": "admin", "groups": ["system:masters"],
        "resourceAttributes": {"verb": "get", "resource": "nodes", "subresource": "proxy"}}});
    let (code, answer) = node.post(CAN_THEY, &asked).await;
    assert_eq!(
        (code, &answer["status"]["allowed"]),
        (201, &json!(true)),
        "{answer}"
    );
    let own = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "nodes", "name": "n1"}}});
    let (code, answer) = node.post(CAN_I, &own).await;
    assert_eq!(
        (code, &answer["status"]["allowed"]),
        (201, &json!(true)),
        "{answer}"
    );
    let other = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "nodes", "name": "n2"}}});
    assert_eq!(node.post(CAN_I, &other).await.1["status"]["allowed"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_no_object_has_no_table() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    let question = json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    assert_eq!(client.post(CAN_I, &question).await.0, 201);
    client.accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let (code, status) = client.post(CAN_I, &question).await;
    assert_eq!((code, &status["reason"]), (406, &json!("NotAcceptable")));
}
