//! From an admitted Pod to everything that a node and a simulation need of it, once.
//!
//! Nobody else decides what a field of a manifest means for a running pod. The engine's plan follows the *node's* gates:
//! what a gate hides does not appear in it. A Pod comes here defaulted and validated, but perhaps by another API server
//! or under older rules, so odd numbers are moved to the nearest sensible value instead of being trusted; only what has
//! no sensible reading is an error. Judging a manifest for its author is admission's work, not ours.

use std::sync::Arc;

use pulselet_engine::plan::{
    ContainerPlan, ExitCodeMatch, Handler, Hook, PodPlan, ProbeKind, ProbePlan, RestartAction, RestartPolicy,
    RestartRule, Role,
};
use pulselet_engine::time::Span;
use pulselet_model::openapi::api::core::v1::ContainerRestartRule;
use pulselet_model::{Container, EphemeralContainer, Gate, GateSet, Pod, PodSpec, Probe, pod_requests};

use crate::blueprint::{ContainerBlueprint, PodBlueprint, pull_secrets};
use crate::refusal::refusal;
use crate::volume::VolumeBlueprint;

/// What a probe has when its manifest does not say; zero means that it does not.
const DEFAULT_PERIOD_SECONDS: i32 = 10;
const DEFAULT_TIMEOUT_SECONDS: i32 = 1;
const DEFAULT_SUCCESS_THRESHOLD: i32 = 1;
const DEFAULT_FAILURE_THRESHOLD: i32 = 3;
/// The shortest period of a probe that runs a command in the container.
const MIN_EXEC_PERIOD_MS: i64 = 500;
/// The shortest period of a probe over the network.
const MIN_NETWORK_PERIOD_MS: i64 = 200;
/// The shortest timeout of any probe.
const MIN_TIMEOUT_MS: i64 = 100;
/// A negative grace period means this many seconds, as it does upstream.
const NEGATIVE_GRACE_SECONDS: u64 = 1;

/// A Pod that cannot be run as it stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("the pod has no containers")]
    FindContainers,
    #[error("the {} probe of container {container} has no handler", kind.as_str())]
    FindHandler { container: String, kind: ProbeKind },
    #[error("{owner} has the unknown restart policy {policy:?}")]
    ReadRestartPolicy { owner: String, policy: String },
    #[error("container {container} has a restart rule with the unsupported action {action:?}")]
    ReadRestartAction { container: String, action: String },
    #[error("container {container} has a restart rule with the unknown operator {operator:?}")]
    ReadRestartOperator { container: String, operator: String },
}

/// Converts a Pod under the node's gates.
pub fn convert(pod: &Pod, gates: GateSet) -> Result<PodBlueprint, PlanError> {
    let spec = &pod.spec;
    if spec.containers.is_empty() {
        return Err(PlanError::FindContainers);
    }
    let staying = containers(spec).map(|(container, role)| ContainerBlueprint::new(container, stays(role)));
    let passing = spec
        .ephemeral_containers
        .iter()
        .map(ContainerBlueprint::ephemeral);
    let blueprints: Box<[_]> = staying.chain(passing).collect();
    let plan = Arc::new(pod_plan(spec, &blueprints, gates)?);
    let opened = open_for_running(gates);
    let running = if opened == gates {
        Arc::clone(&plan)
    } else {
        Arc::new(pod_plan(spec, &blueprints, opened)?)
    };
    Ok(PodBlueprint {
        plan,
        running,
        containers: blueprints,
        volumes: spec.volumes.iter().map(VolumeBlueprint::new).collect(),
        pull_secrets: pull_secrets(spec),
        shares_processes: spec.host_pid || spec.share_process_namespace == Some(true),
        requests: pod_requests(spec),
        refusal: refusal(pod).map(Box::new),
    })
}

/// The gates as lives that have begun see them: what a life is created with it keeps, but a probe's grace period and the
/// offsets to its times follow their gates at once.
fn open_for_running(gates: GateSet) -> GateSet {
    gates
        .with(Gate::StartupProbeEnabled, true)
        .with(Gate::ContainerStopSignals, true)
        .with(Gate::ProbeInitializationFailureThreshold, true)
}

fn pod_plan(spec: &PodSpec, blueprints: &[ContainerBlueprint], gates: GateSet) -> Result<PodPlan, PlanError> {
    let pod_policy = restart_policy("the pod", &spec.restart_policy)?;
    let mut plans = Vec::with_capacity(blueprints.len());
    for ((container, role), blueprint) in containers(spec).zip(blueprints) {
        let plan = container_plan(container, role, pod_policy, blueprint, gates)?;
        plans.push(Arc::new(plan));
    }
    let passing = spec.ephemeral_containers.iter();
    plans.extend(passing.map(|container| Arc::new(ephemeral_plan(container))));
    Ok(PodPlan {
        grace: spec.termination_grace_period_seconds.map(grace),
        active_deadline: spec
            .active_deadline_seconds
            .map(|seconds| Span::from_secs(seconds.try_into().unwrap_or(0))),
        containers: plans,
    })
}

