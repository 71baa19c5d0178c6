//! Pods that have users of their own (`hostUsers: false`): whoever is root in one is nobody on the host, by whatever way
//! its processes were started.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
};

use pulselet_runtime::{
    AppArmor, Capabilities, ContainerConfig, ContainerId, Namespaces, PidNamespace, Runtime, SandboxConfig,
};
use pulselet_shim::record;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};

use super::{restricted, run_both_ways, start, volume};
use crate::{
    images::{base_layer, busybox, load},
    world::{World, can_run, init_pid, on_bridge},
};

/// Users that a pod has.
const COUNT: u32 = 65_536;

fn with_own_users() -> SandboxConfig {
    SandboxConfig {
        namespaces: Namespaces {
            own_users: true,
            ..Namespaces::default()
        },
        ..on_bridge()
    }
}

/// As the strongest containers are that are not privileged: no profile holds what the users should hold alone.
fn with_all_capabilities(world: &World, name: &str) -> ContainerConfig {
    let mut config = world.config(name, "");
    config.security.capabilities = Capabilities {
        add: vec!["ALL".into()],
        drop: Vec::new(),
    };
    config.security.app_armor = Some(AppArmor::Unconfined);
    config
}

/// The first of the host's users that a sandbox has, from its record.
fn first_user(world: &World, sandbox: &str) -> u32 {
    let dir = world.home.path().join("root/sandboxes").join(sandbox);
    let record: Option<Value> = record::read(&dir, "sandbox.json").expect("reads");
    let record = record.expect("is there");
    assert_eq!(record["user_ids"]["count"], json!(COUNT), "{record}");
    let first = record["user_ids"]["first"].as_u64().expect("a number");
    u32::try_from(first).expect("is one")
}

/// The host's numbers of a process: real, effective, saved and for files.
fn users_of(pid: &str, line: &str) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("reads");
    let numbers = status
        .lines()
        .find_map(|text| text.strip_prefix(line))
        .expect("has it");
    numbers
        .split_whitespace()
        .map(|text| text.parse().expect("a number"))
        .collect()
}

fn owner(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).expect("is there");
    (metadata.uid(), metadata.gid())
}

fn written_by_container(world: &World, id: &ContainerId, name: &str) -> (u32, u32) {
    owner(&world.container_dir(id).join("upper").join(name))
}

#[tokio::test]
async fn root_in_a_pod_with_its_own_users_is_nobody_on_the_host() {
    if !can_run() {
        return;
    }
    let world = World::with(with_own_users()).await;
    let first = first_user(&world, world.sandbox.as_str());
    fs::write(world.shared("of-root"), "").expect("writes");
    let script = "id -u; cat /proc/self/uid_map; stat -c %u:%g / /etc/passwd /shared/of-root /dev/null /dev/pts/ptmx; \
                  echo made > /made; echo made > /shared/made; stat -c %u /made /shared/made";
    let config = world.config("root", script);
    let words = world
        .output_of(&config)
        .await
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let expected = format!("0 0 {first} {COUNT} 0:0 0:0 0:0 0:0 0:0 0 0");
    assert_eq!(words, expected);
    assert_eq!(
        owner(&world.shared("made")),
        (0, 0),
        "a volume has the numbers of the inside"
    );

    let beside = world.config("beside", "echo init > /by-init; exec sleep 1000");
    let id = world.run_config(&beside).await;
    let (_, output) = world
        .exec(
            &id,
            "id -u; readlink /proc/1/ns/user /proc/self/ns/user; echo x > /by-exec",
        )
        .await;
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(
        (lines[0], lines[1]),
        ("0", lines[2]),
        "a command has the same users"
    );
    assert_ne!(
        lines[1],
        fs::read_link("/proc/self/ns/user")
            .expect("reads")
            .display()
            .to_string()
    );
    let pid = init_pid(&world.container_dir(&id));
    assert_eq!(users_of(&pid, "Uid:"), [first; 4]);
    assert_eq!(users_of(&pid, "Gid:"), [first; 4]);
    assert_eq!(users_of(&pid, "Groups:"), [first]);
    for name in ["by-init", "by-exec"] {
        assert_eq!(written_by_container(&world, &id, name), (first, first), "{name}");
    }
    world.finish().await;
}

