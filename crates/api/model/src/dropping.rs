//! Gates applied to Pods: dropping on create, hiding on read, keeping on update.
//!
//! A gate that is off means that its field does not exist for users. On create it is removed, with a warning. In
//! the store it may be present, from a time when the gate was on; reads do not show it, and an update, which
//! cannot have seen it, leaves it as it is.

use std::collections::BTreeMap;

use crate::gates::{Gate, GateSet};
use crate::pod::{Container, Pod};
use crate::probe::{Lifecycle, Probe};
use crate::warning::Warning;

/// Removes the fields of gates that are off from a new Pod and says what was removed.
pub(crate) fn drop_disabled(pod: &mut Pod, gates: GateSet) -> Vec<Warning> {
    let mut dropped = Vec::new();
    if gates == GateSet::ALL {
        return dropped;
    }
    for_each_container(pod, |list, index, container| {
        for gate in Gate::ALL.into_iter().filter(|gate| !gates.enabled(*gate)) {
            strip(container, gate, &mut |field| {
                dropped.push(Warning::Dropped {
                    field: format!("spec.{list}[{index}].{field}"),
                    gate,
                });
            });
        }
    });
    dropped
}

/// The Pod as reads and watches show it while some gates are off.
#[must_use]
pub fn hide_disabled(pod: &Pod, gates: GateSet) -> Pod {
    let mut shown = pod.clone();
    drop_disabled(&mut shown, gates);
    shown
}

/// Puts back into an update what the gates hide from its author, and says what the author set in vain.
pub(crate) fn keep_hidden(new: &mut Pod, old: &Pod, gates: GateSet) -> Vec<Warning> {
    if gates == GateSet::ALL {
        return Vec::new();
    }
    let sent = new.spec.clone();
    let dropped = drop_disabled(new, gates);
    let old_containers = old.spec.containers.iter().chain(&old.spec.init_containers);
    let stored: BTreeMap<&str, &Container> = old_containers
        .map(|container| (container.name.as_str(), container))
        .collect();
    for_each_container(new, |_, _, container| {
        if let Some(old) = stored.get(container.name.as_str()) {
            for gate in Gate::ALL.into_iter().filter(|gate| !gates.enabled(*gate)) {
                restore(container, old, gate);
            }
        }
    });
    // Nobody needs to know that something was dropped which is stored just as it was sent.
    if new.spec == sent { Vec::new() } else { dropped }
}

fn for_each_container(pod: &mut Pod, mut visit: impl FnMut(&str, usize, &mut Container)) {
    let spec = &mut pod.spec;
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
