//! The world around the agent: a clock, a runtime with its containers, and what happens to the pod from outside.
//!
//! It always holds:
//! - things happen in the order of their time, and at one time in the order in which they were set up;
//! - a container behaves as its scenario says, whoever watches: it runs, stops and exits also while the agent is away;
//! - an answer on its way to an agent that dies is lost; what the runtime knows can be asked for again.
//!
//! It decides nothing about the pod: that is the engine's work, and `simulation` brings the two together.

mod answer;
mod away;
mod process;
mod queue;

use std::collections::BTreeMap;
use std::sync::Arc;

use pulselet_engine::io::{
    Action, AfterShutdown, CreateError, Exit, ImageFailure, Input, LifeKey, ProbeOutcome, Pulled, StopRecord,
};
use pulselet_engine::plan::{Handler, Hook, PodPlan, ProbeKind};
use pulselet_engine::time::{Span, Time};

use crate::faults::{Choice, Crash, CrashMoment, Dependency, FaultPlan, Stall, Subject};
use crate::scenario::Scenario;
use answer::{Question, answer_probe, report};
use process::{Process, Signalling};
use pulselet_vocabulary::{Signal, exit_code};
use queue::Queue;
pub(crate) use queue::Rank;

#[derive(Debug)]
pub(crate) struct World {
    /// What lives are made from now.
    plan: Arc<PodPlan>,
    /// What all probes of running lives are in.
    running: Arc<PodPlan>,
    scenario: Scenario,
    faults: FaultPlan,
    queue: Queue<Happening>,
    processes: BTreeMap<LifeKey, Process>,
    /// Which agent an answer is for: each crash begins another.
    agent: u64,
    /// Numbers the choices of `faults`.
    choices: u64,
}

#[derive(Clone, Debug)]
enum Happening {
    /// Something reaches the agent, if it is still the one that waits for it.
    Report {
        agent: u64,
        input: Input,
    },
    Request(Input),
    /// A probe of a loaded node begins, so long after its turn.
    ProbeBegins {
        agent: u64,
        asked: AskedProbe,
        late: Span,
    },
    Create(LifeKey),
    Start(LifeKey),
    Stop {
        life: LifeKey,
        grace: Span,
    },
    Kill(LifeKey),
    /// The container may leave by itself, or after a signal.
    Exit(LifeKey),
    /// The runtime's own watch over a grace period, should the agent be away.
    GraceOver(LifeKey),
    Crash(Crash),
    AgentReturns,
    Stall(Stall),
    StallEnds,
    /// What the agent could not ask a runtime for that was away.
    TryAgain {
        agent: u64,
        action: Action,
    },
    StoreReturns,
}

/// A probe that the agent wants to make.
#[derive(Clone, Copy, Debug)]
struct AskedProbe {
    life: LifeKey,
    kind: ProbeKind,
    timeout: Span,
    /// For a look: how long it may take until it is connected.
    look: Option<Span>,
}

/// What the agent gets to see of a moment.
#[derive(Debug)]
pub(crate) enum Arrival {
    Input(Input),
    /// A probe has begun, so long after its turn.
    ProbeBegan {
        late: Span,
    },
    Crash(Crash),
    Return,
    Stall,
    StallEnd,
    /// The disk takes writes again.
    StoreReturns,
    /// Nothing: it happened inside the runtime.
    Silence,
}

