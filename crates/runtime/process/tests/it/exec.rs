//! Commands in a running container.

use std::time::Duration;

use pulselet_runtime::{Error, ExecOutcome, ExecRequest, Runtime};

use crate::world::{FOREVER, World, eventually, init_pid, is_alive, parent_of, shell, wait_until_gone};

#[tokio::test]
async fn output_and_exit_code_come_back() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    assert_eq!(
        world.exec(&id, "echo out; echo err >&2; exit 3").await,
        (ExecOutcome::Exited(3), "out\nerr\n".into())
    );
    assert_eq!(
        world.exec(&id, "kill -9 $$").await,
        (ExecOutcome::Exited(137), String::new())
    );
    let missing = ExecRequest {
        command: vec!["no-such-program".into()],
        ..shell("")
    };
    let error = world
        .runtime
        .exec_sync(&id, &missing)
        .await
        .expect_err("it is not there");
    assert!(
        matches!(&error, Error::CannotRun { message } if message.contains("not found in $PATH")),
        "{error:?}"
    );
    world.finish().await;
}

#[tokio::test]
async fn long_output_is_cut_and_does_not_block_the_command() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let request = ExecRequest {
        output_limit: 1000,
        ..shell("head -c 3000000 /dev/zero; exit 5")
    };
    let output = world.runtime.exec_sync(&id, &request).await.expect("runs");
    assert_eq!(
        (output.outcome, output.output.len(), output.truncated),
        (ExecOutcome::Exited(5), 1000, true)
    );
    let request = ExecRequest {
        output_limit: 4,
        ..shell("printf abcd")
    };
    let output = world.runtime.exec_sync(&id, &request).await.expect("runs");
    assert_eq!(
        (output.output.as_slice(), output.truncated),
        (&b"abcd"[..], false)
    );
    world.finish().await;
}

#[tokio::test]
async fn a_timeout_kills_the_whole_tree_and_only_that() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let script = "echo before; sleep 1000 & echo $! > $T/plain; \
                  setsid sh -c 'trap \"\" TERM; setsid sleep 1000 & echo $! > $T/escaped; wait' & \
                  while :; do sleep 0.05; done";
    let request = ExecRequest {
        timeout: Some(Duration::from_millis(700)),
        ..shell(script)
    };
    let output = world.runtime.exec_sync(&id, &request).await.expect("runs");
    assert_eq!(
        (output.outcome, output.output.as_slice()),
        (ExecOutcome::TimedOut, &b"before\n"[..])
    );
    for file in ["plain", "escaped"] {
        assert!(
            !is_alive(&world.file(file).await),
            "{file} is killed before the answer"
        );
    }
    assert_eq!(world.exec(&id, "echo alive").await.1, "alive\n");
    world.finish().await;
}

#[tokio::test]
async fn what_a_command_leaves_behind_belongs_to_the_container() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    // The background process has the output open, and nobody waits for it.
    assert_eq!(
        world
            .exec(&id, "sleep 1000 & echo $! > $T/left; echo done")
            .await
            .1,
        "done\n"
    );
    let left = world.file("left").await;
    assert!(is_alive(&left));
    world.runtime.stop_container(&id, FOREVER).await.expect("stops");
    assert!(!is_alive(&left));
    world.finish().await;
}

#[tokio::test]
async fn a_command_ends_with_its_container() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let (runtime, target) = (world.runtime.clone(), id.clone());
    let running = tokio::spawn(async move {
        runtime
            .exec_sync(&target, &shell("echo $$ > $T/pid; exec sleep 1000"))
            .await
    });
    let pid = world.file("pid").await;
    world
        .runtime
        .stop_container(&id, Duration::ZERO)
        .await
        .expect("stops");
    let output = tokio::time::timeout(FOREVER, running)
        .await
        .expect("in time")
        .expect("no panic");
    assert_eq!(output.expect("it ran").outcome, ExecOutcome::Exited(137));
    wait_until_gone(&pid).await;
    let late = world.runtime.exec_sync(&id, &shell("true")).await;
    assert!(
        matches!(late, Err(Error::WrongState { state: "exited", .. })),
        "{late:?}"
    );
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_asked_for_while_it_dies_are_answered() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (runtime, id) = (world.runtime.clone(), id.clone());
        asking.spawn(async move { runtime.exec_sync(&id, &shell("sleep 0.01; echo hi")).await });
    }
    world
        .runtime
        .stop_container(&id, Duration::ZERO)
        .await
        .expect("stops");
    let answers = tokio::time::timeout(FOREVER, asking.join_all())
        .await
        .expect("in time");
    for answer in answers {
        match answer {
            Ok(output) => assert!(
                matches!(output.outcome, ExecOutcome::Exited(0 | 137)),
                "{output:?}"
            ),
            Err(error) => assert!(matches!(error, Error::WrongState { .. }), "{error:?}"),
        }
    }
    world.finish().await;
}

#[tokio::test]
async fn a_probe_goes_on_while_the_container_stops() {
    let world = World::new().await;
    let id = world
        .run("trap '' TERM; echo yes > $T/ready; while :; do sleep 0.05; done")
        .await;
    world.file("ready").await;
    let (runtime, target) = (world.runtime.clone(), id.clone());
    let stop = tokio::spawn(async move { runtime.stop_container(&target, FOREVER).await });
    assert_eq!(world.exec(&id, "echo ready").await.1, "ready\n");
    world
        .runtime
        .stop_container(&id, Duration::ZERO)
        .await
        .expect("stops");
    stop.await.expect("no panic").expect("stops");
    world.finish().await;
}

#[tokio::test]
async fn ended_orphans_and_commands_are_reaped() {
    let world = World::new().await;
    let id = world
        .run("for i in 1 2 3 4 5; do (sleep 0 &); done; exec sleep 1000")
        .await;
    for _ in 0..5 {
        world.exec(&id, "(sleep 0 &); true").await;
    }
    let main = init_pid(&world.container_dir(&id));
    let shim = parent_of(&main);
    eventually("the shim has one child, alive", async || {
        let children = children_of(&shim);
        (children == [main.clone()] && is_alive(&main)).then_some(())
    })
    .await;
    world.finish().await;
}

/// Zombies included.
fn children_of(parent: &str) -> Vec<String> {
    let names = std::fs::read_dir("/proc")
        .expect("lists")
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let pids = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let is_child = |pid: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(parent))
    };
    pids.filter(is_child).collect()
}
