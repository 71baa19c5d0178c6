//! What a manifest implies, container by container and probe by probe: the timing and the advice.
//!
//! This only brings [`crate::timing`] and [`crate::advice`] together; how it is shown is the command's work.

use std::sync::Arc;

use pulselet_engine::plan::{ContainerPlan, PodPlan, ProbeKind, ProbePlan, Settings};
use pulselet_engine::time::Span;
use pulselet_model::{GateSet, Pod};

use crate::advice::{Advice, Subject, about_container, about_probe};
use crate::blueprint::PodBlueprint;
use crate::convert::{PlanError, containers, convert};
use crate::refusal::PodRefusal;
use crate::timing::{ProbeTiming, probe_timing, stop_on_deletion};

#[derive(Clone, Debug)]
pub struct Explanation {
    pub plan: Arc<PodPlan>,
    /// Why a node does not run the pod; `None` if it does.
    pub refusal: Option<Box<PodRefusal>>,
    /// In the plan's order.
    pub containers: Vec<ContainerExplanation>,
}

#[derive(Clone, Debug)]
pub struct ContainerExplanation {
    pub plan: Arc<ContainerPlan>,
    /// From a deletion without a number of its own until SIGKILL, at the latest.
    pub deleted_within: Span,
    /// Startup, liveness, readiness, as far as there are any.
    pub probes: Vec<ProbeExplanation>,
    /// About the container as a whole.
    pub advice: Vec<Advice>,
}

#[derive(Clone, Debug)]
pub struct ProbeExplanation {
    pub plan: Arc<ProbePlan>,
    pub timing: ProbeTiming,
    pub advice: Vec<Advice>,
}

/// Explains an admitted Pod under the node's gates and settings.
pub fn explain(pod: &Pod, gates: GateSet, settings: &Settings) -> Result<Explanation, PlanError> {
    let PodBlueprint { plan, refusal, .. } = convert(pod, gates)?;
    let subjects = plan
        .containers
        .iter()
        .zip(containers(&pod.spec))
        .map(|(container, (manifest, _))| {
            let subject = Subject {
                pod: &plan,
                container,
                manifest,
                gates,
                settings,
            };
            ContainerExplanation {
                plan: Arc::clone(container),
                deleted_within: stop_on_deletion(&plan, container),
                probes: ProbeKind::ALL
                    .into_iter()
                    .filter_map(|kind| explain_probe(&subject, kind))
                    .collect(),
                advice: about_container(&subject),
            }
        });
    let containers = subjects.collect();
    Ok(Explanation {
        plan,
        refusal,
        containers,
    })
}

fn explain_probe(subject: &Subject<'_>, kind: ProbeKind) -> Option<ProbeExplanation> {
    Some(ProbeExplanation {
        plan: Arc::clone(subject.container.probe(kind)?),
        timing: probe_timing(subject.pod, subject.container, kind, subject.settings)?,
        advice: about_probe(subject, kind),
    })
}
