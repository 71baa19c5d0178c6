//! The row of a Pod, above all its STATUS: one word for where it is in its life.

use jiff::Timestamp;
use pulselet_model::{ContainerStatusFields, Pod};
use serde_json::{Value, json};

use super::{AGE, Column, NAME, NONE, UNKNOWN, age, column, wide};
use crate::registry::object::Object;

pub(super) fn columns() -> Vec<Column> {
    vec![
        NAME,
        column("Ready", "The containers that are ready, of all that should be."),
        column("Status", "Where the pod is in its life."),
        column(
            "Restarts",
            "How often its containers were restarted, and when last.",
        ),
        AGE,
        wide("IP", "Its address."),
        wide("Node", "The node it runs on."),
        wide("Nominated Node", "The node it may get."),
        wide(
            "Readiness Gates",
            "The conditions it waits for beside its containers.",
        ),
    ]
}

/// What the columns summarize.
#[derive(Debug, PartialEq)]
struct Summary {
    ready: usize,
    total: usize,
    status: String,
    restarts: i32,
    last_restart: Option<Timestamp>,
}

pub(super) fn cells(object: &Object, now: Timestamp) -> Vec<Value> {
    let created = age(object.text("/metadata/creationTimestamp"), now);
    let Ok(pod) = serde_json::from_value::<Pod>(object.value().clone()) else {
        // Stored by other rules: a row that says so little is better than no list.
        let mut cells = vec![
            json!(object.name()),
            json!("0/0"),
            json!(UNKNOWN),
            json!("0"),
            json!(created),
        ];
        cells.resize(columns().len(), json!(NONE));
        return cells;
    };
    let summary = summarize(&pod);
    let restarts = match summary.last_restart {
        Some(time) if summary.restarts > 0 => {
            format!("{} ({} ago)", summary.restarts, age(&time.to_string(), now))
        }
        _ => summary.restarts.to_string(),
    };
    let or_none = |text: &str| json!(if text.is_empty() { NONE } else { text });
    vec![
        json!(pod.name()),
        json!(format!("{}/{}", summary.ready, summary.total)),
        json!(summary.status),
        json!(restarts),
        json!(created),
        or_none(&pod.status.pod_ip),
        or_none(&pod.spec.node_name),
        or_none(&pod.status.nominated_node_name),
        json!(readiness_gates(&pod)),
    ]
}

fn readiness_gates(pod: &Pod) -> String {
    let gates = &pod.spec.readiness_gates;
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let held = gates
        .iter()
        .filter(|gate| condition_is_true(pod, &gate.condition_type));
    format!("{}/{}", held.count(), gates.len())
}

fn condition_is_true(pod: &Pod, kind: &str) -> bool {
    let mut conditions = pod.status.conditions.iter();
    conditions.any(|condition| condition.type_ == kind && condition.status == "True")
}

fn summarize(pod: &Pod) -> Summary {
    let status = &pod.status;
    let sidecars = pod.spec.init_containers.iter().filter(|init| init.is_sidecar());
    let mut summary = Summary {
        ready: 0,
        total: pod.spec.containers.len() + sidecars.count(),
        status: if status.reason.is_empty() {
            status.phase.clone()
        } else {
            status.reason.clone()
        },
        restarts: 0,
        last_restart: None,
    };
    let gated = |condition: &pulselet_model::openapi::api::core::v1::PodCondition| {
        condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("SchedulingGated")
    };
    if status.conditions.iter().any(gated) {
        "SchedulingGated".clone_into(&mut summary.status);
    }
    let initializing = summarize_init(pod, &mut summary);
    if !initializing || condition_is_true(pod, "Initialized") {
        summarize_main(pod, &mut summary);
    }
    if pod.metadata.deletion_timestamp.is_some() {
        if status.reason == "NodeLost" {
            "Unknown".clone_into(&mut summary.status);
        } else if status.phase != "Succeeded" && status.phase != "Failed" {
            "Terminating".clone_into(&mut summary.status);
        }
    }
    summary
}

impl Summary {
    fn count_restarts(&mut self, container: &ContainerStatusFields) {
        self.restarts += container.restart_count;
        let finished = container
            .last_state
            .terminated
            .as_ref()
            .and_then(|terminated| terminated.finished_at.as_ref())
            .map(|time| time.0);
        self.last_restart = self.last_restart.max(finished);
    }
}

/// Takes the init containers into account; says whether one of them is what the Pod waits for.
fn summarize_init(pod: &Pod, summary: &mut Summary) -> bool {
    let is_sidecar = |name: &str| {
        let mut inits = pod.spec.init_containers.iter();
        inits.any(|init| init.name == name && init.is_sidecar())
    };
    for (index, container) in pod.status.init_container_statuses.iter().enumerate() {
        summary.count_restarts(container);
        let terminated = container.state.terminated.as_ref();
        let waiting = container
            .state
            .waiting
            .as_ref()
            .and_then(|waiting| waiting.reason.as_deref())
            .filter(|reason| !reason.is_empty() && *reason != "PodInitializing");
        if terminated.is_some_and(|terminated| terminated.exit_code == 0) {
            continue;
        }
        if is_sidecar(&container.name) && container.started == Some(true) {
            summary.ready += usize::from(container.ready);
            continue;
        }
        summary.status = match (terminated, waiting) {
            (Some(_), _) => format!("Init:{}", end(container)),
            (None, Some(reason)) => format!("Init:{reason}"),
            (None, None) => format!("Init:{index}/{}", pod.spec.init_containers.len()),
        };
        return true;
    }
    false
}

