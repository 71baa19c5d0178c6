use proptest::prelude::*;
use pulselet_engine::plan::{Hook, HookPlan, ProbeKind};
use pulselet_model::GateSet;
use pulselet_plan::{
    HookTarget, HostPort, ImageVolume, MessagePolicy, PodBlueprint, ProbeTarget, PullPolicy, RefusalReason,
    VolumeKind, convert,
};
use serde_json::{Value, json};

use crate::pod;

fn blueprint(spec: &Value, gates: GateSet) -> PodBlueprint {
    convert(&pod(spec), gates).expect("a blueprint")
}

#[test]
fn everything_a_node_needs_is_there() {
    let spec = json!({
        "os": {"name": "windows"},
        "imagePullSecrets": [{"name": "b"}, {"name": "a"}, {"name": ""}, {"name": "b"}],
        "volumes": [{"name": "conf", "configMap": {"name": "c"}}, {"name": "data", "emptyDir": {"sizeLimit": "1Ki"}},
            {"name": "site", "image": {"reference": "site:1", "pullPolicy": "Never"}}],
        "containers": [{
            "name": "app", "volumeMounts": [{"name": "data", "mountPath": "/d"}, {"name": "site", "mountPath": "/s"}], "image": "app:1", "imagePullPolicy": "Always", "tty": true,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "ports": [{"name": "web", "containerPort": 8080}],
            "readinessProbe": {"tcpSocket": {"port": "web"}},
            "lifecycle": {"preStop": {"exec": {"command": ["drain"]}}},
        }],
        "ephemeralContainers": [{"name": "debug", "image": "tools", "imagePullPolicy": "Never", "stdin": true}],
    });
    let blueprint = blueprint(&spec, GateSet::ALL);
    assert!(blueprint.pull_secrets.iter().eq(["a", "b"]));
    assert_eq!(
        blueprint.refusal.as_ref().map(|refusal| refusal.reason),
        Some(RefusalReason::PodOsNotSupported)
    );
    assert_eq!(blueprint.volumes[0].kind, VolumeKind::ConfigMap);
    assert!(blueprint.has_written_volumes());
    let limits: Vec<_> = blueprint
        .size_limits()
        .map(|limit| (&*limit.volume, limit.bytes))
        .collect();
    assert_eq!(limits, [("data", 1024)]);
    let mounted: Vec<_> = blueprint.image_volumes(0).collect();
    let site = ImageVolume {
        reference: "site:1".into(),
        pull_policy: PullPolicy::Never,
    };
    assert_eq!(mounted, [("site", &site)]);
    assert_eq!(blueprint.image_volumes(1).count(), 0);
    let [app, debug] = &*blueprint.containers else {
        panic!("two containers");
    };
    assert_eq!(
        (app.pull_policy, app.stdin, app.tty),
        (PullPolicy::Always, false, true)
    );
    assert_eq!(app.message_policy, MessagePolicy::FallbackToLogsOnError);
    let tcp = ProbeTarget::Tcp(HostPort {
        host: None,
        port: 8080,
    });
    assert_eq!(
        app.probe(ProbeKind::Readiness).map(|target| &**target),
        Some(&tcp)
    );
    assert_eq!(app.probe(ProbeKind::Liveness), None);
    let drain = HookTarget::Exec(["drain".to_owned()].into());
    assert_eq!(app.hook(Hook::PreStop).map(|target| &**target), Some(&drain));
    assert_eq!((debug.pull_policy, debug.stdin), (PullPolicy::Never, true));
}

#[test]
fn a_closed_gate_takes_a_probe_from_the_plan_and_not_from_lives_that_have_it() {
    let spec = json!({"containers": [{"name": "app", "startupProbe": {"grpc": {"port": 80}}}]});
    let blueprint = blueprint(&spec, GateSet::NONE);
    assert_eq!(blueprint.plan.containers[0].startup, None);
    assert!(blueprint.containers[0].probe(ProbeKind::Startup).is_some());
}

/// Handlers as another API server may have let them through: none, one or several.
fn any_handlers() -> impl Strategy<Value = Value> {
    let port = prop_oneof![
        any::<i32>().prop_map(Value::from),
        "[a-z]{0,3}".prop_map(Value::from),
        Just(json!("web")),
    ];
    (any::<[bool; 5]>(), port, any::<i32>()).prop_map(|(has, port, number)| {
        let all = [
            ("exec", json!({"command": ["true"]})),
            ("httpGet", json!({"port": port})),
            ("tcpSocket", json!({"port": port})),
            ("grpc", json!({"port": number})),
            ("sleep", json!({"seconds": number})),
        ];
        let chosen = all.into_iter().zip(has).filter(|(_, has)| *has);
        Value::Object(
            chosen
                .map(|((name, action), _)| (name.to_owned(), action))
                .collect(),
        )
    })
}

fn without(handlers: &Value, name: &str) -> Value {
    let mut handlers = handlers.clone();
    if let Some(fields) = handlers.as_object_mut() {
        fields.remove(name);
    }
    handlers
}

proptest! {
    /// Engine and node never disagree about which handler counts.
    #[test]
    fn the_plan_and_the_targets_speak_of_the_same_handlers(probe in any_handlers(), hook in any_handlers(),
                                                           is_init in any::<bool>()) {
        let container = json!({
            "name": "app", "ports": [{"name": "web", "containerPort": 8080}],
            "livenessProbe": without(&probe, "sleep"), "lifecycle": {"preStop": without(&hook, "grpc")},
        });
        let spec = if is_init {
            json!({"initContainers": [container], "containers": [{"name": "main"}]})
        } else {
            json!({"containers": [container]})
        };
        if let Ok(blueprint) = convert(&pod(&spec), GateSet::ALL) {
            let (plan, container) = (&blueprint.plan.containers[0], &blueprint.containers[0]);
            let handler = container.probe(ProbeKind::Liveness).map(|target| target.handler());
            prop_assert_eq!(plan.liveness.as_ref().map(|probe| probe.handler), handler);
            let sleeps = container.hook(Hook::PreStop).map(|it| matches!(&**it, HookTarget::Sleep(_)));
            let planned = plan.pre_stop.map(|hook| matches!(hook, HookPlan::Sleep(_)));
            prop_assert_eq!(planned, sleeps);
            prop_assert_eq!(blueprint.containers.len(), blueprint.plan.containers.len());
        }
    }
}
