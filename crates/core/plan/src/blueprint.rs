//! What a node makes a pod from: the engine's plan, and beside it everything the engine has no use for.
//!
//! A blueprint is plain data without references to the manifest, and it is kept for as long as its pod: what jobs need of
//! it is shared, not copied. Only what a single creation of a container needs (variables, mounts, users, limits) is left
//! in the manifest and read when that container is created.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pulselet_engine::plan::{Hook, PodPlan, ProbeKind};
use pulselet_model::openapi::api::core::v1::VolumeMount;
use pulselet_model::openapi::apimachinery::pkg::api::resource::Quantity;
use pulselet_model::quantity::Amount;
use pulselet_model::{Container, EphemeralContainer, LifecycleHandler, PodSpec, RESIZABLE, ResourceTotals};

use crate::convert::manifest_probe;
use crate::refusal::PodRefusal;
use crate::security::RecursiveReadOnly;
use crate::storage::StorageLimit;
use crate::target::{HookTarget, ProbeTarget};
use crate::volume::{ImageVolume, SizeLimit, VolumeBlueprint};

/// An admitted Pod, converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodBlueprint {
    /// The engine's part: what lives are made from.
    pub plan: Arc<PodPlan>,
    /// What lives that have begun take the times of their probes from. Gates that only the next life notices are open in
    /// it, so that a life goes on with the probes it was created with.
    pub running: Arc<PodPlan>,
    /// In the plan's order, one for each of its containers.
    pub containers: Box<[ContainerBlueprint]>,
    pub volumes: Box<[VolumeBlueprint]>,
    /// Names of secrets that may hold credentials for registries.
    pub pull_secrets: BTreeSet<String>,
    /// The containers see processes that are not their own, and none of their main processes is PID 1.
    pub shares_processes: bool,
    /// What it requests of its node.
    pub requests: ResourceTotals,
    /// Why a node does not run the pod at all; `None` if it does.
    pub refusal: Option<Box<PodRefusal>>,
}

/// What the node needs of a container besides its part of the plan, which has its name, image and stop signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerBlueprint {
    /// By kind. Gates hide none of them: a life goes on with the probes it was created with when a gate is closed.
    probes: [Option<Arc<ProbeTarget>>; ProbeKind::ALL.len()],
    post_start: Option<Arc<HookTarget>>,
    pre_stop: Option<Arc<HookTarget>>,
    pub pull_policy: PullPolicy,
    pub message_policy: MessagePolicy,
    /// As the status shows them.
    pub mounts: Box<[MountBlueprint]>,
    pub stdin: bool,
    pub tty: bool,
    /// How much of the disk it may take; `None` if that is not limited.
    pub storage_limit: Option<Box<StorageLimit>>,
    /// `None` for containers that never have any.
    pub resources: Option<Box<DeclaredResources>>,
}

/// What a container requests and may use, as its manifest says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredResources {
    pub requests: BTreeMap<String, String>,
    pub limits: BTreeMap<String, String>,
    /// Resources of which another amount takes another life.
    restarts: BTreeSet<String>,
}

impl DeclaredResources {
    fn read(container: &Container) -> Self {
        let texts = |list: &Option<BTreeMap<String, Quantity>>| {
            let list = list.iter().flatten();
            list.map(|(name, quantity)| (name.clone(), quantity.0.clone()))
                .collect()
        };
        let policies = container.resize_policy.iter();
        let restarting = policies.filter(|policy| policy.restart_policy == "RestartContainer");
        Self {
            requests: texts(&container.resources.requests),
            limits: texts(&container.resources.limits),
            restarts: restarting.map(|policy| policy.resource_name.clone()).collect(),
        }
    }

    /// Whether a container that runs with these is to have others.
    pub fn differs(&self, wanted: &Self) -> bool {
        RESIZABLE.into_iter().any(|name| self.differs_in(name, wanted))
    }

    /// Whether the container has to be restarted to have the others.
    pub fn change_restarts(&self, wanted: &Self) -> bool {
        let mut changed = RESIZABLE.into_iter().filter(|name| self.differs_in(name, wanted));
        changed.any(|name| wanted.restarts.contains(name))
    }

    fn differs_in(&self, name: &str, wanted: &Self) -> bool {
        let of = |list: &BTreeMap<String, String>| Amount::parse(list.get(name)?).ok();
        of(&self.requests) != of(&wanted.requests) || of(&self.limits) != of(&wanted.limits)
    }
}

