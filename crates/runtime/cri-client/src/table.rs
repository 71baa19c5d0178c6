//! What is known of our containers, and how it is brought up to date.
//!
//! A listing names states only, so a container's status is asked for when its state changed and kept otherwise. Every
//! refresh publishes what changed since the one before, whoever asked for it; refreshes are one at a time.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use pulselet_runtime::{
    ContainerEvent, ContainerExit, ContainerId, ContainerState, ContainerStatus, Error, EventHub, EventKind,
    ExitCause, ObjectKind, Operation, Result, RuntimeEvent, SandboxId,
};

use crate::call::{ASK, call};
use crate::connection::Connection;
use crate::image::{INFO, Images};
use crate::wire::v1;
use crate::{container, labels};

/// What we read of a container's description.
#[derive(Debug, serde::Deserialize)]
struct Info {
    pid: i32,
}

/// Statuses asked for at once: after a restart all are asked for, and a server has other things to do too.
const STATUSES_AT_ONCE: usize = 16;
/// The exit code of a container that was stopped before it ran: that of one that was killed.
const NEVER_RAN_CODE: i32 = 137;

#[derive(Debug)]
pub(crate) struct Table {
    connection: Connection,
    images: Images,
    owner: String,
    pub(crate) hub: EventHub,
    known: tokio::sync::Mutex<Known>,
    /// Which sandbox a container is in: its status does not say.
    places: Mutex<HashMap<ContainerId, SandboxId>>,
    /// Containers that were stopped before they ran; the server has nothing of them.
    unborn: Mutex<HashMap<ContainerId, ContainerStatus>>,
    /// The server has told a stop signal.
    tells_signals: AtomicBool,
}

/// Containers with the state they were listed in.
type Known = HashMap<ContainerId, (v1::ContainerState, ContainerStatus)>;

impl Table {
    pub(crate) fn new(connection: Connection, images: Images, owner: String) -> Self {
        Self {
            connection,
            images,
            owner,
            hub: EventHub::new(),
            known: tokio::sync::Mutex::default(),
            places: Mutex::default(),
            unborn: Mutex::default(),
            tells_signals: AtomicBool::new(false),
        }
    }

    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    /// Whether the server has been seen to know stop signals.
    pub(crate) fn tells_signals(&self) -> bool {
        self.tells_signals.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self, container: &ContainerId, sandbox: &SandboxId) {
        self.places().insert(container.clone(), sandbox.clone());
    }

    /// A container that never ran counts as exited from now on.
    pub(crate) fn bury(&self, status: ContainerStatus) {
        let exit = ContainerExit {
            started_at: None,
            finished_at: Timestamp::now(),
            code: NEVER_RAN_CODE,
            reason: ExitCause::Error,
            message: "it was stopped before it ran".to_owned(),
            killed_after_grace: None,
        };
        let state = ContainerState::Exited(exit);
        self.unborn()
            .insert(status.id.clone(), ContainerStatus { state, ..status });
    }

    pub(crate) fn forget(&self, id: &ContainerId) {
        self.unborn().remove(id);
    }

    pub(crate) fn forget_sandbox(&self, id: &SandboxId) {
        self.unborn().retain(|_, status| status.sandbox != *id);
    }

    /// All our containers as they are now.
    pub(crate) async fn refresh(&self) -> Result<Vec<ContainerStatus>> {
        let mut known = self.known.lock().await;
        let listed = self.list(String::new()).await?;
        let old = &*known;
        let looked = stream::iter(listed)
            .map(|item| self.look(old, item))
            .buffer_unordered(STATUSES_AT_ONCE);
        let mut new: Known = looked
            .try_filter_map(async |found| Ok(found))
            .try_collect()
            .await?;
        let exited = v1::ContainerState::ContainerExited;
        let unborn = self.unborn().clone();
        new.extend(unborn.into_iter().map(|(id, status)| (id, (exited, status))));
        for event in changes(&known, &new) {
            self.hub.publish(RuntimeEvent::Container(event));
        }
        self.places().retain(|id, _| new.contains_key(id));
        *known = new;
        Ok(known.values().map(|(_, status)| status.clone()).collect())
    }

    /// The logs that are being written.
    pub(crate) async fn running_logs(&self) -> Vec<(ContainerId, PathBuf)> {
        let known = self.known.lock().await;
        let running = known.values().map(|(_, status)| status);
        running
            .filter(|status| matches!(status.state, ContainerState::Running { .. }))
            .map(|status| (status.id.clone(), status.log_path.clone()))
            .collect()
    }

