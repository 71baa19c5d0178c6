//! Addresses that pods give back and others get: who talks to the new pod does not send to the old one.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{IpAddr, TcpStream},
    os::fd::AsFd,
    path::Path,
    process::Command,
    time::Duration,
};

use pulselet_runtime::{Runtime, SandboxId};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::world::{FEW_ADDRESSES, World, can_run, network_for, on_bridge};

/// Pods that stay: with the one beside them they leave two of a small range's addresses.
const STAYING: usize = 10;

/// Pods that come and go beside them.
const ROUNDS: usize = 50;

/// Far more than a connection to a neighbour takes, with a lost packet or two, and far less than the kernel keeps the
/// hardware address of a neighbour that it has heard of: at least fifteen seconds.
const PATIENCE: Duration = Duration::from_secs(6);

/// A hardware address that nobody has.
const NOBODY: &str = "02:00:00:00:00:01";

/// How the kernel says that a link's hardware address was set and does not change by itself.
const MAC_IS_SET: &str = "3";

fn few_addresses(home: &Path) {
    fs::write(home.join(FEW_ADDRESSES), "").expect("writes");
}

async fn addresses_of(world: &World, sandbox: &SandboxId) -> Vec<IpAddr> {
    let status = world.runtime.sandbox_status(sandbox).await;
    let addresses = status.expect("is there").addresses;
    assert!(
        addresses.len() == 2 || std::env::var_os("CI").is_none(),
        "this machine has no IPv6"
    );
    addresses
}

/// Nothing listens in an empty pod, so that its kernel refuses. What comes from a pod that is not there is silence.
#[track_caller]
fn assert_reached(address: IpAddr, when: &str) {
    let answer = TcpStream::connect_timeout(&(address, 8000).into(), PATIENCE);
    let kind = answer.map_err(|error| error.kind()).err();
    assert_eq!(
        kind,
        Some(io::ErrorKind::ConnectionRefused),
        "{address} does not answer, {when}"
    );
}

/// Whether there is the program `ip`, with which tests look at what the kernel knows and spoil it. With `CI` there has to
/// be one.
fn has_ip() -> bool {
    let found = Command::new("ip").arg("-Version").output().is_ok();
    assert!(found || std::env::var_os("CI").is_none(), "this test needs ip");
    found
}

fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.expect("the program ip runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {complaint}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn a_new_pod_is_reached_at_once_where_another_was() {
    if !can_run() {
        return;
    }
    let world = World::prepared(few_addresses).await;
    for number in 0..STAYING {
        world.add_sandbox(&format!("stays-{number}"), on_bridge()).await;
    }
    let mut seen = BTreeSet::new();
    for round in 0..ROUNDS {
        let sandbox = world.add_sandbox(&format!("comes-{round}"), on_bridge()).await;
        for address in addresses_of(&world, &sandbox).await {
            assert_reached(address, &format!("in round {round}"));
            seen.insert(address);
        }
        world.runtime.remove_sandbox(&sandbox).await.expect("removes");
    }
    assert!(seen.len() < ROUNDS, "no address was used again: {seen:?}");
    world.finish().await;
}

#[tokio::test]
async fn what_the_host_remembers_of_an_address_is_forgotten() {
    if !can_run() || !has_ip() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let bridge = network_for(world.home.path()).bridge;
    let first = world.add_sandbox("first", on_bridge()).await;
    let known = |address: &IpAddr| ip(&format!("neighbour show {address} dev {bridge}"));
    let addresses = addresses_of(&world, &first).await;
    for address in &addresses {
        assert_reached(*address, "at first");
        assert!(
            known(address).contains(&mac_of(addresses[0])),
            "{}",
            known(address)
        );
    }
    world.runtime.remove_sandbox(&first).await.expect("removes");
    for address in &addresses {
        assert_eq!(known(address), "", "is forgotten with the pod");
    }
    // The next pod's addresses are the next: as if they had been an earlier one's, with another hardware address.
    for address in next(&addresses) {
        ip(&format!(
            "neighbour add {address} dev {bridge} lladdr {NOBODY} nud reachable"
        ));
    }
    let second = world.add_sandbox("second", on_bridge()).await;
    assert_eq!(addresses_of(&world, &second).await, next(&addresses));
    for address in next(&addresses) {
        assert_reached(address, "at an address that was somebody else's");
    }
    world.finish().await;
}

