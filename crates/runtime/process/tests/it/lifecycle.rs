//! Creating, starting, ending, listing, removing.

use std::time::Duration;

use pulselet_runtime::{
    ContainerFilter, ContainerState, EnvVar, Error, EventKind, ExitCause, Mount, Propagation, Runtime,
    RuntimeEvent, SandboxConfig, SandboxId, SandboxState,
};

use crate::world::{FOREVER, World, eventually, init_pid, parent_of};

#[tokio::test]
async fn exit_codes_and_reasons() {
    let world = World::new().await;
    for (name, script, code, reason) in [
        ("ok", "exit 0", 0, ExitCause::Completed),
        ("three", "exit 3", 3, ExitCause::Error),
        ("killed", "kill -9 $$", 137, ExitCause::Error),
        ("usr1", "kill -USR1 $$", 138, ExitCause::Error),
    ] {
        let id = world.run_config(&world.config(name, script)).await;
        let exit = world.wait_for_exit(&id).await;
        assert_eq!((exit.code, &exit.reason), (code, &reason), "{script}");
        assert_eq!(exit.killed_after_grace, Some(false), "{script}");
        let started = exit.started_at.expect("it ran");
        assert!(world.status(&id).await.created_at <= started && started <= exit.finished_at);
    }
    world.finish().await;
}

/// The last argument of a process, as `ps` shows it.
fn last_argument(pid: &str) -> String {
    let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("is there");
    let arguments = arguments.strip_suffix('\0').expect("every argument has an end");
    arguments.rsplit('\0').next().expect("some argument").to_owned()
}

#[tokio::test]
async fn a_shim_says_whose_it_is() {
    let world = World::new().await;
    for name in ["one", "two"] {
        let id = world.run_config(&world.config(name, "exec sleep 1000")).await;
        let shim = parent_of(&init_pid(&world.container_dir(&id)));
        assert_eq!(
            last_argument(&shim),
            world.container_dir(&id).display().to_string()
        );
    }
    world.finish().await;
}

/// What shims are copies of is needed by none of them, and replaced for the next.
#[tokio::test]
async fn containers_outlive_the_process_that_started_their_shims() {
    let world = World::new().await;
    let first = world.run_config(&world.config("first", "exec sleep 1000")).await;
    let starter = parent_of(&parent_of(&init_pid(&world.container_dir(&first))));
    assert_eq!(parent_of(&starter), std::process::id().to_string());
    let pid = starter
        .parse()
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("is there");
    eventually("the starter is gone", async || {
        let parent = parent_of(&parent_of(&init_pid(&world.container_dir(&first))));
        (parent != starter).then_some(())
    })
    .await;
    let second = world.run_config(&world.config("second", "exec sleep 1000")).await;
    for id in [&first, &second] {
        let state = world.status(id).await.state;
        assert!(matches!(state, ContainerState::Running { .. }), "{state:?}");
    }
    world.finish().await;
}

#[tokio::test]
async fn every_change_is_an_event() {
    let world = World::new().await;
    let mut events = world.runtime.events();
    let id = world.run("exit 4").await;
    world.wait_for_exit(&id).await;
    world.runtime.remove_container(&id).await.expect("removes");
    for expected in [
        EventKind::Created,
        EventKind::Started,
        EventKind::Stopped,
        EventKind::Deleted,
    ] {
        let next = tokio::time::timeout(FOREVER, events.next())
            .await
            .expect("in time");
        let Some(RuntimeEvent::Container(event)) = next else {
            panic!("not a container's event: {next:?}")
        };
        assert_eq!((event.container, event.kind), (id.clone(), expected));
        let state = event.status.map(|status| status.state);
        match expected {
            EventKind::Created => assert_eq!(state, Some(ContainerState::Created)),
            EventKind::Started => assert!(state.is_some()),
            EventKind::Stopped => {
                assert!(matches!(state, Some(ContainerState::Exited(exit)) if exit.code == 4));
            }
            EventKind::Deleted => assert_eq!(state, None),
        }
    }
    world.finish().await;
}

