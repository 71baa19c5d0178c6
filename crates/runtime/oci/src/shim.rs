//! The shim's program for containers: what runs in a container's shim besides the shim itself.
//!
//! [`shim_main`] is the way in. It reads what the agent has decided ([`ContainerSpec`]), and gives
//! [`pulselet_shim`] the [`Launcher`] by which it starts and kills the container's processes.

use std::{
    ffi::OsString, fs::File, io, ops::ControlFlow, os::fd::OwnedFd, path::PathBuf, process::ExitCode,
    time::Duration,
};

use pulselet_cgroup::{Cgroup, CgroupError, Hierarchies, device_rules};
use pulselet_runtime::ContainerUser;
use pulselet_shim::{
    ChildStreams, LaunchError, Launcher, SHIM_NAME, ShimConfig, detach, is_starter,
    record::{self, RecordError},
    serve_starts,
};
use pulselet_shim_client::{CONTAINER_FILE, ContainerRecord};
use pulselet_sys::{Pid, find_arguments};
use rustix::{
    process::{DumpableBehavior, Signal, pidfd_send_signal, set_dumpable_behavior},
    thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_name, set_no_new_privs},
};

use crate::{
    bare_mounts::BareMountsPath,
    capability,
    confinement::{ALL_CAPABILITIES, bound_capabilities},
    exec_process,
    init_process::{self, InitProcess},
    oom_score, pause_process,
    spec::{Confinement, ContainerSpec, PidNamespaceSource},
    terminal,
};

/// How long what shares its process namespace with others may take to be gone after it was killed.
const KILL_PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error("there is no such container")]
    Missing,
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("cannot give up the rights that the container's shim does not need: {0}")]
    DropRights(io::Error),
}

/// A container as its shim knows it.
#[derive(Debug)]
pub(crate) struct Container {
    /// The container's directory.
    pub(crate) dir: PathBuf,
    pub(crate) spec: ContainerSpec,
    pub(crate) cgroup: Cgroup,
    /// What its mount namespace begins as; `None` if as a copy of the host's, and when it is made.
    pub(crate) bare_mounts: Option<File>,
}

/// The shim's program. Its only argument is the container's directory, which a starter gets with every request; with a sandbox's directory and a cgroup it is
/// the pause process of a pod instead. Its stdout is for the agent that starts it.
pub fn shim_main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<PathBuf> = args.map(PathBuf::from).collect();
    // It was started by way of a descriptor, whose number would be its name.
    let _ = set_name(SHIM_NAME);
    oom_score::protect_shim();
    // Its forks find out by themselves if this fails.
    let _ = find_arguments();
    match args.as_slice() {
        [_] if is_starter() => serve_starts(become_shim),
        [dir] => match detach() {
            ControlFlow::Continue(()) => become_shim(dir.clone()),
            ControlFlow::Break(code) => code,
        },
        [sandbox_dir, cgroup] => pause_process::main(sandbox_dir, cgroup),
        _ => pulselet_shim::refuse("the shim wants the container's directory"),
    }
}

fn become_shim(dir: PathBuf) -> ExitCode {
    let loaded = load(dir).and_then(|(config, container)| {
        drop_rights(&container.spec.confinement).map_err(LoadError::DropRights)?;
        Ok((config, container))
    });
    match loaded {
        Ok((config, container)) => {
            let launcher = ContainerLauncher {
                container,
                init: None,
            };
            pulselet_shim::run(config, launcher)
        }
        Err(error) => pulselet_shim::refuse(&error.to_string()),
    }
}

/// Gives up, for good, what neither the shim nor its container needs. All that it has is inherited by every process on its
/// way into the container: what the shim cannot do, a mistake on that way cannot do either. Nobody but root looks into
/// its memory.
fn drop_rights(confinement: &Confinement) -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    if !confinement.privileged {
        let kept = CapabilitySet::from_bits_retain(capability::of_shim(confinement.capabilities));
        bound_capabilities(ALL_CAPABILITIES, kept)?;
        let held = capabilities(None)?.permitted & kept;
        let sets = CapabilitySets {
            effective: held,
            permitted: held,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets)?;
    }
    if confinement.no_new_privs {
        set_no_new_privs(true)?;
    }
    Ok(())
}

