//! Containers from creation to removal.

use std::time::Duration;

use pulselet_runtime::{ContainerFilter, ContainerState, Error, ExitCause, Runtime, Signal};

use crate::world::{FOREVER, World, can_run, init_pid, parent_of};

#[tokio::test]
async fn a_container_runs_to_its_end() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let config = world.config("main", "echo out; echo err >&2; exit 7");
    assert_eq!(world.output_of(&config).await, "out\nerr");
    let id = world
        .runtime
        .list_containers(&ContainerFilter::default())
        .await
        .expect("lists")[0]
        .id
        .clone();
    let exit = world.wait_for_exit(&id).await;
    assert_eq!((exit.code, exit.reason), (7, ExitCause::Error));
    assert!(exit.started_at.is_some());
    world.finish().await;
}

#[tokio::test]
async fn the_stop_signal_reaches_the_first_process() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    for (name, signal) in [
        ("term", None),
        ("usr1", Some("SIGUSR1")),
        ("rt", Some("SIGRTMIN+3")),
    ] {
        let script = "trap 'exit 11' TERM; trap 'exit 12' USR1; trap 'exit 13' RTMIN+3; echo up > /shared/$0; while :; do sleep 0.05; done";
        let mut config = world.config(name, script);
        config.command = vec!["bash".into(), "-c".into(), script.into(), name.into()];
        config.stop_signal = signal.map(|text| text.parse().expect("a signal"));
        let id = world.run_config(&config).await;
        world.file(name).await;
        let effective = world.status(&id).await.stop_signal;
        assert_eq!(effective, Some(config.stop_signal.unwrap_or(Signal::TERM)));
        world.runtime.stop_container(&id, FOREVER).await.expect("stops");
        let exit = world.wait_for_exit(&id).await;
        let expected = match name {
            "term" => 11,
            "usr1" => 12,
            _ => 13,
        };
        assert_eq!(
            (exit.code, exit.killed_after_grace),
            (expected, Some(false)),
            "{name}"
        );
    }
    world.finish().await;
}

#[tokio::test]
async fn an_ignored_signal_is_followed_by_a_kill() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    // The first process of a namespace ignores what it does not handle.
    let id = world
        .run("setsid sleep 1000 & echo up > /shared/up; exec sleep 1000")
        .await;
    world.file("up").await;
    world
        .runtime
        .stop_container(&id, Duration::from_millis(300))
        .await
        .expect("stops");
    let exit = world.wait_for_exit(&id).await;
    assert_eq!((exit.code, exit.killed_after_grace), (137, Some(true)));
    world.finish().await;
}

#[tokio::test]
async fn what_cannot_run_says_why() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mut missing = world.config("missing", "");
    missing.command = vec!["no-such-program".into()];
    let mut volume = world.config("volume", "true");
    volume.mounts[0].host_path = "/proc/no/such".into();
    for (config, message) in [
        (
            missing,
            "exec: \"no-such-program\": executable file not found in $PATH",
        ),
        (
            volume,
            "cannot mount /proc/no/such: No such file or directory (os error 2)",
        ),
    ] {
        let id = world
            .runtime
            .create_container(&world.sandbox, &config)
            .await
            .expect("creates");
        match world.runtime.start_container(&id).await {
            Err(Error::CannotRun { message: told }) => assert_eq!(told, message),
            other => panic!("{other:?}"),
        }
        let exit = world.wait_for_exit(&id).await;
        assert_eq!((exit.code, exit.reason), (128, ExitCause::StartError));
    }
    let mut unknown = world.config("image", "true");
    unknown.image = "no/such:image".into();
    let refused = world.runtime.create_container(&world.sandbox, &unknown).await;
    assert!(matches!(refused, Err(Error::Image(_))), "{refused:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_container_that_was_never_started_leaves_nothing() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let config = world.config("main", "true");
    let id = world
        .runtime
        .create_container(&world.sandbox, &config)
        .await
        .expect("creates");
    assert_eq!(world.status(&id).await.state, ContainerState::Created);
    world.finish().await;
}

/// There is a shim for each container, and what it takes counts as often.
#[tokio::test]
async fn a_shim_gives_back_what_its_start_took_of_the_stack() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let shim = parent_of(&init_pid(&world.container_dir(&id)));
    let maps = std::fs::read_to_string(format!("/proc/{shim}/smaps")).expect("reads");
    let stack = maps.lines().skip_while(|line| !line.ends_with("[stack]"));
    let mut sizes = stack.filter_map(|line| {
        let size = line.strip_prefix("Size:").or_else(|| line.strip_prefix("Rss:"))?;
        size.split_whitespace().next()?.parse::<u64>().ok()
    });
    let (reserved, resident) = (sizes.next().expect("a size"), sizes.next().expect("a size"));
    assert!(resident * 3 < reserved, "{resident} of {reserved} KiB");
    world.finish().await;
}
