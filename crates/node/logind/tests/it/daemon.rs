//! The same over a real bus: a daemon of the test's own, on which the test is logind.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use pulselet_testing::requires;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use zbus::MessageStream;
use zbus::connection::{Builder, Connection};

use crate::bus::{Lock, PATIENCE, State, answer};
use crate::shutdown::World;

/// A bus that everybody may use for everything. It ends with this.
struct Daemon {
    address: String,
    _process: Child,
}

impl Daemon {
    /// `None` if the machine has no such program.
    async fn start(directory: &Path) -> Option<Self> {
        let config = directory.join("bus.conf");
        let text = format!(
            "<busconfig><listen>unix:path={}</listen><auth>EXTERNAL</auth><policy context=\"default\">\
             <allow user=\"*\"/><allow own=\"*\"/><allow send_destination=\"*\" eavesdrop=\"true\"/>\
             <allow eavesdrop=\"true\"/></policy></busconfig>",
            directory.join("daemon").display()
        );
        std::fs::write(&config, text).expect("a file");
        let started = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--print-address"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        if !requires("Debian's dbus-daemon", started.is_ok()) {
            return None;
        }
        let mut process = started.expect("it was looked at");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let address = lines.next_line().await.expect("a line").expect("an address");
        Some(Self {
            address,
            _process: process,
        })
    }

    fn connect(&self) -> Builder<'static> {
        Builder::address(self.address.as_str())
    }
}

/// Answers as logind and as the service manager do.
async fn serve(daemon: &Daemon) -> (Connection, mpsc::UnboundedReceiver<Lock>) {
    let logind = daemon.connect().name("org.freedesktop.login1").build();
    let logind = logind.await.expect("a connection");
    let systemd = daemon.connect().name("org.freedesktop.systemd1").build();
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
    let Some(daemon) = Daemon::start(world.directory.path()).await else {
        return;
    };
    let serving = tokio::time::timeout(PATIENCE, serve(&daemon)).await;
    let (logind, mut locks) = serving.expect("the bus answers");
    let mut lock = async || {
        let asked = tokio::time::timeout(PATIENCE, locks.recv()).await;
        asked.expect("a lock is asked for").expect("somebody answers")
    };
    world.watch_on(daemon.address.clone());
    let first = lock().await;
    let stranger = daemon.connect().build().await.expect("a connection");
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
