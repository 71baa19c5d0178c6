//! Sandboxes, from their record to what the machine has of them, and back.
//!
//! A sandbox is recorded before anything of it is made, and ready only when all of it is. What an agent that was killed
//! left of one that is not ready is taken away at the next start, or when the sandbox is removed.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, UdpSocket},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use pulselet_cgroup::CgroupError;
use pulselet_runtime::{
    ContainerFilter, ContainerState, ContainerStatus, Error, IdRange, Operation, PidNamespace, Result,
    SandboxConfig, SandboxId, SandboxState, user_ids,
};
use pulselet_shim::{
    Handshake,
    record::{self, LifeRecord, RecordError},
};
use pulselet_shim_client::{Assignment, SandboxRecord, ShimCommand, sync_sandbox};

use super::{Inner, OciRuntime, sandbox_id};
use crate::{
    cni::{self, CniError, Target},
    network::PodAddresses,
    sandbox::{self, Plan, SandboxError},
};

/// How long a pause process may take to be gone after it was killed.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// The addresses of a sandbox on the bridge. `dir` is the sandbox's.
fn bridge_addresses(record: &SandboxRecord, dir: &Path) -> Option<PodAddresses> {
    if record.config.namespaces.host_network || cni::is_attached(dir) {
        return None;
    }
    PodAddresses::among(&record.addresses)
}

/// The address under which this machine talks to others; nothing is sent to find it.
fn host_address() -> IpAddr {
    let somewhere = (Ipv4Addr::new(192, 0, 2, 1), 9);
    let address = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect(somewhere).and_then(|()| socket.local_addr()))
        .map(|address| address.ip());
    address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// All of these may block.
impl Inner {
    /// Takes away what an agent that was killed has left of sandboxes and containers that are gone or half made.
    pub(super) fn clean_up(&self) -> std::result::Result<(), SandboxError> {
        let sandboxes = self.shims.sandboxes();
        self.network.give_after(self.newest_address(&sandboxes));
        for record in &sandboxes {
            let dir = self.shims.sandbox_dir(&record.id);
            match (record.state, bridge_addresses(record, &dir)) {
                (SandboxState::Ready, Some(addresses)) => {
                    let forwards = sandbox::forwards(&record.config, addresses.v4);
                    self.network.adopt(&record.id, addresses, forwards);
                }
                (SandboxState::Ready, None) => {}
                (SandboxState::NotReady, _) => sandbox::unmount_all(&dir)?,
            }
        }
        self.network.remove_strays()?;
        let known: Vec<&str> = sandboxes.iter().map(|record| record.id.as_str()).collect();
        for path in self.cgroups.sandboxes_on_machine() {
            let id = path.file_name().and_then(|name| name.to_str()).map(sandbox_id);
            if id.is_some_and(|id| !known.contains(&id)) {
                self.end_unknown(&path);
            }
        }
        if sandboxes.is_empty() {
            self.cgroups.all().remove();
        }
        Ok(())
    }

    /// Kills what runs in the cgroups of a sandbox that has no record, or no readable one.
    fn end_unknown(&self, path: &Path) {
        let cgroup = self.cgroups.hierarchies.cgroup(path);
        if !cgroup.kill_and_remove(KILL_PATIENCE) {
            tracing::warn!(cgroup = %path.display(), "processes without a record cannot be killed");
        }
    }

    /// Looks for namespaces that are not pinned any more, and pins those again that a running container still has.
    /// Returns whether some are lost for good.
    fn has_lost_pins(&self, record: &SandboxRecord) -> bool {
        let dir = self.shims.sandbox_dir(&record.id);
        let lost = sandbox::lost_pins(&dir, &record.config);
        if lost.is_empty() {
            return false;
        }
        let pod = record.config.pod.pod_name();
        let Some(process) = self.running_process(record) else {
            tracing::warn!(%pod, ?lost, "the pod's namespaces are gone; its sandbox is made anew");
            return true;
        };
        match sandbox::pin_again(&dir, &lost, process) {
            Ok(()) => {
                tracing::warn!(%pod, ?lost, "namespaces of the pod were unmounted; they are pinned again");
                false
            }
            Err(error) => {
                tracing::warn!(%pod, %error, "namespaces of the pod cannot be pinned again; its sandbox is made anew");
                true
            }
        }
    }

