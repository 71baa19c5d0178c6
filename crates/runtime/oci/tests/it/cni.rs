//! Networks made by plugins: those that Debian has, with a bridge and a range per test.

use std::{fs, net::SocketAddr, path::Path, process::Command};

use pulselet_runtime::{PortMapping, Protocol, Runtime, RuntimeCondition, SandboxConfig};
use serde_json::json;

use crate::{
    network::{ask, free_port, server},
    world::{CNI, World, address_of, can_run, eventually, identity, network_for, on_bridge},
};

/// Where Debian has the plugins.
const PLUGINS: &str = "/usr/lib/cni";

fn can_run_plugins() -> bool {
    let there = Path::new(PLUGINS).join("bridge").exists();
    assert!(there || std::env::var_os("CI").is_none(), "there are no plugins");
    can_run() && there
}

/// The bridge that the plugin makes, and leaves.
struct Bridge(String);

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", &self.0]).output();
    }
}

/// Writes the configuration of a network whose addresses are below the world's directory.
fn configure(home: &Path) {
    let network = network_for(home);
    let list = json!({
        "cniVersion": "1.0.0",
        "name": format!("net-{}", network.bridge),
        "plugins": [
            {
                "type": "bridge",
                "bridge": bridge_name(home),
                "isGateway": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": home.join("ipam"),
                    "ranges": [[{"subnet": network.subnet.expect("has one").to_string()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    fs::create_dir(home.join(CNI)).expect("makes");
    fs::write(home.join(CNI).join("10-pods.conflist"), list.to_string()).expect("writes");
}

/// Not the name of the built-in bridge, whose traces are looked for.
fn bridge_name(home: &Path) -> String {
    network_for(home).bridge.replace("pltt", "pltc")
}

async fn world_of_plugins() -> (World, Bridge) {
    let world = World::prepared(configure).await;
    let bridge = Bridge(bridge_name(world.home.path()));
    (world, bridge)
}

/// Addresses that the plugins count as taken.
fn taken(world: &World) -> usize {
    let network = format!("net-{}", network_for(world.home.path()).bridge);
    let files = fs::read_dir(world.home.path().join("ipam").join(network));
    let is_address = |name: &str| name.parse::<std::net::IpAddr>().is_ok();
    files
        .into_iter()
        .flatten()
        .flatten()
        .filter(|file| is_address(&file.file_name().to_string_lossy()))
        .count()
}

fn with_port(port: u16) -> SandboxConfig {
    let mut config = on_bridge();
    config.port_mappings.push(PortMapping {
        protocol: Protocol::Tcp,
        container_port: 8000,
        host_port: port,
        host_ip: None,
    });
    config
}

#[tokio::test]
async fn plugins_give_pods_addresses_and_ports_and_take_them_back() {
    if !can_run_plugins() {
        return;
    }
    let (mut world, _bridge) = world_of_plugins().await;
    let port = free_port();
    world.sandbox = world.add_sandbox("pod", with_port(port)).await;
    let address = address_of(&world, &world.sandbox).await;
    let mut container = world.config("one", "");
    container.command = server("one", 8000);
    world.run_config(&container).await;
    world.file("up-one").await;
    assert_eq!(
        ask((address, 8000).into()).expect("the host reaches the pod"),
        "one"
    );
    let forwarded = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(ask(forwarded).expect("is forwarded"), "one");
    let hosts = world.output_of(&world.config("two", "grep pod /etc/hosts")).await;
    assert_eq!(hosts, format!("{address}\tpod"));
    assert_eq!(taken(&world), 1);
    world.runtime.stop_sandbox(&world.sandbox).await.expect("stops");
    assert_eq!(taken(&world), 0);
    let gone = eventually("the port is closed", async || ask(forwarded).err()).await;
    assert_eq!(gone.kind(), std::io::ErrorKind::ConnectionRefused);
    world.finish().await;
}

#[tokio::test]
async fn the_next_agent_keeps_networks_and_removes_them_as_they_were_made() {
    if !can_run_plugins() {
        return;
    }
    let (mut world, _bridge) = world_of_plugins().await;
    world.sandbox = world.add_sandbox("pod", on_bridge()).await;
    let address = address_of(&world, &world.sandbox).await;
    let agentless = world.leave();
    // An administrator changes the network meanwhile, and even goes back to the built-in one.
    fs::remove_dir_all(agentless.path().join(CNI)).expect("removes");
    let world = agentless.come_back().await;
    assert_eq!(address_of(&world, &world.sandbox).await, address);
    let second = world.add_sandbox("second", on_bridge()).await;
    assert_eq!(taken(&world), 1, "the second is on the built-in bridge");
    world.runtime.remove_sandbox(&second).await.expect("removes");
    world
        .runtime
        .remove_sandbox(&world.sandbox)
        .await
        .expect("removes");
    assert_eq!(taken(&world), 0);
    world.finish().await;
}

#[tokio::test]
async fn what_a_killed_agent_left_half_made_is_taken_back_at_the_next_start() {
    if !can_run_plugins() {
        return;
    }
    let (mut world, _bridge) = world_of_plugins().await;
    world.sandbox = world.add_sandbox("pod", on_bridge()).await;
    let record = world
        .home
        .path()
        .join("root/sandboxes")
        .join(world.sandbox.as_str())
        .join("sandbox.json");
    let agentless = world.leave();
    // As if it had been killed between the last plugin and its own record.
    let text = fs::read_to_string(&record).expect("reads");
    fs::write(&record, text.replace("\"Ready\"", "\"NotReady\"")).expect("writes");
    let world = agentless.come_back().await;
    assert_eq!(taken(&world), 0);
    world.finish().await;
}

#[tokio::test]
async fn a_network_that_cannot_be_made_is_an_error_and_leaves_nothing() {
    if !can_run_plugins() {
        return;
    }
    let (world, _bridge) = world_of_plugins().await;
    let config = SandboxConfig {
        pod: identity("pod"),
        ..on_bridge()
    };
    let file = world.home.path().join(CNI).join("10-pods.conflist");
    let good = fs::read_to_string(&file).expect("reads");
    // The second plugin fails: the first has made its part by then.
    let no_such = good.replace("\"portmap\"", "\"no-such-plugin\"");
    let bad_value = good.replace("\"portmap\"", "\"tuning\",\"sysctl\":{\"net.no.such\":\"1\"}");
    for (text, words) in [
        (no_such, "failed to find plugin \"no-such-plugin\""),
        (bad_value, "plugin type=\"tuning\" failed (add)"),
        ("{".to_owned(), "10-pods.conflist is no CNI configuration"),
    ] {
        fs::write(&file, text).expect("writes");
        let error = world.runtime.run_sandbox(&config).await.expect_err("fails");
        assert!(error.to_string().contains(words), "{error}");
        let sandboxes = world.runtime.list_sandboxes().await.expect("lists");
        fs::write(&file, &good).expect("writes");
        for sandbox in sandboxes {
            world.runtime.remove_sandbox(&sandbox.id).await.expect("removes");
        }
        assert_eq!(taken(&world), 0, "{words}");
    }
    fs::remove_file(&file).expect("removes");
    let health = world.runtime.health().await.expect("answers");
    let RuntimeCondition::NotReady { reason, message } = health.network else {
        panic!("without a configuration there is no network");
    };
    assert_eq!(reason, "NetworkPluginNotReady");
    assert!(message.contains("no CNI configuration"), "{message}");
    world.finish().await;
}
