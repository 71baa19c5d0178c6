//! What is out of reach from inside.

use std::{fs, path::Path, sync::Arc};

use pulselet_runtime::{
    Capabilities, ContainerConfig, Mount, PidNamespace, Propagation, Runtime, SandboxConfig, Seccomp,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::world::{World, can_run, init_pid, on_bridge, on_host_network, parent_of};

#[tokio::test]
async fn the_hosts_processes_network_and_names_are_out_of_sight() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let script = "ls -d /proc/[0-9]* | wc -l; echo $$; hostname; ls /sys/class/net | sort | tr '\\n' ' '; ipcs -m | wc -l";
    let output = world.output_of(&world.config("main", script)).await;
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].parse::<u32>().expect("a number") < 6, "{output}");
    assert_eq!(&lines[1..4], ["1", "pod", "eth0 lo 4"], "{output}");
    world.finish().await;
}

#[tokio::test]
async fn the_built_in_image_shows_the_hosts_files_but_not_the_agents_and_nothing_written_stays() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let home = world.home.path().display().to_string();
    let script = format!(
        "cat /etc/passwd | head -1; ls -A {home} 2>/dev/null | wc -l; touch {home}/x 2>/dev/null || echo protected; echo new > /etc/passwd; \
         rm -r /etc/apt; echo mine > /made-inside; ls -A /proc/sys/kernel >/dev/null && test -x /usr/local/bin/pulselet && echo program"
    );
    let output = world.output_of(&world.config("main", &script)).await;
    assert_eq!(output, "root:x:0:0:root:/root:/bin/bash\n0\nprotected\nprogram");
    assert!(!Path::new("/made-inside").exists() && Path::new("/etc/apt").exists());
    assert!(
        fs::read_to_string("/etc/passwd")
            .expect("reads")
            .starts_with("root:")
    );
    world.finish().await;
}

#[tokio::test]
async fn kernel_settings_and_devices_are_protected() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "\
        exec 2>/dev/null; \
        echo x > /proc/sys/kernel/hostname || echo sysctl; \
        echo b > /proc/sysrq-trigger || echo sysrq; \
        mkdir /sys/fs/cgroup/memory/evil || echo cgroup; \
        test -s /proc/kcore || echo kcore; \
        mknod /tmp/null c 1 3; echo x > /tmp/null || echo device; \
        mknod /dev/null2 c 1 3; echo x > /dev/null2 || echo device; \
        echo x > /dev/null && echo null; \
        mount -t tmpfs t /mnt || echo mount; \
        ls /dev | tr '\\n' ' '";
    let mut config = world.config("main", script);
    config.command = vec!["bash".into(), "-c".into(), script.into()];
    let output = world.output_of(&config).await;
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(
        &lines[..8],
        [
            "sysctl", "sysrq", "cgroup", "kcore", "device", "device", "null", "mount"
        ],
        "{output}"
    );
    assert_eq!(
        lines[8].trim(),
        "fd full mqueue null null2 ptmx pts random shm stderr stdin stdout tty urandom zero"
    );
    world.finish().await;
}

#[tokio::test]
async fn capabilities_are_the_default_set_with_the_pods_changes() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let show = "grep -E '^Cap(Prm|Eff|Bnd|Amb)' /proc/self/status | cut -f2 | tr '\\n' ' '; grep NoNewPrivs /proc/self/status | cut -f2";
    let default = "00000000a80425fb";
    let none = "0000000000000000";
    assert_eq!(
        world.output_of(&world.config("default", show)).await,
        format!("{default} {default} {default} {none} 0")
    );
    let mut dropped = world.config("dropped", show);
    dropped.security.capabilities = Capabilities {
        add: vec!["NET_ADMIN".into()],
        drop: vec!["ALL".into()],
    };
    dropped.security.no_new_privs = true;
    let admin = "0000000000001000";
    assert_eq!(
        world.output_of(&dropped).await,
        format!("{admin} {admin} {admin} {none} 1")
    );
    let mut user = world.config("user", show);
    user.security.run_as_user = Some(1000);
    assert_eq!(
        world.output_of(&user).await,
        format!("{none} {none} {default} {none} 0")
    );
    let mut privileged = world.config(
        "privileged",
        "mount -t tmpfs t /mnt && echo yes; test -e /dev/vda -o -e /dev/kmsg && echo devices",
    );
    privileged.security.privileged = true;
    assert_eq!(world.output_of(&privileged).await, "yes\ndevices");
    world.finish().await;
}

