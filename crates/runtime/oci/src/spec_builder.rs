//! Builds the specification of a container from what its pod asks for and what its image says.

use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
};

use pulselet_cgroup::Hierarchies;
use pulselet_runtime::IdRange;
use pulselet_runtime::{
    ContainerConfig, Error, Mount, PidNamespace, Propagation, Resources, Result, SandboxConfig, Seccomp,
    Signal,
};

use crate::{
    app_armor,
    bare_mounts::BareMounts,
    capability,
    image::Template,
    oom_score,
    program::DEFAULT_PATH,
    sandbox::{HOSTNAME, HOSTS, IPC, NETWORK, PROCESSES, RESOLV_CONF, SHM, USERS, UTS},
    seccomp::{self, Filter},
    spec::{
        CgroupSpec, Confinement, ContainerSpec, NamespaceSpec, PidNamespaceSource, RootfsSpec,
        UserNamespaceSpec, UserSpec,
    },
};

/// Volumes that an image may declare; few have more than one.
const MAX_IMAGE_VOLUMES: usize = 64;

/// All that a specification is built from.
pub(crate) struct SpecBuilder<'a> {
    pub(crate) config: &'a ContainerConfig,
    pub(crate) image: &'a Template,
    /// The layers of the images that it mounts, by the images' ids.
    pub(crate) mounted_images: BTreeMap<String, Vec<PathBuf>>,
    pub(crate) sandbox: &'a SandboxConfig,
    pub(crate) sandbox_dir: &'a Path,
    /// Of a pod that has users of its own.
    pub(crate) user_ids: Option<IdRange>,
    /// The init process of the container whose process namespace this one is to have.
    pub(crate) target: Option<i32>,
    /// The container's cgroup.
    pub(crate) cgroup: PathBuf,
    /// Where cgroups are; `None` if the shim has to find out.
    pub(crate) hierarchies: Option<&'a Hierarchies>,
    /// Where containers have cgroups in the hierarchies that limit nothing.
    pub(crate) apart: &'a [PathBuf],
    /// Whether there are `AppArmor` profiles on this machine.
    pub(crate) app_armor: bool,
    pub(crate) bare_mounts: Option<&'a BareMounts>,
}