/// How a terminated container ended.
fn end(container: &ContainerStatusFields) -> String {
    let Some(terminated) = &container.state.terminated else {
        return String::new();
    };
    match (
        terminated.reason.as_deref().unwrap_or_default(),
        terminated.signal,
    ) {
        ("", Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        ("", _) => format!("ExitCode:{}", terminated.exit_code),
        (reason, _) => reason.to_owned(),
    }
}

fn summarize_main(pod: &Pod, summary: &mut Summary) {
    // Once the Pod runs, the restarts of finished init containers no longer matter; those of sidecars do.
    (summary.restarts, summary.last_restart) = (0, None);
    for container in &pod.status.init_container_statuses {
        let mut inits = pod.spec.init_containers.iter();
        if inits.any(|init| init.name == container.name && init.is_sidecar()) {
            summary.count_restarts(container);
        }
    }
    let mut has_running = false;
    for container in pod.status.container_statuses.iter().rev() {
        summary.count_restarts(container);
        let waiting = container
            .state
            .waiting
            .as_ref()
            .and_then(|waiting| waiting.reason.clone())
            .filter(|reason| !reason.is_empty());
        if let Some(reason) = waiting {
            summary.status = reason;
        } else if container.state.terminated.is_some() {
            summary.status = end(container);
        } else if container.ready && container.state.running.is_some() {
            has_running = true;
            summary.ready += 1;
        }
    }
    if summary.status == "Completed" && has_running {
        let word = if condition_is_true(pod, "Ready") {
            "Running"
        } else {
            "NotReady"
        };
        word.clone_into(&mut summary.status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Containers, status, and what READY, STATUS and RESTARTS show.
    fn check(mut spec: Value, status: &Value, deleting: bool, expected: (&str, &str, i32)) {
        spec["containers"]
            .as_array_mut()
            .expect("containers")
            .iter_mut()
            .for_each(|container| container["image"] = json!("i"));
        let mut pod = json!({"metadata": {"name": "web"}, "spec": spec, "status": status});
        if deleting {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let summary = summarize(&pod);
        let ready = format!("{}/{}", summary.ready, summary.total);
        assert_eq!(
            (ready.as_str(), summary.status.as_str(), summary.restarts),
            expected
        );
    }

    fn one() -> Value {
        json!({"containers": [{"name": "a"}]})
    }

    fn with_init() -> Value {
        json!({"containers": [{"name": "a"}], "initContainers": [
            {"name": "i"}, {"name": "s", "restartPolicy": "Always"}]})
    }

    fn running(name: &str, ready: bool) -> Value {
        json!({"name": name, "ready": ready, "started": true, "state": {"running": {}}, "restartCount": 1})
    }

    fn ended(name: &str, code: i32, reason: &str) -> Value {
        json!({"name": name, "state": {"terminated": {"exitCode": code, "reason": reason}}})
    }

    #[test]
    fn the_word_of_a_pod_without_init_containers() {
        check(one(), &json!({"phase": "Pending"}), false, ("0/1", "Pending", 0));
        let status = json!({"phase": "Running", "containerStatuses": [running("a", true)]});
        check(one(), &status, false, ("1/1", "Running", 1));
        check(one(), &status, true, ("1/1", "Terminating", 1));
        let waiting =
            json!({"name": "a", "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
        let status = json!({"phase": "Running", "containerStatuses": [waiting]});
        check(one(), &status, false, ("0/1", "CrashLoopBackOff", 4));
        let status = json!({"phase": "Succeeded", "containerStatuses": [ended("a", 0, "Completed")]});
        check(one(), &status, true, ("0/1", "Completed", 0));
        let status = json!({"phase": "Failed", "containerStatuses": [ended("a", 3, "")]});
        check(one(), &status, false, ("0/1", "ExitCode:3", 0));
        let status = json!({"phase": "Failed", "reason": "Evicted"});
        check(one(), &status, false, ("0/1", "Evicted", 0));
    }

    #[test]
    fn the_word_of_a_pod_that_initializes() {
        let status = json!({"phase": "Pending", "initContainerStatuses": [
            {"name": "i", "state": {"running": {}}}, {"name": "s", "state": {"waiting": {"reason": "PodInitializing"}}}]});
        check(with_init(), &status, false, ("0/2", "Init:0/2", 0));
        let status = json!({"phase": "Pending", "initContainerStatuses": [ended("i", 1, "Error")]});
        check(with_init(), &status, false, ("0/2", "Init:Error", 0));
        let status = json!({"phase": "Pending", "initContainerStatuses": [
            {"name": "i", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 2}]});
        check(with_init(), &status, false, ("0/2", "Init:CrashLoopBackOff", 2));
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            "initContainerStatuses": [ended("i", 0, "Completed"), running("s", true)],
            "containerStatuses": [running("a", true)]});
        check(with_init(), &status, false, ("2/2", "Running", 2));
    }

    #[test]
    fn a_pod_with_one_container_done_still_runs() {
        let spec = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        let status = json!({"phase": "Running", "containerStatuses": [ended("a", 0, "Completed"), running("b", true)]});
        check(spec, &status, false, ("1/2", "NotReady", 1));
    }
}