#[tokio::test]
async fn what_cannot_be_run_says_why_and_counts_as_exited() {
    let world = World::new().await;
    let mut missing = world.config("missing", "");
    missing.command = vec!["no-such-program".into()];
    let mut lost = world.config("lost", "true");
    lost.working_dir = Some("/no/such/directory".into());
    let mut plain = world.config("plain", "");
    plain.command = vec!["/etc/passwd".into()];
    for (config, message) in [
        (
            missing,
            r#"exec: "no-such-program": executable file not found in $PATH"#,
        ),
        (
            lost,
            r#"working directory "/no/such/directory": no such file or directory"#,
        ),
        (plain, r#"exec: "/etc/passwd": permission denied"#),
    ] {
        let id = world.create(&config).await;
        let error = world
            .runtime
            .start_container(&id)
            .await
            .expect_err("it cannot be run");
        assert!(matches!(error, Error::CannotRun { .. }), "{error:?}");
        assert_eq!(error.to_string(), message);
        let exit = world.wait_for_exit(&id).await;
        assert_eq!(
            (exit.code, exit.reason, exit.message.as_str()),
            (128, ExitCause::StartError, message)
        );
    }
    world.finish().await;
}

#[tokio::test]
async fn variables_directory_and_volumes_reach_the_process() {
    let world = World::new().await;
    let volume = world.path("volume");
    std::fs::create_dir(&volume).expect("makes");
    let mut config = world.config(
        "main",
        "echo \"$A $PWD $HOSTNAME\" > $T/seen; echo from-container > \"$PULSELET_VOLUME_MY_DATA/file\"; exec sleep 1000",
    );
    config.working_dir = Some("/usr".into());
    config.env.push(EnvVar {
        name: "A".into(),
        value: "b  c".into(),
    });
    config.mounts.push(Mount {
        volume: "my-data".into(),
        container_path: "/data".into(),
        host_path: volume.clone(),
        image: None,
        sub_path: None,
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
    });
    world.run_config(&config).await;
    assert_eq!(world.file("seen").await, "b  c /usr pod");
    assert_eq!(world.file("volume/file").await, "from-container");
    let link = world
        .path("root/sandboxes")
        .join(world.sandbox.as_str())
        .join("volumes/my-data");
    assert_eq!(std::fs::read_link(link).expect("a link"), volume);
    world.finish().await;
}

#[tokio::test]
async fn a_user_can_be_given() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "this test needs root");
        return;
    }
    let world = World::new().await;
    let mut config = world.config("main", "exec sleep 1000");
    config.security.run_as_user = Some(1234);
    config.security.run_as_group = Some(1235);
    config.security.supplemental_groups = vec![1236];
    let id = world.run_config(&config).await;
    let (_, output) = world.exec(&id, "echo $(id -u) $(id -G)").await;
    assert_eq!(output.trim(), "1234 1235 1236");
    let user = world.status(&id).await.user.expect("it runs");
    assert_eq!((user.uid, user.gid), (1234, 1235));
    assert_eq!(user.supplemental_groups, [1236]);
    let own = world.run_config(&world.config("own", "exec sleep 1000")).await;
    let user = world.status(&own).await.user.expect("it runs");
    assert_eq!((user.uid, user.gid), (0, rustix::process::getegid().as_raw()));
    world.finish().await;
}

#[tokio::test]
async fn the_agents_groups_are_not_inherited_and_no_privileges_are_gained() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "this test needs root");
        return;
    }
    let world = World::new().await;
    let mut config = world.config("main", "exec sleep 1000");
    config.security.strict_groups = true;
    config.security.no_new_privs = true;
    let id = world.run_config(&config).await;
    let script = "echo $(grep -E '^(Groups|NoNewPrivs)' /proc/self/status)";
    let (_, output) = world.exec(&id, script).await;
    assert_eq!(output.trim(), "Groups: NoNewPrivs: 1");
    world.finish().await;
}

#[tokio::test]
async fn wrong_requests_are_refused_and_change_nothing() {
    let world = World::new().await;
    let config = world.config("main", "exec sleep 1000");
    let id = world.run_config(&config).await;
    let again = world.runtime.start_container(&id).await;
    assert!(
        matches!(again, Err(Error::WrongState { state: "running", .. })),
        "{again:?}"
    );
    let twin = world.runtime.create_container(&world.sandbox, &config).await;
    assert!(
        matches!(&twin, Err(Error::AlreadyExists { id: other, .. }) if other == id.as_str()),
        "{twin:?}"
    );
    let nowhere = world
        .runtime
        .create_container(&SandboxId::new("none"), &config)
        .await;
    assert!(nowhere.as_ref().is_err_and(Error::is_not_found), "{nowhere:?}");
    let mut empty = config.clone();
    empty.command.clear();
    empty.attempt = 1;
    let refused = world.runtime.create_container(&world.sandbox, &empty).await;
    assert!(
        matches!(refused, Err(Error::Invalid { field: "command", .. })),
        "{refused:?}"
    );
    let listed = world
        .runtime
        .list_containers(&ContainerFilter::default())
        .await
        .expect("lists");
    assert_eq!(listed.len(), 1);
    assert!(matches!(listed[0].state, ContainerState::Running { .. }));
    world.finish().await;
}