#[tokio::test]
async fn another_user_of_such_a_pod_has_no_capabilities() {
    if !can_run() {
        return;
    }
    let world = World::with(with_own_users()).await;
    let mut config = with_all_capabilities(&world, "user");
    config.security.run_as_user = Some(1234);
    config.security.run_as_group = Some(1235);
    config.security.supplemental_groups = vec![1236];
    fs::create_dir(world.shared("group")).expect("makes");
    chown(world.shared("group"), Some(0), Some(1236)).expect("changes");
    fs::set_permissions(world.shared("group"), fs::Permissions::from_mode(0o2770)).expect("changes");
    config.mounts.push(volume(&world, "group", "/group"));
    let script = "grep -E '^Cap(Eff|Prm|Inh|Amb)' /proc/self/status | cut -f2 | sort -u; id -u; id -G; \
                  touch /group/made && stat -c %u:%g /group/made; touch /x || echo refused; echo out > /dev/stdout";
    for text in run_both_ways(&world, script, &config).await {
        let text = text
            .lines()
            .map(|line| line.rsplit(' ').next().unwrap_or(line))
            .collect::<Vec<_>>();
        assert!(
            text.contains(&"0000000000000000") && !text.iter().any(|line| line.starts_with("000001f")),
            "{text:?}"
        );
        assert!(
            text.contains(&"1234") && text.contains(&"1234:1236") && text.contains(&"refused"),
            "{text:?}"
        );
        assert!(text.contains(&"out"), "{text:?}");
    }
    assert_eq!(owner(&world.shared("group/made")), (1234, 1236));
    let mut stranger = world.config("stranger", "true");
    stranger.security.run_as_user = Some(COUNT);
    let refusal = start(&world, &stranger).await.expect_err("there is no such user");
    assert!(refusal.contains("hostUsers"), "{refusal}");
    world.finish().await;
}

#[tokio::test]
async fn an_unmasked_proc_gives_such_a_pod_nothing_of_the_host() {
    if !can_run() {
        return;
    }
    let world = World::with(with_own_users()).await;
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").expect("reads");
    let mut config = with_all_capabilities(&world, "unmasked");
    config.security.unmasked_proc = true;
    let script = "grep -c ' /proc/' /proc/self/mountinfo; \
        echo '|/attack' > /proc/sys/kernel/core_pattern || echo no-core; \
        echo c > /proc/sysrq-trigger || echo no-trigger; \
        echo 1 > /proc/sys/vm/drop_caches || echo no-vm; \
        mknod /shared/disk b 254 0 || echo no-mknod; \
        mount -o remount,rw /sys || echo no-remount; \
        mount -t tmpfs none /mnt && echo own-mount; \
        hostname other && hostname; \
        cat /proc/kcore > /dev/null || echo no-kcore; \
        echo 9 > /proc/sys/net/ipv4/ip_default_ttl && cat /proc/sys/net/ipv4/ip_default_ttl";
    for text in run_both_ways(&world, script, &config).await {
        for word in [
            "no-core",
            "no-trigger",
            "no-vm",
            "no-mknod",
            "no-remount",
            "own-mount",
            "other",
            "no-kcore",
        ] {
            assert!(text.contains(word), "{word} in {text}");
        }
        assert!(
            text.lines().next().is_some_and(|line| line.ends_with('0')),
            "nothing covers /proc: {text}"
        );
    }
    assert_eq!(
        fs::read_to_string("/proc/sys/kernel/core_pattern").expect("reads"),
        before
    );
    world.finish().await;
}

#[tokio::test]
async fn masks_stay_also_for_who_may_mount() {
    if !can_run() {
        return;
    }
    let world = World::with(with_own_users()).await;
    let config = with_all_capabilities(&world, "mounts");
    let script = "wc -c < /proc/kcore; umount /proc/kcore || echo kept-file; umount /proc/scsi || umount /proc/acpi || echo kept-directory; \
        umount -l /proc || echo kept-proc; mount -o remount,bind,rw /proc/sys || echo kept-read-only; \
        unshare -m sh -c 'umount /proc/kcore || echo kept-again'; \
        mkdir /p && mount -t proc proc /p && wc -c < /p/kcore || echo no-second-proc; true";
    for text in run_both_ways(&world, script, &config).await {
        for word in [
            "kept-file",
            "kept-directory",
            "kept-proc",
            "kept-read-only",
            "kept-again",
            "no-second-proc",
        ] {
            assert!(text.contains(word), "{word} in {text}");
        }
    }
    world.finish().await;
}

