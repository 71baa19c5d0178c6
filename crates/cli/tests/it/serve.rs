//! `pulselet serve`, and its parts as processes of their own, driven by the real kubectl.

mod cluster;
mod dashboard;
mod doors;
mod gates;
mod joining;
mod old;
mod releases;
mod resize;
mod rollback;
mod services;
mod streams;

use serde_json::{Value, json};

use self::cluster::{Cluster, pod, shell};
use crate::command::pulselet;

#[test]
fn kubectl_just_works() {
    let Some(cluster) = Cluster::serve(&[]) else {
        return;
    };
    let nodes = cluster.until_node_ready();
    let mut fields = shell("echo hello; exec sleep 1000000");
    fields["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let mut web = pod("web", &fields);
    web["metadata"]["labels"] = json!({"app": "web"});
    cluster.apply(&web);
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=120s"]);
    assert_eq!(cluster.kubectl(&["logs", "web"]), "hello\n");
    assert_eq!(
        cluster.kubectl(&["exec", "web", "--", "echo", "inside"]),
        "inside\n"
    );
    let wide = cluster.kubectl(&["get", "pods", "-o", "wide"]);
    for word in ["web", "1/1", "Running", "127.0.0.1", nodes.as_str()] {
        assert!(wide.contains(word), "{word}: {wide}");
    }
    let described = cluster.until("the events", || {
        let text = cluster.kubectl(&["describe", "pod", "web"]);
        text.contains("Started").then_some(text)
    });
    for word in [
        "Scheduled",
        "Created",
        "Successfully assigned default/web",
        "pulselet",
    ] {
        assert!(described.contains(word), "{word}: {described}");
    }
    let described = cluster.kubectl(&["describe", "node", &nodes]);
    for word in [
        "kubernetes.io/os=linux",
        "MemoryPressure",
        "process://",
        "default",
    ] {
        assert!(described.contains(word), "{word}: {described}");
    }
    let refused = cluster.pulselet_refused(&["stop", "web"]);
    assert!(
        refused.contains("kubectl delete pod --namespace default web"),
        "{refused}"
    );
    cluster.kubectl(&["delete", "pod", "-l", "app=web", "--wait=false"]);
    cluster.kubectl(&["wait", "--for=delete", "pod/web", "--timeout=120s"]);
    // The commands that look at the local agent see the same node.
    assert!(!cluster.pulselet(&["ps"]).contains("web"));
}

#[test]
fn a_pod_waits_for_a_node_that_takes_it() {
    let Some(cluster) = Cluster::serve(&[]) else {
        return;
    };
    let node = cluster.until_node_ready();
    let mut picky = pod("picky", &json!({}));
    picky["spec"]["nodeSelector"] = json!({"disk": "fast"});
    cluster.apply(&picky);
    let waiting = cluster.until_pod("picky", |pod| {
        condition(pod, "PodScheduled").is_some_and(|it| it["status"] == "False")
    });
    let scheduled = condition(&waiting, "PodScheduled").expect("it was there");
    assert_eq!(scheduled["reason"], "Unschedulable");
    assert!(
        scheduled["message"]
            .as_str()
            .unwrap_or_default()
            .contains("0/1 nodes"),
        "{scheduled}"
    );
    cluster.until("the event", || {
        let events = cluster.kubectl(&["get", "events"]);
        events.contains("FailedScheduling").then_some(())
    });
    cluster.kubectl(&["label", "node", &node, "disk=fast"]);
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/picky", "--timeout=120s"]);
    cluster.kubectl(&["cordon", &node]);
    cluster.apply(&pod("late", &json!({})));
    cluster.until_pod("late", |pod| {
        let scheduled = condition(pod, "PodScheduled");
        scheduled.is_some_and(|it| {
            it["message"]
                .as_str()
                .unwrap_or_default()
                .contains("unschedulable")
        })
    });
    cluster.kubectl(&["uncordon", &node]);
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/late", "--timeout=120s"]);
}

#[test]
fn a_killed_serve_loses_nothing() {
    let Some(mut cluster) = Cluster::serve(&[]) else {
        return;
    };
    cluster.until_node_ready();
    cluster.apply(&pod("web", &json!({})));
    cluster.apply(&pod(
        "ends",
        &shell("trap 'exit 0' TERM; while :; do sleep 0.1; done"),
    ));
    for name in ["web", "ends"] {
        cluster.until_ready(name);
    }
    let before = cluster.get_pod("web");
    // Its deletion is accepted, and whether it was carried out is not known.
    cluster.kubectl(&["delete", "pod", "ends", "--wait=false"]);
    cluster.kill();
    cluster.start();
    cluster.kubectl(&["wait", "--for=delete", "pod/ends", "--timeout=120s"]);
    let after = cluster.until_ready("web");
    let of = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    assert_eq!(of(&after)["containerID"], of(&before)["containerID"]);
    assert_eq!(of(&after)["restartCount"], 0);
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    // Asked to end, it leaves the containers running, too.
    cluster.terminate();
    cluster.start();
    let again = cluster.until_ready("web");
    assert_eq!(of(&again)["containerID"], of(&before)["containerID"]);
    // It is a server that goes on, not one that only remembers.
    cluster.apply(&pod("more", &json!({})));
    cluster.until_ready("more");
}

#[test]
fn a_node_goes_on_without_its_api_and_reports_when_that_is_back() {
    let Some(mut cluster) = Cluster::apart(&[], &[]) else {
        return;
    };
    cluster.until_node_ready();
    let sign = cluster.path("leave");
    let sign = sign.to_str().expect("a plain path");
    let leaves = format!("while [ ! -e {sign} ]; do sleep 0.1; done; rm {sign}; exit 3");
    cluster.apply(&pod("web", &shell(&leaves)));
    cluster.until_ready("web");
    cluster.kill_api();
    std::fs::write(sign, "").expect("a file");
    cluster.until("a restart without the API", || {
        let agent = cluster.pulselet(&["ps", "-o", "json"]);
        agent.contains("\"restartCount\":1").then_some(())
    });
    cluster.revive_api();
    let web = cluster.until_pod("web", |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
    let last = &web["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 3);
    // Both sides are at one again: what is asked of the API happens.
    cluster.kubectl(&["delete", "pod", "web", "--timeout=120s"]);
}

#[test]
fn static_pods_and_pods_of_the_socket_live_beside_those_of_the_api() {
    let Some(cluster) = Cluster::serve(&["--manifests", "manifests"]) else {
        return;
    };
    let node = cluster.until_node_ready();
    let manifest = |name: &str| {
        let mut pod = pod(name, &json!({}));
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod.to_string()
    };
    std::fs::write(cluster.path("manifests/fixed.json"), manifest("fixed")).expect("a manifest");
    let mirror = format!("fixed-{node}");
    cluster.until_ready(&mirror);
    std::fs::write(cluster.path("handed.json"), manifest("handed")).expect("a manifest");
    let file = cluster.path("handed.json");
    cluster.pulselet(&["run", "--detach", file.to_str().expect("a plain path")]);
    let local = cluster.pulselet(&["ps"]);
    assert!(local.contains(&mirror) && local.contains("handed"), "{local}");
    assert!(!cluster.kubectl(&["get", "pods"]).contains("handed"));
    std::fs::remove_file(cluster.path("manifests/fixed.json")).expect("it is there");
    cluster.kubectl(&["wait", "--for=delete", &format!("pod/{mirror}"), "--timeout=120s"]);
}

fn condition(pod: &Value, kind: &str) -> Option<Value> {
    let conditions = pod["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
        .cloned()
}

#[test]
fn what_a_node_cannot_join_with_is_refused_before_anything_starts() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| {
        directory
            .path()
            .join(name)
            .to_str()
            .expect("a plain path")
            .to_owned()
    };
    let none = pulselet(&["node"]);
    assert_eq!(none.code, Some(2), "{none:?}");
    assert!(
        none.stderr.contains("--manifests") && none.stderr.contains("--kubeconfig"),
        "{none:?}"
    );
    let missing = pulselet(&["node", "--kubeconfig", &path("none"), "--data-dir", &path("data")]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(missing.stderr.contains("cannot read"), "{missing:?}");
    let name = pulselet(&["node", "--kubeconfig", &path("none"), "--node-name", "A_b"]);
    assert_eq!(name.code, Some(2), "{name:?}");
    assert!(!directory.path().join("data").exists());
}

#[test]
fn a_kubeconfig_for_a_node_needs_the_data_of_a_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory
        .path()
        .join("data")
        .to_str()
        .expect("a plain path")
        .to_owned();
    let issue = |server: &str| {
        pulselet(&[
            "api",
            "kubeconfig",
            "--node",
            "n1",
            "--server",
            server,
            "--data-dir",
            &data,
        ])
    };
    let nothing = issue("https://10.0.0.1:6443");
    assert_eq!(nothing.code, Some(3), "{nothing:?}");
    assert!(
        nothing
            .stderr
            .contains("hint: name the directory of an API server"),
        "{nothing:?}"
    );
    assert!(!directory.path().join("data").exists());
    assert_eq!(issue("10.0.0.1").code, Some(2));
}
