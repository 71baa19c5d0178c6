//! Objects that the node's pods use.

use pulselet_agent::{ObjectSource as _, SourceError};
use pulselet_cluster::{ApiClient, ApiObjects, Kubeconfig};
use serde_json::json;

use crate::harness::{World, pod};

#[tokio::test]
async fn a_node_gets_what_its_pods_use_and_nothing_else() {
    let world = World::new().await;
    for name in ["used", "other"] {
        let map = json!({"metadata": {"name": name}, "data": {"key": name}});
        world
            .api()
            .create("/api/v1/namespaces/default/configmaps", &map)
            .await;
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
