//! Stop signals, grace periods, and that nothing survives.

use std::time::{Duration, Instant};

use pulselet_runtime::{Runtime, Signal};

use crate::world::{FOREVER, World, wait_until_gone};

/// Runs a script that says when it is ready, stops it, and returns its code and whether SIGKILL was needed.
async fn stop(script: &str, signal: Option<&str>, grace: Duration) -> (i32, Option<bool>) {
    let world = World::new().await;
    let mut config = world.config(
        "main",
        &format!("{script}; echo yes > $T/ready; while :; do sleep 0.05; done"),
    );
    config.stop_signal = signal.map(|name| name.parse().expect("a signal"));
    let id = world.run_config(&config).await;
    assert_eq!(world.file("ready").await, "yes");
    let expected = config.stop_signal.unwrap_or(Signal::TERM);
    assert_eq!(world.status(&id).await.stop_signal, Some(expected));
    world.runtime.stop_container(&id, grace).await.expect("stops");
    let exit = world.wait_for_exit(&id).await;
    world.finish().await;
    (exit.code, exit.killed_after_grace)
}

#[tokio::test]
async fn a_handled_signal_ends_it_gracefully() {
    assert_eq!(stop("trap 'exit 7' TERM", None, FOREVER).await, (7, Some(false)));
}

#[tokio::test]
async fn an_unhandled_signal_is_its_exit_code() {
    assert_eq!(stop("true", None, FOREVER).await, (143, Some(false)));
}

#[tokio::test]
async fn the_signal_of_the_container_is_sent() {
    assert_eq!(
        stop("trap 'exit 5' USR1; trap '' TERM", Some("SIGUSR1"), FOREVER).await,
        (5, Some(false))
    );
}

#[tokio::test]
async fn a_real_time_signal_is_sent() {
    assert_eq!(
        stop("true", Some("SIGRTMIN+3"), FOREVER).await,
        (128 + 37, Some(false))
    );
    assert_eq!(
        stop("true", Some("SIGRTMAX"), FOREVER).await,
        (128 + 64, Some(false))
    );
}

#[tokio::test]
async fn an_ignored_signal_is_followed_by_sigkill_after_the_grace() {
    let grace = Duration::from_millis(400);
    let begin = Instant::now();
    assert_eq!(stop("trap '' TERM", None, grace).await, (137, Some(true)));
    assert!(begin.elapsed() >= grace);
}

#[tokio::test]
async fn grace_zero_is_sigkill_at_once_and_not_exceeded() {
    assert_eq!(
        stop("trap '' TERM", None, Duration::ZERO).await,
        (137, Some(false))
    );
}

#[tokio::test]
async fn sigkill_as_the_stop_signal_is_not_exceeded() {
    assert_eq!(
        stop("trap '' TERM", Some("SIGKILL"), FOREVER).await,
        (137, Some(false))
    );
}

#[tokio::test]
async fn a_stop_under_way_can_be_shortened_not_lengthened() {
    let world = World::new().await;
    let id = world
        .run("trap '' TERM; echo yes > $T/ready; while :; do sleep 0.05; done")
        .await;
    world.file("ready").await;
    let (runtime, first) = (world.runtime.clone(), id.clone());
    let first = tokio::spawn(async move { runtime.stop_container(&first, 60 * FOREVER).await });
    // The second may overtake the first; both orders must end soon.
    world
        .runtime
        .stop_container(&id, Duration::from_millis(300))
        .await
        .expect("stops");
    tokio::time::timeout(FOREVER, first)
        .await
        .expect("the first ends too")
        .expect("no panic")
        .expect("stops");
    let exit = world.wait_for_exit(&id).await;
    assert_eq!((exit.code, exit.killed_after_grace), (137, Some(true)));
    world.finish().await;
}

#[tokio::test]
async fn only_the_main_process_gets_the_stop_signal() {
    let world = World::new().await;
    let id = world
        .run("trap 'exit 0' TERM; sh -c 'trap \"echo told > $T/child\" TERM; echo yes > $T/ready; while :; do sleep 0.05; done' & wait")
        .await;
    world.file("ready").await;
    world.runtime.stop_container(&id, FOREVER).await.expect("stops");
    assert_eq!(world.wait_for_exit(&id).await.code, 0);
    assert!(!world.path("child").exists());
    world.finish().await;
}

/// A script whose grandchild has a session and a process group of its own and no parent but the subreaper, and the
/// grandchild's process id.
const ESCAPING: &str = "setsid sh -c 'setsid sleep 1000 & echo $! > $T/escaped' &";

#[tokio::test]
async fn an_escaped_descendant_dies_with_the_main_process() {
    let world = World::new().await;
    let id = world
        .run(&format!(
            "{ESCAPING} while [ ! -s $T/escaped ]; do sleep 0.01; done; exit 3"
        ))
        .await;
    assert_eq!(world.wait_for_exit(&id).await.code, 3);
    let escaped = world.file("escaped").await;
    assert!(
        !crate::world::is_alive(&escaped),
        "the exit is told when all are gone"
    );
    world.finish().await;
}

#[tokio::test]
async fn an_escaped_descendant_dies_in_a_kill() {
    let world = World::new().await;
    let id = world
        .run(&format!("{ESCAPING} while :; do sleep 0.05; done"))
        .await;
    let escaped = world.file("escaped").await;
    world
        .runtime
        .stop_container(&id, Duration::ZERO)
        .await
        .expect("stops");
    wait_until_gone(&escaped).await;
    world.finish().await;
}

#[tokio::test]
async fn a_container_that_keeps_forking_is_killed() {
    let world = World::new().await;
    let id = world
        .run("trap '' TERM; fork() { while :; do setsid sleep 1000 & sleep 0.002; done; }; fork & fork & echo yes > $T/ready; wait")
        .await;
    world.file("ready").await;
    world
        .runtime
        .stop_container(&id, Duration::from_millis(100))
        .await
        .expect("stops");
    assert_eq!(world.wait_for_exit(&id).await.code, 137);
    world.finish().await;
}
