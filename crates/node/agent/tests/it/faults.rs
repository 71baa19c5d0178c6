//! Disks that are full or lose files: what the node does all the same.

use std::ffi::CStr;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pulselet_agent::Shutdown;
use pulselet_plan::NodeConfig;
use pulselet_runtime::{PodIdentity, Runtime as _, SandboxConfig};
use pulselet_runtime_fake::{ExecAnswer, FakeRuntime, LifeScript, RuntimeFaults};
use pulselet_vocabulary::PodName;
use serde_json::json;

use crate::harness::{Bench, eventually, pod, pod_of, runtime};

/// A small file system that somebody else fills whenever there is room again, as a pod does that writes for ever.
struct CrowdedDisk {
    path: PathBuf,
    over: Arc<AtomicBool>,
    filler: Option<JoinHandle<()>>,
}

impl CrowdedDisk {
    /// None without the privilege to mount.
    fn mount(path: &Path, options: &CStr) -> Option<Self> {
        use rustix::mount::{MountFlags, mount};
        fs::create_dir_all(path).expect("a directory");
        let mounted = mount("tmpfs", path, "tmpfs", MountFlags::empty(), options);
        mounted.ok().map(|()| Self {
            path: path.to_owned(),
            over: Arc::default(),
            filler: None,
        })
    }

    fn crowd(&mut self) {
        let (path, over) = (self.path.join("filler"), Arc::clone(&self.over));
        let mut file = fs::File::create(&path).expect("a file");
        let take_all = move |file: &mut fs::File| while file.write_all(&[0; 4096]).is_ok() {};
        take_all(&mut file);
        self.filler = Some(std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                take_all(&mut file);
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(file);
            // After a failed test its directory is gone already.
            let _ = fs::remove_file(path);
        }));
    }

    fn clear(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(filler) = self.filler.take() {
            let _ = filler.join();
        }
    }
}

impl Drop for CrowdedDisk {
    fn drop(&mut self) {
        self.clear();
        let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
    }
}

fn crowded_disk(directory: &tempfile::TempDir) -> Option<CrowdedDisk> {
    small_disk(directory, c"size=4m")
}

fn small_disk(directory: &tempfile::TempDir, options: &CStr) -> Option<CrowdedDisk> {
    let disk = CrowdedDisk::mount(&directory.path().join("data"), options);
    pulselet_testing::requires("the right to mount", disk.is_some())
        .then_some(disk)
        .flatten()
}

#[tokio::test]
async fn a_full_disk_keeps_no_kill_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut disk) = crowded_disk(&directory) else {
        return;
    };
    let mut bench = Bench::on(directory, runtime(), |_| {}).await;
    let sick = LifeScript {
        exec: vec![(Duration::from_secs(3), ExecAnswer::Exits(1, Vec::new()))],
        ..LifeScript::default()
    };
    bench.runtime.script("app", [sick, LifeScript::default()]);
    let probe = json!({"exec": {"command": ["check"]}, "periodSeconds": 1, "failureThreshold": 1});
    bench.add(pod("sick", &json!({"livenessProbe": probe}))).await;
    bench.until_ready().await;
    disk.crowd();
    bench.until_type("exited").await;
    bench
        .until("restarted container", |line| {
            line.to_json().contains("\"type\":\"running\"")
        })
        .await;
    let page = bench.node.page("/readyz").await;
    assert!(page.status.as_u16() == 503, "{page:?}");
    assert!(page.text.contains("cannot be written"), "{page:?}");
    bench.delete("sick").await;
    let node = bench.node.clone();
    eventually("the pod is gone", || async {
        node.pods().await.unwrap().is_empty()
    })
    .await;
    disk.clear();
    eventually("the node is ready again", || async {
        node.page("/readyz").await.status.is_success()
    })
    .await;
    let pods = bench.data().join("pods");
    eventually("what waited to be written about it is gone too", || async {
        fs::read_dir(&pods).expect("reads").count() == 0
    })
    .await;
    let (directory, runtime) = bench.leave().await;
    let bench = Bench::on(directory, runtime, |_| {}).await;
    assert!(
        bench.node.pods().await.unwrap().is_empty(),
        "what was deleted meanwhile does not come back"
    );
    bench.leave().await;
}

