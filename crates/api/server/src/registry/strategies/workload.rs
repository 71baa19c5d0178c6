//! Kinds with a template: the rules of `pulselet-model` for the object and for the Pods that it makes.
//!
//! An object is stored with all its fields, those of gates that are off included; reads do not show them.

use pulselet_model::{
    GateSet, WorkloadAdmission, WorkloadError, WorkloadKind, admit_workload_create, admit_workload_status,
    admit_workload_update, hide_workload,
};
use serde_json::Value;

use super::plain::{Plain, map};
use super::pod::shown_gates;
use super::{Admitted, Refusal, Rules, Strategy, Update};
use crate::registry::object::Object;
use crate::registry::resource::{ResourceKind, Subresource};

/// The rules of a kind with a template.
#[derive(Debug)]
pub(crate) struct Workload(pub(crate) WorkloadKind);

impl Strategy for Workload {
    fn admit_create(
        &self,
        kind: ResourceKind,
        mut object: Object,
        rules: Rules,
    ) -> Result<Admitted, Refusal> {
        if kind.info().subresources.contains(&Subresource::Status) {
            map(&mut object).remove("status");
        }
        Plain::NEW.complete(kind, &mut object);
        admitted(admit_workload_create(
            self.0,
            object.into_value(),
            rules.profile,
            rules.gates,
        ))
    }

    fn admit_update(
        &self,
        kind: ResourceKind,
        update: Update<'_>,
        rules: Rules,
    ) -> Result<Admitted, Refusal> {
        let Update {
            subresource,
            old,
            mut new,
        } = update;
        Plain::NEW.complete(kind, &mut new);
        if subresource == Some(Subresource::Status) {
            let status = admit_workload_status(self.0, old.value(), new.into_value());
            return status.map(|object| stored(object, Vec::new())).map_err(refusal);
        }
        admitted(admit_workload_update(
            self.0,
            old.value(),
            new.into_value(),
            rules.profile,
            rules.gates,
        ))
    }

    fn is_shown_whole(&self, rules: Rules) -> bool {
        shown_gates(rules) == GateSet::ALL
    }

    fn hide(&self, object: Object, rules: Rules) -> Object {
        let shown = hide_workload(self.0, object.value(), rules.profile, rules.gates);
        Object::new(shown).unwrap_or(object)
    }
}

fn admitted(admission: Result<WorkloadAdmission, WorkloadError>) -> Result<Admitted, Refusal> {
    let admission = admission.map_err(refusal)?;
    let warnings = admission.warnings.iter().map(ToString::to_string).collect();
    Ok(stored(admission.object, warnings))
}

fn stored(object: Value, warnings: Vec<String>) -> Admitted {
    let object = Object::new(object).expect("an admitted object has metadata");
    Admitted { object, warnings }
}

fn refusal(error: WorkloadError) -> Refusal {
    match error {
        WorkloadError::Invalid(errors) => Refusal::Invalid(errors),
        error @ WorkloadError::Decode { .. } => Refusal::Undecodable(error.to_string()),
    }
}
