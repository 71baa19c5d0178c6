//! Pods that use config maps and secrets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use pulselet_api::openapi::api::core::v1::{ConfigMap, Secret};
use pulselet_node::{ObjectSource, SourceError, Token, TokenRequest};
use serde_json::{Value, json};

use crate::harness::{Bench, eventually, pod, runtime};

/// Objects in memory, by namespace/name.
#[derive(Clone, Debug, Default)]
struct Shelf(Arc<Mutex<BTreeMap<String, Value>>>);

impl Shelf {
    /// Puts a new version of an object there; its kind is that of the wire.
    fn put(&self, kind: &str, name: &str, mut object: Value) {
        let mut all = self.0.lock().expect("no holder panics");
        let version = all.len() + 1;
        object["metadata"] = json!({"name": name, "resourceVersion": version.to_string()});
        all.insert(format!("{kind} default/{name}"), object);
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

    async fn token(&self, _request: &TokenRequest) -> Result<Token, SourceError> {
        Err(SourceError::Unsupported { what: "tokens" })
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
