//! Things a user should know about a Pod that is accepted.
//!
//! There are few on purpose: a warning that is often wrong is not read when it is right.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::annotation::{PROBES_ANNOTATION, apply_probes_annotation};
use crate::gates::Gate;
use crate::pod::{Container, Pod, PodSpec};
use crate::probe::Probe;
use pulselet_schema::Profile;
use pulselet_vocabulary::Signal;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Warning {
    /// A field was removed because its gate is off.
    Dropped { field: String, gate: Gate },
    /// A field has no effect on this node while its gate is off.
    Ignored { field: String, gate: Gate },
    /// A probe gives its container more time to stop than the Pod does.
    GraceAbovePod {
        field: String,
        grace: i64,
        pod_grace: i64,
    },
    /// Two ways of waiting for a slow start, of which only one is in effect.
    StartupWithInitialization { field: String },
    /// Readiness begins as failed, so no number of failures before the first success changes anything.
    InitializationOnReadiness { field: String },
    /// The greater of both thresholds is used until the first success.
    InitializationRaised {
        field: String,
        threshold: i32,
        failure_threshold: i32,
    },
    /// Upstream API servers would refuse this.
    SignalWithoutOs { field: String },
    /// The annotation about probes has no effect.
    BadProbesAnnotation { field: String, why: String },
    /// A stop signal that ends no process by default.
    SignalEndsNothing { field: String, signal: Signal },
}

impl Warning {
    /// The path of the field it is about.
    pub fn field(&self) -> &str {
        match self {
            Self::Dropped { field, .. }
            | Self::Ignored { field, .. }
            | Self::GraceAbovePod { field, .. }
            | Self::StartupWithInitialization { field }
            | Self::InitializationOnReadiness { field }
            | Self::InitializationRaised { field, .. }
            | Self::SignalWithoutOs { field }
            | Self::BadProbesAnnotation { field, .. }
            | Self::SignalEndsNothing { field, .. } => field,
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped { field, gate } => {
                write!(f, "{field}: dropped because the feature gate {gate} is off")
            }
            Self::Ignored { field, gate } => {
                write!(f, "{field}: has no effect while the feature gate {gate} is off")
            }
            Self::GraceAbovePod {
                field,
                grace,
                pod_grace,
            } => write!(
                f,
                "{field}: {grace} is longer than the pod's terminationGracePeriodSeconds ({pod_grace}); a container \
                 that fails this probe gets more time to stop than one that is deleted"
            ),
            Self::StartupWithInitialization { field } => write!(
                f,
                "{field}: is set together with a startupProbe; liveness is not probed before the startup probe has \
                 succeeded"
            ),
            Self::InitializationOnReadiness { field } => write!(
                f,
                "{field}: has no effect; a container is not ready before its first success, whatever the number of \
                 failures"
            ),
            Self::InitializationRaised {
                field,
                threshold,
                failure_threshold,
            } => write!(
                f,
                "{field}: {threshold} is raised to the failureThreshold ({failure_threshold})"
            ),
            Self::SignalEndsNothing { field, signal } if !signal.can_be_caught() => write!(
                f,
                "{field}: {signal} ends no process and cannot be handled; every stop takes the whole grace period and \
                 ends with SIGKILL"
            ),
            Self::SignalEndsNothing { field, signal } => write!(
                f,
                "{field}: {signal} ends no process that does not handle it; unless the program does, every stop takes \
                 the whole grace period and ends with SIGKILL"
            ),
            Self::SignalWithoutOs { field } => {
                write!(
                    f,
                    "{field}: upstream API servers want spec.os.name to be set with it"
                )
            }
            Self::BadProbesAnnotation { field, why } => write!(f, "{field}: has no effect: {why}"),
        }
    }
}