    /// The init process of a container that runs in the sandbox.
    fn running_process(&self, sandbox: &SandboxRecord) -> Option<i32> {
        let all = self.shims.list_containers(&ContainerFilter::default());
        let running = |status: &&ContainerStatus| {
            status.sandbox == sandbox.id && matches!(status.state, ContainerState::Running { .. })
        };
        all.iter().filter(running).find_map(|status| {
            let dir = self.shims.container_dir(&status.id).ok()?;
            let Ok(Some(LifeRecord::Running { pid, .. })) = record::read_life(&dir) else {
                return None;
            };
            // The number may have become another process's; that one is not in the container's cgroup.
            let path = self.cgroups.sandbox_path(&sandbox.id, &sandbox.config);
            let path = path.join(status.id.as_str());
            let members = self.cgroups.hierarchies.cgroup(&path).members();
            members
                .iter()
                .any(|it| it.as_raw_nonzero().get() == pid)
                .then_some(pid)
        })
    }

    /// The address that was given last of those that are recorded.
    fn newest_address(&self, sandboxes: &[SandboxRecord]) -> Option<Ipv4Addr> {
        let given = sandboxes.iter().filter_map(|record| {
            let dir = self.shims.sandbox_dir(&record.id);
            bridge_addresses(record, &dir).map(|addresses| (record.created_at, addresses.v4))
        });
        given.max().map(|(_, address)| address)
    }

    fn assign_addresses(&self, config: &SandboxConfig, others: &[&SandboxRecord]) -> Result<Vec<IpAddr>> {
        if config.namespaces.host_network {
            return Ok(vec![host_address()]);
        }
        if self.wants_plugins(config) {
            return Ok(Vec::new());
        }
        let taken: Vec<IpAddr> = others.iter().flat_map(|other| other.addresses.clone()).collect();
        let free = self.network.free_addresses(&taken);
        free.map(PodAddresses::list).ok_or_else(|| {
            let detail = format!("all addresses of {} are taken", self.network.subnet);
            Error::failed(Operation::RunSandbox, detail)
        })
    }

    /// A range for a pod that has users of its own. `used` are the machine's.
    fn assign_users(
        &self,
        config: &SandboxConfig,
        others: &[&SandboxRecord],
        mut used: Vec<IdRange>,
    ) -> Result<Option<IdRange>> {
        if !config.namespaces.own_users {
            return Ok(None);
        }
        if let Some(given) = config.namespaces.user_ids {
            return Ok(Some(given));
        }
        used.extend(others.iter().filter_map(|other| other.user_ids));
        let range = user_ids::free_range(&used, self.seed);
        let full = "all ranges of users for pods with hostUsers false are taken; remove one of those pods";
        range
            .map(Some)
            .ok_or_else(|| Error::failed(Operation::RunSandbox, full))
    }

    fn make_sandbox(&self, record: &SandboxRecord) -> std::result::Result<(), MakeError> {
        let cgroup = self.cgroups.sandbox(record);
        cgroup.create()?;
        // Whoever has made the parent limits the pod there.
        if record.config.cgroup_parent.is_none() {
            cgroup.limit_pod(&record.config.resources)?;
        }
        let dir = self.shims.sandbox_dir(&record.id);
        if self.wants_plugins(&record.config) {
            // Plugins may keep what they gave on the disk, for good: whatever happens to the machine, somebody has to
            // know that it is to be given back.
            sync_sandbox(&dir)?;
            self.cni.choose(&dir)?;
        }
        let plan = Plan {
            id: &record.id,
            dir: &dir,
            config: &record.config,
            addresses: bridge_addresses(record, &dir),
            user_ids: record.user_ids,
            network: &self.network,
        };
        plan.make()?;
        if record.config.namespaces.pid == PidNamespace::Pod {
            self.start_pause_process(record)?;
        }
        Ok(())
    }

