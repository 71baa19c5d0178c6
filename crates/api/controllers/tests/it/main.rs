//! Controllers on a server of their own: what they make of objects that nobody asks about.

use pulselet_apiserver::{Config, Deletion, LocalClient, Object, ResourceKind, Server};
use pulselet_controllers::{ControllerOptions, Controllers};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Cluster {
    client: LocalClient,
    _controllers: Controllers,
    _server: Server,
    _directory: TempDir,
}

impl Cluster {
    /// A server that no request reaches, and its controllers.
    async fn start(bind_pods: bool) -> Self {
        Self::start_with(bind_pods, Vec::new()).await
    }

    /// The same, with objects that are there before the controllers.
    async fn start_with(bind_pods: bool, objects: Vec<(ResourceKind, Value)>) -> Self {
        let directory = TempDir::new().expect("a directory");
        let config = Config::new(([127, 0, 0, 1], 0).into(), directory.path());
        let server = Server::bind(config).await.expect("the server starts");
        let client = server.client();
        for (kind, object) in objects {
            let object = Object::new(object).expect("an object");
            client.ensure(kind, object).await.expect("it is created");
        }
        Self {
            _controllers: Controllers::start(
                &client,
                ControllerOptions {
                    bind_pods,
                    write_endpoints: true,
                },
            ),
            client,
            _server: server,
            _directory: directory,
        }
    }

    async fn create(&self, kind: ResourceKind, value: Value) {
        let object = Object::new(value).expect("an object");
        self.client.ensure(kind, object).await.expect("it is created");
    }

    /// Waits until the objects of a kind are as wanted, and returns them.
    async fn wait(&self, kind: ResourceKind, wanted: impl Fn(&[Object]) -> bool) -> Vec<Object> {
        loop {
            let (objects, revision) = self.client.list(kind, None).await.expect("a list");
            if wanted(&objects) {
                return objects;
            }
            let mut watch = self.client.watch(kind, revision).await.expect("a watch");
            watch.next().await.expect("a change");
        }
    }
}

fn pod(name: &str, namespace: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    })
}

fn ready_node(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

#[tokio::test]
async fn a_pod_waits_for_a_node_and_is_bound_when_one_comes() {
    let cluster = Cluster::start(true).await;
    cluster.create(ResourceKind::Pod, pod("web", "default")).await;
    let message = |pod: &Object| pod.text("/status/conditions/0/message").to_owned();
    let pods = cluster
        .wait(ResourceKind::Pod, |pods| {
            pods.iter().any(|pod| !message(pod).is_empty())
        })
        .await;
    assert_eq!(message(&pods[0]), "no nodes available to schedule pods");
    cluster.create(ResourceKind::Node, ready_node("n1")).await;
    cluster
        .wait(ResourceKind::Pod, |pods| {
            pods.iter().any(|pod| pod.text("/spec/nodeName") == "n1")
        })
        .await;
    let said = |events: &[Object], reason: &str| events.iter().any(|event| event.text("/reason") == reason);
    cluster
        .wait(ResourceKind::Event, |events| {
            said(events, "FailedScheduling") && said(events, "Scheduled")
        })
        .await;
}

#[tokio::test]
async fn a_namespace_that_ends_takes_what_is_in_it_along() {
    let cluster = Cluster::start(false).await;
    let namespace = json!({"metadata": {"name": "short"}});
    cluster.create(ResourceKind::Namespace, namespace.clone()).await;
    cluster.create(ResourceKind::Pod, pod("web", "short")).await;
    let deleted = cluster
        .client
        .delete(
            ResourceKind::Namespace,
            &Object::new(namespace).expect("an object"),
        )
        .await;
    assert_eq!(deleted, Ok(Deletion::Marked));
    cluster
        .wait(ResourceKind::Namespace, |namespaces| {
            namespaces.iter().all(|namespace| namespace.name() != "short")
        })
        .await;
    let (pods, _) = cluster
        .client
        .list(ResourceKind::Pod, None)
        .await
        .expect("a list");
    assert!(pods.is_empty());
}

#[tokio::test]
async fn what_pods_need_stays_in_a_namespace_until_they_are_gone() {
    let cluster = Cluster::start(false).await;
    let namespace = json!({"metadata": {"name": "short"}});
    cluster.create(ResourceKind::Namespace, namespace.clone()).await;
    let mut held = pod("web", "short");
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    cluster.create(ResourceKind::Pod, held).await;
    let map = json!({"metadata": {"name": "settings", "namespace": "short"}});
    cluster.create(ResourceKind::ConfigMap, map).await;
    let namespace = Object::new(namespace).expect("an object");
    let deleted = cluster.client.delete(ResourceKind::Namespace, &namespace).await;
    assert_eq!(deleted, Ok(Deletion::Marked));
    cluster
        .wait(ResourceKind::Pod, |pods| pods.iter().any(Object::is_deleting))
        .await;
    let (maps, _) = cluster
        .client
        .list(ResourceKind::ConfigMap, Some("short"))
        .await
        .expect("a list");
    assert!(maps.iter().any(|map| map.name() == "settings"), "{maps:?}");
}

#[tokio::test]
async fn a_service_has_endpoints_as_long_as_it_is_there() {
    let cluster = Cluster::start(false).await;
    let service = json!({
        "metadata": {"name": "web", "namespace": "default", "labels": {"tier": "front"}},
        "spec": {"selector": {"app": "web"}, "clusterIP": "10.43.0.77", "clusterIPs": ["10.43.0.77"], "ipFamilies": ["IPv4"],
            "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}]},
    });
    cluster.create(ResourceKind::SERVICE, service).await;
    let has_web = |objects: &[Object]| objects.iter().any(|it| it.name() == "web");
    let slices = cluster.wait(ResourceKind::ENDPOINT_SLICE, has_web).await;
    let slice = slices.iter().find(|it| it.name() == "web").expect("is there");
    assert_eq!(slice.labels()["kubernetes.io/service-name"], "web");
    assert_eq!(slice.labels()["tier"], "front");
    cluster.wait(ResourceKind::ENDPOINTS, has_web).await;
    let (services, _) = cluster
        .client
        .list(ResourceKind::SERVICE, None)
        .await
        .expect("a list");
    let web = services.iter().find(|it| it.name() == "web").expect("is there");
    cluster
        .client
        .delete(ResourceKind::SERVICE, web)
        .await
        .expect("is deleted");
    for kind in [ResourceKind::ENDPOINT_SLICE, ResourceKind::ENDPOINTS] {
        cluster.wait(kind, |objects| !has_web(objects)).await;
    }
}

#[tokio::test]
async fn slices_of_a_manager_that_is_gone_go_too() {
    let slice = |name: &str, manager: &str| {
        let labels =
            json!({"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": manager});
        let slice = json!({"metadata": {"name": name, "namespace": "default", "labels": labels},
            "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.7"]}], "ports": []});
        (ResourceKind::ENDPOINT_SLICE, slice)
    };
    let left = vec![
        slice("web-abcde", "endpointslice-controller.k8s.io"),
        slice("web-fghij", "endpointslicemirroring-controller.k8s.io"),
        slice("by-hand", "somebody"),
    ];
    let cluster = Cluster::start_with(false, left).await;
    let remaining = |slices: &[Object]| {
        let mut names: Vec<&str> = slices.iter().map(Object::name).collect();
        names.retain(|name| *name != "kubernetes");
        names == ["by-hand"]
    };
    cluster.wait(ResourceKind::ENDPOINT_SLICE, remaining).await;
}
