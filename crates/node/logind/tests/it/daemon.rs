//! The same over a real bus: a daemon of the test's own, on which the test is logind.

use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use pulselet_testing::message_bus::MessageBus;
use tokio::sync::mpsc;
use zbus::MessageStream;
use zbus::connection::{Builder, Connection};

use crate::bus::{Lock, PATIENCE, State, answer};
use crate::shutdown::World;

fn connect(bus: &MessageBus) -> Builder<'static> {
    Builder::address(bus.address())
}

/// Answers as logind and as the service manager do.
async fn serve(bus: &MessageBus) -> (Connection, mpsc::UnboundedReceiver<Lock>) {
    let logind = connect(bus).name("org.freedesktop.login1").build();
    let logind = logind.await.expect("a connection");
    let systemd = connect(bus).name("org.freedesktop.systemd1").build();
    let systemd = systemd.await.expect("a connection");
    let (gives_locks, locks) = mpsc::unbounded_channel();
    let state: Arc<Mutex<State>> = Arc::default();
    for service in [logind.clone(), systemd] {
        let (locks, state) = (gives_locks.clone(), Arc::clone(&state));
        let mut calls = MessageStream::from(&service);
        tokio::spawn(async move {
            while let Some(Ok(call)) = calls.next().await {
                if call.message_type() == zbus::message::Type::MethodCall {
                    answer(&service, &call, &state, &locks).await;
                }
            }
        });
    }
    (logind, locks)
}

async fn signal(connection: &Connection, begins: bool) {
    let sent = connection.emit_signal(
        None::<&str>,
        "/org/freedesktop/login1",
        "org.freedesktop.login1.Manager",
        "PrepareForShutdown",
        &begins,
    );
    sent.await.expect("it is sent");
}

#[tokio::test]
async fn a_shutdown_is_held_up_over_a_real_bus() {
    let world = World::new().await;
    let Some(bus) = MessageBus::start(world.directory.path()) else {
        return;
    };
    let serving = tokio::time::timeout(PATIENCE, serve(&bus)).await;
    let (logind, mut locks) = serving.expect("the bus answers");
    let mut lock = async || {
        let asked = tokio::time::timeout(PATIENCE, locks.recv()).await;
        asked.expect("a lock is asked for").expect("somebody answers")
    };
    world.watch_on(bus.address().to_owned());
    let first = lock().await;
    let stranger = connect(&bus).build().await.expect("a connection");
    signal(&stranger, true).await;
    signal(&logind, false).await;
    let second = lock().await;
    first.until_released().await;
    assert!(second.is_held());
    signal(&logind, true).await;
    second.until_released().await;
    world
        .until("web", "it has failed", |phase, reason| {
            (phase, reason) == ("Failed", "Terminated")
        })
        .await;
}
