//! Learning the truth about a container from its shim and from what that has left.
//!
//! The shim is asked first. If it is not there, the records decide: an exit is an exit; a life without an exit and
//! without a shim ended unseen, with [`exit_code::UNKNOWN`], and whatever of it still runs is killed; no life at all means that it was
//! never started. Only facts decide: a record or a lock that cannot be read now, for want of descriptors or memory, is
//! looked at again, for as long as it takes.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use pulselet_runtime::{ContainerExit, ContainerState, ContainerUser, EventHub, ExitCause, exit_code};
use pulselet_shim::{
    protocol::{Reply, Request},
    record::{self, LifeRecord, RecordError},
};

use crate::{
    client::{Client, ClientError},
    container::Container,
    container_kind::ContainerKind,
    elsewhere::shim_elsewhere,
    store::{ContainerRecord, StoreError},
};

/// Before the second look at a shim that lives but does not listen: it is starting or leaving. Each further wait is
/// twice as long, up to [`LOOK_LATER`].
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Between two looks at a shim that has not listened for a while. Something is wrong with it.
const LOOK_LATER: Duration = Duration::from_secs(1);

/// Rounds of killing what a lost shim left behind, with [`LOOK_AGAIN`] between them: three seconds.
const LEFTOVER_ROUNDS: usize = 600;

/// What the files say while no shim answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    NeverStarted,
    /// The shim lives: it is about to listen, or to leave.
    ShimBusy,
    Exited(ContainerExit),
    /// The shim is gone without a word.
    Lost,
}

pub(crate) fn read_trace(dir: &Path) -> Result<Trace, StoreError> {
    // The lock before the records: once it is free they do not change any more.
    let lock = match record::try_lock(dir) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Trace::Lost),
        Err(source) => {
            return Err(StoreError::List {
                path: dir.to_owned(),
                source,
            });
        }
    };
    let exit = match record::read_exit(dir) {
        Err(error @ RecordError::Parse { .. }) if lock.is_some() => {
            tracing::warn!(%error, "nobody knows how a container ended");
            return Ok(Trace::Lost);
        }
        // Its shim will write another one.
        Err(RecordError::Parse { .. }) => None,
        read => read?,
    };
    if let Some(exit) = exit {
        return Ok(Trace::Exited(exit));
    }
    let life = match record::read_life(dir) {
        // Whatever it said, the life had begun.
        Err(RecordError::Parse { .. }) => Some(LifeRecord::Launching),
        read => read?,
    };
    Ok(match (lock, life) {
        (None, _) => Trace::ShimBusy,
        (Some(_), None) => Trace::NeverStarted,
        (Some(_), Some(_)) => Trace::Lost,
    })
}

/// A container that was there before this agent, as far as files can tell.
pub(crate) fn load(record: ContainerRecord, dir: PathBuf, boot_id: &str, events: &EventHub) -> Container {
    let same_boot = record.boot_id == boot_id;
    let state = match read_trace(&dir) {
        Ok(Trace::Exited(exit)) => ContainerState::Exited(exit),
        Ok(Trace::NeverStarted | Trace::ShimBusy | Trace::Lost) | Err(_) if !same_boot => {
            let exit = unseen_exit(None, "the machine was restarted");
            if let Err(error) = record::write_exit(&dir, &exit) {
                // The next agent will come to the same conclusion.
                tracing::warn!(container = %record.id, %error, "the container's exit cannot be recorded");
            }
            ContainerState::Exited(exit)
        }
        Ok(Trace::NeverStarted) => ContainerState::Created,
        Ok(Trace::ShimBusy | Trace::Lost) => ContainerState::Unknown,
        Err(error) => {
            tracing::warn!(container = %record.id, %error, "the container's records cannot be read now");
            ContainerState::Unknown
        }
    };
    let user = read_user(&dir);
    let container = Container::new(record, dir, state, events.clone());
    if let Some(user) = user {
        let _ = container.user.set(user);
    }
    container
}

/// Returns `None` if it was never started, or by a shim that did not write it down. It is not worth an error: nothing
/// depends on it.
fn read_user(dir: &Path) -> Option<ContainerUser> {
    match record::read_life(dir) {
        Ok(Some(LifeRecord::Running { user, .. })) => user,
        Ok(Some(LifeRecord::Launching) | None) | Err(_) => None,
    }
}

/// Takes note of a running container, after who it runs as: its first status as a running one has that.
pub(crate) async fn started(container: &Container, started_at: Timestamp) {
    if container.user.get().is_none() {
        let dir = container.dir.clone();
        let read = tokio::task::spawn_blocking(move || read_user(&dir)).await;
        if let Ok(Some(user)) = read {
            // Whoever else has read it has read the same.
            let _ = container.user.set(user);
        }
    }
    container.started(started_at);
}

