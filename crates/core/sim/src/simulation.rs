//! One pod, its agent and its world, step by step on a virtual clock.
//!
//! The agent here is the smallest driver there can be: it hands the engine what arrives, persists the state when the
//! engine says so, and only then carries out the actions; on a disk that refuses it goes ahead without, but begins no
//! sandbox. A crash loses everything else. Two runs of the same setup give the same steps.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use pulselet_engine::io::{Action, Input, LifeKey, Outbox};
use pulselet_engine::line::Line;
use pulselet_engine::plan::{PodPlan, Settings};
use pulselet_engine::status::PodReport;
use pulselet_engine::time::{Span, Time};
use pulselet_engine::{Identity, PodMachine, PressureChange, ProbePressure};
use pulselet_model::Pod as ManifestPod;
use pulselet_plan::{PodBlueprint, PodRefusal};

use crate::faults::{Crash, CrashMoment, FaultPlan};
use crate::scenario::{GateSkew, Scenario};
use crate::world::{Arrival, Rank, World};

/// How long a simulation goes on when nothing ends it and nobody says how long.
pub const DEFAULT_LIMIT: Span = Span::from_secs(24 * 3600);

/// Everything a simulation depends on.
#[derive(Clone, Debug)]
pub struct Setup {
    pub identity: Identity,
    pub plan: Arc<PodPlan>,
    /// As [`PodBlueprint::running`].
    pub running: Arc<PodPlan>,
    /// What the scenario's gate flips make of the pod.
    pub replans: Vec<GateReplan>,
    pub settings: Settings,
    pub seed: u64,
    pub scenario: Scenario,
    pub faults: FaultPlan,
    /// Why the node does not run the pod at all; `None` if it does.
    pub refusal: Option<Box<PodRefusal>>,
}

/// What a flip of gates makes of a pod.
#[derive(Clone, Debug)]
pub struct GateReplan {
    pub at: Time,
    pub plan: Arc<PodPlan>,
    pub running: Arc<PodPlan>,
}

impl Setup {
    /// A world without faults for a Pod as an API has stored it, the gates it begins with, and what the node made of it.
    pub fn for_pod(
        pod: &ManifestPod,
        gates: GateSkew,
        blueprint: &PodBlueprint,
        settings: Settings,
        seed: u64,
        mut scenario: Scenario,
    ) -> Self {
        scenario.fail_impossible_hooks(blueprint);
        scenario.shares_processes = blueprint.shares_processes;
        let replans = scenario.replans(pod, gates).into_iter();
        let replans =
            replans.map(|(at, PodBlueprint { plan, running, .. })| GateReplan { at, plan, running });
        Self {
            identity: Identity {
                namespace: pod.namespace().into(),
                name: pod.name().into(),
                uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            },
            plan: Arc::clone(&blueprint.plan),
            running: Arc::clone(&blueprint.running),
            replans: replans.collect(),
            settings,
            seed,
            scenario,
            faults: FaultPlan::default(),
            refusal: blueprint.refusal.clone(),
        }
    }
}

impl GateReplan {
    fn into_input(self, settings: Settings) -> (Time, Input) {
        let Self { at, plan, running } = self;
        let input = Input::Replan {
            plan,
            running,
            settings,
        };
        (at, input)
    }
}

#[derive(Debug)]
pub struct Simulation {
    pod: PodMachine,
    /// What a new agent would find on disk.
    persisted: PodMachine,
    /// And what it would find beside a database that is lost.
    spare: PodMachine,
    /// Requests that are not in it: whoever made them makes them again to an agent that goes on from it.
    since_spare: Vec<Input>,
    unsaved: Option<Unsaved>,
    /// What the last crash took, for the agent that comes back.
    forgot: bool,
    from_spare: bool,
    world: World,
    agent: Agent,
    /// How late its probes are. An agent that is gone has taken it with it, but for what it had decided.
    pressure: ProbePressure,
    now: Time,
    /// What arrives one after the other before time goes on.
    arrivals: VecDeque<Input>,
    /// Requests that an agent took with it when it died.
    lost: Vec<Input>,
    /// A crash that waits for the next step that changes the state on disk.
    ambush: Option<Crash>,
    out: Outbox,
    step: Step,
}

/// What has happened since the disk refuses.
#[derive(Debug, Default)]
struct Unsaved {
    /// Sandboxes wait for the disk.
    held: Vec<Action>,
    /// Whoever made them makes them again to an agent that has forgotten them.
    requests: Vec<Input>,
}

