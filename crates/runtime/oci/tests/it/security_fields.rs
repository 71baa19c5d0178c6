//! Settings of a security context that a container can look at from inside.

use std::fs;

use pulselet_runtime::{ContainerConfig, Mount, Propagation};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};

use crate::world::{World, can_run};

fn volume(world: &World, name: &str, container_path: &str) -> Mount {
    Mount {
        volume: "v".into(),
        container_path: container_path.into(),
        host_path: world.shared(name),
        image: None,
        sub_path: None,
        read_only: true,
        recursive_read_only: false,
        propagation: Propagation::Private,
    }
}

#[tokio::test]
async fn strict_groups_leave_out_those_of_the_image() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    fs::write(world.shared("passwd"), "web:x:1234:1235::/:/bin/sh\n").expect("writes");
    fs::write(world.shared("group"), "web:x:1235:\nlogs:x:1240:web\n").expect("writes");
    let config = |name: &str, strict_groups| {
        let mut config = world.config(name, "id -G; grep ^Groups /proc/1/status | cut -f2");
        config.mounts.push(volume(&world, "passwd", "/etc/passwd"));
        config.mounts.push(volume(&world, "group", "/etc/group"));
        config.security.run_as_user = Some(1234);
        config.security.supplemental_groups = vec![1236];
        config.security.strict_groups = strict_groups;
        config
    };
    let merged = world.output_of(&config("merge", false)).await;
    assert!(merged.contains("1240"), "{merged}");
    let strict = world.output_of(&config("strict", true)).await;
    assert_eq!(strict.lines().next(), Some("1235 1236"), "{strict}");
    assert!(!strict.contains("1240"), "{strict}");
    world.finish().await;
}

#[tokio::test]
async fn a_recursive_read_only_volume_is_read_only_below_its_mounts_too() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let below = world.shared("volume/below");
    fs::create_dir_all(&below).expect("makes");
    mount("tmpfs", &below, "tmpfs", MountFlags::empty(), None).expect("mounts");
    let script =
        "touch /v/x 2>/dev/null || echo volume; touch /v/below/x 2>/dev/null || echo below; ls -d /v/below";
    let config = |name: &str, recursive_read_only| -> ContainerConfig {
        let mut config = world.config(name, script);
        config.mounts.push(Mount {
            recursive_read_only,
            ..volume(&world, "volume", "/v")
        });
        config
    };
    assert_eq!(world.output_of(&config("plain", false)).await, "volume\n/v/below");
    assert_eq!(
        world.output_of(&config("recursive", true)).await,
        "volume\nbelow\n/v/below"
    );
    // The host's own mount stays as it was.
    fs::write(below.join("y"), "").expect("writes");
    unmount(&below, UnmountFlags::DETACH).expect("unmounts");
    world.finish().await;
}

#[tokio::test]
async fn a_later_mount_of_the_host_appears_where_it_is_asked_for() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let volume_dir = world.shared("volume");
    let below = volume_dir.join("below");
    fs::create_dir_all(&below).expect("makes");
    mount_bind(&volume_dir, &volume_dir).expect("mounts");
    mount_change(&volume_dir, MountPropagationFlags::SHARED).expect("is shared");
    let script = "exec sleep 1000";
    let mut ids = Vec::new();
    for (name, propagation) in [
        ("none", Propagation::Private),
        ("from-host", Propagation::HostToContainer),
    ] {
        let mut config = world.config(name, script);
        config.mounts.push(Mount {
            propagation,
            ..volume(&world, "volume", "/v")
        });
        ids.push(world.run_config(&config).await);
    }
    mount("tmpfs", &below, "tmpfs", MountFlags::empty(), None).expect("mounts");
    fs::write(below.join("seen"), "").expect("writes");
    let mut seen = Vec::new();
    for id in &ids {
        let (_, output) = world.exec(id, "test -e /v/below/seen && echo seen").await;
        seen.push(output);
    }
    assert_eq!(seen, ["", "seen\n"]);
    unmount(&below, UnmountFlags::DETACH).expect("unmounts");
    unmount(&volume_dir, UnmountFlags::DETACH).expect("unmounts");
    world.finish().await;
}
