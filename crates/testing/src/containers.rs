//! Small ways to look at containers that have shims, for the tests of every runtime that has such.

use std::{fs, path::Path, time::Duration};

use pulselet_runtime::{
    ContainerExit, ContainerId, ContainerState, ContainerStatus, ExecOutcome, ExecRequest,
    PROBE_OUTPUT_LIMIT, Runtime,
};
use pulselet_shim::record;

/// Longer than anything takes on a loaded or an emulated machine; a test that reaches it has failed.
pub const FOREVER: Duration = Duration::from_mins(4);

pub fn shell(script: &str) -> ExecRequest {
    ExecRequest {
        command: vec!["sh".into(), "-c".into(), script.into()],
        timeout: Some(FOREVER),
        output_limit: PROBE_OUTPUT_LIMIT,
    }
}

/// Asks until there is an answer.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let answer = tokio::time::timeout(FOREVER, async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    answer.await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

pub async fn status(runtime: &impl Runtime, id: &ContainerId) -> ContainerStatus {
    let status = runtime.container_status(id).await;
    status.expect("the container is known")
}

pub async fn exit_of(runtime: &impl Runtime, id: &ContainerId) -> ContainerExit {
    eventually("the container exits", async || {
        match status(runtime, id).await.state {
            ContainerState::Exited(exit) => Some(exit),
            ContainerState::Created | ContainerState::Running { .. } | ContainerState::Unknown => None,
        }
    })
    .await
}

pub async fn exec(runtime: &impl Runtime, id: &ContainerId, script: &str) -> (ExecOutcome, String) {
    let output = runtime.exec_sync(id, &shell(script)).await;
    let output = output.expect("the command runs");
    let text = String::from_utf8_lossy(&output.output).into_owned();
    (output.outcome, text)
}

/// The text of a file that a script writes, once it is there with its newline.
pub async fn text_of(path: &Path) -> String {
    let text = eventually("the file is written", async || {
        fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))
    });
    text.await.trim().to_owned()
}

/// Whether a process is there and not just waiting to be reaped.
pub fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The process id, on the host, of a running container's init process.
pub fn init_pid(container_dir: &Path) -> String {
    match record::read_life(container_dir)
        .expect("reads")
        .expect("it has begun")
    {
        record::LifeRecord::Running { pid, .. } => pid.to_string(),
        record::LifeRecord::Launching => panic!("it is not running yet"),
    }
}

pub fn parent_of(pid: &str) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is there");
    let (_, rest) = stat.rsplit_once(") ").expect("a stat line");
    rest.split(' ').nth(1).expect("a parent").to_owned()
}
