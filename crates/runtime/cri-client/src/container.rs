//! Containers in CRI's words.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pulselet_runtime::{
    AppArmor, ContainerConfig, ContainerExit, ContainerId, ContainerState, ContainerStatus, ContainerUser,
    Error, ExitCause, IdRange, ImageSummary, MASKED_PATHS, Mount, Namespaces, PidNamespace, Propagation,
    READ_ONLY_PATHS, Resources, Result, SandboxConfig, SandboxId, SecurityContext, Signal, exit_code,
};

use crate::labels;
use crate::sandbox::{groups_policy, id_mapping, namespaces, seccomp};
use crate::signal;
use crate::wire::v1;

/// What a kubelet allows a device where nothing is said.
const DEVICE_PERMISSIONS: &str = "mrw";

/// A container to be made. Mounts have no sub-paths any more, but for those of images.
pub(crate) fn to_wire(
    config: &ContainerConfig,
    sandbox: &SandboxConfig,
    image: &ImageSummary,
    owner: &str,
) -> Result<v1::ContainerConfig> {
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: config.name.clone(),
            attempt: config.attempt,
        }),
        image: Some(v1::ImageSpec {
            image: if config.image_id.is_empty() {
                &config.image
            } else {
                &config.image_id
            }
            .clone(),
            user_specified_image: config.image.clone(),
            ..v1::ImageSpec::default()
        }),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: config.working_dir.clone().unwrap_or_default(),
        envs: envs(config),
        mounts: config
            .mounts
            .iter()
            .map(|it| mount(it, sandbox.namespaces.user_ids))
            .collect(),
        devices: devices(config),
        labels: container_labels(config, owner),
        annotations: annotations(config),
        log_path: log_path(config, &sandbox.log_directory)?,
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        tty: config.tty,
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources(&config.resources)),
            security_context: Some(security(config, sandbox, image)),
        }),
        cdi_devices: Vec::new(),
        stop_signal: signal::to_wire(config.stop_signal),
    })
}

/// The last of equal names wins, whatever a server makes of a name that comes twice.
fn envs(config: &ContainerConfig) -> Vec<v1::KeyValue> {
    let later = |index: usize, name: &str| config.env[index + 1..].iter().any(|other| other.name == name);
    config
        .env
        .iter()
        .enumerate()
        .filter(|(index, variable)| !later(*index, &variable.name))
        .map(|(_, variable)| v1::KeyValue {
            key: variable.name.clone(),
            value: variable.value.clone(),
        })
        .collect()
}

/// `users` are the pod's own: files of the host belong to the same numbers inside.
fn mount(mount: &Mount, users: Option<IdRange>) -> v1::Mount {
    let propagation = match mount.propagation {
        Propagation::Private => v1::MountPropagation::PropagationPrivate,
        Propagation::HostToContainer => v1::MountPropagation::PropagationHostToContainer,
        Propagation::Bidirectional => v1::MountPropagation::PropagationBidirectional,
    };
    let image = mount.image.as_ref();
    let sub_path = image.and(mount.sub_path.as_ref());
    let owners: Vec<_> = users
        .filter(|_| image.is_none())
        .map(id_mapping)
        .into_iter()
        .collect();
    v1::Mount {
        image: image.map(|image| v1::ImageSpec {
            image: image.id.clone(),
            user_specified_image: image.reference.clone(),
            ..v1::ImageSpec::default()
        }),
        image_sub_path: sub_path
            .map(|path| path.display().to_string())
            .unwrap_or_default(),
        container_path: mount.container_path.display().to_string(),
        host_path: mount.host_path.display().to_string(),
        readonly: mount.read_only,
        propagation: propagation.into(),
        recursive_read_only: mount.read_only && mount.recursive_read_only,
        uid_mappings: owners.clone(),
        gid_mappings: owners,
        ..v1::Mount::default()
    }
}

