//! [`CriRuntime`]: the runtime's verbs as calls of a CRI server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pulselet_runtime::{
    AttachOptions, ContainerConfig, ContainerFilter, ContainerId, ContainerState, ContainerStats,
    ContainerStatus, DuplexStream, Error, Events, ExecOptions, ExecOutcome, ExecOutput, ExecRequest,
    ExecStreams, Features, ImageSummary, ObjectKind, Operation, RegistryCredentials, Resources, Result,
    Runtime, RuntimeCondition, RuntimeHealth, SandboxConfig, SandboxId, SandboxStatus, SecurityFeatures,
    SignalMasks, Version, WritableLayer, async_trait,
};
use thiserror::Error;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use crate::call::{ASK, CHANGE, CallError, SLACK, call, carry_out, whole_seconds};
use crate::connection::{ConnectError, Connection};
use crate::events::Watch;
use crate::image::Images;
use crate::owner::{self, OwnerError};
use crate::sandboxes::Sandboxes;
use crate::streams::{self, Wanted};
use crate::sub_path::SubPaths;
use crate::table::Table;
use crate::wire::v1;
use crate::{container, leftover, logs, sandbox, security};

/// Where container runtimes listen by default, the most usual first.
pub const USUAL_SOCKETS: [&str; 3] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/var/run/cri-dockerd.sock",
];

/// How long a command without a timeout may take: a day, so that nothing waits for ever.
const LONGEST_COMMAND: Duration = Duration::from_hours(24);

#[derive(Debug, Clone)]
pub struct CriOptions {
    /// The server's socket.
    pub socket: PathBuf,
    /// A directory of our own: the owner's name, and mounts of sub-paths.
    pub root: PathBuf,
}

#[derive(Debug, Error)]
pub enum CriOpenError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Owner(#[from] OwnerError),
}

/// A CRI server as a runtime. Clones are the same.
#[derive(Debug, Clone)]
pub struct CriRuntime(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connection: Connection,
    images: Images,
    sandboxes: Sandboxes,
    table: Arc<Table>,
    watch: Arc<Watch>,
    sub_paths: SubPaths,
    found: v1::VersionResponse,
    security: SecurityFeatures,
    /// `None` if the server does not make cgroups by their paths.
    cgroup_root: Option<PathBuf>,
    /// They look for changes and for long logs as long as the runtime is used.
    _watchers: [AbortOnDropHandle<()>; 3],
}

impl CriRuntime {
    /// Connects to a server. Only one at a time may use a root; the caller sees to that.
    pub async fn open(options: CriOptions) -> std::result::Result<Self, CriOpenError> {
        let (connection, found) = Connection::open(&options.socket).await?;
        let security = security::features(&connection).await;
        let owner = owner::load(&options.root)?;
        let cgroup_root = cgroup_root(&connection, &owner).await;
        let images = Images::new(connection.clone());
        let table = Arc::new(Table::new(connection.clone(), images.clone(), owner.clone()));
        let watch = Arc::new(Watch::new(Arc::clone(&table), connection.clone()));
        let watchers = [
            AbortOnDropHandle::new(tokio::spawn(Arc::clone(&watch).look())),
            AbortOnDropHandle::new(tokio::spawn(Arc::clone(&watch).listen())),
            AbortOnDropHandle::new(tokio::spawn(logs::rotate(Arc::clone(&table), connection.clone()))),
        ];
        let sub_paths = SubPaths::new(options.root.join("sub-paths"));
        let sandboxes = Sandboxes::new(connection.clone(), owner, sub_paths.clone());
        let runtime = Self(Arc::new(Inner {
            connection,
            images,
            sandboxes,
            table,
            watch,
            sub_paths,
            found,
            security,
            cgroup_root,
            _watchers: watchers,
        }));
        runtime.0.forget_stale_mounts().await;
        Ok(runtime)
    }

    /// The name by which servers know the containers of a root, if it was used before.
    pub fn owner(root: &Path) -> Option<String> {
        owner::find(root)
    }

    /// Whether a root was used before: its containers are at some server.
    pub fn was_used(root: &Path) -> bool {
        owner::exists(root)
    }
}

