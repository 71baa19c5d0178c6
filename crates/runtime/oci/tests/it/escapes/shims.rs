//! The second line: what a shim, and so every process on its way into a container, cannot do any more.

use std::fs;

use pulselet_runtime::{AppArmor, ContainerId};

use super::restricted;
use crate::world::{World, can_run, init_pid, on_bridge, parent_of};

/// Capabilities by their numbers that no shim needs: to load modules, use ports, boot, set the time, change networks.
const NEVER: [u32; 7] = [12, 13, 16, 17, 22, 25, 34];

fn field(pid: &str, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("reads");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.expect("has it").trim_start_matches(':').trim().to_owned()
}

fn shim_of(world: &World, id: &ContainerId) -> String {
    parent_of(&init_pid(&world.container_dir(id)))
}

#[tokio::test]
async fn a_shim_keeps_no_rights_that_it_does_not_use() {
    if !can_run() {
        return;
    }
    for own_users in [false, true] {
        let mut config = on_bridge();
        config.namespaces.own_users = own_users;
        let world = World::with(config).await;
        let id = world
            .run_config(&restricted(&world, "strict", "exec sleep 1000"))
            .await;
        let shim = shim_of(&world, &id);
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let bits = u64::from_str_radix(&field(&shim, set), 16).expect("a set");
            for number in NEVER {
                assert_eq!(bits & (1 << number), 0, "{set} has {number}");
            }
        }
        assert_eq!(field(&shim, "NoNewPrivs"), "1");
        let (_, output) = world
            .exec(&id, "grep ^Cap /proc/self/status | cut -f2 | sort -u")
            .await;
        assert_eq!(
            output.trim(),
            "0000000000000000",
            "a command still starts, with none"
        );
        world.finish().await;
    }
}

#[tokio::test]
async fn a_container_has_what_its_pod_asks_for_whatever_its_shim_gave_up() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mut config = world.config("strong", "exec sleep 1000");
    config.security.capabilities.add = vec!["SYS_TIME".into(), "SYSLOG".into()];
    let id = world.run_config(&config).await;
    let shim = shim_of(&world, &id);
    assert_eq!(field(&shim, "NoNewPrivs"), "0", "its programs may gain rights");
    let bits = |pid: &str| u64::from_str_radix(&field(pid, "CapBnd"), 16).expect("a set");
    assert_eq!(bits(&shim) & (1 << 16), 0);
    let (_, output) = world.exec(&id, "grep ^CapEff /proc/self/status | cut -f2").await;
    let held = u64::from_str_radix(output.trim(), 16).expect("a set");
    assert_eq!(held, 0xa804_25fb | 1 << 25 | 1 << 34);
    let mut config = world.config("privileged", "exec sleep 1000");
    config.security.privileged = true;
    let id = world.run_config(&config).await;
    assert_eq!(bits(&shim_of(&world, &id)), bits("self"));
    world.finish().await;
}

#[tokio::test]
async fn commands_are_killed_for_want_of_memory_as_their_container_is() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    for (name, score) in [("first", Some(1000)), ("plain", None)] {
        let mut config = world.config(name, "exec sleep 1000");
        config.resources.oom_score_adj = score;
        let id = world.run_config(&config).await;
        let (_, output) = world
            .exec(&id, "cat /proc/1/oom_score_adj /proc/self/oom_score_adj")
            .await;
        let expected = score.unwrap_or(0).to_string();
        assert_eq!(
            output.split_whitespace().collect::<Vec<_>>(),
            [expected.as_str(); 2],
            "{name}"
        );
    }
    world.finish().await;
}

/// CVE-2019-5736 for who may mount: the read-only view of the program is a mount as any other, if it is one.
#[tokio::test]
async fn who_may_mount_does_not_make_the_shims_program_writable() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mut config = world.config("capable", "exec sleep 1000");
    config.security.capabilities.add = vec!["SYS_ADMIN".into(), "SYS_PTRACE".into()];
    config.security.app_armor = Some(AppArmor::Unconfined);
    let id = world.run_config(&config).await;
    // The parent of a command is a copy of the shim. The mode that is set is the one that the file has.
    let script = r#"exec python3 -c '
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("/proc/%d/exe" % os.getppid(), os.O_PATH)
attributes = struct.pack("QQQQ", 0, 1, 0, 0)
print("set", libc.syscall(442, fd, b"", 0x1000, attributes, len(attributes)))
tree = libc.syscall(428, fd, b"", 0x1001)
print("cloned", tree)
for one in (fd, tree):
    try:
        path = "/proc/self/fd/%d" % one
        os.chmod(path, os.stat(path).st_mode & 0o7777)
        print("changed")
    except OSError as error:
        print(error.strerror)
print("tried")
'"#;
    let (_, output) = world.exec(&id, script).await;
    assert!(output.contains("tried"), "{output}");
    assert!(
        !output.contains("changed") && !output.contains("set 0"),
        "{output}"
    );
    world.finish().await;
}
