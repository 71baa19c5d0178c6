//! [`Shims`]: the verbs of a runtime, as far as they are the same for every kind of container with a shim.
//!
//! Sandboxes are in `sandboxes`; what happens to a single container is in `lifecycle`.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use pulselet_runtime::{
    AttachOptions, BoxError, ContainerConfig, ContainerFilter, ContainerId, ContainerState, ContainerStatus,
    Error, EventHub, EventKind, Events, ExecOptions, ExecOutcome, ExecOutput, ExecRequest, ExecStreams,
    Features, LogLimits, Operation, Result, SandboxId, SecurityFeatures, SeparateExecOutput, Signal,
    SignalMasks,
};
use pulselet_shim::protocol::{ExecCall, Reply, Request, StreamCall};
use pulselet_shim::record::{self, LifeRecord};

use crate::{
    container_kind::ContainerKind,
    lifecycle::{Inner, KEEPING_PATIENCE, blocking, detached, unexpected},
    store::{ContainerRecord, StoreError, new_id},
    streams, validate,
};

/// How long opening waits for the shims of running containers to answer. They usually do in a millisecond.
const ADOPTION_PATIENCE: Duration = Duration::from_secs(10);

/// How to start a shim: the container's directory is added as the last argument.
#[derive(Debug, Clone)]
pub struct ShimCommand {
    pub program: PathBuf,
    pub args: Vec<OsString>,
}

