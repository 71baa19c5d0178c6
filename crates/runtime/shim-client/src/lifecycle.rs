//! What the agent knows, and the life of a single container: start, stop, commands, removal.
//!
//! A container's transitions are made one at a time, under its own lock; whatever must not stop half way when a caller
//! gives up runs in a task of its own.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    num::NonZero,
    path::Path,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use jiff::Timestamp;
use pulselet_runtime::{
    ContainerExit, ContainerId, ContainerState, Error, EventHub, EventKind, ExecOutcome, ExitCause,
    LogLimits, ObjectKind, Operation, Result, SandboxId, SandboxState, exit_code,
};
use pulselet_shim::{
    Handshake, StartRequest,
    protocol::{ExecCall, Reply, Request, ShimRefusal},
    record,
};
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use crate::{
    adopt,
    client::{Client, ClientError},
    container::Container,
    container_kind::ContainerKind,
    elsewhere::shim_elsewhere,
    shims::ShimCommand,
    starter::Starter,
    store::{ContainerRecord, Found, SandboxRecord, Store, StoreError},
    stuck_shim,
};

/// Added to a grace or timeout that the shim keeps, before the shim is taken as broken.
pub(crate) const KEEPING_PATIENCE: Duration = Duration::from_secs(20);

/// Shims being started at once, for each processor and in all: a start is mostly waiting for the processor, and on a slow
/// machine very many of them would each take longer than a start may.
const STARTS_PER_PROCESSOR: usize = 4;
const MAX_STARTS: usize = 16;

/// A shim that has not reported its start after this is taken as broken. Usually it takes milliseconds.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of a shim's report that are read; a report has one message.
const MAX_REPORT: u64 = 64 * 1024;

/// How long a shim may take to answer a simple request, or to leave.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// How long a shim may take to accept a stop before the container is stopped without it. Usually it takes less than a
/// millisecond; on a machine that is overloaded a second.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Records that cannot be read, for want of descriptors, are tried so often, with [`READ_PAUSE`] between two tries.
const READ_TRIES: usize = 20;
const READ_PAUSE: Duration = Duration::from_millis(100);

/// How long the processes of a container without a record may take to be gone.
const UNRECORDED_PATIENCE: Duration = Duration::from_secs(3);

/// Between two looks whether a shim has left.
pub(crate) const LEAVE_INTERVAL: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) events: EventHub,
    pub(crate) starter: Starter,
    pub(crate) kind: Arc<dyn ContainerKind>,
    starts: Semaphore,
    known: Mutex<Known>,
    pub(crate) log_limits: OnceLock<LogLimits>,
}

#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) sandboxes: BTreeMap<SandboxId, SandboxRecord>,
    pub(crate) containers: BTreeMap<ContainerId, Arc<Container>>,
}

fn starts_at_once() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    processors.saturating_mul(STARTS_PER_PROCESSOR).min(MAX_STARTS)
}

impl Drop for Inner {
    fn drop(&mut self) {
        for container in self.all_containers() {
            container.stop_watching();
        }
    }
}

impl Inner {
    /// Reads everything there is below the root.
    pub(crate) fn load(
        root: &Path,
        shim: ShimCommand,
        kind: Arc<dyn ContainerKind>,
    ) -> std::result::Result<Self, StoreError> {
        let store = Store::open(root)?;
        let events = EventHub::new();
        let mut known = Known::default();
        for Found { dir, record } in read_patiently(|| store.sandboxes())? {
            match record {
                Ok(mut record) => {
                    if record.boot_id != store.boot_id {
                        record.state = SandboxState::NotReady;
                    }
                    known.sandboxes.insert(record.id.clone(), record);
                }
                Err(error) => {
                    tracing::warn!(%error, "a sandbox's record is damaged, it is removed");
                    if let Err(error) = Store::remove_damaged_sandbox(&dir) {
                        // It is in nobody's way, and the next start tries again.
                        tracing::warn!(%error, "the remains of a damaged sandbox cannot be removed");
                    }
                }
            }
        }
        for Found { dir, record } in read_patiently(|| store.containers())? {
            match record {
                Ok(record) => {
                    let container = Arc::new(adopt::load(record, dir, &store.boot_id, &events));
                    known.containers.insert(container.record.id.clone(), container);
                }
                Err(error) => {
                    tracing::warn!(%error, "a container's record is damaged, it is killed and removed");
                    end_damaged(&dir, &*kind);
                }
            }
        }
        Ok(Self {
            starter: Starter::new(shim, store.any_container_dir()),
            store,
            events,
            kind,
            starts: Semaphore::new(starts_at_once()),
            known: Mutex::new(known),
            log_limits: OnceLock::new(),
        })
    }