impl SpecBuilder<'_> {
    pub(crate) fn build(&self) -> Result<ContainerSpec> {
        let security = &self.config.security;
        let capabilities = if security.privileged {
            capability::all()
        } else {
            capability::effective(&security.capabilities).map_err(|error| Error::Invalid {
                field: "capabilities",
                detail: error.to_string(),
            })?
        };
        let working_dir = self
            .config
            .working_dir
            .as_deref()
            .or(self.image.working_dir.as_deref());
        Ok(ContainerSpec {
            command: self.command()?,
            env: self.env(),
            working_dir: Path::new("/").join(working_dir.unwrap_or_default()),
            user: self.user(),
            root: RootfsSpec {
                layers: self.image.layers.clone(),
                hidden: self.image.hidden.clone(),
                volumes: self.image_volumes(),
                read_only: security.read_only_root,
            },
            mounts: self.mounts(),
            mounted_images: self.mounted_images.clone(),
            devices: self.config.devices.clone(),
            confinement: Confinement {
                privileged: security.privileged,
                capabilities,
                no_new_privs: security.no_new_privs,
                unmasked: security.unmasked_proc,
                masked_paths: security.masked_paths.clone(),
                read_only_paths: security.read_only_paths.clone(),
                seccomp: self.seccomp(capabilities)?,
                app_armor: app_armor::profile(security, self.app_armor)?,
            },
            namespaces: self.namespaces()?,
            cgroup: CgroupSpec {
                path: self.cgroup.clone(),
                hierarchies: self.hierarchies.cloned(),
                apart: self.apart.to_vec(),
                resources: Resources {
                    oom_score_adj: self.config.resources.oom_score_adj.map(oom_score::allowed),
                    ..self.config.resources.clone()
                },
            },
        })
    }

    fn seccomp(&self, capabilities: u64) -> Result<Option<Filter>> {
        let security = &self.config.security;
        let filter = match &security.seccomp {
            Seccomp::RuntimeDefault if !security.privileged => seccomp::default_filter(capabilities),
            Seccomp::Localhost(path) if !security.privileged => seccomp::filter_from_file(path),
            Seccomp::Unconfined | Seccomp::RuntimeDefault | Seccomp::Localhost(_) => return Ok(None),
        };
        filter.map(Some).map_err(|error| Error::Invalid {
            field: "seccompProfile",
            detail: error.to_string(),
        })
    }

    fn command(&self) -> Result<Vec<String>> {
        let ContainerConfig { command, args, .. } = self.config;
        let words: Vec<String> = match (command.is_empty(), args.is_empty()) {
            (false, _) => command.iter().chain(args).cloned().collect(),
            (true, false) => self.image.entrypoint.iter().chain(args).cloned().collect(),
            (true, true) => self
                .image
                .entrypoint
                .iter()
                .chain(&self.image.cmd)
                .cloned()
                .collect(),
        };
        if words.is_empty() {
            return Err(Error::Invalid {
                field: "command",
                detail: "no command specified: neither the pod nor the image has one".into(),
            });
        }
        Ok(words)
    }

    /// The image's, then the pod's; the last of equal names wins.
    fn env(&self) -> Vec<(String, String)> {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut all = vec![pair("PATH", DEFAULT_PATH)];
        if !self.sandbox.hostname.is_empty() {
            all.push(pair("HOSTNAME", &self.sandbox.hostname));
        }
        if self.config.tty {
            all.push(pair("TERM", "xterm"));
        }
        let of_image = self.image.env.iter().filter_map(|entry| entry.split_once('='));
        all.extend(of_image.map(|(name, value)| pair(name, value)));
        all.extend(self.config.env.iter().map(|var| pair(&var.name, &var.value)));
        let mut seen = HashSet::new();
        let mut env: Vec<_> = all
            .into_iter()
            .rev()
            .filter(|(name, _)| seen.insert(name.clone()))
            .collect();
        env.reverse();
        env
    }

    fn user(&self) -> UserSpec {
        let security = &self.config.security;
        let number = security.run_as_user.map(|uid| uid.to_string());
        UserSpec {
            user: number
                .or_else(|| security.run_as_username.clone())
                .or_else(|| self.image.user.clone())
                .unwrap_or_default(),
            group: security.run_as_group,
            supplemental_groups: security.supplemental_groups.clone(),
            strict_groups: security.strict_groups,
            id_count: self.user_ids.map(|ids| ids.count),
        }
    }

    /// The sandbox's files where the pod puts nothing of its own, then the pod's, outer ones first.
    fn mounts(&self) -> Vec<Mount> {
        let own = |name: &str, target: &str| Mount {
            volume: String::new(),
            container_path: target.into(),
            host_path: self.sandbox_dir.join(name),
            image: None,
            sub_path: None,
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::Private,
        };
        let mut shm = own(SHM, "/dev/shm");
        if self.sandbox.namespaces.host_ipc {
            shm.host_path = "/dev/shm".into();
        }
        let given: HashSet<&PathBuf> = self
            .config
            .mounts
            .iter()
            .map(|mount| &mount.container_path)
            .collect();
        let mut mounts = vec![
            own(HOSTS, "/etc/hosts"),
            own(HOSTNAME, "/etc/hostname"),
            own(RESOLV_CONF, "/etc/resolv.conf"),
            shm,
        ];
        mounts.extend(self.image.mounts.iter().cloned());
        mounts.retain(|mount| !given.contains(&mount.container_path));
        let mut of_pod = self.config.mounts.clone();
        of_pod.sort_by_key(|mount| mount.container_path.components().count());
        mounts.extend(of_pod);
        mounts
    }

    /// The image's volumes, but for those in whose place the pod mounts something.
    fn image_volumes(&self) -> Vec<PathBuf> {
        let mounts = &self.config.mounts;
        let given = |path: &Path| mounts.iter().any(|mount| mount.container_path == path);
        let paths = self.image.volumes.iter().map(PathBuf::from);
        paths
            .filter(|path| path.is_absolute() && !given(path))
            .take(MAX_IMAGE_VOLUMES)
            .collect()
    }

    fn namespaces(&self) -> Result<NamespaceSpec> {
        let asked = &self.sandbox.namespaces;
        let pid = self.config.pid_namespace.unwrap_or(asked.pid);
        if pid == PidNamespace::Pod && asked.pid != PidNamespace::Pod {
            return Err(Error::Invalid {
                field: "pid_namespace",
                detail: "the sandbox has no process namespace that its containers could share".into(),
            });
        }
        let pin = |host: bool, name: &str| (!host).then(|| self.sandbox_dir.join(name));
        Ok(NamespaceSpec {
            network: pin(asked.host_network, NETWORK),
            uts: pin(asked.host_network, UTS),
            ipc: pin(asked.host_ipc, IPC),
            processes: match pid {
                PidNamespace::Container => self
                    .target
                    .map_or(PidNamespaceSource::Own, PidNamespaceSource::Target),
                PidNamespace::Pod => PidNamespaceSource::Pod(self.sandbox_dir.join(PROCESSES)),
                PidNamespace::Host => PidNamespaceSource::Host,
            },
            users: self.user_ids.map(|ids| UserNamespaceSpec {
                pin: self.sandbox_dir.join(USERS),
                ids,
            }),
            bare_mounts: self.bare_mounts.map(BareMounts::path),
        })
    }
}

