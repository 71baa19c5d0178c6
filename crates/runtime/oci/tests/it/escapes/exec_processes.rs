//! The class of CVE-2016-9962: a process on its way into a container, seen from inside while it still has more rights
//! than the container.

use std::fs;

use pulselet_runtime::{PidNamespace, Runtime};

use super::{SECRET, hide_secret, restricted, start};
use crate::world::{World, can_run, eventually, on_bridge};

/// Writes one line for each different process it sees, until it is told to stop: its capabilities, filter, arguments,
/// whether its network is another one, and whether its root shows the secret.
const WATCH: &str = r"
import os
seen = set()
mine = open('/proc/self/net/dev').read().count('\n')
open('/shared/watching', 'w').write('yes\n')
def read(path):
    try:
        return open(path, 'rb').read().decode(errors='replace')
    except OSError as error:
        return ''
while not os.path.exists('/shared/stop'):
    for pid in filter(str.isdigit, os.listdir('/proc')):
        status = dict(line.split(':\t', 1) for line in read(f'/proc/{pid}/status').splitlines() if ':\t' in line)
        if not status:
            continue
        net = read(f'/proc/{pid}/net/dev')
        seen.add(' '.join([
            'caps=' + status.get('CapEff', '?').strip(), 'bound=' + status.get('CapBnd', '?').strip(), 'filter=' + status.get('Seccomp', '?').strip(),
            'net=' + ('other' if net and net.count('\n') != mine else 'own'),
            'root=' + read(f'/proc/{pid}/root' + os.environ['SECRET']).strip().replace(' ', '-'),
            'env=' + ('agent' if 'CARGO_MANIFEST_DIR=' in read(f'/proc/{pid}/environ') else ''),
            'args=' + read(f'/proc/{pid}/cmdline').replace('\0', ' ').replace('\n', ' ').strip()]))
with open('/shared/result', 'w') as out:
    out.write('\n'.join(sorted(seen)) + '\nend\n')
";

/// Runs the watcher in a container that may look into processes, does something, and returns what was seen meanwhile.
async fn watch_while(world: &World, work: impl AsyncFnOnce(&pulselet_runtime::ContainerId)) -> Vec<String> {
    let secret = hide_secret(world);
    let mut config = restricted(world, "watcher", "");
    config.command = vec!["python3".into(), "-c".into(), WATCH.into()];
    config.security.capabilities.add = vec!["SYS_PTRACE".into()];
    config.env.push(pulselet_runtime::EnvVar {
        name: "SECRET".into(),
        value: secret,
    });
    let id = start(world, &config).await.expect("starts");
    world.file("watching").await;
    work(&id).await;
    fs::write(world.shared("stop"), "").expect("writes");
    let result = eventually("the watcher ends", async || {
        let text = fs::read_to_string(world.shared("result")).ok()?;
        text.ends_with("\nend\n").then_some(text)
    });
    let lines: Vec<String> = result.await.lines().map(str::to_owned).collect();
    lines[..lines.len() - 1].to_vec()
}

/// Nothing that was seen had more rights than the watcher, or showed anything of the host.
fn assert_harmless(world: &World, seen: &[String]) {
    let home = world.home.path().display().to_string();
    let secret = SECRET.replace(' ', "-");
    for line in seen {
        let field = |name: &str| {
            let mut words = line.split(' ');
            let found = words.find_map(|word| word.strip_prefix(name));
            found.unwrap_or_else(|| panic!("no {name} in {line}")).to_owned()
        };
        for set in ["caps=", "bound="] {
            let bits = u64::from_str_radix(&field(set), 16).expect("a set");
            assert_eq!(bits & !(1 << 19), 0, "more rights than SYS_PTRACE: {line}");
        }
        assert_eq!(field("filter="), "2", "not filtered: {line}");
        assert_eq!(field("net="), "own", "another network: {line}");
        assert!(!field("root=").contains(&secret), "the host's root: {line}");
        assert_eq!(field("env="), "", "the agent's environment: {line}");
        let arguments = line.split_once("args=").expect("has arguments").1;
        let of_host = arguments.contains(&home) && !arguments.contains("while not");
        assert!(!of_host, "paths of the host: {line}");
    }
}

#[tokio::test]
async fn a_command_never_shows_a_process_with_more_rights_than_the_containers() {
    if !can_run() {
        return;
    }
    for own_users in [false, true] {
        let mut config = on_bridge();
        config.namespaces.own_users = own_users;
        let world = World::with(config).await;
        let seen = watch_while(&world, async |id| {
            for _ in 0..20 {
                let (outcome, _) = world.exec(id, "sleep 0.02").await;
                assert_eq!(outcome, pulselet_runtime::ExecOutcome::Exited(0));
            }
        })
        .await;
        assert!(seen.iter().any(|line| line.ends_with("sleep 0.02")), "{seen:?}");
        assert_harmless(&world, &seen);
        world.finish().await;
    }
}

#[tokio::test]
async fn containers_that_share_processes_never_show_each_other_more_than_their_own() {
    if !can_run() {
        return;
    }
    for own_users in [false, true] {
        let mut config = on_bridge();
        config.namespaces.pid = PidNamespace::Pod;
        config.namespaces.own_users = own_users;
        let world = World::with(config).await;
        let seen = watch_while(&world, async |_| {
            for number in 0..8 {
                let config = restricted(&world, &format!("c{number}"), "exec sleep 1000");
                let id = start(&world, &config).await.expect("starts");
                world.exec(&id, "sleep 0.02").await;
                world.runtime.remove_container(&id).await.expect("removes");
            }
        })
        .await;
        assert!(seen.iter().any(|line| line.ends_with("sleep 1000")), "{seen:?}");
        assert_harmless(&world, &seen);
        world.finish().await;
    }
}