#[tokio::test]
async fn what_is_gone_can_be_stopped_and_removed_but_not_asked_about() {
    let world = World::new().await;
    let id = world.run("exit 0").await;
    world.wait_for_exit(&id).await;
    world
        .runtime
        .stop_container(&id, Duration::ZERO)
        .await
        .expect("stopping an exited one is fine");
    for _ in 0..2 {
        world.runtime.remove_container(&id).await.expect("removes");
    }
    world
        .runtime
        .stop_container(&id, Duration::ZERO)
        .await
        .expect("stopping a removed one is fine");
    assert!(
        world
            .runtime
            .container_status(&id)
            .await
            .is_err_and(|error| error.is_not_found())
    );
    let nowhere = SandboxId::new("none");
    world.runtime.stop_sandbox(&nowhere).await.expect("fine");
    world.runtime.remove_sandbox(&nowhere).await.expect("fine");
    assert!(
        world
            .runtime
            .sandbox_status(&nowhere)
            .await
            .is_err_and(|error| error.is_not_found())
    );
    world.finish().await;
}

#[tokio::test]
async fn a_stopped_sandbox_takes_no_more_containers() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let status = world
        .runtime
        .sandbox_status(&world.sandbox)
        .await
        .expect("is there");
    assert_eq!(
        (status.state, status.addresses[0].to_string()),
        (SandboxState::Ready, "127.0.0.1".into())
    );
    let twin = SandboxConfig {
        pod: status.pod.clone(),
        ..Default::default()
    };
    assert!(matches!(
        world.runtime.run_sandbox(&twin).await,
        Err(Error::AlreadyExists { .. })
    ));
    world.runtime.stop_sandbox(&world.sandbox).await.expect("stops");
    assert_eq!(world.wait_for_exit(&id).await.code, 137);
    let status = world
        .runtime
        .sandbox_status(&world.sandbox)
        .await
        .expect("is there");
    assert_eq!(status.state, SandboxState::NotReady);
    let late = world
        .runtime
        .create_container(&world.sandbox, &world.config("late", "true"))
        .await;
    assert!(matches!(late, Err(Error::WrongState { .. })), "{late:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_container_that_never_ran_can_be_stopped() {
    let world = World::new().await;
    let id = world.create(&world.config("main", "true")).await;
    assert_eq!(world.status(&id).await.state, ContainerState::Created);
    world.runtime.stop_container(&id, FOREVER).await.expect("stops");
    let exit = world.wait_for_exit(&id).await;
    assert_eq!((exit.code, exit.started_at), (137, None));
    let late = world.runtime.start_container(&id).await;
    assert!(
        matches!(late, Err(Error::WrongState { state: "exited", .. })),
        "{late:?}"
    );
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_at_once() {
    let world = World::new().await;
    let mut starting = tokio::task::JoinSet::new();
    for number in 0..100 {
        let config = world.config(&format!("c{number}"), "exec sleep 1000");
        let (runtime, sandbox) = (world.runtime.clone(), world.sandbox.clone());
        starting.spawn(async move {
            let id = runtime
                .create_container(&sandbox, &config)
                .await
                .expect("creates");
            runtime.start_container(&id).await.expect("starts");
            id
        });
    }
    let ids = starting.join_all().await;
    let listed = world
        .runtime
        .list_containers(&ContainerFilter::default())
        .await
        .expect("lists");
    let running = listed
        .iter()
        .filter(|status| matches!(status.state, ContainerState::Running { .. }))
        .count();
    assert_eq!(running, 100);
    let mut stopping = tokio::task::JoinSet::new();
    for id in ids {
        let runtime = world.runtime.clone();
        stopping.spawn(async move {
            runtime.stop_container(&id, FOREVER).await.expect("stops");
            runtime.container_status(&id).await.expect("is there").state
        });
    }
    for state in stopping.join_all().await {
        assert!(
            matches!(&state, ContainerState::Exited(exit) if exit.code == 143),
            "{state:?}"
        );
    }
    world.finish().await;
}
