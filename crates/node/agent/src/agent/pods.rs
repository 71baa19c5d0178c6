//! Pods as they come and go: taking, replacing, deleting, cleaning up; and what requests ask about them.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use pulselet_engine::plan::{ProbeKind, Role};
use pulselet_engine::status::{PodReport, ReportedState};
use pulselet_engine::{Identity, Input, PodKey, PodPlan};
use pulselet_model::{PROBES_ANNOTATION, Pod, PodStatus, gates_in_use, keep_accepted};
use pulselet_plan::{PodBlueprint, refusal_without};
use pulselet_runtime::SandboxId;
use pulselet_vocabulary::PodName;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::entry::{Manifest, PodEntry, Successor};
use super::requests::{
    AddError, Added, How, Located, LogError, LogPlace, MAX_PODS, NoSuchPod, PodView, ProbeView, Request,
    Shutdown, StreamError, UpdateError,
};
use super::transitions::probe_name;
use super::{Agent, LEAVE_PATIENCE};
use crate::container_config::{abilities, log_path};
use crate::pod::annotation::annotated;
use crate::pod::identity::{Origin, pod_name_of, uid_of};
use crate::pod::status::{KnownImage, Surroundings, pod_status};
use crate::spans;

impl Agent {
    pub(super) fn request(&mut self, request: Request) {
        // Whoever asked may have stopped waiting; that is no reason to stop.
        match request {
            Request::Add { pod, origin, reply } => {
                let _ = reply.send(self.add(Arc::from(pod), origin));
            }
            Request::Update { pod, reply } => {
                let _ = reply.send(self.update(&pod));
            }
            Request::Delete {
                pod,
                uid,
                grace,
                reply,
            } => {
                let grace = grace.map(Into::into);
                let _ = reply.send(self.delete(&pod, uid.as_deref(), Input::Delete { grace }));
            }
            Request::Stop { pod, grace, reply } => {
                let grace = grace.map(Into::into);
                let _ = reply.send(self.delete(&pod, None, Input::Stop { grace }));
            }
            Request::View { pod, reply } => {
                let key = self.names.get(&pod);
                let _ = reply.send(key.and_then(|key| self.view(*key)));
            }
            Request::Spec { pod, reply } => {
                let entry = self.names.get(&pod).and_then(|key| self.entries.get(key));
                let _ = reply.send(entry.map(|entry| entry.spec.read()));
            }
            Request::Restart {
                pod,
                container,
                reply,
            } => {
                let _ = reply.send(self.restart(&pod, container));
            }
            Request::List { reply } => {
                let _ = reply.send(self.entries.keys().filter_map(|key| self.view(*key)).collect());
            }
            Request::Log {
                pod,
                container,
                previous,
                reply,
            } => {
                let _ = reply.send(self.log(&pod, container.as_deref(), previous));
            }
            Request::Objects { reply } => {
                let _ = reply.send(self.entries.keys().filter_map(|key| self.object(*key)).collect());
            }
            Request::Container {
                pod,
                container,
                reply,
            } => {
                let _ = reply.send(self.locate(&pod, container));
            }
            Request::Sandbox { pod, reply } => {
                let _ = reply.send(self.sandbox(&pod));
            }
            Request::MachineGoesDown => self.machine_goes_down(),
            Request::MachineStays => self.machine_stays(),
            Request::StopGroup { group, left, reply } => self.stop_group(group, left.into(), reply),
            Request::Shutdown { mode } => self.shut_down(mode),
        }
    }

