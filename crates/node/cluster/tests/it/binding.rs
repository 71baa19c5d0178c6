//! Pods that name no node, and those that name one that does not take them.

use http::Method;
use serde_json::json;

use crate::harness::{NODE, PODS, World, condition, pod};

#[tokio::test]
async fn a_pod_without_a_node_gets_one_as_soon_as_one_takes_it() {
    let world = World::new().await;
    let mut free = pod("free", &json!({}));
    free["spec"]["nodeName"] = json!(null);
    free["spec"]["nodeSelector"] = json!({"zone": "a"});
    world.run(&free).await;
    let path = format!("{PODS}/free");
    let waiting = world
        .api()
        .until("the reason", &path, |pod| {
            condition(pod, "PodScheduled") == "False"
        })
        .await;
    assert_eq!(waiting["status"]["phase"], "Pending");
    let label = json!({"metadata": {"labels": {"zone": "a"}}});
    world
        .api()
        .until("the node", "/api/v1/nodes/n1", |node| {
            condition(node, "Ready") == "True"
        })
        .await;
    world
        .api()
        .request(Method::PATCH, "/api/v1/nodes/n1", Some(&label))
        .await;
    let ready = world.api().until_ready("free").await;
    assert_eq!(ready["spec"]["nodeName"], NODE);
    assert_eq!(condition(&ready, "PodScheduled"), "True");
    let (_, events) = world.api().get("/api/v1/namespaces/default/events").await;
    let reasons: Vec<_> = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| &event["reason"])
        .collect();
    for reason in ["FailedScheduling", "Scheduled"] {
        assert!(reasons.contains(&&json!(reason)), "{reasons:?}");
    }
}

#[tokio::test]
async fn a_pod_that_names_a_node_which_it_does_not_select_is_refused() {
    let world = World::new().await;
    world
        .api()
        .until("the node", "/api/v1/nodes/n1", |node| {
            condition(node, "Ready") == "True"
        })
        .await;
    let mut elsewhere = pod("elsewhere", &json!({}));
    elsewhere["spec"]["nodeSelector"] = json!({"zone": "b"});
    world.run(&elsewhere).await;
    let path = format!("{PODS}/elsewhere");
    let refused = world
        .api()
        .until("the refusal", &path, |pod| pod["status"]["phase"] == "Failed")
        .await;
    assert_eq!(refused["status"]["reason"], "NodeAffinity");
    assert_eq!(
        refused["status"]["message"],
        "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
    );
    // A label that has come since the node was read last counts.
    let label = json!({"metadata": {"labels": {"zone": "c"}}});
    world
        .api()
        .request(Method::PATCH, "/api/v1/nodes/n1", Some(&label))
        .await;
    let mut here = pod("here", &json!({}));
    here["spec"]["nodeSelector"] = json!({"zone": "c"});
    world.run(&here).await;
    world.api().until_ready("here").await;
}

#[tokio::test]
async fn a_pod_that_requests_more_than_there_is_waits_for_a_node_and_is_refused_by_one_that_it_names() {
    let world = World::new().await;
    let node = world
        .api()
        .until("the node", "/api/v1/nodes/n1", |node| {
            condition(node, "Ready") == "True"
        })
        .await;
    let (capacity, allocatable) = (&node["status"]["capacity"], &node["status"]["allocatable"]);
    assert_eq!(capacity["cpu"], allocatable["cpu"]);
    assert_ne!(
        capacity["memory"], allocatable["memory"],
        "what must stay free is not for pods"
    );
    let greedy =
        |name: &str, what: &str, amount: &str| pod(name, &json!({"resources": {"requests": {what: amount}}}));
    for (name, what, amount, reason) in [
        ("cpus", "cpu", "4000", "OutOfcpu"),
        ("bytes", "memory", "4000Ti", "OutOfmemory"),
        ("disk", "ephemeral-storage", "4000Pi", "OutOfephemeral-storage"),
    ] {
        world.run(&greedy(name, what, amount)).await;
        let refused = world
            .api()
            .until("the refusal", &format!("{PODS}/{name}"), |pod| {
                pod["status"]["phase"] == "Failed"
            })
            .await;
        assert_eq!(refused["status"]["reason"], reason);
        let message = refused["status"]["message"].as_str().unwrap_or_default();
        let begin = format!("Pod was rejected: Node didn't have enough resource: {what}, requested: ");
        assert!(message.starts_with(&begin), "{message}");
    }
    let mut free = greedy("free", "cpu", "4000");
    free["spec"]["nodeName"] = json!(null);
    world.run(&free).await;
    let waiting = world
        .api()
        .until("the reason", &format!("{PODS}/free"), |pod| {
            condition(pod, "PodScheduled") == "False"
        })
        .await;
    let text = waiting["status"]["conditions"].to_string();
    assert!(
        text.contains("0/1 nodes are available: 1 Insufficient cpu."),
        "{text}"
    );
}