/// A volume's mount, as far as the status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountBlueprint {
    pub volume: String,
    pub path: String,
    pub read_only: bool,
    pub recursive: RecursiveReadOnly,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// Where a container's termination message is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePolicy {
    File,
    FallbackToLogsOnError,
}

impl PodBlueprint {
    /// The limits that nobody but the node keeps.
    pub fn size_limits(&self) -> impl Iterator<Item = &SizeLimit> {
        self.volumes.iter().filter_map(VolumeBlueprint::size_limit)
    }

    /// The images that a container mounts, by its place in the plan, each with the volume's name.
    pub fn image_volumes(&self, container: usize) -> impl Iterator<Item = (&str, &ImageVolume)> {
        let mounts = self.containers.get(container).map(|it| &it.mounts[..]);
        let mounts = mounts.unwrap_or_default();
        let is_mounted = |volume: &&VolumeBlueprint| mounts.iter().any(|mount| *mount.volume == *volume.name);
        let volumes = self.volumes.iter().filter(is_mounted);
        volumes.filter_map(|volume| Some((&*volume.name, volume.image()?)))
    }

    /// Whether the node writes the files of one of its volumes.
    pub fn has_written_volumes(&self) -> bool {
        self.volumes.iter().any(|volume| volume.kind.is_written())
    }
}

impl ContainerBlueprint {
    /// `stays` unless the container runs to completion: then it is neither probed nor hooked.
    pub(crate) fn new(container: &Container, stays: bool) -> Self {
        let probe = |kind| {
            let probe = manifest_probe(container, kind).filter(|_| stays)?;
            ProbeTarget::new(container, probe).map(Arc::new)
        };
        let lifecycle = container.lifecycle.as_ref().filter(|_| stays);
        let hook = |handler: &LifecycleHandler| Arc::new(HookTarget::new(container, handler));
        Self {
            probes: ProbeKind::ALL.map(probe),
            post_start: lifecycle.and_then(|it| it.post_start.as_ref()).map(hook),
            pre_stop: lifecycle.and_then(|it| it.pre_stop.as_ref()).map(hook),
            pull_policy: PullPolicy::read(&container.image_pull_policy),
            message_policy: MessagePolicy::read(&container.termination_message_policy),
            mounts: container.volume_mounts.iter().map(MountBlueprint::new).collect(),
            stdin: container.stdin,
            tty: container.tty,
            storage_limit: StorageLimit::read(&container.resources).map(Box::new),
            resources: Some(Box::new(DeclaredResources::read(container))),
        }
    }

    pub(crate) fn ephemeral(container: &EphemeralContainer) -> Self {
        Self {
            probes: [None, None, None],
            post_start: None,
            pre_stop: None,
            pull_policy: PullPolicy::read(&container.image_pull_policy),
            message_policy: MessagePolicy::read(&container.termination_message_policy),
            mounts: container.volume_mounts.iter().map(MountBlueprint::new).collect(),
            stdin: container.stdin,
            tty: container.tty,
            storage_limit: None,
            resources: None,
        }
    }

    /// What a probe of this kind asks; `None` if the container has no such probe.
    pub fn probe(&self, kind: ProbeKind) -> Option<&Arc<ProbeTarget>> {
        self.probes[kind as usize].as_ref()
    }

    /// What a hook does; `None` if the container has no such hook.
    pub fn hook(&self, hook: Hook) -> Option<&Arc<HookTarget>> {
        match hook {
            Hook::PostStart => self.post_start.as_ref(),
            Hook::PreStop => self.pre_stop.as_ref(),
        }
    }
}

impl MountBlueprint {
    fn new(mount: &VolumeMount) -> Self {
        Self {
            volume: mount.name.clone(),
            path: mount.mount_path.clone(),
            read_only: mount.read_only.unwrap_or(false),
            recursive: RecursiveReadOnly::read(mount),
        }
    }
}

impl PullPolicy {
    /// What admission did not fill in, or would not know, is the careful middle.
    pub(crate) fn read(text: &str) -> Self {
        match text {
            "Always" => Self::Always,
            "Never" => Self::Never,
            _ => Self::IfNotPresent,
        }
    }
}

impl MessagePolicy {
    fn read(text: &str) -> Self {
        match text {
            "FallbackToLogsOnError" => Self::FallbackToLogsOnError,
            _ => Self::File,
        }
    }
}

pub(crate) fn pull_secrets(spec: &PodSpec) -> BTreeSet<String> {
    let names = spec.image_pull_secrets.iter().map(|reference| &reference.name);
    names.filter(|name| !name.is_empty()).cloned().collect()
}
