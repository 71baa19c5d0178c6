//! The class of `mknod` escapes: device files that a container shares with the host, and those that it makes for itself
//! where its own mount lets them be opened.

use std::{fs, os::unix::fs::MetadataExt};

use pulselet_runtime::AppArmor;

use super::{restricted, run_both_ways};
use crate::world::{World, can_run};

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

#[tokio::test]
async fn device_files_are_the_containers_own() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let config = restricted(&world, "main", "");
    for output in run_both_ways(&world, "cd /dev; stat -c 'device %n %d:%i %a' *; head -c 2 zero | wc -c; echo x > null; head -c 1 interrupts", &config).await {
        for name in DEVICES {
            let host = fs::metadata(format!("/dev/{name}")).expect("is there");
            let line = output.lines().find_map(|line| line.split_once(&format!("device {name} ")));
            let (_, found) = line.expect(name);
            assert_ne!(found.split(' ').next(), Some(format!("{}:{}", host.dev(), host.ino()).as_str()), "{name}");
            assert!(found.ends_with(" 666"), "{name}: {output}");
        }
    }
    world.finish().await;
}

/// With the right to mount, a container can make device files where they can be opened.
#[tokio::test]
async fn a_device_that_is_not_the_containers_cannot_be_opened() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    // Opening the kernel's log for writing needs no right of its own.
    let script = "mount -t tmpfs t /mnt && mknod /mnt/log c 1 11 && mknod /mnt/null c 1 3 && echo made; \
         ( : > /mnt/log ) && echo opened; ( : > /mnt/null ) && echo null; ( : < /dev/ptmx ) && echo terminal";
    let mut config = world.config("main", "");
    config.security.capabilities.add = vec!["SYS_ADMIN".into()];
    // The default profile would not even let it mount.
    config.security.app_armor = Some(AppArmor::Unconfined);
    for output in run_both_ways(&world, script, &config).await {
        assert!(
            output.contains("made") && output.contains("null") && output.contains("terminal"),
            "{output}"
        );
        assert!(!output.contains("opened"), "{output}");
    }
    config.name = "privileged".into();
    config.security.privileged = true;
    for output in run_both_ways(&world, script, &config).await {
        assert!(output.contains("opened"), "{output}");
    }
    world.finish().await;
}
