//! A pod's way from the API to the node and back.

use std::time::Duration;

use http::Method;
use pulselet_agent::ShutdownPeriods;
use pulselet_runtime_fake::LifeScript;
use pulselet_vocabulary::PodName;
use serde_json::{Value, json};

use crate::harness::{NODE, PODS, World, condition, eventually, pod};

#[tokio::test]
async fn a_node_that_goes_down_is_not_ready_and_its_pods_have_failed() {
    let world = World::new().await;
    world.run(&pod("web", &json!({}))).await;
    world.api().until_ready("web").await;
    let periods = ShutdownPeriods {
        total: Duration::from_secs(20).into(),
        critical: Duration::ZERO.into(),
    };
    let stopped = world.node().stop_for_shutdown(periods).await;
    stopped.expect("the node is there");
    let failed = world
        .api()
        .until("the pod has failed", &format!("{PODS}/web"), |pod| {
            pod["status"]["phase"] == "Failed"
        })
        .await;
    assert_eq!(failed["status"]["reason"], "Terminated");
    assert_eq!(
        failed["status"]["message"],
        "Pod was terminated in response to imminent node shutdown."
    );
    assert_eq!(condition(&failed, "DisruptionTarget"), "True");
    let path = format!("/api/v1/nodes/{NODE}");
    let node = world
        .api()
        .until("the node is not ready", &path, |node| {
            condition(node, "Ready") == "False"
        })
        .await;
    let conditions = node["status"]["conditions"].as_array().expect("conditions");
    let ready = conditions.iter().find(|it| it["type"] == "Ready").expect("one");
    assert_eq!(ready["reason"], "KubeletNotReady");
    assert_eq!(ready["message"], "node is shutting down");
}

#[tokio::test]
async fn a_node_registers_and_renews_its_lease() {
    let world = World::new().await;
    let node = world
        .api()
        .until("a ready node", "/api/v1/nodes/n1", |node| {
            condition(node, "Ready") == "True"
        })
        .await;
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], NODE);
    assert_eq!(
        node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"],
        10250
    );
    assert_eq!(
        node["status"]["declaredFeatures"],
        json!([
            "ExtendWebSocketsToKubelet",
            "RestartAllContainersOnContainerExits"
        ])
    );
    assert_eq!(condition(&node, "MemoryPressure"), "False");
    let info = &node["status"]["nodeInfo"];
    assert!(
        info["containerRuntimeVersion"]
            .as_str()
            .unwrap()
            .starts_with("fake://"),
        "{info}"
    );
    let (_, version) = world.api().get("/version").await;
    assert_eq!(info["kubeletVersion"], version["gitVersion"]);
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
    let lease = world.api().until("a lease", path, |_| true).await;
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
    assert_eq!(
        lease["metadata"]["ownerReferences"][0]["uid"],
        node["metadata"]["uid"]
    );
    // A Node that somebody removes is put back.
    world.api().delete("/api/v1/nodes/n1", None).await;
    world
        .api()
        .until("the node again", "/api/v1/nodes/n1", |again| {
            again["metadata"]["uid"] != node["metadata"]["uid"]
        })
        .await;
}

