//! An agent that is killed at any instant leaves what the next one can clean.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use pulselet_runtime::{ContainerFilter, ContainerState, Runtime};

use crate::world::{World, can_run, eventually};

/// Times the agent is killed, each at another instant of its work.
const KILLS: u64 = 25;

/// A file by which it says that it has begun.
const BEGUN: &str = "begun";

/// Set for the process that plays the agent.
const HOME_VARIABLE: &str = "PULSELET_TEST_HOME";

/// Not a test of its own: what the agent does until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn churn() {
    let Some(home) = std::env::var_os(HOME_VARIABLE) else {
        return;
    };
    let runtime = crate::world::open(home.as_ref()).await;
    std::fs::write(Path::new(&home).join(BEGUN), "").expect("writes");
    for number in 0.. {
        let config = crate::world::on_bridge();
        let config = pulselet_runtime::SandboxConfig {
            pod: crate::world::identity(&format!("churn-{number}")),
            ..config
        };
        let sandbox = runtime.run_sandbox(&config).await.expect("runs");
        let container = crate::world::shell_container(home.as_ref(), "main", "exec sleep 1000");
        let id = runtime
            .create_container(&sandbox, &container)
            .await
            .expect("creates");
        runtime.start_container(&id).await.expect("starts");
        runtime.stop_container(&id, Duration::ZERO).await.expect("stops");
        runtime.remove_sandbox(&sandbox).await.expect("removes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_at_any_instant_leaves_what_the_next_can_clean() {
    if !can_run() {
        return;
    }
    let mut world = World::without_sandbox().await;
    let mut found = 0;
    for kill in 0..KILLS {
        let agentless = world.leave();
        let mut agent = Command::new(std::env::current_exe().expect("is known"))
            .args(["--exact", "crash::churn"])
            .env(HOME_VARIABLE, agentless.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the agent runs");
        let begun = agentless.path().join(BEGUN);
        eventually("the agent works", async || std::fs::remove_file(&begun).ok()).await;
        // Not a multiple of anything the agent does; the instants spread over its work.
        tokio::time::sleep(Duration::from_micros(7_300 * kill)).await;
        agent.kill().expect("kills");
        assert_eq!(
            agent.wait().expect("waits").code(),
            None,
            "it worked until it was killed"
        );
        world = agentless.come_back().await;
        let containers = world.runtime.list_containers(&ContainerFilter::default()).await;
        for container in containers.expect("lists") {
            assert_ne!(container.state, ContainerState::Unknown, "{}", container.id);
        }
        let sandboxes = world.runtime.list_sandboxes().await.expect("lists");
        found += sandboxes.len();
        for sandbox in sandboxes {
            world.runtime.remove_sandbox(&sandbox.id).await.expect("removes");
        }
        eventually("nothing is left", async || {
            world.traces().is_empty().then_some(())
        })
        .await;
    }
    assert!(found > 0, "no kill met the agent at work");
    world.finish().await;
}
