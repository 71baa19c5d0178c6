//! Rules and settings of the pods' network that other programs remove while pods run. Each test has a network namespace of
//! its own, in which nothing of the machine is touched.

use std::{
    fs,
    io::Write as _,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use pulselet_runtime::{
    ContainerId, ContainerState, Events, NetworkPart, Protocol, Runtime as _, RuntimeEvent, SandboxId,
};
use pulselet_runtime_oci::PodNetwork;
use pulselet_sys::unshare_namespaces;
use rustix::thread::UnshareFlags;

use crate::bridge_guard::{gateway, python, received, with_host_port};
use crate::network::{ask, free_port, server};
use crate::services::{ask_from, by_tcp, ensure_route, route, service};
use crate::world::{World, address_of, can_run, eventually, network_for, on_bridge};

const IP_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

/// A port of the machine that leads to the service.
const NODE_PORT: u16 = 30_080;

/// Runs a test in a network namespace of its own, in which nothing was forwarded before.
fn in_own_network<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send) {
    if !can_run() {
        return;
    }
    let run = || {
        unshare_namespaces(UnshareFlags::NEWNET).expect("has a namespace");
        run("ip", &["link", "set", "lo", "up"]);
        fs::write(IP_FORWARD, "0").expect("is set");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("starts").block_on(test());
        // Other agents of the machine share what is there for namespaces that go on.
        let number = fs::metadata("/proc/thread-self/ns/net").expect("is there").ino();
        let _ = fs::remove_dir_all(Path::new("/run/pulselet/forwarding").join(number.to_string()));
    };
    std::thread::scope(|scope| scope.spawn(run).join().expect("does not panic"));
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().expect("runs");
    assert!(status.success(), "{program} {arguments:?}");
}

fn nft(command: &str) {
    run("nft", &[command]);
}

fn read(path: &str) -> String {
    fs::read_to_string(path).expect("reads").trim().to_owned()
}

/// A pod with a port of the host that is also behind a service, and another pod.
struct Pods {
    world: World,
    second: SandboxId,
    server: ContainerId,
    pod: IpAddr,
    port: u16,
    bridge: String,
    events: Events,
    network: PodNetwork,
}

impl Pods {
    async fn new() -> Self {
        let port = free_port();
        let world = World::with(with_host_port(port)).await;
        let events = world.runtime.events();
        let second = world.add_sandbox("second", on_bridge()).await;
        let mut config = world.config("one", "");
        config.command = server("one", 8000);
        let server = world.run_config(&config).await;
        world.file("up-one").await;
        let pod = address_of(&world, &world.sandbox).await;
        let address = service(pod);
        let network = world.runtime.pod_network().expect("there are no plugins");
        let mut open = route(address, Protocol::Tcp, &[pod]);
        open.node_port = Some(NODE_PORT);
        network.set_services(vec![open]).expect("nft takes it");
        ensure_route(address, pod);
        let pods = Self {
            bridge: network_for(world.home.path()).bridge,
            world,
            second,
            server,
            pod,
            port,
            events,
            network,
        };
        assert!(pods.can_be_reached());
        pods
    }

    /// By the port of the host, by that of the service, and at the service's address.
    fn can_be_reached(&self) -> bool {
        let addresses = [
            SocketAddr::from(([127, 0, 0, 1], self.port)),
            SocketAddr::from(([127, 0, 0, 1], NODE_PORT)),
            SocketAddr::from((service(self.pod), 80)),
        ];
        // Without the rules nothing answers at some of them.
        let connects = |address: &SocketAddr| {
            let timeout = std::time::Duration::from_millis(500);
            std::net::TcpStream::connect_timeout(address, timeout).is_ok()
        };
        let answers = |address: SocketAddr| ask(address).is_ok_and(|answer| answer == "one");
        addresses.iter().all(connects) && addresses.into_iter().all(answers)
    }

    async fn until_reached(&self) {
        eventually("the pod is reached again", async || {
            self.can_be_reached().then_some(())
        })
        .await;
    }

