//! What must hold after every step of every simulation.
//!
//! The oracles see what anyone could see: event lines, the actions that were carried out, what the runtime reported.
//! From that they keep their own, much simpler record of the pod (`record`) and hold each step against it. They never
//! look into the engine's state, except for the status that it publishes.
//!
//! Bounds on time are those of `pulselet_plan::timing`. The upper ones hold for an agent that is never late, so they
//! are checked only where no faults were injected.

mod convergence;
mod record;

use std::sync::Arc;

use pulselet_engine::io::{Action, Input, LifeKey};
use pulselet_engine::line::{KillReason, Line, LineBody, LineOutcome, Phase};
use pulselet_engine::plan::{PodPlan, ProbeKind, RestartAction, Role, Settings};
use pulselet_engine::status::PodReport;
use pulselet_engine::time::{Span, Time};
use pulselet_plan::timing::{self, ProbeTiming};
use pulselet_vocabulary::Signal;

use crate::scenario::Scenario;
use crate::simulation::{Simulation, Step};
pub use convergence::SETTLED_AFTER;
use record::{Kill, LookSeen, Record};

/// Steps at one moment of virtual time; a pod that needs more is going round in circles.
const MAX_STEPS_AT_ONCE: u32 = 20_000;

/// A rule that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {at:?}: {rule}: {message}")]
pub struct Violation {
    pub rule: &'static str,
    pub at: Time,
    pub message: String,
}

/// Whether the agent is always on time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Punctuality {
    /// No faults and no restarts: what `explain` promises must happen in time.
    Exact,
    /// Things may come late, but never early.
    Late,
}

/// Watches one simulation.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "separate facts that were seen, not a state"
)]
pub struct Oracles {
    plan: Arc<PodPlan>,
    punctuality: Punctuality,
    containers: Vec<Record>,
    /// Per container and kind.
    timings: Vec<[Option<ProbeTiming>; 3]>,
    /// When the pod's end began.
    ending: Option<Time>,
    /// It began because the machine goes down: an agent that comes after that takes it back.
    awaits_boot: bool,
    /// All containers restart, and no init container has begun since.
    restarting: bool,
    phase: Phase,
    now: Time,
    steps_at_once: u32,
    /// Gates were flipped: the times that the first plan implies do not hold any more.
    flipped: bool,
    /// An agent could not write down what had happened, and another went on without it: what was told before is no measure
    /// of what comes, but the containers are.
    forgot: bool,
}

type Verdict = Result<(), Violation>;

impl Oracles {
    pub fn new(plan: Arc<PodPlan>, settings: &Settings, punctuality: Punctuality) -> Self {
        let timings = plan
            .containers
            .iter()
            .map(|it| ProbeKind::ALL.map(|kind| timing::probe_timing(&plan, it, kind, settings)))
            .collect();
        let containers = plan
            .containers
            .iter()
            .map(|it| Record::new(Arc::clone(it)))
            .collect();
        Self {
            plan,
            punctuality,
            containers,
            timings,
            ending: None,
            awaits_boot: false,
            restarting: false,
            phase: Phase::Pending,
            now: Time::ZERO,
            steps_at_once: 0,
            flipped: false,
            forgot: false,
        }
    }

    /// Checks the step that the simulation has just taken.
    pub fn check(&mut self, simulation: &Simulation) -> Verdict {
        self.time_moves_on(simulation.now())?;
        self.one_life_at_a_time(simulation)?;
        let step = simulation.last_step();
        self.restored_state_is_the_same(step)?;
        if let Some(restart) = &step.restart {
            self.forgot |= restart.forgot;
            if restart.from_spare {
                self.containers.iter_mut().for_each(Record::forget_the_unseen);
                // A request that changed nothing that others see is made again.
                self.ending = None;
            }
            self.containers
                .iter_mut()
                .for_each(Record::forget_probes_under_way);
        }
        if let Some(input) = &step.input {
            self.note_input(input);
        }
        if self.forgot {
            return Ok(());
        }
        // What this step is about to tell may just be in time, but not what it has to tell too late.
        if self.punctuality == Punctuality::Exact && !self.flipped {
            self.decisions_come_in_time()?;
        }
        for line in &step.lines {
            self.check_line(line)?;
        }
        for action in &step.actions {
            self.check_action(action)?;
        }
        if step
            .lines
            .iter()
            .any(|line| !matches!(line.body, LineBody::Probe { .. }))
        {
            self.status_agrees_with_the_lines(simulation)?;
        }
        Ok(())
    }

