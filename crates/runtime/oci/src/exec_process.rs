//! Exec processes: commands run in a container beside its init process, for probes, hooks and people.
//!
//! The shim's supervisor of a command cannot wait for what the command leaves behind inside the container's process
//! namespace, so there is an exec reaper in it, and the command below that. Before both comes the joiner: a fork of the
//! supervisor that passes the same [`confinement`](crate::confinement) as the init process while it is out of the
//! container's sight, and forks the reaper only when it has the container's rights and no more.
//!
//! Commands are run often, and copies of a process cost more than all the rest: the joiner works in the supervisor's memory
//! and the command, until its program runs, in the reaper's.

use std::convert::Infallible;

use pulselet_runtime::exit_code;
use pulselet_shim::{ChildStreams, LaunchError};
use pulselet_sys::{Pid, SoleThread, termination_is_pending, work_without_descriptors};
use rustix::{
    io::Errno,
    process::{WaitOptions, getpid, set_child_subreaper, wait},
};

use crate::{
    confinement::{self, ConfinedProcess, Entry},
    init_process::InitProcess,
    oom_score,
    shim::Container,
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
    let (reader, mut writer) = start_report::pipe()?;
    let entry = Entry::Exec(init);
    let sole = SoleThread::check()?;
    let process = ConfinedProcess {
        spec: &container.spec,
        command,
        streams: &streams,
        sole: &sole,
    };
    // Nothing waits for this process while the joiner is on its way, so that one need not be a copy.
    let joiner = sole.vfork(&mut || {
        start_report::run_child(&mut writer, |report| {
            oom_score::take_containers(container.spec.cgroup.resources.oom_score_adj);
            confinement::join_cgroup(&container.cgroup)?;
            confinement::run(process, entry, report)
        })
    })?;
    drop((streams, writer));
    Ok(start_report::read_report(reader, joiner, entry.succession())?.pid)
}

/// Makes this process, which is in the container and has its rights, the exec reaper of a command. `command` is the child's
/// way to its program.
pub(crate) fn reap_command(
    sole: &SoleThread,
    report: &mut ReportWriter,
    mut command: impl FnMut(&mut ReportWriter) -> Result<Infallible, StartFailure>,
) -> Result<Infallible, StartFailure> {
    set_child_subreaper(Some(getpid())).map_err(StartFailure::machine("become a subreaper"))?;
    let child = sole.vfork(&mut || start_report::run_child(report, |report| command(report)));
    let child = child.map_err(StartFailure::machine("fork"))?;
    // Among the descriptors are the streams and the pipe of the report: whoever waits for one of them to close waits for the
    // command, not for this process.
    work_without_descriptors(0, || reap(child))
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
