//! Pods that cannot run: each waits with the reason and message a kubelet gives, and an event says what is wrong. A
//! healthy pod beside them takes no notice.

use std::net::TcpListener;

use serde_json::{Value, json};

use super::harness::{Line, eventually};
use super::world::{World, e2e, with};

/// A pod that cannot run, and what is reported about it.
struct Bad {
    name: &'static str,
    /// Over those of a healthy container.
    container: Value,
    reason: &'static str,
    message: String,
    event: (&'static str, String),
}

fn bad(name: &'static str, container: Value, reason: &'static str, message: &str) -> Bad {
    Bad {
        name,
        container,
        reason,
        message: message.to_owned(),
        event: ("Failed", message.to_owned()),
    }
}

fn all(taken_port: u16) -> Vec<Bad> {
    let security = |context: Value| json!({"securityContext": context});
    let missing = bad(
        "missing",
        // Nothing listens there, and nobody may.
        json!({"image": "127.0.0.1:1/none:1"}),
        "ImagePullBackOff",
        "Back-off pulling image \"127.0.0.1:1/none:1\": ErrImagePull: ",
    );
    let never = bad(
        "never",
        json!({"image": "none:1", "imagePullPolicy": "Never"}),
        "ErrImageNeverPull",
        "Container image \"none:1\" is not present with pull policy of Never",
    );
    let odd = bad(
        "odd",
        json!({"image": "Not/An:Image:Name"}),
        "InvalidImageName",
        "couldn't parse image name \"Not/An:Image:Name\"",
    );
    let profile = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "none.json"}});
    let port = json!({"ports": [{"containerPort": 80, "hostPort": taken_port}]});
    let taken = format!("host port {taken_port} is taken");
    vec![
        Bad {
            event: ("Failed", "Error: ImagePullBackOff".into()),
            ..missing
        },
        Bad {
            event: ("ErrImageNeverPull", never.message.clone()),
            ..never
        },
        Bad {
            event: ("InspectFailed", odd.message.clone()),
            ..odd
        },
        bad(
            "seccomp",
            security(profile),
            "CreateContainerError",
            "seccomp/none.json",
        ),
        bad(
            "root",
            security(json!({"runAsNonRoot": true})),
            "CreateContainerConfigError",
            "container has runAsNonRoot and image will run as root",
        ),
        bad(
            "key",
            json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "a"}}}]}),
            "CreateContainerConfigError",
            "configmap \"none\" not found",
        ),
        Bad {
            event: ("Failed", "no-such-program".into()),
            ..bad(
                "program",
                json!({"command": ["no-such-program"]}),
                "CrashLoopBackOff",
                "",
            )
        },
        Bad {
            event: ("FailedCreatePodSandBox", taken),
            ..bad("port", port, "ContainerCreating", "")
        },
    ]
}

/// What the container waits for, and why.
fn waiting(pods: &[Value], name: &str) -> (String, String) {
    let pod = pods.iter().find(|pod| pod["name"] == name);
    let waiting = &pod.expect("is listed")["status"]["containerStatuses"][0]["state"]["waiting"];
    let text = |field: &str| waiting[field].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

fn check(world: &World, bad: &Bad) {
    let mut last = String::new();
    eventually(bad.name, || {
        let (reason, message) = waiting(&world.pods()?, bad.name);
        last = format!("{reason}: {message}");
        (reason == bad.reason && message.contains(&bad.message)).then_some(())
    });
    let (reason, words) = &bad.event;
    eventually(&format!("{}: {words} ({last})", bad.name), || {
        let mut events = world.events().into_iter();
        events
            .any(|(its, message)| its == *reason && message.contains(words))
            .then_some(())
    });
}

e2e!(
    what_cannot_run_waits_with_its_reason_and_troubles_nobody,
    [Oci, OwnCri],
    |world| {
        let taken = TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let bad = all(taken.local_addr().unwrap().port());
        let mut files = vec![world.manifest("web", &json!({"containers": [world.ready_demo("app", &[])]}))];
        for one in &bad {
            let container = with(world.demo("app", &[]), one.container.clone());
            files.push(world.manifest(one.name, &json!({"containers": [container]})));
        }
        let mut agent = world.run_files(&files, &[]);
        agent.until("the healthy pod is ready", |line| {
            line["type"] == "ready" && line["pod"] == "default/web" && line["container"].is_null()
        });
        for one in &bad {
            check(world, one);
        }
        let ended = agent.interrupt();
        let of_web = ended.seen.iter().filter(|line| line["pod"] == "default/web");
        let troubled = |line: &&Line| line["type"] == "unready" || line["type"] == "exited";
        let before_the_end = of_web.take_while(|line| line["type"] != "killing");
        assert_eq!(
            before_the_end.filter(troubled).count(),
            0,
            "{}",
            ended.transcript()
        );
    }
);