    /// Begins to watch all that may run. Returns them.
    pub(crate) fn follow_all(&self) -> Vec<Arc<Container>> {
        let mut containers = self.all_containers();
        containers.retain(|container| match container.state() {
            ContainerState::Running { .. } | ContainerState::Unknown => true,
            ContainerState::Created | ContainerState::Exited(_) => false,
        });
        for container in &containers {
            self.follow(container);
        }
        containers
    }

    /// Watches a container in a task of its own.
    fn follow(&self, container: &Arc<Container>) {
        let task = tokio::spawn(adopt::watch(Arc::clone(container), Arc::clone(&self.kind)));
        container.set_watcher(task.abort_handle());
    }

    pub(crate) fn known<T>(&self, look: impl FnOnce(&mut Known) -> T) -> T {
        look(&mut self.known.lock().expect("no holder panics"))
    }

    pub(crate) fn all_containers(&self) -> Vec<Arc<Container>> {
        self.known(|known| known.containers.values().cloned().collect())
    }

    pub(crate) fn container(&self, id: &ContainerId) -> Result<Arc<Container>> {
        self.known(|known| known.containers.get(id).cloned())
            .ok_or_else(|| Error::no_container(id))
    }

    /// Takes the name of a new container, so that nobody else does.
    pub(crate) fn reserve(&self, record: ContainerRecord) -> Result<Arc<Container>> {
        self.known(|known| {
            let sandbox = known
                .sandboxes
                .get(&record.sandbox)
                .ok_or_else(|| Error::no_sandbox(&record.sandbox))?;
            match sandbox.state {
                SandboxState::Ready => {}
                SandboxState::NotReady => {
                    let (operation, id) = (Operation::CreateContainer, record.sandbox.to_string());
                    return Err(Error::WrongState {
                        operation,
                        id,
                        state: "in a stopped sandbox",
                    });
                }
            }
            let same = |other: &ContainerRecord| {
                other.sandbox == record.sandbox
                    && other.config.name == record.config.name
                    && other.config.attempt == record.config.attempt
            };
            if let Some(other) = known.containers.values().find(|other| same(&other.record)) {
                return Err(Error::AlreadyExists {
                    kind: ObjectKind::Container,
                    id: other.record.id.to_string(),
                });
            }
            let dir = self.store.container_dir(&record.id);
            let container = Arc::new(Container::new(
                record,
                dir,
                ContainerState::Created,
                self.events.clone(),
            ));
            known
                .containers
                .insert(container.record.id.clone(), Arc::clone(&container));
            Ok(container)
        })
    }

    pub(crate) async fn start(&self, container: &Arc<Container>) -> Result<()> {
        let operation = Operation::StartContainer;
        let _transition = container.transition.lock().await;
        container.must_be_new(operation)?;
        let _permit = self
            .starts
            .acquire()
            .await
            .map_err(|error| Error::failed(operation, error))?;
        let report = timeout(START_PATIENCE, self.launch_shim(container)).await;
        let report = report
            .map_err(|_| {
                self.starter.give_up();
                Error::Timeout {
                    operation,
                    after: START_PATIENCE,
                }
            })
            .flatten();
        match report {
            Ok(Handshake::Started { started_at, .. }) => {
                adopt::started(container, started_at).await;
                self.follow(container);
                Ok(())
            }
            Ok(Handshake::CannotRun { message }) => {
                adopt::watch(Arc::clone(container), Arc::clone(&self.kind)).await;
                Err(Error::CannotRun { message })
            }
            Ok(Handshake::AlreadyStarted) => {
                self.follow(container);
                Ok(())
            }
            Ok(Handshake::Failed { detail }) => Err(Error::failed(operation, detail)),
            Err(error) => {
                // It may have come to life all the same.
                self.follow(container);
                Err(error)
            }
        }
    }

