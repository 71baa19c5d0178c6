//! Tasks that containerd forgot.
//!
//! When the caller of a start dies during the call, containerd 1.6 gives the start up and may keep a task of a container
//! that it calls exited. From then on neither the container nor its sandbox can be removed: each try is refused because
//! of that task. Its own service can take the task away.

use std::time::Duration;

use tonic::{Code, Request};

use crate::call::{ASK, CallError, call};
use crate::connection::Connection;
use crate::wire::containerd_tasks as tasks;

/// What the refusal says; the container's id follows.
const REFUSAL: &str = "cannot delete running task ";
/// The namespace of containerd's CRI service, and the header that names it.
const NAMESPACE: (&str, &str) = ("containerd-namespace", "k8s.io");
const SIGKILL: u32 = 9;
/// Tries to delete a task that was killed, and the time between them: ending takes it a moment.
const TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// Takes away the task that a removal was refused for; false if that was not the reason, or did not work.
pub(crate) async fn clear(connection: &Connection, error: &CallError) -> bool {
    let Some(id) = forgotten(error) else { return false };
    tracing::warn!(
        container = id,
        "containerd has forgotten a task of this container; taking it away"
    );
    let kill = tasks::KillRequest {
        container_id: id.to_owned(),
        signal: SIGKILL,
        all: true,
    };
    // One that has ended cannot be killed, which is no matter.
    let _ = call(ASK, connection.containerd_tasks().kill(named(kill))).await;
    for _ in 0..TRIES {
        let delete = tasks::DeleteTaskRequest {
            container_id: id.to_owned(),
        };
        match call(ASK, connection.containerd_tasks().delete(named(delete))).await {
            Ok(_) => return true,
            Err(error) if error.is_not_found() => return true,
            Err(error) if error.code() == Some(Code::FailedPrecondition) => {
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            Err(_) => return false,
        }
    }
    false
}

fn named<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let (header, namespace) = NAMESPACE;
    request
        .metadata_mut()
        .insert(header, namespace.parse().expect("a plain word"));
    request
}

/// The container whose task is in the way.
fn forgotten(error: &CallError) -> Option<&str> {
    if error.code() != Some(Code::FailedPrecondition) {
        return None;
    }
    let (_, after) = error.text().split_once(REFUSAL)?;
    let end = after
        .find(|c: char| !c.is_ascii_hexdigit())
        .unwrap_or(after.len());
    Some(&after[..end]).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    #[test]
    fn the_container_is_named_by_the_refusal() {
        let text = "failed to remove container \"0a1b\": failed to delete containerd container \"0a1b\": cannot delete \
                    running task 0a1b: failed precondition";
        let error = |code| CallError::Refused(Status::new(code, text));
        assert_eq!(forgotten(&error(Code::FailedPrecondition)), Some("0a1b"));
        assert_eq!(forgotten(&error(Code::Unknown)), None);
        let other = CallError::Refused(Status::failed_precondition("in use"));
        assert_eq!(forgotten(&other), None);
    }
}