/// Follows a container to its end. Returns early only if it turns out never to have been started.
pub(crate) async fn watch(container: Arc<Container>, kind: Arc<dyn ContainerKind>) {
    let mut wait = LOOK_AGAIN;
    loop {
        match follow_shim(&container).await {
            Ok(exit) => return container.exited(exit),
            Err(error) => {
                tracing::debug!(container = %container.record.id, %error, "the shim does not answer");
            }
        }
        match look(&container).await {
            Ok(Trace::Exited(exit)) => return container.exited(exit),
            Ok(Trace::NeverStarted) => return container.never_started(),
            Ok(Trace::Lost) => return container.exited(record_lost_exit(&container, &kind).await),
            Ok(Trace::ShimBusy) => {}
            Err(error) => {
                tracing::warn!(
                    container = %container.record.id,
                    %error,
                    "the container's records cannot be read now, they will be looked at again"
                );
            }
        }
        tokio::time::sleep(wait).await;
        wait = (2 * wait).min(LOOK_LATER);
    }
}

/// Returns the exit once it has happened.
async fn follow_shim(container: &Container) -> Result<ContainerExit, ClientError> {
    let mut client = Client::connect(&container.dir).await?;
    let mut reply = client.ask(&Request::Subscribe).await?;
    loop {
        match reply {
            Reply::Running { started_at, .. } => started(container, started_at).await,
            Reply::Exited(exit) => return Ok(exit),
            // Not among the answers to this request; there may be better ones.
            Reply::Done
            | Reply::ExecDone { .. }
            | Reply::Streaming
            | Reply::CannotRun { .. }
            | Reply::Refused(_) => {}
        }
        reply = client.reply().await?;
    }
}

async fn look(container: &Container) -> Result<Trace, StoreError> {
    let dir = container.dir.clone();
    tokio::task::spawn_blocking(move || read_trace(&dir))
        .await
        .expect("reading records does not panic")
}

/// Kills what is left of a container whose shim is gone, and records the exit that the shim could not.
async fn record_lost_exit(container: &Arc<Container>, kind: &Arc<dyn ContainerKind>) -> ContainerExit {
    kill_leftovers(container, kind).await;
    let started_at = match record::read_life(&container.dir) {
        Ok(Some(LifeRecord::Running { started_at, .. })) => Some(started_at),
        Ok(Some(LifeRecord::Launching) | None) | Err(_) => None,
    };
    let exit = unseen_exit(started_at, "the container's shim was killed");
    let (dir, record) = (container.dir.clone(), exit.clone());
    let written = tokio::task::spawn_blocking(move || record::write_exit(&dir, &record)).await;
    if let Ok(Err(error)) = written {
        // The next agent will come to the same conclusion.
        tracing::warn!(container = %container.record.id, %error, "the container's exit cannot be recorded");
    }
    exit
}

/// What is reported when nobody saw the end.
fn unseen_exit(started_at: Option<Timestamp>, message: &str) -> ContainerExit {
    ContainerExit {
        started_at,
        finished_at: Timestamp::now(),
        code: exit_code::UNKNOWN,
        reason: ExitCause::Unknown,
        message: message.to_owned(),
        killed_after_grace: None,
    }
}

/// Kills all that runs of a container, without its shim. Returns whether nothing is left. A container that has a shim in
/// another directory belongs to that one and is left alone.
pub(crate) async fn kill_leftovers(container: &Arc<Container>, kind: &Arc<dyn ContainerKind>) -> bool {
    if belongs_elsewhere(container).await {
        return false;
    }
    for _ in 0..LEFTOVER_ROUNDS {
        let (container, kind) = (Arc::clone(container), Arc::clone(kind));
        let round = move || {
            let gone = kind.kill_leftovers(&container.record, &container.dir);
            if gone {
                kind.clean_up(&container.record, &container.dir);
            }
            gone
        };
        if tokio::task::spawn_blocking(round).await.unwrap_or(false) {
            return true;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    tracing::warn!(container = %container.record.id, "some processes of the container cannot be killed");
    false
}

async fn belongs_elsewhere(container: &Container) -> bool {
    let dir = container.dir.clone();
    let found = tokio::task::spawn_blocking(move || shim_elsewhere(&dir)).await;
    let Some(other) = found.expect("reading links does not panic") else {
        return false;
    };
    tracing::warn!(
        container = %container.record.id,
        directory = %other.display(),
        "container belongs to another data directory and is not killed"
    );
    true
}
