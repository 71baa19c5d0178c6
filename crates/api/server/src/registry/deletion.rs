//! How objects end.
//!
//! A Pod that runs on a node is only marked: its node stops it and then deletes it with grace zero. A later deletion
//! may shorten the grace, never lengthen it. An object with finalizers is marked and goes when the last one is gone.

use jiff::{SignedDuration, Timestamp};
use pulselet_store::{Expect, StoredObject, Swap, Swapped};
use serde_json::{Value, json};

use super::{Listed, Registry, restriction};
use crate::registry::object::{Object, timestamp};
use crate::registry::resource::{Endpoint, ObjectPath, ResourceKind};
use crate::rest::query::{DeleteOptions, ListOptions, Propagation};
use crate::rest::status::ApiError;

/// How often a deletion is computed anew because someone else changed the object.
const MAX_ATTEMPTS: usize = 16;

/// The result of a deletion.
#[derive(Debug)]
pub(crate) struct Deleted {
    /// The last state of the object, or its marked state.
    pub object: Object,
    /// Whether it is gone, rather than marked.
    pub gone: bool,
}

/// What a deletion does to an object.
#[derive(Debug, PartialEq)]
enum End {
    Remove,
    /// Its end begins, or comes sooner.
    Mark(Object),
    /// It is ending already, and soon enough.
    Leave,
}

/// Whether an object whose end has begun waits for nothing any more.
pub(super) fn has_ended(kind: ResourceKind, object: &Object) -> bool {
    object.is_deleting() && object.deletion_grace().unwrap_or(0) == 0 && !kind.strategy().is_held(object)
}

fn plan(kind: ResourceKind, object: &Object, asked: Option<i64>, now: Timestamp) -> End {
    let strategy = kind.strategy();
    let grace = strategy.grace(object, asked);
    let waits = strategy.is_held(object);
    if grace == 0 && !waits {
        return End::Remove;
    }
    if !object.is_deleting() {
        return End::Mark(marked(kind, object, now, grace));
    }
    let current = object.deletion_grace().unwrap_or(0);
    if asked.is_none() || grace >= current {
        return End::Leave;
    }
    // The new grace counts from when the first deletion was asked for.
    let deadline = object.text("/metadata/deletionTimestamp").parse().unwrap_or(now);
    let asked_at = deadline - SignedDuration::from_secs(current);
    End::Mark(marked(kind, object, asked_at, grace))
}

fn marked(kind: ResourceKind, object: &Object, asked_at: Timestamp, grace: i64) -> Object {
    let mut object = object.clone();
    let deadline = asked_at
        .checked_add(SignedDuration::from_secs(grace))
        .unwrap_or(Timestamp::MAX);
    object.set_meta("deletionTimestamp", json!(timestamp(deadline)));
    object.set_meta("deletionGracePeriodSeconds", json!(grace));
    let generation = object.metadata().get("generation").and_then(Value::as_i64);
    if let Some(generation) = generation {
        object.set_meta("generation", json!(generation + 1));
    }
    kind.strategy().mark_ending(&mut object);
    object
}

impl Registry {
    pub(crate) async fn delete(
        &self,
        path: &ObjectPath,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        let endpoint = path.endpoint;
        let name = path.name.as_deref().unwrap_or_default();
        let may_delete = endpoint.kind.strategy().may_delete(name);
        may_delete.map_err(|why| ApiError::forbidden(endpoint, name, why))?;
        for _ in 0..MAX_ATTEMPTS {
            let entry = self.entry(path).await?;
            let (object, grace) = match Object::from_entry(&entry) {
                Ok(object) => (object, options.grace_period_seconds),
                // Nobody can do anything else with it. What it was is not known, so nothing is waited for.
                Err(error) if options.node.is_none() => {
                    tracing::warn!(%error, "a damaged object is deleted at once");
                    (stand_in(path), Some(0))
                }
                Err(error) => return Err(error.into()),
            };
            if let Some(node) = &options.node {
                restriction::check_delete(node, path, &object)?;
            }
            check_preconditions(endpoint, &object, options)?;
            let object = self.held_for_dependents(endpoint.kind, object, options.propagation);
            let end = plan(endpoint.kind, &object, grace, Timestamp::now());
            if let Some(deleted) = self.carry_out(&entry, object, end, options.dry_run).await? {
                return Ok(deleted);
            }
        }
        Err(ApiError::modified(endpoint, name))
    }

    /// The object with the finalizer that a garbage collector takes off when it has seen to what the object owns. Where
    /// there is none, nothing is waited for.
    fn held_for_dependents(
        &self,
        kind: ResourceKind,
        mut object: Object,
        propagation: Propagation,
    ) -> Object {
        let finalizer = match propagation {
            Propagation::Background => return object,
            Propagation::Foreground => "foregroundDeletion",
            Propagation::Orphan => "orphan",
        };
        if object.is_deleting() || !self.attendance.collects(kind) {
            return object;
        }
        let held = object
            .metadata_mut()
            .entry("finalizers")
            .or_insert_with(|| json!([]));
        if let Some(held) = held
            .as_array_mut()
            .filter(|held| !held.contains(&json!(finalizer)))
        {
            held.push(json!(finalizer));
        }
        object
    }

