//! What the tests ask for: a small pod, and patience.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pulselet_cri_client::{CriOptions, CriRuntime};
use pulselet_runtime::{
    ContainerConfig, ContainerId, ContainerState, EventKind, Events, Mount, PodIdentity, Propagation,
    Runtime, RuntimeEvent, SandboxConfig,
};

use pulselet_testing::containerd::IMAGE;

/// How long anything may take to happen; nothing takes a tenth of it on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) async fn open(socket: PathBuf, root: &Path) -> CriRuntime {
    let root = root.to_owned();
    CriRuntime::open(CriOptions { socket, root })
        .await
        .expect("the server is there")
}

pub(crate) fn sandbox(directory: &Path) -> SandboxConfig {
    SandboxConfig {
        pod: PodIdentity {
            uid: "5c0e8a52-0001-4000-8000-000000000001".into(),
            namespace: "default".into(),
            name: "web".into(),
        },
        hostname: "web".into(),
        log_directory: directory.join("logs"),
        ..SandboxConfig::default()
    }
}

/// A container of the host's programs that runs a shell script.
pub(crate) fn container(directory: &Path, script: &str) -> ContainerConfig {
    ContainerConfig {
        pod: sandbox(directory).pod,
        name: "app".into(),
        image: IMAGE.into(),
        command: ["sh", "-c", script].map(Into::into).into(),
        mounts: vec![Mount {
            volume: "usr".into(),
            container_path: "/usr".into(),
            host_path: "/usr".into(),
            image: None,
            sub_path: None,
            read_only: true,
            recursive_read_only: false,
            propagation: Propagation::Private,
        }],
        log_path: directory.join("logs/app/0.log"),
        ..ContainerConfig::default()
    }
}

/// Waits for an event of a container; what it says of the container's state.
pub(crate) async fn event(events: &mut Events, id: &ContainerId, kind: EventKind) -> Option<ContainerState> {
    let wait = async {
        loop {
            match events.next().await.expect("the runtime is there") {
                RuntimeEvent::Container(event) if event.container == *id && event.kind == kind => {
                    return event.status.map(|status| status.state);
                }
                RuntimeEvent::Container(_) | RuntimeEvent::Resync | RuntimeEvent::NetworkRestored(_) => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it is told")
}

/// Waits until something holds.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .unwrap_or_else(|_| panic!("no {what} in time"))
}

pub(crate) async fn code(runtime: &CriRuntime, id: &ContainerId) -> Option<i32> {
    match runtime.container_status(id).await.ok()?.state {
        ContainerState::Exited(exit) => Some(exit.code),
        ContainerState::Created | ContainerState::Running { .. } | ContainerState::Unknown => None,
    }
}
