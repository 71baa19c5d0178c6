//! Pods that use config maps and secrets.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pulselet_agent::{ObjectSource, SourceError, Token, TokenRequest};
use pulselet_model::Pod;
use pulselet_model::openapi::api::core::v1::{ConfigMap, Secret};
use pulselet_runtime::{ImageErrorKind, ImageSummary, MountedImage, RegistryCredentials};
use pulselet_runtime_fake::{ImageScript, LifeScript};
use serde_json::{Value, json};

use crate::harness::{Bench, eventually, pod, pod_of, runtime};

/// Objects in memory, by namespace/name.
#[derive(Clone, Debug, Default)]
struct Shelf(Arc<Mutex<BTreeMap<String, Value>>>);

impl Shelf {
    /// Puts a new version of an object there; its kind is that of the wire.
    fn put(&self, kind: &str, name: &str, mut object: Value) {
        let mut all = self.0.lock().expect("no holder panics");
        let key = format!("{kind} default/{name}");
        let old = all
            .get(&key)
            .and_then(|old| old["metadata"]["resourceVersion"].as_str());
        let version = old.and_then(|old| old.parse().ok()).unwrap_or(0) + 1;
        object["metadata"] = json!({"name": name, "resourceVersion": version.to_string()});
        all.insert(key, object);
    }

    fn get<T: serde::de::DeserializeOwned>(&self, key: &str) -> Option<Arc<T>> {
        let all = self.0.lock().expect("no holder panics");
        let object = all.get(key)?;
        Some(Arc::new(
            serde_json::from_value(object.clone()).expect("an object"),
        ))
    }
}

#[async_trait]
impl ObjectSource for Shelf {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Option<Arc<ConfigMap>>, SourceError> {
        Ok(self.get(&format!("ConfigMap {namespace}/{name}")))
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, SourceError> {
        Ok(self.get(&format!("Secret {namespace}/{name}")))
    }

    async fn runtime_handler(&self, class: &str) -> Result<Option<String>, SourceError> {
        let found = self.get::<Value>(&format!("RuntimeClass default/{class}"));
        Ok(found.map(|class| class["handler"].as_str().unwrap_or_default().to_owned()))
    }

