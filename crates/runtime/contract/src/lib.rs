//! What Pulselet asks of a container runtime, in the verbs of CRI.
//!
//! Where to start: the [`Runtime`] trait. It is the only connection between the node and whatever runs containers: host
//! processes, the built-in OCI containers, or a CRI server. [`SandboxConfig`] and [`ContainerConfig`] say what a pod
//! wants, fully resolved: volumes are host paths, variables are expanded, names of users and ports are numbers wherever
//! the node could know them. [`ContainerStatus`] and [`RuntimeEvent`] say what was observed.
//!
//! What holds for every implementation:
//! - Every verb may be called again. Stopping or removing what is gone succeeds; asking about it is
//!   [`Error::NotFound`].
//! - Objects outlive the caller. Dropping a future ends the waiting, never the work that has begun.
//! - Status is what was observed. A container for which a signal was sent is running until its exit was seen.
//! - Events are hints that something changed. A receiver that missed some gets [`RuntimeEvent::Resync`] and lists.
//!
//! What is left to others: policy (grace periods, hooks, restarts, back-off) is the node's; deadlines handed to a
//! runtime are kept by it, also when the caller dies.

mod container;
mod error;
mod event;
mod exec;
mod id;
mod image;
pub mod log;
mod sandbox;
mod service_route;
mod signal_masks;
pub mod user_ids;
mod volume_root;

use std::{fmt, path::PathBuf, time::Duration};

pub use async_trait::async_trait;
pub use container::{
    AppArmor, Capabilities, ContainerConfig, ContainerExit, ContainerFilter, ContainerState, ContainerStats,
    ContainerStatus, ContainerUser, Device, EnvVar, ExitCause, MASKED_PATHS, Mount, MountedImage,
    Propagation, READ_ONLY_PATHS, Resources, Seccomp, SecurityContext, WritableLayer,
};
pub use error::{BoxError, Error, ObjectKind, Operation, Result};
pub use event::{ContainerEvent, EVENT_BUFFER, EventHub, EventKind, Events, NetworkPart, RuntimeEvent};
pub use exec::{
    AttachOptions, Duplex, DuplexStream, ExecOptions, ExecOutcome, ExecOutput, ExecRequest, ExecStreams,
    PROBE_OUTPUT_LIMIT, ReadStream, SeparateExecOutput, TerminalSize, WriteStream,
};
pub use id::{ContainerId, SandboxId};
pub use image::{ImageErrorKind, ImageStorage, ImageSummary, RegistryCredentials, RuntimeImageError};
pub use pulselet_vocabulary::{ParseSignalError, PodName, Signal, exit_code};
pub use sandbox::{
    Dns, IdRange, InterfaceStats, Namespaces, PidNamespace, PodIdentity, PortMapping, Protocol,
    SandboxConfig, SandboxState, SandboxStatus,
};
use serde::{Deserialize, Serialize};
pub use service_route::{BackendChoice, ServiceRoute};
pub use signal_masks::SignalMasks;
pub use volume_root::VolumeRoot;

/// What runs containers.
#[async_trait]
pub trait Runtime: fmt::Debug + Send + Sync {
    /// Name, version and abilities. Cheap; a remote runtime may answer from what it learned when connecting.
    async fn version(&self) -> Result<Version>;

    /// Whether containers can be started now.
    async fn health(&self) -> Result<RuntimeHealth>;

    /// Makes what the containers of a pod share, with its network.
    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId>;

    /// Kills what still runs in the sandbox and takes its network away.
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<()>;

    /// Stops the sandbox and forgets it with all of its containers. Logs stay.
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()>;

    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus>;

    /// All sandboxes that belong to Pulselet, also those an earlier agent made.
    async fn list_sandboxes(&self) -> Result<Vec<SandboxStatus>>;

