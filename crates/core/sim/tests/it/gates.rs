//! A gate changes nothing for a pod that uses none of its fields.

use std::convert::Infallible;

use pulselet_engine::line::Line;
use pulselet_model::{Container, GateSet, Pod, Profile, admit_create};
use pulselet_sim::Simulation;
use pulselet_sim::case::Case;

/// Random pods tried under each of the 32 combinations.
const PODS: u64 = 25;

fn without_gated_fields(pod: &mut Pod) {
    for container in pod
        .spec
        .init_containers
        .iter_mut()
        .chain(&mut pod.spec.containers)
    {
        container.startup_probe = None;
        if let Some(lifecycle) = &mut container.lifecycle {
            lifecycle.stop_signal = None;
        }
        let Container {
            liveness_probe,
            readiness_probe,
            ..
        } = container;
        for probe in [liveness_probe, readiness_probe].into_iter().flatten() {
            probe.termination_grace_period_seconds = None;
            probe.period_milliseconds = None;
            probe.timeout_milliseconds = None;
            probe.initial_delay_milliseconds = None;
            probe.initialization_failure_threshold = 0;
        }
    }
}

fn lines(case: &Case, gates: GateSet) -> Vec<Line> {
    let pod = admit_create(case.pod.clone(), Profile::Pulselet, gates)
        .expect("the pod is admitted")
        .pod;
    let blueprint = pulselet_plan::convert(&pod, gates).expect("the pod has a plan");
    let mut lines = Vec::new();
    let outcome = Simulation::new(case.setup(&blueprint)).run(case.limit, |simulation| {
        lines.extend(simulation.last_step().lines.iter().cloned());
        Ok::<(), Infallible>(())
    });
    outcome.expect("nobody objects");
    lines
}

#[test]
fn a_pod_without_gated_fields_is_the_same_under_all_gates() {
    for seed in 0..PODS {
        let mut case = Case::random(seed);
        without_gated_fields(&mut case.pod);
        let expected = lines(&case, GateSet::ALL);
        assert!(expected.len() > 3, "seed {seed} tells a story");
        for gates in GateSet::combinations() {
            assert!(
                lines(&case, gates) == expected,
                "seed {seed} differs under {gates}"
            );
        }
    }
}
