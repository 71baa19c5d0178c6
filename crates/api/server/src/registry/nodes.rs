//! What the server itself writes about a node: that the node has not reported for too long.

use serde_json::{Value, json};

use super::Registry;
use super::writes::ChangedObject;
use crate::registry::object::{self, Object};
use crate::registry::resource::{ObjectPath, ResourceKind};
use crate::rest::status::ApiError;

/// The conditions that a silent node can no longer speak for, as upstream has them.
const LOST: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

impl Registry {
    /// Sets the conditions of a silent node to Unknown; false if they are already.
    pub(crate) async fn mark_node_unknown(&self, name: &str) -> Result<bool, ApiError> {
        let path = ObjectPath::stored(ResourceKind::Node, None, name);
        let mut changed = false;
        self.change(&path, false, |old| {
            let object = lost(old);
            changed = object != *old;
            Ok(ChangedObject {
                object,
                warnings: Vec::new(),
            })
        })
        .await?;
        Ok(changed)
    }
}

fn lost(node: &Object) -> Object {
    let mut node = node.clone();
    let conditions = node.value_mut().pointer_mut("/status/conditions");
    let Some(conditions) = conditions.and_then(Value::as_array_mut) else {
        return node;
    };
    let known = |condition: &&mut Value| {
        let kind = condition["type"].as_str().unwrap_or_default();
        LOST.contains(&kind) && condition["status"] != "Unknown"
    };
    for condition in conditions.iter_mut().filter(known) {
        condition["status"] = json!("Unknown");
        condition["reason"] = json!("NodeStatusUnknown");
        condition["message"] = json!("Kubelet stopped posting node status.");
        condition["lastTransitionTime"] = object::now();
    }
    node
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_silent_node_spoke_for_becomes_unknown_and_only_once() {
        let node = Object::new(json!({"metadata": {"name": "n"}, "status": {"conditions": [
            {"type": "Ready", "status": "True", "reason": "KubeletReady"},
            {"type": "DiskPressure", "status": "False"},
            {"type": "example.com/own", "status": "True"},
        ]}}))
        .unwrap();
        let once = lost(&node);
        let of = |node: &Object, index: usize| node.value()["status"]["conditions"][index]["status"].clone();
        assert_eq!(
            [of(&once, 0), of(&once, 1), of(&once, 2)],
            ["Unknown", "Unknown", "True"]
        );
        assert_eq!(lost(&once), once);
        let bare = Object::new(json!({"metadata": {"name": "n"}})).unwrap();
        assert_eq!(lost(&bare), bare);
    }
}
