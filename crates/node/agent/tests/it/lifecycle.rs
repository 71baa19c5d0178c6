//! Pods from their beginning to their end.

use std::time::Duration;

use pulselet_agent::{How, Shutdown};
use pulselet_engine::Span;
use pulselet_runtime::{ContainerFilter, ImageErrorKind, ImageSummary, Runtime as _, SignalMasks};
use pulselet_runtime_fake::{ExecAnswer, ImageScript, LifeScript};
use pulselet_vocabulary::PodName;
use serde_json::json;

use crate::harness::{Bench, eventually, pod, pod_of, runtime};

fn exec_probe(extra: &serde_json::Value) -> serde_json::Value {
    let mut probe = json!({"exec": {"command": ["check"]}, "periodSeconds": 1});
    let fields = extra.as_object().expect("fields").clone();
    probe.as_object_mut().expect("an object").extend(fields);
    probe
}

/// PID 1 that handles nothing, as its signal masks show it.
fn deaf() -> LifeScript {
    LifeScript {
        masks: Some(SignalMasks {
            is_init: true,
            ..SignalMasks::default()
        }),
        ..LifeScript::stubborn()
    }
}

#[tokio::test]
async fn a_signal_that_is_ignored_is_named_when_the_grace_period_is_over() {
    let mut bench = Bench::new().await;
    bench.runtime.script("app", [deaf()]);
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    let uid = bench.node.pods().await.unwrap()[0].uid.clone();
    // A restart and no deletion, which takes the pod's events with it.
    let restarted = bench.node.restart(&PodName::new("default", "web"), None).await;
    assert_eq!(restarted.unwrap().unwrap(), 1);
    bench.until_type("graceExceeded").await;
    let reasons = ["ExceededGracePeriod", "StopSignalNotHandled"];
    let events = bench.events(&uid, &reasons).await;
    let told = |reason: &str| events.iter().find(|event| event.reason == reason);
    let unhandled = told("StopSignalNotHandled").expect("it was read when the stop began");
    assert_eq!(unhandled.severity, "Normal", "nobody asked for the signal");
    assert!(unhandled.message.contains("SIGTERM"), "{unhandled:?}");
    let exceeded = told("ExceededGracePeriod").expect("it was killed");
    assert!(
        exceeded.message.contains("SIGTERM was sent and ignored"),
        "{exceeded:?}"
    );
}

#[tokio::test]
async fn a_pod_runs_becomes_ready_and_is_deleted() {
    let mut bench = Bench::new().await;
    let readiness = exec_probe(&json!({}));
    assert_eq!(
        bench.add(pod("web", &json!({"readinessProbe": readiness}))).await,
        How::Created
    );
    bench.until_ready().await;
    let view = &bench.node.pods().await.unwrap()[0];
    let container = &view.status.container_statuses[0];
    assert!(container.ready && container.started == Some(true));
    assert_eq!(container.stop_signal.as_deref(), Some("SIGTERM"));
    bench.events(&view.uid, &["Pulled", "Created", "Started"]).await;
    bench
        .node
        .delete_pod(&PodName::new("default", "web"), None)
        .await
        .unwrap()
        .unwrap();
    bench.until_type("deleted").await;
    let types = bench.types();
    let order = [
        "phase", "created", "running", "started", "ready", "killing", "signal", "exited", "deleted",
    ];
    let mut rest = types.iter();
    for kind in order {
        assert!(rest.any(|found| found == kind), "{kind} in order of {types:?}");
    }
    let node = bench.node.clone();
    eventually("the pod is forgotten", || async {
        node.pods().await.unwrap().is_empty()
    })
    .await;
    assert!(bench.runtime.list_sandboxes().await.unwrap().is_empty());
    eventually("its files are gone", || async {
        std::fs::read_dir(bench.data().join("pods"))
            .unwrap()
            .next()
            .is_none()
    })
    .await;
}

