//! What a runtime says, in CRI's words.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pulselet_cri_wire::v1;
use pulselet_runtime::{
    ContainerExit, ContainerState, ContainerUser, ImageSummary, Resources, SandboxState, Signal,
};

use crate::request::container::image_name;
use crate::request::resources;
use crate::stored::{Container, Sandbox};

/// Nanoseconds since 1970; what does not fit is the end of time.
pub(crate) fn time(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX)
}

pub(crate) fn now() -> i64 {
    time(Timestamp::now())
}

pub(crate) fn sandbox_state(state: SandboxState) -> v1::PodSandboxState {
    match state {
        SandboxState::Ready => v1::PodSandboxState::SandboxReady,
        SandboxState::NotReady => v1::PodSandboxState::SandboxNotready,
    }
}

pub(crate) fn sandbox_item(sandbox: &Sandbox) -> v1::PodSandbox {
    v1::PodSandbox {
        id: sandbox.status.id.to_string(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox_state(sandbox.status.state).into(),
        created_at: time(sandbox.status.created_at),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: String::new(),
    }
}

pub(crate) fn sandbox_status(sandbox: &Sandbox) -> v1::PodSandboxStatus {
    v1::PodSandboxStatus {
        id: sandbox.status.id.to_string(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox_state(sandbox.status.state).into(),
        created_at: time(sandbox.status.created_at),
        network: Some(network(sandbox)),
        linux: Some(v1::LinuxPodSandboxStatus {
            namespaces: Some(v1::Namespace {
                options: Some(sandbox.namespaces()),
            }),
        }),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: String::new(),
    }
}

/// With the host's network the client knows better.
fn network(sandbox: &Sandbox) -> v1::PodSandboxNetworkStatus {
    if sandbox.has_host_network() {
        return v1::PodSandboxNetworkStatus::default();
    }
    let mut addresses = sandbox.status.addresses.iter().map(ToString::to_string);
    v1::PodSandboxNetworkStatus {
        ip: addresses.next().unwrap_or_default(),
        additional_ips: addresses.map(|ip| v1::PodIp { ip }).collect(),
    }
}

pub(crate) fn container_state(state: &ContainerState) -> v1::ContainerState {
    match state {
        ContainerState::Created => v1::ContainerState::ContainerCreated,
        ContainerState::Running { .. } => v1::ContainerState::ContainerRunning,
        ContainerState::Exited(_) => v1::ContainerState::ContainerExited,
        ContainerState::Unknown => v1::ContainerState::ContainerUnknown,
    }
}

pub(crate) fn container_item(container: &Container) -> v1::Container {
    v1::Container {
        id: container.status.id.to_string(),
        pod_sandbox_id: container.status.sandbox.to_string(),
        metadata: container.config.metadata.clone(),
        image: container.config.image.clone(),
        image_ref: container.image_ref.clone(),
        state: container_state(&container.status.state).into(),
        created_at: time(container.status.created_at),
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        image_id: container.status.image_id.clone(),
    }
}

/// `resources` are what the runtime says of them; otherwise what was asked for counts.
pub(crate) fn container_status(container: &Container, resources: Option<&Resources>) -> v1::ContainerStatus {
    let status = &container.status;
    let mut answer = v1::ContainerStatus {
        id: status.id.to_string(),
        metadata: container.config.metadata.clone(),
        state: container_state(&status.state).into(),
        created_at: time(status.created_at),
        image: Some(v1::ImageSpec {
            image: image_name(&container.config),
            ..container.config.image.clone().unwrap_or_default()
        }),
        image_ref: container.image_ref.clone(),
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        mounts: container.config.mounts.clone(),
        log_path: log_path(container),
        resources: Some(v1::ContainerResources {
            linux: resources.map(resources::to_wire).or_else(|| {
                let linux = container.config.linux.as_ref();
                linux.and_then(|linux| linux.resources.clone())
            }),
        }),
        image_id: status.image_id.clone(),
        user: status.user.as_ref().map(user),
        stop_signal: status.stop_signal.map(signal).unwrap_or_default(),
        ..v1::ContainerStatus::default()
    };
    match &status.state {
        ContainerState::Created | ContainerState::Unknown => {}
        ContainerState::Running { started_at } => answer.started_at = time(*started_at),
        ContainerState::Exited(exit) => tell_exit(&mut answer, exit),
    }
    answer
}

/// Empty if the client wanted no log.
fn log_path(container: &Container) -> String {
    if container.config.log_path.is_empty() {
        String::new()
    } else {
        container.status.log_path.display().to_string()
    }
}

fn tell_exit(answer: &mut v1::ContainerStatus, exit: &ContainerExit) {
    answer.started_at = exit.started_at.map(time).unwrap_or_default();
    answer.finished_at = time(exit.finished_at);
    answer.exit_code = exit.code;
    exit.reason.as_str().clone_into(&mut answer.reason);
    answer.message.clone_from(&exit.message);
}

fn user(user: &ContainerUser) -> v1::ContainerUser {
    v1::ContainerUser {
        linux: Some(v1::LinuxContainerUser {
            uid: user.uid.into(),
            gid: user.gid.into(),
            supplemental_groups: user
                .supplemental_groups
                .iter()
                .map(|group| i64::from(*group))
                .collect(),
        }),
    }
}

/// CRI's number of a signal, which zero is none.
fn signal(signal: Signal) -> i32 {
    let index = Signal::all().position(|other| other == signal);
    index
        .and_then(|index| i32::try_from(index + 1).ok())
        .unwrap_or_default()
}

pub(crate) fn image(image: &ImageSummary, pinned: bool) -> v1::Image {
    v1::Image {
        id: image.id.clone(),
        repo_tags: image.tags.clone(),
        repo_digests: image.digests.clone(),
        size: image.size,
        uid: image.uid.map(|uid| v1::Int64Value { value: uid.into() }),
        username: image.username.clone().unwrap_or_default(),
        spec: None,
        pinned,
    }
}

/// Whether all of a selector's labels are there.
pub(crate) fn selects(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(name, value)| labels.get(name) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_has_its_number_in_cri() {
        assert_eq!(signal(Signal::TERM), 23);
        for known in Signal::all() {
            let number = v1::Signal::try_from(signal(known)).expect("a number of the enum");
            let name = number.as_str_name().replace("PLUS", "+").replace("MINUS", "-");
            assert_eq!(name, known.name());
        }
    }

    #[test]
    fn a_selector_selects_what_has_all_of_it() {
        let map = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            pairs.collect::<BTreeMap<_, _>>()
        };
        let labels = map(&[("a", "1"), ("b", "2")]);
        assert!(selects(&map(&[]), &labels) && selects(&map(&[("b", "2")]), &labels));
        assert!(!selects(&map(&[("a", "1"), ("c", "")]), &labels));
    }
}
