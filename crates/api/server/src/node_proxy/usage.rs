//! metrics.k8s.io: what pods and nodes use, for `kubectl top`.
//!
//! None of this is stored. Each request asks the nodes for their `/stats/summary` and answers with what they say about
//! the objects that are there. A node that does not answer in time has nothing to say: its pods are left out, as
//! upstream's metrics server leaves them out.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::access::ResourceAttributes;
use crate::node_proxy::Nodes;
use crate::registry::Registry;
use crate::registry::object::Object;
use crate::registry::resource::ResourceKind;
use crate::rest::query::{ListOptions, Query};
use crate::rest::status::{ApiError, StatusReason};

pub(crate) const GROUP: &str = "metrics.k8s.io";
pub(crate) const VERSION: &str = "v1beta1";
const API_VERSION: &str = "metrics.k8s.io/v1beta1";
const VERBS: [&str; 2] = ["get", "list"];
/// How many nodes are asked at a time.
const ASKED_AT_ONCE: usize = 16;
/// How long a node may take to say what it uses.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const SUMMARY: &str = "/stats/summary";
/// The shortest time over which a node measures.
const WINDOW: &str = "1s";

/// What is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UsagePath {
    Nodes {
        name: Option<String>,
    },
    Pods {
        namespace: Option<String>,
        name: Option<String>,
    },
}

impl UsagePath {
    /// What follows the group and version in a path.
    pub(crate) fn parse(segments: &[&str]) -> Option<Self> {
        let owned = |text: &str| Some(text.to_owned());
        Some(match *segments {
            ["nodes"] => Self::Nodes { name: None },
            ["nodes", name] => Self::Nodes { name: owned(name) },
            ["pods"] => Self::Pods {
                namespace: None,
                name: None,
            },
            ["namespaces", namespace, "pods"] => Self::Pods {
                namespace: owned(namespace),
                name: None,
            },
            ["namespaces", namespace, "pods", name] => Self::Pods {
                namespace: owned(namespace),
                name: owned(name),
            },
            _ => return None,
        })
    }
}

impl UsagePath {
    /// What is asked for, in the words of access rules.
    pub(crate) fn attributes(&self) -> ResourceAttributes {
        let (resource, namespace, name) = match self {
            Self::Nodes { name } => ("nodes", &None, name),
            Self::Pods { namespace, name } => ("pods", namespace, name),
        };
        ResourceAttributes {
            verb: if name.is_some() { "get" } else { "list" }.to_owned(),
            group: GROUP.to_owned(),
            version: VERSION.to_owned(),
            resource: resource.to_owned(),
            subresource: String::new(),
            namespace: namespace.clone().unwrap_or_default(),
            name: name.clone().unwrap_or_default(),
        }
    }
}

/// The group among others in discovery.
pub(crate) fn group() -> Value {
    let version = json!({"groupVersion": API_VERSION, "version": VERSION});
    json!({"name": GROUP, "versions": [version], "preferredVersion": version})
}

pub(crate) fn resources() -> Value {
    let resource = |name: &str, kind: &str, namespaced: bool| json!({"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": VERBS});
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": API_VERSION,
        "resources": [resource("nodes", "NodeMetrics", false), resource("pods", "PodMetrics", true)],
    })
}

pub(crate) fn aggregated_group() -> Value {
    let resource = |name: &str, kind: &str, scope: &str| {
        json!({
            "resource": name,
            "responseKind": {"group": GROUP, "version": VERSION, "kind": kind},
            "scope": scope,
            "singularResource": "",
            "verbs": VERBS,
        })
    };
    let resources = [
        resource("nodes", "NodeMetrics", "Cluster"),
        resource("pods", "PodMetrics", "Namespaced"),
    ];
    json!({
        "metadata": {"name": GROUP, "creationTimestamp": null},
        "versions": [{"version": VERSION, "freshness": "Current", "resources": resources}],
    })
}

