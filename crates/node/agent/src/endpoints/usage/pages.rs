//! Snapshots as scrapers read them: names and labels of cAdvisor and a kubelet, and a kubelet's summary.
//!
//! A series of a container has the time of its measurement, in milliseconds: rates are right however late it is read.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::Serialize;

use super::{ContainerUsage, Cpu, PodUsage, Snapshot};

/// Series of the text format, metric by metric.
#[derive(Debug, Default)]
struct Text(String);

impl Text {
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: Value, at: Option<Timestamp>) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{}\"", escaped(text));
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = match value {
            Value::Whole(number) => write!(self.0, " {number}"),
            Value::Nanos(nanos) => write!(self.0, " {}", seconds(nanos)),
            Value::Time(time) => write!(self.0, " {}", seconds_since_epoch(time)),
        };
        if let Some(at) = at {
            let _ = write!(self.0, " {}", at.as_millisecond());
        }
        self.0.push('\n');
    }
}

#[derive(Debug, Clone, Copy)]
enum Value {
    Whole(u64),
    /// Written in seconds.
    Nanos(u64),
    /// Written in seconds since 1970.
    Time(Timestamp),
}

fn seconds(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

fn seconds_since_epoch(time: Timestamp) -> String {
    let nanos = u64::try_from(time.as_nanosecond()).unwrap_or(0);
    seconds(nanos)
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// A metric that every container has.
struct PerContainer {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&ContainerUsage) -> Value,
}

const CPU: PerContainer = PerContainer {
    name: "container_cpu_usage_seconds_total",
    kind: "counter",
    help: "CPU that the container has used since its start, in seconds of one core",
    value: |container| Value::Nanos(container.cpu.total),
};
const WORKING_SET: PerContainer = PerContainer {
    name: "container_memory_working_set_bytes",
    kind: "gauge",
    help: "Memory of the container that cannot be reclaimed easily",
    value: |container| Value::Whole(container.stats.memory_working_set),
};
const MEMORY: PerContainer = PerContainer {
    name: "container_memory_usage_bytes",
    kind: "gauge",
    help: "Memory of the container, caches included",
    value: |container| Value::Whole(container.stats.memory_usage),
};
const START: PerContainer = PerContainer {
    name: "container_start_time_seconds",
    kind: "gauge",
    help: "When the container was started, in seconds since 1970",
    value: |container| Value::Time(container.started_at),
};

/// The text of `/metrics/cadvisor`.
pub(crate) fn cadvisor(snapshot: &Snapshot) -> String {
    let mut text = Text::default();
    for metric in [CPU, WORKING_SET, MEMORY, START] {
        text.metric(metric.name, metric.kind, metric.help);
        for (pod, container) in containers(snapshot) {
            let id = format!("/{}", container.id);
            let mut labels = vec![("container", &*container.name)];
            if metric.name == CPU.name {
                labels.push(("cpu", "total"));
            }
            labels.extend([
                ("id", &*id),
                ("image", &container.image),
                ("name", container.id.as_str()),
                ("namespace", &pod.pod.namespace),
                ("pod", &pod.pod.name),
            ]);
            let at = Some(container.at).filter(|_| metric.name != START.name);
            text.sample(metric.name, &labels, (metric.value)(container), at);
        }
    }
    let facts = &snapshot.node.facts;
    for (name, help, value) in [
        (
            "machine_cpu_cores",
            "Processors of the machine",
            u64::from(facts.cpus),
        ),
        (
            "machine_memory_bytes",
            "Memory of the machine",
            facts.memory_bytes,
        ),
    ] {
        text.metric(name, "gauge", help);
        text.sample(name, &[], Value::Whole(value), None);
    }
    text.0
}

/// The text of `/metrics/resource`.
pub(crate) fn resource(snapshot: &Snapshot) -> String {
    let mut text = Text::default();
    for metric in [CPU, WORKING_SET, START] {
        text.metric(metric.name, metric.kind, metric.help);
        for (pod, container) in containers(snapshot) {
            let labels = [
                ("container", &*container.name),
                ("namespace", &pod.pod.namespace),
                ("pod", &pod.pod.name),
            ];
            let at = Some(container.at).filter(|_| metric.name != START.name);
            text.sample(metric.name, &labels, (metric.value)(container), at);
        }
    }
    whole_node(&mut text, snapshot);
    whole_pods(&mut text, snapshot);
    text.metric(
        "resource_scrape_error",
        "gauge",
        "1 if something could not be measured, 0 otherwise",
    );
    let error = Value::Whole(u64::from(!snapshot.complete));
    text.sample("resource_scrape_error", &[], error, None);
    text.0
}

fn whole_node(text: &mut Text, snapshot: &Snapshot) {
    let node = &snapshot.node;
    let name = "node_cpu_usage_seconds_total";
    text.metric(
        name,
        "counter",
        "CPU that the machine has used, in seconds of one core",
    );
    text.sample(name, &[], Value::Nanos(node.cpu.total), Some(node.at));
    let name = "node_memory_working_set_bytes";
    text.metric(
        name,
        "gauge",
        "Memory of the machine that cannot be reclaimed easily",
    );
    text.sample(name, &[], Value::Whole(node.memory.working_set), Some(node.at));
}

fn whole_pods(text: &mut Text, snapshot: &Snapshot) {
    let (cpu, memory) = ("pod_cpu_usage_seconds_total", "pod_memory_working_set_bytes");
    let labels = |pod: &PodUsage| [pod.pod.namespace.clone(), pod.pod.name.clone()];
    text.metric(
        cpu,
        "counter",
        "CPU that the pod's containers have used, in seconds of one core",
    );
    for pod in &snapshot.pods {
        let [namespace, name] = &labels(pod);
        let labels = [("namespace", namespace.as_str()), ("pod", name)];
        text.sample(cpu, &labels, Value::Nanos(pod.cpu().total), pod.at());
    }
    text.metric(
        memory,
        "gauge",
        "Memory of the pod's containers that cannot be reclaimed easily",
    );
    for pod in &snapshot.pods {
        let [namespace, name] = &labels(pod);
        let labels = [("namespace", namespace.as_str()), ("pod", name)];
        text.sample(memory, &labels, Value::Whole(pod.working_set()), pod.at());
    }
}

fn containers(snapshot: &Snapshot) -> impl Iterator<Item = (&PodUsage, &ContainerUsage)> {
    let pods = snapshot.pods.iter();
    pods.flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)))
}

