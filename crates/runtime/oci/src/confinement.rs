//! One confinement, two ways in: the init process of a container and every exec process pass [`run`] here.
//!
//! The steps, in this order, for both:
//! 1. nothing of the shim's arguments and environment is left in memory, and the standard streams are the given ones;
//! 2. the namespaces ([`Entry`]: made from the sandbox's, or those of the init process);
//! 3. the root file system (the init process makes it; an exec process has entered it with the mount namespace) and
//!    the user, looked up in it;
//! 4. the container's own session keyring, the pod's user namespace if it has one, and no descriptor of the shim's
//!    beyond the three streams and the report;
//! 5. the identity: bounding set of capabilities, user and groups, capabilities;
//! 6. the working directory, entered with the rights of the container and inside its root, or not at all;
//! 7. `no_new_privs` and the seccomp filter (which comes before 5 if the rights to install it end there);
//! 8. a fork into the process namespace, where others are in it already; for an exec process also the fork of the
//!    command by its reaper;
//! 9. a session, with the controlling terminal if there is one, and the program.
//!
//! What always holds: a program never has more rights than its container's specification gives, from its first
//! instruction on, and neither has any process that is visible from inside a container. Until step 8 the process is
//! either in a process namespace outside the container's or alone in that.

use std::{
    convert::Infallible,
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{AsFd, RawFd},
        unix::{ffi::OsStrExt, fs::MetadataExt as _},
    },
    path::PathBuf,
};

use pulselet_cgroup::Cgroup;
use pulselet_runtime::IdRange;
use pulselet_shim::{ChildStreams, reason};
use pulselet_sys::{
    Fork, ProcessCredentials, SoleThread, become_user, erase_arguments, exit_at_once, install_filter,
    join_session_keyring, unshare_namespaces,
};
use rustix::{
    fs::{Gid, Uid, fchown},
    io::Errno,
    process::{Signal, chdir, getcwd, ioctl_tiocsctty, set_parent_process_death_signal, setsid},
    thread::{
        CapabilitySet, CapabilitySets, LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags, capabilities,
        move_into_link_name_space, move_into_thread_name_spaces, remove_capability_from_bounding_set,
        set_capabilities, set_no_new_privs,
    },
};

use crate::{
    app_armor, bare_mounts, exec_process,
    init_process::InitProcess,
    program::Program,
    rootfs::{self, HostParts},
    shim::{self, Container},
    spec::{Confinement, ContainerSpec, NamespaceSpec, PidNamespaceSource},
    start_report::{self, ReportWriter, StartFailure, Succession},
    user::{self, User},
};

/// The first descriptor after stdin, stdout and stderr.
pub(crate) const FIRST_INHERITED: RawFd = 3;

/// Capabilities the kernel could ever have.
const MAX_CAPABILITIES: u32 = 64;

/// Also those that this build does not know by name.
pub(crate) const ALL_CAPABILITIES: CapabilitySet = CapabilitySet::from_bits_retain(u64::MAX);

/// Major number of /dev/null and its kind, whose owner must not change.
const MEMORY_DEVICES: u32 = 1;

/// A process on its way into a container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConfinedProcess<'a> {
    pub(crate) spec: &'a ContainerSpec,
    pub(crate) command: &'a [String],
    pub(crate) streams: &'a ChildStreams,
    pub(crate) sole: &'a SoleThread,
}

/// The two ways into a container.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Entry<'a> {
    /// The init process joins the sandbox's namespaces and makes the container's own, with its root file system.
    Init(&'a Container),
    /// An exec process joins those of the init process and runs as the same user.
    Exec(&'a InitProcess),
}

impl Entry<'_> {
    /// Where others are in the process namespace, they see only what was forked into it in the end.
    pub(crate) fn succession(&self) -> Succession {
        match self {
            Entry::Exec(_) => Succession::Sibling,
            Entry::Init(container) => match container.spec.namespaces.processes {
                PidNamespaceSource::Pod(_) | PidNamespaceSource::Target(_) => Succession::Sibling,
                PidNamespaceSource::Own | PidNamespaceSource::Host => Succession::Itself,
            },
        }
    }
}

