//! [`OciRuntime`]: the runtime's verbs for containers.

mod limits;
mod sandboxes;

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pulselet_cgroup::{Cgroup, Hierarchies, is_of_node};
use pulselet_image::ImageStore;
use pulselet_runtime::{
    AttachOptions, BoxError, ContainerConfig, ContainerFilter, ContainerId, ContainerState, ContainerStats,
    ContainerStatus, DuplexStream, Error, Events, ExecOptions, ExecOutput, ExecRequest, ExecStreams,
    Features, ImageStorage, ImageSummary, InterfaceStats, LogLimits, Operation, RegistryCredentials,
    Resources, Result, Runtime, RuntimeCondition, RuntimeHealth, RuntimeImageError, SandboxConfig, SandboxId,
    SandboxState, SandboxStatus, SecurityFeatures, SeparateExecOutput, SignalMasks, Version, WritableLayer,
    async_trait,
};
use pulselet_shim::record::{self, LifeRecord};
use pulselet_shim_client::{ContainerKind, ContainerRecord, SandboxRecord, ShimCommand, Shims, detached};

use pulselet_sys::Pid;

use crate::{
    app_armor,
    bare_mounts::BareMounts,
    cni::{self, Cni},
    host_image::{self, HostImage},
    image::Images,
    kernel_floor::{self, OLDEST},
    network::{Network, NetworkOptions, PodNetwork},
    oom_score, place,
    rootfs::UPPER,
    sandbox, shim_program,
    spec::ContainerSpec,
    spec_builder::{SpecBuilder, stop_signal},
    user::{self, GROUP_FILE, PASSWD_FILE},
    user_ids,
};

/// Where and how containers are run.
#[derive(Debug, Clone)]
pub struct OciOptions {
    /// The runtime's own directory. Only one runtime at a time may use it; the caller sees to that.
    pub root: PathBuf,
    /// What containers of the built-in image do not see: the agent's data, `root` included.
    pub data_dir: PathBuf,
    pub shim: ShimCommand,
    /// The program that the built-in image has.
    pub program: PathBuf,
    pub images: ImageStore,
    /// Whether containers may be made of the built-in image.
    pub host_image: bool,
    pub network: NetworkOptions,
}

