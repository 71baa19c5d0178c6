//! What a stolen certificate of a node is good for: nothing beyond the node and its own Pods.

use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, Credential};
use crate::harness::TestServer;

const PODS: &str = "/api/v1/namespaces/default/pods";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const OWN_NODE: &str = "/api/v1/nodes/n1";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// A server, its administrator and the node `n1`, which has registered itself.
struct Setting {
    _server: TestServer,
    admin: Client,
    node: Client,
    /// The uid of the Node object.
    uid: Value,
}

impl Setting {
    async fn new() -> Self {
        let server = TestServer::start();
        let admin = Client::admin(&server).await;
        let kubeconfig = server.path().join("node-n1.kubeconfig");
        let mut node = Client::connect(&server, Credential::Kubeconfig(kubeconfig)).await;
        let own = json!({"metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}},
            "spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}});
        let (code, created) = node.post("/api/v1/nodes", &own).await;
        assert_eq!(code, 201, "{created}");
        Self {
            _server: server,
            admin,
            node,
            uid: created["metadata"]["uid"].clone(),
        }
    }

    /// Sends a merge patch as the node.
    async fn patch(&mut self, path: &str, change: &Value) -> (u16, String) {
        let body = change.to_string();
        let content_type = "application/merge-patch+json";
        let answer = self.node.send(Method::PATCH, path, content_type, body).await;
        let (code, body) = crate::client::collect(answer).await;
        let status: Value = serde_json::from_slice(&body).expect("JSON");
        (
            code.as_u16(),
            status["message"].as_str().unwrap_or_default().to_owned(),
        )
    }
}

fn mirror(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "annotations": {"kubernetes.io/config.mirror": "hash"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "app"}]},
    })
}

fn message(status: &Value) -> &str {
    status["message"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_pod_opens_no_secret() {
    let mut setting = Setting::new().await;
    let secret = json!({"metadata": {"name": "crown"}, "stringData": {"key": "jewels"}});
    assert_eq!(setting.admin.post(SECRETS, &secret).await.0, 201);
    let mut pod = mirror("thief");
    pod["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": "crown"}}]);
    let (code, status) = setting.node.post(PODS, &pod).await;
    let (read, secret) = setting.node.get(&format!("{SECRETS}/crown")).await;
    assert_eq!(read, 403, "the node reads a secret by naming it: {secret}");
    assert_eq!(code, 403, "{status}");
    assert_eq!(
        message(&status),
        "pods \"thief\" is forbidden: node \"n1\" can not create pods that reference secrets"
    );
    // A mirror that is there already, from before such Pods were refused, gives nothing either.
    assert_eq!(setting.admin.post(PODS, &pod).await.0, 201);
    assert_eq!(setting.node.get(&format!("{SECRETS}/crown")).await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_pod_names_no_other_object() {
    let mut setting = Setting::new().await;
    let refused = [
        ("/spec/serviceAccountName", json!("default"), "serviceaccounts"),
        ("/spec/serviceAccount", json!("default"), "serviceaccounts"),
        ("/spec/imagePullSecrets", json!([{"name": "s"}]), "secrets"),
        (
            "/spec/containers/0/envFrom",
            json!([{"secretRef": {"name": "s"}}]),
            "secrets",
        ),
        (
            "/spec/containers/0/env",
            json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]),
            "configmaps",
        ),
        (
            "/spec/volumes",
            json!([{"name": "v", "configMap": {"name": "c"}}]),
            "configmaps",
        ),
        (
            "/spec/volumes",
            json!([{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
            "serviceaccounts (via projected volumes)",
        ),
        (
            "/spec/volumes",
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]),
            "persistentvolumeclaims",
        ),
    ];
    for (pointer, value, resource) in refused {
        let mut pod = mirror("thief");
        set(&mut pod, pointer, value);
        let (code, status) = setting.node.post(PODS, &pod).await;
        assert_eq!(code, 403, "{pointer}: {status}");
        let expected = format!("node \"n1\" can not create pods that reference {resource}");
        assert!(message(&status).ends_with(&expected), "{pointer}: {status}");
    }
}

