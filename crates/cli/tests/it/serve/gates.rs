//! The proposals' gates at an API and a node that are processes of their own: every combination of on and off, what
//! became of stored objects when a gate was off for a while, and static pods.

use serde_json::{Value, json};

use super::cluster::{Cluster, pod};

const ALL_OFF: &str = "StartupProbeEnabled=false,ProbeTerminationGracePeriod=false,SubSecondProbes=false,\
                       ContainerStopSignals=false,ProbeInitializationFailureThreshold=false";
/// A program that a signal does not end.
const DEAF: &str = "trap '' TERM; while :; do sleep 0.1; done";

fn flags(on: bool) -> Vec<&'static str> {
    if on {
        Vec::new()
    } else {
        vec!["--feature-gates", ALL_OFF]
    }
}

fn never() -> Value {
    json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1})
}

fn with(mut value: Value, fields: &Value) -> Value {
    let fields = fields.as_object().expect("fields").clone();
    value.as_object_mut().expect("an object").extend(fields);
    value
}

/// One pod for each gate.
fn pods() -> [Value; 5] {
    let patient = with(never(), &json!({"failureThreshold": 100_000}));
    let startup = pod("startup", &json!({"startupProbe": patient}));
    let grace = json!({
        "command": ["sh", "-c", DEAF],
        "livenessProbe": with(never(), &json!({"terminationGracePeriodSeconds": 1, "initialDelaySeconds": 1})),
    });
    let mut grace = pod("grace", &grace);
    grace["spec"]["terminationGracePeriodSeconds"] = json!(100_000);
    let fast = with(
        never(),
        &json!({"periodMilliseconds": -500, "initialDelayMilliseconds": 5}),
    );
    let fast = pod("fast", &json!({"readinessProbe": fast}));
    let signal = pod("signal", &json!({"lifecycle": {"stopSignal": "SIGUSR1"}}));
    let initialization = with(never(), &json!({"initializationFailureThreshold": 100_000}));
    let initialization = pod("initialization", &json!({"livenessProbe": initialization}));
    [startup, grace, fast, signal, initialization]
}

fn container(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]
}

fn status(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// Whether the API shows the fields of all gates, or of none.
fn shows(cluster: &Cluster) -> Vec<bool> {
    let get = |name: &str, pointer: &str| container(&cluster.get_pod(name)).pointer(pointer).is_some();
    vec![
        get("startup", "/startupProbe"),
        get("grace", "/livenessProbe/terminationGracePeriodSeconds"),
        get("fast", "/readinessProbe/periodMilliseconds"),
        get("fast", "/readinessProbe/initialDelayMilliseconds"),
        get("signal", "/lifecycle/stopSignal"),
        get("initialization", "/livenessProbe/initializationFailureThreshold"),
    ]
}

/// What each pair of settings makes of the pods.
fn check(api: bool, node: bool) {
    let Some(cluster) = Cluster::apart(&flags(api), &flags(node)) else {
        return;
    };
    cluster.until_node_ready();
    for mut pod in pods() {
        if !api && pod["metadata"]["name"] == "signal" {
            let complaint = cluster.refused(&pod);
            assert!(
                complaint.contains("feature gate ContainerStopSignals is off"),
                "{complaint}"
            );
            pod["spec"]["containers"][0]["lifecycle"] = Value::Null;
        }
        cluster.apply(&pod);
    }
    assert_eq!(shows(&cluster), [api; 6]);
    let both = api && node;
    let running = |pod: &Value| status(pod)["state"]["running"].is_object();

    let startup = cluster.until_pod("startup", running);
    cluster.until_pod("startup", |pod| status(pod)["started"] == !both);
    assert_eq!(status(&startup)["restartCount"], 0);

    let signal = cluster.until_pod("signal", running);
    let expected = match (api, node) {
        (true, true) => json!("SIGUSR1"),
        (false, true) => json!("SIGTERM"),
        (_, false) => Value::Null,
    };
    assert_eq!(status(&signal)["stopSignal"], expected);
    assert_eq!(status(&signal)["lifecycle"]["stopSignal"], expected);

    if both {
        cluster.until_pod("grace", |pod| status(pod)["restartCount"].as_u64() >= Some(1));
        let patient = cluster.get_pod("initialization");
        assert_eq!(status(&patient)["restartCount"], 0);
    } else {
        cluster.until_pod("initialization", |pod| {
            status(pod)["restartCount"].as_u64() >= Some(1)
        });
        cluster.until("the kill with the pod's grace period", || {
            let events = cluster.kubectl(&["get", "events", "--field-selector", "involvedObject.name=grace"]);
            events.contains("failed liveness probe").then_some(())
        });
        assert_eq!(status(&cluster.get_pod("grace"))["restartCount"], 0);
    }
}

#[test]
fn on_at_both() {
    check(true, true);
}

#[test]
fn on_at_the_api_only() {
    check(true, false);
}

#[test]
fn on_at_the_node_only() {
    check(false, true);
}

#[test]
fn off_at_both() {
    check(false, false);
}

#[test]
fn stored_objects_keep_what_a_gate_hides() {
    let Some(mut cluster) = Cluster::apart(&[], &[]) else {
        return;
    };
    cluster.until_node_ready();
    for pod in pods() {
        cluster.apply(&pod);
    }
    let before = cluster.until_pod("startup", |pod| status(pod)["started"] == false);
    cluster.restart_with_api(&["--feature-gates", ALL_OFF]);
    cluster.until_node_ready();
    assert_eq!(shows(&cluster), [false; 6]);
    // An update by someone who cannot see the fields does not take them away, and restarts nothing.
    cluster.kubectl(&["label", "pod", "--all", "touched=yes"]);
    cluster.restart_with_api(&[]);
    cluster.until_node_ready();
    assert_eq!(shows(&cluster), [true; 6]);
    let after = cluster.until_pod("startup", |pod| status(pod)["state"]["running"].is_object());
    assert_eq!(status(&after)["containerID"], status(&before)["containerID"]);
    assert_eq!(after["metadata"]["labels"]["touched"], "yes");
}

#[test]
fn static_pods_see_the_gates_of_the_node_and_their_mirrors_those_of_the_api() {
    let Some(cluster) = Cluster::apart(&["--feature-gates", ALL_OFF], &[]) else {
        return;
    };
    let node = cluster.until_node_ready();
    let [mut startup, ..] = pods();
    startup["apiVersion"] = json!("v1");
    startup["kind"] = json!("Pod");
    std::fs::write(cluster.path("manifests/startup.json"), startup.to_string()).expect("a manifest");
    let mirror = cluster.until_pod(&format!("startup-{node}"), |pod| {
        status(pod)["state"]["running"].is_object()
    });
    assert_eq!(container(&mirror).get("startupProbe"), None);
    assert_eq!(status(&mirror)["started"], false);
}
