//! A pod's status as Kubernetes serves it, from the engine's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use pulselet_engine::Time;
use pulselet_engine::plan::Role;
use pulselet_engine::status as engine;
use pulselet_model::openapi::api::core::v1 as core;
use pulselet_model::openapi::apimachinery::pkg::api::resource::Quantity;
use pulselet_model::openapi::apimachinery::pkg::apis::meta::v1::Time as WireTime;
use pulselet_model::status::ContainerLifecycleStatus;
use pulselet_model::{ContainerStatusFields, Gate, GateSet, PodStatus};
use pulselet_plan::{ContainerBlueprint, DeclaredResources, MountBlueprint};
use pulselet_runtime::ContainerUser;

use crate::state::clock::Clock;

/// What a status needs besides the engine's own.
pub(crate) struct Surroundings<'a> {
    /// In the order of the status's containers.
    pub(crate) blueprints: &'a [ContainerBlueprint],
    pub(crate) qos_class: &'a str,
    pub(crate) images: &'a [KnownImage],
    /// Who the container of an id runs as.
    pub(crate) user_of: &'a dyn Fn(&str) -> Option<&'a ContainerUser>,
    /// What the running life of a container has; `None` if none runs.
    pub(crate) resources_of: &'a dyn Fn(usize) -> Option<&'a DeclaredResources>,
    pub(crate) pod_ips: &'a [IpAddr],
    pub(crate) host_ip: IpAddr,
    pub(crate) clock: Clock,
    pub(crate) gates: GateSet,
    /// The prefix of container ids: the runtime's name.
    pub(crate) runtime: &'a str,
    /// Whether the runtime can make what is mounted below a volume read-only.
    pub(crate) recursive_read_only: bool,
}

/// What a runtime calls the image of that name; both empty where that is not known.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownImage {
    pub(crate) name: Arc<str>,
    pub(crate) id: String,
}

pub(crate) fn pod_status(status: &engine::PodReport, around: &Surroundings<'_>) -> PodStatus {
    // As a kubelet has it: clients would show the state of a container in place of the reason why the pod was refused.
    let (containers, conditions): (&[_], &[_]) = if status.rejected {
        (&[], &[])
    } else {
        (&status.containers, &status.conditions)
    };
    let of = |wanted: fn(Role) -> bool| {
        let all = containers.iter().enumerate();
        all.filter(|(_, container)| wanted(container.role))
            .map(|(index, container)| container_status(index, container, around))
            .collect()
    };
    let pod_ips = around.pod_ips.iter().map(ToString::to_string);
    let pod_ips: Vec<_> = pod_ips.map(|ip| core::PodIP { ip }).collect();
    let host_ip = around.host_ip.to_string();
    PodStatus {
        phase: status.phase.as_str().to_owned(),
        reason: status.reason.clone().unwrap_or_default(),
        message: status.message.clone().unwrap_or_default(),
        conditions: conditions.iter().map(|it| condition(it, around.clock)).collect(),
        host_ips: vec![core::HostIP { ip: host_ip.clone() }],
        host_ip,
        pod_ip: pod_ips.first().map(|first| first.ip.clone()).unwrap_or_default(),
        pod_ips,
        start_time: Some(wire(status.accepted_at, around.clock)),
        init_container_statuses: of(|role| matches!(role, Role::Init | Role::Sidecar)),
        container_statuses: of(|role| role == Role::Main),
        ephemeral_container_statuses: of(|role| role == Role::Ephemeral),
        qos_class: around.qos_class.to_owned(),
        ..PodStatus::default()
    }
}

