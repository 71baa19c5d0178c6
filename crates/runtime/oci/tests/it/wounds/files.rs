//! Files of the kernel and of the host that a container changes, or has changed for it.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
};

use pulselet_runtime::{AppArmor, Runtime};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    escapes::{restricted, run_both_ways, start, volume},
    world::{World, can_run},
};

/// CVE-2022-0492, CVE-2023-25809: a container that writes to its cgroup's files runs a program of its own on the host, or
/// takes more than its share.
#[tokio::test]
async fn files_of_the_cgroups_cannot_be_written() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "for file in $(find /sys/fs/cgroup -type f | head -n 200); do \
             ( : >> $file ) 2>/dev/null && echo wrote $file; done; \
         mkdir /sys/fs/cgroup/x /sys/fs/cgroup/*/x 2>/dev/null && echo made; \
         for kind in 'cgroup -o rdma' 'cgroup -o memory' cgroup2; do \
             mount -t $kind c /mnt 2>/dev/null && echo mounted $kind; done; \
         find /sys/fs/cgroup -name 'cgroup.procs' | wc -l; echo tried";
    let config = world.config("main", "");
    for output in run_both_ways(&world, script, &config).await {
        assert!(output.contains("tried"), "{output}");
        for word in ["wrote", "made", "mounted"] {
            assert!(!output.contains(word), "{output}");
        }
    }
    world.finish().await;
}

/// CVE-2025-52565: the terminal is mounted where a link of the container's /dev leads.
#[tokio::test]
async fn a_terminal_is_not_mounted_where_a_link_leads() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    fs::create_dir(world.shared("dev")).expect("makes");
    symlink("/proc/sys/kernel/core_pattern", world.shared("dev/console")).expect("links");
    let before = fs::read("/proc/sys/kernel/core_pattern").expect("reads");
    let script = "test -c /proc/sys/kernel/core_pattern && echo covered; \
         ( echo x > /dev/console ) 2>/dev/null && echo written; grep -c core_pattern /proc/self/mountinfo; echo tried > /shared/tried";
    let mut config = restricted(&world, "main", script);
    config.mounts.push(volume(&world, "dev", "/dev"));
    config.tty = true;
    config.stdin = true;
    if let Ok(id) = start(&world, &config).await {
        world.wait_for_exit(&id).await;
        let log = fs::read_to_string(&config.log_path).expect("has a log");
        assert!(!log.contains("covered") && !log.contains("written"), "{log}");
        assert_eq!(world.file("tried").await, "tried");
    }
    assert_eq!(fs::read("/proc/sys/kernel/core_pattern").expect("reads"), before);
    world.finish().await;
}

/// CVE-2024-45310: a mount's target is made, empty, where a link leads on the host.
#[tokio::test]
async fn nothing_is_made_on_the_host_for_a_mount() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let outside = world.home.path().join("outside");
    fs::create_dir(&outside).expect("makes");
    fs::create_dir(world.shared("volume")).expect("makes");
    fs::write(world.shared("file"), "").expect("writes");
    for (name, target) in [
        ("absolute", outside.display().to_string()),
        ("relative", "../outside".to_owned()),
        ("jump", format!("/proc/self/root{}", outside.display())),
    ] {
        symlink(&target, world.shared(name)).expect("links");
        for (number, source) in ["volume", "file"].into_iter().enumerate() {
            let mut config = world.config(&format!("{name}{number}"), "true");
            let target = format!("/shared/{name}/made{number}");
            config.mounts.push(volume(&world, source, &target));
            if let Ok(id) = start(&world, &config).await {
                world.wait_for_exit(&id).await;
            }
        }
    }
    let made: Vec<_> = fs::read_dir(&outside).expect("lists").collect();
    assert!(made.is_empty(), "{made:?}");
    world.finish().await;
}

/// CVE-2021-41103: users of the machine enter the directories of containers and find their setuid programs.
#[tokio::test]
async fn nobody_but_root_enters_the_containers_directories() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let directory = world.container_dir(&id);
    let open = |path: &std::path::Path| fs::metadata(path).expect("is there").mode() & 0o007 != 0;
    let root = world.home.path().join("root");
    let mut way = directory.ancestors().take_while(|path| path.starts_with(&root));
    assert!(
        way.any(|path| !open(path)),
        "everybody gets to {}",
        directory.display()
    );
    world.finish().await;
}

/// The log of a container is a link that somebody put there, who may write below /var/log: the shim writes to a file of
/// the host.
#[tokio::test]
async fn a_log_is_not_written_through_a_link() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let target = world.home.path().join("target");
    fs::write(&target, "as it was\n").expect("writes");
    let config = world.config("main", "echo hello; exec sleep 1000");
    fs::create_dir_all(config.log_path.parent().expect("has one")).expect("makes");
    symlink(&target, &config.log_path).expect("links");
    let started = start(&world, &config).await;
    if let Ok(id) = &started {
        world.exec(id, "true").await;
        let _ = world.runtime.reopen_log(id).await;
    }
    assert_eq!(
        fs::read_to_string(&target).expect("reads"),
        "as it was\n",
        "{started:?}"
    );
    world.finish().await;
}

/// The class of trees that are deeper than whoever removes or measures them expects: the agent ends with an overflow of its
/// stack, has no descriptors left, or does not see what a container takes of the disk.
#[tokio::test]
async fn a_tree_of_any_depth_is_measured_and_goes_with_its_container() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = r#"mkdir /deep && cd /deep && exec python3 -c '
import os
for _ in range(1500):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
open("large", "w").write("x" * (4 << 20))
'"#;
    let mut config = world.config("main", script);
    config.security.no_new_privs = true;
    // With a profile the kernel refuses files whose path it cannot write down.
    config.security.app_armor = Some(AppArmor::Unconfined);
    let id = world.run_config(&config).await;
    assert_eq!(world.wait_for_exit(&id).await.code, 0);
    // As many as a process usually has; it is the test's own.
    let few = Rlimit {
        current: Some(1024),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, few).expect("sets");
    let used = world.runtime.writable_layer(&id).await.expect("is measured");
    assert!(used.is_some_and(|layer| layer.bytes >= 4 << 20), "{used:?}");
    world.runtime.remove_container(&id).await.expect("is removed");
    assert!(!world.container_dir(&id).exists());
    world.finish().await;
}
