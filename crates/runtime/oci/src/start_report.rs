//! What a forked child reports to the shim about its start, over a pipe.
//!
//! The child does everything in its own process, or in one that it forks in its own place. The pipe closes by itself
//! when the program runs, because its writing end is close-on-exec; until then every step that fails is reported as the
//! container's fault or the machine's.
//!
//! What always holds: a child hides itself from the container before it does anything else ([`run_child`]), and when
//! [`read_report`] returns, a child that forked another in its place was waited for, and so were both if the start
//! failed.

use std::{
    convert::Infallible,
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::{AsFd, BorrowedFd},
};

use pulselet_shim::LaunchError;
use pulselet_sys::{Pid, exit_at_once, process_id, work_with_one_descriptor};
use rustix::process::{
    DumpableBehavior, Signal, WaitId, WaitIdOptions, WaitOptions, set_dumpable_behavior,
    set_parent_process_death_signal, waitid,
};
use serde::{Deserialize, Serialize};

use crate::{rootfs::RootError, user::User};

/// The code of a child that could not become a program. Nobody reads it: the report says more.
const FAILED_CHILD: i32 = 1;

/// What a child writes. Nothing after `Ready` but perhaps `Forked` means that the program runs.
#[derive(Debug, Serialize, Deserialize)]
enum StartReport {
    /// Another process, with this id on the host, takes the child's place.
    Forked(i32),
    /// All is done but running the program, as this user.
    Ready(User),
    /// The container's fault.
    CannotRun(String),
    /// The machine's fault.
    Failed(String),
}

/// Why a child gives up.
#[derive(Debug)]
pub(crate) enum StartFailure {
    /// The container's fault: its command, its user, its mounts.
    Container(String),
    /// The machine's fault.
    Machine(String),
}

impl StartFailure {
    /// Wraps what the machine refuses. `step` is worded so that it fits after "cannot".
    pub(crate) fn machine<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Machine(format!("cannot {step}: {}", error.into()))
    }
}

impl From<RootError> for StartFailure {
    fn from(error: RootError) -> Self {
        match error {
            RootError::OpenSource { .. }
            | RootError::MapOwners { .. }
            | RootError::Attach { .. }
            | RootError::CoveredRoot
            | RootError::KernelTarget { .. } => Self::Container(error.to_string()),
            RootError::Overlay(_)
            | RootError::OwnFiles(_)
            | RootError::Devices(_)
            | RootError::Pivot(_)
            | RootError::Kernel { .. }
            | RootError::HidingLayer(_)
            | RootError::Hide { .. }
            | RootError::ReadOnlyRoot(_) => Self::Machine(error.to_string()),
        }
    }
}

/// The child's end of the pipe.
#[derive(Debug)]
pub(crate) struct ReportWriter(PipeWriter);

impl ReportWriter {
    /// Reports that only running the program is left. A shim that is gone is an error: nobody would ever wait for this
    /// process.
    pub(crate) fn ready(&mut self, user: &User) -> Result<(), StartFailure> {
        self.write(&StartReport::Ready(user.clone()))
            .map_err(StartFailure::machine("report"))
    }

    /// Reports the process that takes this one's place.
    pub(crate) fn forked(&mut self, sibling: Pid) -> Result<(), StartFailure> {
        self.write(&StartReport::Forked(sibling.as_raw_nonzero().get()))
            .map_err(StartFailure::machine("report"))
    }

    fn failed(&mut self, failure: StartFailure) {
        let last = match failure {
            StartFailure::Container(message) => StartReport::CannotRun(message),
            StartFailure::Machine(message) => StartReport::Failed(message),
        };
        // If the shim is gone, nobody asks any more.
        let _ = self.write(&last);
    }

    fn write(&mut self, report: &StartReport) -> io::Result<()> {
        let bytes = serde_json::to_vec(report).map_err(io::Error::from)?;
        self.0.write_all(&bytes)
    }
}

impl AsFd for ReportWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Both ends of a new pipe.
pub(crate) fn pipe() -> io::Result<(PipeReader, ReportWriter)> {
    let (reader, writer) = io::pipe()?;
    Ok((reader, ReportWriter(writer)))
}