#[tokio::test]
async fn a_pod_runs_is_reported_and_goes_when_it_has_ended() {
    let world = World::new().await;
    let created = world
        .run(&pod("web", &json!({"lifecycle": {"stopSignal": "SIGUSR1"}})))
        .await;
    let ready = world.api().until_ready("web").await;
    let status = &ready["status"];
    assert_eq!(
        (&status["phase"], &status["observedGeneration"]),
        (&json!("Running"), &json!(1))
    );
    assert!(
        status["podIP"].is_string() && status["hostIP"].is_string(),
        "{status}"
    );
    assert_eq!(status["containerStatuses"][0]["stopSignal"], "SIGUSR1");
    assert_eq!(condition(&ready, "ContainersReady"), "True");
    let here = world
        .node()
        .pod(&PodName::new("default", "web"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(json!(here.uid), created["metadata"]["uid"]);
    world.api().delete(&format!("{PODS}/web"), None).await;
    world.api().until_gone(&format!("{PODS}/web")).await;
    assert_eq!(
        world.node().pod(&PodName::new("default", "web")).await.unwrap(),
        None
    );
}

#[tokio::test]
async fn the_last_status_says_how_the_containers_ended() {
    let world = World::new().await;
    // A finalizer keeps the object, so that its last status can be seen.
    let mut pod = pod("web", &json!({}));
    pod["metadata"]["finalizers"] = json!(["example.com/keep"]);
    world.run(&pod).await;
    world.api().until_ready("web").await;
    world.api().delete(&format!("{PODS}/web"), None).await;
    let last = world
        .api()
        .until("the last status", &format!("{PODS}/web"), |pod| {
            pod["status"]["containerStatuses"][0]["state"]["terminated"].is_object()
        })
        .await;
    assert_eq!(condition(&last, "Ready"), "False");
    assert_eq!(last["status"]["observedGeneration"], 2);
    let free = json!({"metadata": {"finalizers": null}});
    world
        .api()
        .request(Method::PATCH, &format!("{PODS}/web"), Some(&free))
        .await;
    world.api().until_gone(&format!("{PODS}/web")).await;
}

#[tokio::test]
async fn a_second_deletion_shortens_the_first_and_force_kills() {
    let world = World::new().await;
    world
        .runtime
        .script("app", [LifeScript::stubborn(), LifeScript::stubborn()]);
    let patient = |name: &str| {
        let mut pod = pod(name, &json!({}));
        pod["spec"]["terminationGracePeriodSeconds"] = json!(3600);
        pod
    };
    world.run(&patient("slow")).await;
    world.api().until_ready("slow").await;
    let path = format!("{PODS}/slow");
    world.api().delete(&path, None).await;
    eventually("the node ends it", || async {
        let here = world.node().pod(&PodName::new("default", "slow")).await.unwrap();
        here.filter(|here| here.deleting)
    })
    .await;
    world.api().delete(&path, Some(1)).await;
    world.api().until_gone(&path).await;

    world.run(&patient("forced")).await;
    world.api().until_ready("forced").await;
    world.api().delete(&format!("{PODS}/forced"), Some(0)).await;
    eventually("the node has killed it", || async {
        world
            .node()
            .pod(&PodName::new("default", "forced"))
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_new_pod_takes_the_name_of_one_that_was_removed() {
    let world = World::new().await;
    world.run(&pod("web", &json!({}))).await;
    world.api().until_ready("web").await;
    world.api().delete(&format!("{PODS}/web"), Some(0)).await;
    let second = world.run(&pod("web", &json!({}))).await;
    let ready = world.api().until_ready("web").await;
    assert_eq!(ready["metadata"]["uid"], second["metadata"]["uid"]);
    let here = world
        .node()
        .pod(&PodName::new("default", "web"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(json!(here.uid), second["metadata"]["uid"]);
}

#[tokio::test]
async fn labels_of_a_running_pod_reach_the_node_and_restart_nothing() {
    let world = World::new().await;
    world.run(&pod("web", &json!({}))).await;
    world.api().until_ready("web").await;
    let patch = json!({"metadata": {"labels": {"tier": "front"}}});
    world
        .api()
        .request(Method::PATCH, &format!("{PODS}/web"), Some(&patch))
        .await;
    eventually("the node knows the label", || async {
        let manifest = world
            .node()
            .manifest(&PodName::new("default", "web"))
            .await
            .unwrap()?;
        manifest.metadata.labels.as_ref()?.get("tier").cloned()
    })
    .await;
    let here = world
        .node()
        .pod(&PodName::new("default", "web"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(here.status.container_statuses[0].restart_count, 0);
}

#[tokio::test]
async fn a_pod_for_another_system_fails_with_its_reason() {
    let world = World::new().await;
    let mut windows = pod("win", &json!({}));
    windows["spec"]["os"] = json!({"name": "windows"});
    world.run(&windows).await;
    let failed = world
        .api()
        .until("a failed pod", &format!("{PODS}/win"), |pod| {
            pod["status"]["phase"] == "Failed"
        })
        .await;
    assert_eq!(failed["status"]["reason"], "PodOSNotSupported");
}

#[tokio::test]
async fn events_are_posted_and_counted() {
    let world = World::new().await;
    let exits = LifeScript {
        exits: Some((Duration::ZERO, 1)),
        ..LifeScript::default()
    };
    world.runtime.script("app", [exits]);
    let created = world.run(&pod("web", &json!({}))).await;
    let started = |list: &Value| {
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.into_iter().find(|event| event["reason"] == "Started")
    };
    let list = world
        .api()
        .until("a counted event", "/api/v1/namespaces/default/events", |list| {
            started(list).is_some_and(|event| event["count"].as_u64() >= Some(2))
        })
        .await;
    let event = started(&list).unwrap();
    assert_eq!(event["involvedObject"]["uid"], created["metadata"]["uid"]);
    assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{app}");
    assert_eq!(event["source"], json!({"component": "kubelet", "host": NODE}));
    assert_eq!(event["reportingComponent"], "pulselet");
}

/// Sets a condition of a pod as a controller does.
async fn set_condition(world: &World, status: &str) {
    let (_, pod) = world.api().get(&format!("{PODS}/web")).await;
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.expect("conditions").clone();
    conditions.retain(|condition| condition["type"] != "example.com/gate");
    conditions.push(json!({"type": "example.com/gate", "status": status}));
    let version = &pod["metadata"]["resourceVersion"];
    let changes = json!({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}});
    let path = format!("{PODS}/web/status");
    let (code, answer) = world.api().request(Method::PATCH, &path, Some(&changes)).await;
    assert_eq!(code, 200, "{answer}");
}

#[tokio::test]
async fn a_pod_is_ready_when_its_gates_are_and_as_long_as_they_are() {
    let world = World::new().await;
    let mut gated = pod("web", &json!({}));
    gated["spec"]["readinessGates"] = json!([{"conditionType": "example.com/gate"}]);
    world.run(&gated).await;
    let path = format!("{PODS}/web");
    let waiting = world
        .api()
        .until("ready containers", &path, |pod| {
            condition(pod, "ContainersReady") == "True"
        })
        .await;
    let conditions = waiting["status"]["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|it| it["type"] == "Ready").unwrap();
    assert_eq!(
        (&ready["status"], &ready["reason"], &ready["message"]),
        (
            &json!("False"),
            &json!("ReadinessGatesNotReady"),
            &json!("corresponding condition of pod readiness gate \"example.com/gate\" does not exist.")
        )
    );
    set_condition(&world, "True").await;
    world.api().until_ready("web").await;
    set_condition(&world, "False").await;
    world
        .api()
        .until("the pod is unready", &path, |pod| {
            condition(pod, "Ready") == "False"
        })
        .await;
}

#[tokio::test]
async fn a_changed_image_is_run_and_status_says_what_runs() {
    let world = World::new().await;
    world.run(&pod("web", &json!({}))).await;
    let first = world.api().until_ready("web").await;
    let path = format!("{PODS}/web");
    let container = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    assert_eq!(container(&first)["image"], "app:1");
    let mut changed = first.clone();
    changed["spec"]["containers"][0]["image"] = json!("app:2");
    changed["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    let (code, answer) = world.api().request(Method::PUT, &path, Some(&changed)).await;
    assert_eq!(code, 200, "{answer}");
    let second = world
        .api()
        .until("the new image runs", &path, |pod| {
            let container = container(pod);
            let running = container["state"]["running"].is_object();
            let (image, id) = (
                &container["image"],
                container["imageID"].as_str().unwrap_or_default(),
            );
            // The name and the id are those of one image, at every moment.
            assert!(
                id.is_empty() || id.contains(image.as_str().unwrap()),
                "{container}"
            );
            running && image == "app:2"
        })
        .await;
    assert_eq!(container(&second)["restartCount"], 1);
    assert_ne!(
        container(&second)["containerID"],
        container(&first)["containerID"]
    );
}