    /// Takes a pod, adopts the same one, or lets it wait for the one that has its name.
    fn add(&mut self, pod: Arc<Pod>, origin: Origin) -> Result<Added, AddError> {
        if self.ending.is_some() {
            return Err(AddError::ShuttingDown);
        }
        let blueprint = pulselet_plan::convert(&annotated(&pod).0, self.config.gates)?;
        let name = pod_name_of(&pod);
        let uid = uid_of(&pod);
        let added = |how| Added {
            uid: uid.clone(),
            pod: name.clone(),
            how,
        };
        let Some(key) = self.names.get(&name).copied() else {
            if self.entries.len() >= MAX_PODS {
                return Err(AddError::Full);
            }
            self.accept(&pod, blueprint, origin);
            return Ok(added(How::Created));
        };
        let leaving = self
            .pods
            .get(key)
            .is_none_or(pulselet_engine::PodMachine::is_deleting);
        if let Some(entry) = self.entries.get_mut(&key) {
            check_owner(entry, &origin)?;
            if *entry.identity.uid == *uid && !leaving {
                entry.origin = origin;
                // Whoever waited for its name was a change that is taken back.
                entry.forget_successor();
                self.journal.mark(key);
                return Ok(added(How::Adopted));
            }
            // It is converted again when its turn comes, perhaps by another agent.
            entry.successor = Some(Successor { pod, origin });
            self.journal.mark(key);
        }
        self.prepare_successor(key);
        Ok(added(How::Replacing))
    }

    /// Takes a pod, to run it or to refuse it: for what no node does, or for what this one's runtime does not.
    fn accept(&mut self, pod: &Pod, mut blueprint: PodBlueprint, origin: Origin) {
        let (pod, bad_annotation) = annotated(pod);
        let pod = &*pod;
        let has = abilities(self.jobs.version.features.security);
        let refusal = blueprint.refusal.take().map(|refusal| *refusal);
        let refusal = refusal
            .or_else(|| refusal_without(pod, has))
            .or_else(|| self.lack_of_time(&origin))
            .or_else(|| self.lack_of_strength(pod, &origin))
            .or_else(|| self.lack_of_room(&blueprint, &origin));
        blueprint.refusal = refusal.map(Box::new);
        let identity = Identity {
            namespace: pod.namespace().into(),
            name: pod.name().into(),
            uid: uid_of(pod).into(),
        };
        let now = self.jobs.clock.now();
        let settings = self.settings();
        let (own, plan) = (identity.clone(), Arc::clone(&blueprint.plan));
        let engine = match &blueprint.refusal {
            None => {
                let seed = RandomState::new().hash_one(&*identity.uid);
                pulselet_engine::PodMachine::new(own, plan, settings, seed, now, &mut self.out)
            }
            Some(refusal) => {
                self.metrics.kubelet.pod_rejected(refusal.reason.as_str());
                let why = (refusal.reason.as_str(), refusal.status_message());
                pulselet_engine::PodMachine::rejected(own, plan, settings, why, now, &mut self.out)
            }
        };
        if origin.is_api() {
            warn_of_long_grace(&identity, &blueprint.plan);
        }
        self.begins_under_pressure(&engine);
        let spec = Manifest::new(pod);
        self.journal.spec(&identity.uid, 0, &spec);
        let entry = PodEntry::new(identity, origin, pod, spec, Arc::new(blueprint), now);
        let key = self.insert(engine, entry);
        self.digest(key, now);
        self.begins_while_machine_goes_down(key);
        if let Some(why) = bad_annotation {
            self.warn_of_pod(key, "InvalidProbesAnnotation", why);
        }
    }

    pub(super) fn insert(&mut self, engine: pulselet_engine::PodMachine, entry: PodEntry) -> PodKey {
        self.metrics.features_used(entry.gates_in_use);
        let key = self.pods.insert(engine);
        self.names.insert(entry.pod_name.clone(), key);
        self.entries.insert(key, entry);
        self.count_signals(key);
        key
    }

    /// Counts the stop signals that a pod goes by now, which follows what runs.
    pub(super) fn count_signals(&mut self, key: PodKey) {
        let (Some(pod), Some(entry)) = (self.pods.get(key), self.entries.get_mut(&key)) else {
            return;
        };
        let signals = pod.stop_signals();
        for signal in signals.difference(&entry.signals) {
            self.metrics.signal_asked(*signal);
        }
        for signal in entry.signals.difference(&signals) {
            self.metrics.signal_gone(*signal);
        }
        entry.signals = signals;
    }

