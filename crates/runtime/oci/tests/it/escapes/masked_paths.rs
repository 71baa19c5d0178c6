//! The class of CVE-2025-31133, CVE-2025-52565 and CVE-2019-16884: what hides and protects files of the kernel is led
//! elsewhere by something that the container brought, and hides nothing or opens more than there was.

use std::{fs, os::unix::fs::symlink};

use pulselet_runtime::Runtime;

use super::{restricted, run_both_ways, start, volume};
use crate::{
    images::{base_layer, busybox, load, of_image},
    world::{World, can_run},
};

/// Prints a line for each hidden file that is the host's setting, and another one if it can be opened for writing.
const LOOK: &str = "\
    for file in /proc/interrupts /proc/keys /proc/timer_list /proc/kcore; do \
        test \"$(head -c 99 $file 2>&1)\" = \"$(cat /proc/sys/kernel/core_pattern)\" || continue; \
        echo $file shows the setting; ( : >> $file ) 2>&1 && echo $file can be written; \
    done; echo looked";

#[tokio::test]
async fn a_volume_at_dev_does_not_turn_a_hidden_file_into_a_setting_of_the_host() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    fs::create_dir(world.shared("dev")).expect("makes");
    symlink("/proc/sys/kernel/core_pattern", world.shared("dev/null")).expect("links");
    let mut config = restricted(&world, "main", "");
    config.mounts.push(volume(&world, "dev", "/dev"));
    for output in run_both_ways(&world, LOOK, &config).await {
        assert!(output.contains("looked") && !output.contains("/proc"), "{output}");
    }
    world.finish().await;
}

#[tokio::test]
async fn no_volume_takes_the_place_of_the_kernels_files() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    fs::create_dir_all(world.shared("volume/kernel")).expect("makes");
    fs::write(world.shared("file"), "").expect("writes");
    for (link, target) in [("sysctls", "/proc/sys"), ("root", "/proc/self/root/proc/sys")] {
        symlink(target, world.shared(link)).expect("links");
    }
    for (number, (source, target)) in [
        ("volume", "/proc"),
        ("volume", "/proc/../proc"),
        ("volume", "/proc/sys"),
        ("file", "/proc/sys/kernel/core_pattern"),
        ("file", "/proc/self/status"),
        ("volume", "/shared/sysctls"),
        ("volume", "/shared/sysctls/kernel"),
        ("volume", "/shared/root"),
        ("volume", "/"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut config = restricted(&world, &format!("c{number}"), "echo in");
        config.mounts.push(volume(&world, source, target));
        let refused = start(&world, &config).await;
        let message = refused.expect_err(target);
        assert!(message.contains("cannot mount at"), "{target}: {message}");
    }
    world.finish().await;
}

/// Programs that show a container its own numbers of processors and bytes need these.
#[tokio::test]
async fn a_few_files_of_proc_can_be_replaced_and_a_proc_file_system_can_be_mounted_there() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    fs::write(world.shared("file"), "mine\n").expect("writes");
    let mut config = restricted(&world, "file", "cat /proc/meminfo");
    config.mounts.push(volume(&world, "file", "/proc/meminfo"));
    assert_eq!(world.output_of(&config).await, "mine");
    let mut config = restricted(
        &world,
        "proc",
        "ls /proc/1/status; echo x 2>&1 > /proc/sys/vm/swappiness",
    );
    let mut proc = volume(&world, "file", "/proc");
    proc.host_path = "/proc".into();
    config.mounts.push(proc);
    let output = world.output_of(&config).await;
    assert!(
        output.contains("/proc/1/status") && output.contains("Read-only"),
        "{output}"
    );
    world.finish().await;
}

/// Whatever is mounted there would be somewhere else, and what hides files of it would be led there as well.
#[tokio::test]
async fn an_image_with_a_link_for_proc_sys_or_dev_is_refused() {
    let Some(busybox) = busybox().filter(|_| can_run()) else {
        return;
    };
    let world = World::new().await;
    for name in ["proc", "sys", "dev"] {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_entry_type(tar::EntryType::Symlink);
        tar.append_link(&mut header, name, "/shared").expect("fits");
        let layers = [base_layer(&busybox), tar.into_inner().expect("is complete")];
        let image = format!("test/{name}:1");
        let command = serde_json::json!({"Cmd": ["/bin/sh", "-c", "true"]});
        load(world.home.path(), &image, &layers, &command);
        let refused = start(&world, &of_image(&world, name, &image)).await;
        let message = refused.expect_err(name);
        assert!(message.contains(&format!("cannot mount at /{name}")), "{message}");
    }
    world.finish().await;
}

/// What is mounted below a volume stays in the container's root while another container swaps directories and links.
#[tokio::test]
async fn a_target_that_is_swapped_for_a_link_leads_nowhere_else() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    if !can_run() {
        return;
    }
    let world = World::new().await;
    fs::create_dir_all(world.shared("dir/sub")).expect("makes");
    fs::create_dir_all(world.shared("volume")).expect("makes");
    symlink("/proc", world.shared("link")).expect("links");
    let (dir, link) = (world.shared("dir"), world.shared("link"));
    let alive = std::sync::Arc::new(());
    let watched = std::sync::Arc::downgrade(&alive);
    let swapping = std::thread::spawn(move || {
        while watched.strong_count() > 0 {
            renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).expect("swaps");
        }
    });
    for number in 0..24 {
        let script =
            "grep -c ' /proc/sys ' /proc/self/mountinfo; grep ' /proc/sys/' /proc/self/mountinfo; true";
        let mut config = restricted(&world, &format!("c{number}"), script);
        config.mounts.push(volume(&world, "volume", "/shared/dir/sys"));
        if let Ok(id) = start(&world, &config).await {
            world.wait_for_exit(&id).await;
            let log = fs::read_to_string(&config.log_path).expect("has a log");
            assert!(
                log.ends_with(" F 1\n") && log.lines().count() == 1,
                "the kernel's own alone: {log}"
            );
            world.runtime.remove_container(&id).await.expect("removes");
        }
    }
    drop(alive);
    swapping.join().expect("swaps to the end");
    world.finish().await;
}
