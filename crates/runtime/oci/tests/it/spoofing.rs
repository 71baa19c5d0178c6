//! Pods that send under the addresses of others, with frames made by hand.

use std::{net::IpAddr, process::Command};

use pulselet_runtime::{ContainerId, Runtime};

use crate::world::{World, can_run, eventually, network_for, on_bridge};

/// Sends what is asked for from the pod's link. `me` and `other` are pods as (hardware address, IPv4, IPv6).
const FRAMES: &str = r"
import socket, struct
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(('eth0', 0))
def raw(mac): return bytes.fromhex(mac.replace(':', ''))
def v6(text): return socket.inet_pton(socket.AF_INET6, text)
def total(data):
    data += b'\0' * (len(data) % 2)
    value = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while value >> 16: value = (value & 0xffff) + (value >> 16)
    return ~value & 0xffff
def udp4(mac, source, target_mac, target, text):
    body = struct.pack('!HHHH', 9999, 7000, 8 + len(text), 0) + text
    head = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(body), 1, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(target))
    head = head[:10] + struct.pack('!H', total(head)) + head[12:]
    link.send(raw(target_mac) + raw(mac) + b'\x08\x00' + head + body)
def ip6(mac, source, target_mac, target, next, body):
    link.send(raw(target_mac) + raw(mac) + b'\x86\xdd' + struct.pack('!IHBB', 6 << 28, len(body), next, 255) + v6(source) + v6(target) + body)
def checked(source, target, body, next, at):
    pseudo = v6(source) + v6(target) + struct.pack('!II', len(body), next)
    return body[:at] + struct.pack('!H', total(pseudo + body)) + body[at + 2:]
def udp6(mac, source, target_mac, target, text):
    body = struct.pack('!HHHH', 9999, 7000, 8 + len(text), 0) + text
    ip6(mac, source, target_mac, target, 17, checked(source, target, body, 17, 6))
def arp(mac, sender_mac, sender, target_mac, target):
    link.send(raw(target_mac) + raw(mac) + b'\x08\x06' + struct.pack('!HHBBH', 1, 0x800, 6, 4, 2)
        + raw(sender_mac) + socket.inet_aton(sender) + raw(target_mac) + socket.inet_aton(target))
def advertise(mac, source, target_mac, target, claimed, behind=False):
    body = struct.pack('!BBHI', 136, 0, 0, 0x60000000) + v6(claimed) + bytes([2, 1]) + raw(mac)
    body = checked(source, target, body, 58, 2)
    if behind: ip6(mac, source, target_mac, target, 0, bytes([58, 0, 1, 4, 0, 0, 0, 0]) + body)
    else: ip6(mac, source, target_mac, target, 58, body)
";

/// Listens on both kinds of addresses and writes what came from whom, until the last text comes.
const LISTEN: &str = r"
import socket
ears = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
ears.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
ears.bind(('::', 7000))
open('/shared/listening', 'w').write('yes\n')
heard = []
while 'bye4' not in heard or 'bye6' not in heard: heard.append(ears.recv(100).decode())
open('/shared/heard', 'w').write(' '.join(sorted(heard)) + '\n')
import time
time.sleep(1000)
";

struct Pod {
    container: ContainerId,
    mac: String,
    v4: String,
    v6: String,
}

async fn pod(world: &World, name: &str, program: &str) -> Pod {
    let sandbox = world.add_sandbox(name, on_bridge()).await;
    let mut config = world.config(name, "");
    config.command = vec!["python3".into(), "-c".into(), program.into()];
    let container = world.run_in(&sandbox, &config).await;
    let addresses = world
        .runtime
        .sandbox_status(&sandbox)
        .await
        .expect("is there")
        .addresses;
    let text = |wanted: fn(&IpAddr) -> bool| {
        let found = addresses.iter().find(|address| wanted(address));
        found.expect("has one").to_string()
    };
    let (_, mac) = world.exec(&container, "cat /sys/class/net/eth0/address").await;
    Pod {
        container,
        mac: mac.trim().to_owned(),
        v4: text(IpAddr::is_ipv4),
        v6: text(IpAddr::is_ipv6),
    }
}

/// Sends a text in the usual way, and returns whom the pod knows.
async fn talk(world: &World, pod: &Pod, address: &str, text: &str) -> String {
    let family = if address.contains(':') {
        "AF_INET6"
    } else {
        "AF_INET"
    };
    let send = format!(
        "python3 -c \"import socket; socket.socket(socket.{family}, socket.SOCK_DGRAM).sendto(b'{text}', ('{address}', 7000))\""
    );
    world.exec(&pod.container, &format!("{send}; ip neigh")).await.1
}