#[tokio::test]
async fn a_full_disk_stops_nothing_that_runs_and_starts_nothing_new() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut disk) = crowded_disk(&directory) else {
        return;
    };
    let mut bench = Bench::on(directory, runtime(), |_| {}).await;
    let probe = json!({"exec": {"command": ["check"]}, "periodSeconds": 1});
    bench.add(pod("first", &json!({"readinessProbe": probe}))).await;
    bench.until_ready().await;
    disk.crowd();
    let warning = bench.until_type("warning").await.to_json();
    assert!(warning.contains("make room on the disk"), "{warning}");
    bench.add(pod("second", &json!({}))).await;
    bench
        .until("one more probe", |line| {
            line.pod == PodName::new("default", "first") && line.to_json().contains("probe")
        })
        .await;
    assert_eq!(bench.runtime.list_sandboxes().await.unwrap().len(), 1);
    disk.clear();
    let node = bench.node.clone();
    eventually("both pods are ready", || async {
        let pods = node.pods().await.unwrap();
        pods.iter().all(|pod| pod.status.container_statuses[0].ready) && pods.len() == 2
    })
    .await;
    bench.leave().await;
}

#[tokio::test]
async fn a_node_starts_on_a_full_disk_and_adopts_its_pods() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut disk) = crowded_disk(&directory) else {
        return;
    };
    let mut bench = Bench::on(directory, runtime(), |_| {}).await;
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    let (directory, runtime) = bench.leave().await;
    disk.crowd();
    let bench = Bench::on(directory, runtime, |_| {}).await;
    let pods = bench.node.pods().await.unwrap();
    assert!(pods[0].status.container_statuses[0].ready, "{pods:?}");
    disk.clear();
    bench.leave().await;
}

/// A node that looks for itself, and so more often.
async fn polling_bench() -> Bench {
    let features = pulselet_runtime::Features {
        events: false,
        ..runtime().version().await.expect("it answers").features
    };
    let runtime = FakeRuntime::with_features(RuntimeFaults::default(), features);
    let directory = tempfile::tempdir().expect("a directory");
    Bench::on(directory, runtime, |_| {}).await
}

#[tokio::test]
async fn a_container_that_takes_more_of_the_disk_than_it_may_is_evicted() {
    let mut bench = polling_bench().await;
    let limit = json!({"resources": {"limits": {"ephemeral-storage": "1Mi"}}});
    bench.add(pod("greedy", &limit)).await;
    bench.until_ready().await;
    let uid = bench.node.pods().await.unwrap()[0].uid.clone();
    let logs = bench.data().join(format!("logs/default_greedy_{uid}/app"));
    fs::create_dir_all(&logs).unwrap();
    fs::write(logs.join("0.log"), vec![b'x'; 2 << 20]).unwrap();
    bench.until_type("exited").await;
    let node = bench.node.clone();
    eventually("the pod has failed", || async {
        let status = &node.pods().await.unwrap()[0].status;
        status.phase == "Failed" && status.reason == "Evicted"
    })
    .await;
    let message = &bench.node.pods().await.unwrap()[0].status.message;
    assert_eq!(
        message,
        "Container app exceeded its local ephemeral storage limit \"1Mi\". "
    );
    bench.leave().await;
}

#[tokio::test]
async fn a_pod_whose_volumes_take_more_than_its_containers_may_is_evicted() {
    let mut bench = polling_bench().await;
    let limits = json!({"limits": {"ephemeral-storage": "1Mi"}});
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let app = json!({"name": "app", "image": "app:1", "volumeMounts": mounts, "resources": limits});
    let volumes = json!([{"name": "data", "emptyDir": {}}]);
    bench
        .add(pod_of(
            "greedy",
            &json!({"containers": [app], "volumes": volumes}),
        ))
        .await;
    bench.until_ready().await;
    let uid = bench.node.pods().await.unwrap()[0].uid.clone();
    let volume = format!("pods/{uid}/volumes/kubernetes.io~empty-dir/data/file");
    fs::write(bench.data().join(volume), vec![1; 2 << 20]).unwrap();
    let node = bench.node.clone();
    eventually("the pod is evicted", || async {
        node.pods().await.unwrap()[0].status.reason == "Evicted"
    })
    .await;
    bench.leave().await;
}

