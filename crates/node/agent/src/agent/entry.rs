//! What the agent knows about a pod besides the engine's state: its manifest, where its sandbox is, its lives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use pulselet_engine::io::Action;
use pulselet_engine::line::Line;
use pulselet_engine::plan::Hook;
use pulselet_engine::{Identity, LifeKey, PodKey, PodPlan, Time};
use pulselet_model::{GateSet, Pod, gates_in_use};
use pulselet_plan::{ContainerBlueprint, DeclaredResources, PodBlueprint};
use pulselet_runtime::{ContainerId, ContainerUser};
use pulselet_vocabulary::{PodName, Signal};
use serde::{Deserialize, Serialize};
use tokio::task::AbortHandle;

use super::resize::Resize;
use super::succession::Preparation;
use crate::jobs::{PodRef, SandboxLocation};
use crate::pod::annotation::AcceptedAnnotation;
use crate::pod::identity::Origin;
use crate::pod::status::KnownImage;
use crate::spans;
use crate::state::history::History;

/// A pod beside the engine.
#[derive(Debug)]
pub(super) struct PodEntry {
    pub(super) identity: Identity,
    pub(super) pod_name: PodName,
    pub(super) origin: Origin,
    pub(super) accepted_at: Time,
    /// What the next life is made from.
    pub(super) spec: Manifest,
    pub(super) qos_class: String,
    pub(super) priority: i32,
    /// Per container, the ports that the manifest names.
    pub(super) ports: BTreeMap<String, Vec<String>>,
    pub(super) annotation: AcceptedAnnotation,
    pub(super) generation: u32,
    /// What was made of the manifest, once.
    pub(super) blueprint: Arc<PodBlueprint>,
    pub(super) location: Option<SandboxLocation>,
    /// The pod's own address. It outlives its sandbox, so that what is asked of a pod whose sandbox is gone is not asked
    /// of the host.
    pub(super) address: Option<IpAddr>,
    pub(super) lives: Vec<Life>,
    /// Per container, what the runtime called its image.
    pub(super) images: Vec<KnownImage>,
    pub(super) history: History,
    /// Done once the state they follow from is on disk.
    pub(super) pending: PendingOutput,
    /// Takes this pod's name once it is gone.
    pub(super) successor: Option<Successor>,
    /// What is fetched for it meanwhile.
    pub(super) preparation: Option<Preparation>,
    /// The distinct stop signals it goes by, as counted in the metrics.
    pub(super) signals: BTreeSet<Signal>,
    /// The gates whose fields its manifest has, as counted in the metrics.
    pub(super) gates_in_use: GateSet,
    /// Its end needed SIGKILL, which is counted once.
    pub(super) grace_exceeded: bool,
    /// Other CPU and memory that are wanted.
    pub(super) resize: Resize,
    /// Only what a crash may lose has changed since the last save.
    pub(super) changed_lightly: bool,
    /// Others would see a difference: the spare copy is due.
    pub(super) changed_visibly: bool,
}

#[derive(Debug, Default)]
pub(super) struct PendingOutput {
    pub(super) actions: Vec<DueAction>,
    pub(super) lines: Vec<Line>,
}

/// An action and when it was due.
#[derive(Debug)]
pub(super) struct DueAction {
    pub(super) action: Action,
    pub(super) due: Time,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Successor {
    pub(super) pod: Arc<Pod>,
    pub(super) origin: Origin,
}

/// An admitted pod as text. It is needed when something is made from it, and a fifth of its size until then.
#[derive(Clone, Debug)]
pub(super) struct Manifest(Arc<str>);

impl Manifest {
    pub(super) fn new(pod: &Pod) -> Self {
        Self(serde_json::to_string(pod).expect("a pod is plain data").into())
    }

    /// Takes a text that was written by [`Manifest::new`], with the pod it stands for.
    pub(super) fn parse(text: &[u8]) -> serde_json::Result<(Self, Pod)> {
        let pod = serde_json::from_slice(text)?;
        Ok((Self::new(&pod), pod))
    }

