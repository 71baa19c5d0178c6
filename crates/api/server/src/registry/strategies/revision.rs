//! Controller revisions: their data hold the template of a workload, which reads show as they show that workload.

use pulselet_model::{GateSet, hide_revision_data, keep_hidden_revision_data};

use super::plain::Plain;
use super::pod::shown_gates;
use super::{Admitted, Refusal, Rules, Strategy, Update};
use crate::registry::object::Object;
use crate::registry::resource::ResourceKind;

#[derive(Debug)]
pub(crate) struct Revision(Plain);

pub(crate) static REVISION: Revision = Revision(Plain::immutable(&["data"]));

impl Strategy for Revision {
    fn admit_create(&self, kind: ResourceKind, object: Object, rules: Rules) -> Result<Admitted, Refusal> {
        self.0.admit_create(kind, object, rules)
    }

    fn admit_update(
        &self,
        kind: ResourceKind,
        mut update: Update<'_>,
        rules: Rules,
    ) -> Result<Admitted, Refusal> {
        let sent = update.new.value_mut()["data"].take();
        let stored = &update.old.value()["data"];
        update.new.value_mut()["data"] = keep_hidden_revision_data(sent, stored, rules.profile, rules.gates);
        self.0.admit_update(kind, update, rules)
    }

    fn is_shown_whole(&self, rules: Rules) -> bool {
        shown_gates(rules) == GateSet::ALL
    }

    fn hide(&self, mut object: Object, rules: Rules) -> Object {
        let shown = hide_revision_data(&object.value()["data"], rules.profile, rules.gates);
        object.value_mut()["data"] = shown;
        object
    }
}
