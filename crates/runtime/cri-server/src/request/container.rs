//! Containers as they are asked for.

use std::path::{Component, Path, PathBuf};

use pulselet_cri_wire::v1;
use pulselet_runtime::{
    ContainerConfig, ContainerId, Device, EnvVar, ImageSummary, Mount, MountedImage, Propagation,
    SandboxConfig, SecurityFeatures, Signal,
};

use super::{namespaces, resources, security};
use crate::refusal::RequestError;
use crate::stored;

/// What a device may be used for where nothing is said.
const DEVICE_PERMISSIONS: &str = "rwm";

/// All that a container is made from.
pub(crate) struct ContainerRequest<'a> {
    pub(crate) config: &'a v1::ContainerConfig,
    /// The sandbox that it goes into, as it was asked for.
    pub(crate) sandbox: &'a SandboxConfig,
    pub(crate) image: &'a ImageSummary,
    /// The runtime's.
    pub(crate) features: SecurityFeatures,
    /// Where the log goes if the client wants none.
    pub(crate) own_log: PathBuf,
}

impl ContainerRequest<'_> {
    /// What the runtime is to make. Nothing of it is looked up on the machine.
    pub(crate) fn resolve(&self) -> Result<ContainerConfig, RequestError> {
        let config = self.config;
        let metadata = config
            .metadata
            .as_ref()
            .ok_or(RequestError::Missing { field: "metadata" })?;
        if metadata.name.is_empty() {
            return Err(RequestError::Missing {
                field: "metadata.name",
            });
        }
        if !config.cdi_devices.is_empty() {
            return Err(RequestError::Unsupported {
                field: "CDI_devices",
                hint: "name the device files in devices",
            });
        }
        let linux = config.linux.clone().unwrap_or_default();
        let context = linux.security_context.unwrap_or_default();
        if context.privileged && !self.sandbox.privileged {
            return Err(RequestError::invalid(
                "privileged",
                "the sandbox is not privileged",
            ));
        }
        let pid = namespaces::of_container(context.namespace_options.as_ref(), &self.sandbox.namespaces)?;
        let (log_path, log_rotated_by_caller) = self.log_path()?;
        let image_ref = image_ref(self.image, &image_name(config));
        Ok(ContainerConfig {
            pod: self.sandbox.pod.clone(),
            name: metadata.name.clone(),
            attempt: metadata.attempt,
            image: image_name(config),
            image_id: self.image.id.clone(),
            command: config.command.clone(),
            args: config.args.clone(),
            working_dir: Some(config.working_dir.clone()).filter(|dir| !dir.is_empty()),
            env: config.envs.iter().map(variable).collect(),
            mounts: self.mounts()?,
            devices: config.devices.iter().map(device).collect::<Result<_, _>>()?,
            log_path,
            log_rotated_by_caller,
            stdin: config.stdin,
            stdin_once: config.stdin_once,
            tty: config.tty,
            resources: resources::of_container(&linux.resources.unwrap_or_default())?,
            security: security::of_container(&context, self.features)?,
            stop_signal: stop_signal(config.stop_signal)?,
            pid_target: pid.target.map(ContainerId::new),
            pid_namespace: pid.mode,
            labels: std::collections::BTreeMap::new(),
            annotations: stored::container_annotations(config, image_ref),
        })
    }

    /// The log's path, and whether the client keeps it from growing.
    fn log_path(&self) -> Result<(PathBuf, bool), RequestError> {
        const FIELD: &str = "log_path";
        let directory = &self.sandbox.log_directory;
        if self.config.log_path.is_empty() || directory.as_os_str().is_empty() {
            return Ok((self.own_log.clone(), false));
        }
        let relative = Path::new(&self.config.log_path);
        let is_below =
            |component: Component<'_>| matches!(component, Component::Normal(_) | Component::CurDir);
        if !relative.components().all(is_below) || self.config.log_path.contains('\0') {
            let detail = format!("{:?} is not below the pod's directory", self.config.log_path);
            return Err(RequestError::invalid(FIELD, detail));
        }
        Ok((directory.join(relative), true))
    }

    fn mounts(&self) -> Result<Vec<Mount>, RequestError> {
        let mounts = self.config.mounts.iter();
        mounts.map(|mount| self.mount(mount)).collect()
    }

    fn mount(&self, mount: &v1::Mount) -> Result<Mount, RequestError> {
        const FIELD: &str = "mounts";
        let image = mount.image.as_ref().filter(|image| !image.image.is_empty());
        self.check_mount(mount)?;
        match image {
            Some(_) => check_image_mount(mount)?,
            None => check_host_mount(mount)?,
        }
        let propagation = match v1::MountPropagation::try_from(mount.propagation) {
            Ok(v1::MountPropagation::PropagationPrivate) => Propagation::Private,
            Ok(v1::MountPropagation::PropagationHostToContainer) => Propagation::HostToContainer,
            Ok(v1::MountPropagation::PropagationBidirectional) => Propagation::Bidirectional,
            Err(_) => {
                let detail = format!("{} is no kind of propagation", mount.propagation);
                return Err(RequestError::invalid(FIELD, detail));
            }
        };
        if mount.recursive_read_only && (!mount.readonly || propagation != Propagation::Private) {
            let detail = format!(
                "{} is to be read-only with all below it, and so must be readonly and private itself",
                mount.container_path
            );
            return Err(RequestError::invalid(FIELD, detail));
        }
        Ok(Mount {
            volume: String::new(),
            container_path: Path::new("/").join(&mount.container_path),
            host_path: PathBuf::from(&mount.host_path),
            image: image.map(mounted_image),
            sub_path: Some(PathBuf::from(&mount.image_sub_path)).filter(|path| !path.as_os_str().is_empty()),
            read_only: mount.readonly,
            recursive_read_only: mount.recursive_read_only,
            propagation,
        })
    }

    fn check_mount(&self, mount: &v1::Mount) -> Result<(), RequestError> {
        const FIELD: &str = "mounts";
        let wrong = |detail: String| Err(RequestError::invalid(FIELD, detail));
        let path = &mount.container_path;
        if !mount.mount_options.is_empty() {
            return wrong(format!("{path}: mount_options are not supported"));
        }
        if path.is_empty() || path.contains('\0') {
            return wrong(format!("{path:?} is not a path"));
        }
        let ids = self.sandbox.namespaces.user_ids;
        let is_pods = |mapping: &v1::IdMapping| {
            mapping.container_id == 0
                && ids.is_some_and(|ids| (ids.first, ids.count) == (mapping.host_id, mapping.length))
        };
        if !mount.uid_mappings.iter().chain(&mount.gid_mappings).all(is_pods) {
            return wrong(format!(
                "{path}: owners can be mapped to the pod's own users alone"
            ));
        }
        Ok(())
    }
}

