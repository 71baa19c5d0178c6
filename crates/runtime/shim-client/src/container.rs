//! One container as the agent knows it.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock},
};

use jiff::Timestamp;
use pulselet_runtime::{
    BoxError, ContainerEvent, ContainerExit, ContainerState, ContainerStatus, ContainerUser, Error, EventHub,
    EventKind, Operation, Result, RuntimeEvent,
};
use tokio::{sync::watch, task::AbortHandle};

use crate::store::{ContainerRecord, Store, StoreError};

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) record: ContainerRecord,
    pub(crate) dir: PathBuf,
    /// What was observed last. Goes forward only: created, running, exited.
    state: watch::Sender<ContainerState>,
    /// Who it runs as, once that was read in its record.
    pub(crate) user: OnceLock<ContainerUser>,
    /// Held while the container is being started, stopped before its start, or removed.
    pub(crate) transition: tokio::sync::Mutex<()>,
    /// The task that waits for its end.
    watcher: Mutex<Option<AbortHandle>>,
    events: EventHub,
}

impl Container {
    pub(crate) fn new(
        record: ContainerRecord,
        dir: PathBuf,
        state: ContainerState,
        events: EventHub,
    ) -> Self {
        Self {
            record,
            dir,
            state: watch::Sender::new(state),
            user: OnceLock::new(),
            transition: tokio::sync::Mutex::new(()),
            watcher: Mutex::new(None),
            events,
        }
    }

    pub(crate) fn state(&self) -> ContainerState {
        self.state.borrow().clone()
    }

    pub(crate) fn status(&self) -> ContainerStatus {
        let ContainerRecord {
            id,
            sandbox,
            created_at,
            stop_signal,
            config,
            ..
        } = &self.record;
        ContainerStatus {
            id: id.clone(),
            sandbox: sandbox.clone(),
            pod: config.pod.clone(),
            name: config.name.clone(),
            attempt: config.attempt,
            created_at: *created_at,
            state: self.state(),
            image: config.image.clone(),
            image_id: config.image_id.clone(),
            stop_signal: Some(*stop_signal),
            user: self.user.get().cloned(),
            log_path: config.log_path.clone(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
        }
    }

    pub(crate) fn started(&self, started_at: Timestamp) {
        let news = self.state.send_if_modified(|state| match state {
            ContainerState::Created | ContainerState::Unknown => {
                *state = ContainerState::Running { started_at };
                true
            }
            ContainerState::Running { .. } | ContainerState::Exited(_) => false,
        });
        if news {
            self.publish(EventKind::Started);
        }
    }

    pub(crate) fn exited(&self, exit: ContainerExit) {
        let news = self.state.send_if_modified(|state| match state {
            ContainerState::Created | ContainerState::Running { .. } | ContainerState::Unknown => {
                *state = ContainerState::Exited(exit);
                true
            }
            ContainerState::Exited(_) => false,
        });
        if news {
            self.publish(EventKind::Stopped);
        }
    }

    /// Somebody else has started it: an agent before us, whose shim was slower than we.
    pub(crate) fn begun(&self) {
        self.state.send_if_modified(|state| match state {
            ContainerState::Created => {
                *state = ContainerState::Unknown;
                true
            }
            ContainerState::Running { .. } | ContainerState::Unknown | ContainerState::Exited(_) => false,
        });
    }

    /// It was not started after all.
    pub(crate) fn never_started(&self) {
        self.state.send_if_modified(|state| match state {
            ContainerState::Unknown => {
                *state = ContainerState::Created;
                true
            }
            ContainerState::Created | ContainerState::Running { .. } | ContainerState::Exited(_) => false,
        });
    }

    /// For verbs that need a running container.
    pub(crate) fn must_run(&self, operation: Operation) -> Result<()> {
        match &*self.state.borrow() {
            ContainerState::Running { .. } | ContainerState::Unknown => Ok(()),
            ContainerState::Created => Err(self.wrong_state(operation, "not started")),
            ContainerState::Exited(_) => Err(self.has_exited(operation)),
        }
    }

    pub(crate) fn must_be_new(&self, operation: Operation) -> Result<()> {
        match &*self.state.borrow() {
            ContainerState::Created => Ok(()),
            ContainerState::Running { .. } | ContainerState::Unknown => {
                Err(self.wrong_state(operation, "running"))
            }
            ContainerState::Exited(_) => Err(self.has_exited(operation)),
        }
    }

    pub(crate) fn has_exited(&self, operation: Operation) -> Error {
        self.wrong_state(operation, "exited")
    }

    fn wrong_state(&self, operation: Operation, state: &'static str) -> Error {
        Error::WrongState {
            operation,
            id: self.record.id.to_string(),
            state,
        }
    }

    /// Makes the container's directory and what belongs to it.
    pub(crate) fn write_to(
        &self,
        store: &Store,
        prepare: impl FnOnce(&Path) -> std::result::Result<(), BoxError>,
    ) -> std::result::Result<(), StoreError> {
        if let Some(logs) = self.record.config.log_path.parent() {
            std::fs::create_dir_all(logs).map_err(|source| StoreError::MakeDirectory {
                path: logs.to_owned(),
                source,
            })?;
        }
        store.put_container(&self.record, prepare)
    }

    /// Returns when it is known whether the container runs.
    pub(crate) async fn wait_until_known(&self) {
        let mut state = self.state.subscribe();
        // The sender is ours and lives as long as self.
        let _ = state
            .wait_for(|state| !matches!(state, ContainerState::Unknown))
            .await;
    }

    /// Returns when the exit was observed.
    pub(crate) async fn wait_for_exit(&self) -> ContainerExit {
        let mut state = self.state.subscribe();
        loop {
            if let ContainerState::Exited(exit) = &*state.borrow_and_update() {
                return exit.clone();
            }
            // The sender is ours and lives as long as self.
            let _ = state.changed().await;
        }
    }

    pub(crate) fn publish(&self, kind: EventKind) {
        let status = match kind {
            EventKind::Created | EventKind::Started | EventKind::Stopped => Some(Box::new(self.status())),
            EventKind::Deleted => None,
        };
        self.events.publish(RuntimeEvent::Container(ContainerEvent {
            container: self.record.id.clone(),
            sandbox: self.record.sandbox.clone(),
            kind,
            at: Timestamp::now(),
            status,
        }));
    }

    /// One watcher at a time: the one before is ended.
    pub(crate) fn set_watcher(&self, watcher: AbortHandle) {
        let before = self.watcher.lock().expect("no holder panics").replace(watcher);
        if let Some(before) = before {
            before.abort();
        }
    }

    pub(crate) fn stop_watching(&self) {
        if let Some(watcher) = self.watcher.lock().expect("no holder panics").take() {
            watcher.abort();
        }
    }
}
