//! Which signal a container is stopped with, and that its status says so.

use serde_json::{Value, json};

use super::harness::in_order;
use super::world::{World, e2e, probe, with};

/// Exits with the number of the signal it gets, and is ready when it can.
fn trapping(world: &World) -> Value {
    let up = world.shared().join("up");
    let signals = [3, 10, 12, 15, 37].map(|signal| format!("trap 'exit {signal}' {signal}; "));
    let script = format!(
        "{}: > {}; while :; do sleep 0.05; done",
        signals.concat(),
        up.display()
    );
    let ready = probe(
        json!({"exec": {"command": ["sh", "-c", format!("[ -e {} ]", up.display())]}}),
        json!({"periodSeconds": 1}),
    );
    let container = world.container("app", &["sh", "-c", &script]);
    world.sharing(with(container, json!({"readinessProbe": ready})))
}

/// Runs the container to its end: its status named the signal, which was sent, and it left because of it.
fn ends_by(world: &World, container: &Value, signal: &str, exit_code: i32) -> Vec<String> {
    let _ = std::fs::remove_file(world.shared().join("up"));
    let spec =
        json!({"containers": [container], "os": {"name": "linux"}, "terminationGracePeriodSeconds": 60});
    let mut agent = world.run(&spec);
    agent.until_is("", "ready");
    let status = world.app_status();
    assert_eq!(status["stopSignal"], signal, "{status:#}");
    assert_eq!(status["lifecycle"]["stopSignal"], signal, "{status:#}");
    let events = world.events();
    let ended = agent.interrupt();
    in_order(
        &ended.seen,
        &[
            ("app", &format!("signal:{signal}")),
            ("app", &format!("exited:{exit_code}")),
        ],
    );
    assert_eq!(ended.count("app", "graceExceeded"), 0);
    events.into_iter().map(|(reason, _)| reason).collect()
}

e2e!(
    a_stop_signal_nobody_handles_is_told_before_it_hurts,
    [Process, Oci, OwnCri],
    |world| {
        // A shell that ignores SIGUSR1, as PID 1 or not.
        let app = world.container("app", &["sh", "-c", "trap '' USR1; while :; do sleep 0.2; done"]);
        let app = with(app, json!({"lifecycle": {"stopSignal": "SIGUSR1"}}));
        let spec = json!({"containers": [app], "os": {"name": "linux"}, "terminationGracePeriodSeconds": 1});
        let mut agent = world.run(&spec);
        agent.until_is("", "ready");
        let message = world.event("StopSignalNotHandled");
        assert!(
            message.contains("SIGUSR1") && message.contains("grace period of 1s"),
            "{message}"
        );
        let ended = agent.interrupt();
        assert_eq!(ended.count("app", "graceExceeded"), 1);
        let warned = ended
            .all("app", "warning")
            .filter(|line| line["message"] == message);
        assert_eq!(warned.count(), 1, "once per life, though it was read twice");
    }
);

// Debian's containerd does not know stop signals; what comes of that is tested below.
e2e!(
    a_container_gets_the_signal_its_manifest_names,
    [Process, Oci, OwnCri],
    |world| {
        ends_by(world, &trapping(world), "SIGTERM", 15);
        for (signal, number) in [("SIGUSR1", 10), ("SIGRTMIN+3", 37)] {
            let app = with(trapping(world), json!({"lifecycle": {"stopSignal": signal}}));
            ends_by(world, &app, signal, number);
        }
    }
);

e2e!(
    sigkill_as_the_stop_signal_is_not_exceeded,
    [Process, Oci, OwnCri],
    |world| {
        let app = with(trapping(world), json!({"lifecycle": {"stopSignal": "SIGKILL"}}));
        ends_by(world, &app, "SIGKILL", 137);
    }
);

e2e!(with_its_gate_off_it_gets_the_default_signal, |world| {
    let app = with(trapping(world), json!({"lifecycle": {"stopSignal": "SIGUSR1"}}));
    let spec = json!({"containers": [app], "os": {"name": "linux"}, "terminationGracePeriodSeconds": 60});
    let mut agent = world.run_with(&spec, &["--feature-gates", "ContainerStopSignals=false"]);
    agent.until_is("", "ready");
    let status = world.app_status();
    assert_eq!(
        (&status["stopSignal"], &status["lifecycle"]),
        (&Value::Null, &Value::Null)
    );
    in_order(
        &agent.interrupt().seen,
        &[("app", "signal:SIGTERM"), ("app", "exited:15")],
    );
});

e2e!(
    an_images_signal_counts_unless_the_manifest_names_one,
    [Oci, OwnCri],
    |world| {
        for (index, (of_image, of_pod, signal, number)) in [
            ("SIGUSR2", None, "SIGUSR2", 12),
            ("QUIT", None, "SIGQUIT", 3),
            ("10", None, "SIGUSR1", 10),
            ("RTMIN+3", None, "SIGRTMIN+3", 37),
            ("SIGUSR2", Some("SIGUSR1"), "SIGUSR1", 10),
        ]
        .into_iter()
        .enumerate()
        {
            let image = format!("signals.local/number:{index}");
            if !world.load_image(&image, Some(of_image)) {
                return;
            }
            let mut app = with(trapping(world), json!({"image": image}));
            if let Some(signal) = of_pod {
                app["lifecycle"] = json!({"stopSignal": signal});
            }
            let events = ends_by(world, &app, signal, number);
            assert!(!events.iter().any(|reason| reason == "InvalidStopSignal"));
        }
    }
);

e2e!(
    an_images_signal_that_nobody_knows_is_reported_and_not_used,
    [Oci, OwnCri],
    |world| {
        let image = "signals.local/odd:1";
        if world.load_image(image, Some("SIGNONSENSE")) {
            let app = with(trapping(world), json!({"image": image}));
            let events = ends_by(world, &app, "SIGTERM", 15);
            assert!(
                events.iter().any(|reason| reason == "InvalidStopSignal"),
                "{events:?}"
            );
        }
    }
);

e2e!(
    a_runtime_that_knows_no_stop_signals_goes_by_the_image_and_is_reported,
    [Containerd],
    |world| {
        let image = "signals.local/usr2:1";
        world.containerd().import(image, Some("SIGUSR2"));
        let asking = with(trapping(world), json!({"lifecycle": {"stopSignal": "SIGUSR1"}}));
        let of_image = with(asking.clone(), json!({"image": image}));
        for (app, signal, number, warnings) in [
            (trapping(world), "SIGTERM", 15, 0),
            (asking, "SIGTERM", 15, 1),
            (of_image, "SIGUSR2", 12, 1),
        ] {
            let events = ends_by(world, &app, signal, number);
            let warned = events.iter().filter(|reason| *reason == "StopSignalNotSupported");
            assert_eq!(warned.count(), warnings, "{events:?}");
        }
    }
);