fn check_host_mount(mount: &v1::Mount) -> Result<(), RequestError> {
    let wrong = |detail: String| Err(RequestError::invalid("mounts", detail));
    if !Path::new(&mount.host_path).is_absolute() || mount.host_path.contains('\0') {
        return wrong(format!(
            "{:?} is not an absolute path of the host",
            mount.host_path
        ));
    }
    if !mount.image_sub_path.is_empty() {
        return wrong(format!("{}: image_sub_path needs an image", mount.container_path));
    }
    Ok(())
}

/// The files of an image are nobody's to change, and nothing is mounted below them.
fn check_image_mount(mount: &v1::Mount) -> Result<(), RequestError> {
    let path = &mount.container_path;
    let wrong = |detail: String| Err(RequestError::invalid("mounts", detail));
    if !mount.host_path.is_empty() {
        return wrong(format!("{path}: of host_path and image one can be given"));
    }
    if !mount.readonly {
        return wrong(format!("{path}: an image must be readonly"));
    }
    if mount.propagation() != v1::MountPropagation::PropagationPrivate {
        return wrong(format!("{path}: the mount of an image must be private"));
    }
    let part = Path::new(&mount.image_sub_path);
    let is_below = |component: Component<'_>| matches!(component, Component::Normal(_) | Component::CurDir);
    if !part.components().all(is_below) || mount.image_sub_path.contains('\0') {
        return wrong(format!(
            "{path}: image_sub_path {:?} is not below the image",
            mount.image_sub_path
        ));
    }
    Ok(())
}

/// The id is what the client calls it: only the store knows more.
fn mounted_image(image: &v1::ImageSpec) -> MountedImage {
    let named = Some(&image.user_specified_image).filter(|name| !name.is_empty());
    MountedImage {
        reference: named.unwrap_or(&image.image).clone(),
        id: image.image.clone(),
    }
}

/// As the pod names it.
pub(crate) fn image_name(config: &v1::ContainerConfig) -> String {
    let image = config.image.clone().unwrap_or_default();
    if image.user_specified_image.is_empty() {
        image.image
    } else {
        image.user_specified_image
    }
}

