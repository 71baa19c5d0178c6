//! The records of sandboxes, and what is done to all containers of one.

use std::{path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use pulselet_runtime::{
    ContainerState, Error, ObjectKind, Operation, Result, SandboxConfig, SandboxId, SandboxState,
    SandboxStatus,
};
use tokio::task::JoinSet;

use crate::{
    container::Container,
    lifecycle::{Inner, blocking, detached},
    shims::Shims,
    store::{Assignment, SandboxRecord, new_id},
    validate,
};

impl Shims {
    /// Records a sandbox. `assign` chooses what only it has, given all other sandboxes; nobody else chooses meanwhile.
    pub async fn add_sandbox(
        &self,
        config: SandboxConfig,
        state: SandboxState,
        assign: impl FnOnce(&SandboxConfig, &[&SandboxRecord]) -> Result<Assignment>,
    ) -> Result<SandboxId> {
        let operation = Operation::RunSandbox;
        validate::sandbox(&config)?;
        // Containers follow, and until then it has come up.
        self.0.starter.prepare();
        let id = SandboxId::new(new_id().map_err(|error| Error::failed(operation, error))?);
        let record = self.0.known(|known| {
            let same = |other: &SandboxRecord| {
                other.config.pod.uid == config.pod.uid && other.config.attempt == config.attempt
            };
            if let Some(other) = known.sandboxes.values().find(|other| same(other)) {
                return Err(Error::AlreadyExists {
                    kind: ObjectKind::Sandbox,
                    id: other.id.to_string(),
                });
            }
            let others: Vec<&SandboxRecord> = known.sandboxes.values().collect();
            let Assignment { addresses, user_ids } = assign(&config, &others)?;
            let record = SandboxRecord {
                id: id.clone(),
                boot_id: self.0.store.boot_id.clone(),
                created_at: Timestamp::now(),
                state,
                addresses,
                user_ids,
                config,
            };
            known.sandboxes.insert(id.clone(), record.clone());
            Ok(record)
        })?;
        let inner = Arc::clone(&self.0);
        detached(operation, async move {
            let written = put_sandbox(&inner, operation, record).await;
            if written.is_err() {
                inner.known(|known| known.sandboxes.remove(&id));
            }
            written.map(|()| id)
        })
        .await
    }

    /// Changes the record. Returns whether there is such a sandbox.
    pub async fn update_sandbox(
        &self,
        operation: Operation,
        id: &SandboxId,
        change: impl FnOnce(&mut SandboxRecord),
    ) -> Result<bool> {
        let Some(record) = self.0.known(|known| {
            let sandbox = known.sandboxes.get_mut(id)?;
            change(sandbox);
            Some(sandbox.clone())
        }) else {
            return Ok(false);
        };
        put_sandbox(&self.0, operation, record).await?;
        Ok(true)
    }

    /// Lets no container run in the sandbox any more: none that runs, none that would be made.
    pub async fn stop_sandbox(&self, id: &SandboxId) -> Result<()> {
        let (shims, id) = (self.clone(), id.clone());
        detached(Operation::StopSandbox, async move {
            let not_ready = |record: &mut SandboxRecord| record.state = SandboxState::NotReady;
            let updated = shims.update_sandbox(Operation::StopSandbox, &id, not_ready).await;
            let found = updated.unwrap_or_else(|error| {
                // A disk that is full must not keep a pod alive whose files fill it. A later agent that finds the old
                // record stops the sandbox again.
                tracing::warn!(sandbox = %id, %error, "cannot record that the sandbox is stopped; stopping it all the same");
                true
            });
            if found {
                shims.kill_containers(&id).await
            } else {
                Ok(())
            }
        })
        .await
    }

    async fn kill_containers(&self, sandbox: &SandboxId) -> Result<()> {
        self.for_each_container(sandbox, |inner, container| async move {
            match container.state() {
                ContainerState::Created | ContainerState::Exited(_) => Ok(()),
                ContainerState::Running { .. } | ContainerState::Unknown => {
                    inner.stop(&container, Duration::ZERO).await
                }
            }
        })
        .await
    }

    /// Forgets the containers of the sandbox, and then the sandbox itself.
    pub async fn forget_sandbox(&self, id: &SandboxId) -> Result<()> {
        let (shims, id) = (self.clone(), id.clone());
        detached(Operation::RemoveSandbox, async move {
            let remove = |inner: Arc<Inner>, container| async move { inner.remove(container).await };
            shims.for_each_container(&id, remove).await?;
            let (store, removed) = (shims.0.store.clone(), id.clone());
            blocking(Operation::RemoveSandbox, move || store.remove_sandbox(&removed)).await?;
            shims.0.known(|known| known.sandboxes.remove(&id));
            Ok(())
        })
        .await
    }

    pub fn sandbox(&self, id: &SandboxId) -> Result<SandboxRecord> {
        self.0
            .known(|known| known.sandboxes.get(id).cloned())
            .ok_or_else(|| Error::no_sandbox(id))
    }

    pub fn sandboxes(&self) -> Vec<SandboxRecord> {
        self.0.known(|known| known.sandboxes.values().cloned().collect())
    }

    /// Those of which it holds. Others are not copied.
    pub fn sandboxes_where(&self, holds: impl Fn(&SandboxRecord) -> bool) -> Vec<SandboxRecord> {
        self.0.known(|known| {
            let all = known.sandboxes.values().filter(|record| holds(record));
            all.cloned().collect()
        })
    }

    pub fn sandbox_dir(&self, id: &SandboxId) -> PathBuf {
        self.0.store.sandbox_dir(id)
    }

    /// Does something to all containers of a sandbox at once, to the end for each, and returns the first error.
    async fn for_each_container<F, Fut>(&self, sandbox: &SandboxId, action: F) -> Result<()>
    where
        F: Fn(Arc<Inner>, Arc<Container>) -> Fut,
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        // A pod has few containers: the API bounds it by the size of a manifest.
        let mut tasks = JoinSet::new();
        for container in self
            .0
            .all_containers()
            .into_iter()
            .filter(|container| container.record.sandbox == *sandbox)
        {
            tasks.spawn(action(Arc::clone(&self.0), container));
        }
        let results = tasks.join_all().await;
        results.into_iter().collect()
    }
}

async fn put_sandbox(inner: &Inner, operation: Operation, record: SandboxRecord) -> Result<()> {
    let (store, kind) = (inner.store.clone(), Arc::clone(&inner.kind));
    blocking(operation, move || {
        store.put_sandbox(&record, |dir| kind.outlives_machine(dir))
    })
    .await
}

impl SandboxRecord {
    pub fn status(&self) -> SandboxStatus {
        SandboxStatus {
            id: self.id.clone(),
            pod: self.config.pod.clone(),
            attempt: self.config.attempt,
            state: self.state,
            created_at: self.created_at,
            addresses: self.addresses.clone(),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
        }
    }
}