#[derive(Debug, thiserror::Error)]
pub enum OciOpenError {
    #[error("containers need root; use sudo, or --runtime process")]
    NotRoot,
    #[error(
        "containers need Linux {OLDEST} or newer, and this is {0}; boot a newer kernel, or use --runtime process or a CRI server"
    )]
    OldKernel(String),
    #[error("cannot make {path}: {source}", path = path.display())]
    MakeRoot { path: PathBuf, source: io::Error },
    #[error("containers need cgroups: {0}")]
    Cgroups(#[source] BoxError),
    #[error("cannot protect {path} from containers: {source}", path = path.display())]
    ProtectProgram { path: PathBuf, source: io::Error },
    #[error("cannot clean up what an earlier agent left: {0}")]
    CleanUp(#[source] BoxError),
    #[error(transparent)]
    Records(#[from] pulselet_shim_client::OpenShimsError),
}

/// Containers of images. Clones are the same runtime.
#[derive(Debug, Clone)]
pub struct OciRuntime(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shim: ShimCommand,
    shims: Shims,
    cgroups: Cgroups,
    images: Images,
    network: Arc<Network>,
    cni: Cni,
    /// Whether pods can have users of their own.
    user_namespaces: bool,
    /// Whether containers can have `AppArmor` profiles.
    app_armor: bool,
    /// Where ranges of users are looked for first.
    seed: u64,
    /// What the mount namespaces of containers begin as; `None` if as copies of the host's.
    bare_mounts: Option<BareMounts>,
}

/// The cgroups of one runtime, all of them below `pulselet-<tag>`, the tag made from the root's path: `<sandbox>/<container>`,
/// or below the parent that a sandbox was given `pulselet-<sandbox>/<container>`. A node makes its pods' cgroups below
/// the same root; a kubelet has its own elsewhere.
#[derive(Debug, Clone)]
struct Cgroups {
    hierarchies: Hierarchies,
    base: PathBuf,
    /// Where containers have cgroups besides, each a directory named after it: in the hierarchies that limit nothing.
    apart: Vec<PathBuf>,
}

/// Before the id of a sandbox in the name of its cgroup, where that is not alone among its own kind.
const PARENTED: &str = "pulselet-";
/// How far below the root a sandbox can be: in a pod, which is in a class.
const SANDBOX_DEPTH: usize = 3;

/// The id of the sandbox that has a cgroup of that name.
fn sandbox_id(name: &str) -> &str {
    name.strip_prefix(PARENTED).unwrap_or(name)
}

impl Cgroups {
    /// Where the cgroups of a sandbox are: below the parent that it was given, or among the others of this runtime.
    fn sandbox_path(&self, id: &SandboxId, config: &SandboxConfig) -> PathBuf {
        match &config.cgroup_parent {
            Some(parent) => parent.join(format!("{PARENTED}{id}")),
            None => self.base.join(id.as_str()),
        }
    }

    /// The cgroup that the container's specification names. `dir` is the container's.
    fn container(&self, record: &ContainerRecord, dir: &Path) -> Cgroup {
        if let Ok(Some(spec)) = ContainerSpec::read(dir) {
            return self
                .hierarchies
                .container_cgroup(&spec.cgroup.path, &spec.cgroup.apart);
        }
        let found = self.find_container(record.id.as_str()).into_iter().next();
        let path = found.unwrap_or_else(|| self.base.join(record.sandbox.as_str()).join(record.id.as_str()));
        self.hierarchies
            .container_cgroup(&path, &self.apart_of(record.id.as_str()))
    }

    fn apart_of(&self, container: &str) -> Vec<PathBuf> {
        self.apart.iter().map(|parent| parent.join(container)).collect()
    }

    /// Of a container that has ended.
    fn remove_apart(&self, container: &str) {
        let apart = self.apart_of(container);
        self.hierarchies
            .container_cgroup(Path::new(container), &apart)
            .remove_apart();
    }

    /// Removes what is left of containers in the hierarchies that limit nothing. Where a process is, the kernel keeps it.
    fn sweep_apart(&self) {
        for parent in &self.apart {
            for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(entry.path());
            }
            let _ = fs::remove_dir(parent);
        }
    }

    /// The cgroups of sandboxes below the root, whether or not they have a record.
    fn sandboxes_on_machine(&self) -> Vec<PathBuf> {
        let below = self.all().descendants(SANDBOX_DEPTH).into_iter();
        let name_of = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
        let is_sandbox = |path: &PathBuf| {
            let (Some(name), Some(parent)) = (name_of(path), path.parent()) else {
                return false;
            };
            if parent == self.base {
                return !is_of_node(&name);
            }
            // A container may have cgroups of its own, of any name.
            name.starts_with(PARENTED) && name_of(parent).is_some_and(|parent| is_of_node(&parent))
        };
        below.filter(is_sandbox).collect()
    }

    /// The cgroups of a container, found by its name.
    fn find_container(&self, id: &str) -> Vec<PathBuf> {
        let sandboxes = self.sandboxes_on_machine().into_iter();
        let paths = sandboxes.map(|sandbox| sandbox.join(id));
        paths
            .filter(|path| self.hierarchies.cgroup(path).exists())
            .collect()
    }

    fn sandbox(&self, record: &SandboxRecord) -> Cgroup {
        self.hierarchies
            .cgroup(&self.sandbox_path(&record.id, &record.config))
    }

    fn pause_process(&self, record: &SandboxRecord) -> PathBuf {
        self.sandbox_path(&record.id, &record.config).join("pod")
    }

    fn all(&self) -> Cgroup {
        self.hierarchies.cgroup(&self.base)
    }
}

impl ContainerKind for Cgroups {
    fn kill_leftovers(&self, record: &ContainerRecord, dir: &Path) -> bool {
        self.container(record, dir).kill() == 0
    }

    fn kill_unrecorded(&self, id: &str, dir: &Path) -> bool {
        let paths = match ContainerSpec::read(dir) {
            Ok(Some(spec)) => vec![spec.cgroup.path],
            Ok(None) | Err(_) => self.find_container(id),
        };
        let apart = self.apart_of(id);
        let cgroups = paths
            .iter()
            .map(|path| self.hierarchies.container_cgroup(path, &apart));
        let left: usize = cgroups.map(|cgroup| cgroup.kill()).sum();
        if left == 0 {
            self.remove_apart(id);
        }
        left == 0
    }

    fn processes(&self, record: &ContainerRecord, dir: &Path) -> Vec<Pid> {
        self.container(record, dir).members().into_iter().collect()
    }

    fn clean_up(&self, record: &ContainerRecord, dir: &Path) {
        let cgroup = self.container(record, dir);
        cgroup.remove();
        cgroup.remove_apart();
    }

    fn starts_in(&self, id: &str) -> Option<OwnedFd> {
        let apart = self.apart_of(id);
        self.hierarchies
            .container_cgroup(Path::new(id), &apart)
            .open_apart()
    }

    fn outlives_machine(&self, dir: &Path) -> bool {
        cni::is_attached(dir)
    }
}

impl OciRuntime {
    /// The number of the init process whose namespace a container of the sandbox is to share. Pods are apart from each
    /// other: a container of another one is refused.
    fn target_pid(&self, sandbox: &SandboxId, id: &ContainerId) -> Result<i32> {
        let target = self.0.shims.container_status(id)?;
        if target.sandbox != *sandbox {
            return Err(Error::Invalid {
                field: "pid_target",
                detail: format!("container {id} is not in this pod; name one that is"),
            });
        }
        match target.state {
            ContainerState::Running { .. } => self.init_pid(id),
            // The number of one that has ended may be that of any process by now.
            ContainerState::Created | ContainerState::Exited(_) | ContainerState::Unknown => {
                Err(not_running(Operation::CreateContainer, id))
            }
        }
    }

    /// The number of a running container's init process.
    fn init_pid(&self, id: &ContainerId) -> Result<i32> {
        let dir = self.0.shims.container_dir(id)?;
        match record::read_life(&dir) {
            Ok(Some(LifeRecord::Running { pid, .. })) => Ok(pid),
            Ok(Some(LifeRecord::Launching) | None) | Err(_) => {
                Err(not_running(Operation::CreateContainer, id))
            }
        }
    }

    /// Everything. `AppArmor` needs a kernel that uses it and the program that loads profiles, user namespaces a kernel and
    /// file systems that can map the owners of files; [`Runtime::version`] says whether they are there.
    pub const SECURITY: SecurityFeatures = SecurityFeatures::ALL;

    /// Whether the machine may have something of this root. A root whose files are gone is known by its cgroups; where there
    /// are none, nobody can have made containers for a root that says nothing of them.
    pub fn may_have_containers(root: &Path) -> bool {
        place::was_opened(root) || Hierarchies::find().is_ok()
    }

    /// Whether the machine still has something of a root that was removed. Creates nothing.
    pub fn has_traces(root: &Path, network: &NetworkOptions) -> bool {
        place::has_traces(root, &network.bridge)
    }

    /// The network of the pods; `None` if plugins make the networks of new ones.
    pub fn pod_network(&self) -> Option<PodNetwork> {
        (!self.0.cni.is_wanted()).then(|| PodNetwork {
            network: Arc::clone(&self.0.network),
        })
    }

    /// Opens the root, adopts what is there and removes what belongs to nothing any more.
    pub async fn open(options: OciOptions) -> std::result::Result<Self, OciOpenError> {
        if !rustix::process::geteuid().is_root() {
            return Err(OciOpenError::NotRoot);
        }
        if let Some(release) = kernel_floor::too_old() {
            return Err(OciOpenError::OldKernel(release));
        }
        oom_score::protect_agent();
        let prepared = tokio::task::spawn_blocking(move || prepare(options));
        let Prepared {
            options,
            shim,
            cgroups,
            user_namespaces,
            app_armor,
            bare_mounts,
        } = prepared.await.expect("preparing does not panic")?;
        let kind = Arc::new(cgroups.clone());
        let shims = Shims::open(&options.root, shim.clone(), kind).await?;
        let network = Arc::new(Network::new(&options.network));
        let seed = tag(&options.root);
        let runtime = Self(Arc::new(Inner {
            images: Images::new(
                options.images,
                HostImage::new(options.host_image, options.data_dir, options.program),
            ),
            shim,
            shims,
            cgroups,
            network,
            cni: Cni::new(options.network.cni),
            user_namespaces,
            app_armor,
            seed,
            bare_mounts,
        }));
        runtime.check_pins().await;
        runtime.0.detach_forgotten().await;
        let inner = Arc::clone(&runtime.0);
        let cleaned = tokio::task::spawn_blocking(move || inner.clean_up()).await;
        cleaned
            .expect("cleaning up does not panic")
            .map_err(|error| OciOpenError::CleanUp(error.into()))?;
        if let Err(error) = runtime.0.network.keep(runtime.0.shims.event_hub()) {
            tracing::warn!(%error, "the pods' network is not restored when other programs change it");
        }
        let inner = Arc::clone(&runtime.0);
        // Nobody has to wait for it: it changes nothing.
        tokio::spawn(async move { inner.check_adopted().await });
        Ok(runtime)
    }
}

fn not_running(operation: Operation, id: &ContainerId) -> Error {
    Error::WrongState {
        operation,
        id: id.to_string(),
        state: "not running",
    }
}

/// What has to be known before the records are read.
struct Prepared {
    options: OciOptions,
    shim: ShimCommand,
    cgroups: Cgroups,
    user_namespaces: bool,
    app_armor: bool,
    bare_mounts: Option<BareMounts>,
}

fn prepare(mut options: OciOptions) -> std::result::Result<Prepared, OciOpenError> {
    let made = fs::create_dir_all(&options.root).and_then(|()| options.root.canonicalize());
    let path = options.root.clone();
    options.root = made.map_err(|source| OciOpenError::MakeRoot { path, source })?;
    let absolute = std::path::absolute(&options.data_dir);
    options.data_dir = absolute.map_err(|source| OciOpenError::MakeRoot {
        path: options.data_dir.clone(),
        source,
    })?;
    if let Err(error) = host_image::announce_data_dir(&options.data_dir) {
        tracing::warn!(%error, "other agents' containers may see this agent's data: it cannot be announced");
    }
    let hierarchies = Hierarchies::find().map_err(|error| OciOpenError::Cgroups(error.into()))?;
    let names = place::names(&options.root, &options.network.bridge, &hierarchies);
    options.network.bridge = names.bridge;
    let base = names.cgroup;
    let apart = hierarchies
        .mounts_apart()
        .map_err(|error| OciOpenError::Cgroups(error.into()))?;
    let cgroups = Cgroups {
        apart: apart.iter().map(|mount| mount.join(&base)).collect(),
        hierarchies,
        base,
    };
    cgroups.sweep_apart();
    let program = shim_program::read_only_view(&options.shim.program).map_err(|source| {
        OciOpenError::ProtectProgram {
            path: options.shim.program.clone(),
            source,
        }
    })?;
    let shim = ShimCommand {
        program,
        args: options.shim.args.clone(),
    };
    sandbox::unmount_forgotten(&options.root).map_err(|error| OciOpenError::CleanUp(error.into()))?;
    let checked = user_ids::check_machine(&options.root);
    if let Err(error) = &checked {
        tracing::info!(
            %error,
            "pods with hostUsers false are refused: this machine makes no user namespaces, or does not map the owners of files"
        );
    }
    let profiles = app_armor::load_default();
    if let Err(error) = &profiles {
        tracing::info!(%error, "containers have no AppArmor profiles, and pods that ask for one are refused");
    }
    Ok(Prepared {
        shim,
        cgroups,
        user_namespaces: checked.is_ok(),
        app_armor: profiles.is_ok(),
        bare_mounts: make_bare_mounts(&options),
        options,
    })
}

/// Containers start without it, too, only not as fast where there are many pods.
fn make_bare_mounts(options: &OciOptions) -> Option<BareMounts> {
    let made = BareMounts::make(&[&options.root, &options.data_dir]);
    made.inspect_err(|error| {
        tracing::info!(%error, "every container begins with a copy of all mounts: there cannot be a namespace without the pods'");
    })
    .ok()
}

/// A number for a path that no other build computes differently (FNV-1a).
pub(crate) fn tag(path: &Path) -> u64 {
    path.as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

impl OciRuntime {
    async fn blocking<E: Into<BoxError> + Send + 'static>(
        &self,
        operation: Operation,
        work: impl FnOnce(&Inner) -> std::result::Result<(), E> + Send + 'static,
    ) -> Result<()> {
        let inner = Arc::clone(&self.0);
        match tokio::task::spawn_blocking(move || work(&inner)).await {
            Ok(result) => result.map_err(|error| Error::failed(operation, error)),
            Err(error) => Err(Error::failed(operation, error)),
        }
    }

    /// Refuses a user whom the image does not have, unless the pod mounts files that may have him.
    async fn check_user(&self, spec: &ContainerSpec) -> Result<()> {
        let covers = |file: &str| {
            let mut mounts = spec.mounts.iter();
            mounts.any(|mount| Path::new(file).starts_with(&mount.container_path))
        };
        if covers(PASSWD_FILE) || covers(GROUP_FILE) {
            return Ok(());
        }
        let (user, layers) = (spec.user.clone(), spec.root.layers.clone());
        self.blocking(Operation::CreateContainer, move |_| {
            user::check_in_layers(&user, &layers)
        })
        .await
    }

    /// Asks about images, which means reading files.
    async fn ask_images<T: Send + 'static>(
        &self,
        operation: Operation,
        question: impl FnOnce(&Images) -> std::result::Result<T, RuntimeImageError> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.0);
        match tokio::task::spawn_blocking(move || question(&inner.images)).await {
            Ok(answer) => Ok(answer?),
            Err(error) => Err(Error::failed(operation, error)),
        }
    }
}