/// What the image is called in a registry: of its names by digest the one of the same repository, or any.
fn image_ref(image: &ImageSummary, name: &str) -> String {
    let same = |digest: &&String| {
        let repository = digest.split('@').next().unwrap_or_default();
        name.starts_with(repository)
    };
    let found = image.digests.iter().find(same).or_else(|| image.digests.first());
    found.cloned().unwrap_or_else(|| image.id.clone())
}

fn variable(variable: &v1::KeyValue) -> EnvVar {
    EnvVar {
        name: variable.key.clone(),
        value: variable.value.clone(),
    }
}

fn device(device: &v1::Device) -> Result<Device, RequestError> {
    let permissions = match device.permissions.as_str() {
        "" => DEVICE_PERMISSIONS,
        given if given.chars().all(|letter| "rwm".contains(letter)) => given,
        wrong => {
            let detail = format!("{wrong:?} are no permissions: they are of r, w and m");
            return Err(RequestError::invalid("devices", detail));
        }
    };
    Ok(Device {
        host_path: PathBuf::from(&device.host_path),
        container_path: PathBuf::from(&device.container_path),
        permissions: permissions.to_owned(),
    })
}

/// CRI has the signals of the API in their order, from one on; zero leaves it to the image.
fn stop_signal(number: i32) -> Result<Option<Signal>, RequestError> {
    let Some(index) = usize::try_from(number)
        .ok()
        .and_then(|number| number.checked_sub(1))
    else {
        return match number {
            0 => Ok(None),
            _ => Err(no_signal(number)),
        };
    };
    let signal = Signal::all().nth(index);
    signal.map(Some).ok_or_else(|| no_signal(number))
}

fn no_signal(number: i32) -> RequestError {
    RequestError::invalid("stop_signal", format!("{number} is not a signal"))
}

#[cfg(test)]
mod tests {
    use pulselet_runtime::{IdRange, Namespaces};

    use super::*;

