//! What a change of a probe would mean: the pod as it is and as it would be, simulated through the same trouble.

use pulselet_agent::pod_name_of;
use pulselet_engine::line::LineRecord;
use pulselet_engine::time::{Span, Time};
use pulselet_model::{FieldError, Pod, Probe, Profile, admit_local};
use pulselet_plan::PlanError;
use pulselet_sim::scenario::{GateSkew, ScenarioError};
use pulselet_sim::{Scenario, Setup, Simulation};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;

use crate::manifest::{self, ExplainError, ProbeNumbers};
use crate::source::NodeRules;

/// Lines of one simulation that are told: an hour of probing every second, and all that is between.
const MAX_LINES: usize = 5_000;
/// The longest time that is simulated.
const MAX_SPAN: Span = Span::from_secs(3_600);

/// A change and the trouble it is tried in, as the page asks.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Change {
    /// `namespace/name`
    pub(crate) pod: String,
    container: String,
    kind: ChangedProbe,
    /// The fields of the probe that are others.
    fields: ProbeFields,
    trouble: Trouble,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ChangedProbe {
    Startup,
    Liveness,
    Readiness,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProbeFields {
    period_seconds: Option<i32>,
    timeout_seconds: Option<i32>,
    failure_threshold: Option<i32>,
    initial_delay_seconds: Option<i32>,
    termination_grace_period_seconds: Option<i64>,
}

/// What goes wrong, in seconds of the container's age.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Trouble {
    /// It takes this long to start.
    #[serde(default)]
    starts_after: u32,
    /// From here on every probe fails.
    fails_at: u32,
    /// It does not leave on its stop signal.
    #[serde(default)]
    ignores_signal: bool,
    /// How much is simulated.
    seconds: u32,
}

#[derive(Debug, Error)]
pub(crate) enum WhatIfError {
    #[error("the pod has no container {0:?} with such a probe")]
    NoSuchProbe(String),
    #[error("the change would be refused: {}", list(.0))]
    Admit(Vec<FieldError>),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Explain(#[from] ExplainError),
    #[error("the trouble cannot be simulated: {0}")]
    ReadScenario(#[from] ScenarioError),
}

fn list(errors: &[FieldError]) -> String {
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    errors.join("; ")
}

/// Both simulations.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    before: Outcome,
    after: Outcome,
}

#[derive(Debug, Serialize)]
struct Outcome {
    /// Event lines; `t` is the time.
    lines: Vec<Value>,
    /// How long was simulated.
    seconds: f64,
    probes: Vec<ProbeNumbers>,
}

pub(crate) fn compare(pod: &Pod, rules: &NodeRules, change: &Change) -> Result<Comparison, WhatIfError> {
    let mut changed = pod.clone();
    let probe =
        probe_of(&mut changed, change).ok_or_else(|| WhatIfError::NoSuchProbe(change.container.clone()))?;
    change.fields.apply(probe);
    let admitted = admit_local(changed, Profile::Pulselet, rules.gates);
    let changed = admitted.map_err(WhatIfError::Admit)?.pod;
    Ok(Comparison {
        before: simulate(pod, rules, change)?,
        after: simulate(&changed, rules, change)?,
    })
}

fn probe_of<'p>(pod: &'p mut Pod, change: &Change) -> Option<&'p mut Probe> {
    let containers = pod
        .spec
        .init_containers
        .iter_mut()
        .chain(&mut pod.spec.containers);
    let container = containers
        .into_iter()
        .find(|container| container.name == change.container)?;
    match change.kind {
        ChangedProbe::Startup => container.startup_probe.as_mut(),
        ChangedProbe::Liveness => container.liveness_probe.as_mut(),
        ChangedProbe::Readiness => container.readiness_probe.as_mut(),
    }
}

impl ProbeFields {
    fn apply(&self, probe: &mut Probe) {
        let set = |field: &mut i32, value: Option<i32>| *field = value.unwrap_or(*field);
        set(&mut probe.period_seconds, self.period_seconds);
        set(&mut probe.timeout_seconds, self.timeout_seconds);
        set(&mut probe.failure_threshold, self.failure_threshold);
        set(&mut probe.initial_delay_seconds, self.initial_delay_seconds);
        if self.termination_grace_period_seconds.is_some() {
            probe.termination_grace_period_seconds = self.termination_grace_period_seconds;
        }
    }
}

