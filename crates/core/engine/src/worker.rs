//! The probe worker: what one probe of one container has seen, and what it publishes about it.
//!
//! A worker decides *whether* to probe and what a result means; *when* is [`crate::schedule`]'s. It always holds:
//! - a result belongs to one life of the container: a new life starts with the kind's initial value and a fresh run;
//! - on hold, nothing is probed until a new life begins;
//! - a handler's error changes nothing.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::io::ProbeOutcome;
use crate::plan::{ProbeKind, ProbePlan};
use crate::time::Span;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    kind: ProbeKind,
    plan: Arc<ProbePlan>,
    /// The life the fields below speak of.
    life: Option<u32>,
    published: Option<Published>,
    /// The latest result and how often in a row it was seen.
    run: Option<(Verdict, u32)>,
    on_hold: bool,
    /// This life has succeeded once, so `failure_threshold` rules for the rest of it.
    initialized: bool,
}

/// What a worker last made known about its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Published {
    Unknown,
    Success,
    Failure,
}

/// An outcome, judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Verdict {
    Success,
    Failure,
}

/// What a worker sees of the world at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The pod's phase is Succeeded or Failed.
    pub pod_finished: bool,
    /// The pod is on its way out: deleted, stopped, evicted or past its deadline.
    pub pod_ending: bool,
    /// The newest life that has a container; none before the first.
    pub life: Option<LifeView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeView {
    pub attempt: u32,
    pub state: LifeState,
    pub age: Span,
    /// The container counts as started: its startup probe has succeeded, or it has none.
    pub started: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeState {
    /// Created, or about to be replaced.
    Waiting,
    Running,
    Ended {
        restarts: bool,
    },
}

/// What to do on a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Probe,
    Wait,
    /// The worker has nothing left to do, ever.
    Stop,
}

/// What a result meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Equal results in a row, this one included; 0 for one that does not count.
    pub run: u32,
    /// What this result made the worker publish.
    pub published: Option<Published>,
}

impl Worker {
    pub fn new(kind: ProbeKind, plan: Arc<ProbePlan>) -> Self {
        Self {
            kind,
            plan,
            life: None,
            published: None,
            run: None,
            on_hold: false,
            initialized: false,
        }
    }

    pub fn kind(&self) -> ProbeKind {
        self.kind
    }

    pub fn plan(&self) -> &Arc<ProbePlan> {
        &self.plan
    }

    /// Goes by another plan from now on; what was counted and published stays.
    pub(crate) fn set_plan(&mut self, plan: Arc<ProbePlan>) {
        self.plan = plan;
    }

    /// The result published for a life; none if the worker has not seen that life.
    pub fn published_for(&self, attempt: u32) -> Option<Published> {
        self.published.filter(|_| self.life == Some(attempt))
    }

    pub(crate) fn published(&self) -> Option<Published> {
        self.published
    }

    pub fn is_on_hold(&self) -> bool {
        self.on_hold
    }

    pub fn has_initialized(&self) -> bool {
        self.initialized
    }

    /// Takes the steps that come before a probe. Called on every tick, and whenever the view has changed.
    pub fn tick(&mut self, view: &View) -> Next {
        if view.pod_finished {
            return Next::Stop;
        }
        let Some(life) = view.life else { return Next::Wait };
        if self.life != Some(life.attempt) {
            self.begin(life.attempt);
        }
        if self.on_hold {
            return Next::Wait;
        }
        match life.state {
            LifeState::Running => {}
            LifeState::Waiting | LifeState::Ended { restarts: true } => {
                self.published = Some(Published::Failure);
                return Next::Wait;
            }
            LifeState::Ended { restarts: false } => {
                self.published = Some(Published::Failure);
                return Next::Stop;
            }
        }
        if view.pod_ending && self.kind != ProbeKind::Readiness {
            self.published = Some(Published::Success);
            return Next::Stop;
        }
        let gate_open = match self.kind {
            ProbeKind::Startup => !life.started,
            ProbeKind::Liveness | ProbeKind::Readiness => life.started,
        };
        if life.age < self.plan.initial_delay || !gate_open {
            return Next::Wait;
        }
        Next::Probe
    }

    fn begin(&mut self, attempt: u32) {
        self.life = Some(attempt);
        self.published = Some(match self.kind {
            ProbeKind::Startup => Published::Unknown,
            ProbeKind::Liveness => Published::Success,
            ProbeKind::Readiness => Published::Failure,
        });
        self.run = None;
        self.on_hold = false;
        self.initialized = false;
    }

    /// Counts anew: results were lost that may have ended the run.
    pub(crate) fn forget_run(&mut self) {
        self.run = None;
    }

    /// Counts a result and publishes when its run is long enough.
    pub fn record(&mut self, outcome: ProbeOutcome) -> Judgement {
        let verdict = match outcome {
            ProbeOutcome::Success | ProbeOutcome::Warning => Verdict::Success,
            ProbeOutcome::Failure | ProbeOutcome::Unknown => Verdict::Failure,
            ProbeOutcome::Error => {
                return Judgement {
                    run: 0,
                    published: None,
                };
            }
        };
        let run = match self.run {
            Some((last, run)) if last == verdict => run.saturating_add(1),
            Some(_) | None => 1,
        };
        self.run = Some((verdict, run));
        self.initialized |= verdict == Verdict::Success;
        if run < self.threshold(verdict) {
            return Judgement { run, published: None };
        }
        Judgement {
            run,
            published: Some(self.publish(verdict)),
        }
    }

    fn threshold(&self, verdict: Verdict) -> u32 {
        match verdict {
            Verdict::Success => self.plan.success_threshold,
            Verdict::Failure if self.initialized => self.plan.failure_threshold,
            Verdict::Failure => self
                .plan
                .initial_failure_threshold
                .max(self.plan.failure_threshold),
        }
    }

    fn publish(&mut self, verdict: Verdict) -> Published {
        let published = match verdict {
            Verdict::Success => Published::Success,
            Verdict::Failure => Published::Failure,
        };
        self.published = Some(published);
        let holds = match self.kind {
            ProbeKind::Startup => true,
            ProbeKind::Liveness => verdict == Verdict::Failure,
            ProbeKind::Readiness => false,
        };
        if holds {
            self.on_hold = true;
            self.run = None;
        }
        published
    }
}
