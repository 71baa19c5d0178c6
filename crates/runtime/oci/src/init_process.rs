//! The init process of a container: its first process, whose end is the container's.
//!
//! It is a fork of the shim. Where the container has a process namespace of its own, nobody is there yet to look at it,
//! and it is made in there. Where others are, all is prepared outside, and only what has the container's rights and no
//! more is forked into the namespace. What becomes of it is [`confinement`](crate::confinement)'s business, which it
//! shares with [`exec_process`](crate::exec_process).

use std::{
    convert::Infallible,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
};

use pulselet_shim::{ChildStreams, LaunchError};
use pulselet_sys::{Fork, Pid, SoleThread, unshare_namespaces};
use rustix::{
    process::{PidfdFlags, pidfd_open},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};

use crate::{
    confinement::{self, ConfinedProcess, Entry},
    oom_score,
    shim::Container,
    spec::PidNamespaceSource,
    start_report::{self, Launched, ReportWriter, StartFailure},
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
    let (reader, mut writer) = start_report::pipe()?;
    let shims = File::open("/proc/self/ns/pid")?;
    if container.spec.namespaces.processes == PidNamespaceSource::Own {
        // For the next child, not for this process.
        unshare_namespaces(UnshareFlags::NEWPID)?;
    }
    let sole = SoleThread::check()?;
    let forked = sole.fork();
    if let Ok(Fork::Child) = forked {
        drop(reader);
        start_report::run_child(&mut writer, |report| run(container, &streams, &sole, report));
    }
    drop((streams, writer));
    // Later children of this process are for its own namespace again.
    let back = move_into_link_name_space(shims.as_fd(), Some(LinkNameSpaceType::ProcessID));
    let Fork::Parent { child } = forked? else {
        unreachable!("the child does not come here")
    };
    let succession = Entry::Init(container).succession();
    let Launched { pid, user } = start_report::read_report(reader, child, succession)?;
    back.map_err(io::Error::from)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
    Ok(InitProcess { pid, pidfd, user })
}

/// The rest of the child.
fn run(
    container: &Container,
    streams: &ChildStreams,
    sole: &SoleThread,
    report: &mut ReportWriter,
) -> Result<Infallible, StartFailure> {
    oom_score::take_containers(container.spec.cgroup.resources.oom_score_adj);
    confinement::join_cgroup(&container.cgroup)?;
    let process = ConfinedProcess {
        spec: &container.spec,
        command: &container.spec.command,
        streams,
        sole,
    };
    confinement::run(process, Entry::Init(container), report)
}