impl ShimCommand {
    /// This very program, even if its file was replaced since, with the given arguments.
    pub fn this_program(args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            program: "/proc/self/exe".into(),
            args: args.into_iter().map(Into::into).collect(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OpenShimsError(#[from] StoreError);

/// The sandboxes and containers below one root. Clones are the same.
#[derive(Debug, Clone)]
pub struct Shims(pub(crate) Arc<Inner>);

impl Shims {
    /// What every runtime with shims can do. It knows nothing of images and enforces nothing by itself.
    pub const FEATURES: Features = Features {
        stop_signal: true,
        events: true,
        images: false,
        kill_reporting: true,
        security: SecurityFeatures::NONE,
    };

    /// Opens the root and adopts what is there. Only one at a time may use a root; the caller sees to that.
    pub async fn open(
        root: &Path,
        shim: ShimCommand,
        kind: Arc<dyn ContainerKind>,
    ) -> std::result::Result<Self, OpenShimsError> {
        let root = root.to_owned();
        let inner = tokio::task::spawn_blocking(move || Inner::load(&root, shim, kind))
            .await
            .expect("loading does not panic")?;
        let shims = Self(Arc::new(inner));
        let adopted = shims.0.follow_all();
        let answers = async {
            for container in &adopted {
                container.wait_until_known().await;
            }
        };
        if tokio::time::timeout(ADOPTION_PATIENCE, answers).await.is_err() {
            tracing::warn!("some containers' shims do not answer");
        }
        Ok(shims)
    }

    /// Makes a container that does not run yet. `prepare` is given its directory, and puts there what its shim will
    /// need.
    pub async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        stop_signal: Signal,
        prepare: impl FnOnce(&Path) -> std::result::Result<(), BoxError> + Send + 'static,
    ) -> Result<ContainerId> {
        let operation = Operation::CreateContainer;
        validate::container(config)?;
        let record = ContainerRecord {
            id: ContainerId::new(new_id().map_err(|error| Error::failed(operation, error))?),
            sandbox: sandbox.clone(),
            boot_id: self.0.store.boot_id.clone(),
            created_at: Timestamp::now(),
            stop_signal,
            config: config.clone(),
            log_limits: self.0.log_limits.get().copied(),
        };
        let inner = Arc::clone(&self.0);
        detached(operation, async move {
            let container = inner.reserve(record)?;
            let id = container.record.id.clone();
            let (store, written) = (inner.store.clone(), Arc::clone(&container));
            if let Err(error) = blocking(operation, move || written.write_to(&store, prepare)).await {
                inner.known(|known| known.containers.remove(&id));
                return Err(error);
            }
            container.publish(EventKind::Created);
            Ok(id)
        })
        .await
    }

    /// The limits of logs of containers that are made from now on. The first that are given stay.
    pub fn limit_logs(&self, limits: LogLimits) {
        let _ = self.0.log_limits.set(limits);
    }

    pub async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let (inner, container) = (Arc::clone(&self.0), self.0.container(id)?);
        detached(
            Operation::StartContainer,
            async move { inner.start(&container).await },
        )
        .await
    }

    pub async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        match self.0.container(id) {
            Ok(container) => self.0.stop(&container, grace).await,
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        let inner = Arc::clone(&self.0);
        match self.0.container(id) {
            Ok(container) => {
                detached(Operation::RemoveContainer, async move {
                    inner.remove(container).await
                })
                .await
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus> {
        Ok(self.0.container(id)?.status())
    }

    /// What the container's main process does about signals; `None` if it does not run.
    pub fn signal_masks(&self, id: &ContainerId) -> Result<Option<SignalMasks>> {
        Ok(self.init_process(id)?.and_then(SignalMasks::of_process))
    }

    /// The number of the container's init process; `None` if it does not run.
    pub fn init_process(&self, id: &ContainerId) -> Result<Option<i32>> {
        let container = self.0.container(id)?;
        let life = record::read_life(&container.dir);
        Ok(match (container.state(), life) {
            (ContainerState::Running { .. }, Ok(Some(LifeRecord::Running { pid, .. }))) => Some(pid),
            (
                ContainerState::Created
                | ContainerState::Running { .. }
                | ContainerState::Exited(_)
                | ContainerState::Unknown,
                _,
            ) => None,
        })
    }

    pub fn list_containers(&self, filter: &ContainerFilter) -> Vec<ContainerStatus> {
        let all = self.0.all_containers();
        // Before a status is made, which is a copy of everything: who asks for one pod is not to pay for all.
        let wanted = all.iter().filter(|container| {
            let record = &container.record;
            filter.matches(&record.sandbox, &record.config.pod)
        });
        wanted.map(|container| container.status()).collect()
    }

    /// The ids of the images that containers need, also of those they mount.
    pub fn image_ids(&self) -> BTreeSet<String> {
        let all = self.0.all_containers();
        let ids = all
            .iter()
            .flat_map(|container| container.record.config.image_ids());
        ids.map(str::to_owned).collect()
    }

    /// The directory of a container; there is one of that id.
    pub fn container_dir(&self, id: &ContainerId) -> Result<PathBuf> {
        Ok(self.0.container(id)?.dir.clone())
    }

    pub async fn exec_sync(&self, id: &ContainerId, request: &ExecRequest) -> Result<ExecOutput> {
        let (outcome, truncated, mut frames) = self.run_sync(id, request, false).await?;
        Ok(ExecOutput {
            outcome,
            output: frames.pop().unwrap_or_default(),
            truncated,
        })
    }

    pub async fn exec_sync_separately(
        &self,
        id: &ContainerId,
        request: &ExecRequest,
    ) -> Result<SeparateExecOutput> {
        let (outcome, truncated, mut frames) = self.run_sync(id, request, true).await?;
        let stderr = frames.pop().unwrap_or_default();
        Ok(SeparateExecOutput {
            outcome,
            stdout: frames.pop().unwrap_or_default(),
            stderr,
            truncated,
        })
    }

    /// Runs a bounded command. The outputs are one, or stdout and stderr.
    async fn run_sync(
        &self,
        id: &ContainerId,
        request: &ExecRequest,
        separate_stderr: bool,
    ) -> Result<(ExecOutcome, bool, Vec<Vec<u8>>)> {
        let container = self.0.container(id)?;
        container.must_run(Operation::Exec)?;
        validate::command(&request.command)?;
        let call = ExecCall {
            separate_stderr,
            command: request.command.clone(),
            timeout_ms: request
                .timeout
                .map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            output_limit: request.output_limit,
        };
        let exec = self.0.exec(&container, call);
        match request.timeout {
            None => exec.await,
            Some(timeout) => {
                let after = timeout.saturating_add(KEEPING_PATIENCE);
                let late = Error::Timeout {
                    operation: Operation::Exec,
                    after,
                };
                tokio::time::timeout(after, exec).await.map_err(|_| late)?
            }
        }
    }

    pub async fn exec(&self, id: &ContainerId, options: &ExecOptions) -> Result<ExecStreams> {
        let ExecOptions {
            command,
            tty,
            stdin,
            stdout,
            stderr,
            term,
        } = options.clone();
        validate::command(&command)?;
        let call = StreamCall {
            command,
            tty,
            stdin,
            stdout,
            stderr,
            term,
        };
        let wanted = AttachOptions {
            tty,
            stdin,
            stdout,
            stderr,
        };
        self.open_stream(id, Operation::Exec, Request::ExecStream(call), wanted)
            .await
    }

    pub async fn attach(&self, id: &ContainerId, options: &AttachOptions) -> Result<ExecStreams> {
        let AttachOptions {
            tty,
            stdin,
            stdout,
            stderr,
        } = *options;
        let call = StreamCall {
            command: Vec::new(),
            tty,
            stdin,
            stdout,
            stderr,
            term: None,
        };
        self.open_stream(id, Operation::Attach, Request::Attach(call), *options)
            .await
    }

    async fn open_stream(
        &self,
        id: &ContainerId,
        operation: Operation,
        request: Request,
        wanted: AttachOptions,
    ) -> Result<ExecStreams> {
        let container = self.0.container(id)?;
        container.must_run(operation)?;
        let (client, reply) = self.0.ask(&container, operation, &request).await?;
        match reply {
            Reply::Streaming => Ok(streams::open(client, operation, wanted)),
            other => Err(unexpected(&container, operation, other)),
        }
    }

    pub async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
        let container = self.0.container(id)?;
        container.must_run(Operation::ReopenLog)?;
        match self
            .0
            .ask(&container, Operation::ReopenLog, &Request::ReopenLog)
            .await?
        {
            (_, Reply::Done) => Ok(()),
            (_, other) => Err(unexpected(&container, Operation::ReopenLog, other)),
        }
    }

    pub fn events(&self) -> Events {
        self.0.events.subscribe()
    }

    /// Where a runtime publishes events of its own, among those of its containers.
    pub fn event_hub(&self) -> EventHub {
        self.0.events.clone()
    }
}