    /// The sandboxes of one pod. Costs no more where there are many others, if the runtime can help it.
    async fn sandboxes_of(&self, pod_uid: &str) -> Result<Vec<SandboxStatus>> {
        let mut all = self.list_sandboxes().await?;
        all.retain(|sandbox| sandbox.pod.uid == pod_uid);
        Ok(all)
    }

    /// Prepares a container without running it. A container of the same name and attempt in the same sandbox is
    /// [`Error::AlreadyExists`].
    async fn create_container(&self, sandbox: &SandboxId, config: &ContainerConfig) -> Result<ContainerId>;

    /// Runs a created container. [`Error::CannotRun`] when its command cannot be executed; the container then counts
    /// as exited.
    async fn start_container(&self, id: &ContainerId) -> Result<()>;

    /// Sends the container's stop signal, after `grace` SIGKILL to all that is left, and returns when the exit was
    /// observed. Grace zero is SIGKILL at once. Calling again while a stop is under way can shorten it, never
    /// lengthen it, and sends no second stop signal. A created container that never ran is made exited.
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()>;

    /// Forgets a container, killing it first if it still runs. Its log stays.
    async fn remove_container(&self, id: &ContainerId) -> Result<()>;

    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus>;

    /// Containers of Pulselet that match, also those an earlier agent made.
    async fn list_containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerStatus>>;

    async fn container_stats(&self, id: &ContainerId) -> Result<ContainerStats>;

    /// What the main process of a running container does about signals; `None` if it does not run or cannot be seen.
    async fn signal_masks(&self, id: &ContainerId) -> Result<Option<SignalMasks>>;

    /// The number of a running container's init process on the host; `None` if it does not run or the runtime does not know.
    async fn init_process(&self, _id: &ContainerId) -> Result<Option<i32>> {
        Ok(None)
    }

    /// What a container has written to its own layer; `None` if the runtime does not know.
    async fn writable_layer(&self, _id: &ContainerId) -> Result<Option<WritableLayer>> {
        Ok(None)
    }

    /// Runs a command in a running container to its end or to the timeout, when its whole process tree is killed.
    /// [`Error::CannotRun`] when the command cannot be executed.
    async fn exec_sync(&self, id: &ContainerId, request: &ExecRequest) -> Result<ExecOutput>;

    /// Like `exec_sync`, with the two outputs apart; the bound is for each of them.
    async fn exec_sync_separately(
        &self,
        _id: &ContainerId,
        _request: &ExecRequest,
    ) -> Result<SeparateExecOutput> {
        Err(Error::Unsupported {
            operation: Operation::SeparateOutputs,
        })
    }

    /// Changes the limits of a container that has not ended: those that are given, the others stay.
    async fn update_container(&self, _id: &ContainerId, _resources: &Resources) -> Result<()> {
        Err(Error::Unsupported {
            operation: Operation::UpdateContainer,
        })
    }

    /// The same for the pod as a whole.
    async fn update_sandbox(&self, _id: &SandboxId, _resources: &Resources) -> Result<()> {
        Err(Error::Unsupported {
            operation: Operation::UpdateSandbox,
        })
    }

    /// The limits of a container as they are now; `None` if the runtime does not know.
    async fn container_resources(&self, _id: &ContainerId) -> Result<Option<Resources>> {
        Ok(None)
    }

    /// Runs a command in a running container with its streams connected to the caller.
    async fn exec(&self, id: &ContainerId, options: &ExecOptions) -> Result<ExecStreams>;

    /// Connects to the streams of the init process of a running container.
    async fn attach(&self, id: &ContainerId, options: &AttachOptions) -> Result<ExecStreams>;

    /// Connects to a TCP port on the pod's loopback address.
    async fn port_forward(&self, id: &SandboxId, port: u16) -> Result<DuplexStream>;

    /// Asks that the logs of containers made from now on stay within limits. False if that is left to the caller, who
    /// then moves full logs away and calls [`Runtime::reopen_log`].
    fn limit_logs(&self, _limits: LogLimits) -> bool {
        false
    }

