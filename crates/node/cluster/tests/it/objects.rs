//! Objects that the node's pods use.

use http::Method;
use pulselet_agent::{ObjectSource as _, SourceError, SourceKind, SourceObject};
use pulselet_cluster::{ApiClient, ApiObjects, Kubeconfig};
use serde_json::{Value, json};

use crate::harness::{World, eventually, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn a_node_gets_what_its_pods_use_and_nothing_else() {
    let world = World::new().await;
    for name in ["used", "other"] {
        let map = json!({"metadata": {"name": name}, "data": {"key": name}});
        world.api().create(MAPS, &map).await;
    }
    let env = json!([{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "used", "key": "key"}}}]);
    world.run(&pod("web", &json!({"env": env}))).await;
    let kubeconfig = Kubeconfig::load(&world.api().node_kubeconfig).unwrap();
    let source = ApiObjects::new(ApiClient::new(kubeconfig));
    let used = source.config_map("default", "used").await.unwrap().unwrap();
    assert_eq!(used.data.as_ref().unwrap()["key"], "used");
    let denied = source.config_map("default", "other").await.unwrap_err();
    assert!(
        matches!(&denied, SourceError::Fetch { message } if message.contains("cannot get")),
        "{denied}"
    );
    assert_eq!(source.secret("default", "used").await.ok(), None);
}

/// A pod whose volume `v` is made from the config map `settings`.
fn reader(name: &str) -> Value {
    let mut reader = pod(name, &json!({}));
    reader["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "settings"}}]);
    reader
}

/// Changes the config map and waits until the volume of a pod has the change. Nothing is looked at in rounds here.
async fn change(world: &World, uid: &str, text: &str) {
    let path = format!("{MAPS}/settings");
    let changes = json!({"data": {"key": text}});
    let (code, answer) = world.api().request(Method::PATCH, &path, Some(&changes)).await;
    assert_eq!(code, 200, "{answer}");
    until_read(world, uid, text).await;
}

async fn until_read(world: &World, uid: &str, text: &str) {
    let file = format!("node/pods/{uid}/volumes/kubernetes.io~configmap/v/key");
    let file = world.directory.path().join(file);
    eventually(&format!("the volume has {text:?}"), || async {
        let read = std::fs::read_to_string(&file).unwrap_or_default();
        (read == text).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_volume_follows_its_config_map_by_a_watch() {
    let mut world = World::new().await;
    let settings = json!({"metadata": {"name": "settings"}, "data": {"key": "one"}});
    world.api().create(MAPS, &settings).await;
    let created = world.run(&reader("web")).await;
    let uid = created["metadata"]["uid"].as_str().unwrap();
    world.api().until_ready("web").await;
    change(&world, uid, "two").await;
    // While it is watched nobody has to ask for it, and what no pod uses is not watched.
    let is_followed = |name: &str| {
        let object = SourceObject {
            kind: SourceKind::ConfigMap,
            namespace: "default".to_owned(),
            name: name.to_owned(),
        };
        let agent = world.agent.as_ref().expect("the agent is there");
        agent.objects.is_followed(&object)
    };
    assert!(is_followed("settings") && !is_followed("other"));
    // The watch comes back after the server did, and tells what it missed.
    world.stop_api().await;
    world.start_api().await;
    change(&world, uid, "three").await;
    // The next agent follows the volumes that it adopts, and so does a pod that joins a watch.
    world.stop_agent().await;
    world.start_agent().await;
    let other = world.run(&reader("other")).await;
    world.api().until_ready("other").await;
    change(&world, uid, "four").await;
    until_read(&world, other["metadata"]["uid"].as_str().unwrap(), "four").await;
    // An object that goes and comes back is the same volume's.
    world.api().delete(&format!("{MAPS}/settings"), None).await;
    let settings = json!({"metadata": {"name": "settings"}, "data": {"key": "five"}});
    world.api().create(MAPS, &settings).await;
    until_read(&world, uid, "five").await;
}
