//! Addresses, names and ports of pods.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use pulselet_runtime::{Dns, PortMapping, Protocol, Runtime, SandboxState};

use crate::world::{World, address_of, can_run, eventually, on_bridge};

/// Answers every connection with a word, for ever.
pub(crate) fn server(word: &str, port: u16) -> Vec<String> {
    let program = format!(
        "import socket\ns=socket.create_server(('::',{port}),family=socket.AF_INET6,dualstack_ipv6=True)\nopen('/shared/up-{word}','w').write('up\\n')\n\
         while True:\n c,_=s.accept(); c.sendall(b'{word}'); c.close()"
    );
    vec!["python3".into(), "-c".into(), program]
}

pub(crate) fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Some port of the host that is free now.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    listener.local_addr().expect("has one").port()
}

#[tokio::test]
async fn pods_have_addresses_and_reach_each_other_and_the_host() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let second = world.add_sandbox("second", on_bridge()).await;
    let (one, two) = (
        address_of(&world, &world.sandbox).await,
        address_of(&world, &second).await,
    );
    assert_ne!(one, two);
    let mut config = world.config("one", "");
    config.command = server("one", 8000);
    world.run_config(&config).await;
    world.file("up-one").await;
    assert_eq!(ask((one, 8000).into()).expect("the host reaches the pod"), "one");
    let script = format!(
        "import socket; c=socket.create_connection(('{one}',8000)); open('/shared/answer','wb').write(c.recv(9)+b'\\n')"
    );
    let mut client = world.config("two", "");
    client.command = vec!["python3".into(), "-c".into(), script];
    world.run_in(&second, &client).await;
    assert_eq!(world.file("answer").await, "one");
    world.finish().await;
}

#[tokio::test]
async fn pods_reach_each_other_and_themselves_over_ipv6_too() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let second = world.add_sandbox("second", on_bridge()).await;
    let status = world.runtime.sandbox_status(&world.sandbox).await;
    let addresses = status.expect("is there").addresses;
    let Some(address) = addresses.get(1).copied() else {
        assert!(std::env::var_os("CI").is_none(), "this machine has no IPv6");
        return world.finish().await;
    };
    assert!(addresses[0].is_ipv4() && address.is_ipv6(), "{addresses:?}");
    let mut config = world.config("one", "");
    config.command = server("one", 8000);
    world.run_config(&config).await;
    world.file("up-one").await;
    assert_eq!(
        ask((address, 8000).into()).expect("the host reaches the pod"),
        "one"
    );
    for (sandbox, target) in [(&second, address.to_string()), (&world.sandbox, "::1".into())] {
        let name = format!("to-{}", target.replace(':', "-"));
        let script = format!(
            "import socket; c=socket.create_connection(('{target}',8000)); open('/shared/{name}','wb').write(c.recv(9)+b'\\n')"
        );
        let mut client = world.config(&name, "");
        client.command = vec!["python3".into(), "-c".into(), script];
        world.run_in(sandbox, &client).await;
        assert_eq!(world.file(&name).await, "one");
    }
    world.finish().await;
}

#[tokio::test]
async fn names_and_resolvers_are_the_pods() {
    if !can_run() {
        return;
    }
    let mut config = on_bridge();
    config.dns = Some(Dns {
        servers: vec!["10.0.0.10".into()],
        searches: vec!["example.local".into()],
        options: vec!["ndots:5".into()],
    });
    config
        .sysctls
        .insert("net.ipv4.ip_unprivileged_port_start".into(), "7".into());
    let world = World::with(config).await;
    let address = address_of(&world, &world.sandbox).await;
    let script = "cat /etc/hostname /etc/resolv.conf /proc/sys/net/ipv4/ip_unprivileged_port_start; grep -m1 pod /etc/hosts";
    let output = world.output_of(&world.config("main", script)).await;
    assert_eq!(
        output,
        format!("pod\nsearch example.local\nnameserver 10.0.0.10\noptions ndots:5\n7\n{address}\tpod")
    );
    world.finish().await;
}

