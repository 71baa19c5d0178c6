//! Grace periods, where they come from, and the order in which containers go.

use serde_json::json;

use super::harness::{Line, in_order};
use super::world::{e2e, http, port, with};

fn grace(line: &Line) -> (Option<f64>, Option<&str>) {
    (line["gracePeriodSeconds"].as_f64(), line["graceFrom"].as_str())
}

e2e!(
    a_probes_own_grace_period_comes_before_the_pods,
    [Process, Oci, Containerd, OwnCri],
    |world| {
        let app = world.condemned(
            &["--ignore", "SIGTERM"],
            json!({"terminationGracePeriodSeconds": 1}),
        );
        let mut agent = world.run(&json!({"containers": [app], "terminationGracePeriodSeconds": 3600}));
        let kill = agent.until_is("app", "killing:livenessProbe");
        assert_eq!(grace(&kill), (Some(1.0), Some("probe")));
        let exit = agent.until_is("app", "exited:137");
        assert!(
            exit["seconds"].as_f64().expect("it had a signal") >= 0.999,
            "{exit:?}"
        );
        in_order(
            &agent.seen,
            &[
                ("app", "signal:SIGTERM"),
                ("app", "graceExceeded"),
                ("app", "exited:137"),
            ],
        );
        agent.until_is("app", "running:1");
        agent.signal(rustix::process::Signal::INT);
        agent.until_is("app", "killing:deleted");
        agent.signal(rustix::process::Signal::INT);
        assert_eq!(agent.finish().code, Some(130));
    }
);

e2e!(without_one_the_pods_grace_period_counts, |world| {
    let app = world.condemned(&[], json!({}));
    let mut agent = world.run(&json!({"containers": [app], "terminationGracePeriodSeconds": 9}));
    let kill = agent.until_is("app", "killing:livenessProbe");
    assert_eq!(grace(&kill), (Some(9.0), Some("pod")));
    agent.until_is("app", "running:1");
    assert_eq!(
        world.event("Killing"),
        "Container app failed liveness probe, will be restarted"
    );
    agent.interrupt();
});

e2e!(a_startup_probe_has_a_grace_period_too, |world| {
    let fields = json!({"periodSeconds": 1, "failureThreshold": 1, "terminationGracePeriodSeconds": 5});
    let app = with(
        world.demo("app", &[]),
        json!({"startupProbe": http(port(), fields)}),
    );
    let mut agent = world.run(&json!({"containers": [app], "terminationGracePeriodSeconds": 3600}));
    let kill = agent.until_is("app", "killing:startupProbe");
    assert_eq!(grace(&kill), (Some(5.0), Some("probe")));
    assert_eq!(
        world.event("Killing"),
        "Container app failed startup probe, will be restarted"
    );
    let stop = world
        .command("stop")
        .args(["web", "--grace-period", "1"])
        .status();
    assert!(stop.expect("pulselet runs").success());
    agent.finish();
});

e2e!(
    a_deletion_comes_before_a_probe_and_takes_the_pods_number,
    |world| {
        let app = world.server("app", &[], |http| {
            let fields = json!({"periodSeconds": 1, "terminationGracePeriodSeconds": 1});
            json!({"readinessProbe": http(json!({"periodSeconds": 1})), "livenessProbe": http(fields)})
        });
        let mut agent = world.run(&json!({"containers": [app], "terminationGracePeriodSeconds": 9}));
        agent.until_is("", "ready");
        let ended = agent.interrupt();
        let kill = ended.all("app", "killing").next().expect("seen");
        assert_eq!(grace(kill), (Some(9.0), Some("deletion")));
    }
);

e2e!(with_its_gate_off_the_pods_grace_period_counts, |world| {
    let app = world.condemned(&[], json!({"terminationGracePeriodSeconds": 1}));
    let spec = json!({"containers": [app], "terminationGracePeriodSeconds": 9});
    let mut agent = world.run_with(&spec, &["--feature-gates", "ProbeTerminationGracePeriod=false"]);
    let kill = agent.until_is("app", "killing:livenessProbe");
    assert_eq!(grace(&kill), (Some(9.0), Some("pod")));
    let ended = agent.interrupt();
    assert!(
        ended.stderr.contains("ProbeTerminationGracePeriod"),
        "{}",
        ended.stderr
    );
});

