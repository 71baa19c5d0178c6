//! Objects that make Pods from a template: admission, updates and what reads show.
//!
//! An object comes and goes as JSON. Its fields are known and have their types; its own defaults are filled in. The
//! template is taken out, treated as the Pod that it describes, and put back. What must always hold: the template of an
//! object passes the same gates, defaults and rules as a Pod, and an update takes away nothing that reads hide.
//!
//! The rules are in `validation::workload`. What is left to others: strict decoding, names and uids of new objects, and
//! whether a time zone exists, which takes a database.

mod fill;
mod hiding;

use serde_json::{Value, json};
use thiserror::Error;

use crate::admission::apply_gates;
use crate::defaults::set_spec_defaults;
use crate::dropping::{keep_hidden, new_signals, refuses_signals};
use crate::field::FieldError;
use crate::gates::{Gate, GateSet};
use crate::pod::Pod;
use crate::qos;
use crate::status::PodStatus;
use crate::template::PodTemplateSpec;
use crate::validation::workload::{self as rules, Workload};
use crate::validation::{self, SignalRule, SpecRules};
use crate::warning::{Warning, warnings};
use pulselet_schema::Profile;

pub use hiding::{
    hide_revision_data, hide_workload, keep_hidden_revision_data, revision_gates_in_use,
    workload_gates_in_use,
};

/// The kinds that have a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadKind {
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    ReplicationController,
    PodTemplate,
}

impl WorkloadKind {
    pub const ALL: [Self; 8] = [
        Self::Deployment,
        Self::ReplicaSet,
        Self::StatefulSet,
        Self::DaemonSet,
        Self::Job,
        Self::CronJob,
        Self::ReplicationController,
        Self::PodTemplate,
    ];

    /// The kind as `kind` names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
            Self::ReplicationController => "ReplicationController",
            Self::PodTemplate => "PodTemplate",
        }
    }

    /// Finds a kind by its name; `None` for kinds without a template.
    ///
    /// ```
    /// use pulselet_model::WorkloadKind;
    ///
    /// assert_eq!(WorkloadKind::from_kind("Job"), Some(WorkloadKind::Job));
    /// assert_eq!(WorkloadKind::from_kind("Pod"), None);
    /// ```
    pub fn from_kind(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == kind)
    }

    /// The version in which the kind is served.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Deployment | Self::ReplicaSet | Self::StatefulSet | Self::DaemonSet => "apps/v1",
            Self::Job | Self::CronJob => "batch/v1",
            Self::ReplicationController | Self::PodTemplate => "v1",
        }
    }

    /// Where the template is, as a JSON pointer.
    pub const fn template_pointer(self) -> &'static str {
        match self {
            Self::PodTemplate => "/template",
            Self::CronJob => "/spec/jobTemplate/spec/template",
            Self::Deployment
            | Self::ReplicaSet
            | Self::StatefulSet
            | Self::DaemonSet
            | Self::Job
            | Self::ReplicationController => "/spec/template",
        }
    }

    /// Where the template is, as errors and warnings write it.
    pub const fn template_path(self) -> &'static str {
        match self {
            Self::PodTemplate => "template",
            Self::CronJob => "spec.jobTemplate.spec.template",
            Self::Deployment
            | Self::ReplicaSet
            | Self::StatefulSet
            | Self::DaemonSet
            | Self::Job
            | Self::ReplicationController => "spec.template",
        }
    }
}

/// An object that may be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadAdmission {
    /// Complete: gates applied, defaults filled in, generation counted.
    pub object: Value,
    pub warnings: Vec<Warning>,
}

/// Why an object is not admitted.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// A field has a type that its kind does not have there. Strict decoding finds this first.
    #[error("cannot decode {kind}: {source}")]
    Decode {
        kind: &'static str,
        source: serde_json::Error,
    },
    /// Everything that is wrong with the object, in upstream's order.
    #[error("{}", list(.0))]
    Invalid(Vec<FieldError>),
}