/// Takes the calling process, a fork of the shim, into the container and runs the program. Returns only why it cannot.
pub(crate) fn run(
    process: ConfinedProcess<'_>,
    entry: Entry<'_>,
    report: &mut ReportWriter,
) -> Result<Infallible, StartFailure> {
    let streams = process.streams;
    erase_arguments(process.sole).map_err(StartFailure::machine("hide the agent's arguments"))?;
    take_streams(streams).map_err(StartFailure::machine("take the streams"))?;
    let users = PodUsers::open(&process.spec.namespaces)?;
    if let Some(name) = &process.spec.confinement.app_armor {
        app_armor::set_next_profile(name).map_err(StartFailure::machine("set the AppArmor profile"))?;
    }
    enter_namespaces(entry, process.spec)?;
    let user = enter_rootfs(entry, process, users.as_ref())?;
    join_keyring(process.spec)?;
    give_streams_to(&user, users.as_ref());
    if let Some(users) = &users {
        users.enter(entry)?;
    }
    if entry.succession() == Succession::Itself {
        begin_session(streams)?;
    }
    start_report::run_with_report_only(report, |report| run_confined(process, entry, &user, report))
}

/// The user namespace of a pod that has users of its own.
#[derive(Debug)]
pub(crate) struct PodUsers {
    pub(crate) namespace: File,
    pub(crate) ids: IdRange,
}

impl PodUsers {
    /// Returns `None` if the pod's users are the host's. The path is the host's.
    fn open(namespaces: &NamespaceSpec) -> Result<Option<Self>, StartFailure> {
        let Some(users) = &namespaces.users else {
            return Ok(None);
        };
        let namespace = File::open(&users.pin).map_err(StartFailure::machine("open the pod's users"))?;
        Ok(Some(Self {
            namespace,
            ids: users.ids,
        }))
    }

    /// Becomes root among the pod's users, with no rights on the host any more. The init process gets a mount namespace
    /// that belongs to them: in it nothing that was mounted before can be taken away or made writable.
    fn enter(&self, entry: Entry<'_>) -> Result<(), StartFailure> {
        enter_user_namespace(&self.namespace).map_err(StartFailure::machine("become the pod's user"))?;
        if let Entry::Init(_) = entry {
            unshare_namespaces(UnshareFlags::NEWNS).map_err(StartFailure::machine("make namespaces"))?;
        }
        // Changing the user made the kernel forget it.
        start_report::die_with_parent()
    }

    /// The host's number of the pod's root.
    pub(crate) fn root(&self) -> u32 {
        self.ids.first
    }
}

/// Enters a user namespace and becomes root in it. From 0 to another user there is a step at which the kernel takes the
/// capabilities away; from a user that the namespace does not know there is none.
pub(crate) fn enter_user_namespace(namespace: &File) -> io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))?;
    become_user(&ProcessCredentials {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    })
}

/// Leaves the agent's keys behind. The name is the container's cgroup, which no other container of the machine has.
fn join_keyring(spec: &ContainerSpec) -> Result<(), StartFailure> {
    let mut name = b"_ses.".to_vec();
    name.extend_from_slice(spec.cgroup.path.as_os_str().as_bytes());
    let name = CString::new(name).map_err(StartFailure::machine("name the session keyring"))?;
    match join_session_keyring(&name) {
        // There are no keys, or none for this process (a filter around the agent), and so none for its forks.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOSYS | Errno::PERM)) => Ok(()),
        joined => joined.map_err(StartFailure::machine("join the session keyring")),
    }
}

/// From the container's identity on.
fn run_confined(
    process: ConfinedProcess<'_>,
    entry: Entry<'_>,
    user: &User,
    report: &mut ReportWriter,
) -> Result<Infallible, StartFailure> {
    let ConfinedProcess {
        spec, streams, sole, ..
    } = process;
    let take_on = StartFailure::machine("take on the container's identity");
    take_identity(user, &spec.confinement, shim::bound(spec)).map_err(take_on)?;
    enter_working_dir(spec)?;
    let take_on = StartFailure::machine("take on the container's identity");
    give_up_privileges(&spec.confinement).map_err(take_on)?;
    if entry.succession() == Succession::Sibling {
        succeed_by_sibling(sole, report)?;
    }
    match entry {
        Entry::Init(_) => {
            if entry.succession() == Succession::Sibling {
                begin_session(streams)?;
            }
            run_program(process, user, report)
        }
        Entry::Exec(_) => exec_process::reap_command(sole, report, |report| {
            begin_session(streams)?;
            run_program(process, user, report)
        }),
    }
}

fn run_program(
    process: ConfinedProcess<'_>,
    user: &User,
    report: &mut ReportWriter,
) -> Result<Infallible, StartFailure> {
    let env = environment(process.spec, user, process.streams);
    report.ready(user)?;
    let program = Program {
        command: process.command,
        env: &env,
    };
    program
        .run()
        .map_err(|error| StartFailure::Container(error.to_string()))
}