    /// Checks where the pod has come to rest. `faults_end` is when the world began to behave.
    pub fn check_end(&self, simulation: &Simulation, scenario: &Scenario, faults_end: Time) -> Verdict {
        let left = simulation.running().next();
        let rule = "a pod that is over leaves nothing running";
        self.ensure(!simulation.pod().is_over() || left.is_none(), rule, || {
            format!("{left:?} runs on")
        })?;
        convergence::check(self, simulation, scenario, faults_end)
    }

    fn fail(&self, rule: &'static str, message: String) -> Verdict {
        Err(Violation {
            rule,
            at: self.now,
            message,
        })
    }

    fn ensure(&self, holds: bool, rule: &'static str, message: impl FnOnce() -> String) -> Verdict {
        if holds { Ok(()) } else { self.fail(rule, message()) }
    }

    fn time_moves_on(&mut self, now: Time) -> Verdict {
        self.steps_at_once = if now == self.now {
            self.steps_at_once + 1
        } else {
            0
        };
        self.ensure(now >= self.now, "time moves on", || {
            format!("it is {now:?} again")
        })?;
        self.now = now;
        self.ensure(self.steps_at_once < MAX_STEPS_AT_ONCE, "time moves on", || {
            format!("{MAX_STEPS_AT_ONCE} steps without an end")
        })
    }

    fn restored_state_is_the_same(&self, step: &Step) -> Verdict {
        let rule = "state restored after a crash equals the state before";
        let Some(restart) = &step.restart else {
            return Ok(());
        };
        self.ensure(restart.read_back, rule, || "it reads back differently".to_owned())?;
        let (before, after) = (&restart.before, &restart.after);
        let holds = if restart.from_spare {
            // It is as old as the last change of a life; why a container waits may be older.
            let lives = |report: &PodReport| -> Vec<_> {
                let containers = report.containers.iter();
                containers
                    .map(|it| (it.id.clone(), it.restart_count, it.started, it.ready))
                    .collect()
            };
            lives(before) == lives(after) && before.phase == after.phase
        } else {
            before == after
        };
        self.ensure(restart.forgot || holds, rule, || {
            format!("{before:?} became {after:?}")
        })
    }

    /// Also if an agent has forgotten one of them.
    fn one_life_at_a_time(&self, simulation: &Simulation) -> Verdict {
        let mut last: Option<LifeKey> = None;
        for life in simulation.running() {
            let twice = last.is_some_and(|last| last.container == life.container);
            self.ensure(!twice, "a container runs once at a time", || {
                format!("{life:?} runs beside {last:?}")
            })?;
            last = Some(life);
        }
        Ok(())
    }

    fn note_input(&mut self, input: &Input) {
        match input {
            Input::Running { life, at } => self.containers[life.container].seen_running(life.attempt, *at),
            Input::ProbeDone { life, kind, report } => {
                let record = &mut self.containers[life.container];
                if record.lives == life.attempt + 1 {
                    record.probes[*kind as usize].look_done(report.reached);
                }
            }
            Input::Replan { plan, .. } => {
                self.flipped = true;
                for (record, plan) in self.containers.iter_mut().zip(&plan.containers) {
                    record.replan(plan);
                }
            }
            Input::NodeShutdown { .. } => {
                self.awaits_boot |= self.ending.is_none();
                self.ending.get_or_insert(self.now);
            }
            Input::Delete { .. } | Input::Stop { .. } | Input::Evict { .. } => {
                self.awaits_boot = false;
                self.ending.get_or_insert(self.now);
            }
            Input::AgentRestarted if self.awaits_boot => self.begins_anew(),
            _ => {}
        }
    }

    /// The machine is up again: init containers run once more, and nobody waits.
    fn begins_anew(&mut self) {
        self.awaits_boot = false;
        self.ending = None;
        self.phase = Phase::Pending;
        for record in &mut self.containers {
            record.not_before = None;
        }
    }

    /// All containers begin again, without a wait, so the pod may be pending again.
    fn all_restart(&mut self) {
        self.restarting = true;
        for record in &mut self.containers {
            record.not_before = None;
        }
    }