    fn start_pause_process(&self, record: &SandboxRecord) -> std::result::Result<(), MakeError> {
        let ShimCommand { program, args } = &self.shim;
        let output = Command::new(program)
            .args(args)
            .arg(self.shims.sandbox_dir(&record.id))
            .arg(self.cgroups.pause_process(record))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(MakeError::RunPauseProcess)?;
        match serde_json::from_slice(&output.stdout) {
            Ok(Handshake::Started { .. }) => Ok(()),
            Ok(Handshake::Failed { detail } | Handshake::CannotRun { message: detail }) => {
                Err(MakeError::PauseProcess { detail })
            }
            Ok(Handshake::AlreadyStarted) | Err(_) => Err(MakeError::PauseProcess {
                detail: "it gave no report".to_owned(),
            }),
        }
    }

    /// Kills what runs in a sandbox's cgroups without a shim: the pause process.
    fn kill_pause_process(&self, record: &SandboxRecord) {
        let path = self.cgroups.pause_process(record);
        let cgroup = self.cgroups.hierarchies.cgroup(&path);
        if !cgroup.kill_until_empty(KILL_PATIENCE) {
            tracing::warn!(sandbox = %record.id, "the pause process cannot be killed");
        }
        cgroup.remove();
    }

    fn take_down_sandbox(&self, record: &SandboxRecord) -> std::result::Result<(), SandboxError> {
        self.kill_pause_process(record);
        let dir = self.shims.sandbox_dir(&record.id);
        if let Some(addresses) = bridge_addresses(record, &dir) {
            self.network.disconnect(&record.id, addresses)?;
        }
        sandbox::unmount_all(&dir)?;
        self.remove_cgroups(record);
        Ok(())
    }

    /// Whether a new sandbox gets its network from plugins.
    fn wants_plugins(&self, config: &SandboxConfig) -> bool {
        self.cni.is_wanted() && !config.namespaces.host_network
    }

    /// Takes away the networks of sandboxes that are gone or half made. One whose plugins fail now is tried again when
    /// it is removed: it is in nobody's way.
    pub(super) async fn detach_forgotten(&self) {
        for record in self.shims.sandboxes() {
            let dir = self.shims.sandbox_dir(&record.id);
            if record.state == SandboxState::NotReady
                && let Err(error) = self.cni.delete(target(&record, &dir)).await
            {
                tracing::warn!(sandbox = %record.id, %error, "the sandbox's network cannot be removed");
            }
        }
    }

    /// Asks the plugins about the sandboxes that an earlier agent made, and logs what is wrong.
    pub(super) async fn check_adopted(&self) {
        for record in self.shims.sandboxes() {
            let dir = self.shims.sandbox_dir(&record.id);
            if record.state == SandboxState::Ready
                && let Err(error) = self.cni.check(target(&record, &dir)).await
                && cni::is_attached(&dir)
            {
                let pod = record.config.pod.pod_name();
                tracing::warn!(%pod, %error, "the pod's network is not as it was made; delete the pod to have it made again");
            }
        }
    }

    fn remove_cgroups(&self, sandbox: &SandboxRecord) {
        let of_sandbox = ContainerFilter {
            sandbox: Some(sandbox.id.clone()),
            ..ContainerFilter::default()
        };
        for container in self.shims.list_containers(&of_sandbox) {
            self.cgroups.remove_apart(container.id.as_str());
        }
        self.cgroups.sandbox(sandbox).remove();
        // Only when it is empty.
        self.cgroups.all().remove_if_empty();
    }
}

fn target<'a>(record: &'a SandboxRecord, dir: &'a Path) -> Target<'a> {
    Target {
        id: &record.id,
        dir,
        config: &record.config,
    }
}

