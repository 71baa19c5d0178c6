//! Pods that name no node.

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