    /// Starts a shim and returns its report.
    async fn launch_shim(&self, container: &Container) -> Result<Handshake> {
        let failed = |error| Error::failed(Operation::StartContainer, error);
        let errors = File::options()
            .create(true)
            .append(true)
            .open(container.dir.join("shim.err"))
            .map_err(failed)?;
        let (its_end, reports) = pipe::pipe().map_err(failed)?;
        let its_end = its_end.into_blocking_fd().map_err(failed)?;
        let request = StartRequest {
            dir: &container.dir,
            report: its_end,
            errors: errors.into(),
            cgroup: self.kind.starts_in(container.record.id.as_str()),
        };
        let alone = self.starter.start(request).map_err(failed)?;
        let mut report = Vec::new();
        reports
            .take(MAX_REPORT)
            .read_to_end(&mut report)
            .await
            .map_err(failed)?;
        if let Some(mut alone) = alone {
            alone.wait().await.map_err(failed)?;
        }
        serde_json::from_slice(&report).map_err(|error| {
            let detail = format!("the shim {} gave no report: {error}", self.starter);
            Error::failed(Operation::StartContainer, detail)
        })
    }

    pub(crate) async fn stop(&self, container: &Arc<Container>, grace: Duration) -> Result<()> {
        let operation = Operation::StopContainer;
        if matches!(container.state(), ContainerState::Created) {
            let _transition = container.transition.lock().await;
            if matches!(container.state(), ContainerState::Created) {
                match claim(container, operation).await? {
                    Claim::Ours(lock) => return end_unstarted(container, lock).await,
                    Claim::Shims => self.discover(container).await,
                }
            }
        }
        if matches!(container.state(), ContainerState::Exited(_)) {
            return Ok(());
        }
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let asked = Instant::now();
        let request = Request::Stop { grace_ms };
        let answer = timeout(STOP_PATIENCE, self.ask(container, operation, &request)).await;
        let after = match answer {
            Ok(Ok((_, Reply::Done))) => grace.saturating_add(KEEPING_PATIENCE),
            Ok(Ok((_, other))) => return Err(unexpected(container, operation, other)),
            // The shim is leaving or was lost; either way the end is about to be observed.
            Ok(Err(Error::WrongState { .. } | Error::Unavailable { .. })) => ANSWER_PATIENCE,
            Ok(Err(error)) => return Err(error),
            Err(_) => Duration::ZERO,
        };
        if timeout(after, container.wait_for_exit()).await.is_ok() {
            return Ok(());
        }
        let left = grace.saturating_sub(asked.elapsed());
        stuck_shim::stop(container, &self.kind, left).await
    }

    pub(crate) async fn remove(&self, container: Arc<Container>) -> Result<()> {
        let operation = Operation::RemoveContainer;
        let _transition = container.transition.lock().await;
        if self.container(&container.record.id).is_err() {
            return Ok(());
        }
        let lock = self.end_for_good(&container).await?;
        container.stop_watching();
        let (store, kind, removed) = (self.store.clone(), Arc::clone(&self.kind), Arc::clone(&container));
        blocking(operation, move || {
            kind.clean_up(&removed.record, &removed.dir);
            let result = store.remove_container(&removed.record.id);
            drop(lock);
            result
        })
        .await?;
        self.known(|known| known.containers.remove(&container.record.id));
        container.publish(EventKind::Deleted);
        Ok(())
    }