    async fn token(&self, request: &TokenRequest) -> Result<Token, SourceError> {
        if self.get::<Value>("no tokens").is_some() {
            return Err(SourceError::Unsupported { what: "tokens" });
        }
        Ok(Token {
            text: format!("{} for {:?}", request.service_account, request.audiences),
            expires_at: jiff::Timestamp::MAX,
        })
    }
}

async fn bench(shelf: &Shelf) -> Bench {
    let directory = tempfile::tempdir().expect("a directory");
    let objects = Arc::new(shelf.clone());
    Bench::on(directory, runtime(), |options| options.objects = objects).await
}

async fn waiting(bench: &Bench) -> (String, String) {
    let pods = bench.node.pods().await.expect("the node is there");
    let state = &pods[0].status.container_statuses[0].state;
    let waiting = state.waiting.clone().unwrap_or_default();
    (
        waiting.reason.unwrap_or_default(),
        waiting.message.unwrap_or_default(),
    )
}

#[tokio::test]
async fn a_container_waits_for_the_object_its_variables_come_from() {
    let shelf = Shelf::default();
    let mut bench = bench(&shelf).await;
    let env =
        json!([{"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}}]);
    let from = json!([{"secretRef": {"name": "keys"}, "prefix": "DB_"}]);
    bench.add(pod("web", &json!({"env": env, "envFrom": from}))).await;
    bench.until_type("warning").await;
    let (reason, message) = waiting(&bench).await;
    assert_eq!(reason, "CreateContainerConfigError");
    assert_eq!(message, "secret \"keys\" not found");
    shelf.put(
        "Secret",
        "keys",
        json!({"data": {"PASSWORD": "aHVudGVyMg==", "a=b": ""}}),
    );
    shelf.put("ConfigMap", "settings", json!({"data": {"colour": "red"}}));
    bench.until_ready().await;
    let created = bench.runtime.config("app", 0).expect("a container");
    let env: Vec<_> = created.env.iter().map(|it| (&*it.name, &*it.value)).collect();
    assert_eq!(env, [("DB_PASSWORD", "hunter2"), ("COLOUR", "red")]);
    let uid = bench.node.pods().await.unwrap()[0].uid.clone();
    let node = bench.node.clone();
    eventually("the event about the name that no variable can have", || async {
        let events = node.events(&uid).await.unwrap();
        events.iter().any(|event| {
            event.reason == "InvalidEnvironmentVariableNames"
                && event.message.starts_with("Keys [DB_a=b] from")
        })
    })
    .await;
    bench.leave().await;
}

/// Where the container's mount at `/v` comes from.
fn mounted(bench: &Bench) -> PathBuf {
    let config = bench.runtime.config("app", 0).expect("a container");
    let mounts = config.mounts.iter();
    let mut found = mounts.filter(|mount| mount.container_path == Path::new("/v"));
    let mount = found.next().expect("the mount");
    assert!(
        mount.read_only,
        "what the node writes is not a container's to change"
    );
    mount.host_path.clone()
}

fn with_volume(source: &Value) -> Pod {
    let mut volume = json!({"name": "v"});
    volume
        .as_object_mut()
        .expect("an object")
        .extend(source.as_object().expect("a source").clone());
    let app = json!({
        "name": "app", "image": "app:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    });
    pod_of(
        "web",
        &json!({"containers": [app], "volumes": [volume], "terminationGracePeriodSeconds": 1}),
    )
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn mounts_below(directory: &Path) -> usize {
    let directory = directory.to_str().expect("a plain path");
    let list = fs::read_to_string("/proc/self/mountinfo").expect("the kernel's list");
    list.lines().filter(|line| line.contains(directory)).count()
}

/// Without the right to mount, secrets are on disk: good enough for a look, not for the test to count.
fn expect_memory(mounts: usize) {
    let _ = pulselet_testing::requires("the right to mount", mounts > 0);
}

#[tokio::test]
async fn a_pod_waits_for_what_its_volumes_are_made_from_and_follows_its_changes() {
    let shelf = Shelf::default();
    let mut bench = bench(&shelf).await;
    bench
        .add(with_volume(&json!({"configMap": {"name": "settings"}})))
        .await;
    let warning = bench.until_type("warning").await.to_json();
    let text = r#"MountVolume.SetUp failed for volume \"v\" : configmap \"settings\" not found"#;
    assert!(warning.contains(text), "{warning}");
    assert_eq!(waiting(&bench).await.0, "ContainerCreating");
    shelf.put(
        "ConfigMap",
        "settings",
        json!({"data": {"colour": "red", "shape": "round"}}),
    );
    bench.until_ready().await;
    let uid = bench.node.pods().await.expect("the node is there")[0].uid.clone();
    bench.events(&uid, &["FailedMount"]).await;
    let volume = mounted(&bench);
    assert_eq!(
        (&*read(&volume.join("colour")), &*read(&volume.join("shape"))),
        ("red", "round")
    );
    shelf.put("ConfigMap", "settings", json!({"data": {"colour": "blue"}}));
    eventually("the new version is there as a whole", async || {
        read(&volume.join("colour")) == "blue" && !volume.join("shape").exists()
    })
    .await;
    bench.leave().await;
}

#[tokio::test]
async fn secrets_are_in_memory_and_go_with_their_pod() {
    let shelf = Shelf::default();
    shelf.put("Secret", "keys", json!({"data": {"password": "aHVudGVyMg=="}}));
    let mut bench = bench(&shelf).await;
    let sources = json!([
        {"secret": {"name": "keys"}},
        {"serviceAccountToken": {"path": "token", "audience": "vault"}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ]);
    let mut pod = with_volume(&json!({"projected": {"defaultMode": 0o400, "sources": sources}}));
    // The uid of a pod from a file follows from its content; one from an API has its own.
    pod.metadata.uid = Some("u-1".to_owned());
    bench.add(pod.clone()).await;
    bench.until_ready().await;
    let volume = mounted(&bench);
    assert_eq!(read(&volume.join("password")), "hunter2");
    assert_eq!(read(&volume.join("token")), "default for [\"vault\"]");
    let data = bench.data();
    expect_memory(mounts_below(&data));
    pod.metadata.labels = Some([("app".to_owned(), "shop".to_owned())].into());
    let updated = bench.node.update_pod(pod).await.expect("the node is there");
    updated.expect("an update");
    eventually("the new label is shown", async || {
        read(&volume.join("labels")) == "app=\"shop\""
    })
    .await;
    bench.delete("web").await;
    let pods = data.join("pods");
    eventually("nothing is left of the pod", async || {
        fs::read_dir(&pods).is_ok_and(|mut entries| entries.next().is_none())
    })
    .await;
    assert_eq!(mounts_below(&data), 0);
    bench.leave().await;
}

#[tokio::test]
async fn a_token_that_nobody_gives_is_an_error_that_says_so() {
    let shelf = Shelf::default();
    let mark = |shelf: &Shelf| {
        let mut all = shelf.0.lock().expect("no holder panics");
        all.insert("no tokens".to_owned(), json!({}));
    };
    mark(&shelf);
    let mut bench = bench(&shelf).await;
    let sources = json!([{"serviceAccountToken": {"path": "token"}}]);
    bench
        .add(with_volume(&json!({"projected": {"sources": sources}})))
        .await;
    let warning = bench.until_type("warning").await.to_json();
    let text = "failed to fetch token: the API does not give tokens";
    assert!(warning.contains(text), "{warning}");
    bench.delete("web").await;
    bench.until_type("deleted").await;
    bench.leave().await;
}

#[tokio::test]
async fn a_dead_agents_volumes_are_gone_on_with_or_unmounted_and_removed() {
    let shelf = Shelf::default();
    shelf.put("Secret", "keys", json!({"data": {"password": "aHVudGVyMg=="}}));
    let mut first = bench(&shelf).await;
    first
        .add(with_volume(&json!({"secret": {"secretName": "keys"}})))
        .await;
    first.until_ready().await;
    let volume = mounted(&first);
    let data = first.data();
    let mounts = mounts_below(&data);
    expect_memory(mounts);
    let (directory, old_runtime) = first.leave().await;
    assert_eq!(
        read(&volume.join("password")),
        "hunter2",
        "what runs on keeps its files"
    );

    shelf.put("Secret", "keys", json!({"data": {"password": "bmV3"}}));
    let objects = Arc::new(shelf.clone());
    let second = Bench::on(directory, old_runtime, |options| options.objects = objects).await;
    eventually("the next agent goes on with the volume", async || {
        read(&volume.join("password")) == "new"
    })
    .await;
    assert_eq!(mounts_below(&data), mounts);
    let (directory, _) = second.leave().await;

    for file in ["node.db", "node.db-wal", "node.db-shm"] {
        let _ = fs::remove_file(data.join(file));
    }
    let pods = data.join("pods");
    for pod in fs::read_dir(&pods).expect("pods").flatten() {
        let _ = fs::remove_file(pod.path().join("spare.json"));
    }
    let third = Bench::on(directory, runtime(), |_| {}).await;
    eventually("nothing is left of the pod", async || {
        fs::read_dir(&pods).is_ok_and(|mut entries| entries.next().is_none())
    })
    .await;
    assert_eq!(mounts_below(&data), 0);
    third.leave().await;
}

#[tokio::test]
async fn images_are_pulled_with_the_credentials_of_the_pods_secrets() {
    let shelf = Shelf::default();
    // {"auths": {"registry.example": {"username": "robot", "password": "hunter2"}}}
    let config = "eyJhdXRocyI6IHsicmVnaXN0cnkuZXhhbXBsZSI6IHsidXNlcm5hbWUiOiAicm9ib3QiLCAicGFzc3dvcmQiOiAiaHVudGVyMiJ9fX0=";
    let secret = json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": config}});
    shelf.put("Secret", "registry", secret);
    let mut bench = bench(&shelf).await;
    let container =
        |name: &str, image: &str| json!({"name": name, "image": image, "imagePullPolicy": "Always"});
    let containers = [
        container("app", "registry.example/app:1"),
        container("other", "elsewhere.example/app:1"),
    ];
    let pod = pod_of(
        "web",
        &json!({"containers": containers, "imagePullSecrets": [{"name": "registry"}, {"name": "none"}]}),
    );
    bench.add(pod).await;
    bench.until_ready().await;
    let robot = RegistryCredentials::Basic {
        username: "robot".to_owned(),
        password: "hunter2".to_owned(),
    };
    assert_eq!(
        bench.runtime.pulled_as("registry.example/app:1"),
        Some(Some(robot))
    );
    assert_eq!(bench.runtime.pulled_as("elsewhere.example/app:1"), Some(None));
    let text = bench.transcript();
    assert!(
        text.contains("Unable to retrieve some image pull secrets (none);"),
        "{text}"
    );
    bench.leave().await;
}

#[tokio::test]
async fn secrets_leave_memory_when_their_pod_has_ended() {
    let shelf = Shelf::default();
    shelf.put("Secret", "keys", json!({"data": {"password": "aHVudGVyMg=="}}));
    let mut bench = bench(&shelf).await;
    bench
        .runtime
        .script("app", [LifeScript::exiting(Duration::from_millis(100), 0)]);
    let mut pod = with_volume(&json!({"secret": {"secretName": "keys"}}));
    pod.spec.restart_policy = "Never".to_owned();
    bench.add(pod).await;
    bench
        .until("the pod's end", |line| line.to_json().contains("Succeeded"))
        .await;
    let volume = mounted(&bench);
    let data = bench.data();
    eventually("the secrets are gone", async || {
        !volume.exists() && mounts_below(&data) == 0
    })
    .await;
    assert_eq!(bench.node.pods().await.expect("the node is there").len(), 1);
    bench.leave().await;
}

#[tokio::test]
async fn a_runtime_class_chooses_the_handler() {
    let shelf = Shelf::default();
    let mut bench = bench(&shelf).await;
    let mut isolated = pod("web", &json!({}));
    isolated.spec.runtime_class_name = Some("isolated".into());
    bench.add(isolated).await;
    bench.until_type("warning").await;
    assert_eq!(bench.runtime.handler("web"), None, "there is no such class yet");
    shelf.put("RuntimeClass", "isolated", json!({"handler": "kata"}));
    bench.until_ready().await;
    assert_eq!(bench.runtime.handler("web").as_deref(), Some("kata"));
    bench.leave().await;
}

#[tokio::test]
async fn a_container_waits_for_the_image_it_mounts() {
    let shelf = Shelf::default();
    let mut bench = bench(&shelf).await;
    let missing = ImageScript::Fails(ImageErrorKind::NotFound, "no such site".into());
    bench.runtime.script_image("site:1", missing);
    bench
        .add(with_volume(&json!({"image": {"reference": "site:1"}})))
        .await;
    bench.until_type("warning").await;
    let node = bench.node.clone();
    eventually("the container says what it waits for", || async {
        let pods = node.pods().await.expect("the node is there");
        let state = pods[0].status.container_statuses[0].state.waiting.clone();
        let state = state.unwrap_or_default();
        let is_waiting = matches!(state.reason.as_deref(), Some("ErrImagePull" | "ImagePullBackOff"));
        is_waiting
            && state
                .message
                .is_some_and(|message| message.contains("no such site"))
    })
    .await;
    let image = ImageSummary {
        id: "sha256:7".into(),
        ..ImageSummary::default()
    };
    bench.runtime.script_image("site:1", ImageScript::Present(image));
    bench.until_ready().await;
    let config = bench.runtime.config("app", 0).expect("a container");
    let mount = config.mounts.iter().find(|mount| mount.image.is_some());
    let mount = mount.expect("the image is mounted");
    let image = MountedImage {
        reference: "site:1".into(),
        id: "sha256:7".into(),
    };
    assert_eq!(
        (mount.container_path.as_path(), mount.image.as_ref()),
        (Path::new("/v"), Some(&image))
    );
    assert!(config.image_ids().any(|id| id == "sha256:7"));
    bench.leave().await;
}