impl World {
    pub(crate) fn new(
        plan: Arc<PodPlan>,
        running: Arc<PodPlan>,
        scenario: Scenario,
        replans: Vec<(Time, Input)>,
        faults: FaultPlan,
    ) -> Self {
        let mut queue = Queue::default();
        for (at, input) in replans {
            let at = faults.passes(Dependency::Api, at);
            queue.push(at, Rank::World, Happening::Request(input));
        }
        for crash in &faults.crashes {
            queue.push(crash.at, Rank::World, Happening::Crash(*crash));
        }
        for at in &scenario.agent_restarts {
            let crash = Crash {
                at: *at,
                down: Span::ZERO,
                moment: CrashMoment::AtRest,
                loses_database: false,
            };
            queue.push(*at, Rank::World, Happening::Crash(crash));
        }
        for stall in &faults.stalls {
            queue.push(stall.at, Rank::World, Happening::Stall(*stall));
        }
        for delete in &scenario.deletes {
            let at = faults.passes(Dependency::Api, delete.at);
            let input = Input::Delete { grace: delete.grace };
            queue.push(at, Rank::World, Happening::Request(input));
        }
        if let Some(evict) = &scenario.evict {
            let message = "The node needs the room.".to_owned();
            let input = Input::Evict {
                grace: evict.grace,
                message,
            };
            queue.push(evict.at, Rank::World, Happening::Request(input));
        }
        if let Some(shutdown) = &scenario.shutdown {
            // Pods of files belong to their machine.
            let input = Input::NodeShutdown {
                left: shutdown.grace.unwrap_or(Span::ZERO),
                then: AfterShutdown::BeginsAnew,
            };
            queue.push(shutdown.at, Rank::World, Happening::Request(input));
        }
        for outage in faults
            .outages
            .iter()
            .filter(|outage| outage.of == Dependency::Store)
        {
            queue.push(outage.end(), Rank::World, Happening::StoreReturns);
        }
        Self {
            plan,
            running,
            scenario,
            faults,
            queue,
            processes: BTreeMap::new(),
            agent: 0,
            choices: 0,
        }
    }

    /// When the next thing happens, and its rank among all that happen then.
    pub(crate) fn next(&self) -> Option<(Time, Rank)> {
        self.queue.peek()
    }

    /// Whether nothing is to come that anyone would notice.
    pub(crate) fn is_quiet(&self) -> bool {
        self.queue.iter().all(|happening| match happening {
            Happening::Exit(life) | Happening::GraceOver(life) => {
                !self.processes.get(life).is_some_and(Process::is_running)
            }
            Happening::Stall(_) | Happening::StallEnds | Happening::StoreReturns => true,
            Happening::Report { .. }
            | Happening::Request(_)
            | Happening::ProbeBegins { .. }
            | Happening::Create(_)
            | Happening::Start(_)
            | Happening::Stop { .. }
            | Happening::Kill(_)
            | Happening::TryAgain { .. }
            | Happening::Crash(_)
            | Happening::AgentReturns => false,
        })
    }

    /// Lets the next thing happen.
    pub(crate) fn step(&mut self) -> Option<(Time, Arrival)> {
        let (now, happening) = self.queue.pop()?;
        let arrival = match happening {
            Happening::Report { agent, input } if agent == self.agent => {
                Arrival::Input(self.with_read_stamps(now, input))
            }
            Happening::Request(input) => {
                if let Input::Replan { plan, running, .. } = &input {
                    self.plan = Arc::clone(plan);
                    self.running = Arc::clone(running);
                }
                Arrival::Input(input)
            }
            Happening::ProbeBegins { agent, asked, late } if agent == self.agent => {
                self.begin_probe(now, asked, late);
                Arrival::ProbeBegan { late }
            }
            Happening::TryAgain { agent, action } if agent == self.agent => self.try_again(now, &action),
            // For an agent that is gone.
            Happening::Report { .. } | Happening::ProbeBegins { .. } | Happening::TryAgain { .. } => {
                Arrival::Silence
            }
            Happening::Create(life) => self.create(now, life),
            Happening::Start(life) => self.start(now, life),
            Happening::Stop { life, grace } => self.stop(now, life, grace),
            Happening::Kill(life) => self.kill(now, life),
            Happening::Exit(life) => self.leave(now, life),
            Happening::GraceOver(life) => self.grace_over(now, life),
            Happening::Crash(crash) => Arrival::Crash(crash),
            Happening::AgentReturns => Arrival::Return,
            Happening::Stall(stall) => {
                self.queue
                    .push(now + stall.lasts, Rank::World, Happening::StallEnds);
                Arrival::Stall
            }
            Happening::StallEnds => Arrival::StallEnd,
            Happening::StoreReturns => Arrival::StoreReturns,
        };
        Some((now, arrival))
    }

