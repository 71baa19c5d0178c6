//! From a fork of the shim to a running program: the main process of a container, and commands beside it.
//!
//! The child does everything in its own process and tells its parent over a pipe that closes by itself when the program
//! runs. While it is still a copy of the shim it cannot be looked into from inside the container.

use std::{
    fs::File,
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::{AsFd, BorrowedFd, RawFd},
    path::Path,
};

use pulselet_shim::{ChildStreams, ExecCommand, LaunchError};
use pulselet_sys::{
    Fork, Pid, close_on_exec_from, exit_at_once, fork, termination_is_pending, unshare_namespaces,
    work_without_descriptors,
};
use rustix::{
    io::Errno,
    process::{
        DumpableBehavior, Signal, WaitOptions, chdir, getpid, ioctl_tiocsctty, set_child_subreaper,
        set_dumpable_behavior, set_parent_process_death_signal, setsid, wait,
    },
    thread::{
        LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags, move_into_link_name_space,
        move_into_thread_name_spaces,
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    cgroup::Cgroup,
    identity,
    launch::{Launch, Processes},
    program::{Program, reason},
    rootfs::{self, RootError},
    user::{self, User},
};

/// The first descriptor after stdin, stdout and stderr.
const FIRST_INHERITED: RawFd = 3;

/// What a child tells its parent. Nothing after `Ready` means that the program runs.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    /// All is done but running the program, as this user.
    Ready(User),
    /// The container's fault.
    CannotRun(String),
    /// The machine's.
    Failed(String),
}

/// Why a child gives up.
enum Trouble {
    Container(String),
    Machine(String),
}

impl From<RootError> for Trouble {
    fn from(error: RootError) -> Self {
        match error {
            RootError::OpenSource { .. } | RootError::Attach { .. } => Self::Container(error.to_string()),
            RootError::Overlay(_)
            | RootError::Pivot(_)
            | RootError::Kernel { .. }
            | RootError::Hide { .. }
            | RootError::ReadOnlyRoot(_) => Self::Machine(error.to_string()),
        }
    }
}

/// Wraps what the machine refuses.
fn machine<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Trouble {
    move |error| Trouble::Machine(format!("cannot {step}: {}", error.into()))
}

/// A container's main process, running, and who it runs as.
pub(crate) struct Born {
    pub(crate) pid: Pid,
    pub(crate) user: User,
}

/// Starts the main process, in new and in pinned namespaces, as a child of the caller.
pub(crate) fn bear(
    launch: &Launch,
    dir: &Path,
    cgroup: &Cgroup,
    streams: ChildStreams,
) -> Result<Born, LaunchError> {
    let (reader, writer) = io::pipe()?;
    let own = File::open("/proc/self/ns/pid")?;
    match &launch.namespaces.processes {
        Processes::Own => unshare_namespaces(UnshareFlags::NEWPID)?,
        Processes::Pod(pin) => {
            let pin = File::open(pin)?;
            move_into_link_name_space(pin.as_fd(), Some(LinkNameSpaceType::ProcessID))
                .map_err(io::Error::from)?;
        }
        Processes::Host => {}
    }
    let forked = fork();
    if let Ok(Fork::Child) = forked {
        drop(reader);
        child(writer, |report| {
            main_process(launch, dir, cgroup, &streams, report)
        });
    }
    drop((streams, writer));
    // Later children of this process are for its own namespace again.
    let back = move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID));
    let Fork::Parent { child: pid } = forked? else {
        unreachable!("the child does not come here")
    };
    let born = hear(reader, pid);
    back.map_err(io::Error::from)?;
    Ok(Born { pid, user: born? })
}

/// Starts a command in the container of `main`, as a child of the caller: not the command itself, but a process that
/// reaps what the command leaves, inside the container's process namespace, where the caller cannot.
pub(crate) fn join(
    launch: &Launch,
    cgroup: &Cgroup,
    main: BorrowedFd<'_>,
    user: &User,
    command: &ExecCommand,
    streams: ChildStreams,
) -> Result<Pid, LaunchError> {
    let (reader, writer) = io::pipe()?;
    if launch.namespaces.processes != Processes::Host {
        move_into_thread_name_spaces(main, ThreadNameSpaceType::PROCESS_ID).map_err(io::Error::from)?;
    }
    match fork()? {
        Fork::Parent { child } => {
            drop((streams, writer));
            hear(reader, child)?;
            Ok(child)
        }
        Fork::Child => {
            drop(reader);
            child(writer, |report| {
                beside(launch, cgroup, main, user, command, &streams, report)
            })
        }
    }
}

/// The whole life of a forked child: it either becomes a program or reports why not.
fn child(mut report: PipeWriter, life: impl FnOnce(&mut PipeWriter) -> Result<(), Trouble>) -> ! {
    let last = match life(&mut report) {
        Ok(()) => exit_at_once(0),
        Err(Trouble::Container(message)) => Report::CannotRun(message),
        Err(Trouble::Machine(message)) => Report::Failed(message),
    };
    let _ = tell(&mut report, &last);
    exit_at_once(1)
}

fn tell(report: &mut PipeWriter, what: &Report) -> io::Result<()> {
    let bytes = serde_json::to_vec(what).map_err(io::Error::from)?;
    report.write_all(&bytes)
}

/// Waits until the child's program runs. A child that does not get that far is waited for.
fn hear(mut reader: PipeReader, child: Pid) -> Result<User, LaunchError> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    let reports = serde_json::Deserializer::from_slice(&bytes).into_iter::<Report>();
    let problem = match reports.last() {
        Some(Ok(Report::Ready(user))) => return Ok(user),
        Some(Ok(Report::CannotRun(message))) => LaunchError::CannotRun(message),
        Some(Ok(Report::Failed(message))) => LaunchError::Spawn(io::Error::other(message)),
        Some(Err(_)) | None => LaunchError::Spawn(io::Error::other("the new process was killed")),
    };
    let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
    Err(problem)
}

