//! The way a Pod takes into the system: gates, defaults, rules, warnings, in this order.
//!
//! Nothing is stored here. A refused Pod is dropped with the whole list of what is wrong with it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::dropping::{POD_SPEC, drop_disabled, hidden, keep_hidden, new_signals, refuses_signals};
use crate::field::FieldError;
use crate::gates::{Gate, GateSet};
use crate::pod::{Container, Pod, PodSpec};
use crate::status::PodStatus;
use crate::validation::SignalRule;
use crate::warning::{Warning, warnings};
use crate::{defaults, qos, validation};
use pulselet_schema::Profile;

/// A Pod that may be stored or run.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// Complete: gates applied, defaults filled in.
    pub pod: Pod,
    pub warnings: Vec<Warning>,
}

/// Admits a new Pod. Its status is the server's to fill, whatever was sent.
pub fn admit_create(mut pod: Pod, profile: Profile, gates: GateSet) -> Result<Admission, Vec<FieldError>> {
    let (signals, notes) = apply_gates(&pod.metadata, &mut pod.spec, POD_SPEC, profile, gates);
    complete(pod, profile, signals, notes)
}

/// Drops from a new spec what the gates do not allow. The rule for stop signals is for its validation.
pub(crate) fn apply_gates(
    metadata: &ObjectMeta,
    spec: &mut PodSpec,
    at: &str,
    profile: Profile,
    gates: GateSet,
) -> (SignalRule, Vec<Warning>) {
    let (dropped, signals) = if refuses_signals(metadata, profile, gates) {
        (gates.with(Gate::ContainerStopSignals, true), SignalRule::Refused)
    } else {
        (gates, SignalRule::Checked)
    };
    (signals, drop_disabled(spec, at, dropped))
}

/// Admits a Pod that no API ever sees. It is kept as it is, since the node's gates may be turned on again in its life;
/// what they hide for now is in the warnings.
pub fn admit_local(pod: Pod, profile: Profile, gates: GateSet) -> Result<Admission, Vec<FieldError>> {
    let hidden = hidden(&pod, gates).into_iter();
    let notes = hidden
        .map(|(field, gate)| Warning::Ignored { field, gate })
        .collect();
    complete(pod, profile, SignalRule::Checked, notes)
}

fn complete(
    mut pod: Pod,
    profile: Profile,
    signals: SignalRule,
    mut notes: Vec<Warning>,
) -> Result<Admission, Vec<FieldError>> {
    defaults::set_defaults(&mut pod);
    let errors = validation::validate_create(&pod, profile, signals);
    if !errors.is_empty() {
        return Err(errors);
    }
    pod.metadata.generation = Some(1);
    pod.status = PodStatus {
        phase: "Pending".to_owned(),
        qos_class: qos::class(&pod.spec).to_owned(),
        ..PodStatus::default()
    };
    notes.extend(warnings(&pod.metadata, &pod.spec, "", profile));
    Ok(Admission { pod, warnings: notes })
}

/// Admits a replacement of a stored Pod. What the gates hide stays as it is stored, and the status is not touched.
pub fn admit_update(
    old: &Pod,
    mut new: Pod,
    profile: Profile,
    gates: GateSet,
) -> Result<Admission, Vec<FieldError>> {
    let refused = if refuses_signals(&old.metadata, profile, gates) {
        new_signals(&new.spec, &old.spec, POD_SPEC)
    } else {
        Vec::new()
    };
    let mut notes = keep_hidden(&mut new.spec, &old.spec, POD_SPEC, gates);
    defaults::set_defaults(&mut new);
    keep_system_metadata(&mut new, old);
    new.status = old.status.clone();
    let mut errors = validation::validate_update(&new, old, profile);
    errors.splice(0..0, validation::refused_signals(&refused));
    if !errors.is_empty() {
        return Err(errors);
    }
    if new.spec != old.spec {
        new.metadata.generation = Some(old.metadata.generation.unwrap_or_default() + 1);
    }
    let known = warnings(&old.metadata, &old.spec, "", profile);
    let now = warnings(&new.metadata, &new.spec, "", profile).into_iter();
    notes.extend(now.filter(|warning| !known.contains(warning)));
    Ok(Admission {
        pod: new,
        warnings: notes,
    })
}

/// Admits containers added to a running Pod. Nothing else of `new` is looked at.
pub fn admit_ephemeral_containers(
    old: &Pod,
    new: Pod,
    profile: Profile,
    gates: GateSet,
) -> Result<Admission, Vec<FieldError>> {
    let mut pod = old.clone();
    pod.spec.ephemeral_containers = new.spec.ephemeral_containers;
    admit_part(pod, old, gates, |pod| {
        validation::validate_ephemeral_update(pod, old, profile)
    })
}

