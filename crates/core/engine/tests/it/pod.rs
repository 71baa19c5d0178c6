//! The protocol between a pod and its driver, one input at a time. What a pod does over time is the simulator's test.

use std::sync::Arc;

use pulselet_engine::io::{Exit, ImageFailure, ProbeOutcome, ProbeReport, Pulled};
use pulselet_engine::line::{GraceFrom, KillReason, Phase};
use pulselet_engine::plan::{ContainerPlan, HookPlan, ProbeKind, Role};
use pulselet_engine::status::ReportedState;
use pulselet_engine::{Action, Input, LifeKey, LineBody, PodMachine, PodPlan, Settings, Span};
use pulselet_vocabulary::{Signal, exit_code};

use crate::driven::{APP, Driven, FIRST, SECOND, at, container, created, exited, probe, probed, reported};

/// Warnings that a container's stop signal is not used, over two lives that the runtime gives these signals.
fn signal_warnings(wanted: Signal, effective: [Option<Signal>; 2]) -> usize {
    let mut driven = Driven::new(ContainerPlan {
        stop_signal: Some(wanted),
        ..container()
    });
    driven.give(0, Input::SandboxReady);
    let mut warnings = 0;
    for (life, signal) in [FIRST, SECOND].into_iter().zip(effective) {
        let pulled = Pulled::NotNeeded;
        let container = APP;
        driven.give(0, Input::ImageReady { container, pulled });
        let (id, stop_signal) = (format!("id-{}", life.attempt).into(), signal);
        driven.give(
            0,
            Input::Created {
                life,
                id,
                stop_signal,
            },
        );
        let is_warning = |line: &&pulselet_engine::Line| matches!(line.body, LineBody::Warning { .. });
        warnings += driven.out.lines.iter().filter(is_warning).count();
        driven.give(0, Input::Running { life, at: at(0) });
        driven.give(1, exited(life, 1, 1));
    }
    warnings
}

#[test]
fn a_stop_signal_that_is_not_used_is_reported_once() {
    let wanted: Signal = "SIGUSR1".parse().expect("a signal");
    assert_eq!(signal_warnings(wanted, [Some(wanted); 2]), 0);
    assert_eq!(signal_warnings(wanted, [Some(Signal::TERM); 2]), 1);
    assert_eq!(signal_warnings(wanted, [None; 2]), 1);
}

#[test]
fn each_step_asks_for_the_next() {
    let mut driven = Driven::new(container());
    assert_eq!(driven.out.actions, [Action::RunSandbox { attempt: 0 }]);
    driven.give(0, Input::SandboxReady);
    assert_eq!(driven.out.actions, [Action::EnsureImage { container: APP }]);
    driven.give(
        0,
        Input::ImageReady {
            container: APP,
            pulled: Pulled::NotNeeded,
        },
    );
    assert_eq!(driven.out.actions, [Action::Create { life: FIRST }]);
    driven.give(0, created(FIRST));
    assert_eq!(driven.out.actions, [Action::Start { life: FIRST }]);
    driven.give(
        0,
        Input::Running {
            life: FIRST,
            at: at(0),
        },
    );
    assert!(driven.reports(&LineBody::Started) && driven.reports(&LineBody::Ready));
}

#[test]
fn each_way_of_having_no_image_has_its_reason_and_events() {
    for (error, reason, message, events) in [
        (
            ImageFailure::ErrImagePull,
            "ImagePullBackOff",
            "Back-off pulling image \"image\": ErrImagePull: why",
            &[
                "Failed: Failed to pull image \"image\": why",
                "Failed: Error: ErrImagePull",
                "BackOff: Back-off pulling image \"image\"",
                "Failed: Error: ImagePullBackOff",
            ][..],
        ),
        (
            ImageFailure::ErrImageNeverPull,
            "ErrImageNeverPull",
            "why",
            &["ErrImageNeverPull: why", "Failed: Error: ErrImageNeverPull"],
        ),
        (
            ImageFailure::InvalidImageName,
            "InvalidImageName",
            "why",
            &["InspectFailed: why", "Failed: Error: InvalidImageName"],
        ),
    ] {
        let mut driven = Driven::new(container());
        driven.give(0, Input::SandboxReady);
        let failed = Input::ImageFailed {
            container: APP,
            error,
            message: "why".into(),
        };
        driven.give(0, failed);
        let reported: Vec<String> = driven
            .out
            .events
            .iter()
            .map(|event| format!("{}: {}", event.reason, event.message))
            .collect();
        assert_eq!(reported, events);
        let expected = ReportedState::Waiting {
            reason,
            message: Some(message.into()),
        };
        assert_eq!(driven.pod.status().containers[APP].state, expected);
    }
}

