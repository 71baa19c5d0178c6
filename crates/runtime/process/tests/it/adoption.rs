//! Containers without their agent, and the agent after them.

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use pulselet_runtime::{
    ContainerFilter, ContainerState, EventKind, ExitCause, Runtime, RuntimeEvent, SandboxState,
};
use pulselet_runtime_process::{ProcessRuntime, ShimCommand};
use pulselet_shim::{processes_with_variable, record};
use rustix::process::{Pid, Signal, kill_process};

use crate::world::{FOREVER, World, eventually, init_pid, parent_of, wait_until_gone};

fn kill(pid: &str) {
    let pid = Pid::from_raw(pid.parse().expect("a number")).expect("a process id");
    kill_process(pid, Signal::KILL).expect("the process is there");
}

#[tokio::test]
async fn running_containers_are_found_again_and_obey() {
    let world = World::new().await;
    let id = world
        .run("trap 'exit 9' TERM; echo yes > $T/ready; while :; do sleep 0.05; done")
        .await;
    world.file("ready").await;
    let before = world.status(&id).await;
    let world = world.reopen().await;
    assert_eq!(world.status(&id).await, before);
    assert_eq!(world.exec(&id, "echo hello").await.1, "hello\n");
    let mut events = world.runtime.events();
    world.runtime.stop_container(&id, FOREVER).await.expect("stops");
    assert_eq!(world.wait_for_exit(&id).await.code, 9);
    let event = tokio::time::timeout(FOREVER, events.next())
        .await
        .expect("in time");
    assert!(matches!(event, Some(RuntimeEvent::Container(event)) if event.kind == EventKind::Stopped));
    let world = world.reopen().await;
    assert_eq!(world.wait_for_exit(&id).await.code, 9, "an exit stays known");
    world.finish().await;
}

#[tokio::test]
async fn an_exit_without_an_agent_is_recorded() {
    let world = World::new().await;
    let id = world
        .run("while [ ! -e $T/go ]; do sleep 0.01; done; exit 42")
        .await;
    let (dir, go) = (world.container_dir(&id), world.path("go"));
    let main = init_pid(&dir);
    let agentless = world.leave();
    fs::write(go, "").expect("writes");
    wait_until_gone(&main).await;
    let world = agentless.come_back().await;
    let exit = world.wait_for_exit(&id).await;
    assert_eq!((exit.code, exit.reason), (42, ExitCause::Error));
    world.finish().await;
}

#[tokio::test]
async fn a_stop_goes_on_without_the_agent() {
    let world = World::new().await;
    let id = world
        .run("trap 'echo told > $T/told' TERM; echo yes > $T/ready; while :; do sleep 0.05; done")
        .await;
    world.file("ready").await;
    let (runtime, target) = (world.runtime.clone(), id.clone());
    let stop = tokio::spawn(async move { runtime.stop_container(&target, Duration::from_millis(500)).await });
    world.file("told").await;
    stop.abort();
    let _ = stop.await;
    let dir = world.container_dir(&id);
    let agentless = world.leave();
    eventually("the exit is recorded", async || {
        record::read_exit(&dir).expect("reads")
    })
    .await;
    let world = agentless.come_back().await;
    let exit = world.wait_for_exit(&id).await;
    assert_eq!((exit.code, exit.killed_after_grace), (137, Some(true)));
    world.finish().await;
}

#[tokio::test]
async fn a_killed_shim_takes_its_container_with_it() {
    let world = World::new().await;
    let id = world
        .run("setsid sh -c 'setsid sleep 1000 & echo $! > $T/escaped' & sleep 1000 & echo $! > $T/plain; wait; sleep 1000")
        .await;
    let (escaped, plain) = (world.file("escaped").await, world.file("plain").await);
    let main = init_pid(&world.container_dir(&id));
    kill(&parent_of(&main));
    let exit = world.wait_for_exit(&id).await;
    assert_eq!((exit.code, &exit.reason), (255, &ExitCause::Unknown));
    assert!(
        exit.started_at.is_some() && exit.message.contains("shim"),
        "{exit:?}"
    );
    for pid in [main, escaped, plain] {
        wait_until_gone(&pid).await;
    }
    let world = world.reopen().await;
    assert_eq!(world.wait_for_exit(&id).await.code, 255);
    world.finish().await;
}

#[tokio::test]
async fn a_shim_that_was_killed_while_no_agent_was_there_is_missed() {
    let world = World::new().await;
    let id = world
        .run("setsid sleep 1000 & echo $! > $T/escaped; exec sleep 1000")
        .await;
    let escaped = world.file("escaped").await;
    let main = init_pid(&world.container_dir(&id));
    let shim = parent_of(&main);
    let agentless = world.leave();
    kill(&shim);
    wait_until_gone(&main).await;
    let world = agentless.come_back().await;
    assert_eq!(world.wait_for_exit(&id).await.code, 255);
    wait_until_gone(&escaped).await;
    world.finish().await;
}

#[tokio::test]
async fn signals_that_ask_to_leave_do_not_impress_a_shim() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let shim = parent_of(&init_pid(&world.container_dir(&id)));
    let pid = Pid::from_raw(shim.parse().expect("a number")).expect("a process id");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        kill_process(pid, signal).expect("the shim is there");
    }
    assert_eq!(
        world.exec(&id, "grep SigBlk /proc/self/status").await.1,
        "SigBlk:\t0000000000000000\n",
        "commands block none"
    );
    world.finish().await;
}