#[tokio::test]
async fn users_and_groups_are_the_pods() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mut config = world.config(
        "main",
        "id -u; id -g; id -G; echo $HOME; echo again > /dev/stdout",
    );
    config.security.run_as_user = Some(1234);
    config.security.run_as_group = Some(1235);
    config.security.supplemental_groups = vec![1236];
    assert_eq!(world.output_of(&config).await, "1234\n1235\n1235 1236\n/\nagain");
    let mut named = world.config("named", "id -un; echo $HOME");
    named.security.run_as_username = Some("daemon".into());
    assert_eq!(world.output_of(&named).await, "daemon\n/usr/sbin");
    world.finish().await;
}

#[tokio::test]
async fn a_read_only_root_and_read_only_volumes_cannot_be_written() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    fs::write(world.shared("file"), "from the host\n").expect("writes");
    let mut config = world.config("main", "touch /x 2>/dev/null || echo root; touch /ro/x 2>/dev/null || echo volume; cat /ro/file; touch /shared/x && echo shared; echo bye > /dev/termination-log");
    config.security.read_only_root = true;
    let mount = |path: &str, host: &str, read_only| Mount {
        volume: String::new(),
        container_path: path.into(),
        host_path: host.into(),
        image: None,
        sub_path: None,
        read_only,
        recursive_read_only: false,
        propagation: Propagation::Private,
    };
    let (shared, message) = (world.shared(""), world.shared("message"));
    fs::write(&message, "").expect("writes");
    config
        .mounts
        .push(mount("/ro", &shared.display().to_string(), true));
    config.mounts.push(mount(
        "/dev/termination-log",
        &message.display().to_string(),
        false,
    ));
    assert_eq!(
        world.output_of(&config).await,
        "root\nvolume\nfrom the host\nshared"
    );
    assert_eq!(fs::read_to_string(message).expect("reads"), "bye\n");
    world.finish().await;
}

/// As daemon sets count on it that name /lib/modules on a machine that has none.
#[tokio::test]
async fn a_directory_of_the_host_that_is_missing_is_made() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let host = world.shared("missing/deep");
    let mut config = world.config("main", "echo here > /new/file && cat /new/file");
    config.mounts.push(Mount {
        volume: "v".into(),
        container_path: "/new".into(),
        host_path: host.clone(),
        image: None,
        sub_path: None,
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
    });
    assert_eq!(world.output_of(&config).await, "here");
    assert_eq!(fs::read_to_string(host.join("file")).expect("reads"), "here\n");
    world.finish().await;
}

#[tokio::test]
async fn a_volume_is_mounted_inside_the_root_whatever_the_links_say() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    // The path leads through a link that, on the host, points out of the container's root.
    let outside = world.home.path().join("outside");
    fs::create_dir(&outside).expect("makes");
    let link = world.shared("link");
    std::os::unix::fs::symlink(&outside, &link).expect("links");
    let mut config = world.config(
        "main",
        "echo inside > /shared/link/mounted/file; cat /shared/link/mounted/file",
    );
    config.mounts.push(Mount {
        volume: "v".into(),
        container_path: "/shared/link/mounted".into(),
        host_path: world.shared(""),
        image: None,
        sub_path: None,
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
    });
    let id = world
        .runtime
        .create_container(&world.sandbox, &config)
        .await
        .expect("creates");
    // It may or may not be possible, but the host's directory is not touched.
    let _ = world.runtime.start_container(&id).await;
    world.wait_for_exit(&id).await;
    assert_eq!(fs::read_dir(&outside).expect("lists").count(), 0);
    world.finish().await;
}