e2e!(grace_zero_kills_at_once_and_is_not_exceeded, |world| {
    let mut app = world.condemned(&["--stop-in", "1h"], json!({"terminationGracePeriodSeconds": 0}));
    app["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 60}}});
    let spec = json!({"containers": [app], "restartPolicy": "Never", "terminationGracePeriodSeconds": 3600});
    let agent = world.run(&spec);
    let ended = agent.finish();
    assert_eq!(ended.code, Some(137), "the code of the container that failed");
    in_order(
        &ended.seen,
        &[
            ("app", "killing:livenessProbe"),
            ("app", "signal:SIGKILL"),
            ("app", "exited:137"),
        ],
    );
    assert_eq!(
        ended.count("app", "graceExceeded") + ended.all("app", "hook").count(),
        0
    );
});

e2e!(sidecars_go_last_and_in_reverse_order, |world| {
    let sidecar = |name| with(world.ready_demo(name, &[]), json!({"restartPolicy": "Always"}));
    let app = world.ready_demo("app", &["--stop-in", "1s"]);
    let spec = json!({
        "initContainers": [sidecar("first"), sidecar("second")],
        "containers": [app],
        "terminationGracePeriodSeconds": 60,
    });
    let mut agent = world.run(&spec);
    agent.until_is("", "ready");
    let ended = agent.interrupt();
    in_order(
        &ended.seen,
        &[
            ("first", "started"),
            ("second", "created"),
            ("second", "started"),
            ("app", "created"),
            ("app", "signal:SIGTERM"),
            ("app", "exited:0"),
            ("second", "signal:SIGTERM"),
            ("second", "exited:0"),
            ("first", "signal:SIGTERM"),
            ("first", "exited:0"),
        ],
    );
});

e2e!(the_wait_of_a_sidecar_is_part_of_its_grace, |world| {
    let sidecar = with(
        world.ready_demo("sidecar", &["--ignore", "SIGTERM"]),
        json!({"restartPolicy": "Always"}),
    );
    let app = world.ready_demo("app", &["--stop-in", "3s"]);
    let spec = json!({
        "initContainers": [sidecar],
        "containers": [app],
        "terminationGracePeriodSeconds": 6,
    });
    let mut agent = world.run(&spec);
    agent.until_is("", "ready");
    let ended = agent.interrupt();
    in_order(
        &ended.seen,
        &[
            ("sidecar", "killing:deleted"),
            ("app", "exited:0"),
            ("sidecar", "signal:SIGTERM"),
            ("sidecar", "graceExceeded"),
            ("sidecar", "exited:137"),
        ],
    );
    let kill = ended.all("sidecar", "killing").next().expect("seen");
    let exit = ended.all("sidecar", "exited").next().expect("seen");
    assert!(exit.t() - kill.t() >= 5.999, "{}", ended.transcript());
    let own = exit["seconds"].as_f64().expect("it had a signal");
    assert!(
        own < 5.5,
        "what the wait left, about three seconds: {}",
        ended.transcript()
    );
});

e2e!(a_sidecar_is_condemned_like_any_other, |world| {
    let sidecar = world.server("sidecar", &["--fail-at", "500ms"], |http| {
        let liveness = http(json!({"periodSeconds": 1, "failureThreshold": 1}));
        json!({"restartPolicy": "Always", "livenessProbe": liveness})
    });
    let spec = json!({"initContainers": [sidecar], "containers": [world.demo("app", &[])]});
    let mut agent = world.run(&spec);
    agent.until_is("sidecar", "killing:livenessProbe");
    agent.until_is("sidecar", "running:1");
    assert_eq!(
        world.event("Killing"),
        "Init container sidecar failed liveness probe"
    );
    let ended = agent.interrupt();
    assert_eq!(ended.count("app", "running:1"), 0, "{}", ended.transcript());
});

e2e!(a_second_stop_can_only_shorten_the_first, |world| {
    let app = world.ready_demo("app", &["--ignore", "SIGTERM"]);
    let mut agent = world.run(&json!({"containers": [app], "terminationGracePeriodSeconds": 3600}));
    agent.until_is("", "ready");
    let mut first = world.command("stop").arg("web").spawn().unwrap();
    agent.until_is("app", "signal:SIGTERM");
    let second = world
        .command("stop")
        .args(["web", "--grace-period", "1"])
        .status()
        .unwrap();
    assert_eq!(second.code(), Some(0));
    assert_eq!(first.wait().unwrap().code(), Some(0));
    let ended = agent.finish();
    in_order(
        &ended.seen,
        &[("app", "graceExceeded"), ("app", "exited:137"), ("", "deleted")],
    );
});

e2e!(a_pod_that_is_being_deleted_restarts_nothing, |world| {
    let app = world.condemned(&["--stop-in", "2s"], json!({}));
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "killing:livenessProbe");
    let ended = agent.interrupt();
    assert_eq!(ended.count("app", "running:1"), 0, "{}", ended.transcript());
    assert_eq!(ended.count("", "deleted"), 1);
});

