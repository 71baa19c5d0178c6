//! The examples, each of them a case that its fields were proposed for, mostly in a tenth of their time.

use serde_json::{Value, json};

use super::harness::{Agent, Line, in_order, of};
use super::world::{World, e2e, port};
use crate::command::{pulselet, repository};

/// Fields that count seconds.
const SECONDS: [&str; 2] = ["periodSeconds", "terminationGracePeriodSeconds"];

/// The spec of an example, as it is admitted.
fn example(name: &str) -> Value {
    let file = format!("{}/examples/{name}.yaml", repository());
    let checked = pulselet(&["check", &file, "-o", "json"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let mut line: Value = serde_json::from_str(&checked.stdout).expect("a line of JSON");
    line["pod"]["spec"].take()
}

/// Runs an example with a port of this test.
fn run(world: &World, mut spec: Value) -> Agent {
    let container = &mut spec["containers"][0];
    let port = port();
    let number = port.to_string();
    container["ports"][0]["containerPort"] = json!(port);
    let command = container["command"].as_array().expect("a command");
    let mut flags: Vec<&str> = command[2..].iter().filter_map(Value::as_str).collect();
    let place = flags.iter().position(|flag| *flag == "--port").expect("a port");
    flags[place + 1] = &number;
    let mut demo = world.demo("any", &flags);
    for field in ["image", "command", "volumeMounts"] {
        container[field] = demo[field].take();
    }
    // There is no registry to ask.
    container["imagePullPolicy"] = json!("IfNotPresent");
    world.run(&spec)
}

/// The same ten times as fast: a tenth of everything, numbers of seconds rounded up.
fn hastened(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for (name, value) in fields {
                *value = match (name.as_str(), value.take()) {
                    ("command", Value::Array(words)) => words.iter().map(sooner).collect(),
                    (name, Value::Number(number)) if SECONDS.contains(&name) => {
                        json!(number.as_u64().map(|seconds| seconds.div_ceil(10)))
                    }
                    (_, value) => hastened(value),
                };
            }
        }
        Value::Array(values) => {
            for value in values {
                *value = hastened(value.take());
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    value
}

/// A word of a demo's command; a duration in a tenth of its length.
fn sooner(flag: &Value) -> String {
    let flag = flag.as_str().expect("a text");
    let number = |unit| flag.strip_suffix(unit)?.parse::<u64>().ok();
    match (number('s'), number('m')) {
        (Some(seconds), _) => format!("{}ms", seconds * 100),
        (None, Some(minutes)) => format!("{}s", minutes * 6),
        (None, None) => flag.to_owned(),
    }
}

/// The runs of the counted failures of a probe.
fn failures(lines: &[Line], container: &str, kind: &str) -> Vec<u64> {
    let kind = format!("probe:{kind}:failure");
    of(lines, container, &kind)
        .filter(|line| line["counted"] == true)
        .filter_map(|line| line["run"].as_u64())
        .collect()
}

e2e!(a_slow_starter_has_all_the_time_its_startup_probe_gives, |world| {
    let mut agent = run(world, hastened(example("slow-starter")));
    agent.until_is("", "ready");
    agent.sooner_or_later("liveness", |line| line.is("app", "probe:liveness:success"));
    let ended = agent.interrupt();
    assert!(
        failures(&ended.seen, "app", "startup").len() >= 3,
        "{}",
        ended.transcript()
    );
    in_order(
        &ended.seen,
        &[("app", "started"), ("app", "probe:liveness:success")],
    );
    assert_eq!(ended.count("app", "killing:startupProbe"), 0);
});

e2e!(
    one_probe_with_two_thresholds_waits_for_the_first_success,
    |world| {
        let mut agent = run(world, hastened(example("initialization-threshold")));
        agent.until_is("app", "probe:liveness:success");
        let ended = agent.interrupt();
        let runs = failures(&ended.seen, "app", "liveness");
        assert!(
            runs.len() > 3,
            "more than the ordinary threshold: {}",
            ended.transcript()
        );
        assert_eq!(ended.count("app", "killing:livenessProbe"), 0);
    }
);

e2e!(
    a_controller_that_hangs_is_not_given_the_hour_it_has_to_drain,
    |world| {
        let mut agent = run(world, hastened(example("ingress-controller")));
        agent.until_is("", "ready");
        let kill = agent.until_is("controller", "killing:livenessProbe");
        assert_eq!(
            (kill["gracePeriodSeconds"].as_f64(), kill["graceFrom"].as_str()),
            (Some(6.0), Some("probe"))
        );
        assert_eq!(failures(&agent.seen, "controller", "liveness"), [1, 2, 3]);
        let exit = agent.until_is("controller", "exited:137");
        assert!(
            exit["seconds"].as_f64().is_some_and(|took| took >= 5.999),
            "{exit:?}"
        );
        agent.until_is("controller", "running:1");
        let stop = world
            .command("stop")
            .args(["web", "--grace-period", "0"])
            .status();
        assert!(stop.expect("pulselet runs").success());
        agent.finish();
    }
);

e2e!(a_waiting_request_is_asked_for_twice_a_second, |world| {
    // Its five seconds are few enough as they are.
    let mut agent = run(world, example("sub-second-readiness"));
    agent.until_is("", "ready");
    let ended = agent.interrupt();
    let ticks = failures(&ended.seen, "user-container", "readiness").len();
    assert!(
        ticks > 5,
        "a period of a second would have four: {}",
        ended.transcript()
    );
});

// Debian's containerd does not know stop signals.
e2e!(
    nginx_is_drained_by_the_signal_its_manifest_names,
    [Process, Oci, OwnCri],
    |world| {
        let mut agent = run(world, hastened(example("nginx-stop-signal")));
        agent.until_is("", "ready");
        let ended = agent.interrupt();
        in_order(&ended.seen, &[("nginx", "signal:SIGQUIT"), ("nginx", "exited:0")]);
        let exit = of(&ended.seen, "nginx", "exited").next().expect("seen");
        assert!(
            exit["seconds"].as_f64().is_some_and(|took| took >= 0.299),
            "{exit:?}"
        );
    }
);
