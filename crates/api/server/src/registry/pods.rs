//! Actions on Pods that are not plain writes: binding to a node, eviction, what the server itself says of them.

use serde_json::{Value, json};

use super::writes::ChangedObject;
use super::{Registry, Written};
use crate::registry::object::{self, Object};
use crate::registry::resource::{ObjectPath, ResourceKind};
use crate::rest::query::DeleteOptions;
use crate::rest::status::ApiError;

const SCHEDULED: &str = "PodScheduled";
const READY: &str = "Ready";

impl Registry {
    /// Binds a Pod to a node, as a scheduler's `Binding` asks.
    pub(crate) async fn bind(
        &self,
        path: &ObjectPath,
        binding: &Value,
        dry_run: bool,
    ) -> Result<Written, ApiError> {
        let target = |field: &str| {
            let pointer = format!("/target/{field}");
            binding
                .pointer(&pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let node = target("name").to_owned();
        if node.is_empty() || !["", "Node"].contains(&target("kind")) {
            return Err(ApiError::bad_request(
                "target: a Binding needs a target of kind Node with a name",
            ));
        }
        let uid = binding
            .pointer("/metadata/uid")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        self.change(path, dry_run, |old| bound(path, old, &node, &uid))
            .await
    }

    /// Records on a Pod why no node takes it; false if that is recorded already.
    pub(crate) async fn mark_unschedulable(
        &self,
        path: &ObjectPath,
        uid: &str,
        why: &str,
    ) -> Result<bool, ApiError> {
        let mut changed = false;
        self.change(path, false, |old| {
            changed = old.uid() == uid && unschedulable_because(old) != Some(why);
            let mut object = old.clone();
            if changed {
                let condition = json!({
                    "type": SCHEDULED,
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": why,
                    "lastProbeTime": null,
                    "lastTransitionTime": object::now(),
                });
                set_condition(&mut object, condition);
            }
            Ok(ChangedObject {
                object,
                warnings: Vec::new(),
            })
        })
        .await?;
        Ok(changed)
    }

    /// Says of a Pod whose node is silent that it is not ready; false if that is said already. Why is left as it was, as
    /// upstream leaves it.
    pub(crate) async fn mark_unready(&self, path: &ObjectPath, uid: &str) -> Result<bool, ApiError> {
        let mut changed = false;
        self.change(path, false, |old| {
            let object = if old.uid() == uid {
                unready(old)
            } else {
                old.clone()
            };
            changed = object != *old;
            Ok(ChangedObject {
                object,
                warnings: Vec::new(),
            })
        })
        .await?;
        Ok(changed)
    }

    /// Deletes a Pod on behalf of whoever wants its node free. No disruption budgets stand against it.
    pub(crate) async fn evict(&self, path: &ObjectPath, options: &DeleteOptions) -> Result<(), ApiError> {
        let path = ObjectPath {
            subresource: None,
            ..path.clone()
        };
        self.delete(&path, options).await.map(drop)
    }
}

/// A Pod that nobody can say to be ready. What else it says of itself is the last that was known.
fn unready(pod: &Object) -> Object {
    let mut pod = pod.clone();
    let conditions = pod.value_mut().pointer_mut("/status/conditions");
    let conditions = conditions.and_then(Value::as_array_mut).into_iter().flatten();
    let is_claimed = |condition: &&mut Value| condition["type"] == READY && condition["status"] != "False";
    for ready in conditions.filter(is_claimed) {
        ready["status"] = json!("False");
        ready["lastTransitionTime"] = object::now();
    }
    pod
}

/// Why a Pod says that no node takes it.
fn unschedulable_because(pod: &Object) -> Option<&str> {
    let conditions = pod.value().pointer("/status/conditions")?.as_array()?;
    let scheduled = conditions
        .iter()
        .find(|condition| condition["type"] == SCHEDULED)?;
    scheduled["message"]
        .as_str()
        .filter(|_| scheduled["status"] == "False")
}

/// Puts a condition in the place of the one of its type.
fn set_condition(pod: &mut Object, condition: Value) {
    let status = &mut pod.value_mut()["status"];
    match status.get_mut("conditions").and_then(Value::as_array_mut) {
        Some(conditions) => {
            conditions.retain(|other| other["type"] != condition["type"]);
            conditions.push(condition);
        }
        None => status["conditions"] = json!([condition]),
    }
}

fn bound(path: &ObjectPath, old: &Object, node: &str, uid: &str) -> Result<ChangedObject, ApiError> {
    let endpoint = path.endpoint;
    let name = old.name();
    let refuse = |why: String| Err(ApiError::conflict(ResourceKind::Pod.storage(), name, &why));
    if !uid.is_empty() && uid != old.uid() {
        return refuse(format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            old.uid()
        ));
    }
    if old.is_deleting() {
        return refuse(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        ));
    }
    let current = old.text("/spec/nodeName");
    if !current.is_empty() {
        return refuse(format!("pod {name} is already assigned to node {current:?}"));
    }
    debug_assert_eq!(endpoint.kind, ResourceKind::Pod);
    let mut object = old.clone();
    object.value_mut()["spec"]["nodeName"] = json!(node);
    let scheduled = json!({
        "type": SCHEDULED,
        "status": "True",
        "lastProbeTime": null,
        "lastTransitionTime": object::now(),
    });
    set_condition(&mut object, scheduled);
    Ok(ChangedObject {
        object,
        warnings: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_of_a_silent_node_is_not_ready_and_all_else_is_as_it_was_last_known() {
        let pod = Object::new(
            json!({"metadata": {"name": "p"}, "status": {"phase": "Running", "conditions": [
                {"type": "ContainersReady", "status": "True"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]}}),
        )
        .unwrap();
        let once = unready(&pod);
        let status = &once.value()["status"];
        assert_eq!(status["phase"], "Running");
        assert_eq!(status["conditions"][0]["status"], "True");
        assert_eq!(status["conditions"][1]["status"], "False");
        assert_ne!(
            status["conditions"][1]["lastTransitionTime"],
            "2026-01-01T00:00:00Z"
        );
        assert_eq!(unready(&once), once, "the time of the change is kept");
        let bare = Object::new(json!({"metadata": {"name": "p"}})).unwrap();
        assert_eq!(unready(&bare), bare);
    }
}
