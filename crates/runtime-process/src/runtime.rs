//! [`ProcessRuntime`]: the runtime's verbs for host processes.
//!
//! What is known is in memory and follows the monitors' words; files are read at the start and when a monitor is
//! silent. What happens to a single container is in `lifecycle`.

use std::{
    ffi::OsString,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use pulselet_monitor::protocol::{ExecCall, Reply, Request, StreamCall};
use pulselet_runtime::{
    AttachOptions, Condition, ContainerConfig, ContainerFilter, ContainerId, ContainerState, ContainerStats,
    ContainerStatus, Credentials, DuplexStream, Error, EventKind, Events, ExecOptions, ExecOutput,
    ExecRequest, ExecStreams, Features, Health, Image, ObjectKind, Operation, Result, Runtime, SandboxConfig,
    SandboxId, SandboxState, SandboxStatus, Signal, Version, async_trait,
};
use tokio::{net::TcpStream, task::JoinSet};

use crate::{
    container::Container,
    lifecycle::{Inner, KEEPING_PATIENCE, blocking, detached, unexpected},
    store::{ContainerRecord, SandboxRecord, StoreError, new_id},
    streams, validate,
};

/// How long opening waits for the monitors of running containers to answer. They usually do in a millisecond.
const ADOPTION_PATIENCE: Duration = Duration::from_secs(10);

/// How to start a monitor: the container's directory is added as the last argument.
#[derive(Debug, Clone)]
pub struct MonitorCommand {
    pub program: PathBuf,
    pub args: Vec<OsString>,
}

impl MonitorCommand {
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
pub struct OpenError(#[from] StoreError);

/// Host processes as containers. Clones are the same runtime.
#[derive(Debug, Clone)]
pub struct ProcessRuntime(Arc<Inner>);

impl ProcessRuntime {
    /// Opens the root and adopts what is there. Only one at a time may use a root; the caller sees to that.
    pub async fn open(root: &Path, monitor: MonitorCommand) -> std::result::Result<Self, OpenError> {
        let root = root.to_owned();
        let inner = tokio::task::spawn_blocking(move || Inner::load(&root, monitor))
            .await
            .expect("loading does not panic")?;
        let runtime = Self(Arc::new(inner));
        let adopted = runtime.0.follow_all();
        let answers = async {
            for container in &adopted {
                container.wait_until_known().await;
            }
        };
        if tokio::time::timeout(ADOPTION_PATIENCE, answers).await.is_err() {
            tracing::warn!("some containers' monitors do not answer");
        }
        Ok(runtime)
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
}

#[async_trait]
impl Runtime for ProcessRuntime {
    async fn version(&self) -> Result<Version> {
        let features = Features {
            stop_signal: true,
            events: true,
            images: false,
            kill_reporting: true,
        };
        Ok(Version {
            name: "pulselet-process".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            features,
        })
    }

    async fn health(&self) -> Result<Health> {
        Ok(Health {
            runtime: Condition::Ready,
            network: Condition::Ready,
        })
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId> {
        let (runtime, config) = (self.clone(), config.clone());
        detached(Operation::RunSandbox, async move {
            runtime.make_sandbox(config).await
        })
        .await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<()> {
        let (runtime, id) = (self.clone(), id.clone());
        detached(
            Operation::StopSandbox,
            async move { runtime.halt_sandbox(&id).await },
        )
        .await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        let (runtime, id) = (self.clone(), id.clone());
        detached(Operation::RemoveSandbox, async move {
            runtime.delete_sandbox(&id).await
        })
        .await
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus> {
        self.0
            .known(|known| known.sandboxes.get(id).map(sandbox_status))
            .ok_or_else(|| Error::no_sandbox(id))
    }

    async fn list_sandboxes(&self) -> Result<Vec<SandboxStatus>> {
        Ok(self
            .0
            .known(|known| known.sandboxes.values().map(sandbox_status).collect()))
    }

    async fn create_container(&self, sandbox: &SandboxId, config: &ContainerConfig) -> Result<ContainerId> {
        let (runtime, sandbox, config) = (self.clone(), sandbox.clone(), config.clone());
        detached(Operation::CreateContainer, async move {
            runtime.make_container(sandbox, config).await
        })
        .await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let (inner, container) = (Arc::clone(&self.0), self.0.container(id)?);
        detached(
            Operation::StartContainer,
            async move { inner.start(&container).await },
        )
        .await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        match self.0.container(id) {
            Ok(container) => self.0.stop(&container, grace).await,
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
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

    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus> {
        Ok(self.0.container(id)?.status())
    }

    async fn list_containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerStatus>> {
        let all = self.0.all_containers();
        Ok(all
            .iter()
            .map(|container| container.status())
            .filter(|status| filter.matches(status))
            .collect())
    }

    async fn container_stats(&self, _id: &ContainerId) -> Result<ContainerStats> {
        Err(Error::Unsupported {
            operation: Operation::ContainerStats,
        })
    }

    async fn exec_sync(&self, id: &ContainerId, request: &ExecRequest) -> Result<ExecOutput> {
        let container = self.0.container(id)?;
        container.must_run(Operation::Exec)?;
        if request.command.is_empty() {
            return Err(Error::Invalid {
                field: "command",
                detail: "is required".into(),
            });
        }
        let call = ExecCall {
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

    async fn exec(&self, id: &ContainerId, options: &ExecOptions) -> Result<ExecStreams> {
        let ExecOptions {
            command,
            tty,
            stdin,
            stdout,
            stderr,
        } = options.clone();
        if command.is_empty() {
            return Err(Error::Invalid {
                field: "command",
                detail: "is required".into(),
            });
        }
        let request = Request::ExecStream(StreamCall {
            command,
            tty,
            stdin,
            stdout,
            stderr,
        });
        self.open_stream(
            id,
            Operation::Exec,
            request,
            AttachOptions {
                tty,
                stdin,
                stdout,
                stderr,
            },
        )
        .await
    }

    async fn attach(&self, id: &ContainerId, options: &AttachOptions) -> Result<ExecStreams> {
        let AttachOptions {
            tty,
            stdin,
            stdout,
            stderr,
        } = *options;
        let request = Request::Attach(StreamCall {
            command: Vec::new(),
            tty,
            stdin,
            stdout,
            stderr,
        });
        self.open_stream(
            id,
            Operation::Attach,
            request,
            AttachOptions {
                tty,
                stdin,
                stdout,
                stderr,
            },
        )
        .await
    }

    async fn port_forward(&self, id: &SandboxId, port: u16) -> Result<DuplexStream> {
        self.sandbox_status(id).await?;
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        Ok(Box::new(
            stream.map_err(|error| Error::failed(Operation::PortForward, error))?,
        ))
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
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

    async fn pull_image(&self, _reference: &str, _credentials: Option<&Credentials>) -> Result<Image> {
        Err(Error::Unsupported {
            operation: Operation::PullImage,
        })
    }

    async fn image_status(&self, _reference: &str) -> Result<Option<Image>> {
        Ok(None)
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        Ok(Vec::new())
    }

    async fn remove_image(&self, _reference: &str) -> Result<()> {
        Ok(())
    }

    fn events(&self) -> Events {
        self.0.events.subscribe()
    }
}

/// What goes on when its caller stops waiting.
impl ProcessRuntime {
    async fn make_sandbox(&self, config: SandboxConfig) -> Result<SandboxId> {
        let operation = Operation::RunSandbox;
        let record = SandboxRecord {
            id: SandboxId::new(new_id().map_err(|error| Error::failed(operation, error))?),
            boot_id: self.0.store.boot_id.clone(),
            created_at: Timestamp::now(),
            state: SandboxState::Ready,
            config,
        };
        let id = record.id.clone();
        self.0.known(|known| {
            let same = |other: &SandboxRecord| {
                other.config.pod.uid == record.config.pod.uid && other.config.attempt == record.config.attempt
            };
            if let Some(other) = known.sandboxes.values().find(|other| same(other)) {
                return Err(Error::AlreadyExists {
                    kind: ObjectKind::Sandbox,
                    id: other.id.to_string(),
                });
            }
            known.sandboxes.insert(record.id.clone(), record.clone());
            Ok(())
        })?;
        let store = self.0.store.clone();
        let written = blocking(operation, move || store.put_sandbox(&record)).await;
        if written.is_err() {
            self.0.known(|known| known.sandboxes.remove(&id));
        }
        written.map(|()| id)
    }

    async fn halt_sandbox(&self, id: &SandboxId) -> Result<()> {
        let Some(record) = self.0.known(|known| {
            let sandbox = known.sandboxes.get_mut(id)?;
            sandbox.state = SandboxState::NotReady;
            Some(sandbox.clone())
        }) else {
            return Ok(());
        };
        let store = self.0.store.clone();
        blocking(Operation::StopSandbox, move || store.put_sandbox(&record)).await?;
        self.for_each_container(id, |inner, container| async move {
            match container.state() {
                ContainerState::Created | ContainerState::Exited(_) => Ok(()),
                ContainerState::Running { .. } | ContainerState::Unknown => {
                    inner.stop(&container, Duration::ZERO).await
                }
            }
        })
        .await
    }

    async fn delete_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.halt_sandbox(id).await?;
        self.for_each_container(
            id,
            |inner, container| async move { inner.remove(container).await },
        )
        .await?;
        let (store, removed) = (self.0.store.clone(), id.clone());
        blocking(Operation::RemoveSandbox, move || store.remove_sandbox(&removed)).await?;
        self.0.known(|known| known.sandboxes.remove(id));
        Ok(())
    }

    async fn make_container(&self, sandbox: SandboxId, config: ContainerConfig) -> Result<ContainerId> {
        let operation = Operation::CreateContainer;
        validate::container(&config)?;
        let record = ContainerRecord {
            id: ContainerId::new(new_id().map_err(|error| Error::failed(operation, error))?),
            sandbox,
            boot_id: self.0.store.boot_id.clone(),
            created_at: Timestamp::now(),
            stop_signal: config.stop_signal.unwrap_or(Signal::TERM),
            config,
        };
        let container = self.0.reserve(record)?;
        let id = container.record.id.clone();
        let (store, written) = (self.0.store.clone(), Arc::clone(&container));
        if let Err(error) = blocking(operation, move || written.write_to(&store)).await {
            self.0.known(|known| known.containers.remove(&id));
            return Err(error);
        }
        container.publish(EventKind::Created);
        Ok(id)
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

fn sandbox_status(record: &SandboxRecord) -> SandboxStatus {
    SandboxStatus {
        id: record.id.clone(),
        pod: record.config.pod.clone(),
        attempt: record.config.attempt,
        state: record.state,
        created_at: record.created_at,
        addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
    }
}