    /// Kills the container if it runs and returns when its shim has left, or will never come: with the lock, so that
    /// none comes until the container is removed.
    async fn end_for_good(&self, container: &Arc<Container>) -> Result<Option<File>> {
        let operation = Operation::RemoveContainer;
        let give_up = Instant::now() + ANSWER_PATIENCE;
        loop {
            match container.state() {
                ContainerState::Running { .. } | ContainerState::Unknown => {
                    self.stop(container, Duration::ZERO).await?;
                }
                ContainerState::Created | ContainerState::Exited(_) => {}
            }
            match claim(container, operation).await? {
                Claim::Ours(lock) => return Ok(lock),
                Claim::Shims if Instant::now() > give_up => {
                    return Err(Error::Timeout {
                        operation,
                        after: ANSWER_PATIENCE,
                    });
                }
                Claim::Shims => match container.state() {
                    ContainerState::Created => self.discover(container).await,
                    // The shim reports the exit before it leaves, which takes it another moment.
                    ContainerState::Running { .. } | ContainerState::Unknown | ContainerState::Exited(_) => {
                        sleep(LEAVE_INTERVAL).await;
                    }
                },
            }
        }
    }

    /// Learns about a container that was taken for new and has a shim.
    async fn discover(&self, container: &Arc<Container>) {
        container.begun();
        self.follow(container);
        // If it stays unknown, what comes next finds that out.
        let _ = timeout(ANSWER_PATIENCE, container.wait_until_known()).await;
    }

    /// Returns the outputs too: one, or two if they were asked for apart.
    pub(crate) async fn exec(
        &self,
        container: &Arc<Container>,
        call: ExecCall,
    ) -> Result<(ExecOutcome, bool, Vec<Vec<u8>>)> {
        let operation = Operation::Exec;
        let count = if call.separate_stderr { 2 } else { 1 };
        let (mut client, reply) = self
            .ask_slowly(container, operation, &Request::Exec(call))
            .await?;
        match reply {
            Reply::ExecDone { outcome, truncated } => {
                let mut outputs = Vec::new();
                for _ in 0..count {
                    let output = client.frame().await;
                    outputs.push(output.map_err(|error| Error::unavailable(operation, error))?);
                }
                Ok((outcome, truncated, outputs))
            }
            other => Err(unexpected(container, operation, other)),
        }
    }

    /// A request that is answered at once.
    pub(crate) async fn ask(
        &self,
        container: &Arc<Container>,
        operation: Operation,
        request: &Request,
    ) -> Result<(Client, Reply)> {
        let late = |_| Error::Timeout {
            operation,
            after: ANSWER_PATIENCE,
        };
        timeout(ANSWER_PATIENCE, self.ask_slowly(container, operation, request))
            .await
            .map_err(late)?
    }

    /// A request whose answer takes its time.
    async fn ask_slowly(
        &self,
        container: &Arc<Container>,
        operation: Operation,
        request: &Request,
    ) -> Result<(Client, Reply)> {
        let conversation = async {
            let mut client = Client::connect(&container.dir).await?;
            let reply = client.ask(request).await?;
            Ok((client, reply))
        };
        match conversation.await {
            Ok(answer) => Ok(answer),
            Err(error @ (ClientError::Connect(_) | ClientError::HungUp | ClientError::Transfer(_))) => {
                // Most often the container has just ended, and that will be known in a moment.
                match timeout(ANSWER_PATIENCE, container.wait_for_exit()).await {
                    Ok(_) => Err(container.has_exited(operation)),
                    Err(_) => Err(Error::unavailable(operation, error)),
                }
            }
            Err(error @ (ClientError::Frame(_) | ClientError::Parse(_))) => {
                Err(Error::failed(operation, error))
            }
        }
    }
}

/// Reads all records of a kind. One that is damaged is a fact; one that cannot be read now is tried again.
fn read_patiently<T>(
    read: impl Fn() -> std::result::Result<Vec<Found<T>>, StoreError>,
) -> std::result::Result<Vec<Found<T>>, StoreError> {
    let mut tries = READ_TRIES;
    loop {
        let found = read().and_then(|found| found.into_iter().map(Found::unless_unreadable).collect());
        tries -= 1;
        match found {
            Err(error) if tries > 0 => {
                tracing::warn!(%error, "the runtime's records cannot be read now, they will be tried again");
                std::thread::sleep(READ_PAUSE);
            }
            found => return found,
        }
    }
}