/// The node makes cgroups by their paths. With another driver, or if the server does not say which it has, pods are where the
/// server puts them.
async fn cgroup_root(connection: &Connection, owner: &str) -> Option<PathBuf> {
    let mut service = connection.runtime();
    let driver = match call(ASK, service.runtime_config(v1::RuntimeConfigRequest {})).await {
        Ok(answer) => answer.linux.map(|linux| linux.cgroup_driver()),
        Err(error) => {
            tracing::debug!(?error, "the runtime does not say how it makes cgroups");
            None
        }
    };
    if driver == Some(v1::CgroupDriver::Cgroupfs) {
        return Some(PathBuf::from(format!("pulselet-{owner}")));
    }
    tracing::info!(
        ?driver,
        "pods have no cgroups of their own: the runtime does not make them by their paths; with containerd, SystemdCgroup \
         = false changes that"
    );
    None
}

impl Inner {
    /// A server that does not answer yet keeps its mounts; they are looked at again when the next agent starts.
    async fn forget_stale_mounts(&self) {
        let Ok(sandboxes) = self.sandboxes.list().await else {
            return;
        };
        let kept: Vec<String> = sandboxes.iter().map(|status| status.id.to_string()).collect();
        let sub_paths = self.sub_paths.clone();
        blocking(move || sub_paths.keep(&kept)).await;
    }