e2e!(a_second_interrupt_kills, |world| {
    let app = world.ready_demo("app", &["--ignore", "SIGTERM"]);
    let mut agent = world.run(&json!({"containers": [app], "terminationGracePeriodSeconds": 3600}));
    agent.until_is("", "ready");
    agent.signal(rustix::process::Signal::INT);
    agent.until_is("app", "signal:SIGTERM");
    let ended = agent.interrupt();
    assert_eq!(ended.code, Some(130));
    in_order(&ended.seen, &[("app", "exited:137"), ("", "deleted")]);
    assert!(ended.stderr.contains("Ctrl-C again kills"), "{}", ended.stderr);
});

e2e!(a_pod_past_its_deadline_fails, |world| {
    let spec = json!({"containers": [world.demo("app", &[])], "activeDeadlineSeconds": 4});
    let ended = world.run(&spec).finish();
    assert_eq!(ended.code, Some(1));
    in_order(
        &ended.seen,
        &[
            ("app", "killing:deadline"),
            ("app", "signal:SIGTERM"),
            ("", "phase:Failed"),
        ],
    );
    let kill = ended.all("app", "killing").next().expect("seen");
    assert_eq!(grace(kill), (Some(2.0), Some("pod")));
});

// The volume of a process is where a variable says.
e2e!(
    an_evicted_pod_has_the_grace_of_its_eviction,
    [Process, Oci, OwnCri],
    |world| {
        let script = "dd if=/dev/zero of=${PULSELET_VOLUME_DATA:-/data}/big bs=1M count=3; exec \"$@\"";
        let mut app = world.demo("app", &["--ignore", "SIGTERM"]);
        let mut command = vec![json!("sh"), json!("-c"), json!(script), json!("sh")];
        command.extend(app["command"].as_array().cloned().expect("a command"));
        app["command"] = json!(command);
        let mounts = app["volumeMounts"].as_array_mut().expect("a list");
        mounts.push(json!({"name": "data", "mountPath": "/data"}));
        let mut spec =
            world.with_volumes(&json!({"containers": [app], "terminationGracePeriodSeconds": 3600}));
        let volumes = spec["volumes"].as_array_mut().expect("a list");
        volumes.push(json!({"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}));
        let ended = world.run(&spec).finish();
        assert_eq!(ended.code, Some(137));
        in_order(
            &ended.seen,
            &[
                ("app", "killing:evicted"),
                ("app", "signal:SIGTERM"),
                ("app", "graceExceeded"),
                ("app", "exited:137"),
                ("", "phase:Failed"),
            ],
        );
        let kill = ended.all("app", "killing").next().expect("seen");
        assert_eq!(grace(kill), (Some(1.0), Some("override")));
    }
);

e2e!(a_pod_for_another_system_fails, |world| {
    let spec = json!({"containers": [world.demo("app", &[])], "os": {"name": "windows"}});
    let ended = world.run(&spec).finish();
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.all("app", "created").count(), 0);
    assert_eq!(ended.count("", "phase:Failed"), 1, "{}", ended.transcript());
});