#[tokio::test]
async fn a_privileged_container_has_no_rights_on_the_hosts_devices_and_files() {
    if !can_run() {
        return;
    }
    let world = World::with(with_own_users()).await;
    // What is mounted below a volume keeps the host's owners.
    let below = world.shared("below");
    fs::create_dir(&below).expect("makes");
    mount("tmpfs", &below, "tmpfs", MountFlags::empty(), None).expect("mounts");
    fs::write(below.join("of-root"), "before").expect("writes");
    fs::write(world.shared("far"), "before").expect("writes");
    chown(world.shared("far"), Some(4_000_000), Some(4_000_000)).expect("changes");
    let mut config = world.config("privileged", "");
    config.security.privileged = true;
    let script = "for device in /dev/vd? /dev/sd? /dev/mem /dev/kmsg; do \
            test -e $device && head -c 1 $device > /dev/null 2>&1 && echo reads-$device; done; \
        echo x > /shared/below/of-root || echo no-below; \
        echo x > /shared/far || echo no-far; \
        chown 0 /shared/far || echo no-chown; \
        echo '|/attack' > /proc/sys/kernel/core_pattern || echo no-core; \
        insmod /nothing 2> /dev/null; date -s 2001-01-01 2> /dev/null && date +%Y || echo no-date; \
        nsenter -t 1 -m -- true 2> /dev/null; echo > /dev/null && echo null";
    for text in run_both_ways(&world, script, &config).await {
        assert!(!text.contains("reads-"), "{text}");
        for word in ["no-below", "no-far", "no-chown", "no-core", "null"] {
            assert!(text.contains(word), "{word} in {text}");
        }
    }
    assert_eq!(
        fs::read_to_string(below.join("of-root")).expect("reads"),
        "before"
    );
    assert_eq!(fs::read_to_string(world.shared("far")).expect("reads"), "before");
    unmount(&below, UnmountFlags::DETACH).expect("unmounts");
    world.finish().await;
}

#[tokio::test]
async fn a_file_system_that_does_not_map_owners_is_refused() {
    if !can_run() {
        return;
    }
    let world = World::with(with_own_users()).await;
    let mut config = world.config("sys", "true");
    let mut sys = volume(&world, "none", "/host-sys");
    sys.host_path = "/sys".into();
    config.mounts.push(sys);
    let refusal = start(&world, &config).await.expect_err("cannot be shown");
    assert!(
        refusal.contains("/sys") && refusal.contains("hostUsers"),
        "{refusal}"
    );
    world.finish().await;
}

#[tokio::test]
async fn every_pod_has_other_users_also_after_the_agent_was_killed() {
    if !can_run() {
        return;
    }
    let mut world = World::with(with_own_users()).await;
    let mut ids = vec![world.sandbox.clone()];
    for name in ["b", "c"] {
        ids.push(world.add_sandbox(name, with_own_users()).await);
    }
    let container = world.run("exec sleep 1000").await;
    let firsts = |world: &World, ids: &[pulselet_runtime::SandboxId]| -> Vec<u32> {
        ids.iter().map(|id| first_user(world, id.as_str())).collect()
    };
    let given = firsts(&world, &ids);
    for (index, first) in given.iter().enumerate() {
        assert!(*first >= 1 << 30 && first % COUNT == 0, "{given:?}");
        assert!(
            given[..index].iter().all(|other| other.abs_diff(*first) >= COUNT),
            "{given:?}"
        );
    }
    world = world.reopen().await;
    assert_eq!(firsts(&world, &ids), given);
    let later = world.add_sandbox("d", with_own_users()).await;
    assert!(!given.contains(&first_user(&world, later.as_str())));
    let (_, output) = world.exec(&container, "cat /proc/self/uid_map").await;
    assert_eq!(
        output.split_whitespace().nth(1),
        Some(given[0].to_string().as_str())
    );
    world.runtime.remove_sandbox(&ids[1]).await.expect("is removed");
    let again = world.add_sandbox("e", with_own_users()).await;
    assert_eq!(
        first_user(&world, again.as_str()),
        given[1],
        "the range was given back"
    );
    world.finish().await;
}

