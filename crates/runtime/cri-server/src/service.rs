//! What both services share, and how the objects of a client are found.

use std::path::PathBuf;
use std::sync::Arc;

use pulselet_runtime::{ContainerFilter, ContainerId, Runtime, SandboxId, SecurityFeatures, Version};
use tokio::sync::broadcast;
use tonic::Status;

use crate::events::SandboxEvent;
use crate::refusal::refused;
use crate::stats::Samples;
use crate::stored::{Container, Sandbox};
use crate::streams::Streams;

/// Digits of an id at least, where it is shortened. People have them from lists.
const SHORT_ID: usize = 4;

/// The server's side of all calls. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Service(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) version: Version,
    pub(crate) streams: Streams,
    /// Logs of containers whose clients want none.
    pub(crate) log_root: PathBuf,
    /// Images that are not to be removed, by their names.
    pub(crate) pinned_images: Vec<String>,
    pub(crate) sandbox_events: broadcast::Sender<SandboxEvent>,
    pub(crate) samples: Samples,
}

impl Service {
    pub(crate) fn runtime(&self) -> &dyn Runtime {
        &*self.0.runtime
    }

    pub(crate) fn security_features(&self) -> SecurityFeatures {
        self.0.version.features.security
    }

    /// The sandbox of that id, which may be shortened.
    pub(crate) async fn sandbox(&self, id: &str) -> Result<Sandbox, Status> {
        match self.runtime().sandbox_status(&SandboxId::new(id)).await {
            Ok(status) => Sandbox::recall(status).ok_or_else(|| no_sandbox(id)),
            Err(error) if error.is_not_found() => {
                let all = self.sandboxes().await?;
                let found = only(all, |sandbox| sandbox.status.id.as_str(), id);
                let found = found.ok_or_else(|| no_sandbox(id))?;
                // A list has no addresses with some runtimes.
                let status = self.runtime().sandbox_status(&found.status.id).await;
                Sandbox::recall(status.map_err(refused)?).ok_or_else(|| no_sandbox(id))
            }
            Err(error) => Err(refused(error)),
        }
    }

    pub(crate) async fn sandboxes(&self) -> Result<Vec<Sandbox>, Status> {
        let all = self.runtime().list_sandboxes().await.map_err(refused)?;
        Ok(all.into_iter().filter_map(Sandbox::recall).collect())
    }

    /// The container of that id, which may be shortened.
    pub(crate) async fn container(&self, id: &str) -> Result<Container, Status> {
        match self.runtime().container_status(&ContainerId::new(id)).await {
            Ok(status) => Container::recall(status).ok_or_else(|| no_container(id)),
            Err(error) if error.is_not_found() => {
                let all = self.containers(&ContainerFilter::default()).await?;
                only(all, |container| container.status.id.as_str(), id).ok_or_else(|| no_container(id))
            }
            Err(error) => Err(refused(error)),
        }
    }

    pub(crate) async fn containers(&self, filter: &ContainerFilter) -> Result<Vec<Container>, Status> {
        let all = self.runtime().list_containers(filter).await.map_err(refused)?;
        Ok(all.into_iter().filter_map(Container::recall).collect())
    }
}

fn no_sandbox(id: &str) -> Status {
    Status::not_found(format!("sandbox {id:?} not found"))
}

fn no_container(id: &str) -> Status {
    Status::not_found(format!("container {id:?} not found"))
}

/// The only one whose id begins like this.
fn only<T>(all: Vec<T>, id: impl Fn(&T) -> &str, short: &str) -> Option<T> {
    if short.len() < SHORT_ID {
        return None;
    }
    let mut found = all.into_iter().filter(|one| id(one).starts_with(short));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_id_is_good_for_one_object() {
        let all = || vec!["abcd1", "abcd2", "efgh1"];
        let find = |short| only(all(), |id| id, short);
        assert_eq!(find("efgh"), Some("efgh1"));
        assert_eq!(find("abcd2"), Some("abcd2"));
        for none in ["abcd", "efg", "", "zzzz"] {
            assert_eq!(find(none), None, "{none}");
        }
    }
}