#[derive(Debug)]
enum Agent {
    Up,
    /// Stopped in its tracks; what arrives meanwhile is read later. Stalls may overlap.
    Stalled {
        stalls: u32,
        waiting: Vec<Input>,
    },
    Down,
}

/// What one step did, for those who watch.
#[derive(Debug, Default)]
pub struct Step {
    pub input: Option<Input>,
    pub lines: Vec<Line>,
    /// Those that were carried out.
    pub actions: Vec<Action>,
    pub restart: Option<Restart>,
}

/// An agent that came back, and how its state compares with the one that was lost.
#[derive(Debug)]
pub struct Restart {
    /// The state written and read again is the same.
    pub read_back: bool,
    /// The disk had refused to take what happened last.
    pub forgot: bool,
    /// The database was lost: only what others could see is known.
    pub from_spare: bool,
    /// What the pod looked like before the crash, as far as anyone could have seen it.
    pub before: PodReport,
    pub after: PodReport,
}

/// Why a simulation is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The pod is gone, or has finished and nobody will ask for anything more.
    Over,
    /// Time is up.
    Limit,
}

impl Simulation {
    pub fn new(setup: Setup) -> Self {
        let Setup {
            identity,
            plan,
            running,
            replans,
            settings,
            seed,
            scenario,
            faults,
            refusal,
        } = setup;
        let replans: Vec<_> = replans.into_iter().map(|it| it.into_input(settings)).collect();
        let mut out = Outbox::default();
        let pod = match refusal {
            None => PodMachine::new(identity, Arc::clone(&plan), settings, seed, Time::ZERO, &mut out),
            Some(refusal) => {
                let why = (refusal.reason.as_str(), refusal.status_message());
                PodMachine::rejected(identity, Arc::clone(&plan), settings, why, Time::ZERO, &mut out)
            }
        };
        let mut simulation = Self {
            persisted: pod.clone(),
            spare: pod.clone(),
            since_spare: Vec::new(),
            unsaved: None,
            forgot: false,
            from_spare: false,
            pod,
            world: World::new(plan, running, scenario, replans, faults),
            agent: Agent::Up,
            pressure: ProbePressure::default(),
            now: Time::ZERO,
            arrivals: VecDeque::new(),
            lost: Vec::new(),
            ambush: None,
            out,
            step: Step::default(),
        };
        simulation.commit(None);
        simulation
    }

    pub fn now(&self) -> Time {
        self.now
    }

    pub fn pod(&self) -> &PodMachine {
        &self.pod
    }

    /// Whether an agent is there to act.
    pub fn agent_is_up(&self) -> bool {
        matches!(self.agent, Agent::Up)
    }

