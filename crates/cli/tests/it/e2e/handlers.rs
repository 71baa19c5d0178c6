//! Each kind of handler against a program that speaks it.

use serde_json::{Value, json};

use super::harness::{Agent, Line, of};
use super::world::{e2e, http, port, probe, processes, with};

e2e!(every_handler_finds_its_program_well, [Process, Oci], |world| {
    let ports: Vec<u16> = (0..5).map(|_| port()).collect();
    let number = |index: usize| ports[index].to_string();
    let every_second = || json!({"periodSeconds": 1});
    let ready = |container: Value, handler: Value| {
        with(
            container,
            json!({"readinessProbe": probe(handler, every_second())}),
        )
    };
    let tls = ready(
        world.demo("https", &["--port", &number(0), "--tls"]),
        json!({"httpGet": {"port": ports[0], "scheme": "HTTPS"}}),
    );
    let tcp = ready(
        world.demo("tcp", &["--port", &number(1)]),
        json!({"tcpSocket": {"port": ports[1]}}),
    );
    let grpc = ready(
        world.demo("grpc", &["--port", &number(2)]),
        json!({"grpc": {"port": ports[2]}}),
    );
    let exec = ready(
        world.demo("exec", &["--port", &number(3)]),
        json!({"exec": {"command": ["sh", "-c", "exit 0"]}}),
    );
    let mut named = ready(
        world.demo("named", &["--port", &number(4)]),
        json!({"httpGet": {"port": "web", "path": "/ready?now", "httpHeaders": [{"name": "Host", "value": "x"}]}}),
    );
    named["ports"] = json!([{"name": "web", "containerPort": ports[4]}]);
    let mut agent = world.run(&json!({"containers": [tls, tcp, grpc, exec, named]}));
    agent.until_is("", "ready");
    agent.interrupt();
});

e2e!(every_handler_notices_when_it_is_not, [Process], |world| {
    let ports: Vec<u16> = (0..4).map(|_| port()).collect();
    let number = |index: usize| ports[index].to_string();
    let once = || json!({"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 1});
    let fails =
        |container: Value, handler: Value| with(container, json!({"readinessProbe": probe(handler, once())}));
    let status = fails(
        world.demo("status", &["--port", &number(0), "--fail-at", "0s"]),
        json!({"httpGet": {"port": ports[0]}}),
    );
    let hangs = fails(
        world.demo("hangs", &["--port", &number(1), "--deadlock-at", "0s"]),
        json!({"httpGet": {"port": ports[1]}}),
    );
    let grpc = fails(
        world.demo("grpc", &["--port", &number(2), "--fail-at", "0s"]),
        json!({"grpc": {"port": ports[2]}}),
    );
    let tcp = fails(world.demo("tcp", &[]), json!({"tcpSocket": {"port": ports[3]}}));
    let exec = fails(
        world.demo("exec", &[]),
        json!({"exec": {"command": ["sh", "-c", "echo too bad; exit 3"]}}),
    );
    let mut agent = world.run(&json!({"containers": [status, hangs, grpc, tcp, exec]}));
    for (container, text) in [
        ("status", "HTTP probe failed with statuscode: 503"),
        ("hangs", "context deadline exceeded"),
        ("grpc", "NOT_SERVING"),
        ("tcp", "connection refused"),
        ("exec", "too bad"),
    ] {
        let fits = |line: &Line| line["container"] == container && line["counted"] == true;
        let known = agent
            .seen
            .iter()
            .find(|line| line["type"] == "probe" && fits(line))
            .cloned();
        let line = known
            .unwrap_or_else(|| agent.until("a counted probe", |line| line["type"] == "probe" && fits(line)));
        assert_eq!(line["outcome"], "failure", "{line:?}");
        let detail = line["detail"].as_str().unwrap();
        assert!(detail.contains(text), "{container}: {detail}");
        assert!(!detail.contains("not well"), "the body is nobody's business");
    }
    let ended = agent.interrupt();
    assert_eq!(ended.count("", "ready"), 0);
});

e2e!(
    a_redirect_to_another_host_is_a_warning_and_counts_as_success,
    [Process],
    |world| {
        let port = port();
        let app = with(
            world.demo(
                "app",
                &[
                    "--port",
                    &port.to_string(),
                    "--redirect-to",
                    "http://elsewhere.invalid/",
                ],
            ),
            json!({"readinessProbe": http(port, json!({"periodSeconds": 1}))}),
        );
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "probe:readiness:warning");
        agent.until_is("app", "ready");
        agent.interrupt();
    }
);

e2e!(the_agents_own_proxy_is_not_used, [Process], |world| {
    let port = port();
    let app = with(
        world.demo("app", &["--port", &port.to_string()]),
        json!({"readinessProbe": http(port, json!({"periodSeconds": 1}))}),
    );
    let file = world.manifest("web", &json!({"containers": [app]}));
    let mut command = world.command("run");
    command.arg(file).args(["--runtime", "process", "-o", "json"]);
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        command.env(name, "http://127.0.0.1:1");
    }
    let mut agent = Agent::start(command);
    agent.until_is("app", "ready");
    agent.interrupt();
});

e2e!(
    an_exec_probe_that_takes_too_long_is_killed_with_all_its_children,
    [Process, Oci],
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
        assert!(line["detail"].as_str().unwrap().contains("timed out"), "{line:?}");
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
