//! A pod whose machine goes down.

use pulselet_engine::io::Pulled;
use pulselet_engine::line::{GraceFrom, KillReason, Phase};
use pulselet_engine::plan::{ContainerPlan, RestartPolicy};
use pulselet_engine::status::ConditionKind;
use pulselet_engine::{Action, AfterShutdown, Input, LifeKey, LineBody, Span};

use crate::driven::{APP, Driven, FIRST, container, created, exited};

fn shutdown(left: u64, then: AfterShutdown) -> Input {
    let left = Span::from_secs(left);
    Input::NodeShutdown { left, then }
}

/// The reason and the grace period of the kill that the last step began.
fn killing(driven: &Driven) -> Option<(KillReason, Span, GraceFrom)> {
    driven.out.lines.iter().find_map(|line| match line.body {
        LineBody::Killing {
            reason,
            grace_period_seconds,
            grace_from,
        } => Some((reason, grace_period_seconds, grace_from)),
        _ => None,
    })
}

#[test]
fn a_pod_has_the_lesser_of_its_own_grace_and_the_time_that_is_left() {
    for (left, grace) in [(10, 10), (60, 30)] {
        let mut driven = Driven::running(container());
        driven.give(5, shutdown(left, AfterShutdown::Failed));
        let expected = (
            KillReason::NodeShutdown,
            Span::from_secs(grace),
            GraceFrom::Override,
        );
        assert_eq!(killing(&driven), Some(expected));
    }
}

#[test]
fn a_pod_of_a_cluster_has_failed_whatever_its_exit_code_is() {
    let mut driven = Driven::running(container());
    driven.give(5, shutdown(10, AfterShutdown::Failed));
    driven.give(6, exited(FIRST, 6, 0));
    assert_eq!(driven.out.actions, [Action::StopSandbox]);
    assert!(!driven.pod.is_stopped());
    driven.give(6, Input::SandboxStopped);
    assert!(driven.pod.is_stopped());
    driven.give(100, Input::AgentRestarted);
    assert_eq!(driven.out.actions, []);
    let report = driven.pod.status();
    assert_eq!(report.phase, Phase::Failed);
    assert_eq!(report.reason.as_deref(), Some("Terminated"));
    let message = "Pod was terminated in response to imminent node shutdown.";
    assert_eq!(report.message.as_deref(), Some(message));
    let disrupted = report
        .conditions
        .iter()
        .find(|it| it.kind == ConditionKind::DisruptionTarget);
    let disrupted = disrupted.expect("a condition");
    assert!(disrupted.status);
    assert_eq!(disrupted.reason.as_deref(), Some("TerminationByKubelet"));
}

/// Brings the pod up again after its sandbox was asked for.
fn brought_up_again(mut driven: Driven) {
    assert_eq!(driven.out.actions, [Action::RunSandbox { attempt: 1 }]);
    driven.give(200, Input::SandboxReady);
    let pulled = Pulled::AlreadyPresent;
    driven.give(
        200,
        Input::ImageReady {
            container: APP,
            pulled,
        },
    );
    let life = LifeKey {
        container: APP,
        attempt: 1,
    };
    assert_eq!(driven.out.actions, [Action::Create { life }]);
}

/// A pod that is not to be restarted, stopped for a shutdown.
fn stopped_for_shutdown() -> Driven {
    let mut driven = Driven::running(ContainerPlan {
        restart: RestartPolicy::Never,
        ..container()
    });
    driven.give(5, shutdown(10, AfterShutdown::BeginsAnew));
    assert_eq!(killing(&driven).map(|it| it.0), Some(KillReason::NodeShutdown));
    driven.give(6, exited(FIRST, 6, 0));
    assert_eq!(driven.out.actions, [Action::StopSandbox]);
    driven.give(6, Input::SandboxStopped);
    assert_eq!(driven.out.actions, []);
    assert!(driven.pod.is_stopped());
    assert_eq!(driven.pod.phase(), Phase::Running);
    driven
}

#[test]
fn a_pod_of_the_machine_begins_anew_with_the_next_agent() {
    let mut driven = stopped_for_shutdown();
    driven.give(200, Input::AgentRestarted);
    brought_up_again(driven);
}

#[test]
fn a_pod_of_the_machine_begins_anew_when_the_shutdown_is_cancelled() {
    let mut driven = stopped_for_shutdown();
    driven.give(200, Input::ShutdownCancelled);
    brought_up_again(driven);
}

#[test]
fn a_container_that_is_being_created_is_not_started_for_a_machine_that_goes_down() {
    let mut driven = Driven::new(container());
    driven.give(0, Input::SandboxReady);
    let pulled = Pulled::AlreadyPresent;
    driven.give(
        0,
        Input::ImageReady {
            container: APP,
            pulled,
        },
    );
    driven.give(1, shutdown(10, AfterShutdown::BeginsAnew));
    assert_eq!(driven.out.actions, []);
    driven.give(1, created(FIRST));
    assert_eq!(
        driven.out.actions,
        [Action::Remove { life: FIRST }, Action::StopSandbox]
    );
    driven.give(1, Input::SandboxStopped);
    driven.give(2, Input::AgentRestarted);
    assert_eq!(driven.out.actions, [Action::RunSandbox { attempt: 1 }]);
}

#[test]
fn a_pod_that_is_deleted_while_it_waits_for_the_next_agent_is_gone() {
    let mut driven = stopped_for_shutdown();
    driven.give(7, Input::Delete { grace: None });
    assert!(driven.pod.is_over());
}
