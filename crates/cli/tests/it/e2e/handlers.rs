//! Each kind of handler against a program that speaks it.

use serde_json::{Value, json};

use super::harness::{Agent, of};
use super::world::{World, e2e, port, probe, processes, with};

/// A container with a readiness probe.
fn asked(container: Value, handler: Value, fields: Value) -> Value {
    with(container, json!({"readinessProbe": probe(handler, fields)}))
}

/// A demo that answers on a port, which its probe is made for.
fn answering(world: &World, name: &str, flags: &[&str], handler: impl FnOnce(u16) -> Value) -> Value {
    let port = port();
    let fields = json!({"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 1});
    asked(world.listening(name, port, flags), handler(port), fields)
}

e2e!(every_handler_finds_its_program_well, |world| {
    let https = |port| json!({"httpGet": {"port": port, "scheme": "HTTPS"}});
    let named = port();
    let web = json!({"port": "web", "path": "/ready?now", "httpHeaders": [{"name": "Host", "value": "x"}]});
    let web = with(
        asked(
            world.listening("named", named, &[]),
            json!({"httpGet": web}),
            json!({"periodSeconds": 1}),
        ),
        json!({"ports": [{"name": "web", "containerPort": named}]}),
    );
    let containers = [
        answering(world, "https", &["--tls"], https),
        answering(world, "tcp", &[], |port| json!({"tcpSocket": {"port": port}})),
        answering(
            world,
            "grpc",
            &[],
            |port| json!({"grpc": {"port": port, "service": "s"}}),
        ),
        answering(
            world,
            "exec",
            &[],
            |_| json!({"exec": {"command": ["sh", "-c", "exit 0"]}}),
        ),
        web,
    ];
    let mut agent = world.run(&json!({"containers": containers}));
    agent.until_is("", "ready");
    agent.interrupt();
});

e2e!(every_handler_notices_when_it_is_not, |world| {
    let get = |port| json!({"httpGet": {"port": port}});
    let nobody = port();
    let containers = [
        answering(world, "status", &["--fail-at", "0s"], get),
        answering(world, "hangs", &["--deadlock-at", "0s"], get),
        answering(
            world,
            "grpc",
            &["--fail-at", "0s"],
            |port| json!({"grpc": {"port": port}}),
        ),
        answering(world, "tcp", &[], |_| json!({"tcpSocket": {"port": nobody}})),
        answering(
            world,
            "exec",
            &[],
            |_| json!({"exec": {"command": ["sh", "-c", "echo too bad; exit 3"]}}),
        ),
    ];
    let mut agent = world.run(&json!({"containers": containers}));
    for (container, text) in [
        ("status", "HTTP probe failed with statuscode: 503"),
        ("hangs", "context deadline exceeded"),
        ("grpc", "NOT_SERVING"),
        ("tcp", "connection refused"),
        ("exec", "exit code 3: too bad"),
    ] {
        let line = agent.sooner_or_later("a counted probe", |line| {
            line["type"] == "probe" && line["container"] == container && line["counted"] == true
        });
        assert_eq!(line["outcome"], "failure", "{line:?}");
        assert!(line.says(text), "{line:?}");
        assert!(!line.says("not well"), "the body is nobody's business");
    }
    let ended = agent.interrupt();
    assert_eq!(ended.count("", "ready"), 0);
});

e2e!(a_host_may_be_an_address_of_ipv6, |world| {
    if !pulselet_testing::requires("IPv6", std::net::TcpListener::bind("[::1]:0").is_ok()) {
        return;
    }
    let named = |container: Value, port: u16| {
        with(
            container,
            json!({"ports": [{"name": "web", "containerPort": port}]}),
        )
    };
    let every_second = || json!({"periodSeconds": 1});
    let ports: [u16; 2] = std::array::from_fn(|_| port());
    let get = json!({"httpGet": {"host": "::1", "port": "web"}});
    let connect = json!({"tcpSocket": {"host": "::1", "port": "web"}});
    let containers = [
        named(
            asked(world.listening("http", ports[0], &[]), get, every_second()),
            ports[0],
        ),
        named(
            asked(world.listening("tcp", ports[1], &[]), connect, every_second()),
            ports[1],
        ),
    ];
    // The loopback address that the agent has too.
    let mut agent = world.run(&json!({"containers": containers, "hostNetwork": true}));
    agent.until_is("", "ready");
    agent.interrupt();
});

e2e!(
    a_redirect_to_another_host_is_a_warning_and_counts_as_success,
    |world| {
        let flags = ["--redirect-to", "http://elsewhere.invalid/"];
        let app = answering(world, "app", &flags, |port| json!({"httpGet": {"port": port}}));
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "probe:readiness:warning");
        agent.until_is("app", "ready");
        let message = world.event("ProbeWarning");
        assert!(message.starts_with("Readiness probe warning: "), "{message}");
        agent.interrupt();
    }
);

e2e!(a_redirect_to_the_same_host_is_followed, |world| {
    let target = port();
    let address = json!({"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}});
    let url = format!("http://$(ADDRESS):{target}/");
    let get = |port| json!({"httpGet": {"port": port}});
    let app = with(
        answering(world, "app", &["--redirect-to", &url], get),
        json!({"env": [address]}),
    );
    let circle = answering(world, "circle", &["--redirect-to", "/round"], get);
    let answers = world.listening("answers", target, &["--fail-at", "2500ms"]);
    let mut agent = world.run(&json!({"containers": [app, circle, answers]}));
    agent.until_is("app", "ready");
    // What is said at the end of the way decides.
    let line = agent.until_is("app", "probe:readiness:failure");
    assert!(line.says("503"), "{line:?}");
    let line = agent.sooner_or_later("an end of the circle", |line| {
        line.is("circle", "probe:readiness:failure") && line["counted"] == true
    });
    assert!(line.says("10 redirects"), "{line:?}");
    agent.interrupt();
});

e2e!(the_agents_own_proxy_is_not_used, [Process], |world| {
    let app = world.ready_demo("app", &[]);
    let file = world.manifest("web", &json!({"containers": [app]}));
    let mut command = world.run_command(&[file]);
    command.args(["-o", "json"]);
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        command.env(name, "http://127.0.0.1:1");
    }
    let mut agent = Agent::start(command);
    agent.until_is("app", "ready");
    agent.interrupt();
});

// containerd kills the command alone; what that had started goes with the container.
e2e!(
    an_exec_probe_that_takes_too_long_is_killed_with_all_its_children,
    [Process, Oci, OwnCri],
    |world| {
        let mark = format!("31{}", port());
        let script = format!("sleep {mark} & sleep {mark} & wait");
        let slow = probe(
            json!({"exec": {"command": ["sh", "-c", script]}}),
            json!({"periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 100}),
        );
        let app = with(world.demo("app", &[]), json!({"livenessProbe": slow}));
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "probe:liveness:failure");
        let line = agent.until_is("app", "probe:liveness:failure");
        assert!(line.says("timed out"), "{line:?}");
        let sleepers = || {
            processes(|line| {
                line.starts_with(b"sleep\0") && line.windows(mark.len()).any(|it| it == mark.as_bytes())
            })
        };
        // Of the attempts that ended nothing is left; the two of the one under way may be there.
        assert!(sleepers().len() <= 2, "{:?}", sleepers());
        let ended = agent.interrupt();
        assert!(sleepers().is_empty());
        assert!(of(&ended.seen, "app", "killing:livenessProbe").next().is_none());
    }
);
