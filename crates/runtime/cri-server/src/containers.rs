//! Containers: create, start, stop, remove, look at, change.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pulselet_cri_wire::v1;
use pulselet_runtime::{ContainerFilter, ContainerId, ImageSummary, SandboxId};
use serde_json::json;
use tonic::{Code, Status};

use crate::answer;
use crate::refusal::{RequestError, refused};
use crate::request::{self, container::ContainerRequest};
use crate::service::Service;
use crate::stored::{Container, Sandbox};

impl Service {
    pub(crate) async fn create_container(
        &self,
        request: v1::CreateContainerRequest,
    ) -> Result<String, Status> {
        let config = request.config.ok_or(RequestError::Missing { field: "config" })?;
        let sandbox = self.sandbox(&request.pod_sandbox_id).await?;
        let image = self.image_of(&config).await?;
        let mut resolved = ContainerRequest {
            config: &config,
            sandbox: &request::sandbox::sandbox(&sandbox.config)?,
            image: &image,
            features: self.security_features(),
            own_log: self.own_log(&sandbox, &config)?,
        }
        .resolve()?;
        for mounted in resolved
            .mounts
            .iter_mut()
            .filter_map(|mount| mount.image.as_mut())
        {
            mounted.id = self.known_image(&mounted.id).await?.id;
        }
        let of_host = resolved.mounts.iter().filter(|mount| mount.image.is_none());
        make_missing(of_host.map(|mount| mount.host_path.clone()).collect()).await?;
        let created = self
            .runtime()
            .create_container(&sandbox.status.id, &resolved)
            .await;
        created.map(|id| id.to_string()).map_err(refused)
    }

    /// The image that a container is to be made of, which must be there.
    async fn image_of(&self, config: &v1::ContainerConfig) -> Result<ImageSummary, Status> {
        let name = config
            .image
            .as_ref()
            .map(|image| image.image.clone())
            .unwrap_or_default();
        if name.is_empty() {
            return Err(RequestError::Missing { field: "image" }.into());
        }
        self.known_image(&name).await
    }

    /// An image that must be there.
    async fn known_image(&self, name: &str) -> Result<ImageSummary, Status> {
        let found = self.runtime().image_status(name).await.map_err(refused)?;
        found.ok_or_else(|| Status::not_found(format!("image {name:?} is not there: pull it first")))
    }

    /// Where the log of a container goes whose client wants none.
    fn own_log(&self, sandbox: &Sandbox, config: &v1::ContainerConfig) -> Result<PathBuf, RequestError> {
        let metadata = config.metadata.clone().unwrap_or_default();
        if metadata.name.contains(['/', '\0']) {
            let detail = format!("{:?} is not a name", metadata.name);
            return Err(RequestError::invalid("metadata.name", detail));
        }
        let file = format!("{}_{}.log", metadata.name, metadata.attempt);
        Ok(self.0.log_root.join(sandbox.status.id.as_str()).join(file))
    }

    pub(crate) async fn start_container(&self, id: &str) -> Result<(), Status> {
        let container = self.container(id).await?;
        let started = self.runtime().start_container(&container.status.id).await;
        started.map_err(refused)
    }

    /// What is not there is stopped.
    pub(crate) async fn stop_container(&self, request: &v1::StopContainerRequest) -> Result<(), Status> {
        let seconds = u64::try_from(request.timeout)
            .map_err(|_| RequestError::invalid("timeout", format!("{} is negative", request.timeout)))?;
        let Some(id) = self.known_container(&request.container_id).await? else {
            return Ok(());
        };
        let stopped = self
            .runtime()
            .stop_container(&id, Duration::from_secs(seconds))
            .await;
        stopped.map_err(refused)
    }

    /// What is not there is removed.
    pub(crate) async fn remove_container(&self, id: &str) -> Result<(), Status> {
        let Some(id) = self.known_container(id).await? else {
            return Ok(());
        };
        self.runtime().remove_container(&id).await.map_err(refused)?;
        self.0.samples.forget(&id);
        Ok(())
    }

    /// Returns `None` if there is no such container.
    async fn known_container(&self, id: &str) -> Result<Option<ContainerId>, Status> {
        match self.container(id).await {
            Ok(container) => Ok(Some(container.status.id)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    pub(crate) async fn describe_container(
        &self,
        request: &v1::ContainerStatusRequest,
    ) -> Result<v1::ContainerStatusResponse, Status> {
        let container = self.container(&request.container_id).await?;
        let resources = self.runtime().container_resources(&container.status.id).await;
        let resources = resources.map_err(refused)?;
        Ok(v1::ContainerStatusResponse {
            status: Some(answer::container_status(&container, resources.as_ref())),
            info: if request.verbose {
                let process = self.runtime().init_process(&container.status.id).await;
                [("info".to_owned(), info(&container, process.map_err(refused)?))].into()
            } else {
                std::collections::BTreeMap::new()
            },
        })
    }

    pub(crate) async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>, Status> {
        let filter = filter.unwrap_or_default();
        let of_sandbox = Some(filter.pod_sandbox_id.as_str()).filter(|id| !id.is_empty());
        let wanted = ContainerFilter {
            sandbox: of_sandbox.map(SandboxId::new),
            pod_uid: None,
        };
        let all = self.containers(&wanted).await?;
        let matching = all.iter().filter(|container| matches(&filter, container));
        Ok(matching.map(answer::container_item).collect())
    }

    pub(crate) async fn update_container(
        &self,
        request: v1::UpdateContainerResourcesRequest,
    ) -> Result<(), Status> {
        let container = self.container(&request.container_id).await?;
        let given = request.linux.unwrap_or_default();
        let resources = request::resources::of_container(&given)?;
        let changed = self
            .runtime()
            .update_container(&container.status.id, &resources)
            .await;
        changed.map_err(refused)
    }

    /// A container that does not run has no log to be opened again.
    pub(crate) async fn reopen_log(&self, id: &str) -> Result<(), Status> {
        let container = self.container(id).await?;
        self.runtime()
            .reopen_log(&container.status.id)
            .await
            .map_err(refused)
    }
}

fn matches(filter: &v1::ContainerFilter, container: &Container) -> bool {
    let state = answer::container_state(&container.status.state);
    container.status.id.as_str().starts_with(&filter.id)
        && filter.state.is_none_or(|wanted| wanted.state() == state)
        && answer::selects(&filter.label_selector, &container.config.labels)
}

/// Makes the directories of the host that are to be mounted and are not there, as clients of CRI expect it.
async fn make_missing(paths: Vec<PathBuf>) -> Result<(), Status> {
    let ensure = |path: &Path| match path.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => std::fs::create_dir_all(path),
    };
    let made = tokio::task::spawn_blocking(move || {
        paths.iter().try_for_each(|path| {
            ensure(path).map_err(|error| {
                let detail = format!("{} is not there and cannot be made: {error}", path.display());
                RequestError::invalid("mounts", detail)
            })
        })
    });
    let made = made.await.map_err(|error| Status::internal(error.to_string()))?;
    Ok(made?)
}

/// What people see who ask for more. By the number clients find out what the init process does about signals.
fn info(container: &Container, process: Option<i32>) -> String {
    json!({
        "pid": process.unwrap_or(0),
        "sandboxID": container.status.sandbox.as_str(),
        "imageID": container.status.image_id,
        "logPath": container.status.log_path,
        "command": container.config.command,
        "args": container.config.args,
        "privileged": container
            .config
            .linux
            .as_ref()
            .and_then(|linux| Some(linux.security_context.as_ref()?.privileged)),
    })
    .to_string()
}