#[tokio::test]
async fn a_failing_liveness_probe_kills_restarts_and_is_told_in_the_history() {
    let mut bench = Bench::new().await;
    let sick = LifeScript {
        exec: vec![(Duration::ZERO, ExecAnswer::Exits(3, b"no pulse".to_vec()))],
        handles: Some(Vec::new()),
        ..LifeScript::default()
    };
    bench.runtime.script("app", [sick, LifeScript::default()]);
    let liveness = exec_probe(&json!({"failureThreshold": 2, "terminationGracePeriodSeconds": 1}));
    bench.add(pod("sick", &json!({"livenessProbe": liveness}))).await;
    bench.until_type("graceExceeded").await;
    bench.until_type("exited").await;
    bench.until_type("running").await;
    bench.until_ready().await;
    let history = bench
        .node
        .history(Some(PodName::new("default", "sick")), None)
        .await
        .unwrap();
    let lines: Vec<serde_json::Value> = history
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let types: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    let expected = [
        "probe",
        "probe",
        "killing",
        "signal",
        "graceExceeded",
        "exited",
        "created",
        "running",
    ];
    assert_eq!(types, expected, "{history}");
    assert_eq!(
        (&lines[1]["detail"], &lines[1]["run"]),
        (&json!("exit code 3: no pulse"), &json!(2))
    );
    assert_eq!(lines[2]["graceFrom"], "probe");
    assert_eq!(lines[5]["exitCode"], 137);
    let view = &bench.node.pods().await.unwrap()[0];
    assert_eq!(view.status.container_statuses[0].restart_count, 1);
    let events = bench.events(&view.uid, &["Unhealthy", "Killing"]).await;
    let unhealthy = events.iter().find(|event| event.reason == "Unhealthy").unwrap();
    assert_eq!(
        (unhealthy.count, unhealthy.message.as_str()),
        (2, "Liveness probe failed: no pulse")
    );
}

#[tokio::test]
async fn a_changed_manifest_replaces_its_pod_and_an_equal_one_does_not() {
    let mut bench = Bench::new().await;
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    assert_eq!(bench.add(pod("web", &json!({}))).await, How::Adopted);
    assert_eq!(
        bench
            .add(pod("web", &json!({"env": [{"name": "A", "value": "1"}]})))
            .await,
        How::Replacing
    );
    bench.until_type("deleted").await;
    bench.until_ready().await;
    let filter = ContainerFilter::default();
    let containers = bench.runtime.list_containers(&filter).await.unwrap();
    assert_eq!(containers.len(), 1);
}

#[tokio::test]
async fn a_pod_runs_on_until_the_image_of_its_successor_is_there() {
    let mut bench = Bench::new().await;
    let missing = || ImageScript::Fails(ImageErrorKind::NotFound, "no such image".to_owned());
    bench.runtime.script_image("app:2", missing());
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    let changed = || pod("web", &json!({"image": "app:2"}));
    assert_eq!(bench.add(changed()).await, How::Replacing);
    let warning = bench.until_type("warning").await.to_json();
    assert!(warning.contains("this pod runs on"), "{warning}");
    // Another agent goes on waiting.
    let (directory, runtime) = bench.leave().await;
    let mut bench = Bench::on(directory, runtime, |_| {}).await;
    bench.until_type("warning").await;
    let running = bench.node.pods().await.unwrap();
    assert_eq!(running[0].status.container_statuses[0].image, "app:1");
    assert!(!running[0].deleting);
    // A change that is taken back is forgotten, whatever becomes of the image.
    assert_eq!(bench.add(pod("web", &json!({}))).await, How::Adopted);
    assert_eq!(bench.add(changed()).await, How::Replacing);
    let there = ImageSummary {
        id: "sha256:2".to_owned(),
        tags: vec!["app:2".to_owned()],
        ..Default::default()
    };
    let there = ImageScript::Pulled(Duration::ZERO, there);
    bench.runtime.script_image("app:2", there);
    bench.until_type("deleted").await;
    bench.until_ready().await;
    let replaced = bench.node.pods().await.unwrap();
    assert_eq!(replaced[0].status.container_statuses[0].image, "app:2");
}