fn simulate(pod: &Pod, rules: &NodeRules, change: &Change) -> Result<Outcome, WhatIfError> {
    let gates = rules.gates;
    let blueprint = pulselet_plan::convert(pod, gates)?;
    let scenario = Scenario::read(&change.scenario(), &blueprint.plan)?;
    let setup = Setup::for_pod(
        pod,
        GateSkew::both(gates),
        &blueprint,
        rules.settings,
        0,
        scenario,
    );
    let span = Span::from_secs(u64::from(change.trouble.seconds)).min(MAX_SPAN);
    let mut simulation = Simulation::new(setup);
    let name = pod_name_of(pod);
    let mut lines = Vec::new();
    let told = simulation.run(Time::ZERO + span, |simulation| {
        for line in &simulation.last_step().lines {
            if lines.len() < MAX_LINES {
                let record = LineRecord {
                    t: line.at.since(Time::ZERO).as_secs_f64(),
                    time: None,
                    pod: &name,
                    container: line.container.as_deref(),
                    body: &line.body,
                };
                lines.push(serde_json::to_value(&record).expect("a line is plain data"));
            }
        }
        Ok::<_, std::convert::Infallible>(())
    });
    let Ok(_) = told;
    Ok(Outcome {
        lines,
        seconds: span.as_secs_f64(),
        probes: manifest::numbers(pod, rules)?,
    })
}

impl Change {
    /// The trouble as a scenario, which is YAML, which JSON is.
    fn scenario(&self) -> String {
        let Trouble {
            starts_after,
            fails_at,
            ignores_signal,
            ..
        } = self.trouble;
        let mut life = json!({"startsAfter": format!("{starts_after}s"), "failsAt": format!("{fails_at}s")});
        if ignores_signal {
            life["handles"] = json!([]);
        }
        let container = &self.container;
        json!({"containers": {container: {"lives": [life]}}}).to_string()
    }
}

#[cfg(test)]
mod tests {
    use pulselet_model::{GateSet, admit_create};

    use super::*;

    fn pod() -> Pod {
        let probe = json!({"httpGet": {"port": 80}, "periodSeconds": 10, "failureThreshold": 3});
        let app = json!({"name": "app", "image": "a", "livenessProbe": probe});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [app]}});
        let pod = serde_json::from_value(pod).unwrap();
        admit_create(pod, Profile::Pulselet, GateSet::ALL).unwrap().pod
    }

    fn change(fields: &Value) -> Change {
        serde_json::from_value(
            json!({"pod": "default/web", "container": "app", "kind": "liveness", "fields": fields,
            "trouble": {"failsAt": 60, "ignoresSignal": true, "seconds": 300}}),
        )
        .unwrap()
    }

    fn first(outcome: &Outcome, kind: &str) -> Option<f64> {
        let line = outcome.lines.iter().find(|line| line["type"] == kind)?;
        line["t"].as_f64()
    }

    #[test]
    fn a_faster_probe_kills_sooner_in_the_same_trouble() {
        let faster =
            change(&json!({"periodSeconds": 2, "failureThreshold": 2, "terminationGracePeriodSeconds": 5}));
        let Comparison { before, after } = compare(&pod(), &NodeRules::usual(), &faster).unwrap();
        let (slow, fast) = (
            first(&before, "killing").unwrap(),
            first(&after, "killing").unwrap(),
        );
        assert!((80.0..100.0).contains(&slow), "{slow}");
        assert!((62.0..66.0).contains(&fast), "{fast}");
        let forced = first(&after, "graceExceeded").unwrap();
        assert!((forced - fast - 5.0).abs() < 0.01, "{forced}");
        assert_eq!(before.probes[0].grace_seconds, Some(30.0));
        assert_eq!(after.probes[0].grace_seconds, Some(5.0));
        assert!(after.probes[0].detect_max_seconds < before.probes[0].detect_max_seconds);
    }

    #[test]
    fn a_change_that_would_be_refused_says_why() {
        let refused = compare(
            &pod(),
            &NodeRules::usual(),
            &change(&json!({"periodSeconds": -1})),
        )
        .unwrap_err();
        assert!(
            refused.to_string().contains("livenessProbe.periodSeconds"),
            "{refused}"
        );
        let mut elsewhere = change(&json!({}));
        elsewhere.container = "other".to_owned();
        assert!(compare(&pod(), &NodeRules::usual(), &elsewhere).is_err());
    }
}
