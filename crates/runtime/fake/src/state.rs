//! The fake's memory and what happens in it: containers begin, live by their scripts, and end.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use pulselet_runtime::{
    ContainerConfig, ContainerEvent, ContainerExit, ContainerId, ContainerState, ContainerStatus,
    ContainerUser, Error, EventHub, EventKind, ExecOutcome, ExecOutput, ExecRequest, ExitCause, Features,
    ImageSummary, ObjectKind, Operation, RegistryCredentials, Resources, Result, RuntimeEvent, SandboxConfig,
    SandboxId, SandboxState, SandboxStatus, SecurityContext, Signal, exit_code,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    faults::{Dice, RuntimeFaults},
    life::{Stop, ending},
    script::{ExecAnswer, ImageScript, LifeScript, StartScript},
    streams::Open,
};

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: Mutex<State>,
    pub(crate) events: EventHub,
    pub(crate) features: Features,
    pub(crate) open: Open,
    /// What the wall clock showed at `opened`.
    pub(crate) epoch: Timestamp,
    pub(crate) opened: Instant,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) dice: Dice,
    pub(crate) made: u64,
    pub(crate) sandboxes: BTreeMap<SandboxId, SandboxStatus>,
    pub(crate) containers: BTreeMap<ContainerId, Arc<Container>>,
    /// By container name; one per attempt, the last repeats.
    pub(crate) lives: BTreeMap<String, Vec<LifeScript>>,
    pub(crate) images: BTreeMap<String, ImageScript>,
    pub(crate) calls: VecDeque<(Operation, String)>,
    /// What containers were asked for with, the last of a name and attempt.
    pub(crate) configs: BTreeMap<(String, u32), ContainerConfig>,
    /// What containers were given after they were made, the last of each.
    pub(crate) resources: BTreeMap<ContainerId, Resources>,
    /// Bytes of memory that containers of these names use.
    pub(crate) memory: BTreeMap<String, u64>,
    /// By which handlers pods were asked for last, by their names.
    pub(crate) handlers: BTreeMap<String, String>,
    /// Who asked for each image last.
    pub(crate) pulled_as: BTreeMap<String, Option<RegistryCredentials>>,
}

#[derive(Debug)]
pub(crate) struct Container {
    /// All but the state, which is in `state`.
    pub(crate) status: ContainerStatus,
    pub(crate) signal: Signal,
    pub(crate) script: LifeScript,
    pub(crate) state: watch::Sender<ContainerState>,
    pub(crate) control: watch::Sender<Control>,
}

/// What was done to a container from outside.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Control {
    pub(crate) started: Option<Instant>,
    pub(crate) stop: Option<Stop>,
    /// The test ends it with this code.
    pub(crate) exit: Option<i32>,
}

