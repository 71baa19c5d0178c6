//! Gates applied to Pods and templates: dropping on create, hiding on read, keeping on update.
//!
//! A gate that is off means that its field does not exist for users. On create it is removed, with a warning. In
//! the store it may be present, from a time when the gate was on; reads do not show it, and an update, which
//! cannot have seen it, leaves it as it is. `lifecycle.stopSignal` is refused instead, in new Pods and in updates that
//! bring it in, as its proposal says.
//!
//! These fields cannot change in a Pod's life. So a node that no longer sees one that it accepted knows that a gate was
//! turned off at the API, and goes on with it: [`keep_accepted`].

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::defaults::set_container_defaults;
use crate::gates::{Gate, GateSet};
use crate::pod::{Container, Pod, PodSpec};
use crate::probe::{Lifecycle, Probe};
use crate::validation::MIRROR_POD;
use crate::warning::Warning;
use pulselet_schema::Profile;

/// Where a Pod has its spec.
pub(crate) const POD_SPEC: &str = "spec";

/// Removes the fields of gates that are off from a new spec at `at` and says what was removed.
pub(crate) fn drop_disabled(spec: &mut PodSpec, at: &str, gates: GateSet) -> Vec<Warning> {
    let dropped = strip_disabled(spec, at, gates).into_iter();
    dropped
        .map(|(field, gate)| Warning::Dropped { field, gate })
        .collect()
}

/// Removes the fields of gates that are off; returns their paths.
fn strip_disabled(spec: &mut PodSpec, at: &str, gates: GateSet) -> Vec<(String, Gate)> {
    let mut stripped = Vec::new();
    if gates == GateSet::ALL {
        return stripped;
    }
    for_each_container(spec, |list, index, container| {
        for (field, gate) in strip_container(container, gates) {
            stripped.push((format!("{at}.{list}[{index}].{field}"), gate));
        }
    });
    stripped
}

/// Removes the fields of gates that are off from one container; returns their paths below it.
pub(crate) fn strip_container(container: &mut Container, gates: GateSet) -> Vec<(String, Gate)> {
    let mut stripped = Vec::new();
    for gate in Gate::ALL.into_iter().filter(|gate| !gates.enabled(*gate)) {
        strip(container, gate, &mut |field| stripped.push((field, gate)));
    }
    stripped
}

/// The Pod as reads and watches show it while some gates are off.
#[must_use]
pub fn hide_disabled(pod: &Pod, gates: GateSet) -> Pod {
    let mut shown = pod.clone();
    strip_disabled(&mut shown.spec, POD_SPEC, gates);
    shown
}

/// What the gates would hide of a Pod, for those who keep it as it is.
pub(crate) fn hidden(pod: &Pod, gates: GateSet) -> Vec<(String, Gate)> {
    strip_disabled(&mut pod.spec.clone(), POD_SPEC, gates)
}

/// Whether a stop signal is refused while its gate is off, and not dropped: a mirror only shows what a node runs anyway,
/// and upstream drops it.
pub(crate) fn refuses_signals(metadata: &ObjectMeta, profile: Profile, gates: GateSet) -> bool {
    let annotations = metadata.annotations.as_ref();
    let is_mirror = annotations.is_some_and(|annotations| annotations.contains_key(MIRROR_POD));
    match profile {
        Profile::Pulselet => !is_mirror && !gates.enabled(Gate::ContainerStopSignals),
        Profile::Kubernetes => false,
    }
}

/// The paths of stop signals that an update gives a value which the stored spec lacks.
pub(crate) fn new_signals(new: &PodSpec, old: &PodSpec, at: &str) -> Vec<String> {
    let signal = |container: &Container| container.lifecycle.as_ref()?.stop_signal.clone();
    let stored = containers_by_name(old);
    let mut paths = Vec::new();
    for (list, containers) in [
        ("initContainers", &new.init_containers),
        ("containers", &new.containers),
    ] {
        for (index, container) in containers.iter().enumerate() {
            let old = stored.get(container.name.as_str()).and_then(|old| signal(old));
            if signal(container).is_some_and(|signal| Some(signal) != old) {
                paths.push(format!("{at}.{list}[{index}].lifecycle.stopSignal"));
            }
        }
    }
    paths
}

fn containers_by_name(spec: &PodSpec) -> BTreeMap<&str, &Container> {
    let containers = spec.containers.iter().chain(&spec.init_containers);
    containers
        .map(|container| (container.name.as_str(), container))
        .collect()
}

