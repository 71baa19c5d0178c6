//! What a Node object says about its machine: what it is, what it has, and how it feels.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pulselet_agent::{NodeDuties, NodeFacts, PressureConditions};
use pulselet_model::ResourceTotals;
use pulselet_runtime::{Runtime, RuntimeCondition};
use pulselet_vocabulary::KUBERNETES_VERSION;
use serde_json::{Value, json};

/// How long the runtime may take to say that it is well.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// The features that a kubelet declares and this node has, in the order of their names. Not here are the resize of init
/// containers that are no sidecars and that of a pod's own resources, which the API forbids, and user namespaces on the
/// host's network.
const DECLARED_FEATURES: [&str; 2] = [
    "ExtendWebSocketsToKubelet",
    "RestartAllContainersOnContainerExits",
];

/// The machine and what watches over it.
#[derive(Clone, Debug)]
pub struct Machine {
    pub facts: NodeFacts,
    /// What is not for pods.
    pub duties: NodeDuties,
    pub runtime: Arc<dyn Runtime>,
    /// Where the node keeps its state: the disk that must not be full.
    pub data_dir: PathBuf,
    /// Where the node answers requests for logs and commands, as the API reaches it.
    pub endpoint: SocketAddr,
}

impl Machine {
    pub(crate) fn labels(&self) -> Value {
        let mut labels = json!({
            "kubernetes.io/hostname": self.facts.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": architecture(),
        });
        labels["beta.kubernetes.io/os"] = json!("linux");
        labels["beta.kubernetes.io/arch"] = json!(architecture());
        labels
    }

    /// The status as it is now, without the times of its conditions.
    pub(crate) async fn status(&self, pressure: PressureConditions, goes_down: bool) -> Value {
        let version = self.runtime.version().await;
        let runtime = version.map_or_else(
            |_| "unknown://".to_owned(),
            |version| format!("{}://{}", version.name, version.version),
        );
        let capacity = self.facts.capacity(&self.data_dir);
        let allocatable = self.duties.allocatable(&capacity);
        json!({
            "capacity": self.resources(&capacity),
            "allocatable": self.resources(&allocatable),
            "addresses": addresses(&self.facts, self.endpoint),
            "conditions": self.conditions(pressure, goes_down).await,
            "nodeInfo": node_info(&runtime),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.endpoint.port()}},
            "declaredFeatures": DECLARED_FEATURES,
        })
    }

    fn resources(&self, totals: &ResourceTotals) -> Value {
        let millis = totals.cpu_millis;
        let cpu = if millis.is_multiple_of(1000) {
            (millis / 1000).to_string()
        } else {
            format!("{millis}m")
        };
        json!({
            "cpu": cpu,
            "memory": format!("{}Ki", totals.memory / 1024),
            "ephemeral-storage": format!("{}Ki", totals.ephemeral_storage / 1024),
            "pods": self.duties.max_pods.to_string(),
        })
    }

    async fn conditions(&self, pressure: PressureConditions, goes_down: bool) -> Vec<Value> {
        vec![
            MEMORY.condition(pressure.memory),
            DISK.condition(pressure.disk),
            PROCESSES.condition(pressure.pids),
            self.readiness(goes_down).await,
        ]
    }

    async fn readiness(&self, goes_down: bool) -> Value {
        let not_ready = |reason: &str, message: &str| condition("Ready", false, reason, message);
        if goes_down {
            return not_ready("KubeletNotReady", "node is shutting down");
        }
        match tokio::time::timeout(HEALTH_TIMEOUT, self.runtime.health()).await {
            Err(_) => not_ready("RuntimeSilent", "the runtime does not answer"),
            Ok(Err(error)) => not_ready("RuntimeFailed", &error.to_string()),
            Ok(Ok(health)) => match (health.runtime, health.network) {
                (RuntimeCondition::Ready, RuntimeCondition::Ready) => {
                    condition("Ready", true, "KubeletReady", "pulselet is posting ready status")
                }
                (RuntimeCondition::NotReady { reason, message }, _)
                | (_, RuntimeCondition::NotReady { reason, message }) => not_ready(&reason, &message),
            },
        }
    }
}

/// Something a node can run out of: a condition with the reasons that clients know, each with what a person reads.
struct Pressure {
    kind: &'static str,
    low: (&'static str, &'static str),
    enough: (&'static str, &'static str),
}

