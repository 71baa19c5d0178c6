//! What a runtime plugs into the shim: how processes are made and how all of them are killed.

use std::{
    ffi::OsStr,
    io::{self, ErrorKind},
    os::fd::OwnedFd,
};

use pulselet_runtime::ContainerUser;
use pulselet_sys::Pid;

/// Programs that draw read their kind of terminal from this variable.
const TERM: &str = "TERM";

/// How the processes of one kind of container come and go.
///
/// It is called only in processes with one thread: the shim itself, and for [`start_exec`](Launcher::start_exec) a copy
/// of it made by fork. Some signals are blocked in both; a program has to start with none blocked, in a session of its
/// own, and to be killed when its parent dies ([`Spawn`](pulselet_sys::Spawn) sees to all three).
pub trait Launcher {
    /// Starts the init process as a child of the caller.
    fn start_init(&mut self, streams: ChildStreams) -> Result<Pid, LaunchError>;

    /// Who the init process was started as. It is asked once, after the start.
    fn user(&self) -> Option<ContainerUser>;

    /// Starts an exec process, with the same surroundings as the init process, as a child of the caller.
    fn start_exec(&mut self, command: &[String], streams: ChildStreams) -> Result<Pid, LaunchError>;

    /// Opens what new terminals of the container are made with, so that they have names in there; `None` if the host's will do.
    fn open_multiplexer(&self) -> Option<OwnedFd> {
        None
    }

    /// Sends SIGKILL to everything in the container, as far as this kind of container can do that at one stroke. The
    /// shim follows up on all descendants by itself, so doing nothing is right where there is no such means.
    fn kill_all(&mut self);

    /// Whether what [`start_exec`](Launcher::start_exec) returns is not the command itself but a process that waits for
    /// it and exits with its code. Such a process is never killed before the command: asked to end by SIGTERM, it waits
    /// for everything that the command has left, and ends by itself.
    fn reaps_exec(&self) -> bool {
        false
    }

    /// Whether the kernel killed any process of the container for want of memory. It is asked once, after the end.
    fn oom_killed(&mut self) -> bool {
        false
    }

    /// Takes down what [`start_init`](Launcher::start_init) had set up. It is called when no process is left.
    fn clean_up(&mut self) {}
}

/// The ends of the streams that the new process gets.
#[derive(Debug)]
pub struct ChildStreams {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// All three are one terminal of this kind, as in `TERM`, which is to be the controlling one.
    pub terminal: Option<String>,
}

impl ChildStreams {
    /// The variable that tells programs which terminal they have, unless their environment has it already.
    pub fn term_variable(
        &self,
        mut names: impl Iterator<Item = impl AsRef<OsStr>>,
    ) -> Option<(&'static str, &str)> {
        let kind = self.terminal.as_deref()?;
        (!names.any(|name| name.as_ref() == TERM)).then_some((TERM, kind))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The container's own fault: its command is missing, its directory is not there.
    #[error("{0}")]
    CannotRun(String),
    /// The machine's fault: it has no more processes or no memory.
    #[error("cannot start a process: {0}")]
    Spawn(#[from] io::Error),
}

/// An error in the words of the system, without its number and in lower case, as messages about commands have it.
pub fn reason(error: &io::Error) -> String {
    if error.kind() == ErrorKind::NotFound {
        return "no such file or directory".to_owned();
    }
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or_default();
    let mut chars = words.chars();
    chars
        .next()
        .map(|first| first.to_lowercase().chain(chars).collect())
        .unwrap_or_default()
}
