//! Logs, and what else is read.

use std::io::Write as _;

use pulselet_vocabulary::PodName;
use serde_json::Value;

use crate::client::get;
use crate::world::World;

const LOG: &str = "/containerLogs/default/web/app";

/// Adds to the log what a shim would.
async fn write(world: &World, lines: &str) {
    let place = world.node.log(&PodName::new("default", "web"), None, false).await;
    let path = place.expect("the node is there").expect("a log").path;
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("it is made");
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path)
        .expect("a file");
    for line in lines.lines() {
        writeln!(file, "2026-01-02T03:04:05.000000000Z stdout F {line}").expect("it is written");
    }
}

#[tokio::test]
async fn a_log_is_read_as_it_is_asked_for() {
    let world = World::new().await;
    write(&world, "one\ntwo\nthree").await;
    let body = get(&world, LOG).await.body().await;
    assert!(body.contains("one\ntwo\nthree\n"), "{body}");
    let body = get(&world, &format!("{LOG}?tailLines=1&timestamps=true"))
        .await
        .body()
        .await;
    assert!(body.contains("2026-01-02T03:04:05.000000000Z three\n"), "{body}");
    assert!(!body.contains("two"), "{body}");
}

#[tokio::test]
async fn a_followed_log_ends_with_its_container() {
    let world = World::new().await;
    write(&world, "before").await;
    let answer = get(&world, &format!("{LOG}?follow=true")).await;
    assert_eq!(answer.code, 200, "{}", answer.head);
    write(&world, "after").await;
    world
        .node
        .delete_pod(&PodName::new("default", "web"), None)
        .await
        .unwrap()
        .unwrap();
    let body = answer.body().await;
    assert!(body.contains("before\n") && body.contains("after\n"), "{body}");
}

#[tokio::test]
async fn complaints_are_a_kubelets() {
    let world = World::new().await;
    for (path, code, text) in [
        (
            LOG.to_owned() + "?previous=true",
            400,
            "previous terminated container \"app\" in pod \"web\" not found",
        ),
        (
            LOG.to_owned() + "?tailLines=-1",
            400,
            "tailLines: Invalid value: \"-1\"",
        ),
        (
            "/containerLogs/default/web/nope".to_owned(),
            404,
            "container \"nope\" not found in pod \"web\"",
        ),
        (
            "/containerLogs/default/nope/app".to_owned(),
            404,
            "pod \"nope\" does not exist",
        ),
        (LOG.to_owned(), 500, "unable to retrieve container logs"),
    ] {
        let answer = get(&world, &path).await;
        assert_eq!(answer.code, code, "{path}");
        let body = answer.body().await;
        assert!(body.contains(text), "{path}: {body}");
    }
}

#[tokio::test]
async fn pods_and_metrics_are_there() {
    let world = World::new().await;
    let body = get(&world, "/pods").await.body().await;
    let list: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(list["kind"], "PodList");
    let pod = &list["items"][0];
    assert_eq!(pod["metadata"]["name"], "web");
    assert_eq!(pod["spec"]["containers"][0]["name"], "app");
    assert_eq!(pod["status"]["phase"], "Running");
    let metrics = get(&world, "/metrics").await.body().await;
    assert!(metrics.contains("kubernetes_feature_enabled"), "{metrics}");
}