#[tokio::test]
async fn what_cannot_be_made_says_why_and_what_cannot_run_here_fails() {
    let mut bench = Bench::new().await;
    let env = json!([{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]);
    bench.add(pod("needy", &json!({"env": env}))).await;
    let warning = bench.until_type("warning").await.to_json();
    assert!(
        warning.contains("CreateContainerConfigError: secret"),
        "{warning}"
    );
    let foreign = json!({"containers": [{"name": "app", "image": "a"}], "os": {"name": "windows"}});
    bench.add(pod_of("foreign", &foreign)).await;
    bench
        .until("failed pod", |line| {
            line.pod == PodName::new("default", "foreign") && line.to_json().contains("\"Failed\"")
        })
        .await;
    let pods = bench.node.pods().await.unwrap();
    let foreign = pods.iter().find(|pod| pod.name == "foreign").unwrap();
    assert_eq!(foreign.status.reason, "PodOSNotSupported");
    let waiting = pods[0].status.container_statuses[0]
        .state
        .waiting
        .clone()
        .unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CreateContainerConfigError"));
}

#[tokio::test]
async fn a_command_that_cannot_run_is_reported_and_tried_again() {
    let mut bench = Bench::new().await;
    let broken = LifeScript {
        start: pulselet_runtime_fake::StartScript::CannotRun("exec: \"nope\": not found".into()),
        ..LifeScript::default()
    };
    bench.runtime.script("app", [broken, LifeScript::default()]);
    bench.add(pod("typo", &json!({}))).await;
    let warning = bench.until_type("warning").await.to_json();
    assert!(warning.contains("not found"), "{warning}");
    bench.until_ready().await;
}

#[tokio::test]
async fn the_second_way_to_shut_down_is_harsher() {
    let mut bench = Bench::new().await;
    bench.runtime.script("app", [LifeScript::stubborn()]);
    let spec = json!({"containers": [{"name": "app", "image": "a"}], "terminationGracePeriodSeconds": 3600});
    bench.add(pod_of("slow", &spec)).await;
    bench.until_ready().await;
    let node = bench.node.clone();
    let gentle = tokio::spawn(async move { node.shutdown(Shutdown::StopPods).await });
    bench.until_type("signal").await;
    bench.node.shutdown(Shutdown::KillPods).await;
    gentle.await.unwrap();
    bench.drain();
    assert_eq!(
        bench.types().last().map(String::as_str),
        Some("deleted"),
        "{}",
        bench.transcript()
    );
    assert!(bench.node.pods().await.is_err());
}

#[tokio::test]
async fn a_fallible_runtime_gets_everything_done_in_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut bench = Bench::on(directory, runtime(), |options| {
        options.config.settings.backoff_initial = Span::from_secs(1);
        options.config.settings.backoff_max = Span::from_secs(1);
    })
    .await;
    bench.runtime.set_faults(pulselet_runtime_fake::RuntimeFaults {
        seed: 7,
        fails: 0.04,
        loses_answer: 0.04,
        loses_event: 0.2,
        resync_after: Duration::from_millis(100),
        slowness: Duration::from_millis(5),
    });
    for n in 0..8 {
        bench.add(pod(&format!("p{n}"), &json!({}))).await;
    }
    let node = bench.node.clone();
    eventually("every pod is ready", || async {
        let pods = node.pods().await.unwrap();
        pods.iter()
            .all(|pod| pod.status.container_statuses.iter().all(|it| it.ready))
    })
    .await;
    bench.node.shutdown(Shutdown::StopPods).await;
    bench
        .runtime
        .set_faults(pulselet_runtime_fake::RuntimeFaults::default());
    assert!(bench.runtime.list_sandboxes().await.unwrap().is_empty());
    bench.drain();
    assert_eq!(bench.types().iter().filter(|kind| *kind == "deleted").count(), 8);
}

#[tokio::test]
async fn a_pod_of_the_hosts_network_has_the_hosts_address() {
    let directory = tempfile::tempdir().expect("a directory");
    let host = [192, 0, 2, 7].into();
    let mut bench = Bench::on(directory, runtime(), |options| options.facts.address = host).await;
    let env = json!([{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]);
    let containers = json!([{"name": "app", "image": "app:1", "env": env}]);
    bench
        .add(pod_of(
            "web",
            &json!({"hostNetwork": true, "containers": containers}),
        ))
        .await;
    bench.until_ready().await;
    let status = &bench.node.pods().await.unwrap()[0].status;
    assert_eq!([&status.pod_ip, &status.host_ip], ["192.0.2.7"; 2]);
    let (directory, runtime) = bench.leave().await;
    let bench = Bench::on(directory, runtime, |options| options.facts.address = host).await;
    let status = &bench.node.pods().await.unwrap()[0].status;
    assert_eq!(status.pod_ip, "192.0.2.7", "after a restart of the agent");
}

#[tokio::test]
async fn an_ephemeral_container_sees_the_processes_of_its_target() {
    let mut bench = Bench::new().await;
    let mut web = pod("web", &json!({}));
    web.metadata.uid = Some("u-1".to_owned());
    bench.add(web.clone()).await;
    bench.until_ready().await;
    let ephemeral = json!([
        {"name": "look", "image": "tools:1", "targetContainerName": "app"},
        {"name": "plain", "image": "tools:1"},
    ]);
    web.spec.ephemeral_containers = serde_json::from_value(ephemeral).unwrap();
    bench.node.update_pod(web).await.unwrap().unwrap();
    let runtime = bench.runtime.clone();
    eventually("both are made", || async {
        runtime.config("look", 0).is_some() && runtime.config("plain", 0).is_some()
    })
    .await;
    let all = bench
        .runtime
        .list_containers(&ContainerFilter::default())
        .await
        .unwrap();
    let app = all.iter().find(|status| status.name == "app").unwrap();
    let target = |name: &str| bench.runtime.config(name, 0).unwrap().pid_target;
    assert_eq!(target("look").as_ref(), Some(&app.id));
    assert_eq!(target("plain"), None);
}