fn list(errors: &[FieldError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl WorkloadError {
    fn decode(kind: WorkloadKind) -> impl Fn(serde_json::Error) -> Self {
        move |source| Self::Decode {
            kind: kind.name(),
            source,
        }
    }
}

/// Admits a new object. A Job must have its name and its uid, from which its selector follows.
///
/// ```
/// use pulselet_model::{GateSet, Profile, WorkloadKind, admit_workload_create};
/// use serde_json::json;
///
/// let template = json!({"spec": {"containers": [{"name": "app", "image": "app:1"}]}});
/// let object = json!({"metadata": {"name": "web", "namespace": "default"}, "template": template});
/// let admitted = admit_workload_create(WorkloadKind::PodTemplate, object, Profile::Pulselet, GateSet::ALL).unwrap();
/// assert_eq!(admitted.object["template"]["spec"]["restartPolicy"], "Always");
/// ```
pub fn admit_workload_create(
    kind: WorkloadKind,
    mut object: Value,
    profile: Profile,
    gates: GateSet,
) -> Result<WorkloadAdmission, WorkloadError> {
    let mut template = take_template(kind, &mut object).map_err(WorkloadError::decode(kind))?;
    let mut signals = SignalRule::Checked;
    let mut notes = Vec::new();
    if let Some(template) = &mut template {
        let at = spec_path(kind);
        let shown = known_gates(profile, gates);
        (signals, notes) = apply_gates(&template.metadata, &mut template.spec, &at, profile, shown);
        set_spec_defaults(&mut template.spec);
    }
    fill::prepare_create(kind, &mut object, template.as_mut());
    // Labels that a Job gets for its Pods are its own, too, if it has no others.
    fill::fill_defaults(kind, &mut object, template.as_ref());
    let workload = Workload::read(kind, &object, template).map_err(WorkloadError::decode(kind))?;
    let errors = rules::validate_create(&workload, SpecRules { profile, signals });
    if !errors.is_empty() {
        return Err(WorkloadError::Invalid(errors));
    }
    if let Some(template) = &workload.template {
        notes.extend(template_warnings(kind, template, profile));
        put_template(kind, &mut object, template);
    }
    Ok(WorkloadAdmission {
        object,
        warnings: notes,
    })
}

/// Admits a replacement of a stored object. What the gates hide stays as it is stored, and so does the status.
pub fn admit_workload_update(
    kind: WorkloadKind,
    old: &Value,
    new: Value,
    profile: Profile,
    gates: GateSet,
) -> Result<WorkloadAdmission, WorkloadError> {
    let mut object = new;
    fill::keep_system_fields(&mut object, old);
    fill::keep_status(&mut object, old);
    let stored = stored(kind, old)?;
    let mut template = take_template(kind, &mut object).map_err(WorkloadError::decode(kind))?;
    let mut notes = Vec::new();
    let mut refused = Vec::new();
    if let Some(template) = &mut template {
        let at = spec_path(kind);
        let shown = known_gates(profile, gates);
        let before = stored.template.clone().unwrap_or_default();
        template.drop_empty();
        if refuses_signals(&before.metadata, profile, shown) {
            refused = new_signals(&template.spec, &before.spec, &at);
        }
        notes = keep_hidden(&mut template.spec, &before.spec, &at, shown);
        set_spec_defaults(&mut template.spec);
    }
    fill::fill_defaults(kind, &mut object, template.as_ref());
    fill::prepare_update(kind, &mut object, old);
    let workload = Workload::read(kind, &object, template).map_err(WorkloadError::decode(kind))?;
    let mut errors = validation::refused_signals(&refused);
    errors.extend(rules::validate_update(&workload, &stored, profile));
    if !errors.is_empty() {
        return Err(WorkloadError::Invalid(errors));
    }
    if let Some(template) = &workload.template {
        put_template(kind, &mut object, template);
        notes.extend(new_warnings(kind, template, stored.template.as_ref(), profile));
    }
    fill::count_change(kind, &mut object, old, workload.template != stored.template);
    Ok(WorkloadAdmission {
        object,
        warnings: notes,
    })
}

/// Admits a new status for a stored object. The spec stays as it is stored and is not validated.
pub fn admit_workload_status(kind: WorkloadKind, old: &Value, new: Value) -> Result<Value, WorkloadError> {
    let mut object = new;
    fill::keep_system_fields(&mut object, old);
    fill::keep_all_but_status(kind, &mut object, old);
    let errors = rules::validate_status(kind, &object, old).map_err(WorkloadError::decode(kind))?;
    if errors.is_empty() {
        Ok(object)
    } else {
        Err(WorkloadError::Invalid(errors))
    }
}

/// A Pod that an admitted object makes: its template, with the name and the namespace of the object.
///
/// ```
/// use pulselet_model::{WorkloadKind, workload_pod};
/// use serde_json::json;
///
/// let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"restartPolicy": "Always"}});
/// let object = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"template": template}});
/// let pod = workload_pod(WorkloadKind::Deployment, &object).unwrap();
/// assert_eq!((pod.namespace(), pod.name()), ("shop", "web"));
/// ```
pub fn workload_pod(kind: WorkloadKind, object: &Value) -> Result<Pod, WorkloadError> {
    let found = object.pointer(kind.template_pointer()).cloned();
    let template = PodTemplateSpec::from_value(found.unwrap_or_else(|| json!({})));
    let PodTemplateSpec { mut metadata, spec } = template.map_err(WorkloadError::decode(kind))?;
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let name = text("/metadata/name").filter(|name| !name.is_empty());
    metadata.name = name.or_else(|| text("/metadata/generateName")).map(str::to_owned);
    metadata.namespace = text("/metadata/namespace").map(str::to_owned);
    metadata.generation = Some(1);
    let status = PodStatus {
        phase: "Pending".to_owned(),
        qos_class: qos::class(&spec).to_owned(),
        ..PodStatus::default()
    };
    Ok(Pod {
        metadata,
        spec,
        status,
        ..Pod::default()
    })
}

/// The gates as a profile has them: fields that upstream lacks do not exist in its profile.
pub(crate) fn known_gates(profile: Profile, gates: GateSet) -> GateSet {
    match profile {
        Profile::Pulselet => gates,
        Profile::Kubernetes => gates
            .with(Gate::SubSecondProbes, false)
            .with(Gate::ProbeInitializationFailureThreshold, false),
    }
}

/// A stored object with the defaults of today, as an upstream server reads it.
fn stored(kind: WorkloadKind, old: &Value) -> Result<Workload, WorkloadError> {
    let mut object = old.clone();
    let mut template = take_template(kind, &mut object).map_err(WorkloadError::decode(kind))?;
    if let Some(template) = &mut template {
        template.drop_empty();
        set_spec_defaults(&mut template.spec);
    }
    Workload::read(kind, &object, template).map_err(WorkloadError::decode(kind))
}

/// Where the spec of the template is, as errors and warnings write it.
fn spec_path(kind: WorkloadKind) -> String {
    format!("{}.spec", kind.template_path())
}

fn template_warnings(kind: WorkloadKind, template: &PodTemplateSpec, profile: Profile) -> Vec<Warning> {
    let prefix = format!("{}.", kind.template_path());
    warnings(&template.metadata, &template.spec, &prefix, profile)
}

/// Warnings that the stored template does not already give.
fn new_warnings(
    kind: WorkloadKind,
    new: &PodTemplateSpec,
    old: Option<&PodTemplateSpec>,
    profile: Profile,
) -> Vec<Warning> {
    let known = old
        .map(|old| template_warnings(kind, old, profile))
        .unwrap_or_default();
    let mut warnings = template_warnings(kind, new, profile);
    warnings.retain(|warning| !known.contains(warning));
    warnings
}

/// Takes the template out. Only a `ReplicationController` can be without one; elsewhere an absent template is empty.
fn take_template(
    kind: WorkloadKind,
    object: &mut Value,
) -> Result<Option<PodTemplateSpec>, serde_json::Error> {
    let found = object.pointer_mut(kind.template_pointer()).map(Value::take);
    match found.filter(|template| !template.is_null()) {
        Some(template) => PodTemplateSpec::from_value(template).map(Some),
        None if kind == WorkloadKind::ReplicationController => Ok(None),
        None => Ok(Some(PodTemplateSpec::default())),
    }
}

/// Puts the template back, with the objects around it if need be.
fn put_template(kind: WorkloadKind, object: &mut Value, template: &PodTemplateSpec) {
    let mut place = object;
    for field in kind.template_pointer().split('/').skip(1) {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[field];
    }
    *place = template.to_value();
}
