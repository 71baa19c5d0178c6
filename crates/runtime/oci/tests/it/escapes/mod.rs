//! Ways out of a container that pods have had with this or another runtime, each tried for the init process and for an
//! exec process. A container that is refused has not got out either.

mod cgroups;
mod covered_root;
mod devices;
mod exec_processes;
mod keyrings;
mod masked_paths;
mod shims;
mod user_namespaces;
mod users;
mod working_dir;

use std::fs;

use pulselet_runtime::{Capabilities, ContainerConfig, Mount, Propagation, Runtime, Seccomp};

use crate::world::{World, shell};

/// A file of the host that no container is shown, and its text.
const SECRET_FILE: &str = "secret";
pub(crate) const SECRET: &str = "only the host knows";

/// As the strictest pods are: no capabilities, no new privileges, the default filter, a read-only root.
pub(crate) fn restricted(world: &World, name: &str, script: &str) -> ContainerConfig {
    let mut config = world.config(name, script);
    config.security.capabilities = Capabilities {
        add: Vec::new(),
        drop: vec!["ALL".into()],
    };
    config.security.no_new_privs = true;
    config.security.seccomp = Seccomp::RuntimeDefault;
    config.security.read_only_root = true;
    config
}

/// Mounts a directory or file of the shared volume.
pub(crate) fn volume(world: &World, name: &str, container_path: &str) -> Mount {
    Mount {
        volume: "v".into(),
        container_path: container_path.into(),
        host_path: world.shared(name),
        image: None,
        sub_path: None,
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
    }
}

/// Writes the host's secret and returns its path.
pub(crate) fn hide_secret(world: &World) -> String {
    let path = world.home.path().join(SECRET_FILE);
    fs::write(&path, format!("{SECRET}\n")).expect("writes");
    path.display().to_string()
}

/// What a script prints as the init process of a container, and as an exec process of another one like it. Why it was
/// not run stands in for what it would have printed.
pub(crate) async fn run_both_ways(world: &World, script: &str, config: &ContainerConfig) -> [String; 2] {
    let init = named(config, "init", script);
    let as_init = match start(world, &init).await {
        Ok(id) => {
            world.wait_for_exit(&id).await;
            fs::read_to_string(&init.log_path).expect("has a log")
        }
        Err(refusal) => refusal,
    };
    let beside = named(config, "exec", "exec sleep 1000");
    let as_exec = match start(world, &beside).await {
        Ok(id) => match world.runtime.exec_sync(&id, &shell(script)).await {
            Ok(output) => String::from_utf8_lossy(&output.output).into_owned(),
            Err(error) => error.to_string(),
        },
        Err(refusal) => refusal,
    };
    [as_init, as_exec]
}

fn named(config: &ContainerConfig, way: &str, script: &str) -> ContainerConfig {
    let name = format!("{}-{way}", config.name);
    ContainerConfig {
        command: vec!["sh".into(), "-c".into(), script.into()],
        log_path: config.log_path.with_file_name(format!("{name}.log")),
        name,
        ..config.clone()
    }
}

/// Starts a container, or says why it was refused.
pub(crate) async fn start(
    world: &World,
    config: &ContainerConfig,
) -> Result<pulselet_runtime::ContainerId, String> {
    let id = world.runtime.create_container(&world.sandbox, config).await;
    let id = id.map_err(|error| error.to_string())?;
    let started = world.runtime.start_container(&id).await;
    started.map(|()| id).map_err(|error| error.to_string())
}
