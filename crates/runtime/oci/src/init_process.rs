//! The init process of a container: its first process, whose end is the container's.
//!
//! It is a fork of the shim, made in the container's process namespace. What becomes of it there is
//! [`confinement`](crate::confinement)'s business, which it shares with [`exec_process`](crate::exec_process).

use std::{
    convert::Infallible,
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use pulselet_shim::{ChildStreams, LaunchError};
use pulselet_sys::{Fork, Pid, fork, unshare_namespaces};
use rustix::{
    process::{PidfdFlags, pidfd_open},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};

use crate::{
    confinement::{self, ConfinedProcess, Entry},
    shim::Container,
    spec::{ContainerSpec, PidNamespaceSource},
    start_report::{self, ReportWriter, StartFailure},
    user::User,
};

/// An init process that runs.
#[derive(Debug)]
pub(crate) struct InitProcess {
    pub(crate) pid: Pid,
    /// Names the process also when it is gone and its number is another's.
    pub(crate) pidfd: OwnedFd,
    pub(crate) user: User,
}

/// Starts the init process as a child of the caller.
pub(crate) fn start(container: &Container, streams: ChildStreams) -> Result<InitProcess, LaunchError> {
    let (reader, writer) = start_report::pipe()?;
    let shims = File::open("/proc/self/ns/pid")?;
    choose_pid_namespace(&container.spec.namespaces.processes)?;
    let forked = fork();
    if let Ok(Fork::Child) = forked {
        drop(reader);
        start_report::run_child(writer, |report| run(container, &streams, report));
    }
    drop((streams, writer));
    // Later children of this process are for its own namespace again.
    let back = join_pid_namespace(shims.as_fd());
    let Fork::Parent { child: pid } = forked? else {
        unreachable!("the child does not come here")
    };
    let user = start_report::read_report(reader, pid);
    back?;
    let user = user?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
    Ok(InitProcess { pid, pidfd, user })
}

/// Chooses the process namespace of the caller's next child.
fn choose_pid_namespace(source: &PidNamespaceSource) -> io::Result<()> {
    match source {
        PidNamespaceSource::Own => unshare_namespaces(UnshareFlags::NEWPID),
        PidNamespaceSource::Pod(pin) => join_pid_namespace(File::open(pin)?.as_fd()),
        PidNamespaceSource::Host => Ok(()),
    }
}

fn join_pid_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(
        namespace,
        Some(LinkNameSpaceType::ProcessID),
    )?)
}

/// The rest of the child.
fn run(
    container: &Container,
    streams: &ChildStreams,
    report: &mut ReportWriter,
) -> Result<Infallible, StartFailure> {
    adjust_oom_score(&container.spec);
    confinement::join_cgroup(&container.cgroup)?;
    let process = ConfinedProcess {
        spec: &container.spec,
        command: &container.spec.command,
        streams,
    };
    confinement::run(process, Entry::Init(container), report)
}

/// Goes as far as this process has the right to: a lower score than one's own needs a capability.
fn adjust_oom_score(spec: &ContainerSpec) {
    if let Some(score) = spec.cgroup.resources.oom_score_adj {
        let _ = std::fs::write("/proc/self/oom_score_adj", score.to_string());
    }
}
