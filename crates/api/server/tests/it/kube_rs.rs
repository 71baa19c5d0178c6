//! What a program in Rust does with a server: by kube, the client that most of them use.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, TryStreamExt as _};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt as _};
use pulselet_model::openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::json;

use crate::harness::TestServer;

/// A client with the administrator's kubeconfig.
async fn client(server: &TestServer) -> Client {
    let kubeconfig = Kubeconfig::read_from(&server.kubeconfig).expect("the kubeconfig is read");
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("the kubeconfig is understood");
    // A proxy of the machine is not for addresses of the machine.
    config.proxy_url = None;
    Client::try_from(config).expect("a client")
}

fn config_map(name: &str) -> ConfigMap {
    let data = BTreeMap::from([("key".to_owned(), name.to_owned())]);
    let mut map = ConfigMap {
        data: Some(data),
        ..ConfigMap::default()
    };
    map.metadata.name = Some(name.to_owned());
    map
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_lists_watches_creates_and_patches() {
    let server = TestServer::start();
    let client = client(&server).await;
    let version = client.apiserver_version().await.expect("a version");
    assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "36"));
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let listed = maps.list(&ListParams::default()).await.expect("a list");
    let since = listed.metadata.resource_version.expect("a version");
    let post = PostParams::default();
    maps.create(&post, &config_map("one")).await.expect("is made");
    maps.create(&post, &config_map("two")).await.expect("is made");
    maps.delete("one", &DeleteParams::default())
        .await
        .expect("is deleted");
    let watch = maps
        .watch(&WatchParams::default(), &since)
        .await
        .expect("a watch");
    let changes = watch.try_filter_map(|event| async move {
        Ok(match event {
            WatchEvent::Added(map) => Some(format!("ADDED {}", map.name_any())),
            WatchEvent::Modified(map) => Some(format!("MODIFIED {}", map.name_any())),
            WatchEvent::Deleted(map) => Some(format!("DELETED {}", map.name_any())),
            WatchEvent::Bookmark(_) => None,
            WatchEvent::Error(error) => Some(format!("{error:?}")),
        })
    });
    let seen: Vec<String> = changes.take(3).try_collect().await.expect("changes");
    assert_eq!(seen, ["ADDED one", "ADDED two", "DELETED one"]);
    let pods: Api<Pod> = Api::default_namespaced(client);
    let wanted =
        json!({"metadata": {"name": "made"}, "spec": {"containers": [{"name": "app", "image": "app:1"}]}});
    let wanted: Pod = serde_json::from_value(wanted).expect("a pod");
    let made = pods.create(&post, &wanted).await.expect("is made");
    assert_eq!(
        made.spec.and_then(|spec| spec.restart_policy).as_deref(),
        Some("Always")
    );
    let again = pods.create(&post, &wanted).await.expect_err("there is one");
    assert!(matches!(again, kube::Error::Api(status) if status.code == 409));
    let labels = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}});
    let apply = PatchParams::apply("kube-rs");
    let patched = pods.patch("made", &apply, &Patch::Apply(&labels)).await;
    assert_eq!(patched.expect("is patched").labels()["a"], "b");
    let selected = pods
        .list(&ListParams::default().labels("a=b"))
        .await
        .expect("a list");
    assert_eq!(selected.items.len(), 1);
    assert!(pods.get_opt("nobody").await.expect("an answer").is_none());
}
