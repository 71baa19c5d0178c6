//! What goes wrong around containers: lost mounts, damaged records, stuck shims, too few descriptors.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use pulselet_runtime::{ContainerFilter, ContainerId, ContainerState, Runtime, SandboxState};
use pulselet_runtime_oci::OciRuntime;
use rustix::{
    mount::{UnmountFlags, unmount},
    process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit},
};

use crate::world::{World, can_run, eventually, init_pid, is_alive, on_bridge, parent_of};

const SLEEPER: &str = "echo up > /shared/up; exec sleep 1000";

fn signal(pid: &str, signal: Signal) {
    let pid = Pid::from_raw(pid.parse().expect("a number")).expect("a process id");
    kill_process(pid, signal).expect("the process is there");
}

fn sandbox_dir(world: &World) -> PathBuf {
    world
        .home
        .path()
        .join("root/sandboxes")
        .join(world.sandbox.as_str())
}

async fn sleeper(world: &World) -> (ContainerId, String) {
    let id = world.run(SLEEPER).await;
    world.file("up").await;
    let init = init_pid(&world.container_dir(&id));
    (id, init)
}

#[tokio::test]
async fn a_sandbox_whose_pins_are_gone_is_not_ready() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let state = async |world: &World| {
        let listed = world.runtime.list_sandboxes().await.expect("lists");
        listed[0].state
    };
    assert_eq!(state(&world).await, SandboxState::Ready);
    let pin = sandbox_dir(&world).join("net");
    unmount(&pin, UnmountFlags::DETACH).expect("it is mounted");
    assert_eq!(
        state(&world).await,
        SandboxState::NotReady,
        "lost while the agent runs"
    );
    let world = world.reopen().await;
    assert_eq!(
        state(&world).await,
        SandboxState::NotReady,
        "lost while no agent ran"
    );
    let created = world
        .runtime
        .create_container(&world.sandbox, &world.config("main", "exit 0"))
        .await;
    created.expect_err("no container begins in a sandbox without namespaces");
    world.finish().await;
}

#[tokio::test]
async fn namespaces_that_a_container_still_has_are_pinned_again() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let (id, _) = sleeper(&world).await;
    for pin in ["net", "uts", "ipc"] {
        unmount(sandbox_dir(&world).join(pin), UnmountFlags::DETACH).expect("it is mounted");
    }
    let world = world.reopen().await;
    let listed = world.runtime.list_sandboxes().await.expect("lists");
    assert_eq!(listed[0].state, SandboxState::Ready);
    let state = world.status(&id).await.state;
    assert!(matches!(state, ContainerState::Running { .. }), "{state:?}");
    let addresses = world.config("second", "cat /proc/net/fib_trie");
    let second = world.output_of(&addresses).await;
    let address = crate::world::address_of(&world, &world.sandbox).await;
    assert!(second.contains(&address.to_string()), "{second}");
    world.finish().await;
}

#[tokio::test]
async fn a_moved_directory_keeps_what_it_has() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let (id, _) = sleeper(&world).await;
    let agentless = world.leave();
    let root = agentless.path().join("root");
    let moved = agentless.path().join("moved");
    fs::rename(&root, &moved).expect("moves");
    let mut options = crate::world::options(agentless.path());
    options.root.clone_from(&moved);
    // The name of the bridge follows from the path, too.
    options.network.bridge.push('2');
    let runtime = OciRuntime::open(options).await.expect("opens");
    let state = runtime.container_status(&id).await.expect("is there").state;
    assert!(matches!(state, ContainerState::Running { .. }), "{state:?}");
    for sandbox in runtime.list_sandboxes().await.expect("lists") {
        runtime.remove_sandbox(&sandbox.id).await.expect("removes");
    }
    drop(runtime);
    eventually("nothing is left under the old names", async || {
        crate::world::traces(agentless.path()).is_empty().then_some(())
    })
    .await;
    fs::rename(&moved, &root).expect("moves back");
    agentless.come_back().await.finish().await;
}

#[tokio::test]
async fn a_copied_root_kills_no_container_of_the_original() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let (id, init) = sleeper(&world).await;
    let copy = world.home.path().join("copy");
    // The pins of namespaces, which are mounted files, cannot be read: cp says so and copies the rest.
    let copied = Command::new("cp")
        .args(["-a", "--one-file-system"])
        .args([&world.home.path().join("root"), &copy])
        .output();
    copied.expect("runs");
    let damaged = world
        .run_config(&world.config("damaged", "exec sleep 1000"))
        .await;
    let damaged_init = init_pid(&world.container_dir(&damaged));
    let damaged_dir = copy.join("containers").join(damaged.as_str());
    fs::create_dir(&damaged_dir).expect("makes");
    fs::write(damaged_dir.join("container.json"), "{").expect("writes");
    let mut options = crate::world::options(world.home.path());
    options.root.clone_from(&copy);
    options.network.bridge.push('2');
    let runtime = OciRuntime::open(options).await.expect("opens");
    eventually("the copy gives up the container", async || {
        let state = runtime.container_status(&id).await.expect("is there").state;
        matches!(state, ContainerState::Exited(_)).then_some(())
    })
    .await;
    assert!(is_alive(&init) && is_alive(&damaged_init));
    let state = world.status(&id).await.state;
    assert!(matches!(state, ContainerState::Running { .. }), "{state:?}");
    drop(runtime);
    world.finish().await;
}

/// Descriptors that this process has open.
fn open_descriptors() -> u64 {
    fs::read_dir("/proc/self/fd").expect("lists").count() as u64
}

/// Changes the limit of the whole process, which is the test's own.
fn limit_descriptors(limit: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: Some(limit),
        maximum,
    };
    setrlimit(Resource::Nofile, limit).expect("sets");
}

