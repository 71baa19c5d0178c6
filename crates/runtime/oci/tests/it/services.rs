//! The addresses of services, as pods and the host use them.

use std::{
    collections::BTreeSet,
    fmt::Display,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    process::Command,
};

use pulselet_runtime::{BackendChoice, Protocol, SandboxId, ServiceRoute};
use pulselet_runtime_oci::PodNetwork;
use pulselet_services::ServiceCatalog;
use serde_json::{Value, json};

use crate::network::{ask, server};
use crate::world::{World, address_of, can_run, network_for, on_bridge};

/// The address of a service: of no machine, and of no other test, as the addresses of its pods are.
pub(crate) fn service(pod: IpAddr) -> Ipv4Addr {
    match pod {
        IpAddr::V4(pod) => {
            let [_, second, third, _] = pod.octets();
            Ipv4Addr::new(10, 43, second, third)
        }
        IpAddr::V6(_) => panic!("pods have IPv4 addresses first"),
    }
}

pub(crate) fn route(address: Ipv4Addr, protocol: Protocol, backends: &[IpAddr]) -> ServiceRoute {
    let backend = |address: &IpAddr| match address {
        IpAddr::V4(address) => SocketAddrV4::new(*address, 8000),
        IpAddr::V6(_) => panic!("pods have IPv4 addresses first"),
    };
    ServiceRoute {
        address,
        protocol,
        port: 80,
        node_port: None,
        backends: backends.iter().map(backend).collect(),
        choice: BackendChoice::Random,
    }
}

fn tables(world: &World) -> Vec<String> {
    let output = Command::new("nft")
        .args(["list", "tables"])
        .output()
        .expect("runs");
    let bridge = network_for(world.home.path()).bridge.replace('-', "_");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.contains(&bridge))
        .map(str::to_owned)
        .collect()
}

/// Two pods that answer with their own names at port 8000, both ways, and what they are reached by.
async fn two_pods() -> (World, SandboxId, [IpAddr; 2], PodNetwork) {
    let world = World::with(on_bridge()).await;
    let second = world.add_sandbox("second", on_bridge()).await;
    let addresses = [
        address_of(&world, &world.sandbox).await,
        address_of(&world, &second).await,
    ];
    for (sandbox, word) in [(&world.sandbox, "one"), (&second, "two")] {
        let mut config = world.config(word, "");
        config.command = server(word, 8000);
        world.run_in(sandbox, &config).await;
        world.file(&format!("up-{word}")).await;
    }
    let network = world.runtime.pod_network().expect("there are no plugins");
    (world, second, addresses, network)
}

/// What the host sends to a service is sent to a pod only after a route for it was found: there must be one, to wherever. A
/// machine without a network has none.
pub(crate) fn ensure_route(address: Ipv4Addr, pod: IpAddr) {
    let ip = |arguments: &[&str]| {
        let output = Command::new("ip").args(arguments).output();
        output.expect("ip runs").status.success()
    };
    let (address, pod) = (address.to_string(), pod.to_string());
    if !ip(&["route", "get", &address]) {
        assert!(ip(&["route", "add", &address, "via", &pod]), "a route is made");
    }
}

/// What a pod hears from an address and port.
pub(crate) async fn ask_from(world: &World, sandbox: &SandboxId, name: &str, how: &str) -> String {
    let script = format!("import socket\n{how}\nopen('/shared/{name}','wb').write(answer+b'\\n')");
    let mut client = world.config(name, "");
    client.command = vec!["python3".into(), "-c".into(), script];
    world.run_in(sandbox, &client).await;
    world.file(name).await
}

pub(crate) fn by_tcp(address: impl Display, port: u16) -> String {
    format!(
        "try: answer=socket.create_connection(('{address}',{port})).recv(9)\n\
         except ConnectionRefusedError: answer=b'refused'"
    )
}

#[tokio::test]
async fn a_service_leads_to_its_pods_from_pods_and_from_the_host() {
    if !can_run() {
        return;
    }
    let (world, second, [one, two], network) = two_pods().await;
    let address = service(one);
    ensure_route(address, one);
    let (of_host, of_pod) = (SocketAddr::from((address, 80)), by_tcp(address, 80));
    let set = |routes: Vec<ServiceRoute>| network.set_services(routes).expect("nft takes them");
    set(vec![route(address, Protocol::Tcp, &[one, two])]);
    let mut heard = BTreeSet::new();
    // With two backends the chance of the same answer every time is one in a power of two.
    for _ in 0..64 {
        heard.insert(ask(of_host).expect("the host reaches the service"));
    }
    assert_eq!(heard, ["one", "two"].map(str::to_owned).into());
    let mut sticky = route(address, Protocol::Tcp, &[one, two]);
    sticky.choice = BackendChoice::ByClient;
    set(vec![sticky]);
    let heard: BTreeSet<_> = (0..16).map(|_| ask(of_host).expect("answers")).collect();
    assert_eq!(heard.len(), 1, "a client keeps its pod");
    set(vec![route(address, Protocol::Tcp, &[one])]);
    assert_eq!(ask_from(&world, &second, "other", &of_pod).await, "one");
    let itself = ask_from(&world, &world.sandbox, "itself", &of_pod).await;
    assert_eq!(itself, "one", "a pod reaches itself");
    set(vec![route(address, Protocol::Tcp, &[])]);
    assert_eq!(ask_from(&world, &second, "refused", &of_pod).await, "refused");
    let refused = ask(of_host).expect_err("nobody is there");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(tables(&world).len(), 2);
    set(Vec::new());
    assert_eq!(tables(&world).len(), 1, "without services no table is left");
    set(vec![route(address, Protocol::Tcp, &[one])]);
    world.finish().await;
}