/// Forks a process into the container's process namespace and ends this one. Returns in the new process.
fn succeed_by_sibling(sole: &SoleThread, report: &mut ReportWriter) -> Result<(), StartFailure> {
    let forked = sole.fork_sibling().map_err(StartFailure::machine("fork"))?;
    match forked {
        Fork::Child => start_report::die_with_parent(),
        Fork::Parent { child } => {
            report.forked(child)?;
            exit_at_once(0)
        }
    }
}

/// Joins the container's cgroup. It comes before everything else: whatever the process does next is accounted for and
/// can be killed by way of it.
pub(crate) fn join_cgroup(cgroup: &Cgroup) -> Result<(), StartFailure> {
    cgroup.join().map_err(StartFailure::machine("join the cgroup"))
}

/// Enters the namespaces. That of processes is for this process's forks, and where the container has one of its own the
/// init process was made in it.
fn enter_namespaces(entry: Entry<'_>, spec: &ContainerSpec) -> Result<(), StartFailure> {
    let shares_processes = spec.namespaces.processes != PidNamespaceSource::Host;
    match entry {
        Entry::Init(container) => join_sandbox(&container.spec.namespaces),
        Entry::Exec(init) => {
            let mut all = ThreadNameSpaceType::MOUNT
                | ThreadNameSpaceType::CONTROL_GROUP
                | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
                | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
                | ThreadNameSpaceType::NETWORK;
            if shares_processes {
                all |= ThreadNameSpaceType::PROCESS_ID;
            }
            move_into_thread_name_spaces(init.pidfd.as_fd(), all)
                .map_err(StartFailure::machine("enter the container"))
        }
    }
}

fn join_sandbox(pins: &NamespaceSpec) -> Result<(), StartFailure> {
    let processes = match &pins.processes {
        PidNamespaceSource::Pod(pin) => Some(pin.clone()),
        PidNamespaceSource::Target(pid) => {
            Some(target_namespace(*pid).map_err(StartFailure::machine("find the target container"))?)
        }
        PidNamespaceSource::Own | PidNamespaceSource::Host => None,
    };
    for (pin, kind) in [
        (pins.network.as_ref(), LinkNameSpaceType::Network),
        (pins.ipc.as_ref(), LinkNameSpaceType::InterProcessCommunication),
        (pins.uts.as_ref(), LinkNameSpaceType::HostNameAndNISDomainName),
        (processes.as_ref(), LinkNameSpaceType::ProcessID),
    ] {
        if let Some(pin) = pin {
            let file = File::open(pin).map_err(StartFailure::machine("open the sandbox's namespaces"))?;
            move_into_link_name_space(file.as_fd(), Some(kind))
                .map_err(StartFailure::machine("enter the sandbox"))?;
        }
    }
    Ok(())
}

/// The process namespace of a container's init process. Its number may be another's by now; one on the host is refused.
fn target_namespace(pid: i32) -> io::Result<PathBuf> {
    let path = PathBuf::from(format!("/proc/{pid}/ns/pid"));
    if std::fs::metadata(&path)?.ino() == std::fs::metadata("/proc/self/ns/pid")?.ino() {
        return Err(io::Error::other("it is gone"));
    }
    Ok(path)
}

fn take_streams(streams: &ChildStreams) -> rustix::io::Result<()> {
    rustix::stdio::dup2_stdin(&streams.stdin)?;
    rustix::stdio::dup2_stdout(&streams.stdout)?;
    rustix::stdio::dup2_stderr(&streams.stderr)
}

/// Begins a session, on the terminal if stdin is one.
fn begin_session(streams: &ChildStreams) -> Result<(), StartFailure> {
    setsid().map_err(StartFailure::machine("begin a session"))?;
    if streams.terminal.is_some() {
        ioctl_tiocsctty(rustix::stdio::stdin()).map_err(StartFailure::machine("take the terminal"))?;
    }
    Ok(())
}

/// Makes the root file system, or finds it made, and returns the user to run as.
fn enter_rootfs(
    entry: Entry<'_>,
    process: ConfinedProcess<'_>,
    users: Option<&PodUsers>,
) -> Result<User, StartFailure> {
    let container = match entry {
        Entry::Exec(init) => return Ok(init.user.clone()),
        Entry::Init(container) => container,
    };
    let parts = HostParts::open(container, users)?;
    enter_bare_mounts(container)?;
    unshare_namespaces(UnshareFlags::NEWNS | UnshareFlags::NEWCGROUP)
        .map_err(StartFailure::machine("make namespaces"))?;
    let console = process.streams.terminal.as_ref().map(|_| rustix::stdio::stdin());
    rootfs::enter(container, parts, console, users)?;
    let user =
        user::look_up(&container.spec.user).map_err(|error| StartFailure::Container(error.to_string()))?;
    let spec = &container.spec;
    rootfs::make_directory(&spec.working_dir).map_err(|error| bad_working_dir(spec, &error))?;
    Ok(user)
}