    /// What runs in the runtime, whether the agent knows of it or not.
    pub fn running(&self) -> impl Iterator<Item = LifeKey> + '_ {
        self.world.running()
    }

    /// What the step before did; after `new`, what the acceptance of the pod did.
    pub fn last_step(&self) -> &Step {
        &self.step
    }

    /// Runs to the end, or through everything that happens up to and including `limit`.
    pub fn run<E>(&mut self, limit: Time, mut watch: impl FnMut(&Self) -> Result<(), E>) -> Result<End, E> {
        watch(self)?;
        loop {
            match self.next_time() {
                _ if self.is_over() => return Ok(End::Over),
                Some(at) if at <= limit => self.advance(),
                Some(_) | None => {
                    self.now = self.now.max(limit);
                    return Ok(End::Limit);
                }
            }
            watch(self)?;
        }
    }

    /// Nothing will happen any more, whoever waits.
    fn is_over(&self) -> bool {
        if self.pod.is_over() {
            return true;
        }
        let idle = self.arrivals.is_empty() && self.agent_is_up() && self.pod.next_deadline().is_none();
        self.pod.phase().is_terminal() && idle && self.world.is_quiet()
    }

    fn next_deadline(&self) -> Option<Time> {
        match self.agent {
            Agent::Up => {
                let pod = self.pod.next_deadline().into_iter();
                pod.chain(self.pressure.next_deadline()).min()
            }
            Agent::Stalled { .. } | Agent::Down => None,
        }
    }

    fn next_time(&self) -> Option<Time> {
        if !self.arrivals.is_empty() {
            return Some(self.now);
        }
        let world = self.world.next().map(|(at, _)| at);
        let agent = self.next_deadline().map(|at| at.max(self.now));
        world.into_iter().chain(agent).min()
    }

    /// Takes one step: something arrives, or something falls due.
    fn advance(&mut self) {
        self.step = Step::default();
        if let Some(input) = self.arrivals.pop_front() {
            self.handle(input);
            return;
        }
        let deadline = self.next_deadline().map(|at| (at.max(self.now), Rank::Agent));
        match (self.world.next(), deadline) {
            (Some(world), Some(deadline)) if deadline < world => self.fall_due(deadline.0),
            (None, Some(deadline)) => self.fall_due(deadline.0),
            (Some(_), _) => self.let_happen(),
            (None, None) => {}
        }
    }

    fn fall_due(&mut self, at: Time) {
        self.now = at;
        if self.pressure.next_deadline().is_some_and(|due| due <= at) {
            let change = self.pressure.advance(at);
            self.follow_pressure(change);
            return;
        }
        self.pod.advance(at, &mut self.out);
        self.commit(None);
    }

    /// A probe began so long after its turn.
    fn probe_began(&mut self, late: Span) {
        if self.agent_is_up() {
            let change = self.pressure.observe(self.now, late);
            self.follow_pressure(change);
        }
    }

    fn follow_pressure(&mut self, change: Option<PressureChange>) {
        if let Some(change) = change.filter(|_| self.pod.has_fast_probe()) {
            self.arrivals.push_back(Input::Pressure { change });
        }
    }

    fn let_happen(&mut self) {
        let Some((now, arrival)) = self.world.step() else {
            return;
        };
        self.now = now;
        match arrival {
            Arrival::Silence => {}
            Arrival::Input(input) => self.receive(input),
            Arrival::ProbeBegan { late } => self.probe_began(late),
            Arrival::Crash(crash) => self.crash_when_its_moment_comes(crash),
            Arrival::Return => self.agent_returns(),
            Arrival::Stall => self.stall(),
            Arrival::StallEnd => self.stall_ends(),
            Arrival::StoreReturns => self.store_returns(),
        }
    }

    fn receive(&mut self, input: Input) {
        match &mut self.agent {
            Agent::Up => self.handle(input),
            Agent::Stalled { waiting, .. } => waiting.push(starved(input)),
            Agent::Down => self.lose(input),
        }
    }

    /// Nobody is there to take it. What the runtime knows is found later; a request is made again.
    fn lose(&mut self, input: Input) {
        if is_request(&input) {
            self.lost.push(input);
        }
    }

    fn handle(&mut self, mut input: Input) {
        if let Input::Replan { settings, .. } = &mut input {
            settings.pace = self.pressure.pace();
        }
        self.pod.handle(self.now, input.clone(), &mut self.out);
        self.commit(Some(input));
    }

    /// Puts the state on disk, then acts.
    fn commit(&mut self, input: Option<Input>) {
        let Outbox {
            mut actions,
            lines,
            dirty,
            transitions,
            ..
        } = mem::take(&mut self.out);
        let crash = if dirty { self.ambush.take() } else { None };
        if let Some(crash) = crash {
            match crash.moment {
                CrashMoment::BetweenSteps | CrashMoment::AtRest => {}
                CrashMoment::BeforePersisting => {
                    self.pod = self.persisted.clone();
                    if let Some(input) = input {
                        self.lose(input);
                    }
                    self.crash(crash);
                    return;
                }
                CrashMoment::BeforeActing => actions.clear(),
                CrashMoment::WhileActing => actions.truncate(actions.len() / 2),
            }
        }
        let is_visible = transitions.iter().any(|transition| transition.changes_status());
        if dirty {
            self.save(is_visible, input.as_ref(), &mut actions);
        }
        self.act(&actions);
        self.step.input = input;
        self.step.lines = lines;
        self.step.actions = actions;
        if let Some(crash) = crash {
            self.crash(crash);
        }
    }

    fn act(&mut self, actions: &[Action]) {
        for action in actions {
            self.world.carry_out(self.now, action);
            if matches!(action, Action::Probe { .. }) && self.world.lateness(self.now).is_zero() {
                self.probe_began(Span::ZERO);
            }
        }
    }

    /// On a disk that refuses, only what begins a sandbox waits.
    fn save(&mut self, is_visible: bool, input: Option<&Input>, actions: &mut Vec<Action>) {
        let request = input.filter(|input| is_request(input)).cloned();
        if !self.world.store_refuses(self.now) {
            self.persisted = self.pod.clone();
            self.since_spare.extend(request);
            if is_visible {
                self.spare = self.pod.clone();
                self.since_spare.clear();
            }
            return;
        }
        let unsaved = self.unsaved.get_or_insert_default();
        unsaved.requests.extend(request);
        let waits = |action: &mut Action| matches!(action, Action::RunSandbox { .. });
        for action in actions.extract_if(.., waits) {
            if !unsaved.held.contains(&action) {
                unsaved.held.push(action);
            }
        }
    }

    /// What could not be written is written, and what waited for it is done.
    fn store_returns(&mut self) {
        if self.world.store_refuses(self.now) || matches!(self.agent, Agent::Down) {
            return;
        }
        if let Some(Unsaved { held, .. }) = self.unsaved.take() {
            self.persisted = self.pod.clone();
            self.spare = self.pod.clone();
            self.since_spare.clear();
            self.act(&held);
            self.step.actions = held;
        }
    }

    fn crash_when_its_moment_comes(&mut self, crash: Crash) {
        match (crash.moment, &self.agent) {
            (_, Agent::Down) => {}
            (CrashMoment::AtRest, Agent::Up | Agent::Stalled { .. }) => {
                if self.unsaved.is_none() {
                    self.persisted = self.pod.clone();
                }
                self.crash(crash);
            }
            (CrashMoment::BetweenSteps, Agent::Up) | (_, Agent::Stalled { .. }) => self.crash(crash),
            (
                CrashMoment::BeforePersisting | CrashMoment::BeforeActing | CrashMoment::WhileActing,
                Agent::Up,
            ) => self.ambush = Some(crash),
        }
    }

    fn crash(&mut self, crash: Crash) {
        for input in mem::take(&mut self.arrivals) {
            self.lose(input);
        }
        if let Agent::Stalled { waiting, .. } = mem::replace(&mut self.agent, Agent::Down) {
            for input in waiting {
                self.lose(input);
            }
        }
        self.ambush = None;
        if crash.loses_database {
            self.lost.append(&mut self.since_spare);
            self.persisted = self.spare.clone();
            self.persisted.forget_probe_runs();
            self.from_spare = true;
        }
        if let Some(unsaved) = self.unsaved.take() {
            self.forgot = true;
            self.lost.extend(unsaved.requests);
        }
        self.world.agent_dies(self.now, crash.down);
    }

    /// A new agent reads the state, looks at the runtime, and goes on.
    fn agent_returns(&mut self) {
        let text = serde_json::to_string(&self.persisted).expect("the state of a pod can be written");
        let restored: PodMachine = serde_json::from_str(&text).expect("what was written can be read");
        self.step.restart = Some(Restart {
            read_back: restored == self.persisted,
            forgot: mem::take(&mut self.forgot),
            from_spare: mem::take(&mut self.from_spare),
            before: self.pod.status(),
            after: restored.status(),
        });
        self.pod = restored;
        self.agent = Agent::Up;
        self.pressure = if self.pod.is_stretched() {
            ProbePressure::stretched(self.now)
        } else {
            ProbePressure::default()
        };
        self.arrivals.extend(self.world.observations(self.now));
        self.arrivals.push_back(Input::AgentRestarted);
        self.arrivals.extend(mem::take(&mut self.lost));
    }

    fn stall(&mut self) {
        match &mut self.agent {
            Agent::Up => {
                self.agent = Agent::Stalled {
                    stalls: 1,
                    waiting: Vec::new(),
                }
            }
            Agent::Stalled { stalls, .. } => *stalls += 1,
            Agent::Down => {}
        }
    }

    fn stall_ends(&mut self) {
        match &mut self.agent {
            Agent::Stalled { stalls, waiting } if *stalls == 1 => {
                self.arrivals.extend(mem::take(waiting));
                self.agent = Agent::Up;
            }
            Agent::Stalled { stalls, .. } => *stalls -= 1,
            Agent::Up | Agent::Down => {}
        }
    }
}

/// A report that the agent could not read in time.
fn starved(input: Input) -> Input {
    match input {
        Input::ProbeDone {
            life,
            kind,
            mut report,
        } => {
            report.starved = true;
            Input::ProbeDone { life, kind, report }
        }
        other => other,
    }
}

fn is_request(input: &Input) -> bool {
    matches!(
        input,
        Input::Delete { .. }
            | Input::Stop { .. }
            | Input::Evict { .. }
            | Input::NodeShutdown { .. }
            | Input::Replan { .. }
    )
}
