//! What a driver goes by: the transitions of a pod's steps.

use pulselet_engine::io::{ProbeOutcome, Pulled};
use pulselet_engine::line::{GraceFrom, KillReason};
use pulselet_engine::plan::{ContainerPlan, ProbeKind};
use pulselet_engine::termination::Grace;
use pulselet_engine::transition::Stop;
use pulselet_engine::{Input, PodMachine, Span, Time, Transition};
use pulselet_vocabulary::{Signal, exit_code};

use crate::driven::{APP, Driven, FIRST, at, container, created, exited, probe, probed};

/// The transitions of all steps from the first life's creation on.
fn transitions(container: ContainerPlan, inputs: Vec<(u64, Input)>) -> Vec<Transition> {
    let mut driven = Driven::new(container);
    driven.give(0, Input::SandboxReady);
    let pulled = Pulled::NotNeeded;
    driven.give(
        0,
        Input::ImageReady {
            container: APP,
            pulled,
        },
    );
    driven.out.clear();
    for (secs, input) in inputs {
        driven.pod.advance(at(secs), &mut driven.out);
        driven.pod.handle(at(secs), input, &mut driven.out);
    }
    driven.out.transitions
}

fn stop_began(reason: KillReason, secs: u64, from: GraceFrom) -> Transition {
    let span = Span::from_secs(secs);
    Transition::StopBegan {
        life: FIRST,
        reason,
        grace: Grace { span, from },
    }
}

fn signalled(at: Time) -> Input {
    Input::Signalled {
        life: FIRST,
        signal: Signal::TERM,
        at,
    }
}

#[test]
fn a_life_that_a_probe_ends_gives_its_transitions() {
    let probed_twice = ContainerPlan {
        liveness: Some(probe()),
        readiness: Some(probe()),
        ..container()
    };
    let running = Input::Running {
        life: FIRST,
        at: at(0),
    };
    let given = transitions(
        probed_twice,
        vec![
            (0, created(FIRST)),
            (0, running),
            (10, probed(FIRST, ProbeKind::Liveness, ProbeOutcome::Success)),
            (12, probed(FIRST, ProbeKind::Readiness, ProbeOutcome::Warning)),
            (20, probed(FIRST, ProbeKind::Liveness, ProbeOutcome::Failure)),
            (21, signalled(at(21))),
            (26, exited(FIRST, 25, exit_code::of_signal(Signal::TERM))),
        ],
    );
    let stop = Stop {
        reason: KillReason::LivenessProbe,
        took: Span::from_secs(5),
        killed: false,
    };
    let changes: Vec<_> = given
        .into_iter()
        .filter(|transition| *transition != Transition::StatusChanged)
        .collect();
    let expected = [
        Transition::Created { life: FIRST },
        Transition::Running {
            life: FIRST,
            since: at(0),
        },
        Transition::FirstSuccess {
            life: FIRST,
            after: Span::from_secs(10),
        },
        stop_began(KillReason::LivenessProbe, 30, GraceFrom::Pod),
        Transition::Ended {
            life: FIRST,
            stop: Some(stop),
        },
    ];
    assert_eq!(changes, expected);
}

#[test]
fn a_deletion_that_needs_sigkill_retires_workers_and_says_so() {
    let probed_once = ContainerPlan {
        liveness: Some(probe()),
        ..container()
    };
    let running = Input::Running {
        life: FIRST,
        at: at(0),
    };
    let grace = Some(Span::from_secs(5));
    let given = transitions(
        probed_once,
        vec![
            (0, created(FIRST)),
            (0, running),
            (3, Input::Delete { grace }),
            (3, signalled(at(3))),
            (9, exited(FIRST, 9, exit_code::KILLED)),
        ],
    );
    let stop = Stop {
        reason: KillReason::Deleted,
        took: Span::from_secs(6),
        killed: true,
    };
    let expected = [
        stop_began(KillReason::Deleted, 5, GraceFrom::Deletion),
        Transition::WorkerRetired {
            container: APP,
            kind: ProbeKind::Liveness,
        },
        Transition::GraceExceeded {
            life: FIRST,
            reason: KillReason::Deleted,
        },
        Transition::Ended {
            life: FIRST,
            stop: Some(stop),
        },
    ];
    let begun = given
        .iter()
        .position(|transition| matches!(transition, Transition::StopBegan { .. }));
    let after: Vec<_> = given[begun.expect("a stop")..]
        .iter()
        .copied()
        .filter(|transition| *transition != Transition::StatusChanged)
        .collect();
    assert_eq!(after, expected);
}

#[test]
fn a_state_written_before_first_successes_were_kept_still_reads() {
    let driven = Driven::running(container());
    let now = serde_json::to_string(&driven.pod).expect("a pod is plain data");
    let before = now.replace("\"succeeded\":false,", "");
    assert_ne!(before, now);
    assert!(before.contains("\"stop_signal\":\"SIGTERM\""));
    let read: PodMachine = serde_json::from_str(&before).expect("it reads");
    assert_eq!(read, driven.pod);
}