#[tokio::test]
async fn a_part_of_a_volume_stays_in_it_while_a_link_comes_and_goes() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    fs::create_dir_all(world.shared("volume/part")).expect("makes");
    fs::write(world.shared("volume/part/file"), "inside\n").expect("writes");
    fs::create_dir(world.home.path().join("outside")).expect("makes");
    fs::write(world.home.path().join("outside/file"), "secret\n").expect("writes");
    let link = world.shared("volume/link");
    std::os::unix::fs::symlink("../../outside", &link).expect("links");
    let part = world.shared("volume/part");
    let swap = move || renameat_with(CWD, &part, CWD, &link, RenameFlags::EXCHANGE).expect("swaps");
    let config = |number: u32| {
        let mut config = world.config(&format!("c{number}"), "cat /part/file");
        config.mounts.push(Mount {
            volume: "v".into(),
            container_path: "/part".into(),
            host_path: world.shared("volume"),
            image: None,
            sub_path: Some("part".into()),
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::Private,
        });
        config
    };
    assert_eq!(world.output_of(&config(0)).await, "inside");
    swap();
    let id = world.runtime.create_container(&world.sandbox, &config(1)).await;
    let refused = world.runtime.start_container(&id.expect("creates")).await;
    let message = refused.expect_err("it leads out").to_string();
    assert!(message.contains("volume/part"), "{message}");
    let alive = Arc::new(());
    let watched = Arc::downgrade(&alive);
    let swapping = std::thread::spawn(move || {
        while watched.strong_count() > 0 {
            swap();
        }
    });
    race(&world, &config).await;
    drop(alive);
    swapping.join().expect("swaps to the end");
    world.finish().await;
}

/// Starts containers until the path led inside for one of them and out of the volume for another.
async fn race(world: &World, config: impl Fn(u32) -> ContainerConfig) {
    let (mut inside, mut refused) = (0, 0);
    for number in 2.. {
        let config = config(number);
        let id = world.runtime.create_container(&world.sandbox, &config).await;
        let id = id.expect("creates");
        if world.runtime.start_container(&id).await.is_ok() {
            world.wait_for_exit(&id).await;
            let log = fs::read_to_string(&config.log_path).expect("has a log");
            assert!(log.contains("inside") && !log.contains("secret"), "{log}");
            inside += 1;
        } else {
            refused += 1;
        }
        if inside > 2 && refused > 2 {
            return;
        }
    }
}

#[tokio::test]
async fn the_agents_program_cannot_be_reached_through_a_process() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let shim = parent_of(&init_pid(&world.container_dir(&id)));
    let file_system = rustix::fs::statvfs(format!("/proc/{shim}/exe")).expect("is there");
    assert!(file_system.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    world.finish().await;
}

#[tokio::test]
async fn containers_of_a_pod_share_what_they_should() {
    if !can_run() {
        return;
    }
    let mut config = on_bridge();
    config.namespaces.pid = PidNamespace::Pod;
    let world = World::with(config).await;
    let first = world
        .run("echo hi > /dev/shm/note; echo up > /shared/up; exec sleep 4711")
        .await;
    world.file("up").await;
    let script = "cat /dev/shm/note; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 4711' | head -1; readlink /proc/self/ns/net";
    let output = world.output_of(&world.config("second", script)).await;
    let main = init_pid(&world.container_dir(&first));
    let network = fs::read_link(format!("/proc/{main}/ns/net")).expect("reads");
    assert_eq!(output, format!("hi\nsleep 4711\n{}", network.display()));
    let orphan = world
        .run_config(&world.config("third", "(setsid sleep 4712 &); sleep 0.1"))
        .await;
    world.wait_for_exit(&orphan).await;
    let (_, left) = world
        .exec(
            &first,
            "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 471[2]'",
        )
        .await;
    assert_eq!(left, "0\n", "nothing of a container outlives its init process");
    world.finish().await;
}

