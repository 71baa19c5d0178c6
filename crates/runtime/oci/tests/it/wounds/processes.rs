//! What a process of a container inherits, and what it can reach of others.

use std::fs;

use pulselet_runtime::{AppArmor, EnvVar, Runtime};

use crate::{
    escapes::{SECRET, hide_secret, restricted, run_both_ways, start},
    world::{World, can_run, eventually, init_pid, parent_of, shell},
};

/// CVE-2022-24769, CVE-2022-29162: what is inheritable comes back with the file capabilities of a program.
#[tokio::test]
async fn no_capability_is_inheritable() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    for (name, user) in [("root", 0), ("other", 1000)] {
        let mut config = world.config(name, "");
        config.security.run_as_user = Some(user);
        let script = "grep -E '^Cap(Inh|Amb)' /proc/self/status | cut -f2";
        for output in run_both_ways(&world, script, &config).await {
            let sets: Vec<&str> = output
                .lines()
                .filter_map(|line| line.rsplit(' ').next())
                .collect();
            assert_eq!(sets, ["0000000000000000"; 2], "{name}: {output}");
        }
    }
    world.finish().await;
}

/// CVE-2022-36109, CVE-2023-25173, CVE-2022-2989: who can lay down a group gets what is closed to that group alone.
#[tokio::test]
async fn a_process_keeps_the_group_that_a_file_is_closed_to() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let file = world.shared("closed");
    fs::write(&file, SECRET).expect("writes");
    std::os::unix::fs::chown(&file, Some(0), Some(34)).expect("changes");
    rustix::fs::chmod(&file, rustix::fs::Mode::from_raw_mode(0o604)).expect("changes");
    let mut config = restricted(&world, "main", "");
    config.security.run_as_user = Some(1000);
    config.security.run_as_group = Some(34);
    // With the group as one of its further groups a process cannot lose it by taking another main group.
    let script = "cat /shared/closed 2>&1; id -G; \
         python3 -c 'import os; print(\"groups\", os.getgroups())'";
    for output in run_both_ways(&world, script, &config).await {
        assert!(!output.contains(SECRET), "{output}");
        assert!(output.contains("groups [34]"), "{output}");
    }
    world.finish().await;
}

/// CVE-2021-21334: what one container of an image was given is shown to the next.
#[tokio::test]
async fn variables_are_the_containers_own() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mut first = world.config("first", "exec sleep 1000");
    first.env.push(EnvVar {
        name: "TOKEN".into(),
        value: SECRET.into(),
    });
    let first = start(&world, &first).await.expect("starts");
    let config = world.config("second", "");
    for output in run_both_ways(&world, "env; echo end", &config).await {
        assert!(output.contains("end") && !output.contains("TOKEN"), "{output}");
        assert!(
            !output.contains("CARGO_MANIFEST_DIR"),
            "the agent's own: {output}"
        );
    }
    let (_, own) = world.exec(&first, "echo $TOKEN").await;
    assert!(own.contains(SECRET));
    world.finish().await;
}

/// CVE-2024-21626: a descriptor that was left open is a way to the host's files.
#[tokio::test]
async fn a_process_has_no_descriptors_but_its_streams() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let config = restricted(&world, "main", "");
    // The directory that is being listed is open too.
    let script = "python3 -c 'import os; print(\"open\", sorted(map(int, os.listdir(\"/proc/self/fd\"))))'";
    for output in run_both_ways(&world, script, &config).await {
        assert!(output.contains("open [0, 1, 2, 3]"), "{output}");
    }
    world.finish().await;
}

/// Tries to open the program of every process that it sees for writing, and says how that ended.
const OVERWRITE: &str = r"
import os, errno
tried = set()
open('/shared/trying', 'w').write('yes\n')
while not os.path.exists('/shared/stop'):
    for pid in filter(str.isdigit, os.listdir('/proc')):
        path = f'/proc/{pid}/exe'
        try:
            read = os.open(path, os.O_PATH)
        except OSError:
            continue
        # Of what was opened: by now the process may run another program.
        name = os.readlink(f'/proc/self/fd/{read}').replace(' ', '-')
        # A program that runs is busy, which is asked first; whether it could be written later is the mount's word.
        mount = 'read-only' if os.fstatvfs(read).f_flag & os.ST_RDONLY else 'writable'
        try:
            os.close(os.open(f'/proc/self/fd/{read}', os.O_WRONLY))
            tried.add(f'{name}:{mount}:opened')
        except OSError as error:
            tried.add(f'{name}:{mount}:{errno.errorcode[error.errno]}')
        finally:
            os.close(read)
        if name == '/':
            open('/shared/met', 'a').close()