/// Spends the rest of a forked child on `body`, which ends by running a program, and reports why it did not.
pub(crate) fn run_child(
    report: &mut ReportWriter,
    body: impl FnOnce(&mut ReportWriter) -> Result<Infallible, StartFailure>,
) -> ! {
    let Err(failure) = hide_process().and_then(|()| body(report));
    report.failed(failure);
    exit_at_once(FAILED_CHILD)
}

/// Goes on with no descriptor but the standard streams and the report. What `body` refers to must not need any other.
pub(crate) fn run_with_report_only(
    report: &mut ReportWriter,
    body: impl FnOnce(&mut ReportWriter) -> Result<Infallible, StartFailure>,
) -> ! {
    work_with_one_descriptor(report, |report| {
        let Err(failure) = body(report);
        report.failed(failure);
        FAILED_CHILD
    })
}

/// Hides a copy of the shim from the container, and ties its life to its parent's. Its memory and program file are the
/// agent's: nothing in the container may open them. Its own forks are hidden as well.
fn hide_process() -> Result<(), StartFailure> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(StartFailure::machine("hide this process"))?;
    die_with_parent()
}

/// Ties the life of this process to its parent's; a fork has to do it anew.
pub(crate) fn die_with_parent() -> Result<(), StartFailure> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(StartFailure::machine("tie the process to its parent"))
}

/// Whether a child forks another process in its own place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Succession {
    Itself,
    Sibling,
}

/// A process that runs its program, or stands for one that does.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) pid: Pid,
    pub(crate) user: User,
}

/// Waits until the child's program runs, and returns the process and the user it runs as.
pub(crate) fn read_report(
    mut reader: PipeReader,
    child: Pid,
    succession: Succession,
) -> Result<Launched, LaunchError> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    let mut sibling = None;
    let mut last = None;
    for report in serde_json::Deserializer::from_slice(&bytes).into_iter::<StartReport>() {
        match report {
            Ok(StartReport::Forked(pid)) => sibling = process_id(pid),
            Ok(report) => last = Some(report),
            Err(_) => last = None,
        }
    }
    let launched = match succession {
        Succession::Itself => Some(child),
        Succession::Sibling => {
            wait_for(child);
            sibling.filter(|pid| is_own_child(*pid))
        }
    };
    let problem = match (last, launched) {
        (Some(StartReport::Ready(user)), Some(pid)) => return Ok(Launched { pid, user }),
        (Some(StartReport::CannotRun(message)), _) => LaunchError::CannotRun(message),
        (Some(StartReport::Failed(message)), _) => LaunchError::Spawn(io::Error::other(message)),
        (Some(StartReport::Ready(_) | StartReport::Forked(_)) | None, _) => {
            LaunchError::Spawn(io::Error::other("the new process was killed"))
        }
    };
    launched.into_iter().for_each(wait_for);
    Err(problem)
}

/// The process that was forked is in the container, and whoever may trace processes there writes what he likes by way of
/// it. The process that it names is one to be killed some day: it must not be somebody else's.
fn is_own_child(pid: Pid) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), look).is_ok()
}

fn wait_for(child: Pid) {
    let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[expect(
        clippy::zombie_processes,
        reason = "the child is waited for by what is tested"
    )]
    fn read(reports: &[StartReport]) -> Result<Launched, LaunchError> {
        let (reader, mut writer) = pipe().expect("a pipe");
        for report in reports {
            writer.write(report).expect("writes");
        }
        drop(writer);
        let child = Command::new("true").spawn().expect("runs");
        read_report(reader, Pid::from_child(&child), Succession::Sibling)
    }

    /// Whoever traces a command in a container could have any process of the host killed in its place.
    #[test]
    #[expect(clippy::zombie_processes, reason = "it is waited for by its id")]
    fn a_report_names_no_process_of_others() {
        let user = || User {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            home: None,
        };
        let sibling = Command::new("true").spawn().expect("runs");
        let own = i32::try_from(sibling.id()).expect("a number");
        let launched =
            read(&[StartReport::Forked(own), StartReport::Ready(user())]).expect("is the caller's own");
        assert_eq!(launched.pid.as_raw_nonzero().get(), own);
        for forged in [1, i32::try_from(std::process::id()).expect("a number")] {
            let reports = [
                StartReport::Forked(own),
                StartReport::Forked(forged),
                StartReport::Ready(user()),
            ];
            assert!(read(&reports).is_err(), "{forged}");
        }
        wait_for(launched.pid);
    }
}