    /// One container's entry; none if it went away meanwhile.
    async fn look(
        &self,
        old: &Known,
        item: v1::Container,
    ) -> Result<Option<(ContainerId, (v1::ContainerState, ContainerStatus))>> {
        let state = item.state();
        let id = ContainerId::new(item.id);
        if let Some((before, status)) = old.get(&id)
            && *before == state
        {
            return Ok(Some((id, (state, status.clone()))));
        }
        let sandbox = SandboxId::new(item.pod_sandbox_id);
        match self.ask(&id, sandbox).await {
            Ok((state, status)) => Ok(Some((id, (state, status)))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One container as it is now.
    pub(crate) async fn status(&self, id: &ContainerId) -> Result<ContainerStatus> {
        if let Some(status) = self.unborn().get(id) {
            return Ok(status.clone());
        }
        let place = self.places().get(id).cloned();
        let sandbox = match place {
            Some(sandbox) => sandbox,
            None => self.find_sandbox(id).await?,
        };
        Ok(self.ask(id, sandbox).await?.1)
    }

    async fn find_sandbox(&self, id: &ContainerId) -> Result<SandboxId> {
        let found = self.list(id.to_string()).await?;
        let exact = found.into_iter().find(|item| item.id == id.as_str());
        let item = exact.ok_or_else(|| Error::no_container(id))?;
        let sandbox = SandboxId::new(item.pod_sandbox_id);
        self.note(id, &sandbox);
        Ok(sandbox)
    }

    async fn list(&self, id: String) -> Result<Vec<v1::Container>> {
        let request = v1::ListContainersRequest {
            filter: Some(v1::ContainerFilter {
                id,
                label_selector: labels::selector(&self.owner),
                ..v1::ContainerFilter::default()
            }),
        };
        let answer = call(ASK, self.connection.runtime().list_containers(request)).await;
        Ok(answer.map_err(|error| error.of(Operation::List))?.containers)
    }

    /// The main process on the server's host; none where the server does not say.
    pub(crate) async fn main_process(&self, id: &ContainerId) -> Result<Option<i32>> {
        let request = v1::ContainerStatusRequest {
            container_id: id.to_string(),
            verbose: true,
        };
        let answer = call(ASK, self.connection.runtime().container_status(request)).await;
        let operation = Operation::ContainerStatus;
        let answer = answer.map_err(|error| error.on(operation, ObjectKind::Container, id.as_str()))?;
        let runs = answer
            .status
            .is_some_and(|status| status.state() == v1::ContainerState::ContainerRunning);
        let info = answer.info.get(INFO).filter(|_| runs);
        let info = info.and_then(|text| serde_json::from_str::<Info>(text).ok());
        Ok(info.map(|info| info.pid).filter(|pid| *pid > 0))
    }

    async fn ask(
        &self,
        id: &ContainerId,
        sandbox: SandboxId,
    ) -> Result<(v1::ContainerState, ContainerStatus)> {
        let operation = Operation::ContainerStatus;
        let request = v1::ContainerStatusRequest {
            container_id: id.to_string(),
            verbose: false,
        };
        let answer = call(ASK, self.connection.runtime().container_status(request)).await;
        let answer = answer.map_err(|error| error.on(operation, ObjectKind::Container, id.as_str()))?;
        let status = answer.status.ok_or_else(|| Error::no_container(id))?;
        let state = status.state();
        // Zero: the server does not know of stop signals, and goes by the image.
        let of_image = if status.stop_signal == v1::Signal::RuntimeDefault as i32 {
            self.images.stop_signal(&status.image_ref).await
        } else {
            self.tells_signals.store(true, Ordering::Relaxed);
            None
        };
        Ok((state, container::from_wire(status, sandbox, of_image)))
    }

    fn unborn(&self) -> MutexGuard<'_, HashMap<ContainerId, ContainerStatus>> {
        self.unborn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> MutexGuard<'_, HashMap<ContainerId, SandboxId>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of each container between two listings. One that came and went between them leaves no trace.
fn changes(old: &Known, new: &Known) -> Vec<ContainerEvent> {
    let at = Timestamp::now();
    let event = |kind, status: &ContainerStatus, told: Option<&ContainerStatus>| ContainerEvent {
        container: status.id.clone(),
        sandbox: status.sandbox.clone(),
        kind,
        at,
        status: told.cloned().map(Box::new),
    };
    let changed = new.iter().filter_map(|(id, (state, status))| {
        let before = old.get(id).map(|(state, _)| *state);
        if before == Some(*state) {
            return None;
        }
        Some(event(kind(*state), status, Some(status)))
    });
    let gone = old.iter().filter(|(id, _)| !new.contains_key(*id));
    let gone = gone.map(|(_, (_, status))| event(EventKind::Deleted, status, None));
    changed.chain(gone).collect()
}

/// What a container in this state has last been seen to do.
fn kind(state: v1::ContainerState) -> EventKind {
    match state {
        v1::ContainerState::ContainerCreated => EventKind::Created,
        v1::ContainerState::ContainerRunning => EventKind::Started,
        v1::ContainerState::ContainerExited | v1::ContainerState::ContainerUnknown => EventKind::Stopped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(containers: &[(&str, v1::ContainerState)]) -> Known {
        let entry = |(id, state): &(&str, v1::ContainerState)| {
            let status = v1::ContainerStatus {
                id: (*id).to_owned(),
                state: (*state).into(),
                ..v1::ContainerStatus::default()
            };
            let status = container::from_wire(status, SandboxId::new("s"), None);
            (status.id.clone(), (*state, status))
        };
        containers.iter().map(entry).collect()
    }

    #[test]
    fn every_difference_is_an_event_and_nothing_else() {
        use v1::ContainerState::{
            ContainerCreated as Created, ContainerExited as Exited, ContainerRunning as Running,
        };
        let old = known(&[
            ("same", Running),
            ("ends", Running),
            ("gone", Exited),
            ("starts", Created),
        ]);
        let new = known(&[
            ("same", Running),
            ("ends", Exited),
            ("new", Created),
            ("starts", Running),
        ]);
        let mut seen: Vec<_> = changes(&old, &new)
            .into_iter()
            .map(|event| (event.container.to_string(), event.kind, event.status.is_some()))
            .collect();
        seen.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(
            seen,
            [
                ("ends".to_owned(), EventKind::Stopped, true),
                ("gone".to_owned(), EventKind::Deleted, false),
                ("new".to_owned(), EventKind::Created, true),
                ("starts".to_owned(), EventKind::Started, true),
            ]
        );
        assert!(changes(&new, &new).is_empty());
    }
}