#[tokio::test]
async fn a_created_container_can_be_started_by_the_next_agent() {
    let world = World::new().await;
    let id = world.create(&world.config("main", "exit 6")).await;
    let world = world.reopen().await;
    assert_eq!(world.status(&id).await.state, ContainerState::Created);
    world.runtime.start_container(&id).await.expect("starts");
    assert_eq!(world.wait_for_exit(&id).await.code, 6);
    world.finish().await;
}

#[tokio::test]
async fn a_shim_whose_agent_died_during_the_start_goes_on() {
    let world = World::new().await;
    let id = world.create(&world.config("main", "exec sleep 1000")).await;
    let dir = world.container_dir(&id);
    let shim = || {
        Command::new(env!("CARGO_BIN_EXE_pulselet-process-shim"))
            .arg(&dir)
            .stderr(Stdio::null())
            .output()
            .expect("runs")
    };
    shim();
    let second = shim();
    assert_eq!(
        String::from_utf8_lossy(&second.stdout),
        "\"AlreadyStarted\"",
        "one life only"
    );
    let world = world.reopen().await;
    assert!(matches!(
        world.status(&id).await.state,
        ContainerState::Running { .. }
    ));
    assert_eq!(world.exec(&id, "echo hello").await.1, "hello\n");
    world.finish().await;
}

#[tokio::test]
async fn after_a_reboot_all_have_exited_with_255() {
    let world = World::new().await;
    let ran = world.run_config(&world.config("ran", "exit 3")).await;
    assert_eq!(world.wait_for_exit(&ran).await.code, 3);
    let new = world.create(&world.config("new", "true")).await;
    for (kind, id) in [
        ("containers", ran.as_str()),
        ("containers", new.as_str()),
        ("sandboxes", world.sandbox.as_str()),
    ] {
        let file = if kind == "containers" {
            "container.json"
        } else {
            "sandbox.json"
        };
        let path = world.path("root").join(kind).join(id).join(file);
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("reads");
        let text = fs::read_to_string(&path).expect("reads");
        assert!(text.contains(boot_id.trim()));
        fs::write(&path, text.replace(boot_id.trim(), "another-boot")).expect("writes");
    }
    let world = world.reopen().await;
    assert_eq!(
        world.wait_for_exit(&ran).await.code,
        3,
        "an exit that was seen stays"
    );
    let exit = world.wait_for_exit(&new).await;
    assert_eq!(
        (exit.code, exit.message.as_str()),
        (255, "the machine was restarted")
    );
    let sandbox = world
        .runtime
        .sandbox_status(&world.sandbox)
        .await
        .expect("is there");
    assert_eq!(sandbox.state, SandboxState::NotReady);
    world.finish().await;
}

#[tokio::test]
async fn a_damaged_record_costs_only_its_own_container() {
    let world = World::new().await;
    let good = world.run_config(&world.config("good", "exec sleep 1000")).await;
    let bad = world.create(&world.config("bad", "true")).await;
    fs::write(world.container_dir(&bad).join("container.json"), "{\"id\":").expect("writes");
    let world = world.reopen().await;
    let listed = world
        .runtime
        .list_containers(&ContainerFilter::default())
        .await
        .expect("lists");
    assert_eq!(
        listed.iter().map(|status| &status.id).collect::<Vec<_>>(),
        [&good]
    );
    world.finish().await;
}

/// Times the agent is killed, each at another instant of its work.
const KILLS: u64 = 40;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_at_any_instant_leaves_what_the_next_can_clean() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("root");
    let program = env!("CARGO_BIN_EXE_pulselet-process-shim");
    for kill in 0..KILLS {
        let mut agent = Command::new(env!("CARGO_BIN_EXE_pulselet-process-churn"))
            .args([root.as_os_str(), program.as_ref()])
            .spawn()
            .expect("the agent runs");
        // Not a multiple of anything the agent does; the instants spread over its work.
        tokio::time::sleep(Duration::from_micros(3_000 + 1_700 * kill)).await;
        agent.kill().expect("kills");
        let status = agent.wait().expect("waits");
        assert_eq!(status.code(), None, "it worked until it was killed");
        clean_up(&root, program).await;
    }
}

/// Opens the runtime as the next agent would, and leaves nothing.
async fn clean_up(root: &std::path::Path, program: &str) {
    let shim = ShimCommand {
        program: program.into(),
        args: Vec::new(),
    };
    let runtime = ProcessRuntime::open(root, shim).await.expect("opens");
    for container in runtime
        .list_containers(&ContainerFilter::default())
        .await
        .expect("lists")
    {
        assert_ne!(
            container.state,
            ContainerState::Unknown,
            "it is known what became of {}",
            container.id
        );
    }
    for sandbox in runtime.list_sandboxes().await.expect("lists") {
        runtime.remove_sandbox(&sandbox.id).await.expect("removes");
    }
    assert_eq!(
        runtime
            .list_containers(&ContainerFilter::default())
            .await
            .expect("lists"),
        []
    );
    eventually("no process is left", async || {
        processes_with_variable("CHURN", &root.display().to_string())
            .is_empty()
            .then_some(())
    })
    .await;
    assert_eq!(fs::read_dir(root.join("containers")).expect("lists").count(), 0);
}