/// The hardware addresses that somebody remembers for an address.
fn neighbours(text: &str, address: &str) -> Vec<String> {
    let lines = text
        .lines()
        .filter(|line| line.split(' ').next() == Some(address));
    let mac = |line: &str| line.split("lladdr ").nth(1)?.split(' ').next().map(str::to_owned);
    lines.filter_map(mac).collect()
}

#[tokio::test]
async fn a_pod_cannot_send_under_another_pods_addresses() {
    let has_ipv6 = std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6")
        .is_ok_and(|text| text.trim() == "0");
    if !can_run() || !pulselet_testing::requires("IPv6", has_ipv6) {
        return;
    }
    let world = World::without_sandbox().await;
    let idle = "import time; time.sleep(1000)";
    let listener = pod(&world, "listener", LISTEN).await;
    let victim = pod(&world, "victim", idle).await;
    let attacker = pod(&world, "attacker", idle).await;
    world.file("listening").await;
    // They know each other as they are.
    for address in [&victim.v4, &victim.v6] {
        eventually("the listener knows the victim", async || {
            let known = talk(&world, &listener, address, "hello").await;
            (neighbours(&known, address) == [victim.mac.as_str()]).then_some(())
        })
        .await;
    }
    let Pod {
        mac: a,
        v4: a4,
        v6: a6,
        ..
    } = &attacker;
    let Pod { mac: v, v4, v6, .. } = &victim;
    let Pod {
        mac: l,
        v4: l4,
        v6: l6,
        ..
    } = &listener;
    let script = format!(
        "{FRAMES}
udp4('{a}', '{v4}', '{l}', '{l4}', b'spoof-v4')
udp4('{v}', '{a4}', '{l}', '{l4}', b'spoof-mac')
udp4('{v}', '{v4}', '{l}', '{l4}', b'spoof-both')
udp6('{a}', '{v6}', '{l}', '{l6}', b'spoof-v6')
udp6('{v}', '{v6}', '{l}', '{l6}', b'spoof-both6')
arp('{a}', '{a}', '{v4}', '{l}', '{l4}')
arp('{a}', '{v}', '{a4}', '{l}', '{l4}')
arp('{a}', '{a}', '{v4}', 'ff:ff:ff:ff:ff:ff', '{v4}')
advertise('{a}', '{a6}', '{l}', '{l6}', '{v6}')
advertise('{a}', '{v6}', '{l}', '{l6}', '{v6}')
advertise('{a}', '{a6}', '{l}', '{l6}', '{v6}', behind=True)
advertise('{a}', '{a6}', '33:33:00:00:00:01', 'ff02::1', '{v6}')
udp4('{a}', '{a4}', '{l}', '{l4}', b'end4')
udp6('{a}', '{a6}', '{l}', '{l6}', b'end6')
"
    );
    std::fs::write(world.shared("attack.py"), script).expect("writes");
    let (outcome, output) = world.exec(&attacker.container, "python3 /shared/attack.py").await;
    assert_eq!(outcome, pulselet_runtime::ExecOutcome::Exited(0), "{output}");
    // A frame of one link is handled before the next one: when the last is here, so would be the others. The bridge still
    // knows where the victim is.
    for (address, text) in [(&listener.v4, "bye4"), (&listener.v6, "bye6")] {
        talk(&world, &victim, address, text).await;
    }
    assert_eq!(world.file("heard").await.trim(), "bye4 bye6 end4 end6");
    let (_, known) = world.exec(&listener.container, "ip neigh").await;
    for address in [&victim.v4, &victim.v6] {
        assert_eq!(neighbours(&known, address), [victim.mac.as_str()], "{known}");
    }
    let bridge = network_for(world.home.path()).bridge;
    let of_host = Command::new("ip")
        .args(["neigh", "show", "dev", &bridge])
        .output();
    let of_host = String::from_utf8_lossy(&of_host.expect("runs").stdout).into_owned();
    for address in [&victim.v4, &victim.v6] {
        let known = neighbours(&of_host, address);
        assert!(!known.contains(&attacker.mac), "{of_host}");
    }
    world.finish().await;
}

#[tokio::test]
async fn a_pod_of_an_earlier_build_is_guarded_when_it_is_adopted() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let link = {
        let digits: String = world.sandbox.as_str().chars().take(12).collect();
        format!("plt{digits}")
    };
    let filters = || {
        let output = Command::new("tc")
            .args(["filter", "show", "dev", &link, "ingress"])
            .output();
        String::from_utf8_lossy(&output.expect("runs").stdout).into_owned()
    };
    assert!(filters().contains("direct-action"), "{}", filters());
    let removed = Command::new("tc")
        .args(["qdisc", "delete", "dev", &link, "clsact"])
        .status();
    assert!(removed.expect("runs").success());
    let world = world.reopen().await;
    eventually("it is guarded again", async || {
        filters().contains("direct-action").then_some(())
    })
    .await;
    world.finish().await;
}