#[test]
fn volumes_that_are_not_ready_are_looked_for_again_until_the_pod_ends() {
    let mut driven = Driven::new(container());
    driven.give(1, Input::VolumesNotReady);
    assert_eq!(driven.out.actions, []);
    let again = driven.pod.next_deadline().expect("another try");
    assert!(again > at(1) && again <= at(11), "{again:?}");
    driven.advance(11);
    assert_eq!(driven.out.actions, [Action::RunSandbox { attempt: 1 }]);
    driven.give(12, Input::Delete { grace: None });
    assert!(!driven.pod.is_over(), "the sandbox may come up yet");
    driven.give(13, Input::VolumesNotReady);
    assert_eq!(
        driven.out.actions,
        [Action::StopSandbox],
        "a try may have left something"
    );
    driven.give(14, Input::SandboxStopped);
    assert!(driven.pod.is_over());
}

#[test]
fn an_ephemeral_container_has_one_life_and_the_pod_does_not_care() {
    let mut driven = Driven::running(container());
    let ephemeral = ContainerPlan {
        name: "debugger".into(),
        role: Role::Ephemeral,
        ..container()
    };
    let plan = PodPlan {
        grace: Some(Span::from_secs(30)),
        active_deadline: None,
        containers: vec![Arc::new(container()), Arc::new(ephemeral)],
    };
    let settings = Settings::default();
    let plan = Arc::new(plan);
    let running = Arc::clone(&plan);
    driven.give(
        1,
        Input::Replan {
            plan,
            running,
            settings,
        },
    );
    assert_eq!(driven.out.actions, [Action::EnsureImage { container: 1 }]);
    let life = LifeKey {
        container: 1,
        attempt: 0,
    };
    let pulled = Pulled::NotNeeded;
    driven.give(1, Input::ImageReady { container: 1, pulled });
    driven.give(1, created(life));
    driven.give(1, Input::Running { life, at: at(1) });
    assert!(!driven.reports(&LineBody::Ready));
    driven.give(2, exited(life, 2, 1));
    assert_eq!(driven.out.actions, []);
    assert!(!driven.reports(&LineBody::Unready));
    let status = driven.pod.status();
    assert_eq!(status.phase.as_str(), "Running");
    assert!(status.containers[APP].ready && !status.containers[1].ready);
    assert_eq!(driven.pod.next_deadline(), None, "nothing is waited for");
}

#[test]
fn an_answer_about_another_life_changes_nothing() {
    let mut driven = Driven::running(ContainerPlan {
        liveness: Some(probe()),
        ..container()
    });
    driven.advance(10);
    assert!(matches!(
        driven.out.actions[..],
        [Action::Probe {
            life: FIRST,
            kind: ProbeKind::Liveness,
            ..
        }]
    ));
    let before = driven.pod.clone();
    for stale in [
        probed(SECOND, ProbeKind::Liveness, ProbeOutcome::Failure),
        probed(FIRST, ProbeKind::Readiness, ProbeOutcome::Failure),
        exited(SECOND, 10, 1),
        Input::Running {
            life: FIRST,
            at: at(9),
        },
        created(FIRST),
        Input::HookDone {
            life: FIRST,
            hook: pulselet_engine::plan::Hook::PreStop,
            result: Ok(()),
        },
        Input::Signalled {
            life: FIRST,
            signal: Signal::TERM,
            at: at(10),
        },
        Input::ImageReady {
            container: 9,
            pulled: Pulled::NotNeeded,
        },
    ] {
        driven.give(10, stale.clone());
        assert_eq!(driven.pod, before, "after {stale:?}");
        assert_eq!(driven.out.actions, [], "after {stale:?}");
        assert_eq!(driven.out.lines, [], "after {stale:?}");
    }
}