    fn check_line(&mut self, line: &Line) -> Verdict {
        self.ensure(line.at == self.now, "lines come in order of time", || {
            format!("{:?} is told at {:?}", line.body, line.at)
        })?;
        let Some(name) = &line.container else {
            return self.check_pod_line(&line.body);
        };
        let Some(ix) = self.containers.iter().position(|it| it.plan.name == *name) else {
            return self.fail("lines name containers of the pod", name.to_string());
        };
        self.check_container_line(ix, line)?;
        self.containers[ix].follow(line);
        Ok(())
    }

    fn check_pod_line(&mut self, body: &LineBody) -> Verdict {
        if let LineBody::Phase { phase } = body {
            let (from, to) = (self.phase, *phase);
            let forward = match from {
                Phase::Pending => true,
                Phase::Running => to != Phase::Pending || self.restarting,
                Phase::Succeeded | Phase::Failed => false,
            };
            self.ensure(forward, "phases only go forward", || {
                format!("{from:?} became {to:?}")
            })?;
            self.restarting &= to != Phase::Pending;
            self.phase = to;
        }
        Ok(())
    }

    fn check_container_line(&mut self, ix: usize, line: &Line) -> Verdict {
        let record = &self.containers[ix];
        let name = &record.plan.name;
        match &line.body {
            LineBody::Created { restart_count, .. } => {
                self.restart_counts_grow_by_one(record, *restart_count)?;
                self.back_off_is_waited_for(record)
            }
            LineBody::Started => {
                self.ensure(record.running && !record.started, "started once per life", || {
                    format!("{name} is started again, or without running")
                })
            }
            LineBody::Ready => self.ensure(
                record.running && record.started,
                "not ready unless started",
                || {
                    format!(
                        "{name} is ready, running {}, started {}",
                        record.running, record.started
                    )
                },
            ),
            LineBody::Killing { reason, .. } => {
                if pod_wide(*reason) {
                    self.awaits_boot &= *reason == KillReason::NodeShutdown;
                    self.ending.get_or_insert(self.now);
                }
                self.no_kill_before_the_threshold(ix, *reason)
            }
            LineBody::Signal { signal } => self.one_stop_signal_per_life(&self.containers[ix], *signal),
            LineBody::GraceExceeded { .. } => {
                let record = &self.containers[ix];
                self.no_sigkill_before_the_grace_is_over(record)?;
                self.ensure(
                    record.signal != Some(Signal::KILL),
                    "SIGKILL is not exceeded",
                    || format!("{name} was sent SIGKILL in the first place"),
                )
            }
            LineBody::Exited { .. } => self.ensure(record.exists, "only what is there exits", || {
                format!("{name} exits without a life")
            }),
            LineBody::RestartAllContainers { exit_code } => {
                let allowed =
                    record.plan.action_after(*exit_code) == Some(RestartAction::RestartAllContainers);
                self.ensure(allowed, "all containers restart only by a rule", || {
                    format!("{name} restarts all of them after {exit_code}")
                })?;
                self.all_restart();
                Ok(())
            }
            LineBody::Running { .. }
            | LineBody::Probe { .. }
            | LineBody::Unready
            | LineBody::Hook { .. }
            | LineBody::Backoff { .. }
            | LineBody::Phase { .. }
            | LineBody::Deleted
            | LineBody::AgentRestarted
            | LineBody::Warning { .. } => Ok(()),
        }
    }

    fn restart_counts_grow_by_one(&self, record: &Record, count: u32) -> Verdict {
        let expected = record.lives;
        self.ensure(count == expected, "restart counts are monotonic", || {
            format!("{} is created with {count}, not {expected}", record.plan.name)
        })
    }

    fn back_off_is_waited_for(&self, record: &Record) -> Verdict {
        self.ensure(
            record.not_before.is_none_or(|at| self.now >= at),
            "back-off is waited for",
            || format!("{} begins before {:?}", record.plan.name, record.not_before),
        )
    }

