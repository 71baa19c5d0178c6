//! Starting a shim: from the agent's child to a daemon with a running container.
//!
//! The agent starts it with a pipe as stdout and reads one [`Handshake`] from it. A process that the agent waits for
//! leaves a copy of itself behind ([`detach`]). Whatever becomes of the agent in between, the container's one life begins at most once: the
//! lock and the life record see to that.

use std::{
    fs::{self, File},
    io,
    ops::ControlFlow,
    os::{fd::RawFd, unix::net::UnixListener},
    path::{Path, PathBuf},
    process::ExitCode,
};

use jiff::Timestamp;
use pulselet_runtime::{ContainerExit, ExitCause, Signal, exit_code};
use pulselet_sys::{
    ChildSignals, Fork, SoleThread, block_termination, close_on_exec_from, fork, release_free_memory,
    release_unused_stack,
};
use rustix::{
    fs::Mode,
    process::{chdir, getpid, set_child_subreaper, setsid, umask},
};

use crate::{
    handshake::{Handshake, report},
    init_streams::InitStreams,
    launcher::{LaunchError, Launcher},
    log_file::LogFile,
    process_streams::StreamOptions,
    record::{self, LifeRecord, RecordError, SOCKET_FILE},
    shim::{Phase, Shim},
};

/// The first descriptor after stdin, stdout and stderr.
const FIRST_INHERITED: RawFd = 3;

/// The mask a container's processes start with, as in other runtimes.
const CONTAINER_UMASK: u32 = 0o022;