#[test]
fn a_probe_answered_twice_counts_once() {
    let mut driven = Driven::running(ContainerPlan {
        liveness: Some(probe()),
        ..container()
    });
    driven.advance(10);
    driven.give(10, probed(FIRST, ProbeKind::Liveness, ProbeOutcome::Success));
    let before = driven.pod.clone();
    driven.give(10, probed(FIRST, ProbeKind::Liveness, ProbeOutcome::Failure));
    assert_eq!(driven.pod, before);
}

#[test]
fn an_exit_code_is_reported_in_the_line_and_not_in_the_event() {
    for (detail, text) in [("", "exit code 3"), ("out", "exit code 3: out")] {
        let mut driven = Driven::running(ContainerPlan {
            liveness: Some(probe()),
            ..container()
        });
        driven.advance(10);
        let report = ProbeReport {
            detail: detail.to_owned(),
            exit_code: Some(3),
            ..reported(ProbeOutcome::Failure)
        };
        let (life, kind) = (FIRST, ProbeKind::Liveness);
        driven.give(10, Input::ProbeDone { life, kind, report });
        let said = driven.out.lines.iter().find_map(|line| match &line.body {
            LineBody::Probe { detail, .. } => Some(detail.as_str()),
            _ => None,
        });
        assert_eq!(said, Some(text));
        let event = &driven.out.events[0];
        assert_eq!(event.message, format!("Liveness probe failed: {detail}"));
    }
}

#[test]
fn a_steady_success_does_not_need_the_disk() {
    let mut driven = Driven::running(ContainerPlan {
        liveness: Some(probe()),
        ..container()
    });
    for (secs, dirty) in [(10, true), (20, false), (30, false)] {
        driven.advance(secs);
        driven.give(secs, probed(FIRST, ProbeKind::Liveness, ProbeOutcome::Success));
        assert_eq!(driven.out.dirty, dirty, "at {secs}");
    }
    driven.advance(40);
    driven.give(40, probed(FIRST, ProbeKind::Liveness, ProbeOutcome::Failure));
    assert!(driven.out.dirty);
}

#[test]
fn an_unanswered_stop_is_asked_for_again() {
    let mut driven = Driven::running(container());
    driven.give(100, Input::Delete { grace: None });
    let stop = Action::Stop {
        life: FIRST,
        grace: Span::from_secs(30),
    };
    assert_eq!(driven.out.actions, std::slice::from_ref(&stop));
    driven.advance(105);
    assert_eq!(driven.out.actions, [stop]);
    driven.give(
        105,
        Input::Signalled {
            life: FIRST,
            signal: Signal::TERM,
            at: at(105),
        },
    );
    driven.advance(134);
    assert_eq!(driven.out.actions, [], "the grace period counts from the signal");
    driven.advance(135);
    assert_eq!(driven.out.actions, [Action::Kill { life: FIRST }]);
    assert!(driven.reports(&LineBody::GraceExceeded { signal: Signal::KILL }));
}

#[test]
fn a_stop_by_a_user_is_a_deletion_that_says_so() {
    let mut driven = Driven::running(container());
    driven.give(100, Input::Stop { grace: None });
    assert!(driven.reports(&LineBody::Killing {
        reason: KillReason::Stopped,
        grace_period_seconds: Span::from_secs(30),
        grace_from: GraceFrom::Deletion,
    }));
    assert!(driven.pod.is_deleting());
    driven.give(101, exited(FIRST, 101, 0));
    driven.give(102, Input::SandboxStopped);
    assert!(driven.pod.is_over() && driven.reports(&LineBody::Deleted));
}

#[test]
fn what_the_runtime_did_alone_is_reported_at_the_exit() {
    let mut driven = Driven::running(container());
    driven.give(
        100,
        Input::Delete {
            grace: Some(Span::from_secs(5)),
        },
    );
    let stop = pulselet_engine::io::StopRecord {
        signal: Signal::TERM,
        at: at(100),
        forced: true,
    };
    let exit = Exit {
        code: exit_code::KILLED,
        at: at(105),
        oom_killed: false,
        message: None,
        stop: Some(stop),
    };
    driven.give(200, Input::Exited { life: FIRST, exit });
    assert!(driven.reports(&LineBody::Signal { signal: Signal::TERM }));
    assert!(driven.reports(&LineBody::GraceExceeded { signal: Signal::KILL }));
    assert!(driven.out.lines.iter().any(|line| matches!(
        line.body,
        LineBody::Exited { exit_code: exit_code::KILLED, seconds: Some(seconds), .. } if seconds == Span::from_secs(5)
    )));
}

