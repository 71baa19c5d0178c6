//! The engine's actions, handed to jobs.

use std::sync::Arc;
use std::time::Duration;

use pulselet_engine::io::{Action, ProbeOutcome, ProbeReport};
use pulselet_engine::plan::{Hook, ProbeKind};
use pulselet_engine::probe_runner::Asked;
use pulselet_engine::{Input, LifeKey, PodKey, Span, Time};
use pulselet_model::Pod;
use pulselet_plan::{ImageVolume, PodBlueprint, PullPolicy};
use pulselet_vocabulary::Signal;
use tracing::Instrument as _;

use super::Agent;
use super::entry::{DueAction, PodEntry};
use crate::jobs::{
    CreateJob, HookJob, ImageJob, JobContext, ProbeJob, RemoveJob, SignalsJob, StopJob, Target,
};
use crate::spans;

/// The runtime counts a grace period from the signal itself, which comes a moment after we asked for it. Our SIGKILL
/// backs up the runtime's, so it comes this much later: never before the grace period is over.
const BACK_UP_AFTER: Duration = Duration::from_millis(250);

impl Agent {
    /// Begins an action. It is answered through the queue of answers, never here.
    pub(super) fn perform(&mut self, key: PodKey, due_action: &DueAction) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let jobs = Arc::clone(&self.jobs);
        match due_action.action {
            Action::RunSandbox { attempt } => {
                let pod = entry.reference(key);
                let work = async move { jobs.run_sandbox(pod, attempt).await };
                self.tasks.spawn(work.instrument(entry.span()));
            }
            Action::StopSandbox => {
                entry.location = None;
                let uid = Arc::clone(&entry.identity.uid);
                let work = async move { jobs.stop_sandbox(key, uid).await };
                self.tasks.spawn(work.instrument(entry.span()));
            }
            Action::EnsureImage { container } => {
                let job = image_job(entry, key, container);
                let span = spans::container(&entry.pod_name, entry.container_name(container), None);
                self.tasks
                    .spawn(async move { jobs.ensure_image(job).await }.instrument(span));
            }
            Action::Create { life } => {
                let job = create_job(entry, key, life);
                self.tasks
                    .spawn(jobs.create(job).instrument(entry.life_span(life)));
            }
            Action::Start { life } => {
                let Some(known) = entry.life(life) else {
                    return self.lost_life(key, life, "start");
                };
                let id = known.id.clone();
                let work = async move { jobs.start(key, life, id).await };
                self.tasks.spawn(work.instrument(entry.life_span(life)));
            }
            Action::Probe {
                life,
                kind,
                timeout,
                look,
            } => self.probe(key, (life, kind), Asked { timeout, look }, due_action.due),
            Action::Hook { life, hook, limit } => self.hook(key, life, hook, limit),
            Action::CancelHook { life, hook } => {
                if let Some(known) = entry.life_mut(life) {
                    known.cancel_hook(hook);
                }
            }
            Action::Stop { life, grace } => self.stop(key, life, grace.into()),
            Action::Kill { life } => self.stop(key, life, Duration::ZERO),
            Action::Remove { life } => self.remove(key, life),
        }
    }

    fn probe(&mut self, key: PodKey, (life, kind): (LifeKey, ProbeKind), asked: Asked, due: Time) {
        let entry = self.entries.get(&key);
        let known = entry.and_then(|entry| {
            let known = entry.life(life)?;
            let target = known.container()?.probe(kind)?;
            let span = spans::probe(
                &entry.pod_name,
                entry.container_name(life.container),
                &known.id,
                kind,
            );
            Some((known.id.clone(), Arc::clone(target), entry.address, span))
        });
        let Some((id, target, address, span)) = known else {
            let report = ProbeReport {
                outcome: ProbeOutcome::Error,
                detail: "the probe is not in the pod's manifest".to_owned(),
                latency: Span::ZERO,
                exit_code: None,
                reached: false,
                timed_out: false,
                starved: false,
            };
            return self.answer_soon(key, Input::ProbeDone { life, kind, report });
        };
        let job = ProbeJob {
            pod: key,
            life,
            kind,
            id,
            target,
            address,
            timeout: asked.timeout.into(),
            look: asked.look.map(Into::into),
            due,
        };
        let jobs = Arc::clone(&self.jobs);
        self.tasks
            .spawn(async move { jobs.probe(job).await }.instrument(span));
    }

    fn hook(&mut self, key: PodKey, life: LifeKey, hook: Hook, limit: Option<Span>) {
        let jobs = Arc::clone(&self.jobs);
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let address = entry.address;
        let span = entry.life_span(life);
        let Some(known) = entry.life_mut(life) else {
            let result = Err("the container is not there".to_owned());
            return self.answer_soon(key, Input::HookDone { life, hook, result });
        };
        let job = HookJob {
            pod: key,
            life,
            id: known.id.clone(),
            hook,
            target: known.container().and_then(|it| it.hook(hook)).cloned(),
            address,
            limit: limit.map(Into::into),
        };
        let task = self
            .tasks
            .spawn(async move { jobs.hook(job).await }.instrument(span));
        known.set_hook(hook, task);
    }

    fn stop(&mut self, key: PodKey, life: LifeKey, grace: Duration) {
        let now = self.jobs.clock.now();
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let span = entry.life_span(life);
        let Some(known) = entry.life_mut(life) else {
            return self.lost_life(key, life, "stop");
        };
        let delay = match known.killed_by_runtime_at {
            Some(at) if grace.is_zero() && at <= now => BACK_UP_AFTER,
            Some(_) | None => Duration::ZERO,
        };
        known.killed_by_runtime_at = (!grace.is_zero()).then(|| now + grace.into());
        let signal = if grace.is_zero() {
            Signal::KILL
        } else {
            // What runtimes send when they do not say.
            known.stop_signal.unwrap_or(Signal::TERM)
        };
        let job = StopJob {
            pod: key,
            life,
            id: known.id.clone(),
            grace,
            signal,
            delay,
        };
        let jobs = Arc::clone(&self.jobs);
        self.tasks
            .spawn(async move { jobs.stop(job).await }.instrument(span));
    }

    /// Has the main process of a life looked at after a while. A signal that the runtime does not tell is not guessed.
    pub(super) fn read_signals(&mut self, key: PodKey, life: LifeKey, delay: Duration) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        let known = entry
            .life(life)
            .and_then(|known| Some((known.id.clone(), known.stop_signal?)));
        let Some((id, signal)) = known.filter(|(_, signal)| !signal.is_kill()) else {
            return;
        };
        let job = SignalsJob {
            pod: key,
            life,
            id,
            signal,
            delay,
        };
        let jobs = Arc::clone(&self.jobs);
        let span = entry.life_span(life);
        self.tasks
            .spawn(async move { jobs.read_signals(job).await }.instrument(span));
    }

    fn remove(&mut self, key: PodKey, life: LifeKey) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let Some(name) = entry.name_of(life.container) else {
            return;
        };
        let span = entry.life_span(life);
        let index = entry.lives.iter().position(|known| known.key == life);
        let known = index.map(|index| entry.lives.swap_remove(index));
        let pod = entry.identity.clone();
        if let Some(known) = &known {
            self.containers.remove(&known.id);
            let generation = known.generation;
            let needed = generation == entry.generation
                || entry.lives.iter().any(|other| other.generation == generation);
            if !needed {
                self.journal.forget_spec(&entry.identity.uid, generation);
            }
        }
        let job = RemoveJob {
            pod,
            name,
            attempt: life.attempt,
            id: known.map(|known| known.id),
        };
        let jobs = Arc::clone(&self.jobs);
        self.tasks
            .spawn(async move { jobs.remove(job).await }.instrument(span));
    }

    /// The engine speaks of a life the runtime never confirmed: it counts as gone.
    fn lost_life(&mut self, key: PodKey, life: LifeKey, wanted: &'static str) {
        if let Some(entry) = self.entries.get(&key) {
            let attempt = life.attempt;
            entry
                .life_span(life)
                .in_scope(|| tracing::error!(attempt, wanted, "the runtime does not know the life"));
        }
        let jobs = Arc::clone(&self.jobs);
        self.tasks.spawn(async move { jobs.lost(key, life).await });
    }

    fn answer_soon(&mut self, key: PodKey, input: Input) {
        let jobs: Arc<JobContext> = Arc::clone(&self.jobs);
        self.tasks.spawn(async move { jobs.send_input(key, input).await });
    }
}