/// What every child does first.
fn settle() -> Result<(), Trouble> {
    // Its memory and program file are the agent's: nothing in the container may open them.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(machine("hide this process"))?;
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(machine("tie the process to its parent"))
}

fn main_process(
    launch: &Launch,
    dir: &Path,
    cgroup: &Cgroup,
    streams: &ChildStreams,
    report: &mut PipeWriter,
) -> Result<(), Trouble> {
    settle()?;
    adjust_oom_score(launch);
    cgroup.join().map_err(machine("join the cgroup"))?;
    enter_sandbox(launch)?;
    let terminal = streams.terminal;
    take_streams(streams)?;
    unshare_namespaces(UnshareFlags::NEWNS | UnshareFlags::NEWCGROUP).map_err(machine("make namespaces"))?;
    let console = terminal.then(rustix::stdio::stdin);
    rootfs::enter(launch, dir, cgroup, console)?;
    let user = user::resolve(&launch.user).map_err(|error| Trouble::Container(error.to_string()))?;
    std::fs::create_dir_all(&launch.working_dir).map_err(|error| working_dir_trouble(launch, &error))?;
    run(launch, &launch.command, user, report)
}

/// As far as this process has the right to: a lower score than one's own needs a capability.
fn adjust_oom_score(launch: &Launch) {
    if let Some(score) = launch.cgroup.resources.oom_score_adj {
        let _ = std::fs::write("/proc/self/oom_score_adj", score.to_string());
    }
}

fn enter_sandbox(launch: &Launch) -> Result<(), Trouble> {
    let pins = &launch.namespaces;
    for (pin, kind) in [
        (&pins.network, LinkNameSpaceType::Network),
        (&pins.ipc, LinkNameSpaceType::InterProcessCommunication),
        (&pins.uts, LinkNameSpaceType::HostNameAndNISDomainName),
    ] {
        if let Some(pin) = pin {
            let file = File::open(pin).map_err(machine("open the sandbox's namespaces"))?;
            move_into_link_name_space(file.as_fd(), Some(kind)).map_err(machine("enter the sandbox"))?;
        }
    }
    Ok(())
}

/// Begins a session on the given streams.
fn take_streams(streams: &ChildStreams) -> Result<(), Trouble> {
    setsid().map_err(machine("begin a session"))?;
    let take = |streams: &ChildStreams| -> rustix::io::Result<()> {
        rustix::stdio::dup2_stdin(&streams.stdin)?;
        rustix::stdio::dup2_stdout(&streams.stdout)?;
        rustix::stdio::dup2_stderr(&streams.stderr)?;
        if streams.terminal {
            ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        Ok(())
    };
    take(streams).map_err(machine("take the streams"))
}

/// The rest of the way, the same for both kinds of process.
fn run(launch: &Launch, command: &[String], user: User, report: &mut PipeWriter) -> Result<(), Trouble> {
    chdir(&launch.working_dir).map_err(|errno| working_dir_trouble(launch, &errno.into()))?;
    close_on_exec_from(FIRST_INHERITED).map_err(machine("close what is the agent's"))?;
    identity::assume(&user, &launch.confinement).map_err(machine("take on the container's identity"))?;
    let mut env = launch.env.clone();
    if !env.iter().any(|(name, _)| name == "HOME") {
        let home = user.home.clone().unwrap_or_else(|| "/".to_owned());
        env.push(("HOME".to_owned(), home));
    }
    // A parent that is gone would never wait for this process.
    tell(report, &Report::Ready(user)).map_err(machine("report"))?;
    let program = Program { command, env: &env };
    Err(Trouble::Container(program.run()))
}

fn working_dir_trouble(launch: &Launch, error: &io::Error) -> Trouble {
    let dir = launch.working_dir.display().to_string();
    Trouble::Container(format!("working directory {dir:?}: {}", reason(error)))
}

/// The process between a supervisor and a command.
fn beside(
    launch: &Launch,
    cgroup: &Cgroup,
    main: BorrowedFd<'_>,
    user: &User,
    command: &ExecCommand,
    streams: &ChildStreams,
    report: &mut PipeWriter,
) -> Result<(), Trouble> {
    settle()?;
    cgroup.join().map_err(machine("join the cgroup"))?;
    set_child_subreaper(Some(getpid())).map_err(machine("become a subreaper"))?;
    match fork().map_err(machine("fork"))? {
        Fork::Child => {
            settle()?;
            let all = ThreadNameSpaceType::MOUNT
                | ThreadNameSpaceType::CONTROL_GROUP
                | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
                | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
                | ThreadNameSpaceType::NETWORK;
            move_into_thread_name_spaces(main, all).map_err(machine("enter the container"))?;
            take_streams(streams)?;
            run(launch, &command.command, user.clone(), report)
        }
        Fork::Parent { child } => {
            forget_streams();
            // Among them the pipe of the report, the client's connection and the other ends of the streams: whoever
            // waits for one of them to close waits for the command, not for this process.
            work_without_descriptors(FIRST_INHERITED, || reap(child))
        }
    }
}

/// Keeps no stream open that this process began with.
fn forget_streams() {
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else {
        return;
    };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}

/// Waits for the command, and for all it has left behind if this process was told to end. Returns its exit code.
fn reap(command: Pid) -> i32 {
    let mut code = None;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => {
                let signal = status.terminating_signal().map(|signal| 128 + signal);
                code = status.exit_status().or(signal);
                if !termination_is_pending() {
                    break;
                }
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    code.unwrap_or(255)
}