/// Leaves the mounts of all pods behind before the container's own namespace is made as a copy, where that is possible.
fn enter_bare_mounts(container: &Container) -> Result<(), StartFailure> {
    let Container { dir, spec, .. } = container;
    let Some(namespace) = &container.bare_mounts else {
        return Ok(());
    };
    let images = spec.mounted_images.values().flatten();
    let devices = spec.devices.iter().map(|device| device.host_path.as_path());
    let needed = spec.root.layers.iter().chain(images).map(PathBuf::as_path);
    let needed: Vec<_> = needed.chain(devices).chain([dir.as_path()]).collect();
    let entered = bare_mounts::enter(namespace, &needed);
    entered
        .map(drop)
        .map_err(StartFailure::machine("enter the agent's mount namespace"))
}

fn enter_working_dir(spec: &ContainerSpec) -> Result<(), StartFailure> {
    let failed = |error: io::Error| bad_working_dir(spec, &error);
    chdir(&spec.working_dir).map_err(|errno| failed(errno.into()))?;
    // The kernel's name of a directory that cannot be reached from this process's root does not begin at the root.
    let inside = getcwd(Vec::new()).is_ok_and(|path| path.as_bytes().starts_with(b"/"));
    if inside {
        Ok(())
    } else {
        Err(failed(io::Error::other("it is outside the container's root")))
    }
}

fn bad_working_dir(spec: &ContainerSpec, error: &io::Error) -> StartFailure {
    let dir = spec.working_dir.display().to_string();
    StartFailure::Container(format!("working directory {dir:?}: {}", reason(error)))
}

/// The container's variables, and if nothing else gives them, `HOME` from the user's entry and `TERM` for a terminal.
fn environment(spec: &ContainerSpec, user: &User, streams: &ChildStreams) -> Vec<(String, String)> {
    let mut env = spec.env.clone();
    let term = streams.term_variable(env.iter().map(|(name, _)| name));
    env.extend(term.map(|(name, kind)| (name.to_owned(), kind.to_owned())));
    if !env.iter().any(|(name, _)| name == "HOME") {
        let home = user.home.clone().unwrap_or_else(|| "/".to_owned());
        env.push(("HOME".to_owned(), home));
    }
    env
}

/// Becomes the user, for good, with no more capabilities than the confinement gives.
fn take_identity(user: &User, confinement: &Confinement, bound: CapabilitySet) -> io::Result<()> {
    let allowed = CapabilitySet::from_bits_retain(confinement.capabilities);
    bound_capabilities(bound, allowed)?;
    // While there is still the right to; with no_new_privs none is needed, and the last moment is best.
    if !confinement.no_new_privs {
        filter_system_calls(confinement)?;
    }
    become_user(&user.credentials())?;
    // Another user than root has lost them all by that, and root gets no more than the bound when a program is run.
    let held = if user.uid == 0 {
        capabilities(None)?.permitted & allowed
    } else {
        CapabilitySet::empty()
    };
    let sets = CapabilitySets {
        effective: held,
        permitted: held,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)?;
    // Changing the user made the kernel forget it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// The last of it: from here on the kernel gives nothing back.
fn give_up_privileges(confinement: &Confinement) -> io::Result<()> {
    if confinement.no_new_privs {
        set_no_new_privs(true)?;
        filter_system_calls(confinement)?;
    }
    Ok(())
}

fn filter_system_calls(confinement: &Confinement) -> io::Result<()> {
    confinement
        .seccomp
        .as_ref()
        .map_or(Ok(()), |filter| install_filter(&filter.0))
}

/// Takes away the capabilities that no program run by this process may ever have again. `bound` are those that it may
/// have now.
pub(crate) fn bound_capabilities(bound: CapabilitySet, allowed: CapabilitySet) -> io::Result<()> {
    for number in 0..MAX_CAPABILITIES {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if allowed.contains(one) || !bound.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // This kernel's last one was before it.
            Err(Errno::INVAL) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Lets the user open its streams again by name, as /dev/stdout does. This process is still the host's.
fn give_streams_to(user: &User, users: Option<&PodUsers>) {
    let on_host = |id: u32| users.map_or(Some(id), |users| users.ids.on_host(id));
    let (Some(uid), Some(gid)) = (on_host(user.uid), on_host(user.gid)) else {
        return;
    };
    for stream in [
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    ] {
        let shared = rustix::fs::fstat(stream).is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
                && rustix::fs::major(stat.st_rdev) == MEMORY_DEVICES
        });
        if !shared {
            // A stream that cannot be given away can still be used.
            let _ = fchown(stream, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        }
    }
}