#[tokio::test]
async fn datagrams_and_ports_of_the_machine_lead_to_the_pods_of_a_service() {
    if !can_run() {
        return;
    }
    let (world, second, [one, _], network) = two_pods().await;
    let echo = "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('',8000))\n\
                open('/shared/up-udp','w').write('up\\n')\n\
                while True:\n m,a=s.recvfrom(99); s.sendto(b'echo '+m,a)";
    let mut config = world.config("udp", "");
    config.command = vec!["python3".into(), "-c".into(), echo.into()];
    world.run_config(&config).await;
    world.file("up-udp").await;
    let address = service(one);
    let mut open = route(address, Protocol::Tcp, &[one]);
    open.node_port = Some(crate::network::free_port());
    let port = open.node_port.expect("was given");
    network
        .set_services(vec![open, route(address, Protocol::Udp, &[one])])
        .expect("nft takes them");
    let by_udp = format!(
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.connect(('{address}',80)); s.send(b'hi'); answer=s.recv(9)"
    );
    assert_eq!(ask_from(&world, &second, "datagram", &by_udp).await, "echo hi");
    let local = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(ask(local).expect("the port leads to the pod"), "one");
    let by_port = by_tcp(network.gateway(), port);
    assert_eq!(ask_from(&world, &second, "port", &by_port).await, "one");
    world.finish().await;
}

/// Adds a Service of a namespace of its own name, created in that second, with the pod behind all of its ports.
fn add_service(catalog: &mut ServiceCatalog, name: &str, second: u32, spec: &Value, pod: IpAddr) {
    let created = format!("2026-01-02T03:04:{second:02}Z");
    let metadata = json!({"namespace": name, "name": name, "creationTimestamp": created});
    let ports = spec["ports"].as_array().into_iter().flatten();
    let ports: Vec<Value> = ports
        .map(|port| json!({"name": port["name"], "port": 8000}))
        .collect();
    let subsets = json!([{"addresses": [{"ip": pod}], "ports": ports}]);
    let service = json!({"metadata": metadata, "spec": spec});
    catalog.set_service(&serde_json::from_value(service).expect("a Service"));
    let endpoints = json!({"metadata": metadata, "subsets": subsets});
    catalog.set_endpoints(&serde_json::from_value(endpoints).expect("are Endpoints"));
}

#[tokio::test]
async fn services_that_conflict_take_nothing_from_others() {
    if !can_run() {
        return;
    }
    let (world, second, [one, two], network) = two_pods().await;
    let address = service(one);
    let [_, _, third, fourth] = address.octets();
    let other = Ipv4Addr::new(10, 44, third, fourth);
    ensure_route(address, one);
    ensure_route(other, one);
    let node_port = (30_000..=32_767).find(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok());
    let node_port = node_port.expect("one is free");
    let of_program = TcpListener::bind("127.0.0.1:0").expect("listens");
    let taken = of_program.local_addr().expect("has one");
    let mut catalog = ServiceCatalog::default();
    let victim = json!({"type": "NodePort", "clusterIP": address,
        "ports": [{"name": "a", "port": 80, "nodePort": node_port}]});
    let mut conflicting = victim.clone();
    conflicting["ports"] = json!([{"name": "a", "port": 80}, {"name": "b", "port": 80}]);
    let ports = json!([{"name": "a", "port": 80, "nodePort": node_port}, {"name": "b", "port": 80},
        {"name": "c", "port": 81, "nodePort": taken.port()}, {"name": "d", "port": 0}]);
    let odd = json!({"type": "NodePort", "clusterIP": other, "ports": ports});
    let without_type = json!({"type": "ClusterIP", "clusterIP": other,
        "ports": [{"name": "a", "port": 82, "nodePort": taken.port()}, {"name": "b", "port": 83, "nodePort": node_port}]});
    // By name the others come before it.
    add_service(&mut catalog, "victim", 1, &victim, one);
    add_service(&mut catalog, "a", 2, &conflicting, two);
    add_service(&mut catalog, "b", 3, &odd, two);
    add_service(&mut catalog, "c", 4, &without_type, two);
    network
        .set_services(catalog.routes("here"))
        .expect("nft takes them");
    let ask_at = |address, port| ask(SocketAddr::from((address, port))).expect("answers");
    for _ in 0..8 {
        assert_eq!(ask_at(address, 80), "one");
        assert_eq!(ask_at(Ipv4Addr::LOCALHOST, node_port), "one");
    }
    assert_eq!(
        ask_from(&world, &second, "pod", &by_tcp(address, 80)).await,
        "one"
    );
    for port in 80..=83 {
        assert_eq!(ask_at(other, port), "two");
    }
    // The program's port is still the program's.
    let client = TcpStream::connect(taken).expect("reaches it");
    let (_, from) = of_program.accept().expect("comes");
    assert_eq!(from, client.local_addr().expect("has one"));
    world.finish().await;
}