    fn resolve(change: impl FnOnce(&mut v1::ContainerConfig)) -> Result<ContainerConfig, String> {
        let mut config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: "app".into(),
                attempt: 3,
            }),
            image: Some(v1::ImageSpec {
                image: "sha256:1".into(),
                user_specified_image: "registry.example/app:1".into(),
                ..v1::ImageSpec::default()
            }),
            log_path: "app/3.log".into(),
            ..v1::ContainerConfig::default()
        };
        change(&mut config);
        let request = ContainerRequest {
            config: &config,
            sandbox: &SandboxConfig {
                log_directory: "/logs/pod".into(),
                namespaces: Namespaces {
                    own_users: true,
                    user_ids: Some(IdRange {
                        first: 65_536,
                        count: 65_536,
                    }),
                    ..Namespaces::default()
                },
                ..SandboxConfig::default()
            },
            image: &ImageSummary {
                id: "sha256:1".into(),
                digests: vec![
                    "other.example/app@sha256:2".into(),
                    "registry.example/app@sha256:2".into(),
                ],
                ..ImageSummary::default()
            },
            features: SecurityFeatures::ALL,
            own_log: "/own/app.log".into(),
        };
        request.resolve().map_err(|error| error.to_string())
    }

    #[test]
    fn a_container_has_the_pods_name_of_its_image_and_the_stores_id() {
        let made = resolve(|_| ()).expect("is allowed");
        assert_eq!(
            (made.image.as_str(), made.image_id.as_str()),
            ("registry.example/app:1", "sha256:1")
        );
        assert_eq!(made.log_path, Path::new("/logs/pod/app/3.log"));
        assert!(made.log_rotated_by_caller);
        let unlogged = resolve(|config| config.log_path.clear()).expect("is allowed");
        assert_eq!(unlogged.log_path, Path::new("/own/app.log"));
        assert!(!unlogged.log_rotated_by_caller);
    }

    #[test]
    fn an_image_is_called_by_its_digest_in_the_same_repository() {
        let image = ImageSummary {
            id: "sha256:1".into(),
            digests: vec!["a.example/x@sha256:2".into(), "b.example/x@sha256:3".into()],
            ..ImageSummary::default()
        };
        assert_eq!(image_ref(&image, "b.example/x:1"), "b.example/x@sha256:3");
        assert_eq!(image_ref(&image, "sha256:1"), "a.example/x@sha256:2");
        let unnamed = ImageSummary {
            digests: Vec::new(),
            ..image
        };
        assert_eq!(image_ref(&unnamed, "x"), "sha256:1");
    }

    #[test]
    fn signals_are_numbered_as_the_api_lists_them() {
        let signal = |number| stop_signal(number).map(|signal| signal.map(|signal| signal.to_string()));
        assert_eq!(signal(0), Ok(None));
        assert_eq!(signal(23), Ok(Some("SIGTERM".into())));
        assert_eq!(signal(65), Ok(Some("SIGRTMAX".into())));
        assert!(signal(66).is_err() && signal(-1).is_err());
    }

    #[test]
    fn each_wrong_field_is_named() {
        let refused = |change: fn(&mut v1::ContainerConfig)| resolve(change).expect_err("was made wrong");
        assert_eq!(refused(|it| it.metadata = None), "metadata is missing");
        assert!(refused(|it| it.log_path = "../0.log".into()).starts_with("log_path"));
        assert!(refused(|it| it.cdi_devices.push(v1::CdiDevice::default())).starts_with("CDI_devices"));
        assert!(refused(|it| it.stop_signal = 99).starts_with("stop_signal"));
        let device = |it: &mut v1::ContainerConfig| {
            it.devices.push(v1::Device {
                permissions: "x".into(),
                ..v1::Device::default()
            });
        };
        assert!(refused(device).starts_with("devices"));
        let privileged = |it: &mut v1::ContainerConfig| {
            let context = v1::LinuxContainerSecurityContext {
                privileged: true,
                ..v1::LinuxContainerSecurityContext::default()
            };
            it.linux = Some(v1::LinuxContainerConfig {
                security_context: Some(context),
                ..v1::LinuxContainerConfig::default()
            });
        };
        assert!(refused(privileged).starts_with("privileged"));
    }

    fn of_image(mount: &mut v1::Mount) {
        mount.host_path.clear();
        mount.readonly = true;
        mount.image_sub_path = "a/b".into();
        mount.image = Some(v1::ImageSpec {
            image: "sha256:7".into(),
            user_specified_image: "site:1".into(),
            ..v1::ImageSpec::default()
        });
    }

    #[test]
    fn mounts_that_cannot_be_made_are_refused() {
        let with = |change: fn(&mut v1::Mount)| {
            let mut mount = v1::Mount {
                container_path: "/data".into(),
                host_path: "/srv".into(),
                ..v1::Mount::default()
            };
            change(&mut mount);
            resolve(|config| config.mounts.push(mount))
        };
        assert!(with(|_| ()).is_ok());
        let own = |mount: &mut v1::Mount| {
            let mapping = v1::IdMapping {
                host_id: 65_536,
                container_id: 0,
                length: 65_536,
            };
            mount.uid_mappings.push(mapping);
            mount.gid_mappings.push(mapping);
        };
        assert!(with(own).is_ok());
        let read_only = |mount: &mut v1::Mount| (mount.readonly, mount.recursive_read_only) = (true, true);
        assert!(with(read_only).is_ok());
        let made = with(of_image).expect("is allowed");
        let mount = made.mounts.first().expect("is mounted");
        let image = MountedImage {
            reference: "site:1".into(),
            id: "sha256:7".into(),
        };
        assert_eq!(
            (mount.image.as_ref(), mount.sub_path.as_deref()),
            (Some(&image), Some(Path::new("a/b")))
        );
        let wrong: [fn(&mut v1::Mount); 12] = [
            |mount| mount.image_sub_path = "a".into(),
            |mount| {
                of_image(mount);
                mount.host_path = "/srv".into();
            },
            |mount| {
                of_image(mount);
                mount.readonly = false;
            },
            |mount| {
                of_image(mount);
                mount.image_sub_path = "../a".into();
            },
            |mount| {
                of_image(mount);
                mount.set_propagation(v1::MountPropagation::PropagationBidirectional);
            },
            |mount| mount.mount_options.push("noexec".into()),
            |mount| mount.host_path = "relative".into(),
            |mount| mount.container_path.clear(),
            |mount| mount.recursive_read_only = true,
            |mount| {
                (mount.readonly, mount.recursive_read_only) = (true, true);
                mount.set_propagation(v1::MountPropagation::PropagationHostToContainer);
            },
            |mount| mount.propagation = 9,
            |mount| mount.uid_mappings.push(v1::IdMapping::default()),
        ];
        for change in wrong {
            assert!(with(change).expect_err("was made wrong").starts_with("mounts: "));
        }
    }
}