/// What the pod answers would go to the other one directly, which waits for the host's answer: on machines that do not track
/// bridged packets the host has to stand between them.
#[tokio::test]
async fn a_port_of_the_host_leads_pods_to_each_other() {
    if !can_run() {
        return;
    }
    let port = free_port();
    let mut config = on_bridge();
    config.port_mappings.push(PortMapping {
        protocol: Protocol::Tcp,
        container_port: 8000,
        host_port: port,
        host_ip: None,
    });
    let world = World::with(config).await;
    let second = world.add_sandbox("second", on_bridge()).await;
    let mut container = world.config("one", "");
    container.command = server("one", 8000);
    world.run_config(&container).await;
    world.file("up-one").await;
    let gateway = world.runtime.pod_network().expect("a bridge").gateway();
    let script = format!(
        "import socket; c=socket.create_connection(('{gateway}',{port}),timeout=20); open('/shared/answer','wb').write(c.recv(9)+b'\\n')"
    );
    let mut client = world.config("two", "");
    client.command = vec!["python3".into(), "-c".into(), script];
    world.run_in(&second, &client).await;
    assert_eq!(world.file("answer").await, "one");
    world.finish().await;
}

#[tokio::test]
async fn a_port_of_the_host_leads_to_the_pod() {
    if !can_run() {
        return;
    }
    let port = free_port();
    let mut config = on_bridge();
    config.port_mappings.push(PortMapping {
        protocol: Protocol::Tcp,
        container_port: 8000,
        host_port: port,
        host_ip: None,
    });
    let world = World::with(config.clone()).await;
    let mut container = world.config("one", "");
    container.command = server("one", 8000);
    world.run_config(&container).await;
    world.file("up-one").await;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(ask(address).expect("is forwarded"), "one");
    config.pod = crate::world::identity("second");
    let refused = world.runtime.run_sandbox(&config).await.expect_err("is taken");
    assert!(
        refused
            .to_string()
            .contains(&format!("host port {port} is taken")),
        "{refused}"
    );
    assert_eq!(
        world.runtime.list_sandboxes().await.expect("lists").len(),
        1,
        "it left nothing"
    );
    world.runtime.stop_sandbox(&world.sandbox).await.expect("stops");
    let gone = eventually("the port is closed", async || ask(address).err()).await;
    assert_eq!(gone.kind(), std::io::ErrorKind::ConnectionRefused);
    world.finish().await;
}

#[tokio::test]
async fn a_stopped_sandbox_has_no_network_and_runs_nothing() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let id = world.run("exec sleep 1000").await;
    world.runtime.stop_sandbox(&world.sandbox).await.expect("stops");
    assert_eq!(world.wait_for_exit(&id).await.code, 137);
    let status = world
        .runtime
        .sandbox_status(&world.sandbox)
        .await
        .expect("is there");
    assert_eq!(status.state, SandboxState::NotReady);
    assert!(world.traces().is_empty(), "{:?}", world.traces());
    let refused = world
        .runtime
        .create_container(&world.sandbox, &world.config("late", "true"))
        .await;
    assert!(refused.is_err());
    world.finish().await;
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_made_leaves_nothing() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mut config = on_bridge();
    config.pod = crate::world::identity("second");
    config.sysctls.insert("net.ipv4.no_such_thing".into(), "1".into());
    let error = world.runtime.run_sandbox(&config).await.expect_err("is refused");
    assert!(error.to_string().contains("no_such_thing"), "{error}");
    config.sysctls.clear();
    config.sysctls.insert("kernel.panic".into(), "1".into());
    let error = world.runtime.run_sandbox(&config).await.expect_err("is refused");
    assert!(
        error.to_string().contains("not one that a pod may set"),
        "{error}"
    );
    assert_eq!(world.runtime.list_sandboxes().await.expect("lists").len(), 1);
    world.finish().await;
}

#[tokio::test]
async fn a_listener_on_the_host_is_reached_from_a_pod() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let gateway = {
        let text = address_of(&world, &world.sandbox).await.to_string();
        format!("{}.1", text.rsplit_once('.').expect("has dots").0)
    };
    let listener = TcpListener::bind((gateway.as_str(), 0)).expect("binds");
    let port = listener.local_addr().expect("has one").port();
    let answerer =
        std::thread::spawn(move || listener.accept().map(|(mut stream, _)| stream.write_all(b"host")));
    let script =
        format!("import socket; c=socket.create_connection(('{gateway}',{port})); print(c.recv(9).decode())");
    let mut config = world.config("main", "");
    config.command = vec!["python3".into(), "-c".into(), script];
    assert_eq!(world.output_of(&config).await, "host");
    answerer
        .join()
        .expect("does not panic")
        .expect("accepts")
        .expect("writes");
    world.finish().await;
}
