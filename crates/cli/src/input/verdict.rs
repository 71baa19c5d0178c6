//! What admission says about each object of a file.
//!
//! A workload is judged as an API server does, and gives the Pod that its template describes. Kinds that are not read are
//! skipped, never rejected.

use pulselet_agent::LocalObject;
use pulselet_model::{
    Admission, DecodeError, DecodeErrors, Document, FieldError, FileObject, FileReader, GateSet,
    ManifestObject, Pod, Position, Profile, Warning, WorkloadError, WorkloadKind,
};
use pulselet_model::{
    admit_companion, admit_config_map, admit_create, admit_file_workload, admit_local, admit_secret,
    apply_probes_annotation, decode_file_object, probes_annotation, workload_pod,
};
use serde_json::Value;

/// What admission says about one object.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) document: usize,
    pub(crate) item: Option<usize>,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// The Pod, and the place of the field of each warning.
    Accepted(Box<Admission>, Vec<Option<Position>>),
    /// A workload, and the place of the field of each warning.
    Workload(Box<AcceptedWorkload>, Vec<Option<Position>>),
    /// A config map or a secret, for the pods beside it.
    Object(LocalObject),
    /// A complete object of another kind that files may hold.
    Companion(Value),
    /// The object has a kind that is not read: the reason, with its place.
    Skipped(DecodeError),
    /// Every error, with the place of the field it is about.
    Invalid(Vec<(FieldError, Option<Position>)>),
    Undecodable(DecodeErrors),
}

/// A workload that would be admitted.
#[derive(Debug)]
pub(crate) struct AcceptedWorkload {
    pub(crate) kind: WorkloadKind,
    /// Complete: gates applied, defaults filled in.
    pub(crate) object: Value,
    pub(crate) pod: Pod,
    pub(crate) warnings: Vec<Warning>,
}

/// A Pod to ask about.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) pod: Pod,
    /// The kind whose template the Pod comes from; `None` for a Pod of its own.
    pub(crate) workload: Option<WorkloadKind>,
}

impl Subject {
    /// A workload as `kubectl` names it, such as `deployment/web`; `None` for a Pod of its own.
    pub(crate) fn short_name(&self) -> Option<String> {
        let kind = self.workload?.name().to_ascii_lowercase();
        Some(format!("{kind}/{}", self.pod.name()))
    }
}

impl Outcome {
    /// The Pod of an accepted Pod or workload.
    pub(crate) fn into_subject(self) -> Option<Subject> {
        match self {
            Self::Accepted(admission, _) => Some(Subject {
                pod: admission.pod,
                workload: None,
            }),
            Self::Workload(workload, _) => Some(Subject {
                pod: workload.pod,
                workload: Some(workload.kind),
            }),
            Self::Object(_)
            | Self::Companion(_)
            | Self::Skipped(_)
            | Self::Invalid(_)
            | Self::Undecodable(_) => None,
        }
    }

    pub(crate) const fn is_rejected(&self) -> bool {
        match self {
            Self::Invalid(_) | Self::Undecodable(_) => true,
            Self::Accepted(..)
            | Self::Workload(..)
            | Self::Object(_)
            | Self::Companion(_)
            | Self::Skipped(_) => false,
        }
    }

    /// The warnings about an accepted object, each with the place of its field.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = (&Warning, Option<Position>)> {
        let (warnings, places) = match self {
            Self::Accepted(admission, places) => (&admission.warnings[..], &places[..]),
            Self::Workload(workload, places) => (&workload.warnings[..], &places[..]),
            Self::Object(_)
            | Self::Companion(_)
            | Self::Skipped(_)
            | Self::Invalid(_)
            | Self::Undecodable(_) => (&[][..], &[][..]),
        };
        warnings.iter().zip(places.iter().copied())
    }
}

/// Who admits a Pod, with its gates.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gatekeeper {
    /// An API, which removes or refuses what a closed gate hides.
    Api(GateSet),
    /// A node that runs the Pod without an API.
    Node(GateSet),
}

impl Gatekeeper {
    const fn gates(self) -> GateSet {
        match self {
            Self::Api(gates) | Self::Node(gates) => gates,
        }
    }

    const fn reader(self) -> FileReader {
        match self {
            Self::Api(_) => FileReader::Inspector,
            Self::Node(_) => FileReader::Node,
        }
    }
}

