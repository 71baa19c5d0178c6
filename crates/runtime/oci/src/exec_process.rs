//! Exec processes: commands run in a container beside its init process, for probes, hooks and people.
//!
//! The shim's supervisor of a command cannot wait for what the command leaves behind inside the container's process
//! namespace. So there are two forks: an exec reaper in that namespace, with nothing of the container but its cgroup,
//! and below it the command, which passes the same [`confinement`](crate::confinement) as the init process.

use std::{convert::Infallible, fs::File, io, os::fd::AsFd};

use pulselet_runtime::exit_code;
use pulselet_shim::{ChildStreams, LaunchError};
use pulselet_sys::{Fork, Pid, fork, termination_is_pending, work_without_descriptors};
use rustix::{
    io::Errno,
    process::{WaitOptions, getpid, set_child_subreaper, wait},
    thread::{ThreadNameSpaceType, move_into_thread_name_spaces},
};

use crate::{
    confinement::{self, ConfinedProcess, Entry, FIRST_INHERITED},
    init_process::InitProcess,
    shim::Container,
    spec::PidNamespaceSource,
    start_report::{self, ReportWriter, StartFailure},
};

/// Starts a command in a container whose init process runs. Returns the exec reaper, a child of the caller, which exits
/// with the command's code.
pub(crate) fn start(
    container: &Container,
    init: &InitProcess,
    command: &[String],
    streams: ChildStreams,
) -> Result<Pid, LaunchError> {
    let (reader, writer) = start_report::pipe()?;
    if container.spec.namespaces.processes != PidNamespaceSource::Host {
        move_into_thread_name_spaces(init.pidfd.as_fd(), ThreadNameSpaceType::PROCESS_ID)
            .map_err(io::Error::from)?;
    }
    match fork()? {
        Fork::Parent { child } => {
            drop((streams, writer));
            start_report::read_report(reader, child)?;
            Ok(child)
        }
        Fork::Child => {
            drop(reader);
            let process = ConfinedProcess {
                spec: &container.spec,
                command,
                streams: &streams,
            };
            start_report::run_child(writer, |report| run(container, init, process, report))
        }
    }
}

/// The rest of the child: it becomes the exec reaper, and its own child becomes the command.
fn run(
    container: &Container,
    init: &InitProcess,
    process: ConfinedProcess<'_>,
    report: &mut ReportWriter,
) -> Result<Infallible, StartFailure> {
    confinement::join_cgroup(&container.cgroup)?;
    set_child_subreaper(Some(getpid())).map_err(StartFailure::machine("become a subreaper"))?;
    match fork().map_err(StartFailure::machine("fork"))? {
        Fork::Child => {
            start_report::hide_process()?;
            confinement::run(process, Entry::Exec(init), report)
        }
        Fork::Parent { child } => {
            release_streams();
            // Among them the pipe of the report, the client's connection and the other ends of the streams: whoever
            // waits for one of them to close waits for the command, not for this process.
            work_without_descriptors(FIRST_INHERITED, || reap(child))
        }
    }
}

/// Keeps no stream open that this process began with.
fn release_streams() {
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else {
        return;
    };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}

/// Waits for the command, and also for all it has left behind if this process was asked to end. Returns the command's
/// exit code.
fn reap(command: Pid) -> i32 {
    let mut code = None;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => {
                code = Some(pulselet_shim::exit_code_of(status));
                if !termination_is_pending() {
                    break;
                }
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    code.unwrap_or(exit_code::UNKNOWN)
}