impl PodUsage {
    fn cpu(&self) -> Cpu {
        let add = |sum: Cpu, container: &ContainerUsage| Cpu {
            total: sum.total.saturating_add(container.cpu.total),
            per_second: sum.per_second.saturating_add(container.cpu.per_second),
        };
        self.containers.iter().fold(Cpu::default(), add)
    }

    fn working_set(&self) -> u64 {
        let all = self.containers.iter();
        all.map(|container| container.stats.memory_working_set).sum()
    }

    fn usage(&self) -> u64 {
        let all = self.containers.iter();
        all.map(|container| container.stats.memory_usage).sum()
    }

    /// When its last container was measured.
    fn at(&self) -> Option<Timestamp> {
        self.containers.iter().map(|container| container.at).max()
    }
}

/// A kubelet's summary, as far as it is known here.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    node: NodeSummary<'a>,
    pods: Vec<PodSummary<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeSummary<'a> {
    node_name: &'a str,
    cpu: CpuSummary,
    memory: MemorySummary,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodSummary<'a> {
    pod_ref: SummaryPodRef<'a>,
    start_time: Option<Timestamp>,
    containers: Vec<ContainerSummary<'a>>,
    cpu: CpuSummary,
    memory: MemorySummary,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SummaryPodRef<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerSummary<'a> {
    name: &'a str,
    start_time: Timestamp,
    cpu: CpuSummary,
    memory: MemorySummary,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CpuSummary {
    time: Option<Timestamp>,
    usage_nano_cores: u64,
    usage_core_nano_seconds: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MemorySummary {
    time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_bytes: Option<u64>,
    usage_bytes: u64,
    working_set_bytes: u64,
}

/// The JSON of `/stats/summary`.
pub(crate) fn summary(snapshot: &Snapshot) -> String {
    let node = &snapshot.node;
    let summary = Summary {
        node: NodeSummary {
            node_name: &node.facts.name,
            cpu: cpu(node.cpu, Some(node.at)),
            memory: MemorySummary {
                time: Some(node.at),
                available_bytes: Some(node.memory.available),
                usage_bytes: node.memory.usage,
                working_set_bytes: node.memory.working_set,
            },
        },
        pods: snapshot.pods.iter().map(pod_summary).collect(),
    };
    serde_json::to_string(&summary).expect("names and numbers are JSON")
}

fn pod_summary(usage: &PodUsage) -> PodSummary<'_> {
    let pod = &usage.pod;
    PodSummary {
        pod_ref: SummaryPodRef {
            name: &pod.name,
            namespace: &pod.namespace,
            uid: &pod.uid,
        },
        start_time: usage
            .containers
            .iter()
            .map(|container| container.started_at)
            .min(),
        containers: usage.containers.iter().map(container_summary).collect(),
        cpu: cpu(usage.cpu(), usage.at()),
        memory: MemorySummary {
            time: usage.at(),
            available_bytes: None,
            usage_bytes: usage.usage(),
            working_set_bytes: usage.working_set(),
        },
    }
}

