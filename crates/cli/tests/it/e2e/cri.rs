//! A CRI server that is killed, stays away, or was never there.

use serde_json::json;

use super::harness::of;
use super::world::{e2e, probe, with};

e2e!(
    a_killed_server_is_not_noticed_by_pods,
    [Containerd, OwnCri],
    |world| {
        let exec = probe(
            json!({"exec": {"command": ["true"]}}),
            json!({"periodSeconds": 1}),
        );
        let app = with(world.ready_demo("app", &[]), json!({"livenessProbe": exec}));
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("", "ready");
        agent.until_is("app", "probe:liveness:success");
        world.kill_server();
        // It cannot be asked to run a command: that says nothing about the container.
        agent.until_is("app", "probe:liveness:error");
        agent.until_is("app", "probe:readiness:success");
        world.resume_server();
        agent.until_is("app", "probe:liveness:success");
        for kind in ["unready", "killing", "exited"] {
            assert_eq!(of(&agent.seen, "app", kind).count(), 0, "{}", agent.transcript());
        }
        assert_eq!(
            of(&agent.seen, "app", "running").count(),
            1,
            "{}",
            agent.transcript()
        );
        agent.interrupt();
        assert!(world.processes().is_empty());
    }
);

e2e!(
    a_container_condemned_while_its_server_is_away_is_replaced_when_it_is_back,
    [Containerd, OwnCri],
    |world| {
        let app = world.server("app", &["--fail-at", "3s"], |http| {
            json!({
                "readinessProbe": http(json!({"periodSeconds": 1})),
                "livenessProbe": http(json!({"periodSeconds": 1, "failureThreshold": 1})),
            })
        });
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("", "ready");
        world.kill_server();
        agent.until_is("app", "killing:livenessProbe");
        // The grace period is over, and nobody could be notified.
        agent.until_is("app", "graceExceeded");
        assert_eq!(
            of(&agent.seen, "app", "exited").count(),
            0,
            "{}",
            agent.transcript()
        );
        world.resume_server();
        agent.until_is("app", "exited:137");
        agent.until_is("app", "running:1");
        agent.until_is("", "ready");
        assert_eq!(
            of(&agent.seen, "app", "exited").count(),
            1,
            "{}",
            agent.transcript()
        );
        agent.interrupt();
        assert!(world.processes().is_empty());
    }
);

e2e!(
    a_server_that_is_not_there_is_missing_and_what_to_do_is_said,
    [Process],
    |world| {
        let file = world.manifest("web", &json!({"containers": [world.demo("app", &[])]}));
        let socket = world.path("none.sock");
        let output = world
            .command("run")
            .arg(file)
            .args(["--runtime", &format!("unix://{}", socket.display())])
            .output()
            .expect("pulselet runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(
            stderr.contains(&format!("there is no {}", socket.display()))
                && stderr.contains("--runtime unix://"),
            "{stderr}"
        );
    }
);
