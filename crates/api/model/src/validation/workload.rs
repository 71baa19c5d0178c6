//! Whether an object that makes Pods is acceptable, in upstream's order and words.
//!
//! One module has the rules of each family of kinds. The rules of the template are those of Pods, in `validation`. An
//! update is checked as a v1.36 server does; profile `pulselet` also leaves alone everything that the stored object
//! already had.

mod apps;
mod claims;
mod cron;
mod job;
mod job_status;
mod policies;
mod schedule;
mod selector;
mod spec;
mod stateful;
mod status;

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::metadata::{self, NameRule};
use super::{SignalRule, SpecRules, validate_template};
use crate::field::{Errors, FieldError, Path};
use crate::template::{PodTemplateSpec, strip_nulls};
use crate::workload::WorkloadKind;
use pulselet_schema::Profile;
use selector::Labels;
use spec::{JobState, WorkloadSpec};
pub(crate) use status::validate_status;

/// An object with its template, read once.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    kind: WorkloadKind,
    metadata: ObjectMeta,
    spec: WorkloadSpec,
    pub(crate) template: Option<PodTemplateSpec>,
    /// The part of the status on which the rules of a suspended Job depend.
    state: JobState,
}

impl Workload {
    /// Reads an object whose template was taken out.
    pub(crate) fn read(
        kind: WorkloadKind,
        object: &Value,
        template: Option<PodTemplateSpec>,
    ) -> Result<Self, serde_json::Error> {
        let part = |name: &str| {
            let mut part = object.get(name).cloned().unwrap_or_default();
            strip_nulls(&mut part);
            part
        };
        let state = match kind {
            WorkloadKind::Job => spec::read(part("status"))?,
            _ => JobState::default(),
        };
        Ok(Self {
            kind,
            metadata: spec::read(part("metadata"))?,
            spec: WorkloadSpec::read(kind, part("spec"))?,
            template,
            state,
        })
    }
}

/// An object and the context of its rules.
#[derive(Clone, Copy)]
struct Check<'a> {
    workload: &'a Workload,
    /// The stored object, in an update.
    old: Option<&'a Workload>,
    rules: SpecRules,
}

impl Check<'_> {
    fn template(&self) -> Option<&PodTemplateSpec> {
        self.workload.template.as_ref()
    }

    /// The labels of the template.
    fn labels(&self) -> Option<&Labels> {
        self.template()?.metadata.labels.as_ref()
    }

    /// The template by itself.
    fn validate_template(&self, errors: &mut Errors, path: Path<'_>) {
        if let Some(template) = self.template() {
            self.validate_as_template(errors, template, path);
        }
    }

    /// A template as its controller completes it.
    fn validate_as_template(&self, errors: &mut Errors, template: &PodTemplateSpec, path: Path<'_>) {
        let old = self.old.and_then(|old| old.template.as_ref());
        validate_template(errors, template, old, path, self.rules);
    }

    fn validate_metadata(&self, errors: &mut Errors) {
        let path = Path::new("metadata");
        let rule = match self.workload.kind {
            WorkloadKind::StatefulSet => NameRule::Label,
            WorkloadKind::ReplicationController => NameRule::LongName,
            WorkloadKind::Deployment
            | WorkloadKind::ReplicaSet
            | WorkloadKind::DaemonSet
            | WorkloadKind::Job
            | WorkloadKind::CronJob
            | WorkloadKind::PodTemplate => NameRule::Subdomain,
        };
        let mut metadata = self.workload.metadata.clone();
        if self.workload.kind == WorkloadKind::ReplicationController {
            // Only the name that was made from it counts.
            metadata.generate_name = None;
        }
        metadata::validate_any(errors, &metadata, path, rule, true);
    }

    fn validate_metadata_change(&self, errors: &mut Errors) {
        if let Some(old) = self.old {
            let path = Path::new("metadata");
            metadata::validate_change(errors, &self.workload.metadata, &old.metadata, path);
        }
    }
}

/// All that is wrong with a new object.
pub(crate) fn validate_create(workload: &Workload, rules: SpecRules) -> Vec<FieldError> {
    let check = Check {
        workload,
        old: None,
        rules,
    };
    let mut errors = Errors::default();
    check.validate_metadata(&mut errors);
    let path = Path::new("spec");
    match &workload.spec {
        WorkloadSpec::Deployment(spec) => apps::validate_deployment(&mut errors, spec, path, check),
        WorkloadSpec::ReplicaSet(spec) => apps::validate_replica_set(&mut errors, spec, path, check),
        WorkloadSpec::DaemonSet(spec) => apps::validate_daemon_set(&mut errors, spec, path, check),
        WorkloadSpec::StatefulSet(spec) => stateful::validate(&mut errors, spec, path, check),
        WorkloadSpec::Job(spec) => job::validate_new(&mut errors, spec, path, check),
        WorkloadSpec::CronJob(spec) => cron::validate_create(&mut errors, spec, path, check),
        WorkloadSpec::ReplicationController(spec) => {
            apps::validate_replication_controller(&mut errors, spec, path, check);
        }
        WorkloadSpec::PodTemplate => check.validate_template(&mut errors, Path::new("template")),
    }
    errors.into_vec()
}