#[tokio::test]
async fn pods_that_share_their_processes_share_their_users() {
    if !can_run() {
        return;
    }
    let mut config = with_own_users();
    config.namespaces.pid = PidNamespace::Pod;
    let world = World::with(config).await;
    let first = first_user(&world, world.sandbox.as_str());
    let quiet = world.run_config(&world.config("quiet", "exec sleep 1000")).await;
    let strong = with_all_capabilities(&world, "strong");
    let script = "readlink /proc/1/root /proc/1/exe /proc/1/cwd; ls /proc/1/root; ls /proc/1/fd; \
        cat /proc/*/environ 2> /dev/null | tr '\\0' '\\n' | grep -c CARGO_MANIFEST_DIR; \
        for link in /proc/[0-9]*/ns/user; do readlink $link; done | sort -u | wc -l";
    for text in run_both_ways(&world, script, &strong).await {
        assert!(
            text.lines().last().is_some_and(|line| line.ends_with('1')),
            "one user namespace: {text}"
        );
        assert!(!text.contains("etc"), "{text}");
    }
    let pid = init_pid(&world.container_dir(&quiet));
    assert_eq!(users_of(&pid, "Uid:"), [first; 4]);
    world.finish().await;
}

#[tokio::test]
async fn namespaces_of_the_pod_belong_to_its_users() {
    if !can_run() {
        return;
    }
    let world = World::with(with_own_users()).await;
    let config = with_all_capabilities(&world, "network");
    let script = "ip link add dummy0 type dummy 2> /dev/null; ip addr replace 192.0.2.7/32 dev lo && echo address; \
        hostname changed && hostname; ls /dev/mqueue && stat -c %u:%a /dev/mqueue /dev/shm; \
        touch /dev/shm/x && stat -c %u /dev/shm/x; script -qc 'stat -c %u:%g $(tty)' /dev/null";
    for text in run_both_ways(&world, script, &config).await {
        for word in ["address", "changed", "0:1777", "0:5"] {
            assert!(text.contains(word), "{word} in {text}");
        }
    }
    assert_ne!(
        fs::read_to_string("/proc/sys/kernel/hostname")
            .expect("reads")
            .trim(),
        "changed"
    );
    world.finish().await;
}

#[tokio::test]
async fn images_of_several_layers_belong_to_the_pods_users() {
    let Some(busybox) = busybox().filter(|_| can_run()) else {
        return;
    };
    let world = World::with(with_own_users()).await;
    let top = {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(3);
        header.set_mode(0o600);
        header.set_uid(33);
        header.set_gid(34);
        tar.append_data(&mut header, "srv/page", &b"old"[..])
            .expect("fits");
        tar.into_inner().expect("is complete")
    };
    load(
        world.home.path(),
        "layers:1",
        &[base_layer(&busybox), top],
        &json!({"User": "web"}),
    );
    let mut config = restricted(&world, "web", "");
    config.image = "layers:1".into();
    config.image_id = String::new();
    config.security.read_only_root = false;
    let script = "id; ls -ln /srv/page; cat /srv/page; echo new > /srv/page && cat /srv/page; echo x > /etc/passwd || echo refused";
    for text in run_both_ways(&world, script, &config).await {
        for word in ["uid=33", "33       34", "old", "new", "refused"] {
            assert!(text.contains(word), "{word} in {text}");
        }
    }
    world.finish().await;
}

/// What hides files of the kernel is locked there, and has to come along.
#[tokio::test]
async fn a_container_of_such_a_pod_can_see_the_processes_of_another() {
    if !can_run() {
        return;
    }
    let world = World::with(with_own_users()).await;
    let first = world.run("echo up > /shared/up; exec sleep 4715").await;
    world.file("up").await;
    let script = "tr '\\0' ' ' < /proc/1/cmdline; wc -c < /proc/timer_list; \
                  ( echo x > /proc/sys/kernel/core_pattern ) 2>/dev/null && echo written; true";
    let mut config = world.config("second", script);
    config.pid_target = Some(first);
    let output = world.output_of(&config).await;
    assert_eq!(
        output.split_whitespace().collect::<Vec<_>>(),
        ["sleep", "4715", "0"]
    );
    world.finish().await;
}