/// Sets a member that need not be there.
fn set(object: &mut Value, pointer: &str, value: Value) {
    let (parent, member) = pointer.rsplit_once('/').expect("a pointer");
    object.pointer_mut(parent).expect("the parent is there")[member] = value;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_creates_mirrors_of_its_own_alone() {
    let mut setting = Setting::new().await;
    let mut plain = mirror("plain");
    plain["metadata"]["annotations"] = json!({});
    let (code, status) = setting.node.post(PODS, &plain).await;
    assert_eq!(code, 403, "{status}");
    assert!(
        message(&status).contains("can only create mirror pods"),
        "{status}"
    );
    let mut elsewhere = mirror("elsewhere");
    elsewhere["spec"]["nodeName"] = json!("n2");
    assert_eq!(setting.node.post(PODS, &elsewhere).await.0, 403);
    let uid = setting.uid.clone();
    let owner = |kind: &str, name: &str, uid: &Value| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid});
    for owners in [
        json!([owner(
            "Node",
            "n1",
            &json!("00000000-0000-0000-0000-000000000000")
        )]),
        json!([owner("Node", "n2", &uid)]),
        json!([owner("Pod", "n1", &uid)]),
        json!([owner("Node", "n1", &uid), owner("Node", "n1", &uid)]),
    ] {
        let mut pod = mirror("owned");
        pod["metadata"]["ownerReferences"] = owners.clone();
        let (code, status) = setting.node.post(PODS, &pod).await;
        assert_eq!(code, 403, "{owners}: {status}");
    }
    let mut pod = mirror("owned");
    pod["metadata"]["ownerReferences"] = json!([owner("Node", "n1", &uid)]);
    let (code, stored) = setting.node.post(PODS, &pod).await;
    assert_eq!(code, 201, "{stored}");
    assert_eq!(
        stored["spec"].get("serviceAccountName"),
        None,
        "a mirror has no account"
    );
    assert_eq!(setting.node.post(PODS, &mirror("bare")).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_deletes_evicts_and_reports_its_own_pods_alone() {
    let mut setting = Setting::new().await;
    for (name, node) in [("mine", "n1"), ("other", "n2")] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"nodeName": node, "containers": [{"name": "app", "image": "app"}]}});
        assert_eq!(setting.admin.post(PODS, &pod).await.0, 201);
    }
    let path = |name: &str, part: &str| format!("{PODS}/{name}{part}");
    let eviction = json!({"metadata": {"name": "other"}});
    assert_eq!(
        setting.node.post(&path("other", "/eviction"), &eviction).await.0,
        403
    );
    let deleted = setting.node.json(Method::DELETE, &path("other", ""), None).await;
    assert_eq!(deleted.0, 403, "{}", deleted.1);
    let running = json!({"status": {"phase": "Running"}});
    assert_eq!(setting.patch(&path("other", "/status"), &running).await.0, 403);
    assert_eq!(setting.patch(&path("mine", "/status"), &running).await.0, 200);
    let claims = json!({"status": {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "theirs"}]}});
    let (code, why) = setting.patch(&path("mine", "/status"), &claims).await;
    assert_eq!(code, 403, "{why}");
    // A status carries nothing else into the Pod.
    let more =
        json!({"metadata": {"labels": {"app": "db"}, "ownerReferences": []}, "status": {"phase": "Running"}});
    setting.patch(&path("mine", "/status"), &more).await;
    let (_, mine) = setting.admin.get(&path("mine", "")).await;
    assert_eq!(mine["metadata"]["labels"]["app"], "web");
    assert_eq!(
        setting
            .patch(&path("mine", ""), &json!({"metadata": {"labels": {"a": "b"}}}))
            .await
            .0,
        403
    );
    let gone = setting.node.json(Method::DELETE, &path("gone", ""), None).await;
    assert_eq!(gone.0, 404, "{}", gone.1);
    let eviction = json!({"metadata": {"name": "mine"}});
    assert_eq!(
        setting.node.post(&path("mine", "/eviction"), &eviction).await.0,
        201
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_does_not_choose_which_pods_come_to_it() {
    let mut setting = Setting::new().await;
    let forbidden = [
        json!({"metadata": {"labels": {"node-restriction.kubernetes.io/trusted": "yes"}}}),
        json!({"metadata": {"labels": {"a.node-restriction.kubernetes.io/trusted": "yes"}}}),
        json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
        json!({"metadata": {"labels": {"k8s.io/own": "x"}}}),
        json!({"spec": {"taints": []}}),
        json!({"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}]}}),
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": setting.uid}]}}),
    ];
    for change in forbidden {
        let (code, why) = setting.patch(OWN_NODE, &change).await;
        assert_eq!(code, 403, "{change}: {why}");
        let status = format!("{OWN_NODE}/status");
        setting.patch(&status, &change).await;
    }
    let (_, node) = setting.admin.get(OWN_NODE).await;
    assert_eq!(
        node["metadata"]["labels"],
        json!({"kubernetes.io/hostname": "n1"})
    );
    assert_eq!(node["spec"]["taints"].as_array().map(Vec::len), Some(1));
    let allowed = [
        json!({"metadata": {"labels": {"example.com/zone": "a", "topology.kubernetes.io/zone": "a"}}}),
        json!({"metadata": {"labels": {"kubelet.kubernetes.io/x": "y", "a.node.kubernetes.io/x": "y"}}}),
        json!({"metadata": {"annotations": {"a": "b"}}}),
    ];
    for change in allowed {
        let (code, why) = setting.patch(OWN_NODE, &change).await;
        assert_eq!(code, 200, "{change}: {why}");
    }
    // What the administrator has set, the node does not take away.
    let trusted =
        json!({"metadata": {"labels": {"node-restriction.kubernetes.io/trusted": "no"}}}).to_string();
    let content_type = "application/merge-patch+json";
    let answer = setting
        .admin
        .send(Method::PATCH, OWN_NODE, content_type, trusted)
        .await;
    assert_eq!(crate::client::collect(answer).await.0, 200);
    let change = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/trusted": null}}});
    let (code, why) = setting.patch(OWN_NODE, &change).await;
    assert_eq!(code, 403);
    assert!(
        why.ends_with("is not allowed to modify labels: node-restriction.kubernetes.io/trusted"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_registers_under_its_own_name_without_restricted_labels() {
    let server = TestServer::start();
    let kubeconfig = server.path().join("node-n1.kubeconfig");
    let mut node = Client::connect(&server, Credential::Kubeconfig(kubeconfig)).await;
    let labelled = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1",
        "labels": {"node-restriction.kubernetes.io/trusted": "yes"}}});
    let (code, status) = node.post("/api/v1/nodes", &labelled).await;
    assert_eq!(code, 403, "{status}");
    // Applying what is not there creates it, by the same rules.
    let apply = format!("{OWN_NODE}?fieldManager=node");
    let content_type = "application/apply-patch+yaml";
    let answer = node
        .send(Method::PATCH, &apply, content_type, labelled.to_string())
        .await;
    assert_eq!(crate::client::collect(answer).await.0, 403);
    let other = json!({"metadata": {"name": "n2"}});
    assert_eq!(node.post("/api/v1/nodes", &other).await.0, 403);
    let unnamed = json!({"metadata": {"generateName": "n1"}});
    assert_eq!(node.post("/api/v1/nodes", &unnamed).await.0, 403);
    assert_eq!(
        node.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}}))
            .await
            .0,
        201
    );
    assert_eq!(node.json(Method::DELETE, OWN_NODE, None).await.0, 403);
    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
    assert_eq!(node.post(LEASES, &lease("n2")).await.0, 403);
    let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    assert_eq!(node.post(elsewhere, &lease("n1")).await.0, 403);
    assert_eq!(node.post(LEASES, &lease("n1")).await.0, 201);
    let renewed = node
        .json(Method::PUT, &format!("{LEASES}/n2"), Some(&lease("n2")))
        .await;
    assert_eq!(renewed.0, 403, "{}", renewed.1);
}