    /// Enough failures in a row, and for a probe that has never succeeded the whole budget.
    fn no_kill_before_the_threshold(&self, ix: usize, reason: KillReason) -> Verdict {
        let rule = "never a kill before the threshold that the manifest gives";
        let Some(kind) = reason.probe() else {
            return Ok(());
        };
        let record = &self.containers[ix];
        let name = &record.plan.name;
        let (Some(plan), Some(timing)) = (record.plan.probe(kind), &self.timings[ix][kind as usize]) else {
            return self.fail(rule, format!("{name} has no {} probe", kind.as_str()));
        };
        let seen = &record.probes[kind as usize];
        let threshold = if seen.last_success.is_some() {
            plan.failure_threshold
        } else {
            plan.initial_failure_threshold.max(plan.failure_threshold)
        };
        self.ensure(seen.failures >= threshold, rule, || {
            format!("{name}: {} failures of {threshold}", seen.failures)
        })?;
        let Some(clock) = record.clock_start(kind) else {
            return self.fail(rule, format!("{name}: the {} clock never started", kind.as_str()));
        };
        let earliest = match seen.last_success {
            None => clock + timing.never_up.min,
            Some(_) => seen.failing_since.unwrap_or(self.now) + timing.detect.min - timing.overrun,
        };
        let holds = self.flipped
            || self.now >= earliest
            || (seen.last_success.is_some() && self.punctuality == Punctuality::Late);
        self.ensure(holds, rule, || format!("{name}: not before {earliest:?}"))
    }

    fn one_stop_signal_per_life(&self, record: &Record, signal: Signal) -> Verdict {
        let rule = "at most one stop signal per life, none at grace 0";
        let name = &record.plan.name;
        self.ensure(record.signal.is_none(), rule, || {
            format!("{name} is sent {signal} as well")
        })?;
        let Some(kill) = &record.kill else {
            return self.fail(rule, format!("{name} is sent {signal} without a reason"));
        };
        self.ensure(!kill.at_once || signal.is_kill(), rule, || {
            format!("{name} is sent {signal} at grace 0")
        })
    }

    fn no_sigkill_before_the_grace_is_over(&self, record: &Record) -> Verdict {
        let rule = "SIGKILL never before the grace is over";
        let Some(Kill { deadline, .. }) = record.kill else {
            return self.fail(rule, format!("nobody decided to stop {}", record.plan.name));
        };
        let chosen = record.signal == Some(Signal::KILL);
        self.ensure(chosen || self.now >= deadline, rule, || {
            format!("{} had until {deadline:?}", record.plan.name)
        })
    }

    fn check_action(&mut self, action: &Action) -> Verdict {
        match action {
            Action::Probe { life, kind, look, .. } => {
                self.no_probe_while_its_gate_is_closed(life.container, *kind)?;
                if look.is_some() {
                    self.no_look_after_one_was_seen(life.container, *kind)?;
                }
                let seen = &mut self.containers[life.container].probes[*kind as usize];
                seen.under_way = true;
                if look.is_some() {
                    seen.look = LookSeen::UnderWay;
                }
                Ok(())
            }
            Action::Kill { life } if self.containers[life.container].running => {
                self.no_sigkill_before_the_grace_is_over(&self.containers[life.container])
            }
            Action::Stop { life, .. } => {
                self.sidecars_stop_last(life.container)?;
                self.containers[life.container].stop_asked = true;
                Ok(())
            }
            Action::Start { .. } => self.ensure(
                self.ending.is_none(),
                "nothing starts once the end has begun",
                || format!("{action:?}"),
            ),
            Action::Kill { .. }
            | Action::Create { .. }
            | Action::RunSandbox { .. }
            | Action::StopSandbox
            | Action::EnsureImage { .. }
            | Action::Hook { .. }
            | Action::CancelHook { .. }
            | Action::Remove { .. } => Ok(()),
        }
    }

    fn no_probe_while_its_gate_is_closed(&self, ix: usize, kind: ProbeKind) -> Verdict {
        let record = &self.containers[ix];
        let open = match kind {
            ProbeKind::Startup => !record.started && self.ending.is_none(),
            ProbeKind::Liveness => record.started && self.ending.is_none(),
            ProbeKind::Readiness => record.started,
        };
        let age = record.running_since.map(|since| self.now.since(since));
        let delay = record
            .plan
            .probe(kind)
            .map_or(Span::ZERO, |plan| plan.initial_delay);
        let due = record.running && age.is_some_and(|age| age >= delay || self.flipped);
        let condemned = record.kill.as_ref().is_some_and(|kill| kill.by == Some(kind));
        let alone = !record.probes[kind as usize].under_way;
        self.ensure(
            open && due && alone && !condemned,
            "no probe of a kind while its gate is closed",
            || {
                format!(
                    "{} {}: started {}, running {}, age {age:?}, ending {:?}, alone {alone}, condemned {condemned}",
                    record.plan.name,
                    kind.as_str(),
                    record.started,
                    record.running,
                    self.ending
                )
            },
        )
    }