    /// Another manifest for a pod that stays. Only another image restarts a container, and what an API no longer shows
    /// because a gate was turned off there is kept.
    fn update(&mut self, pod: &Pod) -> Result<(), UpdateError> {
        let name = pod_name_of(pod);
        let key = self.find(&name)?;
        let entry = self.entries.get_mut(&key).expect("a name leads to an entry");
        if *entry.identity.uid != *uid_of(pod) {
            return Err(NoSuchPod { pod: name }.into());
        }
        let is_news = entry.annotation.is_news(pod);
        let mut pod = entry.annotation.apply_accepted(pod);
        keep_accepted(&mut pod, &entry.spec.read());
        self.take_manifest(key, pod)?;
        if is_news {
            let message = format!(
                "The annotation {PROBES_ANNOTATION} is read when the node accepts a pod: the change has no effect"
            );
            self.warn_of_pod(key, "ProbesAnnotationIgnored", message);
        }
        Ok(())
    }

    /// Goes on with another manifest, as far as the node has room for what it asks for.
    pub(super) fn take_manifest(&mut self, key: PodKey, mut pod: Pod) -> Result<(), UpdateError> {
        self.judge_resize(key, &mut pod);
        let settings = self.settings();
        let entry = self.entries.get_mut(&key).expect("whoever asks has found it");
        let blueprint = Arc::new(pulselet_plan::convert(&pod, self.config.gates)?);
        let (plan, running) = (Arc::clone(&blueprint.plan), Arc::clone(&blueprint.running));
        if !only_adds_ephemeral(&plan, entry.plan()) {
            return Err(UpdateError::Containers);
        }
        let spec = Manifest::new(&pod);
        if spec.text() == entry.spec.text() {
            return Ok(());
        }
        let before = entry.generation;
        entry.generation = before.wrapping_add(1);
        self.journal.spec(&entry.identity.uid, entry.generation, &spec);
        if entry.lives.iter().all(|life| life.generation != before) {
            self.journal.forget_spec(&entry.identity.uid, before);
        }
        entry.spec = spec;
        entry
            .images
            .resize_with(plan.containers.len(), KnownImage::default);
        entry.blueprint = blueprint;
        entry.changed_visibly = true;
        self.metrics.features_gone(entry.gates_in_use);
        entry.gates_in_use = gates_in_use(&pod);
        self.metrics.features_used(entry.gates_in_use);
        self.journal.mark(key);
        let jobs = Arc::clone(&self.jobs);
        let pod = entry.reference(key);
        let work = async move { jobs.update_volumes(pod).await };
        self.tasks.spawn(work.instrument(entry.span()));
        self.feed(
            key,
            Input::Replan {
                plan,
                running,
                settings,
            },
        );
        self.count_signals(key);
        self.work_on_resize(key);
        Ok(())
    }

    /// Gives the pod the input that ends it, and whoever waits for its name nothing.
    fn delete(&mut self, pod: &PodName, uid: Option<&str>, end: Input) -> Result<(), NoSuchPod> {
        let key = self.find(pod)?;
        if let Some(entry) = self.entries.get_mut(&key) {
            let is_meant = uid.is_none_or(|uid| uid == &*entry.identity.uid);
            let waits = |it: &Successor| uid.is_none_or(|uid| uid == uid_of(&it.pod));
            let waited = entry.successor.as_ref().is_some_and(waits);
            if waited {
                entry.forget_successor();
            }
            if !is_meant {
                self.journal.mark(key);
                return if waited {
                    Ok(())
                } else {
                    Err(NoSuchPod { pod: pod.clone() })
                };
            }
        }
        self.feed(key, end);
        Ok(())
    }

    fn find(&self, pod: &PodName) -> Result<PodKey, NoSuchPod> {
        let key = self.names.get(pod).copied();
        key.ok_or_else(|| NoSuchPod { pod: pod.clone() })
    }