fn next(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let next = |address: &IpAddr| match address {
        IpAddr::V4(address) => IpAddr::V4((address.to_bits() + 1).into()),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() + 1).into()),
    };
    addresses.iter().map(next).collect()
}

/// The hardware address that belongs to an address.
fn mac_of(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else {
        panic!("hardware addresses are made from those of IPv4");
    };
    let [a, b, c, d] = address.octets();
    format!("02:70:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Tries a connection out of a pod, as `assert_reached` does from the host.
fn assert_reaches(world: &World, sandbox: &SandboxId, address: IpAddr, when: &str) {
    let pins = world.home.path().join("root/sandboxes").join(sandbox.as_str());
    let namespace = fs::File::open(pins.join("net")).expect("is pinned");
    // A thread of its own, because its namespace changes.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("enters");
            assert_reached(address, when);
        });
    });
}

/// Replaces the bridge by one that takes its hardware address from the links in it, as earlier builds had it. Returns its
/// addresses.
fn make_old_bridge(bridge: &str) -> Vec<IpAddr> {
    let listed = ip(&format!("-oneline address show dev {bridge} scope global"));
    let ranges: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3))
        .collect();
    let ports = fs::read_dir(format!("/sys/class/net/{bridge}/brif")).expect("lists");
    let ports: Vec<_> = ports.map(|entry| entry.expect("reads").file_name()).collect();
    ip(&format!("link delete {bridge}"));
    ip(&format!("link add {bridge} up type bridge"));
    for range in &ranges {
        let nodad = if range.contains(':') { "nodad" } else { "" };
        ip(&format!("address add {range} dev {bridge} {nodad}"));
    }
    for port in ports {
        ip(&format!("link set {} master {bridge}", port.display()));
    }
    let address = |range: &&str| range.split('/').next()?.parse().ok();
    ranges.iter().filter_map(address).collect()
}

#[tokio::test]
async fn a_bridge_that_follows_its_links_is_mended_at_the_next_start() {
    if !can_run() || !has_ip() {
        return;
    }
    let world = World::with(on_bridge()).await;
    // The old bridge has the hardware address of the link to one of the pods, which answers that pod in any case.
    let second = world.add_sandbox("second", on_bridge()).await;
    let pods = [world.sandbox.clone(), second];
    let bridge = network_for(world.home.path()).bridge;
    let read = |name: &str| fs::read_to_string(format!("/sys/class/net/{bridge}/{name}")).expect("reads");
    let made = (read("address"), read("addr_assign_type"));
    let gateways = make_old_bridge(&bridge);
    assert_eq!(made.0.trim(), mac_of(gateways[0]));
    assert_eq!(made.1.trim(), MAC_IS_SET);
    assert_ne!(read("address"), made.0);
    let reach_host = |world: &World, when: &str| {
        for pod in &pods {
            for gateway in &gateways {
                assert_reaches(world, pod, *gateway, when);
            }
        }
    };
    reach_host(&world, "over the old bridge");
    let world = world.reopen().await;
    assert_eq!((read("address"), read("addr_assign_type")), made);
    reach_host(&world, "at the bridge's new hardware address");
    for pod in &pods {
        for address in addresses_of(&world, pod).await {
            assert_reached(address, "over the mended bridge");
        }
    }
    world.finish().await;
}

#[tokio::test]
async fn addresses_stay_and_are_given_in_turn() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let first = addresses_of(&world, &world.sandbox).await;
    let second = world.add_sandbox("second", on_bridge()).await;
    assert_eq!(addresses_of(&world, &second).await, next(&first));
    world.runtime.remove_sandbox(&second).await.expect("removes");
    let third = world.add_sandbox("third", on_bridge()).await;
    let expected = next(&next(&first));
    assert_eq!(addresses_of(&world, &third).await, expected);
    let world = world.reopen().await;
    assert_eq!(addresses_of(&world, &world.sandbox).await, first);
    assert_eq!(addresses_of(&world, &third).await, expected);
    let fourth = world.add_sandbox("fourth", on_bridge()).await;
    assert_eq!(
        addresses_of(&world, &fourth).await,
        next(&expected),
        "the next agent goes on after the last"
    );
    world.finish().await;
}
