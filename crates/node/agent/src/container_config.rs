//! From a manifest to what a runtime is asked for: sandbox and container configurations.
//!
//! Everything is resolved here: variables expanded, volumes prepared, users and limits as numbers. It touches the disk
//! only below the pod's own directory and where a `hostPath` says so.

mod env;
mod error;
mod expansion;
mod mounts;
mod naming;
mod non_root;
mod oom_score;
mod security;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use pulselet_cgroup::{PodClaim, QosClass};
use pulselet_model::{Container, Pod, pod_requests, qos_class};
use pulselet_plan::container_refusal;
use pulselet_plan::duties::ClusterDns;
use pulselet_runtime::{
    ContainerConfig, EnvVar, Mount, MountedImage, Namespaces, PidNamespace, PodIdentity, PortMapping,
    Propagation, Protocol, Resources, SandboxConfig, SecurityFeatures, Signal,
};
use pulselet_volume::{Downward, Objects, Wanted};

pub(crate) use error::ConfigError;
pub(crate) use naming::fuzz_hosts_file;
pub(crate) use non_root::{ImageUser, depends_on_image};
pub(crate) use security::{abilities, pod_resources};

use crate::state::layout::Layout;

/// The reason of the event about variables that cannot be.
const INVALID_NAMES: &str = "InvalidEnvironmentVariableNames";

/// Whoever the container runs as may write its termination message.
const MESSAGE_FILE_MODE: u32 = 0o666;

/// What a configuration depends on besides the manifest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) downward: Downward<'a>,
    /// What the runtime enforces.
    pub(crate) security: SecurityFeatures,
    pub(crate) dns: &'a ClusterDns,
}

impl Context<'_> {
    fn identity(&self) -> PodIdentity {
        let pod = self.downward.pod;
        PodIdentity {
            uid: self.downward.uid.to_owned(),
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
        }
    }

    fn log_directory(&self) -> PathBuf {
        let pod = self.downward.pod;
        self.layout
            .pod_logs(pod.namespace(), pod.name(), self.downward.uid)
    }
}

/// The limits of a container as its manifest has them; none if there is no such container.
pub(crate) fn container_resources(pod: &Pod, name: &str) -> Resources {
    let container = pod.find_container(name);
    container
        .map(|container| security::resources(&container.resources))
        .unwrap_or_default()
}

/// What the pod has a right to beside other pods.
pub(crate) fn pod_claim(pod: &Pod) -> PodClaim {
    PodClaim {
        class: QosClass::from_name(qos_class(&pod.spec)),
        cpu_millis: pod_requests(&pod.spec).cpu_millis,
    }
}

/// `<logs>/<namespace>_<pod>_<uid>/<container>/<attempt>.log`
pub(crate) fn log_path(of_pod: &Path, container: &str, attempt: u32) -> PathBuf {
    of_pod.join(container).join(format!("{attempt}.log"))
}

pub(crate) fn sandbox_config(context: Context<'_>, attempt: u32) -> SandboxConfig {
    let pod = context.downward.pod;
    let spec = &pod.spec;
    let security = spec.security_context.clone().unwrap_or_default();
    let containers = || spec.init_containers.iter().chain(&spec.containers);
    SandboxConfig {
        pod: context.identity(),
        attempt,
        hostname: naming::hostname(pod, context.dns),
        // Whoever makes the sandbox has looked it up.
        runtime_handler: String::new(),
        log_directory: context.log_directory(),
        dns: Some(naming::dns(pod, context.dns)),
        port_mappings: containers().flat_map(port_mappings).collect(),
        namespaces: Namespaces {
            host_network: spec.host_network,
            host_ipc: spec.host_ipc,
            pid: match (spec.host_pid, spec.share_process_namespace) {
                (true, _) => PidNamespace::Host,
                (false, Some(true)) => PidNamespace::Pod,
                (false, _) => PidNamespace::Container,
            },
            own_users: spec.host_users == Some(false),
            user_ids: None,
        },
        sysctls: security
            .sysctls
            .unwrap_or_default()
            .into_iter()
            .map(|sysctl| (sysctl.name, sysctl.value))
            .collect(),
        privileged: containers().any(|container| {
            let context = container.security_context.as_ref();
            context.and_then(|context| context.privileged) == Some(true)
        }),
        run_as_user: security::id(security.run_as_user),
        run_as_group: security::id(security.run_as_group),
        supplemental_groups: security
            .supplemental_groups
            .unwrap_or_default()
            .into_iter()
            .filter_map(|group| security::id(Some(group)))
            .collect(),
        strict_groups: security::strict_groups(pod),
        seccomp: security::seccomp(security.seccomp_profile, context.layout.root()),
        resources: pod_resources(pod),
        // Whoever makes the sandbox has made it.
        cgroup_parent: None,
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
    }
}

fn port_mappings(container: &Container) -> impl Iterator<Item = PortMapping> {
    container.ports.iter().filter_map(|port| {
        Some(PortMapping {
            protocol: match port.protocol.as_str() {
                "UDP" => Protocol::Udp,
                "SCTP" => Protocol::Sctp,
                _ => Protocol::Tcp,
            },
            container_port: u16::try_from(port.container_port).ok()?,
            host_port: u16::try_from(port.host_port).ok().filter(|port| *port != 0)?,
            host_ip: port.host_ip.parse().ok(),
        })
    })
}