#[test]
fn after_a_restart_overdue_probes_are_spread() {
    // Each pod has a seed of its own, of which the moment follows.
    let moment = |seed: u64| {
        let probed = ContainerPlan {
            liveness: Some(probe()),
            ..container()
        };
        let mut driven = Driven::seeded(probed, seed).brought_up();
        driven.give(100, Input::AgentRestarted);
        driven.pod.next_deadline().expect("the probe is due")
    };
    let moments: Vec<_> = (0..20).map(moment).collect();
    assert!(moments.iter().all(|due| *due >= at(100) && *due <= at(101)));
    let distinct: std::collections::BTreeSet<_> = moments.into_iter().collect();
    assert!(distinct.len() > 15, "they do not come all at once");
}

/// The events of the last step: severity, reason and text.
fn events(driven: &Driven) -> Vec<String> {
    let all = driven.out.events.iter();
    all.map(|event| format!("{} {}: {}", event.severity.as_str(), event.reason, event.message))
        .collect()
}

fn unhandled(signal: Signal) -> Input {
    Input::StopSignalUnhandled { life: FIRST, signal }
}

#[test]
fn a_signal_nobody_handles_is_told_once_per_life() {
    let mut driven = Driven::running(container());
    driven.give(10, unhandled(Signal::TERM));
    let expected = "Normal StopSignalNotHandled: Container app does not handle its stop signal SIGTERM: every stop \
                    takes the whole grace period of 30s and ends with SIGKILL";
    assert_eq!(events(&driven), [expected]);
    driven.give(20, unhandled(Signal::TERM));
    assert_eq!(events(&driven), [""; 0]);
    let signal: Signal = "SIGUSR1".parse().expect("a signal");
    let asked = ContainerPlan {
        stop_signal: Some(signal),
        ..container()
    };
    let mut driven = Driven::running(asked);
    driven.give(10, unhandled(signal));
    assert!(events(&driven)[0].starts_with("Warning StopSignalNotHandled: "));
}

#[test]
fn an_exceeded_grace_period_names_the_signal_and_whether_it_was_ignored() {
    for (was_read, says) in [
        (true, "SIGTERM was sent and ignored"),
        (false, "SIGTERM was sent and did not end it"),
    ] {
        let mut driven = Driven::running(container());
        driven.give(100, Input::Delete { grace: None });
        driven.give(100, signalled(Signal::TERM));
        if was_read {
            driven.give(100, unhandled(Signal::TERM));
        }
        driven.advance(130);
        let expected = format!(
            "Warning ExceededGracePeriod: Container app did not stop within its grace period of 30s: {says}, so SIGKILL \
             is needed"
        );
        assert_eq!(events(&driven), [expected]);
    }
}

/// Deleted, and killed before the stop signal was answered for.
fn killed_before_its_signal() -> Driven {
    let mut driven = Driven::running(container());
    driven.give(100, Input::Delete { grace: None });
    let grace = Some(Span::ZERO);
    driven.give(100, Input::Delete { grace });
    assert_eq!(driven.out.actions, [Action::Kill { life: FIRST }]);
    assert!(!driven.reports(&LineBody::GraceExceeded { signal: Signal::KILL }));
    driven
}

fn signalled(signal: Signal) -> Input {
    Input::Signalled {
        life: FIRST,
        signal,
        at: at(100),
    }
}

#[test]
fn a_kill_that_overtakes_its_stop_signal_exceeds_nothing() {
    let mut driven = killed_before_its_signal();
    driven.give(100, signalled(Signal::KILL));
    let signal = Signal::KILL;
    assert!(driven.reports(&LineBody::Signal { signal }));
    assert!(!driven.reports(&LineBody::GraceExceeded { signal: Signal::KILL }));
}

#[test]
fn a_kill_that_follows_a_stop_signal_on_its_way_exceeds_the_grace_period() {
    let mut driven = killed_before_its_signal();
    driven.give(100, signalled(Signal::TERM));
    let signal = Signal::TERM;
    assert!(driven.reports(&LineBody::Signal { signal }));
    assert!(driven.reports(&LineBody::GraceExceeded { signal: Signal::KILL }));
    driven.give(101, signalled(Signal::KILL));
    assert_eq!(driven.out.lines, [], "reported already");
}