fn container_summary(container: &ContainerUsage) -> ContainerSummary<'_> {
    ContainerSummary {
        name: &container.name,
        start_time: container.started_at,
        cpu: cpu(container.cpu, Some(container.at)),
        memory: MemorySummary {
            time: Some(container.at),
            available_bytes: None,
            usage_bytes: container.stats.memory_usage,
            working_set_bytes: container.stats.memory_working_set,
        },
    }
}

fn cpu(cpu: Cpu, time: Option<Timestamp>) -> CpuSummary {
    CpuSummary {
        time,
        usage_nano_cores: cpu.per_second,
        usage_core_nano_seconds: cpu.total,
    }
}

#[cfg(test)]
mod tests {
    use pulselet_runtime::{ContainerId, ContainerStats, PodIdentity};
    use serde_json::json;

    use pulselet_model::ResourceTotals;

    use super::*;
    use crate::endpoints::usage::{NodeUsage, machine};
    use pulselet_volume::NodeFacts;

    fn snapshot() -> Snapshot {
        let at = Timestamp::from_second(1_700_000_000).expect("a time");
        let container = |name: &str, used: u64| ContainerUsage {
            id: ContainerId::new(format!("id-{name}")),
            name: name.into(),
            image: "app:\"1\"".into(),
            started_at: Timestamp::from_second(1_600_000_000).expect("a time"),
            at,
            cpu: Cpu {
                total: used,
                per_second: 7,
            },
            stats: ContainerStats {
                cpu_nanos: used,
                memory_working_set: 100,
                memory_usage: 150,
                ..ContainerStats::default()
            },
        };
        let pod = PodIdentity {
            uid: "u".into(),
            namespace: "default".into(),
            name: "web".into(),
        };
        let containers = vec![container("app", 1_500_000_000), container("side", 500_000_000)];
        Snapshot {
            node: NodeUsage {
                facts: NodeFacts {
                    name: "node1".into(),
                    address: [127, 0, 0, 1].into(),
                    cpus: 2,
                    memory_bytes: 1 << 30,
                    allocatable: ResourceTotals::default(),
                },
                at,
                cpu: Cpu::default(),
                memory: machine::Memory::default(),
            },
            pods: vec![PodUsage { pod, containers }],
            complete: true,
        }
    }

    #[test]
    fn names_and_labels_are_upstreams() {
        let snapshot = snapshot();
        let (cadvisor, resource) = (cadvisor(&snapshot), resource(&snapshot));
        for (text, line) in [
            (
                &cadvisor,
                r#"container_cpu_usage_seconds_total{container="app",cpu="total",id="/id-app",image="app:\"1\"",name="id-app",namespace="default",pod="web"} 1.500000000 1700000000000"#,
            ),
            (
                &cadvisor,
                r#"container_memory_usage_bytes{container="side",id="/id-side",image="app:\"1\"",name="id-side",namespace="default",pod="web"} 150 1700000000000"#,
            ),
            (&cadvisor, "machine_cpu_cores 2"),
            (
                &resource,
                r#"container_memory_working_set_bytes{container="app",namespace="default",pod="web"} 100 1700000000000"#,
            ),
            (
                &resource,
                r#"container_start_time_seconds{container="app",namespace="default",pod="web"} 1600000000.000000000"#,
            ),
            (
                &resource,
                r#"pod_cpu_usage_seconds_total{namespace="default",pod="web"} 2.000000000 1700000000000"#,
            ),
            (
                &resource,
                r#"pod_memory_working_set_bytes{namespace="default",pod="web"} 200 1700000000000"#,
            ),
            (&resource, "node_memory_working_set_bytes 0 1700000000000"),
            (&resource, "resource_scrape_error 0"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nnot in\n{text}");
        }
    }

    #[test]
    fn the_summary_is_a_kubelets() {
        let summary: serde_json::Value = serde_json::from_str(&summary(&snapshot())).expect("is JSON");
        assert_eq!(summary["node"]["nodeName"], "node1");
        let pod = &summary["pods"][0];
        assert_eq!(
            pod["podRef"],
            json!({"name": "web", "namespace": "default", "uid": "u"})
        );
        assert_eq!(pod["memory"]["workingSetBytes"], 200);
        assert_eq!(
            pod["containers"][0],
            json!({
                "name": "app", "startTime": "2020-09-13T12:26:40Z",
                "cpu": {"time": "2023-11-14T22:13:20Z", "usageNanoCores": 7, "usageCoreNanoSeconds": 1_500_000_000_u64},
                "memory": {"time": "2023-11-14T22:13:20Z", "usageBytes": 150, "workingSetBytes": 100},
            })
        );
    }
}
