//! The pause process: the first process of a pod whose containers share their process namespace.
//!
//! Such a namespace needs a process that was there first and waits for orphans. The pause process does nothing else, is
//! nobody's child, and is found by its cgroup, also by an agent that has never heard of it.

use std::{
    fs::{self, File},
    io,
    path::Path,
    process::ExitCode,
};

use jiff::Timestamp;
use pulselet_shim::Handshake;
use pulselet_sys::{ChildSignals, Fork, Pid, close_on_exec_from, exit_at_once, fork, unshare_namespaces};
use rustix::{
    event::{PollFd, PollFlags, poll},
    mount::mount_bind,
    process::{DumpableBehavior, WaitOptions, chdir, set_dumpable_behavior, setsid, wait},
    thread::{UnshareFlags, set_name},
};

use crate::{
    cgroup::{Cgroup, Hierarchies},
    confinement::FIRST_INHERITED,
    sandbox::PROCESSES,
};

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
    unshare_namespaces(UnshareFlags::NEWPID)?;
    match fork()? {
        Fork::Child => exit_at_once(wait_for_orphans().map_or(1, |()| 0)),
        Fork::Parent { child } => {
            let pin = sandbox_dir.join(PROCESSES);
            fs::write(&pin, "")?;
            mount_bind(format!("/proc/{}/ns/pid", child.as_raw_nonzero()), &pin)?;
            Ok(child)
        }
    }
}

/// Waits for orphans until it is killed.
fn wait_for_orphans() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_name(c"pulselet-pod")?;
    setsid()?;
    chdir("/")?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let signals = ChildSignals::new()?;
    loop {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        // Interrupted or not, the next turn looks again.
        let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], None);
        signals.clear();
    }
}