/// Admits other CPU and memory for the containers of a Pod. What else of `new` differs is not looked at, unless its containers
/// are others.
pub fn admit_resize(
    old: &Pod,
    new: Pod,
    profile: Profile,
    gates: GateSet,
) -> Result<Admission, Vec<FieldError>> {
    let mut pod = old.clone();
    pod.spec.containers = resized(&old.spec.containers, new.spec.containers);
    pod.spec.init_containers = resized(&old.spec.init_containers, new.spec.init_containers);
    admit_part(pod, old, gates, |pod| {
        validation::validate_resize(pod, old, profile)
    })
}

/// Admits a stored Pod of which a part was replaced.
fn admit_part(
    mut pod: Pod,
    old: &Pod,
    gates: GateSet,
    validate: impl FnOnce(&Pod) -> Vec<FieldError>,
) -> Result<Admission, Vec<FieldError>> {
    let warnings = keep_hidden(&mut pod.spec, &old.spec, POD_SPEC, gates);
    defaults::set_defaults(&mut pod);
    let errors = validate(&pod);
    if !errors.is_empty() {
        return Err(errors);
    }
    if pod.spec != old.spec {
        pod.metadata.generation = Some(old.metadata.generation.unwrap_or_default() + 1);
    }
    Ok(Admission { pod, warnings })
}

/// The stored containers with the resources of those that were sent. Others than those are left for validation to refuse.
fn resized(old: &[Container], new: Vec<Container>) -> Vec<Container> {
    let names = |containers: &[Container]| -> Vec<String> {
        containers
            .iter()
            .map(|container| container.name.clone())
            .collect()
    };
    if names(old) != names(&new) {
        return new;
    }
    let pairs = old.iter().zip(new);
    pairs
        .map(|(old, new)| Container {
            resources: new.resources,
            resize_policy: new.resize_policy,
            ..old.clone()
        })
        .collect()
}

/// What a client need not send back, and cannot change.
fn keep_system_metadata(new: &mut Pod, old: &Pod) {
    let (new, old) = (&mut new.metadata, &old.metadata);
    if new.uid.as_deref().unwrap_or_default().is_empty() {
        new.uid.clone_from(&old.uid);
    }
    if new.creation_timestamp.is_none() {
        new.creation_timestamp.clone_from(&old.creation_timestamp);
    }
    new.generation = old.generation;
    new.deletion_timestamp.clone_from(&old.deletion_timestamp);
    new.deletion_grace_period_seconds = old.deletion_grace_period_seconds;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::EphemeralContainer;

    fn running() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".to_owned());
        pod.metadata.namespace = Some("default".to_owned());
        pod.spec.containers.push(Container {
            name: "app".to_owned(),
            image: "app:1".to_owned(),
            ..Container::default()
        });
        admit_create(pod, Profile::Pulselet, GateSet::ALL)
            .expect("a valid pod")
            .pod
    }

    fn with_ephemeral(pod: &Pod, name: &str, image: &str) -> Pod {
        let mut pod = pod.clone();
        pod.spec.ephemeral_containers.push(EphemeralContainer {
            name: name.to_owned(),
            image: image.to_owned(),
            ..EphemeralContainer::default()
        });
        pod
    }

    fn add(old: &Pod, new: Pod) -> Result<Admission, Vec<FieldError>> {
        admit_ephemeral_containers(old, new, Profile::Pulselet, GateSet::ALL)
    }

    #[test]
    fn ephemeral_containers_can_be_added_but_not_changed_or_removed() {
        let pod = running();
        let mut wanted = with_ephemeral(&pod, "debug", "busybox");
        wanted.spec.containers[0].image = "ignored:2".to_owned();
        let stored = add(&pod, wanted).expect("an added container").pod;
        assert_eq!(stored.spec.containers[0].image, "app:1");
        assert_eq!(stored.metadata.generation, Some(2));

        assert!(
            add(&stored, pod.clone()).unwrap_err()[0]
                .message
                .contains("may not be removed")
        );
        let changed = with_ephemeral(&pod, "debug", "alpine");
        assert!(
            add(&stored, changed).unwrap_err()[0]
                .message
                .contains("may not be changed")
        );
        let unnamed = with_ephemeral(&stored, "", "alpine");
        assert_eq!(
            add(&stored, unnamed).unwrap_err()[0].field,
            "spec.ephemeralContainers[1].name"
        );
    }
}