    /// The agent is gone, and with it every answer on its way. It returns after `down`.
    pub(crate) fn agent_dies(&mut self, now: Time, down: Span) {
        self.agent += 1;
        // It can do nothing before it knows what runs.
        let at = self.faults.passes(Dependency::Runtime, now + down);
        self.queue.push(at, Rank::World, Happening::AgentReturns);
    }

    /// What a new agent finds in the runtime.
    pub(crate) fn observations(&self, now: Time) -> Vec<Input> {
        let newest = |life: LifeKey| {
            self.processes
                .keys()
                .all(|it| it.container != life.container || *it <= life)
        };
        // As an agent looks: what never began and was followed by another life comes last, so that nobody starts it.
        let is_left = |life: LifeKey, process: &Process| !process.has_begun() && !newest(life);
        let (left, others): (Vec<_>, Vec<_>) = self
            .processes
            .iter()
            .partition(|(life, process)| is_left(**life, process));
        others
            .into_iter()
            .chain(left)
            .flat_map(|(life, process)| process.observations(*life))
            .map(|input| self.with_read_stamps(now, input))
            .collect()
    }

    /// What runs, whoever knows of it.
    pub(crate) fn running(&self) -> impl Iterator<Item = LifeKey> + '_ {
        let running = self.processes.iter().filter(|(_, process)| process.is_running());
        running.map(|(life, _)| *life)
    }

    /// Whether the disk takes no writes.
    pub(crate) fn store_refuses(&self, now: Time) -> bool {
        self.faults.outage_end(Dependency::Store, now).is_some()
    }

    /// How long after its turn a probe begins whose turn is at `now`.
    pub(crate) fn lateness(&self, now: Time) -> Span {
        self.scenario.lateness(now)
    }

    /// Does what the agent asks for.
    pub(crate) fn carry_out(&mut self, now: Time, action: &Action) {
        if let Some(back) = self.faults.outage_end(Dependency::Runtime, now)
            && self.carry_out_later(now, back, action)
        {
            return;
        }
        match action {
            Action::RunSandbox { .. } => self.answer_sandbox(now),
            Action::StopSandbox => {
                // What is left in it goes with it, also what the agent has forgotten.
                for process in self.processes.values_mut().filter(|it| it.is_running()) {
                    process.kill(now);
                }
                self.answer_after_latency(now, None, Input::SandboxStopped);
            }
            Action::EnsureImage { container } => self.answer_image(now, *container),
            Action::Create { life } => self.after_latency(now, *life, Happening::Create(*life)),
            Action::Start { life } => self.after_latency(now, *life, Happening::Start(*life)),
            Action::Probe {
                life,
                kind,
                timeout,
                look,
            } => {
                let asked = AskedProbe {
                    life: *life,
                    kind: *kind,
                    timeout: *timeout,
                    look: *look,
                };
                self.probe(now, asked);
            }
            Action::Hook { life, hook, limit } => self.hook(now, *life, *hook, *limit),
            Action::CancelHook { .. } => {}
            Action::Stop { life, grace } => {
                self.after_latency(
                    now,
                    *life,
                    Happening::Stop {
                        life: *life,
                        grace: *grace,
                    },
                );
            }
            Action::Kill { life } => self.after_latency(now, *life, Happening::Kill(*life)),
            Action::Remove { life } => {
                self.processes.remove(life);
            }
        }
    }

    fn subject(&mut self, life: Option<LifeKey>) -> Subject {
        self.choices += 1;
        Subject {
            life,
            number: self.choices,
        }
    }

    fn after_latency(&mut self, now: Time, life: LifeKey, happening: Happening) {
        let subject = self.subject(Some(life));
        let latency = self.faults.span(now, Choice::Latency, subject);
        self.queue.push(now + latency, Rank::World, happening);
    }

    fn answer_after_latency(&mut self, now: Time, life: Option<LifeKey>, input: Input) {
        let subject = self.subject(life);
        let latency = self.faults.span(now, Choice::Latency, subject);
        self.answer(now + latency, input);
    }

    /// An answer: it arrives once.
    fn answer(&mut self, at: Time, input: Input) {
        self.queue.push(
            at,
            Rank::World,
            Happening::Report {
                agent: self.agent,
                input,
            },
        );
    }

    /// An observation: it may arrive late, and more than once.
    fn report(&mut self, now: Time, life: LifeKey, input: Input) -> Arrival {
        let subject = self.subject(Some(life));
        if self.faults.happens(now, Choice::Repeated, subject) {
            let delay = self.faults.span(now, Choice::SecondDelay, subject);
            let at = self.faults.passes(Dependency::Runtime, now + delay);
            self.answer(at, input.clone());
        }
        let delay = self.faults.span(now, Choice::Delay, subject);
        let at = self.faults.passes(Dependency::Runtime, now + delay);
        self.answer(at, input);
        Arrival::Silence
    }

    fn answer_sandbox(&mut self, now: Time) {
        let subject = self.subject(None);
        let input = if self.faults.happens(now, Choice::SandboxFails, subject) {
            Input::SandboxFailed {
                message: "no address left".to_owned(),
            }
        } else {
            Input::SandboxReady
        };
        self.answer_after_latency(now, None, input);
    }

    fn answer_image(&mut self, now: Time, container: usize) {
        let life = Some(LifeKey {
            container,
            attempt: 0,
        });
        let subject = self.subject(life);
        let input = if self.faults.happens(now, Choice::ImageFails, subject) {
            let message = "the registry does not answer".to_owned();
            Input::ImageFailed {
                container,
                error: ImageFailure::ErrImagePull,
                message,
            }
        } else {
            Input::ImageReady {
                container,
                pulled: Pulled::AlreadyPresent,
            }
        };
        self.answer_after_latency(now, life, input);
    }

    fn create(&mut self, now: Time, life: LifeKey) -> Arrival {
        let subject = self.subject(Some(life));
        if !self.processes.contains_key(&life) {
            if self.faults.happens(now, Choice::CreateFails, subject) {
                let reason = CreateError::CreateContainerError;
                let message = "the runtime has no room".to_owned();
                self.answer(
                    now,
                    Input::CreateFailed {
                        life,
                        reason,
                        message,
                    },
                );
                return Arrival::Silence;
            }
            let plan = &self.plan.containers[life.container];
            let id = format!("{}-{}", plan.name, life.attempt).into();
            let script = self.scenario.life(&plan.name, life.attempt);
            let signal = plan.stop_signal.or(script.image_stop_signal);
            let is_init = !self.scenario.shares_processes;
            let process = Process::new(id, signal.unwrap_or(Signal::TERM), is_init, script);
            self.processes.insert(life, process);
        }
        let created = self.processes[&life].created(life);
        self.report(now, life, created)
    }

    fn start(&mut self, now: Time, life: LifeKey) -> Arrival {
        let subject = self.subject(Some(life));
        let fails = self.faults.happens(now, Choice::StartFails, subject);
        let Some(process) = self.processes.get_mut(&life) else {
            self.answer(
                now,
                Input::StartFailed {
                    life,
                    message: "no such container".to_owned(),
                },
            );
            return Arrival::Silence;
        };
        if process.is_new() && fails {
            self.processes.remove(&life);
            self.answer(
                now,
                Input::StartFailed {
                    life,
                    message: "the program is missing".to_owned(),
                },
            );
            return Arrival::Silence;
        }
        if process.is_new() {
            process.start(now);
            if let Some(at) = process.exit_at() {
                self.queue.push(at, Rank::World, Happening::Exit(life));
            }
        }
        for input in self.processes[&life].observations(life).into_iter().skip(1) {
            self.report(now, life, input);
        }
        Arrival::Silence
    }

    fn stop(&mut self, now: Time, life: LifeKey, grace: Span) -> Arrival {
        let Some(process) = self.processes.get_mut(&life) else {
            return self.vanished(now, life);
        };
        match process.stop(now, grace) {
            Signalling::Gone(exit) => self.report(now, life, Input::Exited { life, exit }),
            Signalling::Sent {
                record,
                exit_at,
                kill_at,
            } => {
                if let Some(at) = exit_at {
                    self.queue.push(at, Rank::World, Happening::Exit(life));
                }
                self.queue
                    .push(kill_at, Rank::Backstop, Happening::GraceOver(life));
                self.report(now, life, signalled(life, &record))
            }
        }
    }

    fn kill(&mut self, now: Time, life: LifeKey) -> Arrival {
        let Some(process) = self.processes.get_mut(&life) else {
            return self.vanished(now, life);
        };
        let was_running = process.is_running();
        let exit = process.kill(now);
        if was_running {
            let record = StopRecord {
                signal: Signal::KILL,
                at: now,
                forced: false,
            };
            self.report(now, life, signalled(life, &record));
        }
        self.report(now, life, Input::Exited { life, exit })
    }

    /// A life that the runtime has never had, or no longer has.
    fn vanished(&mut self, now: Time, life: LifeKey) -> Arrival {
        let message = Some("the runtime does not know this container".to_owned());
        let exit = Exit {
            code: exit_code::KILLED,
            at: now,
            oom_killed: false,
            message,
            stop: None,
        };
        self.report(now, life, Input::Exited { life, exit })
    }

    fn leave(&mut self, now: Time, life: LifeKey) -> Arrival {
        let exit = self
            .processes
            .get_mut(&life)
            .and_then(|process| process.leave(now));
        match exit {
            Some(exit) => self.report(now, life, Input::Exited { life, exit }),
            None => Arrival::Silence,
        }
    }

    fn grace_over(&mut self, now: Time, life: LifeKey) -> Arrival {
        match self.processes.get_mut(&life) {
            Some(process) if process.is_overdue(now) => {
                let exit = process.kill(now);
                self.report(now, life, Input::Exited { life, exit })
            }
            Some(_) | None => Arrival::Silence,
        }
    }

    fn probe(&mut self, now: Time, asked: AskedProbe) {
        let late = self.scenario.lateness(now);
        if late.is_zero() {
            return self.begin_probe(now, asked, late);
        }
        let agent = self.agent;
        let begins = Happening::ProbeBegins { agent, asked, late };
        self.queue.push(now + late, Rank::World, begins);
    }

    /// A look ends when the next probe is due, so what it is late is taken from its time.
    fn begin_probe(&mut self, now: Time, asked: AskedProbe, late: Span) {
        let AskedProbe { life, kind, .. } = asked;
        let subject = self.subject(Some(life));
        let plan = &self.running.containers[life.container];
        let handler = plan.probe(kind).map_or(Handler::Http, |probe| probe.handler);
        let question = Question {
            kind,
            handler,
            timeout: match asked.look {
                Some(_) => asked.timeout.saturating_sub(late),
                None => asked.timeout,
            },
            look: asked.look.map(|connect| connect.saturating_sub(late)),
        };
        let cannot_ask = self.faults.happens(now, Choice::ExecError, subject)
            || self.faults.outage_end(Dependency::Runtime, now).is_some();
        let exec_error = handler == Handler::Exec && cannot_ask;
        let has_no_time = handler != Handler::Exec && question.look == Some(Span::ZERO);
        let report = if has_no_time {
            question.unanswered(Span::ZERO)
        } else if exec_error {
            report(
                ProbeOutcome::Error,
                "the command could not be started",
                Span::ZERO,
            )
        } else {
            let process = self.processes.get(&life);
            process.map_or_else(
                || question.unanswered(Span::ZERO),
                |it| answer_probe(it, now, question),
            )
        };
        let at = now + report.latency;
        self.answer(at, Input::ProbeDone { life, kind, report });
    }

    fn hook(&mut self, now: Time, life: LifeKey, hook: Hook, limit: Option<Span>) {
        let script = self
            .processes
            .get(&life)
            .map(|process| process.hook(hook))
            .unwrap_or_default();
        // One that takes longer is cut off by whoever set the limit.
        if limit.is_some_and(|limit| limit < script.takes) {
            return;
        }
        let result = if script.fails {
            Err("exit code 1".to_owned())
        } else {
            Ok(())
        };
        self.answer(now + script.takes, Input::HookDone { life, hook, result });
    }
}

fn signalled(life: LifeKey, record: &StopRecord) -> Input {
    Input::Signalled {
        life,
        signal: record.signal,
        at: record.at,
    }
}
