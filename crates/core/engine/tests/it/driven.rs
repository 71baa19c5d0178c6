//! A pod and a driver that gives it one input at a time.

use std::sync::Arc;

use pulselet_engine::io::{Exit, ProbeOutcome, ProbeReport, Pulled};
use pulselet_engine::plan::{ContainerPlan, Handler, ProbeKind, ProbePlan, RestartPolicy, Role};
use pulselet_engine::{
    Identity, Input, LifeKey, LineBody, Outbox, PodMachine, PodPlan, Settings, Span, Time,
};
use pulselet_vocabulary::Signal;

pub(crate) const APP: usize = 0;
pub(crate) const FIRST: LifeKey = LifeKey {
    container: APP,
    attempt: 0,
};
pub(crate) const SECOND: LifeKey = LifeKey {
    container: APP,
    attempt: 1,
};

pub(crate) fn container() -> ContainerPlan {
    ContainerPlan {
        name: "app".into(),
        image: "image".into(),
        role: Role::Main,
        restart: RestartPolicy::Always,
        restart_rules: Vec::new(),
        startup: None,
        liveness: None,
        readiness: None,
        post_start: None,
        pre_stop: None,
        stop_signal: None,
    }
}

pub(crate) fn probe() -> Arc<ProbePlan> {
    Arc::new(ProbePlan {
        handler: Handler::Http,
        initial_delay: Span::ZERO,
        period: Span::from_secs(10),
        period_after: Span::from_secs(10),
        timeout: Span::from_secs(1),
        success_threshold: 1,
        failure_threshold: 1,
        initial_failure_threshold: 1,
        grace: None,
    })
}

pub(crate) fn at(secs: u64) -> Time {
    Time::ZERO + Span::from_secs(secs)
}

/// A pod of one container and what its last step asked for and reported.
pub(crate) struct Driven {
    pub(crate) pod: PodMachine,
    pub(crate) out: Outbox,
}

impl Driven {
    pub(crate) fn new(container: ContainerPlan) -> Self {
        Self::seeded(container, 7)
    }

    pub(crate) fn seeded(container: ContainerPlan, seed: u64) -> Self {
        let plan = PodPlan {
            grace: Some(Span::from_secs(30)),
            active_deadline: None,
            containers: vec![Arc::new(container)],
        };
        let identity = Identity {
            namespace: "default".into(),
            name: "web".into(),
            uid: "1".into(),
        };
        let mut out = Outbox::default();
        let pod = PodMachine::new(
            identity,
            Arc::new(plan),
            Settings::default(),
            seed,
            Time::ZERO,
            &mut out,
        );
        Self { pod, out }
    }

    /// With its container running since second 0.
    pub(crate) fn running(container: ContainerPlan) -> Self {
        Self::new(container).brought_up()
    }

    pub(crate) fn brought_up(mut self) -> Self {
        let driven = &mut self;
        driven.give(0, Input::SandboxReady);
        driven.give(
            0,
            Input::ImageReady {
                container: APP,
                pulled: Pulled::AlreadyPresent,
            },
        );
        driven.give(0, created(FIRST));
        driven.give(
            0,
            Input::Running {
                life: FIRST,
                at: at(0),
            },
        );
        self
    }

    pub(crate) fn give(&mut self, secs: u64, input: Input) {
        self.out.clear();
        self.pod.handle(at(secs), input, &mut self.out);
    }

    pub(crate) fn advance(&mut self, secs: u64) {
        self.out.clear();
        self.pod.advance(at(secs), &mut self.out);
    }

    pub(crate) fn reports(&self, body: &LineBody) -> bool {
        self.out.lines.iter().any(|line| line.body == *body)
    }
}

pub(crate) fn created(life: LifeKey) -> Input {
    Input::Created {
        life,
        id: format!("id-{}", life.attempt).into(),
        stop_signal: Some(Signal::TERM),
    }
}

pub(crate) fn exited(life: LifeKey, secs: u64, code: i32) -> Input {
    Input::Exited {
        life,
        exit: Exit {
            code,
            at: at(secs),
            oom_killed: false,
            message: None,
            stop: None,
        },
    }
}

pub(crate) fn reported(outcome: ProbeOutcome) -> ProbeReport {
    ProbeReport {
        outcome,
        detail: String::new(),
        exit_code: None,
        latency: Span::ZERO,
        reached: true,
        timed_out: false,
        starved: false,
    }
}

pub(crate) fn probed(life: LifeKey, kind: ProbeKind, outcome: ProbeOutcome) -> Input {
    let report = reported(outcome);
    Input::ProbeDone { life, kind, report }
}
