//! Making and removing a pod's sandbox.

use std::sync::Arc;

use pulselet_engine::PodKey;
use pulselet_engine::io::Input;
use pulselet_model::Pod;
use pulselet_runtime::{Error, Operation, Result, SandboxConfig, SandboxId, SandboxState, SandboxStatus};

use pulselet_volume::SourceError;

use super::{JobContext, JobResult, PodRef, Retry, SandboxLocation, bounded};
use crate::container_config::sandbox_config;

impl JobContext {
    pub(crate) async fn run_sandbox(&self, pod: PodRef, attempt: u32) {
        if !self.set_up_volumes(&pod).await {
            return self.send_input(pod.key, Input::VolumesNotReady).await;
        }
        let handler = match self.find_handler(&pod.spec).await {
            Ok(handler) => handler,
            Err(message) => {
                return self.send_input(pod.key, Input::SandboxFailed { message }).await;
            }
        };
        let _permit = self.limits.operations.acquire().await;
        match self.make_sandbox(&pod, attempt, handler).await {
            Ok(location) => self.answer(pod.key, JobResult::Sandbox(location)).await,
            Err(error) => {
                let message = error.to_string();
                self.send_input(pod.key, Input::SandboxFailed { message }).await;
            }
        }
    }

    /// What the pod's runtime class asks for; empty for the usual way to run a pod. Whether there is such a handler is for
    /// the runtime to say.
    async fn find_handler(&self, pod: &Pod) -> std::result::Result<String, String> {
        let Some(class) = pod
            .spec
            .runtime_class_name
            .as_deref()
            .filter(|class| !class.is_empty())
        else {
            return Ok(String::new());
        };
        match self.objects.runtime_handler(class).await {
            Ok(Some(handler)) => Ok(handler),
            Ok(None) | Err(SourceError::NoApi) => {
                Err(format!("runtimeclass.node.k8s.io {class:?} not found"))
            }
            Err(error) => Err(format!("failed to lookup RuntimeClass {class}: {error}")),
        }
    }

    async fn make_sandbox(&self, pod: &PodRef, attempt: u32, handler: String) -> Result<SandboxLocation> {
        let config = SandboxConfig {
            runtime_handler: handler,
            cgroup_parent: self.make_cgroup(pod).await?,
            ..pod.with_context(self, |context| sandbox_config(context, attempt))
        };
        let id = match bounded(Operation::RunSandbox, self.runtime.run_sandbox(&config)).await {
            Err(Error::AlreadyExists { .. }) => self.take_over_sandbox(&config).await?,
            other => other?,
        };
        let status = bounded(Operation::SandboxStatus, self.runtime.sandbox_status(&id)).await?;
        Ok(SandboxLocation::new(&status, self.host_address(&pod.spec)))
    }

    /// An earlier agent made it and died before it could say so, or died while it made it.
    async fn take_over_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId> {
        let sandboxes = bounded(Operation::List, self.runtime.sandboxes_of(&config.pod.uid)).await?;
        let same = |sandbox: &SandboxStatus| sandbox.attempt == config.attempt;
        let found = sandboxes.into_iter().find(same);
        let found = found.ok_or_else(|| Error::no_sandbox(&config.pod.uid))?;
        match found.state {
            SandboxState::Ready => Ok(found.id),
            SandboxState::NotReady => {
                bounded(Operation::RemoveSandbox, self.runtime.remove_sandbox(&found.id)).await?;
                bounded(Operation::RunSandbox, self.runtime.run_sandbox(config)).await
            }
        }
    }

    /// Removes every sandbox of the pod, however long that takes: there is no other way on.
    pub(crate) async fn stop_sandbox(&self, pod: PodKey, uid: Arc<str>) {
        let mut retry = Retry::new();
        while let Err(error) = self.remove_sandboxes(&uid).await {
            tracing::warn!(%error, "cannot remove the sandbox, will try again");
            retry.wait().await;
        }
        self.remove_cgroup(&uid).await;
        self.end_volumes(&uid).await;
        self.send_input(pod, Input::SandboxStopped).await;
    }

    /// Removes a stopped sandbox that belongs to no pod.
    pub(crate) async fn remove_stopped_sandbox(&self, id: &SandboxId, uid: &str) {
        let _permit = self.limits.operations.acquire().await;
        match bounded(Operation::RemoveSandbox, self.runtime.remove_sandbox(id)).await {
            Ok(()) => {
                self.remove_cgroup(uid).await;
                tracing::info!(sandbox = %id, "removed a stopped sandbox that an earlier agent left");
            }
            Err(error) => {
                tracing::warn!(sandbox = %id, %error, "a stopped sandbox that an earlier agent left cannot be removed");
            }
        }
    }

    async fn remove_sandboxes(&self, uid: &str) -> Result<()> {
        let _permit = self.limits.operations.acquire().await;
        for sandbox in bounded(Operation::List, self.runtime.sandboxes_of(uid)).await? {
            bounded(Operation::StopSandbox, self.runtime.stop_sandbox(&sandbox.id)).await?;
            bounded(Operation::RemoveSandbox, self.runtime.remove_sandbox(&sandbox.id)).await?;
        }
        Ok(())
    }
}