/// Answers a request of the group.
pub(crate) async fn answer(
    registry: &Registry,
    nodes: &Nodes,
    path: &UsagePath,
    query: &Query,
) -> Result<Value, ApiError> {
    let (kind, namespace, name, list) = match path {
        UsagePath::Nodes { name } => (ResourceKind::Node, None, name, "NodeMetricsList"),
        UsagePath::Pods { namespace, name } => {
            (ResourceKind::Pod, namespace.as_deref(), name, "PodMetricsList")
        }
    };
    let options = ListOptions::parse(kind, query)?;
    let listed = registry.list(kind, namespace, &options).await?;
    let objects = listed.entries.iter().map(Object::from_entry);
    let mut objects = objects.collect::<Result<Vec<_>, _>>()?;
    if let Some(name) = name {
        objects.retain(|object| object.name() == name);
    }
    let usage = Usage::collect(registry, nodes).await?;
    let mut items = objects.iter().filter_map(|object| match path {
        UsagePath::Nodes { .. } => usage.node(object),
        UsagePath::Pods { .. } => usage.pod(object),
    });
    match name {
        None => {
            let items: Vec<Value> = items.collect();
            Ok(json!({"kind": list, "apiVersion": API_VERSION, "metadata": {}, "items": items}))
        }
        Some(name) => items.next().ok_or_else(|| not_found(path, name)),
    }
}

fn not_found(path: &UsagePath, name: &str) -> ApiError {
    let text = match path {
        UsagePath::Nodes { .. } => format!("nodemetrics.metrics.k8s.io {name:?} not found"),
        UsagePath::Pods { namespace, .. } => {
            let full = format!("{}/{name}", namespace.as_deref().unwrap_or_default());
            format!("podmetrics.metrics.k8s.io {full:?} not found")
        }
    };
    ApiError::new(StatusReason::NotFound, text)
}

/// A node's summary, as far as it is used here.
#[derive(Debug, Deserialize)]
struct Summary {
    node: NodeSummary,
    #[serde(default)]
    pods: Vec<PodSummary>,
}

#[derive(Debug, Deserialize)]
struct NodeSummary {
    cpu: Option<Cpu>,
    memory: Option<Memory>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSummary {
    pod_ref: PodRef,
    #[serde(default)]
    containers: Vec<ContainerSummary>,
}

#[derive(Debug, Deserialize)]
struct PodRef {
    name: String,
    namespace: String,
}

#[derive(Debug, Deserialize)]
struct ContainerSummary {
    name: String,
    cpu: Option<Cpu>,
    memory: Option<Memory>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cpu {
    time: Option<Timestamp>,
    usage_nano_cores: Option<u64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    working_set_bytes: Option<u64>,
}

/// What all nodes said.
#[derive(Debug, Default)]
struct Usage {
    nodes: HashMap<String, NodeSummary>,
    /// The usage of pods, by namespace and name.
    pods: HashMap<(String, String), Vec<ContainerSummary>>,
}

impl Usage {
    async fn collect(registry: &Registry, nodes: &Nodes) -> Result<Self, ApiError> {
        let options = ListOptions::parse(ResourceKind::Node, &Query::default())?;
        let listed = registry.list(ResourceKind::Node, None, &options).await?;
        let objects = listed.entries.iter().map(Object::from_entry);
        let objects = objects.collect::<Result<Vec<_>, _>>()?;
        let asking = objects.into_iter().map(|node| async move {
            let name = node.name().to_owned();
            let asked = tokio::time::timeout(ANSWER_TIMEOUT, nodes.fetch(&node, SUMMARY)).await;
            let summary = asked.ok()?.inspect_err(|error| {
                tracing::debug!(
                    node = name,
                    error = error.message,
                    "the node does not say what it uses"
                );
            });
            let summary: Summary = serde_json::from_slice(&summary.ok()?).ok()?;
            Some((name, summary))
        });
        let answers: Vec<_> = stream::iter(asking)
            .buffer_unordered(ASKED_AT_ONCE)
            .collect()
            .await;
        let mut usage = Self::default();
        for (name, summary) in answers.into_iter().flatten() {
            for pod in summary.pods {
                let key = (pod.pod_ref.namespace, pod.pod_ref.name);
                usage.pods.insert(key, pod.containers);
            }
            usage.nodes.insert(name, summary.node);
        }
        Ok(usage)
    }

