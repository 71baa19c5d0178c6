//! [`FakeRuntime`]: the verbs of a runtime, each of which may fail as [`RuntimeFaults`] say.

use std::{sync::Arc, time::Duration};

use pulselet_runtime::{
    AttachOptions, ContainerConfig, ContainerFilter, ContainerId, ContainerStats, ContainerStatus,
    DuplexStream, Error, Events, ExecOptions, ExecOutput, ExecRequest, ExecStreams, Features, ImageSummary,
    NetworkPart, Operation, RegistryCredentials, Resources, Result, Runtime, RuntimeCondition, RuntimeEvent,
    RuntimeHealth, SandboxConfig, SandboxId, SandboxStatus, SecurityFeatures, SeparateExecOutput,
    SignalMasks, Version, async_trait,
};
use tokio::time::sleep;

use crate::{
    faults::{Dice, Fate, RuntimeFaults},
    script::{ImageScript, LifeScript},
    state::{Container, Inner},
    streams,
};

/// Verbs remembered for the test; the oldest go first.
const MAX_CALLS: usize = 100_000;

/// Clones are the same runtime.
#[derive(Debug, Clone)]
pub struct FakeRuntime(Arc<Inner>);

impl FakeRuntime {
    /// Must be called where tokio's clock is.
    pub fn new(faults: RuntimeFaults) -> Self {
        let features = Features {
            stop_signal: true,
            events: true,
            images: true,
            kill_reporting: true,
            security: SecurityFeatures::ALL,
        };
        Self::with_features(faults, features)
    }

    /// A runtime that cannot do everything.
    pub fn with_features(faults: RuntimeFaults, features: Features) -> Self {
        Self(Arc::new(Inner::new(faults, features)))
    }

    /// Says what the lives of containers of this name will be; the last repeats.
    pub fn script(&self, container: &str, lives: impl IntoIterator<Item = LifeScript>) {
        self.0.with(|state| {
            state
                .lives
                .insert(container.to_owned(), lives.into_iter().collect())
        });
    }

    pub fn script_image(&self, reference: &str, image: ImageScript) {
        self.0
            .with(|state| state.images.insert(reference.to_owned(), image));
    }

    /// Says how many bytes of memory containers of this name use.
    pub fn script_memory(&self, container: &str, bytes: u64) {
        self.0
            .with(|state| state.memory.insert(container.to_owned(), bytes));
    }

    /// Commands with streams and forwarded connections that have not ended.
    pub fn open_streams(&self) -> usize {
        self.0.open.count()
    }

    /// Other misfortune from now on.
    pub fn set_faults(&self, faults: RuntimeFaults) {
        self.0.with(|state| state.dice = Dice::new(faults));
    }

    /// Ends a running container as if it had left by itself. What does not run stays as it is.
    pub fn exit(&self, id: &ContainerId, code: i32) {
        if let Ok(container) = self.0.container(id) {
            container.control.send_modify(|control| control.exit = Some(code));
        }
    }

    /// As if another program had changed a part of the network, which was restored.
    pub fn restore_network(&self, part: NetworkPart) {
        self.0.events.publish(RuntimeEvent::NetworkRestored(part));
    }

    /// What was asked of the runtime, in order: the verb and the name or id it was about.
    pub fn calls(&self) -> Vec<(Operation, String)> {
        self.0.with(|state| state.calls.iter().cloned().collect())
    }

    /// How a container was asked for last, by its name and attempt.
    pub fn config(&self, container: &str, attempt: u32) -> Option<ContainerConfig> {
        let key = (container.to_owned(), attempt);
        self.0.with(|state| state.configs.get(&key).cloned())
    }

    /// The handler that the last sandbox of a pod was asked for with; `None` if it has none.
    pub fn handler(&self, pod: &str) -> Option<String> {
        self.0.with(|state| state.handlers.get(pod).cloned())
    }

    /// With which credentials an image was asked for last; `None` if it was not.
    pub fn pulled_as(&self, reference: &str) -> Option<Option<RegistryCredentials>> {
        self.0.with(|state| state.pulled_as.get(reference).cloned())
    }

