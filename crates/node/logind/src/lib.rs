//! The machine's shutdown as logind tells of it, held up until the node's pods have ended.
//!
//! [`ShutdownWatch::run`] takes a delay lock of logind, so that a shutdown waits; when logind says that one begins, the node
//! stops its pods in their periods, and then the lock is given back. What must always hold: the lock is held whenever a
//! shutdown could begin and is given back when the pods have ended or their time is over; only logind is believed; a bus
//! or a logind that goes away and comes back is found again, and meanwhile the node runs on.
//!
//! Left to others: which pods end when, and what becomes of them (`agent`).

mod bus;
mod delay;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use pulselet_agent::{Gone, NodeHandle, ShutdownPeriods};

pub use bus::LogindError;

use self::bus::{Logind, Preparations};

/// How long a bus that is away is left alone, as a kubelet does.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
/// Where logind reads what is added to its settings.
const CONFIG_DIRECTORY: &str = "/etc/systemd/logind.conf.d";

/// What is needed to hold up a shutdown.
#[derive(Clone, Debug)]
pub struct ShutdownWatch {
    pub periods: ShutdownPeriods,
    /// The address of the bus; `None` for the machine's system bus.
    pub bus: Option<String>,
    /// Where logind's settings can be added to.
    pub config_directory: PathBuf,
}

type Stopping = Pin<Box<dyn Future<Output = Result<(), Gone>> + Send>>;

impl ShutdownWatch {
    /// That of the machine.
    pub fn new(periods: ShutdownPeriods) -> Self {
        Self {
            periods,
            bus: None,
            config_directory: CONFIG_DIRECTORY.into(),
        }
    }

    /// Watches over a node, until the node has ended.
    pub async fn run(self, node: NodeHandle) {
        tokio::select! {
            () = node.ended() => {}
            () = self.keep_watching(&node) => {}
        }
    }

    async fn keep_watching(&self, node: &NodeHandle) {
        let mut is_known = false;
        loop {
            match self.watch(node, &mut is_known).await {
                Ok(()) => tracing::warn!("the connection to logind has ended, trying again"),
                Err(LogindError::NodeGone) => return,
                Err(error) if is_known => tracing::debug!(%error, "logind is still not there"),
                Err(error) => {
                    is_known = true;
                    tracing::warn!(
                        %error,
                        "shutdowns of the machine are not recognised, so pods get no time to end; install logind and its bus, \
                         or remove shutdownGracePeriod from the settings"
                    );
                }
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    /// Watches over one connection to the bus.
    async fn watch(&self, node: &NodeHandle, is_known: &mut bool) -> Result<(), LogindError> {
        let logind = Logind::connect(self.bus.as_deref()).await?;
        // Before anything else, so that no signal falls between.
        let signals = logind.preparations().await?;
        delay::ensure(&logind, self.periods.total.into(), &self.config_directory).await;
        let held = if logind.is_preparing().await? {
            // It is too late for a lock.
            Held {
                lock: None,
                stopping: Some(self.stop(node)),
            }
        } else {
            Held {
                lock: Some(logind.inhibit().await?),
                stopping: None,
            }
        };
        *is_known = false;
        tracing::info!(period = ?Duration::from(self.periods.total), "shutdowns of the machine wait for pods");
        self.follow(node, &logind, signals, held).await
    }

    async fn follow(
        &self,
        node: &NodeHandle,
        logind: &Logind,
        mut signals: Preparations,
        mut held: Held,
    ) -> Result<(), LogindError> {
        loop {
            tokio::select! {
                signal = signals.next() => match signal.transpose()? {
                    None => return Ok(()),
                    Some(true) => {
                        held.stopping.get_or_insert_with(|| self.stop(node));
                    }
                    Some(false) => {
                        held.stopping = None;
                        node.cancel_shutdown().await.map_err(|_| LogindError::NodeGone)?;
                        held.lock = Some(logind.inhibit().await?);
                    }
                },
                stopped = held.stopped() => {
                    stopped.map_err(|_| LogindError::NodeGone)?;
                    tracing::info!("the pods have ended or their time is over, the machine may go down");
                    held = Held::default();
                }
            }
        }
    }

    fn stop(&self, node: &NodeHandle) -> Stopping {
        let (node, periods) = (node.clone(), self.periods);
        Box::pin(async move { node.stop_for_shutdown(periods).await })
    }
}

/// What is held while a shutdown could begin, or goes on.
#[derive(Default)]
struct Held {
    /// The shutdown waits until it is closed.
    lock: Option<OwnedFd>,
    stopping: Option<Stopping>,
}

impl Held {
    /// Waits until the pods are stopped, if that is under way.
    async fn stopped(&mut self) -> Result<(), Gone> {
        match &mut self.stopping {
            Some(stopping) => stopping.await,
            None => std::future::pending().await,
        }
    }
}