    pub(super) fn shut_down(&mut self, mode: Shutdown) {
        if self.ending.is_none() {
            self.leave_by = Instant::now() + LEAVE_PATIENCE;
        }
        self.ending = self.ending.max(Some(mode));
        let grace = match mode {
            Shutdown::Leave => return,
            Shutdown::StopPods => None,
            Shutdown::KillPods => Some(pulselet_engine::Span::ZERO),
        };
        let keys: Vec<_> = self.entries.keys().copied().collect();
        for key in keys {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.forget_successor();
            }
            self.feed(key, Input::Delete { grace });
        }
    }

    /// The pod is over and the store has forgotten it: removes its files.
    pub(super) fn clean_up(&mut self, key: PodKey) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        let pod = entry.identity.clone();
        // Who ran it looks for what it printed when it has failed; the next run removes it.
        let keeps_logs = entry.origin == Origin::Run;
        let jobs = Arc::clone(&self.jobs);
        let work = async move { jobs.clean_up(key, pod, keeps_logs).await };
        self.tasks.spawn(work.instrument(entry.span()));
    }

    /// Nothing of the pod is left: forgets it, and takes the one that waited for its name.
    pub(super) fn forget(&mut self, key: PodKey) {
        let Some(entry) = self.entries.remove(&key) else {
            return;
        };
        self.names.remove(&entry.pod_name);
        if let Some(feed) = &self.api_feed {
            feed.changed(&entry.pod_name);
        }
        for life in &entry.lives {
            self.containers.remove(&life.id);
        }
        for signal in &entry.signals {
            self.metrics.signal_gone(*signal);
        }
        self.metrics.features_gone(entry.gates_in_use);
        for container in &entry.plan().containers {
            for kind in ProbeKind::ALL {
                self.metrics
                    .forget_probe(&probe_name(&entry, &container.name, kind));
            }
        }
        let Some(Successor { pod, origin }) = entry.successor.filter(|_| self.ending.is_none()) else {
            return;
        };
        match pulselet_plan::convert(&annotated(&pod).0, self.config.gates) {
            Ok(blueprint) => self.accept(&pod, blueprint, origin),
            Err(error) => {
                spans::pod(&entry.pod_name)
                    .in_scope(|| tracing::error!(%error, "cannot take the pod that was to replace this one"));
            }
        }
    }

    pub(super) fn view(&self, key: PodKey) -> Option<PodView> {
        let entry = self.entries.get(&key)?;
        // One that is over but not cleaned up is not shown any more.
        let pod = self.pods.get(key)?;
        let clock = self.jobs.clock;
        let around = Surroundings {
            blueprints: &entry.blueprint.containers,
            qos_class: &entry.qos_class,
            images: &entry.images,
            user_of: &|id| entry.user_of(id),
            resources_of: &|container| entry.resources_of(container),
            pod_ips: entry
                .location
                .as_ref()
                .map(|location| &*location.addresses)
                .unwrap_or_default(),
            host_ip: self.jobs.facts.address,
            clock,
            gates: self.config.gates,
            runtime: &self.jobs.version.name,
            recursive_read_only: self.jobs.version.features.security.recursive_read_only,
        };
        let report = pod.status();
        Some(PodView {
            namespace: entry.identity.namespace.to_string(),
            name: entry.identity.name.to_string(),
            uid: entry.identity.uid.to_string(),
            origin: entry.origin.clone(),
            accepted_at: clock.wall(entry.accepted_at),
            deleting: pod.is_deleting(),
            stopped: false,
            ports: entry.ports.clone(),
            status: self.status_of(entry, &report, &around),
            probes: pod.probes().map(ProbeView::from).collect(),
            stop_signals: stop_signals(&report),
        })
    }

    fn status_of(&self, entry: &PodEntry, report: &PodReport, around: &Surroundings<'_>) -> PodStatus {
        let mut status = pod_status(report, around);
        status.conditions.extend(entry.resize.conditions(self.jobs.clock));
        status
    }

    fn object(&self, key: PodKey) -> Option<Pod> {
        let view = self.view(key)?;
        let mut pod = Arc::unwrap_or_clone(self.entries.get(&key)?.spec.read());
        pod.metadata.uid = Some(view.uid);
        pod.status = view.status;
        Some(pod)
    }

    fn locate(&self, pod: &PodName, container: String) -> Result<Located, StreamError> {
        let key = self.find(pod)?;
        let entry = self.entries.get(&key).expect("a name leads to an entry");
        let pod = pod.clone();
        let Some(index) = entry.index_of(&container) else {
            return Err(StreamError::NoSuchContainer { pod, container });
        };
        let of_container = entry.lives.iter().filter(|life| life.key.container == index);
        let newest = of_container.max_by_key(|life| life.key.attempt);
        let Some(life) = newest.filter(|life| life.is_running()) else {
            return Err(StreamError::NotRunning { pod, container });
        };
        Ok(Located {
            id: life.id.clone(),
            tty: life.container().is_some_and(|it| it.tty),
            stdin: life.container().is_some_and(|it| it.stdin),
        })
    }

    /// Asks for another life of a container, or of all that have one or wait for one.
    fn restart(&mut self, pod: &PodName, container: Option<String>) -> Result<usize, StreamError> {
        let key = self.find(pod)?;
        let entry = self.entries.get(&key).expect("a name leads to an entry");
        let report = self.pods.get(key).map(pulselet_engine::PodMachine::status);
        let alive = |index: &usize| {
            let status = report.as_ref().and_then(|report| report.containers.get(*index));
            status.is_some_and(|status| match status.state {
                ReportedState::Running { .. } | ReportedState::Waiting { .. } => status.id.is_some(),
                ReportedState::Terminated(_) => false,
            })
        };
        let pod = pod.clone();
        let chosen: Vec<usize> = match &container {
            None => (0..entry.plan().containers.len()).filter(alive).collect(),
            Some(name) => {
                let container = name.clone();
                let missing = StreamError::NoSuchContainer {
                    pod: pod.clone(),
                    container,
                };
                let index = entry.index_of(name).ok_or(missing)?;
                Some(index).filter(alive).into_iter().collect()
            }
        };
        if chosen.is_empty() {
            return Err(match container {
                Some(container) => StreamError::NotRunning { pod, container },
                None => StreamError::NoSandbox { pod },
            });
        }
        for container in &chosen {
            let container = *container;
            self.feed(key, Input::Restart { container });
        }
        Ok(chosen.len())
    }

    fn sandbox(&self, pod: &PodName) -> Result<SandboxId, StreamError> {
        let key = self.find(pod)?;
        let location = self.entries.get(&key).and_then(|entry| entry.location.as_ref());
        let pod = pod.clone();
        location
            .map(|location| location.sandbox.clone())
            .ok_or(StreamError::NoSandbox { pod })
    }

    /// Whether a container will not run again.
    fn has_finished(&self, key: PodKey, container: usize) -> bool {
        let Some(pod) = self.pods.get(key) else {
            return true;
        };
        let report = pod.status();
        let container = report.containers.get(container);
        container.is_none_or(|it| matches!(it.state, ReportedState::Terminated(_)))
    }

    fn log(&self, pod: &PodName, container: Option<&str>, previous: bool) -> Result<LogPlace, LogError> {
        let key = self.find(pod)?;
        let entry = self.entries.get(&key).expect("a name leads to an entry");
        let choices = || {
            entry
                .plan()
                .containers
                .iter()
                .map(|plan| plan.name.to_string())
                .collect()
        };
        let pod = pod.clone();
        let all = entry.plan().containers.iter().enumerate();
        let mut mains = all.filter(|(_, plan)| plan.role == Role::Main);
        let only_main = mains.next().filter(|_| mains.next().is_none());
        let index = match (container, only_main) {
            (Some(name), _) => entry.index_of(name).ok_or_else(|| LogError::NoSuchContainer {
                pod: pod.clone(),
                container: name.to_owned(),
                choices: choices(),
            })?,
            (None, Some((index, _))) => index,
            (None, None) => {
                let choices = choices();
                return Err(LogError::Ambiguous { pod, choices });
            }
        };
        let container = entry.plan().containers[index].name.to_string();
        let mut lives: Vec<_> = entry
            .lives
            .iter()
            .filter(|life| life.key.container == index)
            .collect();
        lives.sort_by_key(|life| std::cmp::Reverse(life.key.attempt));
        let life = match (lives.get(usize::from(previous)), previous) {
            (Some(life), _) => life,
            (None, true) => return Err(LogError::NoPrevious { pod, container }),
            (None, false) => return Err(LogError::NotYet { pod, container }),
        };
        let Identity { namespace, name, uid } = &entry.identity;
        let attempt = life.key.attempt;
        let directory = self.jobs.layout.pod_logs(namespace, name, uid);
        Ok(LogPlace {
            path: log_path(&directory, &container, attempt),
            container,
            attempt,
            running: !previous && life.is_running(),
            last: !life.is_running() && self.has_finished(key, index),
        })
    }
}

