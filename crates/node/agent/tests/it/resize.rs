//! Other CPU and memory for pods that run.

use pulselet_agent::{NodeOptions, Origin, PodView};
use pulselet_model::Pod;
use pulselet_runtime::{ContainerFilter, ContainerId, Resources, Runtime};
use pulselet_vocabulary::PodName;
use serde_json::{Value, json};

use crate::harness::{Bench, eventually, pod_of, runtime};

/// Of the node in these tests.
const CPUS: u32 = 4;

fn options(options: &mut NodeOptions) {
    options.joined = true;
    options.facts.cpus = CPUS;
}

async fn bench() -> Bench {
    Bench::on(tempfile::tempdir().expect("a directory"), runtime(), options).await
}

fn pod(name: &str, resources: &Value, policy: &Value) -> Pod {
    let mut pod = pod_of(
        name,
        &json!({
            "containers": [{"name": "app", "image": "app:1", "resources": resources, "resizePolicy": policy}],
        }),
    );
    pod.metadata.uid = Some(format!("uid-{name}"));
    pod
}

fn plain(name: &str, cpu: &str) -> Pod {
    pod(name, &json!({"requests": {"cpu": cpu}}), &json!([]))
}

async fn add(bench: &Bench, pod: Pod) {
    let added = bench.node.add_pod(pod, Origin::Api).await;
    added.expect("the node is there").expect("the pod is taken");
}

async fn update(bench: &Bench, pod: Pod) {
    let updated = bench.node.update_pod(pod).await;
    updated
        .expect("the node is there")
        .expect("the manifest is taken");
}

async fn view(bench: &Bench, name: &str) -> PodView {
    let view = bench.node.pod(&PodName::new("default", name)).await;
    view.expect("the node is there").expect("the pod is there")
}

/// Waits until the pod's status fits.
async fn until(bench: &Bench, what: &str, name: &str, fits: impl Fn(&Value) -> bool) {
    let status = async || {
        let view = view(bench, name).await;
        serde_json::to_value(view.status).expect("JSON")
    };
    eventually(what, || async { fits(&status().await) }).await;
}

fn is_running(status: &Value) -> bool {
    status["containerStatuses"][0]["state"].get("running").is_some()
}

/// The reason of a condition; `None` if there is no such condition.
fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    let mut conditions = status["conditions"].as_array()?.iter();
    conditions.find(|condition| condition["type"] == kind)
}

/// What the only container was given after it was made.
async fn given(bench: &Bench) -> Option<Resources> {
    let all = bench.runtime.list_containers(&ContainerFilter::default()).await;
    let id: ContainerId = all.expect("lists").first()?.id.clone();
    let given = bench.runtime.container_resources(&id).await;
    given.expect("knows")
}

#[tokio::test]
async fn a_running_container_gets_other_resources_and_goes_on() {
    let bench = bench().await;
    let of = |cpu: &str, memory: &str| {
        let limits = json!({"cpu": cpu, "memory": memory});
        pod(
            "web",
            &json!({"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": limits}),
            &json!([]),
        )
    };
    add(&bench, of("500m", "64Mi")).await;
    until(&bench, "a running container", "web", is_running).await;
    until(&bench, "its resources", "web", |status| {
        let container = &status["containerStatuses"][0];
        container["resources"]["limits"] == json!({"cpu": "500m", "memory": "64Mi"})
            && container["allocatedResources"] == json!({"cpu": "100m", "memory": "16Mi"})
    })
    .await;
    assert_eq!(given(&bench).await, None);
    update(&bench, of("1", "128Mi")).await;
    until(&bench, "the new resources", "web", |status| {
        status["containerStatuses"][0]["resources"]["limits"] == json!({"cpu": "1", "memory": "128Mi"})
            && condition(status, "PodResizeInProgress").is_none()
    })
    .await;
    let now = given(&bench).await.expect("was changed");
    assert_eq!(
        (now.cpu_quota, now.memory_limit),
        (Some(100_000), Some(128 << 20))
    );
    assert_eq!(
        view(&bench, "web").await.status.container_statuses[0].restart_count,
        0
    );
    // Waits until both are written down.
    bench
        .events("uid-web", &["ResizeStarted", "ResizeCompleted"])
        .await;
}