    pub(super) fn read(&self) -> Arc<Pod> {
        serde_json::from_str(&self.0)
            .map(Arc::new)
            .expect("the text was made from a pod")
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

/// One life, from its creation until its record is removed.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) key: LifeKey,
    pub(super) id: ContainerId,
    /// The manifest it was created from.
    pub(super) spec: Manifest,
    /// What was made of that manifest.
    pub(super) blueprint: Arc<PodBlueprint>,
    /// Whose CPU and memory it has now.
    pub(super) resources: Arc<PodBlueprint>,
    pub(super) generation: u32,
    pub(super) stop_signal: Option<Signal>,
    /// Who it runs as, as far as the runtime tells.
    pub(super) user: Option<ContainerUser>,
    /// The signal that was sent and when.
    pub(super) signalled: Option<(Signal, Time)>,
    /// When the runtime, asked to stop it, sends SIGKILL by itself.
    pub(super) killed_by_runtime_at: Option<Time>,
    pub(super) stage: LifeStage,
    /// It has ended and nobody saw how.
    pub(super) unseen_end: bool,
    hooks: [Option<AbortHandle>; 2],
}

/// How far the engine has followed a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LifeStage {
    /// The runtime has it.
    Found,
    Created,
    Running,
    Ended,
}

/// What is persisted of an entry, with the engine's state.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record<E> {
    pub(super) origin: Origin,
    pub(super) generation: u32,
    /// The lives that were made from an older manifest than the current one.
    pub(super) older_lives: Vec<(LifeKey, u32)>,
    pub(super) history: History,
    pub(super) successor: Option<Successor>,
    pub(super) grace_exceeded: bool,
    #[serde(default)]
    pub(super) annotation: AcceptedAnnotation,
    pub(super) engine: E,
}

impl PodEntry {
    pub(super) fn new(
        identity: Identity,
        origin: Origin,
        pod: &Pod,
        spec: Manifest,
        blueprint: Arc<PodBlueprint>,
        accepted_at: Time,
    ) -> Self {
        let pod_name = identity.pod_name();
        let images = vec![KnownImage::default(); blueprint.containers.len()];
        let qos_class = pod.status.qos_class.clone();
        Self {
            identity,
            pod_name,
            origin,
            accepted_at,
            spec,
            qos_class,
            priority: pod.spec.priority.unwrap_or(0),
            ports: super::pods::ports(pod),
            annotation: AcceptedAnnotation::new(pod),
            generation: 0,
            blueprint,
            location: None,
            address: None,
            lives: Vec::new(),
            images,
            history: History::default(),
            pending: PendingOutput::default(),
            successor: None,
            preparation: None,
            signals: BTreeSet::new(),
            gates_in_use: gates_in_use(pod),
            grace_exceeded: false,
            resize: Resize::default(),
            changed_lightly: false,
            changed_visibly: true,
        }
    }

