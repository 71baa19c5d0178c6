//! What a simulation refuses is what a node refuses, in the same words.

use std::cell::RefCell;
use std::convert::Infallible;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use pulselet_engine::line::{LineBody, Phase};
use pulselet_engine::plan::Settings;
use pulselet_engine::time::Time;
use pulselet_model::{GateSet, Pod};
use pulselet_sim::scenario::GateSkew;
use pulselet_sim::{Scenario, Setup, Simulation};
use pulselet_vocabulary::PodName;
use serde_json::{Value, json};

use crate::harness::{Bench, pod_of};

/// Pods that are given to one node.
const PODS: u32 = 100;

/// How a pod begins: its phase, why it failed, and the lines until then.
#[derive(Debug, PartialEq)]
struct Beginning {
    refused: bool,
    reason: String,
    message: String,
    /// Empty if the pod is not refused: what runs goes its own way.
    lines: Vec<LineBody>,
}

fn any_sysctl() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "kernel.shm_rmid_forced",
        "net.ipv4.tcp_syncookies",
        "net/ipv4/tcp_syncookies",
        "net.ipv4.ip_unprivileged_port_start",
        "kernel.msgmax",
        "kernel/msgmax",
        "net.core.somaxconn",
    ]);
    prop_oneof![
        4 => known.prop_map(str::to_owned),
        1 => "[a-z]{1,6}([./][a-z_]{1,8}){0,3}",
    ]
}

/// The spec of a pod that another API server may have admitted.
fn any_spec() -> impl Strategy<Value = Value> {
    let os = prop::option::of(prop::sample::select(vec![
        "linux", "windows", "Linux", "plan9", "",
    ]));
    let sysctls = prop::option::of(prop::collection::vec(any_sysctl(), 0..4));
    (os, sysctls, any::<bool>(), any::<bool>()).prop_map(|(os, sysctls, host_network, is_empty)| {
        let containers = json!([{"name": "app", "image": "app:1"}]);
        let mut spec = json!({"containers": containers, "hostNetwork": host_network});
        if let Some(name) = os {
            spec["os"] = json!({"name": name});
        }
        if let Some(names) = sysctls {
            let sysctls: Vec<_> = names
                .iter()
                .map(|name| json!({"name": name, "value": "1"}))
                .collect();
            spec["securityContext"] = json!({"sysctls": sysctls});
        } else if is_empty {
            spec["securityContext"] = json!({});
        }
        spec
    })
}

fn is_failed(body: &LineBody) -> bool {
    *body == LineBody::Phase { phase: Phase::Failed }
}

fn simulated(pod: &Pod) -> Beginning {
    let blueprint = pulselet_plan::convert(pod, GateSet::ALL).expect("the pod can be converted");
    let setup = Setup::for_pod(
        pod,
        GateSkew::default(),
        &blueprint,
        Settings::default(),
        0,
        Scenario::default(),
    );
    let mut simulation = Simulation::new(setup);
    let mut lines = Vec::new();
    let end = simulation.run(Time::ZERO, |simulation| {
        lines.extend(simulation.last_step().lines.iter().map(|line| line.body.clone()));
        Ok::<(), Infallible>(())
    });
    end.expect("nobody objects");
    let status = simulation.pod().status();
    let refused = status.phase == Phase::Failed;
    Beginning {
        refused,
        reason: status.reason.unwrap_or_default(),
        message: status.message.unwrap_or_default(),
        lines: if refused { lines } else { Vec::new() },
    }
}

async fn on_a_node(bench: &mut Bench, pod: &Pod) -> Beginning {
    bench.seen.clear();
    bench.add(pod.clone()).await;
    let name = PodName::new("default", pod.name());
    let view = bench.node.pod(&name).await.expect("the node is there");
    let status = view.expect("the pod is there").status;
    let refused = status.phase == "Failed";
    if refused {
        bench
            .until("failed pod", |line| {
                line.pod == name && is_failed(&line.line.body)
            })
            .await;
    }
    let of_pod = bench.seen.iter().filter(|line| line.pod == name);
    Beginning {
        refused,
        reason: status.reason,
        message: status.message,
        lines: of_pod
            .filter(|_| refused)
            .map(|line| line.line.body.clone())
            .collect(),
    }
}

#[test]
fn a_simulation_refuses_what_a_node_refuses() {
    let tokio = tokio::runtime::Runtime::new().expect("a runtime");
    let bench = RefCell::new(tokio.block_on(Bench::new()));
    let number = RefCell::new(0..);
    let config = Config {
        cases: PODS,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&any_spec(), |spec| {
        let name = format!("web-{}", number.borrow_mut().next().unwrap_or(0_u32));
        let pod = json!({"metadata": {"name": name}, "spec": spec});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let seen = tokio.block_on(on_a_node(&mut bench.borrow_mut(), &pod));
        prop_assert_eq!(seen, simulated(&pod));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// Clients show the state of a container in place of the pod's reason.
#[tokio::test]
async fn a_refused_pod_has_a_reason_and_no_containers_also_after_a_restart() {
    let bench = Bench::new().await;
    let spec = json!({
        "os": {"name": "windows"}, "initContainers": [{"name": "first", "image": "app:1"}],
        "containers": [{"name": "app", "image": "app:1"}],
    });
    bench.add(pod_of("web", &spec)).await;
    let check = async |bench: &Bench| {
        let name = PodName::new("default", "web");
        let view = bench.node.pod(&name).await.expect("the node is there");
        let status = view.expect("the pod is there").status;
        assert_eq!(
            (&*status.phase, &*status.reason),
            ("Failed", "PodOSNotSupported"),
            "{status:?}"
        );
        assert!(status.container_statuses.is_empty(), "{status:?}");
        assert!(status.init_container_statuses.is_empty(), "{status:?}");
        assert!(status.conditions.is_empty(), "{status:?}");
        assert!(status.start_time.is_some());
    };
    check(&bench).await;
    let (directory, runtime) = bench.leave().await;
    check(&Bench::on(directory, runtime, |_| ()).await).await;
}