#[test]
fn a_container_created_for_a_deleted_pod_is_not_started() {
    let mut driven = Driven::new(container());
    driven.give(0, Input::SandboxReady);
    driven.give(
        0,
        Input::ImageReady {
            container: APP,
            pulled: Pulled::NotNeeded,
        },
    );
    driven.give(1, Input::Delete { grace: None });
    assert_eq!(driven.out.actions, [], "the creation is still under way");
    driven.give(2, created(FIRST));
    assert_eq!(
        driven.out.actions,
        [Action::Remove { life: FIRST }, Action::StopSandbox]
    );
    driven.give(2, Input::SandboxStopped);
    assert!(driven.pod.is_over() && driven.reports(&LineBody::Deleted));
}

/// A sandbox that was stopped and not removed is not ready, and all of it is still there.
#[test]
fn an_agent_that_is_killed_while_it_removes_a_sandbox_removes_it_again() {
    let mut driven = Driven::running(container());
    driven.give(1, Input::Delete { grace: None });
    driven.give(2, exited(FIRST, 2, 0));
    assert_eq!(driven.out.actions, [Action::StopSandbox]);
    driven.give(3, Input::SandboxLost);
    assert!(!driven.pod.is_over());
    driven.give(3, Input::AgentRestarted);
    assert_eq!(driven.out.actions, [Action::StopSandbox]);
    driven.give(4, Input::SandboxStopped);
    assert!(driven.pod.is_over() && driven.reports(&LineBody::Deleted));
}

#[test]
fn after_a_restart_only_the_unanswered_is_asked_for_again() {
    let hook = ContainerPlan {
        pre_stop: Some(HookPlan::Run),
        liveness: Some(probe()),
        ..container()
    };
    let mut driven = Driven::running(hook);
    driven.give(4, Input::AgentRestarted);
    assert_eq!(driven.out.actions, []);
    driven.give(5, Input::Delete { grace: None });
    assert!(matches!(driven.out.actions[..], [Action::Hook { .. }]));
    driven.give(15, Input::AgentRestarted);
    let Action::Hook { limit, .. } = driven.out.actions[0] else {
        panic!("{:?}", driven.out.actions)
    };
    assert_eq!(
        limit,
        Some(Span::from_secs(20)),
        "what is left of the grace period"
    );
}

#[test]
fn after_a_restart_a_stop_signal_is_followed_by_some_grace() {
    let mut driven = Driven::running(container());
    driven.give(100, Input::Delete { grace: None });
    for (now, left) in [(110, 20), (125, 5), (200, 2), (201, 2)] {
        driven.give(now, Input::AgentRestarted);
        let grace = Span::from_secs(left);
        assert_eq!(driven.out.actions, [Action::Stop { life: FIRST, grace }]);
    }
}

#[test]
fn the_whole_state_can_be_written_down_and_read_back() {
    let plan = ContainerPlan {
        liveness: Some(probe()),
        readiness: Some(probe()),
        ..container()
    };
    let mut driven = Driven::running(plan);
    driven.give(0, probed(FIRST, ProbeKind::Readiness, ProbeOutcome::Success));
    driven.advance(10);
    driven.give(10, probed(FIRST, ProbeKind::Liveness, ProbeOutcome::Failure));
    let text = serde_json::to_string(&driven.pod).expect("it serialises");
    assert_eq!(
        serde_json::from_str::<PodMachine>(&text).expect("it reads back"),
        driven.pod
    );
}

#[test]
fn a_pod_that_is_deleted_before_its_init_containers_are_done_has_failed() {
    let mut driven = Driven::running(ContainerPlan {
        role: Role::Init,
        ..container()
    });
    driven.give(1, exited(FIRST, 1, 1));
    driven.give(2, Input::Delete { grace: None });
    assert_eq!(driven.pod.phase(), Phase::Failed);
    let mut driven = Driven::new(container());
    driven.give(0, Input::Delete { grace: None });
    assert_eq!(driven.pod.phase(), Phase::Pending, "nothing of it has failed");
}
