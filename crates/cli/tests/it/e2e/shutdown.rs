//! The machine goes down: its logind is the test, on a bus of the test's own.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use futures_util::StreamExt as _;
use pulselet_testing::message_bus::MessageBus;
use serde_json::{Value, json};
use tokio::runtime::Runtime as Executor;
use zbus::connection::{Builder, Connection};
use zbus::{Fd, Message, MessageStream, Variant};

use super::harness::{Agent, in_order};
use super::world::{World, e2e};

/// Far longer than anything here takes, also on a loaded machine.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long logind waits for locks, in microseconds: nobody has to change its settings.
const LONGEST_DELAY: u64 = 3_600_000_000;

/// Somebody who is logind on a bus.
struct Logind {
    executor: Executor,
    connection: Connection,
    locks: mpsc::Receiver<UnixStream>,
}

impl Logind {
    fn new(bus: &MessageBus) -> Self {
        let executor = Executor::new().unwrap();
        let connecting = Builder::address(bus.address())
            .name("org.freedesktop.login1")
            .build();
        let connection = executor.block_on(connecting).unwrap();
        let (gives_locks, locks) = mpsc::channel();
        let service = connection.clone();
        executor.spawn(async move {
            let mut calls = MessageStream::from(&service);
            while let Some(Ok(call)) = calls.next().await {
                answer(&service, &call, &gives_locks).await;
            }
        });
        Self {
            executor,
            connection,
            locks,
        }
    }

    fn lock(&self) -> UnixStream {
        let lock = self.locks.recv_timeout(PATIENCE).expect("a lock is asked for");
        lock.set_read_timeout(Some(PATIENCE)).unwrap();
        lock
    }

    fn begin_shutdown(&self) {
        let sent = self.connection.emit_signal(
            None::<&str>,
            "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager",
            "PrepareForShutdown",
            &true,
        );
        self.executor.block_on(sent).unwrap();
    }
}

async fn answer(bus: &Connection, call: &Message, locks: &mpsc::Sender<UnixStream>) {
    let header = call.header();
    let member = header.member().map(ToString::to_string).unwrap_or_default();
    let body = call.body();
    let answered = match member.as_str() {
        "Get" => {
            let (_, property): (&str, &str) = body.deserialize().unwrap();
            let value = match property {
                "InhibitDelayMaxUSec" => Variant::U64(LONGEST_DELAY),
                _ => Variant::Bool(false),
            };
            bus.reply(&header, &value).await
        }
        "Inhibit" => {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let answered = bus.reply(&header, &Fd::from(theirs.as_fd())).await;
            locks.send(ours).unwrap();
            answered
        }
        _ => return,
    };
    answered.unwrap();
}

fn run(world: &World, bus: &MessageBus, app: &Value) -> Agent {
    let spec = json!({"containers": [app], "terminationGracePeriodSeconds": 20});
    let config = world.config("shutdownGracePeriod: 30s\n");
    let mut command = world.run_command(&[world.manifest("web", &spec)]);
    command.args(["-o", "json", "--config", &config]);
    command.env("DBUS_SYSTEM_BUS_ADDRESS", bus.address());
    Agent::start(command)
}

e2e!(
    a_machine_that_goes_down_waits_for_its_pods,
    [Process, Oci],
    |world| {
        let Some(bus) = MessageBus::start(&world.path("")) else {
            return;
        };
        let logind = Logind::new(&bus);
        // Before it listens it may not take signals either.
        let app = world.ready_demo("app", &[]);
        let mut agent = run(world, &bus, &app);
        let mut lock = logind.lock();
        agent.until_is("app", "ready");
        logind.begin_shutdown();
        agent.until_is("app", "exited:0");
        assert_eq!(lock.read(&mut [0]).expect("the lock is given back"), 0);
        let ended = agent.kill();
        in_order(
            &ended.seen,
            &[
                ("app", "killing:nodeShutdown"),
                ("app", "signal:SIGTERM"),
                ("app", "exited:0"),
            ],
        );
        // What belongs to the machine begins anew when an agent is there again.
        let mut agent = run(world, &bus, &app);
        agent.until_is("app", "running:1");
        agent.until_is("app", "ready");
        agent.interrupt();
    }
);