/// What is known of a container's images.
#[derive(Clone, Debug)]
pub(crate) struct ImageFacts {
    pub(crate) id: String,
    pub(crate) user: ImageUser,
    /// Those of its volumes that are images, by the volumes' names.
    pub(crate) mounted: BTreeMap<String, MountedImage>,
}

/// A configuration, and what its owner should know about it.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) config: ContainerConfig,
    /// Reasons and messages of events.
    pub(crate) warnings: Vec<(&'static str, String)>,
}

/// The objects that [`container_config`] will look for.
pub(crate) fn wanted_objects(pod: &Pod, name: &str) -> Wanted {
    let container = pod.find_container(name);
    let of_container = container.as_deref().map(env::wanted).unwrap_or_default();
    Wanted {
        services: Some(pod.spec.enable_service_links != Some(false)),
        ..of_container
    }
}

/// The configuration of one life. `stop_signal` is the plan's, so that a closed gate takes it away.
pub(crate) fn container_config(
    context: Context<'_>,
    objects: &Objects,
    name: &str,
    attempt: u32,
    stop_signal: Option<Signal>,
    image: ImageFacts,
) -> Result<Made, ConfigError> {
    let pod = context.downward.pod;
    let container = pod
        .find_container(name)
        .ok_or_else(|| ConfigError::UnknownContainer {
            container: name.to_owned(),
        })?;
    let container = &*container;
    // The pod was looked at when it came, but an ephemeral container may have come later, and a runtime may have changed.
    if let Some(refusal) = container_refusal(pod, name, abilities(context.security)) {
        return Err(ConfigError::Refused(refusal));
    }
    non_root::check(pod, context.downward.uid, container, &image.user)?;
    let environment = env::environment(container, context.downward, objects)?;
    let skipped = environment.skipped.iter();
    let warnings = skipped
        .map(|skipped| (INVALID_NAMES, skipped.message(pod.namespace())))
        .collect();
    let env = environment.variables;
    let expanded = |texts: &[String]| texts.iter().map(|text| expand_with(&env, text)).collect();
    let command: Vec<String> = expanded(&container.command);
    let args: Vec<String> = expanded(&container.args);
    let directory = context.layout.volumes(context.downward.uid);
    let mut mounts = mounts::mounts(&directory, pod, container, &env, context.security, &image.mounted)?;
    mounts.extend(termination_mount(context, container, attempt)?);
    mounts.extend(naming::hosts_mount(context, container)?);
    let config = ContainerConfig {
        pod: context.identity(),
        name: name.to_owned(),
        attempt,
        image: container.image.clone(),
        image_id: image.id,
        command,
        args,
        working_dir: Some(container.working_dir.clone()).filter(|path| !path.is_empty()),
        env,
        mounts,
        devices: Vec::new(),
        log_path: log_path(&context.log_directory(), name, attempt),
        log_rotated_by_caller: false,
        stdin: container.stdin,
        stdin_once: container.stdin_once,
        tty: container.tty,
        resources: Resources {
            oom_score_adj: Some(oom_score::of_container(pod, container)),
            ..security::resources(&container.resources)
        },
        security: security::security(pod, container, context.layout.root()),
        // Names were checked at admission; one this build does not know leaves the image's signal in force.
        stop_signal,
        pid_target: None,
        pid_namespace: None,
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
    };
    Ok(Made { config, warnings })
}

fn expand_with(env: &[EnvVar], text: &str) -> String {
    expansion::expand(text, |name| {
        let found = env.iter().rev().find(|variable| variable.name == name);
        found.map(|variable| variable.value.as_str())
    })
}

/// The file behind `terminationMessagePath`, empty. The container may run as any user.
fn termination_mount(
    context: Context<'_>,
    container: &Container,
    attempt: u32,
) -> Result<Option<Mount>, ConfigError> {
    if container.termination_message_path.is_empty() {
        return Ok(None);
    }
    let host_path = context
        .layout
        .termination_message(context.downward.uid, &container.name, attempt);
    let prepare = |source| ConfigError::Prepare {
        path: host_path.clone(),
        source,
    };
    if let Some(parent) = host_path.parent() {
        fs::create_dir_all(parent).map_err(prepare)?;
    }
    let file = fs::File::create(&host_path).map_err(prepare)?;
    file.set_permissions(fs::Permissions::from_mode(MESSAGE_FILE_MODE))
        .map_err(prepare)?;
    Ok(Some(Mount {
        volume: String::new(),
        container_path: PathBuf::from(&container.termination_message_path),
        host_path,
        image: None,
        sub_path: None,
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
    }))
}

#[cfg(test)]
mod tests {
    use pulselet_volume::NodeFacts;
    use serde_json::json;

    use super::*;

    #[test]
    fn any_user_of_a_container_may_write_its_termination_message() {
        let directory = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(directory.path());
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"containers": [{"name": "app", "terminationMessagePath": "/dev/custom"}]},
        }))
        .expect("a pod");
        let node = NodeFacts::detect();
        let context = Context {
            layout: &layout,
            downward: Downward {
                pod: &pod,
                uid: "u-1",
                pod_ips: &[],
                node: &node,
            },
            security: SecurityFeatures::ALL,
            dns: &ClusterDns::default(),
        };
        let mount = termination_mount(context, &pod.spec.containers[0], 0)
            .expect("the file is made")
            .expect("a mount");
        assert_eq!(mount.container_path, Path::new("/dev/custom"));
        let mode = fs::metadata(&mount.host_path)
            .expect("a file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o666);
    }
}
