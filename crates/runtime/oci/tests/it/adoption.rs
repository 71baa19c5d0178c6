//! Containers without their agent, and the agent after them.

use std::{fs, time::Duration};

use pulselet_runtime::{ContainerState, ExitCause, Runtime, SandboxState};
use rustix::process::{Pid, Signal, kill_process};

use crate::world::{FOREVER, World, can_run, eventually, init_pid, is_alive, on_bridge, parent_of};

fn kill(pid: &str) {
    let pid = Pid::from_raw(pid.parse().expect("a number")).expect("a process id");
    kill_process(pid, Signal::KILL).expect("the process is there");
}

#[tokio::test]
async fn running_containers_are_found_again_and_obey() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let id = world
        .run("trap 'exit 9' TERM; echo yes > /shared/ready; while :; do sleep 0.05; done")
        .await;
    world.file("ready").await;
    // Its shell starts and ends processes all the time.
    let lasting = |world: &World| -> Vec<String> {
        let traces = world.traces().into_iter();
        traces.filter(|trace| !trace.starts_with("process")).collect()
    };
    let before = (world.status(&id).await, lasting(&world));
    let world = world.reopen().await;
    assert_eq!((world.status(&id).await, lasting(&world)), before);
    assert_eq!(world.exec(&id, "echo hello").await.1, "hello\n");
    world.runtime.stop_container(&id, FOREVER).await.expect("stops");
    assert_eq!(world.wait_for_exit(&id).await.code, 9);
    world.finish().await;
}

#[tokio::test]
async fn a_killed_shim_takes_its_container_with_it() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let id = world
        .run("setsid sh -c 'setsid sleep 1000' & echo up > /shared/up; exec sleep 1000")
        .await;
    world.file("up").await;
    let main = init_pid(&world.container_dir(&id));
    kill(&parent_of(&main));
    let exit = world.wait_for_exit(&id).await;
    assert_eq!((exit.code, exit.reason), (255, ExitCause::Unknown));
    eventually("all processes are gone", async || {
        (!is_alive(&main)).then_some(())
    })
    .await;
    eventually("the cgroup is gone", async || {
        let left = world
            .traces()
            .into_iter()
            .any(|trace| trace.starts_with("process"));
        (!left).then_some(())
    })
    .await;
    world.finish().await;
}

#[tokio::test]
async fn what_was_half_made_is_taken_down() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let nothing = {
        let other = World::new().await;
        let traces = other.traces();
        other.finish().await;
        traces
    };
    assert!(nothing.len() < world.traces().len());
    // As if the agent had been killed before it could say that the sandbox is ready.
    let record = world
        .home
        .path()
        .join("root/sandboxes")
        .join(world.sandbox.as_str())
        .join("sandbox.json");
    let text = fs::read_to_string(&record).expect("reads");
    assert!(text.contains("\"Ready\""));
    fs::write(&record, text.replace("\"Ready\"", "\"NotReady\"")).expect("writes");
    let world = world.reopen().await;
    let status = world
        .runtime
        .sandbox_status(&world.sandbox)
        .await
        .expect("is there");
    assert_eq!(status.state, SandboxState::NotReady);
    let left: Vec<String> = world
        .traces()
        .into_iter()
        .filter(|trace| !trace.starts_with("cgroup"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    world.finish().await;
}

#[tokio::test]
async fn what_nobody_knows_any_more_is_removed() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    // The record is lost, everything else is there.
    let record = world
        .home
        .path()
        .join("root/sandboxes")
        .join(world.sandbox.as_str())
        .join("sandbox.json");
    fs::remove_file(record).expect("removes");
    let world = world.reopen().await;
    assert!(world.runtime.list_sandboxes().await.expect("lists").is_empty());
    assert!(world.traces().is_empty(), "{:?}", world.traces());
    world.finish().await;
}

#[tokio::test]
async fn a_created_container_can_be_started_by_the_next_agent() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let config = world.config("main", "exit 6");
    let id = world
        .runtime
        .create_container(&world.sandbox, &config)
        .await
        .expect("creates");
    let world = world.reopen().await;
    assert_eq!(world.status(&id).await.state, ContainerState::Created);
    world.runtime.start_container(&id).await.expect("starts");
    assert_eq!(world.wait_for_exit(&id).await.code, 6);
    world.finish().await;
}

#[tokio::test]
async fn many_containers_start_and_stop_at_once() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..30 {
        let (runtime, sandbox) = (world.runtime.clone(), world.sandbox.clone());
        let config = world.config(
            &format!("c{number}"),
            "trap 'exit 5' TERM; while :; do sleep 0.05; done",
        );
        tasks.spawn(async move {
            let id = runtime
                .create_container(&sandbox, &config)
                .await
                .expect("creates");
            runtime.start_container(&id).await.expect("starts");
            runtime
                .stop_container(&id, Duration::from_millis(100))
                .await
                .expect("stops");
            id
        });
    }
    for id in tasks.join_all().await {
        let exit = world.wait_for_exit(&id).await;
        assert!([5, 137].contains(&exit.code), "{exit:?}");
    }
    world.finish().await;
}
