//! A random pod in a random world, made from one number.
//!
//! A case is plain data, so that it can be cut down to what makes it fail. Manifests go through admission and planning
//! like any other.

use std::collections::BTreeMap;
use std::fmt;

use pulselet_engine::plan::{ProbeKind, ProbePace, Settings, SubSecondPolicy};
use pulselet_engine::time::{Span, Time};
use pulselet_model::{
    Container, ExecAction, Gate, GateSet, HttpGetAction, IntOrString, Lifecycle, LifecycleHandler, Pod,
    Probe, Profile, SleepAction, TcpSocketAction, admit_create,
};
use pulselet_plan::PodBlueprint;
use pulselet_vocabulary::{PodName, exit_code};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::faults::{ClockJump, Crash, CrashMoment, Dependency, FaultPlan, Outage, Rates, Stall};
use crate::oracle::Punctuality;
use crate::scenario::{
    Ending, GateFlip, GateSkew, HookScript, Hooks, Load, OwnExit, ProbeScript, Scenario, ScriptedHealth,
    ScriptedLife, Window,
};
use crate::simulation::Setup;

/// Faults happen in this first part of a simulation.
const FAULTS_LAST: Span = Span::from_secs(150);
/// The seconds a pod has to stop when it does not say.
const DEFAULT_GRACE: i32 = 30;
/// And this is how long it goes on, so that the pod can come to rest.
const LASTS: Span = Span::from_secs(900);

/// Everything that a simulation with oracles needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub seed: u64,
    pub pod: Pod,
    pub settings: Settings,
    pub scenario: Scenario,
    pub faults: FaultPlan,
    pub limit: Time,
}

impl Case {
    /// The case of a seed.
    pub fn random(seed: u64) -> Self {
        let mut dice = Dice {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            grace: DEFAULT_GRACE,
        };
        let pod = dice.pod();
        let scenario = dice.scenario(&pod);
        let faults = if dice.one_in(3) {
            FaultPlan::default()
        } else {
            dice.faults()
        };
        let calm = faults == FaultPlan::default() && dice.one_in(2);
        let scenario = if calm {
            Scenario {
                agent_restarts: Vec::new(),
                ..scenario
            }
        } else {
            scenario
        };
        let settings = dice.settings();
        let load = if calm { Vec::new() } else { dice.load() };
        let scenario = Scenario { load, ..scenario };
        let faults = if calm { faults } else { dice.outages(faults) };
        Self {
            seed,
            pod,
            settings,
            scenario,
            faults,
            limit: Time::ZERO + LASTS,
        }
    }

    /// The pod converted; a pod that is not admitted is a mistake in the making of cases.
    pub fn blueprint(&self) -> Result<PodBlueprint, String> {
        let admission = admit_create(self.pod.clone(), Profile::Pulselet, GateSet::ALL)
            .map_err(|errors| format!("the pod is not admitted: {errors:?}"))?;
        pulselet_plan::convert(&admission.pod, GateSet::ALL).map_err(|error| error.to_string())
    }

    pub fn setup(&self, blueprint: &PodBlueprint) -> Setup {
        let scenario = self.scenario.clone();
        let gates = GateSkew::both(GateSet::ALL);
        let setup = Setup::for_pod(&self.pod, gates, blueprint, self.settings, self.seed, scenario);
        Setup {
            faults: self.faults.clone(),
            ..setup
        }
    }

    pub fn punctuality(&self) -> Punctuality {
        let Scenario {
            agent_restarts, load, ..
        } = &self.scenario;
        let calm = self.faults == FaultPlan::default() && agent_restarts.is_empty() && load.is_empty();
        if calm {
            Punctuality::Exact
        } else {
            Punctuality::Late
        }
    }

    /// The name as event lines have it.
    pub fn pod_name(&self) -> PodName {
        PodName::new(self.pod.namespace(), self.pod.name())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let manifest = serde_json::to_string_pretty(&self.pod).map_err(|_| fmt::Error)?;
        writeln!(f, "# manifest\n{manifest}\n# scenario\n{}", self.scenario)?;
        writeln!(f, "# settings\n{:?}", self.settings)?;
        if self.faults != FaultPlan::default() {
            writeln!(f, "# faults\n{:?}", self.faults)?;
        }
        Ok(())
    }
}

/// Where every choice comes from.
struct Dice {
    random: Xoshiro256PlusPlus,
    /// The pod's grace period: a sleeping hook must not be longer.
    grace: i32,
}