fn devices(config: &ContainerConfig) -> Vec<v1::Device> {
    let permissions = |text: &str| if text.is_empty() { DEVICE_PERMISSIONS } else { text }.to_owned();
    config
        .devices
        .iter()
        .map(|device| v1::Device {
            container_path: device.container_path.display().to_string(),
            host_path: device.host_path.display().to_string(),
            permissions: permissions(&device.permissions),
        })
        .collect()
}

/// As a kubelet does: the pod's own labels are the sandbox's.
fn container_labels(config: &ContainerConfig, owner: &str) -> labels::Map {
    let mut labels = labels::with_identity(labels::Map::new(), &config.pod, owner);
    labels.insert(labels::CONTAINER_NAME.to_owned(), config.name.clone());
    labels
}

fn annotations(config: &ContainerConfig) -> labels::Map {
    labels::Map::from([
        (labels::RESTART_COUNT.to_owned(), config.attempt.to_string()),
        (labels::IMAGE.to_owned(), config.image.clone()),
    ])
}

/// The log's path from the sandbox's directory on, which is how CRI has it.
fn log_path(config: &ContainerConfig, directory: &Path) -> Result<String> {
    let relative = config.log_path.strip_prefix(directory).ok();
    let relative = relative.and_then(Path::to_str).filter(|path| !path.is_empty());
    relative.map(str::to_owned).ok_or_else(|| Error::Invalid {
        field: "log_path",
        detail: format!(
            "{} is not below the pod's {}",
            config.log_path.display(),
            directory.display()
        ),
    })
}

/// Those of the sandbox; that of processes may be another container's.
fn container_namespaces(config: &ContainerConfig, sandbox: &SandboxConfig) -> v1::NamespaceOption {
    let pid = config.pid_namespace.unwrap_or(sandbox.namespaces.pid);
    let own = namespaces(&Namespaces {
        pid,
        ..sandbox.namespaces.clone()
    });
    match (&config.pid_target, pid) {
        (Some(target), PidNamespace::Container) => v1::NamespaceOption {
            pid: v1::NamespaceMode::Target.into(),
            target_id: target.to_string(),
            ..own
        },
        (Some(_), PidNamespace::Pod | PidNamespace::Host) | (None, _) => own,
    }
}

