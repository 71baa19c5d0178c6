//! A manifest and a scenario in, event lines out.

use std::collections::BTreeMap;
use std::sync::Arc;

use pulselet_engine::line::{Line, LineBody, LineRecord};
use pulselet_engine::plan::{ProbeKind, Settings};
use pulselet_engine::time::{Span, Time};
use pulselet_model::{Pod, Profile, admit_create, decode_documents, decode_pod};
use pulselet_plan::PodBlueprint;
use pulselet_plan::duration::parse_duration;
use pulselet_sim::faults::FaultPlan;
use pulselet_sim::oracle::{Oracles, Punctuality};
use pulselet_sim::scenario::GateSkew;
use pulselet_sim::{Scenario, Setup, Simulation};
use pulselet_vocabulary::PodName;
use serde_json::Value;

/// A pod and its world, ready to be run.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) pod: Pod,
    pub(crate) gates: GateSkew,
    pub(crate) blueprint: PodBlueprint,
    pub(crate) settings: Settings,
    pub(crate) scenario: Scenario,
    pub(crate) faults: FaultPlan,
}

impl Stage {
    /// `spec` is the pod's spec as YAML.
    pub(crate) fn new(spec: &str, scenario: &str) -> Self {
        Self::with_skew(spec, scenario, GateSkew::default())
    }

    /// A pod that is new at an API and a node with these gates.
    pub(crate) fn with_skew(spec: &str, scenario: &str, gates: GateSkew) -> Self {
        let indented = spec.replace('\n', "\n  ");
        let manifest = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  {indented}\n");
        let document = decode_documents(manifest.as_bytes())
            .next()
            .expect("one document")
            .expect("it parses");
        let pod = decode_pod(&document, Profile::Pulselet)
            .pod
            .unwrap_or_else(|error| panic!("{error}\n{manifest}"));
        let pod = admit_create(pod, Profile::Pulselet, gates.api)
            .expect("the pod is admitted")
            .pod;
        let blueprint = pulselet_plan::convert(&pod, gates.node).expect("the pod has a plan");
        let scenario = Scenario::read(scenario, &blueprint.plan).unwrap_or_else(|error| panic!("{error}"));
        Self {
            pod,
            gates,
            blueprint,
            settings: Settings::default(),
            scenario,
            faults: FaultPlan::default(),
        }
    }

    pub(crate) fn with_faults(self, faults: FaultPlan) -> Self {
        Self { faults, ..self }
    }

    /// The setup of a simulation.
    pub(crate) fn setup(&self) -> Setup {
        let scenario = self.scenario.clone();
        let setup = Setup::for_pod(&self.pod, self.gates, &self.blueprint, self.settings, 7, scenario);
        Setup {
            faults: self.faults.clone(),
            ..setup
        }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Scenario)) -> Self {
        change(&mut self.scenario);
        self
    }

    /// All lines up to and including the limit, under the oracles.
    pub(crate) fn lines(&self, limit: &str) -> Vec<Line> {
        let limit = Time::ZERO + parse_duration(limit).expect("a limit");
        let Scenario {
            agent_restarts, load, ..
        } = &self.scenario;
        let calm = agent_restarts.is_empty() && load.is_empty() && self.faults == FaultPlan::default();
        let punctuality = if calm {
            Punctuality::Exact
        } else {
            Punctuality::Late
        };
        let mut oracles = Oracles::new(Arc::clone(&self.blueprint.plan), &self.settings, punctuality);
        let mut lines = Vec::new();
        Simulation::new(self.setup())
            .run(limit, |simulation| {
                lines.extend(simulation.last_step().lines.iter().cloned());
                oracles.check(simulation)
            })
            .unwrap_or_else(|violation| panic!("{violation}\n{}", trace(&lines)));
        lines
    }

    /// The lines, after making sure that a restart of the agent changes none of them, at whatever moment but those at
    /// which it looks: a clock that was running takes no more looks.
    pub(crate) fn steadfast_trace(&self, limit: &str) -> String {
        let lines = self.lines(limit);
        let undisturbed = trace(&lines);
        let looking = looking(&lines);
        let is_calm = |at: &Time| looking.iter().all(|(from, to)| at < from || at > to);
        for at in moments(&lines).into_iter().filter(is_calm) {
            let restarted = self
                .clone()
                .with(|scenario| scenario.agent_restarts = vec![at])
                .lines(limit);
            let kept: Vec<Line> = restarted
                .into_iter()
                .filter(|line| line.body != LineBody::AgentRestarted)
                .collect();
            assert_eq!(
                trace(&kept),
                undisturbed,
                "after a restart of the agent at {at:?}"
            );
        }
        undisturbed
    }
}