#[tokio::test]
async fn too_few_descriptors_bury_no_container() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let mut ids = Vec::new();
    for number in 0..12 {
        let config = world.config(&format!("c{number}"), "exec sleep 1000");
        ids.push(world.run_config(&config).await);
    }
    let enough = getrlimit(Resource::Nofile).current.unwrap_or(1024);
    for spare in (3..30).step_by(3) {
        let agentless = world.leave();
        // The tasks of the runtime before let go of their descriptors.
        tokio::time::sleep(Duration::from_millis(20)).await;
        limit_descriptors(open_descriptors() + spare);
        let relief = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            limit_descriptors(enough);
        };
        let options = crate::world::options(agentless.path());
        let (opened, ()) = tokio::join!(OciRuntime::open(options), relief);
        // An agent that cannot start buries nobody either.
        if let Ok(runtime) = &opened {
            for id in &ids {
                let state = runtime.container_status(id).await.expect("is there").state;
                assert!(
                    !matches!(state, ContainerState::Exited(_)),
                    "with {spare} descriptors: {state:?}"
                );
            }
        }
        drop(opened);
        world = agentless.come_back().await;
        for id in &ids {
            eventually("the container is found again", async || {
                let state = world.status(id).await.state;
                matches!(state, ContainerState::Running { .. }).then_some(())
            })
            .await;
        }
    }
    world.finish().await;
}

#[tokio::test]
async fn a_container_whose_shim_is_stopped_can_be_killed() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let (id, init) = sleeper(&world).await;
    let shim = parent_of(&init);
    signal(&shim, Signal::STOP);
    world
        .runtime
        .stop_container(&id, Duration::ZERO)
        .await
        .expect("it is killed without its shim");
    eventually("the shim is gone", async || (!is_alive(&shim)).then_some(())).await;
    assert!(!is_alive(&init));
    world.wait_for_exit(&id).await;
    world.finish().await;
}

#[tokio::test]
async fn a_container_whose_shim_is_stopped_still_gets_its_grace() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let id = world
        .run("trap 'echo bye > /shared/bye; exit 3' TERM; echo up > /shared/up; while :; do sleep 0.05; done")
        .await;
    world.file("up").await;
    signal(&parent_of(&init_pid(&world.container_dir(&id))), Signal::STOP);
    world
        .runtime
        .stop_container(&id, Duration::from_secs(30))
        .await
        .expect("it is stopped without its shim");
    assert_eq!(world.file("bye").await, "bye");
    world.finish().await;
}

#[tokio::test]
async fn a_container_whose_record_is_garbage_does_not_run_on() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let (id, init) = sleeper(&world).await;
    let other = world.run_config(&world.config("other", "exec sleep 1000")).await;
    fs::write(world.container_dir(&id).join("container.json"), b"garbage").expect("writes");
    let world = world.reopen().await;
    eventually("its processes are gone", async || {
        (!is_alive(&init)).then_some(())
    })
    .await;
    let state = world.status(&other).await.state;
    assert!(matches!(state, ContainerState::Running { .. }), "{state:?}");
    assert!(
        world.runtime.container_status(&id).await.is_err(),
        "it is forgotten"
    );
    assert!(!world.container_dir(&id).exists());
    world.finish().await;
}

#[tokio::test]
async fn an_empty_record_of_a_life_or_an_exit_stops_no_start() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let (id, _) = sleeper(&world).await;
    let ended = world.run_config(&world.config("ended", "exit 4")).await;
    world.wait_for_exit(&ended).await;
    fs::write(world.container_dir(&id).join("life.json"), b"").expect("writes");
    fs::write(world.container_dir(&ended).join("exit.json"), b"").expect("writes");
    let world = world.reopen().await;
    let state = world.status(&id).await.state;
    assert!(matches!(state, ContainerState::Running { .. }), "{state:?}");
    let state = world.wait_for_exit(&ended).await;
    assert_eq!(state.code, 255, "nobody knows how it ended");
    world.finish().await;
}

#[tokio::test]
async fn a_sandbox_whose_record_cannot_be_written_can_be_stopped() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let (_, init) = sleeper(&world).await;
    // As on a full disk: the new record has no place.
    let in_the_way = sandbox_dir(&world).join(".sandbox.json.new");
    fs::create_dir(&in_the_way).expect("makes");
    world
        .runtime
        .stop_sandbox(&world.sandbox)
        .await
        .expect("it is stopped all the same");
    assert!(!is_alive(&init));
    fs::remove_dir(in_the_way).expect("removes");
    world.finish().await;
}

#[tokio::test]
async fn an_empty_record_of_a_sandbox_costs_that_pod_alone() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let (_, init) = sleeper(&world).await;
    let neighbour = world.add_sandbox("other", on_bridge()).await;
    let other = world
        .run_in(&neighbour, &world.config("other", "exec sleep 1000"))
        .await;
    fs::write(sandbox_dir(&world).join("sandbox.json"), b"").expect("writes");
    let world = world.reopen().await;
    let listed = world.runtime.list_sandboxes().await.expect("lists");
    let listed: Vec<_> = listed.iter().map(|it| (&it.id, it.state)).collect();
    assert_eq!(listed, [(&neighbour, SandboxState::Ready)]);
    let state = world.status(&other).await.state;
    assert!(matches!(state, ContainerState::Running { .. }), "{state:?}");
    eventually("its processes are gone", async || {
        (!is_alive(&init)).then_some(())
    })
    .await;
    let all = ContainerFilter::default();
    for container in world.runtime.list_containers(&all).await.expect("lists") {
        world
            .runtime
            .remove_container(&container.id)
            .await
            .expect("removes");
    }
    world.finish().await;
}
