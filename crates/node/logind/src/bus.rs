//! logind's part of the system bus: what is asked of it, and what it says.

use std::os::fd::OwnedFd;
use std::time::Duration;

use futures_util::StreamExt as _;
use zbus::connection::{Builder, Connection};
use zbus::names::OwnedUniqueName;
use zbus::wire::DynamicDeserialize;
use zbus::{MatchRule, Message, MessageStream, OwnedVariant, Variant};

/// How long a call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

const SERVICE: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const INTERFACE: &str = "org.freedesktop.login1.Manager";
const PREPARE: &str = "PrepareForShutdown";
const BUS: &str = "org.freedesktop.DBus";

/// Why logind cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    #[error("cannot connect to the system bus: {0}")]
    Connect(zbus::Error),
    #[error("cannot ask logind ({what}): {source}")]
    Call { what: &'static str, source: zbus::Error },
    #[error("logind's answer cannot be read ({what}): {source}")]
    Decode { what: &'static str, source: zbus::Error },
    #[error("logind's {what} is of another kind than it should be")]
    Kind { what: &'static str },
    #[error("the bus breaks off: {0}")]
    Read(zbus::Error),
    #[error("the node has ended")]
    NodeGone,
}

/// Whether a shutdown begins (true) or was cancelled (false), as logind says it.
pub(crate) type Preparations = futures_util::stream::BoxStream<'static, Result<bool, LogindError>>;

/// A connection to logind.
#[derive(Debug)]
pub(crate) struct Logind {
    connection: Connection,
}

impl Logind {
    pub(crate) async fn connect(address: Option<&str>) -> Result<Self, LogindError> {
        let builder = address.map_or_else(Builder::system, Builder::address);
        let connecting = builder.method_timeout(CALL_TIMEOUT).build();
        let connection = tokio::time::timeout(CALL_TIMEOUT, connecting)
            .await
            .unwrap_or_else(|_| {
                let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
                Err(source.into())
            });
        Ok(Self {
            connection: connection.map_err(LogindError::Connect)?,
        })
    }

    /// How long logind waits for locks.
    pub(crate) async fn longest_delay(&self) -> Result<Duration, LogindError> {
        let what = "InhibitDelayMaxUSec";
        match *self.property(what).await? {
            Variant::U64(micros) => Ok(Duration::from_micros(micros)),
            _ => Err(LogindError::Kind { what }),
        }
    }

    /// A shutdown has begun, and waits for locks.
    pub(crate) async fn is_preparing(&self) -> Result<bool, LogindError> {
        let what = "PreparingForShutdown";
        match *self.property(what).await? {
            Variant::Bool(is_preparing) => Ok(is_preparing),
            _ => Err(LogindError::Kind { what }),
        }
    }

    /// A lock that delays shutdowns until it is closed.
    pub(crate) async fn inhibit(&self) -> Result<OwnedFd, LogindError> {
        const WHAT: &str = "Inhibit";
        let lock = ("shutdown", "pulselet", "Pods are given time to end", "delay");
        let called = self
            .connection
            .call_method(Some(SERVICE), PATH, Some(INTERFACE), WHAT, &lock);
        let answer = called
            .await
            .map_err(|source| LogindError::Call { what: WHAT, source })?;
        let lock: zbus::OwnedFd = read(&answer, WHAT)?;
        Ok(lock.into())
    }

    /// Has logind read its settings again, as the service manager's reload does.
    pub(crate) async fn reload(&self) -> Result<(), LogindError> {
        const SIGHUP: i32 = 1;
        let unit = ("systemd-logind.service", "all", SIGHUP);
        let called = self.connection.call_method(
            Some("org.freedesktop.systemd1"),
            "/org/freedesktop/systemd1",
            Some("org.freedesktop.systemd1.Manager"),
            "KillUnit",
            &unit,
        );
        let what = "KillUnit";
        called
            .await
            .map(drop)
            .map_err(|source| LogindError::Call { what, source })
    }

    /// Every signal of logind from now on. Signals of others are left out: everybody on the bus can send some.
    pub(crate) async fn preparations(&self) -> Result<Preparations, LogindError> {
        let owner = self.owner().await?;
        let what = "AddMatch";
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .sender(owner)
            .path(PATH)
            .interface(INTERFACE)
            .member(PREPARE)
            .build();
        let rule = rule.map_err(|source| LogindError::Call { what, source })?;
        let signals = MessageStream::for_match_rule(rule, &self.connection, None).await;
        let signals = signals.map_err(|source| LogindError::Call { what, source })?;
        let own = signals.map(|signal| read(&signal.map_err(LogindError::Read)?, PREPARE));
        let gone = self.replaced().await?;
        // A logind that comes back has another name on the bus: everything is begun anew then.
        Ok(own.take_until(gone).boxed())
    }

    /// Ends when logind leaves the bus.
    async fn replaced(&self) -> Result<impl Future<Output = ()> + Send + use<>, LogindError> {
        let what = "NameOwnerChanged";
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .sender(BUS)
            .interface(BUS)
            .member(what)
            .arg(0, SERVICE)
            .build();
        let rule = rule.map_err(|source| LogindError::Call { what, source })?;
        let changes = MessageStream::for_match_rule(rule, &self.connection, None).await;
        let mut changes = changes.map_err(|source| LogindError::Call { what, source })?;
        Ok(async move {
            changes.next().await;
        })
    }

    /// Who logind is on this bus.
    async fn owner(&self) -> Result<OwnedUniqueName, LogindError> {
        let what = "GetNameOwner";
        let called =
            self.connection
                .call_method(Some(BUS), "/org/freedesktop/DBus", Some(BUS), what, &SERVICE);
        let answer = called
            .await
            .map_err(|source| LogindError::Call { what, source })?;
        read(&answer, what)
    }

    async fn property(&self, what: &'static str) -> Result<OwnedVariant, LogindError> {
        let property = (INTERFACE, what);
        let called = self.connection.call_method(
            Some(SERVICE),
            PATH,
            Some("org.freedesktop.DBus.Properties"),
            "Get",
            &property,
        );
        let answer = called
            .await
            .map_err(|source| LogindError::Call { what, source })?;
        read(&answer, what)
    }
}

fn read<T>(message: &Message, what: &'static str) -> Result<T, LogindError>
where
    T: for<'m> DynamicDeserialize<'m>,
{
    let body = message.body();
    body.deserialize()
        .map_err(|source| LogindError::Decode { what, source })
}
