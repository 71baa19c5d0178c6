//! Nodes: the status changes through its subresource alone.

use serde_json::json;

use super::metadata::{self, copy_field, immutable_errors, keep_system_fields, with_part};
use super::{Admitted, Refusal, Rules, Strategy, Update, finish};
use crate::registry::object::Object;
use crate::registry::resource::{ResourceKind, Subresource};

#[derive(Debug)]
pub(super) struct Node;

pub(super) static NODE: Node = Node;

impl Strategy for Node {
    fn admit_create(&self, kind: ResourceKind, mut object: Object, _: Rules) -> Result<Admitted, Refusal> {
        set_defaults(&mut object);
        let errors = metadata::errors(kind, &object)?;
        finish(object, errors)
    }

    fn admit_update(&self, kind: ResourceKind, update: Update<'_>, _: Rules) -> Result<Admitted, Refusal> {
        let (old, mut object) = (update.old, update.new);
        if update.subresource == Some(Subresource::Status) {
            object = with_part(old, &object, "status");
        } else {
            keep_system_fields(&mut object, old);
            copy_field(&mut object, old, "status");
        }
        set_defaults(&mut object);
        let mut errors = metadata::errors(kind, &object)?;
        errors.extend(immutable_errors(&object, old));
        finish(object, errors)
    }
}

fn set_defaults(node: &mut Object) {
    let value = node.value_mut();
    for field in ["spec", "status"] {
        if value.get(field).is_none() {
            value[field] = json!({});
        }
    }
}
