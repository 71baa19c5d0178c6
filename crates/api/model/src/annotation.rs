//! Probe fields in an annotation, for API servers that do not know the fields.
//!
//! The annotation `pulselet.dev/probes` is JSON of the form `{container: {kind: {field: value}}}`, with the kinds `startup`,
//! `liveness` and `readiness`. It has the same effect as the fields in the spec, and what the spec says counts. What must
//! always hold: an annotation with anything wrong in it changes nothing.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use thiserror::Error;

use crate::field::FieldError;
use crate::pod::{Container, Pod};
use crate::probe::Probe;
use crate::validation::{self, SignalRule};
use pulselet_schema::Profile;

/// The annotation's name.
pub const PROBES_ANNOTATION: &str = "pulselet.dev/probes";

/// What is wrong with an annotation; it then has no effect.
#[derive(Debug, Error)]
pub enum ProbesAnnotationError {
    #[error("it cannot be read: {0}; it must be JSON of the form {{container: {{kind: {{field: value}}}}}}")]
    Decode(serde_json::Error),
    #[error("there is no container {0:?} that can have probes")]
    NoContainer(String),
    #[error("container {container:?} has no {kind}Probe")]
    NoProbe { container: String, kind: Kind },
    #[error(
        "{container}.{kind}.terminationGracePeriodSeconds: only 0 stands here; others belong in the spec"
    )]
    Grace { container: String, kind: Kind },
    #[error("{}", list(.0))]
    Invalid(Vec<FieldError>),
}

/// Which probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Startup => "startup",
            Self::Liveness => "liveness",
            Self::Readiness => "readiness",
        })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Fields {
    period_milliseconds: Option<i32>,
    timeout_milliseconds: Option<i32>,
    initial_delay_milliseconds: Option<i32>,
    initialization_failure_threshold: Option<i32>,
    termination_grace_period_seconds: Option<i64>,
}

type Extensions = BTreeMap<String, BTreeMap<Kind, Fields>>;

/// The annotation's text; `None` if the pod has none.
pub fn probes_annotation(pod: &Pod) -> Option<&str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(PROBES_ANNOTATION).map(String::as_str)
}

/// Gives the probes of a pod the fields that such an annotation names, where the spec does not have them.
pub fn apply_probes_annotation(pod: &mut Pod, text: &str) -> Result<(), ProbesAnnotationError> {
    let wanted: Extensions = serde_json::from_str(text).map_err(ProbesAnnotationError::Decode)?;
    let mut extended = pod.clone();
    for (container, kinds) in wanted {
        let found = find(&mut extended, &container)
            .ok_or_else(|| ProbesAnnotationError::NoContainer(container.clone()))?;
        for (kind, fields) in kinds {
            if fields
                .termination_grace_period_seconds
                .is_some_and(|grace| grace != 0)
            {
                return Err(ProbesAnnotationError::Grace { container, kind });
            }
            let Some(probe) = probe(found, kind) else {
                return Err(ProbesAnnotationError::NoProbe { container, kind });
            };
            fields.give_to(probe);
        }
    }
    // What an API server has admitted is not judged anew.
    let before = validation::validate_create(pod, Profile::Pulselet, SignalRule::Checked);
    let mut errors = validation::validate_create(&extended, Profile::Pulselet, SignalRule::Checked);
    errors.retain(|error| !before.contains(error));
    if !errors.is_empty() {
        return Err(ProbesAnnotationError::Invalid(errors));
    }
    *pod = extended;
    Ok(())
}

/// The container of that name that can have probes.
fn find<'p>(pod: &'p mut Pod, name: &str) -> Option<&'p mut Container> {
    let spec = &mut pod.spec;
    let mut all = spec.init_containers.iter_mut().chain(&mut spec.containers);
    all.find(|container| container.name == name)
}

fn probe(container: &mut Container, kind: Kind) -> Option<&mut Probe> {
    match kind {
        Kind::Startup => container.startup_probe.as_mut(),
        Kind::Liveness => container.liveness_probe.as_mut(),
        Kind::Readiness => container.readiness_probe.as_mut(),
    }
}