    /// Makes the change; `None` if someone else changed the object meanwhile.
    async fn carry_out(
        &self,
        entry: &StoredObject,
        object: Object,
        end: End,
        dry_run: bool,
    ) -> Result<Option<Deleted>, ApiError> {
        let (mut object, value, gone) = match end {
            End::Leave => return Ok(Some(Deleted { object, gone: false })),
            End::Remove => (object, None, true),
            End::Mark(marked) => {
                let value = marked.encode();
                (marked, Some(value), false)
            }
        };
        if dry_run {
            return Ok(Some(Deleted { object, gone }));
        }
        let swap = Swap {
            key: entry.key.clone(),
            expect: Expect::Revision(entry.revision),
            value,
            guards: Vec::new(),
        };
        match self.swap(swap).await? {
            Swapped::Done(revision) => {
                object.set_meta("resourceVersion", json!(revision.to_string()));
                Ok(Some(Deleted { object, gone }))
            }
            Swapped::Conflict(_) | Swapped::GuardFailed { .. } => Ok(None),
        }
    }

    /// Deletes every object that the options select, and returns them as they were.
    pub(crate) async fn delete_collection(
        &self,
        endpoint: Endpoint,
        namespace: Option<&str>,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<Listed, ApiError> {
        let listed = self.list(endpoint.kind, namespace, list).await?;
        for entry in &listed.entries {
            let object = Object::from_entry(entry)?;
            let namespace = Some(object.namespace()).filter(|namespace| !namespace.is_empty());
            let path = ObjectPath {
                endpoint,
                ..ObjectPath::stored(endpoint.kind, namespace, object.name())
            };
            let options = DeleteOptions {
                precondition_uid: Some(object.uid().to_owned()),
                ..options.clone()
            };
            match self.delete(&path, &options).await {
                Ok(_) => {}
                // Gone, or another object of that name by now: not what was selected.
                Err(error)
                    if matches!(
                        error.reason,
                        crate::rest::status::StatusReason::NotFound
                            | crate::rest::status::StatusReason::Conflict
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(listed)
    }
}

/// What is known of a damaged object: what its key says.
fn stand_in(path: &ObjectPath) -> Object {
    let metadata = json!({"name": path.name, "namespace": path.namespace});
    Object::new(json!({"metadata": metadata})).expect("it is an object")
}

fn check_preconditions(endpoint: Endpoint, object: &Object, options: &DeleteOptions) -> Result<(), ApiError> {
    if let Some(uid) = &options.precondition_uid
        && uid != object.uid()
    {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been \
             deleted and then recreated",
            object.uid()
        );
        return Err(ApiError::conflict(endpoint, object.name(), &why));
    }
    if let Some(version) = &options.precondition_version
        && version != object.resource_version()
    {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). \
             The object might have been modified",
            object.resource_version()
        );
        return Err(ApiError::conflict(endpoint, object.name(), &why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn pod(node: &str, phase: &str) -> Object {
        Object::new(json!({
            "metadata": {"name": "web", "generation": 1},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 20},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn mark(end: End) -> Object {
        match end {
            End::Mark(object) => object,
            other => panic!("expected a mark, found {other:?}"),
        }
    }

    #[test]
    fn a_pod_that_runs_nowhere_goes_at_once() {
        assert_eq!(
            plan(ResourceKind::Pod, &pod("", "Pending"), None, NOW),
            End::Remove
        );
        assert_eq!(
            plan(ResourceKind::Pod, &pod("n1", "Failed"), Some(60), NOW),
            End::Remove
        );
        assert_eq!(
            plan(ResourceKind::Pod, &pod("n1", "Running"), Some(0), NOW),
            End::Remove
        );
    }

    #[test]
    fn a_running_pod_is_marked_and_its_grace_only_shrinks() {
        let first = mark(plan(ResourceKind::Pod, &pod("n1", "Running"), None, NOW));
        assert_eq!(first.deletion_grace(), Some(20));
        assert_eq!(first.text("/metadata/deletionTimestamp"), "1970-01-01T00:00:20Z");
        assert_eq!(first.metadata()["generation"], 2);

        let later = Timestamp::from_second(5).unwrap();
        assert_eq!(plan(ResourceKind::Pod, &first, None, later), End::Leave);
        assert_eq!(plan(ResourceKind::Pod, &first, Some(30), later), End::Leave);
        let shorter = mark(plan(ResourceKind::Pod, &first, Some(8), later));
        assert_eq!(
            shorter.text("/metadata/deletionTimestamp"),
            "1970-01-01T00:00:08Z"
        );
        assert_eq!(plan(ResourceKind::Pod, &shorter, Some(0), later), End::Remove);
    }

    #[test]
    fn finalizers_hold_an_object_back() {
        let mut map = Object::new(json!({"metadata": {"name": "a", "finalizers": ["x/y"]}})).unwrap();
        let marked = mark(plan(ResourceKind::ConfigMap, &map, None, NOW));
        assert!(!has_ended(ResourceKind::ConfigMap, &marked));
        map.set_meta("finalizers", Value::Null);
        assert_eq!(plan(ResourceKind::ConfigMap, &map, None, NOW), End::Remove);
    }
}
