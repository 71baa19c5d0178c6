//! Lifecycle hooks that run something.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pulselet_engine::io::Input;
use pulselet_engine::plan::Hook;
use pulselet_engine::{LifeKey, PodKey};
use pulselet_plan::HookTarget;
use pulselet_probe::{NetworkOutcome, Purpose};
use pulselet_runtime::{ContainerId, ExecOutcome, ExecRequest, PROBE_OUTPUT_LIMIT};

use super::JobContext;
use super::check::http_request;

/// How long a request of a postStart hook may take: nothing else bounds it.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(10);
/// Bytes of a failed command's output that its message keeps.
const MAX_OUTPUT_TEXT: usize = 1024;

#[derive(Debug)]
pub(crate) struct HookJob {
    pub(crate) pod: PodKey,
    pub(crate) life: LifeKey,
    pub(crate) id: ContainerId,
    pub(crate) hook: Hook,
    /// `None` if the manifest that the life was created from has no such hook.
    pub(crate) target: Option<Arc<HookTarget>>,
    /// The pod's; `None` if it has the host's network.
    pub(crate) address: Option<IpAddr>,
    pub(crate) limit: Option<Duration>,
}

impl JobContext {
    pub(crate) async fn hook(&self, job: HookJob) {
        let result = self.run_hook(&job).await;
        let HookJob { life, hook, .. } = job;
        self.send_input(job.pod, Input::HookDone { life, hook, result })
            .await;
    }

    async fn run_hook(&self, job: &HookJob) -> Result<(), String> {
        match job.target.as_deref() {
            Some(HookTarget::Exec(command)) => self.exec_hook(&job.id, command, job.limit).await,
            Some(HookTarget::Http(http)) => {
                let request = http_request(http, job.address, Purpose::LifecycleHook);
                let timeout = job.limit.unwrap_or(REQUEST_TIMEOUT);
                let report = self.prober.hook(&request, timeout).await;
                match report.outcome {
                    NetworkOutcome::Success | NetworkOutcome::Warning => Ok(()),
                    NetworkOutcome::Failure(_) | NetworkOutcome::Error(_) => Err(report.detail),
                }
            }
            Some(HookTarget::Impossible(why)) => Err(why.to_string()),
            Some(HookTarget::Sleep(_)) => Err("a sleep is not run but waited for".to_owned()),
            None => Err("the hook is not in the pod's manifest".to_owned()),
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