/// When each probe of each life looks, from its first look to its last.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "times of a scenario are small"
)]
fn looking(lines: &[Line]) -> Vec<(Time, Time)> {
    let mut open: BTreeMap<(Option<Arc<str>>, ProbeKind), usize> = BTreeMap::new();
    let mut spans: Vec<(Time, Time)> = Vec::new();
    for line in lines {
        match line.body {
            LineBody::Probe {
                kind,
                look: true,
                latency_ms,
                ..
            } => {
                let index = *open.entry((line.container.clone(), kind)).or_insert_with(|| {
                    let began = line.at.as_micros() as f64 - latency_ms * 1e3;
                    spans.push((Time::from_micros(began.round() as u64), line.at));
                    spans.len() - 1
                });
                spans[index].1 = line.at;
            }
            LineBody::Created { .. } => open.retain(|(container, _), _| *container != line.container),
            _ => {}
        }
    }
    spans
}

/// Restarts that are tried with one scenario: enough to hit everything that happens in it.
const MAX_RESTARTS: usize = 60;

/// When things happen, and the middle between each two of them.
fn moments(lines: &[Line]) -> Vec<Time> {
    let mut times: Vec<Time> = lines.iter().map(|line| line.at).collect();
    times.dedup();
    let middles = times
        .windows(2)
        .map(|pair| pair[0] + Span::from_micros(pair[1].since(pair[0]).as_micros() / 2));
    let mut moments: Vec<Time> = times.iter().copied().chain(middles).collect();
    moments.sort_unstable();
    moments.dedup();
    let stride = moments.len().div_ceil(MAX_RESTARTS).max(1);
    moments.into_iter().step_by(stride).collect()
}

/// One event line a line, without what is the same in all of them. Further successes of a probe in a row are counted,
/// not listed.
pub(crate) fn trace(lines: &[Line]) -> String {
    let mut out = String::new();
    for line in lines {
        if let LineBody::Probe {
            run,
            outcome: pulselet_engine::line::LineOutcome::Success,
            ..
        } = line.body
            && run > 2
        {
            continue;
        }
        let record = LineRecord {
            t: line.at.since(Time::ZERO).as_secs_f64(),
            time: None,
            pod: &PodName::new("default", "web"),
            container: line.container.as_deref(),
            body: &line.body,
        };
        let value = serde_json::to_value(&record).expect("a line is JSON");
        out.push_str(&terse(&value));
        out.push('\n');
    }
    out
}

fn terse(value: &Value) -> String {
    let object = value.as_object().expect("a line is an object");
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or("");
    let time = object["t"].to_string();
    let mut out = format!("{time:>8} {:6} {}", text("container"), text("type"));
    for (key, value) in object {
        let is_no_look = key == "look" && *value == Value::Bool(false);
        if !is_no_look
            && !["t", "pod", "container", "type", "detail", "latencyMs", "id"].contains(&key.as_str())
        {
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            out = format!("{out} {key}={shown}");
        }
    }
    out
}

/// When the first line of this sort was told, in seconds.
pub(crate) fn first(lines: &[Line], matches: impl Fn(&LineBody) -> bool) -> Option<f64> {
    let line = lines.iter().find(|line| matches(&line.body))?;
    Some(line.at.since(Time::ZERO).as_secs_f64())
}