    async fn create(self: Arc<Self>, sandbox: SandboxId, mut config: ContainerConfig) -> Result<ContainerId> {
        let operation = Operation::CreateContainer;
        let sandbox_config = self.sandboxes.config(&sandbox).await?;
        let image = self.image_of(&config).await?;
        config.mounts = self.prepare(&sandbox, &config).await?;
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(container::to_wire(
                &config,
                &sandbox_config,
                &image,
                self.table.owner(),
            )?),
            sandbox_config: Some(sandbox::to_wire(&sandbox_config, self.table.owner())),
        };
        self.watch.expect_change();
        let mut client = self.connection.runtime();
        let answer = call(CHANGE, Box::pin(client.create_container(request))).await;
        let created = match answer {
            Ok(created) => created,
            Err(error) if is_name_taken(&error) => return Err(self.taken(&sandbox, &config, error).await),
            Err(error) => return Err(error.on(operation, ObjectKind::Sandbox, sandbox.as_str())),
        };
        let id = ContainerId::new(created.container_id);
        self.table.note(&id, &sandbox);
        Ok(id)
    }

    /// What is wanted of the image; asked for only where it matters.
    async fn image_of(&self, config: &ContainerConfig) -> Result<Arc<ImageSummary>> {
        let security = &config.security;
        let needed = security.run_as_group.is_some()
            && security.run_as_user.is_none()
            && security.run_as_username.is_none();
        if !needed {
            return Ok(Arc::default());
        }
        let reference = if config.image_id.is_empty() {
            &config.image
        } else {
            &config.image_id
        };
        Ok(self.images.of_container(reference).await?.unwrap_or_default())
    }

    /// Makes what a server expects to be there, and resolves sub-paths.
    async fn prepare(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
    ) -> Result<Vec<pulselet_runtime::Mount>> {
        let operation = Operation::CreateContainer;
        if let Some(directory) = config.log_path.parent() {
            let made = tokio::fs::create_dir_all(directory).await;
            made.map_err(|error| Error::failed(operation, error))?;
        }
        let sub_paths = self.sub_paths.clone();
        let (sandbox, name, attempt) = (sandbox.to_string(), config.name.clone(), config.attempt);
        let mounts = config.mounts.clone();
        blocking(move || sub_paths.resolve(&sandbox, &name, attempt, &mounts))
            .await
            .map_err(|error| Error::failed(operation, error))
    }

    /// The name of a new container is taken: by itself, made by a call whose answer was lost, or by somebody else's.
    async fn taken(&self, sandbox: &SandboxId, config: &ContainerConfig, error: CallError) -> Error {
        let is_it = |status: &ContainerStatus| {
            status.sandbox == *sandbox && status.name == config.name && status.attempt == config.attempt
        };
        let containers = self.table.refresh().await.unwrap_or_default();
        match containers.into_iter().find(is_it) {
            Some(status) => Error::AlreadyExists {
                kind: ObjectKind::Container,
                id: status.id.to_string(),
            },
            None => error.of(Operation::CreateContainer),
        }
    }

    async fn start(self: Arc<Self>, id: ContainerId) -> Result<()> {
        let request = v1::StartContainerRequest {
            container_id: id.to_string(),
        };
        self.watch.expect_change();
        let answer = call(CHANGE, self.connection.runtime().start_container(request)).await;
        self.watch.expect_change();
        match answer {
            Ok(_) => Ok(()),
            Err(error) => Err(cannot_run(&error)
                .unwrap_or_else(|| error.on(Operation::StartContainer, ObjectKind::Container, id.as_str()))),
        }
    }

    async fn stop(self: Arc<Self>, id: ContainerId, grace: Duration) -> Result<()> {
        let request = v1::StopContainerRequest {
            container_id: id.to_string(),
            timeout: whole_seconds(grace),
        };
        self.watch.expect_change();
        let within = grace.saturating_add(SLACK);
        let answer = call(within, self.connection.runtime().stop_container(request)).await;
        self.watch.expect_change();
        match answer {
            Ok(_) => self.bury_unborn(&id).await,
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.of(Operation::StopContainer)),
        }
    }

    /// Servers do nothing to stop a container that never ran. It is removed, so that a late start finds nothing, and
    /// counts as exited until it is removed by us.
    async fn bury_unborn(&self, id: &ContainerId) -> Result<()> {
        match self.table.status(id).await {
            Ok(status) if status.state == ContainerState::Created => {
                self.remove_from_server(id).await?;
                self.table.bury(status);
                Ok(())
            }
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn remove(self: Arc<Self>, id: ContainerId) -> Result<()> {
        let status = self.table.status(&id).await;
        self.remove_from_server(&id).await?;
        self.table.forget(&id);
        if let Ok(status) = status {
            let sub_paths = self.sub_paths.clone();
            blocking(move || {
                sub_paths.forget_container(status.sandbox.as_str(), &status.name, status.attempt);
            })
            .await;
        }
        Ok(())
    }

    async fn remove_from_server(&self, id: &ContainerId) -> Result<()> {
        self.watch.expect_change();
        let removed = match self.ask_to_remove(id).await {
            Err(error) if leftover::clear(&self.connection, &error).await => self.ask_to_remove(id).await,
            result => result,
        };
        match removed {
            Err(error) if !error.is_not_found() => Err(error.of(Operation::RemoveContainer)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    async fn ask_to_remove(&self, id: &ContainerId) -> std::result::Result<(), CallError> {
        let request = v1::RemoveContainerRequest {
            container_id: id.to_string(),
        };
        call(CHANGE, self.connection.runtime().remove_container(request)).await?;
        Ok(())
    }
}

#[async_trait]
impl Runtime for CriRuntime {
    async fn version(&self) -> Result<Version> {
        let found = &self.0.found;
        Ok(Version {
            name: found.runtime_name.clone(),
            version: found.runtime_version.trim_start_matches('v').to_owned(),
            features: Features {
                stop_signal: self.0.table.tells_signals(),
                events: true,
                images: true,
                kill_reporting: false,
                security: self.0.security,
            },
        })
    }

    async fn health(&self) -> Result<RuntimeHealth> {
        let request = v1::StatusRequest { verbose: false };
        let answer = call(ASK, self.0.connection.runtime().status(request)).await;
        let status = answer.map_err(|error| error.of(Operation::Connect))?.status;
        let conditions = status.unwrap_or_default().conditions;
        Ok(RuntimeHealth {
            runtime: condition(&conditions, "RuntimeReady"),
            network: condition(&conditions, "NetworkReady"),
        })
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId> {
        let (inner, config) = (Arc::clone(&self.0), config.clone());
        carry_out(Operation::RunSandbox, async move {
            inner.sandboxes.run(&config).await
        })
        .await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<()> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        inner.watch.expect_change();
        carry_out(
            Operation::StopSandbox,
            async move { inner.sandboxes.stop(&id).await },
        )
        .await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        inner.watch.expect_change();
        carry_out(Operation::RemoveSandbox, async move {
            inner.sandboxes.remove(&id).await?;
            inner.table.forget_sandbox(&id);
            Ok(())
        })
        .await
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus> {
        self.0.sandboxes.status(id).await
    }

    async fn list_sandboxes(&self) -> Result<Vec<SandboxStatus>> {
        self.0.sandboxes.list().await
    }

    async fn sandboxes_of(&self, pod_uid: &str) -> Result<Vec<SandboxStatus>> {
        self.0.sandboxes.of_pod(pod_uid).await
    }

    async fn create_container(&self, sandbox: &SandboxId, config: &ContainerConfig) -> Result<ContainerId> {
        let work = Arc::clone(&self.0).create(sandbox.clone(), config.clone());
        carry_out(Operation::CreateContainer, work).await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let work = Arc::clone(&self.0).start(id.clone());
        carry_out(Operation::StartContainer, work).await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let work = Arc::clone(&self.0).stop(id.clone(), grace);
        carry_out(Operation::StopContainer, work).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        let work = Arc::clone(&self.0).remove(id.clone());
        carry_out(Operation::RemoveContainer, work).await
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus> {
        self.0.table.status(id).await
    }

    async fn list_containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerStatus>> {
        let mut all = self.0.table.refresh().await?;
        all.retain(|status| filter.matches(&status.sandbox, &status.pod));
        Ok(all)
    }

    async fn signal_masks(&self, id: &ContainerId) -> Result<Option<SignalMasks>> {
        let pid = self.0.table.main_process(id).await?;
        Ok(pid.and_then(SignalMasks::of_process))
    }

    async fn init_process(&self, id: &ContainerId) -> Result<Option<i32>> {
        self.0.table.main_process(id).await
    }

    async fn container_stats(&self, id: &ContainerId) -> Result<ContainerStats> {
        let request = v1::ContainerStatsRequest {
            container_id: id.to_string(),
        };
        let operation = Operation::ContainerStats;
        let answer = call(ASK, self.0.connection.runtime().container_stats(request)).await;
        let answer = answer.map_err(|error| error.on(operation, ObjectKind::Container, id.as_str()))?;
        let stats = answer.stats.unwrap_or_default();
        let (cpu, memory) = (stats.cpu.unwrap_or_default(), stats.memory.unwrap_or_default());
        let number = |value: Option<v1::UInt64Value>| value.unwrap_or_default().value;
        Ok(ContainerStats {
            cpu_nanos: number(cpu.usage_core_nano_seconds),
            memory_working_set: number(memory.working_set_bytes),
            memory_usage: number(memory.usage_bytes),
            memory_anonymous: number(memory.rss_bytes),
            page_faults: number(memory.page_faults),
            major_page_faults: number(memory.major_page_faults),
            swap_usage: stats.swap.and_then(|swap| Some(swap.swap_usage_bytes?.value)),
            processes: 0,
        })
    }

    async fn writable_layer(&self, id: &ContainerId) -> Result<Option<WritableLayer>> {
        let request = v1::ContainerStatsRequest {
            container_id: id.to_string(),
        };
        let operation = Operation::ContainerStats;
        let answer = call(ASK, self.0.connection.runtime().container_stats(request)).await;
        let answer = answer.map_err(|error| error.on(operation, ObjectKind::Container, id.as_str()))?;
        let layer = answer.stats.and_then(|stats| stats.writable_layer);
        Ok(layer.and_then(|layer| {
            Some(WritableLayer {
                bytes: layer.used_bytes?.value,
                inodes: layer.inodes_used.map_or(0, |inodes| inodes.value),
            })
        }))
    }

    async fn exec_sync(&self, id: &ContainerId, request: &ExecRequest) -> Result<ExecOutput> {
        let timeout = request.timeout;
        let wire = v1::ExecSyncRequest {
            container_id: id.to_string(),
            cmd: request.command.clone(),
            timeout: timeout.map_or(0, whole_seconds),
        };
        // Whole seconds are the server's; the rest is ours. A call that is given up makes the server kill the command.
        let within = timeout.unwrap_or(LONGEST_COMMAND);
        match call(within, self.0.connection.runtime().exec_sync(wire)).await {
            Ok(answer) => Ok(output(&answer, request.output_limit)),
            Err(error) if timed_out(&error, timeout) => Ok(ExecOutput {
                outcome: ExecOutcome::TimedOut,
                output: Vec::new(),
                truncated: false,
            }),
            Err(error) => Err(cannot_run(&error)
                .unwrap_or_else(|| error.on(Operation::Exec, ObjectKind::Container, id.as_str()))),
        }
    }

    async fn exec(&self, id: &ContainerId, options: &ExecOptions) -> Result<ExecStreams> {
        let wanted = Wanted::from(options);
        let request = v1::ExecRequest {
            container_id: id.to_string(),
            cmd: options.command.clone(),
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: wanted.stderr(),
        };
        let answer = call(ASK, self.0.connection.runtime().exec(request)).await;
        let answer = answer.map_err(|error| error.on(Operation::Exec, ObjectKind::Container, id.as_str()))?;
        streams::command(Operation::Exec, &answer.url, wanted).await
    }

    async fn attach(&self, id: &ContainerId, options: &AttachOptions) -> Result<ExecStreams> {
        let wanted = Wanted::from(options);
        let request = v1::AttachRequest {
            container_id: id.to_string(),
            stdin: options.stdin,
            tty: options.tty,
            stdout: options.stdout,
            stderr: wanted.stderr(),
        };
        let answer = call(ASK, self.0.connection.runtime().attach(request)).await;
        let answer =
            answer.map_err(|error| error.on(Operation::Attach, ObjectKind::Container, id.as_str()))?;
        streams::command(Operation::Attach, &answer.url, wanted).await
    }

    async fn port_forward(&self, id: &SandboxId, port: u16) -> Result<DuplexStream> {
        let request = v1::PortForwardRequest {
            pod_sandbox_id: id.to_string(),
            port: vec![port.into()],
        };
        let operation = Operation::PortForward;
        let answer = call(ASK, self.0.connection.runtime().port_forward(request)).await;
        let answer = answer.map_err(|error| error.on(operation, ObjectKind::Sandbox, id.as_str()))?;
        streams::port(&answer.url, port).await
    }

    async fn update_container(&self, id: &ContainerId, resources: &Resources) -> Result<()> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_string(),
            linux: Some(container::resources(resources)),
            ..v1::UpdateContainerResourcesRequest::default()
        };
        let mut service = self.0.connection.runtime();
        let answer = call(CHANGE, service.update_container_resources(request)).await;
        answer.map_err(|error| error.on(Operation::UpdateContainer, ObjectKind::Container, id.as_str()))?;
        Ok(())
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
        let request = v1::ReopenContainerLogRequest {
            container_id: id.to_string(),
        };
        let answer = call(CHANGE, self.0.connection.runtime().reopen_container_log(request)).await;
        answer.map_err(|error| error.on(Operation::ReopenLog, ObjectKind::Container, id.as_str()))?;
        Ok(())
    }

    async fn pull_image(
        &self,
        reference: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageSummary> {
        self.0.images.pull(reference, credentials).await
    }

    async fn image_status(&self, reference: &str) -> Result<Option<ImageSummary>> {
        self.0.images.status(reference).await
    }

    async fn list_images(&self) -> Result<Vec<ImageSummary>> {
        self.0.images.list().await
    }

    async fn remove_image(&self, reference: &str) -> Result<()> {
        self.0.images.remove(reference).await
    }

    fn cgroup_root(&self) -> Option<PathBuf> {
        self.0.cgroup_root.clone()
    }

    fn events(&self) -> Events {
        self.0.table.hub.subscribe()
    }
}

/// Work on files, off the threads that wait.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .expect("work on files does not panic, and is not given up")
}

fn condition(conditions: &[v1::RuntimeCondition], name: &str) -> RuntimeCondition {
    match conditions.iter().find(|condition| condition.r#type == name) {
        Some(condition) if condition.status => RuntimeCondition::Ready,
        Some(condition) => RuntimeCondition::NotReady {
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        },
        None => RuntimeCondition::NotReady {
            reason: "Unknown".to_owned(),
            message: format!("the runtime does not report {name}"),
        },
    }
}

/// containerd and CRI-O hold the name of an object from the moment its creation begins.
pub(crate) fn is_name_taken(error: &CallError) -> bool {
    error.code() == Some(Code::AlreadyExists) || error.text().contains("is reserved")
}

/// A server that ended a command for its time says so; one that is slow to say so is not waited for.
fn timed_out(error: &CallError, timeout: Option<Duration>) -> bool {
    timeout.is_some() && matches!(error.code(), None | Some(Code::DeadlineExceeded))
}

/// The words of OCI runtimes for a program that cannot be executed.
fn cannot_run(error: &CallError) -> Option<Error> {
    let text = error.text();
    let start = text.find("exec: ").or_else(|| text.find("unable to find user"))?;
    let known = [
        "executable file not found",
        "no such file or directory",
        "permission denied",
        "exec format error",
        "is a directory",
        "unable to find user",
    ];
    let message = text[start..].trim_end_matches(": unknown").to_owned();
    known
        .iter()
        .any(|words| message.contains(words))
        .then_some(Error::CannotRun { message })
}

/// CRI has the streams apart: what was said on the second follows the first.
fn output(answer: &v1::ExecSyncResponse, limit: usize) -> ExecOutput {
    let mut output = Vec::with_capacity((answer.stdout.len() + answer.stderr.len()).min(limit));
    for stream in [&answer.stdout, &answer.stderr] {
        let room = limit - output.len();
        output.extend_from_slice(&stream[..stream.len().min(room)]);
    }
    ExecOutput {
        outcome: ExecOutcome::Exited(answer.exit_code),
        truncated: output.len() < answer.stdout.len() + answer.stderr.len(),
        output,
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    fn refused(code: Code, text: &str) -> CallError {
        CallError::Refused(Status::new(code, text))
    }

    #[test]
    fn output_is_joined_and_cut() {
        let answer = v1::ExecSyncResponse {
            stdout: "12345".into(),
            stderr: "678".into(),
            exit_code: 3,
        };
        let joined = output(&answer, 100);
        assert_eq!(
            (joined.output.as_slice(), joined.truncated),
            (&b"12345678"[..], false)
        );
        let cut = output(&answer, 6);
        assert_eq!((cut.output.as_slice(), cut.truncated), (&b"123456"[..], true));
        assert_eq!(output(&answer, 0).output, b"");
        assert_eq!(joined.outcome, ExecOutcome::Exited(3));
    }

    #[test]
    fn what_cannot_be_executed_is_told_from_what_failed() {
        let text = "failed to exec in container: failed to start exec \"x\": OCI runtime exec failed: exec failed: \
                    unable to start container process: exec: \"nope\": executable file not found in $PATH: unknown";
        let error = cannot_run(&refused(Code::Unknown, text)).expect("it cannot run");
        assert_eq!(
            error.to_string(),
            "exec: \"nope\": executable file not found in $PATH"
        );
        assert!(cannot_run(&refused(Code::Unknown, "failed to exec: context canceled")).is_none());
    }

    #[test]
    fn only_a_command_with_a_timeout_times_out() {
        let second = Some(Duration::from_secs(1));
        assert!(timed_out(&refused(Code::DeadlineExceeded, ""), second));
        assert!(timed_out(&CallError::Late(Duration::from_secs(1)), second));
        assert!(!timed_out(&CallError::Late(Duration::from_secs(1)), None));
        assert!(!timed_out(&refused(Code::Unavailable, ""), second));
    }

    #[test]
    fn conditions_a_server_does_not_report_are_not_met() {
        let conditions = [v1::RuntimeCondition {
            r#type: "RuntimeReady".into(),
            status: true,
            ..v1::RuntimeCondition::default()
        }];
        assert_eq!(condition(&conditions, "RuntimeReady"), RuntimeCondition::Ready);
        assert!(matches!(
            condition(&conditions, "NetworkReady"),
            RuntimeCondition::NotReady { .. }
        ));
    }
}