#[tokio::test]
async fn what_does_not_fit_waits_and_what_never_fits_says_so() {
    let bench = bench().await;
    add(&bench, plain("big", "3")).await;
    add(&bench, plain("web", "500m")).await;
    until(&bench, "a running container", "web", is_running).await;
    update(&bench, plain("web", "5")).await;
    until(&bench, "what never fits", "web", |status| {
        let pending = condition(status, "PodResizePending");
        pending.is_some_and(|it| it["reason"] == "Infeasible" && it["status"] == "True")
    })
    .await;
    update(&bench, plain("web", "2")).await;
    let deferred = |status: &Value| {
        let pending = condition(status, "PodResizePending");
        pending.is_some_and(|it| it["reason"] == "Deferred")
            && status["containerStatuses"][0]["allocatedResources"]["cpu"] == "500m"
            && status["containerStatuses"][0]["resources"]["requests"]["cpu"] == "500m"
    };
    until(&bench, "what waits", "web", deferred).await;
    // An agent that comes back goes on with what the pod has.
    let (directory, runtime) = bench.leave().await;
    let bench = Bench::on(directory, runtime, options).await;
    until(&bench, "the same container", "web", |status| {
        status["containerStatuses"][0]["allocatedResources"]["cpu"] == "500m"
    })
    .await;
    update(&bench, plain("web", "2")).await;
    until(&bench, "what waits", "web", deferred).await;
    bench.delete("big").await;
    until(&bench, "room for it", "web", |status| {
        condition(status, "PodResizePending").is_none()
            && status["containerStatuses"][0]["resources"]["requests"]["cpu"] == "2"
    })
    .await;
    assert_eq!(given(&bench).await.expect("was changed").cpu_shares, Some(2048));
}

#[tokio::test]
async fn a_policy_may_want_another_life() {
    let bench = bench().await;
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let of = |cpu: &str, memory: &str| {
        pod(
            "web",
            &json!({"requests": {"cpu": cpu, "memory": memory}}),
            &policy,
        )
    };
    add(&bench, of("100m", "16Mi")).await;
    until(&bench, "a running container", "web", is_running).await;
    update(&bench, of("200m", "16Mi")).await;
    until(&bench, "other CPU", "web", |status| {
        status["containerStatuses"][0]["resources"]["requests"]["cpu"] == "200m"
    })
    .await;
    assert_eq!(
        view(&bench, "web").await.status.container_statuses[0].restart_count,
        0
    );
    update(&bench, of("200m", "32Mi")).await;
    until(&bench, "another life", "web", |status| {
        let container = &status["containerStatuses"][0];
        is_running(status)
            && container["restartCount"] == 1
            && container["resources"]["requests"]["memory"] == "32Mi"
            && condition(status, "PodResizeInProgress").is_none()
    })
    .await;
}

#[tokio::test]
async fn less_memory_than_is_in_use_is_not_forced_on_a_container() {
    let bench = bench().await;
    let of = |memory: &str| pod("web", &json!({"limits": {"memory": memory}}), &json!([]));
    add(&bench, of("64Mi")).await;
    until(&bench, "a running container", "web", is_running).await;
    bench.runtime.script_memory("app", 48 << 20);
    update(&bench, of("32Mi")).await;
    until(&bench, "an error", "web", |status| {
        let progress = condition(status, "PodResizeInProgress");
        progress.is_some_and(|it| {
            let message = it["message"].as_str().unwrap_or_default();
            it["reason"] == "Error" && message.contains("below current usage (50331648)")
        }) && status["containerStatuses"][0]["resources"]["limits"]["memory"] == "64Mi"
    })
    .await;
    assert_eq!(given(&bench).await, None);
    bench.runtime.script_memory("app", 16 << 20);
    until(&bench, "less memory", "web", |status| {
        condition(status, "PodResizeInProgress").is_none()
            && status["containerStatuses"][0]["resources"]["limits"]["memory"] == "32Mi"
    })
    .await;
}