#[derive(Debug, thiserror::Error)]
enum MakeError {
    #[error("cannot run the pod's pause process: {0}")]
    RunPauseProcess(io::Error),
    #[error("the pod's pause process cannot start: {detail}")]
    PauseProcess { detail: String },
    #[error("cannot bring the sandbox's record to the disk: {0}")]
    Sync(#[from] RecordError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error("failed to set up the network of the pod: {0}")]
    Network(#[from] CniError),
}

impl OciRuntime {
    /// Notices sandboxes whose namespaces are gone: they are not ready any more.
    pub(super) async fn check_pins(&self) {
        for record in self.0.shims.sandboxes() {
            self.check_pins_of(&record).await;
        }
    }

    pub(super) async fn check_pins_of(&self, record: &SandboxRecord) {
        if record.state != SandboxState::Ready || !self.0.has_lost_pins(record) {
            return;
        }
        let not_ready = |record: &mut SandboxRecord| record.state = SandboxState::NotReady;
        let updated = self
            .0
            .shims
            .update_sandbox(Operation::SandboxStatus, &record.id, not_ready)
            .await;
        if let Err(error) = updated {
            tracing::warn!(sandbox = %record.id, %error, "cannot record that the sandbox is not ready");
        }
    }

    pub(super) async fn run_sandbox_to_the_end(&self, config: SandboxConfig) -> Result<SandboxId> {
        let operation = Operation::RunSandbox;
        let ids_of_machine = if config.namespaces.own_users {
            let read = tokio::task::spawn_blocking(user_ids::of_machine).await;
            read.map_err(|error| Error::failed(operation, error))?
        } else {
            Vec::new()
        };
        let assign = |config: &SandboxConfig, others: &[&SandboxRecord]| {
            Ok(Assignment {
                addresses: self.0.assign_addresses(config, others)?,
                user_ids: self.0.assign_users(config, others, ids_of_machine)?,
            })
        };
        let shims = &self.0.shims;
        let id = shims.add_sandbox(config, SandboxState::NotReady, assign).await?;
        if let Err(error) = self.make_sandbox(&id).await {
            if let Err(second) = self.remove_sandbox_to_the_end(&id).await {
                tracing::warn!(sandbox = %id, error = %second, "a sandbox that could not be made cannot be removed");
            }
            return Err(error);
        }
        Ok(id)
    }

    async fn make_sandbox(&self, id: &SandboxId) -> Result<()> {
        let operation = Operation::RunSandbox;
        let shims = &self.0.shims;
        let record = shims.sandbox(id)?;
        let same = record.clone();
        self.blocking(operation, move |inner| inner.make_sandbox(&same))
            .await?;
        let failed = |error: MakeError| Error::failed(operation, error);
        let dir = shims.sandbox_dir(id);
        let added = self.0.cni.add(target(&record, &dir)).await;
        let added = added.map_err(|error| failed(error.into()))?;
        if !added.is_empty() {
            sandbox::write_hosts(&dir, &record.config, &added).map_err(|error| failed(error.into()))?;
        }
        let ready = |record: &mut SandboxRecord| {
            record.addresses.extend(added);
            record.state = SandboxState::Ready;
        };
        shims.update_sandbox(operation, id, ready).await.map(drop)
    }

    pub(super) async fn stop_sandbox_to_the_end(&self, id: &SandboxId) -> Result<()> {
        let operation = Operation::StopSandbox;
        let shims = &self.0.shims;
        let Ok(record) = shims.sandbox(id) else {
            return Ok(());
        };
        shims.stop_sandbox(id).await?;
        let dir = shims.sandbox_dir(id);
        let deleted = self.0.cni.delete(target(&record, &dir)).await;
        deleted.map_err(|error| Error::failed(operation, error))?;
        self.blocking(operation, move |inner| inner.take_down_sandbox(&record))
            .await
    }

    pub(super) async fn remove_sandbox_to_the_end(&self, id: &SandboxId) -> Result<()> {
        let Ok(record) = self.0.shims.sandbox(id) else {
            return Ok(());
        };
        self.stop_sandbox_to_the_end(id).await?;
        self.0.shims.forget_sandbox(id).await?;
        // A shim that an agent before us had spawned may have come late and made its cgroup once more. It is gone
        // with its container's record, and none comes now.
        self.blocking(Operation::RemoveSandbox, move |inner| {
            inner.remove_cgroups(&record);
            Ok::<_, SandboxError>(())
        })
        .await
    }
}