    fn no_look_after_one_was_seen(&self, ix: usize, kind: ProbeKind) -> Verdict {
        let record = &self.containers[ix];
        self.ensure(
            record.probes[kind as usize].look == LookSeen::ByNobody,
            "a program sees at most one uncounted request",
            || format!("{} {} looks again", record.plan.name, kind.as_str()),
        )
    }

    fn sidecars_stop_last(&self, ix: usize) -> Verdict {
        let record = &self.containers[ix];
        if record.plan.role != Role::Sidecar || self.ending.is_none() || record.stop_asked {
            return Ok(());
        }
        let over = record.kill.as_ref().is_none_or(|kill| self.now >= kill.deadline);
        let before = |(other, it): &(usize, &Record)| match it.plan.role {
            Role::Main | Role::Init | Role::Ephemeral => true,
            Role::Sidecar => *other > ix,
        };
        let left = self
            .containers
            .iter()
            .enumerate()
            .filter(before)
            .find(|(_, it)| it.running);
        self.ensure(
            over || left.is_none(),
            "a sidecar is signalled only when all mains are gone or the grace is over",
            || {
                let other = left.map_or("", |(_, it)| &it.plan.name);
                format!("{} goes before {other}", record.plan.name)
            },
        )
    }

    fn status_agrees_with_the_lines(&self, simulation: &Simulation) -> Verdict {
        let rule = "status agrees with the lines";
        for (record, status) in self.containers.iter().zip(simulation.pod().status().containers) {
            let name = &record.plan.name;
            // An init container that has completed is reported ready, as it is upstream.
            self.ensure(
                !status.ready || status.started || record.plan.role == Role::Init,
                "not ready unless started",
                || name.to_string(),
            )?;
            let lives = status.restart_count + 1;
            self.ensure(record.lives <= lives, "restart counts are monotonic", || {
                format!(
                    "{name}: {} lives, status says {}",
                    record.lives, status.restart_count
                )
            })?;
            if simulation.agent_is_up() && record.plan.role != Role::Init {
                self.ensure(status.ready == record.ready, rule, || {
                    format!("{name}: ready {} told, {} in status", record.ready, status.ready)
                })?;
            }
        }
        Ok(())
    }

    /// What fails must have had its consequence by the bound that `explain` gives.
    fn decisions_come_in_time(&self) -> Verdict {
        for (record, timings) in self.containers.iter().zip(&self.timings) {
            for timing in timings.iter().flatten() {
                self.decision_comes_in_time(record, timing)?;
            }
        }
        Ok(())
    }

    fn decision_comes_in_time(&self, record: &Record, timing: &ProbeTiming) -> Verdict {
        let kind = timing.kind;
        let decided = match kind {
            ProbeKind::Startup => record.started || record.kill.is_some() || self.ending.is_some(),
            ProbeKind::Liveness => record.kill.is_some() || self.ending.is_some(),
            ProbeKind::Readiness => !record.ready,
        };
        let Some(clock) = record.clock_start(kind).filter(|_| record.running && !decided) else {
            return Ok(());
        };
        let seen = &record.probes[kind as usize];
        let latest = match seen.last_success {
            None => clock + timing.never_up.max,
            Some(at) => at + timing.detect.max,
        };
        self.ensure(
            self.now <= latest,
            "a kill always within the bound explain gives",
            || {
                format!(
                    "{}: {} should have decided by {latest:?}",
                    record.plan.name,
                    kind.as_str()
                )
            },
        )
    }
}

/// Reasons that end the pod as a whole.
const fn pod_wide(reason: KillReason) -> bool {
    match reason {
        KillReason::Deleted
        | KillReason::Stopped
        | KillReason::Evicted
        | KillReason::NodeShutdown
        | KillReason::Deadline => true,
        // A pod that has completed is not ending: its sidecars are probed until they are gone.
        KillReason::Completed
        | KillReason::StartupProbe
        | KillReason::LivenessProbe
        | KillReason::SandboxChanged
        | KillReason::ImageChanged
        | KillReason::Restarted
        | KillReason::AllContainersRestarting
        | KillReason::PostStartHook => false,
    }
}

/// Whether a probe's outcome speaks for the container.
const fn is_good(outcome: LineOutcome) -> Option<bool> {
    match outcome {
        LineOutcome::Success | LineOutcome::Warning => Some(true),
        LineOutcome::Failure => Some(false),
        LineOutcome::Error => None,
    }
}