    /// Carries a verb out, or not, as the dice fall.
    async fn call<T>(
        &self,
        operation: Operation,
        about: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (delay, fate) = self.0.with(|state| {
            if state.calls.len() == MAX_CALLS {
                state.calls.pop_front();
            }
            state.calls.push_back((operation, about.to_owned()));
            state.dice.call()
        });
        if !delay.is_zero() {
            sleep(delay).await;
        }
        match fate {
            Fate::Works => work.await,
            Fate::Fails => Err(Error::unavailable(
                operation,
                "a fault was injected before it was done",
            )),
            Fate::LosesAnswer => {
                work.await?;
                Err(Error::unavailable(
                    operation,
                    "a fault was injected after it was done",
                ))
            }
        }
    }
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn version(&self) -> Result<Version> {
        Ok(Version {
            name: "fake".into(),
            version: "0".into(),
            features: self.0.features,
        })
    }

    async fn health(&self) -> Result<RuntimeHealth> {
        Ok(RuntimeHealth {
            runtime: RuntimeCondition::Ready,
            network: RuntimeCondition::Ready,
        })
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId> {
        self.call(Operation::RunSandbox, &config.pod.name, async {
            self.0.run_sandbox(config)
        })
        .await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<()> {
        let work = async {
            self.0.stop_sandbox(id).await;
            Ok(())
        };
        self.call(Operation::StopSandbox, id.as_str(), work).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        let work = async {
            self.0.stop_sandbox(id).await;
            let of_sandbox = |container: &&Arc<Container>| container.status.sandbox == *id;
            let containers: Vec<_> = self
                .0
                .with(|state| state.containers.values().filter(of_sandbox).cloned().collect());
            for container in containers {
                self.0.remove(&container.status.id).await;
            }
            self.0.with(|state| state.sandboxes.remove(id));
            Ok(())
        };
        self.call(Operation::RemoveSandbox, id.as_str(), work).await
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus> {
        let work = async {
            self.0
                .with(|state| state.sandboxes.get(id).cloned())
                .ok_or_else(|| Error::no_sandbox(id))
        };
        self.call(Operation::SandboxStatus, id.as_str(), work).await
    }

    async fn list_sandboxes(&self) -> Result<Vec<SandboxStatus>> {
        let work = async { Ok(self.0.with(|state| state.sandboxes.values().cloned().collect())) };
        self.call(Operation::List, "sandboxes", work).await
    }

    async fn create_container(&self, sandbox: &SandboxId, config: &ContainerConfig) -> Result<ContainerId> {
        let key = (config.name.clone(), config.attempt);
        self.0.with(|state| state.configs.insert(key, config.clone()));
        self.call(Operation::CreateContainer, &config.name, async {
            self.0.create(sandbox, config)
        })
        .await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let work = async {
            let (inner, container) = (Arc::clone(&self.0), self.0.container(id)?);
            // It goes on when the caller stops waiting.
            let start = tokio::spawn(async move { inner.start(container).await });
            start
                .await
                .map_err(|error| Error::failed(Operation::StartContainer, error))?
        };
        self.call(Operation::StartContainer, id.as_str(), work).await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let work = async {
            if let Ok(container) = self.0.container(id) {
                self.0.stop(&container, grace).await;
            }
            Ok(())
        };
        self.call(Operation::StopContainer, id.as_str(), work).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        let work = async {
            self.0.remove(id).await;
            Ok(())
        };
        self.call(Operation::RemoveContainer, id.as_str(), work).await
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus> {
        let work = async { self.0.container(id).map(|container| container.status()) };
        self.call(Operation::ContainerStatus, id.as_str(), work).await
    }

    async fn list_containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerStatus>> {
        let work = async {
            let all = self.0.with(|state| {
                state
                    .containers
                    .values()
                    .map(|one| one.status())
                    .collect::<Vec<_>>()
            });
            let matches = |status: &ContainerStatus| filter.matches(&status.sandbox, &status.pod);
            Ok(all.into_iter().filter(matches).collect())
        };
        self.call(Operation::List, "containers", work).await
    }

    async fn signal_masks(&self, id: &ContainerId) -> Result<Option<SignalMasks>> {
        let work = async { self.0.container(id).map(|container| container.script.masks) };
        self.call(Operation::ContainerStatus, id.as_str(), work).await
    }

    async fn container_stats(&self, id: &ContainerId) -> Result<ContainerStats> {
        let work = async {
            let name = self.0.container(id)?.status.name.clone();
            let memory_usage = self.0.with(|state| state.memory.get(&name).copied());
            Ok(ContainerStats {
                memory_usage: memory_usage.unwrap_or(0),
                ..ContainerStats::default()
            })
        };
        self.call(Operation::ContainerStats, id.as_str(), work).await
    }

    async fn update_container(&self, id: &ContainerId, resources: &Resources) -> Result<()> {
        let work = async {
            self.0.container(id)?;
            let (id, resources) = (id.clone(), resources.clone());
            self.0.with(|state| state.resources.insert(id, resources));
            Ok(())
        };
        self.call(Operation::UpdateContainer, id.as_str(), work).await
    }

    async fn container_resources(&self, id: &ContainerId) -> Result<Option<Resources>> {
        Ok(self.0.with(|state| state.resources.get(id).cloned()))
    }

    async fn exec_sync(&self, id: &ContainerId, request: &ExecRequest) -> Result<ExecOutput> {
        let work = async { self.0.exec(&*self.0.container(id)?, request).await };
        self.call(Operation::Exec, id.as_str(), work).await
    }

    /// Scripted commands write to stdout alone.
    async fn exec_sync_separately(
        &self,
        id: &ContainerId,
        request: &ExecRequest,
    ) -> Result<SeparateExecOutput> {
        let output = self.exec_sync(id, request).await?;
        Ok(SeparateExecOutput {
            outcome: output.outcome,
            stdout: output.output,
            stderr: Vec::new(),
            truncated: output.truncated,
        })
    }

    async fn exec(&self, id: &ContainerId, options: &ExecOptions) -> Result<ExecStreams> {
        let work = async {
            self.0.container(id)?;
            streams::exec(&self.0.open, options)
        };
        self.call(Operation::Exec, id.as_str(), work).await
    }

    async fn attach(&self, id: &ContainerId, options: &AttachOptions) -> Result<ExecStreams> {
        let work = async {
            self.0.container(id)?;
            let AttachOptions {
                tty,
                stdin,
                stdout,
                stderr,
            } = *options;
            let options = ExecOptions {
                command: vec!["cat".to_owned()],
                tty,
                stdin,
                stdout,
                stderr,
                term: None,
            };
            streams::exec(&self.0.open, &options)
        };
        self.call(Operation::Attach, id.as_str(), work).await
    }

    async fn port_forward(&self, id: &SandboxId, port: u16) -> Result<DuplexStream> {
        let work = async { streams::port_forward(&self.0.open, port) };
        self.call(Operation::PortForward, id.as_str(), work).await
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
        self.call(Operation::ReopenLog, id.as_str(), async {
            self.0.container(id).map(drop)
        })
        .await
    }

    async fn pull_image(
        &self,
        reference: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageSummary> {
        let key = reference.to_owned();
        self.0
            .with(|state| state.pulled_as.insert(key, credentials.cloned()));
        self.call(Operation::PullImage, reference, self.0.pull(reference))
            .await
    }

    async fn image_status(&self, reference: &str) -> Result<Option<ImageSummary>> {
        let work = async {
            Ok(self
                .0
                .images()
                .into_iter()
                .find(|(name, _)| name == reference)
                .map(|(_, image)| image))
        };
        self.call(Operation::ImageStatus, reference, work).await
    }

    async fn list_images(&self) -> Result<Vec<ImageSummary>> {
        let work = async { Ok(self.0.images().into_iter().map(|(_, image)| image).collect()) };
        self.call(Operation::List, "images", work).await
    }

    async fn remove_image(&self, reference: &str) -> Result<()> {
        let work = async {
            self.0.with(|state| state.images.remove(reference));
            Ok(())
        };
        self.call(Operation::RemoveImage, reference, work).await
    }

    fn events(&self) -> Events {
        self.0.events.subscribe()
    }
}
