//! Things a user should know about a Pod that is accepted.
//!
//! There are few on purpose: a warning that is often wrong is not read when it is right.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::annotation::{PROBES_ANNOTATION, apply_probes_annotation};
use crate::gates::Gate;
use crate::pod::{Container, Pod, PodSpec};
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
    let initialization = container
        .liveness_probe
        .as_ref()
        .map_or(0, |probe| probe.initialization_failure_threshold);
    if container.startup_probe.is_some() && initialization != 0 {
        let field = path("livenessProbe.initializationFailureThreshold");
        warnings.push(Warning::StartupWithInitialization { field });
    }
    if profile == Profile::Pulselet {
        signal_warnings(warnings, spec, container, path);
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
