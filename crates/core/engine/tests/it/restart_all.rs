//! A pod whose containers all restart by a rule. How it goes over time is the simulator's test.

use std::sync::Arc;

use pulselet_engine::io::Pulled;
use pulselet_engine::line::{ExitReason, GraceFrom, KillReason, Phase};
use pulselet_engine::plan::{
    ContainerPlan, ExitCodeMatch, HookPlan, RestartAction, RestartPolicy, RestartRule, Role,
};
use pulselet_engine::status::{ConditionKind, PodCondition, ReportedState};
use pulselet_engine::{
    Action, AfterShutdown, Identity, Input, LifeKey, LineBody, Outbox, PodMachine, PodPlan, Settings, Span,
    Time,
};

use crate::driven::{Driven, at, container, created, exited};

const SETUP: usize = 0;
const APP: usize = 1;
const OTHER: usize = 2;
const DEBUGGER: usize = 3;
const GRACE: Span = Span::from_secs(2);

const fn life(container: usize, attempt: u32) -> LifeKey {
    LifeKey { container, attempt }
}

fn named(name: &str, role: Role) -> ContainerPlan {
    ContainerPlan {
        name: name.into(),
        role,
        restart: RestartPolicy::Never,
        ..container()
    }
}

/// An init container, one that restarts all, one with a hook, and an ephemeral one.
fn plan() -> PodPlan {
    let app = ContainerPlan {
        restart_rules: vec![RestartRule {
            action: RestartAction::RestartAllContainers,
            matches: ExitCodeMatch::In,
            codes: vec![42],
        }],
        ..named("app", Role::Main)
    };
    let other = ContainerPlan {
        pre_stop: Some(HookPlan::Run),
        ..named("other", Role::Main)
    };
    PodPlan {
        grace: Some(Span::from_secs(30)),
        active_deadline: None,
        containers: vec![
            Arc::new(named("setup", Role::Init)),
            Arc::new(app),
            Arc::new(other),
            Arc::new(named("debugger", Role::Ephemeral)),
        ],
    }
}

impl Driven {
    fn run(&mut self, secs: u64, life: LifeKey) {
        let (container, pulled) = (life.container, Pulled::NotNeeded);
        self.give(secs, Input::ImageReady { container, pulled });
        assert_eq!(self.out.actions, [Action::Create { life }]);
        self.give(secs, created(life));
        let at = at(secs);
        self.give(secs, Input::Running { life, at });
    }

    /// The condition of a pod that can restart all its containers.
    fn restarting(&self) -> PodCondition {
        let conditions = self.pod.status().conditions;
        let kind = ConditionKind::AllContainersRestarting;
        conditions
            .into_iter()
            .find(|it| it.kind == kind)
            .expect("a condition")
    }

    /// As an agent that was killed leaves it to the next one.
    fn restored(&mut self) {
        let state = serde_json::to_string(&self.pod).expect("it is written");
        self.pod = serde_json::from_str(&state).expect("it is read");
    }
}

/// All of them run since second 1.
fn running() -> Driven {
    let identity = Identity {
        namespace: "default".into(),
        name: "web".into(),
        uid: "1".into(),
    };
    let mut out = Outbox::default();
    let plan = Arc::new(plan());
    let pod = PodMachine::new(identity, plan, Settings::default(), 7, Time::ZERO, &mut out);
    let mut driven = Driven { pod, out };
    driven.give(0, Input::SandboxReady);
    driven.run(0, life(DEBUGGER, 0));
    driven.run(0, life(SETUP, 0));
    driven.give(1, exited(life(SETUP, 0), 1, 0));
    driven.run(1, life(APP, 0));
    driven.run(1, life(OTHER, 0));
    assert_eq!(driven.pod.phase(), Phase::Running);
    assert!(!driven.restarting().status);
    driven
}

/// The container with the rule has exited, and the other one is asked to stop.
fn restarting() -> Driven {
    let mut driven = running();
    driven.give(5, exited(life(APP, 0), 5, 42));
    assert!(driven.reports(&LineBody::RestartAllContainers { exit_code: 42 }));
    assert!(driven.reports(&LineBody::Killing {
        reason: KillReason::AllContainersRestarting,
        grace_period_seconds: GRACE,
        grace_from: GraceFrom::Minimum,
    }));
    // No hook runs, and the ephemeral container stays.
    let (life, grace) = (life(OTHER, 0), GRACE);
    assert_eq!(driven.out.actions, [Action::Stop { life, grace }]);
    driven
}

#[test]
fn a_restarting_pod_says_so_until_all_have_ended() {
    let mut driven = restarting();
    let condition = driven.restarting();
    assert!(condition.status);
    assert_eq!(condition.reason.as_deref(), Some("RestartAllContainersStarted"));
    assert_eq!(
        condition.message.as_deref(),
        Some("container exited with restart policy rule")
    );
    let app = &driven.pod.status().containers[APP];
    let reason = "RestartingAllContainers";
    let message = None;
    assert_eq!(app.state, ReportedState::Waiting { reason, message });
    assert_eq!(app.last.as_ref().map(|it| it.exit_code), Some(42));
    driven.give(6, exited(life(OTHER, 0), 6, 143));
    assert_eq!(
        driven.out.actions,
        [Action::EnsureImage { container: SETUP }],
        "the sandbox stays, and the first init container begins"
    );
    assert!(!driven.restarting().status);
    let report = driven.pod.status();
    let other = report.containers[OTHER].last.as_ref().expect("its end");
    assert_eq!(
        (other.exit_code, other.reason),
        (143, ExitReason::RestartingAllContainers)
    );
    let initialized = |it: &&PodCondition| it.kind == ConditionKind::Initialized;
    assert!(
        report
            .conditions
            .iter()
            .find(initialized)
            .is_some_and(|it| it.status)
    );
}