    /// Waits until these parts were restored, whatever else was.
    async fn until_restored(&mut self, parts: &[NetworkPart]) {
        let mut missing = parts.to_vec();
        while !missing.is_empty() {
            let part = self.next_restored().await;
            missing.retain(|missing| *missing != part);
        }
    }

    async fn next_restored(&mut self) -> NetworkPart {
        let next = async {
            loop {
                if let Some(RuntimeEvent::NetworkRestored(part)) = self.events.next().await {
                    return part;
                }
            }
        };
        let next = tokio::time::timeout(crate::world::FOREVER, next).await;
        next.expect("something is restored")
    }

    fn routes_loopback(&self) -> bool {
        read(&format!("/proc/sys/net/ipv4/conf/{}/route_localnet", self.bridge)) == "1"
    }

    fn table(&self) -> String {
        format!("pulselet_{}", self.bridge)
    }

    fn has_guard(&self) -> bool {
        let table = self.table();
        let listed = Command::new("nft")
            .args(["list", "chain", "ip", &table, "guard"])
            .output();
        let text = String::from_utf8_lossy(&listed.expect("runs").stdout).into_owned();
        text.contains("hook prerouting") && text.contains("127.0.0.0/8 drop")
    }

    /// Sends from the pod to an address of loopback, and to the bridge to know that it has come.
    async fn reaches_loopback(&self) -> bool {
        let (gateway, mac) = gateway(&self.world).await;
        let pod = self.pod;
        let secret = UdpSocket::bind("127.0.0.1:0").expect("binds");
        let open = UdpSocket::bind((gateway, 0)).expect("binds");
        let [secret_port, open_port] =
            [&secret, &open].map(|socket| socket.local_addr().expect("has one").port());
        let script = format!(
            "udp({mac}, '{pod}', '127.0.0.1', {secret_port}, b'in')\n\
             udp({mac}, '{pod}', '{gateway}', {open_port}, b'done')"
        );
        let id = self.world.run_config(&python(&self.world, &script)).await;
        assert_eq!(self.world.wait_for_exit(&id).await.code, 0);
        assert_eq!(received(&open).as_deref(), Some(&b"done"[..]));
        received(&secret).is_some()
    }

    async fn finish(self) {
        let state = self.world.status(&self.server).await.state;
        assert!(matches!(state, ContainerState::Running { .. }), "{state:?}");
        self.world.finish().await;
        assert_eq!(read(IP_FORWARD), "0", "the machine is as it was");
    }
}

#[test]
fn tables_come_back_after_a_flush_of_all_rules() {
    in_own_network(|| async {
        let mut pods = Pods::new().await;
        nft("flush ruleset");
        pods.until_reached().await;
        pods.until_restored(&[
            NetworkPart::Firewall,
            NetworkPart::Services,
            NetworkPart::Forwarding,
        ])
        .await;
        assert!(pods.has_guard() && pods.routes_loopback());
        assert!(
            !pods.reaches_loopback().await,
            "a pod reached 127.0.0.1 of the host"
        );
        let how = by_tcp(service(pods.pod), 80);
        let heard = ask_from(&pods.world, &pods.second, "from-second", &how).await;
        assert_eq!(heard, "one");
        run("nft", &["list", "table", "ip", "pulselet_forwarding"]);
        pods.finish().await;
    });
}

#[test]
fn changed_chains_and_sets_come_back() {
    in_own_network(|| async {
        let mut pods = Pods::new().await;
        let table = pods.table();
        nft(&format!("delete chain ip {table} guard"));
        pods.until_restored(&[NetworkPart::Firewall]).await;
        assert!(pods.has_guard() && pods.routes_loopback());
        nft(&format!("flush chain ip {table} ports"));
        pods.until_restored(&[NetworkPart::Firewall]).await;
        nft(&format!("flush map ip {table}_services addresses"));
        pods.until_restored(&[NetworkPart::Services]).await;
        nft("add chain ip pulselet_forwarding forward { policy accept; }");
        pods.until_restored(&[NetworkPart::Forwarding]).await;
        assert!(pods.can_be_reached());
        pods.finish().await;
    });
}

