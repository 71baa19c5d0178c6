//! Lifecycle hooks that run something.

use std::sync::Arc;
use std::time::Duration;

use pulselet_engine::LifeKey;
use pulselet_engine::io::Input;
use pulselet_engine::plan::Hook;
use pulselet_model::LifecycleHandler;
use pulselet_probe::{Outcome, Purpose};
use pulselet_runtime::{ContainerId, ExecOutcome, ExecRequest, PROBE_OUTPUT_LIMIT};

use super::check::http_request;
use super::{Place, PodRef, Tools};

/// How long a request of a postStart hook may take: nothing else bounds it.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(10);
/// Bytes of a failed command's output that its message keeps.
const MAX_OUTPUT_TEXT: usize = 1024;

#[derive(Debug)]
pub(crate) struct HookJob {
    pub(crate) pod: PodRef,
    pub(crate) life: LifeKey,
    pub(crate) name: Arc<str>,
    pub(crate) id: ContainerId,
    pub(crate) hook: Hook,
    pub(crate) limit: Option<Duration>,
}

impl Tools {
    pub(crate) async fn hook(&self, job: HookJob) {
        let result = self.run_hook(&job).await;
        let HookJob { life, hook, .. } = job;
        self.tell(job.pod.key, Input::HookDone { life, hook, result })
            .await;
    }

    async fn run_hook(&self, job: &HookJob) -> Result<(), String> {
        let container = job.pod.spec.find_container(&job.name);
        let lifecycle = container
            .as_ref()
            .and_then(|container| container.lifecycle.as_ref());
        let handler = lifecycle.and_then(|lifecycle| match job.hook {
            Hook::PostStart => lifecycle.post_start.as_ref(),
            Hook::PreStop => lifecycle.pre_stop.as_ref(),
        });
        let (Some(container), Some(handler)) = (&container, handler) else {
            return Err("the hook is not in the pod's manifest".to_owned());
        };
        match handler {
            LifecycleHandler { exec: Some(exec), .. } => {
                self.exec_hook(&job.id, &exec.command, job.limit).await
            }
            LifecycleHandler {
                http_get: Some(http), ..
            } => {
                let address = job.pod.place.as_ref().and_then(Place::address);
                let address = address.map_or_else(|| "127.0.0.1".to_owned(), |ip| ip.to_string());
                let request = http_request(container, http, &address, Purpose::LifecycleHook)?;
                let timeout = job.limit.unwrap_or(REQUEST_TIMEOUT);
                let report = self.prober.hook(&request, timeout).await;
                match report.outcome {
                    Outcome::Success | Outcome::Warning => Ok(()),
                    Outcome::Failure(_) | Outcome::Error(_) => Err(report.detail),
                }
            }
            // Accepted by the API, never carried out, as upstream; a sleep is the engine's own.
            LifecycleHandler { .. } => {
                Err("invalid handler: only exec, httpGet and sleep are carried out".to_owned())
            }
        }
    }

    async fn exec_hook(
        &self,
        id: &ContainerId,
        command: &[String],
        limit: Option<Duration>,
    ) -> Result<(), String> {
        let request = ExecRequest {
            command: command.to_vec(),
            timeout: limit,
            output_limit: PROBE_OUTPUT_LIMIT,
        };
        let output = self
            .runtime
            .exec_sync(id, &request)
            .await
            .map_err(|error| error.to_string())?;
        let command = command.join(" ");
        match output.outcome {
            ExecOutcome::Exited(0) => Ok(()),
            ExecOutcome::Exited(code) => {
                let kept = &output.output[..output.output.len().min(MAX_OUTPUT_TEXT)];
                let text = String::from_utf8_lossy(kept);
                Err(format!("command '{command}' exited with {code}: {text}"))
            }
            ExecOutcome::TimedOut => Err(format!("command '{command}' timed out")),
        }
    }
}
