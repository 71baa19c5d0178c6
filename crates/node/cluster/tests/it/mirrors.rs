//! Static pods as the API shows them.

use pulselet_vocabulary::PodName;
use serde_json::{Value, json};

use crate::harness::{NODE, PODS, World, condition, eventually};

const PATH: &str = "/api/v1/namespaces/default/pods/web-n1";

fn write(world: &World, image: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": image}], "terminationGracePeriodSeconds": 1},
    });
    let path = world.manifests().join("web.json");
    std::fs::write(path, pod.to_string()).expect("a manifest");
}

fn hash(mirror: &Value) -> &Value {
    &mirror["metadata"]["annotations"]["kubernetes.io/config.hash"]
}

#[tokio::test]
async fn a_static_pod_is_shown_put_back_replaced_and_removed() {
    let world = World::new().await;
    write(&world, "app:1");
    let first = world.api().until_ready("web-n1").await;
    assert_eq!(first["spec"]["nodeName"], NODE);
    assert_eq!(first["metadata"]["labels"]["app"], "web");
    assert_eq!(first["metadata"]["ownerReferences"][0]["kind"], "Node");
    let annotations = &first["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/config.mirror"], *hash(&first));
    assert_eq!(annotations["kubernetes.io/config.source"], "file");

    world.api().delete(PATH, None).await;
    let second = world
        .api()
        .until("the mirror is back", PATH, |pod| {
            pod["metadata"]["uid"] != first["metadata"]["uid"]
        })
        .await;
    assert_eq!(hash(&second), hash(&first));
    let here = world
        .node()
        .pod(&PodName::new("default", "web-n1"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(here.status.container_statuses[0].restart_count, 0);

    write(&world, "app:2");
    world
        .api()
        .until("the mirror shows the new version", PATH, |pod| {
            hash(pod) != hash(&first) && condition(pod, "Ready") == "True"
        })
        .await;
    std::fs::remove_file(world.manifests().join("web.json")).expect("the file is there");
    world.api().until_gone(PATH).await;
}

#[tokio::test]
async fn a_file_that_went_while_the_agent_was_away_takes_its_mirror_with_it() {
    let mut world = World::new().await;
    write(&world, "app:1");
    world.api().until_ready("web-n1").await;
    world.stop_agent().await;
    std::fs::remove_file(world.manifests().join("web.json")).expect("the file is there");
    world.start_agent().await;
    world.api().until_gone(PATH).await;
    eventually("the static pod is gone", || async {
        world.node().pods().await.unwrap().is_empty().then_some(())
    })
    .await;
    assert_eq!(world.api().get(PODS).await.1["items"], json!([]));
}

#[tokio::test]
async fn a_static_pod_that_the_api_does_not_show_runs_and_says_so_once() {
    let world = World::new().await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "app", "image": "app:1"}], "imagePullSecrets": [{"name": "s"}]},
    });
    std::fs::write(world.manifests().join("web.json"), pod.to_string()).expect("a manifest");
    let events = "/api/v1/namespaces/default/events";
    let refused = |list: &Value| -> Vec<Value> {
        let all = list["items"].as_array().cloned().unwrap_or_default().into_iter();
        all.filter(|event| event["reason"] == "MirrorRefused").collect()
    };
    let list = world
        .api()
        .until("the event", events, |list| !refused(list).is_empty())
        .await;
    let event = &refused(&list)[0];
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("secret"), "{message}");
    assert_eq!(
        (&event["involvedObject"]["name"], &event["count"]),
        (&json!("web-n1"), &json!(1))
    );
    assert_eq!(world.api().get(PATH).await.0, 404);
    eventually("the static pod runs", || async {
        let pods = world.node().pods().await.unwrap();
        pods.iter().any(|pod| pod.status.phase == "Running").then_some(())
    })
    .await;
}