/// The pod's signal, else the image's, else SIGTERM. An image's that makes no sense counts as none.
pub(crate) fn stop_signal(config: &ContainerConfig, image: &Template) -> Signal {
    if let Some(signal) = config.stop_signal {
        return signal;
    }
    let Some(text) = image.stop_signal.as_deref().filter(|text| !text.is_empty()) else {
        return Signal::TERM;
    };
    Signal::from_image(text).unwrap_or_else(|error| {
        tracing::warn!(image = config.image, %error, "the image's STOPSIGNAL is not used");
        Signal::TERM
    })
}

#[cfg(test)]
mod tests {
    use pulselet_runtime::{EnvVar, Namespaces};

    use super::*;

    fn build(change: impl FnOnce(&mut ContainerConfig)) -> Result<ContainerSpec> {
        let strings = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let image = Template {
            entrypoint: strings(&["entry"]),
            cmd: strings(&["default"]),
            env: strings(&["A=image", "B=image", "broken"]),
            working_dir: Some("/srv".into()),
            user: Some("web".into()),
            volumes: strings(&["/data", "/a", "relative"]),
            ..Template::default()
        };
        let mut config = ContainerConfig::default();
        change(&mut config);
        let builder = SpecBuilder {
            config: &config,
            image: &image,
            mounted_images: BTreeMap::new(),
            sandbox: &SandboxConfig::default(),
            sandbox_dir: Path::new("/s"),
            user_ids: None,
            target: None,
            cgroup: "c".into(),
            hierarchies: None,
            apart: &[],
            app_armor: false,
            bare_mounts: None,
        };
        builder.build()
    }

    #[test]
    fn command_and_arguments_replace_the_images_as_kubernetes_has_it() {
        let words = |command: &[&str], args: &[&str]| {
            let strings = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            let result = build(|config| (config.command, config.args) = (strings(command), strings(args)));
            result.expect("has a command").command.join(" ")
        };
        assert_eq!(words(&[], &[]), "entry default");
        assert_eq!(words(&[], &["arg"]), "entry arg");
        assert_eq!(words(&["cmd"], &[]), "cmd");
        assert_eq!(words(&["cmd"], &["arg"]), "cmd arg");
    }

