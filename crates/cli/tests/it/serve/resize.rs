//! `pods/resize` from a client down to the kernel.

use serde_json::{Value, json};

use super::cluster::{Cluster, pod};
use super::doors;

/// Asks for other resources of the pod `web`, as any version of kubectl can.
fn resize(cluster: &Cluster, resources: &Value) -> Result<String, String> {
    let mut web = cluster.get_pod("web");
    web["spec"]["containers"][0]["resources"] = resources.clone();
    let path = "/api/v1/namespaces/default/pods/web/resize";
    cluster.try_kubectl(&["replace", "--raw", path, "-f", "-"], &web.to_string())
}

/// The limits that a container sees: bytes and quota.
fn seen_inside(cluster: &Cluster) -> (String, String) {
    let first = |files: &str| {
        let script = format!("cat {files} 2> /dev/null | head -n 1");
        let text = cluster.kubectl(&["exec", "web", "--", "sh", "-c", &script]);
        text.split_whitespace().next().unwrap_or_default().to_owned()
    };
    (
        first("/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max"),
        first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max"),
    )
}

fn both(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": cpu, "memory": memory}})
}

/// Up, down again, and what cannot be, for one cluster.
fn check(cluster: &Cluster) {
    cluster.until_node_ready();
    let fields = json!({
        "image": doors::IMAGE, "imagePullPolicy": "Never", "resources": both("500m", "64Mi"),
    });
    cluster.apply(&pod("web", &fields));
    let before = cluster.until_pod("web", |pod| {
        pod["status"]["containerStatuses"][0]["state"]
            .get("running")
            .is_some()
    });
    assert_eq!(seen_inside(cluster), ("67108864".to_owned(), "50000".to_owned()));
    for (cpu, memory, bytes, quota) in [
        ("1", "128Mi", "134217728", "100000"),
        ("250m", "32Mi", "33554432", "25000"),
    ] {
        resize(cluster, &both(cpu, memory)).expect("is allowed");
        cluster.until_pod("web", |pod| {
            let conditions = pod["status"]["conditions"].to_string();
            pod["status"]["containerStatuses"][0]["resources"] == both(cpu, memory)
                && !conditions.contains("PodResize")
        });
        assert_eq!(seen_inside(cluster), (bytes.to_owned(), quota.to_owned()));
    }
    let after = cluster.get_pod("web");
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    assert_eq!(id(&after), id(&before), "it runs on");
    let refused = resize(cluster, &json!({})).expect_err("is refused");
    assert!(
        refused.contains("may not change as a result of resizing"),
        "{refused}"
    );
    resize(cluster, &both("500m", "64Mi")).expect("is allowed");
    let mut huge = both("500m", "64Mi");
    huge["requests"]["cpu"] = json!("100");
    huge["limits"]["cpu"] = json!("100");
    resize(cluster, &huge).expect("is allowed, though no node has as much");
    cluster.until_pod("web", |pod| {
        let conditions = pod["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == "PodResizePending" && condition["reason"] == "Infeasible")
    });
}

#[test]
fn running_containers_are_resized() {
    let Some(cluster) = doors::image().and_then(|archive| Cluster::serve_containers(&archive)) else {
        return;
    };
    check(&cluster);
}

#[test]
fn running_containers_are_resized_by_way_of_cri() {
    let Some(cluster) = Cluster::serve_by_cri() else {
        return;
    };
    check(&cluster);
}
