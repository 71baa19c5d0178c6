//! Containers whose shim lives but does not answer: it is stopped, or hangs on a disk.
//!
//! The stop goes past it, to the container's processes themselves: the stop signal, then what is left of the grace
//! period, then SIGKILL to everything. A shim that is only slow reports the exit all the same. One that does not is
//! killed, and the end counts as unseen.

use std::{fs, path::Path, sync::Arc, time::Duration};

use pulselet_runtime::{Error, Operation, Result, Signal};
use pulselet_shim::record::{self, LifeRecord};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    adopt,
    container::Container,
    container_kind::ContainerKind,
    lifecycle::{ANSWER_PATIENCE, LEAVE_INTERVAL},
};

/// How long a shim whose container is gone may take to say so.
const REPORT_PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks whether the container's processes have left.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Stops a container without its shim. Returns once its end was observed.
pub(crate) async fn stop(
    container: &Arc<Container>,
    kind: &Arc<dyn ContainerKind>,
    grace: Duration,
) -> Result<()> {
    let operation = Operation::StopContainer;
    tracing::warn!(container = %container.record.id, "the container's shim does not answer; stopping it without");
    let signal = container.record.stop_signal;
    if !grace.is_zero() && !signal.is_kill() {
        wait_out(container, kind, signal, grace).await;
    }
    if !adopt::kill_leftovers(container, kind).await {
        return Err(Error::Timeout {
            operation,
            after: grace,
        });
    }
    if timeout(REPORT_PATIENCE, container.wait_for_exit()).await.is_ok() {
        return Ok(());
    }
    let dir = container.dir.clone();
    let killed = tokio::task::spawn_blocking(move || kill_shim(&dir)).await;
    tracing::warn!(container = %container.record.id, shims = killed.unwrap_or(0), "killed a shim that did not answer");
    timeout(ANSWER_PATIENCE, container.wait_for_exit())
        .await
        .map(drop)
        .map_err(|_| Error::Timeout {
            operation,
            after: ANSWER_PATIENCE,
        })
}

/// Sends the stop signal and waits until the container has left or the grace period is over.
async fn wait_out(
    container: &Arc<Container>,
    kind: &Arc<dyn ContainerKind>,
    signal: Signal,
    grace: Duration,
) {
    let deadline = Instant::now() + grace;
    let mut is_signalled = false;
    while Instant::now() < deadline {
        let (same, kind) = (Arc::clone(container), Arc::clone(kind));
        let look = move || {
            let mut left = kind.processes(&same.record, &same.dir);
            left.retain(|pid| !is_zombie(*pid));
            if !is_signalled
                && let Ok(Some(LifeRecord::Running { pid, .. })) = record::read_life(&same.dir)
                && let Some(init) = left.iter().find(|it| it.as_raw_nonzero().get() == pid)
            {
                send(*init, signal);
            }
            left.is_empty()
        };
        match tokio::task::spawn_blocking(look).await {
            Ok(true) | Err(_) => return,
            Ok(false) => is_signalled = true,
        }
        sleep(LOOK_INTERVAL.max(LEAVE_INTERVAL)).await;
    }
}

/// Ended, and not waited for by its parent.
fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // The name is in parentheses and may have any character.
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next());
    matches!(state, None | Some('Z' | 'X'))
}

/// By a descriptor, so that no other process can have taken the number meanwhile.
fn send(pid: Pid, signal: Signal) {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    if let Some(signal) = rustix::process::Signal::from_named_raw(signal.number()) {
        let _ = pidfd_send_signal(process, signal);
    }
}

/// Kills the shim of a container, with the supervisors of its commands. Returns how many there were. They are known by
/// their working directory, which is the container's: no process of a container can have that one.
pub(crate) fn kill_shim(dir: &Path) -> usize {
    let Ok(dir) = dir.canonicalize() else { return 0 };
    let mut killed = 0;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw) else {
            continue;
        };
        // Opened before the look, so that what is killed is what was looked at.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        if fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == dir) {
            let _ = pidfd_send_signal(process, rustix::process::Signal::KILL);
            killed += 1;
        }
    }
    killed
}