/// Takes a table, so that no other program can change it until this one ends.
fn seize(table: &str) -> Child {
    let mut child = Command::new("nft")
        .arg("-i")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("runs");
    let script = format!("delete table ip {table}; add table ip {table} {{ flags owner; }}\n");
    let stdin = child.stdin.as_mut().expect("is a pipe");
    stdin.write_all(script.as_bytes()).expect("is written");
    child
}

#[test]
fn loopback_is_not_routed_without_its_guard() {
    in_own_network(|| async {
        let pods = Pods::new().await;
        assert!(pods.has_guard() && pods.routes_loopback());
        let mut owner = seize(&pods.table());
        eventually("loopback is not routed", async || {
            (!pods.routes_loopback()).then_some(())
        })
        .await;
        assert!(!pods.has_guard());
        // A pod that comes meanwhile changes nothing.
        let config = with_host_port(free_port());
        let error = pods
            .world
            .runtime
            .run_sandbox(&config)
            .await
            .expect_err("has no ports");
        assert!(error.to_string().contains("nftables"), "{error}");
        assert!(!pods.routes_loopback());
        // Where others have loopback routed on all links, the pod's own lets nothing through.
        fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").expect("is set");
        assert!(
            !pods.reaches_loopback().await,
            "a pod reached 127.0.0.1 of the host"
        );
        owner.kill().expect("is killed");
        owner.wait().expect("has ended");
        pods.until_reached().await;
        assert!(pods.has_guard() && pods.routes_loopback());
        pods.finish().await;
    });
}

#[test]
fn nothing_is_forwarded_without_its_limit() {
    in_own_network(|| async {
        let mut pods = Pods::new().await;
        let mut owner = seize("pulselet_forwarding");
        eventually("nothing is forwarded", async || {
            (read(IP_FORWARD) == "0").then_some(())
        })
        .await;
        owner.kill().expect("is killed");
        owner.wait().expect("has ended");
        pods.until_restored(&[NetworkPart::Forwarding]).await;
        assert_eq!(read(IP_FORWARD), "1");
        pods.finish().await;
    });
}

#[test]
fn forwarding_and_settings_of_the_bridge_come_back() {
    in_own_network(|| async {
        let mut pods = Pods::new().await;
        fs::write(IP_FORWARD, "0").expect("is set");
        pods.until_restored(&[NetworkPart::Forwarding]).await;
        assert_eq!(read(IP_FORWARD), "1");
        let settings = format!("/proc/sys/net/ipv4/conf/{}", pods.bridge);
        for (setting, others, ours) in [("route_localnet", "0", "1"), ("rp_filter", "0", "1")] {
            let path = format!("{settings}/{setting}");
            fs::write(&path, others).expect("is set");
            pods.until_restored(&[NetworkPart::Bridge]).await;
            assert_eq!(read(&path), ours, "{setting}");
        }
        pods.finish().await;
    });
}

#[test]
fn changes_of_the_agent_and_of_other_tables_restore_nothing() {
    in_own_network(|| async {
        let mut pods = Pods::new().await;
        nft("add table ip others { chain input { type filter hook input priority 0; }; }");
        let address = service(pods.pod);
        for port in 1..20 {
            let mut open = route(address, Protocol::Tcp, &[pods.pod]);
            open.node_port = Some(NODE_PORT + port);
            pods.network.set_services(vec![open]).expect("nft takes it");
            let third = pods.world.add_sandbox("third", with_host_port(free_port())).await;
            pods.world
                .runtime
                .remove_sandbox(&third)
                .await
                .expect("is removed");
        }
        nft("delete table ip others");
        // Comes after everything that the changes could have caused.
        let path = format!("/proc/sys/net/ipv4/conf/{}/rp_filter", pods.bridge);
        fs::write(path, "0").expect("is set");
        assert_eq!(pods.next_restored().await, NetworkPart::Bridge);
        pods.finish().await;
    });
}