#[async_trait]
impl Runtime for OciRuntime {
    async fn version(&self) -> Result<Version> {
        let features = Features {
            images: true,
            security: SecurityFeatures {
                user_namespaces: self.0.user_namespaces,
                app_armor: self.0.app_armor,
                ..Self::SECURITY
            },
            ..Shims::FEATURES
        };
        Ok(Version {
            name: "pulselet".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            features,
        })
    }

    async fn health(&self) -> Result<RuntimeHealth> {
        let network = match self.0.cni.health() {
            Ok(()) => RuntimeCondition::Ready,
            Err(error) => RuntimeCondition::NotReady {
                reason: "NetworkPluginNotReady".into(),
                message: error.to_string(),
            },
        };
        Ok(RuntimeHealth {
            runtime: RuntimeCondition::Ready,
            network,
        })
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId> {
        let (runtime, config) = (self.clone(), config.clone());
        detached(Operation::RunSandbox, async move {
            runtime.run_sandbox_to_the_end(config).await
        })
        .await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<()> {
        let (runtime, id) = (self.clone(), id.clone());
        detached(Operation::StopSandbox, async move {
            runtime.stop_sandbox_to_the_end(&id).await
        })
        .await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        let (runtime, id) = (self.clone(), id.clone());
        detached(Operation::RemoveSandbox, async move {
            runtime.remove_sandbox_to_the_end(&id).await
        })
        .await
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus> {
        self.check_pins_of(&self.0.shims.sandbox(id)?).await;
        Ok(self.0.shims.sandbox(id)?.status())
    }

    async fn list_sandboxes(&self) -> Result<Vec<SandboxStatus>> {
        self.check_pins().await;
        let all = self.0.shims.sandboxes();
        Ok(all.iter().map(SandboxRecord::status).collect())
    }

    async fn sandboxes_of(&self, pod_uid: &str) -> Result<Vec<SandboxStatus>> {
        let of_pod = |record: &SandboxRecord| record.config.pod.uid == pod_uid;
        for record in self.0.shims.sandboxes_where(of_pod) {
            self.check_pins_of(&record).await;
        }
        let checked = self.0.shims.sandboxes_where(of_pod);
        Ok(checked.iter().map(SandboxRecord::status).collect())
    }

    async fn create_container(&self, sandbox: &SandboxId, config: &ContainerConfig) -> Result<ContainerId> {
        let record = self.0.shims.sandbox(sandbox)?;
        let (reference, image_id) = (config.image.clone(), config.image_id.clone());
        let mounts = config.mounts.clone();
        let (template, mounted_images) = self
            .ask_images(Operation::CreateContainer, move |images| {
                let template = images.template(&reference, &image_id)?;
                Ok((template, images.mounted_layers(&mounts)?))
            })
            .await?;
        let target = config
            .pid_target
            .as_ref()
            .map(|id| self.target_pid(sandbox, id))
            .transpose()?;
        let mut spec = SpecBuilder {
            target,
            config,
            image: &template,
            mounted_images,
            sandbox: &record.config,
            sandbox_dir: &self.0.shims.sandbox_dir(sandbox),
            user_ids: record.user_ids,
            cgroup: self.0.cgroups.sandbox_path(sandbox, &record.config),
            hierarchies: Some(&self.0.cgroups.hierarchies),
            apart: &self.0.cgroups.apart,
            app_armor: self.0.app_armor,
            bare_mounts: self.0.bare_mounts.as_ref(),
        }
        .build()?;
        self.check_user(&spec).await?;
        let prepare = move |dir: &Path| {
            spec.cgroup.path.extend(dir.file_name());
            for apart in &mut spec.cgroup.apart {
                apart.extend(dir.file_name());
            }
            spec.write(dir).map_err(BoxError::from)
        };
        self.0
            .shims
            .create_container(sandbox, config, stop_signal(config, &template), prepare)
            .await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        self.0.shims.start_container(id).await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        self.0.shims.stop_container(id, grace).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        self.0.shims.remove_container(id).await
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus> {
        self.0.shims.container_status(id)
    }

    async fn list_containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerStatus>> {
        Ok(self.0.shims.list_containers(filter))
    }

    async fn signal_masks(&self, id: &ContainerId) -> Result<Option<SignalMasks>> {
        self.0.shims.signal_masks(id)
    }

    async fn init_process(&self, id: &ContainerId) -> Result<Option<i32>> {
        self.0.shims.init_process(id)
    }

    async fn container_stats(&self, id: &ContainerId) -> Result<ContainerStats> {
        let sandbox = self.0.shims.container_status(id)?.sandbox;
        let config = self.0.shims.sandbox(&sandbox)?.config;
        let path = self.0.cgroups.sandbox_path(&sandbox, &config).join(id.as_str());
        // Reads a few files that the kernel has in memory.
        let stats = self.0.cgroups.hierarchies.cgroup(&path).stats();
        stats.ok_or_else(|| not_running(Operation::ContainerStats, id))
    }

    async fn writable_layer(&self, id: &ContainerId) -> Result<Option<WritableLayer>> {
        let layer = self.0.shims.container_dir(id)?.join(UPPER);
        let measured = tokio::task::spawn_blocking(move || pulselet_durable::measure(&layer)).await;
        let usage = measured.map_err(|error| Error::failed(Operation::ContainerStats, error))?;
        Ok(Some(WritableLayer {
            bytes: usage.bytes,
            inodes: usage.inodes,
        }))
    }

    async fn exec_sync(&self, id: &ContainerId, request: &ExecRequest) -> Result<ExecOutput> {
        self.0.shims.exec_sync(id, request).await
    }

    async fn exec_sync_separately(
        &self,
        id: &ContainerId,
        request: &ExecRequest,
    ) -> Result<SeparateExecOutput> {
        self.0.shims.exec_sync_separately(id, request).await
    }

    async fn update_container(&self, id: &ContainerId, resources: &Resources) -> Result<()> {
        self.update_container_to_the_end(id, resources).await
    }

    async fn update_sandbox(&self, id: &SandboxId, resources: &Resources) -> Result<()> {
        let record = self.0.shims.sandbox(id)?;
        let resources = resources.clone();
        self.blocking(Operation::UpdateSandbox, move |inner| {
            inner.cgroups.sandbox(&record).limit_pod(&resources)
        })
        .await
    }

    async fn container_resources(&self, id: &ContainerId) -> Result<Option<Resources>> {
        let dir = self.0.shims.container_dir(id)?;
        let read = tokio::task::spawn_blocking(move || ContainerSpec::read(&dir)).await;
        let failed = |error: BoxError| Error::failed(Operation::ContainerStatus, error);
        let spec = read
            .map_err(|error| failed(error.into()))?
            .map_err(|error| failed(error.into()))?;
        Ok(spec.map(|spec| spec.cgroup.resources))
    }

    async fn sandbox_interfaces(&self, id: &SandboxId) -> Result<Vec<InterfaceStats>> {
        let record = self.0.shims.sandbox(id)?;
        if record.config.namespaces.host_network || record.state == SandboxState::NotReady {
            return Ok(Vec::new());
        }
        let dir = self.0.shims.sandbox_dir(id);
        let failed = |error: BoxError| Error::failed(Operation::SandboxStatus, error);
        tokio::task::spawn_blocking(move || sandbox::interfaces(&dir))
            .await
            .map_err(|error| failed(error.into()))?
            .map_err(|error| failed(error.into()))
    }

    async fn image_storage(&self) -> Result<Option<ImageStorage>> {
        self.ask_images(Operation::List, |images| images.storage().map(Some))
            .await
    }

    async fn exec(&self, id: &ContainerId, options: &ExecOptions) -> Result<ExecStreams> {
        self.0.shims.exec(id, options).await
    }

    async fn attach(&self, id: &ContainerId, options: &AttachOptions) -> Result<ExecStreams> {
        self.0.shims.attach(id, options).await
    }

    async fn port_forward(&self, id: &SandboxId, port: u16) -> Result<DuplexStream> {
        let record = self.0.shims.sandbox(id)?;
        let dir = self.0.shims.sandbox_dir(id);
        let connect = move || sandbox::connect(&dir, record.config.namespaces.host_network, port);
        let failed = |error: BoxError| Error::failed(Operation::PortForward, error);
        let stream = tokio::task::spawn_blocking(connect)
            .await
            .map_err(|error| failed(error.into()))?
            .map_err(|error| failed(error.into()))?;
        let stream = tokio::net::TcpStream::from_std(stream).map_err(|error| failed(error.into()))?;
        Ok(Box::new(stream))
    }

    fn limit_logs(&self, limits: LogLimits) -> bool {
        self.0.shims.limit_logs(limits);
        true
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
        self.0.shims.reopen_log(id).await
    }

    async fn pull_image(
        &self,
        reference: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageSummary> {
        Ok(self.0.images.pull(reference, credentials).await?)
    }

    async fn image_status(&self, reference: &str) -> Result<Option<ImageSummary>> {
        let reference = reference.to_owned();
        self.ask_images(Operation::ImageStatus, move |images| images.status(&reference))
            .await
    }

    async fn list_images(&self) -> Result<Vec<ImageSummary>> {
        self.ask_images(Operation::List, Images::list).await
    }

    async fn remove_image(&self, reference: &str) -> Result<()> {
        let ids = self.0.shims.image_ids();
        let in_use = ids.iter().filter_map(|id| id.parse().ok()).collect();
        let reference = reference.to_owned();
        self.ask_images(Operation::RemoveImage, move |images| {
            images.remove(&reference, &in_use)
        })
        .await
    }

    fn cgroup_root(&self) -> Option<PathBuf> {
        Some(self.0.cgroups.base.clone())
    }

    fn events(&self) -> Events {
        self.0.shims.events()
    }
}
