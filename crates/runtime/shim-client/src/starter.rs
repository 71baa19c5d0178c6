//! The agent's side of starters: the processes that shims are copies of.

use std::{
    fmt, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pulselet_shim::{STARTER_VARIABLE, StartRequest};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::process::{Child, Command};

use crate::shims::ShimCommand;

/// What a starter has of the agent's variables, and so every shim.
const VARIABLES: [&str; 2] = ["PATH", "HOME"];

/// Starts shims. The process for it is run when the first one may soon be asked for, and again if it has gone.
#[derive(Debug)]
pub(crate) struct Starter {
    shim: ShimCommand,
    /// Takes the place of a container's directory among its arguments. Shims show theirs instead, which is as long.
    any_dir: PathBuf,
    running: Mutex<Option<Running>>,
}

impl Starter {
    pub(crate) const fn new(shim: ShimCommand, any_dir: PathBuf) -> Self {
        Self {
            shim,
            any_dir,
            running: Mutex::new(None),
        }
    }

    /// Runs the process if there is none, so that nobody waits for it. What goes wrong is seen when a shim is to be started.
    pub(crate) fn prepare(&self) {
        let mut running = self.running();
        if running.is_none() {
            *running = self.run().ok();
        }
    }

    /// Starts the shim of a container. Where there can be no starter, the program is run for this shim alone.
    pub(crate) fn start(&self, request: StartRequest<'_>) -> io::Result<Option<Child>> {
        match self.ask(&request) {
            Ok(()) => Ok(None),
            Err(error) => {
                tracing::debug!(%error, "a shim is started without a starter");
                self.run_alone(request).map(Some)
            }
        }
    }

    /// Asks this starter no more: a shim that it should have started has not reported. What it was asked for it still does.
    pub(crate) fn give_up(&self) {
        if let Some(Running { socket, mut child }) = self.running().take() {
            drop(socket);
            tokio::spawn(async move { child.wait().await });
        }
    }

    fn ask(&self, request: &StartRequest<'_>) -> io::Result<()> {
        let mut running = self.running();
        if let Some(starter) = running.as_ref() {
            match request.send(&starter.socket) {
                Err(error) if is_gone(&error) => {}
                result => return result,
            }
        }
        let starter = running.insert(self.run()?);
        request.send(&starter.socket)
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) -> io::Result<Running> {
        let flags = SocketFlags::CLOEXEC;
        let (socket, its_own) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let child = self
            .command(&self.any_dir)
            .env(STARTER_VARIABLE, "1")
            .stdin(its_own)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Running { socket, child })
    }

    fn run_alone(&self, request: StartRequest<'_>) -> io::Result<Child> {
        self.command(request.dir)
            .stdin(Stdio::null())
            .stdout(request.report)
            .stderr(request.errors)
            .spawn()
    }

    fn command(&self, dir: &Path) -> Command {
        let mut command = Command::new(&self.shim.program);
        command
            .args(&self.shim.args)
            .arg(dir)
            .env_clear()
            .current_dir("/");
        command.envs(
            VARIABLES
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        );
        command
    }
}

impl fmt::Display for Starter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shim.program.display().fmt(formatter)
    }
}

/// A starter's process. It ends with the agent, and its shims do not.
#[derive(Debug)]
struct Running {
    socket: OwnedFd,
    child: Child,
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}