    fn node(&self, node: &Object) -> Option<Value> {
        let summary = self.nodes.get(node.name())?;
        let mut metrics = metrics("NodeMetrics", node, summary.cpu);
        metrics["usage"] = used(summary.cpu, summary.memory);
        Some(metrics)
    }

    fn pod(&self, pod: &Object) -> Option<Value> {
        let key = (pod.namespace().to_owned(), pod.name().to_owned());
        let containers = self.pods.get(&key).filter(|containers| !containers.is_empty())?;
        let mut metrics = metrics("PodMetrics", pod, containers[0].cpu);
        let containers: Vec<Value> = containers
            .iter()
            .map(|container| json!({"name": container.name, "usage": used(container.cpu, container.memory)}))
            .collect();
        metrics["containers"] = json!(containers);
        Some(metrics)
    }
}

fn metrics(kind: &str, object: &Object, cpu: Option<Cpu>) -> Value {
    let mut metadata = json!({
        "name": object.name(),
        "creationTimestamp": object.metadata().get("creationTimestamp"),
    });
    if !object.namespace().is_empty() {
        metadata["namespace"] = json!(object.namespace());
    }
    if let Some(labels) = object.metadata().get("labels") {
        metadata["labels"] = labels.clone();
    }
    let time = cpu.and_then(|cpu| cpu.time).unwrap_or_else(Timestamp::now);
    json!({
        "kind": kind,
        "apiVersion": API_VERSION,
        "metadata": metadata,
        "timestamp": format!("{time:.0}"),
        "window": WINDOW,
    })
}

fn used(cpu: Option<Cpu>, memory: Option<Memory>) -> Value {
    let cores = cpu.and_then(|cpu| cpu.usage_nano_cores).unwrap_or(0);
    let bytes = memory.and_then(|memory| memory.working_set_bytes).unwrap_or(0);
    json!({"cpu": format!("{cores}n"), "memory": format!("{}Ki", bytes / 1024)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_become_metrics() {
        let summary: Summary = serde_json::from_value(json!({
            "node": {"nodeName": "n1", "cpu": {"usageNanoCores": 5}, "memory": {"workingSetBytes": 4096}},
            "pods": [{
                "podRef": {"name": "web", "namespace": "ns", "uid": "u"},
                "containers": [{
                    "name": "app",
                    "cpu": {"time": "2026-01-02T03:04:05Z", "usageNanoCores": 7, "usageCoreNanoSeconds": 9},
                    "memory": {"workingSetBytes": 2048},
                }],
            }],
        }))
        .unwrap();
        let mut usage = Usage::default();
        let pod = &summary.pods[0];
        let key = (pod.pod_ref.namespace.clone(), pod.pod_ref.name.clone());
        usage.pods.insert(
            key,
            summary.pods.into_iter().flat_map(|pod| pod.containers).collect(),
        );
        let object = |name: &str| {
            let metadata = json!({"name": name, "namespace": "ns", "labels": {"a": "b"}});
            Object::new(json!({"metadata": metadata})).unwrap()
        };
        let metrics = usage.pod(&object("web")).unwrap();
        assert_eq!(metrics["metadata"]["labels"]["a"], "b");
        assert_eq!(metrics["timestamp"], "2026-01-02T03:04:05Z");
        let expected = json!([{"name": "app", "usage": {"cpu": "7n", "memory": "2Ki"}}]);
        assert_eq!(metrics["containers"], expected);
        assert_eq!(usage.pod(&object("other")), None);
        assert_eq!(usage.node(&object("n1")), None);
    }

    #[test]
    fn paths_are_of_pods_and_nodes() {
        let pods = |namespace: Option<&str>, name: Option<&str>| UsagePath::Pods {
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
        };
        assert_eq!(UsagePath::parse(&["pods"]), Some(pods(None, None)));
        let named = UsagePath::parse(&["namespaces", "a", "pods", "b"]);
        assert_eq!(named, Some(pods(Some("a"), Some("b"))));
        assert_eq!(UsagePath::parse(&["pods", "b"]), None);
        assert_eq!(UsagePath::parse(&["namespaces", "a", "nodes"]), None);
    }
}
