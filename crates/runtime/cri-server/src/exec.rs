//! Commands in containers, and the addresses of their streams.

use std::time::Duration;

use pulselet_cri_wire::v1;
use pulselet_runtime::{AttachOptions, ContainerState, ExecOptions, ExecOutcome, ExecRequest, SandboxState};
use pulselet_sessions::{SessionStart, WantedStreams};
use tonic::Status;

use crate::refusal::{RequestError, refused};
use crate::service::Service;
use crate::stored::Container;
use crate::streams::Session;

/// Bytes kept of each output of a command that is run to its end. What follows is read and thrown away.
const OUTPUT_LIMIT: usize = 1 << 20;

impl Service {
    pub(crate) async fn exec_sync(
        &self,
        request: v1::ExecSyncRequest,
    ) -> Result<v1::ExecSyncResponse, Status> {
        check_command(&request.cmd)?;
        let seconds = u64::try_from(request.timeout)
            .map_err(|_| RequestError::invalid("timeout", format!("{} is negative", request.timeout)))?;
        let container = self.container(&request.container_id).await?;
        let timeout = Some(Duration::from_secs(seconds)).filter(|timeout| !timeout.is_zero());
        let exec = ExecRequest {
            command: request.cmd,
            timeout,
            output_limit: OUTPUT_LIMIT,
        };
        let id = &container.status.id;
        let output = self
            .runtime()
            .exec_sync_separately(id, &exec)
            .await
            .map_err(refused)?;
        match output.outcome {
            ExecOutcome::Exited(exit_code) => Ok(v1::ExecSyncResponse {
                stdout: output.stdout,
                stderr: output.stderr,
                exit_code,
            }),
            ExecOutcome::TimedOut => Err(Status::deadline_exceeded(format!(
                "command timed out after {seconds} s and was killed"
            ))),
        }
    }

    /// The address of a command's streams.
    pub(crate) async fn exec(&self, request: v1::ExecRequest) -> Result<String, Status> {
        check_command(&request.cmd)?;
        let wanted = WantedStreams {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            tty: request.tty,
        };
        check_streams(wanted)?;
        let container = self.running(&request.container_id).await?;
        let start = SessionStart::Exec(ExecOptions {
            command: request.cmd,
            tty: wanted.tty,
            stdin: wanted.stdin,
            stdout: wanted.stdout,
            stderr: wanted.stderr,
            term: None,
        });
        self.0.streams.offer(Session::Command {
            container: container.status.id,
            wanted,
            start,
        })
    }

    /// The address of the streams of a container's own process.
    pub(crate) async fn attach(&self, request: v1::AttachRequest) -> Result<String, Status> {
        let wanted = WantedStreams {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            tty: request.tty,
        };
        check_streams(wanted)?;
        let container = self.running(&request.container_id).await?;
        // Whether there is a terminal was decided when the container was made.
        let tty = container.config.tty;
        let start = SessionStart::Attach(AttachOptions {
            tty,
            stdin: wanted.stdin,
            stdout: wanted.stdout,
            stderr: wanted.stderr && !tty,
        });
        self.0.streams.offer(Session::Command {
            container: container.status.id,
            wanted,
            start,
        })
    }

    /// The address of connections to a pod's ports.
    pub(crate) async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String, Status> {
        let port = |number: &i32| u16::try_from(*number).ok().filter(|port| *port > 0);
        let ports: Option<Vec<u16>> = request.port.iter().map(port).collect();
        let ports = ports.ok_or_else(|| RequestError::invalid("port", "ports are from 1 to 65535"))?;
        let sandbox = self.sandbox(&request.pod_sandbox_id).await?;
        if sandbox.status.state == SandboxState::NotReady {
            return Err(Status::failed_precondition(format!(
                "sandbox {} does not run",
                sandbox.status.id
            )));
        }
        self.0.streams.offer(Session::Forward {
            pod: sandbox.metadata().name,
            sandbox: sandbox.status.id,
            ports,
        })
    }

    async fn running(&self, id: &str) -> Result<Container, Status> {
        let container = self.container(id).await?;
        match container.status.state {
            ContainerState::Running { .. } | ContainerState::Unknown => Ok(container),
            ContainerState::Created | ContainerState::Exited(_) => Err(Status::failed_precondition(format!(
                "container {} does not run",
                container.status.id
            ))),
        }
    }
}

fn check_command(command: &[String]) -> Result<(), RequestError> {
    if command.is_empty() {
        return Err(RequestError::Missing { field: "cmd" });
    }
    Ok(())
}

fn check_streams(wanted: WantedStreams) -> Result<(), RequestError> {
    if !wanted.stdin && !wanted.stdout && !wanted.stderr {
        return Err(RequestError::invalid(
            "stdin, stdout, stderr",
            "at least one of them must be asked for",
        ));
    }
    if wanted.tty && wanted.stderr {
        return Err(RequestError::invalid(
            "stderr",
            "a terminal has one output: leave it out",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_cannot_be_are_refused() {
        let check = |stdin, stdout, stderr, tty| {
            let wanted = WantedStreams {
                stdin,
                stdout,
                stderr,
                tty,
            };
            check_streams(wanted).is_ok()
        };
        assert!(check(true, true, false, true) && check(false, true, true, false));
        assert!(!check(false, false, false, false) && !check(true, true, true, true));
        assert!(check_command(&[]).is_err());
    }
}
