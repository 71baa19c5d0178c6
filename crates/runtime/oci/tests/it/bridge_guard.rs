//! What a pod's packets must not do to the host. The packets are made by hand: a container has `NET_RAW` by default.

use std::{
    fs, io,
    net::{IpAddr, UdpSocket},
    process::Command,
};

use pulselet_runtime::{ContainerConfig, PortMapping, Protocol, Runtime, SandboxConfig};

use crate::{
    network::free_port,
    world::{World, address_of, can_run, network_for, on_bridge},
};

/// Builds frames and sends them from the pod's link.
const FRAMES: &str = "
import socket, struct, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(('eth0', 0))
mac = link.getsockname()[4]
def total(data):
    data += b'\\0' * (len(data) % 2)
    value = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while value >> 16: value = (value & 0xffff) + (value >> 16)
    return ~value & 0xffff
def udp(target_mac, source, target, port, payload):
    body = struct.pack('!HHHH', 9999, port, 8 + len(payload), 0) + payload
    head = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(body), 1, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(target))
    head = head[:10] + struct.pack('!H', total(head)) + head[12:]
    link.send(target_mac + mac + b'\\x08\\x00' + head + body)
def advertise():
    source = socket.inet_pton(socket.AF_INET6, 'fe80::bad')
    target = socket.inet_pton(socket.AF_INET6, 'ff02::1')
    body = struct.pack('!BBHBBHII', 134, 0, 0, 64, 0, 1800, 0, 0) + bytes([1, 1]) + mac
    body += bytes([3, 4, 64, 0xc0]) + struct.pack('!III', 86400, 86400, 0) + socket.inet_pton(socket.AF_INET6, '2001:db8:bad::')
    pseudo = source + target + struct.pack('!II', len(body), 58)
    body = body[:2] + struct.pack('!H', total(pseudo + body)) + body[4:]
    link.send(b'\\x33\\x33\\0\\0\\0\\1' + mac + b'\\x86\\xdd' + struct.pack('!IHBB', 6 << 28, len(body), 58, 255) + source + target + body)
";

pub(crate) fn with_host_port(port: u16) -> SandboxConfig {
    let mut config = on_bridge();
    config.port_mappings.push(PortMapping {
        protocol: Protocol::Tcp,
        container_port: 8000,
        host_port: port,
        host_ip: None,
    });
    config
}

pub(crate) fn python(world: &World, script: &str) -> ContainerConfig {
    let mut config = world.config("main", "");
    config.command = vec!["python3".into(), "-c".into(), format!("{FRAMES}\n{script}")];
    config
}

/// The address of the bridge, and its hardware address as python has it.
pub(crate) async fn gateway(world: &World) -> (IpAddr, String) {
    let IpAddr::V4(pod) = address_of(world, &world.sandbox).await else {
        panic!("the first address is of IPv4");
    };
    let [a, b, c, _] = pod.octets();
    let mac = format!("bytes([2, 0x70, {a}, {b}, {c}, 1])");
    (IpAddr::from([a, b, c, 1]), mac)
}

/// What came, without waiting.
pub(crate) fn received(socket: &UdpSocket) -> Option<Vec<u8>> {
    socket.set_nonblocking(true).expect("is set");
    let mut buffer = [0; 64];
    match socket.recv(&mut buffer) {
        Ok(count) => Some(buffer[..count].to_vec()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_host_port_does_not_open_the_hosts_loopback_to_pods() {
    if !can_run() {
        return;
    }
    let world = World::with(with_host_port(free_port())).await;
    let (gateway, mac) = gateway(&world).await;
    let pod = address_of(&world, &world.sandbox).await;
    let secret = UdpSocket::bind("127.0.0.1:0").expect("binds");
    let open = UdpSocket::bind((gateway, 0)).expect("binds");
    let [secret_port, open_port] =
        [&secret, &open].map(|socket| socket.local_addr().expect("has one").port());
    // A frame on one link is handled before the next one: when the last is here, so would be the others.
    let script = format!(
        "for source in ('{pod}', '127.0.0.1', '192.0.2.9'):\n udp({mac}, source, '127.0.0.1', {secret_port}, b'in')\n\
         udp({mac}, '192.0.2.9', '{gateway}', {open_port}, b'spoofed')\n\
         udp({mac}, '{pod}', '{gateway}', {open_port}, b'done')"
    );
    let id = world.run_config(&python(&world, &script)).await;
    assert_eq!(world.wait_for_exit(&id).await.code, 0);
    assert_eq!(received(&secret), None, "a pod reached 127.0.0.1 of the host");
    assert_eq!(
        received(&open).as_deref(),
        Some(&b"done"[..]),
        "a pod may talk to the bridge under its own address"
    );
    world.finish().await;
}

#[tokio::test]
async fn loopback_is_routed_only_while_a_host_port_needs_it() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let bridge = network_for(world.home.path()).bridge;
    let setting = || {
        let path = format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet");
        fs::read_to_string(path).expect("reads").trim().to_owned()
    };
    assert_eq!(setting(), "0");
    let second = world.add_sandbox("second", with_host_port(free_port())).await;
    assert_eq!(setting(), "1");
    world.runtime.remove_sandbox(&second).await.expect("is removed");
    assert_eq!(setting(), "0");
    world.finish().await;
}

#[tokio::test]
async fn a_pod_does_not_become_the_hosts_router_or_another_pods() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let second = world.add_sandbox("second", on_bridge()).await;
    let bridge = network_for(world.home.path()).bridge;
    let (gateway, mac) = gateway(&world).await;
    let pod = address_of(&world, &world.sandbox).await;
    let open = UdpSocket::bind((gateway, 0)).expect("binds");
    let port = open.local_addr().expect("has one").port();
    let script = format!("advertise()\nudp({mac}, '{pod}', '{gateway}', {port}, b'done')");
    let id = world.run_config(&python(&world, &script)).await;
    assert_eq!(world.wait_for_exit(&id).await.code, 0);
    assert_eq!(received(&open).as_deref(), Some(&b"done"[..]));
    let routes = Command::new("ip")
        .args(["-6", "route", "show", "dev", &bridge])
        .output()
        .expect("runs");
    let routes = String::from_utf8_lossy(&routes.stdout).into_owned();
    assert!(
        !routes.contains("fe80::bad") && !routes.contains("2001:db8"),
        "{routes}"
    );
    let look = world.config(
        "look",
        "cat /proc/net/ipv6_route; cat /proc/net/if_inet6; echo end > /shared/end; sleep 1000",
    );
    let id = world.run_in(&second, &look).await;
    world.file("end").await;
    let (_, text) = world
        .exec(&id, "cat /proc/net/ipv6_route /proc/net/if_inet6")
        .await;
    assert!(!text.contains("0bad") && !text.contains("20010db8"), "{text}");
    world.finish().await;
}
