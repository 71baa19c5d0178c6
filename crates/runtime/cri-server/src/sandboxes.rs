//! Sandboxes: run, stop, remove, look at.

use pulselet_cri_wire::v1;
use pulselet_runtime::{ContainerFilter, SandboxId};
use serde_json::json;
use tonic::{Code, Status};

use crate::answer;
use crate::events::SandboxChange;
use crate::refusal::{RequestError, refused};
use crate::request;
use crate::service::Service;
use crate::stored::Sandbox;

impl Service {
    pub(crate) async fn run_sandbox(&self, request: v1::RunPodSandboxRequest) -> Result<String, Status> {
        let config = request.config.ok_or(RequestError::Missing { field: "config" })?;
        if !request.runtime_handler.is_empty() {
            let detail = format!(
                "there is no handler {:?}: leave runtimeClassName out of the pod",
                request.runtime_handler
            );
            return Err(RequestError::invalid("runtime_handler", detail).into());
        }
        let config = request::sandbox::sandbox(&config)?;
        if config.namespaces.own_users && !self.security_features().user_namespaces {
            let hint = "this machine makes no user namespaces, or does not map the owners of files";
            let field = "userns_options";
            return Err(RequestError::Unsupported { field, hint }.into());
        }
        let id = self.runtime().run_sandbox(&config).await.map_err(refused)?;
        self.tell(&id, SandboxChange::Started);
        Ok(id.to_string())
    }

    /// What is not there is stopped.
    pub(crate) async fn stop_sandbox(&self, id: &str) -> Result<(), Status> {
        let Some(id) = self.known_sandbox(id).await? else {
            return Ok(());
        };
        self.runtime().stop_sandbox(&id).await.map_err(refused)?;
        self.tell(&id, SandboxChange::Stopped);
        Ok(())
    }

    /// What is not there is removed.
    pub(crate) async fn remove_sandbox(&self, id: &str) -> Result<(), Status> {
        let Some(id) = self.known_sandbox(id).await? else {
            return Ok(());
        };
        self.runtime().remove_sandbox(&id).await.map_err(refused)?;
        let logs = self.0.log_root.join(id.as_str());
        match tokio::fs::remove_dir_all(&logs).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(sandbox = %id, %error, "the sandbox's own logs cannot be removed");
            }
            Ok(()) | Err(_) => {}
        }
        self.tell(&id, SandboxChange::Removed);
        Ok(())
    }

    /// Returns `None` if there is no such sandbox.
    async fn known_sandbox(&self, id: &str) -> Result<Option<SandboxId>, Status> {
        match self.sandbox(id).await {
            Ok(sandbox) => Ok(Some(sandbox.status.id)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    pub(crate) async fn describe_sandbox(
        &self,
        request: &v1::PodSandboxStatusRequest,
    ) -> Result<v1::PodSandboxStatusResponse, Status> {
        let sandbox = self.sandbox(&request.pod_sandbox_id).await?;
        let filter = ContainerFilter {
            sandbox: Some(sandbox.status.id.clone()),
            pod_uid: None,
        };
        let mut statuses = Vec::new();
        for container in self.containers(&filter).await? {
            statuses.push(answer::container_status(&container, None));
        }
        Ok(v1::PodSandboxStatusResponse {
            status: Some(answer::sandbox_status(&sandbox)),
            info: if request.verbose {
                [("info".to_owned(), info(&sandbox))].into()
            } else {
                std::collections::BTreeMap::new()
            },
            containers_statuses: statuses,
            timestamp: answer::now(),
        })
    }

    pub(crate) async fn list_sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>, Status> {
        let filter = filter.unwrap_or_default();
        let all = self.sandboxes().await?;
        let matching = all.iter().filter(|sandbox| matches(&filter, sandbox));
        Ok(matching.map(answer::sandbox_item).collect())
    }

    pub(crate) async fn update_sandbox(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
    ) -> Result<(), Status> {
        let sandbox = self.sandbox(&request.pod_sandbox_id).await?;
        let given = request.resources.unwrap_or_default();
        let resources = request::resources::resources(&given)?;
        let has_parent = sandbox
            .config
            .linux
            .is_some_and(|linux| !linux.cgroup_parent.is_empty());
        if has_parent {
            // The client has changed them there.
            return Ok(());
        }
        let changed = self
            .runtime()
            .update_sandbox(&sandbox.status.id, &resources)
            .await;
        changed.map_err(refused)
    }
}

fn matches(filter: &v1::PodSandboxFilter, sandbox: &Sandbox) -> bool {
    let state = answer::sandbox_state(sandbox.status.state);
    sandbox.status.id.as_str().starts_with(&filter.id)
        && filter.state.is_none_or(|wanted| wanted.state() == state)
        && answer::selects(&filter.label_selector, &sandbox.config.labels)
}

/// What people see who ask for more.
fn info(sandbox: &Sandbox) -> String {
    let addresses: Vec<String> = sandbox.status.addresses.iter().map(ToString::to_string).collect();
    json!({
        "addresses": addresses,
        "hostname": sandbox.config.hostname,
        "logDirectory": sandbox.config.log_directory,
        "cgroupParent": sandbox.config.linux.as_ref().map(|linux| linux.cgroup_parent.clone()),
    })
    .to_string()
}