#[tokio::test]
async fn a_container_can_see_the_processes_of_another() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let first = world.run("echo up > /shared/up; exec sleep 4713").await;
    world.file("up").await;
    let script = "tr '\\0' ' ' < /proc/1/cmdline; readlink /proc/self/ns/pid";
    let mut config = world.config("second", script);
    config.pid_target = Some(first.clone());
    let output = world.output_of(&config).await;
    let main = init_pid(&world.container_dir(&first));
    let processes = fs::read_link(format!("/proc/{main}/ns/pid")).expect("reads");
    assert_eq!(output, format!("sleep 4713 {}", processes.display()));
    let mut config = world.config("third", "(setsid sleep 4714 &); sleep 0.1");
    config.pid_target = Some(first.clone());
    let third = world.run_config(&config).await;
    world.wait_for_exit(&third).await;
    let (_, left) = world
        .exec(
            &first,
            "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 471[4]'",
        )
        .await;
    assert_eq!(left, "0\n", "what looked at the other leaves nothing there");
    world.finish().await;
}

#[tokio::test]
async fn what_has_ended_or_is_of_another_pod_shows_no_processes() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let other = world.add_sandbox("other", on_bridge()).await;
    let elsewhere = world
        .run_in(&other, &world.config("main", "exec sleep 1000"))
        .await;
    let ended = world.run_config(&world.config("ended", "true")).await;
    world.wait_for_exit(&ended).await;
    for (target, reason) in [(elsewhere, "not in this pod"), (ended, "not running")] {
        let mut config = world.config("looking", "true");
        config.pid_target = Some(target);
        let refused = world.runtime.create_container(&world.sandbox, &config).await;
        let error = refused.expect_err("is refused").to_string();
        assert!(error.contains(reason), "{error}");
    }
    world.finish().await;
}

#[tokio::test]
async fn the_hosts_processes_are_seen_only_if_asked_for() {
    if !can_run() {
        return;
    }
    let mut config: SandboxConfig = on_host_network();
    config.namespaces.pid = PidNamespace::Host;
    let world = World::with(config).await;
    let script = format!(
        "test -d /proc/{} && echo seen; (setsid sleep 4713 &) ; sleep 0.1",
        std::process::id()
    );
    assert_eq!(world.output_of(&world.config("main", &script)).await, "seen");
    world.finish().await;
}

#[tokio::test]
async fn system_calls_are_filtered_as_the_profile_says() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "exec 2>/dev/null; unshare -U true || echo namespaces; grep Seccomp: /proc/self/status | cut -f2; mkdir /made || echo mkdir; (echo forked)";
    let mut config = world.config("default", script);
    config.security.seccomp = Seccomp::RuntimeDefault;
    assert_eq!(world.output_of(&config).await, "namespaces\n2\nforked");
    let profile = world.shared("profile.json");
    let text = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}"#;
    fs::write(&profile, text).expect("writes");
    for (name, no_new_privs) in [("plain", false), ("no-new-privs", true)] {
        let mut config = world.config(name, script);
        config.security.seccomp = Seccomp::Localhost(profile.clone());
        config.security.no_new_privs = no_new_privs;
        config.security.run_as_user = Some(1000);
        let output = world.output_of(&config).await;
        assert!(output.contains("2\nmkdir\nforked"), "{output}");
    }
    let mut config = world.config("bad", "true");
    config.security.seccomp = Seccomp::Localhost("/no/such/profile".into());
    let refused = world.runtime.create_container(&world.sandbox, &config).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("/no/such/profile")));
    world.finish().await;
}
