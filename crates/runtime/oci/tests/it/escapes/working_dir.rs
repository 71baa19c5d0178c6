//! The class of CVE-2024-21626: a working directory that leads out of the container's root.

use std::{fs, os::unix::fs::symlink};

use pulselet_runtime::{PidNamespace, Runtime};

use super::{SECRET, hide_secret, restricted, run_both_ways, start};
use crate::world::{World, can_run, on_bridge, on_host_network, shell};

async fn check(world: World, directories: &[&str]) {
    let secret = hide_secret(&world);
    let script = format!("cat .{secret} 2>&1; cat ./../..{secret} 2>&1; pwd");
    for (number, directory) in directories.iter().enumerate() {
        let mut config = restricted(&world, &format!("c{number}"), "");
        config.working_dir = Some((*directory).into());
        for output in run_both_ways(&world, &script, &config).await {
            assert!(!output.contains(SECRET), "{directory}: {output}");
        }
    }
    world.finish().await;
}

#[tokio::test]
async fn the_root_of_the_pause_process_is_out_of_reach() {
    if !can_run() {
        return;
    }
    let mut config = on_bridge();
    config.namespaces.pid = PidNamespace::Pod;
    check(World::with(config).await, &["/proc/1/root", "/proc/1/cwd"]).await;
}

#[tokio::test]
async fn the_root_of_the_hosts_processes_is_out_of_reach() {
    if !can_run() {
        return;
    }
    let mut config = on_host_network();
    config.namespaces.pid = PidNamespace::Host;
    let this = format!("/proc/{}/root", std::process::id());
    check(World::with(config).await, &["/proc/1/root", "/proc/1/cwd", &this]).await;
}

#[tokio::test]
async fn descriptors_of_the_shim_lead_nowhere() {
    if !can_run() {
        return;
    }
    let directories: Vec<String> = (3..24).map(|number| format!("/proc/self/fd/{number}")).collect();
    let directories: Vec<&str> = directories.iter().map(String::as_str).collect();
    check(World::new().await, &directories).await;
}

/// With the right to look into every process it sees, a container takes its commands to the root of any of them.
#[tokio::test]
async fn a_working_directory_that_becomes_a_link_takes_no_command_out() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let secret = hide_secret(&world);
    fs::create_dir(world.shared("dir")).expect("makes");
    let mut config = restricted(&world, "main", "exec sleep 1000");
    config.security.capabilities.add = vec!["SYS_PTRACE".into()];
    config.working_dir = Some("/shared/dir".into());
    let id = start(&world, &config).await.expect("starts");
    // While a command runs, whatever is its parent is in sight; its root is where the next one is to begin.
    let wait = "echo $PPID > /shared/parent; while ! test -e /shared/stop; do sleep 0.02; done";
    let attack = async {
        let parent = world.file("parent").await;
        fs::remove_dir(world.shared("dir")).expect("removes");
        for target in [format!("/proc/{parent}/root"), "/proc/self/root".into()] {
            let _ = fs::remove_file(world.shared("dir"));
            symlink(&target, world.shared("dir")).expect("links");
            let command = shell(&format!("cat .{secret} 2>&1; true"));
            if let Ok(output) = world.runtime.exec_sync(&id, &command).await {
                let text = String::from_utf8_lossy(&output.output).into_owned();
                assert!(!text.contains(SECRET), "{target}: {text}");
            }
        }
        fs::write(world.shared("stop"), "").expect("writes");
    };
    tokio::join!(world.exec(&id, wait), attack);
    world.finish().await;
}
