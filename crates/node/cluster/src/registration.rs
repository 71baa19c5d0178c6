//! The Node object: made when the node joins, put back when somebody removes it, and kept true.
//!
//! The status is looked at every few seconds and sent when it has changed or is old. That the node is alive is the
//! lease's to say.

use std::time::Duration;

use jiff::Timestamp;
use pulselet_agent::NodeHandle;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::client::{ApiClient, ApiClientError, Call};
use crate::machine::{Machine, with_times};
use crate::paths;
use crate::selection::Selectable;

/// How often the machine, and what the API says of it, is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// A status that did not change is sent this often, as a kubelet does.
const REPORT_INTERVAL: Duration = Duration::from_mins(5);

/// A node that the API knows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Registered {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// As it was last read, which may be a while ago.
    pub(crate) selectable: Selectable,
}

impl Registered {
    pub(crate) fn owner_reference(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid})
    }
}

#[derive(Debug)]
pub(crate) struct Registration {
    client: ApiClient,
    machine: Machine,
    node: NodeHandle,
    known: watch::Sender<Option<Registered>>,
    /// The status that was last sent, with its times, and when.
    sent: Option<(Value, Instant)>,
}

impl Registration {
    pub(crate) fn new(
        client: ApiClient,
        machine: Machine,
        node: NodeHandle,
        known: watch::Sender<Option<Registered>>,
    ) -> Self {
        Self {
            client,
            machine,
            node,
            known,
            sent: None,
        }
    }

    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut going_down = self.node.machine_goes_down();
        loop {
            let pause = match self.keep().await {
                Ok(()) => {
                    backoff.reset();
                    LOOK_INTERVAL
                }
                Err(error) => {
                    let pause = backoff.next();
                    tracing::warn!(%error, ?pause, "cannot keep the Node object up to date");
                    pause
                }
            };
            // Who chooses nodes is to know at once that this one goes down. A node that has ended says nothing more.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = going_down.changed() => {}
            }
        }
    }

    async fn status(&self) -> Value {
        let goes_down = *self.node.machine_goes_down().borrow();
        self.machine.status(self.node.pressure(), goes_down).await
    }

    /// One look at the machine, and what follows from it.
    async fn keep(&mut self) -> Result<(), ApiClientError> {
        if self.known.borrow().is_none() {
            self.register().await?;
        }
        let mut status = self.status().await;
        let before = self
            .sent
            .as_ref()
            .map_or(Value::Null, |(sent, _)| sent["conditions"].clone());
        let is_due = match &self.sent {
            Some((sent, at)) => at.elapsed() >= REPORT_INTERVAL || differs(sent, &status),
            None => true,
        };
        if !is_due && self.is_shown(&status).await? {
            return Ok(());
        }
        with_times(&mut status["conditions"], &before, Timestamp::now());
        let path = format!("{}/{}/status", paths::NODES, self.machine.facts.name);
        match self
            .client
            .send(Call::merge(path, &json!({"status": &status})))
            .await
        {
            Ok(()) => {
                self.sent = Some((status, Instant::now()));
                Ok(())
            }
            Err(error) => {
                if error.is_not_found() {
                    self.forget();
                }
                Err(error)
            }
        }
    }

    /// Whether the API still says of the node what the node says. It may have lost sight of it meanwhile.
    async fn is_shown(&mut self, status: &Value) -> Result<bool, ApiClientError> {
        let path = format!("{}/{}", paths::NODES, self.machine.facts.name);
        let node: Value = match self.client.ask(Call::get(path)).await {
            Err(error) if error.is_not_found() => {
                self.forget();
                return Err(error);
            }
            other => other?,
        };
        self.note_selectable(&node);
        let ready = |conditions: &Value| {
            let conditions = conditions.as_array()?;
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
            ready.map(|condition| condition["status"].clone())
        };
        Ok(ready(&node["status"]["conditions"]) == ready(&status["conditions"]))
    }

    /// Labels and taints are others' to set.
    fn note_selectable(&self, node: &Value) {
        let selectable = Selectable::read(node);
        self.known.send_if_modified(|known| match known {
            Some(known) if known.selectable != selectable => {
                known.selectable = selectable;
                true
            }
            Some(_) | None => false,
        });
    }

    /// Somebody has removed the Node object.
    fn forget(&mut self) {
        self.sent = None;
        self.known.send_replace(None);
    }

    async fn register(&mut self) -> Result<(), ApiClientError> {
        let name = self.machine.facts.name.clone();
        let mut status = self.status().await;
        with_times(&mut status["conditions"], &Value::Null, Timestamp::now());
        let labels = self.machine.labels();
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "status": status,
        });
        let created: Result<Value, _> = self.client.ask(Call::create(paths::NODES, &node)).await;
        let node: Value = match created {
            // An earlier agent has joined under this name.
            Err(error) if error.is_conflict() => {
                let path = format!("{}/{name}", paths::NODES);
                let labels = json!({"metadata": {"labels": labels}});
                self.client.ask(Call::merge(path, &labels)).await?
            }
            other => other?,
        };
        let conditions = node["status"]["conditions"].clone();
        self.sent = Some((json!({"conditions": conditions}), Instant::now()));
        let uid = node["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        tracing::info!(node = name, "joined the API");
        let selectable = Selectable::read(&node);
        self.known.send_replace(Some(Registered {
            name,
            uid,
            selectable,
        }));
        Ok(())
    }
}

/// Whether a status says something else than the one that was sent; the times of conditions do not count.
fn differs(sent: &Value, now: &Value) -> bool {
    let plain = |status: &Value| {
        let mut status = status.clone();
        for condition in status["conditions"].as_array_mut().into_iter().flatten() {
            if let Some(fields) = condition.as_object_mut() {
                fields.remove("lastHeartbeatTime");
                fields.remove("lastTransitionTime");
            }
        }
        status
    };
    plain(sent) != plain(now)
}