pub(super) fn judge(document: &Document<'_>, profile: Profile, gatekeeper: Gatekeeper) -> Verdict {
    let decoded = decode_file_object(document, profile, gatekeeper.reader());
    let outcome = match decoded.object {
        Ok(FileObject::Node(object)) => judge_node_object(document, object, profile, gatekeeper),
        Ok(FileObject::Workload { kind, object }) => {
            judge_workload(document, kind, object, profile, gatekeeper.gates())
        }
        Ok(FileObject::Companion { kind, object }) => match admit_companion(kind, object) {
            Ok(object) => Outcome::Companion(object),
            Err(error) => refused(document, error),
        },
        Ok(FileObject::Skipped(reason)) => Outcome::Skipped(reason),
        Err(errors) => Outcome::Undecodable(errors),
    };
    Verdict {
        document: document.index,
        item: document.item,
        kind: decoded.kind,
        name: decoded.name,
        outcome,
    }
}

fn judge_node_object(
    document: &Document<'_>,
    object: ManifestObject,
    profile: Profile,
    gatekeeper: Gatekeeper,
) -> Outcome {
    match object {
        ManifestObject::Pod(pod) => judge_pod(document, *pod, profile, gatekeeper),
        ManifestObject::ConfigMap(map) => object_outcome(document, admit_config_map(*map), |map| {
            LocalObject::ConfigMap(Box::new(map))
        }),
        ManifestObject::Secret(secret) => object_outcome(document, admit_secret(*secret), |secret| {
            LocalObject::Secret(Box::new(secret))
        }),
    }
}

/// A pod as a node will run it: with the probe fields of its annotation. A bad one is among the warnings.
fn with_annotation(mut pod: Pod) -> Pod {
    if let Some(text) = probes_annotation(&pod).map(str::to_owned) {
        let _ = apply_probes_annotation(&mut pod, &text);
    }
    pod
}

fn judge_pod(document: &Document<'_>, pod: Pod, profile: Profile, gatekeeper: Gatekeeper) -> Outcome {
    let admitted = match gatekeeper {
        Gatekeeper::Api(gates) => admit_create(pod, profile, gates),
        Gatekeeper::Node(gates) => admit_local(pod, profile, gates),
    };
    match admitted {
        Ok(admission) => {
            let places = places(document, &admission.warnings);
            let pod = with_annotation(admission.pod);
            Outcome::Accepted(Box::new(Admission { pod, ..admission }), places)
        }
        Err(errors) => invalid(document, errors),
    }
}

fn judge_workload(
    document: &Document<'_>,
    kind: WorkloadKind,
    object: Value,
    profile: Profile,
    gates: GateSet,
) -> Outcome {
    let accepted = admit_file_workload(kind, object, profile, gates).and_then(|admission| {
        let pod = workload_pod(kind, &admission.object)?;
        Ok(AcceptedWorkload {
            kind,
            object: admission.object,
            pod: with_annotation(pod),
            warnings: admission.warnings,
        })
    });
    match accepted {
        Ok(accepted) => {
            let places = places(document, &accepted.warnings);
            Outcome::Workload(Box::new(accepted), places)
        }
        Err(error) => refused(document, error),
    }
}

fn object_outcome<T>(
    document: &Document<'_>,
    admitted: Result<T, Vec<FieldError>>,
    object: impl FnOnce(T) -> LocalObject,
) -> Outcome {
    match admitted {
        Ok(admitted) => Outcome::Object(object(admitted)),
        Err(errors) => invalid(document, errors),
    }
}

/// The places of the fields of warnings. Without warnings, the document is not parsed for them.
fn places(document: &Document<'_>, warnings: &[Warning]) -> Vec<Option<Position>> {
    if warnings.is_empty() {
        return Vec::new();
    }
    document.locate_all(warnings.iter().map(Warning::field))
}

fn refused(document: &Document<'_>, error: WorkloadError) -> Outcome {
    match error {
        WorkloadError::Invalid(errors) => invalid(document, errors),
        error @ WorkloadError::Decode { .. } => {
            Outcome::Undecodable(DecodeError::new(error.to_string(), None).into())
        }
    }
}

fn invalid(document: &Document<'_>, errors: Vec<FieldError>) -> Outcome {
    let places = document.locate_all(errors.iter().map(|error| error.field.as_str()));
    Outcome::Invalid(errors.into_iter().zip(places).collect())
}
