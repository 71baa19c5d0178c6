//! Scenarios: how the containers of one pod behave, life by life, and what happens to the pod from outside.
//!
//! A scenario is plain data. What it does not name takes no time and goes well. `read` makes one from a file and
//! refuses whatever it does not know; `write` gives it back as a file.

mod read;
mod write;

use std::collections::BTreeMap;

use pulselet_engine::plan::{Hook, ProbeKind};
use pulselet_engine::time::{Span, Time};
use pulselet_model::{Gate, GateSet, Pod, hide_disabled, keep_accepted};
use pulselet_plan::{HookTarget, PodBlueprint};
use pulselet_vocabulary::Signal;

pub use read::ScenarioError;

/// The behaviour of one pod's world.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scenario {
    /// By container name; a container without an entry is healthy from its first moment.
    pub containers: BTreeMap<String, Vec<ScriptedLife>>,
    /// When the agent is killed; it starts again at once.
    pub agent_restarts: Vec<Time>,
    /// Gates that are turned on or off while the pod runs, in order of time.
    pub gates: Vec<GateFlip>,
    /// A file holds one at most; a pod may be deleted again with less patience.
    pub deletes: Vec<Ending>,
    pub evict: Option<Ending>,
    /// When the machine goes down, and how long the pod has then, which follows from the node's settings: a file cannot
    /// say it. Without a number it has no time at all.
    pub shutdown: Option<Ending>,
    /// When the node begins its probes late, in order of time.
    pub load: Vec<Load>,
    /// No main process is PID 1, so that the kernel's default actions apply to it. It follows from the manifest: a file
    /// cannot say it.
    pub shares_processes: bool,
}

impl Scenario {
    /// The pod has this long to end when the machine goes down.
    #[must_use]
    pub fn with_time_for_shutdown(mut self, left: Span) -> Self {
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.grace = Some(left);
        }
        self
    }
}

/// Gates that change at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct GateFlip {
    pub at: Time,
    pub api: Vec<(Gate, bool)>,
    pub node: Vec<(Gate, bool)>,
}

/// The gates of the two parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateSkew {
    pub api: GateSet,
    pub node: GateSet,
}

impl GateSkew {
    /// The same gates at both.
    pub fn both(gates: GateSet) -> Self {
        Self {
            api: gates,
            node: gates,
        }
    }

    fn after(self, flip: &GateFlip) -> Self {
        let apply = |gates: GateSet, changes: &[(Gate, bool)]| {
            let changes = changes.iter();
            changes.fold(gates, |gates, (gate, on)| gates.with(*gate, *on))
        };
        Self {
            api: apply(self.api, &flip.api),
            node: apply(self.node, &flip.node),
        }
    }
}

/// From one moment to another the node has too much to do: every probe begins late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    pub from: Time,
    pub to: Time,
    pub lateness: Span,
}

/// The end of the pod, asked for from outside.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    pub at: Time,
    /// Without it the pod's own grace period counts.
    pub grace: Option<Span>,
}

/// How a container behaves in one life. Ages count from the start of the container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScriptedLife {
    pub health: ScriptedHealth,
    /// By kind, in place of what `health` says; what an entry leaves out is taken from there.
    pub probes: BTreeMap<ProbeKind, ProbeScript>,
    pub exit: Option<OwnExit>,
    /// From a signal that it handles to its exit.
    pub stops_in: Span,
    /// The signals it handles; without a list the effective stop signal, if it can be caught.
    pub handles: Option<Vec<Signal>>,
    /// The stop signal that the image declares.
    pub image_stop_signal: Option<Signal>,
    pub hooks: Hooks,
}

/// When probes succeed and how long they take.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScriptedHealth {
    pub starts_after: Span,
    /// From here on to `starts_after` connections are accepted and answers are failures; `None` if it begins to listen
    /// when it works.
    pub listens_after: Option<Span>,
    pub fails: Option<Window>,
    pub latency: Span,
}

/// From an age on, possibly up to another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    pub from: Span,
    pub until: Option<Span>,
}

impl Window {
    pub fn contains(self, age: Span) -> bool {
        age >= self.from && self.until.is_none_or(|until| age < until)
    }
}