    #[test]
    fn the_pods_settings_win_over_the_images() {
        let plain = build(|_| ()).expect("has a command");
        assert_eq!(
            (plain.user.user.as_str(), plain.working_dir.as_path()),
            ("web", Path::new("/srv"))
        );
        let changed = build(|config| {
            config.env.push(EnvVar {
                name: "A".into(),
                value: "pod".into(),
            });
            config.working_dir = Some("/tmp".into());
            config.security.run_as_user = Some(7);
        })
        .expect("has a command");
        let env: Vec<String> = changed
            .env
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            env,
            [format!("PATH={DEFAULT_PATH}"), "B=image".into(), "A=pod".into()]
        );
        assert_eq!(
            (changed.user.user.as_str(), changed.working_dir.as_path()),
            ("7", Path::new("/tmp"))
        );
    }

    #[test]
    fn a_namespace_of_the_host_is_not_pinned() {
        let config = ContainerConfig {
            command: vec!["true".into()],
            ..ContainerConfig::default()
        };
        let spec = |namespaces| {
            let builder = SpecBuilder {
                config: &config,
                image: &Template::default(),
                mounted_images: BTreeMap::new(),
                sandbox: &SandboxConfig {
                    namespaces,
                    ..SandboxConfig::default()
                },
                sandbox_dir: Path::new("/s"),
                user_ids: None,
                target: None,
                cgroup: "c".into(),
                hierarchies: None,
                apart: &[],
                app_armor: false,
                bare_mounts: None,
            };
            builder.build().expect("can be built").namespaces
        };
        let own = spec(Namespaces::default());
        assert!(own.network.is_some() && own.ipc.is_some() && own.uts.is_some());
        assert_eq!(own.processes, PidNamespaceSource::Own);
        let shared = spec(Namespaces {
            host_network: true,
            host_ipc: true,
            pid: PidNamespace::Host,
            ..Namespaces::default()
        });
        assert_eq!((shared.network, shared.ipc, shared.uts), (None, None, None));
        assert_eq!(shared.processes, PidNamespaceSource::Host);
    }

    #[test]
    fn a_pods_own_file_replaces_the_sandboxes() {
        let mount = |path: &str| Mount {
            volume: "v".into(),
            container_path: path.into(),
            host_path: "/h".into(),
            image: None,
            sub_path: None,
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::Private,
        };
        let spec = build(|config| config.mounts = vec![mount("/a/b/c"), mount("/etc/hosts"), mount("/a")]);
        let spec = spec.expect("has a command");
        assert_eq!(spec.root.volumes, [Path::new("/data")]);
        let targets: Vec<String> = spec
            .mounts
            .iter()
            .map(|mount| mount.container_path.display().to_string())
            .collect();
        assert_eq!(
            targets,
            [
                "/etc/hostname",
                "/etc/resolv.conf",
                "/dev/shm",
                "/a",
                "/etc/hosts",
                "/a/b/c"
            ]
        );
    }

    #[test]
    fn the_stop_signal_is_the_pods_or_the_images_or_term() {
        let signal = |of_pod: Option<Signal>, of_image: &str| {
            let image = Template {
                stop_signal: Some(of_image.to_owned()),
                ..Template::default()
            };
            let config = ContainerConfig {
                stop_signal: of_pod,
                ..ContainerConfig::default()
            };
            stop_signal(&config, &image).to_string()
        };
        assert_eq!(signal("SIGINT".parse().ok(), "SIGUSR1"), "SIGINT");
        assert_eq!(signal(None, "USR1"), "SIGUSR1");
        assert_eq!(signal(None, "3"), "SIGQUIT");
        assert_eq!(signal(None, "SIGRTMIN+3"), "SIGRTMIN+3");
        assert_eq!(signal(None, "nonsense"), "SIGTERM");
        assert_eq!(signal(None, ""), "SIGTERM");
    }
}
