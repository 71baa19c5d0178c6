//! The fake keeps the promises of the real runtimes.

use std::time::Duration;

use pulselet_runtime::{
    ContainerConfig, ContainerExit, ContainerFilter, ContainerId, ContainerState, Error, EventKind,
    ExecOutcome, ExecRequest, Runtime, RuntimeEvent, SandboxConfig, SandboxId,
};
use pulselet_runtime_fake::{ExecAnswer, FakeRuntime, LifeScript, RuntimeFaults, StartScript};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

async fn sandbox(runtime: &FakeRuntime) -> SandboxId {
    runtime
        .run_sandbox(&SandboxConfig::default())
        .await
        .expect("a sandbox")
}

/// Runs a container of this script.
async fn run(runtime: &FakeRuntime, script: LifeScript) -> ContainerId {
    let sandbox = sandbox(runtime).await;
    runtime.script("main", [script]);
    let config = ContainerConfig {
        name: "main".into(),
        ..ContainerConfig::default()
    };
    let id = runtime
        .create_container(&sandbox, &config)
        .await
        .expect("creates");
    runtime.start_container(&id).await.expect("starts");
    id
}

async fn exit_of(runtime: &FakeRuntime, id: &ContainerId) -> ContainerExit {
    let mut events = runtime.events();
    loop {
        if let ContainerState::Exited(exit) = runtime.container_status(id).await.expect("is there").state {
            return exit;
        }
        events.next().await.expect("the runtime is there");
    }
}

#[tokio::test(start_paused = true)]
async fn a_life_ends_as_scripted_and_the_next_follows_its_own_script() {
    let runtime = FakeRuntime::new(RuntimeFaults::default());
    let sandbox = sandbox(&runtime).await;
    runtime.script(
        "main",
        [LifeScript::exiting(5 * SECOND, 3), LifeScript::exiting(SECOND, 0)],
    );
    for (attempt, code, age) in [(0, 3, 5), (1, 0, 1), (2, 0, 1)] {
        let config = ContainerConfig {
            name: "main".into(),
            attempt,
            ..ContainerConfig::default()
        };
        let id = runtime
            .create_container(&sandbox, &config)
            .await
            .expect("creates");
        let begin = Instant::now();
        runtime.start_container(&id).await.expect("starts");
        let exit = exit_of(&runtime, &id).await;
        assert_eq!((exit.code, begin.elapsed().as_secs()), (code, age));
        let lived = exit.finished_at.duration_since(exit.started_at.expect("it ran"));
        assert_eq!(lived.as_secs(), i64::try_from(age).expect("small"));
    }
}