#[test]
fn every_container_but_an_ephemeral_one_restarts() {
    let mut driven = restarting();
    driven.give(6, exited(life(OTHER, 0), 6, 143));
    driven.run(6, life(SETUP, 1));
    driven.give(7, exited(life(SETUP, 1), 7, 0));
    driven.run(7, life(APP, 1));
    driven.run(7, life(OTHER, 1));
    assert_eq!(driven.pod.phase(), Phase::Running);
    let counts: Vec<_> = driven
        .pod
        .status()
        .containers
        .iter()
        .map(|it| it.restart_count)
        .collect();
    assert_eq!(counts, [1, 1, 1, 0]);
    // It can happen again, without a back-off.
    driven.give(8, exited(life(APP, 1), 8, 42));
    driven.give(8, exited(life(OTHER, 1), 8, 143));
    assert_eq!(driven.out.actions, [Action::EnsureImage { container: SETUP }]);
}

#[test]
fn another_exit_code_restarts_nothing() {
    let mut driven = running();
    driven.give(5, exited(life(APP, 0), 5, 1));
    assert_eq!(driven.out.actions, []);
    driven.give(6, exited(life(OTHER, 0), 6, 0));
    driven.give(7, exited(life(DEBUGGER, 0), 7, 0));
    assert_eq!(driven.pod.phase(), Phase::Failed);
    assert_eq!(driven.restarting().reason.as_deref(), Some("PodFailed"));
}

#[test]
fn an_agent_that_comes_back_ends_what_was_begun() {
    let mut driven = restarting();
    driven.restored();
    driven.give(6, exited(life(OTHER, 0), 6, 143));
    driven.restored();
    driven.give(6, Input::AgentRestarted);
    assert_eq!(driven.out.actions, [Action::EnsureImage { container: SETUP }]);
    // One that was killed before it had sent the signal asks for it again.
    let mut driven = restarting();
    driven.restored();
    driven.give(5, Input::AgentRestarted);
    let (life, grace) = (life(OTHER, 0), GRACE);
    assert_eq!(driven.out.actions, [Action::Stop { life, grace }]);
}

#[test]
fn a_container_that_is_being_created_does_not_start() {
    let mut driven = running();
    driven.give(2, Input::Restart { container: OTHER });
    driven.give(3, exited(life(OTHER, 0), 3, 143));
    let (container, pulled) = (OTHER, Pulled::NotNeeded);
    driven.give(3, Input::ImageReady { container, pulled });
    driven.give(4, exited(life(APP, 0), 4, 42));
    assert_eq!(driven.out.actions, []);
    driven.give(4, created(life(OTHER, 1)));
    let life = life(OTHER, 1);
    assert_eq!(
        driven.out.actions,
        [Action::Remove { life }, Action::EnsureImage { container: SETUP }]
    );
}

#[test]
fn a_pod_that_lost_its_sandbox_begins_with_its_first_container() {
    let mut driven = running();
    driven.give(5, Input::SandboxLost);
    driven.give(5, exited(life(OTHER, 0), 5, 0));
    driven.give(5, exited(life(DEBUGGER, 0), 5, 0));
    driven.give(5, exited(life(APP, 0), 5, 42));
    assert_eq!(driven.out.actions, [Action::RunSandbox { attempt: 1 }]);
    driven.give(6, Input::SandboxReady);
    assert_eq!(driven.out.actions, [Action::EnsureImage { container: SETUP }]);
    driven.run(6, life(SETUP, 1));
    driven.give(7, exited(life(SETUP, 1), 7, 0));
    driven.run(7, life(APP, 1));
    driven.run(7, life(OTHER, 1));
}

#[test]
fn a_machine_that_goes_down_leaves_the_time_it_gave() {
    let mut driven = running();
    let (left, then) = (Span::from_secs(20), AfterShutdown::BeginsAnew);
    driven.give(5, Input::NodeShutdown { left, then });
    driven.give(6, exited(life(APP, 0), 6, 42));
    assert_eq!(
        driven.out.actions,
        [],
        "the other one has its hook and its grace period"
    );
}

/// A state that was written before rules had actions, and before pods could restart.
#[test]
fn an_older_state_is_read() {
    let mut state = serde_json::to_value(&running().pod).expect("it is written");
    let pod = state.as_object_mut().expect("an object");
    assert!(pod.remove("restarting_after").is_some());
    let rule = &mut pod["plan"]["containers"][APP]["restart_rules"][0];
    assert!(rule.as_object_mut().expect("a rule").remove("action").is_some());
    let read: PodMachine = serde_json::from_value(state).expect("it is read");
    assert_eq!(read.status().phase, Phase::Running);
}
