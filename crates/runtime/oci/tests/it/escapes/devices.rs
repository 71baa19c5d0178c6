//! Devices of the host: files that containers share with it, and device files that a container makes for itself (the
//! class of CVE-2021-30465's aftermath: a mount of one's own is enough if nothing else refuses the device).

use std::{fs, os::unix::fs::MetadataExt};

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