fn security(
    config: &ContainerConfig,
    sandbox: &SandboxConfig,
    image: &ImageSummary,
) -> v1::LinuxContainerSecurityContext {
    let context = &config.security;
    let paths = |given: Option<&Vec<PathBuf>>, list: &[&str]| -> Vec<String> {
        if let Some(given) = given {
            return given.iter().map(|path| path.display().to_string()).collect();
        }
        let shown = context.privileged || context.unmasked_proc;
        let list = if shown { &[] } else { list };
        list.iter().map(|path| (*path).to_owned()).collect()
    };
    let group = context
        .run_as_group
        .map(|group| v1::Int64Value { value: group.into() });
    let (user, username) = user(context, image);
    v1::LinuxContainerSecurityContext {
        capabilities: Some(v1::Capability {
            add_capabilities: context.capabilities.add.clone(),
            drop_capabilities: context.capabilities.drop.clone(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged: context.privileged,
        namespace_options: Some(container_namespaces(config, sandbox)),
        run_as_user: user.map(|user| v1::Int64Value { value: user.into() }),
        run_as_username: username.unwrap_or_default(),
        readonly_rootfs: context.read_only_root,
        supplemental_groups: context
            .supplemental_groups
            .iter()
            .map(|group| i64::from(*group))
            .collect(),
        no_new_privs: context.no_new_privs,
        run_as_group: group,
        masked_paths: paths(context.masked_paths.as_ref(), &MASKED_PATHS),
        readonly_paths: paths(context.read_only_paths.as_ref(), &READ_ONLY_PATHS),
        seccomp: Some(seccomp(&context.seccomp)),
        apparmor: context.app_armor.as_ref().map(app_armor),
        apparmor_profile: context.app_armor.as_ref().map(old_app_armor).unwrap_or_default(),
        supplemental_groups_policy: groups_policy(context.strict_groups).into(),
        selinux_options: None,
    }
}

fn app_armor(profile: &AppArmor) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType;
    let (profile_type, localhost_ref) = match profile {
        AppArmor::Unconfined => (ProfileType::Unconfined, String::new()),
        AppArmor::RuntimeDefault => (ProfileType::RuntimeDefault, String::new()),
        AppArmor::Localhost(name) => (ProfileType::Localhost, name.clone()),
    };
    v1::SecurityProfile {
        profile_type: profile_type.into(),
        localhost_ref,
    }
}

/// The same in one word, as the annotations of pods had it.
fn old_app_armor(profile: &AppArmor) -> String {
    match profile {
        AppArmor::Unconfined => "unconfined".to_owned(),
        AppArmor::RuntimeDefault => "runtime/default".to_owned(),
        AppArmor::Localhost(name) => format!("localhost/{name}"),
    }
}

/// CRI wants a user wherever there is a group: the image's, where the pod names none. Otherwise the image's user is left
/// to the server, which knows its groups.
fn user(context: &SecurityContext, image: &ImageSummary) -> (Option<u32>, Option<String>) {
    let own = (context.run_as_user, context.run_as_username.clone());
    match own {
        (None, None) if context.run_as_group.is_some() => match (image.uid, image.username.clone()) {
            (None, None) => (Some(0), None),
            (Some(uid), _) => (Some(uid), None),
            (None, name) => (None, name),
        },
        (Some(uid), _) => (Some(uid), None),
        (None, name) => (None, name),
    }
}

pub(crate) fn resources(resources: &Resources) -> v1::LinuxContainerResources {
    let number = |value: Option<u64>| i64::try_from(value.unwrap_or(0)).unwrap_or(i64::MAX);
    // CRI has no field for it; servers pass this on where the machine has unified cgroups.
    let pids = resources
        .pids_limit
        .map(|limit| ("pids.max".to_owned(), limit.to_string()));
    v1::LinuxContainerResources {
        cpu_period: number(resources.cpu_period),
        cpu_quota: resources.cpu_quota.unwrap_or(0),
        cpu_shares: number(resources.cpu_shares),
        memory_limit_in_bytes: number(resources.memory_limit),
        oom_score_adj: resources.oom_score_adj.unwrap_or(0).into(),
        cpuset_cpus: resources.cpuset_cpus.clone().unwrap_or_default(),
        cpuset_mems: resources.cpuset_mems.clone().unwrap_or_default(),
        unified: resources.unified.clone().into_iter().chain(pids).collect(),
        hugepage_limits: Vec::new(),
        memory_swap_limit_in_bytes: match resources.memory_swap_limit {
            Some(u64::MAX) => -1,
            limit => number(limit),
        },
    }
}

/// What a server says of a container. `default_signal` is what it is stopped with if the server does not tell.
pub(crate) fn from_wire(
    status: v1::ContainerStatus,
    sandbox: SandboxId,
    default_signal: Option<Signal>,
) -> ContainerStatus {
    let state = state(&status);
    let metadata = status.metadata.unwrap_or_default();
    let named = status.annotations.get(labels::IMAGE).cloned();
    let image = named.unwrap_or_else(|| status.image.unwrap_or_default().image);
    let image_id = if status.image_id.is_empty() {
        status.image_ref
    } else {
        status.image_id
    };
    ContainerStatus {
        id: ContainerId::new(status.id),
        sandbox,
        pod: labels::identity(&status.labels),
        name: metadata.name,
        attempt: metadata.attempt,
        created_at: time(status.created_at),
        state,
        image,
        image_id,
        stop_signal: signal::from_wire(status.stop_signal).or(default_signal),
        user: status.user.and_then(user_from_wire),
        log_path: status.log_path.into(),
        labels: labels::without_reserved(status.labels),
        annotations: labels::without_reserved(status.annotations),
    }
}

/// Returns `None` for what is not a user of Linux, or has ids that Linux does not know.
fn user_from_wire(user: v1::ContainerUser) -> Option<ContainerUser> {
    let v1::LinuxContainerUser {
        uid,
        gid,
        supplemental_groups,
    } = user.linux?;
    let groups = supplemental_groups.into_iter().map(|gid| u32::try_from(gid).ok());
    Some(ContainerUser {
        uid: uid.try_into().ok()?,
        gid: gid.try_into().ok()?,
        supplemental_groups: groups.collect::<Option<_>>()?,
    })
}

fn state(status: &v1::ContainerStatus) -> ContainerState {
    match status.state() {
        v1::ContainerState::ContainerCreated => ContainerState::Created,
        v1::ContainerState::ContainerRunning => ContainerState::Running {
            started_at: time(status.started_at),
        },
        v1::ContainerState::ContainerExited => ContainerState::Exited(ContainerExit {
            started_at: (status.started_at > 0).then(|| time(status.started_at)),
            finished_at: time(status.finished_at.max(status.created_at)),
            code: status.exit_code,
            reason: reason(&status.reason, status.exit_code),
            message: status.message.clone(),
            killed_after_grace: None,
        }),
        v1::ContainerState::ContainerUnknown => ContainerState::Unknown,
    }
}

fn reason(word: &str, code: i32) -> ExitCause {
    match word {
        "" if code == 0 => ExitCause::Completed,
        "Completed" => ExitCause::Completed,
        "" | "Error" => ExitCause::Error,
        // A server may say so of a container in which only a child was killed. The first process ends by SIGKILL.
        "OOMKilled" => match code {
            exit_code::KILLED => ExitCause::OomKilled,
            0 => ExitCause::Completed,
            _ => ExitCause::Error,
        },
        "StartError" => ExitCause::StartError,
        "Unknown" | "ContainerStatusUnknown" => ExitCause::Unknown,
        other => ExitCause::Other(other.to_owned()),
    }
}

/// Nanoseconds since 1970, which is also what a broken number becomes.
pub(crate) fn time(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanos.into()).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use pulselet_runtime::{EnvVar, MountedImage, Seccomp};

    use super::*;

    fn made(change: impl FnOnce(&mut ContainerConfig, &mut ImageSummary)) -> v1::ContainerConfig {
        let mut config = ContainerConfig {
            name: "app".into(),
            attempt: 3,
            image: "busybox".into(),
            log_path: "/logs/p/app/3.log".into(),
            ..ContainerConfig::default()
        };
        let mut image = ImageSummary::default();
        change(&mut config, &mut image);
        let sandbox = SandboxConfig {
            log_directory: "/logs/p".into(),
            ..SandboxConfig::default()
        };
        to_wire(&config, &sandbox, &image, "me").expect("it can be said")
    }

    fn security_of(config: v1::ContainerConfig) -> v1::LinuxContainerSecurityContext {
        config
            .linux
            .and_then(|linux| linux.security_context)
            .expect("set")
    }

    #[test]
    fn the_process_namespace_may_be_another_containers() {
        let own = security_of(made(|_, _| {})).namespace_options.expect("set");
        assert_eq!((own.pid(), &*own.target_id), (v1::NamespaceMode::Container, ""));
        let other = security_of(made(|config, _| config.pid_target = Some(ContainerId::new("c1"))));
        let other = other.namespace_options.expect("set");
        assert_eq!(
            (other.pid(), &*other.target_id),
            (v1::NamespaceMode::Target, "c1")
        );
        assert_eq!((other.network, other.ipc), (own.network, own.ipc));
    }

    #[test]
    fn names_logs_and_signals_are_where_tools_look() {
        let wire = made(|config, _| {
            config.stop_signal = "SIGUSR1".parse().ok();
            config.labels.insert("app".into(), "web".into());
        });
        assert_eq!((wire.log_path.as_str(), wire.stop_signal), ("app/3.log", 29));
        assert_eq!(wire.annotations[labels::RESTART_COUNT], "3");
        assert_eq!(wire.labels[labels::CONTAINER_NAME], "app");
        assert!(!wire.labels.contains_key("app"));
    }

    #[test]
    fn a_log_elsewhere_is_refused() {
        let config = ContainerConfig {
            log_path: "/elsewhere/0.log".into(),
            ..ContainerConfig::default()
        };
        let sandbox = SandboxConfig {
            log_directory: "/logs/p".into(),
            ..SandboxConfig::default()
        };
        let error = to_wire(&config, &sandbox, &ImageSummary::default(), "me").expect_err("refused");
        assert!(error.to_string().starts_with("log_path: "));
    }

    #[test]
    fn the_last_of_equal_variables_wins() {
        let wire = made(|config, _| {
            config.env = [("A", "1"), ("B", "2"), ("A", "3")]
                .map(|(name, value)| EnvVar {
                    name: name.into(),
                    value: value.into(),
                })
                .into();
        });
        let envs: Vec<_> = wire
            .envs
            .iter()
            .map(|env| (env.key.as_str(), env.value.as_str()))
            .collect();
        assert_eq!(envs, [("B", "2"), ("A", "3")]);
    }

    #[test]
    fn a_group_never_goes_without_a_user() {
        let user = |context: &v1::LinuxContainerSecurityContext| {
            (
                context.run_as_user.map(|user| user.value),
                context.run_as_username.clone(),
            )
        };
        let group = |config: &mut ContainerConfig| config.security.run_as_group = Some(5);
        let context = security_of(made(|config, _| group(config)));
        assert_eq!(user(&context), (Some(0), String::new()));
        let context = security_of(made(|config, image| {
            group(config);
            image.username = Some("web".into());
        }));
        assert_eq!(user(&context), (None, "web".into()));
        let context = security_of(made(|config, image| {
            config.security.run_as_user = Some(9);
            image.username = Some("web".into());
        }));
        assert_eq!(user(&context), (Some(9), String::new()));
    }

    #[test]
    fn privileged_containers_see_everything() {
        assert!(!security_of(made(|_, _| ())).masked_paths.is_empty());
        let context = security_of(made(|config, _| config.security.privileged = true));
        assert!(context.masked_paths.is_empty() && context.readonly_paths.is_empty());
    }

    #[test]
    fn profiles_groups_and_attributes_of_mounts_are_passed_on() {
        let plain = made(|_, _| ());
        assert!(plain.mounts.is_empty());
        let plain = security_of(plain);
        assert_eq!((plain.apparmor, plain.apparmor_profile.as_str()), (None, ""));
        assert_eq!(plain.supplemental_groups_policy, 0);
        let wire = made(|config, _| {
            config.security.app_armor = Some(AppArmor::Localhost("mine".into()));
            config.security.strict_groups = true;
            config.mounts = vec![Mount {
                volume: "v".into(),
                container_path: "/v".into(),
                host_path: "/host".into(),
                image: None,
                sub_path: None,
                read_only: true,
                recursive_read_only: true,
                propagation: Propagation::HostToContainer,
            }];
        });
        assert_eq!(
            wire.mounts[0].propagation(),
            v1::MountPropagation::PropagationHostToContainer
        );
        assert!(wire.mounts[0].readonly && wire.mounts[0].recursive_read_only);
        let context = security_of(wire);
        assert_eq!(context.apparmor_profile, "localhost/mine");
        let profile = context.apparmor.expect("set");
        assert_eq!(
            (profile.profile_type, profile.localhost_ref.as_str()),
            (2, "mine")
        );
        assert_eq!(context.supplemental_groups_policy, 1);
    }

    #[test]
    fn a_server_mounts_images_itself() {
        let wire = made(|config, _| {
            config.mounts = vec![Mount {
                volume: "site".into(),
                container_path: "/site".into(),
                host_path: PathBuf::new(),
                image: Some(MountedImage {
                    reference: "site:1".into(),
                    id: "sha256:7".into(),
                }),
                sub_path: Some("a/b".into()),
                read_only: true,
                recursive_read_only: false,
                propagation: Propagation::Private,
            }];
        });
        let mount = &wire.mounts[0];
        let image = mount.image.clone().expect("is named");
        assert_eq!(
            (image.image.as_str(), image.user_specified_image.as_str()),
            ("sha256:7", "site:1")
        );
        assert_eq!(
            (mount.host_path.as_str(), mount.image_sub_path.as_str()),
            ("", "a/b")
        );
        assert!(mount.readonly);
    }

    #[test]
    fn a_security_context_is_passed_on() {
        let context = security_of(made(|config, _| {
            let security = &mut config.security;
            security.run_as_user = Some(1);
            security.run_as_group = Some(2);
            security.supplemental_groups = vec![3];
            security.read_only_root = true;
            security.no_new_privs = true;
            security.seccomp = Seccomp::Localhost("/profile".into());
            security.capabilities.add = vec!["NET_ADMIN".into()];
            security.capabilities.drop = vec!["ALL".into()];
        }));
        let id = |value| Some(v1::Int64Value { value });
        assert_eq!((context.run_as_user, context.run_as_group), (id(1), id(2)));
        assert_eq!(context.supplemental_groups, [3]);
        assert!(context.readonly_rootfs && context.no_new_privs && !context.privileged);
        assert_eq!(context.seccomp.expect("set").localhost_ref, "/profile");
        let capabilities = context.capabilities.expect("set");
        assert_eq!(capabilities.add_capabilities, ["NET_ADMIN"]);
        assert_eq!(capabilities.drop_capabilities, ["ALL"]);
    }

    #[test]
    fn an_exit_is_told_in_our_words() {
        let exited = |reason: &str, code, started_at| {
            let status = v1::ContainerStatus {
                state: v1::ContainerState::ContainerExited.into(),
                created_at: 50,
                started_at,
                finished_at: 100,
                exit_code: code,
                reason: reason.into(),
                ..v1::ContainerStatus::default()
            };
            match state(&status) {
                ContainerState::Exited(exit) => exit,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(exited("", 0, 60).reason, ExitCause::Completed);
        assert_eq!(exited("OOMKilled", 137, 60).reason, ExitCause::OomKilled);
        // A child of the container's own program was killed for memory.
        assert_eq!(exited("OOMKilled", 0, 60).reason, ExitCause::Completed);
        assert_eq!(exited("OOMKilled", 3, 60).reason, ExitCause::Error);
        assert_eq!(exited("Unknown", 255, 60).reason, ExitCause::Unknown);
        assert_eq!(exited("Odd", 1, 60).reason.as_str(), "Odd");
        assert_eq!(exited("StartError", 128, 0).started_at, None);
        assert_eq!(exited("Error", 1, 60).finished_at.as_nanosecond(), 100);
    }

    #[test]
    fn a_signal_the_server_does_not_tell_is_the_default_given() {
        let status = |number| {
            let status = v1::ContainerStatus {
                stop_signal: number,
                ..v1::ContainerStatus::default()
            };
            from_wire(status, SandboxId::new("s"), Some(Signal::TERM)).stop_signal
        };
        assert_eq!(status(0), Some(Signal::TERM));
        assert_eq!(status(29).map(Signal::name), Some("SIGUSR1"));
    }

    #[test]
    fn the_user_is_told_if_the_server_knows_it() {
        let told = |linux| {
            let status = v1::ContainerStatus {
                user: Some(v1::ContainerUser { linux }),
                ..v1::ContainerStatus::default()
            };
            from_wire(status, SandboxId::new("s"), None).user
        };
        let linux = |uid| {
            Some(v1::LinuxContainerUser {
                uid,
                gid: 3000,
                supplemental_groups: vec![3000, 4000],
            })
        };
        let user = ContainerUser {
            uid: 1000,
            gid: 3000,
            supplemental_groups: vec![3000, 4000],
        };
        assert_eq!(told(linux(1000)), Some(user));
        assert_eq!(told(linux(-1)), None, "no such id");
        assert_eq!(told(None), None);
        let silent = from_wire(v1::ContainerStatus::default(), SandboxId::new("s"), None);
        assert_eq!(silent.user, None, "an older server");
    }
}