/// What one kind of probe sees, where that differs from the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbeScript {
    pub starts_after: Option<Span>,
    pub listens_after: Option<Span>,
    pub fails: Option<Window>,
    pub latency: Option<Span>,
}

/// A container that leaves by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnExit {
    pub at: Span,
    pub code: i32,
}

/// How hooks that run something fare. A scenario file cannot name them: there they succeed in no time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hooks {
    pub post_start: HookScript,
    pub pre_stop: HookScript,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct HookScript {
    pub takes: Span,
    pub fails: bool,
}

impl Scenario {
    /// How life number `attempt` of a container goes: the last one listed repeats.
    pub fn life(&self, container: &str, attempt: u32) -> ScriptedLife {
        let attempt = usize::try_from(attempt).unwrap_or(usize::MAX);
        self.containers
            .get(container)
            .and_then(|lives| lives.get(attempt).or(lives.last()))
            .cloned()
            .unwrap_or_default()
    }

    /// How long after its turn a probe begins whose turn is at `now`. Of loads that overlap the heaviest counts.
    pub fn lateness(&self, now: Time) -> Span {
        let loads = self.load.iter().filter(|load| load.from <= now && now < load.to);
        loads.map(|load| load.lateness).max().unwrap_or_default()
    }
}

impl Scenario {
    /// What the node makes of a stored pod at each flip, as an agent would.
    pub(crate) fn replans(&self, stored: &Pod, mut skew: GateSkew) -> Vec<(Time, PodBlueprint)> {
        let mut accepted = hide_disabled(stored, skew.api);
        let mut replans = Vec::new();
        for flip in &self.gates {
            skew = skew.after(flip);
            let mut seen = hide_disabled(stored, skew.api);
            keep_accepted(&mut seen, &accepted);
            accepted = seen;
            let blueprint = pulselet_plan::convert(&accepted, skew.node)
                .expect("a pod that was converted under some gates is converted under others");
            replans.push((flip.at, blueprint));
        }
        replans
    }

    /// A hook that only opens a connection is accepted in a manifest and fails when it runs, as it does upstream; so does
    /// one whose port is not there.
    pub(crate) fn fail_impossible_hooks(&mut self, blueprint: &PodBlueprint) {
        for (plan, container) in blueprint.plan.containers.iter().zip(&blueprint.containers) {
            let is_impossible = |hook| match container.hook(hook).map(|target| &**target) {
                Some(HookTarget::Impossible(_)) => true,
                Some(HookTarget::Exec(_) | HookTarget::Http(_) | HookTarget::Sleep(_)) | None => false,
            };
            let (post_start, pre_stop) = (is_impossible(Hook::PostStart), is_impossible(Hook::PreStop));
            if !post_start && !pre_stop {
                continue;
            }
            let lives = self.containers.entry(plan.name.to_string());
            for life in lives.or_insert_with(|| vec![ScriptedLife::default()]) {
                life.hooks.post_start.fails |= post_start;
                life.hooks.pre_stop.fails |= pre_stop;
            }
        }
    }
}

impl ScriptedLife {
    /// What probes of one kind see.
    pub fn health(&self, kind: ProbeKind) -> ScriptedHealth {
        let Some(own) = self.probes.get(&kind) else {
            return self.health.clone();
        };
        ScriptedHealth {
            starts_after: own.starts_after.unwrap_or(self.health.starts_after),
            listens_after: own.listens_after.or(self.health.listens_after),
            fails: own.fails.or(self.health.fails),
            latency: own.latency.unwrap_or(self.health.latency),
        }
    }
}

/// What is wrong with a container at some age, as a probe sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ailment {
    /// It does not listen yet.
    NotUpYet,
    /// It listens, and is not ready to work.
    NotServing,
    /// It has worked, and answers wrongly.
    Deadlocked,
}

impl ScriptedHealth {
    pub fn ailment(&self, age: Span) -> Option<Ailment> {
        if age < self.starts_after {
            let listens = self.listens_after.is_some_and(|from| age >= from);
            Some(if listens {
                Ailment::NotServing
            } else {
                Ailment::NotUpYet
            })
        } else if self.fails.is_some_and(|window| window.contains(age)) {
            Some(Ailment::Deadlocked)
        } else {
            None
        }
    }
}
