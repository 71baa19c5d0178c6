//! A worker and its clock: one probe of one container, for one life.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::io::{ProbeOutcome, ProbeReport};
use crate::plan::{Handler, ProbeKind, ProbePace, ProbePlan, Settings, SubSecondPolicy};
use crate::schedule::{Contact, Due, LookLimits, LookPolicy, Schedule, Turn};
use crate::time::{Span, Time};
use crate::worker::{LifeState, Next, Published, View, Worker};

/// After an agent restart overdue probes are spread over one period, but over no more than this.
const MAX_SPREAD: Span = Span::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRunner {
    worker: Worker,
    /// Runs while the container runs, its gate is open and the worker is not on hold.
    schedule: Option<Schedule>,
    /// The probe under way began more than a period after its turn.
    late: bool,
    /// A success was published in this life: the time of fast probing is over.
    #[serde(default)]
    settled: bool,
}

/// A probe that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub timeout: Span,
    /// How long a look may take until it is connected; `None` for a counted tick.
    pub look: Option<Span>,
}

/// What a report came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    pub outcome: ProbeOutcome,
    pub run: u32,
    pub counted: bool,
    pub turn: Turn,
    pub published: Option<Published>,
    /// The time-out was forgiven: the agent itself had been late.
    pub forgiven: bool,
    /// Nothing was learned that outlives the moment: one more success of a probe that succeeded before.
    pub routine: bool,
}

impl ProbeRunner {
    pub(crate) fn forget_run(&mut self) {
        self.worker.forget_run();
    }

    pub fn new(kind: ProbeKind, plan: Arc<ProbePlan>) -> Self {
        Self {
            worker: Worker::new(kind, plan),
            schedule: None,
            late: false,
            settled: false,
        }
    }

    pub fn kind(&self) -> ProbeKind {
        self.worker.kind()
    }

    pub fn plan(&self) -> &Arc<ProbePlan> {
        self.worker.plan()
    }

    pub fn published_for(&self, attempt: u32) -> Option<Published> {
        self.worker.published_for(attempt)
    }

    pub fn has_initialized(&self) -> bool {
        self.worker.has_initialized()
    }

    /// Goes by other times from the next tick on. A clock that runs does not wait for another initial delay.
    pub(crate) fn replan(&mut self, now: Time, plan: &Arc<ProbePlan>, settings: &Settings) {
        // A state that was written before `settled` was: what is published tells.
        self.settled |= self.worker.published() == Some(Published::Success) && self.schedule.is_some();
        let begun = self.schedule.as_ref().is_some_and(|clock| clock.has_started(now));
        let mut plan = ProbePlan::clone(plan);
        if begun {
            plan.initial_delay = self.plan().initial_delay;
        } else {
            self.schedule = None;
        }
        self.worker.set_plan(Arc::new(plan));
        self.pace(now, settings);
    }

    /// Goes by the period that is wanted now, from the last tick on.
    pub(crate) fn pace(&mut self, now: Time, settings: &Settings) {
        let period = self.wanted_period(settings);
        if let Some(schedule) = self.schedule.as_mut().filter(|clock| clock.period() != period) {
            schedule.change_period(now, period);
        }
    }

    /// The period that the plan, the settings, the node's pressure and what was published ask for.
    fn wanted_period(&self, settings: &Settings) -> Span {
        let plan = self.plan();
        let is_fast = match settings.sub_second_policy {
            SubSecondPolicy::OnlyFirstTime => !self.settled,
            SubSecondPolicy::AlwaysWhenWaitingForSuccess => {
                self.worker.published() != Some(Published::Success)
            }
            SubSecondPolicy::Always => true,
        };
        match settings.pace {
            ProbePace::Planned if is_fast => plan.period,
            // A period of a second or more is the same before and after: nothing stretches it.
            ProbePace::Planned | ProbePace::Stretched => plan.period_after,
        }
    }

    /// Follows what has changed around the container. `gate` is when the container's gate opened for this kind.
    pub fn sync(&mut self, view: &View, started_at: Time, gate: Option<Time>, settings: &Settings) -> Next {
        let next = self.worker.tick(view);
        let running = view.life.is_some_and(|life| life.state == LifeState::Running);
        match gate {
            Some(gate) if running && next != Next::Stop && !self.worker.is_on_hold() => {
                if self.schedule.is_none() {
                    let start = gate.max(started_at + self.plan().initial_delay);
                    let policy = self.look_policy(settings);
                    let period = self.wanted_period(settings);
                    self.schedule = Some(Schedule::new(start, period, policy));
                }
            }
            Some(_) | None => self.schedule = None,
        }
        next
    }