/// Puts back what a node has accepted and an API does not show any more, because a gate was turned off there. A probe's
/// grace period is not among it: it is given up with its gate.
pub fn keep_accepted(seen: &mut Pod, accepted: &Pod) {
    let known = containers_by_name(&accepted.spec);
    let seen = &mut seen.spec;
    let mut gave_up_grace = false;
    for_each_container(seen, |_, _, container| {
        if let Some(&accepted) = known.get(container.name.as_str()) {
            gave_up_grace |= lost_grace(container, accepted);
        }
    });
    for_each_container(seen, |_, _, container| {
        let Some(&accepted) = known.get(container.name.as_str()) else {
            return;
        };
        let had_startup = container.startup_probe.is_some();
        put_back(container, accepted);
        // It came back as a whole; whether it still has its grace period is told by the other probes.
        if !had_startup
            && gave_up_grace
            && let Some(probe) = &mut container.startup_probe
        {
            probe.termination_grace_period_seconds = None;
        }
    });
}

/// Whether a probe that both have was accepted with a grace period and is shown without.
fn lost_grace(seen: &Container, accepted: &Container) -> bool {
    let lost = |seen: &Option<Probe>, accepted: &Option<Probe>| match (seen, accepted) {
        (Some(seen), Some(accepted)) => {
            accepted.termination_grace_period_seconds.is_some()
                && seen.termination_grace_period_seconds.is_none()
        }
        (Some(_) | None, _) => false,
    };
    lost(&seen.liveness_probe, &accepted.liveness_probe) || lost(&seen.startup_probe, &accepted.startup_probe)
}

fn put_back(seen: &mut Container, accepted: &Container) {
    if seen.startup_probe.is_none() {
        seen.startup_probe.clone_from(&accepted.startup_probe);
    }
    if let Some(Lifecycle {
        stop_signal: Some(signal),
        ..
    }) = &accepted.lifecycle
    {
        let lifecycle = seen.lifecycle.get_or_insert_default();
        lifecycle.stop_signal.get_or_insert_with(|| signal.clone());
    }
    let accepted = [
        &accepted.liveness_probe,
        &accepted.readiness_probe,
        &accepted.startup_probe,
    ];
    let seen = [
        &mut seen.liveness_probe,
        &mut seen.readiness_probe,
        &mut seen.startup_probe,
    ];
    for (seen, accepted) in seen.into_iter().zip(accepted) {
        let (Some(seen), Some(accepted)) = (seen, accepted) else {
            continue;
        };
        let offsets = [
            (
                &mut seen.initial_delay_milliseconds,
                accepted.initial_delay_milliseconds,
            ),
            (&mut seen.period_milliseconds, accepted.period_milliseconds),
            (&mut seen.timeout_milliseconds, accepted.timeout_milliseconds),
        ];
        for (seen, accepted) in offsets {
            *seen = seen.or(accepted);
        }
        if seen.initialization_failure_threshold == 0 {
            seen.initialization_failure_threshold = accepted.initialization_failure_threshold;
        }
    }
}

/// The gates whose fields a Pod has.
#[must_use]
pub fn gates_in_use(pod: &Pod) -> GateSet {
    Gate::ALL.into_iter().fold(GateSet::NONE, |used, gate| {
        let without = GateSet::ALL.with(gate, false);
        used.with(gate, !hidden(pod, without).is_empty())
    })
}

/// Puts back into an update what the gates hide from its author, and says what the author set in vain.
pub(crate) fn keep_hidden(new: &mut PodSpec, old: &PodSpec, at: &str, gates: GateSet) -> Vec<Warning> {
    let mut dropped = Vec::new();
    if gates == GateSet::ALL {
        return dropped;
    }
    let stored = containers_by_name(old);
    for_each_container(new, |list, index, container| {
        let sent = container.clone();
        let mut stripped = strip_container(container, gates);
        if let Some(old) = stored.get(container.name.as_str()) {
            for gate in Gate::ALL.into_iter().filter(|gate| !gates.enabled(*gate)) {
                restore(container, old, gate);
            }
            // A value that is stored as it was sent is not lost.
            let is_lost = |field: &str| field_of(&sent, field) != field_of(container, field);
            stripped.retain(|(field, _)| is_lost(field));
        }
        let lost = stripped.into_iter().map(|(field, gate)| Warning::Dropped {
            field: format!("{at}.{list}[{index}].{field}"),
            gate,
        });
        dropped.extend(lost);
    });
    dropped
}

