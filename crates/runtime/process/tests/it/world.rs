//! A runtime on a directory of its own, and small ways to ask about processes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use pulselet_runtime::{
    ContainerConfig, ContainerExit, ContainerFilter, ContainerId, ContainerStatus, EnvVar, ExecOutcome,
    PodIdentity, Runtime, SandboxConfig, SandboxId,
};
use pulselet_runtime_process::{CONTAINER_ID_VARIABLE, ProcessRuntime, ShimCommand};
use pulselet_shim::processes_with_variable;
use pulselet_testing::containers;
use tempfile::TempDir;

pub(crate) use pulselet_testing::containers::{FOREVER, eventually, init_pid, is_alive, parent_of, shell};

pub(crate) struct World {
    pub(crate) runtime: ProcessRuntime,
    pub(crate) sandbox: SandboxId,
    home: Home,
}

/// What is there while no agent is.
pub(crate) struct Agentless {
    sandbox: SandboxId,
    home: Home,
}

struct Home(TempDir);

impl World {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let runtime = open(dir.path()).await;
        let pod = PodIdentity {
            uid: "uid-1".into(),
            namespace: "default".into(),
            name: "pod".into(),
        };
        let config = SandboxConfig {
            pod,
            log_directory: dir.path().join("logs"),
            ..Default::default()
        };
        let sandbox = runtime.run_sandbox(&config).await.expect("the sandbox runs");
        Self {
            runtime,
            sandbox,
            home: Home(dir),
        }
    }

    /// As if the agent had died.
    pub(crate) fn leave(self) -> Agentless {
        Agentless {
            sandbox: self.sandbox,
            home: self.home,
        }
    }

    /// As if the agent had died and come back at once.
    pub(crate) async fn reopen(self) -> Self {
        self.leave().come_back().await
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.0.path().join(name)
    }

    pub(crate) fn container_dir(&self, id: &ContainerId) -> PathBuf {
        self.home.0.path().join("root/containers").join(id.as_str())
    }

    pub(crate) fn config(&self, name: &str, script: &str) -> ContainerConfig {
        ContainerConfig {
            pod: PodIdentity {
                uid: "uid-1".into(),
                namespace: "default".into(),
                name: "pod".into(),
            },
            name: name.into(),
            command: vec!["sh".into(), "-c".into(), script.into()],
            // Where scripts leave what the test wants to know.
            env: vec![EnvVar {
                name: "T".into(),
                value: self.home.0.path().display().to_string(),
            }],
            log_path: self.path(&format!("logs/{name}/0.log")),
            ..Default::default()
        }
    }

    pub(crate) async fn create(&self, config: &ContainerConfig) -> ContainerId {
        self.runtime
            .create_container(&self.sandbox, config)
            .await
            .expect("the container is created")
    }

    /// Runs a shell script as a container.
    pub(crate) async fn run(&self, script: &str) -> ContainerId {
        self.run_config(&self.config("main", script)).await
    }

    pub(crate) async fn run_config(&self, config: &ContainerConfig) -> ContainerId {
        let id = self.create(config).await;
        self.runtime
            .start_container(&id)
            .await
            .expect("the container starts");
        id
    }

    pub(crate) async fn status(&self, id: &ContainerId) -> ContainerStatus {
        containers::status(&self.runtime, id).await
    }

    pub(crate) async fn wait_for_exit(&self, id: &ContainerId) -> ContainerExit {
        containers::exit_of(&self.runtime, id).await
    }

    /// The text of a file that a script writes, once it is there with its newline.
    pub(crate) async fn file(&self, name: &str) -> String {
        containers::text_of(&self.path(name)).await
    }

    pub(crate) async fn exec(&self, id: &ContainerId, script: &str) -> (ExecOutcome, String) {
        containers::exec(&self.runtime, id, script).await
    }

    /// Removes everything and makes sure that nothing is left.
    pub(crate) async fn finish(self) {
        let containers = self
            .runtime
            .list_containers(&ContainerFilter::default())
            .await
            .expect("lists");
        self.runtime
            .remove_sandbox(&self.sandbox)
            .await
            .expect("the sandbox is removed");
        assert!(self.runtime.list_sandboxes().await.expect("lists").is_empty());
        assert!(
            self.runtime
                .list_containers(&ContainerFilter::default())
                .await
                .expect("lists")
                .is_empty()
        );
        for container in containers {
            let left = processes_with_variable(CONTAINER_ID_VARIABLE, container.id.as_str());
            assert!(
                left.is_empty(),
                "processes of {} are left: {left:?}",
                container.name
            );
        }
        let remains = fs::read_dir(self.home.0.path().join("root/containers"))
            .expect("lists")
            .count();
        assert_eq!(remains, 0, "directories of containers are left");
    }
}

impl Agentless {
    pub(crate) async fn come_back(self) -> World {
        World {
            runtime: open(self.home.0.path()).await,
            sandbox: self.sandbox,
            home: self.home,
        }
    }
}

impl Drop for Home {
    /// After a failed test: its processes should not trouble the next.
    fn drop(&mut self) {
        for entry in fs::read_dir(self.0.path().join("root/containers"))
            .into_iter()
            .flatten()
            .flatten()
        {
            for pid in processes_with_variable(CONTAINER_ID_VARIABLE, &entry.file_name().to_string_lossy()) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

async fn open(dir: &Path) -> ProcessRuntime {
    let shim = ShimCommand {
        program: env!("CARGO_BIN_EXE_pulselet-process-shim").into(),
        args: Vec::new(),
    };
    ProcessRuntime::open(&dir.join("root"), shim)
        .await
        .expect("the runtime opens")
}

pub(crate) async fn wait_until_gone(pid: &str) {
    eventually("the process is gone", async || (!is_alive(pid)).then_some(())).await;
}