impl Fields {
    fn give_to(&self, probe: &mut Probe) {
        let Self {
            period_milliseconds,
            timeout_milliseconds,
            initial_delay_milliseconds,
            initialization_failure_threshold,
            termination_grace_period_seconds,
        } = *self;
        give(&mut probe.period_milliseconds, period_milliseconds);
        give(&mut probe.timeout_milliseconds, timeout_milliseconds);
        give(&mut probe.initial_delay_milliseconds, initial_delay_milliseconds);
        give(
            &mut probe.termination_grace_period_seconds,
            termination_grace_period_seconds,
        );
        // Zero means unset in the spec.
        if probe.initialization_failure_threshold == 0 {
            probe.initialization_failure_threshold = initialization_failure_threshold.unwrap_or(0);
        }
    }
}

fn give<T>(field: &mut Option<T>, value: Option<T>) {
    if field.is_none() {
        *field = value;
    }
}

fn list(errors: &[FieldError]) -> String {
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(readiness: &serde_json::Value) -> Pod {
        let pod = json!({
            "metadata": {"name": "web"},
            "spec": {"containers": [{
                "name": "app", "image": "app:1",
                "readinessProbe": readiness,
                "livenessProbe": {"tcpSocket": {"port": 80}},
            }]},
        });
        let pod = serde_json::from_value(pod).unwrap();
        crate::admit_create(pod, Profile::Pulselet, crate::GateSet::ALL)
            .unwrap()
            .pod
    }

    fn plain() -> Pod {
        pod(&json!({"tcpSocket": {"port": 80}, "periodSeconds": 1}))
    }

    #[test]
    fn the_annotation_has_the_effect_of_the_fields() {
        let mut annotated = plain();
        let text = json!({"app": {
            "readiness": {
                "periodMilliseconds": -500, "initialDelayMilliseconds": 10,
                "initializationFailureThreshold": 20,
            },
            "liveness": {"terminationGracePeriodSeconds": 0},
        }});
        apply_probes_annotation(&mut annotated, &text.to_string()).unwrap();
        let mut wanted = pod(&json!({
            "tcpSocket": {"port": 80}, "periodSeconds": 1, "periodMilliseconds": -500, "initialDelayMilliseconds": 10,
            "initializationFailureThreshold": 20,
        }));
        let liveness = wanted.spec.containers[0].liveness_probe.as_mut().unwrap();
        liveness.termination_grace_period_seconds = Some(0);
        assert_eq!(annotated.spec, wanted.spec);
    }

    #[test]
    fn what_the_spec_says_counts() {
        let mut both =
            pod(&json!({"tcpSocket": {"port": 80}, "periodSeconds": 1, "periodMilliseconds": -200}));
        let before = both.clone();
        let text = r#"{"app": {"readiness": {"periodMilliseconds": -500}}}"#;
        apply_probes_annotation(&mut both, text).unwrap();
        assert_eq!(both, before);
    }

    #[test]
    fn anything_wrong_leaves_everything_as_it_is() {
        let cases = [
            ("nonsense", "it cannot be read: expected ident"),
            (
                r#"{"app": {"readiness": {"periodSeconds": 1}}}"#,
                "unknown field `periodSeconds`",
            ),
            (r#"{"app": {"readyness": {}}}"#, "unknown variant `readyness`"),
            (
                r#"{"app": {"readiness": {"periodMilliseconds": 1, "periodMilliseconds": 2}}}"#,
                "duplicate field",
            ),
            (r#"{"db": {"readiness": {}}}"#, "there is no container \"db\""),
            (
                r#"{"app": {"startup": {}}}"#,
                "container \"app\" has no startupProbe",
            ),
            (
                r#"{"app": {"liveness": {"terminationGracePeriodSeconds": 5}}}"#,
                "app.liveness.terminationGracePeriodSeconds: only 0",
            ),
            (
                r#"{"app": {"readiness": {"initialDelayMilliseconds": 5, "periodMilliseconds": -900}}}"#,
                "must be at least 200ms",
            ),
            (
                r#"{"app": {"liveness": {"periodMilliseconds": 5}}}"#,
                "must not be set for livenessProbes",
            ),
        ];
        for (text, wanted) in cases {
            let mut pod = plain();
            let error = apply_probes_annotation(&mut pod, text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
            assert_eq!(pod, plain());
        }
    }
}
