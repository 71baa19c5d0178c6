//! A driver that answers every action at once with success, around as many pods as asked for.

use std::sync::Arc;

use pulselet_engine::io::{ProbeOutcome, ProbeReport, Pulled};
use pulselet_engine::plan::{ContainerPlan, Handler, ProbeKind, ProbePlan, RestartPolicy, Role};
use pulselet_engine::{
    Action, Identity, Input, LifeKey, Outbox, PodKey, PodMachine, PodPlan, Pods, Settings, Span, Time,
};

/// By then every container is ready and in its rhythm.
pub(crate) const SETTLED: Time = Time::from_micros(40_000_000);

fn probe() -> Arc<ProbePlan> {
    Arc::new(ProbePlan {
        handler: Handler::Http,
        initial_delay: Span::ZERO,
        period: Span::from_secs(10),
        period_after: Span::from_secs(10),
        timeout: Span::from_secs(1),
        success_threshold: 1,
        failure_threshold: 3,
        initial_failure_threshold: 3,
        grace: None,
    })
}

/// A pod of one container with all three probes.
fn plan() -> Arc<PodPlan> {
    let container = ContainerPlan {
        name: "app".into(),
        image: "image".into(),
        role: Role::Main,
        restart: RestartPolicy::Always,
        restart_rules: Vec::new(),
        startup: Some(probe()),
        liveness: Some(probe()),
        readiness: Some(probe()),
        post_start: None,
        pre_stop: None,
        stop_signal: None,
    };
    Arc::new(PodPlan {
        grace: None,
        active_deadline: None,
        containers: vec![Arc::new(container)],
    })
}

fn answer(action: &Action, now: Time) -> Option<Input> {
    Some(match action {
        Action::RunSandbox { .. } => Input::SandboxReady,
        Action::EnsureImage { container } => Input::ImageReady {
            container: *container,
            pulled: Pulled::NotNeeded,
        },
        Action::Create { life } => Input::Created {
            life: *life,
            id: "id".into(),
            stop_signal: None,
        },
        Action::Start { life } => Input::Running { life: *life, at: now },
        Action::Probe { life, kind, .. } => success(*life, *kind),
        _ => return None,
    })
}

fn success(life: LifeKey, kind: ProbeKind) -> Input {
    let report = ProbeReport {
        outcome: ProbeOutcome::Success,
        detail: String::new(),
        latency: Span::ZERO,
        exit_code: None,
        reached: true,
        timed_out: false,
        starved: false,
    };
    Input::ProbeDone { life, kind, report }
}

#[derive(Debug)]
pub(crate) struct Node {
    pods: Pods,
    out: Outbox,
    /// Reused, as a real driver would.
    actions: Vec<Action>,
    /// Probes asked for so far.
    pub(crate) ticks: u64,
}

impl Node {
    pub(crate) fn running(containers: u64) -> Self {
        let mut node = Self {
            pods: Pods::default(),
            out: Outbox::default(),
            actions: Vec::new(),
            ticks: 0,
        };
        let plan = plan();
        for number in 0..containers {
            // Spread over the period, as containers of a real node are.
            let now = Time::from_micros(number * 10_000_000 / containers);
            let identity = Identity {
                namespace: "default".into(),
                name: "pod".into(),
                uid: number.to_string().into(),
            };
            let pod = PodMachine::new(
                identity,
                Arc::clone(&plan),
                Settings::default(),
                number,
                now,
                &mut node.out,
            );
            let key = node.pods.insert(pod);
            node.carry_out(key, now);
        }
        node.advance(SETTLED);
        node
    }

    fn carry_out(&mut self, key: PodKey, now: Time) {
        while !self.out.actions.is_empty() {
            let mut actions = std::mem::take(&mut self.actions);
            std::mem::swap(&mut actions, &mut self.out.actions);
            self.out.clear();
            for action in actions.drain(..) {
                self.ticks += u64::from(matches!(action, Action::Probe { .. }));
                if let Some(input) = answer(&action, now) {
                    self.pods.handle(now, key, input, &mut self.out);
                }
            }
            self.actions = actions;
        }
        self.out.clear();
    }

    pub(crate) fn advance(&mut self, until: Time) {
        while let Some(at) = self.pods.next_deadline().filter(|at| *at <= until) {
            while let Some(key) = self.pods.advance_one(at, &mut self.out) {
                self.carry_out(key, at);
            }
        }
    }

    /// Goes on moment by moment until this many ticks have been taken; returns how many it were.
    pub(crate) fn take_ticks(&mut self, count: u64) -> u64 {
        let first = self.ticks;
        while self.ticks < first + count {
            let now = self.pods.next_deadline().expect("probes never end");
            self.advance(now);
        }
        self.ticks - first
    }
}