/// Capabilities that a process of the shim's may still have when it is about to take on the container's identity. Who
/// enters a user namespace has all of them again, in there.
pub(crate) fn bound(spec: &ContainerSpec) -> CapabilitySet {
    if spec.confinement.privileged || spec.namespaces.users.is_some() {
        return ALL_CAPABILITIES;
    }
    CapabilitySet::from_bits_retain(capability::of_shim(spec.confinement.capabilities))
}

/// Reads what the agent has written about the container. Not inlined: it takes much of the stack, and the shim stays.
#[inline(never)]
fn load(dir: PathBuf) -> Result<(ShimConfig, Container), LoadError> {
    let record: ContainerRecord = record::read(&dir, CONTAINER_FILE)?.ok_or(LoadError::Missing)?;
    let spec = ContainerSpec::read(&dir)?.ok_or(LoadError::Missing)?;
    let hierarchies = match spec.cgroup.hierarchies.clone() {
        Some(known) => known,
        None => Hierarchies::find()?,
    };
    let config = record.shim_config(&dir);
    let container = Container {
        cgroup: hierarchies.container_cgroup(&spec.cgroup.path, &spec.cgroup.apart),
        // While this process may still look at the agent's descriptors.
        bare_mounts: spec
            .namespaces
            .bare_mounts
            .as_ref()
            .and_then(BareMountsPath::open),
        dir,
        spec,
    };
    Ok((config, container))
}

struct ContainerLauncher {
    container: Container,
    /// `None` until it was started.
    init: Option<InitProcess>,
}

impl Launcher for ContainerLauncher {
    fn start_init(&mut self, streams: ChildStreams) -> Result<Pid, LaunchError> {
        let Container { cgroup, spec, .. } = &self.container;
        let limited = cgroup
            .create()
            .and_then(|()| cgroup.limit(&spec.cgroup.resources));
        let limited = limited.and_then(|()| {
            if spec.confinement.privileged {
                Ok(())
            } else {
                cgroup.limit_devices(&device_rules(&spec.devices))
            }
        });
        limited.map_err(|error| LaunchError::Spawn(io::Error::other(error)))?;
        let init = init_process::start(&self.container, streams);
        self.container.bare_mounts = None;
        let init = init?;
        Ok(self.init.insert(init).pid)
    }

    fn user(&self) -> Option<ContainerUser> {
        self.init.as_ref().map(|init| init.user.report())
    }

    fn start_exec(&mut self, command: &[String], streams: ChildStreams) -> Result<Pid, LaunchError> {
        let Some(init) = &self.init else {
            return Err(LaunchError::Spawn(io::Error::other("the container does not run")));
        };
        exec_process::start(&self.container, init, command, streams)
    }

    fn open_multiplexer(&self) -> Option<OwnedFd> {
        let init = self.init.as_ref()?;
        // A container that has taken its terminals away gets one of the host's, without a name in there.
        terminal::open_multiplexer(&init.pidfd).ok()
    }

    /// The end of its init process is the end of a process namespace. Where the container has none of its own, the
    /// cgroup knows who belongs to it.
    fn kill_all(&mut self) {
        if let Some(init) = &self.init {
            let _ = pidfd_send_signal(&init.pidfd, Signal::KILL);
        }
        // A container can freeze itself, and would not die then.
        self.container.cgroup.thaw();
        match self.container.spec.namespaces.processes {
            PidNamespaceSource::Own => {}
            PidNamespaceSource::Pod(_) | PidNamespaceSource::Target(_) | PidNamespaceSource::Host => {
                self.container.cgroup.kill_until_empty(KILL_PATIENCE);
            }
        }
    }

    fn reaps_exec(&self) -> bool {
        true
    }

    fn oom_killed(&mut self) -> bool {
        self.container.cgroup.oom_killed()
    }

    fn clean_up(&mut self) {
        self.container.cgroup.remove();
    }
}