    /// Makes the container's log be opened anew under its path, after someone moved the file away.
    async fn reopen_log(&self, id: &ContainerId) -> Result<()>;

    /// Fetches an image if it is not there and returns what it is.
    async fn pull_image(
        &self,
        reference: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageSummary>;

    /// Returns `None` if the image is not there.
    async fn image_status(&self, reference: &str) -> Result<Option<ImageSummary>>;

    async fn list_images(&self) -> Result<Vec<ImageSummary>>;

    async fn remove_image(&self, reference: &str) -> Result<()>;

    /// Where images are kept; `None` if the runtime does not say.
    async fn image_storage(&self) -> Result<Option<ImageStorage>> {
        Ok(None)
    }

    /// What went through the interfaces that a pod has of its own; none if the runtime does not count.
    async fn sandbox_interfaces(&self, _id: &SandboxId) -> Result<Vec<InterfaceStats>> {
        Ok(Vec::new())
    }

    /// Below which cgroup the node makes those of its pods, from the roots of the hierarchies on, for
    /// [`SandboxConfig::cgroup_parent`]; `None` if the runtime takes none.
    fn cgroup_root(&self) -> Option<PathBuf> {
        None
    }

    /// Container events from now on.
    fn events(&self) -> Events;
}

/// How much of a container's output is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimits {
    /// Bytes of one file.
    pub file_size: u64,
    /// Files in all, the one being written included.
    pub files: u32,
}

/// What a runtime is and what it can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// As it calls itself, for example `containerd`.
    pub name: String,
    pub version: String,
    pub features: Features,
}

/// Abilities on which the node's behaviour depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent abilities, each asked for by name"
)]
pub struct Features {
    /// Honours [`ContainerConfig::stop_signal`] and reports the effective signal.
    pub stop_signal: bool,
    /// [`Runtime::events`] reports changes at once; otherwise the node has to list.
    pub events: bool,
    /// Uses images. Host processes do not.
    pub images: bool,
    /// [`ContainerExit::killed_after_grace`] is known.
    pub kill_reporting: bool,
    pub security: SecurityFeatures,
}

/// What of a pod's security settings a runtime enforces. The node refuses a pod that asks for more, before anything of
/// it is made. What is not here every runtime enforces: users, groups, no new privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent abilities, each asked for by name"
)]
pub struct SecurityFeatures {
    /// [`SecurityContext::app_armor`]
    pub app_armor: bool,
    /// [`SecurityContext::capabilities`]
    pub capabilities: bool,
    /// [`SecurityContext::seccomp`]
    pub seccomp: bool,
    /// [`SecurityContext::read_only_root`]
    pub read_only_root: bool,
    /// [`SecurityContext::strict_groups`]
    pub strict_groups: bool,
    /// [`Mount::recursive_read_only`]
    pub recursive_read_only: bool,
    /// [`SandboxConfig::sysctls`]
    pub sysctls: bool,
    /// [`PortMapping::host_ip`]
    pub host_ip: bool,
    /// [`Namespaces::own_users`]
    pub user_namespaces: bool,
}

impl SecurityFeatures {
    pub const ALL: Self = Self {
        app_armor: true,
        capabilities: true,
        seccomp: true,
        read_only_root: true,
        strict_groups: true,
        recursive_read_only: true,
        sysctls: true,
        host_ip: true,
        user_namespaces: true,
    };
    pub const NONE: Self = Self {
        app_armor: false,
        capabilities: false,
        seccomp: false,
        read_only_root: false,
        strict_groups: false,
        recursive_read_only: false,
        sysctls: false,
        host_ip: false,
        user_namespaces: false,
    };
}

/// The conditions a node reports about its runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeHealth {
    pub runtime: RuntimeCondition,
    pub network: RuntimeCondition,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeCondition {
    Ready,
    NotReady { reason: String, message: String },
}