/// What a shim needs to know besides how to launch.
#[derive(Debug, Clone)]
pub struct ShimConfig {
    /// The container's directory, absolute.
    pub dir: PathBuf,
    pub log_path: PathBuf,
    /// Bytes.
    pub log_file_size: u64,
    pub log_files: u32,
    /// The effective one.
    pub stop_signal: Signal,
    pub stdin: bool,
    pub stdin_once: bool,
    pub tty: bool,
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("the container was started before")]
    AlreadyStarted,
    #[error("the container was removed")]
    Removed,
    #[error("{0}")]
    CannotRun(String),
    #[error("cannot {step}: {source}")]
    Setup { step: &'static str, source: io::Error },
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Goes on as a process that nobody waits for. In the one that the agent waits for it is over: it returns the code to exit
/// with.
pub fn detach() -> ControlFlow<ExitCode> {
    match fork() {
        Ok(Fork::Parent { .. }) => ControlFlow::Break(ExitCode::SUCCESS),
        Ok(Fork::Child) => ControlFlow::Continue(()),
        Err(source) => ControlFlow::Break(report_failure(StartError::Setup { step: "fork", source })),
    }
}

/// Becomes the shim of the container and returns when that has ended.
pub fn run<L: Launcher>(config: ShimConfig, launcher: L) -> ExitCode {
    let lock = match claim_first_start(&config.dir) {
        Ok(lock) => lock,
        Err(error) => return report_failure(error),
    };
    match start(config, launcher, lock) {
        Ok(shim) => {
            let pid = shim.init.as_raw_nonzero().get();
            report(&Handshake::Started {
                pid,
                started_at: shim.started_at,
            });
            // The agent reads until nobody has the pipe open any more.
            let _ = release_streams();
            // There is a shim for each container, and starting took more than it ever will again.
            if let Ok(sole) = SoleThread::check() {
                release_unused_stack(&sole);
            }
            release_free_memory();
            shim.run()
        }
        Err(error) => report_failure(error),
    }
}

/// Makes sure that this is the container's first start.
fn claim_first_start(dir: &Path) -> Result<File, StartError> {
    let setup = |step| move |source| StartError::Setup { step, source };
    close_on_exec_from(FIRST_INHERITED).map_err(setup("close inherited descriptors"))?;
    // From here on relative paths are in the directory, however long its own path is.
    chdir(dir).map_err(|errno| StartError::Setup {
        step: "enter the container's directory",
        source: errno.into(),
    })?;
    let here = Path::new(".");
    let lock = record::try_lock(here)
        .map_err(setup("lock"))?
        .ok_or(StartError::AlreadyStarted)?;
    // Looked at under the lock, which whoever removes a container takes first.
    if !here.join(record::CONTAINER_FILE).exists() {
        return Err(StartError::Removed);
    }
    if record::read_life(here)?.is_some() || record::read_exit(here)?.is_some() {
        return Err(StartError::AlreadyStarted);
    }
    Ok(lock)
}

/// Not inlined: what it takes of the stack is given back when it has returned.
#[inline(never)]
fn start<L: Launcher>(config: ShimConfig, mut launcher: L, lock: File) -> Result<Shim<L>, StartError> {
    let setup = |step| move |source| StartError::Setup { step, source };
    let system = |step| {
        move |errno: rustix::io::Errno| StartError::Setup {
            step,
            source: errno.into(),
        }
    };
    setsid().map_err(system("begin a session"))?;
    set_child_subreaper(Some(getpid())).map_err(system("become a subreaper"))?;
    block_termination().map_err(setup("block signals"))?;
    let signals = ChildSignals::new().map_err(setup("watch for children"))?;
    let listener = listen().map_err(setup("listen"))?;
    let log = LogFile::open(&config.log_path, config.log_file_size, config.log_files)
        .map_err(setup("open the log"))?;
    let options = StreamOptions {
        stdin: config.stdin,
        tty: config.tty,
        // The container has no terminals of its own yet; it gets this one as its console.
        multiplexer: None,
        term: None,
    };
    let (streams, child_streams) = InitStreams::open(options, log).map_err(setup("make streams"))?;
    record::write_life(Path::new("."), &LifeRecord::Launching)?;
    let init = match launcher.start_init(child_streams) {
        Ok(init) => init,
        Err(error) => return Err(not_launched(&mut launcher, error)),
    };
    let started_at = Timestamp::now();
    let user = launcher.user();
    let shim = Shim {
        config,
        launcher,
        listener,
        signals,
        streams,
        init,
        started_at,
        lock,
        phase: Phase::Running,
        clients: Vec::new(),
        execs: std::collections::HashSet::new(),
        jobs: Vec::new(),
    };
    // Should this fail, the record says Launching, which to an agent without a shim means the same.
    let _ = record::write_life(
        Path::new("."),
        &LifeRecord::Running {
            pid: init.as_raw_nonzero().get(),
            started_at,
            user,
        },
    );
    Ok(shim)
}

/// The container's fault is its end; the machine's leaves it as it was.
fn not_launched<L: Launcher>(launcher: &mut L, error: LaunchError) -> StartError {
    launcher.clean_up();
    let _ = fs::remove_file(SOCKET_FILE);
    match error {
        LaunchError::CannotRun(message) => {
            let exit = ContainerExit {
                started_at: None,
                finished_at: Timestamp::now(),
                code: exit_code::START_ERROR,
                reason: ExitCause::StartError,
                message: message.clone(),
                killed_after_grace: None,
            };
            match record::write_exit(Path::new("."), &exit) {
                Ok(()) => StartError::CannotRun(message),
                Err(error) => error.into(),
            }
        }
        LaunchError::Spawn(source) => {
            let _ = fs::remove_file(record::LIFE_FILE);
            StartError::Setup {
                step: "start a process",
                source,
            }
        }
    }
}

/// The socket is this user's alone. The mask is process-wide, but nobody else is here.
fn listen() -> io::Result<UnixListener> {
    match fs::remove_file(SOCKET_FILE) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(SOCKET_FILE);
    umask(Mode::from_raw_mode(CONTAINER_UMASK));
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn report_failure(error: StartError) -> ExitCode {
    report(&match error {
        StartError::AlreadyStarted => Handshake::AlreadyStarted,
        StartError::CannotRun(message) => Handshake::CannotRun { message },
        StartError::Removed | StartError::Setup { .. } | StartError::Record(_) => Handshake::Failed {
            detail: error.to_string(),
        },
    });
    ExitCode::FAILURE
}

fn release_streams() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}
