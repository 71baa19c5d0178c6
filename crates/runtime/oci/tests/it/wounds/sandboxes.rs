//! What a pod's settings do to the machine.

use std::fs;

use pulselet_runtime::{Runtime, SandboxConfig};

use crate::world::{World, can_run, identity, on_bridge};

/// CVE-2022-0811: a setting's value or name carries another setting along.
#[tokio::test]
async fn a_setting_of_a_pod_sets_nothing_else() {
    if !can_run() {
        return;
    }
    let world = World::without_sandbox().await;
    let watched = ["kernel/core_pattern", "kernel/domainname", "vm/swappiness"];
    let read = || watched.map(|name| fs::read(format!("/proc/sys/{name}")).expect("reads"));
    let before = read();
    for (number, (name, value)) in [
        ("kernel.shm_rmid_forced", "1+kernel.core_pattern=|/evil"),
        ("kernel.shm_rmid_forced", "1\nkernel.core_pattern=|/evil"),
        ("kernel.shm_rmid_forced=1+kernel.core_pattern", "|/evil"),
        ("kernel.shm/../core_pattern", "|/evil"),
        ("net.ipv4/../../kernel/core_pattern", "|/evil"),
        ("net/../kernel/core_pattern", "|/evil"),
        ("kernel.core_pattern", "|/evil"),
        ("kernel/core_pattern", "|/evil"),
        ("vm.swappiness", "7"),
        ("net.", "1"),
        ("", "1"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut config = SandboxConfig {
            pod: identity(&format!("pod{number}")),
            log_directory: world.home.path().join("logs"),
            ..on_bridge()
        };
        config.sysctls.insert(name.into(), value.into());
        let made = world.runtime.run_sandbox(&config).await;
        // The kernel takes what is before the end of a line for the value, of that one setting.
        assert!(made.is_err() || value.contains('\n'), "{name}={value:?}");
        assert_eq!(read(), before, "{name}={value:?}");
    }
    world.finish().await;
}