    pub(super) fn record<'e>(
        &self,
        engine: &'e pulselet_engine::PodMachine,
    ) -> Record<&'e pulselet_engine::PodMachine> {
        let older = self
            .lives
            .iter()
            .filter(|life| life.generation != self.generation);
        Record {
            origin: self.origin.clone(),
            generation: self.generation,
            older_lives: older.map(|life| (life.key, life.generation)).collect(),
            history: self.history.condensed(),
            successor: self.successor.clone(),
            grace_exceeded: self.grace_exceeded,
            annotation: self.annotation.clone(),
            engine,
        }
    }

    /// Nobody waits for its name any more.
    pub(super) fn forget_successor(&mut self) {
        self.successor = None;
        self.preparation = None;
    }

    /// The image that a container's next life is to have.
    pub(super) fn wanted_image(&self, container: usize) -> Option<&Arc<str>> {
        self.plan().containers.get(container).map(|plan| &plan.image)
    }

    pub(super) fn plan(&self) -> &Arc<PodPlan> {
        &self.blueprint.plan
    }

    pub(super) fn name_of(&self, container: usize) -> Option<Arc<str>> {
        self.plan()
            .containers
            .get(container)
            .map(|plan| Arc::clone(&plan.name))
    }

    pub(super) fn index_of(&self, container: &str) -> Option<usize> {
        let mut plans = self.plan().containers.iter();
        plans.position(|plan| &*plan.name == container)
    }

    pub(super) fn life(&self, key: LifeKey) -> Option<&Life> {
        self.lives.iter().find(|life| life.key == key)
    }

    pub(super) fn life_mut(&mut self, key: LifeKey) -> Option<&mut Life> {
        self.lives.iter_mut().find(|life| life.key == key)
    }

    /// Takes note of a life the runtime has; true if it was not known.
    pub(super) fn learn(&mut self, key: LifeKey, id: &ContainerId, stop_signal: Option<Signal>) -> bool {
        if let Some(life) = self.life_mut(key) {
            life.stop_signal = stop_signal;
            return false;
        }
        self.lives.push(Life {
            key,
            id: id.clone(),
            spec: self.spec.clone(),
            blueprint: Arc::clone(&self.blueprint),
            resources: Arc::clone(&self.blueprint),
            generation: self.generation,
            stop_signal,
            user: None,
            signalled: None,
            killed_by_runtime_at: None,
            stage: LifeStage::Found,
            unseen_end: false,
            hooks: [None, None],
        });
        true
    }

    /// Takes note of who a life runs as. An agent that adopts it has it running before the runtime says so.
    pub(super) fn learn_user(&mut self, key: LifeKey, user: Option<&ContainerUser>) {
        let Some(life) = self.life_mut(key) else { return };
        if life.user.as_ref() != user {
            life.user = user.cloned();
            self.changed_visibly = true;
        }
    }

    /// Who the container of that id runs as.
    pub(super) fn user_of(&self, id: &str) -> Option<&ContainerUser> {
        let life = self.lives.iter().find(|life| life.id.as_str() == id)?;
        life.user.as_ref()
    }

    /// The CPU and memory that the container's running life has; `None` if none runs.
    pub(super) fn resources_of(&self, container: usize) -> Option<&DeclaredResources> {
        let mut lives = self.lives.iter();
        let life = lives.find(|life| life.key.container == container && life.is_running())?;
        life.resources.containers.get(container)?.resources.as_deref()
    }

    /// The span of work for the pod as a whole.
    pub(super) fn span(&self) -> tracing::Span {
        spans::pod(&self.pod_name)
    }

    /// The span of work for one life of a container, with its id once the runtime has said it.
    pub(super) fn life_span(&self, life: LifeKey) -> tracing::Span {
        let id = self.life(life).map(|known| &known.id);
        spans::container(&self.pod_name, self.container_name(life.container), id)
    }

    /// Empty where the plan has no such container.
    pub(super) fn container_name(&self, container: usize) -> &str {
        let plan = self.plan().containers.get(container);
        plan.map_or("", |plan| &*plan.name)
    }

    /// The pod as a job sees it that makes something from its manifest.
    pub(super) fn reference(&self, key: PodKey) -> PodRef {
        PodRef {
            key,
            uid: Arc::clone(&self.identity.uid),
            spec: self.spec.read(),
            location: self.location.clone(),
        }
    }

    /// Takes note of where its sandbox is.
    pub(super) fn set_location(&mut self, location: SandboxLocation) {
        self.address = location.address();
        self.location = Some(location);
    }
}

impl Life {
    /// What the node needs of its container besides the engine's plan.
    pub(super) fn container(&self) -> Option<&ContainerBlueprint> {
        self.blueprint.containers.get(self.key.container)
    }

    /// The image it was made from.
    pub(super) fn image(&self) -> Option<&Arc<str>> {
        let plan = self.blueprint.plan.containers.get(self.key.container);
        plan.map(|plan| &plan.image)
    }

    pub(super) fn is_running(&self) -> bool {
        self.stage == LifeStage::Running
    }

    pub(super) fn set_hook(&mut self, hook: Hook, task: AbortHandle) {
        self.hooks[hook as usize] = Some(task);
    }

    pub(super) fn cancel_hook(&mut self, hook: Hook) {
        if let Some(task) = self.hooks[hook as usize].take() {
            task.abort();
        }
    }
}
