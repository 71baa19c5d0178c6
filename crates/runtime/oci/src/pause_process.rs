//! The pause process: the first process of a pod whose containers share their process namespace.
//!
//! Such a namespace needs a process that was there first and inherits orphans. The pause process does nothing else, is
//! nobody's child, and is found by its cgroup, also by an agent that has never heard of it. While it is alone it mounts
//! the file system by which the namespace's processes are seen: every container of the pod gets a view of that one, so
//! that none of them has to be made by a process inside.
//!
//! What always holds: nothing can be reached through it. Its root is empty, its namespaces are the pod's, and it has no
//! capability, no descriptor and no argument.

use std::{
    convert::Infallible,
    fs::{self, File},
    io::{self, PipeWriter, Read, Write},
    os::fd::AsFd,
    path::Path,
    process::ExitCode,
};

use jiff::Timestamp;
use pulselet_cgroup::{Cgroup, Hierarchies};
use pulselet_shim::Handshake;
use pulselet_sys::{
    Fork, Pid, ProcessCredentials, SoleThread, become_user, close_on_exec_from, erase_arguments,
    ignore_children, install_filter, unshare_namespaces, work_with_one_descriptor, work_without_descriptors,
};
use rustix::{
    event::poll,
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change},
    process::{DumpableBehavior, WaitOptions, set_dumpable_behavior, setsid, waitpid},
    thread::{
        CapabilitySet, CapabilitySets, LinkNameSpaceType, UnshareFlags, move_into_link_name_space,
        set_capabilities, set_name, set_no_new_privs,
    },
};

use crate::{
    confinement::{self, ALL_CAPABILITIES, FIRST_INHERITED, bound_capabilities},
    rootfs::change_root,
    sandbox::{IPC, NETWORK, PROC, PROCESSES, USERS, UTS},
    seccomp,
};

/// Nobody's user and group, as pause processes elsewhere have them.
const NOBODY: u32 = 65_535;

/// What the pause process reports when all is done; anything else is why it is not.
const READY: &str = "ready";

/// The code of a pause process that could not begin.
const FAILED: i32 = 1;

/// Leaves the pause process behind, pins its namespace in the sandbox's directory and reports to the agent on stdout.
pub(crate) fn main(sandbox_dir: &Path, cgroup: &Path) -> ExitCode {
    let (handshake, code) = match start(sandbox_dir, cgroup) {
        Ok(pid) => (
            Handshake::Started {
                pid: pid.as_raw_nonzero().get(),
                started_at: Timestamp::now(),
            },
            ExitCode::SUCCESS,
        ),
        Err(error) => (
            Handshake::Failed {
                detail: error.to_string(),
            },
            ExitCode::FAILURE,
        ),
    };
    pulselet_shim::report(&handshake);
    code
}

fn start(sandbox_dir: &Path, cgroup: &Path) -> io::Result<Pid> {
    close_on_exec_from(FIRST_INHERITED)?;
    let cgroup: Cgroup = Hierarchies::find().map_err(io::Error::other)?.cgroup(cgroup);
    cgroup.create().map_err(io::Error::other)?;
    cgroup.join()?;
    let sole = SoleThread::check()?;
    let (mut reader, mut writer) = io::pipe()?;
    unshare_namespaces(UnshareFlags::NEWPID)?;
    match sole.fork()? {
        Fork::Child => {
            let Err(error) = become_pause_process(sandbox_dir, &sole, &mut writer);
            let _ = write!(writer, "{error}");
            pulselet_sys::exit_at_once(FAILED)
        }
        Fork::Parent { child } => {
            drop(writer);
            let pin = sandbox_dir.join(PROCESSES);
            fs::write(&pin, "")?;
            mount_bind(format!("/proc/{}/ns/pid", child.as_raw_nonzero()), &pin)?;
            let mut report = String::new();
            reader.read_to_string(&mut report)?;
            if report == READY {
                return Ok(child);
            }
            let _ = waitpid(Some(child), WaitOptions::empty());
            let unknown = report.is_empty().then(|| "it was killed".to_owned());
            Err(io::Error::other(unknown.unwrap_or(report)))
        }
    }
}

/// Returns only why it cannot.
fn become_pause_process(
    sandbox_dir: &Path,
    sole: &SoleThread,
    report: &mut PipeWriter,
) -> io::Result<Infallible> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_name(c"pulselet-pod")?;
    setsid()?;
    ignore_children()?;
    mount_proc(&sandbox_dir.join(PROC))?;
    join_sandbox(sandbox_dir)?;
    erase_arguments(sole)?;
    let users = open_pin(&sandbox_dir.join(USERS))?;
    enter_empty_root(sandbox_dir)?;
    if let Some(users) = users {
        confinement::enter_user_namespace(&users)?;
    }
    drop_rights()?;
    work_with_one_descriptor(report, |report| {
        // If the agent is gone, the next one finds this process by its cgroup.
        let _ = report.write_all(READY.as_bytes());
        work_without_descriptors(0, wait_for_ever)
    })
}

/// Mounts the processes' files where the shims of the pod find them. Only this process is in the namespace.
fn mount_proc(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", path, "proc", flags, None)?)
}

/// Enters what the pod has of its own: through a process in the host's namespaces, containers would see those.
fn join_sandbox(sandbox_dir: &Path) -> io::Result<()> {
    for (name, kind) in [
        (NETWORK, LinkNameSpaceType::Network),
        (IPC, LinkNameSpaceType::InterProcessCommunication),
        (UTS, LinkNameSpaceType::HostNameAndNISDomainName),
    ] {
        if let Some(pin) = open_pin(&sandbox_dir.join(name))? {
            move_into_link_name_space(pin.as_fd(), Some(kind))?;
        }
    }
    Ok(())
}

/// Returns `None` if the pod has the host's.
fn open_pin(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Leaves the host's files for a root with nothing in it. For this process alone it is mounted over the sandbox's
/// directory on the way.
fn enter_empty_root(sandbox_dir: &Path) -> io::Result<()> {
    unshare_namespaces(UnshareFlags::NEWNS | UnshareFlags::NEWCGROUP)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let options = Some(c"size=0,nr_inodes=2,mode=555");
    mount("tmpfs", sandbox_dir, "tmpfs", flags, options)?;
    change_root(sandbox_dir)
}

fn drop_rights() -> io::Result<()> {
    let filter = seccomp::default_filter(0).map_err(io::Error::other)?;
    bound_capabilities(ALL_CAPABILITIES, CapabilitySet::empty())?;
    become_user(&ProcessCredentials {
        uid: NOBODY,
        gid: NOBODY,
        groups: Vec::new(),
    })?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none)?;
    set_no_new_privs(true)?;
    install_filter(&filter.0)
}

fn wait_for_ever() -> i32 {
    loop {
        // Only a signal ends it, and then the next turn waits again.
        let _ = poll(&mut [], None);
    }
}
