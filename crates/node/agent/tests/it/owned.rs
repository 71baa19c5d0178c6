//! Pods that an API decides over: what it may change, and what is reported to it.

use std::time::Duration;

use pulselet_agent::{AddError, Feed, How, Origin, UpdateError};
use pulselet_vocabulary::PodName;
use serde_json::json;

use crate::harness::{Bench, eventually, pod, runtime, type_of};

async fn bench() -> (Bench, Feed) {
    let feed = Feed::default();
    let feed_of_node = feed.clone();
    let directory = tempfile::tempdir().expect("a directory");
    let bench = Bench::on(directory, runtime(), |options| {
        options.feed = Some(feed_of_node);
        options.joined = true;
    })
    .await;
    (bench, feed)
}

fn with_uid(uid: &str, image: &str) -> pulselet_model::Pod {
    let mut pod = pod("web", &json!({"image": image}));
    pod.metadata.uid = Some(uid.to_owned());
    pod
}

#[tokio::test]
async fn a_name_of_the_api_is_not_taken_by_others_nor_the_other_way_round() {
    let (bench, _feed) = bench().await;
    let node = &bench.node;
    node.add_pod(with_uid("a", "app:1"), Origin::Api)
        .await
        .unwrap()
        .unwrap();
    let refused = node
        .add_pod(pod("web", &json!({})), Origin::Detached)
        .await
        .unwrap();
    assert!(matches!(refused, Err(AddError::NameTaken { .. })), "{refused:?}");
    node.add_pod(pod("mine", &json!({})), Origin::Run)
        .await
        .unwrap()
        .unwrap();
    let refused = node.add_pod(pod("mine", &json!({})), Origin::Api).await.unwrap();
    assert!(matches!(refused, Err(AddError::NameTaken { .. })), "{refused:?}");
    assert_eq!(node.pods().await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_changed_manifest_is_for_the_next_life_and_outlives_the_agent() {
    let (mut bench, _feed) = bench().await;
    bench
        .node
        .add_pod(with_uid("a", "app:1"), Origin::Api)
        .await
        .unwrap()
        .unwrap();
    bench.until_ready().await;
    // Another image would be applied at once.
    let labelled = |uid: &str| {
        let mut pod = with_uid(uid, "app:1");
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert("colour".to_owned(), "red".to_owned());
        pod
    };
    bench.node.update_pod(labelled("a")).await.unwrap().unwrap();
    let other = bench.node.update_pod(labelled("b")).await.unwrap();
    assert!(matches!(other, Err(UpdateError::Pod(_))), "{other:?}");
    let mut more = labelled("a");
    more.spec.containers[0].name = "else".to_owned();
    let refused = bench.node.update_pod(more).await.unwrap();
    assert!(matches!(refused, Err(UpdateError::Containers)), "{refused:?}");
    bench.drain();
    assert!(
        !bench.types().contains(&"killing".to_owned()),
        "{}",
        bench.transcript()
    );
    let (directory, runtime) = bench.leave().await;
    let bench = Bench::on(directory, runtime, |_| {}).await;
    let kept = bench
        .node
        .manifest(&PodName::new("default", "web"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(kept.metadata.labels.as_ref().unwrap()["colour"], "red");
    let view = bench
        .node
        .pod(&PodName::new("default", "web"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(view.status.container_statuses[0].restart_count, 0);
}

#[tokio::test]
async fn the_one_that_waits_for_a_name_is_not_meant_by_the_deletion_of_the_other() {
    let (mut bench, _feed) = bench().await;
    bench
        .node
        .add_pod(with_uid("a", "app:1"), Origin::Api)
        .await
        .unwrap()
        .unwrap();
    bench.until_ready().await;
    let old = bench
        .node
        .pod(&PodName::new("default", "web"))
        .await
        .unwrap()
        .unwrap();
    let added = bench
        .node
        .add_pod(with_uid("b", "app:1"), Origin::Api)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(added.how, How::Replacing);
    // It may have gone by itself already.
    let _ = bench
        .node
        .delete_exactly(&old, Some(Duration::ZERO))
        .await
        .unwrap();
    let node = bench.node.clone();
    eventually("the new pod is there", || async {
        node.pod(&PodName::new("default", "web"))
            .await
            .unwrap()
            .is_some_and(|view| view.uid == "b")
    })
    .await;
}

#[tokio::test]
async fn the_last_status_of_a_pod_and_its_events_are_reported() {
    let (mut bench, feed) = bench().await;
    bench
        .node
        .add_pod(with_uid("a", "app:1"), Origin::Api)
        .await
        .unwrap()
        .unwrap();
    bench.until_ready().await;
    let view = bench
        .node
        .pod(&PodName::new("default", "web"))
        .await
        .unwrap()
        .unwrap();
    bench.node.delete_exactly(&view, None).await.unwrap().unwrap();
    let (mut reasons, mut last) = (Vec::new(), None);
    let listen = async {
        while last.is_none() {
            let changes = feed.next().await;
            reasons.extend(changes.events.iter().map(|event| event.reason));
            last = changes.departed.into_iter().next();
        }
    };
    tokio::time::timeout(Duration::from_mins(1), listen)
        .await
        .expect("the pod ends");
    let status = last.expect("the loop ends with it").status;
    assert!(
        status.container_statuses[0].state.terminated.is_some(),
        "{status:?}"
    );
    for reason in ["Started", "Killing"] {
        assert!(reasons.contains(&reason), "{reasons:?}");
    }
}

#[tokio::test]
async fn an_ephemeral_container_runs_once_and_nothing_depends_on_it() {
    let (mut bench, _feed) = bench().await;
    let node = bench.node.clone();
    let added = node.add_pod(with_uid("a", "app:1"), Origin::Api).await.unwrap();
    added.unwrap();
    bench.until_ready().await;
    let mut pod = with_uid("a", "app:1");
    let debugger = json!({"name": "debugger", "image": "tools:1", "command": ["sh"], "stdin": true});
    pod.spec.ephemeral_containers = vec![serde_json::from_value(debugger).unwrap()];
    node.update_pod(pod.clone()).await.unwrap().unwrap();
    bench
        .until("a running debugger", |line| {
            line.line.container.as_deref() == Some("debugger") && type_of(line) == "running"
        })
        .await;
    let config = bench.runtime.config("debugger", 0).expect("a container");
    assert_eq!((config.command, config.stdin), (vec!["sh".to_owned()], true));
    let log = node
        .log(&PodName::new("default", "web"), None, false)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(log.container, "app", "the only one that is meant without a name");

    let id = node
        .container(&PodName::new("default", "web"), "debugger")
        .await
        .unwrap()
        .unwrap()
        .id;
    bench.runtime.exit(&id, 3);
    bench
        .until("the debugger's end", |line| {
            line.line.container.as_deref() == Some("debugger") && type_of(line) == "exited"
        })
        .await;
    let status = node
        .pod(&PodName::new("default", "web"))
        .await
        .unwrap()
        .unwrap()
        .status;
    let ended = &status.ephemeral_container_statuses[0];
    assert_eq!(ended.state.terminated.as_ref().unwrap().exit_code, 3);
    assert!(!ended.ready);
    assert_eq!((&*status.phase, status.container_statuses.len()), ("Running", 1));
    let ready = status.conditions.iter().find(|it| it.type_ == "Ready");
    assert_eq!(ready.unwrap().status, "True");

    pod.spec.ephemeral_containers.clear();
    let refused = node.update_pod(pod).await.unwrap();
    assert!(matches!(refused, Err(UpdateError::Containers)), "{refused:?}");
    let (directory, runtime) = bench.leave().await;
    let bench = Bench::on(directory, runtime, |_| {}).await;
    let status = bench
        .node
        .pod(&PodName::new("default", "web"))
        .await
        .unwrap()
        .unwrap()
        .status;
    assert!(status.ephemeral_container_statuses[0].state.terminated.is_some());
    bench.leave().await;
}