#[tokio::test]
async fn the_pod_that_fills_a_small_disk_is_evicted_and_its_neighbour_stays() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(_disk) = small_disk(&directory, c"size=128m") else {
        return;
    };
    let features = pulselet_runtime::Features {
        events: false,
        ..runtime().version().await.expect("it answers").features
    };
    let runtime = FakeRuntime::with_features(RuntimeFaults::default(), features);
    let mut bench = Bench::on(directory, runtime, |options| {
        let text = "evictionHard: {nodefs.available: 50%}";
        options.config = NodeConfig::parse(text).expect("settings");
    })
    .await;
    for name in ["modest", "greedy"] {
        let mounts = json!([{"name": "data", "mountPath": "/data"}]);
        let app = json!({"name": "app", "image": "app:1", "volumeMounts": mounts});
        let volumes = json!([{"name": "data", "emptyDir": {}}]);
        let spec = json!({"containers": [app], "volumes": volumes, "terminationGracePeriodSeconds": 1});
        bench.add(pod_of(name, &spec)).await;
        bench.until_ready().await;
    }
    let view = |name: &'static str| {
        let node = bench.node.clone();
        async move {
            let view = node.pod(&PodName::new("default", name)).await;
            view.expect("the node is there").expect("the pod is there")
        }
    };
    assert!(!bench.node.pressure().disk);
    let uid = view("greedy").await.uid;
    let volume = format!("pods/{uid}/volumes/kubernetes.io~empty-dir/data/file");
    fs::write(bench.data().join(volume), vec![1; 80 << 20]).expect("there is room");
    eventually("it is evicted", || async {
        view("greedy").await.status.reason == "Evicted"
    })
    .await;
    let message = view("greedy").await.status.message;
    let begin = "The node was low on resource: ephemeral-storage. Threshold quantity: 64Mi, available: ";
    assert!(message.starts_with(begin), "{message}");
    assert_eq!(view("modest").await.status.reason, "");
    assert!(bench.node.pressure().disk, "the condition stays for a while");
    bench.leave().await;
}

fn with_volume() -> pulselet_model::Pod {
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let app = json!({"name": "app", "image": "app:1", "volumeMounts": mounts});
    let volumes = json!([{"name": "data", "emptyDir": {}}]);
    pod_of("web", &json!({"containers": [app], "volumes": volumes}))
}

#[tokio::test]
async fn a_missing_database_costs_no_running_pod_its_volumes() {
    let mut bench = Bench::new().await;
    bench.add(with_volume()).await;
    bench.until_ready().await;
    let uid = bench.node.pods().await.unwrap()[0].uid.clone();
    let file = format!("data/pods/{uid}/volumes/kubernetes.io~empty-dir/data/file");
    let (directory, runtime) = bench.leave().await;
    fs::write(directory.path().join(&file), b"precious").unwrap();
    for name in ["node.db", "node.db-wal", "node.db-shm"] {
        let _ = fs::remove_file(directory.path().join("data").join(name));
    }
    let stray = directory.path().join("data/pods/of-nobody");
    fs::create_dir(&stray).unwrap();
    let bench = Bench::on(directory, runtime, |_| {}).await;
    eventually("what belongs to nobody is removed", || async { !stray.exists() }).await;
    let pods = bench.node.pods().await.unwrap();
    assert_eq!(pods.len(), 1, "it is known from its spare copy");
    assert!(pods[0].status.container_statuses[0].ready);
    let kept = fs::read(bench.directory.path().join(&file)).expect("the volume is kept");
    assert_eq!(kept, b"precious");
    bench.leave().await;
}