#[tokio::test(start_paused = true)]
async fn events_come_in_order() {
    let runtime = FakeRuntime::new(RuntimeFaults::default());
    let mut events = runtime.events();
    let id = run(&runtime, LifeScript::exiting(SECOND, 1)).await;
    exit_of(&runtime, &id).await;
    runtime.remove_container(&id).await.expect("removes");
    for kind in [
        EventKind::Created,
        EventKind::Started,
        EventKind::Stopped,
        EventKind::Deleted,
    ] {
        let event = events.next().await;
        assert!(
            matches!(&event, Some(RuntimeEvent::Container(event)) if event.kind == kind),
            "{event:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_can_be_shortened() {
    let runtime = FakeRuntime::new(RuntimeFaults::default());
    let id = run(&runtime, LifeScript::stubborn()).await;
    let begin = Instant::now();
    let (first, second) = tokio::join!(runtime.stop_container(&id, 3600 * SECOND), async {
        tokio::time::sleep(2 * SECOND).await;
        runtime.stop_container(&id, 3 * SECOND).await
    });
    first.and(second).expect("both end");
    assert_eq!(begin.elapsed(), 5 * SECOND);
    let exit = exit_of(&runtime, &id).await;
    assert_eq!((exit.code, exit.killed_after_grace), (137, Some(true)));
}

#[tokio::test(start_paused = true)]
async fn commands_answer_by_age_and_time_out() {
    let runtime = FakeRuntime::new(RuntimeFaults::default());
    let exec = vec![
        (SECOND, ExecAnswer::Exits(1, b"sick".to_vec())),
        (2 * SECOND, ExecAnswer::Hangs),
        (20 * SECOND, ExecAnswer::CannotRun("gone".into())),
    ];
    let id = run(
        &runtime,
        LifeScript {
            exec,
            ..LifeScript::default()
        },
    )
    .await;
    let request = ExecRequest {
        command: vec!["x".into()],
        timeout: Some(10 * SECOND),
        output_limit: 2,
    };
    let ask = async || runtime.exec_sync(&id, &request).await;
    assert_eq!(ask().await.expect("runs").outcome, ExecOutcome::Exited(0));
    tokio::time::sleep(SECOND).await;
    let sick = ask().await.expect("runs");
    assert_eq!(
        (sick.outcome, sick.output.as_slice(), sick.truncated),
        (ExecOutcome::Exited(1), &b"si"[..], true)
    );
    tokio::time::sleep(SECOND).await;
    let begin = Instant::now();
    assert_eq!(ask().await.expect("runs").outcome, ExecOutcome::TimedOut);
    assert_eq!(begin.elapsed(), 10 * SECOND);
    let (dying, ()) = tokio::join!(ask(), async { runtime.exit(&id, 9) });
    assert!(
        matches!(dying, Err(Error::WrongState { state: "exited", .. })),
        "{dying:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_cannot_start_has_exited() {
    let runtime = FakeRuntime::new(RuntimeFaults::default());
    let sandbox = sandbox(&runtime).await;
    let script = LifeScript {
        start: StartScript::CannotRun("no such program".into()),
        ..LifeScript::default()
    };
    runtime.script("main", [script]);
    let config = ContainerConfig {
        name: "main".into(),
        ..ContainerConfig::default()
    };
    let id = runtime
        .create_container(&sandbox, &config)
        .await
        .expect("creates");
    assert!(matches!(
        runtime.start_container(&id).await,
        Err(Error::CannotRun { .. })
    ));
    assert_eq!(exit_of(&runtime, &id).await.code, 128);
    assert!(matches!(
        runtime.create_container(&sandbox, &config).await,
        Err(Error::AlreadyExists { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn faults_strike_before_or_after_the_work_and_trying_again_helps() {
    let faults = RuntimeFaults {
        seed: 11,
        fails: 0.3,
        loses_answer: 0.3,
        slowness: SECOND,
        ..RuntimeFaults::default()
    };
    let runtime = FakeRuntime::new(faults);
    let config = SandboxConfig::default();
    let (mut failed, mut lost) = (0, 0);
    for attempt in 0..50 {
        let config = SandboxConfig {
            attempt,
            ..config.clone()
        };
        loop {
            match runtime.run_sandbox(&config).await {
                Ok(_) => break,
                Err(Error::Unavailable { .. }) => failed += 1,
                // It had been done, and only the answer was lost.
                Err(Error::AlreadyExists { .. }) => {
                    lost += 1;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(failed > lost && lost > 0, "{failed} {lost}");
    runtime.set_faults(RuntimeFaults::default());
    assert_eq!(
        runtime.list_sandboxes().await.expect("lists").len(),
        50,
        "each was made once"
    );
}

#[tokio::test(start_paused = true)]
async fn lost_events_become_a_resync() {
    let faults = RuntimeFaults {
        loses_event: 1.0,
        resync_after: 3 * SECOND,
        ..RuntimeFaults::default()
    };
    let runtime = FakeRuntime::new(faults);
    let mut events = runtime.events();
    let begin = Instant::now();
    run(&runtime, LifeScript::default()).await;
    assert!(matches!(events.next().await, Some(RuntimeEvent::Resync)));
    assert_eq!(begin.elapsed(), 3 * SECOND);
    assert_eq!(
        runtime
            .list_containers(&ContainerFilter::default())
            .await
            .expect("lists")
            .len(),
        1
    );
}