impl Dice {
    fn one_in(&mut self, n: u32) -> bool {
        self.random.random_range(0..n) == 0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.random_range(0..n)
    }

    fn between(&mut self, low: i32, high: i32) -> i32 {
        self.random.random_range(low..=high)
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.random.random_range(0..choices.len())].clone()
    }

    fn seconds(&mut self, most: u64) -> Span {
        Span::from_secs(self.below(most + 1))
    }

    /// Usually round, because coincidences are where the mistakes are.
    fn moment(&mut self, most: u64) -> Span {
        let whole = self.seconds(most);
        if self.one_in(3) {
            whole + Span::from_millis(self.below(1000))
        } else {
            whole
        }
    }

    fn sometimes<T>(&mut self, n: u32, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_in(n).then(|| make(self))
    }

    /// Times in which the node is late, drawn last so that what was drawn before is what it always was.
    fn load(&mut self) -> Vec<Load> {
        let mut load = Vec::new();
        if self.one_in(4) {
            for _ in 0..=self.below(2) {
                let from = Time::ZERO + self.moment(150);
                load.push(Load {
                    from,
                    to: from + Span::from_millis(500) + self.moment(30),
                    lateness: Span::from_millis(self.pick(&[20, 60, 101, 300, 1_500])),
                });
            }
            load.sort_by_key(|load| load.from);
        }
        load
    }

    fn settings(&mut self) -> Settings {
        let defaults = Settings::default();
        Settings {
            sub_second_policy: self.pick(&[
                SubSecondPolicy::OnlyFirstTime,
                SubSecondPolicy::OnlyFirstTime,
                SubSecondPolicy::AlwaysWhenWaitingForSuccess,
                SubSecondPolicy::Always,
            ]),
            looks: !self.one_in(4),
            exec_error_is_failure: self.one_in(4),
            overload_guard: self.one_in(4),
            backoff_initial: self.pick(&[defaults.backoff_initial, Span::from_secs(1)]),
            backoff_max: self.pick(&[defaults.backoff_max, Span::from_secs(20)]),
            probe_grace: self.sometimes(4, |dice| dice.seconds(20)),
            pace: ProbePace::Planned,
        }
    }

    fn pod(&mut self) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("random".to_owned());
        pod.metadata.uid = Some("0".to_owned());
        let spec = &mut pod.spec;
        let policies = ["Always", "Always", "OnFailure", "Never"];
        self.pick(&policies).clone_into(&mut spec.restart_policy);
        if self.one_in(2) {
            self.grace = self.between(0, 40);
            spec.termination_grace_period_seconds = Some(self.grace.into());
        }
        spec.active_deadline_seconds = self.sometimes(12, |dice| i64::from(dice.between(1, 600)));
        if self.one_in(4) {
            spec.init_containers.push(bare_container("setup"));
        }
        for name in ["proxy", "log"] {
            if self.one_in(5) {
                let mut sidecar = self.probed_container(name);
                sidecar.restart_policy = Some("Always".to_owned());
                spec.init_containers.push(sidecar);
            }
        }
        spec.containers.push(self.probed_container("app"));
        if self.one_in(4) {
            spec.containers.push(self.probed_container("web"));
        }
        pod
    }

    fn probed_container(&mut self, name: &str) -> Container {
        let mut container = bare_container(name);
        container.startup_probe = self.sometimes(2, |dice| dice.probe(ProbeKind::Startup));
        container.liveness_probe = self.sometimes(2, |dice| dice.probe(ProbeKind::Liveness));
        container.readiness_probe = self.sometimes(2, |dice| dice.probe(ProbeKind::Readiness));
        let signals = ["SIGTERM", "SIGUSR1", "SIGKILL"];
        container.lifecycle = self.sometimes(3, |dice| Lifecycle {
            post_start: dice.sometimes(3, Self::hook),
            pre_stop: dice.sometimes(2, Self::hook),
            stop_signal: dice.sometimes(2, |dice| dice.pick(&signals).to_owned()),
        });
        container
    }

    fn probe(&mut self, kind: ProbeKind) -> Probe {
        let mut probe = Probe {
            initial_delay_seconds: if self.one_in(3) { self.between(1, 10) } else { 0 },
            period_seconds: self.pick(&[1, 2, 5, 10, 10]),
            timeout_seconds: self.pick(&[1, 1, 1, 3, 12]),
            failure_threshold: self.between(1, 4),
            ..Probe::default()
        };
        match self.below(3) {
            0 => {
                probe.exec = Some(ExecAction {
                    command: vec!["true".to_owned()],
                });
            }
            1 => {
                let port = IntOrString::Int(80);
                probe.http_get = Some(HttpGetAction {
                    port,
                    ..HttpGetAction::default()
                });
            }
            _ => {
                probe.tcp_socket = Some(TcpSocketAction {
                    port: IntOrString::Int(80),
                    ..TcpSocketAction::default()
                });
            }
        }
        if kind == ProbeKind::Readiness {
            probe.success_threshold = self.between(1, 3);
        } else {
            probe.success_threshold = 1;
            probe.termination_grace_period_seconds = self.sometimes(3, |dice| i64::from(dice.between(0, 20)));
        }
        if kind != ProbeKind::Startup && self.one_in(3) {
            probe.initialization_failure_threshold = self.between(1, 8);
        }
        if kind != ProbeKind::Liveness && self.one_in(3) {
            probe.period_milliseconds = Some(self.pick(&[-500, -250, 250, 500]));
        }
        if kind != ProbeKind::Liveness && self.one_in(4) {
            probe.timeout_milliseconds = Some(self.pick(&[-900, -500, 250]));
        }
        if self.one_in(5) && probe.initial_delay_seconds > 0 {
            probe.initial_delay_milliseconds = Some(self.pick(&[-300, 300]));
        }
        probe
    }

    fn hook(&mut self) -> LifecycleHandler {
        if self.grace > 0 && self.one_in(2) {
            let seconds = i64::from(self.between(1, self.grace.min(20)));
            return LifecycleHandler {
                sleep: Some(SleepAction { seconds }),
                ..LifecycleHandler::default()
            };
        }
        let exec = Some(ExecAction {
            command: vec!["true".to_owned()],
        });
        LifecycleHandler {
            exec,
            ..LifecycleHandler::default()
        }
    }

    fn scenario(&mut self, pod: &Pod) -> Scenario {
        let mut containers = BTreeMap::new();
        for container in &pod.spec.init_containers {
            let completes = container.restart_policy.is_none();
            containers.insert(container.name.clone(), self.lives(completes));
        }
        for container in &pod.spec.containers {
            containers.insert(container.name.clone(), self.lives(false));
        }
        let mut agent_restarts: Vec<Time> = Vec::new();
        for _ in 0..self.below(3) {
            agent_restarts.push(Time::ZERO + self.moment(150));
        }
        agent_restarts.sort_unstable();
        let mut gates = Vec::new();
        if self.one_in(5) {
            for _ in 0..=self.below(3) {
                gates.push(self.gate_flip());
            }
            gates.sort_by_key(|flip| flip.at);
        }
        let mut deletes = Vec::new();
        if self.one_in(3) {
            let at = Time::ZERO + self.moment(200);
            deletes.push(Ending {
                at,
                grace: self.sometimes(2, |dice| dice.seconds(40)),
            });
            if self.one_in(3) {
                let at = at + self.moment(20);
                deletes.push(Ending {
                    at,
                    grace: Some(self.seconds(10)),
                });
            }
        }
        let evict = self.sometimes(8, |dice| Ending {
            at: Time::ZERO + dice.moment(200),
            grace: dice.sometimes(2, |dice| dice.seconds(30)),
        });
        let shutdown = self.sometimes(8, |dice| Ending {
            at: Time::ZERO + dice.moment(200),
            grace: Some(dice.seconds(30)),
        });
        Scenario {
            containers,
            agent_restarts,
            gates,
            deletes,
            evict,
            shutdown,
            load: Vec::new(),
            shares_processes: false,
        }
    }

    fn gate_flip(&mut self) -> GateFlip {
        let change = (self.pick(&Gate::ALL), self.one_in(2));
        let at = Time::ZERO + self.moment(150);
        let (api, node) = if self.one_in(2) {
            (vec![change], Vec::new())
        } else {
            (Vec::new(), vec![change])
        };
        GateFlip { at, api, node }
    }

    /// The last life is often a good one, so that there is something to converge to.
    fn lives(&mut self, completes: bool) -> Vec<ScriptedLife> {
        let mut lives: Vec<ScriptedLife> = (0..=self.below(3)).map(|_| self.life()).collect();
        if self.one_in(2) {
            lives.push(ScriptedLife::default());
        }
        if completes {
            for life in &mut lives {
                life.exit = Some(OwnExit {
                    at: self.moment(20),
                    code: i32::from(self.one_in(4)),
                });
            }
        }
        lives
    }

    fn life(&mut self) -> ScriptedLife {
        let mut probes = BTreeMap::new();
        if self.one_in(3) {
            let kind = self.pick(&ProbeKind::ALL);
            let script = ProbeScript {
                starts_after: self.sometimes(3, |dice| dice.moment(40)),
                listens_after: None,
                fails: self.sometimes(2, Self::window),
                latency: self.sometimes(3, Self::latency),
            };
            probes.insert(kind, script);
        }
        let starts_after = if self.one_in(2) {
            self.moment(40)
        } else {
            Span::ZERO
        };
        let listens = self.sometimes(3, |dice| dice.moment(40));
        ScriptedLife {
            health: ScriptedHealth {
                starts_after,
                listens_after: listens.filter(|listens| *listens <= starts_after),
                fails: self.sometimes(3, Self::window),
                latency: if self.one_in(3) {
                    self.latency()
                } else {
                    Span::ZERO
                },
            },
            probes,
            exit: self.sometimes(4, |dice| OwnExit {
                at: dice.moment(100),
                code: dice.pick(&[0, 1, exit_code::KILLED]),
            }),
            stops_in: if self.one_in(2) {
                self.moment(30)
            } else {
                Span::ZERO
            },
            handles: self.sometimes(5, |_| Vec::new()),
            image_stop_signal: None,
            hooks: Hooks {
                post_start: self.hook_script(),
                pre_stop: self.hook_script(),
            },
        }
    }

    fn window(&mut self) -> Window {
        let from = self.moment(150);
        let until = self.sometimes(2, |dice| from + Span::from_secs(1) + dice.moment(60));
        Window { from, until }
    }

    fn latency(&mut self) -> Span {
        Span::from_millis(self.pick(&[1, 20, 300, 999, 1000, 2500, 5000]))
    }

    fn hook_script(&mut self) -> HookScript {
        HookScript {
            takes: if self.one_in(2) {
                self.moment(20)
            } else {
                Span::ZERO
            },
            fails: self.one_in(6),
        }
    }

    fn faults(&mut self) -> FaultPlan {
        let mut rate = |n: u32| {
            if self.one_in(n) {
                u8::try_from(self.between(1, 40)).unwrap_or(1)
            } else {
                0
            }
        };
        let rates = Rates {
            sandbox_fails: rate(6),
            image_fails: rate(6),
            create_fails: rate(4),
            start_fails: rate(4),
            exec_errors: rate(3),
            repeated: rate(2),
        };
        let mut crashes = Vec::new();
        for _ in 0..self.below(4) {
            crashes.push(Crash {
                at: Time::ZERO + self.moment(150),
                down: if self.one_in(2) {
                    self.moment(20)
                } else {
                    Span::ZERO
                },
                moment: self.pick(&CrashMoment::ALL),
                loses_database: false,
            });
        }
        let mut stalls = Vec::new();
        for _ in 0..self.below(3) {
            stalls.push(Stall {
                at: Time::ZERO + self.moment(150),
                lasts: self.moment(15),
            });
        }
        FaultPlan {
            seed: self.below(u64::MAX),
            until: Time::ZERO + FAULTS_LAST,
            rates,
            runtime_latency: Span::from_millis(self.pick(&[0, 0, 5, 300, 3000])),
            report_delay: Span::from_millis(self.pick(&[0, 0, 5, 300, 2000])),
            crashes,
            stalls,
            outages: Vec::new(),
            clock_jumps: Vec::new(),
        }
    }

    /// What the agent needs is away at times, and its clock wrong. Drawn after all else, so that what was drawn before is
    /// what it always was.
    fn outages(&mut self, mut faults: FaultPlan) -> FaultPlan {
        if self.one_in(2) {
            return faults;
        }
        faults.until = Time::ZERO + FAULTS_LAST;
        for _ in 0..self.below(4) {
            let from = Time::ZERO + self.moment(120);
            faults.outages.push(Outage {
                of: self.pick(&Dependency::ALL),
                from,
                lasts: Span::from_millis(500) + self.moment(29),
            });
        }
        for _ in 0..self.below(3) {
            let at = Time::ZERO + self.moment(140);
            let ahead = self.pick(&[-86_400, -3_600, -90, -1, 1, 90, 3_600, 86_400]);
            faults.clock_jumps.push(ClockJump { at, ahead });
        }
        for crash in &mut faults.crashes {
            crash.loses_database = self.one_in(4);
        }
        faults
    }
}

fn bare_container(name: &str) -> Container {
    Container {
        name: name.to_owned(),
        image: "image".to_owned(),
        ..Container::default()
    }
}