/// Per container, the signal that its newest life is or was stopped with, as far as the runtime has said.
fn stop_signals(report: &PodReport) -> BTreeMap<String, String> {
    let known = report
        .containers
        .iter()
        .filter_map(|it| it.stop_signal.map(|signal| (it, signal)));
    known
        .map(|(it, signal)| (it.name.to_string(), signal.name().to_owned()))
        .collect()
}

/// Per container, the ports that its manifest names.
pub(crate) fn ports(pod: &Pod) -> BTreeMap<String, Vec<String>> {
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let of = |container: &pulselet_model::Container| {
        let ports = container.ports.iter().map(|port| {
            let (number, protocol) = (port.container_port, port.protocol.as_str());
            let protocol = if protocol.is_empty() { "TCP" } else { protocol };
            match port.host_port {
                0 => format!("{number}/{protocol}"),
                host => format!("{host}->{number}/{protocol}"),
            }
        });
        (container.name.clone(), ports.collect::<Vec<_>>())
    };
    containers
        .map(of)
        .filter(|(_, ports)| !ports.is_empty())
        .collect()
}

/// An API decides over its own pods only, and nobody else over those.
/// Pods from files were admitted by this process, which said it then.
fn warn_of_long_grace(identity: &Identity, plan: &PodPlan) {
    for container in &plan.containers {
        for kind in ProbeKind::ALL {
            let Some(own) = container.probe(kind).and_then(|probe| probe.grace) else {
                continue;
            };
            if let Some(pod) = plan.grace.filter(|pod| own > *pod) {
                spans::container(&identity.pod_name(), &container.name, None).in_scope(|| {
                    tracing::warn!(
                        probe = kind.as_str(), grace = %own, pod_grace = %pod,
                        "the probe's grace period is longer than the pod's"
                    );
                });
            }
        }
    }
}

fn check_owner(entry: &PodEntry, origin: &Origin) -> Result<(), AddError> {
    let whose = match (entry.origin.is_api(), origin.is_api()) {
        (true, true) | (false, false) => return Ok(()),
        (true, false) => "this machine but to the API",
        (false, true) => "the API but to this machine",
    };
    let pod = entry.pod_name.clone();
    Err(AddError::NameTaken { pod, whose })
}

/// Whether all containers are still where they were, and new ones are for looking only.
fn only_adds_ephemeral(new: &PodPlan, old: &PodPlan) -> bool {
    let (new, old) = (&new.containers, &old.containers);
    let same = new
        .iter()
        .zip(old)
        .all(|(new, old)| new.name == old.name && new.role == old.role);
    let mut added = new.iter().skip(old.len());
    same && new.len() >= old.len() && added.all(|plan| plan.role == Role::Ephemeral)
}