const MEMORY: Pressure = Pressure {
    kind: "MemoryPressure",
    low: (
        "KubeletHasInsufficientMemory",
        "the node has too little memory available",
    ),
    enough: (
        "KubeletHasSufficientMemory",
        "the node has enough memory available",
    ),
};
const DISK: Pressure = Pressure {
    kind: "DiskPressure",
    low: (
        "KubeletHasDiskPressure",
        "the node has too little room on its disk",
    ),
    enough: ("KubeletHasNoDiskPressure", "the node has enough room on its disk"),
};
const PROCESSES: Pressure = Pressure {
    kind: "PIDPressure",
    low: (
        "KubeletHasInsufficientPID",
        "the node has too few process ids left",
    ),
    enough: ("KubeletHasSufficientPID", "the node has enough process ids left"),
};

impl Pressure {
    fn condition(&self, is_low: bool) -> Value {
        let (reason, message) = if is_low { self.low } else { self.enough };
        condition(self.kind, is_low, reason, message)
    }
}

fn condition(kind: &str, status: bool, reason: &str, message: &str) -> Value {
    json!({
        "type": kind,
        "status": if status { "True" } else { "False" },
        "reason": reason,
        "message": message,
    })
}

/// Adds the times to conditions: now for what has changed since, the old time for what has not.
pub(crate) fn with_times(conditions: &mut Value, before: &Value, now: Timestamp) {
    let now = json!(Timestamp::from_second(now.as_second()).unwrap_or(now).to_string());
    let empty = Vec::new();
    let before = before.as_array().unwrap_or(&empty);
    for condition in conditions.as_array_mut().into_iter().flatten() {
        let same = |old: &&Value| old["type"] == condition["type"] && old["status"] == condition["status"];
        let since = before
            .iter()
            .find(same)
            .map(|old| old["lastTransitionTime"].clone());
        condition["lastHeartbeatTime"] = now.clone();
        condition["lastTransitionTime"] = since.filter(Value::is_string).unwrap_or_else(|| now.clone());
    }
}

/// The machine's own address first: pods report it as their host's. A node that listens elsewhere, on this machine only
/// for example, adds where.
fn addresses(facts: &NodeFacts, endpoint: SocketAddr) -> Value {
    let internal = |address: IpAddr| json!({"type": "InternalIP", "address": address.to_string()});
    let mut addresses = vec![internal(facts.address)];
    if endpoint.ip() != facts.address {
        addresses.push(internal(endpoint.ip()));
    }
    addresses.push(json!({"type": "Hostname", "address": facts.name}));
    addresses.into()
}

fn node_info(runtime: &str) -> Value {
    let uname = rustix::system::uname();
    json!({
        "machineID": file("/etc/machine-id"),
        "systemUUID": file("/sys/class/dmi/id/product_uuid"),
        "bootID": file("/proc/sys/kernel/random/boot_id"),
        "kernelVersion": uname.release().to_string_lossy(),
        "osImage": os_image(),
        "containerRuntimeVersion": runtime,
        "kubeletVersion": KUBERNETES_VERSION,
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": architecture(),
    })
}

/// The architecture by the name that images have.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The first line of a file; empty where it cannot be read.
fn file(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

fn os_image() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transition_keeps_its_time_until_the_next_one() {
        let mut conditions = json!([{"type": "Ready", "status": "True"}]);
        with_times(&mut conditions, &Value::Null, Timestamp::UNIX_EPOCH);
        let mut later =
            json!([{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]);
        let then = Timestamp::from_second(60).unwrap();
        with_times(&mut later, &conditions, then);
        assert_eq!(later[0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
        assert_eq!(later[0]["lastHeartbeatTime"], "1970-01-01T00:01:00Z");
        assert_eq!(later[1]["lastTransitionTime"], "1970-01-01T00:01:00Z");
    }

    #[test]
    fn the_first_address_is_the_one_that_pods_report() {
        let at = |endpoint: [u8; 4]| {
            let facts = NodeFacts {
                address: [192, 0, 2, 7].into(),
                ..NodeFacts::detect()
            };
            let addresses = addresses(&facts, (endpoint, 10250).into());
            let of_kind = |kind: &str| -> Vec<String> {
                let all = addresses.as_array().unwrap().iter();
                let all = all.filter(|it| it["type"] == kind);
                all.map(|it| it["address"].as_str().unwrap().to_owned()).collect()
            };
            of_kind("InternalIP")
        };
        assert_eq!(at([192, 0, 2, 7]), ["192.0.2.7"]);
        assert_eq!(at([127, 0, 0, 1]), ["192.0.2.7", "127.0.0.1"]);
    }
}
