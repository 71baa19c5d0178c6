//! The API goes away and comes back; so does the agent.

use http::Method;
use pulselet_runtime::{ContainerFilter, Runtime as _};
use pulselet_vocabulary::PodName;
use serde_json::json;

use crate::harness::{PODS, World, eventually, pod};

#[tokio::test]
async fn while_the_api_is_away_pods_live_on_and_are_reported_when_it_is_back() {
    let mut world = World::new().await;
    world.run(&pod("web", &json!({}))).await;
    world.api().until_ready("web").await;
    world.stop_api().await;
    let containers = world
        .runtime
        .list_containers(&ContainerFilter::default())
        .await
        .unwrap();
    world.runtime.exit(&containers[0].id, 3);
    eventually("the container is restarted without the API", || async {
        let here = world.node().pod(&PodName::new("default", "web")).await.unwrap()?;
        (here.status.container_statuses[0].restart_count == 1).then_some(())
    })
    .await;
    world.start_api().await;
    let pod = world
        .api()
        .until("the restart is reported", &format!("{PODS}/web"), |pod| {
            pod["status"]["containerStatuses"][0]["restartCount"] == 1
        })
        .await;
    let last = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 3);
}

#[tokio::test]
async fn a_deletion_that_the_node_missed_is_carried_out_when_it_is_back() {
    let mut world = World::new().await;
    for name in ["ends", "forced", "stays"] {
        world.run(&pod(name, &json!({}))).await;
        world.api().until_ready(name).await;
    }
    world.stop_agent().await;
    world.api().delete(&format!("{PODS}/ends"), None).await;
    world.api().delete(&format!("{PODS}/forced"), Some(0)).await;
    world.start_agent().await;
    world.api().until_gone(&format!("{PODS}/ends")).await;
    eventually("the node has only the pod that the API has", || async {
        let pods = world.node().pods().await.unwrap();
        (pods.len() == 1 && pods[0].name == "stays").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_pod_is_said_to_be_ready_again_that_somebody_else_called_unready() {
    let world = World::new().await;
    world.run(&pod("web", &json!({}))).await;
    world.api().until_ready("web").await;
    // As the API does that sees the node's lease a moment later than the node's word about its pods.
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let path = format!("{PODS}/web/status");
    let (code, answer) = world.api().request(Method::PATCH, &path, Some(&unready)).await;
    assert_eq!(code, 200, "{answer}");
    world.api().until_ready("web").await;
}

#[tokio::test]
async fn an_agent_that_starts_without_the_api_ends_nothing() {
    let mut world = World::new().await;
    world.run(&pod("web", &json!({}))).await;
    world.api().until_ready("web").await;
    world.stop_agent().await;
    world.stop_api().await;
    world.start_agent().await;
    let containers = world
        .runtime
        .list_containers(&ContainerFilter::default())
        .await
        .unwrap();
    world.runtime.exit(&containers[0].id, 0);
    eventually("the agent restarts what has exited", || async {
        let here = world.node().pod(&PodName::new("default", "web")).await.unwrap()?;
        (here.status.container_statuses[0].restart_count == 1 && !here.deleting).then_some(())
    })
    .await;
    world.start_api().await;
    world
        .api()
        .until("the restart is reported", &format!("{PODS}/web"), |pod| {
            pod["status"]["containerStatuses"][0]["restartCount"] == 1
        })
        .await;
}

#[tokio::test]
async fn an_agent_that_comes_back_goes_on_with_its_pods() {
    let mut world = World::new().await;
    world.run(&pod("web", &json!({}))).await;
    let before = world.api().until_ready("web").await;
    world.stop_agent().await;
    world.start_agent().await;
    // A change that only the new agent can have carried over.
    let patch = json!({"metadata": {"annotations": {"seen": "again"}}});
    world
        .api()
        .request(Method::PATCH, &format!("{PODS}/web"), Some(&patch))
        .await;
    eventually("the new agent knows the pod", || async {
        let manifest = world
            .node()
            .manifest(&PodName::new("default", "web"))
            .await
            .unwrap()?;
        manifest.metadata.annotations.as_ref()?.get("seen").cloned()
    })
    .await;
    let (_, after) = world.api().get(&format!("{PODS}/web")).await;
    assert_eq!(
        after["status"]["containerStatuses"][0]["containerID"],
        before["status"]["containerStatuses"][0]["containerID"]
    );
    assert_eq!(after["status"]["containerStatuses"][0]["restartCount"], 0);
}

#[tokio::test]
async fn what_has_ended_is_not_run_again_by_an_agent_without_memory() {
    let mut world = World::new().await;
    let mut job = pod("job", &json!({}));
    job["spec"]["restartPolicy"] = json!("Never");
    world.run(&job).await;
    world.api().until_ready("job").await;
    let containers = world
        .runtime
        .list_containers(&ContainerFilter::default())
        .await
        .unwrap();
    world.runtime.exit(&containers[0].id, 0);
    world
        .api()
        .until("the job is done", &format!("{PODS}/job"), |pod| {
            pod["status"]["phase"] == "Succeeded"
        })
        .await;
    world.stop_agent().await;
    std::fs::remove_dir_all(world.directory.path().join("node")).expect("the state is lost");
    world.start_agent().await;
    // The next pod runs, so the first was looked at.
    world.run(&pod("next", &json!({}))).await;
    world.api().until_ready("next").await;
    assert_eq!(
        world.node().pod(&PodName::new("default", "job")).await.unwrap(),
        None
    );
}

/// The certificate is taken back, as it would expire, and a new one is put in its place.
#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_restart() {
    let world = World::new().await;
    world.run(&pod("before", &json!({}))).await;
    world.api().until_ready("before").await;
    let api = world.api();
    let text = pulselet_apiserver::node_kubeconfig(api.directory(), &api.url(), crate::harness::NODE);
    let renewed = text.expect("a kubeconfig");
    let serial = crate::harness::serial(&api.node_kubeconfig);
    std::fs::write(api.directory().join("pki/revoked"), serial).expect("writes");
    std::fs::write(&api.node_kubeconfig, renewed).expect("writes");
    world.run(&pod("after", &json!({}))).await;
    api.until_ready("after").await;
}
