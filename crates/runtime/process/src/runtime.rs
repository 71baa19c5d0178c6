//! [`ProcessRuntime`]: the runtime's verbs for host processes.
//!
//! Containers and sandboxes are kept by [`Shims`]; here is what is particular to host processes: volumes as links,
//! the loopback address, no images.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pulselet_runtime::{
    AttachOptions, BoxError, ContainerConfig, ContainerFilter, ContainerId, ContainerStats, ContainerStatus,
    DuplexStream, Error, Events, ExecOptions, ExecOutput, ExecRequest, ExecStreams, Features, ImageSummary,
    LogLimits, Mount, Operation, RegistryCredentials, Result, Runtime, RuntimeCondition, RuntimeHealth,
    SandboxConfig, SandboxId, SandboxState, SandboxStatus, SecurityFeatures, Signal, SignalMasks, Version,
    async_trait,
};
use pulselet_shim::processes_with_variable;
use pulselet_shim_client::{
    Assignment, ContainerKind, ContainerRecord, OpenShimsError, SandboxRecord, ShimCommand, Shims,
};
use pulselet_sys::send_signal;
use rustix::process::{Pid, test_kill_process};
use tokio::net::TcpStream;

use crate::{cgroup::Cgroup, host_launcher::CONTAINER_ID_VARIABLE, validate};

/// Host processes as containers. Clones are the same runtime.
#[derive(Debug, Clone)]
pub struct ProcessRuntime(Shims);

impl ProcessRuntime {
    /// A host process has the groups that it is given, and nothing keeps it from anything else.
    pub const SECURITY: SecurityFeatures = SecurityFeatures {
        strict_groups: true,
        ..SecurityFeatures::NONE
    };

    /// Opens the root and adopts what is there. Only one at a time may use a root; the caller sees to that.
    pub async fn open(root: &Path, shim: ShimCommand) -> std::result::Result<Self, OpenShimsError> {
        Ok(Self(Shims::open(root, shim, Arc::new(HostProcess)).await?))
    }
}

#[derive(Debug)]
struct HostProcess;

impl ContainerKind for HostProcess {
    /// By the cgroup where there is one, and by the variable every process of the container was given.
    fn kill_leftovers(&self, record: &ContainerRecord, dir: &Path) -> bool {
        self.kill_unrecorded(record.id.as_str(), dir)
    }

    fn processes(&self, record: &ContainerRecord, dir: &Path) -> Vec<Pid> {
        let mut found = processes_with_variable(CONTAINER_ID_VARIABLE, record.id.as_str());
        found.extend(Cgroup::find(dir).into_iter().flat_map(|cgroup| cgroup.members()));
        found
    }

    fn kill_unrecorded(&self, id: &str, dir: &Path) -> bool {
        let mut left = processes_with_variable(CONTAINER_ID_VARIABLE, id);
        if let Some(cgroup) = Cgroup::find(dir) {
            cgroup.kill();
            left.extend(cgroup.members());
        }
        for pid in &left {
            let _ = send_signal(*pid, Signal::KILL.number());
        }
        left.retain(|pid| test_kill_process(*pid).is_ok());
        left.is_empty()
    }

    fn clean_up(&self, _record: &ContainerRecord, dir: &Path) {
        if let Some(cgroup) = Cgroup::find(dir) {
            cgroup.remove();
        }
    }
}

#[async_trait]
impl Runtime for ProcessRuntime {
    async fn version(&self) -> Result<Version> {
        Ok(Version {
            name: "pulselet-process".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            features: Features {
                security: Self::SECURITY,
                ..Shims::FEATURES
            },
        })
    }

    async fn health(&self) -> Result<RuntimeHealth> {
        Ok(RuntimeHealth {
            runtime: RuntimeCondition::Ready,
            network: RuntimeCondition::Ready,
        })
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId> {
        let loopback = |_: &SandboxConfig, _: &[&SandboxRecord]| {
            Ok(Assignment {
                addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
                user_ids: None,
            })
        };
        self.0
            .add_sandbox(config.clone(), SandboxState::Ready, loopback)
            .await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.0.stop_sandbox(id).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.0.stop_sandbox(id).await?;
        self.0.forget_sandbox(id).await
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus> {
        Ok(self.0.sandbox(id)?.status())
    }

    async fn list_sandboxes(&self) -> Result<Vec<SandboxStatus>> {
        Ok(self.0.sandboxes().iter().map(SandboxRecord::status).collect())
    }

    async fn create_container(&self, sandbox: &SandboxId, config: &ContainerConfig) -> Result<ContainerId> {
        validate::container(config)?;
        let signal = config.stop_signal.unwrap_or(Signal::TERM);
        let links = self.0.sandbox_dir(sandbox).join("volumes");
        let mounts = config.mounts.clone();
        let link = move |_: &Path| link_volumes(&links, &mounts).map_err(BoxError::from);
        self.0.create_container(sandbox, config, signal, link).await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        self.0.start_container(id).await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        self.0.stop_container(id, grace).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        self.0.remove_container(id).await
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus> {
        self.0.container_status(id)
    }

    async fn list_containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerStatus>> {
        Ok(self.0.list_containers(filter))
    }

    async fn signal_masks(&self, id: &ContainerId) -> Result<Option<SignalMasks>> {
        self.0.signal_masks(id)
    }

    async fn init_process(&self, id: &ContainerId) -> Result<Option<i32>> {
        self.0.init_process(id)
    }

    async fn container_stats(&self, _id: &ContainerId) -> Result<ContainerStats> {
        Err(Error::Unsupported {
            operation: Operation::ContainerStats,
        })
    }

    async fn exec_sync(&self, id: &ContainerId, request: &ExecRequest) -> Result<ExecOutput> {
        self.0.exec_sync(id, request).await
    }

    async fn exec(&self, id: &ContainerId, options: &ExecOptions) -> Result<ExecStreams> {
        self.0.exec(id, options).await
    }

    async fn attach(&self, id: &ContainerId, options: &AttachOptions) -> Result<ExecStreams> {
        self.0.attach(id, options).await
    }

    async fn port_forward(&self, id: &SandboxId, port: u16) -> Result<DuplexStream> {
        self.0.sandbox(id)?;
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        Ok(Box::new(
            stream.map_err(|error| Error::failed(Operation::PortForward, error))?,
        ))
    }

    fn limit_logs(&self, limits: LogLimits) -> bool {
        self.0.limit_logs(limits);
        true
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
        self.0.reopen_log(id).await
    }

    async fn pull_image(
        &self,
        _reference: &str,
        _credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageSummary> {
        Err(Error::Unsupported {
            operation: Operation::PullImage,
        })
    }

    async fn image_status(&self, _reference: &str) -> Result<Option<ImageSummary>> {
        Ok(None)
    }

    async fn list_images(&self) -> Result<Vec<ImageSummary>> {
        Ok(Vec::new())
    }

    async fn remove_image(&self, _reference: &str) -> Result<()> {
        Ok(())
    }

    fn events(&self) -> Events {
        self.0.events()
    }
}

/// Makes the volumes visible under their names in the sandbox's directory.
fn link_volumes(links: &Path, mounts: &[Mount]) -> std::result::Result<(), LinkError> {
    for mount in mounts.iter().filter(|mount| !mount.volume.is_empty()) {
        let path = links.join(&mount.volume);
        let linked = fs::create_dir_all(links).and_then(|()| symlink(mount.source(), &path));
        match linked {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(LinkError { path, source });
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
#[error("cannot link {path}: {source}", path = path.display())]
struct LinkError {
    path: PathBuf,
    source: io::Error,
}