/// It runs once: neither probed nor hooked nor restarted.
fn ephemeral_plan(container: &EphemeralContainer) -> ContainerPlan {
    ContainerPlan {
        name: container.name.as_str().into(),
        image: container.image.as_str().into(),
        role: Role::Ephemeral,
        restart: RestartPolicy::Never,
        restart_rules: Vec::new(),
        startup: None,
        liveness: None,
        readiness: None,
        post_start: None,
        pre_stop: None,
        stop_signal: None,
    }
}

/// The containers with their roles, in the plan's order, ephemeral ones left out.
pub(crate) fn containers(spec: &PodSpec) -> impl Iterator<Item = (&Container, Role)> {
    let init = spec.init_containers.iter().map(|container| {
        let role = if container.is_sidecar() {
            Role::Sidecar
        } else {
            Role::Init
        };
        (container, role)
    });
    init.chain(spec.containers.iter().map(|container| (container, Role::Main)))
}

/// The probe of a kind as the manifest has it.
pub(crate) fn manifest_probe(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Startup => container.startup_probe.as_ref(),
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
    }
}

/// Whether it runs on: a container that runs to completion is neither probed nor hooked.
fn stays(role: Role) -> bool {
    match role {
        Role::Init | Role::Ephemeral => false,
        Role::Sidecar | Role::Main => true,
    }
}

fn container_plan(
    container: &Container,
    role: Role,
    pod_policy: RestartPolicy,
    blueprint: &ContainerBlueprint,
    gates: GateSet,
) -> Result<ContainerPlan, PlanError> {
    let probe = |kind| {
        let Some(probe) = manifest_probe(container, kind).filter(|_| stays(role)) else {
            return Ok(None);
        };
        let target = blueprint.probe(kind).ok_or_else(|| PlanError::FindHandler {
            container: container.name.clone(),
            kind,
        })?;
        Ok(Some(Arc::new(probe_plan(probe, kind, target.handler(), gates))))
    };
    let hook = |hook| blueprint.hook(hook).map(|target| target.plan());
    let lifecycle = container.lifecycle.as_ref();
    Ok(ContainerPlan {
        name: container.name.as_str().into(),
        image: container.image.as_str().into(),
        role,
        restart: match &container.restart_policy {
            Some(policy) => restart_policy(&format!("container {}", container.name), policy)?,
            None => pod_policy,
        },
        restart_rules: restart_rules(container)?,
        startup: probe(ProbeKind::Startup)?.filter(|_| gates.enabled(Gate::StartupProbeEnabled)),
        liveness: probe(ProbeKind::Liveness)?,
        readiness: probe(ProbeKind::Readiness)?,
        post_start: hook(Hook::PostStart),
        pre_stop: hook(Hook::PreStop),
        stop_signal: lifecycle
            .and_then(|lifecycle| lifecycle.stop_signal.as_deref())
            .filter(|_| gates.enabled(Gate::ContainerStopSignals))
            // Admission let only names of signals pass.
            .and_then(|name| name.parse().ok()),
    })
}

fn probe_plan(probe: &Probe, kind: ProbeKind, handler: Handler, gates: GateSet) -> ProbePlan {
    let (period, period_after) = periods(probe, kind, handler, gates);
    let failure_threshold = threshold(probe.failure_threshold, DEFAULT_FAILURE_THRESHOLD);
    let has_initial_threshold = match kind {
        ProbeKind::Startup => false,
        ProbeKind::Liveness | ProbeKind::Readiness => {
            gates.enabled(Gate::ProbeInitializationFailureThreshold)
        }
    };
    let initial = if has_initial_threshold {
        probe.initialization_failure_threshold
    } else {
        0
    };
    let has_grace = match kind {
        ProbeKind::Startup | ProbeKind::Liveness => gates.enabled(Gate::ProbeTerminationGracePeriod),
        ProbeKind::Readiness => false,
    };
    ProbePlan {
        handler,
        initial_delay: initial_delay(probe, gates),
        period,
        period_after,
        timeout: timeout(probe, kind, gates),
        success_threshold: threshold(probe.success_threshold, DEFAULT_SUCCESS_THRESHOLD),
        failure_threshold,
        initial_failure_threshold: u32::try_from(initial).unwrap_or(0).max(failure_threshold),
        grace: probe
            .termination_grace_period_seconds
            .filter(|_| has_grace)
            .map(grace),
    }
}