fn image_job(entry: &PodEntry, key: PodKey, container: usize) -> ImageJob {
    let plan = entry.plan().containers.get(container);
    let blueprint = entry.blueprint.containers.get(container);
    ImageJob {
        pod: key,
        container,
        image: plan.map(|plan| Arc::clone(&plan.image)).unwrap_or_default(),
        policy: blueprint.map_or(PullPolicy::IfNotPresent, |it| it.pull_policy),
        volumes: mounted_images(&entry.blueprint, container),
        namespace: Arc::clone(&entry.identity.namespace),
        pull_secrets: entry.blueprint.pull_secrets.clone(),
        name: entry.name_of(container).unwrap_or_default(),
    }
}

/// The images that a container mounts.
pub(super) fn mounted_images(blueprint: &PodBlueprint, container: usize) -> Vec<ImageVolume> {
    let volumes = blueprint.image_volumes(container);
    volumes.map(|(_, image)| image.clone()).collect()
}

fn create_job(entry: &PodEntry, key: PodKey, life: LifeKey) -> CreateJob {
    let plan = entry.plan().containers.get(life.container);
    let pod = entry.reference(key);
    let target = plan.map_or(Target::None, |plan| target(entry, &pod.spec, &plan.name));
    CreateJob {
        pod,
        target,
        life,
        name: plan.map(|plan| Arc::clone(&plan.name)).unwrap_or_default(),
        image_id: entry
            .images
            .get(life.container)
            .filter(|known| plan.is_some_and(|plan| plan.image == known.name))
            .map(|known| known.id.clone())
            .unwrap_or_default(),
        image_volumes: entry
            .blueprint
            .image_volumes(life.container)
            .map(|(volume, image)| (volume.to_owned(), Arc::clone(&image.reference)))
            .collect(),
        stop_signal: plan.and_then(|plan| plan.stop_signal),
    }
}

/// Whose processes an ephemeral container is to see.
fn target(entry: &PodEntry, pod: &Pod, container: &str) -> Target {
    let mut ephemeral = pod.spec.ephemeral_containers.iter();
    let found = ephemeral.find(|it| it.name == container);
    let Some(name) = found
        .map(|it| &it.target_container_name)
        .filter(|name| !name.is_empty())
    else {
        return Target::None;
    };
    let index = entry.index_of(name);
    let mut lives = entry
        .lives
        .iter()
        .filter(|life| Some(life.key.container) == index);
    match lives.find(|life| life.is_running()) {
        Some(life) => Target::Running(life.id.clone()),
        None => Target::Missing(name.clone()),
    }
}