fn condition(condition: &engine::PodCondition, clock: Clock) -> core::PodCondition {
    core::PodCondition {
        type_: condition.kind.as_str().to_owned(),
        status: if condition.status { "True" } else { "False" }.to_owned(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        last_transition_time: Some(wire(condition.changed_at, clock)),
        ..core::PodCondition::default()
    }
}

fn container_status(
    index: usize,
    container: &engine::ContainerReport,
    around: &Surroundings<'_>,
) -> ContainerStatusFields {
    let blueprint = around.blueprints.get(index);
    let mount = |mount: &MountBlueprint| mount_status(mount, around.recursive_read_only);
    let id = |id: &str| format!("{}://{id}", around.runtime);
    let allocated = blueprint.and_then(|blueprint| blueprint.resources.as_deref());
    let shows_signals = around.gates.enabled(Gate::ContainerStopSignals);
    let stop_signal = container.stop_signal.filter(|_| shows_signals);
    let terminated = |it: &engine::Terminated| core::ContainerStateTerminated {
        container_id: Some(id(&it.id)),
        exit_code: it.exit_code,
        reason: Some(it.reason.as_str().to_owned()),
        message: it.message.clone(),
        started_at: it.started_at.map(|at| wire(at, around.clock)),
        finished_at: Some(wire(it.finished_at, around.clock)),
        signal: None,
    };
    let mut state = core::ContainerState::default();
    match &container.state {
        engine::ReportedState::Waiting { reason, message } => {
            state.waiting = Some(core::ContainerStateWaiting {
                reason: Some((*reason).to_owned()),
                message: message.clone(),
            });
        }
        engine::ReportedState::Running { started_at } => {
            state.running = Some(core::ContainerStateRunning {
                started_at: Some(wire(*started_at, around.clock)),
            });
        }
        engine::ReportedState::Terminated(it) => state.terminated = Some(terminated(it)),
    }
    ContainerStatusFields {
        name: container.name.to_string(),
        state,
        last_state: core::ContainerState {
            terminated: container.last.as_ref().map(terminated),
            ..core::ContainerState::default()
        },
        ready: container.ready,
        restart_count: i32::try_from(container.restart_count).unwrap_or(i32::MAX),
        image: container.image.to_string(),
        image_id: around
            .images
            .get(index)
            .filter(|known| known.name == container.image)
            .map(|known| known.id.clone())
            .unwrap_or_default(),
        container_id: container.id.as_deref().map(id).unwrap_or_default(),
        started: Some(container.started),
        allocated_resources: allocated
            .map(|allocated| quantities(&allocated.requests))
            .unwrap_or_default(),
        resources: (around.resources_of)(index).or(allocated).map(requirements),
        user: container.id.as_deref().and_then(around.user_of).map(user),
        stop_signal: stop_signal.map(|signal| signal.name().to_owned()),
        lifecycle: stop_signal.map(|signal| ContainerLifecycleStatus {
            stop_signal: Some(signal.name().to_owned()),
        }),
        volume_mounts: blueprint
            .map(|blueprint| blueprint.mounts.iter().map(mount).collect())
            .unwrap_or_default(),
        ..ContainerStatusFields::default()
    }
}

/// What a mount is like; of a read-only one also whether what is below it is read-only. `possible` is whether the runtime
/// can make it so.
fn user(user: &ContainerUser) -> core::ContainerUser {
    let groups = user.supplemental_groups.iter().copied().map(i64::from);
    core::ContainerUser {
        linux: Some(core::LinuxContainerUser {
            uid: user.uid.into(),
            gid: user.gid.into(),
            supplemental_groups: Some(groups.collect()),
        }),
    }
}

fn mount_status(mount: &MountBlueprint, possible: bool) -> core::VolumeMountStatus {
    let recursive = mount.recursive.resolve(possible);
    let recursive = if recursive { "Enabled" } else { "Disabled" };
    core::VolumeMountStatus {
        name: mount.volume.clone(),
        mount_path: mount.path.clone(),
        read_only: mount.read_only.then_some(true),
        recursive_read_only: mount.read_only.then(|| recursive.to_owned()),
        ..core::VolumeMountStatus::default()
    }
}

fn quantities(list: &BTreeMap<String, String>) -> BTreeMap<String, Quantity> {
    let texts = list.iter();
    texts
        .map(|(name, text)| (name.clone(), Quantity(text.clone())))
        .collect()
}

fn requirements(resources: &DeclaredResources) -> core::ResourceRequirements {
    let list = |list| Some(quantities(list)).filter(|list| !list.is_empty());
    core::ResourceRequirements {
        requests: list(&resources.requests),
        limits: list(&resources.limits),
        claims: None,
    }
}

/// Kubernetes times are whole seconds.
pub(crate) fn wire(at: Time, clock: Clock) -> WireTime {
    let stamp = clock.wall(at);
    WireTime(jiff::Timestamp::from_second(stamp.as_second()).unwrap_or(stamp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulselet_engine::line::Phase;
    use serde_json::json;

    fn shown(gates: GateSet) -> serde_json::Value {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"restartPolicy": "Always", "containers": [{"name": "app", "image": "web:1", "volumeMounts": [
                {"name": "a", "mountPath": "/a"},
                {"name": "b", "mountPath": "/b", "readOnly": true},
                {"name": "c", "mountPath": "/c", "readOnly": true, "recursiveReadOnly": "IfPossible"},
            ]}]},
        }))
        .unwrap();
        let blueprint = pulselet_plan::convert(&pod, gates).unwrap();
        let (clock, _, _) = Clock::resume(None, Time::ZERO);
        let status = engine::PodReport {
            phase: Phase::Running,
            reason: None,
            message: None,
            rejected: false,
            accepted_at: clock.now(),
            conditions: vec![engine::PodCondition {
                kind: engine::ConditionKind::Ready,
                status: false,
                reason: Some("ContainersNotReady".into()),
                message: None,
                changed_at: clock.now(),
            }],
            containers: vec![engine::ContainerReport {
                name: "app".into(),
                role: Role::Main,
                image: "web:1".into(),
                state: engine::ReportedState::Waiting {
                    reason: "CrashLoopBackOff",
                    message: None,
                },
                last: None,
                id: Some("c1".into()),
                started: false,
                ready: false,
                restart_count: 3,
                stop_signal: Some("SIGUSR1".parse().unwrap()),
            }],
        };
        let user = ContainerUser {
            uid: 1000,
            gid: 3000,
            supplemental_groups: vec![3000, 4000],
        };
        let around = Surroundings {
            blueprints: &blueprint.containers,
            qos_class: "BestEffort",
            images: &[],
            user_of: &|id| (id == "c1").then_some(&user),
            resources_of: &|_| None,
            pod_ips: &[[127, 0, 0, 1].into()],
            host_ip: [192, 0, 2, 1].into(),
            clock,
            gates,
            runtime: "process",
            recursive_read_only: true,
        };
        serde_json::to_value(pod_status(&status, &around)).unwrap()
    }

    #[test]
    fn mounts_are_shown_with_what_became_of_the_trees_below_them() {
        let mounts = json!([
            {"name": "a", "mountPath": "/a"},
            {"name": "b", "mountPath": "/b", "readOnly": true, "recursiveReadOnly": "Disabled"},
            {"name": "c", "mountPath": "/c", "readOnly": true, "recursiveReadOnly": "Enabled"},
        ]);
        assert_eq!(
            shown(GateSet::ALL)["containerStatuses"][0]["volumeMounts"],
            mounts
        );
    }

    #[test]
    fn the_user_is_that_of_the_container_of_the_id() {
        let user = json!({"linux": {"uid": 1000, "gid": 3000, "supplementalGroups": [3000, 4000]}});
        assert_eq!(shown(GateSet::ALL)["containerStatuses"][0]["user"], user);
    }

    #[test]
    fn the_stop_signal_is_in_both_places_while_its_gate_is_on() {
        let on = shown(GateSet::ALL);
        let container = &on["containerStatuses"][0];
        assert_eq!(container["stopSignal"], "SIGUSR1");
        assert_eq!(container["lifecycle"]["stopSignal"], "SIGUSR1");
        assert_eq!(
            (&container["containerID"], &container["image"]),
            (&json!("process://c1"), &json!("web:1"))
        );
        assert_eq!(container["state"]["waiting"]["reason"], "CrashLoopBackOff");
        assert_eq!(
            (&on["podIP"], &on["conditions"][0]["status"]),
            (&json!("127.0.0.1"), &json!("False"))
        );
        let off = shown(GateSet::ALL.with(Gate::ContainerStopSignals, false));
        let container = &off["containerStatuses"][0];
        assert!(container.get("stopSignal").is_none() && container.get("lifecycle").is_none());
    }
}