with open('/shared/result', 'w') as out:
    out.write(' '.join(sorted(tried)) + ' end\n')
";

/// CVE-2019-5736: the program that starts a command is replaced by the container, through a process of it.
#[tokio::test]
async fn the_shims_program_cannot_be_written_through_its_processes() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mut config = world.config("main", "");
    config.command = vec!["python3".into(), "-c".into(), OVERWRITE.into()];
    config.security.capabilities.add = vec!["SYS_PTRACE".into(), "DAC_READ_SEARCH".into()];
    // A profile shows no process of a shim at all; it must not be what the program depends on.
    config.security.app_armor = Some(AppArmor::Unconfined);
    let id = start(&world, &config).await.expect("starts");
    world.file("trying").await;
    // A shim's process is there for a moment before it is the command: on a slow machine most are not met.
    eventually("a process of a shim is met", async || {
        for _ in 0..12 {
            world.exec(&id, "sleep 0.02").await;
        }
        world.shared("met").exists().then_some(())
    })
    .await;
    fs::write(world.shared("stop"), "").expect("writes");
    let result = world.file("result").await;
    // What the container runs is its own. The shim's program is mounted by itself, and so has no name but the root's.
    let shims: Vec<&str> = result.split(' ').filter(|word| word.starts_with("/:")).collect();
    let harmless = |word: &&str| word.contains(":read-only:") && !word.ends_with(":opened");
    assert!(!shims.is_empty() && shims.iter().all(harmless), "{result}");
    assert!(!result.contains("shim"), "by no other name: {result}");
    world.finish().await;
}

/// A command is asked for while its container ends: it runs in there, or not at all.
#[tokio::test]
async fn a_command_in_a_dying_container_runs_inside_or_not_at_all() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let secret = hide_secret(&world);
    for number in 0..10 {
        let config = restricted(&world, &format!("c{number}"), "exec sleep 1000");
        let id = start(&world, &config).await.expect("starts");
        let command = shell(&format!("cat {secret}; echo ran as $$"));
        let commands = async {
            let mut ran = String::new();
            while let Ok(output) = world.runtime.exec_sync(&id, &command).await {
                ran.push_str(&String::from_utf8_lossy(&output.output));
            }
            ran
        };
        let remove = async {
            tokio::time::sleep(std::time::Duration::from_millis(4 * number)).await;
            world.runtime.remove_container(&id).await.expect("removes");
        };
        let (ran, ()) = tokio::join!(commands, remove);
        assert!(!ran.contains(SECRET), "{ran}");
    }
    world.finish().await;
}

/// CVE-2020-15257: a socket that is reached by name over the network namespace, as that of containerd's shims was.
#[tokio::test]
async fn no_socket_of_a_shim_is_reached_by_way_of_the_hosts_network() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let shim = parent_of(&init_pid(&world.container_dir(&id)));
    let sockets: Vec<String> = fs::read_dir(format!("/proc/{shim}/fd"))
        .expect("lists")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            let text = link.display().to_string();
            text.strip_prefix("socket:[")?
                .strip_suffix(']')
                .map(str::to_owned)
        })
        .collect();
    assert!(!sockets.is_empty(), "it listens");
    let (_, seen) = world.exec(&id, "cat /proc/net/unix").await;
    for line in seen.lines() {
        let mut words = line.split_ascii_whitespace().skip(6);
        let (Some(inode), Some(name)) = (words.next(), words.next()) else {
            continue;
        };
        if sockets.iter().any(|socket| socket == inode) {
            // An abstract name begins so; any other is a file, which is nowhere in the container.
            assert!(!name.starts_with('@'), "{line}");
            let file = world.container_dir(&id).join("shim.sock");
            let (_, found) = world
                .exec(&id, &format!("test -e {} && echo there", file.display()))
                .await;
            assert_eq!(found, "", "{name}");
        }
    }
    world.finish().await;
}