    fn look_policy(&self, settings: &Settings) -> LookPolicy {
        match self.kind() {
            ProbeKind::Liveness => LookPolicy::None,
            ProbeKind::Startup | ProbeKind::Readiness if settings.looks => {
                LookPolicy::All(self.plan().handler)
            }
            ProbeKind::Startup | ProbeKind::Readiness => LookPolicy::FirstOnly,
        }
    }

    /// Between two ticks, as it is now or will be when the clock starts.
    pub fn period(&self, settings: &Settings) -> Span {
        let clock = self.schedule.as_ref();
        clock.map_or_else(|| self.wanted_period(settings), Schedule::period)
    }

    pub fn due_at(&self) -> Option<Time> {
        self.schedule.as_ref()?.due().map(|due| due.at)
    }

    /// Begins the probe that is due at `now`, if there is one.
    pub fn begin(&mut self, now: Time, view: &View) -> Option<Asked> {
        let schedule = self.schedule.as_mut()?;
        let due = schedule.begin(now)?;
        self.late = now.since(due.at) > schedule.period();
        if self.worker.tick(view) != Next::Probe {
            schedule.complete(now, Contact::None);
            return None;
        }
        let timeout = self.worker.plan().timeout;
        Some(match due.turn {
            Turn::Tick => Asked { timeout, look: None },
            Turn::Look => {
                let LookLimits { connect, answer } = schedule.look_limits(now);
                Asked {
                    timeout: timeout.min(answer),
                    look: Some(connect),
                }
            }
        })
    }

    /// Takes the report of the probe under way; none if there is no such probe any more.
    pub fn complete(&mut self, now: Time, report: &ProbeReport, settings: &Settings) -> Option<Finding> {
        let outcome = match report.outcome {
            ProbeOutcome::Error if settings.exec_error_is_failure && self.plan().handler == Handler::Exec => {
                ProbeOutcome::Failure
            }
            outcome => outcome,
        };
        let succeeded = outcome.is_success();
        let contact = match (succeeded, report.reached) {
            (true, _) => Contact::Success,
            (false, true) => Contact::Failure,
            (false, false) => Contact::None,
        };
        let due = self.schedule.as_mut()?.complete(now, contact)?;
        let turn = due.turn;
        let forgiven = settings.overload_guard
            && self.kind() == ProbeKind::Liveness
            && report.timed_out
            && (report.starved || self.late);
        if forgiven || (turn == Turn::Look && !succeeded) {
            return Some(Finding {
                outcome,
                run: 0,
                counted: false,
                turn,
                published: None,
                forgiven,
                routine: false,
            });
        }
        let had_initialized = self.worker.has_initialized();
        let judgement = self.worker.record(outcome);
        if let Some(published) = judgement.published {
            self.follow(published, due, now, settings);
        }
        Some(Finding {
            outcome,
            run: judgement.run,
            counted: true,
            turn,
            published: judgement.published,
            forgiven: false,
            routine: had_initialized && judgement.run > self.plan().success_threshold && succeeded,
        })
    }

    /// Sets the clock to what a published result asks for.
    fn follow(&mut self, published: Published, due: Due, now: Time, settings: &Settings) {
        if self.worker.is_on_hold() {
            self.schedule = None;
            return;
        }
        self.settled |= published == Published::Success;
        let period = self.wanted_period(settings);
        if let Some(schedule) = self.schedule.as_mut().filter(|clock| clock.period() != period) {
            schedule.set_period(due.at, now, period);
        }
    }

    /// The agent was away. `fraction` is drawn at random below one.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a part of at most one second"
    )]
    pub fn resume(&mut self, now: Time, fraction: f64) {
        let Some(schedule) = &mut self.schedule else {
            return;
        };
        let most = schedule.period().min(MAX_SPREAD).as_micros() as f64;
        schedule.resume(now, Span::from_micros((most * fraction) as u64));
    }
}