#[tokio::test]
async fn what_came_from_a_spare_copy_is_in_the_database_again() {
    let mut bench = Bench::new().await;
    bench.add(with_volume()).await;
    bench.until_ready().await;
    let uid = bench.node.pods().await.unwrap()[0].uid.clone();
    let (directory, runtime) = bench.leave().await;
    for name in ["node.db", "node.db-wal", "node.db-shm"] {
        let _ = fs::remove_file(directory.path().join("data").join(name));
    }
    let (directory, runtime) = Bench::on(directory, runtime, |_| {}).await.leave().await;
    fs::remove_file(directory.path().join(format!("data/pods/{uid}/spare.json"))).unwrap();
    let bench = Bench::on(directory, runtime, |_| {}).await;
    let pods = bench.node.pods().await.unwrap();
    assert_eq!(pods.len(), 1, "the database knows it without its spare copy");
    assert!(pods[0].status.container_statuses[0].ready);
    bench.leave().await;
}

#[tokio::test]
async fn a_missing_database_and_spare_leave_what_runs_alone() {
    let mut bench = Bench::new().await;
    bench.add(with_volume()).await;
    bench.until_ready().await;
    let uid = bench.node.pods().await.unwrap()[0].uid.clone();
    let pod = format!("data/pods/{uid}");
    let (directory, runtime) = bench.leave().await;
    for name in [
        "node.db",
        "node.db-wal",
        "node.db-shm",
        &format!("pods/{uid}/spare.json"),
    ] {
        let _ = fs::remove_file(directory.path().join("data").join(name));
    }
    let stray = directory.path().join("data/pods/of-nobody");
    fs::create_dir(&stray).unwrap();
    let bench = Bench::on(directory, runtime, |_| {}).await;
    eventually("what belongs to nobody is removed", || async { !stray.exists() }).await;
    assert!(
        bench.directory.path().join(pod).exists(),
        "the runtime still has the pod"
    );
    bench.leave().await;
}

#[tokio::test]
async fn a_stopped_sandbox_of_a_pod_nobody_knows_is_removed_at_the_start() {
    let runtime = runtime();
    let config = |name: &str| SandboxConfig {
        pod: PodIdentity {
            uid: name.into(),
            namespace: "default".into(),
            name: name.into(),
        },
        ..SandboxConfig::default()
    };
    let stopped = runtime.run_sandbox(&config("stopped")).await.unwrap();
    runtime.stop_sandbox(&stopped).await.unwrap();
    let running = runtime.run_sandbox(&config("running")).await.unwrap();
    let bench = Bench::on(tempfile::tempdir().unwrap(), runtime, |_| {}).await;
    eventually("the stopped one is removed", || async {
        let left = bench.runtime.list_sandboxes().await.unwrap();
        left.iter().map(|it| &it.id).eq([&running])
    })
    .await;
    bench.leave().await;
}

#[tokio::test]
async fn logs_of_pods_nobody_knows_are_swept() {
    let mut bench = Bench::new().await;
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    let uid = bench.node.pods().await.unwrap()[0].uid.clone();
    let (directory, runtime) = bench.leave().await;
    let logs = directory.path().join("data/logs");
    let (known, stray) = (
        logs.join(format!("default_web_{uid}")),
        logs.join("default_gone_u-9"),
    );
    let foreign = logs.join("notes");
    for path in [&known, &stray, &foreign] {
        fs::create_dir_all(path).unwrap();
    }
    let bench = Bench::on(directory, runtime, |_| {}).await;
    eventually("the stray logs are removed", || async { !stray.exists() }).await;
    assert!(known.exists() && foreign.exists());
    bench.leave().await;
}

#[tokio::test]
async fn a_node_that_leaves_finishes_a_forced_deletion_first() {
    let mut bench = Bench::new().await;
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    let name = PodName::new("default", "web");
    let deleted = bench.node.delete_pod(&name, Some(Duration::ZERO)).await;
    deleted.unwrap().unwrap();
    bench.node.shutdown(Shutdown::Leave).await;
    assert!(bench.runtime.list_sandboxes().await.unwrap().is_empty());
    let pods = fs::read_dir(bench.data().join("pods")).unwrap();
    assert_eq!(pods.count(), 0, "its files are gone");
}