/// The value of a field that a gate governs, with its defaults.
fn field_of(container: &Container, field: &str) -> Option<Value> {
    let mut container = container.clone();
    set_container_defaults(&mut container);
    let value = serde_json::to_value(&container).expect("a container has string keys only");
    value.pointer(&format!("/{}", field.replace('.', "/"))).cloned()
}

fn for_each_container(spec: &mut PodSpec, mut visit: impl FnMut(&str, usize, &mut Container)) {
    for (list, containers) in [
        ("initContainers", &mut spec.init_containers),
        ("containers", &mut spec.containers),
    ] {
        for (index, container) in containers.iter_mut().enumerate() {
            visit(list, index, container);
        }
    }
}

/// The probes of a container with the names of their fields.
fn probes(container: &mut Container) -> impl Iterator<Item = (&'static str, &mut Probe)> {
    [
        ("livenessProbe", &mut container.liveness_probe),
        ("readinessProbe", &mut container.readiness_probe),
        ("startupProbe", &mut container.startup_probe),
    ]
    .into_iter()
    .filter_map(|(name, probe)| probe.as_mut().map(|probe| (name, probe)))
}

/// Removes what one gate governs; `report` gets the path of everything that was there.
fn strip(container: &mut Container, gate: Gate, report: &mut dyn FnMut(String)) {
    match gate {
        Gate::StartupProbeEnabled => {
            if container.startup_probe.take().is_some() {
                report("startupProbe".to_owned());
            }
        }
        Gate::ContainerStopSignals => {
            let signal = container
                .lifecycle
                .as_mut()
                .and_then(|lifecycle| lifecycle.stop_signal.take());
            if signal.is_some() {
                report("lifecycle.stopSignal".to_owned());
                // A lifecycle that said nothing else goes with it.
                container
                    .lifecycle
                    .take_if(|lifecycle| *lifecycle == Lifecycle::default());
            }
        }
        Gate::ProbeTerminationGracePeriod => {
            for (name, probe) in probes(container) {
                if probe.termination_grace_period_seconds.take().is_some() {
                    report(format!("{name}.terminationGracePeriodSeconds"));
                }
            }
        }
        Gate::SubSecondProbes => {
            for (name, probe) in probes(container) {
                if probe.initial_delay_milliseconds.take().is_some() {
                    report(format!("{name}.initialDelayMilliseconds"));
                }
                if probe.period_milliseconds.take().is_some() {
                    report(format!("{name}.periodMilliseconds"));
                }
                if probe.timeout_milliseconds.take().is_some() {
                    report(format!("{name}.timeoutMilliseconds"));
                }
            }
        }
        Gate::ProbeInitializationFailureThreshold => {
            for (name, probe) in probes(container) {
                if std::mem::take(&mut probe.initialization_failure_threshold) != 0 {
                    report(format!("{name}.initializationFailureThreshold"));
                }
            }
        }
    }
}

/// Takes what one gate hides from the stored container.
fn restore(container: &mut Container, old: &Container, gate: Gate) {
    let old_probe = |name: &str| match name {
        "livenessProbe" => old.liveness_probe.as_ref(),
        "readinessProbe" => old.readiness_probe.as_ref(),
        _ => old.startup_probe.as_ref(),
    };
    match gate {
        Gate::StartupProbeEnabled => container.startup_probe.clone_from(&old.startup_probe),
        Gate::ContainerStopSignals => {
            if let Some(Lifecycle {
                stop_signal: Some(signal),
                ..
            }) = &old.lifecycle
            {
                container.lifecycle.get_or_insert_default().stop_signal = Some(signal.clone());
            }
        }
        Gate::ProbeTerminationGracePeriod => {
            for (name, probe) in probes(container) {
                let old = old_probe(name);
                probe.termination_grace_period_seconds =
                    old.and_then(|old| old.termination_grace_period_seconds);
            }
        }
        Gate::SubSecondProbes => {
            for (name, probe) in probes(container) {
                let old = old_probe(name);
                probe.initial_delay_milliseconds = old.and_then(|old| old.initial_delay_milliseconds);
                probe.period_milliseconds = old.and_then(|old| old.period_milliseconds);
                probe.timeout_milliseconds = old.and_then(|old| old.timeout_milliseconds);
            }
        }
        Gate::ProbeInitializationFailureThreshold => {
            for (name, probe) in probes(container) {
                probe.initialization_failure_threshold =
                    old_probe(name).map_or(0, |old| old.initialization_failure_threshold);
            }
        }
    }
}
