//! Roles and bindings: what they allow, what they gather, and that nobody grants what they do not have.

use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, Credential};
use crate::harness::TestServer;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A server that knows `ann` by a token.
fn start() -> TestServer {
    let directory = tempfile::TempDir::new().expect("a directory");
    std::fs::write(directory.path().join("tokens.csv"), "ann-token,ann,1,\"team\"\n").expect("it is written");
    TestServer::start_in(directory, |_| {})
}

async fn ann(server: &TestServer) -> Client {
    Client::connect(server, Credential::Token("ann-token".to_owned())).await
}

/// Runs kubectl, or ends the test where there is none.
macro_rules! kubectl {
    ($server:expr, $($argument:expr),+ $(,)?) => {
        match $server.kubectl(&[$($argument),+]) {
            Some(answer) => answer,
            None => return,
        }
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_grants_and_takes_back_at_once() {
    let server = start();
    let mut ann = ann(&server).await;
    assert_eq!(ann.get(PODS).await.0, 403);
    kubectl!(
        server,
        "create",
        "role",
        "reader",
        "--verb=get,list",
        "--resource=pods"
    )
    .success();
    kubectl!(
        server,
        "create",
        "rolebinding",
        "readers",
        "--role=reader",
        "--user=ann"
    )
    .success();
    assert_eq!(ann.get(PODS).await.0, 200, "it counts for the next request");
    assert_eq!(ann.get("/api/v1/pods").await.0, 403, "in its namespace only");
    assert_eq!(ann.post(PODS, &json!({"metadata": {"name": "p"}})).await.0, 403);
    let yes = kubectl!(server, "auth", "can-i", "list", "pods", "--as=ann").success();
    assert_eq!(yes, "yes\n");
    assert!(
        !kubectl!(
            server,
            "auth",
            "can-i",
            "list",
            "pods",
            "--as=ann",
            "-n",
            "kube-system"
        )
        .ok
    );
    let wide = kubectl!(server, "get", "rolebinding", "readers", "-o", "wide").success();
    assert!(wide.contains("Role/reader") && wide.contains("ann"), "{wide}");
    kubectl!(server, "delete", "rolebinding", "readers").success();
    assert_eq!(ann.get(PODS).await.0, 403);
    kubectl!(
        server,
        "create",
        "clusterrolebinding",
        "team",
        "--clusterrole=view",
        "--group=team"
    )
    .success();
    assert_eq!(ann.get("/api/v1/pods").await.0, 200);
    assert_eq!(ann.get("/api/v1/secrets").await.0, 403, "view shows no secrets");
    let described = kubectl!(server, "describe", "clusterrole", "view").success();
    assert!(described.contains("pods/log"), "{described}");
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_gather_the_rules_of_others() {
    let server = start();
    let mut admin = Client::admin(&server).await;
    let rules = async |admin: &mut Client| {
        admin.get(&format!("{RBAC}/clusterroles/view")).await.1["rules"].to_string()
    };
    assert!(
        rules(&mut admin).await.contains("pods/log"),
        "it begins with what others have"
    );
    let role = json!({"metadata": {"name": "widgets", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["widgets"]}]});
    assert_eq!(admin.post(&format!("{RBAC}/clusterroles"), &role).await.0, 201);
    assert!(rules(&mut admin).await.contains("widgets"));
    let edit = admin.get(&format!("{RBAC}/clusterroles/edit")).await.1["rules"].to_string();
    assert!(edit.contains("widgets"), "edit gathers view");
    assert_eq!(
        admin
            .json(Method::DELETE, &format!("{RBAC}/clusterroles/widgets"), None)
            .await
            .0,
        200
    );
    assert!(!rules(&mut admin).await.contains("widgets"));
}

fn role(verbs: &[&str]) -> Value {
    json!({"metadata": {"name": "made"}, "rules": [{"verbs": verbs, "apiGroups": [""], "resources": ["pods"]}]})
}

fn binding(role: &str) -> Value {
    json!({"metadata": {"name": "made"}, "roleRef": {"kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "name": "ann"}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_grants_what_they_do_not_have() {
    let server = start();
    let mut admin = Client::admin(&server).await;
    // She may write roles and bindings, and get pods.
    let may = json!({"metadata": {"name": "writer"}, "rules": [
        {"verbs": ["*"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"]},
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
    assert_eq!(admin.post(&format!("{RBAC}/clusterroles"), &may).await.0, 201);
    let bound = json!({"metadata": {"name": "writers"}, "roleRef": {"kind": "ClusterRole", "name": "writer"},
        "subjects": [{"kind": "User", "name": "ann"}]});
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    assert_eq!(admin.post(&bindings, &bound).await.0, 201);
    let mut ann = ann(&server).await;
    let roles = format!("{RBAC}/namespaces/default/roles");
    let (code, refused) = ann.post(&bindings, &binding("cluster-admin")).await;
    assert_eq!(code, 403, "{refused}");
    let text = refused["message"].as_str().expect("a message");
    assert!(
        text.contains("is attempting to grant RBAC permissions not currently held"),
        "{text}"
    );
    assert_eq!(
        ann.post(&bindings, &binding("writer")).await.0,
        201,
        "what she has"
    );
    // All verbs on roles hold the verb that lets her write any of them.
    assert_eq!(ann.post(&roles, &role(&["delete"])).await.0, 201);
    // Without it she may not.
    let less = json!({"rules": [
        {"verbs": ["create", "get", "patch"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"]},
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
    let patch = "application/merge-patch+json";
    let patched = admin
        .send(
            Method::PATCH,
            &format!("{RBAC}/clusterroles/writer"),
            patch,
            less.to_string(),
        )
        .await;
    assert_eq!(crate::client::collect(patched).await.0, 200);
    let (code, _) = ann.json(Method::GET, &format!("{roles}/made"), None).await;
    assert_eq!(code, 200);
    let wanted = json!({"rules": role(&["get", "list"])["rules"]});
    let answer = ann
        .send(Method::PATCH, &format!("{roles}/made"), patch, wanted.to_string())
        .await;
    assert_eq!(
        crate::client::collect(answer).await.0,
        403,
        "a patch grants as well"
    );
    let wanted = json!({"rules": role(&["get"])["rules"]});
    let answer = ann
        .send(Method::PATCH, &format!("{roles}/made"), patch, wanted.to_string())
        .await;
    assert_eq!(crate::client::collect(answer).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_is_checked_and_a_bound_role_stays() {
    let server = start();
    let mut admin = Client::admin(&server).await;
    let bindings = format!("{RBAC}/clusterrolebindings");
    let (code, made) = admin.post(&bindings, &binding("view")).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["subjects"][0]["apiGroup"], "rbac.authorization.k8s.io");
    let change =
        json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}});
    let patch = "application/merge-patch+json";
    let answer = admin
        .send(
            Method::PATCH,
            &format!("{bindings}/made"),
            patch,
            change.to_string(),
        )
        .await;
    assert_eq!(crate::client::collect(answer).await.0, 422);
    let empty = json!({"metadata": {"name": "e"}, "rules": [{"verbs": []}]});
    assert_eq!(admin.post(&format!("{RBAC}/clusterroles"), &empty).await.0, 422);
    // What the server began with is there again after it was deleted and the server restarted.
    let view = format!("{RBAC}/clusterroles/view");
    assert_eq!(admin.json(Method::DELETE, &view, None).await.0, 200);
    drop(admin);
    let server = TestServer::start_in(server.stop(), |_| {});
    let (code, found) = Client::admin(&server).await.get(&view).await;
    assert_eq!(code, 200);
    assert!(found["rules"].to_string().contains("pods/log"));
}