impl Inner {
    pub(crate) fn new(faults: RuntimeFaults, features: Features) -> Self {
        let state = State {
            dice: Dice::new(faults),
            made: 0,
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            lives: BTreeMap::new(),
            images: BTreeMap::new(),
            calls: VecDeque::new(),
            configs: BTreeMap::new(),
            resources: BTreeMap::new(),
            memory: BTreeMap::new(),
            handlers: BTreeMap::new(),
            pulled_as: BTreeMap::new(),
        };
        let (epoch, opened) = (Timestamp::now(), Instant::now());
        Self {
            state: Mutex::new(state),
            events: EventHub::new(),
            features,
            open: Open::default(),
            epoch,
            opened,
        }
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().expect("no holder panics"))
    }

    /// The wall clock, which moves with tokio's.
    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.opened.elapsed()).unwrap_or(SignedDuration::ZERO);
        self.epoch.checked_add(elapsed).unwrap_or(self.epoch)
    }

    pub(crate) fn container(&self, id: &ContainerId) -> Result<Arc<Container>> {
        self.with(|state| state.containers.get(id).cloned())
            .ok_or_else(|| Error::no_container(id))
    }

    fn publish(&self, container: &Container, kind: EventKind) {
        let status = match kind {
            EventKind::Created | EventKind::Started | EventKind::Stopped => {
                Some(Box::new(container.status()))
            }
            EventKind::Deleted => None,
        };
        let (id, sandbox) = (container.status.id.clone(), container.status.sandbox.clone());
        let event = ContainerEvent {
            container: id,
            sandbox,
            kind,
            at: self.now(),
            status,
        };
        match self.with(|state| state.dice.event()) {
            None => self.events.publish(RuntimeEvent::Container(event)),
            Some(after) => {
                let events = self.events.clone();
                tokio::spawn(async move {
                    sleep(after).await;
                    events.publish(RuntimeEvent::Resync);
                });
            }
        }
    }

    pub(crate) fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId> {
        let created_at = self.now();
        // Runtimes behind CRI do not say which addresses the host has.
        let addresses = if config.namespaces.host_network {
            Vec::new()
        } else {
            vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]
        };
        self.with(|state| {
            let same =
                |other: &&SandboxStatus| other.pod.uid == config.pod.uid && other.attempt == config.attempt;
            if let Some(other) = state.sandboxes.values().find(same) {
                return Err(Error::AlreadyExists {
                    kind: ObjectKind::Sandbox,
                    id: other.id.to_string(),
                });
            }
            state.made += 1;
            state
                .handlers
                .insert(config.pod.name.clone(), config.runtime_handler.clone());
            let id = SandboxId::new(format!("sandbox-{}", state.made));
            let status = SandboxStatus {
                id: id.clone(),
                pod: config.pod.clone(),
                attempt: config.attempt,
                state: SandboxState::Ready,
                created_at,
                addresses,
                labels: config.labels.clone(),
                annotations: config.annotations.clone(),
            };
            state.sandboxes.insert(id.clone(), status);
            Ok(id)
        })
    }

    pub(crate) async fn stop_sandbox(&self, id: &SandboxId) {
        let containers: Vec<_> = self.with(|state| {
            if let Some(sandbox) = state.sandboxes.get_mut(id) {
                sandbox.state = SandboxState::NotReady;
            }
            state
                .containers
                .values()
                .filter(|container| container.status.sandbox == *id)
                .cloned()
                .collect()
        });
        for container in &containers {
            if matches!(container.status().state, ContainerState::Running { .. }) {
                self.stop(container, Duration::ZERO).await;
            }
        }
    }

    pub(crate) fn create(&self, sandbox: &SandboxId, config: &ContainerConfig) -> Result<ContainerId> {
        let created_at = self.now();
        let container = self.with(|state| {
            match state.sandboxes.get(sandbox).map(|sandbox| sandbox.state) {
                Some(SandboxState::Ready) => {}
                Some(SandboxState::NotReady) => {
                    let (operation, id) = (Operation::CreateContainer, sandbox.to_string());
                    return Err(Error::WrongState {
                        operation,
                        id,
                        state: "in a stopped sandbox",
                    });
                }
                None => return Err(Error::no_sandbox(sandbox)),
            }
            let same = |other: &&Arc<Container>| {
                let other = &other.status;
                other.sandbox == *sandbox && other.name == config.name && other.attempt == config.attempt
            };
            if let Some(other) = state.containers.values().find(same) {
                return Err(Error::AlreadyExists {
                    kind: ObjectKind::Container,
                    id: other.status.id.to_string(),
                });
            }
            state.made += 1;
            let id = ContainerId::new(format!("container-{}", state.made));
            let container = Arc::new(self.new_container(state, id, sandbox, config, created_at));
            state
                .containers
                .insert(container.status.id.clone(), Arc::clone(&container));
            Ok(container)
        })?;
        self.publish(&container, EventKind::Created);
        Ok(container.status.id.clone())
    }

    fn new_container(
        &self,
        state: &State,
        id: ContainerId,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        created_at: Timestamp,
    ) -> Container {
        let lives = state
            .lives
            .get(&config.name)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let life = usize::try_from(config.attempt)
            .unwrap_or(usize::MAX)
            .min(lives.len().saturating_sub(1));
        let of_image = match state.images.get(&config.image) {
            Some(ImageScript::Present(image) | ImageScript::Pulled(_, image)) => image.parsed_stop_signal(),
            Some(ImageScript::Fails(..)) | None => None,
        };
        let asked = config.stop_signal.filter(|_| self.features.stop_signal);
        let signal = asked
            .or(of_image.and_then(std::result::Result::ok))
            .unwrap_or(Signal::TERM);
        let status = ContainerStatus {
            id,
            sandbox: sandbox.clone(),
            pod: config.pod.clone(),
            name: config.name.clone(),
            attempt: config.attempt,
            created_at,
            state: ContainerState::Created,
            image: config.image.clone(),
            image_id: config.image_id.clone(),
            stop_signal: self.features.stop_signal.then_some(signal),
            user: user(&config.security),
            log_path: config.log_path.clone(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
        };
        let script = lives.get(life).cloned().unwrap_or_default();
        let (state, control) = (
            watch::Sender::new(ContainerState::Created),
            watch::Sender::default(),
        );
        Container {
            status,
            signal,
            script,
            state,
            control,
        }
    }

    pub(crate) async fn start(self: &Arc<Self>, container: Arc<Container>) -> Result<()> {
        let operation = Operation::StartContainer;
        let id = container.status.id.to_string();
        match &container.status().state {
            ContainerState::Created => {}
            ContainerState::Running { .. } => {
                return Err(Error::WrongState {
                    operation,
                    id,
                    state: "running",
                });
            }
            ContainerState::Exited(_) => {
                return Err(Error::WrongState {
                    operation,
                    id,
                    state: "exited",
                });
            }
            ContainerState::Unknown => {
                return Err(Error::WrongState {
                    operation,
                    id,
                    state: "unknown",
                });
            }
        }
        match &container.script.start {
            StartScript::Starts => {}
            StartScript::StartsAfter(delay) => sleep(*delay).await,
            StartScript::CannotRun(message) => {
                let exit = ContainerExit {
                    message: message.clone(),
                    killed_after_grace: None,
                    ..self.exit(exit_code::START_ERROR, ExitCause::StartError)
                };
                self.end(&container, exit);
                return Err(Error::CannotRun {
                    message: message.clone(),
                });
            }
        }
        let started = Instant::now();
        let started_at = self.now();
        container
            .control
            .send_modify(|control| control.started = Some(started));
        container
            .state
            .send_replace(ContainerState::Running { started_at });
        self.publish(&container, EventKind::Started);
        tokio::spawn(Arc::clone(self).live(container, started, started_at));
        Ok(())
    }

    /// Waits for the container's end, which every change of its control may bring forward.
    async fn live(self: Arc<Self>, container: Arc<Container>, started: Instant, started_at: Timestamp) {
        let mut control = container.control.subscribe();
        loop {
            let Control { stop, exit, .. } = *control.borrow_and_update();
            if let Some(code) = exit {
                let exit = ContainerExit {
                    started_at: Some(started_at),
                    ..self.exit(code, reason(code))
                };
                return self.end(&container, exit);
            }
            let ending = ending(&container.script, started, container.signal, stop);
            let end = async {
                match ending {
                    Some(ending) => {
                        sleep_until(ending.at).await;
                        ending
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ending = end => {
                    let exit = ContainerExit {
                        started_at: Some(started_at),
                        killed_after_grace: Some(ending.killed_after_grace),
                        ..self.exit(ending.code, reason(ending.code))
                    };
                    return self.end(&container, exit);
                }
                changed = control.changed() => if changed.is_err() { return },
            }
        }
    }

    /// An exit now, of a container that never ran and was not killed.
    fn exit(&self, code: i32, reason: ExitCause) -> ContainerExit {
        ContainerExit {
            started_at: None,
            finished_at: self.now(),
            code,
            reason,
            message: String::new(),
            killed_after_grace: Some(false),
        }
    }

    fn end(&self, container: &Container, mut exit: ContainerExit) {
        exit.killed_after_grace = exit.killed_after_grace.filter(|_| self.features.kill_reporting);
        container.state.send_replace(ContainerState::Exited(exit));
        self.publish(container, EventKind::Stopped);
    }

    pub(crate) async fn stop(&self, container: &Container, grace: Duration) {
        if matches!(container.status().state, ContainerState::Created) {
            let exit = ContainerExit {
                message: "stopped before it was started".to_owned(),
                ..self.exit(exit_code::KILLED, ExitCause::Error)
            };
            return self.end(container, exit);
        }
        container.control.send_modify(|control| {
            control.stop = Some(Stop::again(control.stop, Instant::now(), grace, container.signal));
        });
        let mut state = container.state.subscribe();
        let _ = state
            .wait_for(|state| matches!(state, ContainerState::Exited(_)))
            .await;
    }

    pub(crate) async fn remove(&self, id: &ContainerId) {
        let Ok(container) = self.container(id) else { return };
        if matches!(container.status().state, ContainerState::Running { .. }) {
            self.stop(&container, Duration::ZERO).await;
        }
        if self.with(|state| state.containers.remove(id)).is_some() {
            self.publish(&container, EventKind::Deleted);
        }
    }

    pub(crate) async fn exec(&self, container: &Container, request: &ExecRequest) -> Result<ExecOutput> {
        let Some(started) = container.control.borrow().started else {
            let id = container.status.id.to_string();
            return Err(Error::WrongState {
                operation: Operation::Exec,
                id,
                state: "not started",
            });
        };
        let exited = || Error::WrongState {
            operation: Operation::Exec,
            id: container.status.id.to_string(),
            state: "exited",
        };
        let mut state = container.state.subscribe();
        let (after, outcome, mut output) = match container.script.exec_at(started.elapsed()) {
            ExecAnswer::Exits(code, output) => (Some(Duration::ZERO), ExecOutcome::Exited(code), output),
            ExecAnswer::ExitsAfter(after, code) => (Some(after), ExecOutcome::Exited(code), Vec::new()),
            ExecAnswer::Hangs => (None, ExecOutcome::TimedOut, Vec::new()),
            ExecAnswer::CannotRun(message) => return Err(Error::CannotRun { message }),
        };
        let truncated = output.len() > request.output_limit;
        output.truncate(request.output_limit);
        let timed_out = |timeout: Duration| after.is_none_or(|after| after > timeout);
        let (wait, outcome) = match request.timeout {
            Some(timeout) if timed_out(timeout) => (Some(timeout), ExecOutcome::TimedOut),
            Some(_) | None => (after, outcome),
        };
        tokio::select! {
            biased;
            _ = state.wait_for(|state| matches!(state, ContainerState::Exited(_))) => Err(exited()),
            () = pause(wait) => Ok(ExecOutput { outcome, output, truncated }),
        }
    }

    pub(crate) async fn pull(&self, reference: &str) -> Result<ImageSummary> {
        let script = self.with(|state| {
            let script = state.images.entry(reference.to_owned());
            script
                .or_insert_with(|| ImageScript::unremarkable(reference))
                .clone()
        });
        match script {
            ImageScript::Present(image) => Ok(image),
            ImageScript::Pulled(after, image) => {
                sleep(after).await;
                let present = ImageScript::Present(image.clone());
                self.with(|state| state.images.insert(reference.to_owned(), present));
                Ok(image)
            }
            ImageScript::Fails(kind, message) => Err(ImageScript::error(kind, reference, &message).into()),
        }
    }

    pub(crate) fn images(&self) -> Vec<(String, ImageSummary)> {
        self.with(|state| {
            let present = state
                .images
                .iter()
                .filter_map(|(reference, script)| match script {
                    ImageScript::Present(image) => Some((reference.clone(), image.clone())),
                    ImageScript::Pulled(..) | ImageScript::Fails(..) => None,
                });
            present.collect()
        })
    }
}

impl Container {
    pub(crate) fn status(&self) -> ContainerStatus {
        let state = self.state.borrow().clone();
        let begun = state != ContainerState::Created;
        ContainerStatus {
            user: self.status.user.clone().filter(|_| begun),
            state,
            ..self.status.clone()
        }
    }
}

/// `None` waits for ever.
async fn pause(duration: Option<Duration>) {
    match duration {
        Some(duration) => sleep(duration).await,
        None => std::future::pending().await,
    }
}

/// Known if the pod gives it as a number: its images have no users.
fn user(security: &SecurityContext) -> Option<ContainerUser> {
    let gid = security.run_as_group.unwrap_or(0);
    let groups = std::iter::once(gid).chain(security.supplemental_groups.iter().copied());
    Some(ContainerUser {
        uid: security.run_as_user?,
        gid,
        supplemental_groups: groups.collect(),
    })
}

fn reason(code: i32) -> ExitCause {
    if code == 0 {
        ExitCause::Completed
    } else {
        ExitCause::Error
    }
}
