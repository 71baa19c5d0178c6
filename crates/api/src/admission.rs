//! The way a Pod takes into the system: gates, defaults, rules, warnings, in this order.
//!
//! Nothing is stored here. A refused Pod is dropped with the whole list of what is wrong with it.

use std::collections::HashSet;

use crate::dropping::{drop_disabled, keep_hidden};
use crate::field::FieldError;
use crate::gates::GateSet;
use crate::pod::Pod;
use crate::profile::Profile;
use crate::status::PodStatus;
use crate::warning::{Warning, warnings};
use crate::{defaults, qos, validation};

/// A Pod that may be stored or run.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// Complete: gates applied, defaults filled in.
    pub pod: Pod,
    pub warnings: Vec<Warning>,
}

/// Admits a new Pod. Its status is the server's to fill, whatever was sent.
pub fn admit_create(mut pod: Pod, profile: Profile, gates: GateSet) -> Result<Admission, Vec<FieldError>> {
    let mut notes = drop_disabled(&mut pod, gates);
    defaults::set_defaults(&mut pod);
    let errors = validation::validate_create(&pod, profile);
    if !errors.is_empty() {
        return Err(errors);
    }
    pod.metadata.generation = Some(1);
    pod.status = PodStatus {
        phase: "Pending".to_owned(),
        qos_class: qos::class(&pod.spec).to_owned(),
        ..PodStatus::default()
    };
    notes.extend(warnings(&pod, profile));
    Ok(Admission { pod, warnings: notes })
}

/// Admits a replacement of a stored Pod. What the gates hide stays as it is stored, and the status is not touched.
pub fn admit_update(
    old: &Pod,
    mut new: Pod,
    profile: Profile,
    gates: GateSet,
) -> Result<Admission, Vec<FieldError>> {
    let mut notes = keep_hidden(&mut new, old, gates);
    defaults::set_defaults(&mut new);
    keep_system_metadata(&mut new, old);
    new.status = old.status.clone();
    let errors = validation::validate_update(&new, old, profile);
    if !errors.is_empty() {
        return Err(errors);
    }
    if new.spec != old.spec {
        new.metadata.generation = Some(old.metadata.generation.unwrap_or_default() + 1);
    }
    let known: HashSet<Warning> = warnings(old, profile).into_iter().collect();
    notes.extend(
        warnings(&new, profile)
            .into_iter()
            .filter(|warning| !known.contains(warning)),
    );
    Ok(Admission {
        pod: new,
        warnings: notes,
    })
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
