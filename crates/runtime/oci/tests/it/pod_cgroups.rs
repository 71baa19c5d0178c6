//! Sandboxes below the cgroups that a node makes for its pods, and beside them those of older versions.

use std::{fs, path::Path, time::Duration};

use pulselet_cgroup::{PodCgroups, PodClaim, QosClass};
use pulselet_runtime::{ContainerState, Resources, Runtime, SandboxConfig};

use crate::world::{FOREVER, World, can_run, eventually, init_pid, is_alive, on_host_network};

const BURSTABLE: PodClaim = PodClaim {
    class: QosClass::Burstable,
    cpu_millis: 500,
};

fn pods_of(world: &World) -> PodCgroups {
    let root = world.runtime.cgroup_root().expect("pods are taken from the node");
    PodCgroups::open(root).expect("there are cgroups")
}

/// A sandbox in a pod's cgroup of that many bytes.
fn in_pod(pods: &PodCgroups, uid: &str, memory: u64) -> SandboxConfig {
    let limits = Resources {
        memory_limit: Some(memory),
        ..Resources::default()
    };
    SandboxConfig {
        cgroup_parent: Some(pods.make(uid, BURSTABLE, &limits).expect("is made")),
        ..on_host_network()
    }
}

/// Where a process is, from the root of the hierarchy of memory on.
fn cgroup_of(pid: &str) -> String {
    let text = fs::read_to_string(Path::new("/proc").join(pid).join("cgroup")).expect("reads");
    let mut lines = text.lines();
    let line = lines.find(|line| line.contains(":memory:") || line.starts_with("0::/pulselet"));
    line.and_then(|line| line.rsplit(':').next())
        .expect("is in one")
        .to_owned()
}

#[tokio::test]
async fn containers_of_a_pod_cannot_exceed_it_together() {
    if !can_run() {
        return;
    }
    let mut world = World::without_sandbox().await;
    let pods = pods_of(&world);
    world.sandbox = world.add_sandbox("pod", in_pod(&pods, "uid-pod", 64 << 20)).await;
    // Each would have room alone.
    let hog = "b = bytearray(40 * 1024 * 1024); open('/shared/' + __import__('sys').argv[1], 'w').write('up\\n'); \
        __import__('time').sleep(1000)";
    let run = async |name: &str| {
        let mut config = world.config(name, "");
        config.command = ["python3", "-c", hog, name].map(String::from).to_vec();
        world.run_config(&config).await
    };
    let first = run("first").await;
    world.file("first").await;
    let place = cgroup_of(&init_pid(&world.container_dir(&first)));
    let root = world.runtime.cgroup_root().expect("has one");
    let pod = format!(
        "/{}/burstable/poduid-pod/pulselet-{}/",
        root.display(),
        world.sandbox
    );
    assert!(place.starts_with(&pod), "{place}");
    let second = run("second").await;
    let ended = eventually("one of them has ended", async || {
        for id in [&first, &second] {
            if let ContainerState::Exited(exit) = world.status(id).await.state {
                return Some(exit);
            }
        }
        None
    });
    assert_eq!(ended.await.code, 137);
    world
        .runtime
        .remove_sandbox(&world.sandbox)
        .await
        .expect("is removed");
    pods.remove("uid-pod").expect("is removed");
    world.finish().await;
}

#[tokio::test]
async fn what_runs_in_a_pods_cgroup_is_found_again_or_ended() {
    if !can_run() {
        return;
    }
    let mut world = World::without_sandbox().await;
    let pods = pods_of(&world);
    world.sandbox = world.add_sandbox("pod", in_pod(&pods, "uid-pod", 64 << 20)).await;
    let lost = world
        .add_sandbox("lost", in_pod(&pods, "uid-lost", 64 << 20))
        .await;
    let kept = world.run("exec sleep 1000").await;
    let gone = world
        .run_in(&lost, &world.config("main", "exec sleep 1000"))
        .await;
    let process = init_pid(&world.container_dir(&gone));
    let record = format!("root/sandboxes/{lost}/sandbox.json");
    fs::remove_file(world.home.path().join(record)).expect("removes");
    let world = world.reopen().await;
    assert!(!is_alive(&process), "nobody knows its sandbox");
    world.runtime.remove_container(&gone).await.expect("is removed");
    assert_eq!(world.exec(&kept, "echo hello").await.1, "hello\n");
    let pods = pods_of(&world);
    pods.adopt("uid-pod", BURSTABLE);
    pods.sweep(|_| false).expect("is swept");
    world
        .runtime
        .stop_container(&kept, Duration::ZERO)
        .await
        .expect("stops");
    world
        .runtime
        .remove_sandbox(&world.sandbox)
        .await
        .expect("is removed");
    pods.remove("uid-pod").expect("is removed");
    world.finish().await;
}

/// Versions before the classes had the cgroups of sandboxes directly below the root.
#[tokio::test]
async fn pods_of_an_older_version_run_on_beside_new_ones() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let old = world
        .run("trap 'exit 9' TERM; echo yes > /shared/ready; while :; do sleep 0.05; done")
        .await;
    world.file("ready").await;
    let place = cgroup_of(&init_pid(&world.container_dir(&old)));
    let world = world.reopen().await;
    let pods = pods_of(&world);
    pods.adopt("uid-pod", BURSTABLE);
    pods.sweep(|_| false).expect("is swept");
    let new = world.add_sandbox("new", in_pod(&pods, "uid-new", 64 << 20)).await;
    let main = world.config("main", "exec sleep 1000");
    let beside = world.run_in(&new, &main).await;
    assert_eq!(cgroup_of(&init_pid(&world.container_dir(&old))), place);
    assert!(
        world
            .runtime
            .container_stats(&old)
            .await
            .expect("is measured")
            .processes
            > 0
    );
    world.runtime.stop_container(&old, FOREVER).await.expect("stops");
    assert_eq!(world.wait_for_exit(&old).await.code, 9);
    world
        .runtime
        .remove_sandbox(&world.sandbox)
        .await
        .expect("is removed");
    pods.remove("uid-pod").expect("has none");
    assert_eq!(world.exec(&beside, "echo hello").await.1, "hello\n");
    world.runtime.remove_sandbox(&new).await.expect("is removed");
    pods.remove("uid-new").expect("is removed");
    world.finish().await;
}