/// Nobody knows what the container was asked to be: it is not left to run beside the one that takes its place.
fn end_damaged(dir: &Path, kind: &dyn ContainerKind) {
    let id = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let give_up = std::time::Instant::now() + UNRECORDED_PATIENCE;
    // The original of a copied directory keeps its container.
    while shim_elsewhere(dir).is_none() {
        stuck_shim::kill_shim(dir);
        let is_gone = kind.kill_unrecorded(&id, dir);
        if is_gone && matches!(record::try_lock(dir), Ok(Some(_))) {
            break;
        }
        if std::time::Instant::now() > give_up {
            tracing::error!(
                container = id,
                "a container without a record cannot be killed; the next start tries again"
            );
            return;
        }
        std::thread::sleep(LEAVE_INTERVAL);
    }
    if let Err(error) = Store::remove_damaged_container(dir) {
        tracing::warn!(container = id, %error, "the remains of a damaged container cannot be removed");
    }
}

/// The error behind a reply that is not the one hoped for.
pub(crate) fn unexpected(container: &Container, operation: Operation, reply: Reply) -> Error {
    match reply {
        Reply::CannotRun { message } => Error::CannotRun { message },
        Reply::Refused(ShimRefusal::Ended) => container.has_exited(operation),
        Reply::Refused(ShimRefusal::TooManyExecs) => {
            Error::failed(operation, "too many commands run in it already")
        }
        Reply::Refused(ShimRefusal::Failed { detail } | ShimRefusal::Malformed { detail }) => {
            Error::failed(operation, detail)
        }
        Reply::Done
        | Reply::Running { .. }
        | Reply::Exited(_)
        | Reply::ExecDone { .. }
        | Reply::Streaming => Error::failed(
            operation,
            "the container's shim gave the answer to another question",
        ),
    }
}

/// Whose a container is.
enum Claim {
    /// No shim has it, and none gets it while the lock is held. No lock if there is no directory any more.
    Ours(Option<File>),
    Shims,
}

async fn claim(container: &Container, operation: Operation) -> Result<Claim> {
    let dir = container.dir.clone();
    blocking(operation, move || match record::try_lock(&dir) {
        Ok(Some(lock)) => Ok(Claim::Ours(Some(lock))),
        Ok(None) => Ok(Claim::Shims),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Claim::Ours(None)),
        Err(source) => Err(StoreError::List { path: dir, source }),
    })
    .await
}

/// Ends a container that was never started. The lock is held until no shim will take it for new.
async fn end_unstarted(container: &Arc<Container>, lock: Option<File>) -> Result<()> {
    let exit = ContainerExit {
        started_at: None,
        finished_at: Timestamp::now(),
        // As containerd reports it.
        code: exit_code::KILLED,
        reason: ExitCause::Error,
        message: "stopped before it was started".to_owned(),
        killed_after_grace: Some(false),
    };
    let (dir, written) = (container.dir.clone(), exit.clone());
    blocking(Operation::StopContainer, move || {
        record::write_exit(&dir, &written).map_err(StoreError::from)
    })
    .await?;
    drop(lock);
    container.exited(exit);
    Ok(())
}

/// Runs file operations where they may block.
pub(crate) async fn blocking<T: Send + 'static>(
    operation: Operation,
    work: impl FnOnce() -> std::result::Result<T, StoreError> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| Error::failed(operation, error)),
        Err(error) => Err(Error::failed(operation, error)),
    }
}

/// Runs work that goes on when the caller stops waiting.
pub async fn detached<T: Send + 'static>(
    operation: Operation,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(work)
        .await
        .unwrap_or_else(|error| Err(Error::failed(operation, error)))
}