/// All that is wrong with replacing `old` by `new`. Both are defaulted.
pub(crate) fn validate_update(new: &Workload, old: &Workload, profile: Profile) -> Vec<FieldError> {
    let errors = update_errors(new, old, profile);
    if errors.is_empty() || profile == Profile::Kubernetes {
        return errors;
    }
    // Errors of the stored object are not held against the update. Its containers may have moved.
    let known = update_errors(old, old, profile);
    let known: BTreeSet<FieldError> = known.into_iter().map(|error| old.by_name(error)).collect();
    let is_new = |error: &FieldError| !known.contains(&new.by_name(error.clone()));
    errors.into_iter().filter(is_new).collect()
}

fn update_errors(new: &Workload, old: &Workload, profile: Profile) -> Vec<FieldError> {
    let rules = SpecRules {
        profile,
        signals: SignalRule::Checked,
    };
    let check = Check {
        workload: new,
        old: Some(old),
        rules,
    };
    let mut errors = Errors::default();
    let metadata_path = Path::new("metadata");
    metadata::validate_common_change(&mut errors, &new.metadata, &old.metadata, metadata_path);
    let path = Path::new("spec");
    match (&new.spec, &old.spec) {
        (WorkloadSpec::Job(spec), WorkloadSpec::Job(old)) => {
            job::validate_update(&mut errors, spec, old, path, check);
        }
        (spec, old) => {
            check.validate_metadata_change(&mut errors);
            validate_spec_update(&mut errors, (spec, old), path, check);
        }
    }
    errors.into_vec()
}

fn validate_spec_update(
    errors: &mut Errors,
    specs: (&WorkloadSpec, &WorkloadSpec),
    path: Path<'_>,
    check: Check<'_>,
) {
    match specs {
        (WorkloadSpec::Deployment(spec), WorkloadSpec::Deployment(old)) => {
            apps::validate_deployment(errors, spec, path, check);
            selector::validate_unchanged(errors, spec.selector.as_ref(), old.selector.as_ref(), path);
        }
        (WorkloadSpec::ReplicaSet(spec), WorkloadSpec::ReplicaSet(old)) => {
            apps::validate_replica_set(errors, spec, path, check);
            selector::validate_unchanged(errors, spec.selector.as_ref(), old.selector.as_ref(), path);
        }
        (WorkloadSpec::DaemonSet(spec), WorkloadSpec::DaemonSet(old)) => {
            selector::validate_unchanged(errors, spec.selector.as_ref(), old.selector.as_ref(), path);
            apps::validate_daemon_set(errors, spec, path, check);
        }
        (WorkloadSpec::StatefulSet(spec), WorkloadSpec::StatefulSet(old)) => {
            stateful::validate_update(errors, spec, old, path, check);
        }
        (WorkloadSpec::CronJob(spec), WorkloadSpec::CronJob(old)) => {
            cron::validate(errors, spec, Some(old), path, check);
        }
        (WorkloadSpec::ReplicationController(spec), _) => {
            apps::validate_replication_controller(errors, spec, path, check);
        }
        (WorkloadSpec::PodTemplate, _) => check.validate_template(errors, Path::new("template")),
        (_, _) => unreachable!("an update is of the same kind"),
    }
}

impl Workload {
    /// An error whose field names containers and volumes instead of counting them.
    fn by_name(&self, mut error: FieldError) -> FieldError {
        let Some(template) = &self.template else {
            return error;
        };
        let spec = &template.spec;
        let name = |list: &str, index: usize| match list {
            "initContainers" => spec.init_containers.get(index).map(|container| &container.name),
            "containers" => spec.containers.get(index).map(|container| &container.name),
            _ => spec.volumes.get(index).map(|volume| &volume.name),
        };
        for list in ["initContainers", "containers", "volumes"] {
            let prefix = format!("{}.spec.{list}[", self.kind.template_path());
            let rest = error.field.strip_prefix(&prefix);
            let Some((index, rest)) = rest.and_then(|rest| rest.split_once(']')) else {
                continue;
            };
            let index = index.parse::<usize>().ok();
            if let Some(name) = index.and_then(|index| name(list, index)) {
                error.field = format!("{prefix}{name}]{rest}");
                break;
            }
        }
        error
    }
}

/// Numbers that count something.
fn validate_count(errors: &mut Errors, value: impl Into<i64>, path: Path<'_>) {
    let value = value.into();
    if value < 0 {
        errors.invalid(path, value, "must be greater than or equal to 0");
    }
}
