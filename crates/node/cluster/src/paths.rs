//! Where objects are at an API server.

pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
pub(crate) const PERSISTENT_VOLUMES: &str = "/api/v1/persistentvolumes";
pub(crate) const RUNTIME_CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";

pub(crate) fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

pub(crate) fn pod(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

pub(crate) fn events(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/events")
}

pub(crate) fn named(namespace: &str, resource: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{resource}/{name}")
}