/// Nodes take fields of probes from an annotation, too.
fn annotation_warning(
    metadata: &ObjectMeta,
    spec: &PodSpec,
    prefix: &str,
    profile: Profile,
) -> Option<Warning> {
    let annotations = metadata.annotations.as_ref()?;
    let text = annotations.get(PROBES_ANNOTATION)?;
    if profile != Profile::Pulselet {
        return None;
    }
    let mut pod = Pod {
        metadata: metadata.clone(),
        spec: spec.clone(),
        ..Pod::default()
    };
    let why = apply_probes_annotation(&mut pod, text).err()?;
    Some(Warning::BadProbesAnnotation {
        field: format!("{prefix}metadata.annotations[{PROBES_ANNOTATION}]"),
        why: why.to_string(),
    })
}

/// Warnings about a valid, defaulted Pod or template. `prefix` is where the template is, with a dot, or empty.
pub(crate) fn warnings(
    metadata: &ObjectMeta,
    spec: &PodSpec,
    prefix: &str,
    profile: Profile,
) -> Vec<Warning> {
    let mut warnings = Vec::new();
    warnings.extend(annotation_warning(metadata, spec, prefix, profile));
    for (list, containers) in [
        ("initContainers", &spec.init_containers),
        ("containers", &spec.containers),
    ] {
        for (index, container) in containers.iter().enumerate() {
            container_warnings(&mut warnings, spec, container, profile, &|field| {
                format!("{prefix}spec.{list}[{index}].{field}")
            });
        }
    }
    warnings
}

fn container_warnings(
    warnings: &mut Vec<Warning>,
    spec: &PodSpec,
    container: &Container,
    profile: Profile,
    path: &dyn Fn(&str) -> String,
) {
    let pod_grace = spec.termination_grace_period_seconds.unwrap_or_default();
    for (name, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        let grace = probe
            .as_ref()
            .and_then(|probe| probe.termination_grace_period_seconds);
        if let Some(grace) = grace.filter(|grace| *grace > pod_grace) {
            let field = path(&format!("{name}.terminationGracePeriodSeconds"));
            warnings.push(Warning::GraceAbovePod {
                field,
                grace,
                pod_grace,
            });
        }
    }
    initialization_warnings(warnings, container, path);
    if profile == Profile::Pulselet {
        signal_warnings(warnings, spec, container, path);
    }
}

fn initialization_warnings(
    warnings: &mut Vec<Warning>,
    container: &Container,
    path: &dyn Fn(&str) -> String,
) {
    let sets = |probe: &&Probe| probe.initialization_failure_threshold != 0;
    if let Some(probe) = container.liveness_probe.as_ref().filter(sets) {
        let field = path("livenessProbe.initializationFailureThreshold");
        let (threshold, failure_threshold) =
            (probe.initialization_failure_threshold, probe.failure_threshold);
        if container.startup_probe.is_some() {
            let field = field.clone();
            warnings.push(Warning::StartupWithInitialization { field });
        }
        if threshold < failure_threshold {
            warnings.push(Warning::InitializationRaised {
                field,
                threshold,
                failure_threshold,
            });
        }
    }
    if container
        .readiness_probe
        .as_ref()
        .is_some_and(|probe| sets(&probe))
    {
        let field = path("readinessProbe.initializationFailureThreshold");
        warnings.push(Warning::InitializationOnReadiness { field });
    }
}

/// Upstream API servers say nothing about signals that they accept.
fn signal_warnings(
    warnings: &mut Vec<Warning>,
    spec: &PodSpec,
    container: &Container,
    path: &dyn Fn(&str) -> String,
) {
    let lifecycle = container.lifecycle.as_ref();
    let Some(signal) = lifecycle.and_then(|lifecycle| lifecycle.stop_signal.as_deref()) else {
        return;
    };
    let field = path("lifecycle.stopSignal");
    if spec.os.as_ref().is_none_or(|os| os.name.is_empty()) {
        warnings.push(Warning::SignalWithoutOs { field: field.clone() });
    }
    if let Ok(signal) = signal.parse::<Signal>()
        && !signal.default_action().ends_process()
    {
        warnings.push(Warning::SignalEndsNothing { field, signal });
    }
}
