//! A bus with nobody on it but logind, which does what a test says.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use zbus::connection::{Builder, Connection};
use zbus::{Fd, Guid, Message, Variant};

/// Far longer than anything here takes, also on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// logind's own name on the bus.
const LOGIND: &str = ":1.7";
/// What logind waits for at first.
const SHORT_DELAY: Duration = Duration::from_secs(5);

/// The end of a lock that logind keeps.
pub(crate) struct Lock(UnixStream);

impl Lock {
    pub(crate) fn is_held(&self) -> bool {
        self.0.set_nonblocking(true).expect("a socket");
        let read = (&self.0).read(&mut [0]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    pub(crate) async fn until_released(self) {
        self.0.set_nonblocking(true).expect("a socket");
        let stream = tokio::net::UnixStream::from_std(self.0).expect("a socket");
        let released = async {
            stream.readable().await.expect("a socket");
            assert_eq!(stream.try_read(&mut [0]).expect("an end"), 0);
        };
        tokio::time::timeout(PATIENCE, released)
            .await
            .expect("the lock is given back");
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    delay: Option<Duration>,
    is_preparing: bool,
    /// What was asked of it, in order.
    calls: Vec<String>,
}

/// The bus and its logind.
pub(crate) struct FakeLogind {
    listener: UnixListener,
    address: String,
    state: Arc<Mutex<State>>,
    locks: mpsc::UnboundedReceiver<Lock>,
    gives_locks: mpsc::UnboundedSender<Lock>,
    connection: Option<Connection>,
}

impl FakeLogind {
    pub(crate) fn new(directory: &Path) -> Self {
        let path = directory.join("bus");
        let (gives_locks, locks) = mpsc::unbounded_channel();
        Self {
            listener: UnixListener::bind(&path).expect("a socket"),
            address: format!("unix:path={}", path.display()),
            state: Arc::default(),
            locks,
            gives_locks,
            connection: None,
        }
    }

    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    /// A shutdown is under way before anybody asks.
    pub(crate) fn prepare(&self) {
        self.state.lock().expect("nobody panics").is_preparing = true;
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.state.lock().expect("nobody panics").calls.clone()
    }

    /// Waits for the next connection and answers what is asked over it. The one before it ends.
    pub(crate) async fn accept(&mut self) {
        if let Some(before) = self.connection.take() {
            before.close().await.expect("an end");
        }
        let accepted = tokio::time::timeout(PATIENCE, self.listener.accept()).await;
        let (stream, _) = accepted.expect("somebody connects").expect("a connection");
        let stream = stream.into_std().expect("a socket");
        let server = Builder::unix_stream(stream).server(Guid::generate()).p2p();
        let mut calls = server.build_message_stream().await.expect("a bus");
        let connection = Connection::from(&calls);
        let (state, locks) = (Arc::clone(&self.state), self.gives_locks.clone());
        let replies = connection.clone();
        tokio::spawn(async move {
            while let Some(Ok(call)) = calls.next().await {
                answer(&replies, &call, &state, &locks).await;
            }
        });
        self.connection = Some(connection);
    }

    /// The lock that is asked for next.
    pub(crate) async fn lock(&mut self) -> Lock {
        let asked = tokio::time::timeout(PATIENCE, self.locks.recv()).await;
        asked.expect("a lock is asked for").expect("somebody answers")
    }

    /// Says that a shutdown begins or is cancelled.
    pub(crate) async fn signal(&self, begins: bool) {
        self.signal_from(LOGIND, begins).await;
    }

    pub(crate) async fn signal_from(&self, sender: &str, begins: bool) {
        let signal = Message::signal(
            "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager",
            "PrepareForShutdown",
        );
        let signal = signal.sender(sender).build(&begins).expect("a signal");
        let connection = self.connection.as_ref().expect("a connection");
        connection.send(&signal).await.expect("it is sent");
    }
}

pub(crate) async fn answer(
    bus: &Connection,
    call: &Message,
    state: &Mutex<State>,
    locks: &mpsc::UnboundedSender<Lock>,
) {
    let header = call.header();
    let member = header.member().map(ToString::to_string).unwrap_or_default();
    state.lock().expect("nobody panics").calls.push(member.clone());
    let sent = match member.as_str() {
        "Hello" => bus.reply(&header, &":1.1").await,
        "GetNameOwner" => bus.reply(&header, &LOGIND).await,
        "Get" => {
            let body = call.body();
            let (_, property): (&str, &str) = body.deserialize().expect("a property");
            let value = property_of(&state.lock().expect("nobody panics"), property);
            bus.reply(&header, &value).await
        }
        "Inhibit" => {
            let body = call.body();
            let (what, _, _, mode): (&str, &str, &str, &str) = body.deserialize().expect("a lock");
            assert_eq!((what, mode), ("shutdown", "delay"));
            let (ours, theirs) = UnixStream::pair().expect("sockets");
            let sent = bus.reply(&header, &Fd::from(theirs.as_fd())).await;
            drop(theirs);
            locks.send(Lock(ours)).expect("the test waits for locks");
            sent
        }
        "KillUnit" => {
            state.lock().expect("nobody panics").delay = Some(Duration::from_hours(1));
            bus.reply(&header, &()).await
        }
        _ => bus.reply(&header, &()).await,
    };
    // A client that has left needs no answer.
    let _ = sent;
}

fn property_of(state: &State, name: &str) -> Variant<'static> {
    match name {
        "InhibitDelayMaxUSec" => {
            let delay = state.delay.unwrap_or(SHORT_DELAY);
            Variant::U64(u64::try_from(delay.as_micros()).expect("not that long"))
        }
        "PreparingForShutdown" => Variant::Bool(state.is_preparing),
        other => panic!("nobody asks for {other}"),
    }
}