/// Whether the period and the timeout of a probe may have an offset.
fn has_offsets(kind: ProbeKind, gates: GateSet) -> bool {
    match kind {
        ProbeKind::Startup | ProbeKind::Readiness => gates.enabled(Gate::SubSecondProbes),
        ProbeKind::Liveness => false,
    }
}

fn timeout(probe: &Probe, kind: ProbeKind, gates: GateSet) -> Span {
    let seconds = whole_seconds(probe.timeout_seconds, DEFAULT_TIMEOUT_SECONDS);
    let offset = probe
        .timeout_milliseconds
        .filter(|_| has_offsets(kind, gates))
        .unwrap_or(0);
    millis((seconds + i64::from(offset)).max(MIN_TIMEOUT_MS))
}

/// The period before the first success and the one after it.
fn periods(probe: &Probe, kind: ProbeKind, handler: Handler, gates: GateSet) -> (Span, Span) {
    let seconds = whole_seconds(probe.period_seconds, DEFAULT_PERIOD_SECONDS);
    let offset = probe
        .period_milliseconds
        .filter(|_| has_offsets(kind, gates))
        .unwrap_or(0);
    let minimum = match handler {
        Handler::Exec => MIN_EXEC_PERIOD_MS,
        Handler::Http | Handler::Tcp | Handler::Grpc => MIN_NETWORK_PERIOD_MS,
    };
    let effective = (seconds + i64::from(offset)).max(minimum);
    // The way back to whole seconds is there to save work; it must not speed a probe up.
    let after = if effective < 1000 { seconds } else { effective };
    (millis(effective), millis(after))
}

fn initial_delay(probe: &Probe, gates: GateSet) -> Span {
    let offset = probe
        .initial_delay_milliseconds
        .filter(|_| gates.enabled(Gate::SubSecondProbes))
        .unwrap_or(0);
    millis(i64::from(probe.initial_delay_seconds.max(0)) * 1000 + i64::from(offset))
}

/// Seconds of a manifest in milliseconds, at least one second; zero means that the default applies.
fn whole_seconds(seconds: i32, default: i32) -> i64 {
    let seconds = if seconds == 0 { default } else { seconds.max(1) };
    i64::from(seconds) * 1000
}

fn threshold(value: i32, default: i32) -> u32 {
    let value = if value == 0 { default } else { value };
    u32::try_from(value).unwrap_or(0).max(1)
}

fn millis(millis: i64) -> Span {
    Span::from_millis(millis.try_into().unwrap_or(0))
}

fn grace(seconds: i64) -> Span {
    Span::from_secs(seconds.try_into().unwrap_or(NEGATIVE_GRACE_SECONDS))
}

fn restart_policy(owner: &str, policy: &str) -> Result<RestartPolicy, PlanError> {
    match policy {
        "" | "Always" => Ok(RestartPolicy::Always),
        "OnFailure" => Ok(RestartPolicy::OnFailure),
        "Never" => Ok(RestartPolicy::Never),
        _ => Err(PlanError::ReadRestartPolicy {
            owner: owner.to_owned(),
            policy: policy.to_owned(),
        }),
    }
}

fn restart_rules(container: &Container) -> Result<Vec<RestartRule>, PlanError> {
    container
        .restart_policy_rules
        .iter()
        .map(|rule| restart_rule(&container.name, rule))
        .collect()
}

fn restart_rule(container: &str, rule: &ContainerRestartRule) -> Result<RestartRule, PlanError> {
    let action = match rule.action.as_str() {
        "Restart" => RestartAction::Restart,
        "RestartAllContainers" => RestartAction::RestartAllContainers,
        action => {
            return Err(PlanError::ReadRestartAction {
                container: container.to_owned(),
                action: action.to_owned(),
            });
        }
    };
    // A rule without exit codes matches none.
    let Some(exit_codes) = &rule.exit_codes else {
        return Ok(RestartRule {
            action,
            matches: ExitCodeMatch::In,
            codes: Vec::new(),
        });
    };
    let matches = match exit_codes.operator.as_str() {
        "In" => ExitCodeMatch::In,
        "NotIn" => ExitCodeMatch::NotIn,
        operator => {
            let operator = operator.to_owned();
            return Err(PlanError::ReadRestartOperator {
                container: container.to_owned(),
                operator,
            });
        }
    };
    Ok(RestartRule {
        action,
        matches,
        codes: exit_codes.values.clone().unwrap_or_default(),
    })
}
